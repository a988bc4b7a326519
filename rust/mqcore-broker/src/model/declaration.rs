//! Declarations: what must exist with given options.

use crate::model::id::{ChannelName, QueueAddress};
use crate::model::options::{ChannelChanges, QueueChanges};
use crate::model::placement::Placement;
use crate::model::router::RouterDefinition;

/// A channel, queue or router that must exist with these options. Options that it does not set may have any value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Declaration {
    /// A channel.
    Channel(ChannelName, Box<ChannelChanges>),
    /// A queue. If its channel is missing, it is created with the server's defaults.
    Queue(QueueAddress, Box<QueueChanges>),
    /// A router with exactly these bindings, in any order.
    Router(Box<RouterDefinition>),
}

/// The treatment of something that exists with other options than declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnConflict {
    /// The declaration is rejected with `AlreadyExists`, and nothing changes.
    Reject,
    /// The declared options replace the others.
    Replace,
}

/// The result of a declaration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Declared {
    /// It was missing and was created.
    Created,
    /// It existed as declared.
    Unchanged,
    /// It existed with other options, which were replaced: each as `name is VALUE, declared VALUE`.
    Replaced(Vec<String>),
}

impl Declaration {
    /// The shard that it belongs to.
    #[must_use]
    pub fn shard(&self, placement: Placement) -> usize {
        match self {
            Self::Channel(name, _) => name.shard(placement),
            Self::Queue(queue, _) => queue.channel.shard(placement),
            Self::Router(router) => router.name.shard(placement),
        }
    }

    /// `channel NAME`, `queue NAME` or `router NAME`.
    #[must_use]
    pub fn subject(&self) -> String {
        match self {
            Self::Channel(name, _) => format!("channel {name}"),
            Self::Queue(queue, _) => format!("queue {queue}"),
            Self::Router(router) => format!("router {}", router.name),
        }
    }
}
