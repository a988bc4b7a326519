//! Everything on a shard that has a name, and how to find it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use foldhash::{HashMap, HashMapExt};
use slab::Slab;
use smallvec::SmallVec;

use crate::model::client::Client;
use crate::model::command::EventKind;
use crate::model::id::{ChannelName, ConnectionId, QueueRef};
use crate::model::rejection::{Rejection, RejectionKind};
use crate::queue::Queue;
use crate::queue::members::{ConsumerKey, Members};
use crate::routing::Routers;
use crate::routing::bindings::{Bindings, SubscriptionNames};
use crate::routing::topics::Topics;
use crate::shard::authentication::Authentications;
use crate::shard::channel::Channel;
use crate::shard::directory::ClientDirectory;

/// A shard's data about a connection.
#[derive(Debug)]
pub(crate) struct PeerState {
    pub(crate) client: Arc<Client>,
    /// Channels it joined.
    pub(crate) joined: SmallVec<[usize; 2]>,
    /// Channels it left while it had messages of theirs in flight; others may use these keys by now.
    pub(crate) left: BTreeSet<usize>,
    /// Channels to whose events, or to events of whose queues, it subscribed; others may use these keys by now.
    pub(crate) watched: BTreeSet<usize>,
    /// Queues that it subscribed to; some may not exist any more.
    pub(crate) subscribed: Vec<QueueRef>,
}

/// Channels, peers, topics, routers and bindings of one shard: all that commands change, apart from [`ShardState`].
pub(crate) struct Entities {
    pub(crate) channels: Slab<Channel>,
    /// Keys of `channels` by lower-case name.
    pub(crate) names: HashMap<Box<str>, usize>,
    /// The same keys in the order in which channels are listed.
    pub(crate) ordered: BTreeMap<ChannelName, usize>,
    /// The channel looked up last: most peers stay with one channel for a while. It is compared by pointer, which is cheap.
    pub(crate) last: Option<(ChannelName, usize)>,
    pub(crate) peers: HashMap<ConnectionId, PeerState>,
    pub(crate) directory: ClientDirectory,
    pub(crate) topics: Topics,
    pub(crate) routers: Routers,
    pub(crate) bindings: Bindings,
    /// Subscriptions that have a name.
    pub(crate) named: SubscriptionNames<(QueueRef, ConsumerKey)>,
    /// The change of bindings on other shards that the answer to the current request waits for.
    pub(crate) ticket: Option<u64>,
    /// Requests that wait for an authenticator.
    pub(crate) authentications: Authentications,
    /// Subscribers of the events "channel created" and "channel removed".
    pub(crate) watchers: Vec<(EventKind, ConnectionId)>,
}

impl Entities {
    pub(crate) fn new() -> Self {
        Self {
            channels: Slab::new(),
            names: HashMap::new(),
            ordered: BTreeMap::new(),
            last: None,
            peers: HashMap::new(),
            directory: ClientDirectory::new(),
            topics: Topics::default(),
            routers: Routers::default(),
            bindings: Bindings::default(),
            named: SubscriptionNames::default(),
            ticket: None,
            authentications: Authentications::default(),
            watchers: Vec::new(),
        }
    }

    /// All queues of this shard.
    pub(crate) fn queues(&self) -> impl Iterator<Item = &Queue> {
        self.channels.iter().flat_map(|(_, channel)| channel.queues.values()).map(|queue| &**queue)
    }

    pub(crate) fn lookup(&mut self, name: &ChannelName) -> Option<usize> {
        if let Some((last, key)) = &self.last
            && last.is_same(name)
        {
            return Some(*key);
        }
        let key = *self.names.get(&folded(name))?;
        self.last = Some((name.clone(), key));
        Some(key)
    }

    /// Adds a channel whose name is new.
    pub(crate) fn insert_channel(&mut self, channel: Channel) -> usize {
        let name = channel.name.clone();
        let key = self.channels.insert(channel);
        self.names.insert(folded(&name), key);
        self.ordered.insert(name, key);
        key
    }

    /// Takes a channel out of all indexes.
    pub(crate) fn take_channel(&mut self, key: usize) {
        let channel = self.channels.remove(key);
        self.names.remove(&folded(&channel.name));
        self.ordered.remove(&channel.name);
        self.last = None;
    }

    pub(crate) fn channel(&mut self, name: &ChannelName) -> Result<&Channel, Rejection> {
        let key = self.lookup(name).ok_or_else(|| no_channel(name))?;
        Ok(&self.channels[key])
    }

    pub(crate) fn peer(&mut self, client: &Arc<Client>) -> &mut PeerState {
        self.peers.entry(client.connection).or_insert_with(|| PeerState {
            client: client.clone(),
            joined: SmallVec::new(),
            left: BTreeSet::new(),
            watched: BTreeSet::new(),
            subscribed: Vec::new(),
        })
    }
}

/// The lookup of channels ignores case.
pub(crate) fn folded(name: &ChannelName) -> Box<str> {
    name.as_str().to_ascii_lowercase().into()
}

pub(crate) fn no_channel(name: &ChannelName) -> Rejection {
    Rejection::new(RejectionKind::NotFound, format!("channel {name} does not exist; create it first"))
}

/// The queue, if it still exists.
pub(crate) fn find(channels: &mut Slab<Channel>, queue_ref: QueueRef) -> Option<&mut Queue> {
    let queues = &mut channels.get_mut(queue_ref.channel)?.queues;
    let queue = queues.get_mut(&queue_ref.queue)?;
    (queue.metadata.queue_ref == queue_ref).then_some(&mut **queue)
}

/// The queue with its consumers, if it still exists.
pub(crate) fn at(channels: &mut Slab<Channel>, queue_ref: QueueRef) -> Option<(Consumers<'_>, &mut Queue)> {
    let Channel { members, queues, .. } = channels.get_mut(queue_ref.channel)?;
    let queue = queues.get_mut(&queue_ref.queue).filter(|queue| queue.metadata.queue_ref == queue_ref)?;
    Some((consumers(members, queue), queue))
}

/// The consumers of a queue: its own list, or its channel's.
pub(crate) enum Consumers<'a> {
    Own(Arc<Members>),
    Channel(&'a Members),
}

impl std::ops::Deref for Consumers<'_> {
    type Target = Members;

    fn deref(&self) -> &Members {
        match self {
            Self::Own(members) => members,
            Self::Channel(members) => members,
        }
    }
}

pub(crate) fn consumers<'a>(channel: &'a Members, queue: &Queue) -> Consumers<'a> {
    queue.own().map_or(Consumers::Channel(channel), Consumers::Own)
}
