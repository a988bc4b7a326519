//! Requests to the broker that are not answered yet.

use mqcore_broker::model::command::{Command, Request};
use mqcore_broker::model::id::{QueueAddress, RequestId};
use mqcore_broker::model::message::Message;
use slab::Slab;

use super::ledger::LedgerRequest;
use super::schedules::ScheduleRequest;

/// At this many unanswered requests the session stops reading from its peer.
const OPEN_MAX: usize = 4_096;

/// A change of a schedule, on its way through the checks of rights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ScheduleChange {
    pub(super) request: ScheduleRequest,
    /// Whether the schedule begins or changes; otherwise it ends.
    pub(super) begins: bool,
    /// The queue in question.
    pub(super) queue: QueueAddress,
    /// The queues to which the client may publish.
    pub(super) allowed: Vec<QueueAddress>,
    /// The queue that the request names does not exist.
    pub(super) is_missing: bool,
}

/// A request to the ledger of jobs, on its way through the checks of rights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LedgerCheck {
    /// The id of the client's request.
    pub(super) id: Box<[u8]>,
    pub(super) request: LedgerRequest,
    /// The queues to which the client must have the right to publish, and of which the last one is in question.
    pub(super) queues: Vec<QueueAddress>,
    /// Queues among them that do not exist.
    pub(super) create: Vec<QueueAddress>,
}

/// A report of the progress of a job, which counts if the client may publish it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProgressReport {
    pub(super) job: Box<[u8]>,
    /// JSON.
    pub(super) report: Box<[u8]>,
}

/// A request of an administrator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AdminRequest {
    Status,
    ShowWorkers,
    ShowSchedulers,
    Disconnect,
}

/// The subject of a request.
#[derive(Debug, Clone)]
pub(super) enum RequestSubject {
    /// A worker's subscription to one of its queues.
    Subscription,
    /// The creation of a queue for a job.
    Creation(QueueAddress),
    /// A subscription to topics.
    Topic,
    /// Whether the client may publish to a queue of a schedule that it begins, changes or ends.
    Schedule(Box<ScheduleChange>),
    /// Whether the client may send a schedule to the scheduler with this client id.
    HandOver(Box<ScheduleChange>, Box<str>),
    /// Whether the client may publish to the queues of jobs that it cancels or begins.
    Ledger(Box<LedgerCheck>),
    /// Whether the client may hear this about a job.
    Told(Message),
    /// Whether the client may publish its report of the progress of a job.
    Progress(Box<ProgressReport>),
    /// Whether the client may become a scheduler; the id of its request.
    Scheduler(Box<[u8]>),
    /// Whether the client may administer the broker.
    Administer(AdminRequest, Box<[u8]>),
    /// A marker: its answer arrives after everything that the shard reports about earlier jobs.
    Fence,
    /// The number of jobs that wait in this queue.
    Waiting(Box<str>),
}

/// Number of waiting jobs for each queue.
type Waiting = Vec<(Box<str>, u64)>;

/// All unanswered requests, by request id.
#[derive(Debug, Default)]
pub(super) struct PendingRequests {
    open: Slab<(RequestSubject, usize)>,
    /// The numbers for a STATUS so far.
    counted: Vec<(Box<str>, u64)>,
    uncounted: usize,
    /// Number of further STATUS requests meanwhile.
    askers: usize,
}

impl PendingRequests {
    /// Whether no further request may be sent for now.
    pub(super) fn holds(&self) -> bool {
        self.open.len() >= OPEN_MAX
    }

    /// Whether a client that has closed its side has to wait: rights on its schedules and jobs are still being checked,
    /// or a shard has not answered a marker.
    pub(super) fn holds_end(&self) -> bool {
        use RequestSubject::{Fence, HandOver, Ledger, Schedule};
        let holds = |asked: &RequestSubject| matches!(asked, Schedule(_) | HandOver(..) | Ledger(_) | Fence);
        self.open.iter().any(|(_, (asked, _))| holds(asked))
    }

    /// The request id of a request that `parts` shards answer.
    pub(super) fn expect(&mut self, asked: RequestSubject, parts: usize) -> RequestId {
        let key = self.open.insert((asked, parts));
        RequestId(u32::try_from(key).expect("the number of open requests is limited"))
    }

    /// Takes one part of an answer. Returns the subject and whether this is the last part.
    pub(super) fn answered(&mut self, number: RequestId) -> Option<(RequestSubject, bool)> {
        let key = number.0 as usize;
        let (asked, parts) = self.open.get_mut(key)?;
        *parts -= 1;
        let asked = asked.clone();
        let last = *parts == 0;
        if last {
            self.open.remove(key);
        }
        Some((asked, last))
    }

    /// Asks each queue for the number of its waiting jobs. False if there is no queue. A STATUS request that arrives
    /// meanwhile shares the answer.
    pub(super) fn begin_status(
        &mut self,
        queues: impl Iterator<Item = (QueueAddress, Box<str>)>,
        commands: &mut Vec<Command>,
    ) -> bool {
        self.askers += 1;
        if self.uncounted > 0 {
            return true;
        }
        for (queue, name) in queues {
            let number = self.expect(RequestSubject::Waiting(name), 1);
            commands.push(Command::Request(number, Box::new(Request::QueueInformation { queue })));
            self.uncounted += 1;
        }
        if self.uncounted == 0 {
            self.askers = 0;
        }
        self.uncounted > 0
    }

    /// Takes the answer of one queue. After the last one returns all numbers, and how many STATUS requests to answer
    /// with them.
    pub(super) fn counted(&mut self, name: Box<str>, waiting: u64) -> Option<(Waiting, usize)> {
        self.counted.push((name, waiting));
        self.uncounted = self.uncounted.saturating_sub(1);
        (self.uncounted == 0).then(|| (std::mem::take(&mut self.counted), std::mem::take(&mut self.askers)))
    }
}
