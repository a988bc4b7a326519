//! Consecutive steps by one caller.

use std::sync::MutexGuard;

use crate::creation::Creation;
use crate::limiter::{Limiter, shard_of};
use crate::rule::{ConsumeMode, LimitDecision, Rule, RuleError};
use crate::shard::{Adjust, CounterView, HashedKey, Shard};
use crate::time::Nanos;

/// Maximum number of steps for which one caller holds the lock of a shard: a few microseconds.
const RUN_STEPS_MAX: usize = 64;

/// Consecutive steps by one caller, for example a connection whose peer pipelines requests.
///
/// The lock of a shard is kept between steps that use the same shard, for a few microseconds at most. A hundred requests for
/// one shared counter thus take the lock once or twice, and the counter's cache line rarely changes cores.
///
/// The owner of a run must access the store through [`StepRun::store`] only; calling the store directly would deadlock.
#[derive(Debug)]
pub struct StepRun<'a> {
    store: &'a Limiter,
    held: Option<(usize, MutexGuard<'a, Shard>)>,
    steps: usize,
}

impl<'a> StepRun<'a> {
    /// A run that holds no lock yet.
    pub(crate) const fn new(store: &'a Limiter) -> Self {
        Self { store, held: None, steps: 0 }
    }

    /// Releases the lock and returns the store, for calls that are not steps of this run.
    #[inline]
    pub fn store(&mut self) -> &'a Limiter {
        (self.held, self.steps) = (None, 0);
        self.store
    }

    /// The shard of a key, whose lock this run holds.
    #[inline]
    fn shard(&mut self, hash: u64) -> &mut Shard {
        let store = self.store;
        let number = shard_of(hash);
        if self.steps >= RUN_STEPS_MAX || self.held.as_ref().is_some_and(|(held, _)| *held != number) {
            self.store();
        }
        self.steps += 1;
        &mut self.held.get_or_insert_with(|| (number, store.lock(number))).1
    }

    #[inline]
    fn step<T>(&mut self, key: &[u8], step: impl FnOnce(&mut Shard, HashedKey<'_>) -> T) -> T {
        let store = self.store;
        let hashed = store.hashed(key);
        store.counted(self.shard(hashed.hash), |shard| step(shard, hashed))
    }

    /// The same as [`Limiter::query`].
    #[inline]
    #[must_use]
    pub fn query(&mut self, key: &[u8], now: Nanos) -> Option<CounterView> {
        self.step(key, |shard, key| shard.query(key, now))
    }

    /// The same as [`Limiter::adjust_quota`].
    #[inline]
    pub fn adjust_quota(&mut self, key: &[u8], adjust: Adjust, by: u64, now: Nanos) -> bool {
        self.step(key, |shard, key| shard.adjust_quota(key, adjust, by, now))
    }

    /// The same as [`Limiter::adjust_ttl`].
    pub fn adjust_ttl(&mut self, key: &[u8], adjust: Adjust, by: u64, now: Nanos) -> bool {
        self.step(key, |shard, key| shard.adjust_ttl(key, adjust, by, now))
    }

    /// The same as [`Limiter::consume`].
    ///
    /// # Errors
    /// The same as [`Limiter::consume`].
    #[inline]
    pub fn consume<'b>(
        &mut self,
        key: &[u8],
        rule: &Rule,
        mode: ConsumeMode,
        made: impl Into<Creation<'b>>,
        now: Nanos,
    ) -> Result<LimitDecision, RuleError> {
        let store = self.store;
        let hashed = store.hashed(key);
        store.consume_in(self.shard(hashed.hash), hashed, rule, mode, made.into(), now)
    }
}
