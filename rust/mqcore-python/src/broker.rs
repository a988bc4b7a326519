//! The embedded broker: a server with its own runtime, and its Python handlers.
//!
//! Two rules prevent deadlocks. No lock of this file is held while a thread releases or acquires the interpreter,
//! because another thread may hold the interpreter and wait for the lock. No thread that holds the interpreter drops
//! the runtime, because its last tasks may wait for a handler.

mod custom;
mod running;

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use mqcore_broker::model::command::ClientPattern;
use mqcore_broker::model::config::HandlerSpec;
use mqcore_broker::model::router::RouterDefinition;
use mqcore_broker::model::stats::WaitingMessage;
use mqcore_client::config::LocalFactory;
use mqcore_replication::storage::DataFiles;
use mqcore_server::config::address::Listening;
use mqcore_server::config::{Config, Protocol};
use mqcore_server::handler::HandlerPort as _;
use mqcore_server::schedules::EntryId;
use pyo3::exceptions::{PyRuntimeError, PyTimeoutError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyDict;

pub(crate) use self::running::LocalClients;
use self::running::{HANDLER_GRACE, HandlerDefinition, Running};
use crate::authority::{self, AuthorityThread};
use crate::backup::BackupArchive;
use crate::decision::{Decision, policy_of};
use crate::dispatchers::Dispatchers;
use crate::extension::{self, ExtensionThread};
use crate::fields::seconds;
use crate::handler::Handler;
use crate::inspector::{Inspector, Local};
use crate::message::Message;
use crate::node_filter::{self, FilterThread};
use crate::{config, error, routing, snapshot};

/// Maximum handlers of one broker. Each has a thread, so more indicate a defect in the program.
const HANDLERS_MAX: usize = 10_000;
/// Interval at which a blocking call checks for signals. Ctrl-C takes effect within this time.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// The core of `mqcore.Broker`.
#[pyclass(frozen, module = "mqcore._core")]
pub struct Broker {
    config: Config,
    /// The way to the files of its data directory.
    files: Mutex<DataFiles>,
    handlers: Mutex<Vec<HandlerDefinition>>,
    authority: Mutex<Option<authority::AuthenticatorDefinition>>,
    extensions: Mutex<Vec<extension::ExtensionDefinition>>,
    /// From the configuration, which never changes.
    node_filters: Mutex<node_filter::Definitions>,
    /// Routers of the program, in addition to those of the configuration.
    routers: Mutex<Vec<RouterDefinition>>,
    state: Mutex<BrokerState>,
    /// The target of connectors; `None` while the broker is stopped.
    local: Arc<RwLock<Option<Local>>>,
    /// `Some` with a manual clock: `settle` then waits for unwritten output of clients in this process.
    local_clients: Option<Arc<LocalClients>>,
    /// The process that started it; 0: none.
    process: AtomicU32,
}

/// A waiting message with its attempts, its requeues, and whether it is saved.
type Look = (Message, u16, u16, bool);

enum BrokerState {
    Stopped,
    /// Starting; no other call changes the state.
    Starting,
    Running(Arc<Running>),
}

impl Broker {
    pub(crate) fn local_clients(&self) -> Option<Arc<LocalClients>> {
        self.local_clients.clone()
    }

    /// Lets the broker write into the files of a cluster from its next start on.
    pub(crate) fn use_files(&self, files: DataFiles) {
        *lock(&self.files) = files;
    }

    /// Connects clients in this process without a socket. Connecting fails while the broker is stopped.
    pub fn connector(&self) -> PyResult<LocalFactory> {
        self.check_process()?;
        let local = self.local.clone();
        Ok(Arc::new(move || {
            let local = local.read().unwrap_or_else(PoisonError::into_inner);
            let Local { server, handle } = local.as_ref().ok_or_else(|| {
                io::Error::new(io::ErrorKind::ConnectionRefused, "the embedded broker is not running")
            })?;
            let _context = handle.enter();
            Ok(server.connect_local(Protocol::Tmqp))
        }))
    }

    /// A forked child has this object and its locks in any state, but none of its threads.
    fn check_process(&self) -> PyResult<()> {
        match self.process.load(Ordering::Acquire) {
            0 => Ok(()),
            process if process == std::process::id() => Ok(()),
            _ => Err(error::forked()),
        }
    }

    fn inspector(&self) -> Inspector {
        Inspector::new(self.local.clone())
    }

    fn running(&self, what: &str) -> PyResult<Arc<Running>> {
        self.check_process()?;
        match &*lock(&self.state) {
            BrokerState::Running(running) => Ok(running.clone()),
            BrokerState::Stopped | BrokerState::Starting => Err(error::not_running(what)),
        }
    }

    fn launch(&self, py: Python<'_>) -> PyResult<Running> {
        let dispatchers = Arc::new(Dispatchers::new(self.config.spans.clone()));
        let launched = self.launch_with(py, &dispatchers);
        if launched.is_err() {
            py.detach(|| dispatchers.stop(Instant::now() + HANDLER_GRACE));
        }
        launched
    }

    fn launch_with(&self, py: Python<'_>, dispatchers: &Arc<Dispatchers>) -> PyResult<Running> {
        let mut specs = Vec::new();
        for definition in lock(&self.handlers).iter() {
            specs.push(definition.spec.clone());
            definition.start(py, dispatchers, self.inspector())?;
        }
        if let Some(definition) = &*lock(&self.authority) {
            dispatchers.set_authority(AuthorityThread::start(py, definition)?);
        }
        let extensions = lock(&self.extensions);
        if !extensions.is_empty() {
            dispatchers.set_extensions(ExtensionThread::start(py, &extensions)?);
        }
        drop(extensions);
        {
            let filters = lock(&self.node_filters);
            let start =
                |filter: &node_filter::FilterDefinition| FilterThread::start(py, filter).map(Arc::new);
            let accept = filters.accept.as_ref().map(start).transpose()?;
            let send = filters.send.iter().map(|filter| filter.as_ref().map(start).transpose());
            dispatchers.set_node_filters(accept, send.collect::<io::Result<_>>()?);
        }
        let mut config = self.config.clone();
        config.files = lock(&self.files).clone();
        config.routers.extend(lock(&self.routers).iter().cloned());
        py.detach(|| Running::launch(config, specs, dispatchers))
    }
}

#[pymethods]
impl Broker {
    #[new]
    #[pyo3(signature = (config, *, manual_clock=false))]
    fn new(config: &Bound<'_, PyAny>, manual_clock: bool) -> PyResult<Self> {
        Ok(Self {
            config: config::server(config, manual_clock)?,
            files: Mutex::default(),
            handlers: Mutex::default(),
            authority: Mutex::default(),
            extensions: Mutex::default(),
            node_filters: Mutex::new(node_filter::Definitions::read(config)?),
            routers: Mutex::default(),
            state: Mutex::new(BrokerState::Stopped),
            local: Arc::default(),
            local_clients: manual_clock.then(Arc::default),
            process: AtomicU32::new(0),
        })
    }

    fn start(&self, py: Python<'_>) -> PyResult<()> {
        self.check_process()?;
        match &mut *lock(&self.state) {
            state @ BrokerState::Stopped => *state = BrokerState::Starting,
            BrokerState::Starting | BrokerState::Running(_) => {
                return Err(PyRuntimeError::new_err("the broker is already running; stop it first"));
            }
        }
        self.process.store(std::process::id(), Ordering::Release);
        let launched = self.launch(py);
        let (state, result) = match launched {
            Ok(running) => {
                let running = Arc::new(running);
                let local = Local { server: running.server.clone(), handle: running.handle.clone() };
                *self.local.write().unwrap_or_else(PoisonError::into_inner) = Some(local);
                (BrokerState::Running(running), Ok(()))
            }
            Err(refused) => (BrokerState::Stopped, Err(refused)),
        };
        *lock(&self.state) = state;
        result
    }

    /// Returns the keys of handlers whose call did not return in time.
    fn stop(&self, py: Python<'_>, grace: f64) -> PyResult<Vec<String>> {
        self.check_process()?;
        let grace = seconds(grace, "grace")?;
        let running = match &*lock(&self.state) {
            BrokerState::Running(running) => running.clone(),
            BrokerState::Stopped | BrokerState::Starting => return Ok(Vec::new()),
        };
        *self.local.write().unwrap_or_else(PoisonError::into_inner) = None;
        let stuck = py.detach(|| running.stop(grace));
        let mut state = lock(&self.state);
        if matches!(&*state, BrokerState::Running(current) if Arc::ptr_eq(current, &running)) {
            *state = BrokerState::Stopped;
        }
        Ok(stuck.into_iter().map(String::from).collect())
    }

    /// Blocks until the broker has stopped, or for `timeout` seconds. Returns whether it has stopped.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let Ok(running) = self.running("wait") else {
            self.check_process()?;
            return Ok(true);
        };
        let limit = timeout.map(|timeout| seconds(timeout, "timeout")).transpose()?;
        let deadline = limit.map(|limit| Instant::now() + limit);
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let slice = left.map_or(SIGNAL_INTERVAL, |left| left.min(SIGNAL_INTERVAL));
            if py.detach(|| running.stopped.wait_for(slice)) || running.server.has_stopped() {
                return Ok(true);
            }
            py.check_signals()?;
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(false);
            }
        }
    }

    #[getter]
    fn is_running(&self) -> PyResult<bool> {
        self.check_process()?;
        Ok(matches!(&*lock(&self.state), BrokerState::Running(running) if !running.server.has_stopped()))
    }

    /// URLs of the bound listeners.
    #[getter]
    fn listeners(&self) -> PyResult<Vec<String>> {
        let running = self.running("list its listeners")?;
        Ok(running.server.listeners().iter().map(Listening::url).collect())
    }

    #[getter]
    fn admin_url(&self) -> PyResult<Option<String>> {
        let running = self.running("return its admin URL")?;
        Ok(running.server.admin().map(|admin| admin.url()))
    }

    /// Registers a handler, or replaces the one with the same key, also while the broker runs.
    #[allow(
        clippy::too_many_arguments,
        reason = "the fields of one registration, called from one place in Python"
    )]
    fn set_handler(
        &self,
        py: Python<'_>,
        key: &str,
        name: String,
        methods: Vec<(String, Py<PyAny>)>,
        policy: &str,
        timeout: f64,
        fallback: &Decision,
        submit: Py<PyAny>,
    ) -> PyResult<()> {
        self.check_process()?;
        let known = lock(&self.handlers);
        if known.len() >= HANDLERS_MAX && known.iter().all(|definition| *definition.spec.key != *key) {
            return Err(error::ConfigError::new_err(format!(
                "the broker already has {HANDLERS_MAX} delivery handlers, the maximum; use one handler for many queues"
            )));
        }
        drop(known);
        let copies = methods.iter().map(|(step, method)| (step.clone(), method.clone_ref(py))).collect();
        let spec = HandlerSpec {
            key: key.into(),
            overrides: Handler::new(&name, copies)?.overrides(),
            base: policy_of(policy)?,
            timeout: seconds(timeout, "timeout")?,
            fallback: fallback.decision,
        };
        let definition = HandlerDefinition { spec: spec.clone(), name, methods, submit };
        if let Ok(running) = self.running("register a handler") {
            if let Some(replaced) = definition.start(py, &running.dispatchers, self.inspector())? {
                replaced.finish();
            }
            running.server.set_handler(spec);
        }
        let mut handlers = lock(&self.handlers);
        match handlers.iter_mut().find(|known| *known.spec.key == *key) {
            // The old definition's Python objects are dropped after the lock, because that may run Python code.
            Some(known) => {
                let replaced = std::mem::replace(known, definition);
                drop(handlers);
                drop(replaced);
            }
            None => handlers.push(definition),
        }
        Ok(())
    }

    /// Registers the program's own authenticator; `None`: the method is not overridden.
    fn set_authority(
        &self,
        authenticate: Option<Py<PyAny>>,
        authorize: Option<Py<PyAny>>,
        timeout: f64,
        cache: f64,
        submit: Py<PyAny>,
    ) -> PyResult<()> {
        self.check_process()?;
        if !matches!(&*lock(&self.state), BrokerState::Stopped) {
            return Err(PyRuntimeError::new_err(
                "the authority of a running broker cannot be changed; stop it first",
            ));
        }
        let (timeout, cache) = (seconds(timeout, "timeout")?, seconds(cache, "cache_seconds")?);
        let definition =
            authority::AuthenticatorDefinition { authenticate, authorize, timeout, cache, submit };
        // The old one's Python objects are dropped after the lock, because that may run Python code.
        let replaced = lock(&self.authority).replace(definition);
        drop(replaced);
        Ok(())
    }

    /// Registers a program's extension of MicroMessage2, or replaces the one with the same name.
    fn set_extension(
        &self,
        name: &str,
        received: Py<PyAny>,
        timeout: f64,
        submit: Py<PyAny>,
    ) -> PyResult<()> {
        self.check_process()?;
        if !matches!(&*lock(&self.state), BrokerState::Stopped) {
            return Err(PyRuntimeError::new_err(
                "the extensions of a running broker cannot be changed; stop it first",
            ));
        }
        let timeout = seconds(timeout, "timeout")?;
        let definition = extension::ExtensionDefinition { name: name.into(), received, timeout, submit };
        let mut extensions = lock(&self.extensions);
        let place = extensions.iter().position(|known| known.name == definition.name);
        // The old one's Python objects are dropped after the lock, because that may run Python code.
        let replaced = match place {
            Some(place) => Some(std::mem::replace(&mut extensions[place], definition)),
            None => {
                extensions.push(definition);
                None
            }
        };
        drop(extensions);
        drop(replaced);
        Ok(())
    }

    /// Reads users and tokens again, and closes connections whose rights have changed.
    fn reload_authority(&self, py: Python<'_>) -> PyResult<()> {
        let running = self.running("reload users and tokens")?;
        py.detach(|| running.handle.block_on(running.server.reload_authority()))
            .map_err(|broken| error::authority(&broken))
    }

    /// Sets or replaces a router, also while the broker runs.
    fn set_router(&self, options: &Bound<'_, PyAny>) -> PyResult<()> {
        self.check_process()?;
        let router = routing::router(options)?;
        if let Ok(running) = self.running("set a router") {
            running.server.set_router(router.clone());
        }
        let mut routers = lock(&self.routers);
        match routers.iter_mut().find(|known| known.name == router.name) {
            Some(known) => *known = router,
            None => routers.push(router),
        }
        Ok(())
    }

    /// Removes a router of the program. Succeeds if there is none.
    fn remove_router(&self, name: &str) -> PyResult<()> {
        self.check_process()?;
        let name = routing::router_name(name)?;
        lock(&self.routers).retain(|known| known.name != name);
        if let Ok(running) = self.running("remove a router") {
            running.server.remove_router(&name);
        }
        Ok(())
    }

    /// Creates a channel, queue or router unless it exists as declared. Returns whether it was missing.
    fn declare(&self, py: Python<'_>, kind: &str, name: &str, options: &Bound<'_, PyAny>) -> PyResult<bool> {
        let running = self.running("declare anything")?;
        let declaration = config::declaration(kind, name, options)?;
        match py.detach(|| running.handle.block_on(running.server.declare(declaration))) {
            Some(result) => result.map_err(|rejection| error::rejection(&rejection, name)),
            None => Err(error::not_running("declare anything")),
        }
    }

    /// The certificates of the encrypted listeners, as plain dicts.
    fn certificates<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let shown = self.running("show its certificates")?.server.certificates();
        shown.into_iter().map(|shown| snapshot::certificate_dict(py, shown)).collect()
    }

    /// Reloads certificates and keys.
    fn reload_tls(&self, py: Python<'_>) -> PyResult<()> {
        let running = self.running("reload certificates")?;
        py.detach(|| running.server.reload_certificates()).map_err(|failed| error::reload(&failed))
    }

    /// Takes up to `limit` finished spans of traced messages. Also returns how many were dropped because nothing took them.
    fn take_spans<'py>(&self, py: Python<'py>, limit: usize) -> PyResult<(Vec<Bound<'py, PyDict>>, u64)> {
        let Some(spans) = &self.config.spans else { return Ok((Vec::new(), 0)) };
        Ok((snapshot::span_dicts(py, &spans.take(limit))?, spans.dropped()))
    }

    /// The metrics as text; `None`: the broker does not run or does not answer.
    fn metrics(&self, py: Python<'_>) -> Option<String> {
        let running = self.running("return its metrics").ok()?;
        py.detach(|| running.handle.block_on(running.server.metrics(running.dispatchers.times())))
    }

    /// The last failed requests, the latest first, as plain dicts.
    fn failures<'py>(&self, py: Python<'py>, limit: usize) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let failures = self.running("list its errors")?.server.failures(limit);
        failures.iter().map(|failure| snapshot::failure_dict(py, failure)).collect()
    }

    /// The schedules that are due next as plain dicts, and the total number.
    fn schedules<'py>(&self, py: Python<'py>, limit: usize) -> PyResult<(u64, Vec<Bound<'py, PyDict>>)> {
        let running = self.running("list its schedules")?;
        let list = py.detach(|| running.handle.block_on(running.server.schedules(limit)));
        let schedules = list.schedules.iter().map(|schedule| snapshot::schedule_dict(py, schedule));
        Ok((list.total, schedules.collect::<PyResult<_>>()?))
    }

    /// Removes a schedule, and returns when the removal is durable.
    fn end_schedule(&self, py: Python<'_>, schedule_id: &str) -> PyResult<()> {
        let id: EntryId = schedule_id.parse().map_err(|refused| error::schedule_id(schedule_id, &refused))?;
        let running = self.running("remove a schedule")?;
        py.detach(|| running.handle.block_on(running.server.end_schedule(id)))
            .map_err(|refused| error::end_schedule(&refused, &id))
    }

    /// A snapshot of all shards, as plain dicts.
    fn survey<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let running = self.running("return statistics")?;
        let seen = py.detach(|| running.handle.block_on(running.server.snapshot()));
        snapshot::to_python(py, &seen, &running.dispatchers.counts())
    }

    /// A backup of all saved data, readable while the broker keeps running.
    fn backup(&self, py: Python<'_>) -> PyResult<BackupArchive> {
        let running = self.running("create a backup")?;
        let begun = py.detach(|| running.handle.block_on(running.server.backup()));
        begun.map(BackupArchive::new).map_err(|refused| error::backup(&refused))
    }

    /// Sends a custom message to clients; returns their number.
    fn send_custom(
        &self,
        py: Python<'_>,
        to: &str,
        body: &[u8],
        content_type: u16,
        headers: Vec<(String, String)>,
    ) -> PyResult<usize> {
        let running = self.running("send messages")?;
        let (message, to) = (custom::message(body, content_type, headers)?, ClientPattern::parse(to));
        Ok(py.detach(|| running.handle.block_on(running.server.send_custom(to, message))))
    }

    /// Closes the connections of clients; returns their number.
    fn disconnect(&self, py: Python<'_>, to: &str) -> PyResult<usize> {
        let running = self.running("disconnect clients")?;
        Ok(py.detach(|| running.handle.block_on(running.server.disconnect(ClientPattern::parse(to)))))
    }

    /// Waiting messages of a queue, each with its attempts, its requeues and whether it is saved.
    fn waiting(&self, py: Python<'_>, queue: &str, limit: usize) -> PyResult<Option<Vec<Look>>> {
        let running = self.running("show its messages")?;
        let queue = config::queue_address(queue)?;
        let waiting = py.detach(|| running.handle.block_on(running.server.waiting(queue, limit)));
        let shown = |waiting: WaitingMessage| {
            let message = Message::of_queue(waiting.message?, waiting.saved, waiting.attempts);
            Some((message, waiting.attempts, waiting.requeues, waiting.saved))
        };
        Ok(waiting.map(|messages| messages.into_iter().filter_map(shown).collect()))
    }

    /// Handlers may refer to their broker. The garbage collector can break this cycle while the broker is stopped.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // If a lock is held, a call uses this object, so it is not garbage.
        let Ok(handlers) = self.handlers.try_lock() else { return Ok(()) };
        for definition in handlers.iter() {
            visit.call(&definition.submit)?;
            for (_, method) in &definition.methods {
                visit.call(method)?;
            }
        }
        drop(handlers);
        let Ok(authority) = self.authority.try_lock() else { return Ok(()) };
        if let Some(definition) = &*authority {
            visit.call(&definition.authenticate)?;
            visit.call(&definition.authorize)?;
            visit.call(&definition.submit)?;
        }
        drop(authority);
        let Ok(extensions) = self.extensions.try_lock() else { return Ok(()) };
        for definition in extensions.iter() {
            visit.call(&definition.received)?;
            visit.call(&definition.submit)?;
        }
        drop(extensions);
        let Ok(filters) = self.node_filters.try_lock() else { return Ok(()) };
        filters.visit(&visit)
    }

    fn __clear__(&self) {
        let released = std::mem::take(&mut *lock(&self.handlers));
        let authority = lock(&self.authority).take();
        let extensions = std::mem::take(&mut *lock(&self.extensions));
        let filters = std::mem::take(&mut *lock(&self.node_filters));
        drop((released, authority, extensions, filters));
    }

    /// Advances a manual clock.
    fn advance(&self, seconds: f64) -> PyResult<()> {
        let by = crate::fields::seconds(seconds, "the time to advance by")?;
        self.running("advance its clock")?.server.advance(by);
        Ok(())
    }

    /// Blocks until the broker is idle.
    fn settle(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let running = self.running("settle")?;
        let limit = seconds(timeout, "timeout")?;
        let settled = py.detach(|| {
            let settled = async {
                if let Some(clients) = &self.local_clients {
                    clients.flushed().await;
                }
                running.server.settle().await;
            };
            running.handle.block_on(async { tokio::time::timeout(limit, settled).await })
        });
        settled
            .map_err(|_| PyTimeoutError::new_err(format!("the broker is still busy after {timeout} seconds")))
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let BrokerState::Running(running) = std::mem::replace(state, BrokerState::Stopped) else { return };
        if self.check_process().is_err() {
            // The threads to wait for exist in the parent only.
            std::mem::forget(running);
            return;
        }
        // This thread holds the interpreter, which handlers may need to end.
        let stopping = running.clone();
        let stop = move || drop(stopping.stop(Duration::ZERO));
        if std::thread::Builder::new().name("mqcore-stop".into()).spawn(stop).is_err() {
            std::mem::forget(running);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
