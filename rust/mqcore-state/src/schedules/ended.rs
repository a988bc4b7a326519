//! Schedules that have ended: the workers of their programs send them again at every start, and must not start them again.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use mqcore_scheduler::plan::Plan;
use mqcore_scheduler::record::encode_plan;
use mqcore_scheduler::scheduler::EntryId;
use sha2::{Digest, Sha256};

/// Maximum ended schedules that are remembered; the oldest are forgotten first.
const ENDED_MAX: usize = 100_000;

/// A hash of all that a client determines about a schedule.
pub(crate) type Terms = [u8; 32];

/// The terms of a schedule.
pub(crate) fn terms_of(id: &EntryId, plan: &Plan, run: &[u8]) -> Terms {
    let mut encoded = Vec::new();
    encode_plan(id, plan, &mut encoded);
    Sha256::new().chain_update(encoded).chain_update(run).finalize().into()
}

/// A schedule that ran as often as it should, or that a client ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EndedSchedule {
    /// The number of this record in the journal.
    pub(crate) sequence: u64,
    pub(crate) id: EntryId,
    pub(crate) terms: Terms,
}

/// The schedules that ended last.
#[derive(Debug, Default)]
pub(crate) struct EndedSchedules {
    by_id: HashMap<EntryId, EndedSchedule, foldhash::fast::RandomState>,
    by_sequence: BTreeMap<u64, EntryId>,
}

impl EndedSchedules {
    /// Whether a schedule with these terms has ended.
    pub(crate) fn has(&self, id: &EntryId, terms: &Terms) -> bool {
        self.by_id.get(id).is_some_and(|ended| ended.terms == *terms)
    }

    /// Adds a schedule. Returns the record that is not needed any more.
    pub(crate) fn insert(&mut self, ended: EndedSchedule) -> Option<u64> {
        let before = self.remove(&ended.id);
        self.by_sequence.insert(ended.sequence, ended.id);
        self.by_id.insert(ended.id, ended);
        if self.by_id.len() <= ENDED_MAX {
            return before;
        }
        let (sequence, oldest) = self.by_sequence.pop_first()?;
        self.by_id.remove(&oldest);
        Some(sequence)
    }

    /// Forgets a schedule. Returns its record.
    pub(crate) fn remove(&mut self, id: &EntryId) -> Option<u64> {
        let ended = self.by_id.remove(id)?;
        self.by_sequence.remove(&ended.sequence);
        Some(ended.sequence)
    }
}
