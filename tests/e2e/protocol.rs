//! Requests and peers that are wrong get the right error, and nobody else notices.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use uraid_tests::array::{Array, Content};
use uraid_tests::image::{Random, assert_same, read_export};
use uraid_tests::nbd::{Client, Command, error};
use uraid_tests::server::Server;
use uraid_tests::shape;

/// Larger than the largest request, so that an oversized one is still inside the array.
const LARGE_MEMBER_BYTES: usize = 32 << 20;

#[test]
fn wrong_requests_are_answered_and_the_connection_lives() {
    let array = Array::create(&shape::raid5_of_5_left_symmetric());
    let server = Server::start(&array);
    let mut client = server.connect();
    let size = client.size();
    assert_eq!(size, array.expected_size() as u64);
    let data = Random::new(21).bytes(64 << 10);
    client.write(0, &data);

    let sector = &data[..512];
    let wrong: [(Command, u64, u32, &[u8], u32); 10] = [
        (Command::Read, size, 512, &[], error::EINVAL),
        (Command::Read, size - 512, 1024, &[], error::EINVAL),
        (Command::Read, u64::MAX - 511, 512, &[], error::EINVAL),
        (Command::Write, size, 512, sector, error::ENOSPC),
        (Command::Write, size - 512, 1024, &data[..1024], error::ENOSPC),
        (Command::Write, u64::MAX - 511, 512, sector, error::ENOSPC),
        (Command::WriteZeroes, size - 512, 1024, &[], error::ENOSPC),
        (Command::Trim, size, 4096, &[], error::EINVAL),
        (Command::Unknown, 0, 512, &[], error::EINVAL),
        (Command::Trim, u64::MAX, 4096, &[], error::EINVAL),
    ];
    for (command, offset, length, payload, expected) in wrong {
        let reply = client.call(command, offset, length, payload);
        assert_eq!(reply.error, expected, "{command:?} of {length} at {offset}");
        assert_same(&client.read(0, data.len()), &data, "the connection lives and the data is as it was");
    }
    client.disconnect();
    let _ = server.stop();
    Content::read(&array).assert_consistent("after wrong requests");
}

/// Requests that don't keep to the block size that the server announced: refused, or served exactly.
#[test]
fn unaligned_requests_are_refused_or_exact() {
    let array = Array::create(&shape::rm2_of_6());
    let server = Server::start(&array);
    let mut client = server.connect();
    let [smallest, ..] = client.block_sizes().expect("the server announces its block sizes");
    let mut model = Random::new(22).bytes(64 << 10);
    client.write(0, &model);
    for (offset, length) in [(1, 512), (100, 700), (511, 2), (512, 100), (4095, 4098)] {
        let payload = vec![0x5a; length];
        let size = u32::try_from(length).expect("a short request");
        let written = client.call(Command::Write, offset as u64, size, &payload);
        let read = client.call(Command::Read, offset as u64, size, &[]);
        if smallest > 1 {
            assert_eq!((written.error, read.error), (error::EINVAL, error::EINVAL), "{length} at {offset}");
        } else {
            assert_eq!((written.error, read.error), (0, 0), "{length} at {offset}");
            model[offset..offset + length].copy_from_slice(&payload);
        }
        assert_same(&client.read(0, model.len()), &model, &format!("after {length} at {offset}"));
    }
    client.disconnect();
    let _ = server.stop();
    Content::read(&array).assert_consistent("after unaligned requests");
}

#[test]
fn oversized_requests_are_refused_and_the_connection_lives() {
    let array = Array::create_sized(&shape::raid0_of_4(), LARGE_MEMBER_BYTES);
    let server = Server::start(&array);
    let mut client = server.connect();
    let [_, _, largest] = client.block_sizes().expect("the server announces its block sizes");
    let oversized = largest + 4096;
    assert!(u64::from(oversized) < client.size(), "{largest} is a bound on memory that an array can exceed");
    let data = Random::new(23).bytes(4096);
    client.write(0, &data);
    let payload = vec![0xff; usize::try_from(oversized).expect("32 bits fit a size")];
    for (command, length, payload) in
        [(Command::Read, oversized, &[][..]), (Command::Write, oversized, &payload), (Command::Read, !511, &[])]
    {
        let reply = client.call(command, 0, length, payload);
        assert!([error::EINVAL, error::EOVERFLOW].contains(&reply.error), "{command:?} of {length}: {reply:?}");
        assert_same(&client.read(0, data.len()), &data, "the connection lives and the data is as it was");
    }
    client.disconnect();
    let _ = server.stop();
}

/// Replies can come in any order, so each must carry its own request's data.
#[test]
fn replies_belong_to_their_requests() {
    let array = Array::create(&shape::raid10_of_5());
    let server = Server::start(&array);
    let mut client = server.connect();
    let image = Random::new(24).bytes(1 << 20);
    client.write(0, &image);
    let mut random = Random::new(25);
    let mut expected = std::collections::HashMap::new();
    for round in 0..64 {
        let (offset, length) = random.sectors(image.len(), [512, 256 << 10][round % 2]);
        let size = u32::try_from(length).expect("a short request");
        let cookie = client.submit(Command::Read, offset as u64, size, &[]).unwrap();
        expected.insert(cookie, offset..offset + length);
    }
    while !expected.is_empty() {
        let reply = client.reply().unwrap();
        let range = expected.remove(&reply.cookie).expect("one reply to each request");
        assert_eq!(reply.error, 0);
        assert_same(&reply.data, &image[range], "a pipelined read");
    }
    client.disconnect();
    let _ = server.stop();
}

#[test]
fn garbage_ends_its_own_connection_alone() {
    let array = Array::create(&shape::raid5_of_3());
    let server = Server::start(&array);
    let mut honest = server.connect();
    let data = Random::new(26).bytes(4096);
    honest.write(0, &data);
    let mut random = Random::new(27);
    let long_option = [&0x3u32.to_be_bytes()[..], b"IHAVEOPT", &7u32.to_be_bytes(), &u32::MAX.to_be_bytes()].concat();
    let refused_flags = 0xffff_ffffu32.to_be_bytes().to_vec();
    for garbage in [random.bytes(4096), vec![0; 4096], long_option, refused_flags] {
        let mut peer = UnixStream::connect(server.socket()).unwrap();
        peer.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
        // The server may close while this still writes.
        drop(peer.write_all(&garbage));
        drop(peer.shutdown(std::net::Shutdown::Write));
        let mut rest = Vec::new();
        if let Err(error) = peer.read_to_end(&mut rest) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "the server closes the connection");
        }
        assert_same(&honest.read(0, data.len()), &data, "another connection goes on");
    }
    honest.disconnect();
    assert_same(&read_export(server.uri())[..data.len()], &data, "new connections are served");
    let _ = server.stop();
}

/// A client that asks for much and reads nothing: the server must neither wait for it nor keep it all in memory.
#[test]
fn a_dead_client_blocks_nobody() {
    let array = Array::create(&shape::raid5_of_5_left_symmetric());
    let server = Server::start(&array);
    let mut deaf: Vec<Client> = (0..4).map(|_| server.connect()).collect();
    for client in &mut deaf {
        for _ in 0..256 {
            client.submit(Command::Read, 0, 1 << 20, &[]).unwrap();
        }
    }
    let silent: Vec<UnixStream> = (0..4).map(|_| UnixStream::connect(server.socket()).unwrap()).collect();
    let mut honest = server.connect();
    let data = Random::new(28).bytes(256 << 10);
    honest.write(4096, &data);
    honest.flush();
    assert_same(&honest.read(4096, data.len()), &data, "beside clients that read nothing");
    let resident = server.memory().resident;
    assert!(resident < 640 << 20, "{resident} bytes for 1 GiB of replies that nobody reads");
    honest.disconnect();
    drop((deaf, silent));
    let _ = server.stop();
}
