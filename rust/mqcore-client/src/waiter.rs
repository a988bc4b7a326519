//! Calls that wait for answers: one by one, or many that were published together.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::confirmations::{PendingConfirmation, WakeList};
use crate::conversation::RequestAnswer;
use crate::error::ClientError;
use crate::mailbox::{Mailbox, QueuedMessage, lock};

/// The result of a wait, and when it was known.
pub(crate) type Outcome = (Result<RequestAnswer, ClientError>, Instant);

/// A call that waits for an answer.
#[derive(Debug)]
pub(crate) enum Waiter {
    One(oneshot::Sender<Outcome>),
    /// A streamed pull, whose messages go to this mailbox. The answer closes the mailbox.
    Stream(oneshot::Sender<Outcome>, Arc<Mailbox>),
    /// One message of many that were published together.
    Many(Arc<PublishBatch>, u32),
    /// A message whose outcome the program collects. Boxed because it is much larger than the other variants.
    Collected(Box<PendingConfirmation>),
}

impl Waiter {
    /// Ends the wait. Programs that collect outcomes are added to `list`.
    pub(crate) fn settle(
        self,
        mut result: Result<RequestAnswer, ClientError>,
        now: Instant,
        list: &mut WakeList,
    ) {
        match self {
            // The receiver is gone if the caller gave up.
            Self::One(sender) => drop(sender.send((result, now))),
            Self::Stream(sender, mailbox) => {
                if let Ok(RequestAnswer::Pulled(answer)) = &mut result {
                    // The message of a cache queue is the answer itself.
                    for message in answer.messages.drain(..) {
                        mailbox.put(QueuedMessage { message, epoch: 0, since: now });
                    }
                }
                drop(sender.send((result, now)));
                mailbox.close();
            }
            Self::Many(batch, index) => batch.settle(index, result, now),
            Self::Collected(pending) => pending.settle(result, now, list),
        }
    }
}

/// A call that waits for room or a connection, counted while it exists.
#[derive(Debug)]
pub(crate) struct CountedWait<'a>(&'a AtomicUsize);

impl<'a> CountedWait<'a> {
    pub(crate) fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for CountedWait<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The outcomes of messages that were published together; one wake-up for all of them.
#[derive(Debug)]
pub(crate) struct PublishBatch {
    /// Number of outcomes of each message: its own, then those of its copies.
    per_message: usize,
    outcomes: Mutex<Vec<Option<Outcome>>>,
    missing: AtomicUsize,
    complete: Notify,
}

impl PublishBatch {
    pub(crate) fn new(messages: usize, per_message: usize) -> Arc<Self> {
        let size = messages * per_message;
        let outcomes = Mutex::new(vec![None; size]);
        Arc::new(Self { per_message, outcomes, missing: AtomicUsize::new(size), complete: Notify::new() })
    }

    /// Takes an outcome. If a message failed, nothing waits for its copies any longer.
    pub(crate) fn settle(&self, index: u32, result: Result<RequestAnswer, ClientError>, now: Instant) {
        let index = index as usize;
        let is_last = result.is_err() && index.is_multiple_of(self.per_message);
        let end = if is_last { index + self.per_message } else { index + 1 };
        let mut settled = 0;
        {
            let mut outcomes = lock(&self.outcomes);
            // The outcomes are taken if the caller has stopped waiting.
            let Some(outcomes) = outcomes.get_mut(index..end) else { return };
            for outcome in outcomes.iter_mut().filter(|outcome| outcome.is_none()) {
                *outcome = Some((result.clone(), now));
                settled += 1;
            }
        }
        if settled > 0 && self.missing.fetch_sub(settled, Ordering::AcqRel) == settled {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::AckedBy;

    fn confirmed() -> Result<RequestAnswer, ClientError> {
        Ok(RequestAnswer::Confirmed(AckedBy::Server))
    }

    #[tokio::test]
    async fn a_failed_message_ends_the_waits_for_its_copies_and_for_no_others() {
        let batch = PublishBatch::new(2, 3);
        let settle = |index, result| batch.settle(index, result, Instant::now());
        settle(1, confirmed());
        settle(0, Err(ClientError::Closed));
        // The answer of a copy that nothing waits for any longer.
        settle(2, confirmed());
        settle(4, Err(ClientError::Closed));
        settle(5, confirmed());
        assert_eq!(batch.missing.load(Ordering::Relaxed), 1);
        settle(3, confirmed());
        batch.completed().await;
        let outcomes: Vec<_> = batch
            .take()
            .into_iter()
            .map(|outcome| outcome.is_some_and(|(result, _)| result.is_ok()))
            .collect();
        assert_eq!(outcomes, [false, true, false, true, false, true]);
        settle(5, confirmed());
    }
}
