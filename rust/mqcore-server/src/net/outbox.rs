//! Output that waits for one connection: added by shards, taken by the connection's task.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use bytes::Bytes;
use mqcore_broker::model::effect::Event;
use mqcore_broker::model::id::ConnectionId;
use mqcore_session::any::{ListenerTerms, Protocol};
use mqcore_session::protocol::Overload;
use tokio::sync::mpsc;

use crate::stats::counters::CloseReason;

/// Something to write, or an action to take after everything before it is written.
#[derive(Debug)]
pub(crate) enum OutboxItem {
    /// Encoded already, for this connection only.
    Own(Vec<u8>),
    /// Encoded already, once for several connections.
    Shared(Bytes),
    /// For the session to encode.
    Events(Vec<Event>),
    /// Events whose number is bounded by credit: accepted above the limit, as deliveries are.
    Deliveries(Vec<Event>),
    /// The broker ends this connection.
    Close(CloseReason),
}

/// An order to a connection's task, independent of the order of output. The strictest is last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Order {
    /// Pause reads: the server is about to stop, and further input would keep it from finishing.
    PauseReads,
    /// Say goodbye, write the remaining output, and end.
    Goodbye,
    /// The identity is no longer valid: say goodbye, and let nothing more through.
    Revoke,
    /// There are too many half-open connections and this is the oldest: end now.
    CloseHalfOpen,
    /// The unfinished input of all connections exceeds its limit and this one's is the oldest: end now.
    CloseUnfinished,
    /// The peer does not read, and the output exceeds the limit: end now.
    Overflow,
    /// The time to drain is over: end now.
    Abort,
}

/// The marks in bytes. Invariant: `low < high < max`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Marks {
    low: usize,
    high: usize,
    max: usize,
}

impl Marks {
    pub(crate) fn new(max: usize) -> Self {
        Self { low: max / 4, high: max / 2, max }
    }
}

/// The result of pushing output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// The output is in the outbox.
    Taken,
    /// The output is in the outbox, and the high mark is passed. Returned once to each shard; `Writable` follows
    /// later.
    Congested,
    /// The connection has ended; the output was dropped.
    Gone,
}

/// Shared by a connection's task and the shards that send to it.
#[derive(Debug)]
pub(crate) struct Outbox {
    pub(crate) connection: ConnectionId,
    pub(crate) protocol: Protocol,
    /// The terms of the connection's listener.
    pub(crate) terms: ListenerTerms,
    marks: Marks,
    state: Mutex<OutboxState>,
}

#[derive(Debug)]
struct OutboxState {
    queue: Vec<OutboxItem>,
    /// Bytes pushed and not yet written to the socket, in the outbox or in the connection.
    bytes: usize,
    /// Bit `n`: shard `n` was notified of `Congested` and waits for `Writable`.
    waiting_shards: u16,
    order: Option<Order>,
    /// Events were pushed above the limit.
    is_overfull: bool,
    /// Dropped by the connection when it has nothing left to do.
    probe: Option<mpsc::Sender<()>>,
    /// The connection's task, if it is idle.
    waker: Option<Waker>,
    ended: bool,
}

/// The result of taking from an outbox.
#[derive(Debug, Default)]
pub(crate) struct TakenOutput {
    pub(crate) order: Option<Order>,
    /// Events were pushed above the limit. Either the peer does not read, or only the connection's task was late.
    pub(crate) is_overfull: bool,
    pub(crate) probe: Option<mpsc::Sender<()>>,
}

impl Outbox {
    pub(crate) fn new(connection: ConnectionId, terms: ListenerTerms, marks: Marks) -> Self {
        let state = OutboxState {
            queue: Vec::new(),
            bytes: 0,
            waiting_shards: 0,
            order: None,
            is_overfull: false,
            probe: None,
            waker: None,
            ended: false,
        };
        Self { connection, protocol: terms.protocol(), terms, marks, state: Mutex::new(state) }
    }

    /// No code panics while the state is inconsistent, so the state behind a poisoned lock is usable.
    fn lock(&self) -> MutexGuard<'_, OutboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes everything out of `staged`, which is worth `bytes`, and wakes the connection once.
    ///
    /// Deliveries are always accepted: the broker stops by itself once it knows of the congestion. Other events above
    /// the limit make the connection's task look whether its peer reads; if not, it closes the connection.
    pub(crate) fn push(&self, staged: &mut Vec<OutboxItem>, bytes: usize, shard: usize) -> Pushed {
        let mut state = self.lock();
        if state.ended {
            drop(state);
            staged.clear();
            return Pushed::Gone;
        }
        state.is_overfull |= state.bytes >= self.marks.max
            && staged.iter().any(|outgoing| matches!(outgoing, OutboxItem::Events(_)));
        if state.queue.is_empty() && state.queue.capacity() < staged.len() {
            std::mem::swap(&mut state.queue, staged);
        } else {
            state.queue.append(staged);
        }
        state.bytes += bytes;
        let bit = 1 << shard;
        let pushed = if state.bytes > self.marks.high && state.waiting_shards & bit == 0 {
            state.waiting_shards |= bit;
            Pushed::Congested
        } else {
            Pushed::Taken
        };
        let waker = state.waker.take();
        drop(state);
        staged.clear();
        if let Some(waker) = waker {
            waker.wake();
        }
        pushed
    }

    /// Gives the connection's task an order; the strictest order wins.
    pub(crate) fn order(&self, order: Order) {
        let mut state = self.lock();
        state.order = state.order.max(Some(order));
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Makes the connection's task check everything once more, because the time has changed.
    pub(crate) fn wake(&self) {
        let waker = self.lock().waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Like `wake`; `probe` is dropped when the task finds nothing left to do.
    pub(crate) fn probe(&self, probe: mpsc::Sender<()>) {
        let mut state = self.lock();
        if state.ended {
            return;
        }
        state.probe = Some(probe);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Moves everything into `into`, which is empty, and remembers whom to wake when there is more.
    pub(crate) fn take(&self, into: &mut Vec<OutboxItem>, waker: &Waker) -> TakenOutput {
        let mut state = self.lock();
        std::mem::swap(&mut state.queue, into);
        match &mut state.waker {
            Some(known) if known.will_wake(waker) => {}
            known => *known = Some(waker.clone()),
        }
        TakenOutput {
            order: state.order.take(),
            is_overfull: std::mem::take(&mut state.is_overfull),
            probe: state.probe.take(),
        }
    }

    /// Whether this much output, which the peer does not take, is above the limit.
    pub(crate) fn is_above_limit(&self, unwritten: usize) -> bool {
        unwritten >= self.marks.max
    }

    /// The connection produced `added` bytes itself and removed `removed`. Returns the shards to notify with
    /// `Writable`, as bits.
    pub(crate) fn settle(&self, added: usize, removed: usize) -> u16 {
        let mut state = self.lock();
        state.bytes = (state.bytes + added).saturating_sub(removed);
        if state.bytes > self.marks.max && added > removed && self.protocol.overload() != Overload::PauseReads
        {
            // Pongs and errors that a peer requests again and again without reading them.
            state.order = Some(Order::Overflow);
        }
        if state.bytes < self.marks.low { std::mem::take(&mut state.waiting_shards) } else { 0 }
    }

    /// Whether [`Outbox::end`] was called.
    pub(crate) fn has_ended(&self) -> bool {
        self.lock().ended
    }

    /// The connection has ended: the outbox drops its content and accepts no more.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        state.probe = None;
        state.waker = None;
        let queue = std::mem::take(&mut state.queue);
        drop(state);
        // Messages may be large, and this may be their last reference: free them outside the lock.
        drop(queue);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use mqcore_broker::model::effect::Event;
    use mqcore_broker::model::rejection::{Rejection, RejectionKind};

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn outbox() -> Outbox {
        Outbox::new(ConnectionId(1), ListenerTerms::of(Protocol::ALL[0]), Marks::new(4000))
    }

    fn frames(bytes: usize) -> Vec<OutboxItem> {
        vec![OutboxItem::Shared(Bytes::from(vec![0; bytes]))]
    }

    fn event() -> Vec<OutboxItem> {
        vec![OutboxItem::Events(vec![Event::Refused(Rejection::new(RejectionKind::Busy, "busy"))])]
    }

    #[test]
    fn an_idle_task_is_woken_once_for_several_pushes() {
        let outbox = outbox();
        let wakes = Arc::new(Wakes::default());
        let waker = Arc::clone(&wakes).into();
        outbox.take(&mut Vec::new(), &waker);
        for _ in 0..3 {
            assert_eq!(outbox.push(&mut frames(1), 1, 0), Pushed::Taken);
        }
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
        let mut taken = Vec::new();
        outbox.take(&mut taken, &waker);
        assert_eq!(taken.len(), 3);
    }

    #[test]
    fn each_shard_hears_once_of_congestion_and_all_of_them_of_its_end() {
        let outbox = outbox();
        assert_eq!(outbox.push(&mut frames(2000), 2000, 0), Pushed::Taken);
        assert_eq!(outbox.push(&mut frames(1), 1, 0), Pushed::Congested);
        assert_eq!(outbox.push(&mut frames(1), 1, 0), Pushed::Taken);
        assert_eq!(outbox.push(&mut frames(1), 1, 3), Pushed::Congested);
        assert_eq!(outbox.settle(0, 1000), 0, "between the marks nothing changes");
        assert_eq!(outbox.settle(0, 500), 0b1001);
        assert_eq!(outbox.settle(0, 500), 0, "a shard is notified once");
    }

    #[test]
    fn events_beyond_the_limit_make_the_connection_check_its_peer_and_deliveries_do_not() {
        let outbox = outbox();
        let waker = Waker::noop();
        outbox.push(&mut frames(5000), 5000, 0);
        outbox.push(&mut frames(10), 10, 0);
        assert_eq!(outbox.take(&mut Vec::new(), waker).order, None);
        let mut taken = Vec::new();
        outbox.push(&mut event(), 10, 0);
        assert!(outbox.take(&mut taken, waker).is_overfull);
        assert_eq!(taken.len(), 1, "they are lost only with the connection");
        assert!(!outbox.take(&mut Vec::new(), waker).is_overfull);
        assert!(outbox.is_above_limit(4000) && !outbox.is_above_limit(3999));
    }

    #[test]
    fn a_connections_own_output_is_bounded_too() {
        let outbox = outbox();
        assert_eq!(outbox.settle(4000, 0), 0);
        assert_eq!(outbox.take(&mut Vec::new(), Waker::noop()).order, None);
        outbox.settle(1, 0);
        assert_eq!(outbox.take(&mut Vec::new(), Waker::noop()).order, Some(Order::Overflow));
    }

    #[test]
    fn a_stricter_order_is_not_softened() {
        let outbox = outbox();
        outbox.order(Order::Goodbye);
        outbox.order(Order::Abort);
        outbox.order(Order::Goodbye);
        assert_eq!(outbox.take(&mut Vec::new(), Waker::noop()).order, Some(Order::Abort));
    }

    #[test]
    fn an_ended_connection_keeps_nothing() {
        let outbox = outbox();
        outbox.push(&mut frames(1), 1, 0);
        outbox.end();
        let mut late = frames(1);
        assert_eq!(outbox.push(&mut late, 1, 0), Pushed::Gone);
        assert!(late.is_empty());
        let mut taken = Vec::new();
        outbox.take(&mut taken, Waker::noop());
        assert!(taken.is_empty());
    }
}
