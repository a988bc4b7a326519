//! Calls that wait for answers: one by one, or many that were published together.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::conversation::RequestAnswer;
use crate::error::ClientError;
use crate::mailbox::lock;

/// The result of a wait, and when it was known.
pub(crate) type Outcome = (Result<RequestAnswer, ClientError>, Instant);

/// A call that waits for an answer.
#[derive(Debug)]
pub(crate) enum Waiter {
    One(oneshot::Sender<Outcome>),
    /// One message of many that were published together.
    Many(Arc<Batch>, u32),
}

impl Waiter {
    pub(crate) fn settle(self, result: Result<RequestAnswer, ClientError>, now: Instant) {
        match self {
            // The receiver is gone if the caller gave up.
            Self::One(sender) => drop(sender.send((result, now))),
            Self::Many(batch, index) => batch.settle(index, result, now),
        }
    }
}

/// The outcomes of messages that were published together; one wake-up for all of them.
#[derive(Debug)]
pub(crate) struct Batch {
    outcomes: Mutex<Vec<Option<Outcome>>>,
    missing: AtomicUsize,
    complete: Notify,
}

impl Batch {
    pub(crate) fn new(size: usize) -> Arc<Self> {
        let outcomes = Mutex::new(vec![None; size]);
        Arc::new(Self { outcomes, missing: AtomicUsize::new(size), complete: Notify::new() })
    }

    fn settle(&self, index: u32, result: Result<RequestAnswer, ClientError>, now: Instant) {
        let before = lock(&self.outcomes)[index as usize].replace((result, now));
        debug_assert!(before.is_none(), "a message has one outcome");
        if self.missing.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.complete.notify_one();
        }
    }

    /// Waits until every outcome is known.
    pub(crate) async fn completed(&self) {
        while self.missing.load(Ordering::Acquire) > 0 {
            self.complete.notified().await;
        }
    }

    /// The outcomes; `None` where none is known.
    pub(crate) fn take(&self) -> Vec<Option<Outcome>> {
        std::mem::take(&mut *lock(&self.outcomes))
    }
}
