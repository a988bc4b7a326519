//! A peer that is another broker: the frames that it forwards, as commands, and their confirmations.

use std::sync::Arc;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::{
    Acknowledgement, ClientPattern, Command, MessageId, Nack, PassedOn, Retry,
};
use mqcore_broker::model::id::{QueueAddress, RouterName, Tag};
use mqcore_broker::model::intake::Ticket;
use mqcore_broker::model::message::{Layout, Message};
use mqcore_cluster::filter::{ForwardKind, FrameProducer};
use mqcore_cluster::message::LinkMessage;
use mqcore_cluster::receipts::Receipts;
use mqcore_wire::tmqp::header::{self, key};
use mqcore_wire::tmqp::{Frame, Kind};

use super::frame::{addressee, properties};
use super::publish::{COPIES_MAX, ChannelNames, CopyRequest, copied_headers, queue_id};
use super::topic::{self, TopicNames};
use crate::message_id::MessageIds;
use crate::node::NodeTerms;
use crate::session::SessionError;

/// Bits of a ticket's number that identify the parts of one frame: the message and its copies.
const PART_BITS: u32 = 7;

/// The numbering that a node announced in its Hello.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Greeting {
    /// The epoch of its numbers; `None`: it sends no numbers, and duplicates are not detected.
    pub(super) epoch: Option<u64>,
}

/// The conversation with a node.
#[derive(Debug)]
pub(super) struct NodeConversation {
    node: Arc<str>,
    name: Box<str>,
    epoch: Option<u64>,
    /// The number of the next frame.
    next: u64,
    receipts: Receipts,
}

/// The session's caches for reading frames.
pub(super) struct Names<'a> {
    pub(super) channels: &'a mut ChannelNames,
    pub(super) topics: &'a mut TopicNames,
    pub(super) ids: &'a mut MessageIds,
}

/// One frame that becomes commands.
struct Arrived<'a> {
    frame: Frame<'a>,
    bytes: &'a [u8],
    number: u64,
    parts: u32,
}

impl NodeConversation {
    pub(super) fn new(client: &Client, greeting: &Greeting) -> Self {
        Self {
            node: client.id.as_ref().into(),
            name: client.name.clone().unwrap_or_default(),
            epoch: greeting.epoch,
            next: 1,
            receipts: Receipts::new(),
        }
    }

    /// Takes a frame that the node forwards, or a number of its own.
    pub(super) fn frame(
        &mut self,
        terms: &NodeTerms,
        frame: Frame<'_>,
        bytes: &[u8],
        names: &mut Names<'_>,
        commands: &mut Vec<Command>,
    ) -> Result<(), SessionError> {
        let Some(kind) = ForwardKind::of(frame.kind) else {
            if let Some(LinkMessage::Position(number)) = LinkMessage::read(&frame) {
                self.next = number;
            }
            return Ok(());
        };
        let mut arrived = Arrived { frame, bytes, number: self.next, parts: 0 };
        self.next = self.next.saturating_add(1);
        let source = str::from_utf8(frame.source).unwrap_or_default();
        let sender = FrameProducer { id: source, node: Some(&self.name), ..FrameProducer::default() };
        if frame.hops > 0 && terms.accept.passes(kind, &frame, &sender) {
            arrived.frame.hops -= 1;
            self.take(kind, &mut arrived, names, commands);
        }
        let registered = match self.epoch {
            Some(_) => self.receipts.arrived(arrived.number, arrived.parts),
            None => Ok(()),
        };
        registered.map_err(|error| SessionError::misbehaved(error.to_string()))
    }

    fn take(
        &self,
        kind: ForwardKind,
        arrived: &mut Arrived<'_>,
        names: &mut Names<'_>,
        commands: &mut Vec<Command>,
    ) {
        let frame = arrived.frame;
        match kind {
            ForwardKind::Queue if frame.target.starts_with(topic::PREFIX) => {
                if let Ok(topic) = names.topics.name(&frame.target[topic::PREFIX.len()..]) {
                    let message = self.message(arrived);
                    let publish = Command::PublishTopic { topic, message, to_producer: true, answer: None };
                    self.push(arrived, publish, commands);
                }
            }
            ForwardKind::Queue => self.publish(arrived, names, commands),
            ForwardKind::Router => {
                let name = str::from_utf8(frame.target).ok();
                if let Some(router) = name.and_then(|name| RouterName::new(name).ok()) {
                    let message = self.message(arrived);
                    self.push(arrived, Command::Route { router, message }, commands);
                }
            }
            ForwardKind::Direct => {
                if let Some(to) = str::from_utf8(frame.target).ok().filter(|to| !to.is_empty()) {
                    let message = self.message(arrived);
                    self.push(arrived, Command::Direct { to: ClientPattern::parse(to), message }, commands);
                }
            }
            ForwardKind::Acknowledge if frame.high_priority => {
                if let Some(to) = addressee(&frame) {
                    let message = self.message(arrived);
                    self.push(arrived, Command::AcknowledgeDirect { to: to.into(), message }, commands);
                }
            }
            ForwardKind::Acknowledge => {
                if let Ok(channel) = names.channels.name(frame.target) {
                    let reason = header::header_value(frame.headers, key::NACK_REASON);
                    let word = Acknowledgement {
                        queue: QueueAddress { channel, id: frame.content_type },
                        message_id: MessageId::from_slice(frame.id),
                        refusal: reason
                            .map(|reason| Nack::new(&String::from_utf8_lossy(reason), Retry::AsDecided)),
                        headers: frame.headers.into(),
                        hops: frame.hops,
                        first_acquirer: frame.first_acquirer,
                        tag: Tag::CHANNEL,
                    };
                    self.push(arrived, Command::Acknowledge(word), commands);
                }
            }
            ForwardKind::Response => {
                if let Some(to) = addressee(&frame) {
                    let message = self.message(arrived);
                    self.push(arrived, Command::Respond { to: to.into(), message }, commands);
                }
            }
        }
    }

    /// Publishes the message and its copies. Rejections are not reported here; the node notifies its client.
    fn publish(&self, arrived: &mut Arrived<'_>, names: &mut Names<'_>, commands: &mut Vec<Command>) {
        let Names { channels, ids, .. } = names;
        let frame = arrived.frame;
        if let Ok(channel) = channels.name(frame.target) {
            let queue = QueueAddress { channel, id: frame.content_type };
            let message = self.message(arrived);
            self.push(arrived, Command::Publish { queue, message }, commands);
        }
        let wanted =
            header::pairs(frame.headers).filter(|(name, _)| name.eq_ignore_ascii_case(key::CC.as_bytes()));
        for (_, value) in wanted.take(COPIES_MAX) {
            let wanted = CopyRequest::read(value);
            let id = if wanted.queue.is_empty() { Ok(frame.content_type) } else { queue_id(wanted.queue) };
            let (Ok(channel), Ok(id)) = (channels.name(wanted.channel), id) else { continue };
            let fresh = ids.next();
            let message_id = if wanted.message_id.is_empty() { &fresh[..] } else { wanted.message_id };
            if message_id.len() > mqcore_wire::tmqp::NAME_BYTES_MAX {
                continue;
            }
            let headers = copied_headers(frame.headers);
            let message = self.copy(arrived, message_id, &headers, id);
            self.push(arrived, Command::Publish { queue: QueueAddress { channel, id }, message }, commands);
        }
    }

    fn ticket(&self, arrived: &Arrived<'_>) -> Option<Ticket> {
        let number = (arrived.number << PART_BITS) | u64::from(arrived.parts);
        self.epoch.map(|epoch| Ticket { node: Arc::clone(&self.node), epoch, number })
    }

    fn push(&self, arrived: &mut Arrived<'_>, command: Command, commands: &mut Vec<Command>) {
        commands.push(match self.ticket(arrived) {
            Some(ticket) => Command::PassedOn(Box::new(PassedOn { ticket, command })),
            None => command,
        });
        arrived.parts += 1;
    }

    /// The message of a frame, which keeps its source.
    fn message(&self, arrived: &Arrived<'_>) -> Message {
        let (frame, bytes) = (&arrived.frame, arrived.bytes);
        let header_length_bytes = if frame.headers.is_empty() { 0 } else { 2 };
        let names = frame.id.len() + frame.source.len() + frame.target.len();
        let size = names + header_length_bytes + frame.headers.len() + frame.payload.len();
        let block = &bytes[bytes.len() - size..];
        let headers_at = names + header_length_bytes;
        let body_at = headers_at + frame.headers.len();
        let source_at = frame.id.len();
        let layout = Layout {
            id: 0..source_at,
            source: source_at..source_at + frame.source.len(),
            headers: headers_at..body_at,
            body: body_at..block.len(),
        };
        self.build(block, &layout, frame, self.ticket(arrived))
    }

    fn copy(&self, arrived: &Arrived<'_>, id: &[u8], headers: &[u8], queue: u16) -> Message {
        let frame = Frame {
            hops: mqcore_wire::tmqp::HOPS_FRESH,
            content_type: queue,
            pending_response: false,
            pending_acknowledge: false,
            ..arrived.frame
        };
        let block = [id, frame.source, headers, frame.payload].concat();
        let headers_at = id.len() + frame.source.len();
        let body_at = headers_at + headers.len();
        let layout = Layout {
            id: 0..id.len(),
            source: id.len()..headers_at,
            headers: headers_at..body_at,
            body: body_at..block.len(),
        };
        self.build(&block, &layout, &frame, self.ticket(arrived))
    }

    fn build(&self, block: &[u8], layout: &Layout, frame: &Frame<'_>, ticket: Option<Ticket>) -> Message {
        match ticket {
            Some(ticket) => Message::passed_on(block, layout, properties(frame), ticket),
            None => Message::new(block, layout, properties(frame), None),
        }
    }

    /// Parts of frames are done.
    pub(super) fn confirmed(&mut self, tickets: &[u64]) {
        for ticket in tickets {
            self.receipts.done(ticket >> PART_BITS);
        }
    }

    /// Confirms to the node how far everything is done, if that has changed.
    pub(super) fn tell(&mut self, output: &mut Vec<u8>) {
        if let Some(through) = self.receipts.confirm() {
            LinkMessage::Confirm(through).encode(output);
        }
    }
}

/// Whether a node forwards frames of this kind; the others are its own.
pub(super) const fn is_passed_on(kind: Kind) -> bool {
    ForwardKind::of(kind).is_some() || kind.0 == Kind::OTHER.0
}
