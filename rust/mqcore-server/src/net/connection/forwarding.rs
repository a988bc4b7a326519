//! Commands of clients that upstream brokers get as well, and the filters of the program that decide about them.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::Command;
use mqcore_broker::model::id::ConnectionId;
use mqcore_broker::model::time::Timestamp;
use mqcore_session::forwards::{Forwards, Noted};
use tokio::sync::oneshot;

use crate::hub::Hub;
use crate::nodes::judge::{Judged, Judging, Shown, judge_accepted};
use crate::nodes::membership::Nodes;

/// Forwarding for one connection.
pub(super) struct Forwarding {
    /// Encodes what is forwarded; `None`: this broker has no upstream brokers.
    forwards: Option<Box<Forwards>>,
    /// Commands that wait for the program's filters, in order.
    judging: VecDeque<Judging>,
    /// Commands wait for these: each resolves when forwarded frames are safe.
    unconfirmed: VecDeque<oneshot::Receiver<()>>,
}

impl Forwarding {
    pub(super) fn new(hub: &Hub, connection: ConnectionId, now: Timestamp) -> Self {
        let has_upstream = hub.nodes.as_ref().is_some_and(|nodes| nodes.outlet.is_some());
        let forwards = has_upstream.then(|| Box::new(Forwards::new(connection, now)));
        Self { forwards, judging: VecDeque::new(), unconfirmed: VecDeque::new() }
    }

    /// Whether no command waits here.
    pub(super) fn is_empty(&self) -> bool {
        self.judging.is_empty() && self.unconfirmed.is_empty()
    }

    /// Takes commands. Returns those that go to shards at once; others wait for filters, and come out of
    /// [`Forwarding::poll_filters`].
    #[inline]
    pub(super) fn route(
        &mut self,
        mut commands: Vec<Command>,
        bytes: usize,
        is_node: bool,
        client: &Arc<Client>,
        hub: &Hub,
    ) -> Option<Vec<Command>> {
        let (noted, shown) = if is_node { Default::default() } else { self.note(&mut commands, client, hub) };
        let judged = Judged { commands, octets: bytes, noted, refused: Vec::new() };
        let nodes = hub.nodes.as_ref();
        let accept = nodes.and_then(|nodes| nodes.filters.accept.as_ref()).filter(|_| is_node);
        let judging = match (nodes, accept) {
            (Some(nodes), Some(accept)) => judge_accepted(accept, &nodes.fallen_back, client, judged),
            (Some(nodes), None) if !shown.is_empty() => {
                shown.judge(&nodes.filters, &nodes.fallen_back, judged)
            }
            // What comes behind something that waits must wait as well.
            _ if !self.judging.is_empty() => Box::pin(std::future::ready(judged)),
            _ => {
                self.forward(judged.noted, hub);
                return Some(judged.commands);
            }
        };
        self.judging.push_back(judging);
        None
    }

    /// Encodes for upstream brokers what a client asks for, and selects what the program's filters have to see. What came
    /// from another broker is not forwarded again.
    fn note(&mut self, commands: &mut [Command], client: &Arc<Client>, hub: &Hub) -> (Option<Noted>, Shown) {
        let mut shown = Shown::default();
        let (Some(forwards), Some(nodes)) = (&mut self.forwards, &hub.nodes) else {
            return (None, shown);
        };
        for command in commands {
            let masters = forwards.note(&nodes.terms, client, command);
            if !nodes.filters.send.is_empty() {
                shown.add(&nodes.filters, masters, command, client);
            }
        }
        (forwards.take(), shown)
    }

    /// Forwards frames to upstream brokers. No later command goes to a shard until they are safe.
    fn forward(&mut self, noted: Option<Noted>, hub: &Hub) {
        let Some(noted) = noted else { return };
        if let Some(Nodes { outlet: Some(outlet), .. }) = &hub.nodes {
            self.unconfirmed.push_back(outlet.take(noted));
        }
    }

    /// The next commands about which the program's filters have decided.
    pub(super) fn poll_filters(&mut self, hub: &Hub, context: &mut Context<'_>) -> Option<Judged> {
        let Poll::Ready(mut judged) = self.judging.front_mut()?.as_mut().poll(context) else { return None };
        self.judging.pop_front();
        hub.moved();
        self.forward(judged.noted.take(), hub);
        Some(judged)
    }

    /// Ready when all forwarded frames are safe. With whether any became safe now.
    pub(super) fn poll_safe(&mut self, context: &mut Context<'_>) -> (Poll<()>, bool) {
        let mut moved = false;
        while let Some(safe) = self.unconfirmed.front_mut() {
            if Pin::new(safe).poll(context).is_pending() {
                return (Poll::Pending, moved);
            }
            self.unconfirmed.pop_front();
            moved = true;
        }
        (Poll::Ready(()), moved)
    }
}
