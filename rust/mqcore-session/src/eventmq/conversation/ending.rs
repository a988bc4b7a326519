//! The end of a client's input. Many clients send one job and close at once, and a queue may still reject the job.

use mqcore_broker::model::command::{Command, EventKind, EventSubscription, Request};

use super::{EventmqSession, Stage};
use crate::eventmq::listener::Role;
use crate::eventmq::pending::RequestSubject;

impl EventmqSession {
    /// Whether the peer's last messages count even if it has closed the connection by now.
    pub(super) fn sends_jobs(&self) -> bool {
        matches!(self.role, Role::Frontend | Role::Publish)
            && matches!(self.stage, Stage::Introduced | Stage::Open)
    }

    /// A client has closed its side: the connection ends as soon as none of its jobs can be rejected any more, and all
    /// its other requests have passed their checks.
    pub(super) fn finish(&mut self) {
        if !self.has_ended || self.stage != Stage::Open || self.intake.holds() || self.pending.holds_end() {
            return;
        }
        if self.intake.take_sent() {
            self.fence();
        } else {
            self.stage = Stage::Over;
        }
    }

    /// Sends a marker to every shard, because each may have queues to which the client sent jobs.
    fn fence(&mut self) {
        // It changes nothing: clients of this protocol do not subscribe to events.
        let unsubscribe =
            EventSubscription { kind: EventKind::ChannelCreated, channel: None, queue: None, on: false };
        let request = Request::Subscribe(unsubscribe);
        let answers = request.answers(self.config.shards.max(1));
        let number = self.pending.expect(RequestSubject::Fence, answers);
        self.wanted.push(Command::Request(number, Box::new(request)));
    }
}
