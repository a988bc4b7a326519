//! Conversions between Python and the client for publishing: bodies, copies and receipts.

use bytes::Bytes;
use mqcore_client::address::QueueAddress;
use mqcore_client::conversation::By;
use mqcore_client::error::ClientError;
use mqcore_client::publish::{BatchMessage, CarbonCopy, CopyOutcome, CopyReceipt, Receipt};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyList;

use super::error;

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

pub(super) fn py_receipt(receipt: Receipt) -> PyReceipt {
    let by = receipt.by.map(|by| match by {
        By::Server => "server",
        By::Consumer => "consumer",
    });
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
