//! Remedies for damaged files, and for a disk that fails.
//!
//! | failure | remedy |
//! |---|---|
//! | no space, no file descriptor, files that cannot be written | open everything again until it works: entries are repeated |
//! | a file of a journal is damaged, and others have an intact one | copy all files from a leader that found its own intact |
//! | the log is damaged, or a write of it failed | join as a new replica, once a leader is there that has everything |
//! | anything else | the member stops |

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use mqcore_consensus::journal_log::OpenError;
use mqcore_consensus::replica::{ReplicaError, ReplicaStartError};
use mqcore_journal::error::JournalError;

use super::{Copying, Failure, Grouped, LEADER_BYTES_MIN, MemberThread};
use crate::applier::{Applier, ApplyError};
use crate::comparing;
use crate::identity::{MemberIdentity, MemberIdentityError};
use crate::input::{DamageScope, FoundDamage, Input, OpenedFile};
use crate::member::log::LogError;
use crate::status::MemberStatus;

/// Pause before another attempt.
const PAUSE: Duration = Duration::from_secs(1);

/// The remedy for a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Remedy {
    /// Open the log and the files again.
    Retry,
    /// Begin a new replica with a copy of another member's files.
    Rejoin,
    /// Only an operator can help.
    Stop,
}

impl Failure {
    fn remedy(&self) -> Remedy {
        match self {
            Self::NoLog | Self::LogDamaged(_) | Self::Open(OpenError::Damaged(_)) => Remedy::Rejoin,
            Self::Start(ReplicaStartError::LogLost { .. }) | Self::Replica(ReplicaError::LogLost { .. }) => {
                Remedy::Rejoin
            }
            Self::Open(OpenError::Journal(error)) => Remedy::of_opening(error),
            Self::Log(LogError::Journal(error))
            | Self::Replica(ReplicaError::Log(LogError::Journal(error))) => Remedy::of_writing(error),
            Self::Log(LogError::Identity(_)) | Self::Replica(ReplicaError::Log(LogError::Identity(_))) => {
                Remedy::Retry
            }
            // The entries since the last sync are repeated, and write again what a failed sync may have lost.
            Self::Apply(ApplyError::Io { .. }) | Self::Sync(_) | Self::Identity(_) => Remedy::Retry,
            Self::Apply(ApplyError::Entry { .. })
            | Self::Replica(ReplicaError::UnknownChange(_))
            | Self::Open(OpenError::Unknown { .. })
            | Self::Start(ReplicaStartError::Options(_))
            | Self::Conflict(_)
            | Self::TooManyWitnesses(_)
            | Self::WitnessWithData(_) => Remedy::Stop,
        }
    }
}

impl Remedy {
    /// Opening reads, and begins a new segment. A disk that cannot do that may recover.
    fn of_opening(error: &JournalError) -> Self {
        match error {
            JournalError::Io { .. } | JournalError::Full { .. } | JournalError::Unidentified { .. } => {
                Self::Retry
            }
            error if error.is_damage() => Self::Rejoin,
            _ => Self::Stop,
        }
    }

    /// After a failed write or sync, reading shows bytes that are not on the disk, so that the log cannot be trusted.
    fn of_writing(error: &JournalError) -> Self {
        match error {
            JournalError::Full { .. } => Self::Retry,
            JournalError::Io { .. } => Self::Rejoin,
            error if error.is_damage() => Self::Rejoin,
            _ => Self::Stop,
        }
    }
}

impl MemberThread {
    /// Does what helps against a failure. The member continues then.
    ///
    /// # Errors
    /// Nothing helps.
    pub(super) fn handle_failure(
        &mut self,
        failure: Failure,
        inputs: &Receiver<Input>,
    ) -> Result<(), String> {
        let why = failure.to_string();
        match failure.remedy() {
            Remedy::Stop => return Err(why),
            Remedy::Retry => {
                tracing::error!(why, "this node of the cluster cannot continue; trying again");
                // Another node continues the work of the broker.
                self.lose_leadership("this node cannot write its files");
                self.pause(inputs, &why, PAUSE);
            }
            Remedy::Rejoin => self.rejoin(inputs, &why)?,
        }
        loop {
            match open_applier(&self.parts.options.data_dir, &mut self.identity) {
                Ok(applier) => {
                    self.applier = applier;
                    return Ok(());
                }
                // The cause of the first failure may last, for example a lack of file descriptors.
                Err(error) => {
                    let why = error.to_string();
                    tracing::error!(why, "this node of the cluster cannot open its files; trying again");
                    self.pause(inputs, &why, PAUSE);
                }
            }
        }
    }

    /// Begins a new replica. Its old files are moved away only when another member leads, and so has everything.
    fn rejoin(&mut self, inputs: &Receiver<Input>, why: &str) -> Result<(), String> {
        if self.parts.options.peers.is_empty() {
            return Err(format!(
                "{why}; there is no other node with a copy. `mqcore cluster force-new` continues with the files of this one"
            ));
        }
        tracing::error!(
            why,
            "this node joins the cluster anew with a copy of its files, as soon as another node leads"
        );
        if !self.identity.is_log_lost {
            self.identity.is_log_lost = true;
            if let Err(error) = self.identity.save(&self.parts.options.data_dir) {
                tracing::error!(%error, "cannot save that the log is damaged");
            }
        }
        self.lose_leadership("the log of this node is damaged");
        loop {
            self.pause(inputs, why, PAUSE);
            if self.heard_leader().is_none() {
                continue;
            }
            match self.identity.clone().replace(&self.parts.options.data_dir) {
                Ok(identity) => {
                    self.identity = identity;
                    return Ok(());
                }
                Err(error) => tracing::error!(%error, "cannot move the files of the old replica away"),
            }
        }
    }

    /// The other node that says that it leads the group.
    fn heard_leader(&self) -> Option<u32> {
        self.connected_members().find(|(_, greeting)| greeting.is_leading).map(|(node, _)| node)
    }

    /// Waits, and answers those who want to know why.
    fn pause(&mut self, inputs: &Receiver<Input>, why: &str, duration: Duration) {
        let status = || MemberStatus { problem: Some(why.to_owned()), ..self.status_without_group() };
        self.parts.shared.show(status());
        self.parts.network.introduce(self.greeting(&[], &status()));
        // Its clients are served by the leader meanwhile.
        self.know_leader(self.heard_leader());
        let end = Instant::now() + duration;
        let mut heard = Vec::new();
        while let Some(rest) = end.checked_duration_since(Instant::now()) {
            match inputs.recv_timeout(rest) {
                Ok(Input::Status(answer)) => {
                    // The asker may have gone.
                    let _ = answer.send(status());
                }
                Ok(Input::Greeting(node, greeting)) => heard.push((node, greeting)),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        heard.into_iter().for_each(|(node, greeting)| self.greeted(node, *greeting));
    }

    // ---- Full disks ------------------------------------------------------------------------------------------------------

    /// Free space of the disk. A disk that does not tell counts as large enough.
    pub(super) fn free_bytes(&self) -> u64 {
        let found = rustix::fs::statvfs(&self.parts.options.data_dir);
        found.map_or(u64::MAX, |found| found.f_bavail.saturating_mul(found.f_frsize))
    }

    /// A leader whose disk is almost full would refuse messages: a node with space continues.
    pub(super) fn leave_if_disk_is_full(&self, group: &mut Grouped) {
        if self.free_bytes() >= LEADER_BYTES_MIN {
            return;
        }
        let healthy =
            self.connected_members().filter(|(_, greeting)| greeting.has_space && !greeting.is_copying);
        let healthy: BTreeSet<u64> = healthy.filter_map(|(_, greeting)| greeting.replica).collect();
        group.replica.hand_over(|id| healthy.contains(&id.to_number()));
    }

    // ---- Requests of operators -------------------------------------------------------------------------------------------

    /// Lets another node lead. The broker of this process ends with its restart.
    pub(super) fn hand_over(&self, group: &mut Grouped, node: u32) -> Result<(), String> {
        if group.led.is_none() {
            return Err(format!("node {} does not lead", self.parts.options.node));
        }
        if node == self.parts.options.node {
            return Ok(());
        }
        let Some((_, greeting)) = self.connected_members().find(|(other, _)| *other == node) else {
            return Err(format!("node {node} is not connected"));
        };
        if greeting.is_witness {
            return Err(format!("node {node} is a witness, which has no data"));
        }
        if greeting.is_copying {
            return Err(format!("node {node} does not have all data"));
        }
        if !group.replica.membership().voters.iter().any(|id| id.node() == node) {
            return Err(format!("node {node} does not vote yet"));
        }
        tracing::info!(node, "an operator lets another node lead");
        group.replica.hand_over(|id| id.node() == node);
        Ok(())
    }

    // ---- Damaged files ---------------------------------------------------------------------------------------------------

    /// Opens a file between two entries, to compare it with those of others. `None`: this member does not have all files.
    pub(super) fn open_file(&self, group: &Grouped, name: &str) -> io::Result<Option<OpenedFile>> {
        if let Copying::Repeats(complete) = group.copying {
            return Err(io::Error::other(format!(
                "the files of this node will be complete after entry {complete}"
            )));
        }
        if !group.is_complete() {
            return Ok(None);
        }
        let file = match File::open(self.parts.options.data_dir.join(name)) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        Ok(Some(OpenedFile { index: self.applier.applied(), file }))
    }

    /// Compares a damaged file with those of other members.
    pub(super) fn compare(&self, group: &mut Grouped, damage: FoundDamage) {
        let members = group.replica.membership();
        let nodes = members.voters.iter().map(|id| id.node()).filter(|node| *node != self.parts.options.node);
        let others: Vec<_> = nodes.filter_map(|node| self.parts.options.peers.get(&node).cloned()).collect();
        let scope = if !group.is_complete() {
            Some(DamageScope::Local)
        } else if others.is_empty() {
            Some(DamageScope::AllMembers)
        } else {
            None
        };
        if let Some(scope) = scope {
            return damage.tell(scope);
        }
        if let Some(waiting) = group.comparing.get_mut(&damage.name) {
            // Each verification finds the same damage again.
            waiting.extend(Some(damage).filter(|damage| damage.answer.is_some()));
            return;
        }
        group.comparing.insert(damage.name.clone(), Vec::new());
        let (inputs, credentials) = (self.parts.inputs.clone(), Arc::clone(&self.parts.credentials));
        self.parts.runtime.spawn(async move {
            let scope = comparing::find_scope(&damage.name, &inputs, &others, &credentials).await;
            // The member has ended only if the process ends.
            let _ = inputs.send(Input::DamageCompared(damage, scope));
        });
    }

    pub(super) fn compared(&mut self, group: &mut Grouped, damage: &FoundDamage, scope: DamageScope) {
        let FoundDamage { name, what, .. } = damage;
        match scope {
            DamageScope::AllMembers => {
                tracing::error!(name, what, "a file is damaged, and no other node has a different one");
            }
            DamageScope::Local if group.copying == Copying::No => {
                tracing::error!(
                    name,
                    what,
                    "a file of this node is damaged, and not on other nodes; it gets a copy of all files"
                );
                self.copy_all(group);
            }
            DamageScope::Local => {}
        }
        damage.tell(scope);
        for waiting in group.comparing.remove(name).unwrap_or_default() {
            waiting.tell(scope);
        }
    }

    /// Gets a copy of all files from the leader. A node that leads stops leading.
    fn copy_all(&mut self, group: &mut Grouped) {
        self.identity.is_copying = true;
        if let Err(error) = self.identity.save(&self.parts.options.data_dir) {
            tracing::error!(%error, "cannot save that the files are damaged");
        }
        group.identity.borrow_mut().is_copying = true;
        self.lose_leadership("a file of this node is damaged");
        // Entries up to here are carried out, and are carried out again on the copy.
        group.held = self.applier.applied();
        group.copying = Copying::Wanted(Instant::now());
    }
}

/// Opens the files of a member. If the place of the last rename is damaged, the files must be copied: entries cannot be repeated.
pub(super) fn open_applier(
    root: &Path,
    identity: &mut MemberIdentity,
) -> Result<Applier, MemberIdentityError> {
    let failed = |source| MemberIdentityError::Io { path: root.to_path_buf(), source };
    match Applier::open(root) {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            tracing::error!(%error, "the saved place of this node is damaged; it gets a copy of all files");
            identity.is_copying = true;
            identity.save(root)?;
            Applier::forget_place(root).map_err(failed)?;
            Applier::open(root).map_err(failed)
        }
        opened => opened.map_err(failed),
    }
}

impl FoundDamage {
    fn tell(&self, scope: DamageScope) {
        if let Some(answer) = &self.answer {
            // The channel has room for the only scope.
            let _ = answer.try_send(scope);
        }
    }
}

#[cfg(test)]
mod tests {
    use mqcore_journal::error::Shortage;

    use super::*;

    fn io_error(kind: io::ErrorKind) -> JournalError {
        JournalError::Io { doing: "syncing", file: "1.segment".to_owned(), kind, message: kind.to_string() }
    }

    #[test]
    fn a_log_whose_sync_failed_is_not_trusted() {
        let failure = Failure::Log(LogError::Journal(io_error(io::ErrorKind::Other)));
        assert_eq!(failure.remedy(), Remedy::Rejoin);
        let failure = Failure::Replica(ReplicaError::Log(LogError::Journal(io_error(io::ErrorKind::Other))));
        assert_eq!(failure.remedy(), Remedy::Rejoin);
    }

    #[test]
    fn a_full_disk_passes() {
        let full = JournalError::Full { needed: 1, shortage: Shortage::Space };
        assert_eq!(Failure::Log(LogError::Journal(full.clone())).remedy(), Remedy::Retry);
        assert_eq!(Failure::Open(OpenError::Journal(full)).remedy(), Remedy::Retry);
        assert_eq!(Failure::Sync(io::ErrorKind::StorageFull.into()).remedy(), Remedy::Retry);
    }

    #[test]
    fn files_of_a_newer_version_stop_the_member() {
        let newer = JournalError::Version { file: "1.segment".to_owned(), found: 9, known: 2 };
        assert_eq!(Failure::Open(OpenError::Journal(newer)).remedy(), Remedy::Stop);
    }
}
