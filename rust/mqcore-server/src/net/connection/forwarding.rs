//! Commands that are also forwarded to upstream brokers, and the program's filters that decide about them.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::Command;
use mqcore_broker::model::effect::Event;
use mqcore_broker::model::id::ConnectionId;
use mqcore_broker::model::time::Timestamp;
use mqcore_session::forwards::{ForwardBatch, Forwards};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;

use super::Connection;
use crate::hub::Hub;
use crate::nodes::filter::{FilteredBatch, PendingFilter, PendingLinkFilter, filter_accepted};
use crate::nodes::membership::Nodes;

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Connection<S> {
    /// Continues with commands about which the program's filters have decided.
    pub(super) fn pass_filters(&mut self, context: &mut Context<'_>, now: Timestamp) -> bool {
        let mut moved = false;
        while let Some(filtered) = self.forwarding.poll_filters(&self.hub, context) {
            moved = true;
            self.queue(filtered.commands, filtered.bytes);
            if !filtered.refused.is_empty() {
                self.answer(Event::Confirmed(filtered.refused), now);
            }
        }
        moved
    }
}

/// Forwarding for one connection.
pub(super) struct Forwarding {
    /// Encodes what is forwarded; `None`: this broker has no upstream brokers.
    forwards: Option<Box<Forwards>>,
    /// Commands that wait for the program's filters, in order.
    pending: VecDeque<PendingFilter>,
    /// Commands wait for these: each resolves when forwarded frames are safe.
    unconfirmed: VecDeque<oneshot::Receiver<()>>,
}

impl Forwarding {
    pub(super) fn new(hub: &Hub, connection: ConnectionId, now: Timestamp) -> Self {
        let has_upstream = hub.nodes.as_ref().is_some_and(|nodes| nodes.forwarder.is_some());
        let forwards = has_upstream.then(|| Box::new(Forwards::new(connection, now)));
        Self { forwards, pending: VecDeque::new(), unconfirmed: VecDeque::new() }
    }

    /// Whether no command waits here.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.unconfirmed.is_empty()
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
        // Without upstream brokers, only the commands of nodes have filters.
        if self.forwards.is_none() && self.pending.is_empty() && !is_node {
            return Some(commands);
        }
        let (noted, shown) = if is_node { Default::default() } else { self.note(&mut commands, client, hub) };
        let filtered = FilteredBatch { commands, bytes, noted, refused: Vec::new() };
        let nodes = hub.nodes.as_ref();
        let accept = nodes.and_then(|nodes| nodes.filters.accept.as_ref()).filter(|_| is_node);
        let pending = match (nodes, accept) {
            (Some(nodes), Some(accept)) => filter_accepted(accept, &nodes.fallen_back, client, filtered),
            (Some(nodes), None) if !shown.is_empty() => {
                shown.judge(&nodes.filters, &nodes.fallen_back, filtered)
            }
            // Commands after a pending one must wait as well.
            _ if !self.pending.is_empty() => Box::pin(std::future::ready(filtered)),
            _ => {
                self.forward(filtered.noted, hub);
                return Some(filtered.commands);
            }
        };
        self.pending.push_back(pending);
        None
    }

    /// Encodes a client's command for upstream brokers, and selects what the program's filters have to see. Commands
    /// from another broker are not forwarded again.
    fn note(
        &mut self,
        commands: &mut [Command],
        client: &Arc<Client>,
        hub: &Hub,
    ) -> (Option<ForwardBatch>, PendingLinkFilter) {
        let mut shown = PendingLinkFilter::default();
        let (Some(forwards), Some(nodes)) = (&mut self.forwards, &hub.nodes) else {
            return (None, shown);
        };
        for command in commands {
            let upstreams = forwards.note(&nodes.terms, client, command);
            if !nodes.filters.send.is_empty() {
                shown.add(&nodes.filters, upstreams, command, client);
            }
        }
        (forwards.take(), shown)
    }

    /// Forwards frames to upstream brokers. Later commands wait until the frames are safe.
    fn forward(&mut self, noted: Option<ForwardBatch>, hub: &Hub) {
        let Some(noted) = noted else { return };
        if let Some(Nodes { forwarder: Some(forwarder), .. }) = &hub.nodes {
            self.unconfirmed.push_back(forwarder.take(noted));
        }
    }

    /// The next commands about which the program's filters have decided.
    pub(super) fn poll_filters(&mut self, hub: &Hub, context: &mut Context<'_>) -> Option<FilteredBatch> {
        let Poll::Ready(mut filtered) = self.pending.front_mut()?.as_mut().poll(context) else { return None };
        self.pending.pop_front();
        hub.moved();
        self.forward(filtered.noted.take(), hub);
        Some(filtered)
    }

    /// Ready when all forwarded frames are safe. Also returns whether any became safe in this call.
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
