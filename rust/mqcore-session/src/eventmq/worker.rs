//! A worker: its queues, its slots, its running jobs, and its timeouts.
//!
//! READY adds a slot; the shard that delivers a job first takes one. The session only counts. A delivery of a job that
//! must not be lost stays unsettled until its result arrives, so the session asks the worker for the result also if the
//! client does not want it. All other deliveries are settled at once.

mod answers;
mod ledger;
mod results;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use foldhash::HashMap;
use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::{Command, MessageId, Retry};
use mqcore_broker::model::effect::Deliver;
use mqcore_broker::model::id::{QueueAddress, Tag};
use mqcore_broker::model::message::{Message, Properties};
use mqcore_broker::model::subscription::Slots;
use mqcore_broker::model::time::Timestamp;
use mqcore_wire::eventmq::headers::Headers;
use smallvec::SmallVec;

use self::answers::{client_of, lost_result, settlement};
use super::board::Cancellation;
use super::job::{self, DeliveredJob, JobOutcome};
use super::ledger::cancelled_result;
use super::shared::{EventmqShared, QueueTally, Registration, Worker};

/// Maximum slots of a worker; further READY messages have no effect.
pub(super) const SLOTS_MAX: u32 = 4096;
/// Maximum jobs whose results may be outstanding; the next job replaces the oldest. More than slots, as a worker may be
/// ready without ever sending a result.
const RUNNING_MAX: usize = 16_384;

/// Delay of the first reminder to a busy worker after a job; each further delay doubles. The original's worker looks
/// for finished jobs when a message arrives, and otherwise only once a second.
const REMINDER_FIRST: Duration = Duration::from_millis(5);
/// Longest delay of a reminder: the worker itself looks once a second.
const REMINDER_LAST: Duration = Duration::from_secs(1);

/// Delay before the first retry of a failed job, and the longest one.
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
const BACKOFF_LAST: Duration = Duration::from_secs(60);
/// Time beyond its own limit after which a job counts as forgotten by its worker.
const TIMEOUT_GRACE: Duration = Duration::from_secs(5);

/// A queue that the worker serves.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) address: QueueAddress,
    pub(super) tag: Tag,
    tally: Arc<QueueTally>,
}

/// A job that the worker has received.
#[derive(Debug)]
struct Running {
    tag: Tag,
    /// Not settled yet.
    kept: bool,
    wishes: Headers,
    /// Number of earlier requeues.
    put_backs: u16,
    /// The client that waits for the result.
    client: Option<Box<str>>,
    results: Results,
    /// For how many milliseconds the ledger keeps its result.
    ttl_ms: Option<u64>,
    since: Timestamp,
    /// When it times out; it is in `Work::due` too.
    due: Option<Timestamp>,
    /// Distinguishes it from another job with the same id.
    serial: u64,
}

/// The queue for the result of a job, in addition to its client.
#[derive(Debug)]
enum Results {
    Nowhere,
    /// The result goes to this queue before the job is settled, so no job is finished without its result being saved.
    To(Box<QueueAddress>),
    /// The result was sent there and is not confirmed yet.
    Sent,
    /// The result was sent to the ledger and is not confirmed yet.
    Recorded,
}

impl Running {
    /// Delay before the next attempt after this one has failed.
    fn backoff(&self) -> Duration {
        BACKOFF_FIRST.saturating_mul(1 << self.put_backs.min(16)).min(BACKOFF_LAST)
    }
}

/// A worker that has joined.
#[derive(Debug)]
pub(super) struct Work {
    registration: Registration<Worker>,
    exchange: Arc<EventmqShared>,
    served: Vec<Served>,
    /// By id, those with one id in the order of their arrival: the broker settles the oldest of them first.
    running: HashMap<MessageId, SmallVec<[Running; 1]>>,
    /// The jobs in `running` in the order of their arrival, and some that have finished.
    order: VecDeque<(MessageId, u64)>,
    due: BTreeSet<(Timestamp, MessageId, u64)>,
    serial: u64,
    /// The most slots that were free at once. READY after a finished job and READY of a new process look the same, so
    /// the number of slots is not known better.
    most_free: u32,
    /// It has announced that it leaves.
    pub(super) leaving: bool,
    /// It asked for the number of each attempt.
    counts: bool,
    /// It has free slots that its queues have not been notified of.
    pub(super) has_room: bool,
    reminder_after: Duration,
    reminder_at: Timestamp,
}

impl Work {
    pub(super) fn new(
        exchange: &Arc<EventmqShared>,
        registration: Registration<Worker>,
        addresses: Vec<QueueAddress>,
        counts: bool,
    ) -> Self {
        let mut work = Self {
            registration,
            exchange: Arc::clone(exchange),
            served: Vec::new(),
            running: HashMap::default(),
            order: VecDeque::new(),
            due: BTreeSet::new(),
            serial: 0,
            most_free: 0,
            leaving: false,
            counts,
            has_room: false,
            reminder_after: REMINDER_FIRST,
            reminder_at: Timestamp::NEVER,
        };
        work.serve(addresses);
        work
    }

    /// Sets the queues; those that it served before keep their numbers.
    fn serve(&mut self, addresses: Vec<QueueAddress>) {
        for address in addresses {
            let number = u32::try_from(self.served.len()).unwrap_or(u32::MAX - 1);
            let tally = self.exchange.tally(&job::shown(&address));
            self.served.push(Served { address, tag: Tag(number + 1), tally });
        }
    }

    pub(super) fn served(&self) -> &[Served] {
        &self.served
    }

    pub(super) fn worker(&self) -> &Worker {
        &self.registration.peer
    }

    pub(super) fn slots(&self) -> &Arc<Slots> {
        &self.registration.peer.slots
    }

    fn queue(&self, tag: Tag) -> Option<&Served> {
        self.served.get((tag.0 as usize).checked_sub(1)?)
    }

    // --- slots --------------------------------------------------------------------------------------------------

    /// The worker can run one more job.
    pub(super) fn ready(&mut self) {
        match self.slots().give(SLOTS_MAX) {
            Some(free) => {
                self.most_free = self.most_free.max(free);
                self.has_room = true;
            }
            None => self.exchange.count(|counters| &counters.ignored),
        }
    }

    /// Whether the worker has jobs whose results are awaited.
    pub(super) fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// The worker's connection has ended: notifies the clients of jobs that no other worker gets.
    pub(super) fn abandon(&self, commands: &mut Vec<Command>) {
        let jobs = self.running.iter().flat_map(|(id, jobs)| jobs.iter().map(move |running| (id, running)));
        let mut lost: Vec<_> = jobs.filter(|(_, running)| !running.kept).collect();
        // Clients hear in the order in which the worker got the jobs, whatever the order of the table.
        lost.sort_unstable_by_key(|(_, running)| running.serial);
        for (id, running) in lost {
            if let Some(served) = self.queue(running.tag) {
                self.lose(id, &served.address, running, commands);
            }
        }
    }

    fn is_busy(&self) -> bool {
        !self.running.is_empty() || self.slots().free() < self.most_free
    }

    /// Notifies the queues of free slots: one notification for all slots that arrived together.
    pub(super) fn announce_room(&mut self, commands: &mut Vec<Command>) {
        if std::mem::take(&mut self.has_room) {
            commands
                .extend(self.served.iter().map(|served| Command::RoomFor { queue: served.address.clone() }));
        }
    }

    /// Stops deliveries to the worker; it finishes its running jobs.
    pub(super) fn leave(&mut self) {
        self.leaving = true;
        self.slots().close();
    }

    // --- jobs ---------------------------------------------------------------------------------------------------

    /// Takes a delivery of a queue.
    pub(super) fn take(
        &mut self,
        deliver: &Deliver,
        now: Timestamp,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) {
        let handed = DeliveredJob::of(deliver);
        let wishes = handed.wishes;
        let id = MessageId::from_slice(deliver.message.id());
        if self.has_ended(&id, deliver, &handed, now) {
            self.has_room |= self.slots().give(SLOTS_MAX).is_some();
            return;
        }
        if !self.admits(&id, deliver, &handed, now, commands) {
            self.has_room |= self.slots().give(SLOTS_MAX).is_some();
            return;
        }
        let too_often = u32::from(deliver.requeues) > wishes.retry_count;
        if handed.is_kept() && !wishes.guarantee && too_often {
            // Its last attempt was lost with its worker.
            self.exchange.count(|counters| &counters.failed);
            self.left(&id);
            let (job, client) = ((&*deliver.queue, handed.result_ttl()), client_of(deliver, wishes));
            self.fail(&id, job, client, &lost_result(), commands);
            commands.push(settlement(&deliver.queue, deliver.tag, id, Some(("worker-lost", Retry::Never))));
            self.has_room |= self.slots().give(SLOTS_MAX).is_some();
            return;
        }
        handed.encode(self.counts, output);
        self.exchange.count(|counters| &counters.dispatched);
        self.reminder_after = REMINDER_FIRST;
        self.reminder_at = now.after(REMINDER_FIRST);
        if !handed.is_kept() {
            commands.push(settlement(&deliver.queue, deliver.tag, id.clone(), None));
        }
        let client = client_of(deliver, wishes).map(Box::from);
        if handed.is_kept() || wishes.reply_requested {
            let results = match handed.result_queue() {
                Some(queue) if handed.is_kept() => Results::To(Box::new(queue)),
                _ => Results::Nowhere,
            };
            self.remember(id, deliver, client, results, now);
        } else {
            // No result will arrive for it.
            self.left(&id);
            if let Some(served) = self.queue(deliver.tag) {
                served.tally.finished(0);
            }
        }
    }

    fn remember(
        &mut self,
        id: MessageId,
        deliver: &Deliver,
        client: Option<Box<str>>,
        results: Results,
        now: Timestamp,
    ) {
        let handed = DeliveredJob::of(deliver);
        let (kept, wishes, ttl_ms) = (handed.is_kept(), handed.wishes, handed.result_ttl());
        self.serial += 1;
        let serial = self.serial;
        let runs = !matches!(results, Results::Recorded);
        let due = (kept && runs && wishes.timeout > 0).then(|| {
            let time = Duration::from_secs(wishes.timeout.into()) + TIMEOUT_GRACE;
            now.after(time)
        });
        if let Some(at) = due {
            self.due.insert((at, id.clone(), serial));
        }
        if let Some(served) = self.queue(deliver.tag) {
            served.tally.began();
        }
        let (tag, put_backs) = (deliver.tag, deliver.requeues);
        let running =
            Running { tag, kept, wishes, put_backs, client, results, ttl_ms, since: now, due, serial };
        // A job that is settled already ends when another one with its id begins.
        let replaced = self.jobs(&id).iter().find(|job| !job.kept).map(|job| job.serial);
        self.running.entry(id.clone()).or_default().push(running);
        if let Some(replaced) = replaced {
            self.remove(&id, replaced);
        }
        self.order.push_back((id, serial));
        while self.order.len() > RUNNING_MAX {
            let Some((oldest, serial)) = self.order.pop_front() else { break };
            // Jobs that must not be lost are bounded by the number of slots and stay.
            if self.job(&oldest, serial).is_some_and(|job| !job.kept) {
                self.remove(&oldest, serial);
            }
        }
    }

    /// The running jobs with this id.
    fn jobs(&self, id: &MessageId) -> &[Running] {
        self.running.get(id).map_or(&[], SmallVec::as_slice)
    }

    fn job(&self, id: &MessageId, serial: u64) -> Option<&Running> {
        self.jobs(id).iter().find(|job| job.serial == serial)
    }

    fn job_mut(&mut self, id: &MessageId, serial: u64) -> Option<&mut Running> {
        self.running.get_mut(id)?.iter_mut().find(|job| job.serial == serial)
    }

    /// Removes a job that is not in `running` any more.
    fn forget(&mut self, id: &MessageId, running: &Running) {
        if let Some(at) = running.due {
            self.due.remove(&(at, id.clone(), running.serial));
        }
        if let Some(served) = self.queue(running.tag) {
            served.tally.left();
        }
        if matches!(running.results, Results::Recorded) {
            self.end_settled(id);
        }
        self.left(id);
        while self.order.front().is_some_and(|(id, serial)| self.job(id, *serial).is_none()) {
            self.order.pop_front();
        }
    }

    fn remove(&mut self, id: &MessageId, serial: u64) -> Option<Running> {
        let jobs = self.running.get_mut(id)?;
        let place = jobs.iter().position(|job| job.serial == serial)?;
        let running = jobs.remove(place);
        if jobs.is_empty() {
            self.running.remove(id);
        }
        self.forget(id, &running);
        Some(running)
    }

    /// The request that a REPLY without the id of its request answers: the one with the id of the REPLY itself, or the only
    /// running job.
    ///
    /// # Errors
    /// The reason why the REPLY cannot be assigned to a job.
    pub(super) fn request_of(&self, reply: &[u8]) -> Result<MessageId, String> {
        if let Some((id, _)) = self.running.get_key_value(&MessageId::from_slice(reply)) {
            return Ok(id.clone());
        }
        let mut running = self.running.iter().flat_map(|(id, jobs)| jobs.iter().map(move |_| id));
        match (running.next(), running.next()) {
            (Some(id), None) => Ok(id.clone()),
            (None, _) => Err("a REPLY without the id of its request arrived, and the worker has no job whose result is awaited".to_owned()),
            (Some(_), Some(_)) => Err(format!(
                "a REPLY without the id of its request arrived, and the worker has {} jobs; add a sixth frame with the id of the REQUEST",
                2 + running.count()
            )),
        }
    }

    /// Handles a result. False if it belongs to no running job.
    pub(super) fn result(
        &mut self,
        request: &[u8],
        body: &[u8],
        me: &Arc<Client>,
        now: Timestamp,
        commands: &mut Vec<Command>,
    ) -> bool {
        let id = MessageId::from_slice(request);
        let waits = |job: &&Running| !matches!(job.results, Results::Sent | Results::Recorded);
        let Some(running) = self.jobs(&id).iter().find(waits) else { return false };
        let (serial, tag) = (running.serial, running.tag);
        let cancellation = self.queue(tag).and_then(|served| self.cancellation(&id, &served.address));
        let is_kept = running.ttl_ms.is_some();
        if cancellation.is_some_and(|cancellation| cancellation == Cancellation::Saved || !is_kept) {
            // The ledger tells the client that the job is cancelled, so its result does not matter. If that is not saved yet,
            // a job whose result is kept goes to the ledger, because its delivery must not be settled before.
            let result = cancelled_result();
            self.finish((id, serial), result.as_bytes(), JobOutcome::Done, now, commands);
            return true;
        }
        let Some(running) = self.job(&id, serial) else { return false };
        let outcome =
            if running.kept { JobOutcome::of(body, running.wishes.timeout > 0) } else { JobOutcome::Done };
        let tries_left = u32::from(running.put_backs) < running.wishes.retry_count;
        match outcome {
            JobOutcome::Failed(Some(after)) if tries_left || running.wishes.guarantee => {
                self.retry(&id, serial, &job::failure_reason(body), now.after(after), commands);
                return true;
            }
            JobOutcome::Failed(None) if tries_left => {
                let at = now.after(running.backoff());
                self.retry(&id, serial, &job::failure_reason(body), at, commands);
                return true;
            }
            JobOutcome::Failed(_) | JobOutcome::FailedForGood | JobOutcome::Done => {}
        }
        if self.keep_result(&id, serial, body, me, commands) || self.record_result(&id, serial, body, outcome)
        {
            return true;
        }
        self.finish((id, serial), body, outcome, now, commands);
        true
    }

    /// Finishes a job after its last attempt: notifies its client and settles its delivery.
    fn finish(
        &mut self,
        (id, serial): (MessageId, u64),
        body: &[u8],
        outcome: JobOutcome,
        now: Timestamp,
        commands: &mut Vec<Command>,
    ) {
        let failed = outcome != JobOutcome::Done;
        let Some(running) = self.remove(&id, serial) else { return };
        if let Some(client) = &running.client {
            let message = Message::from_parts(&id, b"", body, Properties::default(), None);
            commands.push(Command::Respond { to: client.clone(), message });
        }
        if let Some(served) = self.queue(running.tag) {
            served.tally.finished(now.since(running.since).as_millis() as u64);
        }
        self.registration.peer.finished();
        self.exchange.count(if failed { |counters| &counters.failed } else { |counters| &counters.finished });
        if running.kept {
            let why = failed.then(|| job::failure_reason(body));
            self.settle(running.tag, id, why.as_deref().map(|why| (why, Retry::Never)), commands);
        }
    }

    /// Requeues a job with a delay before its next attempt.
    fn retry(&mut self, id: &MessageId, serial: u64, why: &str, at: Timestamp, commands: &mut Vec<Command>) {
        if let Some(running) = self.remove(id, serial) {
            self.exchange.count(|counters| &counters.retried);
            self.settle(running.tag, id.clone(), Some((why, Retry::NotBefore(at))), commands);
        }
    }
    /// Acknowledges a delivery, or rejects it with a reason and the time of the next attempt.
    fn settle(&self, tag: Tag, id: MessageId, negative: Option<(&str, Retry)>, commands: &mut Vec<Command>) {
        if let Some(served) = self.queue(tag) {
            commands.push(settlement(&served.address, tag, id, negative));
        }
    }

    /// A job has timed out: its worker has forgotten it.
    fn late(&mut self, id: &MessageId, serial: u64, now: Timestamp, commands: &mut Vec<Command>) {
        let Some(running) = self.job(id, serial) else { return };
        let tries_left = u32::from(running.put_backs) < running.wishes.retry_count;
        if running.kept && !running.wishes.guarantee && tries_left {
            let at = now.after(running.backoff());
            return self.retry(id, serial, "timeout", at, commands);
        }
        let Some(running) = self.remove(id, serial) else { return };
        if !running.kept {
            return;
        }
        let again = running.wishes.guarantee;
        if let Some(served) = self.queue(running.tag).filter(|_| !again) {
            let limit = running.wishes.timeout;
            let why = format!("the worker sent no result within the time limit of {limit} s and 5 s more");
            let (job, failure) = ((&served.address, running.ttl_ms), job::failure("Timeout", &why));
            self.fail(id, job, running.client.as_deref(), &failure, commands);
        }
        self.exchange.count(if again { |c| &c.lost } else { |c| &c.failed });
        let retry = if again { Retry::AsDecided } else { Retry::Never };
        self.settle(running.tag, id.clone(), Some(("timeout", retry)), commands);
    }

    // --- time ---------------------------------------------------------------------------------------------------

    pub(super) fn next_timeout(&self) -> Timestamp {
        let due = self.due.first().map_or(Timestamp::NEVER, |(at, ..)| *at);
        due.min(self.reminder_at)
    }

    /// Requeues the jobs that have timed out. True if the worker needs a reminder to look for finished jobs.
    pub(super) fn timeout(&mut self, now: Timestamp, commands: &mut Vec<Command>) -> bool {
        while let Some((at, id, serial)) = self.due.pop_first() {
            if at > now {
                self.due.insert((at, id, serial));
                break;
            }
            if let Some(running) = self.job_mut(&id, serial) {
                running.due = None;
            }
            self.late(&id, serial, now, commands);
        }
        if now < self.reminder_at {
            return false;
        }
        self.reminder_after *= 2;
        let goes_on = self.is_busy() && self.reminder_after < REMINDER_LAST;
        self.reminder_at = if goes_on { now.after(self.reminder_after) } else { Timestamp::NEVER };
        if !self.is_busy() {
            return false;
        }
        self.exchange.count(|counters| &counters.reminders);
        true
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        for (id, running) in self.running.iter().flat_map(|(id, jobs)| jobs.iter().map(move |job| (id, job)))
        {
            self.left(id);
            if let Some(served) = self.queue(running.tag) {
                served.tally.left();
            }
            if running.kept && running.wishes.guarantee {
                self.exchange.count(|counters| &counters.lost);
            }
        }
    }
}
