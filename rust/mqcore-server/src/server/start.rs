//! Starts a server: everything that can fail is opened first, then everything runs.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use mqcore_broker::model::config::{BrokerConfig, HandlerSpec};
use mqcore_broker::model::declaration::{Declaration, Declared};
use mqcore_broker::model::names::BrokerNames;
use mqcore_broker::model::options::DeadLetter;
use mqcore_broker::model::placement::Placement;
use mqcore_broker::model::policy;
use mqcore_broker::model::unsaved::UnsavedMemory;
use mqcore_limiter::limiter::Limiter;
use mqcore_limiter::time::Nanos;
use mqcore_replication::storage::DataStorage;
use mqcore_session::any::SharedState;
use mqcore_session::jobs::JobLedger;
use mqcore_session::protocol::ServerParts;
use mqcore_session::schedules::job_queues;
use tokio::sync::Notify;

use crate::admin::{self, Admin};
use crate::attention::state::AttentionState;
use crate::attention::watch;
use crate::authority::reload;
use crate::authority::state::Authority;
use crate::config::error::ConfigError;
use crate::config::{ClockConfig, Config};
use crate::handler::HandlerPort;
use crate::hub::{Hub, SessionTerms};
use crate::limits;
use crate::net::descriptors;
use crate::net::guard::Guard;
use crate::net::input_budget::InputBudgets;
use crate::net::listener;
use crate::net::registry::Registry;
use crate::net::tls::Tls;
use crate::net::tls_accept;
use crate::nodes::membership::Nodes;
use crate::nodes::startup::{Links, OpenedNodes};
use crate::runtime::clock::Clock;
use crate::runtime::shutdown::Shutdown;
use crate::runtime::spares::{SpareBytes, SpareCommands};
use crate::schedules::port::SchedulePort;
use crate::schedules::worker;
use crate::server::bind::{Bound, bind_all};
use crate::server::error::StartError;
use crate::server::recovery::{KeptLimits, Recovery, open_nodes, recover, recover_limits, recover_schedules};
use crate::server::stopping::supervise;
use crate::server::{Inner, handler_id, unsaved};
use crate::shard::count::random_key;
use crate::shard::engine::Engine;
use crate::shard::inbox::{self, ShardHandle, ShardInbox};
use crate::stats::counters::Counters;
use crate::stats::failures::Failures;
use crate::stats::totals::TotalsHistory;
use crate::storage::archiver::Archiver;
use crate::storage::backup::{BackupDesk, Wake};
use crate::storage::continuous_backup::{self, ContinuousBackupStartError};
use crate::storage::data_dir::{DataDir, Opened, SideJournal, shard_name};
use crate::storage::journal_batch::HistoryTerms;
use crate::storage::journal_writer::JournalWriter;
use crate::storage::object_archive::ObjectArchive;
use mqcore_state::schedules::keeper::Keeper;
use mqcore_state::schedules::publisher;

/// Everything opened and bound before the first task runs. Dropping it releases everything.
pub(super) struct Parts {
    config: Config,
    port: Arc<dyn HandlerPort>,
    clock: Clock,
    authority: Authority,
    tls: Tls,
    bound: Bound,
    /// `None`: there is no data directory.
    directory: Option<Arc<DataDir>>,
    /// Journals by shard; empty without a data directory.
    opened: Vec<Opened>,
    nodes: Option<OpenedNodes>,
    limiter: Arc<Limiter>,
    limits: Option<KeptLimits>,
    schedule_port: SchedulePort,
    keeper: Keeper<DataStorage>,
    placement: Placement,
}

impl Parts {
    /// Opens and binds everything that a configuration names.
    pub(super) async fn open(config: Config, port: Arc<dyn HandlerPort>) -> Result<Self, StartError> {
        config.check()?;
        let clock = Clock::new(config.clock);
        let authority =
            Authority::open(&config.authority, (config.data_dir.as_ref(), &config.files), port.authority())?;
        let tls = Tls::new(config.tls_handshakes_max, config.tls_expiry_warning);
        // Bound first, so that an address in use is reported before minutes go into reading a journal. Connections are
        // accepted only after recovery.
        let bound = bind_all(&config, &tls, config.allow_remote || !authority.is_open()).await?;
        let mut recovered = recover(&config, clock.now().0).await?;
        let nodes = open_nodes(&config, recovered.as_mut(), clock.now().0)?;
        let placement = match &recovered {
            Some(recovered) => recovered.directory.placement(),
            None => fresh_placement(&config),
        };
        let limiter = limits::store(&config);
        let limits = recover_limits(&config, recovered.as_ref(), &limiter, &clock).await?;
        let schedule_port = SchedulePort::new();
        let keeper =
            recover_schedules(&config, recovered.as_ref(), &schedule_port, placement, clock.now().0).await?;
        let (directory, opened) = match recovered {
            Some(Recovery { directory, shards, .. }) => (Some(directory), shards),
            None => (None, Vec::new()),
        };
        if let Some(replicator) = config.files.replicator() {
            replicator.note_opened();
        }
        Ok(Self {
            config,
            port,
            clock,
            authority,
            tls,
            bound,
            directory,
            opened,
            nodes,
            limiter,
            limits,
            schedule_port,
            keeper,
            placement,
        })
    }

    /// Starts every thread and task.
    pub(super) fn start(self, handlers: Vec<HandlerSpec>) -> Result<Inner, StartError> {
        let backups = self.backup_desk();
        let Self { config, port, bound, directory, opened, limits, keeper, .. } = self;
        let (shards, inboxes): (Vec<_>, Vec<_>) =
            (0..self.placement.shards()).map(|_| inbox::channel()).unzip();
        let shutdown = Shutdown::new();
        let (nodes, links) = start_nodes(self.nodes, &shutdown, directory.clone(), &port)?.unzip();
        let shared = Shared {
            clock: self.clock,
            authority: self.authority,
            tls: self.tls,
            nodes,
            shards,
            placement: self.placement,
            shutdown,
            backups,
            limiter: self.limiter,
            schedules: self.schedule_port,
        };
        let hub = make_hub(&config, &port, shared);
        note_admin(directory.as_ref(), &bound);
        note_losses(&hub, directory.as_deref());
        start_shards(&config, &handlers, &port, &hub, opened, directory.as_ref(), inboxes)?;
        let mut keys: Vec<Box<str>> = policy::ALL.iter().map(|policy| policy.key.into()).collect();
        for handler in handlers {
            handler_id(&mut keys, &handler.key);
        }
        let inner = accept(&config, hub, bound, &port, keys);
        if inner.admin.is_some() {
            let (hub, alive) = (Arc::clone(&inner.hub), inner.hub.shutdown.enter());
            tokio::spawn(watch::watch(hub, Arc::clone(&port), config.data_dir.clone(), alive));
        }
        if let Some(links) = links {
            links.start(&inner.hub);
        }
        start_schedules(&inner.hub, keeper, directory)?;
        start_housekeeping(&config, &inner.hub, limits);
        if let Some(backup) = &config.backup {
            continuous_backup::start(backup, &inner.hub)?;
        }
        Ok(inner)
    }

    /// The place where journal writers pause for a backup.
    fn backup_desk(&self) -> BackupDesk {
        let limits = self.config.persists_limits().then(|| (SideJournal::Limits, Wake::Task(Notify::new())));
        let schedules = self
            .keeper
            .is_kept()
            .then(|| (SideJournal::Schedules, Wake::Schedules(self.schedule_port.clone())));
        let beside = limits.into_iter().chain(schedules).collect();
        BackupDesk::new(self.placement.shards(), beside, self.directory.as_ref())
    }
}

/// Parts of a hub that do not follow from the configuration.
struct Shared {
    clock: Clock,
    authority: Authority,
    tls: Tls,
    nodes: Option<Nodes>,
    shards: Vec<ShardHandle>,
    placement: Placement,
    shutdown: Arc<Shutdown>,
    backups: BackupDesk,
    limiter: Arc<Limiter>,
    schedules: SchedulePort,
}

fn make_hub(config: &Config, port: &Arc<dyn HandlerPort>, shared: Shared) -> Arc<Hub> {
    let extensions = port.extensions();
    let job_policy = job_policy(config);
    let protocols = SharedState::new(&ServerParts {
        limiter: Arc::clone(&shared.limiter),
        started: Nanos(shared.clock.nanos()),
        extension_names: extensions.iter().flat_map(|port| port.names()).collect(),
        job_policy: job_policy.clone(),
        schedules: Arc::new(shared.schedules.clone()),
        jobs: Arc::new(shared.schedules.clone()),
        patterns_max: config.topic_limits.patterns_max,
    });
    let connections_max = descriptors::connections_allowed(config.connections_max);
    // With fewer connections than planned, silent peers must still not keep clients out.
    let half_open_max = if connections_max < config.connections_max {
        config.half_open_max.min(connections_max.div_ceil(2))
    } else {
        config.half_open_max
    };
    Arc::new(Hub {
        clock: shared.clock,
        counters: Counters::default(),
        failures: Failures::default(),
        attention: AttentionState::default(),
        totals: TotalsHistory::default(),
        tls: shared.tls,
        registry: Registry::new(connections_max, half_open_max, config.output_bytes_max),
        input: InputBudgets::new(config.half_open_bytes_max, config.unfinished_limit()),
        authority: shared.authority,
        nodes: shared.nodes,
        cluster: config.files.replicator().map(|replicator| replicator.status().clone()),
        shards: shared.shards.into(),
        placement: shared.placement,
        shutdown: shared.shutdown,
        session: SessionTerms {
            limits: config.limits,
            login_bytes_max: config.login_bytes_max,
            answer_bytes_max: config.answer_bytes_max(),
            handshake_timeout: config.handshake_timeout,
            ping_interval: config.ping_interval,
            pong_timeout: config.pong_timeout,
        },
        spare_commands: SpareCommands::new(),
        spare_bytes: SpareBytes::new(),
        runtime: tokio::runtime::Handle::current(),
        backups: shared.backups,
        activity: AtomicU64::new(0),
        limiter: shared.limiter,
        unsaved: Arc::new(UnsavedMemory::new(config.unsaved_limits())),
        shared: protocols,
        job_queues: job_queues(job_policy),
        extensions,
        schedules: shared.schedules,
        scheduling: publisher::client(),
        guard: Guard::new(config.publish_limit, config.connect_limit),
        spans: config.spans.clone(),
    })
}

fn no_thread(source: io::Error) -> StartError {
    StartError::Thread { source }
}

fn start_nodes(
    nodes: Option<OpenedNodes>,
    shutdown: &Arc<Shutdown>,
    directory: Option<Arc<DataDir>>,
    port: &Arc<dyn HandlerPort>,
) -> Result<Option<(Nodes, Links)>, StartError> {
    nodes.map(|nodes| nodes.start(shutdown, directory, port.node_filters())).transpose().map_err(no_thread)
}

/// Writes the URL of the admin side into the data directory, where the command line finds it.
fn note_admin(directory: Option<&Arc<DataDir>>, bound: &Bound) {
    let url = bound.admin.as_ref().map(|(_, address)| address.url());
    if let Some(Err(error)) = directory.map(|directory| directory.write_admin_url(url.as_deref())) {
        tracing::warn!(%error, "cannot write the URL of the admin side into the data directory; pass it to commands with --admin");
    }
}

/// Raises the alarm for losses that the operator has not accepted.
fn note_losses(hub: &Hub, directory: Option<&DataDir>) {
    let losses = directory.map(DataDir::losses).unwrap_or_default();
    for loss in losses {
        loss.log();
        hub.counters.journal.add_loss(loss);
    }
}

/// The handlers that the configuration names are registered.
pub(super) fn check_handlers(config: &Config, handlers: &[HandlerSpec]) -> Result<(), ConfigError> {
    let policies = policy::ALL.iter().map(|policy| policy.key);
    let of_queues = handlers.iter().filter(|spec| spec.is_for_queues());
    let known: Vec<_> = policies.chain(of_queues.map(|spec| &*spec.key)).collect();
    let named = config.channel.queue.delivery_handler.as_deref();
    let missing =
        [config.delivery_handler.as_str()].into_iter().chain(named).find(|key| !known.contains(key));
    match missing {
        None => Ok(()),
        Some(key) => Err(ConfigError::NoHandler { key: key.into(), known: known.join(", ") }),
    }
}

/// Starts a task for each shard, with the thread that writes its journal if there is a data directory.
fn start_shards(
    config: &Config,
    handlers: &[HandlerSpec],
    port: &Arc<dyn HandlerPort>,
    hub: &Arc<Hub>,
    opened: Vec<Opened>,
    directory: Option<&Arc<DataDir>>,
    inboxes: Vec<ShardInbox>,
) -> Result<(), StartError> {
    let seeds = RandomState::new();
    let archiver = start_archiver(config, hub, directory)?;
    let history = HistoryTerms::new(config.history.as_ref(), hub.shards.len(), archiver);
    let mut opened = opened.into_iter();
    let mut engines = Vec::new();
    let names = Arc::default();
    for shard in 0..hub.shards.len() {
        let terms = broker_config(config, shard, hub.placement, &names, &seeds, &hub.unsaved);
        let mut engine = Engine::new(terms, handlers, hub, Arc::clone(port));
        if let Some((opened, directory)) = opened.next().zip(directory) {
            let Opened { journal, had, .. } = opened;
            let writer = JournalWriter::start(shard, journal, hub, Arc::clone(directory), history.clone())
                .map_err(no_thread)?;
            engine.restore(had, writer);
        }
        for router in &config.routers {
            if router.name.shard(hub.placement) == shard {
                engine.define_router(router.clone());
            }
        }
        engines.push(engine);
    }
    declare_all(&config.declarations, &mut engines, hub.placement)?;
    for (shard, engine) in engines.iter_mut().enumerate() {
        let name = shard_name(shard);
        // The operator has not accepted what the shard has lost.
        if let Some(loss) = hub.counters.journal.losses().iter().find(|loss| loss.journal == name) {
            engine.refuse(loss.refusal().into());
        }
    }
    // Checked now, because the queue may have been restored.
    let terms = broker_config(config, 0, hub.placement, &names, &seeds, &hub.unsaved);
    if let Some(DeadLetter::Queue(queue)) = &config.channel.queue.dead_letter
        && !terms.is_destination(queue)
    {
        return Err(ConfigError::NoDeadLetterQueue { queue: queue.to_string() }.into());
    }
    for (engine, inbox) in engines.into_iter().zip(inboxes) {
        tokio::spawn(engine.run(inbox));
    }
    Ok(())
}

/// Creates what the configuration declares. A queue may name a dead-letter queue that is declared after it, so what is
/// rejected is tried again as long as others succeed.
fn declare_all(
    declarations: &[Declaration],
    engines: &mut [Engine],
    placement: Placement,
) -> Result<(), ConfigError> {
    let mut pending: Vec<_> = declarations.iter().collect();
    while !pending.is_empty() {
        let mut rejected = Vec::new();
        let mut reason = None;
        for declaration in &pending {
            let shard = declaration.shard(placement);
            match engines[shard].declare(declaration) {
                Ok(Declared::Created | Declared::Unchanged) => {}
                Ok(Declared::Replaced(conflicts)) => {
                    let (subject, changed) = (declaration.subject(), conflicts.join("; "));
                    tracing::warn!(subject, changed, "the configuration changes existing options");
                }
                Err(rejection) => {
                    let (subject, why) = (declaration.subject(), rejection.reason.into());
                    reason.get_or_insert(ConfigError::Undeclarable { subject, why });
                    rejected.push(*declaration);
                }
            }
        }
        match reason {
            Some(reason) if rejected.len() == pending.len() => return Err(reason),
            _ => pending = rejected,
        }
    }
    Ok(())
}

/// Accepts connections of clients and of the admin side.
fn accept(
    config: &Config,
    hub: Arc<Hub>,
    bound: Bound,
    port: &Arc<dyn HandlerPort>,
    handlers: Vec<Box<str>>,
) -> Inner {
    let mut listeners = Vec::new();
    for (socket, listening, terms) in bound.listeners {
        tokio::spawn(listener::accept(socket, terms, Arc::clone(&hub), hub.shutdown.enter()));
        listeners.push(listening);
    }
    let admin = bound.admin.map(|(door, address)| {
        let admin = Admin::new(&hub, port, listeners.clone(), config);
        tokio::spawn(admin::serve(door, admin, hub.shutdown.enter()));
        address
    });
    Inner { listeners, admin, handlers: Mutex::new(handlers), started: Instant::now(), hub }
}

fn start_schedules(
    hub: &Arc<Hub>,
    mut keeper: Keeper<DataStorage>,
    directory: Option<Arc<DataDir>>,
) -> Result<(), StartError> {
    keeper.share_jobs(hub.schedules.board(), hub.job_queues.clone());
    worker::start(&hub.schedules, keeper, hub, directory, hub.shutdown.enter()).map_err(no_thread)
}

/// Starts the tasks that run beside connections and shards until the server stops.
fn start_housekeeping(config: &Config, hub: &Arc<Hub>, limits: Option<KeptLimits>) {
    if !hub.tls.certificates().is_empty() {
        let (hub, alive) = (Arc::clone(hub), hub.shutdown.enter());
        tokio::spawn(async move {
            tls_accept::watch_expiry(hub).await;
            drop(alive);
        });
    }
    if let Some((journal, restored, directory)) = limits {
        hub.counters.limits.restored.add(restored.entries);
        let interval = config.limiter_persist_interval;
        let alive = hub.shutdown.enter();
        tokio::spawn(limits::journal::keep(Arc::clone(hub), journal, interval, directory, alive));
    }
    tokio::spawn(unsaved::watch(Arc::clone(hub), hub.shutdown.enter()));
    tokio::spawn(limits::sweep(Arc::clone(hub), hub.shutdown.enter()));
    tokio::spawn(supervise(Arc::clone(hub), config.files.clone(), hub.shutdown.enter()));
    tokio::spawn(reload::watch(Arc::clone(hub), hub.shutdown.enter()));
}

/// Starts the thread that archives, if there is history to archive.
fn start_archiver(
    config: &Config,
    hub: &Arc<Hub>,
    directory: Option<&Arc<DataDir>>,
) -> Result<Option<Archiver>, StartError> {
    let archive = config.history.as_ref().and_then(|history| history.archive.as_ref());
    let Some((archive, directory)) = archive.zip(directory) else { return Ok(None) };
    let objects = archive.objects.as_ref().map(|objects| {
        let names = (0..hub.shards.len()).map(shard_name);
        let journals = names.filter_map(|name| directory.identity_of(&name)).collect();
        ObjectArchive::new(objects, directory, journals).map_err(|source| StartError::ObjectStore { source })
    });
    let objects = objects.transpose()?;
    let archiver = Archiver::start(archive.clone(), hub, Arc::clone(directory), objects);
    archiver.map(Some).map_err(|source| StartError::Thread { source })
}

/// The delivery handler of queues that are created for jobs, unless the configuration names another default. Jobs are
/// saved if possible, and their clients are notified after that. Otherwise clients are notified when a worker has
/// received the job; with `memory` they would be notified too early.
fn job_policy(config: &Config) -> Option<Box<str>> {
    let policy = if config.data_dir.is_some() { policy::AT_LEAST_ONCE } else { policy::ACK_ON_SEND };
    (config.delivery_handler == policy::MEMORY.key).then(|| policy.key.into())
}

/// The placement of a broker without a data directory. With a clock that tests set, it is the same in every run.
fn fresh_placement(config: &Config) -> Placement {
    let shards = config.shard_count();
    match config.clock {
        ClockConfig::System => Placement::keyed(shards, random_key()),
        ClockConfig::Manual => Placement::unkeyed(shards),
    }
}

fn broker_config(
    config: &Config,
    shard: usize,
    placement: Placement,
    names: &Arc<BrokerNames>,
    seeds: &RandomState,
    unsaved: &Arc<UnsavedMemory>,
) -> BrokerConfig {
    // The standard library's hasher is keyed with random data from the system, which is sufficient here.
    let mut seed = seeds.build_hasher();
    seed.write_usize(shard);
    BrokerConfig {
        shard,
        placement,
        channel: config.channel.clone(),
        auto_create_channels: config.auto_create_channels,
        auto_create_queues: config.auto_create_queues,
        client_limit: config.client_limit,
        channel_limit: config.channel_limit,
        names: Arc::clone(names),
        delivery_handler: config.delivery_handler.as_str().into(),
        event_handler: config.event_handler.as_deref().map(Box::from),
        slow_consumer_timeout: config.slow_consumer_timeout,
        undecided_max: config.undecided_max,
        memory_watermark: config.memory_watermark / placement.shards() as u64,
        topic_limits: config.topic_limits,
        creation_limits: config.creation_limits,
        unsaved: Arc::clone(unsaved),
        history: config.history.as_ref().map(|history| history.options),
        spans: config.spans.is_some(),
        seed: seed.finish(),
    }
}

impl From<ContinuousBackupStartError> for StartError {
    fn from(error: ContinuousBackupStartError) -> Self {
        match error {
            ContinuousBackupStartError::Store(source) => Self::ObjectStore { source },
            ContinuousBackupStartError::Thread(source) => Self::Thread { source },
        }
    }
}
