//! The exchange of a worker's session with the ledger of jobs.

use std::time::Duration;

use mqcore_broker::model::command::{Command, MessageId, Retry};
use mqcore_broker::model::effect::Deliver;
use mqcore_broker::model::id::QueueAddress;
use mqcore_broker::model::message::{Message, Properties};
use mqcore_broker::model::time::Timestamp;

use super::answers::{cancelled_job, client_of, ended_job, lost_result, settlement};
use super::{Results, Running, Work};
use crate::eventmq::board::Cancellation;
use crate::eventmq::job::{DeliveredJob, JobOutcome};
use crate::eventmq::ledger::{EndReceiver, EndedJob, JobEnd};

/// Delay before a job is delivered again whose cancellation is not saved yet.
const CANCELLING_PAUSE: Duration = Duration::from_millis(50);

impl Work {
    /// Whether the worker gets a job now. Otherwise its key has no room, or it is cancelled.
    pub(super) fn admits(
        &self,
        id: &MessageId,
        deliver: &Deliver,
        handed: &DeliveredJob<'_>,
        now: Timestamp,
        commands: &mut Vec<Command>,
    ) -> bool {
        let limit = handed.concurrency();
        if (self.counts || limit.is_some())
            && let Err(delay) = self.began(id, &deliver.queue, limit, now)
        {
            let postponed = Some(("concurrency", Retry::Postponed(now.after(delay))));
            commands.push(settlement(&deliver.queue, deliver.tag, id.clone(), postponed));
            return false;
        }
        let Some(cancellation) = self.cancellation(id, &deliver.queue) else { return true };
        self.left(id);
        if cancellation == Cancellation::Requested {
            let postponed = Some(("cancelling", Retry::Postponed(now.after(CANCELLING_PAUSE))));
            commands.push(settlement(&deliver.queue, deliver.tag, id.clone(), postponed));
            return false;
        }
        commands.extend(client_of(deliver, handed.wishes).map(|client| cancelled_job(client, id)));
        commands.push(settlement(&deliver.queue, deliver.tag, id.clone(), None));
        false
    }

    /// Gives a result to the ledger, which confirms it when it is saved. False if the ledger does not keep it.
    pub(super) fn record_result(
        &mut self,
        id: &MessageId,
        serial: u64,
        body: &[u8],
        outcome: JobOutcome,
    ) -> bool {
        let asker = self.registration.peer.connection;
        let Some(ledger) = self.exchange.jobs().cloned() else { return false };
        let Some(running) = self.job_mut(id, serial) else { return false };
        let Some(ttl_ms) = running.ttl_ms else { return false };
        running.results = Results::Recorded;
        let (tag, timed) = (running.tag, running.wishes.timeout > 0);
        if let Some(at) = running.due.take() {
            self.due.remove(&(at, id.clone(), serial));
        }
        let Some(served) = self.queue(tag) else { return false };
        // The outcome of a job that the broker does not keep has not been looked at.
        let outcome = if outcome == JobOutcome::Done { JobOutcome::of(body, timed) } else { outcome };
        let end = if outcome == JobOutcome::Done { JobEnd::Done } else { JobEnd::Failed };
        let result = Message::from_parts(id, b"", body, Properties::default(), None);
        let ended = EndedJob {
            receiver: EndReceiver::Session(asker),
            queue: served.address.clone(),
            result,
            end,
            ttl_ms,
        };
        ledger.board().ended(&ended);
        ledger.ended(ended);
        true
    }

    /// Whether the job has ended at a worker whose connection was lost before the job was settled. Then the worker does not get
    /// it: the ledger gets the same end again, and its confirmation settles the job.
    pub(super) fn has_ended(
        &mut self,
        id: &MessageId,
        deliver: &Deliver,
        handed: &DeliveredJob<'_>,
        now: Timestamp,
    ) -> bool {
        if !handed.is_kept() || handed.result_ttl().is_none() {
            return false;
        }
        let Some(ledger) = self.exchange.jobs().cloned() else { return false };
        if deliver.requeues == 0 {
            // Sent again with its id after its queue was purged: the end before does not count for it.
            ledger.board().settled(id);
            return false;
        }
        let Some(ended) = ledger.board().end_of(id, &deliver.queue) else { return false };
        let client = client_of(deliver, handed.wishes).map(Box::from);
        self.remember(id.clone(), deliver, client, Results::Recorded, now);
        ledger.ended(EndedJob { receiver: EndReceiver::Session(self.registration.peer.connection), ..ended });
        true
    }

    /// The delivery of a job that has ended is settled, or the job runs again.
    pub(super) fn end_settled(&self, id: &MessageId) {
        if let Some(ledger) = self.exchange.jobs() {
            ledger.board().settled(id);
        }
    }

    /// A job has failed without a result of a worker: tells its client. If the ledger keeps its result, the client hears the end
    /// that counts there: the job may have been cancelled.
    pub(super) fn fail(
        &self,
        id: &MessageId,
        job: (&QueueAddress, Option<u64>),
        client: Option<&str>,
        failure: &str,
        commands: &mut Vec<Command>,
    ) {
        let (queue, ttl_ms) = job;
        let (Some(ttl_ms), Some(ledger)) = (ttl_ms, self.exchange.jobs()) else {
            return commands.extend(client.map(|client| ended_job(client, id, failure.as_bytes())));
        };
        let result = Message::from_parts(id, b"", failure.as_bytes(), Properties::default(), None);
        let receiver = end_receiver(client);
        ledger.ended(EndedJob { receiver, queue: queue.clone(), result, end: JobEnd::Failed, ttl_ms });
    }

    /// The connection of the worker of a job ends, and no other worker gets the job: it is lost, or has ended before.
    pub(super) fn lose(
        &self,
        id: &MessageId,
        queue: &QueueAddress,
        running: &Running,
        commands: &mut Vec<Command>,
    ) {
        let client = running.client.as_deref();
        if matches!(running.results, Results::Recorded)
            && let Some(ledger) = self.exchange.jobs()
            && let Some(ended) = ledger.board().end_of(id, queue)
        {
            ledger.board().settled(id);
            return ledger.ended(EndedJob { receiver: end_receiver(client), ..ended });
        }
        self.fail(id, (queue, running.ttl_ms), client, &lost_result(), commands);
    }

    pub(super) fn began(
        &self,
        id: &MessageId,
        queue: &QueueAddress,
        limit: Option<(&[u8], u32)>,
        now: Timestamp,
    ) -> Result<(), Duration> {
        let Some(ledger) = self.exchange.jobs() else { return Ok(()) };
        ledger.board().began(id, self.registration.peer.connection, queue, limit, now)
    }

    pub(super) fn left(&self, id: &MessageId) {
        if let Some(ledger) = self.exchange.jobs() {
            ledger.board().left(id, self.registration.peer.connection);
        }
    }

    pub(super) fn cancellation(&self, id: &MessageId, queue: &QueueAddress) -> Option<Cancellation> {
        self.exchange.jobs()?.board().cancellation(id, queue)
    }

    /// Whether the worker runs this job and knows how to stop it.
    pub(in crate::eventmq) fn can_stop(&self, job: &[u8]) -> bool {
        self.counts && self.running.contains_key(&MessageId::from_slice(job))
    }
}

fn end_receiver(client: Option<&str>) -> EndReceiver {
    client.map_or(EndReceiver::Unneeded, |client| EndReceiver::Client(client.into()))
}
