//! The client: connecting, closing, and what it says of itself.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::watch;

use crate::address::{Protocol, QueueAddress};
use crate::config::{ClientConfig, Transport};
use crate::connection;
use crate::error::ClientError;
use crate::mailbox::lock;
use crate::shared::Shared;
pub use crate::state::ClientState;

/// What a client has counted since it was made. Nothing is dropped without one of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientStats {
    /// Connections made; reconnects are one less.
    pub connects: u64,
    /// Messages of queues that nobody consumes here.
    pub unclaimed: u64,
    /// Direct messages that came while nobody listened for them.
    pub unclaimed_direct: u64,
    /// Acknowledgements not sent because the connection of their message was gone; the broker delivers it again.
    pub stale_settlements: u64,
    /// Received messages thrown away with their connection before anybody took them; the broker delivers them again.
    pub stale_discarded: u64,
    /// Events thrown away because nobody took those before them.
    pub dropped_events: u64,
    /// Answers that nobody waited for any more.
    pub late_answers: u64,
    /// Messages published without confirmation that the broker refused.
    pub refused_unconfirmed: u64,
    /// Pulled messages that nobody waited for any more.
    pub late_pulled: u64,
}

/// A client. Cloning shares it; the connection is closed when the last clone and the last consumer are gone.
#[derive(Debug, Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
    _life: Arc<Life>,
}

/// Watches what a client writes, and does not keep it open.
#[derive(Debug, Clone)]
pub struct OutputWatch(Weak<Shared>);

impl OutputWatch {
    /// Waits until everything that the client has sent so far is written to its connection, or lost with it.
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

/// Ends the connection task with the last handle.
#[derive(Debug)]
struct Life(Arc<Shared>);

impl Drop for Life {
    fn drop(&mut self) {
        self.0.begin_closing(self.0.config.drain_timeout);
    }
}

impl Client {
    /// Connects. From then on the connection is kept: lost ones are made again for as long as the backoff allows.
    ///
    /// To be called inside a Tokio runtime, on which the client's one task then lives.
    ///
    /// # Errors
    ///
    /// What the last attempt ended with, once every address was tried and the config's patience is over.
    pub async fn connect(config: ClientConfig, transport: Transport) -> Result<Self, ClientError> {
        let shared = Shared::new(config, transport.protocol()?);
        let client = Self { shared: shared.clone(), _life: Arc::new(Life(shared.clone())) };
        connection::start(shared, transport).await?;
        Ok(client)
    }

    /// Watches what is written, without keeping the client open.
    #[must_use]
    pub fn output(&self) -> OutputWatch {
        OutputWatch(Arc::downgrade(&self.shared))
    }

    /// What is spoken with the broker.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        lock(&self.shared.core).conversation.protocol()
    }

    /// Reads where to publish or what to consume, as this client's protocol writes it.
    ///
    /// # Errors
    ///
    /// [`ClientError::InvalidArgument`] for what cannot be said in it.
    pub fn address(&self, text: &str) -> Result<QueueAddress, ClientError> {
        match self.protocol() {
            Protocol::Tmqp | Protocol::Throttr => QueueAddress::parse(text),
            Protocol::Mqks | Protocol::Micromessage => QueueAddress::plain(text),
        }
    }

    /// Where the connection is now.
    #[must_use]
    pub fn state(&self) -> ClientState {
        self.shared.state.borrow().clone()
    }

    /// Every state from now on; a watcher that is slow sees the latest.
    #[must_use]
    pub fn states(&self) -> watch::Receiver<ClientState> {
        self.shared.state.subscribe()
    }

    /// What the broker calls this client on the connection that stands, or on the last one; empty where a protocol has
    /// no such thing.
    #[must_use]
    pub fn id(&self) -> String {
        lock(&self.shared.core).conversation.own_id().to_owned()
    }

    /// What it has counted.
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

    /// Begins to close without waiting for anything: what is under way is given up.
    pub fn abort(&self) {
        self.shared.begin_closing(Duration::ZERO);
    }

    /// Closes: nothing new is taken, what is under way may finish for `drain` (default: the config's drain timeout),
    /// consumers get what is there and then their end. Answers when the connection is closed. Closing twice is fine.
    pub async fn close(&self, drain: Option<Duration>) {
        self.shared.begin_closing(drain.unwrap_or(self.shared.config.drain_timeout));
        let mut states = self.states();
        // The sender lives in `shared`, which this handle keeps.
        drop(states.wait_for(|state| matches!(state, ClientState::Closed { .. })).await);
    }
}
