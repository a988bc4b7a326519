//! The limits of the store, and its own counts of entries, whichever way entries come and go.

use std::hash::RandomState;

use mqcore_limiter::limiter::{Limiter, LimiterConfig, SHARDS};
use mqcore_limiter::rule::{Algorithm, ConsumeMode, Rule};
use mqcore_limiter::time::{Nanos, Ttl};
use proptest::collection::vec;
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;

fn seconds(amount: u64) -> Ttl {
    Ttl { unit: 4, amount }
}

fn once_in(amount: u64) -> Rule {
    Rule { algorithm: Algorithm::FixedWindow, limit: 1, cost: 1, period: seconds(amount) }
}

#[test]
fn keys_that_come_and_go_give_no_other_key_its_quota_back() {
    let store = Limiter::new(LimiterConfig::default(), RandomState::new());
    let hour = once_in(3600);
    assert!(store.consume(b"victim", &hour, ConsumeMode::Take, 64, Nanos(1)).unwrap().allowed);
    let mut now = Nanos(1);
    for number in 0..1_000_u64 {
        now = Nanos(1 + 2 * number * SECOND);
        store.consume(&number.to_le_bytes(), &once_in(1), ConsumeMode::Take, 64, now).unwrap();
        assert_eq!(store.keys(), store.totals().keys());
    }
    assert!(!store.consume(b"victim", &hour, ConsumeMode::Take, 64, now).unwrap().allowed);
    assert_eq!(store.totals().evicted, 0);
}

#[derive(Debug, Clone, Copy)]
enum Way {
    Insert,
    Set,
    Consume,
    Run,
    Several,
    Sweep,
}

fn ways() -> impl Strategy<Value = Way> {
    prop_oneof![
        1 => Just(Way::Insert),
        1 => Just(Way::Set),
        3 => Just(Way::Consume),
        3 => Just(Way::Run),
        2 => Just(Way::Several),
        1 => Just(Way::Sweep),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(mqcore_testkit::by_depth(100, 1000)))]

    #[test]
    fn the_store_counts_its_entries_exactly_and_keeps_its_limits(
        steps in vec((ways(), 0_u64..500, 1_u64..100, 0_u64..3 * SECOND), 1..400),
        keys_max in prop_oneof![1_u64..5, 20_u64..100],
        bytes_max in prop_oneof![Just(4_096_u64), Just(1 << 30)],
    ) {
        let config = LimiterConfig { keys_max, bytes_max, ..LimiterConfig::default() };
        let store = Limiter::new(config, RandomState::new());
        let mut now = Nanos(1);
        for (way, key, ttl, pause) in steps {
            now = Nanos(now.0 + pause);
            let (name, rule) = (key.to_le_bytes(), once_in(ttl));
            match way {
                Way::Insert => drop(store.insert(&name, 1, 64, seconds(ttl), now)),
                Way::Set => drop(store.set(&name, &[7; 100], false, seconds(ttl), now)),
                Way::Consume => drop(store.consume(&name, &rule, ConsumeMode::Take, 64, now)),
                Way::Run => {
                    let mut run = store.run();
                    for other in 0..8 {
                        let _ = run.consume(&(key + other).to_le_bytes(), &rule, ConsumeMode::Take, 64, now);
                    }
                }
                Way::Several => {
                    let other = (key + 500).to_le_bytes();
                    let requests = [(&name[..], rule), (&other[..], rule)];
                    let _ = store.consume_all(&requests, ConsumeMode::Take, 64, now, &mut Vec::new());
                }
                Way::Sweep => drop(store.sweep(key as usize % SHARDS, now, 10)),
            }
            let totals = store.totals();
            prop_assert_eq!(store.keys(), totals.keys());
            // A rule for two keys needs room for both.
            prop_assert!(totals.keys() <= keys_max.max(2), "{} of {}", totals.keys(), keys_max);
            prop_assert!(totals.bytes <= bytes_max, "{} of {} bytes", totals.bytes, bytes_max);
        }
    }
}
