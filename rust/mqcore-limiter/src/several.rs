//! Rules for several keys at once: all of them, or none.

use std::sync::{Arc, MutexGuard};

use crate::creation::Creation;
use crate::limiter::{Limiter, RULES_MAX, shard_of};
use crate::owner::KeyOwner;
use crate::rule::{ConsumeMode, LimitDecision, Rule, RuleError};
use crate::shard::{HashedKey, PendingDecision, Shard};
use crate::time::Nanos;

impl Limiter {
    /// Applies a rule to each of several keys: to all of them, or to none if one denies the request.
    ///
    /// Appends a decision for each key to `verdicts` and returns whether all allowed the request. If one denied it, the others
    /// report what they would have allowed.
    ///
    /// # Errors
    /// [`RuleError`] if a rule cannot be applied. Nothing has changed and nothing was appended then.
    pub fn consume_all<'a>(
        &self,
        requests: &[(&[u8], Rule)],
        mode: ConsumeMode,
        made: impl Into<Creation<'a>>,
        now: Nanos,
        verdicts: &mut Vec<LimitDecision>,
    ) -> Result<bool, RuleError> {
        let made = made.into();
        if requests.len() > RULES_MAX {
            return Err(RuleError::TooMany { max: RULES_MAX });
        }
        let hashed: Vec<HashedKey<'_>> = requests.iter().map(|(key, _)| self.hashed(key)).collect();
        let twice =
            |(index, key): (usize, &HashedKey<'_>)| hashed[..index].iter().any(|other| other.key == key.key);
        if hashed.iter().enumerate().any(twice) {
            return Err(RuleError::KeyTwice);
        }
        // All threads take locks in the same order, which prevents deadlocks.
        let mut locked: Vec<(usize, MutexGuard<'_, Shard>)> = Vec::with_capacity(requests.len());
        let mut order: Vec<usize> = hashed.iter().map(|key| shard_of(key.hash)).collect();
        order.sort_unstable();
        order.dedup();
        locked.extend(order.into_iter().map(|shard| (shard, self.lock(shard))));
        // Every shard was inserted above, so the search always succeeds.
        let place = |shard: usize| locked.binary_search_by_key(&shard, |(number, _)| *number).unwrap_or(0);
        let places: Vec<usize> = hashed.iter().map(|key| place(shard_of(key.hash))).collect();
        let mut pending: Vec<PendingDecision> = Vec::with_capacity(requests.len());
        for ((key, place), (_, rule)) in hashed.iter().zip(&places).zip(requests) {
            let shard = &mut *locked[*place].1;
            pending.push(self.counted(shard, |shard| shard.judge(*key, rule, mode, now))?);
        }
        let allowed = pending.iter().all(|pending| pending.verdict.allowed);
        if allowed {
            for (pending, place) in pending.iter().zip(&places) {
                locked[*place].1.disown_expired(pending);
            }
            self.take_places(&pending, made.owner)?;
            let mut touched: Vec<(usize, u32)> = Vec::new();
            for (index, (key, (_, rule))) in hashed.iter().zip(requests).enumerate() {
                let shard = &mut *locked[places[index]].1;
                let created =
                    self.counted(shard, |shard| self.apply_in(shard, *key, rule, &pending[index], made, now));
                touched.extend(created.or(pending[index].place).map(|place| (places[index], place)));
            }
            self.make_room_after(&mut locked, &touched, now);
        } else {
            // The keys that would have allowed the request report their state without it.
            for (index, (key, (_, rule))) in hashed.iter().zip(requests).enumerate() {
                if pending[index].after.is_some() {
                    pending[index] = locked[places[index]].1.judge(*key, rule, ConsumeMode::DryRun, now)?;
                }
            }
        }
        verdicts.extend(pending.iter().map(|pending| pending.verdict));
        Ok(allowed)
    }

    /// Takes places for all entries that these decisions may create, or none.
    fn take_places(
        &self,
        pending: &[PendingDecision],
        owner: Option<&Arc<KeyOwner>>,
    ) -> Result<(), RuleError> {
        let new = pending.iter().filter(|pending| pending.may_create()).count();
        for taken in 0..new {
            if !self.take_place(owner) {
                owner.into_iter().for_each(|owner| (0..taken).for_each(|_| owner.give_back()));
                return Err(RuleError::OwnerFull);
            }
        }
        Ok(())
    }

    /// Evicts entries to compensate for the growth of several keys, without evicting these keys.
    fn make_room_after(
        &self,
        locked: &mut [(usize, MutexGuard<'_, Shard>)],
        touched: &[(usize, u32)],
        now: Nanos,
    ) {
        for (index, (_, shard)) in locked.iter_mut().enumerate() {
            if !self.is_full(0, 0) {
                return;
            }
            let here = touched.iter().filter(|(at, _)| *at == index).map(|(_, place)| *place);
            let keep: Vec<u32> = here.collect();
            self.make_room(shard, 0, 0, &keep, now);
        }
    }
}
