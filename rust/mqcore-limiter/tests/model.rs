//! The store against a slow model with a made-up time: every operation, unit and width; and rules against what they say.

use std::collections::BTreeMap;
use std::hash::RandomState;
use std::sync::Arc;

use mqcore_limiter::limiter::{Adjust, EntryProperties, Limiter, LimiterConfig, SHARDS};
use mqcore_limiter::rule::{Algorithm, ConsumeMode, Rule, RuleError};
use mqcore_limiter::time::{Nanos, Ttl};
use proptest::collection::vec;
use proptest::prelude::*;

/// A record in the model.
#[derive(Debug, Clone)]
struct Record {
    quota: u64,
    bits: u8,
    value: Option<Vec<u8>>,
    unit: u8,
    deadline: u128,
}

/// Everything, by key; nothing is clever here.
#[derive(Default)]
struct Model {
    records: BTreeMap<Vec<u8>, Record>,
    order: Vec<Vec<u8>>,
}

fn unit_nanos(unit: u8) -> u128 {
    match unit {
        1 => 1,
        2 => 1_000,
        3 => 1_000_000,
        5 => 60 * 1_000_000_000,
        6 => 3_600 * 1_000_000_000,
        _ => 1_000_000_000,
    }
}

impl Model {
    fn forget_expired(&mut self, now: u64) {
        self.records.retain(|_, record| record.deadline > u128::from(now));
        let records = &self.records;
        self.order.retain(|key| records.contains_key(key));
    }

    fn add(&mut self, key: &[u8], record: Record, now: u64) {
        if record.deadline > u128::from(now) {
            self.records.insert(key.to_vec(), record);
            self.order.push(key.to_vec());
        }
    }

    fn step(&mut self, step: &Step, now: u64) -> Answer {
        self.forget_expired(now);
        let deadline = |ttl: Ttl| {
            (u128::from(now) + u128::from(ttl.amount) * unit_nanos(ttl.unit)).min(u128::from(u64::MAX))
        };
        let found = self.records.get_mut(&step.key);
        match (&step.what, found) {
            (What::Insert { quota, bits, ttl }, None) => {
                let record = Record {
                    quota: *quota,
                    bits: *bits,
                    value: None,
                    unit: ttl.unit,
                    deadline: deadline(*ttl),
                };
                self.add(&step.key, record, now);
                Answer::Status(true)
            }
            (What::Insert { .. }, Some(_)) => Answer::Status(false),
            (What::Set { value, ttl }, None) => {
                let record = Record {
                    quota: 0,
                    bits: 64,
                    value: Some(value.clone()),
                    unit: ttl.unit,
                    deadline: deadline(*ttl),
                };
                self.add(&step.key, record, now);
                Answer::Status(true)
            }
            (What::Set { value, ttl }, Some(record)) => {
                let buffer = record.value.is_some();
                if buffer {
                    (record.value, record.unit, record.deadline) =
                        (Some(value.clone()), ttl.unit, deadline(*ttl));
                }
                Answer::Status(buffer)
            }
            (What::Query | What::Get, None) => Answer::Nothing,
            (What::Query, Some(record)) => Answer::Counter(record.quota, record.unit, record.deadline as u64),
            (What::Get, Some(record)) => Answer::Buffer(record.value.clone().unwrap_or_default()),
            (What::Purge, found) => {
                let found = found.is_some();
                self.records.remove(&step.key);
                self.forget_expired(now);
                Answer::Status(found)
            }
            (What::Quota(..) | What::Ttl(..), None) => Answer::Status(false),
            (What::Quota(adjust, by), Some(record)) => {
                let top = 1_u128 << record.bits;
                let quota = u128::from(record.quota);
                let changed = match (record.value.is_none(), adjust) {
                    (false, _) => None,
                    (_, Adjust::Patch) => Some(u128::from(*by) % top),
                    (_, Adjust::Increase) => Some((quota + u128::from(*by)) % top),
                    (_, Adjust::Raise) => Some((quota + u128::from(*by)).min(top - 1)),
                    (_, Adjust::Decrease) => quota.checked_sub(u128::from(*by)),
                };
                if let Some(changed) = changed {
                    record.quota = changed as u64;
                }
                Answer::Status(changed.is_some())
            }
            (What::Ttl(adjust, by), Some(record)) => {
                let by = u128::from(*by) * unit_nanos(record.unit);
                let moved = match adjust {
                    Adjust::Patch => u128::from(now) + by,
                    Adjust::Increase | Adjust::Raise => record.deadline + by,
                    // Nothing finite shortens a time to live that never ends.
                    Adjust::Decrease if record.deadline == u128::from(u64::MAX) => record.deadline,
                    Adjust::Decrease => record.deadline.saturating_sub(by),
                };
                record.deadline = moved.min(u128::from(u64::MAX));
                Answer::Status(true)
            }
        }
    }
}

#[derive(Debug, Clone)]
struct Step {
    key: Vec<u8>,
    what: What,
    /// How much time passes before it.
    pause: u64,
}

#[derive(Debug, Clone)]
enum What {
    Insert { quota: u64, bits: u8, ttl: Ttl },
    Set { value: Vec<u8>, ttl: Ttl },
    Query,
    Get,
    Purge,
    Quota(Adjust, u64),
    Ttl(Adjust, u64),
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Status(bool),
    Nothing,
    Counter(u64, u8, u64),
    Buffer(Vec<u8>),
}

fn answer(store: &Limiter, step: &Step, now: Nanos) -> Answer {
    let key = &step.key;
    match &step.what {
        What::Insert { quota, bits, ttl } => {
            Answer::Status(store.insert(key, *quota, kept(*bits), *ttl, now))
        }
        What::Set { value, ttl } => Answer::Status(store.set(key, value, true, *ttl, now)),
        What::Query => match store.query(key, now) {
            None => Answer::Nothing,
            Some(found) => Answer::Counter(found.quota, found.unit, found.deadline.0),
        },
        What::Get => store.get(key, now, |found| match found {
            None => Answer::Nothing,
            Some(found) => Answer::Buffer(found.value.to_vec()),
        }),
        What::Purge => Answer::Status(store.purge(key, now)),
        What::Quota(adjust, by) => Answer::Status(store.adjust_quota(key, *adjust, *by, now)),
        What::Ttl(adjust, by) => Answer::Status(store.adjust_ttl(key, *adjust, *by, now)),
    }
}

fn bits() -> impl Strategy<Value = u8> {
    prop_oneof![Just(8_u8), Just(16), Just(32), Just(64)]
}

fn ttl() -> impl Strategy<Value = Ttl> {
    let amount = prop_oneof![Just(0), 1_u64..100, 1_u64..5_000_000, Just(u64::MAX)];
    (0_u8..8, amount).prop_map(|(unit, amount)| Ttl { unit, amount })
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..10, 200_u64..300, any::<u64>()]
}

fn adjust() -> impl Strategy<Value = Adjust> {
    prop_oneof![Just(Adjust::Patch), Just(Adjust::Increase), Just(Adjust::Raise), Just(Adjust::Decrease)]
}

fn step() -> impl Strategy<Value = Step> {
    let key = prop_oneof![
        Just(Vec::new()),
        (0_u8..5).prop_map(|name| vec![name]),
        (0_u8..3).prop_map(|name| vec![name; 16]),
        (0_u8..3).prop_map(|name| vec![name; 17]),
        (0_u8..2).prop_map(|name| vec![name; 255]),
    ];
    let what = prop_oneof![
        3 => (number(), bits(), ttl()).prop_map(|(quota, bits, ttl)| {
            What::Insert { quota: quota & (u64::MAX >> (64 - bits)), bits, ttl }
        }),
        2 => (vec(any::<u8>(), 0..40), ttl()).prop_map(|(value, ttl)| What::Set { value, ttl }),
        2 => Just(What::Query),
        1 => Just(What::Get),
        1 => Just(What::Purge),
        4 => (adjust(), number()).prop_map(|(adjust, by)| What::Quota(adjust, by)),
        2 => (adjust(), number()).prop_map(|(adjust, by)| What::Ttl(adjust, by)),
    ];
    let pause = prop_oneof![4 => Just(0_u64), 2 => 1_u64..2_000, 2 => 1_u64..3_000_000_000, 1 => 0_u64..20_000_000_000_000];
    (key, what, pause).prop_map(|(key, what, pause)| Step { key, what, pause })
}

fn keys_of(store: &Arc<Limiter>, now: Nanos) -> Vec<Vec<u8>> {
    let mut listing = store.list();
    std::iter::from_fn(|| listing.next(now, false)).map(|listed| listed.key.to_vec()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(mqcore_testkit::by_depth(150, 600)))]

    #[test]
    fn the_store_answers_as_the_model_does(steps in vec(step(), 1..120), sweeps in any::<bool>()) {
        let store = Arc::new(Limiter::new(LimiterConfig::default(), RandomState::new()));
        let mut model = Model::default();
        let mut now = 1_u64;
        for step in steps {
            now += step.pause;
            if sweeps {
                (0..SHARDS).for_each(|shard| while store.sweep(shard, Nanos(now), 3) {});
            }
            prop_assert_eq!(answer(&store, &step, Nanos(now)), model.step(&step, now), "{:?} at {}", step, now);
        }
        model.forget_expired(now);
        prop_assert_eq!(keys_of(&store, Nanos(now)), model.order.clone());
        let buffers: usize = model.records.values().filter_map(|record| record.value.as_ref()).map(Vec::len).sum();
        (0..SHARDS).for_each(|shard| while store.sweep(shard, Nanos(now + (2 << 20)), 100) {});
        model.forget_expired(now + (1 << 20));
        let totals = store.totals();
        prop_assert!(totals.keys() <= model.records.len() as u64);
        prop_assert!(totals.buffer_bytes <= buffers as u64);
        prop_assert_eq!(totals.keys(), store.keys());
    }

    #[test]
    fn what_was_kept_comes_back_as_it_was(steps in vec(step(), 1..80)) {
        let store = Arc::new(Limiter::new(LimiterConfig::default(), RandomState::new()));
        store.watch_changes();
        let mut now = 1_u64;
        let mut kept = BTreeMap::new();
        for (number, step) in steps.iter().enumerate() {
            now += step.pause;
            answer(&store, step, Nanos(now));
            if number % 3 == 0 {
                fetch(&store, &mut kept);
            }
        }
        fetch(&store, &mut kept);
        let again = Arc::new(Limiter::new(LimiterConfig::default(), RandomState::new()));
        for record in kept.values() {
            again.restore(record, Nanos(now));
        }
        prop_assert_eq!(everything(&again, now), everything(&store, now));
        prop_assert!(!again.fetch_changes(0, 1, |_| ()));
    }

    #[test]
    fn no_rule_ever_lets_more_through_than_its_limit_in_a_period(
        algorithm in prop_oneof![Just(Algorithm::SlidingWindow), Just(Algorithm::Gcra), Just(Algorithm::FixedWindow)],
        limit in 1_u64..20,
        asks in vec((0_u64..400_000_000, 0_u64..4), 1..50),
    ) {
        let period = 1_000_000_000;
        let store = Limiter::new(LimiterConfig::default(), RandomState::new());
        let of = |cost| Rule { algorithm, limit, cost, period: Ttl { unit: 1, amount: period } };
        let mut past: Vec<(u64, u64)> = Vec::new();
        // The later answer comes from another store, because time in a store never runs backwards.
        let later = |past: &[(u64, u64)], cost: u64, mode: ConsumeMode, at: u64| {
            let store = Limiter::new(LimiterConfig::default(), RandomState::new());
            for (at, cost) in past {
                store.consume(b"key", &of(*cost), ConsumeMode::Take, 64, Nanos(*at)).unwrap();
            }
            store.consume(b"key", &of(cost), mode, 64, Nanos(at)).unwrap()
        };
        let mut now = 1_u64;
        let mut taken: Vec<(u64, u64)> = Vec::new();
        for (pause, cost) in asks {
            now += pause;
            let would = store.consume(b"key", &of(cost), ConsumeMode::DryRun, 64, Nanos(now)).unwrap();
            let verdict = store.consume(b"key", &of(cost), ConsumeMode::Take, 64, Nanos(now)).unwrap();
            past.push((now, cost));
            prop_assert_eq!((would.allowed, would.retry_after), (verdict.allowed, verdict.retry_after));
            prop_assert!(verdict.remaining <= limit);
            if verdict.allowed {
                taken.push((now, cost));
                prop_assert_eq!(verdict.retry_after, 0);
            } else if verdict.retry_after < u64::MAX {
                let then = now + verdict.retry_after;
                prop_assert!(later(&past, cost, ConsumeMode::DryRun, then).allowed, "{:?} at {}", verdict, now);
                prop_assert!(!later(&past, cost, ConsumeMode::DryRun, then - 1).allowed, "{:?} is too late", verdict);
            } else {
                prop_assert!(cost > limit);
            }
            prop_assert_eq!(later(&past, 0, ConsumeMode::Peek, now + verdict.reset_after).remaining, limit);
            // A fixed window and a bucket let through twice as much around a border; a sliding one assumes that what was
            // taken in the window before was spread evenly.
            let recent: u64 = taken.iter().filter(|(at, _)| now - at < period).map(|(_, cost)| cost).sum();
            prop_assert!(recent <= 2 * limit);
        }
    }
}

/// A bucket in the model: the moment at which it is full again, times the limit, so that nothing is rounded before it is
/// reported.
#[derive(Default)]
struct SlowBucket {
    full_at: u128,
}

impl SlowBucket {
    /// Allowed, remaining, retry after, reset after.
    fn take(&mut self, limit: u64, cost: u64, period: u64, now: u64) -> (bool, u64, u64, u64) {
        let [limit, cost, period, now] = [limit, cost, period, now].map(u128::from);
        let missing = self.full_at.saturating_sub(now * limit);
        let after = missing + cost * period;
        let allowed = after <= limit * period;
        let missing = if allowed { after } else { missing };
        self.full_at = now * limit + missing;
        let retry_after = match allowed {
            true => 0,
            false if cost > limit => u64::MAX,
            false => (after - limit * period).div_ceil(limit) as u64,
        };
        (allowed, ((limit * period - missing) / period) as u64, retry_after, missing.div_ceil(limit) as u64)
    }
}

/// A sliding window to a reader of the description: what was taken, by the number of its window.
#[derive(Default)]
struct SlowWindow {
    begin: u64,
    taken: BTreeMap<u64, u64>,
}

impl SlowWindow {
    /// Allowed and remaining.
    fn take(&mut self, limit: u64, cost: u64, period: u64, now: u64) -> (bool, u64) {
        let last = self.taken.keys().last().copied();
        if last.is_none_or(|last| now >= self.begin + (last + 2) * period) {
            *self = Self { begin: now, taken: BTreeMap::new() };
        }
        let number = (now - self.begin) / period;
        let of = |number: u64| self.taken.get(&number).copied().unwrap_or(0);
        let left = self.begin + (number + 1) * period - now;
        let before = number.checked_sub(1).map_or(0, of);
        let counts = (u128::from(before) * u128::from(left)).div_ceil(u128::from(period)) as u64;
        let there = limit.saturating_sub(of(number) + counts);
        let allowed = cost <= there;
        if allowed && cost > 0 {
            *self.taken.entry(number).or_default() += cost;
        }
        (allowed, if allowed { there - cost } else { there })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(mqcore_testkit::by_depth(100, 400)))]

    #[test]
    fn windows_and_buckets_are_exact_to_the_unit_and_the_nanosecond(
        limit in prop_oneof![1_u64..20, 1_u64..1_000_000_000_000],
        period in prop_oneof![1_u64..100, 1_u64..5_000_000_000, Just(86_400_000_000_000)],
        asks in vec((0_u64..1 << 32, 0_u64..1 << 32), 1..80),
    ) {
        let store = store();
        let (mut bucket, mut window) = (SlowBucket::default(), SlowWindow::default());
        let mut now = 1_u64;
        for (pause, cost) in asks {
            // About as much comes back as is taken.
            now += ((u128::from(pause) * u128::from(period)) >> 33) as u64;
            let cost = ((u128::from(cost) * u128::from(limit)) >> 32) as u64 + cost % 2;
            let of = |algorithm| Rule { algorithm, limit, cost, period: Ttl { unit: 1, amount: period } };
            let verdict = store.consume(b"bucket", &of(Algorithm::Gcra), ConsumeMode::Take, 64, Nanos(now)).unwrap();
            let changes = (verdict.allowed, verdict.remaining, verdict.retry_after, verdict.reset_after);
            prop_assert_eq!(changes, bucket.take(limit, cost, period, now));
            let sliding = of(Algorithm::SlidingWindow);
            let verdict = store.consume(b"window", &sliding, ConsumeMode::Take, 64, Nanos(now)).unwrap();
            prop_assert_eq!((verdict.allowed, verdict.remaining), window.take(limit, cost, period, now));
        }
    }
}

fn fetch(store: &Limiter, kept: &mut BTreeMap<u64, mqcore_limiter::change::PersistentEntry>) {
    use mqcore_limiter::change::EntryChange;
    for shard in 0..SHARDS {
        while store.fetch_changes(shard, 2, |change| match change {
            EntryChange::Put(record) => drop(kept.insert(record.sequence, record)),
            EntryChange::Remove(sequence) => {
                assert!(kept.remove(&sequence).is_some(), "it was never reported")
            }
        }) {}
    }
}

/// Key, bytes, quota, unit and deadline.
type Seen = (Vec<u8>, Option<u64>, u64, u8, u64);

fn everything(store: &Arc<Limiter>, now: u64) -> Vec<Seen> {
    let mut listing = store.list();
    std::iter::from_fn(|| listing.next(Nanos(now), false))
        .map(|listed| {
            (listed.key.to_vec(), listed.buffer_bytes, listed.quota, listed.unit, listed.deadline.0)
        })
        .collect()
}

const fn kept(bits: u8) -> EntryProperties {
    EntryProperties { bits, kept: true }
}

fn store() -> Arc<Limiter> {
    Arc::new(Limiter::new(LimiterConfig::default(), RandomState::new()))
}

const SECONDS: u8 = 4;

fn rule(algorithm: Algorithm, limit: u64, cost: u64, seconds: u64) -> Rule {
    Rule { algorithm, limit, cost, period: Ttl { unit: SECONDS, amount: seconds } }
}

fn at(seconds: u64) -> Nanos {
    Nanos(seconds * 1_000_000_000)
}

#[test]
fn a_fixed_window_holds_to_the_unit_and_opens_again_at_its_end() {
    let store = store();
    let rule = rule(Algorithm::FixedWindow, 3, 1, 10);
    for left in [2, 1, 0] {
        let verdict = store.consume(b"user", &rule, ConsumeMode::Take, 64, at(1)).unwrap();
        assert_eq!((verdict.allowed, verdict.limit, verdict.remaining), (true, 3, left));
    }
    let refused = store.consume(b"user", &rule, ConsumeMode::Take, 64, at(4)).unwrap();
    assert_eq!((refused.allowed, refused.remaining), (false, 0));
    assert_eq!((refused.retry_after, refused.reset_after), (7_000_000_000, 7_000_000_000));
    assert!(store.consume(b"user", &rule, ConsumeMode::Take, 64, at(11)).unwrap().allowed);
}

#[test]
fn a_fixed_window_is_an_ordinary_counter() {
    let store = store();
    let rule = rule(Algorithm::FixedWindow, 10, 4, 60);
    store.consume(b"user", &rule, ConsumeMode::Take, 16, at(1)).unwrap();
    assert_eq!(store.query(b"user", at(1)).unwrap().quota, 6);
    assert!(store.adjust_quota(b"user", Adjust::Decrease, 5, at(1)));
    let verdict = store.consume(b"user", &rule, ConsumeMode::Take, 16, at(1)).unwrap();
    assert_eq!((verdict.allowed, verdict.remaining), (false, 1));
}

#[test]
fn a_sliding_window_counts_the_window_before_in_proportion() {
    let store = store();
    let rule = rule(Algorithm::SlidingWindow, 10, 10, 10);
    assert!(store.consume(b"user", &rule, ConsumeMode::Take, 64, at(100)).unwrap().allowed);
    let peek = |now| store.consume(b"user", &rule, ConsumeMode::Peek, 64, now).unwrap().remaining;
    assert_eq!([peek(at(105)), peek(at(110)), peek(at(115)), peek(at(118)), peek(at(120))], [0, 0, 5, 8, 10]);
}

#[test]
fn a_bucket_refills_evenly_and_allows_its_whole_limit_at_once() {
    let store = store();
    let one = rule(Algorithm::Gcra, 10, 1, 10);
    let all = rule(Algorithm::Gcra, 10, 10, 10);
    assert!(store.consume(b"user", &all, ConsumeMode::Take, 64, at(1)).unwrap().allowed);
    let refused = store.consume(b"user", &one, ConsumeMode::Take, 64, at(1)).unwrap();
    assert_eq!((refused.allowed, refused.retry_after), (false, 1_000_000_000));
    assert_eq!(refused.reset_after, 10_000_000_000);
    assert!(store.consume(b"user", &one, ConsumeMode::Take, 64, at(2)).unwrap().allowed);
    assert_eq!(store.consume(b"user", &one, ConsumeMode::Peek, 64, at(7)).unwrap().remaining, 5);
}

#[test]
fn a_bucket_whose_rule_changes_keeps_its_consumption() {
    let store = store();
    let take = |limit, cost, seconds, now| {
        let verdict =
            store.consume(b"user", &rule(Algorithm::Gcra, limit, cost, seconds), ConsumeMode::Take, 64, now);
        let verdict = verdict.unwrap();
        (verdict.allowed, verdict.remaining, verdict.reset_after / 1_000_000_000)
    };
    assert_eq!(take(10, 6, 10, at(1)), (true, 4, 6));
    // The same six are missing of a larger bucket, and come back more slowly.
    assert_eq!(take(20, 0, 60, at(1)), (true, 14, 18));
    assert_eq!(take(20, 4, 60, at(1)), (true, 10, 30));
    assert_eq!(take(5, 1, 60, at(1)), (false, 0, 120));
    assert_eq!(take(0, 0, 60, at(1)).1, 0);
    assert_eq!(take(20, 1, 60, at(31)), (true, 19, 3));
}

#[test]
fn refunds_are_limited_to_the_consumption() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::Gcra] {
        let store = store();
        let five = rule(algorithm, 10, 5, 60);
        store.consume(b"user", &five, ConsumeMode::Take, 64, at(1)).unwrap();
        let back = rule(algorithm, 10, 3, 60);
        assert_eq!(store.consume(b"user", &back, ConsumeMode::Refund, 64, at(1)).unwrap().remaining, 8);
        assert_eq!(store.consume(b"user", &five, ConsumeMode::Refund, 64, at(1)).unwrap().remaining, 10);
        let nobody = store.consume(b"nobody", &back, ConsumeMode::Refund, 64, at(1)).unwrap();
        assert_eq!(nobody.remaining, 10);
        assert_eq!(store.query(b"nobody", at(1)), None);
    }
}

#[test]
fn looking_takes_nothing_and_creates_nothing() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::Gcra] {
        let store = store();
        for mode in [ConsumeMode::Peek, ConsumeMode::DryRun] {
            let verdict = store.consume(b"user", &rule(algorithm, 2, 2, 60), mode, 64, at(1)).unwrap();
            assert_eq!(
                (verdict.allowed, verdict.remaining, verdict.reset_after),
                (true, 2, 0),
                "{algorithm:?}"
            );
        }
        assert_eq!(store.keys(), 0);
        let never =
            store.consume(b"user", &rule(algorithm, 2, 3, 60), ConsumeMode::DryRun, 64, at(1)).unwrap();
        assert_eq!((never.allowed, never.retry_after), (false, u64::MAX));
    }
}

#[test]
fn several_keys_are_spent_together_or_not_at_all() {
    let store = store();
    let (user, tenant) = (rule(Algorithm::FixedWindow, 2, 1, 60), rule(Algorithm::Gcra, 3, 1, 60));
    let mut verdicts = Vec::new();
    let both = [(&b"user"[..], user), (&b"tenant"[..], tenant)];
    for _ in 0..2 {
        assert_eq!(store.consume_all(&both, ConsumeMode::Take, 64, at(1), &mut verdicts), Ok(true));
    }
    verdicts.clear();
    assert_eq!(store.consume_all(&both, ConsumeMode::Take, 64, at(1), &mut verdicts), Ok(false));
    assert_eq!(
        verdicts.iter().map(|verdict| (verdict.allowed, verdict.remaining)).collect::<Vec<_>>(),
        [(false, 0), (true, 1)]
    );
    let twice = [(&b"user"[..], user), (&b"user"[..], user)];
    assert_eq!(
        store.consume_all(&twice, ConsumeMode::Take, 64, at(1), &mut verdicts),
        Err(RuleError::KeyTwice)
    );
}

#[test]
fn a_rule_does_not_change_an_entry_of_another_kind() {
    let store = store();
    store.set(b"buffer", b"value", false, Ttl { unit: SECONDS, amount: 60 }, at(1));
    store.consume(b"bucket", &rule(Algorithm::Gcra, 3, 1, 60), ConsumeMode::Take, 64, at(1)).unwrap();
    let fixed = rule(Algorithm::FixedWindow, 3, 1, 60);
    for key in [&b"buffer"[..], b"bucket"] {
        assert_eq!(store.consume(key, &fixed, ConsumeMode::Take, 64, at(1)), Err(RuleError::OtherKind));
        let mut none = Vec::new();
        let requests = [(&b"fresh"[..], fixed), (key, fixed)];
        assert_eq!(
            store.consume_all(&requests, ConsumeMode::Take, 64, at(1), &mut none),
            Err(RuleError::OtherKind)
        );
        assert!(none.is_empty());
    }
    assert_eq!(store.query(b"fresh", at(1)), None);
    let instant = Rule { period: Ttl { unit: SECONDS, amount: 0 }, ..fixed };
    assert_eq!(store.consume(b"fresh", &instant, ConsumeMode::Take, 64, at(1)), Err(RuleError::NoPeriod));
    assert!(!store.insert(b"bucket", 1, 64, Ttl { unit: SECONDS, amount: 1 }, at(1)));
    assert!(!store.adjust_quota(b"bucket", Adjust::Patch, 9, at(1)));
    assert!(!store.adjust_ttl(b"bucket", Adjust::Patch, 9, at(1)));
    assert_eq!(store.query(b"bucket", at(1)).unwrap().quota, 2);
}

#[test]
fn at_the_ceiling_the_entry_that_expires_soonest_makes_room() {
    let config = LimiterConfig { keys_max: 100, ..LimiterConfig::default() };
    let store = Arc::new(Limiter::new(config, RandomState::new()));
    for number in 0..100_u64 {
        assert!(store.insert(
            &number.to_le_bytes(),
            1,
            64,
            Ttl { unit: SECONDS, amount: 1000 + number },
            at(1)
        ));
    }
    for number in 1000..1500_u64 {
        assert!(store.insert(
            &number.to_le_bytes(),
            1,
            64,
            Ttl { unit: SECONDS, amount: number * 10 },
            at(1)
        ));
        assert!(store.query(&number.to_le_bytes(), at(1)).is_some(), "what just came is not what goes");
    }
    let totals = store.totals();
    assert_eq!((totals.keys(), totals.evicted), (100, 500));
    assert_eq!(store.keys(), 100);
}

#[test]
fn the_limit_in_bytes_holds_for_buffers_and_a_larger_one_is_rejected() {
    let config = LimiterConfig { bytes_max: 1 << 20, ..LimiterConfig::default() };
    let store = Arc::new(Limiter::new(config, RandomState::new()));
    let ttl = Ttl { unit: SECONDS, amount: 60 };
    for number in 0..1000_u32 {
        assert!(store.set(&number.to_le_bytes(), &[7; 5000], false, ttl, at(1)));
        assert!(store.totals().bytes <= 1 << 20);
    }
    assert!(!store.set(b"huge", &vec![0; 2 << 20], false, ttl, at(1)));
    assert!(!store.get(b"huge", at(1), |found| found.is_some()));
    // Replacing counts by what it adds.
    assert!(store.set(&999_u32.to_le_bytes(), &[8; 5000], false, ttl, at(1)));
    assert!(store.totals().bytes <= 1 << 20);
}

#[test]
fn sixty_four_threads_drain_a_counter_to_the_last_unit_and_not_beyond() {
    let store = store();
    store.insert(b"counter", 1_000_000, 64, Ttl { unit: SECONDS, amount: 3600 }, at(1));
    store
        .consume(b"window", &rule(Algorithm::FixedWindow, 100_000, 1, 3600), ConsumeMode::Peek, 64, at(1))
        .unwrap();
    let drained: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..64)
            .map(|_| {
                let store = Arc::clone(&store);
                scope.spawn(move || {
                    (0..20_000).filter(|_| store.adjust_quota(b"counter", Adjust::Decrease, 1, at(2))).count()
                        as u64
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(drained, 1_000_000);
    assert_eq!(store.query(b"counter", at(2)).unwrap().quota, 0);
}

#[test]
fn steps_of_a_batch_are_exact_and_block_no_other_caller() {
    let store = store();
    store.insert(b"counter", 300_000, 64, Ttl { unit: SECONDS, amount: 3600 }, at(1));
    let window = rule(Algorithm::FixedWindow, 50_000, 1, 3600);
    let granted: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let store = &store;
        let spend = move |thread: usize| {
            let mut run = store.run();
            let mut granted = (0, 0);
            for number in 0..50_000_u32 {
                granted.0 += u64::from(run.adjust_quota(b"counter", Adjust::Decrease, 1, at(2)));
                granted.1 +=
                    u64::from(run.consume(b"window", &window, ConsumeMode::Take, 64, at(2)).unwrap().allowed);
                if number % 100 == thread as u32 {
                    // Within the batch, a step that needs the same lock does not wait.
                    assert!(run.query(b"counter", at(2)).is_some());
                    assert!(!run.store().insert(b"counter", 1, 64, Ttl { unit: SECONDS, amount: 1 }, at(2)));
                }
            }
            granted
        };
        let threads: Vec<_> = (0..8).map(|thread| scope.spawn(move || spend(thread))).collect();
        // A caller without a batch is served meanwhile.
        assert!(store.query(b"counter", at(2)).is_some());
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let sum = |of: fn(&(u64, u64)) -> u64| granted.iter().map(of).sum::<u64>();
    assert_eq!((sum(|one| one.0), sum(|one| one.1)), (300_000, 50_000));
    assert_eq!(store.query(b"counter", at(2)).unwrap().quota, 0);
}

#[test]
fn threads_that_spend_from_several_keys_neither_overspend_nor_wait_for_each_other_for_ever() {
    let store = store();
    let rules = [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::Gcra]
        .map(|algorithm| rule(algorithm, 5_000, 1, 3600));
    let granted: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..16_usize)
            .map(|thread| {
                let store = Arc::clone(&store);
                scope.spawn(move || {
                    let mut requests = [(&b"a"[..], rules[0]), (&b"b"[..], rules[1]), (&b"c"[..], rules[2])];
                    requests.rotate_left(thread % 3);
                    let mut verdicts = Vec::new();
                    (0..1000)
                        .filter(|_| {
                            store.consume_all(&requests, ConsumeMode::Take, 64, at(1), &mut verdicts)
                                == Ok(true)
                        })
                        .count() as u64
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(granted, 5_000);
    for (key, rule) in [(b"a", rules[0]), (b"b", rules[1]), (b"c", rules[2])] {
        assert_eq!(store.consume(key, &rule, ConsumeMode::Peek, 64, at(1)).unwrap().remaining, 0);
    }
}

#[test]
fn a_listing_contains_every_entry_that_exists_throughout() {
    let store = store();
    let ttl = Ttl { unit: SECONDS, amount: 3600 };
    for number in 0..5000_u32 {
        store.insert(&number.to_le_bytes(), 1, 64, ttl, at(1));
    }
    let mut listing = store.list();
    let mut seen = Vec::new();
    let mut number = 0_u32;
    while let Some(listed) = listing.next(at(1), false) {
        seen.push(u32::from_le_bytes(listed.key[..].try_into().unwrap()));
        // During the listing, every third entry is removed and others are added.
        store.purge(&(number * 3).to_le_bytes(), at(1));
        store.insert(&(100_000 + number).to_le_bytes(), 1, 64, ttl, at(1));
        number += 1;
    }
    assert!(seen.is_sorted(), "in the order of creation");
    assert!((0..5000).filter(|number| number % 3 != 0).all(|number| seen.binary_search(&number).is_ok()));
    assert!(seen.iter().all(|number| *number < 5000), "what came later is not part of it");
}

#[test]
fn a_rule_on_an_expired_entry_creates_a_new_one() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::Gcra] {
        let store = store();
        let take = |key: &[u8], now| {
            store.consume(key, &rule(algorithm, 5, 1, 10), ConsumeMode::Take, 64, now).unwrap().remaining
        };
        assert_eq!((take(b"first", at(1)), take(b"second", at(1)), take(b"first", at(1))), (4, 4, 3));
        let mut under_way = store.list();
        // Both have expired, whatever the algorithm.
        assert_eq!((take(b"first", at(60)), take(b"first", at(60))), (4, 3));
        assert_eq!(take(b"second", at(61)), 4);
        assert!(under_way.next(at(61), false).is_none(), "neither was there when the listing began");
        assert_eq!(keys_of(&store, at(61)), [b"first".to_vec(), b"second".to_vec()]);
        assert_eq!((store.keys(), store.totals().expired), (2, 2), "{algorithm:?}");
        assert_eq!(store.stat(b"first", at(61)).unwrap().writes, 0);
        assert_eq!(store.query(b"first", at(61)).unwrap().quota, 3);
    }
}

#[test]
fn the_end_of_a_persistent_entry_is_reported_before_its_successor() {
    let store = store();
    store.watch_changes();
    let mut changes = BTreeMap::new();
    let per_second = rule(Algorithm::Gcra, 5, 1, 1);
    for second in 1..20 {
        store.consume(b"user", &per_second, ConsumeMode::Take, kept(64), at(second)).unwrap();
        fetch(&store, &mut changes);
        assert_eq!(changes.len(), 1, "the one before is gone");
    }
    let last = changes.into_values().next().unwrap();
    assert_eq!((&*last.key, last.sequence), (&b"user"[..], 19));
}

#[test]
fn reads_and_writes_count_when_their_minute_is_over() {
    let store = store();
    store.insert(b"key", 7, 16, Ttl { unit: 5, amount: 9 }, at(1));
    for _ in 0..3 {
        assert!(store.query(b"key", at(1)).is_some());
    }
    store.adjust_quota(b"key", Adjust::Increase, 1, at(1));
    store.adjust_quota(b"key", Adjust::Decrease, 1, at(1));
    assert_eq!(store.stat(b"key", at(1)).unwrap().reads, 0);
    let uses = store.stat(b"key", at(62)).unwrap();
    assert_eq!((uses.reads_per_minute, uses.writes_per_minute, uses.reads, uses.writes), (7, 3, 7, 3));
}

#[test]
fn changes_of_non_persistent_entries_are_not_reported() {
    let store = store();
    store.watch_changes();
    let ttl = Ttl { unit: SECONDS, amount: 60 };
    store.insert(b"kept", 1, kept(16), ttl, at(1));
    store.insert(b"other", 1, 16, ttl, at(1));
    store.set(b"buffer", b"value", false, ttl, at(1));
    store.consume(b"bucket", &rule(Algorithm::Gcra, 3, 1, 60), ConsumeMode::Take, 64, at(1)).unwrap();
    store.adjust_quota(b"other", Adjust::Increase, 1, at(1));
    let mut changes = BTreeMap::new();
    fetch(&store, &mut changes);
    assert_eq!(changes.values().map(|kept| &*kept.key).collect::<Vec<_>>(), [b"kept"]);
    for key in [&b"kept"[..], b"other", b"buffer", b"bucket"] {
        store.purge(key, at(1));
    }
    fetch(&store, &mut changes);
    assert!(changes.is_empty());
}

#[test]
fn a_recording_that_ends_keeps_nothing_and_the_next_one_begins_with_all_entries() {
    let store = store();
    let unfetched = || (0..SHARDS).map(|shard| store.unfetched(shard)).sum::<usize>();
    let ttl = Ttl { unit: SECONDS, amount: 60 };
    store.watch_changes();
    for key in [&b"first"[..], b"second"] {
        store.insert(key, 1, kept(16), ttl, at(1));
    }
    assert_eq!(unfetched(), 2);
    store.forget_changes();
    store.insert(b"third", 1, kept(16), ttl, at(1));
    assert_eq!(unfetched(), 0);
    let mut changes = BTreeMap::new();
    fetch(&store, &mut changes);
    assert!(changes.is_empty());
    store.watch_changes();
    fetch(&store, &mut changes);
    let keys: Vec<_> = changes.values().map(|kept| &*kept.key).collect();
    assert_eq!(keys, [&b"first"[..], b"second", b"third"]);
}

#[test]
fn pending_changes_are_bounded_by_the_stored_entries() {
    let store = store();
    store.watch_changes();
    let ttl = Ttl { unit: SECONDS, amount: 60 };
    for number in 0..100_000_u32 {
        let key = (number % 100).to_le_bytes();
        store.insert(&key, 1, kept(16), ttl, at(1));
        store.adjust_quota(&key, Adjust::Increase, 1, at(1));
        store.purge(&key, at(1));
    }
    let unfetched: usize = (0..SHARDS).map(|shard| store.unfetched(shard)).sum();
    assert!(unfetched <= 100, "{unfetched}");
    let mut changes = BTreeMap::new();
    fetch(&store, &mut changes);
    assert!(changes.is_empty());
}
