//! The conversation of a client, in whichever protocol its addresses name.
//!
//! What every protocol has (publishing, consuming, settling, what stands over reconnects) is asked of any of them. What
//! only one has is asked of that one; the others refuse it with [`ClientError::NotSupported`].

use std::sync::Arc;

use mqcore_wire::codec::Limits;
use mqcore_wire::tmqp::{decode, needed};

use crate::address::Protocol;
use crate::config::ClientConfig;
use crate::consumption::Consumption;
use crate::conversation::{
    Arrival, Conversation, DirectMessage, MessageId, Publication, PullAnswer, TakenUp, Tally,
};
use crate::dial::Greeted;
use crate::error::ClientError;
use crate::micromessage::conversation::Conversation as Micromessage;
use crate::mqks::conversation::{Conversation as Mqks, Question};
use crate::received::Received;
use crate::request::{Intent, Request};
use crate::waiter::Waiter;

/// What a client takes part in, for as long as somebody in it wants that.
#[derive(Debug, Clone)]
pub(crate) enum Part {
    /// Something of TMQP.
    Intent(Intent),
    /// Consuming, in protocols where one consumes a queue and not a channel.
    Consumption(Consumption),
}

impl Part {
    /// For people: what was asked, and of whom.
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
    Tmqp(Conversation<Waiter>),
    Mqks(Box<Mqks<Waiter>>),
    Micromessage(Box<Micromessage<Waiter>>),
}

/// The same of whichever protocol it is.
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
    /// One that has not begun.
    pub(crate) fn new(protocol: Protocol, limits: Limits) -> Self {
        match protocol {
            Protocol::Tmqp | Protocol::Throttr => Self::Tmqp(Conversation::new(limits)),
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

    /// A connection stands, on which this was agreed: says first what is to stand on it.
    pub(crate) fn opened(&mut self, greeted: &Greeted) {
        match (self, greeted) {
            (Self::Tmqp(conversation), greeted) => conversation.opened(greeted.own_id()),
            (Self::Mqks(conversation), _) => conversation.opened(),
            (Self::Micromessage(conversation), Greeted::Micromessage(agreement)) => {
                conversation.opened(agreement);
            }
            (Self::Micromessage(_), _) => debug_assert!(false, "all addresses are of one protocol"),
        }
    }

    /// The connection is gone. Answers with everybody who waited, and what their pulls had brought by then.
    pub(crate) fn lost(&mut self) -> Vec<(Waiter, Option<PullAnswer>)> {
        whichever!(self, conversation => conversation.lost())
    }

    /// Asks for everything that is to stand and does not.
    pub(crate) fn restore(&mut self) {
        whichever!(self, conversation => conversation.restore());
    }

    pub(crate) fn is_open(&self) -> bool {
        whichever!(self, conversation => conversation.is_open())
    }

    /// What the broker calls this client; empty where a protocol has no such thing.
    pub(crate) fn own_id(&self) -> &str {
        match self {
            Self::Tmqp(conversation) => conversation.own_id(),
            Self::Mqks(_) | Self::Micromessage(_) => "",
        }
    }

    /// How many wait for an answer.
    pub(crate) fn outstanding(&self) -> usize {
        whichever!(self, conversation => conversation.outstanding())
    }

    pub(crate) fn tally(&self) -> Tally {
        whichever!(self, conversation => conversation.tally())
    }

    /// What is to be written and has not been taken yet.
    pub(crate) fn output(&mut self) -> &mut Vec<u8> {
        whichever!(self, conversation => conversation.output())
    }

    /// Takes all of it, in exchange for an empty buffer.
    pub(crate) fn take_output(&mut self, octets: &mut Vec<u8>) {
        match self {
            Self::Micromessage(conversation) => conversation.take_output(octets),
            Self::Tmqp(_) | Self::Mqks(_) => std::mem::swap(self.output(), octets),
        }
    }

    /// Whether more may be said, as far as these bounds go.
    pub(crate) fn has_room(&mut self, config: &ClientConfig) -> bool {
        let agreed = match self {
            Self::Tmqp(_) | Self::Mqks(_) => true,
            Self::Micromessage(conversation) => conversation.has_room(),
        };
        agreed
            && self.outstanding() < config.max_outstanding
            && self.output().len() < config.write_buffer_bytes
    }

    /// Publishes. With a waiter, an acknowledgement is asked for.
    pub(crate) fn publish(
        &mut self,
        publication: &Publication<'_>,
        waiter: Option<Waiter>,
    ) -> Result<MessageId, ClientError> {
        whichever!(self, conversation => conversation.publish(publication, waiter))
    }

    /// Acknowledges a message of a queue, or refuses it with a reason, which only TMQP can pass on.
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

    /// The program let go of a message without settling it. Brokers know for themselves when that takes too long; where
    /// nothing else is sent before it is settled, they have to be told.
    pub(crate) fn dropped(&mut self, message: &Received) {
        if let Self::Micromessage(conversation) = self {
            conversation.settle(message, true);
        }
    }

    /// Whether a message can be refused.
    pub(crate) fn check_refusal(&self) -> Result<(), ClientError> {
        match self {
            Self::Micromessage(conversation) if conversation.is_open() && !conversation.can_refuse() => {
                Err(ClientError::NotSupported {
                    what: "refusals without x-nack, on which the broker did not agree".into(),
                    protocol: Protocol::Micromessage.name(),
                    instead: "acknowledge the message, or end the connection to give it back",
                })
            }
            _ => Ok(()),
        }
    }

    /// Whether this client consumes from the channel, or wants to.
    pub(crate) fn has_joined(&self, channel: &[u8]) -> bool {
        match self {
            Self::Tmqp(conversation) => conversation.has_joined(channel),
            // Where one consumes queues, nothing comes of a queue that nobody asked for.
            Self::Mqks(_) | Self::Micromessage(_) => false,
        }
    }

    /// Somebody wants to take part in something from now on, until [`Dialogue::give_up`] as many times.
    pub(crate) fn take_up(&mut self, part: &Part, waiter: Waiter) -> Result<TakenUp<Waiter>, ClientError> {
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

    /// Somebody wants it no more. The last one makes it so.
    pub(crate) fn give_up(&mut self, part: &Part) {
        match (self, part) {
            (Self::Tmqp(conversation), Part::Intent(intent)) => conversation.give_up(intent),
            (Self::Mqks(conversation), Part::Consumption(consumption)) => conversation.give_up(consumption),
            (Self::Micromessage(conversation), Part::Consumption(consumption)) => {
                conversation.give_up(consumption);
            }
            // It was refused when it was to be taken up.
            _ => {}
        }
    }

    /// Asks for a heartbeat. False: the protocol knows none.
    pub(crate) fn ping(&mut self) -> bool {
        match self {
            Self::Tmqp(conversation) => conversation.ping(),
            Self::Mqks(conversation) => conversation.ping(),
            Self::Micromessage(conversation) => return conversation.ping(),
        }
        true
    }

    /// Nobody waits for this any more. Answers with what a pull had brought by then.
    pub(crate) fn forget(&mut self, id: &[u8]) -> Option<PullAnswer> {
        whichever!(self, conversation => conversation.forget(id))
    }

    /// Reads what stands at the front of `input`, and tells how many bytes that took. `None`: more are needed. An error is
    /// the end of the connection, in words.
    pub(crate) fn receive(
        &mut self,
        input: &[u8],
        limits: &Limits,
    ) -> Result<Option<(Arrival<Waiter>, usize)>, Arc<str>> {
        let broken =
            |error: &dyn std::fmt::Display| format!("the broker sent a broken frame: {error}").into();
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

    /// How many bytes the unfinished thing at the front of `input` needs; 0 if that is not known.
    pub(crate) fn needed(&self, input: &[u8], limits: &Limits) -> usize {
        match self {
            Self::Tmqp(_) => needed(input, limits).unwrap_or(0),
            Self::Mqks(_) => 0,
            Self::Micromessage(conversation) => conversation.needed(input),
        }
    }

    /// TMQP's own, for what only it has; others lack `what`.
    pub(crate) fn tmqp(&mut self, what: &str) -> Result<&mut Conversation<Waiter>, ClientError> {
        match self {
            Self::Tmqp(conversation) => Ok(conversation),
            other => Err(other.lacks(what)),
        }
    }

    /// Asks something that is answered by one response.
    pub(crate) fn request(&mut self, request: &Request, waiter: Waiter) -> Result<MessageId, ClientError> {
        self.tmqp(&format!("operation \"{}\"", request.operation))?.request(request, waiter)
    }

    /// Pulls.
    pub(crate) fn pull(&mut self, request: &Request, waiter: Waiter) -> Result<MessageId, ClientError> {
        self.tmqp("pulling")?.pull(request, waiter)
    }

    /// Sends a direct message.
    pub(crate) fn send(
        &mut self,
        message: &DirectMessage<'_>,
        waiter: Option<Waiter>,
    ) -> Result<MessageId, ClientError> {
        self.tmqp(DIRECT)?.send(message, waiter)
    }

    /// Asks something that only MQKS has.
    pub(crate) fn question(
        &mut self,
        question: &Question<'_>,
        waiter: Waiter,
    ) -> Result<MessageId, ClientError> {
        match self {
            Self::Mqks(conversation) => conversation.question(question, waiter),
            other => {
                let what = format!("operation \"{}\"", question.operation);
                Err(other.lacks_what("MQKS has; connect to mqks://", &what))
            }
        }
    }

    /// MicroMessage2's own, for what only it has.
    pub(crate) fn micromessage(&mut self) -> Result<&mut Micromessage<Waiter>, ClientError> {
        match self {
            Self::Micromessage(conversation) => Ok(conversation),
            other => Err(other.lacks_what("MicroMessage2 has; connect to mm2://", "extensions")),
        }
    }

    /// That this protocol lacks something that TMQP has.
    fn lacks(&self, what: &str) -> ClientError {
        self.lacks_what("TMQP has; connect to tmqp://", what)
    }

    fn lacks_what(&self, instead: &'static str, what: &str) -> ClientError {
        ClientError::NotSupported { what: what.into(), protocol: self.protocol().name(), instead }
    }
}

/// What only TMQP has, in words.
pub(crate) const DIRECT: &str = "messages from client to client";
