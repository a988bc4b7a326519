//! Rules applied to the entries of a shard.

use super::{Cell, EntryProperties, HashedKey, NewEntry, Shard, marks_of};
use crate::entry::{Entry, EntryKind, PersistenceMarks};
use crate::rule::{Algorithm, ConsumeMode, LimitDecision, Rule, RuleError, RuleState};
use crate::time::Nanos;
use crate::uses::UsageCounter;

/// A decision that has not been applied yet.
#[derive(Debug)]
pub(crate) struct PendingDecision {
    pub(crate) place: Option<u32>,
    /// An expired entry of the key that can be reused.
    pub(crate) expired: Option<u32>,
    pub(crate) verdict: LimitDecision,
    /// New state, and the deadline after which it equals no state; `None`: nothing changes.
    pub(crate) after: Option<(RuleState, Nanos)>,
}

impl PendingDecision {
    /// Whether applying the decision may create an entry, or renew one that has expired.
    #[inline]
    pub(crate) const fn may_create(&self) -> bool {
        self.after.is_some() && self.place.is_none()
    }
}

impl Shard {
    /// Gives the place of an expired entry, which a decision may renew, back to its owner.
    #[inline]
    pub(crate) fn disown_expired(&mut self, pending: &PendingDecision) {
        if let Some(place) = pending.expired.filter(|_| pending.may_create()) {
            self.own(place, None);
        }
    }

    fn state(&self, place: u32, algorithm: Algorithm) -> Result<RuleState, RuleError> {
        let entry = self.entries.get(place);
        match (entry.kind, algorithm) {
            (EntryKind::Counter, Algorithm::FixedWindow) => {
                Ok(RuleState::Fixed { left: entry.value, deadline: entry.deadline })
            }
            (EntryKind::Sliding, Algorithm::SlidingWindow) | (EntryKind::Bucket, Algorithm::Gcra) => {
                match self.cells.get(entry.value as u32) {
                    Cell::Sliding(sliding) => Ok(RuleState::Sliding(*sliding)),
                    Cell::Bucket(bucket) => Ok(RuleState::Bucket(*bucket)),
                    Cell::Free | Cell::Buffer(_) => Err(RuleError::OtherKind),
                }
            }
            _ => Err(RuleError::OtherKind),
        }
    }

    /// Evaluates a rule for a key without changing anything.
    #[inline]
    pub(crate) fn judge(
        &mut self,
        key: HashedKey<'_>,
        rule: &Rule,
        mode: ConsumeMode,
        now: Nanos,
    ) -> Result<PendingDecision, RuleError> {
        rule.check()?;
        let (place, expired) = match self.lookup(key) {
            Some(place) if self.entries.get(place).deadline > now => (Some(place), None),
            Some(place) if self.is_renewable(place, rule.algorithm) => (None, Some(place)),
            Some(place) => {
                self.expire(place);
                (None, None)
            }
            None => (None, None),
        };
        let known = place.map(|place| self.state(place, rule.algorithm)).transpose()?;
        let judged = rule.judge(known, mode, now);
        Ok(PendingDecision { place, expired, verdict: judged.verdict, after: judged.after })
    }

    /// Whether an expired entry can be reused for the entry that a rule would create. A persistent entry cannot, because its
    /// removal must be reported.
    #[inline]
    fn is_renewable(&self, place: u32, algorithm: Algorithm) -> bool {
        let entry = self.entries.get(place);
        let kind = match algorithm {
            Algorithm::FixedWindow => EntryKind::Counter,
            Algorithm::SlidingWindow => EntryKind::Sliding,
            Algorithm::Gcra => EntryKind::Bucket,
        };
        entry.kind == kind && entry.marks == PersistenceMarks::NONE
    }

    /// Reuses an expired entry of the same key and kind as a new one. This has the same effect as removing and creating it, in
    /// half the time. Most buckets are full, and thus expired, whenever they are used.
    fn renew(&mut self, place: u32, after: RuleState, terms: NewEntry, sequence: u64, now: Nanos) {
        self.totals.expired += 1;
        if self.last != place {
            self.leave_order(place);
            self.join_order(place);
        }
        self.set_state(place, after);
        let NewEntry { made: EntryProperties { bits, kept }, unit, deadline } = terms;
        let entry = self.entries.get_mut(place);
        (entry.sequence, entry.unit, entry.bits, entry.marks) = (sequence, unit, bits, marks_of(kept));
        if let Some(uses) = &mut self.uses {
            *uses.get_mut(place) = UsageCounter::new(now.minute());
        }
        self.set_deadline(place, deadline);
        self.count(place, now, 1, 1);
        self.changed(place);
    }

    /// Stores the state of an entry of the matching kind.
    #[inline]
    fn set_state(&mut self, place: u32, state: RuleState) {
        let entry = self.entries.get_mut(place);
        match state {
            RuleState::Fixed { left, .. } => entry.value = left,
            RuleState::Sliding(sliding) => *self.cells.get_mut(entry.value as u32) = Cell::Sliding(sliding),
            RuleState::Bucket(bucket) => *self.cells.get_mut(entry.value as u32) = Cell::Bucket(bucket),
        }
    }

    /// Applies a decision. Returns the place of the entry that this call created, if any.
    #[inline]
    pub(crate) fn apply(
        &mut self,
        key: HashedKey<'_>,
        rule: &Rule,
        pending: &PendingDecision,
        made: EntryProperties,
        sequence: impl FnOnce() -> u64,
        now: Nanos,
    ) -> Option<u32> {
        let Some(after) = pending.after else {
            if let Some(place) = pending.place {
                self.count(place, now, 1, 0);
            }
            return None;
        };
        let (after, deadline) = after;
        if let Some(place) = pending.place {
            self.set_state(place, after);
            self.count(place, now, 1, 1);
            self.changed(place);
            if deadline <= now {
                self.expire(place);
            } else if deadline != self.entries.get(place).deadline {
                self.set_deadline(place, deadline);
            }
            return None;
        }
        if deadline <= now {
            return None;
        }
        if let Some(place) = pending.expired {
            let terms = NewEntry { made, unit: rule.period.unit, deadline };
            self.renew(place, after, terms, sequence(), now);
            return Some(place);
        }
        let (kind, value) = match after {
            RuleState::Fixed { left, .. } => (EntryKind::Counter, left),
            RuleState::Sliding(sliding) => {
                (EntryKind::Sliding, u64::from(self.cells.insert(Cell::Sliding(sliding))))
            }
            RuleState::Bucket(bucket) => {
                (EntryKind::Bucket, u64::from(self.cells.insert(Cell::Bucket(bucket))))
            }
        };
        let unit = rule.period.unit;
        let marks = marks_of(made.kept);
        let entry = Entry { value, deadline, kind, unit, bits: made.bits, marks, ..Entry::default() };
        Some(self.create(key, entry, sequence(), now))
    }
}
