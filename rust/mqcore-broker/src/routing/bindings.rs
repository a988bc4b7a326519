//! Topics that consumers bind queues to, and the removal of unused queues.
//!
//! A queue's shard keeps the queue's list of topics. It forwards changes to the shards of the topics
//! and waits until they are done. So concurrent changes of one list end with the same bindings on all
//! shards, and after the answer no published message is missed. A list may exist before its queue.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use foldhash::HashMap;

use crate::context::Context;
use crate::model::bindings::{QueueBinding, QueueBindings, UnusedPolicy};
use crate::model::effect::{Event, Forwarded};
use crate::model::id::{ConnectionId, QueueAddress, TopicName};
use crate::model::rejection::{Rejection, RejectionKind};
use crate::model::time::Timestamp;
use crate::model::topic::{BINDINGS_MAX, PATTERNS_MAX, TopicPattern};
use crate::routing::pattern_index::PatternIndex;

#[derive(Debug)]
struct BoundTopics {
    topics: BTreeSet<TopicName>,
    unused: UnusedPolicy,
    /// When the unused queue is removed; [`Timestamp::NEVER`] while it has a consumer.
    expires: Timestamp,
}

impl Default for BoundTopics {
    fn default() -> Self {
        Self { topics: BTreeSet::new(), unused: UnusedPolicy::Keep, expires: Timestamp::NEVER }
    }
}

/// An answer that waits for other shards.
#[derive(Debug)]
struct PendingChange {
    shards: usize,
    answer: Option<(ConnectionId, Event)>,
}

/// The lists of all queues of a shard.
#[derive(Debug, Default)]
pub(crate) struct Bindings {
    bound: HashMap<QueueAddress, BoundTopics>,
    expiring: BTreeSet<(Timestamp, QueueAddress)>,
    waiting: HashMap<u64, PendingChange>,
    tickets: u64,
}

/// The result of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BindingChange {
    /// The new list, if it changed.
    pub(crate) changed: Option<QueueBindings>,
    /// The change on other shards to wait for; `None`: nothing to wait for.
    pub(crate) ticket: Option<u64>,
}

impl Bindings {
    /// Changes the list of a queue and forwards the changes to the topics' shards.
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
        if !binding.remove_matching.is_empty() {
            let masks = index(&binding.remove_matching)?;
            topics.retain(|topic| !masks.matches(topic.as_bytes()));
        }
        topics.extend(binding.add);
        if topics.len() > BINDINGS_MAX {
            let reason = format!(
                "a queue can be bound to at most {BINDINGS_MAX} topics; unbind queue {queue} from some first"
            );
            return Err(Rejection::new(RejectionKind::LimitExceeded, reason));
        }
        let unused = binding.unused.unwrap_or(was);
        let changed = topics != old || unused != was;
        let ticket = self.forward_changes(queue, &old, &topics, context);
        let bound = self.bound.entry(queue.clone()).or_default();
        (bound.topics, bound.unused) = (topics, unused);
        Ok(BindingChange { changed: changed.then(|| self.list(queue)), ticket })
    }

    /// Forwards added and removed topics to their shards; returns the number under which they answer.
    fn forward_changes(
        &mut self,
        queue: &QueueAddress,
        old: &BTreeSet<TopicName>,
        new: &BTreeSet<TopicName>,
        context: &mut Context<'_>,
    ) -> Option<u64> {
        let (placement, from) = (context.state.config.placement, context.state.config.shard);
        let mut parts: BTreeMap<usize, (Vec<TopicName>, Vec<TopicName>)> = BTreeMap::new();
        for topic in new.difference(old) {
            parts.entry(topic.shard(placement)).or_default().0.push(topic.clone());
        }
        for topic in old.difference(new) {
            parts.entry(topic.shard(placement)).or_default().1.push(topic.clone());
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

    /// Sends `event` to `to` once the change is done on all shards.
    pub(crate) fn wait(&mut self, ticket: u64, to: ConnectionId, event: Event) {
        if let Some(waiting) = self.waiting.get_mut(&ticket) {
            waiting.answer = Some((to, event));
        }
    }

    /// One shard has made its part of a change.
    pub(crate) fn done(&mut self, ticket: u64, context: &mut Context<'_>) {
        let Some(waiting) = self.waiting.get_mut(&ticket) else { return };
        waiting.shards -= 1;
        if waiting.shards == 0
            && let Some(PendingChange { answer: Some((to, event)), .. }) = self.waiting.remove(&ticket)
        {
            context.notify(to, event);
        }
    }

    /// Numbers of queues bound to topics, and of queues that are removed when unused.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let number = |is_one: fn(&&BoundTopics) -> bool| self.bound.values().filter(is_one).count() as u64;
        (number(|bound| !bound.topics.is_empty()), number(|bound| bound.unused != UnusedPolicy::Keep))
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

    /// Removes the list of a removed queue. Returns its last state without topics, if it existed.
    pub(crate) fn forget(
        &mut self,
        queue: &QueueAddress,
        context: &mut Context<'_>,
    ) -> Option<QueueBindings> {
        let bound = self.bound.remove(queue)?;
        self.expiring.remove(&(bound.expires, queue.clone()));
        self.forward_changes(queue, &bound.topics, &BTreeSet::new(), context);
        Some(QueueBindings { queue: queue.clone(), topics: Vec::new(), unused: bound.unused })
    }

    /// The queue has a consumer: cancels its removal.
    pub(crate) fn used(&mut self, queue: &QueueAddress) {
        if let Some(bound) = self.bound.get_mut(queue) {
            self.expiring.remove(&(bound.expires, queue.clone()));
            bound.expires = Timestamp::NEVER;
        }
    }

    /// The last subscription of a queue ended. `true`: remove the queue now.
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

    /// A queue whose time without consumers has passed.
    pub(crate) fn expired(&mut self, now: Timestamp) -> Option<QueueAddress> {
        let (expires, _) = self.expiring.first()?;
        if *expires > now {
            return None;
        }
        self.expiring.pop_first().map(|(_, queue)| queue)
    }

    /// When the next queue is removed.
    pub(crate) fn next_expiry(&self) -> Timestamp {
        self.expiring.first().map_or(Timestamp::NEVER, |(expires, _)| *expires)
    }
}

/// Names of subscriptions, by which any connection can refer to them. Entries stay when a subscription
/// ends: lookups detect that, and all stale entries are removed from time to time.
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
    /// Adds a name of a subscription. `lives` tells whether a subscription still exists.
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

    /// Candidates for subscriptions with this name.
    pub(crate) fn get(&self, name: &[u8]) -> Vec<P> {
        self.places.get(name).cloned().unwrap_or_default()
    }
}

/// The index of the patterns of one request.
fn index(patterns: &[TopicPattern]) -> Result<RequestPatterns<'_>, Rejection> {
    if patterns.len() > PATTERNS_MAX {
        let reason = format!(
            "the request has {} masks (limit: {PATTERNS_MAX}); remove the topics in several requests",
            patterns.len()
        );
        return Err(Rejection::new(RejectionKind::LimitExceeded, reason));
    }
    let mut index = PatternIndex::default();
    for (number, pattern) in patterns.iter().enumerate() {
        index.insert(pattern, number);
    }
    Ok(RequestPatterns { index, patterns })
}

struct RequestPatterns<'a> {
    index: PatternIndex,
    patterns: &'a [TopicPattern],
}

impl RequestPatterns<'_> {
    fn matches(&self, topic: &[u8]) -> bool {
        match self.index.matching(topic, &mut 0) {
            Some(found) => !found.is_empty(),
            None => self.patterns.iter().any(|pattern| pattern.matches(topic)),
        }
    }
}
