//! Commands of clients as frames for other brokers.

use std::borrow::Cow;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::Command;
use mqcore_broker::model::id::ConnectionId;
use mqcore_broker::model::message::Message;
use mqcore_broker::model::time::Timestamp;
use mqcore_cluster::filter::{ForwardKind, FrameProducer};
use mqcore_cluster::log::UpstreamSet;
use mqcore_wire::tmqp::{self, Frame, Kind, header};

use super::frame::pattern_text;
use super::publish::copied_headers;
use super::topic::PREFIX as TOPIC_PREFIX;
use crate::message_id::MessageIds;
use crate::node::NodeTerms;

/// Frames to be forwarded, in order.
#[derive(Debug)]
pub struct Forwards {
    ids: MessageIds,
    bytes: Vec<u8>,
    /// The upstream brokers of each frame, and where in `bytes` it ends.
    frames: Vec<(UpstreamSet, usize)>,
}

impl Forwards {
    /// Without frames. One value belongs to one connection, because it numbers ids.
    #[must_use]
    pub fn new(connection: ConnectionId, now: Timestamp) -> Self {
        Self { ids: MessageIds::new(connection, Timestamp(!now.0)), bytes: Vec::new(), frames: Vec::new() }
    }

    /// Takes the recorded frames; `None` if there are none.
    pub fn take(&mut self) -> Option<ForwardBatch> {
        (!self.frames.is_empty()).then(|| ForwardBatch {
            bytes: std::mem::take(&mut self.bytes),
            frames: std::mem::take(&mut self.frames),
        })
    }

    /// Records a client's command as a frame, for the upstream brokers whose filters pass it. Skips commands for this
    /// broker alone (operations, pulls, events), frames without hops left, and frames that another broker forwarded.
    ///
    /// A message without an id gets one, because each node would generate another.
    ///
    /// Returns the upstream brokers that the frame was recorded for; none if it was skipped.
    pub fn note(&mut self, terms: &NodeTerms, client: &Client, command: &mut Command) -> UpstreamSet {
        match command {
            Command::Publish { queue, message } if message.producer().is_some() => {
                *message = self.identified(message);
                let headers = without_copies(message.headers());
                let target = queue.channel.as_str().as_bytes();
                let frame = Frame { target, content_type: queue.id, ..frame(Kind::QUEUE, message) };
                self.push(terms, client, &Frame { headers: &headers, ..frame })
            }
            Command::PublishTopic { topic, message, .. } if message.producer().is_some() => {
                let target = [TOPIC_PREFIX, topic.as_bytes()].concat();
                *message = self.identified(message);
                self.push(terms, client, &Frame { target: &target, ..frame(Kind::QUEUE, message) })
            }
            Command::Route { router, message } => {
                let target = router.as_str().as_bytes();
                self.push(terms, client, &Frame { target, ..frame(Kind::ROUTER, message) })
            }
            Command::Direct { to, message } => {
                let target = pattern_text(to);
                self.push(terms, client, &Frame { target: target.as_bytes(), ..frame(Kind::DIRECT, message) })
            }
            Command::AcknowledgeDirect { to, message } => {
                let frame =
                    Frame { high_priority: true, target: to.as_bytes(), ..frame(Kind::ACKNOWLEDGE, message) };
                self.push(terms, client, &frame)
            }
            Command::Respond { to, message } => {
                self.push(terms, client, &Frame { target: to.as_bytes(), ..frame(Kind::RESPONSE, message) })
            }
            Command::Acknowledge(word) => {
                let frame = Frame {
                    first_acquirer: word.first_acquirer,
                    hops: word.hops,
                    content_type: word.queue.id,
                    id: &word.message_id,
                    source: client.id.as_bytes(),
                    target: word.queue.channel.as_str().as_bytes(),
                    headers: &word.headers,
                    ..Frame::new(Kind::ACKNOWLEDGE)
                };
                self.push(terms, client, &frame)
            }
            _ => UpstreamSet::default(),
        }
    }

    fn identified(&mut self, message: &Message) -> Message {
        if message.id().is_empty() { message.with_id(&self.ids.next()) } else { message.clone() }
    }

    /// Names of other protocols may be too long for a frame; such a message is not forwarded.
    fn push(&mut self, terms: &NodeTerms, client: &Client, frame: &Frame<'_>) -> UpstreamSet {
        let (id, name) = (&*client.id, client.name.as_deref());
        let upstreams =
            upstreams(terms, frame, &FrameProducer { id, name, kind: client.kind.as_deref(), node: None });
        if frame.hops == 0 || upstreams.is_empty() || frame.check().is_err() {
            return UpstreamSet::default();
        }
        tmqp::encode(frame, &mut self.bytes);
        self.frames.push((upstreams, self.bytes.len()));
        upstreams
    }
}

/// Recorded frames, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardBatch {
    bytes: Vec<u8>,
    frames: Vec<(UpstreamSet, usize)>,
}

impl ForwardBatch {
    /// The frames that have an upstream broker: those brokers, and the bytes.
    pub fn iter(&self) -> impl Iterator<Item = (UpstreamSet, &[u8])> {
        let begins = std::iter::once(0).chain(self.frames.iter().map(|(_, end)| *end));
        let frames = begins.zip(&self.frames);
        frames
            .map(|(begin, (upstreams, end))| (*upstreams, &self.bytes[begin..*end]))
            .filter(|(upstreams, _)| !upstreams.is_empty())
    }

    /// Removes an upstream broker from frame number `frame`, counted from 0.
    pub fn withdraw(&mut self, frame: usize, upstream: usize) {
        if let Some((upstreams, _)) = self.frames.get_mut(frame) {
            upstreams.remove(upstream);
        }
    }

    /// Number of frames that have an upstream broker.
    #[must_use]
    pub fn len(&self) -> usize {
        self.frames.iter().filter(|(upstreams, _)| !upstreams.is_empty()).count()
    }

    /// Whether no frame has an upstream broker.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.frames.iter().all(|(upstreams, _)| upstreams.is_empty())
    }
}

/// A message as a frame of this kind without a target.
fn frame(kind: Kind, message: &Message) -> Frame<'_> {
    let properties = message.properties();
    Frame {
        first_acquirer: properties.first_acquirer,
        high_priority: properties.high_priority,
        pending_response: properties.pending_response,
        pending_acknowledge: properties.pending_acknowledge,
        hops: properties.hops,
        content_type: properties.content_type,
        id: message.id(),
        source: message.source(),
        headers: message.headers(),
        payload: message.body(),
        ..Frame::new(kind)
    }
}

/// Copies are recorded as frames of their own, so the message must not ask for them again.
fn without_copies(headers: &[u8]) -> Cow<'_, [u8]> {
    if header::header_value(headers, header::key::CC).is_none() {
        return Cow::Borrowed(headers);
    }
    Cow::Owned(copied_headers(headers))
}

/// The upstream brokers whose filters let a frame pass.
fn upstreams(terms: &NodeTerms, frame: &Frame<'_>, sender: &FrameProducer<'_>) -> UpstreamSet {
    let mut upstreams = UpstreamSet::default();
    if let Some(kind) = ForwardKind::of(frame.kind) {
        for (index, filter) in terms.sends.iter().enumerate() {
            if filter.passes(kind, frame, sender) {
                upstreams.insert(index);
            }
        }
    }
    upstreams
}
