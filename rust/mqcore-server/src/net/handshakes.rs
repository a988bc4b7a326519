//! The TLS handshakes in progress: at most `tls_handshakes_max` over all listeners.
//!
//! Beyond the limit the oldest handshake is dropped, as soon as it has had [`FAIR`] to finish.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Time that a handshake gets before it can be dropped.
const FAIR: Duration = Duration::from_millis(250);

/// The handshakes in progress.
#[derive(Debug)]
pub(crate) struct Handshakes {
    max: usize,
    state: Mutex<HandshakeState>,
    /// Notified when one has ended.
    ended: Notify,
}

#[derive(Debug, Default)]
struct HandshakeState {
    next: u64,
    /// By age.
    slots: BTreeMap<u64, (Instant, Arc<Notify>)>,
}

/// One handshake's slot.
#[derive(Debug)]
pub(crate) struct HandshakeSlot {
    handshakes: Arc<Handshakes>,
    number: u64,
    lost: Arc<Notify>,
}

impl Handshakes {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, state: Mutex::default(), ended: Notify::new() }
    }

    /// The number of handshakes in progress.
    pub(crate) fn count(&self) -> usize {
        lock(&self.state).slots.len()
    }

    /// Returns when one more may begin. If all slots are taken, the oldest handshake loses its own after a fair time.
    /// So peers that stall cannot keep clients out for longer, and clients that connect all at once are served in
    /// turn instead of displacing each other.
    pub(crate) async fn room(&self) {
        loop {
            let ended = self.ended.notified();
            let fair_until = {
                let mut state = lock(&self.state);
                if state.slots.len() < self.max {
                    return;
                }
                let Some(oldest) = state.slots.first_entry() else { return };
                let fair_until = oldest.get().0 + FAIR;
                if fair_until <= Instant::now() {
                    let (_, lost) = oldest.remove();
                    lost.notify_one();
                    return;
                }
                fair_until
            };
            tokio::select! {
                () = ended => {}
                () = tokio::time::sleep_until(fair_until) => {}
            }
        }
    }

    /// Takes a slot.
    pub(crate) fn enter(self: &Arc<Self>) -> HandshakeSlot {
        let lost = Arc::new(Notify::new());
        let mut state = lock(&self.state);
        let number = state.next;
        state.next += 1;
        state.slots.insert(number, (Instant::now(), Arc::clone(&lost)));
        drop(state);
        HandshakeSlot { handshakes: Arc::clone(self), number, lost }
    }
}

impl HandshakeSlot {
    /// Returns when this handshake must be dropped in favor of a newer one.
    pub(crate) async fn lost(&self) {
        self.lost.notified().await;
    }
}

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        lock(&self.handshakes.state).slots.remove(&self.number);
        self.handshakes.ended.notify_one();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_handshake_too_many_waits_for_a_fair_time_and_then_the_oldest_gives_way() {
        let handshakes = Arc::new(Handshakes::new(2));
        let started = Instant::now();
        handshakes.room().await;
        let stalled = handshakes.enter();
        tokio::time::sleep(Duration::from_millis(100)).await;
        let other = handshakes.enter();
        handshakes.room().await;
        assert_eq!(started.elapsed(), FAIR, "the oldest had its time");
        stalled.lost().await;
        let third = handshakes.enter();
        assert_eq!(handshakes.count(), 2);
        drop(third);
        handshakes.room().await;
        assert_eq!(started.elapsed(), FAIR, "there was room at once");
        drop((stalled, other));
        assert_eq!(handshakes.count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_handshake_that_ends_makes_room_for_who_waits() {
        let handshakes = Arc::new(Handshakes::new(1));
        let first = handshakes.enter();
        let started = Instant::now();
        let (done, ()) = tokio::join!(
            async {
                handshakes.room().await;
                started.elapsed()
            },
            async {
                tokio::time::sleep(Duration::from_millis(10)).await;
                drop(first);
            }
        );
        assert_eq!(done, Duration::from_millis(10));
    }
}
