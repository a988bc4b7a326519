//! Topics: names that fan out to whoever matches them. Nothing is stored; who is not there misses it.
//!
//! A topic lives on the shard that the hash of its name says. Subscriptions and bindings by pattern are known to every
//! shard, because a pattern may match topics of any of them.

use std::sync::Arc;

use foldhash::{HashMap, HashSet};
use slab::Slab;
use smallvec::SmallVec;

use crate::context::Context;
use crate::model::client::Client;
use crate::model::effect::{Effect, Event, Publication, Recipients};
use crate::model::id::{ConnectionId, QueueAddress, TopicName};
use crate::model::message::Message;
use crate::model::rejection::{Rejection, RejectionKind};
use crate::model::stats::{SubscriberInformation, TopicInformation, TopicStats};
use crate::model::time::Timestamp;
use crate::model::topic::{BINDINGS_MAX, PASSING_MAX, PATTERNS_MAX, SUBSCRIPTIONS_MAX, TopicPattern};

/// One who subscribed.
#[derive(Debug, Clone)]
struct Subscriber {
    client: Arc<Client>,
    since: Timestamp,
    /// What the topic had counted by then; of no meaning for patterns.
    before: TopicStats,
    /// It is told of each message by an event of its own.
    told: bool,
}

/// Who gets what is published to a topic, as long as nothing changes.
#[derive(Debug)]
struct Fanout {
    key: FanoutKey,
    /// Those who get the same octets.
    shared: Option<Recipients>,
    /// Those who are told one by one.
    told: Vec<ConnectionId>,
    /// Those who do not keep up.
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
    /// By name, in the order in which they subscribed.
    subscribers: Vec<Subscriber>,
    /// By name.
    queues: Vec<QueueAddress>,
    fanout: Option<Fanout>,
    stats: TopicStats,
}

impl Topic {
    fn new(name: TopicName) -> Self {
        let stats = TopicStats::default();
        Self { name, subscribers: Vec::new(), queues: Vec::new(), fanout: None, stats }
    }

    /// It exists only because somebody published to it.
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

/// What a connection subscribed to.
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
    /// The topic that was published to last. The very same name, not an equal one.
    last: Option<(TopicName, usize)>,
    patterns: Vec<PatternEntry>,
    held: HashMap<ConnectionId, ConnectionSubscriptions>,
    bound: HashMap<QueueAddress, usize>,
    /// Those that outlive the broker.
    saved: HashSet<(TopicPattern, QueueAddress)>,
    /// Grows with every change to a pattern's subscribers or queues, so that casts made before are not used again.
    changes: u64,
    retired: TopicStats,
}

/// What became of a message published to a topic.
pub(crate) struct Published {
    /// Subscribers and queues that got it.
    pub(crate) receivers: u32,
    /// Queues that get a copy.
    pub(crate) queues: Arc<[QueueAddress]>,
}

impl Topics {
    // ---- Subscribing -------------------------------------------------------------------------------------

    /// A connection wants a topic's messages from now on. Twice is fine, and changes only how it is told.
    pub(crate) fn subscribe(
        &mut self,
        client: &Arc<Client>,
        pattern: TopicPattern,
        told: bool,
        now: Timestamp,
    ) -> Result<(), Rejection> {
        let connection = client.connection;
        let subscriber =
            Subscriber { client: client.clone(), since: now, before: TopicStats::default(), told };
        if let TopicPattern::Exact(name) = pattern {
            let key = self.entry(&name);
            let held = self.held.entry(connection).or_default();
            if held.topics.contains(&key) {
                self.entries[key].fanout = None;
                if let Some(known) = find(&mut self.entries[key].subscribers, connection) {
                    known.told = told;
                }
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
        let entry = self.patterns.iter_mut().find(|entry| entry.pattern == pattern);
        if let Some(known) = entry.and_then(|entry| find(&mut entry.subscribers, connection)) {
            known.told = told;
            self.changes += 1;
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

    /// A connection ended.
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

    // ---- Binding queues ----------------------------------------------------------------------------------

    /// A queue wants copies from now on, whether or not it exists yet. Twice is fine.
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

    /// The same for a binding that is saved. `true` if it was not saved before.
    pub(crate) fn bind_saved(
        &mut self,
        pattern: TopicPattern,
        queue: &QueueAddress,
    ) -> Result<bool, Rejection> {
        self.bind(pattern.clone(), queue)?;
        Ok(self.saved.insert((pattern, folded(queue))))
    }

    /// A saved binding is so no longer. `true` if it was.
    pub(crate) fn forget_saved(&mut self, pattern: &TopicPattern, queue: &QueueAddress) -> bool {
        !self.saved.is_empty() && self.saved.remove(&(pattern.clone(), folded(queue)))
    }

    /// All that are saved.
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

    /// What a queue is bound to: topics of this shard, and patterns.
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

    // ---- Publishing --------------------------------------------------------------------------------------

    /// Hands a message to all subscribers. Copies for queues are the caller's to make.
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
        let shared = fanout.shared.as_ref().map_or(0, |to| to.as_slice().len());
        let receivers = shared + fanout.told.len() + fanout.queues.len();
        stats.published += 1;
        stats.published_bytes += message.body().len() as u64;
        stats.delivered += (shared + fanout.told.len()) as u64;
        stats.copied += fanout.queues.len() as u64;
        stats.dropped_slow += fanout.slow;
        stats.dropped_no_consumer += u64::from(receivers == 0 && fanout.slow == 0);
        if let Some(to) = &fanout.shared {
            let publication = Publication { topic: name.clone(), message: message.clone(), to: to.clone() };
            context.effects.push(Effect::Publication(publication));
        }
        for to in &fanout.told {
            let event = Event::Published { topic: name.clone(), message: message.clone() };
            context.effects.push(Effect::Notify(*to, event));
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

    /// The producer, if the topic's messages would reach it.
    fn subscribed_producer(&self, key: usize, message: &Message) -> Option<ConnectionId> {
        let connection = message.producer()?.connection;
        let held = self.held.get(&connection)?;
        (held.patterns > 0 || held.topics.contains(&key)).then_some(connection)
    }

    /// Works out who gets a message now.
    fn fanout(&self, key: usize, wanted: FanoutKey, context: &Context<'_>) -> Fanout {
        let topic = &self.entries[key];
        let everyone = self.subscribers(topic);
        let (mut shared, mut told, mut slow) = (Vec::new(), Vec::new(), 0);
        for subscriber in everyone {
            let connection = subscriber.client.connection;
            if wanted.except == Some(connection) {
                continue;
            }
            if context.state.congestion.since.contains_key(&connection) {
                slow += 1;
            } else if subscriber.told {
                told.push(connection);
            } else {
                shared.push(connection);
            }
        }
        let shared = match shared[..] {
            [] => None,
            [only] => Some(Recipients::One(only)),
            _ => Some(Recipients::Many(shared.into())),
        };
        Fanout { key: wanted, shared, told, slow, queues: self.queues(topic).into() }
    }

    /// Everybody once, however many of its subscriptions match: by name first, then by the patterns in their order.
    fn subscribers<'a>(&'a self, topic: &'a Topic) -> Vec<&'a Subscriber> {
        let mut seen: HashMap<ConnectionId, usize> = HashMap::default();
        let mut all: Vec<&Subscriber> = Vec::new();
        let by_pattern = self.matching(topic).flat_map(|entry| &entry.subscribers);
        for subscriber in topic.subscribers.iter().chain(by_pattern) {
            match seen.entry(subscriber.client.connection) {
                std::collections::hash_map::Entry::Vacant(vacant) => {
                    vacant.insert(all.len());
                    all.push(subscriber);
                }
                // Whoever wants to be told of each message gets that, even if another subscription does not need it.
                std::collections::hash_map::Entry::Occupied(place) if subscriber.told => {
                    all[*place.get()] = subscriber;
                }
                std::collections::hash_map::Entry::Occupied(_) => {}
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

    // ---- What is there -----------------------------------------------------------------------------------

    /// All topics of this shard that are remembered.
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

    /// How many subscribers and queues a message to this topic would reach.
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

    /// Counts of topics that are forgotten.
    pub(crate) fn retired(&self) -> TopicStats {
        self.retired
    }

    /// Who gets the messages of a topic. Those who subscribed to a pattern count from when the topic was first seen.
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

    // ---- Entries -----------------------------------------------------------------------------------------

    /// The topic of this name, made if it is new.
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

    /// Names that come and go must not pile up: all that nobody holds go at once, which costs little for each.
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

    /// Changes who has a topic, and keeps the count of those that nobody has.
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

fn find(subscribers: &mut [Subscriber], connection: ConnectionId) -> Option<&mut Subscriber> {
    subscribers.iter_mut().find(|subscriber| subscriber.client.connection == connection)
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

/// Channels are looked up without respect to case, so that the same queue is never bound twice.
fn folded(queue: &QueueAddress) -> QueueAddress {
    let name = queue.channel.as_str();
    if !name.bytes().any(|octet| octet.is_ascii_uppercase()) {
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
        format!("there are {limit} {what} already, which is the limit"),
    )
}
