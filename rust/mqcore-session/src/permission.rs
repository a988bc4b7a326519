//! Permission for requests that a session answers itself, where not every peer may make every request.
//!
//! The server checks each command that a session passes on to the broker. Requests about limits never become commands, so
//! the session asks here before it answers them.

use std::fmt::Debug;

/// The subject of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PermissionSubject<'a> {
    /// One counter or buffer.
    Key(&'a [u8]),
    /// The list of all counters and buffers.
    Keys,
    /// The list of connections and channels.
    Connections,
    /// The subscribers of one channel.
    Channel(&'a [u8]),
}

/// The decision about one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Permission {
    /// The peer may make the request.
    Granted,
    /// An authorizer has to be asked first; the session stops at this request until it is called again.
    Undecided,
    /// The peer may not make the request.
    Denied,
}

/// Decides about the requests of one peer.
pub trait Permissions: Debug + Send + Sync {
    /// Decides about one request, without waiting.
    fn decide(&self, wanted: PermissionSubject<'_>) -> Permission;
}
