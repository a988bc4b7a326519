//! Changes of persistent entries: how many one call fetches, and whether a restored limit continues.

use std::hash::RandomState;
use std::sync::Arc;

use mqcore_limiter::change::EntryChange;
use mqcore_limiter::limiter::{EntryProperties, Limiter, LimiterConfig, SHARDS};
use mqcore_limiter::rule::{Algorithm, ConsumeMode, Rule};
use mqcore_limiter::time::{Nanos, Ttl};

const SECONDS: u8 = 4;
const PERSISTENT: EntryProperties = EntryProperties { bits: 64, kept: true };

fn limiter() -> Arc<Limiter> {
    Arc::new(Limiter::new(LimiterConfig::default(), RandomState::new()))
}

fn at(seconds: u64) -> Nanos {
    Nanos(seconds * 1_000_000_000)
}

#[test]
fn one_call_fetches_at_most_the_wanted_changes() {
    let limiter = limiter();
    limiter.watch_changes();
    for number in 0..1000_u32 {
        let ttl = Ttl { unit: SECONDS, amount: 60 };
        limiter.insert(&number.to_le_bytes(), 1, PERSISTENT, ttl, at(1));
    }
    let mut all = 0;
    for shard in 0..SHARDS {
        loop {
            let mut fetched = 0;
            let more = limiter.fetch_changes(shard, 2, |change| {
                assert!(matches!(change, EntryChange::Put(_)));
                fetched += 1;
            });
            assert!(fetched <= 2, "{fetched}");
            all += fetched;
            if !more {
                break;
            }
            assert_eq!(fetched, 2, "fewer only if they are long");
        }
    }
    assert_eq!(all, 1000);
}

#[test]
fn restored_limits_allow_as_much_as_before() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::Gcra] {
        let limiter = limiter();
        limiter.watch_changes();
        let rule = Rule { algorithm, limit: 10, cost: 3, period: Ttl { unit: SECONDS, amount: 10 } };
        for seconds in [100, 105, 115] {
            // The last of them is in the second window, and counts with what the first one had.
            let decision =
                limiter.consume(b"user", &rule, ConsumeMode::Take, PERSISTENT, at(seconds)).unwrap();
            assert!(decision.allowed);
        }
        let mut changes = Vec::new();
        for shard in 0..SHARDS {
            while limiter.fetch_changes(shard, 100, |change| changes.push(change)) {}
        }
        let restored = self::limiter();
        for change in changes {
            if let EntryChange::Put(entry) = change {
                assert!(restored.restore(&entry, at(116)));
            }
        }
        for seconds in 116..135 {
            let [before, after] = [&limiter, &restored].map(|limiter| {
                limiter.consume(b"user", &rule, ConsumeMode::Peek, PERSISTENT, at(seconds)).unwrap()
            });
            assert_eq!(after, before, "{algorithm:?} after {seconds} s");
        }
    }
}
