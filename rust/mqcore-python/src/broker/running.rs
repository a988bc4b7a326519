//! The parts of a running broker, and the definitions of its handler threads.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mqcore_broker::model::config::HandlerSpec;
use mqcore_client::client::OutputWatch;
use mqcore_server::config::Config;
use mqcore_server::server::Server;
use pyo3::prelude::*;
use tokio::runtime::{Handle, Runtime};

use super::lock;
use crate::dispatcher::Dispatcher;
use crate::dispatchers::Dispatchers;
use crate::error;
use crate::handler::Handler;
use crate::inspector::Inspector;
use crate::signal::Signal;

/// Timeout for the end of the runtime's tasks after the server has stopped.
pub(super) const RUNTIME_SHUTDOWN: Duration = Duration::from_secs(2);
/// Time for handlers to return from their current call, after the grace period of peers.
pub(super) const HANDLER_GRACE: Duration = Duration::from_secs(1);
/// The parts of a started broker.
pub(super) struct Running {
    pub(super) server: Server,
    pub(super) handle: Handle,
    pub(super) runtime: Mutex<Option<Runtime>>,
    pub(super) dispatchers: Arc<Dispatchers>,
    pub(super) stopped: Signal,
}

/// A registered handler, from which each start creates a dispatcher.
pub(super) struct HandlerDefinition {
    pub(super) spec: HandlerSpec,
    pub(super) name: String,
    pub(super) methods: Vec<(String, Py<PyAny>)>,
    pub(super) submit: Py<PyAny>,
}

impl HandlerDefinition {
    /// Starts the handler's thread among `dispatchers`. Returns the thread that it replaces.
    pub(super) fn start(
        &self,
        py: Python<'_>,
        dispatchers: &Dispatchers,
        inspector: Inspector,
    ) -> PyResult<Option<Arc<Dispatcher>>> {
        let methods =
            self.methods.iter().map(|(step, method)| (step.clone(), method.clone_ref(py))).collect();
        let handler = Handler::new(&self.name, methods)?;
        let HandlerSpec { key, timeout, .. } = &self.spec;
        let submit = self.submit.clone_ref(py);
        let dispatcher = Dispatcher::start(key, handler, submit, inspector, dispatchers.spans())?;
        Ok(dispatchers.set(key, *timeout, dispatcher))
    }
}

impl Running {
    /// Starts a server in a runtime of its own. Call it detached from the interpreter.
    pub(super) fn launch(
        config: Config,
        handlers: Vec<HandlerSpec>,
        dispatchers: &Arc<Dispatchers>,
    ) -> PyResult<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(config.shard_count().max(2))
            .thread_name("mqcore-worker")
            .enable_all()
            .build()?;
        let port = Arc::clone(dispatchers);
        match runtime.block_on(Server::start(config, handlers, port)) {
            Ok(server) => Ok(Self {
                server,
                handle: runtime.handle().clone(),
                runtime: Mutex::new(Some(runtime)),
                dispatchers: Arc::clone(dispatchers),
                stopped: Signal::default(),
            }),
            Err(refused) => {
                runtime.shutdown_timeout(RUNTIME_SHUTDOWN);
                Err(error::start(&refused))
            }
        }
    }

    /// Stops everything. Returns the keys of handlers whose call did not return in time. Call it detached from the
    /// interpreter.
    pub(super) fn stop(&self, grace: Duration) -> Vec<Box<str>> {
        let Some(runtime) = lock(&self.runtime).take() else {
            self.stopped.wait();
            return Vec::new();
        };
        let deadline = Instant::now() + grace + HANDLER_GRACE;
        runtime.block_on(self.server.stop(grace));
        let stuck = self.dispatchers.stop(deadline);
        runtime.shutdown_timeout(RUNTIME_SHUTDOWN);
        self.stopped.set();
        stuck
    }
}

/// The clients of a test broker in its process.
#[derive(Default)]
pub(crate) struct LocalClients(Mutex<Vec<OutputWatch>>);

impl LocalClients {
    pub(crate) fn add(&self, client: OutputWatch) {
        lock(&self.0).push(client);
    }

    /// Waits until every client has written its output so far.
    pub(super) async fn flushed(&self) {
        let clients = lock(&self.0).clone();
        for client in &clients {
            client.flushed().await;
        }
        lock(&self.0).retain(OutputWatch::is_alive);
    }
}
