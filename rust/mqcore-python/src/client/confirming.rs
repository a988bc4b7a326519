//! Waits for confirmations of messages that are published without a task each: in futures of asyncio, or by blocking.
//!
//! Confirmations of one read share one wake-up of the event loop: the connection's task writes a byte to a socket that the
//! loop watches. The loop itself collects them, so no other thread needs the interpreter.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use mqcore_client::address::QueueAddress;
use mqcore_client::client::Client as CoreClient;
use mqcore_client::confirmations::{Confirmation, ConfirmationTicket, Confirmations};
use mqcore_client::conversation::MessageId;
use mqcore_client::error::ClientError;
use mqcore_client::publish::PublishOptions;
use mqcore_client::publish_now::PublishNow;
use pyo3::exceptions::PyNotImplementedError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use super::error;
use super::publishing::py_confirmation;
use super::wakeup::{self, WakeReceiver, WakeSender};
use super::way::SIGNAL_INTERVAL;

/// Never held while calling Python or the client.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type OutcomeOf = (ConfirmationTicket, Result<Confirmation, ClientError>);

/// Outcomes that the event loop has not collected. Without Python objects, because any thread may drop it.
#[derive(Debug)]
struct Outcomes {
    known: Mutex<Vec<OutcomeOf>>,
    sender: WakeSender,
}

impl Confirmations for Outcomes {
    fn put(&self, ticket: ConfirmationTicket, outcome: Result<Confirmation, ClientError>) -> bool {
        let mut known = lock(&self.known);
        known.push((ticket, outcome));
        known.len() == 1
    }

    fn wake(&self) {
        self.sender.wake();
    }
}

/// A message whose confirmation a future waits for.
struct ConfirmedFuture {
    number: u64,
    future: Py<PyAny>,
    id: MessageId,
}

/// Futures by their addresses, which are unique while the futures are here.
#[derive(Default)]
struct ConfirmedFutures {
    by_address: HashMap<usize, ConfirmedFuture, RandomState>,
    numbers: u64,
}

/// The confirmations of one event loop, for all clients.
#[pyclass(frozen, module = "mqcore._core")]
pub(super) struct LoopConfirmations {
    outcomes: Arc<Outcomes>,
    /// The same.
    confirmations: Arc<dyn Confirmations>,
    receiver: WakeReceiver,
    futures: Mutex<ConfirmedFutures>,
    writes: Mutex<Writes>,
}

/// Which messages are written at once. The first one is; later ones of the same step of the event loop share a write.
#[derive(Default)]
struct Writes {
    /// Whether a message was written in this step.
    wrote: bool,
    /// Clients with output to be written after this step.
    later: Vec<CoreClient>,
}

#[pymethods]
impl LoopConfirmations {
    /// Collects all outcomes. The event loop calls this when the socket is readable.
    fn __call__(&self, py: Python<'_>) -> PyResult<()> {
        // First, so that a later outcome wakes the loop again.
        self.receiver.drain();
        lock(&self.writes).wrote = false;
        let known = std::mem::take(&mut *lock(&self.outcomes.known));
        let settled: Vec<_> = {
            let mut futures = lock(&self.futures);
            known.into_iter().filter_map(|(ticket, outcome)| Some((futures.take(ticket)?, outcome))).collect()
        };
        for (future, outcome) in settled {
            set(future.bind(py), outcome)?;
        }
        Ok(())
    }

    /// Writes the messages of a step of the event loop.
    fn flush(&self, py: Python<'_>) {
        let Writes { later, .. } = std::mem::take(&mut *lock(&self.writes));
        py.detach(|| later.iter().for_each(CoreClient::flush));
    }
}

impl LoopConfirmations {
    /// The confirmations of an event loop; `None` if it cannot watch sockets.
    pub(super) fn of(event_loop: &Bound<'_, PyAny>) -> PyResult<Option<Py<Self>>> {
        static ALL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = event_loop.py();
        let all = ALL.get_or_try_init(py, || {
            py.import("weakref")?.getattr("WeakKeyDictionary")?.call0().map(Bound::unbind)
        })?;
        let all = all.bind(py);
        let known = all.call_method1("get", (event_loop,))?;
        if !known.is_none() {
            return Ok(Some(known.cast_into::<Self>()?.unbind()));
        }
        let Some((sender, receiver)) = wakeup::pair()? else { return Ok(None) };
        let socket = receiver.descriptor();
        let outcomes = Arc::new(Outcomes { known: Mutex::default(), sender });
        let (confirmations, futures, writes) = (outcomes.clone(), Mutex::default(), Mutex::default());
        let new = Py::new(py, Self { outcomes, confirmations, receiver, futures, writes })?;
        // The event loop keeps its reader, and so the socket, until it is closed.
        match event_loop.call_method1("add_reader", (socket, &new)) {
            Ok(_) => {}
            Err(error) if error.is_instance_of::<PyNotImplementedError>(py) => return Ok(None),
            Err(error) => return Err(error),
        }
        all.set_item(event_loop, &new)?;
        Ok(Some(new))
    }

    /// Publishes a message, and returns a future for its confirmation. `None`: not now.
    pub(super) fn publish<'py>(
        this: &Bound<'py, Self>,
        event_loop: &Bound<'py, PyAny>,
        core: &CoreClient,
        queue: &QueueAddress,
        body: &[u8],
        options: &PublishOptions,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let own = this.get();
        let future = event_loop.call_method0(pyo3::intern!(event_loop.py(), "create_future"))?;
        let ticket =
            ConfirmationTicket { slot: future.as_ptr() as usize, number: lock(&own.futures).next_number() };
        let published = core.publish_now(queue, body, options, Some((&own.confirmations, ticket)));
        // The outcome may be known by now; this thread collects it later.
        match published.map_err(error::client)? {
            PublishNow::Queued { id, .. } => {
                let waiting = ConfirmedFuture { number: ticket.number, future: future.clone().unbind(), id };
                lock(&own.futures).by_address.insert(ticket.slot, waiting);
                Self::write(this, event_loop, core)?;
                Ok(Some(future))
            }
            PublishNow::NotNow => Ok(None),
        }
    }

    /// Writes a message now, or after this step of the event loop.
    fn write(this: &Bound<'_, Self>, event_loop: &Bound<'_, PyAny>, core: &CoreClient) -> PyResult<()> {
        if !std::mem::replace(&mut lock(&this.get().writes).wrote, true) {
            core.flush();
            return Ok(());
        }
        Self::write_later(this, event_loop, core)
    }

    /// Writes a message after this step of the event loop.
    pub(super) fn write_later(
        this: &Bound<'_, Self>,
        event_loop: &Bound<'_, PyAny>,
        core: &CoreClient,
    ) -> PyResult<()> {
        let mut writes = lock(&this.get().writes);
        let is_first = writes.later.is_empty();
        if !writes.later.iter().any(|client| client.is_same(core)) {
            writes.later.push(core.clone());
        }
        drop(writes);
        if is_first {
            let py = this.py();
            let flush = this.getattr(pyo3::intern!(py, "flush"))?;
            event_loop.call_method1(pyo3::intern!(py, "call_soon"), (flush,))?;
        }
        Ok(())
    }

    /// Forgets a future. Returns the id of the message that it waits for; `None` if it waits for none here.
    pub(super) fn forget(&self, future: &Bound<'_, PyAny>) -> Option<MessageId> {
        let forgotten = lock(&self.futures).by_address.remove(&(future.as_ptr() as usize));
        forgotten.map(|forgotten| forgotten.id)
    }
}

impl ConfirmedFutures {
    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn take(&mut self, ticket: ConfirmationTicket) -> Option<Py<PyAny>> {
        // Another future may have the address of a forgotten one.
        self.by_address.get(&ticket.slot).filter(|waiting| waiting.number == ticket.number)?;
        self.by_address.remove(&ticket.slot).map(|waiting| waiting.future)
    }
}

fn set(future: &Bound<'_, PyAny>, outcome: Result<Confirmation, ClientError>) -> PyResult<()> {
    let py = future.py();
    let set = match outcome {
        Ok(confirmed) => future.call_method1(pyo3::intern!(py, "set_result"), (py_confirmation(confirmed),)),
        Err(failed) => {
            let failed = error::client(failed).into_value(py);
            future.call_method1(pyo3::intern!(py, "set_exception"), (failed,))
        }
    };
    match set {
        // A cancelled future stays cancelled.
        Err(_) if future.call_method0(pyo3::intern!(py, "done"))?.is_truthy()? => Ok(()),
        result => result.map(drop),
    }
}

/// The confirmation that a blocking call waits for.
#[derive(Debug, Default)]
struct BlockingConfirmation {
    outcome: Mutex<Option<Result<Confirmation, ClientError>>>,
    known: Condvar,
}

impl Confirmations for BlockingConfirmation {
    fn put(&self, _: ConfirmationTicket, outcome: Result<Confirmation, ClientError>) -> bool {
        *lock(&self.outcome) = Some(outcome);
        true
    }

    fn wake(&self) {
        self.known.notify_one();
    }
}

impl BlockingConfirmation {
    /// Waits for the outcome, until the next check for signals at most.
    fn wait(&self) -> Option<Result<Confirmation, ClientError>> {
        let outcome = lock(&self.outcome);
        let waited = self.known.wait_timeout_while(outcome, SIGNAL_INTERVAL, |outcome| outcome.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.take()
    }
}

/// Publishes a message, and waits for its confirmation without the interpreter lock. `None`: not now. An exception of a
/// signal handler ends the wait.
pub(super) fn publish_blocking(
    py: Python<'_>,
    core: &CoreClient,
    queue: &QueueAddress,
    body: &[u8],
    options: &PublishOptions,
) -> PyResult<Option<Confirmation>> {
    let waiting = Arc::new(BlockingConfirmation::default());
    let confirmations: Arc<dyn Confirmations> = waiting.clone();
    let ticket = ConfirmationTicket { slot: 0, number: 0 };
    let published = core.publish_now(queue, body, options, Some((&confirmations, ticket)));
    let PublishNow::Queued { id, .. } = published.map_err(error::client)? else { return Ok(None) };
    py.detach(|| core.flush());
    loop {
        if let Some(outcome) = py.detach(|| waiting.wait()) {
            return outcome.map(Some).map_err(error::client);
        }
        py.check_signals().inspect_err(|_| core.forget_confirmation(&id))?;
    }
}
