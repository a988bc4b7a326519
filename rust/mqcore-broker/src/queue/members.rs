//! Who consumes: the clients that joined a channel, and the subscriptions that a queue has of its own.

use std::sync::Arc;

use crate::model::client::Client;
use crate::model::id::{ConnectionId, Tag};
use crate::model::subscription::Terms;
use crate::model::time::Timestamp;

/// Somebody whom messages can be handed to. Each delivery that is not settled shares it: there are tens of thousands of them,
/// and few consumers.
#[derive(Debug, Clone)]
pub(crate) struct Consumer {
    pub(crate) client: Arc<Client>,
    /// Which of its subscriptions to the queue; [`Tag::CHANNEL`] if it joined the channel.
    pub(crate) tag: Tag,
    pub(crate) terms: Terms,
    /// The name by which others speak of it.
    pub(crate) name: Option<Arc<[u8]>>,
}

impl Consumer {
    /// Somebody who joined the channel.
    pub(crate) fn of_channel(client: Arc<Client>) -> Arc<Self> {
        Arc::new(Self { client, tag: Tag::CHANNEL, terms: Terms::default(), name: None })
    }

    /// What tells it from all others.
    pub(crate) fn key(&self) -> ConsumerKey {
        (self.client.connection, self.tag)
    }
}

/// What tells a consumer of a queue from all others.
pub(crate) type ConsumerKey = (ConnectionId, Tag);

/// One consumer, and since when.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) consumer: Arc<Consumer>,
    pub(crate) joined_at: Timestamp,
}

/// All of a channel, or of a queue that has subscriptions; in the order in which they came.
#[derive(Debug, Clone)]
pub(crate) struct Members {
    list: Vec<Member>,
    /// Their connections, in the same order.
    connections: Arc<[ConnectionId]>,
    /// The connections of those without a tag: shared by all deliveries that go to everybody. The same as `connections`
    /// where nobody has one.
    untagged: Arc<[ConnectionId]>,
    /// Somebody's window is limited.
    windowed: bool,
    /// Somebody's slots are shared with other queues.
    slotted: bool,
}

impl Default for Members {
    fn default() -> Self {
        let nobody: Arc<[ConnectionId]> = Arc::new([]);
        Self {
            list: Vec::new(),
            connections: nobody.clone(),
            untagged: nobody,
            windowed: false,
            slotted: false,
        }
    }
}

impl Members {
    pub(crate) fn list(&self) -> &[Member] {
        &self.list
    }

    /// The connections of all, in the order of the list.
    pub(crate) fn connections(&self) -> &[ConnectionId] {
        &self.connections
    }

    /// The connections of those without a tag.
    pub(crate) fn untagged(&self) -> &Arc<[ConnectionId]> {
        &self.untagged
    }

    /// Those with a tag.
    pub(crate) fn tagged(&self) -> impl Iterator<Item = &Arc<Consumer>> {
        self.list.iter().map(|member| &member.consumer).filter(|consumer| consumer.tag != Tag::CHANNEL)
    }

    /// Whether anybody has a tag.
    pub(crate) fn has_tagged(&self) -> bool {
        self.untagged.len() < self.list.len()
    }

    /// Whether anybody's window is limited.
    pub(crate) fn has_windows(&self) -> bool {
        self.windowed
    }

    /// Whether anybody has slots that other queues take too.
    pub(crate) fn has_slots(&self) -> bool {
        self.slotted
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether the connection joined the channel.
    pub(crate) fn has_joined(&self, connection: ConnectionId) -> bool {
        self.untagged.contains(&connection)
    }

    pub(crate) fn position(&self, key: ConsumerKey) -> Option<usize> {
        let places = self.connections.iter().enumerate();
        places
            .filter(|(_, connection)| **connection == key.0)
            .map(|(place, _)| place)
            .find(|place| self.list[*place].consumer.tag == key.1)
    }

    /// Adds a consumer at the end, or gives the one that is there already its new terms, which hold for what is handed out from
    /// then on; `true` if it is new.
    pub(crate) fn join(&mut self, consumer: Arc<Consumer>, now: Timestamp) -> bool {
        let known = self.position(consumer.key());
        match known {
            Some(place) => {
                Arc::make_mut(&mut self.list[place].consumer).terms = consumer.terms.clone();
            }
            None => self.list.push(Member { consumer, joined_at: now }),
        }
        self.refresh();
        known.is_none()
    }

    /// Removes a consumer; tells where it stood.
    pub(crate) fn leave(&mut self, key: ConsumerKey) -> Option<usize> {
        let position = self.position(key)?;
        self.list.remove(position);
        self.refresh();
        Some(position)
    }

    fn refresh(&mut self) {
        let connection = |member: &Member| member.consumer.client.connection;
        self.connections = self.list.iter().map(connection).collect();
        let is_tagged = |member: &Member| member.consumer.tag != Tag::CHANNEL;
        self.untagged = if self.list.iter().any(is_tagged) {
            self.list.iter().filter(|member| !is_tagged(member)).map(connection).collect()
        } else {
            self.connections.clone()
        };
        let terms = || self.list.iter().map(|member| &member.consumer.terms);
        self.slotted = terms().any(|terms| terms.slots.is_some());
        self.windowed = self.slotted || terms().any(|terms| terms.window > 0);
    }
}
