//! Publishing from Python: without waiting where possible, and conversions of bodies, copies and receipts.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use mqcore_client::address::QueueAddress;
use mqcore_client::client::Client as CoreClient;
use mqcore_client::confirmations::Confirmation;
use mqcore_client::conversation::{AckedBy, MessageId};
use mqcore_client::error::ClientError;
use mqcore_client::publish::{BatchMessage, CarbonCopy, CopyOutcome, CopyReceipt, PublishOptions, Receipt};
use mqcore_client::publish_now::PublishNow;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyList;

use super::confirming::{self, LoopConfirmations};
use super::way::CallStyle;
use super::{bridge, error};

/// Messages without confirmation after which a call lets other tasks of the event loop continue. The others do not suspend
/// their task, and a loop that publishes would be the only one to run.
const YIELD_AFTER_MESSAGES: u32 = 512;

/// Publishes the messages of one client that need not wait for room.
#[derive(Default)]
pub(super) struct Publisher {
    /// The queue of the last message, with its text. Most programs publish to the same queue again.
    last_address: Mutex<Option<(Box<str>, QueueAddress)>>,
    /// The confirmations of the event loop that published last.
    last_loop: Mutex<Option<(Py<PyAny>, Py<LoopConfirmations>)>>,
    /// Messages without confirmation that needed no wait.
    unconfirmed: AtomicU32,
}

/// The outcome of an attempt to publish without waiting.
pub(super) enum Published<'py> {
    /// It is queued for writing, and requests no confirmation.
    Queued,
    /// It is queued for writing. This is the result of the call, or its awaitable.
    Result(Bound<'py, PyAny>),
    /// Nothing: the call has to wait for room first.
    NotNow,
}

/// Never held while calling Python.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Publisher {
    /// Parses a queue or other destination in the protocol's spelling.
    pub(super) fn address(&self, core: &CoreClient, text: &str) -> PyResult<QueueAddress> {
        let mut last = lock(&self.last_address);
        if let Some((known, address)) = &*last
            && **known == *text
        {
            return Ok(address.clone());
        }
        let address = core.address(text).map_err(error::client)?;
        *last = Some((text.into(), address.clone()));
        Ok(address)
    }

    /// Publishes a message if that needs no wait.
    pub(super) fn publish<'py>(
        &self,
        py: Python<'py>,
        core: &CoreClient,
        way: CallStyle,
        queue: &QueueAddress,
        body: &[u8],
        options: &PublishOptions,
    ) -> PyResult<Published<'py>> {
        match way {
            CallStyle::Awaitable if options.confirm => {
                let event_loop = bridge::running_loop(py)?;
                let Some(confirmations) = self.confirmations(&event_loop)? else {
                    return Ok(Published::NotNow);
                };
                let future = LoopConfirmations::publish(
                    confirmations.bind(py),
                    &event_loop,
                    core,
                    queue,
                    body,
                    options,
                )?;
                return Ok(future.map_or(Published::NotNow, Published::Result));
            }
            CallStyle::Blocking if options.confirm => {
                let confirmed = confirming::publish_blocking(py, core, queue, body, options)?;
                let Some(confirmed) = confirmed else { return Ok(Published::NotNow) };
                return Ok(Published::Result(py_confirmation(confirmed).into_bound_py_any(py)?));
            }
            CallStyle::Awaitable | CallStyle::Blocking => {}
        }
        match core.publish_now(queue, body, options, None).map_err(error::client)? {
            PublishNow::Queued { unwritten: true, .. } => self.write_later(py, core, way)?,
            PublishNow::Queued { unwritten: false, .. } => {}
            PublishNow::NotNow => return Ok(Published::NotNow),
        }
        let before = self.unconfirmed.fetch_add(1, Ordering::Relaxed);
        match way {
            CallStyle::Awaitable if before % YIELD_AFTER_MESSAGES == YIELD_AFTER_MESSAGES - 1 => {
                static SLEEP: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
                let pause = SLEEP.import(py, "asyncio", "sleep")?.call1((0,))?;
                Ok(Published::Result(pause))
            }
            CallStyle::Awaitable | CallStyle::Blocking => Ok(Published::Queued),
        }
    }

    /// Has a message without confirmation written when the event loop's current step ends. A program that blocks has no
    /// such time; there the client writes soon by itself.
    fn write_later(&self, py: Python<'_>, core: &CoreClient, way: CallStyle) -> PyResult<()> {
        let CallStyle::Awaitable = way else { return Ok(()) };
        let event_loop = bridge::running_loop(py)?;
        match self.confirmations(&event_loop)? {
            Some(confirmations) => LoopConfirmations::write_later(confirmations.bind(py), &event_loop, core),
            None => Ok(()),
        }
    }

    /// Forgets a future of [`Publisher::publish`]. Returns the id of its message, unless its outcome is known.
    pub(super) fn forget(&self, awaitable: &Bound<'_, PyAny>) -> PyResult<Option<MessageId>> {
        let py = awaitable.py();
        let last = lock(&self.last_loop).as_ref().map(|(_, confirmations)| confirmations.clone_ref(py));
        let Some(last) = last else { return Ok(None) };
        if let Some(id) = last.get().forget(awaitable) {
            return Ok(Some(id));
        }
        // A client may be used by several event loops. A coroutine may be dropped without any.
        let Ok(event_loop) = bridge::running_loop(py) else { return Ok(None) };
        let confirmations = self.confirmations(&event_loop)?;
        Ok(confirmations.and_then(|confirmations| confirmations.get().forget(awaitable)))
    }

    fn confirmations(&self, event_loop: &Bound<'_, PyAny>) -> PyResult<Option<Py<LoopConfirmations>>> {
        let py = event_loop.py();
        if let Some((known, confirmations)) = &*lock(&self.last_loop)
            && known.is(event_loop)
        {
            return Ok(Some(confirmations.clone_ref(py)));
        }
        let Some(confirmations) = LoopConfirmations::of(event_loop)? else { return Ok(None) };
        let now = (event_loop.clone().unbind(), confirmations.clone_ref(py));
        let before = lock(&self.last_loop).replace(now);
        // Dropped without the lock, because this may run Python.
        drop(before);
        Ok(Some(confirmations))
    }
}

/// Queue, status and reason of a copy.
pub(super) type PyCopy = (String, &'static str, Option<String>);

/// The sender of an acknowledgement, the latency in seconds, and the copies, if there are any.
pub(super) type PyReceipt = (Option<&'static str>, f64, Option<Vec<PyCopy>>);

/// The outcomes of many messages: a receipt or an exception each.
pub(super) struct Receipts(pub(super) Vec<Result<Receipt, ClientError>>);

impl<'py> IntoPyObject<'py> for Receipts {
    type Target = PyList;
    type Output = Bound<'py, PyList>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        let list = PyList::empty(py);
        for outcome in self.0 {
            match outcome {
                Ok(receipt) => list.append(py_receipt(receipt))?,
                Err(failed) => list.append(error::client(failed).into_value(py))?,
            }
        }
        Ok(list)
    }
}

pub(super) fn copies(cc: Vec<(String, Option<String>)>) -> PyResult<Vec<CarbonCopy>> {
    let copy = |(queue, id): (String, Option<String>)| {
        Ok(CarbonCopy { queue: QueueAddress::parse(&queue).map_err(error::client)?, id })
    };
    cc.into_iter().map(copy).collect()
}

/// The confirmation of a message without copies.
pub(super) fn py_confirmation(confirmation: Confirmation) -> PyReceipt {
    (Some(py_sender(confirmation.by)), confirmation.latency.as_secs_f64(), None)
}

fn py_sender(by: AckedBy) -> &'static str {
    match by {
        AckedBy::Server => "server",
        AckedBy::Consumer => "consumer",
    }
}

pub(super) fn py_receipt(receipt: Receipt) -> PyReceipt {
    let by = receipt.by.map(py_sender);
    let copies = receipt.copies;
    let copies = (!copies.is_empty()).then(|| copies.into_iter().map(py_copy).collect());
    (by, receipt.latency.as_secs_f64(), copies)
}

fn py_copy(copy: CopyReceipt) -> PyCopy {
    let (status, reason) = match copy.outcome {
        CopyOutcome::Confirmed => ("confirmed", None),
        CopyOutcome::Rejected(reason) => ("rejected", Some(reason.to_string())),
        CopyOutcome::Unconfirmed(reason) => ("unconfirmed", Some(reason.to_string())),
    };
    (copy.queue.to_string(), status, reason)
}

/// Copies all bodies into one allocation that the messages share.
pub(super) fn outgoing(bodies: &[PyBackedBytes]) -> Vec<BatchMessage> {
    let mut all = Vec::with_capacity(bodies.iter().map(|body| body.len()).sum());
    for body in bodies {
        all.extend_from_slice(body);
    }
    let all = Bytes::from(all);
    let mut at = 0;
    let of_body = |body: &PyBackedBytes| {
        let range = at..at + body.len();
        at = range.end;
        BatchMessage { body: all.slice(range), ..BatchMessage::default() }
    };
    bodies.iter().map(of_body).collect()
}
