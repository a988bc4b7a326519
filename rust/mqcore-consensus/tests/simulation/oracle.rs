//! Observations from the outside, and the conditions that they must meet: applied entries, leaders and confirmations.

use std::collections::BTreeMap;

use mqcore_consensus::log::{EntryKind, LogEntry};
use mqcore_consensus::membership::{GroupMembers, ReplicaId};

use super::disk::Machine;

#[derive(Debug, Default)]
pub(crate) struct Oracle {
    /// Term and value of each applied entry.
    agreed: BTreeMap<u64, (u64, Option<u64>)>,
    leaders: BTreeMap<u64, ReplicaId>,
    confirmed: Vec<(u64, u64)>,
    /// The members after the last applied entry that changed them, and its index.
    membership: (u64, GroupMembers),
}

pub(crate) fn value(entry: &LogEntry) -> Option<u64> {
    let bytes = entry.data.as_ref().try_into().ok()?;
    (entry.kind == EntryKind::Batch).then_some(u64::from_le_bytes(bytes))
}

impl Oracle {
    pub(crate) fn new(members: GroupMembers) -> Self {
        Self { membership: (1, members), ..Self::default() }
    }

    pub(crate) fn leads(&mut self, replica: ReplicaId, term: u64) -> Result<(), String> {
        let leader = *self.leaders.entry(term).or_insert(replica);
        (leader == replica).then_some(()).ok_or_else(|| format!("{leader} and {replica} lead in term {term}"))
    }

    pub(crate) fn applies(&mut self, replica: ReplicaId, entry: &LogEntry) -> Result<(), String> {
        let content = (entry.term, value(entry));
        let agreed = *self.agreed.entry(entry.index).or_insert(content);
        if agreed != content {
            return Err(format!("{replica} applies {content:?} as entry {}, not {agreed:?}", entry.index));
        }
        Ok(())
    }

    pub(crate) fn members_are(&mut self, index: u64, membership: &GroupMembers) {
        if index > self.membership.0 && *membership != self.membership.1 {
            self.membership = (index, membership.clone());
        }
    }

    /// The members after the last change that a replica has applied, and its index.
    pub(crate) fn membership(&self) -> (u64, &GroupMembers) {
        (self.membership.0, &self.membership.1)
    }

    /// The state of a replica after it has taken a snapshot, or at the end.
    pub(crate) fn has_state(&self, replica: ReplicaId, machine: &Machine) -> Result<(), String> {
        let agreed = self.agreed.range(..=machine.index).filter_map(|(_, (_, value))| *value);
        if !agreed.eq(machine.values.iter().copied()) {
            return Err(format!("{replica} has another state after entry {}", machine.index));
        }
        Ok(())
    }

    pub(crate) fn confirms(&mut self, index: u64, value: u64) -> Result<(), String> {
        self.confirmed.push((index, value));
        self.keeps(index, value)
    }

    fn keeps(&self, index: u64, value: u64) -> Result<(), String> {
        let agreed = self.agreed.get(&index).and_then(|(_, value)| *value);
        (agreed == Some(value))
            .then_some(())
            .ok_or_else(|| format!("{value} was confirmed as entry {index}, which is {agreed:?}"))
    }

    pub(crate) fn end(&self) -> Result<(), String> {
        self.confirmed.iter().try_for_each(|&(index, value)| self.keeps(index, value))?;
        let mut values: Vec<u64> = self.agreed.values().filter_map(|(_, value)| *value).collect();
        let count = values.len();
        values.sort_unstable();
        values.dedup();
        (values.len() == count).then_some(()).ok_or_else(|| "an entry was applied twice".to_owned())
    }

    pub(crate) fn confirmed(&self) -> usize {
        self.confirmed.len()
    }

    pub(crate) fn elections(&self) -> usize {
        self.leaders.len()
    }
}
