//! What goes on coming: deliveries, direct messages, events, states.
//!
//! Waiting and taking are two calls. Waiting takes nothing, so that a task that is cancelled while it waits loses no
//! message; taking does not wait, so that a burst costs one trip through the event loop, however long it is.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mqcore_client::client::State;
use mqcore_client::consume::Consumer as CoreConsumer;
use mqcore_client::direct::Incoming as CoreIncoming;
use mqcore_client::event::{Event, EventStream as CoreEventStream, Subject};
use mqcore_client::micromessage::operations::ExtensionFrames as CoreExtensionFrames;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use tokio::sync::watch;

use super::process::{self, Owned};
use super::received::Received;
use super::{Way, optional_seconds};

/// A stream that can be closed by Python before its object goes.
struct Stream<T> {
    core: Mutex<Option<Owned<Arc<T>>>>,
    way: Way,
}

impl<T: Send + Sync + 'static> Stream<T> {
    fn new(core: T, way: Way) -> Self {
        Self { core: Mutex::new(Some(Owned::new(Arc::new(core)))), way }
    }

    fn lock(&self) -> PyResult<MutexGuard<'_, Option<Owned<Arc<T>>>>> {
        // Before locking: in a forked child the lock may be held by a thread that does not exist.
        process::check()?;
        Ok(self.core.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The stream, unless it was closed.
    fn get(&self) -> PyResult<Option<Arc<T>>> {
        self.lock()?.as_ref().map(|core| core.get().cloned()).transpose()
    }

    /// Takes the stream out, so that it is dropped by the caller.
    fn close(&self) -> PyResult<Option<Arc<T>>> {
        let taken = self.lock()?.take();
        taken.map(|core| core.get().cloned()).transpose()
    }

    /// Waits until there is something to take, or the end: true; or until `timeout`: false.
    fn wait<'py, F>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
        ready: impl FnOnce(Arc<T>) -> F + Send + 'static,
    ) -> PyResult<Bound<'py, PyAny>>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let timeout = optional_seconds(timeout, "timeout")?;
        let core = self.get()?;
        self.way.run(py, async move {
            let Some(core) = core else { return Ok(true) };
            let ready = ready(core);
            Ok(match timeout {
                None => {
                    ready.await;
                    true
                }
                Some(timeout) => tokio::time::timeout(timeout, ready).await.is_ok(),
            })
        })
    }
}

/// A class of Python over a stream of the core: its name, what it is of, what one element becomes, and methods that only
/// it has. By a macro, because neither a class of PyO3 nor its methods can be generic.
macro_rules! stream {
    ($(#[$about:meta])* $name:ident($core:ty): |$py:ident, $element:ident| -> $becomes:ty { $read:expr } $($own:item)*) => {
        $(#[$about])*
        #[pyclass(frozen, module = "mqcore._core")]
        pub(crate) struct $name(Stream<$core>);

        impl $name {
            /// Of `core`.
            pub(crate) fn new(core: $core, way: Way) -> Self {
                Self(Stream::new(core, way))
            }
        }

        #[pymethods]
        impl $name {
            /// Takes what is there; empty: wait, or it is closed.
            fn take(&self, $py: Python<'_>, count: usize) -> PyResult<Vec<$becomes>> {
                let Some(core) = self.0.get()? else { return Ok(Vec::new()) };
                core.take(count).into_iter().map(|$element| $read).collect()
            }

            #[pyo3(signature = (timeout=None))]
            fn wait<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
                self.0.wait(py, timeout, |core| async move { core.ready().await })
            }

            #[getter]
            fn is_closed(&self) -> PyResult<bool> {
                Ok(self.0.get()?.is_none_or(|core| core.is_closed()))
            }

            /// Leaves, and hands back what nobody took and somebody else can have.
            fn close(&self) -> PyResult<()> {
                if let Some(core) = self.0.close()? {
                    // Whoever waits holds the stream too, and must let go of it.
                    core.stop();
                }
                Ok(())
            }

            $($own)*
        }
    };
}

stream! {
    /// Deliveries of a queue.
    Consumer(CoreConsumer): |_py, delivered| -> Received { Ok(Received::delivered(delivered)) }

    /// Messages that wait here.
    #[getter]
    fn waiting(&self) -> PyResult<usize> {
        Ok(self.0.get()?.map_or(0, |core| core.waiting()))
    }
}

stream! {
    /// Direct messages to this client.
    Incoming(CoreIncoming): |_py, message| -> Received { Ok(Received::plain(message)) }
}

stream! {
    /// Events of the broker, as dicts.
    EventStream(CoreEventStream): |py, happened| -> Py<PyDict> { Ok(event(py, &happened)?.unbind()) }
}

stream! {
    /// Frames of a vendor's extension.
    ExtensionFrames(CoreExtensionFrames): |py, payload| -> Py<PyBytes> { Ok(PyBytes::new(py, &payload).unbind()) }
}

/// States of a client, the newest one if several came since the last look.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct States {
    states: Owned<Mutex<watch::Receiver<State>>>,
    way: Way,
}

impl States {
    /// From now on; the state now is the first.
    pub(crate) fn new(mut states: watch::Receiver<State>, way: Way) -> Self {
        states.mark_changed();
        Self { states: Owned::new(Mutex::new(states)), way }
    }

    fn receiver(&self) -> PyResult<MutexGuard<'_, watch::Receiver<State>>> {
        Ok(self.states.get()?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[pymethods]
impl States {
    /// The state now, if it is another than the last one taken.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let mut receiver = self.receiver()?;
        if !receiver.has_changed().unwrap_or(false) {
            return Ok(None);
        }
        let state = receiver.borrow_and_update().clone();
        drop(receiver);
        super::state(py, &state).map(Some)
    }

    /// Waits for another state: true; or until `timeout`: false.
    #[pyo3(signature = (timeout=None))]
    fn wait<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        let timeout = optional_seconds(timeout, "timeout")?.unwrap_or(Duration::MAX);
        let mut receiver = self.receiver()?.clone();
        self.way.run(py, async move { Ok(tokio::time::timeout(timeout, receiver.changed()).await.is_ok()) })
    }
}

fn event<'py>(py: Python<'py>, happened: &Event) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("kind", happened.kind.as_str())?;
    dict.set_item("channel", happened.channel.as_deref())?;
    dict.set_item("queue", happened.queue)?;
    match &happened.subject {
        Subject::Client { id, name, kind } => {
            dict.set_item("client_id", id)?;
            dict.set_item("client_name", name.as_deref())?;
            dict.set_item("client_kind", kind.as_deref())?;
        }
        Subject::Channel { active_clients, client_limit, .. } => {
            dict.set_item("active_clients", active_clients)?;
            dict.set_item("client_limit", client_limit)?;
        }
        Subject::Queue { tag, status, high_priority, normal } => {
            dict.set_item("tag", tag.as_deref())?;
            dict.set_item("status", status)?;
            dict.set_item("priority_messages", high_priority)?;
            dict.set_item("messages", normal)?;
        }
        Subject::Message { id, saved, producer } => {
            dict.set_item("message_id", id)?;
            dict.set_item("saved", saved)?;
            dict.set_item("producer_id", producer.as_deref())?;
        }
    }
    Ok(dict)
}
