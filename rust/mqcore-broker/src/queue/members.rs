//! Consumers: the clients that joined a channel, and the subscriptions of a queue.

use std::sync::Arc;

use crate::context::state::Congestion;
use crate::model::client::Client;
use crate::model::id::{ConnectionId, Tag};
use crate::model::subscription::Terms;
use crate::model::time::Timestamp;

/// A consumer. All its unsettled deliveries share it: there are tens of thousands of deliveries, and
/// few consumers.
#[derive(Debug, Clone)]
pub(crate) struct Consumer {
    pub(crate) client: Arc<Client>,
    /// Its subscription to the queue; [`Tag::CHANNEL`] if it joined the channel.
    pub(crate) tag: Tag,
    pub(crate) terms: Terms,
    /// The name by which other connections refer to it.
    pub(crate) name: Option<Arc<[u8]>>,
    /// Whether it joined the channel for this queue, and not for all queues.
    pub(crate) by_queue: bool,
}

impl Consumer {
    /// A client that joined the channel.
    pub(crate) fn of_channel(client: Arc<Client>) -> Arc<Self> {
        Arc::new(Self { client, tag: Tag::CHANNEL, terms: Terms::default(), name: None, by_queue: false })
    }

    /// A client that joined the channel for this queue.
    pub(crate) fn of_queue(client: Arc<Client>, prefetch: u32) -> Arc<Self> {
        let terms = Terms { window: prefetch, ..Terms::default() };
        Arc::new(Self { client, tag: Tag::CHANNEL, terms, name: None, by_queue: true })
    }

    /// Identifies the consumer in its queue.
    pub(crate) fn key(&self) -> ConsumerKey {
        (self.client.connection, self.tag)
    }
}

/// Identifies a consumer of a queue.
pub(crate) type ConsumerKey = (ConnectionId, Tag);

/// A consumer, and since when.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) consumer: Arc<Consumer>,
    pub(crate) joined_at: Timestamp,
}

/// A client that joined a channel for some of its queues.
#[derive(Debug, Clone)]
pub(crate) struct PartialMember {
    pub(crate) member: Member,
    /// The queues that it consumes, with its prefetch. They may be removed and created again.
    pub(crate) queues: Vec<(u16, u32)>,
    /// Whether it stays when it consumes no queue any more.
    pub(crate) stays: bool,
}

/// The consumers of a channel, or of a queue that has subscriptions, in the order in which they joined.
#[derive(Debug, Clone)]
pub(crate) struct Members {
    list: Vec<Member>,
    /// Their connections, in the same order.
    connections: Arc<[ConnectionId]>,
    /// The connections of those without a tag, shared by all deliveries to all consumers. The same as
    /// `connections` if no consumer has a tag.
    untagged: Arc<[ConnectionId]>,
    /// Clients that joined the channel for some of its queues. They may pull from all of them.
    partial: Vec<PartialMember>,
    /// Whether some consumer's window is limited.
    windowed: bool,
    /// Whether some consumer shares slots with other queues.
    slotted: bool,
}

impl Default for Members {
    fn default() -> Self {
        let nobody: Arc<[ConnectionId]> = Arc::new([]);
        Self {
            list: Vec::new(),
            connections: nobody.clone(),
            untagged: nobody,
            partial: Vec::new(),
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

    /// The connections of consumers without a tag.
    pub(crate) fn untagged(&self) -> &Arc<[ConnectionId]> {
        &self.untagged
    }

    /// The consumers with a tag.
    pub(crate) fn tagged(&self) -> impl Iterator<Item = &Arc<Consumer>> {
        self.list.iter().map(|member| &member.consumer).filter(|consumer| consumer.tag != Tag::CHANNEL)
    }

    /// Whether some consumer has a tag.
    pub(crate) fn has_tagged(&self) -> bool {
        self.untagged.len() < self.list.len()
    }

    /// Whether some consumer's window is limited.
    pub(crate) fn has_windows(&self) -> bool {
        self.windowed
    }

    /// Whether some consumer shares slots with other queues.
    pub(crate) fn has_slots(&self) -> bool {
        self.slotted
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether some consumer has a tag, or joined for a queue: these consumers are not the channel's.
    pub(crate) fn are_of_queue(&self) -> bool {
        self.list.iter().any(|member| member.consumer.tag != Tag::CHANNEL || member.consumer.by_queue)
    }

    /// Whether the connection joined the channel, for all or for some of its queues.
    pub(crate) fn has_joined(&self, connection: ConnectionId) -> bool {
        self.untagged.contains(&connection) || self.has_joined_partly(connection)
    }

    /// Whether the connection joined the channel for some of its queues.
    pub(crate) fn has_joined_partly(&self, connection: ConnectionId) -> bool {
        self.partial.iter().any(|partial| partial.member.consumer.client.connection == connection)
    }

    /// Clients that joined the channel for some of its queues.
    pub(crate) fn partial(&self) -> &[PartialMember] {
        &self.partial
    }

    /// The client of this connection, if it joined the channel for some of its queues.
    pub(crate) fn partial_mut(&mut self, connection: ConnectionId) -> Option<&mut PartialMember> {
        self.partial.iter_mut().find(|partial| partial.member.consumer.client.connection == connection)
    }

    /// Adds a client that joined the channel for some of its queues.
    pub(crate) fn join_partly(&mut self, member: Member) {
        self.partial.push(PartialMember { member, queues: Vec::new(), stays: false });
    }

    /// Removes such a client. `false` if there is none.
    pub(crate) fn leave_partly(&mut self, connection: ConnectionId) -> bool {
        let before = self.partial.len();
        self.partial.retain(|partial| partial.member.consumer.client.connection != connection);
        self.partial.len() < before
    }

    pub(crate) fn position(&self, key: ConsumerKey) -> Option<usize> {
        let places = self.connections.iter().enumerate();
        places
            .filter(|(_, connection)| **connection == key.0)
            .map(|(place, _)| place)
            .find(|place| self.list[*place].consumer.tag == key.1)
    }

    /// Adds a consumer at the end, or gives an existing one its new terms, which apply to later
    /// deliveries. Returns whether it is new.
    pub(crate) fn join(&mut self, consumer: Arc<Consumer>, now: Timestamp) -> bool {
        let known = self.position(consumer.key());
        match known {
            Some(place) => {
                let known = Arc::make_mut(&mut self.list[place].consumer);
                (known.terms, known.by_queue) = (consumer.terms.clone(), consumer.by_queue);
            }
            None => self.list.push(Member { consumer, joined_at: now }),
        }
        self.refresh();
        known.is_none()
    }

    /// Removes a consumer and returns its position.
    pub(crate) fn leave(&mut self, key: ConsumerKey) -> Option<usize> {
        let position = self.position(key)?;
        self.list.remove(position);
        self.refresh();
        Some(position)
    }

    /// The consumers for which `keep` is true, in the same order.
    fn only(&self, keep: impl Fn(&Consumer) -> bool) -> Self {
        let list = self.list.iter().filter(|member| keep(&member.consumer)).cloned().collect();
        let mut chosen = Self { list, ..Self::default() };
        chosen.refresh();
        chosen
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

/// The consumers of a broadcast queue while connections are congested. Collecting them takes longer than a delivery, so
/// the queue keeps them for its next message.
#[derive(Debug)]
pub(crate) struct FreeMembers {
    /// The connections of all consumers. Each change of the consumers replaces this list.
    all: Arc<[ConnectionId]>,
    /// [`Congestion::changes`] when they were collected.
    changes: u64,
    pub(crate) free: Members,
    pub(crate) slow: Vec<Arc<Consumer>>,
}

impl FreeMembers {
    pub(crate) fn new(members: &Members, congestion: &Congestion) -> Self {
        let is_slow = |consumer: &Consumer| congestion.since.contains_key(&consumer.client.connection);
        let consumers = members.list.iter().map(|member| &member.consumer);
        Self {
            all: members.connections.clone(),
            changes: congestion.changes,
            free: members.only(|consumer| !is_slow(consumer)),
            slow: consumers.filter(|consumer| is_slow(consumer)).cloned().collect(),
        }
    }

    /// Whether neither the consumers nor the congestion have changed since.
    pub(crate) fn is_current(&self, members: &Members, congestion: &Congestion) -> bool {
        self.changes == congestion.changes && Arc::ptr_eq(&self.all, &members.connections)
    }
}
