//! Leaving subscriptions, and asking for more time: requests that only brokers with `x-mqcore` know.

use mqcore_wire::micromessage::extension::ExtensionKind;

use super::Conversation;
use crate::address::QueueAddress;
use crate::received::Received;
use crate::standing::Ended;

impl<W> Conversation<W> {
    /// Ends all subscriptions, because the client closes. `started`: how many messages of a queue the program has and has
    /// not settled.
    pub(crate) fn leave_all(&mut self, started: impl Fn(&QueueAddress) -> usize) {
        for (queue, ended) in self.subscribed.end_all() {
            self.unsubscribe(&ended, started(&queue));
        }
    }

    pub(super) fn unsubscribe(&mut self, ended: &Ended, started: usize) {
        if !self.open {
            return;
        }
        let started = started.to_string();
        let mut arguments = vec![("id", &ended.id[..])];
        // The attempts of messages that the program did not get do not count.
        if ended.manual_ack && self.answers() {
            arguments.push(("started", started.as_bytes()));
        }
        self.command("unsubscribe", &arguments);
    }

    /// Asks for the whole acknowledge timeout again. Returns whether the broker knows this request.
    pub(crate) fn extend(&mut self, message: &Received) -> bool {
        let Some(number) = self.window.as_ref().and_then(|window| window.number_of(message.receipt())) else {
            return false;
        };
        if self.answers() {
            self.command("working", &[("sequence", number.to_string().as_bytes())]);
        }
        self.answers()
    }

    /// Whether the broker answers commands, and knows those of mqcore.
    fn answers(&self) -> bool {
        self.agreement.id_of_kind(ExtensionKind::Answers).is_some()
    }
}
