//! The peer's subscriptions.

use std::sync::Arc;

use foldhash::HashMap;
use mqcore_broker::model::id::{QueueAddress, Tag, TopicName};
use mqcore_wire::micromessage::failure::{ErrorToken, ProtocolFailure};
use mqcore_wire::micromessage::filter::Filter;
use mqcore_wire::micromessage::properties::{self, Typing};

use super::destination::Place;

/// Maximum subscriptions of one connection; further ones are rejected.
pub(super) const SUBSCRIPTIONS_MAX: usize = 1024;

/// Identifies a subscription: its id, or its destination if it has none.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Id(Box<str>),
    Destination(Box<[u8]>),
}

/// One subscription.
#[derive(Debug, Clone)]
pub(super) struct Subscription {
    pub(super) key: Key,
    pub(super) place: Place,
    /// As the peer wrote it, and as it appears in each message.
    pub(super) destination: Arc<[u8]>,
    /// Maximum number of unsettled messages of its queue; 0: only the window of the connection.
    pub(super) prefetch: u16,
}

/// The subscriptions to one topic.
#[derive(Debug)]
struct Listeners {
    destination: Arc<[u8]>,
    /// By the subscription's number.
    filters: Vec<(Tag, Filter)>,
}

/// All subscriptions of a connection.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    by_tag: HashMap<Tag, Subscription>,
    by_key: HashMap<Key, Tag>,
    topics: HashMap<TopicName, Listeners>,
    last: u32,
}

impl Subscriptions {
    pub(super) fn add(&mut self, subscription: Subscription, filter: Filter) -> Result<Tag, ProtocolFailure> {
        if self.by_key.contains_key(&subscription.key) {
            let why = match &subscription.key {
                Key::Id(id) => format!("the subscription {id} already exists; end it or choose another id"),
                Key::Destination(_) => {
                    "the destination already has a subscription; give this one an id".into()
                }
            };
            return Err(ProtocolFailure::new(ErrorToken::Unexpected, why));
        }
        if self.by_tag.len() >= SUBSCRIPTIONS_MAX {
            let why = format!("the connection has reached its limit of {SUBSCRIPTIONS_MAX} subscriptions");
            return Err(ProtocolFailure::new(ErrorToken::Limit, why));
        }
        let exhausted = || {
            ProtocolFailure::new(
                ErrorToken::Limit,
                "this connection has used up its subscription numbers; open another connection",
            )
        };
        self.last = self.last.checked_add(1).ok_or_else(exhausted)?;
        let tag = Tag(self.last);
        if let Place::Topic(name) = &subscription.place {
            let destination = Arc::clone(&subscription.destination);
            let listeners = self
                .topics
                .entry(name.clone())
                .or_insert_with(|| Listeners { destination, filters: Vec::new() });
            listeners.filters.push((tag, filter));
        }
        self.by_key.insert(subscription.key.clone(), tag);
        self.by_tag.insert(tag, subscription);
        Ok(tag)
    }

    /// Sets the prefetch of a subscription to a queue. Returns the queue; `None` for a topic.
    pub(super) fn set_prefetch(&mut self, tag: Tag, prefetch: u16) -> Option<QueueAddress> {
        let subscription = self.by_tag.get_mut(&tag)?;
        subscription.prefetch = prefetch;
        match &subscription.place {
            Place::Queue(queue) => Some(queue.clone()),
            Place::Topic(_) => None,
        }
    }

    pub(super) fn tag(&self, key: &Key) -> Option<Tag> {
        self.by_key.get(key).copied()
    }

    pub(super) fn get(&self, tag: Tag) -> Option<&Subscription> {
        self.by_tag.get(&tag)
    }

    /// Frees its name, although messages in flight may still arrive: see [`Subscriptions::end`].
    pub(super) fn unname(&mut self, tag: Tag) {
        if let Some(subscription) = self.by_tag.get(&tag)
            && self.by_key.get(&subscription.key) == Some(&tag)
        {
            self.by_key.remove(&subscription.key);
        }
    }

    /// Whether the peer has ended it and the broker has not confirmed that yet.
    pub(super) fn is_ending(&self, tag: Tag) -> bool {
        self.by_tag.get(&tag).is_some_and(|subscription| self.by_key.get(&subscription.key) != Some(&tag))
    }

    /// Removes a subscription. Returns it, and whether it was the last one of its topic.
    pub(super) fn end(&mut self, tag: Tag) -> Option<(Subscription, bool)> {
        self.unname(tag);
        let subscription = self.by_tag.remove(&tag)?;
        let mut last = false;
        if let Place::Topic(name) = &subscription.place
            && let Some(listeners) = self.topics.get_mut(name)
        {
            listeners.filters.retain(|(other, _)| *other != tag);
            last = listeners.filters.is_empty();
            if last {
                self.topics.remove(name);
            }
        }
        Some((subscription, last))
    }

    /// The destination to deliver a topic's message to, or `None` if no filter passes it.
    pub(super) fn wanted(&self, topic: &TopicName, list: &[u8], typing: Typing) -> Option<&Arc<[u8]>> {
        let listeners = self.topics.get(topic)?;
        if listeners.filters.iter().any(|(_, filter)| filter.is_empty()) {
            return Some(&listeners.destination);
        }
        let properties = properties::parse(list).unwrap_or_default();
        let passes = listeners.filters.iter().any(|(_, filter)| filter.matches(&properties, typing));
        passes.then_some(&listeners.destination)
    }
}
