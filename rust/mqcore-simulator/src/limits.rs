//! The task that saves limits.
//!
//! Follows `limits/journal.rs` and the sweep of `limits.rs` of the server. A write and its sync are two events of the agenda, so
//! that a crash can happen between them.

use std::sync::Arc;

use mqcore_journal::error::JournalError;
use mqcore_journal::options::Options;
use mqcore_journal::storage::MemoryStorage;
use mqcore_limiter::hasher::KeyHasher;
use mqcore_limiter::limiter::{Limiter, LimiterConfig, SHARDS};
use mqcore_limiter::time::Nanos;
use mqcore_state::limits::{LimitJournal, RestoredLimits};

use crate::time::Micros;

/// Time between two rounds.
pub(crate) const INTERVAL: Micros = 100_000;
/// Expired entries that a round removes from each shard.
const SWEPT: usize = 32;

/// The next step of the task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterRound {
    /// It syncs, which takes time.
    Sync,
    /// The next round comes after an interval.
    Again,
    /// Nothing changes until a client uses a limit.
    Rest,
}

/// The store of limits, and the task that saves it.
pub(crate) struct LimitTask {
    pub(crate) limiter: Arc<Limiter>,
    journal: Option<LimitJournal<MemoryStorage>>,
    /// An event of the agenda runs it, or it is syncing.
    pub(crate) busy: bool,
}

impl LimitTask {
    /// A store without a journal.
    pub(crate) fn in_memory() -> Self {
        let limiter = Arc::new(Limiter::new(LimiterConfig::default(), KeyHasher::Repeatable));
        Self { limiter, journal: None, busy: false }
    }

    /// Opens the journal and restores what it has.
    ///
    /// # Errors
    /// The finding: why it does not open, or what a crash has damaged.
    pub(crate) fn open(
        disk: MemoryStorage,
        options: Options,
        now: Nanos,
    ) -> Result<(Self, RestoredLimits), String> {
        let mut task = Self::in_memory();
        let mut damage = None;
        let opened = LimitJournal::open(disk, options, &task.limiter, now, &mut |report| {
            damage = report.is_alarming().then(|| format!("the journal of limits is damaged: {report}"));
            Ok(())
        });
        let (mut journal, restored) =
            opened.map_err(|error| format!("the journal of limits does not open: {error}"))?;
        if let Some(damage) = damage {
            return Err(damage);
        }
        if restored.unreadable > 0 {
            return Err(format!("{} limits are unreadable", restored.unreadable));
        }
        task.note_damage(&mut journal)?;
        task.journal = Some(journal);
        Ok((task, restored))
    }

    fn note_damage(&self, journal: &mut LimitJournal<MemoryStorage>) -> Result<(), String> {
        let damaged = journal.take_damaged();
        if damaged.is_empty() {
            Ok(())
        } else {
            Err(format!("housekeeping of limits finds damage: {damaged:?}"))
        }
    }

    /// Writes what has changed.
    ///
    /// # Errors
    /// The finding: damage.
    pub(crate) fn round(&mut self, now: Nanos) -> Result<AfterRound, String> {
        for shard in 0..SHARDS {
            self.limiter.sweep(shard, now, SWEPT);
        }
        let Some(mut journal) = self.journal.take() else { return Ok(AfterRound::Rest) };
        let is_behind = journal.is_behind(&self.limiter);
        if !journal.is_due(&self.limiter, false) {
            self.journal = Some(journal);
            return Ok(AfterRound::Again);
        }
        let written = journal.write(&self.limiter, now, false);
        self.note_damage(&mut journal)?;
        Ok(match written {
            Ok(_) => {
                self.journal = Some(journal);
                if is_behind { AfterRound::Sync } else { AfterRound::Rest }
            }
            Err(JournalError::Full { .. }) => {
                self.journal = Some(journal);
                AfterRound::Again
            }
            // It writes nothing until the next start.
            Err(_) => self.fail(),
        })
    }

    /// The sync after [`AfterRound::Sync`] ends.
    pub(crate) fn sync(&mut self) -> AfterRound {
        match self.journal.as_mut().map(LimitJournal::sync) {
            Some(Ok(())) => AfterRound::Again,
            _ => self.fail(),
        }
    }

    fn fail(&mut self) -> AfterRound {
        self.journal = None;
        self.limiter.forget_changes();
        AfterRound::Rest
    }

    /// The broker stops in order: what has changed is saved and the journal is closed.
    pub(crate) fn close(self, now: Nanos) {
        let Some(mut journal) = self.journal else { return };
        if matches!(journal.save(&self.limiter, now, false), Ok(_) | Err(JournalError::Full { .. })) {
            // If closing fails, the next start reads the journal in full.
            let _ = journal.close(false);
        }
    }
}
