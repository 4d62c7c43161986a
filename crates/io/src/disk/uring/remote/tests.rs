//! Operations on a server that is written by hand from the protocol document, and misbehaves on request.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::super::super::{Disk as _, Segments};
use super::super::UringDisk;
use super::*;
use uuid::Uuid;

use crate::buf::Buf;
use crate::format::owner::{OWNER_BYTES, Owner};
use crate::member::{Access, this_process};

const SIZE: u64 = 4 << 20;
const FIRST: MemberIndex = MemberIndex(0);
/// has-flags, flush, FUA, trim, zeroes.
const FLAGS: u16 = 0x6d;
const FUA: u16 = 8;

const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const ZEROES: u16 = 6;

/// A request as the server has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    flags: u16,
    kind: u16,
    offset: u64,
    length: u32,
}

/// What the server does with a request.
enum Answer {
    Well,
    /// An error of this number.
    Error(u32),
    /// It closes the connection.
    Hangup,
    /// It answers when told to, and until then takes no further request.
    Wait,
    /// A reply to nobody's request.
    Lie,
    /// Well, and another process has the export.
    Rob,
}

/// A server with one connection, on a thread of its own.
struct Server {
    directory: tempfile::TempDir,
    thread: JoinHandle<Vec<Seen>>,
    go_on: Sender<()>,
}

impl Server {
    fn start(flags: u16, maximum: u32, answer: impl Fn(&Seen) -> Answer + Send + 'static) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("s")).unwrap();
        let (go_on, waits) = channel();
        let thread = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            serve(stream, flags, maximum, &waits, answer)
        });
        Self { directory, thread, go_on }
    }

    fn member(&self) -> Arc<Member> {
        let uri = format!("nbd+unix:///?socket={}", self.directory.path().join("s").display());
        Arc::new(Member::open(uri.as_ref(), Access::ReadWrite).unwrap())
    }

    fn disk(&self) -> UringDisk {
        let mut disk = UringDisk::new(vec![Some(self.member())], 8).unwrap();
        disk.claim().unwrap();
        disk
    }

    /// What it was asked, once its client has gone.
    fn seen(self) -> Vec<Seen> {
        self.thread.join().unwrap()
    }
}

fn shake_hands(stream: &mut (impl Read + Write), flags: u16, maximum: u32) {
    let reply = |option: u32, kind: u32, data: &[u8]| {
        let length = u32::try_from(data.len()).unwrap();
        let magic = b"\0\x03\xe8\x89\x04\x55\x65\xa9";
        [&magic[..], &option.to_be_bytes(), &kind.to_be_bytes(), &length.to_be_bytes(), data].concat()
    };
    stream.write_all(b"NBDMAGICIHAVEOPT\0\x03").unwrap();
    stream.read_exact(&mut [0; 4]).unwrap();
    loop {
        let mut header = [0; 16];
        stream.read_exact(&mut header).unwrap();
        let number = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
        let (option, mut data) = (number(8), vec![0; number(12) as usize]);
        stream.read_exact(&mut data).unwrap();
        if option != 7 {
            stream.write_all(&reply(option, 0x8000_0001, b"")).unwrap();
            continue;
        }
        let sizes = [&b"\0\x03"[..], &512u32.to_be_bytes(), &4096u32.to_be_bytes(), &maximum.to_be_bytes()].concat();
        let export = [&b"\0\0"[..], &SIZE.to_be_bytes(), &flags.to_be_bytes()].concat();
        return stream.write_all(&[reply(7, 3, &sizes), reply(7, 3, &export), reply(7, 1, b"")].concat()).unwrap();
    }
}

fn serve(
    mut stream: UnixStream,
    flags: u16,
    maximum: u32,
    waits: &Receiver<()>,
    answer: impl Fn(&Seen) -> Answer,
) -> Vec<Seen> {
    shake_hands(&mut stream, flags, maximum);
    let (mut content, mut seen) = (vec![0; SIZE as usize], Vec::new());
    let mut header = [0; 28];
    while stream.read_exact(&mut header).is_ok() {
        let cookie = &header[8..16];
        let request = Seen {
            flags: u16::from_be_bytes([header[4], header[5]]),
            kind: u16::from_be_bytes([header[6], header[7]]),
            offset: u64::from_be_bytes(header[16..24].try_into().unwrap()),
            length: u32::from_be_bytes(header[24..].try_into().unwrap()),
        };
        let Seen { kind, offset, length, .. } = request;
        if kind == 2 {
            break;
        }
        let is_mark = (offset, length) == (40 << 10, 4096);
        if !is_mark {
            seen.push(request);
        }
        let own = if kind == FLUSH { 0..0 } else { offset as usize..offset as usize + length as usize };
        let mut data = vec![0; if kind == WRITE { length as usize } else { 0 }];
        if stream.read_exact(&mut data).is_err() {
            break;
        }
        let error = match if is_mark { Answer::Well } else { answer(&request) } {
            Answer::Well => 0,
            Answer::Rob => {
                content[40 << 10..44 << 10].copy_from_slice(&others());
                0
            }
            Answer::Error(error) => error,
            Answer::Hangup => break,
            Answer::Wait => waits.recv().map_or(5, |()| 0),
            Answer::Lie => {
                let _ = stream.write_all(b"\x67\x44\x66\x98\0\0\0\0nobodys!");
                continue;
            }
        };
        let mut reply = [&b"\x67\x44\x66\x98"[..], &error.to_be_bytes(), cookie].concat();
        match kind {
            _ if error != 0 => {}
            READ => reply.extend(&content[own]),
            WRITE => content[own].copy_from_slice(&data),
            ZEROES => content[own].fill(0),
            _ => {}
        }
        if stream.write_all(&reply).is_err() {
            break;
        }
    }
    seen
}

/// The mark of another process.
fn others() -> [u8; OWNER_BYTES] {
    Owner { run: Uuid::from_u128(1), ..this_process().clone() }.encode()
}

fn op(tag: u64, kind: OpKind, offset: u64, segments: Segments) -> DiskOp {
    DiskOp { tag, member: FIRST, kind, offset: Bytes(offset), segments }
}

fn write(tag: u64, kind: OpKind, offset: u64, buf: &Buf) -> DiskOp {
    op(tag, kind, offset, Segments::from_iter([buf.lease_read(0..buf.len())]))
}

fn read(tag: u64, offset: u64, buf: &mut Buf) -> DiskOp {
    let len = buf.len();
    op(tag, OpKind::Read, offset, Segments::from_iter([buf.lease_write(0..len)]))
}

fn flush(tag: u64) -> DiskOp {
    op(tag, OpKind::Flush, 0, Segments::new())
}

/// Runs operations to their ends, which are in the order of their tags then.
fn run(disk: &mut UringDisk, ops: impl IntoIterator<Item = DiskOp>) -> Vec<Result<(), DiskError>> {
    ops.into_iter().for_each(|op| disk.submit(op));
    let mut completions = Vec::new();
    disk.kick().unwrap();
    disk.reap(&mut completions);
    while disk.in_flight() > 0 {
        disk.wait().unwrap();
        disk.reap(&mut completions);
    }
    completions.sort_by_key(|completion| completion.tag);
    completions.into_iter().map(|completion| completion.result).collect()
}

fn errno(result: &Result<(), DiskError>) -> Option<Errno> {
    match result {
        Err(DiskError::Io { errno, .. }) => Some(*errno),
        _ => None,
    }
}

fn pattern(len: u64, seed: u64) -> Buf {
    let mut buf = Buf::zeroed(Bytes(len));
    let numbers = (seed..).map(|number| (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8);
    buf.as_mut().iter_mut().zip(numbers).for_each(|(byte, number)| *byte = number);
    buf
}

#[test]
fn what_is_written_is_read_in_pieces_of_any_size() {
    let server = Server::start(FLAGS, 32 << 20, |_| Answer::Well);
    let mut disk = server.disk();
    // Small ones that are copied, large ones that are not, and both side by side.
    let sizes = [512u64, 4096, 16 << 10, 512, 1 << 20, 4096, 300 << 10];
    let starts: Vec<u64> = sizes.iter().scan(0, |at, size| Some(std::mem::replace(at, *at + size))).collect();
    let written: Vec<Buf> = sizes.iter().zip(&starts).map(|(size, at)| pattern(*size, *at)).collect();
    let writes = (0..).zip(&written).zip(&starts).map(|((tag, buf), at)| write(tag, OpKind::Write, *at, buf));
    assert_eq!(run(&mut disk, writes), vec![Ok(()); sizes.len()]);
    let mut found: Vec<Buf> = sizes.iter().map(|size| Buf::zeroed(Bytes(*size))).collect();
    let reads: Vec<DiskOp> = (0..).zip(&mut found).zip(&starts).map(|((tag, buf), at)| read(tag, *at, buf)).collect();
    assert_eq!(run(&mut disk, reads), vec![Ok(()); sizes.len()]);
    for (found, written) in found.iter().zip(&written) {
        assert!(found.as_ref() == written.as_ref(), "{} bytes", written.len());
    }
    // In segments of odd sizes.
    let mut scattered = Buf::zeroed(Bytes(64 << 10));
    let cuts = [0, 512, 1536, 40 << 10, 64 << 10];
    let segments = cuts.windows(2).map(|cut| scattered.lease_write(cut[0]..cut[1])).collect();
    assert_eq!(run(&mut disk, [op(0, OpKind::Read, starts[4], segments)]), [Ok(())]);
    assert!(*scattered.as_ref() == written[4].as_ref()[..64 << 10]);
}

#[test]
fn more_than_a_server_takes_at_once_is_asked_in_pieces() {
    let server = Server::start(FLAGS, 64 << 10, |_| Answer::Well);
    let mut disk = server.disk();
    let written = pattern(200 << 10, 1);
    let mut found = Buf::zeroed(Bytes(200 << 10));
    assert_eq!(run(&mut disk, [write(0, OpKind::Write, 4096, &written)]), [Ok(())]);
    assert_eq!(run(&mut disk, [read(0, 4096, &mut found)]), [Ok(())]);
    assert!(found.as_ref() == written.as_ref());
    drop(disk);
    let lengths: Vec<u32> = server.seen().iter().map(|seen| seen.length).collect();
    assert_eq!(lengths, [65536, 65536, 65536, 8192].repeat(2));
}

#[test]
fn many_at_a_time_wait_for_their_turn() {
    let server = Server::start(FLAGS, 32 << 20, |_| Answer::Well);
    let mut disk = server.disk();
    let mut buffers: Vec<Buf> = (0..600).map(|_| Buf::zeroed(Bytes(4096))).collect();
    let reads: Vec<DiskOp> = (0..).zip(&mut buffers).map(|(tag, buf)| read(tag, tag * 4096, buf)).collect();
    assert_eq!(run(&mut disk, reads), vec![Ok(()); 600]);
}

#[test]
fn durable_writes_and_zeros_are_what_the_server_can_do() {
    let zero = || op(1, OpKind::Zero { len: Bytes(8192), may_punch: false }, 512, Segments::new());
    let buf = pattern(4096, 2);
    for (flags, expected) in [
        (FLAGS, vec![(1, WRITE), (2, ZEROES), (0, FLUSH)]),
        // A flush makes up for what it can't do with each write.
        (FLAGS & !FUA, vec![(0, WRITE), (0, FLUSH), (2, ZEROES), (0, FLUSH)]),
    ] {
        let server = Server::start(flags, 32 << 20, |_| Answer::Well);
        let mut disk = server.disk();
        assert_eq!(run(&mut disk, [write(0, OpKind::WriteFua, 0, &buf)]), [Ok(())]);
        assert_eq!(run(&mut disk, [zero()]), [Ok(())]);
        assert_eq!(run(&mut disk, [flush(2)]), [Ok(())]);
        drop(disk);
        let seen: Vec<(u16, u16)> = server.seen().iter().map(|seen| (seen.flags, seen.kind)).collect();
        assert_eq!(seen, expected);
    }
    // Who can't make zeros, or refuses to, has them written.
    let server = Server::start(FLAGS & !0x40, 32 << 20, |_| Answer::Well);
    assert!(matches!(run(&mut server.disk(), [zero()])[..], [Err(DiskError::Unsupported { .. })]));
    assert_eq!(server.seen(), []);
    let server = Server::start(FLAGS, 32 << 20, |_| Answer::Error(95));
    assert!(matches!(run(&mut server.disk(), [zero()])[..], [Err(DiskError::Unsupported { .. })]));
}

/// What is known to be durable of the mark is what was answered before a flush was asked for.
#[test]
fn a_flush_makes_the_mark_durable_that_was_there() {
    for (answers, is_known) in [(true, true), (false, false)] {
        let server = Server::start(FLAGS, 32 << 20, move |seen| match seen.kind {
            FLUSH if !answers => Answer::Error(5),
            _ => Answer::Well,
        });
        let member = server.member();
        let mut disk = UringDisk::new(vec![Some(Arc::clone(&member))], 8).unwrap();
        disk.claim().unwrap();
        assert_eq!(run(&mut disk, [write(0, OpKind::WriteFua, 0, &pattern(4096, 5))]), [Ok(())]);
        assert_eq!(member.flushed_beat(), 0, "a write says nothing of others");
        assert_eq!(run(&mut disk, [flush(0)])[0].is_ok(), answers);
        assert_eq!(member.flushed_beat() > 0, is_known);
    }
}

/// A copy of the time before the last write has counted less far then than is known to be durable.
#[test]
fn what_was_written_last_is_flushed_when_the_mark_has_counted_on() {
    for answers in [true, false] {
        let (flushed, is_flushed) = channel();
        let server = Server::start(FLAGS, 32 << 20, move |seen| match seen.kind {
            FLUSH => {
                flushed.send(()).unwrap();
                if answers { Answer::Well } else { Answer::Error(5) }
            }
            _ => Answer::Well,
        });
        let member = server.member();
        let mut disk = UringDisk::new(vec![Some(Arc::clone(&member))], 8).unwrap();
        disk.claim().unwrap();
        assert_eq!(run(&mut disk, [write(0, OpKind::Write, 0, &pattern(4096, 5))]), [Ok(())]);
        let before = disk.remotes[0].guard.as_ref().unwrap().beat();
        let mut completions = Vec::new();
        let mut go_on = |disk: &mut UringDisk| {
            disk.wait_at_most(Duration::from_millis(50)).unwrap();
            disk.reap(&mut completions);
        };
        while is_flushed.try_recv().is_err() {
            go_on(&mut disk);
        }
        while member.flushed_beat() == 0 && !member.is_cut_off() {
            go_on(&mut disk);
        }
        assert_eq!((member.flushed_beat() > before, member.is_cut_off()), (answers, !answers));
        let counted = || disk.remotes[0].guard.as_ref().map_or(0, Guard::beat);
        if answers {
            let until = counted() + 2;
            while disk.remotes[0].guard.as_ref().unwrap().beat() < until {
                go_on(&mut disk);
            }
            assert!(is_flushed.try_recv().is_err(), "nothing was written since");
        }
        assert!(completions.is_empty(), "nobody asked for it");
    }
}

#[test]
fn an_error_is_of_its_operation_alone() {
    let server =
        Server::start(FLAGS, 64 << 10, |seen| if seen.offset == 65536 { Answer::Error(28) } else { Answer::Well });
    let mut disk = server.disk();
    let (long, short) = (pattern(200 << 10, 3), pattern(4096, 4));
    let ended = run(&mut disk, [write(0, OpKind::Write, 0, &long), write(1, OpKind::Write, 1 << 20, &short)]);
    assert_eq!((errno(&ended[0]), &ended[1]), (Some(Errno::NOSPC), &Ok(())));
    let mut found = Buf::zeroed(Bytes(4096));
    assert_eq!(run(&mut disk, [read(0, 1 << 20, &mut found)]), [Ok(())]);
    assert!(found.as_ref() == short.as_ref());
}

#[test]
fn a_server_that_hangs_up_or_lies_ends_everything_and_nothing_hangs() {
    for is_lie in [false, true] {
        let server = Server::start(FLAGS, 32 << 20, move |seen| match seen.offset {
            4096 if is_lie => Answer::Lie,
            4096 => Answer::Hangup,
            _ => Answer::Well,
        });
        let mut disk = server.disk();
        let mut bufs: Vec<Buf> = (0..20).map(|_| Buf::zeroed(Bytes(32 << 10))).collect();
        let reads: Vec<DiskOp> = (0..).zip(&mut bufs).map(|(tag, buf)| read(tag, tag * 4096, buf)).collect();
        let ended = run(&mut disk, reads);
        assert_eq!(ended[0], Ok(()), "it was answered before");
        assert!(ended[1..].iter().all(|result| errno(result).is_some()), "{ended:?}");
        let after = run(&mut disk, [flush(0)]);
        assert!(errno(&after[0]).is_some(), "nothing is flushed that is not known to be there");
    }
}

#[test]
fn who_gives_up_on_a_write_ends_the_connection_and_who_gives_up_on_a_read_does_not() {
    for (kind, is_kept) in [(WRITE, false), (READ, true)] {
        let server = Server::start(FLAGS, 32 << 20, move |seen| match seen.kind == kind {
            true => Answer::Wait,
            false => Answer::Well,
        });
        let mut disk = server.disk();
        let (data, mut target) = (pattern(4096, 5), Buf::zeroed(Bytes(4096)));
        match kind {
            WRITE => disk.submit(write(1, OpKind::Write, 0, &data)),
            _ => disk.submit(read(1, 0, &mut target)),
        }
        disk.kick().unwrap();
        disk.abandon(1);
        let mut completions = Vec::new();
        if is_kept {
            disk.submit(flush(2));
            server.go_on.send(()).unwrap();
        }
        while disk.in_flight() > 0 {
            disk.wait().unwrap();
            disk.reap(&mut completions);
        }
        match is_kept {
            true => assert!(completions.iter().all(|completion| completion.result.is_ok()), "{completions:?}"),
            false => {
                let [completion] = &completions[..] else { panic!("{completions:?}") };
                assert!(matches!(completion.result, Err(DiskError::TimedOut { .. })), "{completion:?}");
                assert!(errno(&run(&mut disk, [flush(3)])[0]).is_some());
                drop(server.go_on);
            }
        }
    }
}

#[test]
fn a_member_that_is_put_out_has_its_connection_back_unless_something_is_under_way() {
    let server = Server::start(FLAGS, 32 << 20, |_| Answer::Well);
    let mut disk = server.disk();
    let data = pattern(4096, 6);
    assert_eq!(run(&mut disk, [write(0, OpKind::Write, 0, &data)]), [Ok(())]);
    let member = disk.put(FIRST, None).unwrap().unwrap();
    let mut found = Buf::zeroed(Bytes(4096));
    member.read_at(Bytes(0), &mut found).unwrap();
    assert!(found.as_ref() == data.as_ref());
    // And from there to another disk.
    let mut disk = UringDisk::new(vec![Some(Arc::clone(&member))], 8).unwrap();
    let mut found = Buf::zeroed(Bytes(4096));
    assert_eq!(run(&mut disk, [read(0, 0, &mut found)]), [Ok(())]);
    assert!(found.as_ref() == data.as_ref());
    drop((disk, member));
    assert_eq!(server.seen().len(), 3, "on the one connection that there is");

    let server = Server::start(FLAGS, 32 << 20, |_| Answer::Wait);
    let mut disk = server.disk();
    let mut target = Buf::zeroed(Bytes(4096));
    disk.submit(read(1, 0, &mut target));
    disk.kick().unwrap();
    assert!(disk.put(FIRST, None).is_err(), "somebody waits for it");
    disk.abandon(1);
    let member = disk.put(FIRST, None).unwrap().unwrap();
    assert!(member.export().unwrap().borrow().is_none(), "it was closed");
    let mut completions = Vec::new();
    while disk.in_flight() > 0 {
        disk.wait().unwrap();
        disk.reap(&mut completions);
    }
    assert_eq!(completions.len(), 1);
    target.as_mut().fill(1);
    drop(server.go_on);
}

#[test]
fn what_was_not_sent_when_a_write_was_given_up_is_never_sent() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let uri = format!("nbd://{}/", listener.local_addr().unwrap());
    let (go_on, waits) = channel();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        shake_hands(&mut stream, FLAGS, 32 << 20);
        let mut look = [0; 28];
        stream.read_exact(&mut look).unwrap();
        stream.write_all(&[&b"\x67\x44\x66\x98\0\0\0\0"[..], &look[8..16], &[0; OWNER_BYTES]].concat()).unwrap();
        waits.recv().unwrap();
        let mut taken = Vec::new();
        (stream.read_to_end(&mut taken).map_err(|error| error.kind()), taken.len())
    });
    // So it looks for a mark once, and has none, of which this server knows nothing.
    let member = Arc::new(Member::open(uri.as_ref(), Access::ReadOnly).unwrap());
    let mut disk = UringDisk::new(vec![Some(Arc::clone(&member))], 8).unwrap();
    // More than the buffers of both ends take.
    let data = pattern(SIZE, 5);
    (0..16).for_each(|tag| disk.submit(write(tag, OpKind::Write, 0, &data)));
    disk.kick().unwrap();
    assert!(!member.is_cut_off());
    disk.abandon(0);
    let mut completions = Vec::new();
    while disk.in_flight() > 0 {
        disk.wait().unwrap();
        disk.reap(&mut completions);
    }
    assert_eq!(completions.len(), 16);
    assert!(completions.iter().all(|completion| completion.result.is_err()));
    assert!(member.is_cut_off());
    go_on.send(()).unwrap();
    let (end, taken) = server.join().unwrap();
    assert_eq!(end, Err(ErrorKind::ConnectionReset), "after {taken} bytes");
}

#[test]
fn a_member_that_is_taken_out_was_not_cut_off() {
    let server = Server::start(FLAGS, 32 << 20, |_| Answer::Wait);
    let mut disk = server.disk();
    let member = Arc::clone(disk.members()[0].as_ref().unwrap());
    let mut buf = Buf::zeroed(Bytes(4096));
    disk.submit(read(1, 0, &mut buf));
    disk.kick().unwrap();
    disk.abandon(1);
    assert!(disk.put(FIRST, None).is_ok());
    assert!(!member.is_cut_off());
    drop(server.go_on);
}

#[test]
fn who_is_robbed_writes_nothing_more_to_any_member() {
    let server = Server::start(FLAGS, 32 << 20, |seen| if seen.kind == FLUSH { Answer::Rob } else { Answer::Well });
    let path = server.directory.path().join("file");
    std::fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
    let file = Arc::new(Member::open(&path, Access::ReadWrite).unwrap());
    let mut disk = UringDisk::new(vec![Some(server.member()), Some(file)], 8).unwrap();
    disk.claim().unwrap();
    let buf = pattern(4096, 1);
    let both = |tag: u64| {
        let other = DiskOp { member: MemberIndex(1), ..write(tag + 1, OpKind::Write, 0, &buf) };
        [write(tag, OpKind::Write, 0, &buf), other]
    };
    assert_eq!(run(&mut disk, both(1)), [Ok(()), Ok(())]);
    assert_eq!(run(&mut disk, [flush(3)]), [Ok(())]);
    // It is found at the next look.
    let mut completions = Vec::new();
    while !disk.is_robbed {
        assert!(disk.wants_ticks());
        disk.tick();
        disk.wait_at_most(Duration::from_millis(20)).unwrap();
        disk.reap(&mut completions);
    }
    let errors: Vec<_> = run(&mut disk, both(4)).iter().map(errno).collect();
    assert_eq!(errors, [Some(Errno::STALE); 2]);
    let member = Arc::clone(disk.members()[0].as_ref().unwrap());
    assert!(member.write_at(Bytes(0), &buf).is_err(), "nor does anybody else");
    drop((disk, member));
    let writes = server.seen().iter().filter(|seen| seen.kind == WRITE).count();
    assert_eq!(writes, 1);
}
