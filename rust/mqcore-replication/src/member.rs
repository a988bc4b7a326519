//! One member of a cluster.

mod compaction;
mod founding;
pub(crate) mod log;
#[cfg(all(test, unix))]
mod tests;
mod thread;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mqcore_journal::storage::lock::DirectoryLock;
use mqcore_journal::storage::private::create_private_directory;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::answering;
use crate::identity::{MemberIdentity, MemberIdentityError};
use crate::input::Input;
use crate::link::MemberTls;
use crate::relay::{Relay, RelayError, RelayListener};
use crate::replicator::Replicator;
use crate::status::{LatestStatus, MemberRole, MemberStatus};
use crate::transport::{self, MemberCredentials, Network};
use crate::verifying::verify_regularly;

/// The settings of a member.
#[derive(Debug, Clone)]
pub struct MemberOptions {
    /// The name of the cluster.
    pub cluster: String,
    /// The number of this node, from 1 on.
    pub node: u32,
    /// The secret of the cluster.
    pub secret: Vec<u8>,
    /// The certificates of nodes; `None`: nothing is encrypted between them.
    pub tls: Option<MemberTls>,
    /// Where other members connect, as `host:port`.
    pub listen: String,
    /// The addresses of the other nodes.
    pub peers: BTreeMap<u32, String>,
    /// It keeps the log and votes, and has no files of a broker.
    pub is_witness: bool,
    /// The data directory.
    pub data_dir: PathBuf,
    /// The listeners of the broker, which another node relays to.
    pub listeners: Vec<RelayListener>,
    /// Connections that are relayed at the same time. Each has two file descriptors, and the log needs some as well.
    pub connections_max: usize,
    /// Time between two ticks of the algorithm. A leader that fails is replaced after 10 to 20 ticks and an election.
    pub tick: Duration,
    /// Time between two verifications of all files. Zero: never.
    pub verify_interval: Duration,
    /// The program that continues in place of this process when it stops leading.
    pub restart: RestartCommand,
    /// Called right before the process is replaced or ends because of that. It must return soon: the broker must not
    /// continue.
    pub before_end: fn(),
}

/// A program that continues in place of this process.
#[derive(Debug, Clone, Default)]
pub struct RestartCommand {
    /// The program and its arguments. Empty: the process ends.
    pub command: Vec<OsString>,
    /// Environment variables that it has besides those of this process.
    pub environment: BTreeMap<OsString, OsString>,
}

/// Why a member cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    /// The options contradict each other.
    #[error("{0}")]
    Options(String),
    /// The data directory does not fit.
    #[error(transparent)]
    Identity(#[from] MemberIdentityError),
    /// Another process uses the data directory.
    #[error("cannot open {0}: another process has locked it; stop that broker or choose another --data-dir")]
    Locked(PathBuf),
    /// The address cannot be used.
    #[error("cannot listen on {address} for other nodes of the cluster: {source}")]
    Listen {
        /// The address.
        address: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The listeners of the broker cannot be used.
    #[error(transparent)]
    Relay(#[from] RelayError),
    /// Something failed that this member needs. The node must be started again.
    #[error("{0}")]
    Failed(String),
}

/// News from the thread for the rest of the process.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    view: Mutex<View>,
    changed: Condvar,
    latest: LatestStatus,
}

#[derive(Debug, Default)]
struct View {
    status: MemberStatus,
    /// The broker runs: when this member stops leading, the process restarts, or ends if the broker was about to stop.
    is_taken: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show(&self, status: MemberStatus) {
        self.latest.set(status.clone());
        let mut view = self.lock();
        let is_news = view.status.role != status.role
            || view.status.leader != status.leader
            || view.status.failure != status.failure;
        view.status = status;
        drop(view);
        if is_news {
            self.changed.notify_all();
        }
    }

    /// The thread works on something that takes long.
    fn note_work(&self) {
        self.latest.touch();
    }

    fn is_taken(&self) -> bool {
        self.lock().is_taken
    }
}

/// A member of a cluster, with its threads and connections.
#[derive(Debug)]
pub struct Member {
    shared: Arc<Shared>,
    inputs: Sender<Input>,
    replicator: Arc<Replicator>,
    relay: Mutex<Option<Relay>>,
    /// Its tasks end with it.
    _runtime: tokio::runtime::Runtime,
    _lock: DirectoryLock,
}

impl Member {
    /// Begins a member. Its thread and its connections run until the process ends.
    ///
    /// # Errors
    /// [`MemberError`].
    pub fn start(options: MemberOptions) -> Result<Self, MemberError> {
        options.check()?;
        let root = options.data_dir.clone();
        let io = |path: &Path, source| MemberIdentityError::Io { path: path.to_path_buf(), source };
        create_private_directory(&root).map_err(|source| io(&root, source))?;
        let identity = MemberIdentity::open(&root, &options.cluster, options.node)?;
        options.check_kind(&identity)?;
        let directory = MemberIdentity::directory(&root);
        let lock = DirectoryLock::exclusive(&directory).map_err(|source| match source.kind() {
            io::ErrorKind::WouldBlock => MemberError::Locked(root.clone()),
            _ => io(&directory, source).into(),
        })?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("mqcore-cluster-net")
            .enable_all()
            .build()
            .map_err(|error| {
                MemberError::Failed(format!("cannot start the network of the cluster: {error}"))
            })?;
        let listener = runtime
            .block_on(TcpListener::bind(&options.listen))
            .map_err(|source| MemberError::Listen { address: options.listen.clone(), source })?;
        let (inputs, received) = channel();
        let credentials = Arc::new(MemberCredentials {
            cluster: options.cluster.clone(),
            node: options.node,
            secret: options.secret.clone(),
            tls: options.tls.clone(),
        });
        runtime.spawn(answering::accept(listener, Arc::clone(&credentials), inputs.clone()));
        let network = Network::start(runtime.handle(), &credentials, &options.peers);
        let shared = Arc::new(Shared::default());
        let replicator = Replicator::new(&root, inputs.clone(), shared.latest.clone());
        let (leader, leaders) = watch::channel(None);
        let relay = Relay::start(&options.listeners, &leaders, &shared.latest, options.connections_max)?;
        let verify_interval = options.verify_interval;
        let thread = thread::MemberThread::new(thread::Parts {
            options,
            identity,
            network,
            credentials,
            inputs: inputs.clone(),
            replicator: Arc::clone(&replicator),
            shared: Arc::clone(&shared),
            leader,
            runtime: runtime.handle().clone(),
        })?;
        spawn("mqcore-cluster", move || thread.run(&received))?;
        if !verify_interval.is_zero() {
            let member = inputs.clone();
            spawn("mqcore-verify", move || verify_regularly(&root, verify_interval, &member))?;
        }
        Ok(Self {
            shared,
            inputs,
            replicator,
            relay: Mutex::new(Some(relay)),
            _runtime: runtime,
            _lock: lock,
        })
    }

    /// The status of the member.
    #[must_use]
    pub fn status(&self) -> MemberStatus {
        self.shared.lock().status.clone()
    }

    /// Waits until the role or the leader is another one than in `seen`, at most for `patience`. Returns the status.
    #[must_use]
    pub fn wait(&self, seen: &MemberStatus, patience: Duration) -> MemberStatus {
        let end = Instant::now() + patience;
        let mut view = self.shared.lock();
        while view.status.role == seen.role
            && view.status.leader == seen.leader
            && view.status.failure == seen.failure
        {
            let Some(rest) = end.checked_duration_since(Instant::now()) else { break };
            view = self.shared.changed.wait_timeout(view, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
        view.status.clone()
    }

    /// Takes over the files for the broker of this process, if this member leads. From then on, the process restarts when the
    /// member stops leading. `None`: it does not lead.
    #[must_use]
    pub fn lead(&self) -> Option<Arc<Replicator>> {
        let mut view = self.shared.lock();
        if view.status.role != MemberRole::Leading {
            return None;
        }
        view.is_taken = true;
        drop(view);
        // The broker needs the addresses.
        drop(self.relay.lock().unwrap_or_else(PoisonError::into_inner).take());
        Some(Arc::clone(&self.replicator))
    }

    /// The broker of this process stops, or does not start: syncs do not wait for ever, and the process does not restart.
    /// A broker that runs does the same by itself when it stops.
    pub fn stop_broker(&self) {
        self.replicator.stop();
    }

    /// The broker has stopped: another member leads from now on, as soon as possible. Waits at most for `patience` for it.
    pub fn resign(&self, patience: Duration) {
        {
            let mut view = self.shared.lock();
            view.is_taken = false;
        }
        let _ = self.inputs.send(Input::Resign);
        let end = Instant::now() + patience;
        let mut view = self.shared.lock();
        while view.status.role == MemberRole::Leading {
            let Some(rest) = end.checked_duration_since(Instant::now()) else { return };
            view = self.shared.changed.wait_timeout(view, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl MemberOptions {
    /// A directory with the files of a broker does not become that of a witness by itself, nor the other way round.
    fn check_kind(&self, identity: &MemberIdentity) -> Result<(), MemberError> {
        if identity.generation.is_none() || identity.is_witness == self.is_witness {
            return Ok(());
        }
        let (is, becomes) = if self.is_witness { ("data", "a witness") } else { ("a witness", "data") };
        let directory = self.data_dir.display();
        Err(MemberError::Options(format!(
            "{directory} belongs to a node with {is}, and the configuration makes it one with {becomes}; \
             move the directory away, and the node joins anew"
        )))
    }

    fn check(&self) -> Result<(), MemberError> {
        let fail = |why: String| Err(MemberError::Options(why));
        let nodes = self.peers.len() + 1;
        if self.node == 0 || self.peers.contains_key(&0) {
            return fail("nodes of a cluster are numbered from 1 on".to_owned());
        }
        if self.peers.contains_key(&self.node) {
            return fail(format!("node {} cannot be its own peer", self.node));
        }
        if ![1, 3, 5, 7].contains(&nodes) {
            return fail(format!(
                "a cluster has 3, 5 or 7 nodes, not {nodes}: a majority must survive the loss of a node"
            ));
        }
        if self.is_witness && nodes == 1 {
            return fail("a witness keeps no data, so that it cannot be the only node".to_owned());
        }
        if let Some(Err(error)) = self.tls.as_ref().map(MemberTls::check) {
            return fail(error.to_string());
        }
        if self.cluster.is_empty() || self.cluster.len() > 255 {
            return fail("the name of a cluster has 1 to 255 bytes".to_owned());
        }
        if self.secret.len() < 16 {
            return fail(
                "the secret of a cluster has at least 16 bytes; `openssl rand -hex 32` makes one".to_owned(),
            );
        }
        Ok(())
    }
}

/// Asks a member for its status.
///
/// # Errors
/// It cannot be reached, or has another secret.
pub fn ask_status(address: &str, credentials: &MemberCredentials) -> io::Result<MemberStatus> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut stream, _) = credentials.connect(address, transport::ConnectionKind::Status).await?;
        let answer =
            tokio::time::timeout(Duration::from_secs(5), transport::read_frame(&mut stream)).await??;
        Ok(serde_json::from_slice(&answer)?)
    })
}

/// Asks the leading member at an address to let another node lead. Returns why that cannot lead; `None`: it will.
///
/// # Errors
/// The member cannot be reached.
pub fn request_leader(
    address: &str,
    credentials: &MemberCredentials,
    node: u32,
) -> io::Result<Option<String>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut stream, _) = credentials.connect(address, transport::ConnectionKind::HandOver).await?;
        transport::write_frame(&mut stream, &[&node.to_le_bytes()]).await?;
        let answer =
            tokio::time::timeout(Duration::from_secs(5), transport::read_frame(&mut stream)).await??;
        Ok((!answer.is_empty()).then(|| String::from_utf8_lossy(&answer).into_owned()))
    })
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), MemberError> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    spawned.map_err(|error| MemberError::Failed(format!("cannot start the thread {name}: {error}")))?;
    Ok(())
}

fn version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}
