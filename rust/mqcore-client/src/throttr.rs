//! A client of Throttr, with any number of requests in flight on one connection, answered in order.
//!
//! It connects at the first request, and again at the first request after a loss. While there are subscriptions, it
//! reconnects by itself and restores them. Requests in flight when a connection is lost fail with
//! [`ClientError::ConnectionLost`]; nothing is sent twice.

mod address;
mod conversation;
mod link;
mod pushes;
mod width;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use mqcore_wire::throttr::reply::{Expected, FragmentedRequest};
use mqcore_wire::throttr::request::{Rule, ThrottrRequest, TooLong, encode, encode_consume_all};
use mqcore_wire::throttr::{Dialect, Family, Width};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

pub use self::address::ThrottrAddress;
pub use self::conversation::{Subscriber, ThrottrAnswer};
pub use self::pushes::Push;

use self::link::ThrottrCall;
use self::pushes::Pushes;
use crate::config::{Backoff, ClientTls};
use crate::error::ClientError;
use crate::route::Route;

/// Capacity of the queue of calls to the connection task; further calls wait.
const CALLS_MAX: usize = 1024;

/// TLS settings and timeouts of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThrottrConfig {
    /// TLS settings for an address with TLS and without settings of its own.
    pub tls: Option<ClientTls>,
    /// Timeout of one attempt to connect. Default 5 s.
    pub connect_timeout: Duration,
    /// Timeout of answers if the call gives none. A connection whose oldest request exceeds it counts as lost. Default
    /// 15 s.
    pub request_timeout: Duration,
    /// Time during which calls fail at once after failed attempts to connect. Default 100 ms, doubled up to 2 s.
    pub backoff: Backoff,
}

impl Default for ThrottrConfig {
    fn default() -> Self {
        let backoff = Backoff { max: Duration::from_secs(2), ..Backoff::default() };
        Self {
            tls: None,
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(15),
            backoff,
        }
    }
}

/// A batch of requests.
#[derive(Debug)]
pub struct Questions {
    address: ThrottrAddress,
    bytes: Vec<u8>,
    expected: VecDeque<Expected>,
    subscribes: Vec<Box<[u8]>>,
    unsubscribes: Vec<Box<[u8]>>,
}

impl Questions {
    /// Number of requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.expected.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.expected.is_empty()
    }

    /// Adds a request.
    ///
    /// # Errors
    /// [`ClientError::TooLarge`] for a part that does not fit, [`ClientError::InvalidArgument`] for `ConsumeAll`, which
    /// needs [`Questions::push_all`], and for `Event`, which clients cannot send.
    pub fn push(&mut self, request: &ThrottrRequest<'_>) -> Result<(), ClientError> {
        let expected = self.expected_of(request)?;
        encode(request, self.address.dialect, &mut self.bytes).map_err(too_long)?;
        match request {
            ThrottrRequest::Subscribe { channel } => self.subscribes.push((*channel).into()),
            ThrottrRequest::Unsubscribe { channel } => self.unsubscribes.push((*channel).into()),
            _ => {}
        }
        self.expected.push_back(expected);
        Ok(())
    }

    /// Adds a CONSUME ALL.
    ///
    /// # Errors
    /// [`ClientError::TooLarge`] for too many rules or a key that is too long, [`ClientError::InvalidArgument`] for none.
    pub fn push_all(&mut self, mode: u8, rules: &[Rule<'_>]) -> Result<(), ClientError> {
        if rules.is_empty() {
            return Err(ClientError::invalid("rules", "give at least one rule"));
        }
        encode_consume_all(mode, rules, self.address.dialect, &mut self.bytes).map_err(too_long)?;
        self.expected.push_back(Expected::Verdicts);
        Ok(())
    }

    fn expected_of(&self, request: &ThrottrRequest<'_>) -> Result<Expected, ClientError> {
        Ok(match request {
            ThrottrRequest::Query { .. } => Expected::Counter,
            ThrottrRequest::Get { .. } => Expected::Buffer,
            ThrottrRequest::Stat { .. } => Expected::Stat,
            ThrottrRequest::List => Expected::Fragment(FragmentedRequest::List),
            ThrottrRequest::Stats => Expected::Fragment(FragmentedRequest::Stats),
            ThrottrRequest::Connections => Expected::Fragment(FragmentedRequest::Connections),
            ThrottrRequest::Channels => Expected::Fragment(FragmentedRequest::Channels),
            ThrottrRequest::Info => {
                let with_time = self.address.metrics || self.address.dialect.family == Family::V73;
                Expected::Info { with_time }
            }
            ThrottrRequest::Connection { .. } => Expected::Connection,
            ThrottrRequest::Channel { .. } => Expected::Channel,
            ThrottrRequest::WhoAmI => Expected::Id,
            ThrottrRequest::Consume { .. } => Expected::Verdict,
            ThrottrRequest::ConsumeAll { .. } | ThrottrRequest::Event { .. } => {
                return Err(ClientError::invalid("request", "it cannot be sent with this call"));
            }
            _ => Expected::Status,
        })
    }
}

fn too_long(error: TooLong) -> ClientError {
    ClientError::TooLarge { part: error.part, size: error.size, limit: error.max }
}

/// A client. Dropping or closing it ends its connection.
#[derive(Debug)]
pub struct ThrottrClient {
    address: ThrottrAddress,
    request_timeout: Duration,
    calls: mpsc::Sender<ThrottrCall>,
    pushes: Arc<Pushes>,
}

impl ThrottrClient {
    /// Starts the task that connects on demand. Call it inside a Tokio runtime.
    ///
    /// # Errors
    /// [`ClientError::InvalidArgument`] for TLS settings that cannot be used.
    pub fn new(address: ThrottrAddress, config: &ThrottrConfig) -> Result<Self, ClientError> {
        let route = Route::prepare(address.broker(), config.tls.as_ref())?;
        let (calls, receiver) = mpsc::channel(CALLS_MAX);
        let pushes = Arc::new(Pushes::default());
        tokio::spawn(link::run(route, address.dialect, config.clone(), receiver, pushes.clone()));
        Ok(Self { address, request_timeout: config.request_timeout, calls, pushes })
    }

    /// The width of values and the edition of the protocol.
    #[must_use]
    pub fn dialect(&self) -> Dialect {
        self.address.dialect
    }

    /// The width of values.
    #[must_use]
    pub fn width(&self) -> Width {
        self.address.dialect.width
    }

    /// Creates an empty batch.
    #[must_use]
    pub fn questions(&self) -> Questions {
        Questions {
            address: self.address.clone(),
            bytes: Vec::new(),
            expected: VecDeque::new(),
            subscribes: Vec::new(),
            unsubscribes: Vec::new(),
        }
    }

    /// Sends requests and waits for all answers, in the order of the requests. The future borrows nothing. Dropping it
    /// does not cancel sent requests.
    ///
    /// # Errors
    /// [`ClientError::ConnectFailed`] and the errors of TLS if connecting fails, [`ClientError::WidthMismatch`] if the
    /// listener has values of another width than the address, [`ClientError::VersionMismatch`] if it speaks another
    /// protocol, [`ClientError::ConnectionLost`], [`ClientError::RequestTimeout`], [`ClientError::BadFrame`],
    /// [`ClientError::Closed`].
    pub fn ask(
        &self,
        questions: Questions,
        timeout: Option<Duration>,
    ) -> impl Future<Output = Result<Vec<ThrottrAnswer>, ClientError>> + Send + 'static {
        let calls = self.calls.clone();
        let waited = timeout.unwrap_or(self.request_timeout);
        let address: Arc<str> = self.address.broker().to_string().into();
        async move {
            if questions.is_empty() {
                return Ok(Vec::new());
            }
            let (sender, answers) = oneshot::channel();
            let deadline = Instant::now() + waited;
            let ask = ThrottrCall { questions, deadline, answers: Some(sender) };
            // The sender must not outlive the call; otherwise a waiting call would keep a closed client connected.
            let call = async move {
                calls.send(ask).await.map_err(|_| ClientError::Closed)?;
                drop(calls);
                answers.await.unwrap_or(Err(ClientError::Closed))
            };
            match tokio::time::timeout_at(deadline, call).await {
                Ok(answered) => answered,
                Err(_) => {
                    Err(ClientError::RequestTimeout { operation: "a request to", target: address, waited })
                }
            }
        }
    }

    /// Takes up to `count` received messages.
    #[must_use]
    pub fn take(&self, count: usize) -> Vec<Push> {
        self.pushes.take(count)
    }

    /// Waits until a message is available, or the client is closed. Takes nothing.
    pub fn ready(&self) -> impl Future<Output = ()> + Send + 'static {
        let pushes = self.pushes.clone();
        async move { pushes.ready().await }
    }

    /// Messages dropped because too many were waiting.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.pushes.dropped()
    }

    /// Number of established connections.
    #[must_use]
    pub fn connects(&self) -> u64 {
        self.pushes.connects()
    }
}
