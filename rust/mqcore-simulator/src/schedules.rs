//! The thread that runs schedules, and its interface to sessions.
//!
//! Follows `schedules/worker.rs` and `schedules/port.rs` of the server. A round is several events of the agenda, so that a
//! crash can happen between the questions to shards, the write and its sync.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use mqcore_broker::model::command::Command;
use mqcore_broker::model::effect::Event;
use mqcore_broker::model::id::{ConnectionId, QueueAddress};
use mqcore_broker::model::job_notice::JobNotice;
use mqcore_broker::model::options::QueueChanges;
use mqcore_broker::model::placement::Placement;
use mqcore_broker::model::rejection::Rejection;
use mqcore_journal::error::JournalError;
use mqcore_journal::options::Options;
use mqcore_journal::storage::MemoryStorage;
use mqcore_scheduler::scheduler::EntryId;
use mqcore_session::jobs::{EndedJob, JobBoard, JobLedger, LedgerRequest};
use mqcore_session::schedules::{ScheduleEnd, ScheduleRequest, Schedules};
use mqcore_state::schedules::draft::{Crons, ScheduleDraft, parse_request};
use mqcore_state::schedules::keeper::Keeper;
use mqcore_state::schedules::queues::ScheduleQueues;
use mqcore_state::schedules::rounds::{RoundTerms, ScheduleRounds};

use crate::time::Micros;

/// Time between two rounds of housekeeping.
const HOUSEKEEPING: Micros = 200_000;

/// Requests of sessions.
#[derive(Debug, Default)]
pub(crate) struct SimulatedPort {
    crons: Crons,
    queues: Arc<ScheduleQueues>,
    requests: Mutex<Vec<PortRequest>>,
    board: Arc<JobBoard>,
}

#[derive(Debug)]
enum PortRequest {
    Schedule(Box<ScheduleDraft>),
    Unschedule(EntryId, Box<[QueueAddress]>, ScheduleEnd),
    JobEnded(EndedJob),
    Job(ConnectionId, LedgerRequest),
}

impl SimulatedPort {
    fn ask(&self, request: PortRequest) {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).push(request);
    }

    fn take(&self) -> Vec<PortRequest> {
        std::mem::take(&mut self.requests.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn has_requests(&self) -> bool {
        !self.requests.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

impl JobLedger for SimulatedPort {
    fn board(&self) -> &Arc<JobBoard> {
        &self.board
    }

    fn ended(&self, job: EndedJob) {
        self.ask(PortRequest::JobEnded(job));
    }

    fn request(&self, asker: ConnectionId, request: LedgerRequest) {
        self.ask(PortRequest::Job(asker, request));
    }
}

impl Schedules for SimulatedPort {
    fn queue_of(&self, request: &ScheduleRequest) -> Option<QueueAddress> {
        self.queues.find(&EntryId(request.identity()))
    }

    fn schedule(&self, request: ScheduleRequest, allowed: &[QueueAddress]) -> Result<(), Rejection> {
        self.ask(PortRequest::Schedule(Box::new(parse_request(&request, allowed, &self.crons)?)));
        Ok(())
    }

    fn unschedule(
        &self,
        request: ScheduleRequest,
        allowed: &[QueueAddress],
        end: ScheduleEnd,
    ) -> Result<(), Rejection> {
        self.ask(PortRequest::Unschedule(EntryId(request.identity()), allowed.into(), end));
        Ok(())
    }
}

/// The next step of the thread.
#[derive(Debug)]
pub(crate) enum AfterStep {
    /// It asks these shards which queues exist, and waits for the answers.
    Asks(BTreeMap<usize, Vec<QueueAddress>>),
    /// It syncs, which takes time.
    Sync,
    /// The round has ended: it sends these commands to their shards and these notices to their connections, and waits for so
    /// long at most. `None`: for a request.
    Waits(BTreeMap<usize, Vec<Command>>, Vec<(ConnectionId, JobNotice)>, Option<Micros>),
}

/// The times of a step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepTimes {
    pub(crate) now: Micros,
    /// The broker's clock.
    pub(crate) now_ms: u64,
    pub(crate) system_ms: u64,
}

/// The thread.
pub(crate) struct ScheduleTask {
    rounds: ScheduleRounds<MemoryStorage>,
    pub(crate) port: Arc<SimulatedPort>,
    placement: Placement,
    /// Events of shards.
    pub(crate) events: Vec<Event>,
    /// Answers that it waits for, and those that have come.
    waiting: usize,
    found: Vec<(QueueAddress, bool)>,
    housekept: Micros,
    /// It is in a round.
    pub(crate) busy: bool,
    /// When an event of the agenda begins a round.
    pub(crate) wakes_at: Option<Micros>,
}

impl ScheduleTask {
    /// Opens the journal and continues with its schedules.
    ///
    /// # Errors
    /// The finding: why it does not open, or what a crash has damaged.
    pub(crate) fn open(disk: MemoryStorage, options: Options, placement: Placement) -> Result<Self, String> {
        let port = Arc::new(SimulatedPort::default());
        let mut damage = None;
        let opened = Keeper::open(disk, options, placement, &port.crons, &mut |report| {
            damage = report.is_alarming().then(|| format!("the journal of schedules is damaged: {report}"));
            Ok(())
        });
        let (mut keeper, unreadable) =
            opened.map_err(|error| format!("the journal of schedules does not open: {error}"))?;
        if let Some(damage) = damage {
            return Err(damage);
        }
        if unreadable > 0 {
            return Err(format!("{unreadable} records of schedules are unreadable"));
        }
        keeper.share_queues(&port.queues);
        keeper.share_jobs(&port.board, QueueChanges::default());
        Ok(Self {
            rounds: ScheduleRounds::new(keeper),
            port,
            placement,
            events: Vec::new(),
            waiting: 0,
            found: Vec::new(),
            housekept: 0,
            busy: false,
            wakes_at: None,
        })
    }

    /// The number of schedules, and of runs that their queues have not confirmed.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.rounds.keeper().len(), self.rounds.keeper().outstanding())
    }

    /// Begins a round.
    ///
    /// # Errors
    /// The finding: damage.
    pub(crate) fn begin(&mut self, times: StepTimes) -> Result<AfterStep, String> {
        for request in self.port.take() {
            // The protocol has no answer for what is rejected.
            let _ = match request {
                PortRequest::Schedule(wanted) => self.rounds.schedule(*wanted, times.system_ms),
                PortRequest::Unschedule(id, allowed, end) => self.rounds.unschedule(&id, &allowed, end),
                PortRequest::JobEnded(job) => {
                    self.rounds.job_ended(job, times.system_ms);
                    Ok(())
                }
                PortRequest::Job(asker, request) => {
                    self.rounds.job_request(asker, request, times.system_ms);
                    Ok(())
                }
            };
        }
        for event in std::mem::take(&mut self.events) {
            self.rounds.event(event, times.now_ms);
        }
        let is_due = times.now >= self.housekept + HOUSEKEEPING;
        if is_due {
            self.housekept = times.now;
        }
        let begun = self.rounds.begin(RoundTerms {
            now_ms: times.now_ms,
            system_ms: times.system_ms,
            is_running: true,
            housekeeping: is_due.then_some(false),
        });
        let damaged = self.rounds.take_damaged();
        if !damaged.is_empty() {
            return Err(format!("housekeeping of schedules finds damage: {damaged:?}"));
        }
        match begun {
            Err(error) => Ok(self.end(Err(error), times)),
            Ok(queues) if queues.is_empty() => Ok(self.write(times)),
            Ok(queues) => {
                let mut asked: BTreeMap<usize, Vec<QueueAddress>> = BTreeMap::new();
                for queue in queues {
                    asked.entry(queue.channel.shard(self.placement)).or_default().push(queue);
                }
                self.waiting = asked.len();
                Ok(AfterStep::Asks(asked))
            }
        }
    }

    /// A shard answers. `None`: others have not answered.
    pub(crate) fn answered(
        &mut self,
        found: Vec<(QueueAddress, bool)>,
        times: StepTimes,
    ) -> Option<AfterStep> {
        self.found.extend(found);
        self.waiting = self.waiting.checked_sub(1)?;
        if self.waiting > 0 {
            return None;
        }
        let (_, written) = self.rounds.found(std::mem::take(&mut self.found));
        Some(match written {
            Ok(()) => self.write(times),
            Err(error) => self.end(Err(error), times),
        })
    }

    fn write(&mut self, times: StepTimes) -> AfterStep {
        match self.rounds.write() {
            Ok(()) => AfterStep::Sync,
            Err(error) => self.end(Err(error), times),
        }
    }

    /// The sync ends.
    pub(crate) fn sync(&mut self, times: StepTimes) -> AfterStep {
        let synced = self.rounds.sync();
        self.end(synced, times)
    }

    fn end(&mut self, outcome: Result<(), JournalError>, times: StepTimes) -> AfterStep {
        let mut commands = if outcome.is_ok() { self.rounds.take_commands(times.now_ms) } else { Vec::new() };
        self.rounds.end(outcome);
        let notices = self.rounds.take_notices();
        commands.extend(self.rounds.take_answers());
        let mut by_shard: BTreeMap<usize, Vec<Command>> = BTreeMap::new();
        for (shard, command) in commands {
            by_shard.entry(shard).or_default().push(command);
        }
        let rests = self.counts() == (0, 0) && !self.rounds.is_failing();
        let wait = self.rounds.wait_ms(times.now_ms, times.system_ms, true).max(1) * 1000;
        AfterStep::Waits(by_shard, notices, (!rests).then_some(wait))
    }

    /// The broker stops in order: what has changed is saved and the journal is closed.
    pub(crate) fn close(mut self) {
        let saved = self.rounds.write().and_then(|()| self.rounds.sync());
        self.rounds.end(saved);
        // If closing fails, the next start reads the journal in full.
        let _ = self.rounds.close(false);
    }
}
