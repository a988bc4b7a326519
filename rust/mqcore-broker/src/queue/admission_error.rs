//! Why a queue does not accept a message, for its producer and for the counters.

use std::borrow::Cow;

use crate::model::rejection::{RejectReason, Rejection, RejectionKind};

/// A rejection and the reason under which it is counted.
#[derive(Debug)]
pub(crate) struct AdmissionError {
    pub(crate) reason: RejectReason,
    pub(crate) rejection: Rejection,
}

impl AdmissionError {
    pub(crate) fn new(reason: RejectReason, kind: RejectionKind, text: impl Into<Cow<'static, str>>) -> Self {
        Self { reason, rejection: Rejection::new(kind, text) }
    }
}
