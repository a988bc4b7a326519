//! What one client consumes for as long as somebody wants it, over all its connections: for the protocols in which a
//! consumer has an id of its own on each connection, and one answer says whether it stands.

use std::hash::Hash;

use foldhash::fast::RandomState;
use hashbrown::{Equivalent, HashMap};

use crate::address::QueueAddress;
use crate::consumption::Consumption;
use crate::conversation::{Answer, Arrival, By, MessageId, PullAnswer, TakenUp};
use crate::error::ClientError;
use crate::request::Target;

/// A queue or topic that is consumed, and by how many.
#[derive(Debug)]
struct Standing<W> {
    consumption: Consumption,
    users: usize,
    /// What the broker knows it by on this connection; `None`: it has not been asked, or has refused.
    id: Option<MessageId>,
    /// The broker has agreed on this connection.
    agreed: bool,
    waiters: Vec<(MessageId, W)>,
}

/// All that one client consumes. Nothing is written here: whoever writes asks what is [missing](Register::missing) and
/// says what it has [asked for](Register::asked).
#[derive(Debug)]
pub(crate) struct Register<W>(HashMap<QueueAddress, Standing<W>, RandomState>);

impl<W> Register<W> {
    pub(crate) fn new() -> Self {
        Self(HashMap::default())
    }

    /// The connection is gone, and everything has to be asked for again. Answers with everybody who waited.
    pub(crate) fn lost(&mut self) -> impl Iterator<Item = (W, Option<PullAnswer>)> {
        self.0.values_mut().flat_map(|standing| {
            (standing.id, standing.agreed) = (None, false);
            standing.waiters.drain(..).map(|(_, waiter)| (waiter, None))
        })
    }

    /// What the broker has not been asked for on this connection, or has refused.
    pub(crate) fn missing(&self) -> Vec<QueueAddress> {
        let missing = self.0.iter().filter(|(_, standing)| standing.id.is_none());
        missing.map(|(queue, _)| queue.clone()).collect()
    }

    /// One more wants it, until [`Register::leave`]. Answers whether the broker has to be asked.
    pub(crate) fn join(&mut self, consumption: &Consumption) -> Result<bool, ClientError> {
        let queue = &consumption.queue;
        let standing = self.0.entry(queue.clone()).or_insert_with(|| Standing {
            consumption: consumption.clone(),
            users: 0,
            id: None,
            agreed: false,
            waiters: Vec::new(),
        });
        if standing.consumption.terms != consumption.terms {
            let why = format!("this client consumes {} already, on other terms", queue.name());
            return Err(ClientError::invalid("consumer", why));
        }
        standing.users += 1;
        Ok(standing.id.is_none())
    }

    /// `waiter` waits under `id` until it stands, unless it does already.
    pub(crate) fn wait(&mut self, queue: &QueueAddress, id: MessageId, waiter: W) -> TakenUp<W> {
        match self.0.get_mut(queue) {
            Some(standing) if !standing.agreed => {
                standing.waiters.push((id.clone(), waiter));
                TakenUp::Asked(id)
            }
            _ => TakenUp::Already(waiter),
        }
    }

    /// One less wants it. Answers, after the last one, what the broker knows it by.
    pub(crate) fn leave(&mut self, queue: &QueueAddress) -> Option<MessageId> {
        let standing = self.0.get_mut(queue)?;
        standing.users -= 1;
        if standing.users > 0 {
            return None;
        }
        self.0.remove(queue)?.id
    }

    /// The broker was asked for it under `id`; `agreed`: and will not answer, so that it stands.
    pub(crate) fn asked(&mut self, queue: &QueueAddress, id: MessageId, agreed: bool) {
        if let Some(standing) = self.0.get_mut(queue) {
            (standing.id, standing.agreed) = (Some(id), agreed);
        }
    }

    /// The broker agreed: whoever waited has it.
    pub(crate) fn agreed(&mut self, queue: &QueueAddress) -> Arrival<W> {
        let Some(standing) = self.0.get_mut(queue) else { return Arrival::Nothing };
        standing.agreed = true;
        let settled = |(_, waiter)| (waiter, Ok(Answer::Confirmed(By::Server)));
        Arrival::SettledMany(standing.waiters.drain(..).map(settled).collect())
    }

    /// The broker refused: whoever waited learns why. Nobody waits after a reconnect, and then it is asked again.
    pub(crate) fn refused(&mut self, queue: &QueueAddress, why: &ClientError) -> Arrival<W> {
        let Some(standing) = self.0.get_mut(queue) else { return Arrival::Nothing };
        (standing.id, standing.agreed) = (None, false);
        if standing.waiters.is_empty() {
            return Arrival::NotRestored(Target::plain(queue), why.clone());
        }
        let settled = |(_, waiter)| (waiter, Err(why.clone()));
        Arrival::SettledMany(standing.waiters.drain(..).map(settled).collect())
    }

    /// Nobody waits under this id any more.
    pub(crate) fn forget(&mut self, id: &[u8]) {
        for standing in self.0.values_mut() {
            standing.waiters.retain(|(known, _)| known[..] != *id);
        }
    }

    /// On what terms it is consumed.
    pub(crate) fn consumption<Q: Hash + Equivalent<QueueAddress> + ?Sized>(
        &self,
        queue: &Q,
    ) -> Option<&Consumption> {
        self.0.get(queue).map(|standing| &standing.consumption)
    }

    /// What the broker knows it by on this connection.
    pub(crate) fn id<Q: Hash + Equivalent<QueueAddress> + ?Sized>(&self, queue: &Q) -> Option<&MessageId> {
        self.0.get(queue)?.id.as_ref()
    }

    /// What the broker knows by this id on this connection.
    pub(crate) fn of_id(&self, id: &[u8]) -> Option<&QueueAddress> {
        let mut all = self.0.iter();
        let is_known = |standing: &Standing<W>| standing.id.as_ref().is_some_and(|known| known[..] == *id);
        all.find(|(_, standing)| is_known(standing)).map(|(queue, _)| queue)
    }
}
