//! Results of jobs on their way to a queue or to the ledger, which have to save them before the jobs are settled.

use std::sync::Arc;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::{Command, MessageId};
use mqcore_broker::model::message::Message;
use mqcore_broker::model::rejection::RejectionKind;
use mqcore_broker::model::time::Timestamp;

use super::{Results, Running, Work};
use crate::eventmq::job::{self, JobOutcome};

impl Work {
    /// Publishes a result to the queue that its client named. False if the client named none.
    pub(super) fn keep_result(
        &mut self,
        id: &MessageId,
        serial: u64,
        body: &[u8],
        me: &Arc<Client>,
        commands: &mut Vec<Command>,
    ) -> bool {
        let Some(running) = self.job_mut(id, serial) else { return false };
        let Results::To(queue) = std::mem::replace(&mut running.results, Results::Sent) else {
            running.results = Results::Nowhere;
            return false;
        };
        let tag = running.tag;
        if let Some(at) = running.due.take() {
            self.due.remove(&(at, id.clone(), serial));
        }
        let Some(served) = self.queue(tag) else { return false };
        let message = job::result(id, body, &served.address, &queue, me);
        commands.push(Command::Publish { queue: *queue, message });
        true
    }

    /// A result is saved, or cannot be: settles its job. False if there is no such job.
    pub(in crate::eventmq) fn result_kept(
        &mut self,
        message: &Message,
        now: Timestamp,
        commands: &mut Vec<Command>,
    ) -> bool {
        let id = MessageId::from_slice(message.id());
        let is_sent = |job: &&Running| matches!(job.results, Results::Sent | Results::Recorded);
        let Some(running) = self.jobs(&id).iter().find(is_sent) else { return false };
        let is_recorded = matches!(running.results, Results::Recorded);
        let (serial, tag, timed) = (running.serial, running.tag, running.wishes.timeout > 0);
        // A job that was cancelled meanwhile is settled as one that has succeeded, so it does not become a dead letter.
        let is_cancelled =
            self.queue(tag).is_some_and(|served| self.cancellation(&id, &served.address).is_some());
        let outcome = if is_cancelled { JobOutcome::Done } else { JobOutcome::of(message.body(), timed) };
        // A job with a queue for its result may have one in the ledger too.
        if is_recorded || !self.record_result(&id, serial, message.body(), outcome) {
            self.finish((id, serial), message.body(), outcome, now, commands);
        }
        true
    }

    /// A queue refuses a result: settles its job, or lets a guaranteed one run again if the queue may take the result later,
    /// for example when its disk has room. False if there is no such job.
    pub(in crate::eventmq) fn result_refused(
        &mut self,
        message: &Message,
        why: RejectionKind,
        now: Timestamp,
        commands: &mut Vec<Command>,
    ) -> bool {
        let id = MessageId::from_slice(message.id());
        let is_sent = |job: &&Running| matches!(job.results, Results::Sent | Results::Recorded);
        let again = self.jobs(&id).iter().find(is_sent).filter(|running| {
            // Without a guarantee, a job runs again only if it failed.
            why == RejectionKind::Busy && running.wishes.guarantee
        });
        let Some(running) = again else { return self.result_kept(message, now, commands) };
        let (serial, at) = (running.serial, now.after(running.backoff()));
        self.retry(&id, serial, "result-refused", at, commands);
        true
    }
}
