//! The interface of sessions, shards and the admin side to the thread that runs schedules.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use mqcore_broker::model::effect::Event;
use mqcore_broker::model::id::{ConnectionId, QueueAddress};
use mqcore_broker::model::job_notice::JobNotice;
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_scheduler::scheduler::EntryId;
use mqcore_session::jobs::{EndedJob, JobBoard, JobLedger, LedgerRequest};
use mqcore_session::schedules::{ScheduleEnd, ScheduleRequest, Schedules};
use mqcore_state::schedules::draft::{Crons, ScheduleDraft, parse_request};
use mqcore_state::schedules::queues::ScheduleQueues;
use mqcore_state::schedules::view::ScheduleList;
use tokio::sync::oneshot;

use super::end::EndScheduleError;
use crate::net::registry::next_connection;

/// Maximum bytes of schedules that wait for the thread; more are rejected.
const WAITING_BYTES_MAX: usize = 64 << 20;
/// A request to the thread.
#[derive(Debug)]
pub(super) enum PortRequest {
    Schedule(Box<ScheduleDraft>),
    Unschedule {
        id: EntryId,
        allowed: Box<[QueueAddress]>,
        end: ScheduleEnd,
    },
    /// The same, with an answer once the end is durable.
    EndSchedule(EntryId, oneshot::Sender<Result<(), EndScheduleError>>),
    List(usize, oneshot::Sender<ScheduleList>),
    /// A job has ended.
    JobEnded(EndedJob),
    /// A request of a client about jobs.
    Job(ConnectionId, LedgerRequest),
    /// The same of the admin side, which awaits the answer itself.
    JobOfAdmin(ConnectionId, LedgerRequest, oneshot::Sender<JobNotice>),
    /// An event of a shard about runs.
    Event(Event),
    /// The manual clock was advanced.
    Look,
    /// The server has drained: the thread ends.
    End,
}

/// Numbers for metrics.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    pub(crate) schedules: AtomicU64,
    pub(crate) runs: AtomicU64,
    pub(crate) skipped: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) outstanding: AtomicU64,
    /// Schedules cannot be saved.
    pub(crate) failing: AtomicBool,
}

#[derive(Debug)]
pub(super) struct PortState {
    pub(super) numbers: Numbers,
    crons: Crons,
    queues: Arc<ScheduleQueues>,
    board: Arc<JobBoard>,
    /// Bytes of schedules that wait for the thread.
    pub(super) waiting: AtomicUsize,
    /// Present until the thread takes it.
    receiver: Mutex<Option<Receiver<PortRequest>>>,
}

/// A handle to the thread. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct SchedulePort {
    asks: Sender<PortRequest>,
    pub(super) shared: Arc<PortState>,
}

impl SchedulePort {
    /// Requests wait until the thread is started.
    pub(crate) fn new() -> Self {
        let (asks, receiver) = channel();
        let shared = PortState {
            numbers: Numbers::default(),
            crons: Crons::default(),
            queues: Arc::default(),
            board: Arc::default(),
            waiting: AtomicUsize::new(0),
            receiver: Mutex::new(Some(receiver)),
        };
        Self { asks, shared: Arc::new(shared) }
    }

    pub(crate) fn numbers(&self) -> &Numbers {
        &self.shared.numbers
    }

    pub(crate) fn crons(&self) -> &Crons {
        &self.shared.crons
    }

    /// The queues of all schedules.
    pub(crate) fn queues(&self) -> &Arc<ScheduleQueues> {
        &self.shared.queues
    }

    /// The next schedules by due time, and the number of all. `None`: the server has stopped.
    pub(crate) async fn list(&self, max: usize) -> Option<ScheduleList> {
        let (answer, receiver) = oneshot::channel();
        self.ask(PortRequest::List(max, answer));
        receiver.await.ok()
    }

    /// Ends a schedule, and returns when that is durable.
    ///
    /// # Errors
    /// [`EndScheduleError`].
    pub(crate) async fn end_schedule(&self, id: EntryId) -> Result<(), EndScheduleError> {
        let (answer, receiver) = oneshot::channel();
        self.ask(PortRequest::EndSchedule(id, answer));
        receiver.await.unwrap_or(Err(EndScheduleError::Stopping))
    }

    /// Asks about a job as a client does, and returns the answer, which comes when its effect is saved. `None`: the server
    /// has stopped.
    pub(crate) async fn ask_about_job(&self, request: LedgerRequest) -> Option<JobNotice> {
        let (answer, receiver) = oneshot::channel();
        self.ask(PortRequest::JobOfAdmin(next_connection(), request, answer));
        receiver.await.ok()
    }

    /// Passes on an event of a shard for the connection of the publisher.
    pub(crate) fn shard_event(&self, event: Event) {
        if matches!(event, Event::Confirmed(_) | Event::Deferred(..)) {
            self.ask(PortRequest::Event(event));
        }
    }

    /// The manual clock was advanced.
    pub(crate) fn look(&self) {
        self.ask(PortRequest::Look);
    }

    /// Stops the thread after it has written what is left.
    pub(crate) fn end(&self) {
        self.ask(PortRequest::End);
    }

    /// The receiving side, once, for the thread.
    pub(super) fn take_receiver(&self) -> Option<Receiver<PortRequest>> {
        self.shared.receiver.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Without effect once the thread has ended: no caller waits then.
    fn ask(&self, ask: PortRequest) {
        let _ = self.asks.send(ask);
    }
}

impl JobLedger for SchedulePort {
    fn board(&self) -> &Arc<JobBoard> {
        &self.shared.board
    }

    fn ended(&self, job: EndedJob) {
        self.ask(PortRequest::JobEnded(job));
    }

    fn request(&self, asker: ConnectionId, request: LedgerRequest) {
        self.ask(PortRequest::Job(asker, request));
    }
}

impl Schedules for SchedulePort {
    fn queue_of(&self, request: &ScheduleRequest) -> Option<QueueAddress> {
        self.queues().find(&EntryId(request.identity()))
    }

    fn schedule(&self, request: ScheduleRequest, allowed: &[QueueAddress]) -> Result<(), Rejection> {
        let wanted = parse_request(&request, allowed, self.crons())?;
        let bytes = wanted.bytes();
        if self.shared.waiting.fetch_add(bytes, Ordering::Relaxed) > WAITING_BYTES_MAX {
            self.shared.waiting.fetch_sub(bytes, Ordering::Relaxed);
            self.numbers().refused.fetch_add(1, Ordering::Relaxed);
            let why = "too many schedules come at once; send them more slowly";
            return Err(Rejection::new(RejectionKind::Busy, why));
        }
        self.ask(PortRequest::Schedule(Box::new(wanted)));
        Ok(())
    }

    fn unschedule(
        &self,
        request: ScheduleRequest,
        allowed: &[QueueAddress],
        end: ScheduleEnd,
    ) -> Result<(), Rejection> {
        self.ask(PortRequest::Unschedule { id: EntryId(request.identity()), allowed: allowed.into(), end });
        Ok(())
    }
}
