//! Streamed pulls: the program gets each message as soon as it arrives, while the broker still sends others.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::address::QueueAddress;
use crate::client::Client;
use crate::consume::{Delivered, DeliveryHold};
use crate::conversation::{MessageId, PullEnd, RequestAnswer};
use crate::error::ClientError;
use crate::mailbox::{Bound, Mailbox, QueuedMessage, lock};
use crate::membership::Membership;
use crate::pull::{PullOptions, accepted, counts};
use crate::request::{PullRequest, Request};
use crate::shared::SharedClient;
use crate::waiter::{Outcome, Waiter};

impl Client {
    /// Like [`Client::pull`], but each message can be taken as soon as it arrives. `options.timeout` is the maximum
    /// wait for the next message. Messages that the program has not taken count toward the config's
    /// `read_buffer_bytes`.
    ///
    /// # Errors
    ///
    /// [`ClientError::ConnectionLost`] and [`ClientError::RequestTimeout`] if the client cannot join the channel or
    /// send the request. [`PullStream::end`] returns later errors.
    pub async fn pull_stream(
        &self,
        queue: &QueueAddress,
        options: &PullOptions,
    ) -> Result<PullStream, ClientError> {
        let shared = &self.shared;
        let deadline = shared.deadline(options.timeout);
        let membership = Arc::new(self.join_to_pull(queue, options).await?);
        let PullOptions { count, lifo, clear, info, timeout } = *options;
        let mailbox = Mailbox::new(shared.gauge.clone(), Bound::None);
        let late = shared.with_core(|core| {
            let late = core.conversation.take_late(queue, count as usize);
            let number = late.len() as u32;
            for message in late {
                mailbox.put(core.queued(message, Instant::now()));
            }
            number
        });
        let mut stream = PullStream {
            shared: shared.clone(),
            queue: queue.clone(),
            mailbox,
            membership,
            timeout: timeout.unwrap_or(shared.config.request_timeout),
            id: None,
            progress: Mutex::new(PullProgress { outcome: None, taken: 0, remaining: None, timed_out: false }),
        };
        if late == count {
            stream.mailbox.close();
            return Ok(stream);
        }
        let request =
            Request::pull(queue, &PullRequest { count: count - late, lifo, clear, info, attempts: true });
        let (id, receiver) = shared
            .say(deadline, |conversation| {
                let (sender, receiver) = oneshot::channel();
                let waiter = Waiter::Stream(sender, stream.mailbox.clone());
                conversation.pull_stream(&request, waiter).map(|id| (id, receiver))
            })
            .await??;
        stream.id = Some(id);
        lock(&stream.progress).outcome = Some(receiver);
        Ok(stream)
    }
}

/// The messages of a pull, as they arrive.
///
/// Dropping it ends the pull. The broker requeues messages with acknowledgement that the program did not take. It has
/// removed the others, so the next pull of their queue in this client returns them.
#[derive(Debug)]
pub struct PullStream {
    shared: Arc<SharedClient>,
    queue: QueueAddress,
    mailbox: Arc<Mailbox>,
    membership: Arc<Membership>,
    timeout: Duration,
    /// `None`: messages that arrived late for earlier pulls are enough, and nothing was requested.
    id: Option<MessageId>,
    progress: Mutex<PullProgress>,
}

#[derive(Debug)]
struct PullProgress {
    /// `None`: nothing was requested, or the outcome was taken.
    outcome: Option<oneshot::Receiver<Outcome>>,
    taken: u64,
    /// Remaining messages of high and of normal priority, as the last message gave them.
    remaining: Option<(u64, u64)>,
    timed_out: bool,
}

impl PullStream {
    /// Waits until a message is available, or the pull has ended. If nothing arrives within the timeout, the pull ends.
    /// Cancel-safe.
    pub async fn ready(&self) {
        if tokio::time::timeout(self.timeout, self.mailbox.ready()).await.is_err() {
            lock(&self.progress).timed_out = true;
            self.stop();
        }
    }

    /// Takes up to `max` available messages without waiting.
    pub fn take(&self, max: usize) -> Vec<Delivered> {
        let mut messages = self.mailbox.take(max);
        let epoch = lock(&self.shared.core).epoch;
        // The broker redelivers messages of a lost connection that need an acknowledgement.
        messages.retain(|queued| queued.epoch == epoch || !queued.message.wants_acknowledge());
        let mut progress = lock(&self.progress);
        progress.taken += messages.len() as u64;
        if let Some(last) = messages.last() {
            progress.remaining = counts(&last.message);
        }
        drop(progress);
        let of_channel = |queued: QueuedMessage| {
            let held =
                queued.message.wants_acknowledge().then(|| DeliveryHold::Channel(self.membership.clone()));
            Delivered::new(self.shared.clone(), queued, held)
        };
        messages.into_iter().map(of_channel).collect()
    }

    /// Whether the pull has ended; available messages can still be taken.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.mailbox.is_closed()
    }

    /// Ends the pull and wakes its waiting tasks; available messages can still be taken.
    pub fn stop(&self) {
        self.shared.with_core(|core| {
            // In the same step, so that messages that arrive later are kept for the next pull.
            if let Some(id) = &self.id {
                core.conversation.forget(id);
            }
            self.mailbox.close();
        });
        self.shared.room.notify_waiters();
    }

    /// Remaining messages of high and of normal priority, if requested and known, and whether the broker ended the
    /// pull. Call it once, after the last message.
    ///
    /// # Errors
    ///
    /// As [`Client::pull`].
    pub fn end(&self) -> Result<(Option<(u64, u64)>, bool), ClientError> {
        let mut progress = lock(&self.progress);
        let outcome = progress.outcome.as_mut().map(oneshot::Receiver::try_recv);
        let complete = match outcome {
            // Messages of earlier pulls were enough.
            None => true,
            Some(Ok((Ok(RequestAnswer::Pulled(answer)), _))) => match &answer.end {
                PullEnd::NoContent(reason) => {
                    accepted(&self.queue, reason)?;
                    true
                }
                PullEnd::Cached => true,
                PullEnd::CutShort => false,
            },
            Some(Ok((Err(error), _))) => return Err(error),
            Some(Err(_)) if progress.timed_out && progress.taken == 0 => {
                return Err(ClientError::RequestTimeout {
                    operation: "pull from",
                    target: self.queue.to_string().into(),
                    waited: self.timeout,
                });
            }
            Some(Ok(_) | Err(_)) => false,
        };
        let remaining = if complete && progress.taken == 0 { Some((0, 0)) } else { progress.remaining };
        Ok((remaining, complete))
    }
}

impl Drop for PullStream {
    fn drop(&mut self) {
        self.stop();
        self.shared.with_core(|core| core.give_back_pulled(self.mailbox.drain()));
    }
}
