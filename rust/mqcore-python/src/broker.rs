//! The embedded broker: a server with a runtime of its own, and the Python handlers that decide for it.
//!
//! Two rules keep it from ever hanging. No lock of this file is held while the interpreter is let go or taken: a
//! thread that holds one may need the interpreter to let go of the other. And the runtime is never dropped by a
//! thread that holds the interpreter, because its last tasks may wait for a handler.

mod running;

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use mqcore_broker::model::config::HandlerSpec;
use mqcore_broker::model::router::RouterDefinition;
use mqcore_broker::model::stats::WaitingMessage;
use mqcore_client::config::LocalFactory;
use mqcore_server::config::address::Listening;
use mqcore_server::config::{Config, Protocol};
use mqcore_server::schedules::EntryId;
use mqcore_server::server::{ListenerCertificate, Server};
use pyo3::exceptions::{PyRuntimeError, PyTimeoutError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tokio::runtime::Handle;

pub(crate) use self::running::LocalClients;
use self::running::{Definition, HANDLER_GRACE, RUNTIME_SHUTDOWN, Running};
use crate::authority::{self, AuthorityThread};
use crate::backup::BackupArchive;
use crate::decision::{Decision, policy_of};
use crate::dispatchers::Dispatchers;
use crate::extension::{self, ExtensionThread};
use crate::fields::seconds;
use crate::handler::Handler;
use crate::message::Message;
use crate::node_filter::{self, FilterThread};
use crate::signal::Signal;
use crate::{config, error, routing, snapshot};

/// Handlers of one broker at most. Each has a thread, so that a program with as many has gone wrong before.
const HANDLERS_MAX: usize = 10_000;
/// How often a blocking call looks for signals: Ctrl-C is answered within this time.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// The broker that `mqcore.Broker` stands for.
#[pyclass(frozen, module = "mqcore._core")]
pub struct Broker {
    config: Config,
    handlers: Mutex<Vec<Definition>>,
    authority: Mutex<Option<authority::Definition>>,
    extensions: Mutex<Vec<extension::Definition>>,
    /// Of the configuration, which never changes.
    node_filters: Mutex<node_filter::Definitions>,
    /// Routers of the program, beside those of the configuration.
    routers: Mutex<Vec<RouterDefinition>>,
    state: Mutex<State>,
    /// What connectors connect to; `None` while the broker is stopped.
    local: Arc<RwLock<Option<Local>>>,
    /// `Some` with a manual clock: then `settle` waits for what clients in this process have not written yet.
    local_clients: Option<Arc<LocalClients>>,
    /// The process in which it was started; 0: never.
    process: AtomicU32,
}

/// A waiting message with its attempts, its put backs, and whether it was saved.
type Look = (Message, u16, u16, bool);

enum State {
    Stopped,
    /// Being started; nobody else touches it.
    Starting,
    Running(Arc<Running>),
}

struct Local {
    server: Server,
    handle: Handle,
}

impl Broker {
    pub(crate) fn local_clients(&self) -> Option<Arc<LocalClients>> {
        self.local_clients.clone()
    }

    /// How clients in this process connect: without a socket. Fails while the broker is stopped, and works again
    /// once it was started again.
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

    /// After a fork the child has this object but none of its threads, and its locks as they happened to be.
    fn check_process(&self) -> PyResult<()> {
        match self.process.load(Ordering::Acquire) {
            0 => Ok(()),
            process if process == std::process::id() => Ok(()),
            _ => Err(error::forked()),
        }
    }

    fn running(&self, what: &str) -> PyResult<Arc<Running>> {
        self.check_process()?;
        match &*lock(&self.state) {
            State::Running(running) => Ok(running.clone()),
            State::Stopped | State::Starting => Err(error::not_running(what)),
        }
    }

    fn launch(&self, py: Python<'_>) -> PyResult<Running> {
        let dispatchers = Arc::new(Dispatchers::default());
        let launched = self.launch_with(py, &dispatchers);
        if launched.is_err() {
            py.detach(|| dispatchers.stop(Instant::now() + HANDLER_GRACE));
        }
        launched
    }

    fn launch_with(&self, py: Python<'_>, dispatchers: &Arc<Dispatchers>) -> PyResult<Running> {
        let mut specs = Vec::new();
        for definition in lock(&self.handlers).iter() {
            dispatchers.set(&definition.spec.key, definition.dispatcher(py)?);
            specs.push(definition.spec.clone());
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
                |definition: &node_filter::Definition| FilterThread::start(py, definition).map(Arc::new);
            let accept = filters.accept.as_ref().map(start).transpose()?;
            let send = filters.send.iter().map(|filter| filter.as_ref().map(start).transpose());
            dispatchers.set_node_filters(accept, send.collect::<io::Result<_>>()?);
        }
        let mut config = self.config.clone();
        config.routers.extend(lock(&self.routers).iter().cloned());
        let port = dispatchers.clone();
        py.detach(|| {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(config.shard_count().max(2))
                .thread_name("mqcore-worker")
                .enable_all()
                .build()?;
            match runtime.block_on(Server::start(config, specs, port)) {
                Ok(server) => Ok(Running {
                    server,
                    handle: runtime.handle().clone(),
                    runtime: Mutex::new(Some(runtime)),
                    dispatchers: dispatchers.clone(),
                    stopped: Signal::default(),
                }),
                Err(refused) => {
                    runtime.shutdown_timeout(RUNTIME_SHUTDOWN);
                    Err(error::start(&refused))
                }
            }
        })
    }
}

#[pymethods]
impl Broker {
    #[new]
    #[pyo3(signature = (config, *, manual_clock=false))]
    fn new(config: &Bound<'_, PyAny>, manual_clock: bool) -> PyResult<Self> {
        Ok(Self {
            config: config::server(config, manual_clock)?,
            handlers: Mutex::default(),
            authority: Mutex::default(),
            extensions: Mutex::default(),
            node_filters: Mutex::new(node_filter::Definitions::read(config)?),
            routers: Mutex::default(),
            state: Mutex::new(State::Stopped),
            local: Arc::default(),
            local_clients: manual_clock.then(Arc::default),
            process: AtomicU32::new(0),
        })
    }

    fn start(&self, py: Python<'_>) -> PyResult<()> {
        self.check_process()?;
        match &mut *lock(&self.state) {
            state @ State::Stopped => *state = State::Starting,
            State::Starting | State::Running(_) => {
                return Err(PyRuntimeError::new_err("the broker is running already; stop it first"));
            }
        }
        self.process.store(std::process::id(), Ordering::Release);
        let launched = self.launch(py);
        let (state, result) = match launched {
            Ok(running) => {
                let running = Arc::new(running);
                let local = Local { server: running.server.clone(), handle: running.handle.clone() };
                *self.local.write().unwrap_or_else(PoisonError::into_inner) = Some(local);
                (State::Running(running), Ok(()))
            }
            Err(refused) => (State::Stopped, Err(refused)),
        };
        *lock(&self.state) = state;
        result
    }

    /// Returns the keys of handlers that did not come back in time.
    fn stop(&self, py: Python<'_>, grace: f64) -> PyResult<Vec<String>> {
        self.check_process()?;
        let grace = seconds(grace, "grace")?;
        let running = match &*lock(&self.state) {
            State::Running(running) => running.clone(),
            State::Stopped | State::Starting => return Ok(Vec::new()),
        };
        *self.local.write().unwrap_or_else(PoisonError::into_inner) = None;
        let stuck = py.detach(|| running.stop(grace));
        let mut state = lock(&self.state);
        if matches!(&*state, State::Running(current) if Arc::ptr_eq(current, &running)) {
            *state = State::Stopped;
        }
        Ok(stuck.into_iter().map(String::from).collect())
    }

    /// Blocks until the broker has stopped, by itself or by `stop`, or for `timeout` seconds. True if it has.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let Ok(running) = self.running("be waited for") else {
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
        Ok(matches!(&*lock(&self.state), State::Running(running) if !running.server.has_stopped()))
    }

    /// URLs of what is bound.
    #[getter]
    fn listeners(&self) -> PyResult<Vec<String>> {
        let running = self.running("say where it listens")?;
        Ok(running.server.listeners().iter().map(Listening::url).collect())
    }

    #[getter]
    fn admin_url(&self) -> PyResult<Option<String>> {
        let running = self.running("say where its admin side is")?;
        Ok(running.server.admin().map(|admin| admin.url()))
    }

    /// Registers a handler, or replaces the one of the same key, also while the broker runs.
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
                "there are {HANDLERS_MAX} delivery handlers already; let one handler decide for many queues"
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
        let definition = Definition { spec: spec.clone(), name, methods, submit };
        if let Ok(running) = self.running("take a handler") {
            if let Some(replaced) = running.dispatchers.set(key, definition.dispatcher(py)?) {
                replaced.finish();
            }
            running.server.set_handler(spec);
        }
        let mut handlers = lock(&self.handlers);
        match handlers.iter_mut().find(|known| *known.spec.key == *key) {
            // The old definition's Python objects are released after the lock: that may run Python code.
            Some(known) => {
                let replaced = std::mem::replace(known, definition);
                drop(handlers);
                drop(replaced);
            }
            None => handlers.push(definition),
        }
        Ok(())
    }

    /// Registers the program's own authenticator; `None` for a method says that it is not overridden.
    fn set_authority(
        &self,
        authenticate: Option<Py<PyAny>>,
        authorize: Option<Py<PyAny>>,
        timeout: f64,
        cache: f64,
        submit: Py<PyAny>,
    ) -> PyResult<()> {
        self.check_process()?;
        if !matches!(&*lock(&self.state), State::Stopped) {
            return Err(PyRuntimeError::new_err(
                "the authority of a running broker cannot be changed; stop it first",
            ));
        }
        let (timeout, cache) = (seconds(timeout, "timeout")?, seconds(cache, "cache_seconds")?);
        let definition = authority::Definition { authenticate, authorize, timeout, cache, submit };
        // The old one's Python objects are released after the lock: that may run Python code.
        let replaced = lock(&self.authority).replace(definition);
        drop(replaced);
        Ok(())
    }

    /// Registers an extension of MicroMessage2 that a program handles, in the place of one of the same name.
    fn set_extension(
        &self,
        name: &str,
        received: Py<PyAny>,
        timeout: f64,
        submit: Py<PyAny>,
    ) -> PyResult<()> {
        self.check_process()?;
        if !matches!(&*lock(&self.state), State::Stopped) {
            return Err(PyRuntimeError::new_err(
                "the extensions of a running broker cannot be changed; stop it first",
            ));
        }
        let timeout = seconds(timeout, "timeout")?;
        let definition = extension::Definition { name: name.into(), received, timeout, submit };
        let mut extensions = lock(&self.extensions);
        let place = extensions.iter().position(|known| known.name == definition.name);
        // The old one's Python objects are released after the lock: that may run Python code.
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
        let running = self.running("read its users and tokens")?;
        py.detach(|| running.handle.block_on(running.server.reload_authority()))
            .map_err(|broken| error::authority(&broken))
    }

    /// Puts a router in the place of the one of its name, also while the broker runs.
    fn set_router(&self, options: &Bound<'_, PyAny>) -> PyResult<()> {
        self.check_process()?;
        let router = routing::router(options)?;
        if let Ok(running) = self.running("take a router") {
            running.server.set_router(router.clone());
        }
        let mut routers = lock(&self.routers);
        match routers.iter_mut().find(|known| known.name == router.name) {
            Some(known) => *known = router,
            None => routers.push(router),
        }
        Ok(())
    }

    /// Removes a router of the program; fine if there is none.
    fn remove_router(&self, name: &str) -> PyResult<()> {
        self.check_process()?;
        let name = routing::router_name(name)?;
        lock(&self.routers).retain(|known| known.name != name);
        if let Ok(running) = self.running("remove a router") {
            running.server.remove_router(&name);
        }
        Ok(())
    }

    /// What each encrypted listener shows, as plain dicts.
    fn certificates<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let shown = self.running("show its certificates")?.server.certificates();
        let describe = |certificate: ListenerCertificate| {
            let dict = PyDict::new(py);
            dict.set_item("listener", certificate.url)?;
            dict.set_item("subject", certificate.subject)?;
            dict.set_item("names", certificate.names)?;
            dict.set_item("fingerprint", certificate.fingerprint)?;
            dict.set_item("not_after", certificate.not_after)?;
            dict.set_item("expires_in", certificate.expires_in)?;
            Ok(dict)
        };
        shown.into_iter().map(describe).collect()
    }

    /// Reads certificates and keys again.
    fn reload_tls(&self, py: Python<'_>) -> PyResult<()> {
        let running = self.running("read its certificates again")?;
        py.detach(|| running.server.reload_certificates()).map_err(|failed| error::reload(&failed))
    }

    /// The last requests that could not be done, the latest first, as plain dicts.
    fn failures<'py>(&self, py: Python<'py>, limit: usize) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let failures = self.running("tell its errors")?.server.failures(limit);
        failures.iter().map(|failure| snapshot::failure_dict(py, failure)).collect()
    }

    /// The schedules that are due next, as plain dicts, and how many there are.
    fn schedules<'py>(&self, py: Python<'py>, limit: usize) -> PyResult<(u64, Vec<Bound<'py, PyDict>>)> {
        let running = self.running("tell its schedules")?;
        let list = py.detach(|| running.handle.block_on(running.server.schedules(limit)));
        let schedules = list.schedules.iter().map(|schedule| snapshot::schedule_dict(py, schedule));
        Ok((list.total, schedules.collect::<PyResult<_>>()?))
    }

    /// Ends a schedule, and returns when that is durable.
    fn end_schedule(&self, py: Python<'_>, schedule_id: &str) -> PyResult<()> {
        let id: EntryId = schedule_id.parse().map_err(|refused| error::schedule_id(schedule_id, &refused))?;
        let running = self.running("end a schedule")?;
        py.detach(|| running.handle.block_on(running.server.end_schedule(id)))
            .map_err(|refused| error::end_schedule(&refused, &id))
    }

    /// What all shards know, as plain dicts.
    fn survey<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let running = self.running("be surveyed")?;
        let seen = py.detach(|| running.handle.block_on(running.server.snapshot()));
        snapshot::to_python(py, &seen, &running.dispatchers.counts())
    }

    /// Everything that is saved now, to be read while the broker goes on.
    fn backup(&self, py: Python<'_>) -> PyResult<BackupArchive> {
        let running = self.running("be backed up")?;
        let begun = py.detach(|| running.handle.block_on(running.server.backup()));
        begun.map(BackupArchive::new).map_err(|refused| error::backup(&refused))
    }

    /// Messages that wait in a queue: each with its attempts, its put backs and whether it was saved.
    fn waiting(&self, py: Python<'_>, queue: &str, limit: usize) -> PyResult<Option<Vec<Look>>> {
        let running = self.running("show its messages")?;
        let queue = config::queue_address(queue)?;
        let waiting = py.detach(|| running.handle.block_on(running.server.waiting(queue, limit)));
        let shown = |waiting: WaitingMessage| {
            let message = Message::new(waiting.message?);
            Some((message, waiting.attempts, waiting.requeues, waiting.saved))
        };
        Ok(waiting.map(|messages| messages.into_iter().filter_map(shown).collect()))
    }

    /// Handlers may refer to the broker that they belong to; while it is stopped, the garbage collector may see that.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // A lock that is held belongs to a call on this very object, which is in use then.
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

    /// Turns a manual clock forward.
    fn advance(&self, seconds: f64) -> PyResult<()> {
        let by = crate::fields::seconds(seconds, "the time to advance by")?;
        self.running("turn its clock")?.server.advance(by);
        Ok(())
    }

    /// Blocks until nothing is left to do.
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
        settled.map_err(|_| {
            PyTimeoutError::new_err(format!("after {timeout} seconds the broker still has something to do"))
        })
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let state =
            std::mem::replace(self.state.get_mut().unwrap_or_else(PoisonError::into_inner), State::Stopped);
        let State::Running(running) = state else { return };
        if self.check_process().is_err() {
            // The threads that this would wait for exist in the parent only.
            std::mem::forget(running);
            return;
        }
        // This thread holds the interpreter, which handlers may need in order to end.
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
