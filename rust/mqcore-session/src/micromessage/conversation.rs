//! One conversation: input from the peer, events from the broker.

mod commands;
mod handshake;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::Command;
use mqcore_broker::model::effect::{Deliver, Event};
use mqcore_broker::model::id::{RequestId, Tag, TopicName};
use mqcore_broker::model::message::Message;
use mqcore_broker::model::options::{QueueChanges, Status};
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::time::Timestamp;
use mqcore_wire::micromessage::content::Content;
use mqcore_wire::micromessage::extension::{Agreement, ExtensionKind};
use mqcore_wire::micromessage::failure::{ErrorToken, ProtocolFailure};
use mqcore_wire::micromessage::negotiation::{Capabilities, Lists};
use mqcore_wire::micromessage::{Assembled, Assembly, Frame, MessageFrame, decode, encode, needed};
use slab::Slab;

use self::commands::{write_fail, write_ok, write_prefetch_fail};
use super::budget::FilterBudget;
use super::incoming::{Arrived, Incoming};
use super::listener::MicroMessageTerms;
use super::outgoing::{OutgoingMessages, PendingSettlement, QueuedOutput};
use super::subscriptions;
use super::subscriptions::{Key, Subscriptions};
use crate::extension::{ExtensionFailure, VendorFrame};
use crate::request_error::RequestError;
use crate::session::{Session, SessionConfig, SessionError};

/// Maximum subscriptions of one connection; further ones are rejected.
pub const SUBSCRIPTIONS_MAX: usize = subscriptions::SUBSCRIPTIONS_MAX;
/// Maximum unanswered commands of one connection; at this many the session stops reading.
pub const OPEN_COMMANDS_MAX: usize = 1024;
/// Maximum unanswered vendor frames; at this many the session stops reading.
pub const OPEN_FRAMES_MAX: usize = 256;
/// Maximum bytes of a list in the handshake.
pub const LIST_BYTES_MAX: u32 = 16 * 1024;

/// The identity in the server's message of the handshake.
const IDENTITY: &str = concat!("mqcore/", env!("CARGO_PKG_VERSION"));

/// The stage of the conversation.
#[derive(Debug)]
enum Stage {
    /// The client has not sent its offer yet.
    Offering,
    /// The client has sent its offer and received the server's reply.
    Concluding { offer: Box<Lists>, reply: Box<Lists> },
    /// The handshake is over. The broker decides whether to accept the peer; the session reads nothing until it
    /// answers.
    Introduced,
    /// The peer is a client.
    Open,
    /// The session reads and writes nothing any more.
    Over,
}

/// A request that waits for the broker.
#[derive(Debug)]
struct PendingRequest {
    about: RequestSubject,
    /// The id under which the peer wants the answer.
    id: Option<Box<str>>,
}

#[derive(Debug, Clone, Copy)]
enum RequestSubject {
    Subscribing(Tag),
    /// A new prefetch of a subscription.
    Prefetch,
    Unsubscribing(Tag),
}

/// One MicroMessage2 conversation, from the accepting side.
#[derive(Debug)]
pub struct MicroMessageSession {
    config: SessionConfig,
    terms: Arc<MicroMessageTerms>,
    /// Vendor extensions that the program handles.
    vendors: Arc<[Box<str>]>,
    stage: Stage,
    client: Option<Arc<Client>>,
    opened_at: Timestamp,
    heard_at: Timestamp,
    agreement: Agreement,
    assembly: Assembly,
    incoming: Incoming,
    outgoing: OutgoingMessages,
    subscriptions: Subscriptions,
    asked: Slab<PendingRequest>,
    vendor_frames: Vec<VendorFrame>,
    /// Number of vendor frames that are not answered yet.
    vendor_frames_open: usize,
    /// The peer has closed its side.
    last: bool,
    filter_budget: FilterBudget,
}

impl MicroMessageSession {
    /// The session of a connection that was opened just now. `vendors` are the further extensions that the peer may
    /// use; [`Session::take_vendor_frames`] returns their frames.
    #[must_use]
    pub fn new(
        config: SessionConfig,
        terms: Arc<MicroMessageTerms>,
        vendors: Arc<[Box<str>]>,
        now: Timestamp,
    ) -> Self {
        let nothing = Agreement::default();
        let longest = terms.message_bytes_max.min(config.limits.frame_bytes_max);
        Self {
            stage: Stage::Offering,
            client: None,
            opened_at: now,
            heard_at: now,
            assembly: Assembly::new(longest),
            incoming: Incoming::new(config.connection, now, &nothing),
            outgoing: OutgoingMessages::new(&nothing),
            agreement: nothing,
            subscriptions: Subscriptions::default(),
            asked: Slab::new(),
            vendor_frames: Vec::new(),
            vendor_frames_open: 0,
            last: false,
            filter_budget: FilterBudget::new(config.connection),
            config,
            terms,
            vendors,
        }
    }

    /// Counts messages that exceed the budget of filters together with those of other sessions.
    pub(super) fn share_budget(&mut self, filters_over_budget: &Arc<AtomicU64>) {
        self.filter_budget.share(filters_over_budget);
    }

    /// The extensions in force; none before unexpected command after the handshake.
    #[must_use]
    pub fn agreement(&self) -> &Agreement {
        &self.agreement
    }

    fn abilities(&self) -> Capabilities<'_> {
        Capabilities { vendors: &self.vendors, window_max: self.terms.window_max }
    }

    fn may_read(&self) -> bool {
        let waits = self.asked.len() >= OPEN_COMMANDS_MAX
            || self.vendor_frames.len() + self.vendor_frames_open >= OPEN_FRAMES_MAX;
        matches!(self.stage, Stage::Open) && !waits
    }

    fn is_shaking_hands(&self) -> bool {
        matches!(self.stage, Stage::Offering | Stage::Concluding { .. })
    }

    /// Sends the reason as an ERROR and ends the conversation.
    fn fail(&mut self, failure: &ProtocolFailure, output: &mut Vec<u8>) -> SessionError {
        failure.encode(output);
        let is_large_login = self.is_shaking_hands() && failure.token == ErrorToken::TooLarge;
        self.stage = Stage::Over;
        let reason = failure.to_string().into();
        if is_large_login { SessionError::LoginTooLarge(reason) } else { SessionError::Misbehaved(reason) }
    }

    /// Like `fail`, for a reason that is not the peer's fault.
    fn refuse(&mut self, failure: &ProtocolFailure, output: &mut Vec<u8>) -> SessionError {
        failure.encode(output);
        self.stage = Stage::Over;
        SessionError::Refused(failure.to_string().into())
    }

    // ---- Frames ------------------------------------------------------------------------------------------

    /// Takes a frame, if it is complete.
    fn frame(
        &mut self,
        input: &[u8],
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<usize, ProtocolFailure> {
        let Some((frame, size)) = decode(input, self.agreement.len(), &self.config.limits)? else {
            return Ok(0);
        };
        match frame {
            Frame::Message(message) => self.message(message, commands)?,
            Frame::Extension { id, payload } => self.extension(id, payload, commands, output)?,
            Frame::Command { .. } if self.assembly.is_open() => {
                return Err(ProtocolFailure::new(
                    ErrorToken::Malformed,
                    "a command stands between the parts of a message",
                ));
            }
            Frame::Command { payload } => self.command(payload, commands, output)?,
            // An ERROR is the last frame of its peer.
            Frame::Error { .. } => self.stage = Stage::Over,
        }
        Ok(size)
    }

    fn message(
        &mut self,
        frame: MessageFrame<'_>,
        commands: &mut Vec<Command>,
    ) -> Result<(), ProtocolFailure> {
        match self.assembly.push(frame)? {
            Assembled::Unfinished => Ok(()),
            Assembled::Whole(whole) => {
                let MessageFrame { sequence, destination, properties, payload, .. } = whole;
                self.publish(Arrived { sequence, destination, properties, payload }, commands)
            }
            Assembled::Joined(joined) => {
                let arrived = Arrived {
                    sequence: joined.sequence,
                    destination: &joined.destination,
                    properties: &joined.properties,
                    payload: &joined.payload,
                };
                self.publish(arrived, commands)
            }
        }
    }

    fn publish(&mut self, arrived: Arrived<'_>, commands: &mut Vec<Command>) -> Result<(), ProtocolFailure> {
        let Some(client) = &self.client else { return Ok(()) };
        let instead = self.terms.default_destination.as_deref().unwrap_or_default().as_bytes();
        let destination = if arrived.destination.is_empty() { instead } else { arrived.destination };
        commands.extend(self.incoming.publish(Arrived { destination, ..arrived }, client)?);
        Ok(())
    }

    fn extension(
        &mut self,
        id: u8,
        payload: &[u8],
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<(), ProtocolFailure> {
        let Some((extension, kind)) = self.agreement.get(id) else { return Ok(()) };
        let number = || match *payload {
            [high, low] => Ok(u16::from_be_bytes([high, low])),
            _ => Err(ProtocolFailure::new(
                ErrorToken::Malformed,
                "an acknowledgement is a number of two bytes",
            )),
        };
        match kind {
            Some(ExtensionKind::Acknowledges) => self.outgoing.acknowledged(number()?, commands, output),
            Some(ExtensionKind::Refuses) => {
                self.outgoing.settled_one(number()?, Some("refused"), commands, output)
            }
            Some(ExtensionKind::Answers) => self.outgoing.settled_one(number()?, None, commands, output),
            Some(ExtensionKind::Type) => self.incoming.set_type(payload),
            Some(ExtensionKind::Vendor) => {
                let name = extension.name.as_ref().into();
                self.vendor_frames.push(VendorFrame { id, name, payload: payload.into() });
                Ok(())
            }
            Some(ExtensionKind::Serializer | ExtensionKind::Subscribes) | None => {
                let why = format!("{} has no frames", extension.name);
                Err(ProtocolFailure::new(ErrorToken::Malformed, why))
            }
        }
    }

    // ---- Events of the broker ----------------------------------------------------------------------------

    fn answered(
        &mut self,
        number: RequestId,
        result: Result<(), Rejection>,
        output: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        if let Some(receipt) = self.incoming.receipt_of_answer(number) {
            return match result {
                Ok(()) => {
                    self.incoming.accepted(receipt);
                    Ok(())
                }
                Err(rejection) => self.refused(Some(receipt), &failure(&rejection), output),
            };
        }
        let Some(PendingRequest { about, id }) = self.asked.try_remove(number.0 as usize) else {
            return Ok(());
        };
        let result = match about {
            RequestSubject::Subscribing(tag) => {
                if result.is_err() {
                    self.subscriptions.end(tag);
                }
                result
            }
            // If it is rejected, the subscription continues as it was.
            RequestSubject::Prefetch => result,
            // Ending a subscription that is already ending succeeds.
            RequestSubject::Unsubscribing(tag) => {
                self.subscriptions.end(tag);
                result.or_else(gone)
            }
        };
        match (result, id.filter(|_| self.answers_commands())) {
            (Ok(()), Some(id)) => write_ok(&id, output),
            (Ok(()), None) => {}
            (Err(rejection), Some(id)) if matches!(about, RequestSubject::Prefetch) => {
                write_prefetch_fail(&id, &failure(&rejection), output);
            }
            (Err(rejection), Some(id)) => write_fail(&id, &failure(&rejection), output),
            (Err(rejection), None) => return Err(self.refuse(&failure(&rejection), output)),
        }
        Ok(())
    }

    /// Handles a message of the peer that the broker, a consumer or a delivery handler rejected.
    fn refused(
        &mut self,
        receipt: Option<u32>,
        failure: &ProtocolFailure,
        output: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        let reason = self.answers_commands().then_some(failure);
        let is_told = self.incoming.refused(receipt, reason, output);
        if is_told { Ok(()) } else { Err(self.refuse(failure, output)) }
    }

    fn delivered(&mut self, deliver: Deliver, output: &mut Vec<u8>) {
        let Deliver { queue, message, tag, acknowledge, .. } = deliver;
        let Some(subscription) = self.subscriptions.get(tag) else { return };
        // The unsettled deliveries of a subscription that ends are requeued.
        if acknowledge && self.subscriptions.is_ending(tag) {
            return;
        }
        let destination = Arc::clone(&subscription.destination);
        let owed = acknowledge.then_some(PendingSettlement { queue, tag });
        self.outgoing.send(QueuedOutput { message, destination, owed }, output);
    }

    fn published(&mut self, topic: &TopicName, message: Message, output: &mut Vec<u8>) {
        let content = Content::read(message.headers());
        match self.subscriptions.wanted(topic, &content.properties, self.terms.typing) {
            Ok(None) => {}
            Ok(Some(destination)) => {
                let destination = Arc::clone(destination);
                self.outgoing.send(QueuedOutput { message, destination, owed: None }, output);
            }
            Err(over) => self.filter_budget.exceeded(topic, over, self.heard_at),
        }
    }

    fn subscription_ended(&mut self, tag: Tag, output: &mut Vec<u8>) {
        self.outgoing.forget(tag);
        let Some((subscription, _)) = self.subscriptions.end(tag) else { return };
        if let Key::Id(id) = &subscription.key
            && self.answers_commands()
        {
            write_fail(id, &ProtocolFailure::new(ErrorToken::Destination, "the queue was removed"), output);
        }
    }

    /// The peer has closed its side: the conversation ends as soon as everything is answered.
    fn finish(&mut self) {
        let open = !self.asked.is_empty() || self.incoming.owes() || self.vendor_frames_open > 0;
        if self.last && matches!(self.stage, Stage::Open) && !open && self.vendor_frames.is_empty() {
            self.stage = Stage::Over;
        }
    }
}

/// Ending a subscription that does not exist is not a failure.
fn gone(rejection: Rejection) -> Result<(), Rejection> {
    if rejection.kind == RejectionKind::NotFound { Ok(()) } else { Err(rejection) }
}

/// Options of queues that are created for subscribers: each message goes to one receiver, in turn, and is requeued
/// without a limit.
fn made_by_receivers() -> QueueChanges {
    QueueChanges {
        status: Some(Status::RoundRobin),
        request_acknowledge: Some(false),
        put_back_limit: Some(u16::MAX),
        ..QueueChanges::default()
    }
}

fn failure(rejection: &Rejection) -> ProtocolFailure {
    ProtocolFailure::new(token(rejection.kind), &*rejection.reason)
}

fn token(kind: RejectionKind) -> ErrorToken {
    match kind {
        RejectionKind::Unauthorized => ErrorToken::Auth,
        RejectionKind::LimitExceeded => ErrorToken::Limit,
        RejectionKind::Busy => ErrorToken::Busy,
        RejectionKind::NotFound => ErrorToken::Destination,
        RejectionKind::QueueStopped => ErrorToken::Stopped,
        RejectionKind::Unacceptable | RejectionKind::AlreadyExists => ErrorToken::Unacceptable,
        RejectionKind::BadRequest => ErrorToken::Malformed,
        _ => ErrorToken::Internal,
    }
}

impl Session for MicroMessageSession {
    fn receive(
        &mut self,
        input: &[u8],
        now: Timestamp,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<usize, SessionError> {
        self.heard_at = now;
        let mut consumed = 0;
        while consumed < input.len() {
            let rest = &input[consumed..];
            let taken = if self.is_shaking_hands() {
                self.shake_hands(rest, now, commands, output)
            } else if self.may_read() {
                self.frame(rest, commands, output)
            } else {
                break;
            };
            match taken {
                Ok(0) => break,
                Ok(size) => consumed += size,
                Err(failure) => return Err(self.fail(&failure, output)),
            }
        }
        // A message that was sent again is acknowledged again.
        self.incoming.acknowledge(output);
        Ok(consumed)
    }

    fn receive_last(
        &mut self,
        input: &[u8],
        now: Timestamp,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<usize, SessionError> {
        let consumed = self.receive(input, now, commands, output)?;
        // An incomplete frame does not count.
        let waits = consumed < input.len() && !self.may_read() && !self.is_shaking_hands();
        self.last = !waits;
        self.finish();
        Ok(consumed)
    }

    fn outlives_input(&self) -> bool {
        match self.stage {
            Stage::Introduced => true,
            Stage::Open => {
                !self.may_read()
                    || !self.asked.is_empty()
                    || self.incoming.owes()
                    || self.vendor_frames_open > 0
            }
            _ => false,
        }
    }

    fn needed(&self, input: &[u8]) -> usize {
        if self.is_shaking_hands() {
            return 0;
        }
        if !self.may_read() {
            return input.len();
        }
        // `receive` reports an invalid frame.
        let size = needed(input, self.agreement.len(), &self.config.limits).unwrap_or(0);
        if size > input.len() { size } else { 0 }
    }

    fn event(&mut self, event: Event, now: Timestamp, output: &mut Vec<u8>) -> Result<(), SessionError> {
        match event {
            Event::Delivered(deliver) => self.delivered(deliver, output),
            Event::Published { topic, message } => self.published(&topic, message, output),
            Event::Acknowledged { message, negative, .. } => {
                if let Some(receipt) = self.incoming.receipt_of(&message) {
                    match negative {
                        None => self.incoming.accepted(receipt),
                        Some(reason) => {
                            let failure = ProtocolFailure::new(ErrorToken::Rejected, reason);
                            self.refused(Some(receipt), &failure, output)?;
                        }
                    }
                }
            }
            Event::PublishRefused { message, rejection, .. } | Event::TopicRefused { message, rejection } => {
                let receipt = self.incoming.receipt_of(&message);
                self.refused(receipt, &failure(&rejection), output)?;
            }
            Event::Answered(number, result) => self.answered(number, result.map(drop), output)?,
            Event::SubscriptionEnded { tag, .. } => self.subscription_ended(tag, output),
            Event::Welcomed(client) if matches!(self.stage, Stage::Introduced) => {
                self.client = Some(client);
                self.heard_at = now;
                self.stage = Stage::Open;
            }
            Event::Refused(rejection) if matches!(self.stage, Stage::Introduced) => {
                let failure = ProtocolFailure::new(token(rejection.kind), &*rejection.reason);
                failure.encode(output);
                self.stage = Stage::Over;
            }
            // Requests of other protocols' clients.
            _ => {}
        }
        Ok(())
    }

    fn events_done(&mut self, output: &mut Vec<u8>) {
        self.incoming.acknowledge(output);
        self.finish();
    }

    fn take_request_errors(&mut self) -> Vec<RequestError> {
        self.filter_budget.take_reports()
    }

    fn take_vendor_frames(&mut self) -> Vec<VendorFrame> {
        self.vendor_frames_open += self.vendor_frames.len();
        std::mem::take(&mut self.vendor_frames)
    }

    fn extension_answered(
        &mut self,
        id: u8,
        answer: Result<Vec<Vec<u8>>, ExtensionFailure>,
        output: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        self.vendor_frames_open = self.vendor_frames_open.saturating_sub(1);
        match answer {
            Ok(payloads) => {
                for payload in &payloads {
                    encode(&Frame::Extension { id, payload }, output);
                }
                self.finish();
                Ok(())
            }
            Err(ExtensionFailure::Rejected(why)) => {
                Err(self.fail(&ProtocolFailure::new(ErrorToken::Extension, why), output))
            }
            Err(ExtensionFailure::Failed(why)) => {
                Err(self.fail(&ProtocolFailure::new(ErrorToken::Internal, why), output))
            }
        }
    }

    fn waiting_bytes(&self) -> usize {
        self.outgoing.waiting_bytes()
    }

    fn unfinished_bytes(&self) -> usize {
        self.assembly.unfinished_bytes()
    }

    fn next_timeout(&self) -> Timestamp {
        match self.stage {
            Stage::Offering | Stage::Concluding { .. } => self.opened_at.after(self.config.handshake_timeout),
            Stage::Open if !self.terms.idle_timeout.is_zero() => self.heard_at.after(self.terms.idle_timeout),
            _ => Timestamp::NEVER,
        }
    }

    fn timeout(&mut self, now: Timestamp, output: &mut Vec<u8>) -> Result<(), SessionError> {
        if now < self.next_timeout() {
            return Ok(());
        }
        if self.is_shaking_hands() {
            let took = self.config.handshake_timeout;
            self.fail(
                &ProtocolFailure::new(ErrorToken::Timeout, format!("the handshake takes {took:?} at most")),
                output,
            );
            return Err(SessionError::HandshakeTimeout(took));
        }
        let idle = self.terms.idle_timeout;
        Err(self
            .fail(&ProtocolFailure::new(ErrorToken::Timeout, format!("nothing came for {idle:?}")), output))
    }

    fn shutdown(&mut self, output: &mut Vec<u8>) {
        if !matches!(self.stage, Stage::Over) {
            ProtocolFailure::new(ErrorToken::Shutdown, "the broker stops").encode(output);
            self.stage = Stage::Over;
        }
    }

    fn client(&self) -> Option<&Arc<Client>> {
        self.client.as_ref()
    }

    fn is_closing(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }
}
