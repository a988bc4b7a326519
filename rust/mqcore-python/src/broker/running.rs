//! What a broker has while it runs, and the definitions from which its handler threads start.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mqcore_broker::model::config::HandlerSpec;
use mqcore_client::client::OutputWatch;
use mqcore_server::server::Server;
use pyo3::prelude::*;
use tokio::runtime::{Handle, Runtime};

use super::lock;
use crate::dispatcher::Dispatcher;
use crate::dispatchers::Dispatchers;
use crate::handler::Handler;
use crate::signal::Signal;

/// How long tasks of the runtime have to end once the server has stopped: none of them waits for anything any more.
pub(super) const RUNTIME_SHUTDOWN: Duration = Duration::from_secs(2);
/// How long handlers have to come back from the call that they are in, beyond the grace that peers have.
pub(super) const HANDLER_GRACE: Duration = Duration::from_secs(1);
/// What lives between start and stop.
pub(super) struct Running {
    pub(super) server: Server,
    pub(super) handle: Handle,
    pub(super) runtime: Mutex<Option<Runtime>>,
    pub(super) dispatchers: Arc<Dispatchers>,
    pub(super) stopped: Signal,
}

/// A registered handler, from which its dispatcher is made at each start.
pub(super) struct Definition {
    pub(super) spec: HandlerSpec,
    pub(super) name: String,
    pub(super) methods: Vec<(String, Py<PyAny>)>,
    pub(super) submit: Py<PyAny>,
}

impl Definition {
    pub(super) fn dispatcher(&self, py: Python<'_>) -> PyResult<Dispatcher> {
        let methods =
            self.methods.iter().map(|(step, method)| (step.clone(), method.clone_ref(py))).collect();
        let handler = Handler::new(&self.name, methods)?;
        Ok(Dispatcher::start(&self.spec.key, handler, self.submit.clone_ref(py))?)
    }
}

impl Running {
    /// Stops everything; returns the keys of handlers that did not come back in time. Called detached.
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

/// The clients of a test broker that are in its process.
#[derive(Default)]
pub(crate) struct LocalClients(Mutex<Vec<OutputWatch>>);

impl LocalClients {
    pub(crate) fn add(&self, client: OutputWatch) {
        lock(&self.0).push(client);
    }

    /// Waits until every client has written what it has sent so far.
    pub(super) async fn flushed(&self) {
        let clients = lock(&self.0).clone();
        for client in &clients {
            client.flushed().await;
        }
        lock(&self.0).retain(OutputWatch::is_alive);
    }
}
