//! Everything joined: start, look, stop.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mqcore_broker::model::config::{BrokerConfig, HandlerSpec};
use mqcore_broker::model::id::{HandlerId, QueueAddress, RouterName};
use mqcore_broker::model::policy;
use mqcore_broker::model::router::RouterDefinition;
use mqcore_broker::model::stats::{ShardStats, WaitingMessage};
use mqcore_journal::options::Options;
use mqcore_journal::storage::FileStorage;
use mqcore_limiter::limiter::Limiter;
use mqcore_limiter::time::Nanos;
use mqcore_session::eventmq::exchange::Exchange;
use mqcore_session::throttr::directory::Directory;
use mqcore_tls::error::TlsConfigError;
use mqcore_tls::listener::Loaded;
use tokio::io::DuplexStream;
use tokio::sync::{Notify, mpsc};

use crate::admin::{self, Admin};
use crate::authority::store::StoreError;
use crate::authority::{Authority, LOOK_INTERVAL};
use crate::config::address::{AdminAddress, Listening};
use crate::config::{AdminConfig, Config, ConfigError, Encryption, ListenerTls, Protocol};
use crate::handler::HandlerPort;
use crate::hub::{Hub, SessionTerms};
use crate::limits;
use crate::limits::journal::{LimitJournal, Restored};
use crate::net::connection::Connection;
use crate::net::guard::Guard;
use crate::net::listener::{self, Socket, Spoken, TlsSocket};
use crate::net::outbox::Order;
use crate::net::registry::Registry;
use crate::net::tls::{self, Tls};
use crate::nodes::OpenedNodes;
use crate::runtime::clock::Clock;
use crate::runtime::shutdown::{Shutdown, TaskGuard};
use crate::runtime::spares::{SpareBytes, SpareCommands};
use crate::schedules::keeper::Keeper;
use crate::schedules::port::SchedulePort;
use crate::schedules::{self, EndScheduleError, EntryId, ScheduleList};
use crate::shard::engine::Engine;
use crate::shard::inbox::{self, Urgent};
use crate::stats::counters::Counters;
use crate::stats::failures::{Failure, Failures};
use crate::stats::survey;
use crate::storage::archiver::Archiver;
use crate::storage::backup::{Backup, BackupDesk, BackupError, Wake};
use crate::storage::data_dir::{DataDir, DataDirError, Opened, RECORD_BYTES_MAX, SideJournal};
use crate::storage::journal_writer::{HistoryTerms, JournalWriter};

pub use crate::net::tls::{ListenerCertificate, ReloadError};

/// What a local connection holds in each direction before its writer waits, in octets.
const LOCAL_BUFFER_BYTES: usize = 64 * 1024;

/// A running broker. Clones are handles to the same one; when the last of them is dropped it stops at once.
#[derive(Clone)]
pub struct Server {
    inner: Arc<Inner>,
}

struct Inner {
    hub: Arc<Hub>,
    listeners: Vec<Listening>,
    admin: Option<AdminAddress>,
    /// Keys in the order of their [`HandlerId`]s. Held while the shards are told, so that all hear the same order.
    handlers: Mutex<Vec<Box<str>>>,
}

/// Why a server did not start. Nothing of it is left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An address that others could reach, while nobody has to log in.
    #[error(
        "{address} is not a loopback address, and nobody has to log in; make a user first (mqcore user add) or a token \
         (mqcore token create), listen on 127.0.0.1, or set allow_remote if everybody in the network around is trusted"
    )]
    NotLoopback {
        /// What should have been bound.
        address: SocketAddr,
    },
    /// Users and tokens cannot be read, or the audit log not be written.
    #[error("users and tokens: {0}")]
    Authority(#[from] StoreError),
    /// Certificates and keys cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsConfigError),
    /// The data directory cannot be used.
    #[error(transparent)]
    Data(#[from] DataDirError),
    /// The system gives no thread for a journal.
    #[error("no thread for a journal: {source}")]
    Thread {
        /// What the system says.
        source: io::Error,
    },
    /// An address could not be bound.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// What should have been bound.
        address: String,
        /// What the system says.
        source: io::Error,
    },
}

impl Server {
    /// Binds everything, then starts everything, on the Tokio runtime of the caller.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left running.
    pub async fn start(
        config: Config,
        handlers: Vec<HandlerSpec>,
        port: Arc<dyn HandlerPort>,
    ) -> Result<Self, StartError> {
        config.check()?;
        let clock = Clock::new(config.clock);
        // Bound first: an address in use is found before minutes go into reading a journal. Nothing is accepted
        // until everything is back.
        let authority = Authority::open(&config.authority, config.data_dir.as_ref(), port.authority())?;
        let tls = Tls::new(config.tls_handshakes_max, config.tls_expiry_warning);
        let bound = bind_all(&config, &tls, config.allow_remote || !authority.is_open()).await?;
        let mut recovered = recover(&config, clock.now().0).await?;
        let nodes = open_nodes(&config, recovered.as_mut(), clock.now().0)?;
        let count = recovered.as_ref().map_or(config.shard_count(), |recovered| recovered.directory.shards());
        let throttr = limits::directory(&config, &clock);
        let extensions = port.extensions();
        let kept = recover_limits(&config, recovered.as_ref(), &throttr, &clock).await?;
        let schedule_port = SchedulePort::new();
        let keeper =
            recover_schedules(&config, recovered.as_ref(), &schedule_port, count, clock.now().0).await?;
        let limits_meet = config.persists_limits().then(|| (SideJournal::Limits, Wake::Task(Notify::new())));
        let schedules_meet =
            keeper.is_kept().then(|| (SideJournal::Schedules, Wake::Schedules(schedule_port.clone())));
        let beside = limits_meet.into_iter().chain(schedules_meet).collect();
        let (shards, inboxes): (Vec<_>, Vec<_>) = (0..count).map(|_| inbox::channel()).unzip();
        let shutdown = Shutdown::new();
        let directory = recovered.as_ref().map(|recovered| Arc::clone(&recovered.directory));
        let (nodes, links) = nodes
            .map(|nodes| nodes.start(&shutdown, directory.clone(), port.node_filters()))
            .transpose()
            .map_err(|source| StartError::Thread { source })?
            .unzip();
        let hub = Arc::new(Hub {
            clock,
            counters: Counters::default(),
            failures: Failures::default(),
            tls,
            registry: Registry::new(config.connections_max, config.half_open_max, config.output_bytes_max),
            authority,
            nodes,
            shards: shards.into(),
            shutdown,
            session: SessionTerms {
                limits: config.limits,
                handshake_timeout: config.handshake_timeout,
                ping_interval: config.ping_interval,
                pong_timeout: config.pong_timeout,
            },
            spare_commands: SpareCommands::new(),
            spare_bytes: SpareBytes::new(),
            runtime: tokio::runtime::Handle::current(),
            backups: BackupDesk::new(count, beside, recovered.as_ref().map(|recovered| &recovered.directory)),
            activity: AtomicU64::new(0),
            throttr,
            extension_names: extensions.iter().flat_map(|port| port.names()).collect(),
            extensions,
            eventmq: Arc::new(Exchange::new(RandomState::new().hash_one(0), job_policy(&config))),
            schedules: schedule_port,
            scheduling: schedules::client(),
            guard: Guard { publish: config.publish_limit, connect: config.connect_limit },
        });
        let admin_url = bound.admin.as_ref().map(|(_, address)| address.url());
        if let Some(Err(error)) =
            recovered.as_ref().map(|recovered| recovered.directory.tell_admin(admin_url.as_deref()))
        {
            // Only those who know nothing but the directory miss it.
            tracing::warn!(%error, "the data directory does not say where the admin side is");
        }
        let seeds = RandomState::new();
        let mut opened = recovered.into_iter().flat_map(|recovered| recovered.shards);
        let archiver = start_archiver(&config, &hub, directory.as_ref())?;
        let history = HistoryTerms::new(config.history.as_ref(), hub.shards.len(), archiver);
        let mut engines = Vec::new();
        for shard in 0..hub.shards.len() {
            let terms = broker_config(&config, shard, hub.shards.len(), &seeds);
            let mut engine = Engine::new(terms, &handlers, &hub, Arc::clone(&port));
            if let Some((opened, directory)) = opened.next().zip(directory.clone()) {
                let Opened { journal, had, .. } = opened;
                let writer = JournalWriter::start(shard, journal, &hub, directory, history.clone())
                    .map_err(|source| StartError::Thread { source })?;
                engine.restore(had, writer);
            }
            for router in &config.routers {
                if router.name.shard(hub.shards.len()) == shard {
                    engine.define_router(router.clone());
                }
            }
            engines.push(engine);
        }
        for (engine, inbox) in engines.into_iter().zip(inboxes) {
            tokio::spawn(engine.run(inbox));
        }
        let mut keys: Vec<Box<str>> = policy::ALL.iter().map(|policy| policy.key.into()).collect();
        for handler in handlers {
            handler_id(&mut keys, &handler.key);
        }
        let mut listeners = Vec::new();
        for (socket, listening, spoken) in bound.listeners {
            let alive = hub.shutdown.enter();
            tokio::spawn(listener::accept(socket, spoken, Arc::clone(&hub), alive));
            listeners.push(listening);
        }
        let inner = Inner {
            listeners,
            admin: bound.admin.as_ref().map(|(_, bound)| *bound),
            handlers: Mutex::new(keys),
            hub,
        };
        if let Some((door, _)) = bound.admin {
            let admin = Admin::new(&inner.hub, inner.listeners.clone(), config.data_dir.as_deref());
            tokio::spawn(admin::serve(door, admin, inner.hub.shutdown.enter()));
        }
        if !inner.hub.tls.certificates().is_empty() {
            let hub = Arc::clone(&inner.hub);
            let alive = hub.shutdown.enter();
            tokio::spawn(async move {
                tls::watch_expiry(hub).await;
                drop(alive);
            });
        }
        if let Some(links) = links {
            links.start(&inner.hub);
        }
        inner.hub.eventmq.keep_schedules(Arc::new(inner.hub.schedules.clone()));
        inner
            .hub
            .schedules
            .start(keeper, &inner.hub, directory, inner.hub.shutdown.enter())
            .map_err(|source| StartError::Thread { source })?;
        if let Some((journal, restored, directory)) = kept {
            let hub = &inner.hub;
            hub.counters.limits.restored.add(restored.entries);
            let interval = config.limiter_persist_interval;
            let alive = hub.shutdown.enter();
            tokio::spawn(limits::journal::keep(Arc::clone(hub), journal, interval, directory, alive));
        }
        tokio::spawn(limits::sweep(Arc::clone(&inner.hub), inner.hub.shutdown.enter()));
        tokio::spawn(supervise(Arc::clone(&inner.hub), inner.hub.shutdown.enter()));
        tokio::spawn(watch_authority(Arc::clone(&inner.hub), inner.hub.shutdown.enter()));
        Ok(Self { inner: Arc::new(inner) })
    }

    /// What is bound, with the ports that were picked, in the order of the configuration.
    pub fn listeners(&self) -> &[Listening] {
        &self.inner.listeners
    }

    /// Where the admin side is served.
    pub fn admin(&self) -> Option<AdminAddress> {
        self.inner.admin
    }

    /// What encrypted listeners show, the admin side among them.
    pub fn certificates(&self) -> Vec<ListenerCertificate> {
        self.inner.hub.tls.certificates()
    }

    /// Reads certificates, keys and client authorities again, of every encrypted listener. Whoever connects from now on
    /// is shown what is new; who is connected stays so. Blocks for as long as reading takes.
    ///
    /// # Errors
    /// One for each listener that goes on with what it had because its files cannot be used; the others have theirs.
    pub fn reload_certificates(&self) -> Result<(), Vec<ReloadError>> {
        let failed = self.inner.hub.tls.reload();
        if failed.is_empty() { Ok(()) } else { Err(failed) }
    }

    /// A connection that needs no socket: the other end runs the same loop as every connection. After `stop`, or
    /// beyond `connections_max`, it reads as closed.
    pub fn connect_local(&self, protocol: Protocol) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(LOCAL_BUFFER_BYTES);
        let hub = &self.inner.hub;
        match hub.registry.open(protocol) {
            Ok(outbox) => Connection::spawn_inside(hub, ours, outbox),
            Err(_) => hub.counters.of(protocol).turned_away.add(1),
        }
        theirs
    }

    /// The store of limits, which every Throttr listener answers from; to be used with [`Server::limiter_now`].
    #[must_use]
    pub fn limiter(&self) -> &Arc<Limiter> {
        self.inner.hub.throttr.limiter()
    }

    /// The moment that the store of limits lives in.
    #[must_use]
    pub fn limiter_now(&self) -> Nanos {
        Nanos(self.inner.hub.clock.nanos())
    }

    /// Registers a handler, or replaces the one of the same key, in every shard. Answers with the id by which questions
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

    /// Puts a router in the place of the one of its name, if there is one. It is the program's: nothing of it is saved.
    pub fn set_router(&self, router: RouterDefinition) {
        let name = router.name.clone();
        self.tell_router(name, Some(Box::new(router)));
    }

    /// Removes a router; fine if there is none.
    pub fn remove_router(&self, name: &RouterName) {
        self.tell_router(name.clone(), None);
    }

    fn tell_router(&self, name: RouterName, router: Option<Box<RouterDefinition>>) {
        let hub = &self.inner.hub;
        let shard = name.shard(hub.shards.len());
        hub.shards[shard].send_urgent(Urgent::Router(name, router));
        hub.moved();
    }

    /// The id by which questions name the handler of this key.
    pub fn handler_id(&self, key: &str) -> Option<HandlerId> {
        let keys = self.inner.handlers.lock().unwrap_or_else(PoisonError::into_inner);
        keys.iter().position(|known| **known == *key).map(|index| HandlerId(index as u16))
    }

    /// What all shards know, joined. Shards that have stopped add nothing.
    pub async fn survey(&self) -> ShardStats {
        survey::survey(&self.inner.hub).await
    }

    /// The schedules that are due next, at most `max` of them, and how many there are. None after the server has ended.
    pub async fn schedules(&self, max: usize) -> ScheduleList {
        self.inner.hub.schedules.list(max).await.unwrap_or_default()
    }

    /// Ends a schedule, and answers when that is durable.
    ///
    /// # Errors
    /// [`EndScheduleError`].
    pub async fn end_schedule(&self, id: EntryId) -> Result<(), EndScheduleError> {
        self.inner.hub.schedules.end_schedule(id).await
    }

    /// The last requests that could not be done, the latest first, at most `limit` of them: what the numbers stand for
    /// that their peers were told. At most [`FAILURES_MAX`](crate::stats::failures::FAILURES_MAX) are kept.
    pub fn failures(&self, limit: usize) -> Vec<Failure> {
        self.inner.hub.failures.latest(limit)
    }

    /// Messages that wait in a queue, the next one first, at most `max` of them. `None`: there is no such queue.
    pub async fn waiting(&self, queue: QueueAddress, max: usize) -> Option<Vec<WaitingMessage>> {
        survey::waiting(&self.inner.hub, queue, max).await
    }

    /// A consistent copy of everything that is saved, as files that stay until it is dropped. Nobody is disturbed, apart
    /// from the moment in which all journals are synced together.
    ///
    /// # Errors
    /// [`BackupError`]; nothing was changed then.
    pub async fn backup(&self) -> Result<Backup, BackupError> {
        let hub = Arc::clone(&self.inner.hub);
        match tokio::task::spawn_blocking(move || hub.backups.meet()).await {
            Ok(backup) => backup,
            Err(_) => Err(BackupError::Stopping),
        }
    }

    /// Turns a manual clock forward, and wakes whoever waits for it. Without effect on the system's clock.
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

    /// Returns when nothing is left to do: what local connections wrote is read, no shard has work, no handler
    /// owes an answer whose deadline is to come, and every connection has written what its peer takes. For tests; what
    /// is still on its way through a socket cannot be known.
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
            tokio::time::sleep(HANDLER_PATIENCE).await;
        }
    }

    /// Reads users and tokens again, and ends the connections whose rights have changed. Also done by itself, a moment
    /// after their file has changed.
    ///
    /// # Errors
    /// [`StoreError`] if they cannot be read; those that are known then go on to hold.
    pub async fn reload_authority(&self) -> Result<(), StoreError> {
        reload_authority(&self.inner.hub, true).await
    }

    /// Stops: accepts nothing, lets the shards finish what they have, lets every session say goodbye and waits
    /// up to `grace` for the peers to take what is theirs. Then everything is gone. Again is fine, and with a shorter
    /// grace shortens it. Goes on even if nobody waits for it.
    pub async fn stop(&self, grace: Duration) {
        self.inner.hub.shutdown.begin(grace);
        self.stopped().await;
    }

    /// Whether the server has stopped, whoever stopped it: administrators of some protocols may.
    #[must_use]
    pub fn has_stopped(&self) -> bool {
        self.inner.hub.shutdown.is_over()
    }

    /// Returns once the server has stopped, whoever stopped it.
    pub async fn stopped(&self) {
        self.inner.hub.shutdown.all_gone().await;
    }
}

/// How long `settle` waits before it looks again whether handlers have answered.
const HANDLER_PATIENCE: Duration = Duration::from_micros(200);

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

/// What a data directory had.
struct Recovery {
    directory: Arc<DataDir>,
    shards: Vec<Opened>,
    nodes: Option<OpenedNodes>,
}

/// What a node knows of itself: read with the data directory, or made up.
fn open_nodes(
    config: &Config,
    recovered: Option<&mut Recovery>,
    now_ms: u64,
) -> Result<Option<OpenedNodes>, StartError> {
    match (recovered, &config.node) {
        (Some(recovered), _) => Ok(recovered.nodes.take()),
        (None, Some(node)) => Ok(Some(OpenedNodes::open(node, None, now_ms)?)),
        (None, None) => Ok(None),
    }
}

/// Reads the data directory, if there is one, on a thread that may block.
async fn recover(config: &Config, now_ms: u64) -> Result<Option<Recovery>, StartError> {
    let Some(path) = config.data_dir.clone() else { return Ok(None) };
    let wanted = config.shard_count();
    let node = config.node.clone();
    let read = tokio::task::spawn_blocking(move || {
        let directory = DataDir::open(&path, wanted)?;
        if directory.shards() != wanted {
            let shards = directory.shards();
            tracing::info!(
                shards,
                wanted,
                "the data directory keeps the number of shards that it was made for"
            );
        }
        let shards = (0..directory.shards())
            .map(|shard| read_shard(&directory, shard, now_ms))
            .collect::<Result<Vec<_>, _>>()?;
        let nodes = node.map(|node| OpenedNodes::open(&node, Some(&path), now_ms)).transpose()?;
        Ok(Recovery { directory: Arc::new(directory), shards, nodes })
    });
    match read.await {
        Ok(recovery) => recovery.map(Some).map_err(StartError::Data),
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// A journal of limits, what it brought back, and the hold on its directory.
type KeptLimits = (LimitJournal, Restored, Arc<DataDir>);

/// Fills the store with what an earlier server kept of it. `None`: no listener keeps anything.
async fn recover_limits(
    config: &Config,
    recovered: Option<&Recovery>,
    throttr: &Arc<Directory>,
    clock: &Clock,
) -> Result<Option<KeptLimits>, StartError> {
    let Some(recovered) = recovered.filter(|_| config.persists_limits()) else { return Ok(None) };
    let (directory, throttr) = (Arc::clone(&recovered.directory), Arc::clone(throttr));
    let now = Nanos(clock.nanos());
    let read = tokio::task::spawn_blocking(move || {
        let (journal, restored) =
            LimitJournal::open(&directory.side(SideJournal::Limits), throttr.limiter(), now)?;
        Ok((journal, restored, directory))
    });
    let kept: KeptLimits = match read.await {
        Ok(kept) => kept.map_err(StartError::Data)?,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    let Restored { entries, expired, unreadable } = kept.1;
    tracing::info!(entries, expired, unreadable, "limits are back");
    Ok(Some(kept))
}

/// Goes on with the schedules that an earlier server kept. A directory gets a journal of them as soon as somebody could ask for
/// any.
async fn recover_schedules(
    config: &Config,
    recovered: Option<&Recovery>,
    port: &SchedulePort,
    shards: usize,
    now_ms: u64,
) -> Result<Keeper<FileStorage>, StartError> {
    let asked_for = config.listeners.iter().any(|listener| listener.protocol == Protocol::Eventmq);
    let path = recovered.map(|recovered| recovered.directory.side(SideJournal::Schedules));
    let Some(path) = path.filter(|path| asked_for || path.exists()) else {
        return Ok(Keeper::in_memory(shards, now_ms));
    };
    let port = port.clone();
    let read = tokio::task::spawn_blocking(move || {
        let storage = FileStorage::open(&path).map_err(|source| DataDirError::Io { path, source })?;
        let options = Options { now_ms, max_record_bytes: RECORD_BYTES_MAX as u32, ..Options::default() };
        Keeper::open(storage, options, shards, port.crons())
            .map_err(|source| DataDirError::Schedules { source })
    });
    let (keeper, unreadable) = match read.await {
        Ok(opened) => opened?,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    let (schedules, outstanding) = (keeper.len(), keeper.outstanding());
    tracing::info!(schedules, outstanding, unreadable, "schedules are back");
    Ok(keeper)
}

fn read_shard(directory: &DataDir, shard: usize, now_ms: u64) -> Result<Opened, DataDirError> {
    let mut told = Instant::now();
    let mut progress = |done: u64, all: u64| {
        if told.elapsed() >= Duration::from_secs(1) {
            told = Instant::now();
            tracing::info!(shard, done, all, "reading the journal");
        }
    };
    let opened = directory.open_shard(shard, now_ms, &mut progress)?;
    let (messages, unreadable) = (opened.had.messages.len(), opened.unreadable);
    let report = &opened.report;
    if !report.is_alarming() && unreadable == 0 {
        tracing::info!(shard, messages, "the journal is whole");
    } else {
        tracing::error!(shard, messages, unreadable, %report, "the journal was damaged");
    }
    Ok(opened)
}

/// Starts the thread that archives, if there is history to archive.
fn start_archiver(
    config: &Config,
    hub: &Arc<Hub>,
    directory: Option<&Arc<DataDir>>,
) -> Result<Option<Archiver>, StartError> {
    let archive = config.history.as_ref().and_then(|history| history.archive.as_ref());
    let Some((archive, directory)) = archive.zip(directory) else { return Ok(None) };
    let archiver = Archiver::start(archive.clone(), hub, Arc::clone(directory));
    archiver.map(Some).map_err(|source| StartError::Thread { source })
}

/// The delivery handler of queues that peers of EventMQ make; one that somebody has chosen is their choice. Where jobs can be
/// saved they are, and their clients hear of it then. Elsewhere clients hear when a worker has the job, which is what `memory`
/// would tell them too early.
fn job_policy(config: &Config) -> Option<Box<str>> {
    let policy = if config.data_dir.is_some() { policy::AT_LEAST_ONCE } else { policy::ACK_ON_SEND };
    (config.delivery_handler == policy::MEMORY.key).then(|| policy.key.into())
}

/// What is bound, and what is shown there.
struct Bound {
    listeners: Vec<(Socket, Listening, Spoken)>,
    admin: Option<(admin::Door, AdminAddress)>,
}

/// All or nothing: whoever learns of one address can rely on the others.
async fn bind_all(config: &Config, tls: &Tls, allow_remote: bool) -> Result<Bound, StartError> {
    let mut listeners = Vec::new();
    for listener in &config.listeners {
        // Read before anything is bound: a file that cannot be used is found without a port being taken.
        let loaded = load(config, &listener.encryption, &[])?;
        let (socket, address) = listener::bind(&listener.address, allow_remote).await?;
        let listening = Listening {
            protocol: listener.protocol,
            address,
            encrypted: loaded.is_some(),
            role: listener.eventmq.role,
        };
        let socket = match (socket, loaded) {
            (Socket::Tcp(listener), Some((files, loaded))) => {
                let endpoint = tls.add(listening.url(), files, &[], loaded);
                Socket::Tls(TlsSocket { listener, endpoint })
            }
            (socket, _) => socket,
        };
        let spoken = Spoken { protocol: listener.protocol, terms: listener.terms() };
        listeners.push((socket, listening, spoken));
    }
    let admin = match &config.admin {
        Some(admin) => Some(bind_admin(config, admin, tls, allow_remote).await?),
        None => None,
    };
    Ok(Bound { listeners, admin })
}

async fn bind_admin(
    config: &Config,
    admin: &AdminConfig,
    tls: &Tls,
    allow_remote: bool,
) -> Result<(admin::Door, AdminAddress), StartError> {
    let loaded = load(config, &admin.encryption, HTTP)?;
    let (socket, address) = listener::bind_tcp(&admin.address.to_string(), allow_remote).await?;
    let bound = AdminAddress { address, encrypted: loaded.is_some() };
    let endpoint = loaded.map(|(files, loaded)| tls.add(bound.url(), files, HTTP, loaded));
    Ok((admin::Door { socket, endpoint }, bound))
}

/// What is spoken behind TLS on the admin side, by the name that clients may ask for.
const HTTP: &[&[u8]] = &[b"http/1.1"];

/// Reads what an encrypted listener shows; `None` if it is not encrypted.
fn load(
    config: &Config,
    encryption: &Encryption,
    protocols: &[&[u8]],
) -> Result<Option<(ListenerTls, Loaded)>, StartError> {
    let files = match encryption {
        Encryption::None => return Ok(None),
        Encryption::Shared => config.tls.as_ref().ok_or(ConfigError::NoCertificate)?,
        Encryption::Own(files) => files,
    };
    Ok(Some((files.clone(), files.load(protocols)?)))
}

fn broker_config(config: &Config, shard: usize, shards: usize, seeds: &RandomState) -> BrokerConfig {
    // The standard library's hasher is keyed with randomness of the system, which is all that is needed here.
    let mut seed = seeds.build_hasher();
    seed.write_usize(shard);
    BrokerConfig {
        shard,
        shards,
        channel: config.channel.clone(),
        auto_create_channels: config.auto_create_channels,
        auto_create_queues: config.auto_create_queues,
        client_limit: config.client_limit,
        channel_limit: config.channel_limit,
        delivery_handler: config.delivery_handler.as_str().into(),
        slow_consumer_timeout: config.slow_consumer_timeout,
        undecided_max: config.undecided_max,
        memory_watermark: config.memory_watermark / shards as u64,
        history: config.history.as_ref().map(|history| history.options),
        seed: seed.finish(),
    }
}

/// The place of a key in the table that every shard keeps: ready-made policies first, then in order of registration.
fn handler_id(keys: &mut Vec<Box<str>>, key: &str) -> HandlerId {
    let index = keys.iter().position(|known| **known == *key).unwrap_or_else(|| {
        keys.push(key.into());
        keys.len() - 1
    });
    HandlerId(index as u16)
}

/// Returns when each shard has had nothing left to do for a moment.
async fn fence(hub: &Hub) {
    let (fence, mut quiet) = mpsc::channel(1);
    for shard in &hub.shards {
        shard.send_urgent(Urgent::Fence(fence.clone()));
    }
    drop(fence);
    quiet.recv().await;
}

/// Stops everything, in order, once somebody has asked for it.
/// Looks now and then whether users and tokens have changed, and whether the time of one is over.
async fn watch_authority(hub: Arc<Hub>, _alive: TaskGuard) {
    if hub.authority.store().is_none() && hub.authority.is_open() {
        return;
    }
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK_INTERVAL) => {}
            () = hub.shutdown.ended() => return,
        }
        if let Err(error) = reload_authority(&hub, false).await {
            tracing::error!(%error, "users and tokens could not be read; those that were known go on to hold");
        }
    }
}

pub(crate) async fn reload_authority(hub: &Arc<Hub>, forced: bool) -> Result<(), StoreError> {
    let now_ms = hub.clock.now().0;
    let reader = Arc::clone(hub);
    let read = hub.runtime.spawn_blocking(move || reader.authority.reload(forced, now_ms)).await;
    let changed = match read {
        Ok(changed) => changed?,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    if changed || hub.authority.any_expired(now_ms) {
        let open: Vec<_> = hub.registry.all();
        let connections: Vec<_> = open.iter().map(|outbox| outbox.connection).collect();
        let fallen = hub.authority.fallen(&connections, now_ms);
        for outbox in open.iter().filter(|outbox| fallen.contains(&outbox.connection)) {
            outbox.order(Order::Revoke);
        }
    }
    Ok(())
}

async fn supervise(hub: Arc<Hub>, _alive: TaskGuard) {
    hub.shutdown.begun().await;
    let open = hub.registry.stop();
    for outbox in &open {
        outbox.order(Order::Hush);
    }
    tokio::select! {
        () = fence(&hub) => {}
        () = hub.shutdown.drained_long_enough() => {}
    }
    for outbox in open {
        outbox.order(Order::Goodbye);
    }
    tokio::select! {
        () = hub.registry.emptied() => {}
        () = hub.shutdown.drained_long_enough() => {}
    }
    for outbox in hub.registry.all() {
        outbox.order(Order::Abort);
    }
    hub.registry.emptied().await;
    for shard in &hub.shards {
        shard.send_urgent(Urgent::End);
    }
    hub.schedules.end();
    if let Some(outlet) = hub.nodes.as_ref().and_then(|nodes| nodes.outlet.as_ref()) {
        outlet.end();
    }
    hub.shutdown.end();
}
