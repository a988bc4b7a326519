//! Topics: names that fan out to their subscribers. Nothing is stored: a client that is not connected
//! misses the message.
//!
//! A topic is on the shard given by the hash of its name. Every shard knows all subscriptions and
//! bindings by pattern, because a pattern may match topics of any shard.

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
use crate::model::stats::{SubscriberInformation, TopicInformation, TopicStats};
use crate::model::time::Timestamp;
use crate::model::topic::{BINDINGS_MAX, PASSING_MAX, PATTERNS_MAX, SUBSCRIPTIONS_MAX, TopicPattern};

/// A subscriber.
#[derive(Debug, Clone)]
struct Subscriber {
    client: Arc<Client>,
    since: Timestamp,
    /// The counters of the topic when it subscribed; meaningless for patterns.
    before: TopicStats,
}

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
    subscribers: Vec<Subscriber>,
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
    subscribers: Vec<Subscriber>,
    queues: Vec<QueueAddress>,
}

/// The subscriptions of a connection.
#[derive(Debug, Default)]
struct ConnectionSubscriptions {
    topics: SmallVec<[usize; 2]>,
    patterns: usize,
}

/// All topics of a shard.
#[derive(Debug, Default)]
pub(crate) struct Topics {
    entries: Slab<Topic>,
    names: HashMap<TopicName, usize>,
    passing: usize,
    /// The topic that was published to last, compared by pointer.
    last: Option<(TopicName, usize)>,
    patterns: Vec<PatternEntry>,
    held: HashMap<ConnectionId, ConnectionSubscriptions>,
    bound: HashMap<QueueAddress, usize>,
    /// Bindings in the journal.
    saved: HashSet<(TopicPattern, QueueAddress)>,
    /// Grows with every change of a pattern's subscribers or queues, which invalidates earlier fanouts.
    changes: u64,
    retired: TopicStats,
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
        now: Timestamp,
    ) -> Result<(), Rejection> {
        let connection = client.connection;
        let subscriber = Subscriber { client: client.clone(), since: now, before: TopicStats::default() };
        if let TopicPattern::Exact(name) = pattern {
            let key = self.entry(&name);
            let held = self.held.entry(connection).or_default();
            if held.topics.contains(&key) {
                return Ok(());
            }
            if held.topics.len() >= SUBSCRIPTIONS_MAX {
                return Err(too_many("topics", SUBSCRIPTIONS_MAX));
            }
            held.topics.push(key);
            self.settled(key, |topic| {
                let before = topic.stats;
                topic.subscribers.push(Subscriber { before, ..subscriber });
            });
            return Ok(());
        }
        let held = self.held.entry(connection).or_default();
        let entry = self.patterns.iter().find(|entry| entry.pattern == pattern);
        if entry.is_some_and(|entry| is_subscribed(&entry.subscribers, connection)) {
            return Ok(());
        }
        if held.patterns >= PATTERNS_MAX {
            return Err(too_many("patterns", PATTERNS_MAX));
        }
        held.patterns += 1;
        self.pattern(pattern).subscribers.push(subscriber);
        Ok(())
    }

    /// `false` if it had not subscribed.
    pub(crate) fn unsubscribe(&mut self, connection: ConnectionId, pattern: &TopicPattern) -> bool {
        let TopicPattern::Exact(name) = pattern else {
            let Some(at) = self.patterns.iter().position(|entry| entry.pattern == *pattern) else {
                return false;
            };
            let gone = remove(&mut self.patterns[at].subscribers, connection);
            if gone && let Some(held) = self.held.get_mut(&connection) {
                held.patterns -= 1;
            }
            self.drop_empty_patterns();
            return gone;
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
        if held.patterns > 0 {
            for entry in &mut self.patterns {
                remove(&mut entry.subscribers, connection);
            }
            self.drop_empty_patterns();
        }
    }

    /// Binds a queue, which need not exist yet. Binding twice has no effect.
    pub(crate) fn bind(&mut self, pattern: TopicPattern, queue: &QueueAddress) -> Result<(), Rejection> {
        let queue = folded(queue);
        let bound = self.bound.get(&queue).copied().unwrap_or(0);
        let known = match &pattern {
            TopicPattern::Exact(name) => {
                self.names.get(name).is_some_and(|key| self.entries[*key].queues.contains(&queue))
            }
            _ => self.patterns.iter().any(|entry| entry.pattern == pattern && entry.queues.contains(&queue)),
        };
        if known {
            return Ok(());
        }
        if bound >= BINDINGS_MAX {
            return Err(too_many("bindings of a queue to topics", BINDINGS_MAX));
        }
        self.bound.insert(queue.clone(), bound + 1);
        if let TopicPattern::Exact(name) = pattern {
            let key = self.entry(&name);
            self.settled(key, |topic| topic.queues.push(queue));
        } else {
            self.pattern(pattern).queues.push(queue);
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
        Ok(self.saved.insert((pattern, folded(queue))))
    }

    /// Whether a saved binding exists.
    pub(crate) fn is_saved(&self, pattern: &TopicPattern, queue: &QueueAddress) -> bool {
        self.saved.contains(&(pattern.clone(), folded(queue)))
    }

    /// Marks a binding as no longer saved. `true` if it was saved.
    pub(crate) fn forget_saved(&mut self, pattern: &TopicPattern, queue: &QueueAddress) -> bool {
        !self.saved.is_empty() && self.saved.remove(&(pattern.clone(), folded(queue)))
    }

    /// All saved bindings.
    pub(crate) fn saved_bindings(&self) -> impl Iterator<Item = &(TopicPattern, QueueAddress)> {
        self.saved.iter()
    }

    /// `false` if it was not bound.
    pub(crate) fn unbind(&mut self, pattern: &TopicPattern, queue: &QueueAddress) -> bool {
        let queue = folded(queue);
        let gone = match pattern {
            TopicPattern::Exact(name) => match self.names.get(name) {
                Some(&key) => self.settled(key, |topic| take(&mut topic.queues, &queue)),
                None => false,
            },
            _ => {
                let entry = self.patterns.iter_mut().find(|entry| entry.pattern == *pattern);
                let gone = entry.is_some_and(|entry| take(&mut entry.queues, &queue));
                self.drop_empty_patterns();
                gone
            }
        };
        if gone && let Some(count) = self.bound.get_mut(&queue) {
            *count -= 1;
            if *count == 0 {
                self.bound.remove(&queue);
            }
        }
        gone
    }

    /// The topics of this shard and the patterns that a queue is bound to.
    pub(crate) fn bindings(&self, queue: &QueueAddress) -> Vec<TopicPattern> {
        let queue = folded(queue);
        if !self.bound.contains_key(&queue) {
            return Vec::new();
        }
        let topics = self.entries.iter().filter(|(_, topic)| topic.queues.contains(&queue));
        let patterns = self.patterns.iter().filter(|entry| entry.queues.contains(&queue));
        topics
            .map(|(_, topic)| TopicPattern::Exact(topic.name.clone()))
            .chain(patterns.map(|entry| entry.pattern.clone()))
            .collect()
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
        stats.published += 1;
        stats.published_bytes += message.body().len() as u64;
        stats.delivered += subscribers as u64;
        stats.copied += fanout.queues.len() as u64;
        stats.dropped_slow += fanout.slow;
        stats.dropped_no_consumer += u64::from(receivers == 0 && fanout.slow == 0);
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
        (held.patterns > 0 || held.topics.contains(&key)).then_some(connection)
    }

    /// Computes the receivers of a message.
    fn fanout(&self, key: usize, wanted: FanoutKey, context: &Context<'_>) -> Fanout {
        let topic = &self.entries[key];
        let everyone = self.subscribers(topic);
        let (mut receivers, mut slow) = (Vec::new(), 0);
        for subscriber in everyone {
            let connection = subscriber.client.connection;
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
        Fanout { key: wanted, subscribers, slow, queues: self.queues(topic).into() }
    }

    /// Each connection once, however many of its subscriptions match: first by name, then by patterns
    /// in their order.
    fn subscribers<'a>(&'a self, topic: &'a Topic) -> Vec<&'a Subscriber> {
        let mut seen: HashSet<ConnectionId> = HashSet::default();
        let mut all: Vec<&Subscriber> = Vec::new();
        let by_pattern = self.matching(topic).flat_map(|entry| &entry.subscribers);
        for subscriber in topic.subscribers.iter().chain(by_pattern) {
            if seen.insert(subscriber.client.connection) {
                all.push(subscriber);
            }
        }
        all
    }

    fn queues(&self, topic: &Topic) -> Vec<QueueAddress> {
        let mut all = topic.queues.clone();
        for queue in self.matching(topic).flat_map(|entry| &entry.queues) {
            if !all.contains(queue) {
                all.push(queue.clone());
            }
        }
        all
    }

    fn matching<'a>(&'a self, topic: &'a Topic) -> impl Iterator<Item = &'a PatternEntry> {
        self.patterns.iter().filter(|entry| entry.pattern.matches(topic.name.as_bytes()))
    }

    /// All topics that this shard remembers.
    pub(crate) fn information(&self) -> Vec<TopicInformation> {
        self.entries
            .iter()
            .map(|(_, topic)| TopicInformation {
                topic: topic.name.clone(),
                subscribers: self.subscribers(topic).len() as u32,
                queues: self.queues(topic).len() as u32,
                stats: topic.stats,
            })
            .collect()
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
        (self.subscribers(topic).len(), self.queues(topic).len())
    }

    /// Counters of forgotten topics.
    pub(crate) fn retired(&self) -> TopicStats {
        self.retired
    }

    /// The subscribers of a topic. Subscriptions by pattern count from when the topic was first seen.
    pub(crate) fn subscribers_of(&self, name: &TopicName) -> Vec<SubscriberInformation> {
        let Some(key) = self.names.get(name) else { return Vec::new() };
        let topic = &self.entries[*key];
        self.subscribers(topic)
            .into_iter()
            .map(|subscriber| SubscriberInformation {
                client: subscriber.client.clone(),
                since: subscriber.since,
                messages: topic.stats.published - subscriber.before.published,
                bytes: topic.stats.published_bytes - subscriber.before.published_bytes,
            })
            .collect()
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

    fn pattern(&mut self, pattern: TopicPattern) -> &mut PatternEntry {
        self.changes += 1;
        let at = self.patterns.iter().position(|entry| entry.pattern == pattern).unwrap_or_else(|| {
            self.patterns.push(PatternEntry { pattern, subscribers: Vec::new(), queues: Vec::new() });
            self.patterns.len() - 1
        });
        &mut self.patterns[at]
    }

    fn drop_empty_patterns(&mut self) {
        self.changes += 1;
        self.patterns.retain(|entry| !entry.subscribers.is_empty() || !entry.queues.is_empty());
    }
}

fn is_subscribed(subscribers: &[Subscriber], connection: ConnectionId) -> bool {
    subscribers.iter().any(|subscriber| subscriber.client.connection == connection)
}

fn remove(subscribers: &mut Vec<Subscriber>, connection: ConnectionId) -> bool {
    let before = subscribers.len();
    subscribers.retain(|subscriber| subscriber.client.connection != connection);
    subscribers.len() < before
}

fn take(queues: &mut Vec<QueueAddress>, queue: &QueueAddress) -> bool {
    let before = queues.len();
    queues.retain(|bound| bound != queue);
    queues.len() < before
}

/// The lookup of channels ignores case, so the same queue must not be bound twice.
fn folded(queue: &QueueAddress) -> QueueAddress {
    let name = queue.channel.as_str();
    if !name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return queue.clone();
    }
    match crate::model::id::ChannelName::new(&name.to_ascii_lowercase()) {
        Ok(channel) => QueueAddress { channel, id: queue.id },
        Err(_) => queue.clone(),
    }
}

fn too_many(what: &str, limit: usize) -> Rejection {
    Rejection::new(
        RejectionKind::LimitExceeded,
        format!("the limit of {limit} {what} is reached; remove one first"),
    )
}
