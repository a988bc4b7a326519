//! The handle of a running broker: start, inspect, settle, stop.

pub(crate) mod error;

mod bind;
mod recovery;
mod start;
mod stopping;
mod unsaved;

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mqcore_broker::model::command::ClientPattern;
use mqcore_broker::model::config::HandlerSpec;
use mqcore_broker::model::declaration::{Declaration, Declared};
use mqcore_broker::model::effect::Reply;
use mqcore_broker::model::id::{HandlerId, QueueAddress, RouterName};
use mqcore_broker::model::message::Message;
use mqcore_broker::model::rejection::Rejection;
use mqcore_broker::model::router::RouterDefinition;
use mqcore_broker::model::stats::{QueueInformation, ShardStats, WaitingMessage};
use mqcore_limiter::limiter::Limiter;
use mqcore_limiter::time::Nanos;
use tokio::io::DuplexStream;
use tokio::sync::{mpsc, oneshot};

use self::start::{Parts, check_handlers};
use self::stopping::fence;
use crate::authority::reload;
use crate::authority::store::StoreError;
use crate::config::address::{AdminAddress, Listening};
use crate::config::{Config, Protocol};
use crate::handler::{HandlerPort, HandlerTimes};
use crate::hub::Hub;
use crate::net::connection::Connection;
use crate::schedules::{EndScheduleError, EntryId, ScheduleList};
use crate::shard::inbox::Urgent;
use crate::stats::failures::RequestFailure;
use crate::stats::{metrics, snapshot};
use crate::storage::backup::{Backup, BackupError, BackupKind};

pub use self::error::StartError;
pub use crate::net::tls::{ListenerCertificate, ReloadError};

/// Bytes that a local connection buffers in each direction before its writer waits.
const LOCAL_BUFFER_BYTES: usize = 64 * 1024;

/// Time for the shards to answer a request for metrics.
const METRICS_TIMEOUT: Duration = Duration::from_secs(1);

/// A running broker. Clones are handles to the same broker; it stops at once when the last handle is dropped.
#[derive(Clone)]
pub struct Server {
    inner: Arc<Inner>,
}

struct Inner {
    hub: Arc<Hub>,
    listeners: Vec<Listening>,
    admin: Option<AdminAddress>,
    /// Keys in the order of their [`HandlerId`]s. Locked while shards are notified, so that all see the same order.
    handlers: Mutex<Vec<Box<str>>>,
    started: Instant,
}

impl Server {
    /// Binds everything, then starts everything, on the Tokio runtime of the caller.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left running.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    ///
    /// use mqcore_server::config::Config;
    /// use mqcore_server::handler::NoHandlers;
    /// use mqcore_server::server::Server;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let listener = "tmqp://127.0.0.1:0".parse()?; // port 0: the system chooses
    /// let config = Config { listeners: vec![listener], ..Config::default() };
    /// let server = Server::start(config, Vec::new(), Arc::new(NoHandlers)).await?;
    /// assert!(server.listeners()[0].url().starts_with("tmqp://127.0.0.1:"));
    /// server.stop(Duration::from_secs(1)).await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn start(
        config: Config,
        handlers: Vec<HandlerSpec>,
        port: Arc<dyn HandlerPort>,
    ) -> Result<Self, StartError> {
        check_handlers(&config, &handlers)?;
        let parts = Parts::open(config, port).await?;
        let inner = parts.start(handlers)?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The shared state of its tasks, for tests of them.
    #[cfg(test)]
    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.inner.hub
    }

    /// The bound addresses, with the ports that the system chose, in the order of the configuration.
    pub fn listeners(&self) -> &[Listening] {
        &self.inner.listeners
    }

    /// The address of the admin side; `None` if it is not served.
    pub fn admin(&self) -> Option<AdminAddress> {
        self.inner.admin
    }

    /// The certificates of all encrypted listeners, including the admin side.
    pub fn certificates(&self) -> Vec<ListenerCertificate> {
        self.inner.hub.tls.certificates()
    }

    /// Reloads certificates, keys and client authorities of every encrypted listener. New connections use them; open ones
    /// stay open. Blocks while it reads the files.
    ///
    /// # Errors
    /// One [`ReloadError`] for each listener whose files cannot be used and that keeps its previous certificate. The others
    /// use their new files.
    pub fn reload_certificates(&self) -> Result<(), Vec<ReloadError>> {
        let failed = self.inner.hub.tls.reload();
        if failed.is_empty() { Ok(()) } else { Err(failed) }
    }

    /// Opens a connection without a socket; it is served like every other connection. After [`Server::stop`], or if
    /// `connections_max` is reached, the stream reads as closed.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    ///
    /// use mqcore_server::config::{Config, Protocol};
    /// use mqcore_server::handler::NoHandlers;
    /// use mqcore_server::server::Server;
    /// use tokio::io::AsyncReadExt;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let server = Server::start(Config::default(), Vec::new(), Arc::new(NoHandlers)).await?;
    /// let mut stream = server.connect_local(Protocol::ALL[0]);
    /// server.stop(std::time::Duration::ZERO).await;
    /// assert_eq!(stream.read(&mut [0; 64]).await?, 0, "a stopped server closes its connections");
    /// # Ok(())
    /// # }
    /// ```
    pub fn connect_local(&self, protocol: Protocol) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(LOCAL_BUFFER_BYTES);
        let hub = &self.inner.hub;
        match hub.registry.open(protocol) {
            Ok(outbox) => Connection::spawn_inside(hub, ours, outbox),
            Err(_) => hub.counters.of(protocol).rejected.add(1),
        }
        theirs
    }

    /// The store of limits, to be used with [`Server::limiter_now`].
    #[must_use]
    pub fn limiter(&self) -> &Arc<Limiter> {
        &self.inner.hub.limiter
    }

    /// The time base of the store of limits.
    #[must_use]
    pub fn limiter_now(&self) -> Nanos {
        Nanos(self.inner.hub.clock.nanos())
    }

    /// Registers a handler, or replaces the one with the same key, in every shard. Returns the ID by which questions
    /// name it.
    pub fn set_handler(&self, spec: HandlerSpec) -> HandlerId {
        let mut keys = self.inner.handlers.lock().unwrap_or_else(PoisonError::into_inner);
        let id = handler_id(&mut keys, &spec.key);
        for shard in &self.inner.hub.shards {
            shard.send_urgent(Urgent::Handler(Box::new(spec.clone())));
        }
        self.inner.hub.moved();
        id
    }

    /// Creates or replaces a router. It belongs to the program, so it is not saved.
    pub fn set_router(&self, router: RouterDefinition) {
        let name = router.name.clone();
        self.notify_router(name, Some(Box::new(router)));
    }

    /// Removes a router. Has no effect if it does not exist.
    pub fn remove_router(&self, name: &RouterName) {
        self.notify_router(name.clone(), None);
    }

    /// Creates a channel, queue or router unless it exists as declared, and returns whether it was missing. A new one is
    /// durable when the call returns.
    ///
    /// # Errors
    /// A rejection of kind `AlreadyExists` if it exists with other options, and those of creating it. `None`: the
    /// server has stopped.
    pub async fn declare(&self, declaration: Declaration) -> Option<Result<bool, Rejection>> {
        let hub = &self.inner.hub;
        let shard = declaration.shard(hub.placement);
        let (reply, answer) = oneshot::channel();
        hub.shards[shard].send_urgent(Urgent::Declare(declaration, reply));
        hub.moved();
        let declared = answer.await.ok()?;
        Some(declared.map(|reply| matches!(reply, Reply::Declared(Declared::Created))))
    }

    fn notify_router(&self, name: RouterName, router: Option<Box<RouterDefinition>>) {
        let hub = &self.inner.hub;
        let shard = name.shard(hub.placement);
        hub.shards[shard].send_urgent(Urgent::Router(name, router));
        hub.moved();
    }

    /// The ID by which questions name the handler with this key.
    pub fn handler_id(&self, key: &str) -> Option<HandlerId> {
        let keys = self.inner.handlers.lock().unwrap_or_else(PoisonError::into_inner);
        keys.iter().position(|known| **known == *key).map(|index| HandlerId(index as u16))
    }

    /// A snapshot of all shards. Shards that have stopped add nothing.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    ///
    /// use mqcore_server::config::Config;
    /// use mqcore_server::handler::NoHandlers;
    /// use mqcore_server::server::Server;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let server = Server::start(Config::default(), Vec::new(), Arc::new(NoHandlers)).await?;
    /// assert!(server.snapshot().await.clients.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn snapshot(&self) -> ShardStats {
        snapshot::take(&self.inner.hub, usize::MAX).await
    }

    /// The metrics in the Prometheus text format, without those of single queues. `handler_times`: how long calls of
    /// handlers took. `None`: a shard did not answer within a second.
    pub async fn metrics(&self, handler_times: Vec<HandlerTimes>) -> Option<String> {
        let hub = &self.inner.hub;
        let snapshot = tokio::time::timeout(METRICS_TIMEOUT, snapshot::take(hub, 0)).await.ok()?;
        Some(metrics::render(hub, snapshot, handler_times, self.inner.started.elapsed().as_secs_f64(), false))
    }

    /// The next schedules by due time, at most `max`, and the number of all. Empty after the server has stopped.
    pub async fn schedules(&self, max: usize) -> ScheduleList {
        self.inner.hub.schedules.list(max).await.unwrap_or_default()
    }

    /// Ends a schedule, and returns when that is durable.
    ///
    /// # Errors
    /// [`EndScheduleError`].
    pub async fn end_schedule(&self, id: EntryId) -> Result<(), EndScheduleError> {
        self.inner.hub.schedules.end_schedule(id).await
    }

    /// The most recent failed requests, the latest first, at most `limit`. Clients of some protocols receive only the
    /// number of such a request. At most [`FAILURES_MAX`](crate::stats::failures::FAILURES_MAX) are stored.
    pub fn failures(&self, limit: usize) -> Vec<RequestFailure> {
        self.inner.hub.failures.latest(limit)
    }

    /// The state of a queue. `None`: the queue does not exist.
    pub async fn queue(&self, queue: QueueAddress) -> Option<QueueInformation> {
        snapshot::queue(&self.inner.hub, queue).await
    }

    /// Sends a custom message to clients over TMQP, and returns the number of clients that match.
    pub async fn send_custom(&self, to: ClientPattern, message: Message) -> usize {
        snapshot::clients(&self.inner.hub, to, Some(message)).await
    }

    /// Closes the connections of clients, and returns their number. A client may connect again.
    pub async fn disconnect(&self, to: ClientPattern) -> usize {
        snapshot::clients(&self.inner.hub, to, None).await
    }

    /// Messages that wait in a queue, the next one first, at most `max`. `None`: the queue does not exist.
    pub async fn waiting(&self, queue: QueueAddress, max: usize) -> Option<Vec<WaitingMessage>> {
        snapshot::waiting(&self.inner.hub, queue, max).await
    }

    /// A consistent copy of everything that is saved, as files that stay until it is dropped. The broker keeps working; it
    /// pauses writes only while all journals are synced together.
    ///
    /// # Errors
    /// [`BackupError`]; the data directory is unchanged.
    pub async fn backup(&self) -> Result<Backup, BackupError> {
        let hub = Arc::clone(&self.inner.hub);
        match tokio::task::spawn_blocking(move || hub.backups.pause_writers(BackupKind::Requested)).await {
            Ok(backup) => backup,
            Err(_) => Err(BackupError::Stopping),
        }
    }

    /// Advances a manual clock and wakes every timer that waits for it. Has no effect on the system clock.
    pub fn advance(&self, by: Duration) {
        let hub = &self.inner.hub;
        if !hub.clock.advance(by) {
            return;
        }
        hub.moved();
        for shard in &hub.shards {
            shard.send_urgent(Urgent::ClockTurned);
        }
        hub.schedules.look();
        for outbox in hub.registry.all() {
            outbox.wake();
        }
    }

    /// Returns when the server is idle: input from local connections is read, no shard has work, no handler has an
    /// answer outstanding whose deadline is in the future, and every connection has written what its peer accepts.
    /// For tests; data in transit through a socket is not seen.
    pub async fn settle(&self) {
        let hub = &self.inner.hub;
        loop {
            let before = hub.activity.load(Ordering::SeqCst);
            let (probe, mut answered) = mpsc::channel(1);
            for outbox in hub.registry.all() {
                outbox.probe(probe.clone());
            }
            drop(probe);
            answered.recv().await;
            fence(hub).await;
            if hub.activity.load(Ordering::SeqCst) != before {
                continue;
            }
            if hub.counters.handlers.open() == 0 {
                return;
            }
            tokio::time::sleep(HANDLER_POLL_INTERVAL).await;
        }
    }

    /// Reads users and tokens again, and ends the connections whose rights have changed. The server also does this by
    /// itself soon after their file has changed.
    ///
    /// # Errors
    /// [`StoreError`] if they cannot be read; the previous ones stay in force.
    pub async fn reload_authority(&self) -> Result<(), StoreError> {
        reload::reload(&self.inner.hub, true).await
    }

    /// Stops the server: accepts no connections, finishes in-flight work, and waits up to `grace` for clients to read their
    /// remaining data. A second call has no effect, except that a shorter `grace` shortens the wait. Stopping continues even
    /// if the returned future is dropped.
    pub async fn stop(&self, grace: Duration) {
        self.inner.hub.shutdown.begin(grace);
        self.stopped().await;
    }

    /// Whether the server has stopped, by [`Server::stop`] or by an administrator of a protocol that allows it.
    #[must_use]
    pub fn has_stopped(&self) -> bool {
        self.inner.hub.shutdown.is_over()
    }

    /// Returns once the server has stopped, by [`Server::stop`] or by an administrator.
    pub async fn stopped(&self) {
        self.inner.hub.shutdown.all_gone().await;
    }
}

/// Interval at which `settle` checks whether handlers have answered.
const HANDLER_POLL_INTERVAL: Duration = Duration::from_micros(200);

impl fmt::Debug for Server {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Server")
            .field("listeners", &self.inner.listeners)
            .field("admin", &self.inner.admin)
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.hub.shutdown.begin(Duration::ZERO);
    }
}

/// The index of a key in the table of every shard: ready-made policies first, then in order of registration.
fn handler_id(keys: &mut Vec<Box<str>>, key: &str) -> HandlerId {
    let index = keys.iter().position(|known| **known == *key).unwrap_or_else(|| {
        keys.push(key.into());
        keys.len() - 1
    });
    HandlerId(index as u16)
}
