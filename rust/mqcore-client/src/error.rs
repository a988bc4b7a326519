//! The error of all client operations, in seven families.

use std::sync::Arc;
use std::time::Duration;

use mqcore_tls::failure::FailureReason;
use mqcore_wire::error::WireError;
use mqcore_wire::throttr::Width;
use mqcore_wire::tmqp::operation::status;

/// An error of the client. Cheap to clone, because a lost connection fails many calls.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No address accepted a connection.
    #[error("cannot connect to {addresses}: {cause}; check that the broker is running and reachable")]
    ConnectFailed {
        /// The addresses.
        addresses: Arc<str>,
        /// The error of the last attempt.
        cause: Arc<str>,
    },
    /// There is no connection, or it was lost before the answer. Unless `sent` is false, it is unknown whether the
    /// broker processed the request.
    #[error("{}: {cause}", if *.sent { "connection lost before the answer arrived" } else { "no connection to send the request" })]
    ConnectionLost {
        /// The cause.
        cause: Arc<str>,
        /// Whether anything was sent. If not, a retry is safe.
        sent: bool,
    },
    /// The client is closed or closing.
    #[error("the client is closed; connect again")]
    Closed,
    /// The peer speaks another protocol.
    #[error("the peer at {address} does not speak {wanted}: it answered {got:?}")]
    VersionMismatch {
        /// The address of the peer.
        address: Arc<str>,
        /// The expected protocol.
        wanted: &'static str,
        /// Its first bytes as text.
        got: Arc<str>,
    },
    /// The listener has values of another width than the URL says.
    #[error(
        "the listener at {address} has values of {}, not {}; use value={} in the URL of the client",
        .found.as_str(), .wanted.as_str(), .found.as_str()
    )]
    WidthMismatch {
        /// The address of the listener.
        address: Arc<str>,
        /// The width in the URL.
        wanted: Width,
        /// The width of the listener.
        found: Width,
    },
    /// The TLS handshake failed.
    #[error("TLS handshake with {address} failed: {words}")]
    Tls {
        /// The address of the peer.
        address: Arc<str>,
        /// The kind of failure.
        reason: FailureReason,
        /// The failure and the next step.
        words: Arc<str>,
    },
    /// The broker rejected the login.
    #[error("{address} refused the client: {reason}; check its token")]
    AuthFailed {
        /// The address of the broker.
        address: Arc<str>,
        /// The broker's reason.
        reason: Arc<str>,
    },
    /// The broker refused the handshake for another reason, a client id in use for example.
    #[error("{address} refused the handshake with status {code}: {reason}")]
    HandshakeRefused {
        /// The address of the broker.
        address: Arc<str>,
        /// The status.
        code: u16,
        /// The broker's reason.
        reason: Arc<str>,
    },
    /// The two sides require different extensions of the protocol.
    #[error("no agreement on extensions with {address}: {reason}")]
    NoAgreement {
        /// The address of the peer.
        address: Arc<str>,
        /// The reason, from the side that gave up.
        reason: Arc<str>,
    },
    /// The peer sent a malformed frame.
    #[error("the broker sent a malformed frame: {0}")]
    BadFrame(#[from] WireError),
    /// A part is larger than a frame, or than the limits allow.
    #[error("{part} of {size} bytes exceeds the limit of {limit}")]
    TooLarge {
        /// The part.
        part: &'static str,
        /// Its size in bytes.
        size: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The broker answered with a status that is not success.
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// A negative acknowledgement.
    #[error("{target} refused the message: {reason}")]
    Nacked {
        /// The target of the message.
        target: Arc<str>,
        /// `none`, `timeout`, `no-consumers`, `not-saved`, or a consumer's reason.
        reason: Arc<str>,
    },
    /// The acknowledgement timed out. The broker may have accepted the message.
    #[error(
        "no acknowledgement from {target} within {waited:?}; it may have been taken all the same, or its queue's \
         delivery handler does not acknowledge (publish without confirm then)"
    )]
    ConfirmTimeout {
        /// The target of the message.
        target: Arc<str>,
        /// Time waited.
        waited: Duration,
    },
    /// The answer timed out.
    #[error("no answer to {operation} {target} within {waited:?}")]
    RequestTimeout {
        /// The operation.
        operation: &'static str,
        /// The target.
        target: Arc<str>,
        /// Time waited.
        waited: Duration,
    },
    /// The body of the answer does not fit the operation.
    #[error("invalid answer to {operation} {target}: {why}")]
    BadAnswer {
        /// The operation.
        operation: &'static str,
        /// The target.
        target: Arc<str>,
        /// The defect.
        why: Arc<str>,
    },
    /// The protocol of this client lacks the operation.
    #[error("{protocol} has no {what}{}{instead}", if .instead.is_empty() { "" } else { "; " })]
    NotSupported {
        /// The missing feature.
        what: Box<str>,
        /// The protocol.
        protocol: &'static str,
        /// The alternative; empty if there is none.
        instead: &'static str,
    },
    /// An argument is invalid.
    #[error("invalid {what}: {why}")]
    InvalidArgument {
        /// The argument.
        what: &'static str,
        /// The defect.
        why: Arc<str>,
    },
}

/// The families of [`ClientError`], which are the branches of Python's exception tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are clear")]
pub enum ErrorFamily {
    Transport,
    Handshake,
    Protocol,
    Operation,
    Nacked,
    Timeout,
    Argument,
}

impl ClientError {
    /// The family of this error.
    #[must_use]
    pub fn family(&self) -> ErrorFamily {
        match self {
            Self::ConnectFailed { .. } | Self::ConnectionLost { .. } | Self::Closed => ErrorFamily::Transport,
            Self::Tls { .. }
            | Self::VersionMismatch { .. }
            | Self::WidthMismatch { .. }
            | Self::AuthFailed { .. }
            | Self::NoAgreement { .. }
            | Self::HandshakeRefused { .. } => ErrorFamily::Handshake,
            Self::BadFrame(_) | Self::TooLarge { .. } | Self::BadAnswer { .. } => ErrorFamily::Protocol,
            Self::Refused(_) => ErrorFamily::Operation,
            Self::Nacked { .. } => ErrorFamily::Nacked,
            Self::ConfirmTimeout { .. } | Self::RequestTimeout { .. } => ErrorFamily::Timeout,
            Self::InvalidArgument { .. } | Self::NotSupported { .. } => ErrorFamily::Argument,
        }
    }

    /// Whether nothing can have reached the broker, so that a retry is safe.
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
    /// The operation: `"publish to"`, `"create queue"`, ...
    pub operation: &'static str,
    /// The target.
    pub target: Arc<str>,
    /// The broker's reason; empty if it gave none.
    pub reason: Box<str>,
    /// Whether the queue takes no messages because it is stopped. Servers other than mqcore do not tell.
    pub queue_stopped: bool,
}

impl Refusal {
    /// The meaning of the number.
    #[must_use]
    pub fn status(&self) -> StatusMeaning {
        if self.queue_stopped { StatusMeaning::QueueStopped } else { StatusMeaning::from_code(self.code) }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { code, operation, target, reason, .. } = self;
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

/// The meaning of a status number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "`meaning` describes them")]
pub enum StatusMeaning {
    BadRequest,
    Unauthorized,
    NotFound,
    Unacceptable,
    AlreadyExists,
    LimitExceeded,
    Busy,
    SendError,
    /// 401 with the status of the queue.
    QueueStopped,
    /// Any other number.
    Failed,
}

impl StatusMeaning {
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

    /// A text, with the next step where there is one.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::BadRequest => "the request is invalid",
            Self::Unauthorized => "this client may not do that, or the queue is stopped",
            Self::NotFound => "not found; create it first",
            Self::Unacceptable => "not possible in the current state",
            Self::AlreadyExists => "exists already",
            Self::LimitExceeded => "a limit of messages, sizes, clients or queues is reached",
            Self::Busy => "busy; try again later",
            Self::SendError => "sending failed",
            Self::QueueStopped => "the queue is stopped; give it another status first",
            Self::Failed => "it failed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_was_asked_of_whom() {
        let refusal = Refusal {
            code: 404,
            operation: "publish to",
            target: "a/1".into(),
            reason: "".into(),
            queue_stopped: false,
        };
        assert_eq!(refusal.status(), StatusMeaning::NotFound);
        assert_eq!(refusal.to_string(), "cannot publish to a/1: not found; create it first (status 404)");
        let refusal = Refusal {
            code: 1000,
            operation: "list",
            target: "".into(),
            reason: "no".into(),
            queue_stopped: false,
        };
        assert_eq!(refusal.to_string(), "cannot list: no (status 1000)");
    }

    #[test]
    fn only_what_was_never_sent_is_safe_to_repeat() {
        assert!(ClientError::ConnectionLost { cause: "x".into(), sent: false }.is_unsent());
        assert!(!ClientError::ConnectionLost { cause: "x".into(), sent: true }.is_unsent());
        assert!(!ClientError::ConfirmTimeout { target: "a".into(), waited: Duration::ZERO }.is_unsent());
    }
}
