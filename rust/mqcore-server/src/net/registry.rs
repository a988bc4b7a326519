//! The open connections of a server: limits their number, and finds each of them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use mqcore_broker::model::id::ConnectionId;
use mqcore_session::any::{ListenerTerms, Protocol};
use tokio::sync::Notify;

use crate::net::outbox::{Marks, Order, Outbox};

/// IDs are never reused within a process, so all servers in it share one counter.
static NEXT_CONNECTION: AtomicU64 = AtomicU64::new(1);

/// An id that no connection has had: for the next one, or for a request that comes over none.
pub(crate) fn next_connection() -> ConnectionId {
    ConnectionId(NEXT_CONNECTION.fetch_add(1, Ordering::Relaxed))
}

/// All open connections of a server.
#[derive(Debug)]
pub(crate) struct Registry {
    connections_max: usize,
    half_open_max: usize,
    marks: Marks,
    state: Mutex<RegistryState>,
    /// Notified when the last connection has closed.
    emptied: Notify,
}

#[derive(Debug, Default)]
struct RegistryState {
    open: HashMap<ConnectionId, Arc<Outbox>, foldhash::fast::RandomState>,
    /// Those of `open` whose peers have not logged in. IDs ascend, so the first is the oldest.
    half_open: BTreeSet<ConnectionId>,
    stopping: bool,
}

/// Why a connection was not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpenError {
    /// `connections_max` is reached.
    Full,
    /// The server stops.
    Stopping,
}

impl Registry {
    pub(crate) fn new(connections_max: usize, half_open_max: usize, output_bytes_max: usize) -> Self {
        let marks = Marks::new(output_bytes_max);
        Self { connections_max, half_open_max, marks, state: Mutex::default(), emptied: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, RegistryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Like [`Registry::open_as`], with the default terms of a protocol.
    pub(crate) fn open(&self, protocol: Protocol) -> Result<Arc<Outbox>, OpenError> {
        self.open_as(ListenerTerms::of(protocol))
    }

    /// Registers one more connection, half-open at first. If too many are half-open, the oldest is closed: to keep
    /// clients out, an attacker would have to finish handshakes faster than they do.
    pub(crate) fn open_as(&self, terms: ListenerTerms) -> Result<Arc<Outbox>, OpenError> {
        let mut state = self.lock();
        if state.stopping {
            return Err(OpenError::Stopping);
        }
        if state.open.len() >= self.connections_max {
            return Err(OpenError::Full);
        }
        let evicted =
            if state.half_open.len() >= self.half_open_max { state.half_open.pop_first() } else { None };
        let evicted = evicted.and_then(|connection| state.open.get(&connection).cloned());
        let connection = next_connection();
        let outbox = Arc::new(Outbox::new(connection, terms, self.marks));
        state.open.insert(connection, Arc::clone(&outbox));
        state.half_open.insert(connection);
        drop(state);
        if let Some(evicted) = evicted {
            evicted.order(Order::CloseHalfOpen);
        }
        Ok(outbox)
    }

    /// The peer has logged in.
    pub(crate) fn welcomed(&self, connection: ConnectionId) {
        self.lock().half_open.remove(&connection);
    }

    /// The connection has ended.
    pub(crate) fn close(&self, connection: ConnectionId) {
        let mut state = self.lock();
        state.open.remove(&connection);
        state.half_open.remove(&connection);
        if state.open.is_empty() {
            self.emptied.notify_waiters();
        }
    }

    /// Returns when no connection is open.
    pub(crate) async fn emptied(&self) {
        loop {
            // Registered before the check, so that a connection that closes in between is not missed.
            let emptied = self.emptied.notified();
            if self.lock().open.is_empty() {
                return;
            }
            emptied.await;
        }
    }

    /// For effects on connections that never sent anything to the shard concerned.
    pub(crate) fn find(&self, connection: ConnectionId) -> Option<Arc<Outbox>> {
        self.lock().open.get(&connection).cloned()
    }

    /// Rejects all further connections, and returns the open ones.
    pub(crate) fn stop(&self) -> Vec<Arc<Outbox>> {
        self.lock().stopping = true;
        self.all()
    }

    /// All open connections.
    pub(crate) fn all(&self) -> Vec<Arc<Outbox>> {
        self.lock().open.values().cloned().collect()
    }

    /// Open and half-open connections of one protocol.
    pub(crate) fn count(&self, protocol: Protocol) -> (usize, usize) {
        let state = self.lock();
        let of_protocol = |outbox: &&Arc<Outbox>| outbox.protocol == protocol;
        let open = state.open.values().filter(of_protocol).count();
        let half_open =
            state.half_open.iter().filter_map(|connection| state.open.get(connection)).filter(of_protocol);
        (open, half_open.count())
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    const SPOKEN: Protocol = Protocol::ALL[0];

    fn order_of(outbox: &Outbox) -> Option<Order> {
        outbox.take(&mut Vec::new(), Waker::noop()).order
    }

    #[test]
    fn one_stranger_too_many_evicts_the_oldest_stranger_and_no_client() {
        let registry = Registry::new(100, 2, 4096);
        let client = registry.open(SPOKEN).unwrap();
        registry.welcomed(client.connection);
        let strangers: Vec<_> = (0..3).map(|_| registry.open(SPOKEN).unwrap()).collect();
        assert_eq!(order_of(&client), None);
        assert_eq!(order_of(&strangers[0]), Some(Order::CloseHalfOpen));
        assert_eq!(order_of(&strangers[1]), None);
        assert_eq!(registry.count(SPOKEN), (4, 2));
    }

    #[test]
    fn beyond_the_limit_nothing_opens_until_something_closes() {
        let registry = Registry::new(1, 1, 4096);
        let first = registry.open(SPOKEN).unwrap();
        assert_eq!(registry.open(SPOKEN).unwrap_err(), OpenError::Full);
        registry.close(first.connection);
        assert!(registry.open(SPOKEN).is_ok());
        assert_eq!(registry.stop().len(), 1);
        assert_eq!(registry.open(SPOKEN).unwrap_err(), OpenError::Stopping);
    }
}
