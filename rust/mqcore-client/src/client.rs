//! The client: connecting, closing, state and counters.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::watch;

use crate::address::{Protocol, QueueAddress};
use crate::config::{ClientConfig, Transport};
use crate::connection;
use crate::error::ClientError;
use crate::mailbox::lock;
use crate::shared::SharedClient;
pub use crate::state::ClientState;

/// Counters of a client since its creation. Every dropped message is in one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientStats {
    /// Established connections; the reconnects are one less.
    pub connects: u64,
    /// Messages of queues without a consumer in this client.
    pub unclaimed: u64,
    /// Direct messages that arrived without a receiver.
    pub unclaimed_direct: u64,
    /// Acknowledgements not sent because the connection of their message was lost; the broker redelivers it.
    pub stale_settlements: u64,
    /// Received messages dropped with their connection before the program took them; the broker redelivers them.
    pub stale_discarded: u64,
    /// Events dropped because the program had not taken earlier ones.
    pub dropped_events: u64,
    /// Answers that arrived after their caller stopped waiting.
    pub late_answers: u64,
    /// Messages published without confirmation and refused by the broker.
    pub refused_unconfirmed: u64,
    /// Messages that arrived after their pull ended.
    pub late_pulled: u64,
}

/// A client. Cloning shares it; the connection is closed when the last clone and the last consumer are gone.
#[derive(Debug, Clone)]
pub struct Client {
    pub(crate) shared: Arc<SharedClient>,
    _life: Arc<Life>,
}

/// Observes the output of a client without keeping the client open.
#[derive(Debug, Clone)]
pub struct OutputWatch(Weak<SharedClient>);

impl OutputWatch {
    /// Waits until all output so far is written to the connection, or lost with it.
    pub async fn flushed(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.flushed().await;
        }
    }

    /// Whether the client is still in use.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// Closes the client when its last handle is dropped.
#[derive(Debug)]
struct Life(Arc<SharedClient>);

impl Drop for Life {
    fn drop(&mut self) {
        self.0.begin_closing(self.0.config.drain_timeout);
    }
}

impl Client {
    /// Connects, and reconnects after each loss until the limit of the backoff.
    ///
    /// Call it inside a Tokio runtime, which then runs the client's task.
    ///
    /// # Errors
    ///
    /// The error of the last attempt, after every address was tried and the config's `patience` has passed.
    pub async fn connect(config: ClientConfig, transport: Transport) -> Result<Self, ClientError> {
        let shared = SharedClient::new(config, transport.protocol()?);
        let client = Self { shared: shared.clone(), _life: Arc::new(Life(shared.clone())) };
        connection::start(shared, transport).await?;
        Ok(client)
    }

    /// Returns an observer of the output that does not keep the client open.
    #[must_use]
    pub fn output(&self) -> OutputWatch {
        OutputWatch(Arc::downgrade(&self.shared))
    }

    /// The protocol of the connection.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.shared.protocol
    }

    /// Parses a queue or another destination in the spelling of this client's protocol.
    ///
    /// # Errors
    ///
    /// [`ClientError::InvalidArgument`] for an invalid name.
    pub fn address(&self, text: &str) -> Result<QueueAddress, ClientError> {
        match self.protocol() {
            Protocol::Tmqp | Protocol::Throttr => QueueAddress::parse(text),
            Protocol::Mqks | Protocol::Micromessage => QueueAddress::plain(text),
        }
    }

    /// The current state of the connection.
    #[must_use]
    pub fn state(&self) -> ClientState {
        self.shared.state.borrow().clone()
    }

    /// Subscribes to the state; a slow subscriber sees the latest.
    #[must_use]
    pub fn states(&self) -> watch::Receiver<ClientState> {
        self.shared.state.subscribe()
    }

    /// The id that the broker assigned on the current or last connection; empty where a protocol has none.
    #[must_use]
    pub fn id(&self) -> String {
        lock(&self.shared.core).conversation.own_id().to_owned()
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> ClientStats {
        let tally = lock(&self.shared.core).conversation.tally();
        let counters = &self.shared.counters;
        ClientStats {
            connects: self.shared.connects(),
            unclaimed: counters.unclaimed.load(Relaxed),
            unclaimed_direct: counters.unclaimed_direct.load(Relaxed),
            stale_settlements: counters.stale_settlements.load(Relaxed),
            stale_discarded: counters.stale_discarded.load(Relaxed),
            dropped_events: counters.dropped_events.load(Relaxed),
            late_answers: tally.late_answers,
            refused_unconfirmed: tally.refused_unconfirmed,
            late_pulled: tally.late_pulled,
        }
    }

    /// Starts closing without waiting for in-flight work.
    pub fn abort(&self) {
        self.shared.begin_closing(Duration::ZERO);
    }

    /// Begins what [`Client::close`] waits for: from now on, the client accepts no new calls.
    pub fn begin_closing(&self, drain: Option<Duration>) {
        self.shared.begin_closing(drain.unwrap_or(self.shared.config.drain_timeout));
    }

    /// Closes the client. It accepts no new calls and gives in-flight work up to `drain` (default: the config's drain
    /// timeout). Consumers get the messages that already arrived, except those that the broker requeues. Returns when
    /// the connection is closed; a second call is harmless.
    pub async fn close(&self, drain: Option<Duration>) {
        self.begin_closing(drain);
        let mut states = self.states();
        // This handle keeps `shared`, and so the sender.
        drop(states.wait_for(|state| matches!(state, ClientState::Closed { .. })).await);
    }
}
