//! The rounds in which schedules run: what is done, in which order, and what a failure means. The caller has the thread, the
//! clocks and the shards.
//!
//! A round: [`ScheduleRounds::begin`] takes due runs and tells which queues the caller has to look up;
//! [`ScheduleRounds::found`] saves the runs; [`ScheduleRounds::write`] and [`ScheduleRounds::sync`] make all changes durable;
//! [`ScheduleRounds::take_commands`] has the commands for shards; and [`ScheduleRounds::end`] notes how the round ended.

use hashbrown::HashMap;
use mqcore_broker::model::command::Command;
use mqcore_broker::model::effect::Event;
use mqcore_broker::model::id::{ConnectionId, QueueAddress};
use mqcore_broker::model::job_notice::JobNotice;
use mqcore_broker::model::rejection::Rejection;
use mqcore_journal::error::JournalError;
use mqcore_journal::storage::Storage;
use mqcore_scheduler::clock::{ClockStep, ClockWatch};
use mqcore_scheduler::scheduler::EntryId;
use mqcore_session::jobs::{EndedJob, LedgerRequest};
use mqcore_session::schedules::ScheduleEnd;

use crate::jobs::ledger::unsaved_answer;

use super::draft::ScheduleDraft;
use super::keeper::Keeper;
use super::queues::default_queue;

/// Maximum milliseconds between two rounds. Nothing tells when the system clock is set, or when a full disk has space again.
pub const IDLE_MS: u64 = 200;
/// Maximum bytes that one step of housekeeping moves.
const HOUSEKEEPING_BYTES: usize = 4 << 20;

/// The circumstances of a round.
#[derive(Debug, Clone, Copy)]
pub struct RoundTerms {
    /// The monotonic clock in Unix milliseconds.
    pub now_ms: u64,
    /// The system clock in Unix milliseconds, which may be set.
    pub system_ms: u64,
    /// Whether runs may begin. A stopping broker begins none: what is due now is also due at the next start.
    pub is_running: bool,
    /// Whether housekeeping is due. If so, whether a backup needs all files.
    pub housekeeping: Option<bool>,
}

/// How a round ended, if that differs from the round before.
#[derive(Debug)]
pub enum RoundChange {
    /// Schedules are saved again.
    Recovered,
    /// The disk is full. Runs wait.
    Full(JournalError),
    /// The disk failed. No schedule runs until the next start, because runs that cannot be saved could happen twice.
    Failed(JournalError),
}

/// All schedules, and the state of their rounds.
pub struct ScheduleRounds<S: Storage> {
    keeper: Keeper<S>,
    /// Queues looked up in this round, and whether they exist.
    known: HashMap<QueueAddress, bool>,
    is_failing: bool,
    has_failed: bool,
    watch: ClockWatch,
    damaged: Vec<u32>,
    /// Answers to requests that came while nothing could be saved.
    refusals: Vec<(ConnectionId, JobNotice)>,
}

impl<S: Storage> ScheduleRounds<S> {
    /// Rounds of the schedules of a keeper.
    #[must_use]
    pub fn new(keeper: Keeper<S>) -> Self {
        Self {
            keeper,
            known: HashMap::new(),
            is_failing: false,
            has_failed: false,
            watch: ClockWatch::default(),
            damaged: Vec::new(),
            refusals: Vec::new(),
        }
    }

    /// The schedules.
    #[must_use]
    pub fn keeper(&self) -> &Keeper<S> {
        &self.keeper
    }

    /// The schedules, for a backup.
    pub fn keeper_mut(&mut self) -> &mut Keeper<S> {
        &mut self.keeper
    }

    /// Whether schedules cannot be saved now.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.is_failing
    }

    /// Segments in which housekeeping has found damage since the last call.
    pub fn take_damaged(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.damaged)
    }

    // ---- Requests --------------------------------------------------------------------------------------------------

    /// Adds or changes a schedule; durable at the end of the round.
    ///
    /// # Errors
    /// The reason why not.
    pub fn schedule(&mut self, wanted: ScheduleDraft, system_ms: u64) -> Result<(), Rejection> {
        self.keeper.schedule(wanted, system_ms)
    }

    /// Ends a schedule; durable at the end of the round.
    ///
    /// # Errors
    /// The client has no right on the queue of the schedule.
    pub fn unschedule(
        &mut self,
        id: &EntryId,
        allowed: &[QueueAddress],
        end: ScheduleEnd,
    ) -> Result<(), Rejection> {
        self.keeper.check_right(id, allowed)?;
        self.keeper.unschedule(id, end);
        Ok(())
    }

    /// A job has ended; saved at the end of the round.
    pub fn job_ended(&mut self, job: EndedJob, system_ms: u64) {
        self.keeper.job_ended(job, system_ms);
    }

    /// A request of a client about jobs; saved at the end of the round. While nothing can be saved, it is refused: an answer
    /// could tell what a crash undoes. Results come later.
    pub fn job_request(&mut self, asker: ConnectionId, request: LedgerRequest, system_ms: u64) {
        if self.is_failing
            && let Some(id) = request.id()
        {
            return self.refusals.push((asker, unsaved_answer(id)));
        }
        self.keeper.job_request(asker, request, system_ms);
    }

    /// Notices for sessions about jobs. Only after [`ScheduleRounds::end`]. While nothing can be saved, workers keep the
    /// deliveries whose results were not saved, and clients wait for results.
    pub fn take_notices(&mut self) -> Vec<(ConnectionId, JobNotice)> {
        let mut notices = std::mem::take(&mut self.refusals);
        if self.has_failed {
            let refused = self.keeper.take_notices().into_iter().filter_map(|(asker, notice)| match notice {
                JobNotice::Kept(result) => Some((asker, JobNotice::NotKept(result))),
                // Answers to requests. All other notices are about results, which a crash may undo.
                JobNotice::Told { queue: None, message } => Some((asker, unsaved_answer(message.id()))),
                _ => None,
            });
            notices.extend(refused);
        } else if !self.is_failing {
            notices.extend(self.keeper.take_notices());
        }
        notices
    }

    /// Approximate memory of the notices that wait.
    #[must_use]
    pub fn notice_bytes(&self) -> usize {
        self.keeper.notice_bytes()
    }

    /// Commands that send results of jobs to clients, for their shards. Only after [`ScheduleRounds::end`]. They wait while the disk
    /// is full. If it has failed, no later round could save more, and clients hear the results as they do from workers.
    pub fn take_answers(&mut self) -> Vec<(usize, Command)> {
        if self.is_failing && !self.has_failed { Vec::new() } else { self.keeper.take_answers() }
    }

    /// An event of a shard about runs.
    pub fn event(&mut self, event: Event, now_ms: u64) {
        match event {
            Event::Confirmed(numbers) => self.keeper.confirmed(&numbers),
            Event::Deferred(number, rejection) => {
                tracing::debug!(number, why = %rejection, "a queue rejected a run of a schedule; the broker tries again");
                self.keeper.put_off(number, now_ms);
            }
            _ => {}
        }
    }

    // ---- Rounds ----------------------------------------------------------------------------------------------------

    /// Milliseconds until the next round, at most [`IDLE_MS`].
    #[must_use]
    pub fn wait_ms(&self, now_ms: u64, system_ms: u64, is_running: bool) -> u64 {
        if self.is_failing || self.has_failed || !is_running {
            return IDLE_MS;
        }
        let due = self.keeper.next_due().map(|due| due.saturating_sub(system_ms));
        let retry = self.keeper.next_retry().map(|retry| retry.saturating_sub(now_ms));
        due.into_iter().chain(retry).fold(IDLE_MS, u64::min)
    }

    /// Begins a round. Returns the queues whose existence [`ScheduleRounds::found`] needs; if there are none, no runs are due.
    ///
    /// # Errors
    /// [`JournalError`] of housekeeping. The round ends.
    pub fn begin(&mut self, terms: RoundTerms) -> Result<Vec<QueueAddress>, JournalError> {
        if self.has_failed {
            return Ok(Vec::new());
        }
        if let Some(is_pinned) = terms.housekeeping {
            let done = self.keeper.keep_house(terms.now_ms, HOUSEKEEPING_BYTES, is_pinned)?;
            self.damaged.extend(done.damaged);
        }
        self.look_at_clock(terms);
        self.keeper.expire_results(terms.system_ms);
        if !terms.is_running {
            return Ok(Vec::new());
        }
        let mut queues = self.keeper.take_due(terms.system_ms);
        let default = default_queue();
        if !queues.is_empty() && !queues.contains(&default) {
            queues.push(default);
        }
        Ok(queues)
    }

    /// If the system clock was set back, the schedules are adjusted. If it was set forward, the runs in between simply become
    /// due.
    fn look_at_clock(&mut self, terms: RoundTerms) {
        match self.watch.look(terms.system_ms, terms.now_ms) {
            Some(ClockStep::Back(by)) => {
                tracing::warn!(by_ms = by, "the system clock was set back; schedules follow it");
                self.keeper.set_back(terms.system_ms);
            }
            Some(ClockStep::Forward(by)) => {
                tracing::warn!(by_ms = by, "the system clock was set forward; schedules follow it");
            }
            None => {}
        }
    }

    /// Continues with the queues of [`ScheduleRounds::begin`], and whether each exists: saves the due runs. True: a run goes to
    /// the queue `default`, which does not exist, so the caller has to create it before.
    ///
    /// # Errors
    /// [`JournalError`]. The round ends.
    pub fn found(
        &mut self,
        queues: impl IntoIterator<Item = (QueueAddress, bool)>,
    ) -> (bool, Result<(), JournalError>) {
        self.known.clear();
        self.known.extend(queues);
        let needs_default = self.known.values().any(|known| !known);
        let is_missing = needs_default && !self.known.get(&default_queue()).copied().unwrap_or_default();
        let known = &self.known;
        (is_missing, self.keeper.write_due(|queue| known.get(queue).copied().unwrap_or(false)))
    }

    /// Writes all changes of this round.
    ///
    /// # Errors
    /// [`JournalError`]. The round ends.
    pub fn write(&mut self) -> Result<(), JournalError> {
        if self.has_failed { Ok(()) } else { self.keeper.write() }
    }

    /// Makes them durable.
    ///
    /// # Errors
    /// [`JournalError`]. The round ends.
    pub fn sync(&mut self) -> Result<(), JournalError> {
        if self.has_failed { Ok(()) } else { self.keeper.sync() }
    }

    /// The commands for shards, each shard's in order. Only after [`ScheduleRounds::sync`].
    pub fn take_commands(&mut self, now_ms: u64) -> Vec<(usize, Command)> {
        if self.has_failed { Vec::new() } else { self.keeper.take_commands(now_ms) }
    }

    /// Ends a round with its result.
    pub fn end(&mut self, outcome: Result<(), JournalError>) -> Option<RoundChange> {
        match outcome {
            Ok(()) if self.has_failed => None,
            Ok(()) => std::mem::take(&mut self.is_failing).then_some(RoundChange::Recovered),
            Err(error @ JournalError::Full { .. }) => {
                let is_new = !std::mem::replace(&mut self.is_failing, true);
                is_new.then_some(RoundChange::Full(error))
            }
            Err(error) => {
                self.has_failed = true;
                self.is_failing = true;
                Some(RoundChange::Failed(error))
            }
        }
    }

    /// Closes the journal properly, unless it has failed. `pinned`: its files stay as they are, because a backup reads them.
    ///
    /// # Errors
    /// [`JournalError`]: the next start reads the journal in full.
    pub fn close(self, pinned: bool) -> Result<(), JournalError> {
        if self.has_failed { Ok(()) } else { self.keeper.close(pinned) }
    }
}
