//! Topics: names that fan out to their subscribers. Nothing is stored: a client that is not connected
//! misses the message.
//!
//! A topic is on the shard given by the hash of its name. Every shard knows all subscriptions and
//! bindings by pattern, because a pattern may match topics of any shard.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::{HashMap, HashSet};
use slab::Slab;
use smallvec::SmallVec;

use crate::context::Context;
use crate::model::client::Client;
use crate::model::effect::{Effect, Publication, Recipients};
use crate::model::id::{ConnectionId, QueueAddress, TopicName};
use crate::model::message::Message;
use crate::model::rejection::{Rejection, RejectionKind};
use crate::model::stats::{TopicInformation, TopicStats};
use crate::model::topic::{BINDINGS_MAX, PASSING_MAX, TopicLimits, TopicPattern};
use crate::routing::pattern_index::PatternIndex;

/// The receivers of a topic's messages, valid until something changes.
#[derive(Debug)]
struct Fanout {
    key: FanoutKey,
    subscribers: Option<Recipients>,
    /// Number of subscribers that are too slow.
    slow: u64,
    queues: Arc<[QueueAddress]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FanoutKey {
    patterns: u64,
    congestion: u64,
    except: Option<ConnectionId>,
}

#[derive(Debug)]
struct Topic {
    name: TopicName,
    /// Subscribers by name, in the order in which they subscribed.
    subscribers: Vec<ConnectionId>,
    /// Queues by name.
    queues: Vec<QueueAddress>,
    fanout: Option<Fanout>,
    stats: TopicStats,
}

impl Topic {
    fn new(name: TopicName) -> Self {
        let stats = TopicStats::default();
        Self { name, subscribers: Vec::new(), queues: Vec::new(), fanout: None, stats }
    }

    /// Whether it exists only because it was published to.
    fn is_passing(&self) -> bool {
        self.subscribers.is_empty() && self.queues.is_empty()
    }
}

/// Subscribers and queues of one pattern.
#[derive(Debug)]
struct PatternEntry {
    pattern: TopicPattern,
    subscribers: Vec<ConnectionId>,
    queues: Vec<QueueAddress>,
}

/// The subscriptions of a connection.
#[derive(Debug, Default)]
struct ConnectionSubscriptions {
    topics: SmallVec<[usize; 2]>,
    /// Numbers of patterns, in the order in which it subscribed.
    patterns: SmallVec<[usize; 2]>,
    /// The user or token that the subscriptions by pattern count for.
    user: Option<Arc<str>>,
}

/// All topics of a shard.
#[derive(Debug, Default)]
pub(crate) struct Topics {
    entries: Slab<Topic>,
    names: HashMap<TopicName, usize>,
    passing: usize,
    /// The topic that was published to last, compared by pointer.
    last: Option<(TopicName, usize)>,
    /// Patterns by their numbers.
    patterns: BTreeMap<usize, PatternEntry>,
    /// Finds the patterns that match a topic.
    index: PatternIndex,
    /// The number of the next pattern.
    next_pattern: usize,
    held: HashMap<ConnectionId, ConnectionSubscriptions>,
    /// The number of subscriptions by pattern of each user.
    of_users: HashMap<Arc<str>, usize>,
    bound: HashMap<QueueAddress, usize>,
    /// Subscriptions and bindings that were rejected because of a limit.
    rejected: u64,
    /// Work of searches for patterns, as the index counts it.
    pattern_steps: Cell<u64>,
    /// Bindings in the journal.
    saved: HashSet<(TopicPattern, QueueAddress)>,
    /// Grows with every change of a pattern's subscribers or queues, which invalidates earlier fanouts.
    changes: u64,
    retired: TopicStats,
    /// Counters of all topics, including forgotten ones.
    totals: TopicStats,
}

/// The result of publishing to a topic.
pub(crate) struct Published {
    /// Number of subscribers and queues that received the message.
    pub(crate) receivers: u32,
    /// Queues that get a copy.
    pub(crate) queues: Arc<[QueueAddress]>,
}

impl Topics {
    /// Subscribes a connection to topics. Subscribing twice has no effect.
    pub(crate) fn subscribe(
        &mut self,
        client: &Arc<Client>,
        pattern: TopicPattern,
        limits: &TopicLimits,
    ) -> Result<(), Rejection> {
        let connection = client.connection;
        if let TopicPattern::Exact(name) = pattern {
            let key = self.entry(&name);
            let held = self.held.entry(connection).or_default();
            if held.topics.contains(&key) {
                return Ok(());
            }
            if held.topics.len() >= limits.subscriptions_max {
                self.rejected += 1;
                return Err(too_many("topics of a connection", limits.subscriptions_max));
            }
            held.topics.push(key);
            self.settled(key, |topic| topic.subscribers.push(connection));
            return Ok(());
        }
        let known = self.index.get(&pattern);
        let held = self.held.entry(connection).or_default();
        if known.is_some_and(|number| held.patterns.contains(&number)) {
            return Ok(());
        }
        if held.patterns.len() >= limits.patterns_max {
            self.rejected += 1;
            return Err(too_many("patterns of a connection", limits.patterns_max));
        }
        if let Some(user) = &client.user {
            let count = self.of_users.entry(Arc::clone(user)).or_default();
            if *count >= limits.patterns_per_user_max {
                self.rejected += 1;
                return Err(too_many("patterns of a user", limits.patterns_per_user_max));
            }
            *count += 1;
            held.user = Some(Arc::clone(user));
        }
        let number = self.pattern(pattern);
        self.change_pattern(number, |entry| entry.subscribers.push(connection));
        self.held.entry(connection).or_default().patterns.push(number);
        Ok(())
    }

    /// `false` if it had not subscribed.
    pub(crate) fn unsubscribe(&mut self, connection: ConnectionId, pattern: &TopicPattern) -> bool {
        let TopicPattern::Exact(name) = pattern else {
            let Some(number) = self.index.get(pattern) else { return false };
            let Some(held) = self.held.get_mut(&connection) else { return false };
            let Some(at) = held.patterns.iter().position(|other| *other == number) else { return false };
            held.patterns.swap_remove(at);
            let user = held.user.clone();
            self.leave_pattern(number, connection, user.as_ref());
            return true;
        };
        let Some(&key) = self.names.get(name) else { return false };
        if !self.settled(key, |topic| remove(&mut topic.subscribers, connection)) {
            return false;
        }
        if let Some(held) = self.held.get_mut(&connection) {
            held.topics.retain(|topic| *topic != key);
        }
        true
    }

    /// Removes a closed connection.
    pub(crate) fn forget(&mut self, connection: ConnectionId) {
        let Some(held) = self.held.remove(&connection) else { return };
        for key in held.topics {
            self.settled(key, |topic| remove(&mut topic.subscribers, connection));
        }
        for number in held.patterns {
            self.leave_pattern(number, connection, held.user.as_ref());
        }
    }

    /// Ends a connection's subscription to a pattern.
    fn leave_pattern(&mut self, number: usize, connection: ConnectionId, user: Option<&Arc<str>>) {
        if let Some(count) = user.and_then(|user| self.of_users.get_mut(user)) {
            *count -= 1;
            if *count == 0
                && let Some(user) = user
            {
                self.of_users.remove(user);
            }
        }
        self.change_pattern(number, |entry| remove(&mut entry.subscribers, connection));
    }

    /// Binds a queue, which need not exist yet. Binding twice has no effect.
    pub(crate) fn bind(&mut self, pattern: TopicPattern, queue: &QueueAddress) -> Result<(), Rejection> {
        let queue = queue.in_lower_case();
        let bound = self.bound.get(&queue).copied().unwrap_or(0);
        let known = match &pattern {
            TopicPattern::Exact(name) => {
                self.names.get(name).is_some_and(|key| self.entries[*key].queues.contains(&queue))
            }
            _ => {
                let number = self.index.get(&pattern);
                number.is_some_and(|number| self.patterns[&number].queues.contains(&queue))
            }
        };
        if known {
            return Ok(());
        }
        if bound >= BINDINGS_MAX {
            self.rejected += 1;
            return Err(too_many("bindings of a queue to topics", BINDINGS_MAX));
        }
        self.bound.insert(queue.clone(), bound + 1);
        if let TopicPattern::Exact(name) = pattern {
            let key = self.entry(&name);
            self.settled(key, |topic| topic.queues.push(queue));
        } else {
            let number = self.pattern(pattern);
            self.change_pattern(number, |entry| entry.queues.push(queue));
        }
        Ok(())
    }

    /// Binds a queue and marks the binding as saved. `true` if it was not saved before.
    pub(crate) fn bind_saved(
        &mut self,
        pattern: TopicPattern,
        queue: &QueueAddress,
    ) -> Result<bool, Rejection> {
        self.bind(pattern.clone(), queue)?;
        Ok(self.saved.insert((pattern, queue.in_lower_case())))
    }

    /// Whether a saved binding exists.
    pub(crate) fn is_saved(&self, pattern: &TopicPattern, queue: &QueueAddress) -> bool {
        self.saved.contains(&(pattern.clone(), queue.in_lower_case()))
    }

    /// Marks a binding as no longer saved. `true` if it was saved.
    pub(crate) fn forget_saved(&mut self, pattern: &TopicPattern, queue: &QueueAddress) -> bool {
        !self.saved.is_empty() && self.saved.remove(&(pattern.clone(), queue.in_lower_case()))
    }

    /// All saved bindings.
    pub(crate) fn saved_bindings(&self) -> impl Iterator<Item = &(TopicPattern, QueueAddress)> {
        self.saved.iter()
    }

    /// `false` if it was not bound.
    pub(crate) fn unbind(&mut self, pattern: &TopicPattern, queue: &QueueAddress) -> bool {
        let queue = queue.in_lower_case();
        let gone = match pattern {
            TopicPattern::Exact(name) => match self.names.get(name) {
                Some(&key) => self.settled(key, |topic| take(&mut topic.queues, &queue)),
                None => false,
            },
            _ => match self.index.get(pattern) {
                Some(number) => self.change_pattern(number, |entry| take(&mut entry.queues, &queue)),
                None => false,
            },
        };
        if gone && let Some(count) = self.bound.get_mut(&queue) {
            *count -= 1;
            if *count == 0 {
                self.bound.remove(&queue);
            }
        }
        gone
    }

    /// Delivers a message to all subscribers. The caller makes the copies for queues.
    pub(crate) fn publish(
        &mut self,
        name: &TopicName,
        message: &Message,
        to_producer: bool,
        context: &mut Context<'_>,
    ) -> Published {
        let key = self.lookup(name);
        let except = if to_producer { None } else { self.subscribed_producer(key, message) };
        let wanted =
            FanoutKey { patterns: self.changes, congestion: context.state.congestion.changes, except };
        if self.entries[key].fanout.as_ref().is_none_or(|fanout| fanout.key != wanted) {
            let fanout = self.fanout(key, wanted, context);
            self.entries[key].fanout = Some(fanout);
        }
        let Topic { name, fanout, stats, .. } = &mut self.entries[key];
        let Some(fanout) = fanout else { unreachable!("it was made above") };
        let subscribers = fanout.subscribers.as_ref().map_or(0, |to| to.as_slice().len());
        let receivers = subscribers + fanout.queues.len();
        for stats in [stats, &mut self.totals] {
            stats.published += 1;
            stats.published_bytes += message.body().len() as u64;
            stats.delivered += subscribers as u64;
            stats.copied += fanout.queues.len() as u64;
            stats.dropped_slow += fanout.slow;
            stats.dropped_no_consumer += u64::from(receivers == 0 && fanout.slow == 0);
        }
        if let Some(to) = &fanout.subscribers {
            let publication = Publication { topic: name.clone(), message: message.clone(), to: to.clone() };
            context.effects.push(Effect::Publication(publication));
        }
        Published { receivers: receivers as u32, queues: fanout.queues.clone() }
    }

    fn lookup(&mut self, name: &TopicName) -> usize {
        if let Some((last, key)) = &self.last
            && last.is_same(name)
        {
            return *key;
        }
        let key = self.entry(name);
        self.last = Some((name.clone(), key));
        key
    }

    /// The producer, if it has subscribed to the topic.
    fn subscribed_producer(&self, key: usize, message: &Message) -> Option<ConnectionId> {
        let connection = message.producer()?.connection;
        let held = self.held.get(&connection)?;
        (!held.patterns.is_empty() || held.topics.contains(&key)).then_some(connection)
    }

    /// Computes the receivers of a message.
    fn fanout(&self, key: usize, wanted: FanoutKey, context: &Context<'_>) -> Fanout {
        let topic = &self.entries[key];
        let patterns = self.matching(topic.name.as_bytes());
        let everyone = Self::subscribers(topic, &patterns);
        let (mut receivers, mut slow) = (Vec::new(), 0);
        for connection in everyone {
            if wanted.except == Some(connection) {
                continue;
            }
            if context.state.congestion.since.contains_key(&connection) {
                slow += 1;
            } else {
                receivers.push(connection);
            }
        }
        let subscribers = match receivers[..] {
            [] => None,
            [only] => Some(Recipients::One(only)),
            _ => Some(Recipients::Many(receivers.into())),
        };
        Fanout { key: wanted, subscribers, slow, queues: Self::queues(topic, &patterns).into() }
    }

    /// Each connection once, however many of its subscriptions match: first by name, then by patterns
    /// in their order.
    fn subscribers(topic: &Topic, patterns: &[&PatternEntry]) -> Vec<ConnectionId> {
        let mut seen: HashSet<ConnectionId> = HashSet::default();
        let mut all: Vec<ConnectionId> = Vec::new();
        let by_pattern = patterns.iter().flat_map(|entry| &entry.subscribers);
        for connection in topic.subscribers.iter().chain(by_pattern) {
            if seen.insert(*connection) {
                all.push(*connection);
            }
        }
        all
    }

    fn queues(topic: &Topic, patterns: &[&PatternEntry]) -> Vec<QueueAddress> {
        let mut all = topic.queues.clone();
        let mut seen: HashSet<&QueueAddress> = topic.queues.iter().collect();
        for queue in patterns.iter().flat_map(|entry| &entry.queues) {
            if seen.insert(queue) {
                all.push(queue.clone());
            }
        }
        all
    }

    /// The patterns that match a topic, in the order in which they were added.
    fn matching(&self, topic: &[u8]) -> Vec<&PatternEntry> {
        let mut steps = self.pattern_steps.get();
        let found = match self.index.matching(topic, &mut steps) {
            Some(numbers) => numbers.iter().map(|number| &self.patterns[number]).collect(),
            None => {
                steps += self.patterns.len() as u64;
                self.patterns.values().filter(|entry| entry.pattern.matches(topic)).collect()
            }
        };
        self.pattern_steps.set(steps);
        found
    }

    /// Number of topics that this shard remembers.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The names of the topics at these places, and the place to continue at; `None`: there is none. A topic keeps its place
    /// until the shard forgets it.
    pub(crate) fn names_from(&self, place: usize, count: usize) -> (Vec<TopicName>, Option<usize>) {
        let end = self.entries.capacity().min(place + count);
        let names = (place..end).filter_map(|place| self.entries.get(place)).map(|topic| topic.name.clone());
        (names.collect(), (end < self.entries.capacity()).then_some(end))
    }

    /// The state of a topic that this shard remembers.
    pub(crate) fn information(&self, name: &TopicName) -> Option<TopicInformation> {
        let topic = &self.entries[*self.names.get(name)?];
        let (subscribers, queues) = self.reach_of(topic);
        Some(TopicInformation {
            topic: topic.name.clone(),
            subscribers: subscribers as u32,
            queues: queues as u32,
            stats: topic.stats,
        })
    }

    /// Number of subscribers and queues that a message to this topic would reach.
    pub(crate) fn reach(&self, name: &TopicName) -> (usize, usize) {
        let unknown;
        let topic = match self.names.get(name) {
            Some(key) => &self.entries[*key],
            None => {
                unknown = Topic::new(name.clone());
                &unknown
            }
        };
        self.reach_of(topic)
    }

    fn reach_of(&self, topic: &Topic) -> (usize, usize) {
        let patterns = self.matching(topic.name.as_bytes());
        (Self::subscribers(topic, &patterns).len(), Self::queues(topic, &patterns).len())
    }

    /// Counters of forgotten topics.
    pub(crate) fn retired(&self) -> TopicStats {
        self.retired
    }

    /// Counters of all topics, including forgotten ones.
    pub(crate) fn totals(&self) -> TopicStats {
        self.totals
    }

    /// The topic with this name, added if it is new.
    fn entry(&mut self, name: &TopicName) -> usize {
        if let Some(key) = self.names.get(name) {
            return *key;
        }
        if self.passing >= PASSING_MAX {
            self.forget_passing();
        }
        self.passing += 1;
        let key = self.entries.insert(Topic::new(name.clone()));
        self.names.insert(name.clone(), key);
        key
    }

    /// Unused names must not pile up: all of them are removed at once, which costs little for each.
    fn forget_passing(&mut self) {
        let Self { entries, names, retired, .. } = self;
        entries.retain(|_, topic| {
            if topic.is_passing() {
                names.remove(&topic.name);
                retired.add(&topic.stats);
            }
            !topic.is_passing()
        });
        self.passing = 0;
        self.last = None;
    }

    /// Changes the subscribers or queues of a topic and updates the count of unused topics.
    fn settled<T>(&mut self, key: usize, change: impl FnOnce(&mut Topic) -> T) -> T {
        let topic = &mut self.entries[key];
        let before = topic.is_passing();
        topic.fanout = None;
        let result = change(topic);
        self.settle(key, before);
        result
    }

    fn settle(&mut self, key: usize, was_passing: bool) {
        match (was_passing, self.entries[key].is_passing()) {
            (true, false) => self.passing -= 1,
            (false, true) => {
                self.passing += 1;
                if self.passing > PASSING_MAX {
                    self.forget_passing();
                }
            }
            _ => {}
        }
    }

    /// The number of a pattern, added if it is new.
    fn pattern(&mut self, pattern: TopicPattern) -> usize {
        if let Some(number) = self.index.get(&pattern) {
            return number;
        }
        let number = self.next_pattern;
        self.next_pattern += 1;
        self.index.insert(&pattern, number);
        self.patterns.insert(number, PatternEntry { pattern, subscribers: Vec::new(), queues: Vec::new() });
        number
    }

    /// Changes the subscribers or queues of a pattern, and forgets it if it has none.
    fn change_pattern<T: Default>(
        &mut self,
        number: usize,
        change: impl FnOnce(&mut PatternEntry) -> T,
    ) -> T {
        self.changes += 1;
        let Some(entry) = self.patterns.get_mut(&number) else { return T::default() };
        let result = change(entry);
        if entry.subscribers.is_empty() && entry.queues.is_empty() {
            self.index.remove(&entry.pattern);
            self.patterns.remove(&number);
        }
        result
    }

    /// Number of subscriptions and bindings that were rejected because of a limit.
    pub(crate) fn rejected(&self) -> u64 {
        self.rejected
    }

    /// Work of searches for patterns that match a topic.
    pub(crate) fn pattern_steps(&self) -> u64 {
        self.pattern_steps.get()
    }
}

fn remove(subscribers: &mut Vec<ConnectionId>, connection: ConnectionId) -> bool {
    let before = subscribers.len();
    subscribers.retain(|subscriber| *subscriber != connection);
    subscribers.len() < before
}

fn take(queues: &mut Vec<QueueAddress>, queue: &QueueAddress) -> bool {
    let before = queues.len();
    queues.retain(|bound| bound != queue);
    queues.len() < before
}

fn too_many(what: &str, limit: usize) -> Rejection {
    Rejection::new(
        RejectionKind::LimitExceeded,
        format!("the limit of {limit} {what} is reached; remove one first"),
    )
}
