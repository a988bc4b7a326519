//! Subscriptions: how a connection consumes one queue, several times if it wants to, without joining its channel.

use std::time::Duration;

use crate::bindings::QueueBinding;
use crate::command::MessageId;
use crate::id::{QueueAddress, Tag};
use crate::options::QueueChanges;

/// How deliveries to a consumer are settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Settling {
    /// As the queue's options say: that is so for everybody who joined the channel.
    #[default]
    AsQueue,
    /// Handed out is acknowledged.
    AtOnce,
    /// The consumer acknowledges each delivery, whatever the queue's options say; what it refuses, or loses with its
    /// connection, goes back.
    Explicit,
}

/// On which terms a subscription gets messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Terms {
    /// How its deliveries are settled.
    pub settling: Settling,
    /// Deliveries that it may have unsettled at once; zero: no limit. Default zero.
    pub window: u32,
    /// How long a delivery may stay unsettled with [`Settling::Explicit`]; `None`: as long as it takes. Default `None`.
    pub timeout: Option<Duration>,
}

/// A connection wants to consume a queue.
#[derive(Debug, Clone)]
pub struct QueueSubscription {
    /// The queue.
    pub queue: QueueAddress,
    /// The session's name for it, not [`Tag::CHANNEL`]. Deliveries carry it. Subscribing again with the same tag changes the terms.
    pub tag: Tag,
    /// On which terms.
    pub terms: Terms,
    /// Channel and queue are created if they are missing, the queue with these options; `None`: as the broker's configuration
    /// says.
    pub create: Option<Box<QueueChanges>>,
    /// A name by which any connection can settle its deliveries or end it; not unique.
    pub name: Option<Box<[u8]>>,
    /// Changes what the queue is bound to before the subscription is answered.
    pub binding: Option<Box<QueueBinding>>,
    /// Whether this subscription too is told of that change, as all others are.
    pub told: bool,
}

/// What any connection may do to the subscriptions of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remote {
    /// Acknowledge, or refuse if a reason is given, one delivery or all.
    Settle {
        /// `None`: all.
        message_id: Option<MessageId>,
        /// Why not; `None`: they were processed.
        negative: Option<Box<str>>,
    },
    /// End them.
    Unsubscribe,
}
