//! Why the broker says no, in the core's words; each session turns it into its protocol's form.

use std::borrow::Cow;

/// A refusal: its kind, and a sentence that says what was wrong and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Rejection {
    /// What sort of refusal this is.
    pub kind: RejectionKind,
    /// For people. Names the thing asked for; never holds a secret.
    pub reason: Cow<'static, str>,
}

/// The kinds of refusal, with the status codes that Twino gave them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RejectionKind {
    /// It failed, and nothing more is known.
    Failed = 1,
    /// The request itself is wrong.
    BadRequest = 400,
    /// The client may not do this.
    Unauthorized = 401,
    /// No such channel, queue, client, ...
    NotFound = 404,
    /// Understood, but impossible in the present state.
    Unacceptable = 406,
    /// There is one of that name already.
    AlreadyExists = 481,
    /// A limit would be exceeded.
    LimitExceeded = 482,
    /// The broker cannot take it now; later it may.
    Busy = 503,
}

impl RejectionKind {
    /// The status code on the wire.
    pub fn code(self) -> u16 {
        self as u16
    }
}

impl Rejection {
    /// A refusal of `kind` with its reason.
    pub fn new(kind: RejectionKind, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, reason: reason.into() }
    }
}
