//! Everything that can go wrong for a program that uses the client: one type, seven families.

use std::sync::Arc;
use std::time::Duration;

use mqcore_tls::failure::FailureReason;
use mqcore_wire::error::WireError;
use mqcore_wire::tmqp::operation::status;

/// What went wrong. Cheap to clone, so that one lost connection can be told to everybody who waited for it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No address took a connection.
    #[error("cannot connect to {addresses}: {cause}; is the broker running and reachable?")]
    ConnectFailed {
        /// What was tried.
        addresses: Arc<str>,
        /// What the last attempt ended with.
        cause: Arc<str>,
    },
    /// There is no connection, or it was lost before the answer came. Whether the broker acted is unknown, unless
    /// `sent` is false.
    #[error("{}: {cause}", if *.sent { "the connection was lost before the answer came" } else { "there was no connection to send it on" })]
    ConnectionLost {
        /// Why.
        cause: Arc<str>,
        /// Whether anything was sent: if not, it is safe to try again.
        sent: bool,
    },
    /// The client was closed, or is about to.
    #[error("the client is closed; connect again to go on")]
    Closed,
    /// The peer speaks another protocol.
    #[error("the peer at {address} does not speak {wanted}: it answered {got:?}")]
    VersionMismatch {
        /// Who.
        address: Arc<str>,
        /// What it should speak.
        wanted: &'static str,
        /// Its first bytes, as text.
        got: Arc<str>,
    },
    /// The peers did not come to terms on TLS.
    #[error("no TLS with {address}: {words}")]
    Tls {
        /// With whom.
        address: Arc<str>,
        /// What sort of failure it was.
        reason: FailureReason,
        /// What happened, and what to do.
        words: Arc<str>,
    },
    /// The broker does not let this client in.
    #[error("{address} refused the client: {reason}; check its token")]
    AuthFailed {
        /// Who refused.
        address: Arc<str>,
        /// Its words.
        reason: Arc<str>,
    },
    /// The broker refused the handshake for another reason, a client id in use for example.
    #[error("{address} refused the handshake with status {code}: {reason}")]
    HandshakeRefused {
        /// Who refused.
        address: Arc<str>,
        /// Its status; 0 if it closed without one.
        code: u16,
        /// Its words.
        reason: Arc<str>,
    },
    /// The two sides require different extensions of the protocol.
    #[error("no agreement with {address}: {reason}")]
    NoAgreement {
        /// With whom.
        address: Arc<str>,
        /// What stands against it, in the words of whoever gave up.
        reason: Arc<str>,
    },
    /// The peer sent what is no frame.
    #[error("the broker sent a broken frame: {0}")]
    BadFrame(#[from] WireError),
    /// A part is larger than a frame, or than the limits allow.
    #[error("{part} of {size} bytes is larger than the limit of {limit}")]
    TooLarge {
        /// Which part.
        part: &'static str,
        /// Bytes.
        size: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The broker answered with a status that is not success.
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// A negative acknowledgement.
    #[error("{target} refused the message: {reason}")]
    Nacked {
        /// Where the message went.
        target: Arc<str>,
        /// `none`, `timeout`, `no-consumers`, `not-saved`, or what a consumer said.
        reason: Arc<str>,
    },
    /// No acknowledgement came in time. The message may have been taken all the same.
    #[error(
        "no acknowledgement from {target} within {waited:?}; it may have been taken all the same, or its queue's \
         delivery handler does not acknowledge (publish without confirm then)"
    )]
    ConfirmTimeout {
        /// Where the message went.
        target: Arc<str>,
        /// How long.
        waited: Duration,
    },
    /// No answer came in time.
    #[error("no answer to {operation} {target} within {waited:?}")]
    RequestTimeout {
        /// What was asked.
        operation: &'static str,
        /// Of whom.
        target: Arc<str>,
        /// How long.
        waited: Duration,
    },
    /// The answer's body is not what the operation answers with.
    #[error("the answer to {operation} {target} cannot be read: {why}")]
    BadAnswer {
        /// What was asked.
        operation: &'static str,
        /// Of whom.
        target: Arc<str>,
        /// What is wrong with it.
        why: Arc<str>,
    },
    /// The protocol of this client has no such thing.
    #[error("{protocol} has no {what}{}{instead}", if .instead.is_empty() { "" } else { "; " })]
    NotSupported {
        /// What it has not.
        what: Box<str>,
        /// What is spoken.
        protocol: &'static str,
        /// What to do instead; empty if nothing comes near.
        instead: &'static str,
    },
    /// The caller asked for something that cannot be said.
    #[error("invalid {what}: {why}")]
    InvalidArgument {
        /// Which argument.
        what: &'static str,
        /// What is wrong with it.
        why: Arc<str>,
    },
}

/// The families of [`ClientError`], which are the branches of Python's exception tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Family {
    Transport,
    Handshake,
    Protocol,
    Operation,
    Nacked,
    Timeout,
    Argument,
}

impl ClientError {
    /// Which family this belongs to.
    #[must_use]
    pub fn family(&self) -> Family {
        match self {
            Self::ConnectFailed { .. } | Self::ConnectionLost { .. } | Self::Closed => Family::Transport,
            Self::Tls { .. }
            | Self::VersionMismatch { .. }
            | Self::AuthFailed { .. }
            | Self::NoAgreement { .. }
            | Self::HandshakeRefused { .. } => Family::Handshake,
            Self::BadFrame(_) | Self::TooLarge { .. } | Self::BadAnswer { .. } => Family::Protocol,
            Self::Refused(_) => Family::Operation,
            Self::Nacked { .. } => Family::Nacked,
            Self::ConfirmTimeout { .. } | Self::RequestTimeout { .. } => Family::Timeout,
            Self::InvalidArgument { .. } | Self::NotSupported { .. } => Family::Argument,
        }
    }

    /// Whether nothing can have reached the broker, so that trying again is safe.
    #[must_use]
    pub fn is_unsent(&self) -> bool {
        matches!(
            self,
            Self::ConnectFailed { .. }
                | Self::Tls { .. }
                | Self::ConnectionLost { sent: false, .. }
                | Self::Closed
        )
    }

    pub(crate) fn invalid(what: &'static str, why: impl Into<Arc<str>>) -> Self {
        Self::InvalidArgument { what, why: why.into() }
    }
}

/// A status that is not success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The number on the wire.
    pub code: u16,
    /// What was asked: `"publish to"`, `"create queue"`, ...
    pub operation: &'static str,
    /// Of whom.
    pub target: Arc<str>,
    /// The broker's words; empty if it gave none.
    pub reason: Box<str>,
}

impl Refusal {
    /// What the number means.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::from_code(self.code)
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { code, operation, target, reason } = self;
        let meaning = self.status().meaning();
        let space = if target.is_empty() { "" } else { " " };
        if reason.is_empty() {
            write!(formatter, "cannot {operation}{space}{target}: {meaning} (status {code})")
        } else {
            write!(formatter, "cannot {operation}{space}{target}: {reason} (status {code})")
        }
    }
}

impl From<Refusal> for ClientError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(Box::new(refusal))
    }
}

/// What a status number means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "`meaning` says it")]
pub enum Status {
    BadRequest,
    Unauthorized,
    NotFound,
    Unacceptable,
    AlreadyExists,
    LimitExceeded,
    Busy,
    SendError,
    /// Any other number.
    Failed,
}

impl Status {
    /// The meaning of this number.
    #[must_use]
    pub fn from_code(code: u16) -> Self {
        match code {
            status::BAD_REQUEST => Self::BadRequest,
            status::UNAUTHORIZED => Self::Unauthorized,
            status::NOT_FOUND => Self::NotFound,
            status::UNACCEPTABLE => Self::Unacceptable,
            status::DUPLICATE => Self::AlreadyExists,
            status::LIMIT_EXCEEDED => Self::LimitExceeded,
            status::BUSY => Self::Busy,
            status::SEND_ERROR => Self::SendError,
            _ => Self::Failed,
        }
    }

    /// In words, with what to do about it where that is known.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::BadRequest => "the request makes no sense",
            Self::Unauthorized => "this client may not do that, or the queue is stopped",
            Self::NotFound => "there is none; create it first",
            Self::Unacceptable => "not possible in the present state",
            Self::AlreadyExists => "it is there already",
            Self::LimitExceeded => "a limit of messages, sizes, clients or queues is reached",
            Self::Busy => "busy; try again later",
            Self::SendError => "it could not be sent",
            Self::Failed => "it failed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_was_asked_of_whom() {
        let refusal = Refusal { code: 404, operation: "publish to", target: "a/1".into(), reason: "".into() };
        assert_eq!(refusal.status(), Status::NotFound);
        assert_eq!(refusal.to_string(), "cannot publish to a/1: there is none; create it first (status 404)");
        let refusal = Refusal { code: 1000, operation: "list", target: "".into(), reason: "no".into() };
        assert_eq!(refusal.to_string(), "cannot list: no (status 1000)");
    }

    #[test]
    fn only_what_was_never_sent_is_safe_to_repeat() {
        assert!(ClientError::ConnectionLost { cause: "x".into(), sent: false }.is_unsent());
        assert!(!ClientError::ConnectionLost { cause: "x".into(), sent: true }.is_unsent());
        assert!(!ClientError::ConfirmTimeout { target: "a".into(), waited: Duration::ZERO }.is_unsent());
    }
}
