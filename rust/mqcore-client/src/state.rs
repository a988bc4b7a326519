//! The state of a client's connection.

use std::sync::Arc;
use std::time::Duration;

/// The state of the connection. The client reconnects without help of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientState {
    /// The client is connecting.
    Connecting {
        /// Number of the attempt since the last connection, from 1.
        attempt: u32,
    },
    /// The connection is established.
    Connected {
        /// The address of the broker.
        address: Arc<str>,
        /// The id that the broker assigned to this client.
        client_id: Arc<str>,
    },
    /// The connection was lost or refused; another attempt follows.
    Waiting {
        /// The reason.
        cause: Arc<str>,
        /// Number of the next attempt.
        attempt: u32,
        /// Delay from entering this state to the attempt.
        retry_in: Duration,
    },
    /// The client is closed, or has given up.
    Closed {
        /// The reason.
        cause: Arc<str>,
    },
}

impl ClientState {
    /// The name: `connecting`, `connected`, `waiting`, `closed`.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Connecting { .. } => "connecting",
            Self::Connected { .. } => "connected",
            Self::Waiting { .. } => "waiting",
            Self::Closed { .. } => "closed",
        }
    }
}
