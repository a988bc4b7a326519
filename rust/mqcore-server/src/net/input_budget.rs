//! Limits on unfinished input: frames, lines and messages of which a peer has sent a part.
//!
//! Beyond a limit, the connection whose input has waited longest is closed. A peer that means to finish a frame does so
//! soon, so those that hold memory without finishing lose it first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::net::outbox::{Order, Outbox};

/// The limits of one server.
#[derive(Debug)]
pub(crate) struct InputBudgets {
    /// All input of connections without a completed login.
    pub(crate) half_open: Arc<InputBudget>,
    /// Large frames and messages of clients.
    pub(crate) clients: Arc<InputBudget>,
}

impl InputBudgets {
    pub(crate) fn new(half_open_bytes_max: usize, unfinished_bytes_max: usize) -> Self {
        Self {
            half_open: Arc::new(InputBudget::new(half_open_bytes_max)),
            clients: Arc::new(InputBudget::new(unfinished_bytes_max)),
        }
    }
}

/// A limit on the unfinished input of all connections together.
#[derive(Debug)]
pub(crate) struct InputBudget {
    bytes_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    held: usize,
    next: u64,
    /// By age.
    charges: BTreeMap<u64, (usize, Arc<Outbox>)>,
}

/// The unfinished input of one connection. Releases its bytes when dropped.
#[derive(Debug)]
pub(crate) struct InputCharge {
    budget: Arc<InputBudget>,
    number: u64,
}

impl InputBudget {
    fn new(bytes_max: usize) -> Self {
        Self { bytes_max, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of unfinished input.
    pub(crate) fn held(&self) -> usize {
        self.lock().held
    }

    /// Counts the input of a connection from now on.
    pub(crate) fn charge(budget: &Arc<Self>, outbox: &Arc<Outbox>, bytes: usize) -> InputCharge {
        let mut state = budget.lock();
        let number = state.next;
        state.next += 1;
        state.held += bytes;
        state.charges.insert(number, (bytes, Arc::clone(outbox)));
        budget.close_oldest(state);
        InputCharge { budget: Arc::clone(budget), number }
    }

    /// Closes connections until the rest is within the limit. One connection alone is bounded by the size of a frame.
    fn close_oldest(&self, mut state: MutexGuard<'_, State>) {
        let mut closed = Vec::new();
        while state.held > self.bytes_max && state.charges.len() > 1 {
            let Some((_, (bytes, outbox))) = state.charges.pop_first() else { break };
            state.held -= bytes;
            closed.push(outbox);
        }
        drop(state);
        for outbox in closed {
            outbox.order(Order::CloseUnfinished);
        }
    }
}

impl InputCharge {
    pub(crate) fn is_of(&self, budget: &Arc<InputBudget>) -> bool {
        Arc::ptr_eq(&self.budget, budget)
    }

    /// The connection now holds this many bytes. No effect if it is being closed.
    pub(crate) fn set(&mut self, bytes: usize) {
        let mut guard = self.budget.lock();
        let state = &mut *guard;
        let Some((counted, _)) = state.charges.get_mut(&self.number) else { return };
        state.held = state.held - *counted + bytes;
        *counted = bytes;
        self.budget.close_oldest(guard);
    }
}

impl Drop for InputCharge {
    fn drop(&mut self) {
        let mut state = self.budget.lock();
        if let Some((bytes, _)) = state.charges.remove(&self.number) {
            state.held -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use mqcore_broker::model::id::ConnectionId;
    use mqcore_session::any::{ListenerTerms, Protocol};

    use super::*;
    use crate::net::outbox::Marks;

    fn outbox(number: u64) -> Arc<Outbox> {
        let terms = ListenerTerms::of(Protocol::ALL[0]);
        Arc::new(Outbox::new(ConnectionId(number), terms, Marks::new(4096)))
    }

    fn is_closed(outbox: &Outbox) -> bool {
        outbox.take(&mut Vec::new(), Waker::noop()).order == Some(Order::CloseUnfinished)
    }

    #[test]
    fn input_beyond_the_limit_closes_the_connection_that_waited_longest() {
        let budget = Arc::new(InputBudget::new(100));
        let peers: Vec<_> = (0..3).map(outbox).collect();
        let mut first = InputBudget::charge(&budget, &peers[0], 40);
        let second = InputBudget::charge(&budget, &peers[1], 50);
        assert_eq!(budget.held(), 90);
        let third = InputBudget::charge(&budget, &peers[2], 30);
        assert_eq!((budget.held(), is_closed(&peers[0])), (80, true));
        assert!(!is_closed(&peers[1]) && !is_closed(&peers[2]));
        first.set(1000);
        drop(first);
        assert_eq!(budget.held(), 80, "a closed connection counts no more");
        drop((second, third));
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn input_of_one_connection_alone_may_exceed_the_limit() {
        let budget = Arc::new(InputBudget::new(100));
        let peers = [outbox(1), outbox(2)];
        let mut alone = InputBudget::charge(&budget, &peers[0], 60);
        alone.set(500);
        assert!(!is_closed(&peers[0]));
        let other = InputBudget::charge(&budget, &peers[1], 10);
        assert_eq!((budget.held(), is_closed(&peers[0]), is_closed(&peers[1])), (10, true, false));
        drop((alone, other));
    }
}
