//! Copies of the leader's files, and the part of the log that is not needed any more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use mqcore_consensus::log::{LogEntry, LogSnapshot, ReplicatedLog};
use mqcore_consensus::replica::ReplicaRole;

use super::{COPY_PAUSE, Copying, Failure, Grouped, MemberThread, REPEATED_BYTES, REPEATED_TIME};
use crate::copying::receive_copy;
use crate::input::{Copied, Input};
use crate::member::compaction::Compaction;
use crate::member::log::LogError;

impl MemberThread {
    pub(super) fn begin_copy(&mut self, group: &mut Grouped) {
        let ReplicaRole::Follower { leader: Some(leader) } = group.replica.role() else { return };
        let Some(address) = self.parts.options.peers.get(&leader.node()).cloned() else { return };
        if self.copy_thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            // Two copies must not write into the same files.
            group.copying = Copying::Wanted(Instant::now() + COPY_PAUSE);
            return;
        }
        group.copying = Copying::Runs;
        self.copies += 1;
        let number = self.copies;
        let (root, inputs) = (self.parts.options.data_dir.clone(), self.parts.inputs.clone());
        let credentials = Arc::clone(&self.parts.credentials);
        let runtime = self.parts.runtime.clone();
        self.applier.close();
        // Points before the copy are those of the old files.
        group.compaction = Compaction::default();
        self.copy_thread = Some(std::thread::spawn(move || {
            let outcome = runtime.block_on(receive_copy(&root, &address, &credentials));
            // The member has ended only if the process ends.
            let _ = inputs.send(Input::Copied(number, outcome));
        }));
    }

    pub(super) fn copied(
        &mut self,
        group: &mut Grouped,
        outcome: std::io::Result<Copied>,
    ) -> Result<(), Failure> {
        let base = group.replica.log().base().0;
        let copied = match outcome {
            Ok(copied) if copied.begun >= base => copied,
            Ok(_) => return self.copy_again(group, "the leader's files are older than the log"),
            Err(error) => return self.copy_again(group, &error.to_string()),
        };
        self.applier.begin_at(copied.begun).map_err(Failure::Sync)?;
        group.copying = Copying::Repeats(copied.complete);
        group.next_held = copied.begun + 1;
        if copied.complete <= copied.begun && !group.repeats() {
            // Nothing has to be repeated.
            self.complete_copy(group)?;
        }
        Ok(())
    }

    /// Carries out a committed entry, or holds it until there is a copy.
    pub(super) fn committed(&mut self, group: &mut Grouped, entry: LogEntry) -> Result<(), Failure> {
        if matches!(group.copying, Copying::Wanted(_) | Copying::Runs) || group.repeats() {
            group.held = entry.index;
            // Before each election, the crate `raft` would read all entries again that do not count as applied.
            group.replica.applied(entry.index);
            return Ok(());
        }
        self.carry_out(group, entry)
    }

    /// Carries out a part of the entries that were held during the copy.
    pub(super) fn repeat_held(&mut self, group: &mut Grouped) -> Result<(), Failure> {
        if !group.repeats() {
            return Ok(());
        }
        let entries = group.replica.log().entries(group.next_held..group.held + 1, REPEATED_BYTES)?;
        if entries.is_empty() {
            return self.copy_again(group, "the log lacks entries after the copy");
        }
        self.parts.shared.note_work();
        let begun = Instant::now();
        for entry in entries {
            group.next_held = entry.index + 1;
            self.carry_out(group, entry)?;
            if begun.elapsed() >= REPEATED_TIME {
                break;
            }
        }
        Ok(())
    }

    pub(super) fn complete_copy(&mut self, group: &mut Grouped) -> Result<(), Failure> {
        group.copying = Copying::No;
        self.identity.is_copying = false;
        self.identity.save(&self.parts.options.data_dir)?;
        group.identity.borrow_mut().is_copying = false;
        tracing::info!("the copy of the cluster's files is complete");
        Ok(())
    }

    fn copy_again(&self, group: &mut Grouped, why: &str) -> Result<(), Failure> {
        tracing::warn!(why, "cannot copy the files of the cluster; trying again");
        group.copying = Copying::Wanted(Instant::now() + COPY_PAUSE);
        Ok(())
    }

    /// Index of the last entry that all members with files have carried out. `None`: one of them is not connected, or gets a copy.
    ///
    /// Entries after it may exist nowhere else but on the leader, so that a witness keeps them.
    fn applied_by_all(&self, group: &Grouped) -> Option<u64> {
        let members = group.replica.membership();
        let (own, witnesses) = (group.replica.id(), self.witnesses());
        let with_files =
            members.voters.union(&members.learners).filter(|id| **id != own && !witnesses.contains(*id));
        let reported: BTreeMap<u64, u64> = self
            .connected_members()
            .filter(|(_, greeting)| !greeting.is_copying)
            .filter_map(|(_, greeting)| Some((greeting.replica?, greeting.report.as_ref()?.applied)))
            .collect();
        with_files.map(|id| reported.get(&id.to_number()).copied()).min().flatten()
    }

    fn point(&self, group: &Grouped) -> Option<LogSnapshot> {
        let index = self.applier.applied();
        let log = group.replica.log();
        let term = log.term(index)?;
        Some(LogSnapshot { index, term, membership: group.replica.membership(), data: bytes::Bytes::new() })
    }

    /// Lets another thread sync the files up to here.
    pub(super) fn sync_files(&mut self, group: &mut Grouped) -> Result<(), Failure> {
        let Some(point) = self.point(group) else { return Ok(()) };
        let unsynced = self.applier.take_unsynced().map_err(Failure::Sync)?;
        self.syncs += 1;
        let number = self.syncs;
        group.compaction.begin(point, number);
        let inputs = self.parts.inputs.clone();
        std::thread::spawn(move || {
            // The member has ended only if the process ends.
            let _ = inputs.send(Input::Synced(number, unsynced.sync()));
        });
        Ok(())
    }

    /// Shortens the log once the files are durable, because another member needs a snapshot that is not older than this.
    pub(super) fn renew_snapshot(&mut self, group: &mut Grouped) -> Result<(), Failure> {
        if self.point(group).is_some() && group.compaction.request() {
            self.sync_files(group)?;
        }
        Ok(())
    }

    pub(super) fn synced(
        &self,
        group: &mut Grouped,
        number: u64,
        outcome: std::io::Result<()>,
    ) -> Result<(), Failure> {
        // Other files have replaced those of an earlier sync, or entries that it covered are repeated.
        if !group.compaction.synced(number) {
            return Ok(());
        }
        outcome.map_err(Failure::Sync)?;
        self.compact(group)
    }

    pub(super) fn compact(&self, group: &mut Grouped) -> Result<(), Failure> {
        let snapshot = if group.is_witness {
            self.applied_by_all(group).and_then(|index| group.compaction.take_up_to(index))
        } else {
            group.compaction.take()
        };
        if let Some(snapshot) = snapshot {
            group.replica.log_mut().journal_mut().compact(&snapshot).map_err(LogError::from)?;
        }
        Ok(())
    }
}

impl Grouped {
    /// Held entries wait to be carried out on the copy.
    pub(super) fn repeats(&self) -> bool {
        matches!(self.copying, Copying::Repeats(_)) && self.next_held <= self.held
    }
}
