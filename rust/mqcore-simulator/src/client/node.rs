//! A downstream broker: it numbers the messages that it forwards, and sends them again until they are confirmed.

use std::collections::VecDeque;

use mqcore_session::uplink::{
    LinkInput, NodeIntroduction, PONG, encode_position, read_acceptance, read_input,
};
use mqcore_wire::tmqp::{self, Frame, Kind};

use super::body::{self, message_id};
use super::{ClientRole, Received, SimulatedPeer};
use crate::network::Side;
use crate::oracle::labels::SeenPublish;
use crate::scenario::{PublishTerms, Target};
use crate::scene::Scene;

/// Connections in which a node begins a new epoch, as one does that keeps no messages and was restarted: 1 of so many.
const EPOCH_ODDS: u64 = 12;
/// The first epoch of each node.
const FIRST_EPOCH: u64 = 1_000_000;

/// The messages that a node has not seen confirmed.
#[derive(Debug)]
pub(super) struct NodeLog {
    epoch: u64,
    /// The number of the first one.
    first: u64,
    waiting: VecDeque<(u32, Vec<u8>)>,
    /// The queues to which it forwards.
    queues: Vec<(usize, String, u16)>,
}

impl NodeLog {
    pub(super) fn new(queues: Vec<(usize, String, u16)>) -> Self {
        Self { epoch: FIRST_EPOCH, first: 1, waiting: VecDeque::new(), queues }
    }

    /// The number of the first message, and all messages.
    fn repeat(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode_position(self.first, &mut bytes);
        self.waiting.iter().for_each(|(_, frame)| bytes.extend_from_slice(frame));
        bytes
    }

    /// Forgets messages up to a number, and returns their labels.
    fn confirm(&mut self, through: u64) -> Vec<u32> {
        let count = (through + 1).saturating_sub(self.first).min(self.waiting.len() as u64);
        self.first += count;
        self.waiting.drain(..count as usize).map(|(label, _)| label).collect()
    }

    /// Forgets all messages and begins to count again. Returns their labels. Epochs come from a clock, which may be set back.
    fn begin_epoch(&mut self, is_back: bool) -> Vec<u32> {
        self.epoch = if is_back { self.epoch - 1 } else { self.epoch + 100 };
        self.first = 1;
        self.waiting.drain(..).map(|(label, _)| label).collect()
    }
}

impl SimulatedPeer {
    pub(crate) fn is_node(&self) -> bool {
        matches!(self.terms.role, ClientRole::Node)
    }

    /// The first bytes of its connection.
    pub(super) fn introduce(&mut self, scene: &mut Scene) -> Vec<u8> {
        let (is_new, is_back) = (self.random.one_in(EPOCH_ODDS), self.random.one_in(3));
        let Some(log) = &mut self.log else { return Vec::new() };
        if is_new {
            scene.note(format_args!("node {} begins a new epoch", self.index));
            log.begin_epoch(is_back).into_iter().for_each(|label| scene.oracle.forgotten(label));
        }
        let id = format!("n{}", self.index);
        let introduction = NodeIntroduction { id: &id, name: &id, epoch: log.epoch, token: None };
        introduction.encode().expect("a plain introduction")
    }

    /// The frames that it sends once it is accepted.
    pub(super) fn repeat(&self) -> Vec<u8> {
        self.log.as_ref().map_or_else(Vec::new, NodeLog::repeat)
    }

    /// Forwards a message to one of its queues: now, if it is connected.
    pub(super) fn forward(&mut self, size: usize, scene: &mut Scene) {
        let Some(log) = &mut self.log else { return };
        let (queue, channel, id) = &log.queues[self.random.index(log.queues.len())];
        let terms = PublishTerms::default();
        let target = Target::Queue(*queue);
        let publish = SeenPublish { target, link: self.producer, terms, size, is_answered: true };
        let label = scene.oracle.published(publish, scene.now);
        scene.oracle.forwarded(label);
        let name = message_id(label, 0);
        scene.note(format_args!("node {} forwards {name}", self.index));
        let mut frame = Vec::new();
        tmqp::encode(
            &Frame {
                content_type: *id,
                id: name.as_bytes(),
                source: b"producer",
                target: channel.as_bytes(),
                payload: body::body(label, size).as_bytes(),
                ..Frame::new(Kind::QUEUE)
            },
            &mut frame,
        );
        log.waiting.push_back((label, frame.clone()));
        if let Some(link) = self.link.as_mut().filter(|link| link.is_ready) {
            link.sent += frame.len() as u64;
            scene.send(link.id, Side::Client, &frame);
        }
    }

    /// The broker has confirmed its messages up to a number.
    pub(super) fn confirm(&mut self, through: u64, scene: &mut Scene) {
        let Some(log) = &mut self.log else { return };
        for label in log.confirm(through) {
            scene.note(format_args!("message {label} of node {} is confirmed", self.index));
            scene.oracle.accepted(label, scene.now);
        }
    }
}

/// Reads the next thing that the broker sent to a node, and its size in bytes.
pub(super) fn next(input: &[u8], is_accepted: &mut bool) -> Option<(Received, usize)> {
    if *is_accepted {
        let (input, size) = read_input(input).expect("the broker sends valid frames")?;
        let received = match input {
            LinkInput::Confirm(through) => Received::Accepted(through),
            LinkInput::Ping => Received::Ping(PONG.to_vec()),
            _ => Received::Other,
        };
        return Some((received, size));
    }
    match read_acceptance(input) {
        Ok(answer) => {
            let (acceptance, size) = answer?;
            assert!(acceptance.numbered, "the broker confirms numbers");
            *is_accepted = true;
            Some((Received::Greeted(Vec::new()), size))
        }
        // It may not know yet that the node's previous connection has ended. It closes this one.
        Err(_) => Some((Received::Other, input.len())),
    }
}
