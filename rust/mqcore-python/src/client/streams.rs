//! Streams: deliveries, direct messages, events, states.
//!
//! Waiting and taking are separate calls. Waiting takes nothing, so a cancelled task loses no message. Taking does not
//! wait, so many elements need one pass of the event loop.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mqcore_client::client::ClientState;
use mqcore_client::consume::Consumer as CoreConsumer;
use mqcore_client::direct::Incoming as CoreIncoming;
use mqcore_client::event::EventStream as CoreEventStream;
use mqcore_client::micromessage::operations::ExtensionFrames as CoreExtensionFrames;
use mqcore_client::pull_stream::PullStream as CorePullStream;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tokio::sync::watch;

use super::error;
use super::models::Model as _;
use super::process::{self, Owned};
use super::received::{Received, ReceivedBatch};
use super::{CallStyle, optional_seconds};
use crate::fields::seconds;

/// A stream that Python can close before its object is dropped.
struct Stream<T> {
    core: Mutex<Option<Owned<Arc<T>>>>,
}

impl<T: Send + Sync + 'static> Stream<T> {
    fn new(core: T) -> Self {
        Self { core: Mutex::new(Some(Owned::new(Arc::new(core)))) }
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

    /// Waits until an element is available or the stream ends (true), or until `timeout` (false).
    fn wait<'py, F>(
        &self,
        py: Python<'py>,
        way: CallStyle,
        timeout: Option<f64>,
        ready: impl FnOnce(Arc<T>) -> F + Send + 'static,
    ) -> PyResult<Bound<'py, PyAny>>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let timeout = optional_seconds(timeout, "timeout")?;
        let core = self.get()?;
        way.run(py, async move {
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

/// Defines a Python class over a stream of the core: its name, stream type, conversion of elements, and own methods. A
/// macro, because PyO3 classes and methods cannot be generic.
macro_rules! stream {
    ($(#[$about:meta])* $name:ident($core:ty): |$py:ident, $element:ident| -> $becomes:ty { $read:expr } $($own:item)*) => {
        $(#[$about])*
        #[pyclass(frozen, module = "mqcore._core")]
        pub(crate) struct $name(Stream<$core>);

        impl $name {
            /// Wraps `core`.
            pub(crate) fn new(core: $core) -> Self {
                Self(Stream::new(core))
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // A wait that was cancelled may still hold the stream.
                if let Ok(Some(core)) = self.0.close() {
                    core.stop();
                }
            }
        }

        #[pymethods]
        impl $name {
            /// Takes the available elements; empty: none yet, or closed.
            fn take(&self, $py: Python<'_>, count: usize) -> PyResult<Vec<$becomes>> {
                let Some(core) = self.0.get()? else { return Ok(Vec::new()) };
                core.take(count).into_iter().map(|$element| $read).collect()
            }

            #[pyo3(signature = (timeout=None))]
            fn wait_async<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
                self.0.wait(py, CallStyle::Awaitable, timeout, |core| async move { core.ready().await })
            }

            #[pyo3(signature = (timeout=None))]
            fn wait_blocking<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
                self.0.wait(py, CallStyle::Blocking, timeout, |core| async move { core.ready().await })
            }

            #[getter]
            fn is_closed(&self) -> PyResult<bool> {
                Ok(self.0.get()?.is_none_or(|core| core.is_closed()))
            }

            /// Closes the stream, and requeues messages that the program did not take.
            fn close(&self) -> PyResult<()> {
                if let Some(core) = self.0.close()? {
                    // Waiting calls hold the stream too, and must release it.
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

    /// Takes the available messages: up to `count` without acknowledgement, or one with. Empty: none yet, or closed.
    fn take_next(&self, count: usize) -> PyResult<Vec<Received>> {
        let Some(core) = self.0.get()? else { return Ok(Vec::new()) };
        Ok(core.take_next(count).into_iter().map(Received::delivered).collect())
    }

    /// Takes up to `count` available messages; `None`: none yet, or closed.
    fn take_batch(&self, count: usize) -> PyResult<Option<ReceivedBatch>> {
        let Some(core) = self.0.get()? else { return Ok(None) };
        let messages = core.take(count);
        Ok((!messages.is_empty()).then(|| ReceivedBatch::new(messages)))
    }

    /// Waits for a message (false: not within `timeout`), and then at most `fill` for `count` messages.
    #[pyo3(signature = (count, fill, timeout=None))]
    fn wait_batch_async<'py>(
        &self,
        py: Python<'py>,
        count: usize,
        fill: f64,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.wait_batch(py, CallStyle::Awaitable, count, fill, timeout)
    }

    #[pyo3(signature = (count, fill, timeout=None))]
    fn wait_batch_blocking<'py>(
        &self,
        py: Python<'py>,
        count: usize,
        fill: f64,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.wait_batch(py, CallStyle::Blocking, count, fill, timeout)
    }

    /// Number of available messages.
    #[getter]
    fn waiting(&self) -> PyResult<usize> {
        Ok(self.0.get()?.map_or(0, |core| core.waiting()))
    }
}

impl Consumer {
    fn wait_batch<'py>(
        &self,
        py: Python<'py>,
        way: CallStyle,
        count: usize,
        fill: f64,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let fill = seconds(fill, "wait")?;
        self.0.wait(py, way, timeout, move |core| async move { core.batch_ready(count, fill).await })
    }
}

stream! {
    /// Messages of a pull as they arrive.
    PullStream(CorePullStream): |_py, delivered| -> Received { Ok(Received::delivered(delivered)) }

    /// Remaining messages, and whether the broker ended the pull. Raises if the pull failed.
    fn end(&self) -> PyResult<(Option<(u64, u64)>, bool)> {
        self.0.get()?.map_or(Ok((None, false)), |core| core.end().map_err(error::client))
    }
}

stream! {
    /// Direct messages to this client.
    Incoming(CoreIncoming): |_py, message| -> Received { Ok(Received::plain(message)) }
}

stream! {
    /// Events of the broker.
    EventStream(CoreEventStream): |py, event| -> Py<PyAny> { Ok(event.to_python(py)?.unbind()) }
}

stream! {
    /// Frames of a vendor's extension.
    ExtensionFrames(CoreExtensionFrames): |py, payload| -> Py<PyBytes> { Ok(PyBytes::new(py, &payload).unbind()) }
}

/// States of a client; the newest if several arrived since the last call.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct States {
    states: Owned<Mutex<watch::Receiver<ClientState>>>,
}

impl States {
    /// Starts with the current state.
    pub(crate) fn new(mut states: watch::Receiver<ClientState>) -> Self {
        states.mark_changed();
        Self { states: Owned::new(Mutex::new(states)) }
    }

    fn receiver(&self) -> PyResult<MutexGuard<'_, watch::Receiver<ClientState>>> {
        Ok(self.states.get()?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[pymethods]
impl States {
    /// The current state, if it differs from the last one taken.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let mut receiver = self.receiver()?;
        if !receiver.has_changed().unwrap_or(false) {
            return Ok(None);
        }
        let state = receiver.borrow_and_update().clone();
        drop(receiver);
        state.to_python(py).map(Some)
    }

    #[pyo3(signature = (timeout=None))]
    fn wait_async<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        self.wait(py, CallStyle::Awaitable, timeout)
    }

    #[pyo3(signature = (timeout=None))]
    fn wait_blocking<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        self.wait(py, CallStyle::Blocking, timeout)
    }
}

impl States {
    /// Waits for another state (true), or until `timeout` (false).
    fn wait<'py>(
        &self,
        py: Python<'py>,
        way: CallStyle,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let timeout = optional_seconds(timeout, "timeout")?.unwrap_or(Duration::MAX);
        let mut receiver = self.receiver()?.clone();
        way.run(py, async move { Ok(tokio::time::timeout(timeout, receiver.changed()).await.is_ok()) })
    }
}
