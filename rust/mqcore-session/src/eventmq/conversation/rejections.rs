//! Jobs that the broker rejected, and queues that are created for jobs.

use mqcore_broker::model::command::{Command, Request};
use mqcore_broker::model::id::QueueAddress;
use mqcore_broker::model::message::Message;
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::time::Timestamp;

use super::EventmqSession;
use crate::eventmq::pending::RequestSubject;
use crate::eventmq::{client, job};

impl EventmqSession {
    /// Handles a message that the broker rejected.
    pub(super) fn refused(
        &mut self,
        queue: &QueueAddress,
        message: &Message,
        rejection: &Rejection,
        now: Timestamp,
        output: &mut Vec<u8>,
    ) {
        if message.properties().unique && rejection.kind == RejectionKind::AlreadyExists {
            return self.duplicate(message, rejection, output);
        }
        let asks = self.intake.refused(queue, message, rejection, &mut self.wanted);
        match asks {
            client::Refused::FellBack => self.exchange.count(|counters| &counters.fallen_back),
            client::Refused::Needs(queue) => self.create_queue(queue),
            client::Refused::Waits => {}
            client::Refused::Lost => self.lost(message, rejection, now, output),
        }
    }

    /// Creates the queue of a job or schedule.
    pub(super) fn create_queue(&mut self, queue: QueueAddress) {
        let number = self.pending.expect(RequestSubject::Creation(queue.clone()), 1);
        let changes = self.exchange.made_for_jobs();
        let request = Request::CreateQueue { queue, changes };
        self.wanted.push(Command::Request(number, Box::new(request)));
    }

    /// No queue accepts a job. Its client is notified if it asked for the result.
    pub(super) fn lost(
        &mut self,
        message: &Message,
        rejection: &Rejection,
        now: Timestamp,
        output: &mut Vec<u8>,
    ) {
        let kind = match rejection.kind {
            RejectionKind::Unauthorized => Some("Denied"),
            // Such clients are not the original's; they know further kinds of failures.
            _ if job::creates_queue(message) => Some("Rejected"),
            RejectionKind::QueueStopped => Some("Denied"),
            _ => None,
        };
        if let Some(kind) = kind.filter(|_| job::wants_result(message)) {
            let result = job::failure(kind, &rejection.reason);
            self.reply(result.as_bytes(), Some(message.id()), output);
        }
        self.fail(message.id(), rejection.to_string(), now);
    }

    /// Another job with the same key waits or runs already. The client asked to be notified of that.
    pub(super) fn duplicate(&mut self, message: &Message, rejection: &Rejection, output: &mut Vec<u8>) {
        self.exchange.count(|counters| &counters.duplicates);
        if job::wants_result(message) {
            let result = job::failure("Duplicate", &rejection.reason);
            self.reply(result.as_bytes(), Some(message.id()), output);
        }
    }
}
