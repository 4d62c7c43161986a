//! Requests that only extended headers can express: about a whole array, however large that is.

use uraid_tests::array::Array;
use uraid_tests::nbd::extended::{Chunk, ExtendedClient, Extent, PAYLOAD_LEN};
use uraid_tests::nbd::{Command, error};
use uraid_tests::server::Server;
use uraid_tests::shape;

const TIB: u64 = 1 << 40;

/// Four of five hold content, and some of each holds the log.
const MEMBER_BYTES: usize = 258 << 30;

const BLOCK: usize = 64 << 10;

fn connect(server: &Server) -> ExtendedClient {
    ExtendedClient::connect(server.socket()).expect("the server has extended headers")
}

fn call(client: &mut ExtendedClient, command: Command, offset: u64, length: u64) -> u32 {
    let reply = client.call(0, command, offset, length, &[]).expect("the server replies");
    reply.error().unwrap_or_else(|| panic!("{command:?} of {length} at {offset}: {reply:?}"))
}

fn write(client: &mut ExtendedClient, offset: u64) {
    let reply = client.call(PAYLOAD_LEN, Command::Write, offset, BLOCK as u64, &[0xd7; BLOCK]);
    assert_eq!(reply.expect("the server replies").error(), Some(0), "a write at {offset}");
}

/// Whether a block is zeros.
fn is_zero(client: &mut ExtendedClient, offset: u64) -> bool {
    let Chunk { kind, payload } = client.call(0, Command::Read, offset, BLOCK as u64, &[]).expect("the server replies");
    assert_eq!((kind, &payload[..8]), (1, &offset.to_be_bytes()[..]), "data of that place");
    payload[8..].iter().all(|&byte| byte == 0)
}

/// All extents, asked for as often as it takes.
fn map(client: &mut ExtendedClient) -> Vec<Extent> {
    let (size, mut at, mut map) = (client.size(), 0, Vec::new());
    while at < size {
        let extents = client.status(at, size - at).expect("a status");
        at += extents.iter().map(|extent| extent.length).sum::<u64>();
        map.extend(extents);
    }
    assert_eq!(at, size, "no extent goes beyond the end");
    map
}

#[test]
fn a_tebibyte_is_trimmed_zeroed_and_asked_about_in_one_request() {
    for options in [&[][..], &["--connection-threads", "2"]] {
        let array = Array::planned(&shape::raid5_of_5_left_symmetric());
        let _ = array.run_create(MEMBER_BYTES, &["--sparse"]).success();
        let server = Server::start_members(&array, array.members(), options);
        let (mut client, mut other) = (connect(&server), server.connect());
        let size = client.size();
        assert!(size > TIB, "{size}");
        let whole = client.status(0, size).expect("a status");
        assert_eq!(whole, [Extent { length: size, status: 3 }], "a new array is a hole");

        // Some of these are in pieces that compact requests could be, and some are where such pieces would meet.
        let places = [0, (4 << 30) - 4096, 300 << 30, TIB - 4096, size - BLOCK as u64];
        for command in [Command::Trim, Command::WriteZeroes] {
            places.iter().for_each(|&place| write(&mut client, place));
            let told = map(&mut client);
            let data: u64 = told.iter().filter(|extent| extent.status == 0).map(|extent| extent.length).sum();
            let written = (places.len() * BLOCK) as u64;
            // A bit is for some pages of so large an array.
            assert!((written..=2 * written).contains(&data), "{command:?}: {data} bytes are data: {told:?}");
            client.send(0, command, 0, size, &[]).expect("it is sent");
            let _ = other.read(TIB as usize / 2, 4096);
            assert_eq!(client.receive(0).expect("a reply").error(), Some(0), "{command:?} of everything");
            assert!(places.iter().all(|&place| is_zero(&mut client, place)), "{command:?} of everything");
            let told = map(&mut client);
            let unknown = told.iter().filter(|extent| extent.status & 2 == 0).map(|extent| extent.length).sum::<u64>();
            // Of a piece in which the cache writes something out meanwhile less is known.
            assert!(unknown <= 32 << 30, "{command:?}: {unknown} bytes are not known as zeros: {told:?}");
            // To the byte.
            write(&mut client, 300 << 30);
            assert_eq!(call(&mut client, command, (300 << 30) + 1, size - (300 << 30) - 1), 0, "{command:?}");
            let rest = other.read(300 << 30, BLOCK);
            assert!(rest[0] == 0xd7 && rest[1..].iter().all(|&byte| byte == 0), "{command:?} of all but a byte");
        }
        for (command, expected) in [
            (Command::Trim, error::EINVAL),
            (Command::WriteZeroes, error::ENOSPC),
            (Command::BlockStatus, error::EINVAL),
        ] {
            for (offset, length) in [(0, size + 1), (TIB, size - TIB + 1), (512, u64::MAX - 511), (TIB, u64::MAX)] {
                assert_eq!(call(&mut client, command, offset, length), expected, "{command:?} of {length} at {offset}");
            }
        }
        assert_eq!(call(&mut client, Command::Cache, 0, size), 0);
        let _ = server.stop();
        assert!(array.space() < 4 << 30, "the members have taken {} bytes", array.space());
    }
}
