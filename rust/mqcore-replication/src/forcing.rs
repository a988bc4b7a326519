//! A new group from the files of one member, when the majority of the old one is lost for ever.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use mqcore_consensus::journal_log::OpenError;
use mqcore_consensus::log::{EntryKind, ReplicatedLog};
use mqcore_journal::storage::lock::DirectoryLock;

use crate::applier::Applier;
use crate::identity::MemberIdentity;
use crate::member::MemberError;
use crate::member::log::MemberLog;

/// Bytes of entries that are read at once.
const ENTRY_BYTES: u64 = 8 << 20;

/// The state of a stopped member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoppedMember {
    /// Term of the last entry of its log. Of several members, the one with the greatest term and then the greatest index has
    /// everything that was confirmed.
    pub term: u64,
    /// Index of that entry.
    pub index: u64,
    /// Entries of the log that a crash may have kept from the files.
    pub entries: u64,
    /// Whether the log is readable. Otherwise, only the files count.
    pub has_log: bool,
}

/// Reads the state of a stopped member. With `changes`, carries out all entries of its log, also those that no majority has
/// confirmed, and removes it from its group: the next start begins a new group with its files.
///
/// # Errors
/// The member runs, its files are not complete, or something cannot be read or written.
pub fn force_new(root: &Path, cluster: &str, node: u32, changes: bool) -> Result<StoppedMember, MemberError> {
    let failed = |why: String| MemberError::Failed(why);
    let directory = MemberIdentity::directory(root);
    if !directory.is_dir() {
        return Err(failed(format!("{} does not belong to a node of a cluster", root.display())));
    }
    let lock = DirectoryLock::exclusive(&directory)
        .map_err(|_| failed(format!("{} is in use; stop the node first", root.display())))?;
    let identity = MemberIdentity::open(root, cluster, node)?;
    if identity.is_witness {
        return Err(failed(format!(
            "{} belongs to a witness, which has no data; use the files of another node",
            root.display()
        )));
    }
    if identity.is_copying {
        return Err(failed(format!(
            "the files in {} are an unfinished copy, or damaged; use those of another node",
            root.display()
        )));
    }
    let log = match MemberLog::open(root, &Rc::new(RefCell::new(identity.clone())), &mut || {}) {
        Ok(log) => Some(log),
        Err(OpenError::Damaged(report)) => {
            tracing::warn!(%report, "the log is damaged; what was not in the files yet is lost");
            None
        }
        Err(error) => return Err(failed(error.to_string())),
    };
    let state =
        log.as_ref().map_or(StoppedMember { term: 0, index: 0, entries: 0, has_log: false }, state_of);
    if changes {
        if let Some(log) = &log {
            carry_out_all(root, log).map_err(failed)?;
        }
        drop(log);
        drop(lock);
        identity.leave_group(root)?;
    }
    Ok(state)
}

fn state_of(log: &MemberLog) -> StoppedMember {
    let (base, base_term, _) = log.base();
    let index = log.last_index();
    StoppedMember { term: log.term(index).unwrap_or(base_term), index, entries: index - base, has_log: true }
}

fn carry_out_all(root: &Path, log: &MemberLog) -> Result<(), String> {
    let mut applier = Applier::open(root).map_err(|error| error.to_string())?;
    let mut next = log.base().0 + 1;
    while next <= log.last_index() {
        let entries =
            log.entries(next..log.last_index() + 1, ENTRY_BYTES).map_err(|error| error.to_string())?;
        let Some(last) = entries.last() else { return Err(format!("entry {next} cannot be read")) };
        next = last.index + 1;
        for entry in entries.into_iter().filter(|entry| entry.kind == EntryKind::Batch) {
            applier.apply(entry.index, entry.data).map_err(|error| error.to_string())?;
        }
    }
    applier.checkpoint().map_err(|error| error.to_string())
}
