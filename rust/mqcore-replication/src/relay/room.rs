//! Room for relayed connections: without a limit, clients would take the file descriptors that the log needs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections of the admin side that always have room, so that a node full of clients still answers health checks.
const ADMIN_MAX: usize = 64;
/// Time between two warnings.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Room for connections at the same time, over several listeners.
#[derive(Debug)]
pub(super) struct Room {
    places: Arc<Semaphore>,
    size: usize,
    /// Connections that were closed because there was no room.
    closed: AtomicU64,
    warned: Mutex<Option<Instant>>,
}

impl Room {
    /// Divides the room for so many connections between clients and the admin side.
    pub(super) fn divide(connections: usize) -> (Arc<Self>, Arc<Self>) {
        let admin = (connections / 4).clamp(1, ADMIN_MAX);
        (Self::new(connections.saturating_sub(admin).max(1)), Self::new(admin))
    }

    fn new(size: usize) -> Arc<Self> {
        let size = size.min(Semaphore::MAX_PERMITS);
        let places = Arc::new(Semaphore::new(size));
        Arc::new(Self { places, size, closed: AtomicU64::new(0), warned: Mutex::default() })
    }

    /// The place of a new connection, which is free again when this is dropped. `None`: the connection must close.
    pub(super) fn enter(&self, protocol: &str) -> Option<OwnedSemaphorePermit> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok();
        if place.is_none() {
            let closed = self.closed.fetch_add(1, Ordering::Relaxed) + 1;
            self.warn(protocol, closed);
        }
        place
    }

    fn warn(&self, protocol: &str, closed: u64) {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.is_none_or(|warned| warned.elapsed() >= WARNING_INTERVAL) {
            *warned = Some(Instant::now());
            tracing::warn!(
                protocol,
                connections = self.size,
                closed,
                "closing connections, because this node passes on as many as it may; \
                 raise connections_max or the limit of open files (ulimit -n)"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_leave_room_for_the_admin_side() {
        for (connections, clients, admin) in
            [(65_536, 65_472, 64), (100, 75, 25), (4, 3, 1), (1, 1, 1), (0, 1, 1)]
        {
            let rooms = Room::divide(connections);
            assert_eq!((rooms.0.size, rooms.1.size), (clients, admin), "{connections}");
        }
    }

    #[test]
    fn closed_connections_are_counted() {
        let room = Room::new(1);
        let place = room.enter("tmqp").unwrap();
        assert!(room.enter("tmqp").is_none());
        assert!(room.enter("tmqp").is_none());
        assert_eq!(room.closed.load(Ordering::Relaxed), 2);
        drop(place);
        assert!(room.enter("tmqp").is_some());
    }
}
