//! Time to decode a Throttr request, to encode its answer, and to execute one step in the store.

use std::hash::RandomState;
use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use mqcore_limiter::limiter::{Adjust, Limiter, LimiterConfig};
use mqcore_limiter::rule::{Algorithm, ConsumeMode, Rule};
use mqcore_limiter::time::{Nanos, Ttl};
use mqcore_wire::codec::Limits;
use mqcore_wire::throttr::request::{DECREASE, QUOTA, ThrottrRequest, decode, encode};
use mqcore_wire::throttr::{Dialect, answer};

/// Requests in one buffer: what a pipeline of 64 brings.
const REQUESTS: usize = 64;

fn codec(criterion: &mut Criterion) {
    let dialect = Dialect::default();
    let limits = Limits::default();
    let request =
        ThrottrRequest::Update { attribute: QUOTA, change: DECREASE, value: 1, key: b"user:00000012345" };
    let mut bytes = Vec::new();
    for _ in 0..REQUESTS {
        encode(&request, dialect, &mut bytes).expect("a short key");
    }
    let mut group = criterion.benchmark_group("throttr_codec");
    group.throughput(Throughput::Elements(REQUESTS as u64));
    group.bench_function("decode_update", |bencher| {
        bencher.iter(|| {
            let mut rest = black_box(&bytes[..]);
            let mut found = 0;
            while let Ok(Some((request, consumed))) = decode(rest, dialect, &limits) {
                black_box(&request);
                rest = &rest[consumed..];
                found += 1;
            }
            found
        });
    });
    group.bench_function("encode_status", |bencher| {
        let mut output = Vec::with_capacity(REQUESTS);
        bencher.iter(|| {
            output.clear();
            for _ in 0..REQUESTS {
                answer::status(black_box(true), &mut output);
            }
            black_box(&output);
        });
    });
    group.finish();
}

/// One step on a store of a hundred thousand counters, always on the same one, as a busy client makes it.
fn store(criterion: &mut Criterion) {
    let store = Limiter::new(LimiterConfig::default(), RandomState::new());
    let hour = Ttl { unit: 6, amount: 1 };
    for number in 0..100_000_u64 {
        store.insert(&number.to_le_bytes(), u64::MAX, 64, hour, Nanos(1));
    }
    let key = 77_777_u64.to_le_bytes();
    let mut group = criterion.benchmark_group("limiter");
    group.bench_function("decrease", |bencher| {
        bencher.iter(|| store.adjust_quota(black_box(&key), Adjust::Decrease, 1, Nanos(2)));
    });
    group.bench_function("query", |bencher| bencher.iter(|| store.query(black_box(&key), Nanos(2))));
    for (name, algorithm) in [
        ("fixed_window", Algorithm::FixedWindow),
        ("sliding_window", Algorithm::SlidingWindow),
        ("gcra", Algorithm::Gcra),
    ] {
        // One check each microsecond: of a limit that lets twice as much through, of one that lets just that through and
        // is half spent, and of one that refuses nearly all of it.
        for (load, limit) in [("idle", 2_000_000), ("busy", 1_000_000), ("refused", 1_000)] {
            let rule = Rule { algorithm, limit, cost: 1, period: Ttl { unit: 4, amount: 1 } };
            let key = format!("{name}:{load}");
            let mut now = 2;
            let half = Rule { cost: limit / 2, ..rule };
            if load == "busy" {
                store.consume(key.as_bytes(), &half, ConsumeMode::Take, 64, Nanos(now)).expect("a fresh key");
            }
            group.bench_function(format!("check/{name}/{load}"), |bencher| {
                bencher.iter(|| {
                    now += 1_000;
                    store.consume(black_box(key.as_bytes()), &rule, ConsumeMode::Take, 64, Nanos(now))
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, codec, store);
criterion_main!(benches);
