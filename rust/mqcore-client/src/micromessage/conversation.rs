//! The client side of MicroMessage2: turns frames into results. It has no IO and no clock.
//!
//! A message has a number and no id; its receipt is the broker's acknowledgement of that number or of a later one. For
//! deliveries, the program settles messages in any order. Once all messages up to a number are settled, the client
//! acknowledges that number, in one frame per write.

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use mqcore_wire::codec::Limits;
use mqcore_wire::micromessage::content::{Content, check_type, common_lines, write_headers};
use mqcore_wire::micromessage::extension::{Agreement, ExtensionKind};
use mqcore_wire::micromessage::failure::{ErrorToken, ProtocolFailure};
use mqcore_wire::micromessage::filter::Filter;
use mqcore_wire::micromessage::window::{ReceiveOutcome, ReceiveWindow, SendWindow};
use mqcore_wire::micromessage::{
    Assembled, Assembly, Frame, Joined, MessageFrame, command, decode, encode, encode_split, needed,
    next_sequence, properties,
};
use mqcore_wire::tmqp::operation::status;
use mqcore_wire::tmqp::{Frame as Parts, Kind as Sort};

use crate::address::{Protocol, QueueAddress};
use crate::consumption::{ConsumeTerms, Consumption};
use crate::conversation::{
    AckedBy, ConversationCounts, FrameEvent, IntentState, MessageId, PullAnswer, QueueMessage, RequestAnswer,
};
use crate::error::{ClientError, Refusal};
use crate::message_id::MessageIds;
use crate::received::Received;
use crate::request::Target;
use crate::standing::{Leaving, Register};

/// The id of heartbeat commands.
const KEEP_ALIVE: &[u8] = b"keep-alive";
/// The reason of a nack, which has none in this protocol.
const REFUSED: &str = "refused";
/// Size of an acknowledgement frame: flags, extension, length, number.
const ACKNOWLEDGEMENT_BYTES: usize = 5;

#[derive(Debug)]
struct PendingRequest<W> {
    about: Target,
    waiter: W,
}

/// The conversation over all connections of one client.
#[derive(Debug)]
pub(crate) struct Conversation<W> {
    limits: Limits,
    ids: MessageIds,
    open: bool,
    agreement: Agreement,
    assembly: Assembly,
    /// Sent messages without acknowledgement; `None`: no acknowledgements were agreed.
    sent: Option<SendWindow<Option<MessageId>>>,
    /// The number of the last message, if no acknowledgements were agreed.
    last: u16,
    /// Received messages to acknowledge; `None`: no acknowledgements were agreed.
    window: Option<ReceiveWindow>,
    /// Position of an acknowledgement at the end of the output, which the next one replaces.
    acknowledgement_at: Option<usize>,
    pending: HashMap<MessageId, PendingRequest<W>, RandomState>,
    subscribed: Register<W>,
    /// Number of subscriptions so far, over all connections.
    subscriptions: u64,
    /// Header lines that received messages share, such as the last type that the broker named.
    common: Vec<u8>,
    /// The last type that the client named.
    type_named: Vec<u8>,
    output: Vec<u8>,
    /// Reused for the headers of received messages, to save an allocation each.
    headers: Vec<u8>,
    tally: ConversationCounts,
    /// The number of a message that the broker is about to refuse, and the reason.
    refusal: Option<(u16, String)>,
}

impl<W> Conversation<W> {
    /// Creates a conversation without a connection.
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            ids: MessageIds::new(),
            open: false,
            agreement: Agreement::default(),
            assembly: Assembly::new(limits.frame_bytes_max),
            sent: None,
            last: 0,
            window: None,
            acknowledgement_at: None,
            pending: HashMap::default(),
            subscribed: Register::new(),
            subscriptions: 0,
            common: Vec::new(),
            type_named: Vec::new(),
            output: Vec::new(),
            headers: Vec::new(),
            tally: ConversationCounts::default(),
            refusal: None,
        }
    }

    /// Starts a connection with this agreement, and restores subscriptions first.
    pub(crate) fn opened(&mut self, agreement: &Agreement) {
        debug_assert!(self.pending.is_empty(), "requests end with their connection");
        self.agreement = agreement.clone();
        self.assembly = Assembly::new(self.limits.frame_bytes_max);
        let acknowledging = agreement.acknowledging();
        self.sent = acknowledging.map(|acknowledging| SendWindow::new(acknowledging.window));
        self.window = acknowledging.map(|acknowledging| ReceiveWindow::new(acknowledging.window));
        (self.last, self.acknowledgement_at) = (0, None);
        self.common = common_lines(agreement.serializer(), b"");
        self.type_named.clear();
        self.output.clear();
        self.refusal = None;
        self.open = true;
        self.restore();
    }

    /// Ends the connection. Returns all waiters.
    pub(crate) fn lost(&mut self) -> Vec<(W, Option<PullAnswer>)> {
        (self.open, self.acknowledgement_at) = (false, None);
        self.output.clear();
        (self.sent, self.window) = (None, None);
        let pending = std::mem::take(&mut self.pending);
        let mut waiters: Vec<_> = pending.into_values().map(|pending| (pending.waiter, None)).collect();
        waiters.extend(self.subscribed.lost());
        waiters
    }

    /// Requests every subscription that is not yet requested on this connection, or was refused.
    pub(crate) fn restore(&mut self) {
        for queue in self.subscribed.missing() {
            self.subscribe(&queue);
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// The agreement of the current or last connection.
    pub(crate) fn agreement(&self) -> &Agreement {
        &self.agreement
    }

    /// Number of requests without an answer.
    pub(crate) fn outstanding(&self) -> usize {
        self.pending.len()
    }

    /// Whether the window allows another message.
    pub(crate) fn has_room(&self) -> bool {
        self.sent.as_ref().is_none_or(SendWindow::has_room)
    }

    pub(crate) fn tally(&self) -> ConversationCounts {
        self.tally
    }

    pub(crate) fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Takes the output, in exchange for an empty buffer.
    pub(crate) fn take_output(&mut self, bytes: &mut Vec<u8>) {
        std::mem::swap(&mut self.output, bytes);
        // A taken acknowledgement can no longer be replaced.
        self.acknowledgement_at = None;
    }

    /// Publishes a message. With a waiter, waits for its acknowledgement.
    pub(crate) fn publish(
        &mut self,
        publication: &QueueMessage<'_>,
        waiter: Option<W>,
    ) -> Result<MessageId, ClientError> {
        if waiter.is_some() && self.sent.is_none() {
            return Err(lacks("receipts without ack or batch-ack, which the broker did not accept", CONFIRM));
        }
        if publication.id.is_some() {
            return Err(lacks("message ids", "omit it"));
        }
        if publication.high_priority {
            return Err(lacks("priorities", "use TMQP (tmqp://) instead"));
        }
        let content = Content::read(publication.headers);
        if content.left_out > 0 {
            let why = "a key consists of letters, digits, hyphens and underscores; all headers have at most 65535 bytes";
            return Err(ClientError::invalid("header", why));
        }
        properties::check(&content.properties)
            .map_err(|error| ClientError::invalid("header", error.to_string()))?;
        let size = publication.body.len() as u64;
        if size > self.limits.frame_bytes_max {
            return Err(ClientError::TooLarge { part: "message", size, limit: self.limits.frame_bytes_max });
        }
        self.name_type(content.type_name)?;
        let id = self.ids.next();
        let sequence = match &mut self.sent {
            Some(sent) => sent.push(waiter.is_some().then(|| id.clone())),
            None => {
                self.last = next_sequence(self.last);
                self.last
            }
        };
        encode_split(
            sequence,
            publication.queue.name().as_bytes(),
            &content.properties,
            publication.body,
            &mut self.output,
        );
        if let Some(waiter) = waiter {
            self.pending
                .insert(id.clone(), PendingRequest { about: Target::plain(publication.queue), waiter });
        }
        Ok(id)
    }

    /// Names the type of the next message, unless it is the last named one.
    fn name_type(&mut self, name: &[u8]) -> Result<(), ClientError> {
        let Some(id) = self.agreement.id_of_kind(ExtensionKind::Type) else {
            return if name.is_empty() {
                Ok(())
            } else {
                let what = "message types without dotnet, which the broker did not accept";
                Err(lacks(what, "offer the extension when connecting"))
            };
        };
        if name != self.type_named {
            check_type(name).map_err(|failure| ClientError::invalid("type", failure.why))?;
            encode(&Frame::Extension { id, payload: name }, &mut self.output);
            self.type_named = name.to_vec();
        }
        Ok(())
    }

    /// Sends a frame of a vendor's extension.
    pub(crate) fn say_extension(&mut self, name: &str, payload: &[u8]) -> Result<(), ClientError> {
        let id = self.vendor_id(name)?;
        let size = payload.len() as u64;
        if size > self.limits.frame_bytes_max {
            return Err(ClientError::TooLarge { part: "frame", size, limit: self.limits.frame_bytes_max });
        }
        encode(&Frame::Extension { id, payload }, &mut self.output);
        Ok(())
    }

    /// The number of an agreed vendor's extension.
    pub(crate) fn vendor_id(&self, name: &str) -> Result<u8, ClientError> {
        self.agreement.id_of(name).filter(|_| super::is_vendors(name)).ok_or_else(|| {
            let what = format!("extension {name:?} on this connection");
            lacks(&what, "offer it when connecting to a broker that handles it; its name must start with x-")
        })
    }

    /// Adds a user of a consumed queue. Each call needs a [`Conversation::give_up`].
    pub(crate) fn take_up(
        &mut self,
        consumption: &Consumption,
        waiter: W,
    ) -> Result<IntentState<W>, ClientError> {
        check_terms(&consumption.terms)?;
        if self.agreement.id_of_kind(ExtensionKind::Subscribes).is_none() {
            let what = "subscriptions without pub-sub, which the broker did not accept";
            return Err(lacks(what, "offer the extension when connecting"));
        }
        let queue = &consumption.queue;
        if self.subscribed.join(consumption)? {
            self.subscribe(queue);
        } else {
            self.change_prefetch(queue);
        }
        Ok(self.subscribed.wait(queue, self.ids.next(), waiter))
    }

    /// Removes a user, whose program has `started` messages that it has not settled. The last one ends the subscription.
    pub(crate) fn give_up(&mut self, consumption: &Consumption, started: usize) {
        match self.subscribed.leave(consumption) {
            Leaving::Continues => self.change_prefetch(&consumption.queue),
            Leaving::Ended(ended) => ended.iter().for_each(|ended| self.unsubscribe(ended, started)),
        }
    }

    /// Tells a broker that knows prefetch the one of a subscription.
    fn change_prefetch(&mut self, queue: &QueueAddress) {
        if self.open
            && self.agreement.id_of_kind(ExtensionKind::Answers).is_some()
            && let Some((id, prefetch)) = self.subscribed.prefetch(queue)
        {
            let (id, count) = (id.clone(), prefetch.to_string());
            self.command("prefetch", &[("id", &id), ("count", count.as_bytes())]);
        }
    }

    fn subscribe(&mut self, queue: &QueueAddress) {
        if self.agreement.id_of_kind(ExtensionKind::Subscribes).is_none() {
            tracing::warn!(queue = %queue.name(), "the broker no longer accepts pub-sub; the subscription is not restored");
            return;
        }
        let Some(consumption) = self.subscribed.consumption(queue) else { return };
        let filter = consumption.terms.filter.clone();
        self.subscriptions += 1;
        let id = MessageId::from(format!("s{}", self.subscriptions).as_bytes());
        // If the broker does not answer commands, the subscription counts as confirmed: a broker that refuses it ends
        // the conversation.
        let stands = self.agreement.id_of_kind(ExtensionKind::Answers).is_none();
        self.subscribed.asked(queue, id.clone(), stands);
        let name = queue.name();
        let mut arguments = vec![("destination", name.as_bytes()), ("id", &id[..])];
        arguments.extend(filter.as_deref().map(|filter| ("filter", filter.as_bytes())));
        let prefetch = self.subscribed.prefetch(queue).filter(|_| !stands);
        let prefetch = prefetch.map(|(_, prefetch)| prefetch.to_string());
        arguments.extend(prefetch.as_deref().map(|prefetch| ("prefetch", prefetch.as_bytes())));
        self.command("subscribe", &arguments);
    }

    fn command(&mut self, name: &str, arguments: &[(&str, &[u8])]) {
        let mut payload = Vec::new();
        command::encode(name, arguments, &mut payload);
        encode(&Frame::Command { payload: &payload }, &mut self.output);
    }

    /// Sends a heartbeat request if the broker answers commands.
    pub(crate) fn ping(&mut self) -> bool {
        let answers = self.agreement.id_of_kind(ExtensionKind::Answers).is_some();
        if answers {
            self.command("ping", &[("id", KEEP_ALIVE)]);
        }
        answers
    }

    /// Every caller that waits for an answer to its request, with the id of the request.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = (&MessageId, &W)> {
        self.pending.iter().map(|(id, pending)| (id, &pending.waiter))
    }

    /// Forgets a request.
    pub(crate) fn forget(&mut self, id: &[u8]) -> Option<PullAnswer> {
        if self.pending.remove(id).is_none() {
            self.subscribed.forget(id);
        }
        None
    }

    /// Whether the protocol has a nack.
    pub(crate) fn can_refuse(&self) -> bool {
        self.agreement.id_of_kind(ExtensionKind::Refuses).is_some()
    }

    /// Sends an ack or a nack. Without the nack extension, a refused message stays unsettled.
    pub(crate) fn settle(&mut self, message: &Received, refuse: bool) {
        let Some(window) = &mut self.window else { return };
        if !refuse {
            let receipt = message.receipt();
            match self.agreement.id_of_kind(ExtensionKind::Answers) {
                // A cumulative acknowledgement would have to wait for earlier messages.
                Some(id) if receipt != window.oldest() => {
                    if let Some(number) = window.settle_alone(receipt) {
                        encode(&Frame::Extension { id, payload: &number.to_be_bytes() }, &mut self.output);
                    }
                }
                _ => {
                    window.accept(receipt);
                }
            }
        } else if let Some(id) = self.agreement.id_of_kind(ExtensionKind::Refuses)
            && let Some(number) = window.settle_alone(message.receipt())
        {
            encode(&Frame::Extension { id, payload: &number.to_be_bytes() }, &mut self.output);
        }
        self.acknowledge();
    }

    /// Acknowledges the highest number up to which all messages are settled, if it has changed.
    fn acknowledge(&mut self) {
        let (Some(window), Some(acknowledging)) = (&mut self.window, self.agreement.acknowledging()) else {
            return;
        };
        let Some(number) = window.take_acknowledgement() else { return };
        let end = self.output.len();
        // A later acknowledgement covers an earlier one.
        if self.acknowledgement_at.is_some_and(|at| at + ACKNOWLEDGEMENT_BYTES == end) {
            self.output.truncate(end - ACKNOWLEDGEMENT_BYTES);
        }
        self.acknowledgement_at = Some(self.output.len());
        encode(&Frame::Extension { id: acknowledging.id, payload: &number.to_be_bytes() }, &mut self.output);
    }

    /// Handles the frame at the front of `input`, and returns its size in bytes. `None`: more bytes are needed.
    pub(crate) fn receive(
        &mut self,
        input: &[u8],
    ) -> Result<Option<(FrameEvent<W>, usize)>, ProtocolFailure> {
        let Some((frame, size)) = decode(input, self.agreement.len(), &self.limits)? else { return Ok(None) };
        let arrival = match frame {
            Frame::Message(message) => self.message(message)?,
            Frame::Extension { id, payload } => self.extension(id, payload)?,
            Frame::Command { .. } if self.assembly.is_open() => {
                return Err(ProtocolFailure::new(
                    ErrorToken::Malformed,
                    "a command between the parts of a message",
                ));
            }
            Frame::Command { payload } => self.answered(payload)?,
            Frame::Error { text } => FrameEvent::Refused(String::from_utf8_lossy(text).into()),
        };
        Ok(Some((arrival, size)))
    }

    /// Size of the frame at the front of `input` in bytes; 0 if unknown.
    pub(crate) fn needed(&self, input: &[u8]) -> usize {
        needed(input, self.agreement.len(), &self.limits).unwrap_or(0)
    }

    fn message(&mut self, frame: MessageFrame<'_>) -> Result<FrameEvent<W>, ProtocolFailure> {
        match self.assembly.push(frame)? {
            Assembled::Unfinished => Ok(FrameEvent::Nothing),
            Assembled::Whole(message) => self.delivered(&message),
            Assembled::Joined(Joined { sequence, destination, properties, payload }) => {
                self.delivered(&MessageFrame {
                    continued: false,
                    sequence,
                    destination: &destination,
                    properties: &properties,
                    payload: &payload,
                })
            }
        }
    }

    fn delivered(&mut self, message: &MessageFrame<'_>) -> Result<FrameEvent<W>, ProtocolFailure> {
        let receipt = match &mut self.window {
            None => None,
            Some(window) => match window.receive(message.sequence)? {
                ReceiveOutcome::New(receipt) => Some(receipt),
                ReceiveOutcome::Repeated => {
                    self.acknowledge();
                    return Ok(FrameEvent::Nothing);
                }
            },
        };
        self.headers.clear();
        write_headers(message.properties, &self.common, &mut self.headers)?;
        let destination = String::from_utf8_lossy(message.destination);
        let queue = QueueAddress::plain(&destination).map_err(|_| {
            ProtocolFailure::new(ErrorToken::Destination, "the broker sent an invalid destination")
        })?;
        let consumption = self.subscribed.consumption(&queue);
        let manual = receipt.is_some() && consumption.is_none_or(|one| one.terms.manual_ack);
        let received = Received::copy(&Parts {
            id: message.sequence.to_string().as_bytes(),
            target: queue.channel().as_bytes(),
            content_type: queue.id(),
            headers: &self.headers,
            payload: message.payload,
            pending_acknowledge: manual,
            ..Parts::new(Sort::QUEUE)
        });
        let received = received.with_receipt(receipt.unwrap_or_default());
        if receipt.is_some() && !manual {
            self.settle(&received, false);
        }
        Ok(FrameEvent::Delivery(received))
    }

    fn extension(&mut self, id: u8, payload: &[u8]) -> Result<FrameEvent<W>, ProtocolFailure> {
        let Some((extension, kind)) = self.agreement.get(id) else { return Ok(FrameEvent::Nothing) };
        let number = || match *payload {
            [high, low] => Ok(u16::from_be_bytes([high, low])),
            _ => Err(ProtocolFailure::new(ErrorToken::Malformed, "an acknowledgement must have two bytes")),
        };
        match kind {
            Some(ExtensionKind::Acknowledges) => self.acknowledged(number()?),
            Some(ExtensionKind::Refuses) => self.refused(number()?),
            Some(ExtensionKind::Type) => {
                check_type(payload)?;
                self.common = common_lines(self.agreement.serializer(), payload);
                Ok(FrameEvent::Nothing)
            }
            Some(ExtensionKind::Vendor) => {
                let name = extension.name.as_bytes();
                Ok(FrameEvent::Extension(Received::copy(&Parts {
                    target: name,
                    payload,
                    ..Parts::new(Sort::SERVER)
                })))
            }
            Some(ExtensionKind::Serializer | ExtensionKind::Subscribes | ExtensionKind::Answers) | None => {
                Err(ProtocolFailure::new(ErrorToken::Malformed, format!("{} has no frames", extension.name)))
            }
        }
    }

    fn acknowledged(&mut self, number: u16) -> Result<FrameEvent<W>, ProtocolFailure> {
        let Some(sent) = &mut self.sent else { return Ok(FrameEvent::Nothing) };
        let (pending, mut settled) = (&mut self.pending, Vec::new());
        sent.acknowledge(number, |id| {
            // Forgotten requests have no waiter.
            let Some(request) = id.and_then(|id| pending.remove(&id)) else { return };
            settled.push((request.waiter, Ok(RequestAnswer::Confirmed(AckedBy::Server))));
        })?;
        Ok(FrameEvent::SettledMany(settled))
    }

    fn refused(&mut self, number: u16) -> Result<FrameEvent<W>, ProtocolFailure> {
        let Some(sent) = &mut self.sent else { return Ok(FrameEvent::Nothing) };
        let Some(id) = sent.settle_one(number)? else { return Ok(FrameEvent::Nothing) };
        let Some(pending) = id.and_then(|id| self.pending.remove(&id)) else {
            self.tally.refused_unconfirmed += 1;
            return Ok(FrameEvent::Nothing);
        };
        let target = pending.about.to_text();
        let refused = match self.refusal.take() {
            Some((known, reason)) if known == number => rejection("publish to", target, &reason),
            _ => ClientError::Nacked { target, reason: REFUSED.into() },
        };
        Ok(FrameEvent::Settled(pending.waiter, Err(refused)))
    }
}

/// The next step if receipts are missing.
const CONFIRM: &str = "publish with confirm=False, or offer one of them when connecting";

fn lacks(what: &str, instead: &'static str) -> ClientError {
    ClientError::NotSupported { what: what.into(), protocol: Protocol::Micromessage.name(), instead }
}

fn check_terms(terms: &ConsumeTerms) -> Result<(), ClientError> {
    let known = ConsumeTerms {
        manual_ack: terms.manual_ack,
        filter: terms.filter.clone(),
        ..ConsumeTerms::default()
    };
    if *terms != known {
        return Err(lacks("events to bind a queue to", "use MQKS (mqks://) instead"));
    }
    let filter = terms.filter.as_deref().unwrap_or_default();
    Filter::parse(filter.as_bytes()).map_err(|error| ClientError::invalid("filter", error.to_string()))?;
    Ok(())
}

/// The error for a reason that a broker gave: `token: text`.
fn rejection(operation: &'static str, target: Arc<str>, reason: &str) -> ClientError {
    let (token, text) = reason.split_once(':').unwrap_or((reason, ""));
    if token == ErrorToken::Rejected.as_str() {
        return ClientError::Nacked { target, reason: text.trim_start().into() };
    }
    let queue_stopped = token == ErrorToken::Stopped.as_str();
    Refusal { code: code(token), operation, target, reason: reason.into(), queue_stopped }.into()
}

/// The status for the token of a failure.
fn code(token: &str) -> u16 {
    let meanings = [
        (ErrorToken::Auth, status::UNAUTHORIZED),
        (ErrorToken::Stopped, status::UNAUTHORIZED),
        (ErrorToken::Destination, status::NOT_FOUND),
        (ErrorToken::BadFilter, status::BAD_REQUEST),
        (ErrorToken::Malformed, status::BAD_REQUEST),
        (ErrorToken::Unexpected, status::UNACCEPTABLE),
        (ErrorToken::Unacceptable, status::UNACCEPTABLE),
        (ErrorToken::Limit, status::LIMIT_EXCEEDED),
        (ErrorToken::Busy, status::BUSY),
        (ErrorToken::Timeout, status::BUSY),
    ];
    meanings.iter().find(|(known, _)| known.as_str() == token).map_or(1, |(_, code)| *code)
}

mod answers;
mod leaving;
#[cfg(test)]
mod tests;
