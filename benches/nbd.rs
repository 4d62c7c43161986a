//! The NBD codec: what one turn of a connection with 32 requests in flight costs without any socket.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use uraid_nbd::transmission::{Decoder, Echo, Received, ReplyHeader, Session};
use uraid_nbd::{BlockSizes, Command, ExportInfo, Headers};

/// Requests of one turn.
const BATCH: u64 = 32;
const BLOCK_BYTES: u32 = 4096;
const EXPORT_BYTES: u64 = 1 << 40;

fn session(headers: Headers) -> Session {
    let export = ExportInfo {
        name: "bench".to_owned(),
        description: String::new(),
        size_bytes: EXPORT_BYTES,
        block_sizes: BlockSizes::default(),
        read_only: false,
        rotational: false,
        multi_conn: true,
        trim: true,
        fast_zero: true,
    };
    Session::new(&export, headers, false)
}

/// Each request of a turn: its cookie and its place.
fn turn() -> impl Iterator<Item = Echo> {
    (0..BATCH).map(|number| Echo { cookie: number, offset_bytes: number * 7919 * 4096 % EXPORT_BYTES })
}

/// The start of each request, the commands and the flag of a payload: `doc/proto.md` of the NBD project.
const REQUEST_MAGIC: u32 = 0x2560_9513;
const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
const READ: u16 = 0;
const WRITE: u16 = 1;
const PAYLOAD_LEN: u16 = 1 << 5;

/// What one receive brings: requests of `kind`, and a write's data behind each.
fn requests(headers: Headers, kind: u16) -> Vec<u8> {
    let is_extended = headers == Headers::Extended;
    let magic = if is_extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC };
    let flags = if is_extended && kind == WRITE { PAYLOAD_LEN } else { 0 };
    let mut bytes = Vec::new();
    for Echo { cookie, offset_bytes } in turn() {
        bytes.extend_from_slice(&magic.to_be_bytes());
        bytes.extend_from_slice(&flags.to_be_bytes());
        bytes.extend_from_slice(&kind.to_be_bytes());
        bytes.extend_from_slice(&cookie.to_be_bytes());
        bytes.extend_from_slice(&offset_bytes.to_be_bytes());
        if is_extended {
            bytes.extend_from_slice(&[0; 4]);
        }
        bytes.extend_from_slice(&BLOCK_BYTES.to_be_bytes());
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
    let (simple, structured, extended) = (Headers::Simple, Headers::Structured, Headers::Extended);
    for (name, headers, kind) in [
        ("decode reads", simple, READ),
        ("decode writes", simple, WRITE),
        ("decode extended reads", extended, READ),
        ("decode extended writes", extended, WRITE),
    ] {
        let (bytes, mut decoder) = (requests(headers, kind), Decoder::new(session(headers)));
        assert_eq!(decode(&mut decoder, &bytes), BATCH);
        group.bench_function(name, |bencher| bencher.iter(|| decode(&mut decoder, black_box(&bytes))));
    }
    for (name, headers) in [
        ("encode simple replies", simple),
        ("encode structured replies", structured),
        ("encode extended replies", extended),
    ] {
        let (session, turn) = (session(headers), turn().collect::<Vec<_>>());
        let mut output = Vec::with_capacity(BATCH as usize * 64);
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                output.clear();
                for &echo in black_box(&turn) {
                    output.extend_from_slice(ReplyHeader::data(&session, echo, BLOCK_BYTES).as_bytes());
                }
                output.len()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, codec);
criterion_main!(benches);
