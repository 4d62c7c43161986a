//! What leaves the outbox, on a socket that takes as much at a time as the test says.

use std::task::Wake;

use proptest::prelude::*;

use super::*;
use crate::{ExportInfo, Extent, Headers, Span};

type Buffer = Vec<u8>;

/// Takes at most the given numbers of bytes, in turn, then nothing for a while.
struct Narrow {
    takes: Vec<usize>,
    taken: Vec<u8>,
    writes: usize,
}

impl AsyncWrite for Narrow {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Some(limit) = self.takes.pop() else { return Poll::Pending };
        self.writes += 1;
        let all: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).take(limit).collect();
        self.taken.extend(&all);
        Poll::Ready(Ok(all.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn outbox(limits: Limits) -> Rc<Outbox<Buffer>> {
    outbox_with(Headers::Structured, limits)
}

fn outbox_with(headers: Headers, limits: Limits) -> Rc<Outbox<Buffer>> {
    let export = ExportInfo::new(1 << 20);
    Outbox::new(Session::new(&export, headers, true), limits, Budget::new(&limits))
}

fn echo(cookie: u64) -> Echo {
    Echo { cookie, offset_bytes: 0 }
}

fn read(cookie: u64, length_bytes: u32) -> Request {
    let span = Span { offset_bytes: 0, length_bytes: length_bytes.into() };
    Request { echo: echo(cookie), command: Command::Read { span, buffer: () } }
}

/// A structured chunk `668e33ef | done | type | cookie | length | payload`, or an extended one, which begins `6e8a278c`
/// and has the offset and four more bytes of zeros before the length.
fn chunk(headers: Headers, kind: u8, cookie: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let (magic, zeros): (_, &[u8]) = match headers {
        Headers::Extended => (b"\x6e\x8a\x27\x8c", &[0; 12]),
        _ => (b"\x66\x8e\x33\xef", &[]),
    };
    [&magic[..], &[0, 1, 0, kind, 0, 0, 0, 0, 0, 0, 0, cookie], zeros, &length, payload].concat()
}

/// `offset-data | offset | data`
fn data_chunk(headers: Headers, cookie: u8, data: &[u8]) -> Vec<u8> {
    chunk(headers, 1, cookie, &[&[0; 8], data].concat())
}

fn context() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

#[test]
fn all_replies_of_a_turn_leave_in_one_write() {
    let outbox = outbox(Limits::default());
    let mut expected = vec![];
    for cookie in 0..100 {
        outbox.admit(&read(cookie.into(), 3)).unwrap().done(Ok(Payload::Data(vec![cookie; 3])));
        expected.extend(data_chunk(Headers::Structured, cookie, &[cookie; 3]));
    }
    let mut socket = Narrow { takes: vec![usize::MAX], taken: vec![], writes: 0 };
    assert!(matches!(outbox.poll_send(&mut socket, &mut context()), Poll::Ready(Ok(()))));
    assert_eq!((socket.writes, socket.taken == expected), (1, true));
    assert!(outbox.is_idle());
}

#[test]
fn the_budget_comes_back_when_replies_are_sent() {
    let outbox = outbox(Limits { bytes_in_flight_max: 1000, requests_in_flight_max: 2, ..Limits::default() });
    let first = outbox.admit(&read(1, 600)).unwrap();
    assert!(outbox.admit(&read(2, 401)).is_none(), "too many bytes");
    let second = outbox.admit(&read(2, 400)).unwrap();
    assert!(!outbox.reject(echo(3), NbdError::Invalid), "too many requests");
    second.abandon();
    first.done(Ok(Payload::Data(vec![0; 600])));
    assert!(outbox.admit(&read(4, 600)).is_none(), "finished, and not sent");
    let mut socket = Narrow { takes: vec![usize::MAX], taken: vec![], writes: 0 };
    assert!(outbox.poll_send(&mut socket, &mut context()).is_ready());
    assert!(outbox.admit(&read(4, 5000)).is_some(), "alone, anything goes");
}

#[test]
fn a_slot_that_is_dropped_says_so() {
    let outbox = outbox(Limits::default());
    drop(outbox.admit(&read(7, 512)).unwrap());
    let mut socket = Narrow { takes: vec![usize::MAX], taken: vec![], writes: 0 };
    assert!(outbox.poll_send(&mut socket, &mut context()).is_ready());
    assert_eq!(socket.taken, b"\x66\x8e\x33\xef\0\x01\x80\x01\0\0\0\0\0\0\0\x07\0\0\0\x06\0\0\0\x05\0\0");
}

#[test]
fn a_closed_outbox_keeps_no_buffer() {
    let outbox = outbox(Limits::default());
    let buffer = Rc::new([0; 512]);
    let shared = {
        struct Shared(Rc<[u8; 512]>);
        impl AsRef<[u8]> for Shared {
            fn as_ref(&self) -> &[u8] {
                &self.0[..]
            }
        }
        let outbox: Rc<Outbox<Shared>> = Outbox::new(outbox.session, outbox.limits, Rc::clone(&outbox.budget));
        outbox.admit(&read(1, 512)).unwrap().done(Ok(Payload::Data(Shared(Rc::clone(&buffer)))));
        let late = outbox.admit(&read(2, 512)).unwrap();
        outbox.close();
        late.done(Ok(Payload::Data(Shared(Rc::clone(&buffer)))));
        outbox
    };
    assert_eq!(Rc::strong_count(&buffer), 1);
    drop(shared);
}

#[test]
#[should_panic(expected = "the payload does not fit the command")]
fn a_read_without_data_is_a_bug() {
    outbox(Limits::default()).admit(&read(1, 512)).unwrap().done(Ok(Payload::None));
}

#[test]
fn a_parked_task_is_woken_once() {
    #[derive(Default)]
    struct Count(std::sync::atomic::AtomicUsize);
    impl Wake for Count {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }
    let count = std::sync::Arc::new(Count::default());
    let waker = Waker::from(std::sync::Arc::clone(&count));
    let outbox = outbox(Limits::default());
    let finish = |cookie| outbox.admit(&read(cookie, 1)).unwrap().done(Ok(Payload::Data(vec![0])));
    finish(0);
    outbox.park(&waker, false);
    (1..4).for_each(finish);
    assert_eq!(count.0.load(std::sync::atomic::Ordering::SeqCst), 1);
    outbox.unpark();
    finish(4);
    outbox.park(&waker, false);
    finish(5);
    assert_eq!(count.0.load(std::sync::atomic::Ordering::SeqCst), 2);
}

proptest! {
    #[test]
    fn replies_are_the_same_however_little_the_socket_takes(
        headers in prop::sample::select(vec![Headers::Structured, Headers::Extended]),
        lengths in prop::collection::vec(1..2000u32, 1..300),
        takes in prop::collection::vec(1..3000usize, 1..20),
    ) {
        let outbox = outbox_with(headers, Limits::default());
        let mut expected = vec![];
        for (index, length) in lengths.iter().enumerate() {
            let cookie = index as u8;
            let request = read(cookie.into(), *length);
            if index % 7 == 3 {
                let length_bytes = u64::from(*length);
                let command = Command::BlockStatus { span: Span { offset_bytes: 0, length_bytes }, one: false };
                let extent = Extent { length_bytes, hole: false, zero: true };
                outbox.admit(&Request { command, ..request }).unwrap().done(Ok(Payload::Extents(vec![extent])));
                let length = length.to_be_bytes();
                expected.extend(match headers {
                    Headers::Extended => {
                        let payload = [&[0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0][..], &length, &[0, 0, 0, 0, 0, 0, 0, 2]];
                        chunk(headers, 6, cookie, &payload.concat())
                    }
                    _ => chunk(headers, 5, cookie, &[&[0, 0, 0, 1][..], &length, &[0, 0, 0, 2]].concat()),
                });
            } else {
                let data = vec![cookie ^ 0x55; *length as usize];
                expected.extend(data_chunk(headers, cookie, &data));
                outbox.admit(&request).unwrap().done(Ok(Payload::Data(data)));
            }
        }
        let mut socket = Narrow { takes: vec![], taken: vec![], writes: 0 };
        while outbox.poll_send(&mut socket, &mut context()).is_pending() {
            socket.takes.extend(&takes);
        }
        prop_assert!(socket.taken == expected);
        prop_assert!(outbox.is_idle());
        prop_assert_eq!(outbox.bytes_in_flight.get(), 0);
    }
}
