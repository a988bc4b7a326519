//! Queues that one client consumes, across connections, for protocols in which a consumer has an id per connection and
//! one answer confirms it.

use std::hash::Hash;

use foldhash::fast::RandomState;
use hashbrown::{Equivalent, HashMap};

use crate::address::QueueAddress;
use crate::consumption::Consumption;
use crate::conversation::{AckedBy, FrameEvent, IntentState, MessageId, PullAnswer, RequestAnswer};
use crate::error::ClientError;
use crate::request::Target;

/// A consumed queue or topic, and its users.
#[derive(Debug)]
struct SharedConsumption<W> {
    /// Of the first user, with the prefetch of all.
    consumption: Consumption,
    users: usize,
    /// Its id on this connection; `None`: not requested, or refused.
    id: Option<MessageId>,
    /// Whether the broker has confirmed it on this connection.
    agreed: bool,
    /// Messages of this connection that the program dropped without settling them.
    dropped: usize,
    waiters: Vec<(MessageId, W)>,
}

/// A consumer or subscription that ends.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Its id on this connection.
    pub(crate) id: MessageId,
    /// Messages that the program dropped without settling them.
    pub(crate) dropped: usize,
    /// Whether the program settles its messages.
    pub(crate) manual_ack: bool,
}

/// Whether a queue has users after one left.
#[derive(Debug)]
pub(crate) enum Leaving {
    /// It has others; its prefetch has changed.
    Continues,
    /// It has none. With the consumer of this connection, if it was requested.
    Ended(Option<Ended>),
}

/// The consumed queues of one client. It writes nothing itself: the conversation requests the
/// [missing](Register::missing) ones and records them as [asked](Register::asked).
#[derive(Debug)]
pub(crate) struct Register<W>(HashMap<QueueAddress, SharedConsumption<W>, RandomState>);

impl<W> SharedConsumption<W> {
    /// Ends its consumer on this connection; `None`: it was not requested.
    fn end(&mut self) -> Option<Ended> {
        let (id, manual_ack) = (self.id.take()?, self.consumption.terms.manual_ack);
        Some(Ended { id, dropped: std::mem::take(&mut self.dropped), manual_ack })
    }
}

impl<W> Register<W> {
    pub(crate) fn new() -> Self {
        Self(HashMap::default())
    }

    /// Ends the connection: every queue must be requested again. Returns all waiters.
    pub(crate) fn lost(&mut self) -> impl Iterator<Item = (W, Option<PullAnswer>)> {
        self.0.values_mut().flat_map(|standing| {
            (standing.id, standing.agreed, standing.dropped) = (None, false, 0);
            standing.waiters.drain(..).map(|(_, waiter)| (waiter, None))
        })
    }

    /// Queues that are not requested on this connection, or were refused.
    pub(crate) fn missing(&self) -> Vec<QueueAddress> {
        let missing = self.0.iter().filter(|(_, standing)| standing.id.is_none());
        missing.map(|(queue, _)| queue.clone()).collect()
    }

    /// Adds a user, until [`Register::leave`]. Returns whether the queue must be requested from the broker. Otherwise its
    /// prefetch has changed.
    pub(crate) fn join(&mut self, consumption: &Consumption) -> Result<bool, ClientError> {
        let queue = &consumption.queue;
        let standing = self.0.entry(queue.clone()).or_insert_with(|| SharedConsumption {
            consumption: Consumption { prefetch: 0, ..consumption.clone() },
            users: 0,
            id: None,
            agreed: false,
            dropped: 0,
            waiters: Vec::new(),
        });
        if standing.consumption.terms != consumption.terms {
            let why =
                format!("this client already consumes {} on other terms; use the same terms", queue.name());
            return Err(ClientError::invalid("consumer", why));
        }
        standing.users += 1;
        standing.consumption.prefetch = standing.consumption.prefetch.saturating_add(consumption.prefetch);
        Ok(standing.id.is_none())
    }

    /// Registers `waiter` under `id` until the broker confirms, unless it already has.
    pub(crate) fn wait(&mut self, queue: &QueueAddress, id: MessageId, waiter: W) -> IntentState<W> {
        match self.0.get_mut(queue) {
            Some(standing) if !standing.agreed => {
                standing.waiters.push((id.clone(), waiter));
                IntentState::Asked(id)
            }
            _ => IntentState::Already(waiter),
        }
    }

    /// Removes a user.
    pub(crate) fn leave(&mut self, consumption: &Consumption) -> Leaving {
        let queue = &consumption.queue;
        let Some(standing) = self.0.get_mut(queue) else { return Leaving::Ended(None) };
        standing.users -= 1;
        if standing.users > 0 {
            standing.consumption.prefetch =
                standing.consumption.prefetch.saturating_sub(consumption.prefetch);
            return Leaving::Continues;
        }
        Leaving::Ended(self.0.remove(queue).and_then(|mut standing| standing.end()))
    }

    /// Ends all consumers of this connection, because the client closes.
    pub(crate) fn end_all(&mut self) -> Vec<(QueueAddress, Ended)> {
        let standing = self.0.iter_mut();
        standing.filter_map(|(queue, standing)| Some((queue.clone(), standing.end()?))).collect()
    }

    /// Notes that the program dropped a message without settling it.
    pub(crate) fn dropped<Q: Hash + Equivalent<QueueAddress> + ?Sized>(&mut self, queue: &Q) {
        if let Some(standing) = self.0.get_mut(queue) {
            standing.dropped += 1;
        }
    }

    /// The consumer's id on this connection, and the prefetch of all its users. `None`: it is not requested, or the program
    /// does not settle its messages.
    pub(crate) fn prefetch(&self, queue: &QueueAddress) -> Option<(&MessageId, u32)> {
        let standing = self.0.get(queue).filter(|standing| standing.consumption.terms.manual_ack)?;
        Some((standing.id.as_ref()?, standing.consumption.prefetch))
    }

    /// Records a request under `id`. `agreed`: the broker does not confirm requests, so it is in force.
    pub(crate) fn asked(&mut self, queue: &QueueAddress, id: MessageId, agreed: bool) {
        if let Some(standing) = self.0.get_mut(queue) {
            (standing.id, standing.agreed) = (Some(id), agreed);
        }
    }

    /// Records the broker's confirmation and settles the waiters.
    pub(crate) fn agreed(&mut self, queue: &QueueAddress) -> FrameEvent<W> {
        let Some(standing) = self.0.get_mut(queue) else { return FrameEvent::Nothing };
        standing.agreed = true;
        let settled = |(_, waiter)| (waiter, Ok(RequestAnswer::Confirmed(AckedBy::Server)));
        FrameEvent::SettledMany(standing.waiters.drain(..).map(settled).collect())
    }

    /// Records a refusal and fails the waiters. Without waiters, after a reconnect, it is requested again.
    pub(crate) fn refused(&mut self, queue: &QueueAddress, why: &ClientError) -> FrameEvent<W> {
        let Some(standing) = self.0.get_mut(queue) else { return FrameEvent::Nothing };
        (standing.id, standing.agreed) = (None, false);
        if standing.waiters.is_empty() {
            return FrameEvent::NotRestored(Target::plain(queue), why.clone());
        }
        let settled = |(_, waiter)| (waiter, Err(why.clone()));
        FrameEvent::SettledMany(standing.waiters.drain(..).map(settled).collect())
    }

    /// Removes the waiter with this id.
    pub(crate) fn forget(&mut self, id: &[u8]) {
        for standing in self.0.values_mut() {
            standing.waiters.retain(|(known, _)| known[..] != *id);
        }
    }

    /// The terms of a consumed queue.
    pub(crate) fn consumption<Q: Hash + Equivalent<QueueAddress> + ?Sized>(
        &self,
        queue: &Q,
    ) -> Option<&Consumption> {
        self.0.get(queue).map(|standing| &standing.consumption)
    }

    /// The consumer's id on this connection.
    pub(crate) fn id<Q: Hash + Equivalent<QueueAddress> + ?Sized>(&self, queue: &Q) -> Option<&MessageId> {
        self.0.get(queue)?.id.as_ref()
    }

    /// The queue of this consumer's id on this connection.
    pub(crate) fn of_id(&self, id: &[u8]) -> Option<&QueueAddress> {
        let mut all = self.0.iter();
        let is_known =
            |standing: &SharedConsumption<W>| standing.id.as_ref().is_some_and(|known| known[..] == *id);
        all.find(|(_, standing)| is_known(standing)).map(|(queue, _)| queue)
    }
}
