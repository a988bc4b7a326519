//! The interface of a protocol for the server: how to read its listener URLs, share state, open sessions and encode
//! messages.

use std::fmt::Debug;
use std::sync::Arc;

use mqcore_broker::model::effect::{Deliver, Publication};
use mqcore_broker::model::time::Timestamp;
use mqcore_limiter::limiter::Limiter;
use mqcore_limiter::time::Nanos;

use crate::job_figures::JobFigures;
use crate::jobs::JobLedger;
use crate::listener::{BadOption, Companion, ListenerOptions};
use crate::schedules::Schedules;
use crate::session::SessionConfig;

/// One protocol. A value of this type is never needed: the registry names the types, and the compiler calls them directly.
pub trait ProtocolFactory {
    /// The scheme of its URLs; also its name in metrics and on the ready line.
    const NAME: &'static str;
    /// The port of a listener whose URL has none.
    const DEFAULT_PORT: u16;
    /// How the server bounds the output that waits for a peer that does not read. Default [`Overload::Close`].
    const OVERLOAD: Overload = Overload::Close;
    /// Whether the shard or the session encodes messages of queues.
    const DELIVERIES: Encoding<EncodeDelivery>;
    /// Whether the shard or the session encodes messages of topics.
    const PUBLICATIONS: Encoding<EncodePublication>;
    /// Whether its peers can create schedules. Default no.
    const SCHEDULES: bool = false;

    /// The options in a listener's URL. `Default`: a URL without options.
    type Terms: Debug + Clone + PartialEq + Eq + Default + Send + Sync;
    /// The state that all sessions of a server share.
    type Shared: Debug + Send + Sync;
    /// One conversation: a [`Session`](crate::session::Session), or a box of one.
    type Session;

    /// Takes the protocol's options out of a listener's URL.
    ///
    /// # Errors
    /// [`BadOption`] if a value is invalid.
    fn terms(options: &mut ListenerOptions) -> Result<Self::Terms, BadOption>;

    /// The default port of a listener with these terms. Default [`ProtocolFactory::DEFAULT_PORT`].
    fn default_port(_terms: &Self::Terms) -> u16 {
        Self::DEFAULT_PORT
    }

    /// The further listeners that a TCP URL with these options opens, without taking the options of
    /// [`ProtocolFactory::terms`]. Default none.
    ///
    /// # Errors
    /// [`BadOption`] if a value is invalid.
    fn companions(_options: &mut ListenerOptions) -> Result<Vec<Companion<Self::Terms>>, BadOption> {
        Ok(Vec::new())
    }

    /// The query of the URL under which clients reach a listener with these terms, with its `?`. Default empty.
    fn client_query(_terms: &Self::Terms) -> String {
        String::new()
    }

    /// How peers of a listener with these terms use the store of limits. Default `None`: they do not.
    fn limits(_terms: &Self::Terms) -> Option<LimitUse> {
        None
    }

    /// Makes the state that all sessions of a server share.
    fn share(server: &ServerParts) -> Self::Shared;

    /// Makes the session of a connection that was opened just now.
    fn open(terms: &Self::Terms, shared: &Self::Shared, config: SessionConfig, now: Moment) -> Self::Session;

    /// Makes a session that shares nothing with others, with default terms.
    fn alone(config: SessionConfig, now: Timestamp) -> Self::Session;

    /// The protocol's own metrics. Default none.
    fn metrics(_shared: &Self::Shared, _now: Nanos) -> Vec<MetricFamily> {
        Vec::new()
    }

    /// Adds the protocol's job queues and workers. Default: the protocol has none.
    fn add_jobs(_shared: &Self::Shared, _jobs: &mut JobFigures) {}
}

/// How the server bounds the output that waits for a peer that does not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overload {
    /// A peer that causes answers and events without reading them is disconnected when its output buffer is full.
    Close,
    /// The server stops reading requests while answers wait, so that one answer at most exceeds the output buffer. Events
    /// beyond the buffer disconnect the peer.
    PauseReads,
    /// Sessions limit their events themselves: acknowledgements by the peer's window, messages of topics by dropping them
    /// for slow peers. The server accepts any number of events.
    LimitEvents,
}

/// The place where messages for consumers of a protocol are encoded as frames.
#[derive(Debug, Clone, Copy)]
pub enum Encoding<F> {
    /// The shard, with this function: the frames are the same for all consumers, so they are encoded once and shared.
    Shared(F),
    /// The session of each consumer, because the frames depend on its state. It receives each message as an event.
    BySession,
}

impl<F> Encoding<F> {
    /// Whether each consumer needs an event of its own.
    #[must_use]
    pub const fn is_by_session(&self) -> bool {
        matches!(self, Self::BySession)
    }
}

/// Appends a delivery. The bytes are the same for all consumers, but for the flag: whether the consumer is the first
/// acquirer of the message.
pub type EncodeDelivery = fn(&Deliver, bool, &mut Vec<u8>);

/// Appends a message of a topic. The bytes are the same for all subscribers.
pub type EncodePublication = fn(&Publication, &mut Vec<u8>);

/// The time at which a connection is opened.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// In milliseconds, for timeouts.
    pub now: Timestamp,
    /// In nanoseconds, for limits.
    pub nanos: Nanos,
}

/// How a listener uses the store of limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitUse {
    /// Whether entries survive a restart, which needs a data directory.
    pub persist: bool,
    /// Whether reads and writes of entries are counted.
    pub metrics: bool,
}

/// The parts of a server that every protocol may use.
#[derive(Debug, Clone)]
pub struct ServerParts {
    /// The store of limits.
    pub limiter: Arc<Limiter>,
    /// The time at which the server started.
    pub started: Nanos,
    /// Names of the vendor extensions that the program handles.
    pub extension_names: Arc<[Box<str>]>,
    /// The delivery handler of queues that are created for jobs; `None`: the broker's default.
    pub job_policy: Option<Box<str>>,
    /// Keeps schedules.
    pub schedules: Arc<dyn Schedules>,
    /// Keeps results, cancellations and flows of jobs.
    pub jobs: Arc<dyn JobLedger>,
    /// Maximum patterns of topics that a connection may subscribe to.
    pub patterns_max: usize,
}

/// A metric with all its samples.
#[derive(Debug, Clone)]
pub struct MetricFamily {
    /// Its name.
    pub name: &'static str,
    /// `counter` or `gauge`.
    pub kind: &'static str,
    /// The help text.
    pub help: &'static str,
    /// Each sample: a label, if it has one, and the value.
    pub samples: Vec<(Option<(&'static str, &'static str)>, u64)>,
}

impl MetricFamily {
    /// A metric of one sample without a label.
    #[must_use]
    pub fn single(name: &'static str, kind: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, kind, help, samples: vec![(None, value)] }
    }
}
