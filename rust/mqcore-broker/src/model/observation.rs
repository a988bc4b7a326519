//! Notifications of event handlers, and the event handlers of a channel.

use std::sync::Arc;

use crate::model::client::Client;
use crate::model::decision::Step;
use crate::model::id::{ChannelName, HandlerId, QueueAddress};
use crate::model::message::Message;
use crate::model::node::NodeInformation;
use crate::model::options::Status;
use crate::model::stats::QueueInformation;

/// A notification of an event handler. It needs no answer.
#[derive(Debug, Clone)]
pub struct Observation {
    /// The event handler.
    pub handler: HandlerId,
    /// The kind of event: one of the steps that notify.
    pub step: Step,
    /// The details, shared by all handlers that hear about the same event.
    pub subject: Arc<ObservedSubject>,
}

/// The details of an [`Observation`].
#[derive(Debug, Clone)]
pub enum ObservedSubject {
    /// A client connected or disconnected.
    Client(Arc<Client>),
    /// A link between brokers began or ended.
    Node(NodeInformation),
    /// A channel was created or removed.
    Channel(ChannelState),
    /// A client joined or left a channel.
    Membership(ChannelState, Arc<Client>),
    /// A queue was created, changed or removed: its state at that moment, and its status before.
    Queue(Box<QueueInformation>, Status),
    /// A queue took a message.
    Message {
        /// The queue.
        queue: Arc<QueueAddress>,
        /// The status of the queue.
        status: Status,
        /// The message.
        message: Message,
        /// Whether it is saved.
        saved: bool,
    },
    /// A client sent a custom message to the broker.
    Custom(Arc<Client>, Message),
}

/// A channel at the moment of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelState {
    /// Its name.
    pub name: ChannelName,
    /// Clients that joined it.
    pub clients: u32,
    /// Maximum number of such clients; 0: no limit.
    pub client_limit: u32,
    /// Ids of its queues.
    pub queues: Box<[u16]>,
}

/// The event handlers that hear about a channel and its queues: the broker's, and the channel's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Observers([Option<HandlerId>; 2]);

impl Observers {
    /// The broker's handler and the channel's, which may be the same.
    pub(crate) fn new(of_broker: Option<HandlerId>, of_channel: Option<HandlerId>) -> Self {
        Self([of_broker, of_channel.filter(|handler| Some(*handler) != of_broker)])
    }

    /// The handlers that `hears` selects.
    pub(crate) fn only(self, hears: impl Fn(HandlerId) -> bool) -> Self {
        Self(self.0.map(|handler| handler.filter(|handler| hears(*handler))))
    }

    /// Whether there is none.
    pub(crate) fn is_empty(self) -> bool {
        self.0 == [None, None]
    }

    /// Each once.
    pub(crate) fn iter(self) -> impl Iterator<Item = HandlerId> {
        self.0.into_iter().flatten()
    }
}
