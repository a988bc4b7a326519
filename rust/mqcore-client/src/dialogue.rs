//! The conversation of a client, in the protocol of its addresses.
//!
//! Every protocol supports publishing, consuming, settling, and restoring subscriptions after reconnects. For an
//! operation that a protocol lacks, it returns [`ClientError::NotSupported`].

use std::sync::Arc;
use std::time::Duration;

use mqcore_wire::codec::Limits;
use mqcore_wire::tmqp::{decode, needed};

use crate::address::{Protocol, QueueAddress};
use crate::config::ClientConfig;
use crate::consumption::Consumption;
use crate::conversation::{
    Conversation, ConversationCounts, DirectMessage, FrameEvent, IntentState, MessageId, PullAnswer,
    QueueMessage, REASON_CONSUMER_CLOSED,
};
use crate::dial::HandshakeOutcome;
use crate::error::ClientError;
use crate::mailbox::Mailbox;
use crate::micromessage::conversation::Conversation as Micromessage;
use crate::mqks::conversation::{Conversation as Mqks, MqksRequest};
use crate::received::Received;
use crate::request::{Intent, Request};
use crate::waiter::Waiter;

/// A subscription that a client keeps while it has users.
#[derive(Debug, Clone)]
pub(crate) enum Part {
    /// An intent of TMQP.
    Intent(Intent),
    /// A consumed queue, in protocols where clients consume queues and not channels.
    Consumption(Consumption),
}

impl Part {
    /// The operation and its target, for error texts.
    pub(crate) fn in_words(&self) -> (&'static str, Arc<str>) {
        match self {
            Self::Intent(intent) => {
                let request = Request::take_up(intent);
                (request.operation, request.about.to_text())
            }
            Self::Consumption(consumption) => ("consume", consumption.queue.name().into()),
        }
    }
}

/// The conversation over all connections of one client.
#[derive(Debug)]
pub(crate) enum Dialogue {
    Tmqp(Box<Conversation<Waiter>>),
    Mqks(Box<Mqks<Waiter>>),
    Micromessage(Box<Micromessage<Waiter>>),
}

/// Runs the same expression for every protocol.
macro_rules! whichever {
    ($dialogue:expr, $conversation:ident => $said:expr) => {
        match $dialogue {
            Dialogue::Tmqp($conversation) => $said,
            Dialogue::Mqks($conversation) => $said,
            Dialogue::Micromessage($conversation) => $said,
        }
    };
}

impl Dialogue {
    /// Creates a conversation without a connection.
    pub(crate) fn new(protocol: Protocol, limits: Limits) -> Self {
        match protocol {
            Protocol::Tmqp | Protocol::Throttr => Self::Tmqp(Box::new(Conversation::new(limits))),
            Protocol::Mqks => Self::Mqks(Box::new(Mqks::new(limits))),
            Protocol::Micromessage => Self::Micromessage(Box::new(Micromessage::new(limits))),
        }
    }

    pub(crate) fn protocol(&self) -> Protocol {
        match self {
            Self::Tmqp(_) => Protocol::Tmqp,
            Self::Mqks(_) => Protocol::Mqks,
            Self::Micromessage(_) => Protocol::Micromessage,
        }
    }

    /// Starts a connection after this handshake, and restores subscriptions first.
    pub(crate) fn opened(&mut self, greeted: &HandshakeOutcome) {
        match (self, greeted) {
            (Self::Tmqp(conversation), greeted) => conversation.opened(greeted.own_id()),
            (Self::Mqks(conversation), _) => conversation.opened(),
            (Self::Micromessage(conversation), HandshakeOutcome::Micromessage(agreement)) => {
                conversation.opened(agreement);
            }
            (Self::Micromessage(_), _) => debug_assert!(false, "all addresses have one protocol"),
        }
    }

    /// Ends the connection. Returns all waiters, with the messages that their pulls had received.
    pub(crate) fn lost(&mut self) -> Vec<(Waiter, Option<PullAnswer>)> {
        whichever!(self, conversation => conversation.lost())
    }

    /// Requests every subscription that is not in force.
    pub(crate) fn restore(&mut self) {
        whichever!(self, conversation => conversation.restore());
    }

    pub(crate) fn is_open(&self) -> bool {
        whichever!(self, conversation => conversation.is_open())
    }

    /// The id that the broker assigned to this client; empty where a protocol has none.
    pub(crate) fn own_id(&self) -> &str {
        match self {
            Self::Tmqp(conversation) => conversation.own_id(),
            Self::Mqks(_) | Self::Micromessage(_) => "",
        }
    }

    /// Number of requests without an answer.
    pub(crate) fn outstanding(&self) -> usize {
        whichever!(self, conversation => conversation.outstanding())
    }

    pub(crate) fn tally(&self) -> ConversationCounts {
        whichever!(self, conversation => conversation.tally())
    }

    /// Output that is not taken yet.
    pub(crate) fn output(&mut self) -> &mut Vec<u8> {
        whichever!(self, conversation => conversation.output())
    }

    /// Takes all output, in exchange for an empty buffer.
    pub(crate) fn take_output(&mut self, bytes: &mut Vec<u8>) {
        match self {
            Self::Micromessage(conversation) => conversation.take_output(bytes),
            Self::Tmqp(_) | Self::Mqks(_) => std::mem::swap(self.output(), bytes),
        }
    }

    /// The output, if it may be written in parts and without [`Dialogue::take_output`].
    pub(crate) fn untouched_output(&mut self) -> Option<&mut Vec<u8>> {
        match self {
            Self::Tmqp(_) | Self::Mqks(_) => Some(self.output()),
            Self::Micromessage(_) => None,
        }
    }

    /// Whether the limits allow more requests.
    pub(crate) fn has_room(&mut self, config: &ClientConfig) -> bool {
        let agreed = match self {
            Self::Tmqp(_) | Self::Mqks(_) => true,
            Self::Micromessage(conversation) => conversation.has_room(),
        };
        agreed
            && self.outstanding() < config.max_outstanding
            && self.output().len() < config.write_buffer_bytes
    }

    /// Publishes a message. With a waiter, requests an acknowledgement.
    pub(crate) fn publish(
        &mut self,
        publication: &QueueMessage<'_>,
        waiter: Option<Waiter>,
    ) -> Result<MessageId, ClientError> {
        whichever!(self, conversation => conversation.publish(publication, waiter))
    }

    /// The id of a message's copy. Only TMQP has copies.
    pub(crate) fn copy_id(&mut self, given: Option<&str>) -> Result<MessageId, ClientError> {
        self.tmqp("copies")?.copy_id(given)
    }

    /// Waits for the confirmation of a copy, which its message's headers ask for.
    pub(crate) fn expect_copy(&mut self, id: MessageId, queue: &QueueAddress, waiter: Waiter) {
        if let Self::Tmqp(conversation) = self {
            conversation.expect_copy(id, queue, waiter);
        }
    }

    /// Sends an ack for a message of a queue, or a nack. Only TMQP transmits the reason of a nack.
    pub(crate) fn acknowledge(
        &mut self,
        message: &Received,
        refusal: Option<&str>,
    ) -> Result<(), ClientError> {
        match self {
            Self::Tmqp(conversation) => conversation.acknowledge(message, refusal),
            Self::Mqks(conversation) => {
                conversation.settle(message, refusal.is_some());
                Ok(())
            }
            Self::Micromessage(conversation) => {
                conversation.settle(message, refusal.is_some());
                Ok(())
            }
        }
    }

    /// Sends a nack for a message of a queue, with the delay before it is redelivered.
    pub(crate) fn postpone(
        &mut self,
        message: &Received,
        reason: &str,
        delay: Duration,
    ) -> Result<(), ClientError> {
        match self {
            Self::Tmqp(conversation) => conversation.postpone(message, reason, delay),
            Self::Mqks(_) | Self::Micromessage(_) => self.check_delay(),
        }
    }

    /// Whether the protocol has nacks with a delay.
    pub(crate) fn check_delay(&self) -> Result<(), ClientError> {
        let protocol = match self {
            Self::Tmqp(_) => return Ok(()),
            Self::Mqks(_) => Protocol::Mqks,
            Self::Micromessage(_) => Protocol::Micromessage,
        };
        Err(ClientError::NotSupported {
            what: "nacks with a delay".into(),
            protocol: protocol.name(),
            instead: "set the queue's retry_delay, or connect to tmqp://",
        })
    }

    /// Handles a message that the program dropped without settling it. Most brokers use a timeout; in MicroMessage2
    /// later acknowledgements wait for the message, so the client settles it with a nack.
    pub(crate) fn dropped(&mut self, message: &Received) {
        match self {
            Self::Tmqp(_) => {}
            Self::Mqks(conversation) => conversation.dropped(message),
            Self::Micromessage(conversation) => conversation.settle(message, true),
        }
    }

    /// Whether the protocol has a nack.
    pub(crate) fn check_refusal(&self) -> Result<(), ClientError> {
        match self {
            Self::Micromessage(conversation) if conversation.is_open() && !conversation.can_refuse() => {
                Err(ClientError::NotSupported {
                    what: "nacks without the extension x-nack, which the broker did not accept".into(),
                    protocol: Protocol::Micromessage.name(),
                    instead: "acknowledge the message, or close the connection to requeue it",
                })
            }
            _ => Ok(()),
        }
    }

    /// Whether this client has joined the channel, or is about to.
    pub(crate) fn has_joined(&self, channel: &[u8]) -> bool {
        match self {
            Self::Tmqp(conversation) => conversation.has_joined(channel),
            // In these protocols only consumed queues deliver messages.
            Self::Mqks(_) | Self::Micromessage(_) => false,
        }
    }

    /// Adds a user of a subscription. Each call needs a [`Dialogue::give_up`].
    pub(crate) fn take_up(
        &mut self,
        part: &Part,
        waiter: Waiter,
    ) -> Result<IntentState<Waiter>, ClientError> {
        match (self, part) {
            (Self::Tmqp(conversation), Part::Intent(intent)) => conversation.take_up(intent.clone(), waiter),
            (Self::Mqks(conversation), Part::Consumption(consumption)) => {
                conversation.take_up(consumption, waiter)
            }
            (Self::Micromessage(conversation), Part::Consumption(consumption)) => {
                conversation.take_up(consumption, waiter)
            }
            (dialogue, part) => Err(dialogue.lacks(part.in_words().0)),
        }
    }

    /// Removes a user of an intent, whose program has `started` messages that it has not settled. The last one cancels
    /// it. Returns whether [`FrameEvent::Left`] will follow.
    pub(crate) fn give_up(&mut self, part: &Part, started: usize) -> bool {
        match (self, part) {
            (Self::Tmqp(conversation), Part::Intent(intent)) => return conversation.give_up(intent),
            (Self::Mqks(conversation), Part::Consumption(consumption)) => {
                conversation.give_up(consumption, started)
            }
            (Self::Micromessage(conversation), Part::Consumption(consumption)) => {
                conversation.give_up(consumption, started);
            }
            // `take_up` refused this combination.
            _ => {}
        }
        false
    }

    /// Leaves all consumed queues, because the client closes. `started`: how many messages of a queue the program has and
    /// has not settled. [`FrameEvent::Left`] will follow for each queue that is returned.
    pub(crate) fn leave_all(&mut self, started: impl Fn(&QueueAddress) -> usize) -> Vec<QueueAddress> {
        match self {
            Self::Tmqp(conversation) => return conversation.leave_all(),
            Self::Mqks(conversation) => conversation.leave_all(started),
            Self::Micromessage(conversation) => conversation.leave_all(started),
        }
        Vec::new()
    }

    /// Takes messages of a queue that arrived after their pull had ended, at most `max`.
    pub(crate) fn take_late(&mut self, queue: &QueueAddress, max: usize) -> Vec<Received> {
        match self {
            Self::Tmqp(conversation) => conversation.take_late(queue, max),
            Self::Mqks(_) | Self::Micromessage(_) => Vec::new(),
        }
    }

    /// Keeps messages that were taken with [`Dialogue::take_late`].
    pub(crate) fn keep_late(&mut self, messages: Vec<Received>) {
        if let Self::Tmqp(conversation) = self {
            conversation.keep_late(messages);
        }
    }

    /// Returns a message that the program did not get. Without nacks the broker requeues it when the connection ends.
    pub(crate) fn give_back(&mut self, message: &Received) {
        if let Self::Tmqp(conversation) = self {
            return conversation.give_back(message);
        }
        if self.check_refusal().is_ok() {
            let refused = self.acknowledge(message, Some(REASON_CONSUMER_CLOSED));
            debug_assert_eq!(refused, Ok(()), "a received message can be refused");
        }
    }

    /// Asks for the whole acknowledge timeout again. Returns whether the broker knows this request.
    pub(crate) fn extend(&mut self, message: &Received) -> bool {
        match self {
            Self::Tmqp(conversation) => conversation.extend(message),
            Self::Mqks(conversation) => conversation.extend(message),
            Self::Micromessage(conversation) => conversation.extend(message),
        }
    }

    /// Ends the deliveries of a queue that no user consumes, if the broker sent one nevertheless.
    pub(crate) fn leave_unused(&mut self, message: &Received) {
        if let Self::Tmqp(conversation) = self {
            conversation.leave_unused(message);
        }
    }

    /// Sends a heartbeat request. False: the protocol knows none.
    pub(crate) fn ping(&mut self) -> bool {
        match self {
            Self::Tmqp(conversation) => conversation.ping(),
            Self::Mqks(conversation) => conversation.ping(),
            Self::Micromessage(conversation) => return conversation.ping(),
        }
        true
    }

    /// Forgets a request. Returns the messages that a pull had received.
    pub(crate) fn forget(&mut self, id: &[u8]) -> Option<PullAnswer> {
        whichever!(self, conversation => conversation.forget(id))
    }

    /// Visits every caller that waits for an answer, with the id of its request.
    pub(crate) fn each_waiter(&self, mut visit: impl FnMut(&MessageId, &Waiter)) {
        whichever!(self, conversation => conversation.waiters().for_each(|(id, waiter)| visit(id, waiter)));
    }

    /// Reads the frame or line at the front of `input`, and returns its size in bytes. `None`: more bytes are needed.
    /// An error is the text of why the connection ends.
    pub(crate) fn receive(
        &mut self,
        input: &[u8],
        limits: &Limits,
    ) -> Result<Option<(FrameEvent<Waiter>, usize)>, Arc<str>> {
        let broken =
            |error: &dyn std::fmt::Display| format!("the broker sent a malformed frame: {error}").into();
        match self {
            Self::Tmqp(conversation) => {
                let frame = decode(input, limits).map_err(|error| broken(&error))?;
                Ok(frame.map(|(frame, size)| (conversation.receive(&frame), size)))
            }
            Self::Mqks(conversation) => conversation.receive(input).map_err(|error| broken(&error)),
            Self::Micromessage(conversation) => {
                conversation.receive(input).map_err(|failure| broken(&failure))
            }
        }
    }

    /// Size in bytes of the incomplete frame at the front of `input`; 0 if unknown.
    pub(crate) fn needed(&self, input: &[u8], limits: &Limits) -> usize {
        match self {
            Self::Tmqp(_) => needed(input, limits).unwrap_or(0),
            Self::Mqks(_) => 0,
            Self::Micromessage(conversation) => conversation.needed(input),
        }
    }

    /// The TMQP conversation. Other protocols lack `what`.
    pub(crate) fn tmqp(&mut self, what: &str) -> Result<&mut Conversation<Waiter>, ClientError> {
        match self {
            Self::Tmqp(conversation) => Ok(conversation),
            other => Err(other.lacks(what)),
        }
    }

    /// Sends a request that one response answers.
    pub(crate) fn request(&mut self, request: &Request, waiter: Waiter) -> Result<MessageId, ClientError> {
        self.tmqp(&format!("operation \"{}\"", request.operation))?.request(request, waiter)
    }

    /// Sends a pull.
    pub(crate) fn pull(&mut self, request: &Request, waiter: Waiter) -> Result<MessageId, ClientError> {
        self.tmqp("pulling")?.pull(request, waiter)
    }

    /// Sends a pull whose messages go to the waiter's mailbox.
    pub(crate) fn pull_stream(
        &mut self,
        request: &Request,
        waiter: Waiter,
    ) -> Result<MessageId, ClientError> {
        self.tmqp("pulling")?.pull_stream(request, waiter)
    }

    /// The mailbox of a streamed pull.
    pub(crate) fn pull_mailbox(&self, id: &[u8]) -> Option<Arc<Mailbox>> {
        let Self::Tmqp(conversation) = self else { return None };
        match conversation.waiter(id) {
            Some(Waiter::Stream(_, mailbox)) => Some(mailbox.clone()),
            _ => None,
        }
    }

    /// Sends a direct message.
    pub(crate) fn send(
        &mut self,
        message: &DirectMessage<'_>,
        waiter: Option<Waiter>,
    ) -> Result<MessageId, ClientError> {
        self.tmqp(DIRECT)?.send(message, waiter)
    }

    /// Sends a request of MQKS.
    pub(crate) fn question(
        &mut self,
        question: &MqksRequest<'_>,
        waiter: Waiter,
    ) -> Result<MessageId, ClientError> {
        match self {
            Self::Mqks(conversation) => conversation.question(question, waiter),
            other => {
                let what = format!("operation \"{}\"", question.operation);
                Err(other.lacks_what("use MQKS (mqks://) instead", &what))
            }
        }
    }

    /// The MicroMessage2 conversation.
    pub(crate) fn micromessage(&mut self) -> Result<&mut Micromessage<Waiter>, ClientError> {
        match self {
            Self::Micromessage(conversation) => Ok(conversation),
            other => Err(other.lacks_what("use MicroMessage2 (mm2://) instead", "extensions")),
        }
    }

    /// The error for an operation that only TMQP has.
    fn lacks(&self, what: &str) -> ClientError {
        self.lacks_what("use TMQP (tmqp://) instead", what)
    }

    fn lacks_what(&self, instead: &'static str, what: &str) -> ClientError {
        ClientError::NotSupported { what: what.into(), protocol: self.protocol().name(), instead }
    }
}

/// The name of direct messages in errors.
pub(crate) const DIRECT: &str = "messages from client to client";
