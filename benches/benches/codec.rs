//! Time to decode and encode one TMQP frame: a 128-byte message from a producer.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use mqcore_wire::codec::Limits;
use mqcore_wire::tmqp::{Frame, Kind, decode, encode};

/// Frames in one buffer: what a read of 16 KiB brings.
const FRAMES: usize = 96;

fn push() -> Frame<'static> {
    Frame {
        pending_acknowledge: true,
        content_type: 7,
        id: b"0123456789abcdef0123456789abcdef",
        source: b"producer-1",
        target: b"orders",
        payload: &[b'x'; 128],
        ..Frame::new(Kind::QUEUE)
    }
}

fn with_header() -> Frame<'static> {
    Frame { headers: b"CC:audit;7\r\n", ..push() }
}

fn stream(frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..FRAMES {
        encode(frame, &mut bytes);
    }
    bytes
}

/// Decodes a buffer to its end, as a connection does after each read.
fn decode_all(mut input: &[u8], limits: &Limits) -> usize {
    let mut payload_bytes = 0;
    while let Ok(Some((frame, consumed))) = decode(input, limits) {
        payload_bytes += black_box(&frame).payload.len();
        input = &input[consumed..];
    }
    payload_bytes
}

fn codec(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("tmqp_128_bytes");
    group.throughput(Throughput::Elements(FRAMES as u64));
    for (name, frame) in [("plain", push()), ("header", with_header())] {
        let bytes = stream(&frame);
        let limits = Limits::default();
        group.bench_function(format!("decode/{name}"), |bencher| {
            bencher.iter(|| decode_all(black_box(&bytes), black_box(&limits)));
        });
        group.bench_function(format!("encode/{name}"), |bencher| {
            // A connection writes into the same buffer again and again.
            let mut output = Vec::with_capacity(bytes.len());
            bencher.iter(|| {
                output.clear();
                for _ in 0..FRAMES {
                    encode(black_box(&frame), &mut output);
                }
                black_box(&output);
            });
        });
    }
    group.finish();
}

criterion_group!(benches, codec);
criterion_main!(benches);
