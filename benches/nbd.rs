//! The NBD codec: what one turn of a connection with 32 requests in flight costs without any socket.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use uraid_nbd::transmission::{Cookie, Decoder, Received, ReplyHeader, Session};
use uraid_nbd::{BlockSizes, Command, ExportInfo, Span};

/// Requests of one turn.
const BATCH: u64 = 32;
const BLOCK_BYTES: u32 = 4096;
const EXPORT_BYTES: u64 = 1 << 40;

fn session(structured_replies: bool) -> Session {
    let export = ExportInfo {
        name: "bench".to_owned(),
        description: String::new(),
        size_bytes: EXPORT_BYTES,
        block_sizes: BlockSizes::default(),
        read_only: false,
        multi_conn: true,
        trim: true,
        fast_zero: true,
    };
    Session::new(&export, structured_replies, false)
}

/// Each request of a turn: its cookie and its place.
fn turn() -> impl Iterator<Item = (Cookie, Span)> {
    let span = |number: u64| Span { offset_bytes: number * 7919 * 4096 % EXPORT_BYTES, length_bytes: BLOCK_BYTES };
    (0..BATCH).map(move |number| (Cookie(number), span(number)))
}

/// The start of each request, and the commands: `doc/proto.md` of the NBD project.
const REQUEST_MAGIC: u32 = 0x2560_9513;
const READ: u16 = 0;
const WRITE: u16 = 1;

/// What one receive brings: requests of `kind`, and a write's data behind each.
fn requests(kind: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (cookie, span) in turn() {
        bytes.extend_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes.extend_from_slice(&[0; 2]);
        bytes.extend_from_slice(&kind.to_be_bytes());
        bytes.extend_from_slice(&cookie.0.to_be_bytes());
        bytes.extend_from_slice(&span.offset_bytes.to_be_bytes());
        bytes.extend_from_slice(&span.length_bytes.to_be_bytes());
        if kind == WRITE {
            bytes.resize(bytes.len() + BLOCK_BYTES as usize, 0xa5);
        }
    }
    bytes
}

fn decode(decoder: &mut Decoder, mut input: &[u8]) -> u64 {
    let mut decoded = 0;
    while let Some(received) = decoder.next(&mut input).expect("the stream is well-formed") {
        let Received::Request(request) = black_box(received) else { unreachable!("every request is valid") };
        if let Command::Write { span, .. } = request.command {
            input = &input[span.length_bytes as usize..];
        }
        decoded += 1;
    }
    decoded
}

fn codec(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("nbd, 32 requests");
    group.throughput(Throughput::Elements(BATCH));
    for (name, kind) in [("decode reads", READ), ("decode writes", WRITE)] {
        let (bytes, mut decoder) = (requests(kind), Decoder::new(session(false)));
        assert_eq!(decode(&mut decoder, &bytes), BATCH);
        group.bench_function(name, |bencher| bencher.iter(|| decode(&mut decoder, black_box(&bytes))));
    }
    for (name, structured) in [("encode simple replies", false), ("encode structured replies", true)] {
        let (session, turn) = (session(structured), turn().collect::<Vec<_>>());
        let mut output = Vec::with_capacity(BATCH as usize * 64);
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                output.clear();
                for &(cookie, span) in black_box(&turn) {
                    output.extend_from_slice(ReplyHeader::data(&session, cookie, span).as_bytes());
                }
                output.len()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, codec);
criterion_main!(benches);
