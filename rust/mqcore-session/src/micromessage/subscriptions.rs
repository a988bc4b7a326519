//! The peer's subscriptions.

use std::sync::Arc;

use foldhash::HashMap;
use mqcore_broker::model::id::{Tag, TopicName};
use mqcore_wire::micromessage::failure::{ErrorToken, ProtocolFailure};
use mqcore_wire::micromessage::filter::{Filter, FilteredMessage, OverBudget, STEPS_MAX};
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
}

/// The subscriptions to one topic.
#[derive(Debug)]
struct Listeners {
    destination: Arc<[u8]>,
    /// Subscriptions without a filter.
    unfiltered: Vec<Tag>,
    /// The filters of all others, each once.
    filters: Vec<SharedFilter>,
}

/// A filter, and the subscriptions that have it.
#[derive(Debug)]
struct SharedFilter {
    filter: Filter,
    tags: Vec<Tag>,
}

impl Listeners {
    fn add(&mut self, tag: Tag, filter: Filter) {
        if filter.is_empty() {
            self.unfiltered.push(tag);
        } else if let Some(shared) = self.filters.iter_mut().find(|shared| shared.filter == filter) {
            shared.tags.push(tag);
        } else {
            self.filters.push(SharedFilter { filter, tags: vec![tag] });
        }
    }

    /// Removes a subscription. True if there is none left.
    fn remove(&mut self, tag: Tag) -> bool {
        self.unfiltered.retain(|other| *other != tag);
        self.filters.retain_mut(|shared| {
            shared.tags.retain(|other| *other != tag);
            !shared.tags.is_empty()
        });
        self.unfiltered.is_empty() && self.filters.is_empty()
    }
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
            let listeners = self.topics.entry(name.clone()).or_insert_with(|| Listeners {
                destination,
                unfiltered: Vec::new(),
                filters: Vec::new(),
            });
            listeners.add(tag, filter);
        }
        self.by_key.insert(subscription.key.clone(), tag);
        self.by_tag.insert(tag, subscription);
        Ok(tag)
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
            last = listeners.remove(tag);
            if last {
                self.topics.remove(name);
            }
        }
        Some((subscription, last))
    }

    /// The destination to deliver a topic's message to, or `None` if no filter passes it.
    ///
    /// # Errors
    /// [`OverBudget`] if no filter passed it before their work exceeded the budget.
    pub(super) fn wanted(
        &self,
        topic: &TopicName,
        list: &[u8],
        typing: Typing,
    ) -> Result<Option<&Arc<[u8]>>, OverBudget> {
        let Some(listeners) = self.topics.get(topic) else { return Ok(None) };
        if !listeners.unfiltered.is_empty() {
            return Ok(Some(&listeners.destination));
        }
        let properties = properties::parse(list).unwrap_or_default();
        let mut message = FilteredMessage::new(&properties, typing, STEPS_MAX);
        for shared in &listeners.filters {
            if shared.filter.matches(&mut message)? {
                return Ok(Some(&listeners.destination));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subscriptions(filters: impl Iterator<Item = String>) -> Subscriptions {
        let mut all = Subscriptions::default();
        for (number, filter) in filters.enumerate() {
            let topic = TopicName::new(b"prices").expect("a name");
            let subscription = Subscription {
                key: Key::Id(number.to_string().into()),
                place: Place::Topic(topic),
                destination: b"@topic:prices"[..].into(),
            };
            all.add(subscription, Filter::parse(filter.as_bytes()).expect("a filter"))
                .expect("there is room");
        }
        all
    }

    fn wanted(all: &Subscriptions, list: &[u8]) -> Result<bool, OverBudget> {
        let topic = TopicName::new(b"prices").expect("a name");
        all.wanted(&topic, list, Typing::Typed).map(|found| found.is_some())
    }

    #[test]
    fn equal_filters_are_kept_once_until_their_last_subscription_ends() {
        let mut all = subscriptions((0..1000).map(|number| format!("price>N{}", number % 2)));
        let topic = TopicName::new(b"prices").expect("a name");
        assert_eq!(all.topics[&topic].filters.len(), 2);
        for tag in 1..=1000 {
            assert_eq!(wanted(&all, b"price:N5;"), Ok(true));
            let (_, last) = all.end(Tag(tag)).expect("it is there");
            assert_eq!(last, tag == 1000);
        }
        assert_eq!(wanted(&all, b"price:N5;"), Ok(false));
    }

    #[test]
    fn as_many_short_filters_as_possible_are_within_the_budget() {
        let terms = |number: usize| (0..31).map(move |at| format!("key{at}!=Tregion{number};"));
        let filters = (0..SUBSCRIPTIONS_MAX).map(|number| terms(number).collect::<String>() + "last=N1");
        let all = subscriptions(filters);
        let list: String = (0..31).map(|at| format!("key{at}:Tnorth;")).collect();
        assert_eq!(wanted(&all, list.as_bytes()), Ok(false));
        assert_eq!(wanted(&all, format!("{list}last:N1;").as_bytes()), Ok(true));
    }

    #[test]
    fn filters_over_the_budget_stop_and_match_nothing() {
        let long = |at: usize| format!("a<T{};", "x".repeat(900 + at));
        let terms = (0..31).map(long).collect::<String>();
        let all = subscriptions((0..1000).map(|number| format!("{terms}a>T{number}")));
        let list = format!("a:T{};", "x".repeat(60_000));
        assert_eq!(wanted(&all, list.as_bytes()), Err(OverBudget));
        // A filter that is reached in time still passes the message.
        assert_eq!(wanted(&all, format!("{}0;", &list[..list.len() - 1]).as_bytes()), Ok(true));
    }
}
