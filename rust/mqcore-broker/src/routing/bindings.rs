//! What queues are bound to at the wish of those who consume them, and when a queue goes that nobody consumes.
//!
//! The list of a queue's topics is kept on the queue's shard, which tells the topics' shards what changed and waits until
//! they did it: so two who change the same list at once end with the same bindings everywhere, and whoever is told "done"
//! misses nothing that is published from then on. A list may exist before its queue does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use foldhash::HashMap;

use crate::context::Context;
use crate::model::bindings::{QueueBinding, QueueBindings, UnusedPolicy};
use crate::model::effect::{Event, Forwarded};
use crate::model::id::{ConnectionId, QueueAddress, TopicName};
use crate::model::rejection::{Rejection, RejectionKind};
use crate::model::time::Timestamp;
use crate::model::topic::BINDINGS_MAX;

#[derive(Debug)]
struct BoundTopics {
    topics: BTreeSet<TopicName>,
    unused: UnusedPolicy,
    /// When it goes if nobody comes; [`Timestamp::NEVER`] while somebody is there.
    expires: Timestamp,
}

impl Default for BoundTopics {
    fn default() -> Self {
        Self { topics: BTreeSet::new(), unused: UnusedPolicy::Keep, expires: Timestamp::NEVER }
    }
}

/// An answer that waits until other shards did their part.
#[derive(Debug)]
struct PendingChange {
    shards: usize,
    answer: Option<(ConnectionId, Event)>,
}

/// All lists of a shard's queues.
#[derive(Debug, Default)]
pub(crate) struct Bindings {
    bound: HashMap<QueueAddress, BoundTopics>,
    expiring: BTreeSet<(Timestamp, QueueAddress)>,
    waiting: HashMap<u64, PendingChange>,
    tickets: u64,
}

/// What came of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BindingChange {
    /// The list now, if it is not what it was.
    pub(crate) changed: Option<QueueBindings>,
    /// What has to be waited for; `None`: nothing.
    pub(crate) ticket: Option<u64>,
}

impl Bindings {
    /// Changes a queue's list, and has the topics' shards follow.
    pub(crate) fn change(
        &mut self,
        queue: &QueueAddress,
        binding: QueueBinding,
        context: &mut Context<'_>,
    ) -> Result<BindingChange, Rejection> {
        let before = self.bound.get(queue);
        let mut topics = before.map(|bound| bound.topics.clone()).unwrap_or_default();
        let (old, was) = (topics.clone(), before.map(|bound| bound.unused).unwrap_or_default());
        if let Some(replace) = binding.replace {
            topics = replace.into_iter().collect();
        }
        for topic in &binding.remove {
            topics.remove(topic);
        }
        topics
            .retain(|topic| !binding.remove_matching.iter().any(|pattern| pattern.matches(topic.as_bytes())));
        topics.extend(binding.add);
        if topics.len() > BINDINGS_MAX {
            let reason = format!("queue {queue} may be bound to {BINDINGS_MAX} topics at most");
            return Err(Rejection::new(RejectionKind::LimitExceeded, reason));
        }
        let unused = binding.unused.unwrap_or(was);
        let changed = topics != old || unused != was;
        let ticket = self.spread(queue, &old, &topics, context);
        let bound = self.bound.entry(queue.clone()).or_default();
        (bound.topics, bound.unused) = (topics, unused);
        Ok(BindingChange { changed: changed.then(|| self.list(queue)), ticket })
    }

    /// Tells the shards of the topics that were taken in or left out; the ticket under which they answer.
    fn spread(
        &mut self,
        queue: &QueueAddress,
        old: &BTreeSet<TopicName>,
        new: &BTreeSet<TopicName>,
        context: &mut Context<'_>,
    ) -> Option<u64> {
        let (shards, from) = (context.state.config.shards, context.state.config.shard);
        let mut parts: BTreeMap<usize, (Vec<TopicName>, Vec<TopicName>)> = BTreeMap::new();
        for topic in new.difference(old) {
            parts.entry(topic.shard(shards)).or_default().0.push(topic.clone());
        }
        for topic in old.difference(new) {
            parts.entry(topic.shard(shards)).or_default().1.push(topic.clone());
        }
        if parts.is_empty() {
            return None;
        }
        self.tickets += 1;
        let ticket = self.tickets;
        self.waiting.insert(ticket, PendingChange { shards: parts.len(), answer: None });
        for (shard, (bind, unbind)) in parts {
            context.forward(shard, Forwarded::Bind { queue: queue.clone(), bind, unbind, from, ticket });
        }
        Some(ticket)
    }

    /// `event` is told to `to` once everything under the ticket is done.
    pub(crate) fn wait(&mut self, ticket: u64, to: ConnectionId, event: Event) {
        if let Some(waiting) = self.waiting.get_mut(&ticket) {
            waiting.answer = Some((to, event));
        }
    }

    /// A shard did its part.
    pub(crate) fn done(&mut self, ticket: u64, context: &mut Context<'_>) {
        let Some(waiting) = self.waiting.get_mut(&ticket) else { return };
        waiting.shards -= 1;
        if waiting.shards == 0
            && let Some(PendingChange { answer: Some((to, event)), .. }) = self.waiting.remove(&ticket)
        {
            context.notify(to, event);
        }
    }

    /// The list of a queue.
    pub(crate) fn list(&self, queue: &QueueAddress) -> QueueBindings {
        let bound = self.bound.get(queue);
        QueueBindings {
            queue: queue.clone(),
            topics: bound.map(|bound| bound.topics.iter().cloned().collect()).unwrap_or_default(),
            unused: bound.map(|bound| bound.unused).unwrap_or_default(),
        }
    }

    /// The queue went: so does its list. Its last state without topics, if it had one.
    pub(crate) fn forget(
        &mut self,
        queue: &QueueAddress,
        context: &mut Context<'_>,
    ) -> Option<QueueBindings> {
        let bound = self.bound.remove(queue)?;
        self.expiring.remove(&(bound.expires, queue.clone()));
        self.spread(queue, &bound.topics, &BTreeSet::new(), context);
        Some(QueueBindings { queue: queue.clone(), topics: Vec::new(), unused: bound.unused })
    }

    /// Somebody consumes the queue: it does not go.
    pub(crate) fn used(&mut self, queue: &QueueAddress) {
        if let Some(bound) = self.bound.get_mut(queue) {
            self.expiring.remove(&(bound.expires, queue.clone()));
            bound.expires = Timestamp::NEVER;
        }
    }

    /// The last subscription of a queue ended. `true`: the queue goes now.
    pub(crate) fn abandoned(&mut self, queue: &QueueAddress, now: Timestamp) -> bool {
        let Some(bound) = self.bound.get_mut(queue) else { return false };
        match bound.unused {
            UnusedPolicy::Keep => false,
            UnusedPolicy::Delete => true,
            UnusedPolicy::DeleteAfter(time) => {
                self.expiring.remove(&(bound.expires, queue.clone()));
                bound.expires = now.after(time);
                self.expiring.insert((bound.expires, queue.clone()));
                false
            }
        }
    }

    /// A queue whose time without consumers is up.
    pub(crate) fn expired(&mut self, now: Timestamp) -> Option<QueueAddress> {
        let (expires, _) = self.expiring.first()?;
        if *expires > now {
            return None;
        }
        self.expiring.pop_first().map(|(_, queue)| queue)
    }

    /// When the next queue goes.
    pub(crate) fn next_expiry(&self) -> Timestamp {
        self.expiring.first().map_or(Timestamp::NEVER, |(expires, _)| *expires)
    }
}

/// The names by which consumers of any connection can be spoken of. Entries are not taken out when a subscription ends: who
/// looks one up finds that it is gone, and now and then all such are cleared away.
#[derive(Debug)]
pub(crate) struct SubscriptionNames<P> {
    places: HashMap<Arc<[u8]>, Vec<P>>,
    entries: usize,
    clear_at: usize,
}

impl<P> Default for SubscriptionNames<P> {
    fn default() -> Self {
        Self { places: HashMap::default(), entries: 0, clear_at: 0 }
    }
}

impl<P: Copy + PartialEq> SubscriptionNames<P> {
    /// A subscription has this name. `lives` tells whether one is still there.
    pub(crate) fn add(&mut self, name: &Arc<[u8]>, place: P, mut lives: impl FnMut(&[u8], &P) -> bool) {
        let places = self.places.entry(name.clone()).or_default();
        if !places.contains(&place) {
            places.push(place);
            self.entries += 1;
        }
        if self.entries > self.clear_at.max(1024) {
            self.places.retain(|name, places| {
                places.retain(|place| lives(name, place));
                !places.is_empty()
            });
            self.entries = self.places.values().map(Vec::len).sum();
            self.clear_at = 2 * self.entries;
        }
    }

    /// Where subscriptions of this name may be.
    pub(crate) fn get(&self, name: &[u8]) -> Vec<P> {
        self.places.get(name).cloned().unwrap_or_default()
    }
}
