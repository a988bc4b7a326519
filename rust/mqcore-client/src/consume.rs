//! Consuming: deliveries in batches, and settling them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::address::{Protocol, QueueAddress};
use crate::client::Client;
use crate::consumption::Consumption;
pub use crate::consumption::{ConsumeTerms, UnusedQueue};
use crate::counters::Counters;
use crate::dialogue::{Dialogue, Part};
use crate::error::ClientError;
use crate::mailbox::{Bound, Mailbox, QueuedMessage};
use crate::membership::Membership;
use crate::received::Received;
use crate::request::Intent;
use crate::shared::Shared;

/// Nack reason with which a closing consumer requeues the messages that the program did not take.
pub const REASON_CONSUMER_CLOSED: &str = "consumer-closed";

/// Default prefetch in messages.
pub const PREFETCH_DEFAULT: usize = 100;

impl Client {
    /// Consumes `queue` on the default terms; see [`Client::consume_on`].
    ///
    /// # Errors
    ///
    /// As [`Client::consume_on`].
    pub async fn consume(&self, queue: &QueueAddress, prefetch: usize) -> Result<Consumer, ClientError> {
        self.consume_on(queue, prefetch, ConsumeTerms::default()).await
    }

    /// Consumes `queue`, across reconnects, until the returned consumer is dropped.
    ///
    /// In TMQP clients join channels: the client joins a channel with its first consumer and leaves it with the last
    /// one. Messages of its other queues arrive too; they count as unclaimed, and the log warns once for each such
    /// queue. In other protocols clients consume queues, and all consumers of a queue in one client must have the same
    /// terms. Several consumers of one queue in one client share its messages in turn.
    ///
    /// `prefetch` (at least 1) is the maximum number of unsettled messages in the program, for queues with
    /// acknowledgements. Further messages wait in the client. There is no credit, so this does not slow the broker
    /// down; only the config's `read_buffer_bytes`, over all consumers, does.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] (no such channel, it is full, ...), [`ClientError::ConnectionLost`],
    /// [`ClientError::RequestTimeout`], [`ClientError::NotSupported`] for terms that the protocol lacks.
    pub async fn consume_on(
        &self,
        queue: &QueueAddress,
        prefetch: usize,
        terms: ConsumeTerms,
    ) -> Result<Consumer, ClientError> {
        let shared = &self.shared;
        let part = self.part(queue, terms)?;
        let mailbox = Mailbox::new(shared.gauge.clone(), Bound::Unsettled(prefetch.max(1)));
        // Before joining, because stored messages may arrive before the answer.
        shared.with_core(|core| core.add_mailbox(queue.channel().as_bytes(), queue.id(), mailbox.clone()));
        let mut consumer = Consumer { client: self.clone(), queue: queue.clone(), mailbox, membership: None };
        consumer.membership = Some(shared.take_part(part, None).await?);
        Ok(consumer)
    }

    /// The subscription of a consumer.
    fn part(&self, queue: &QueueAddress, terms: ConsumeTerms) -> Result<Part, ClientError> {
        if self.protocol() != Protocol::Tmqp {
            return Ok(Part::Consumption(Consumption { queue: queue.clone(), terms }));
        }
        let known = ConsumeTerms { manual_ack: terms.manual_ack, ..ConsumeTerms::default() };
        if terms != known {
            return Err(ClientError::NotSupported {
                what: "events to bind a queue to, deletion of unused queues, or filters".into(),
                protocol: Protocol::Tmqp.name(),
                instead: "bind queues to topics by routers, or connect to mqks:// or mm2://",
            });
        }
        Ok(Part::Intent(Intent::Join(queue.channel().clone())))
    }

    /// Joins a channel without consuming, for programs that pull often. Without it, each pull joins the channel and
    /// leaves it when its messages are settled.
    ///
    /// # Errors
    ///
    /// As [`Client::consume`].
    pub async fn join(&self, channel: &str) -> Result<Membership, ClientError> {
        let channel = crate::address::channel_name(channel)?;
        self.shared.take_part(Part::Intent(Intent::Join(channel)), None).await
    }
}

/// A consumer of one queue, for any number of tasks.
///
/// Dropping it leaves the channel, unless other consumers in this client need it, and requeues the messages that the
/// program did not take, with the nack reason [`REASON_CONSUMER_CLOSED`].
#[derive(Debug)]
pub struct Consumer {
    client: Client,
    queue: QueueAddress,
    mailbox: Arc<Mailbox>,
    membership: Option<Membership>,
}

impl Consumer {
    /// Waits for messages, and takes up to `max` (at least 1). Empty: the client is closed.
    pub async fn next_batch(&self, max: usize) -> Vec<Delivered> {
        let letters = self.mailbox.next(max).await;
        self.hand_out(letters)
    }

    /// Waits until [`Consumer::take`] returns something, or the stream ends. Cancel-safe.
    pub async fn ready(&self) {
        self.mailbox.ready().await;
    }

    /// Takes up to `max` available messages without waiting.
    pub fn take(&self, max: usize) -> Vec<Delivered> {
        self.hand_out(self.mailbox.take(max))
    }

    /// Whether the stream has ended; available elements can still be taken.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.mailbox.is_closed()
    }

    /// Ends the stream and wakes its waiting tasks; available messages can still be taken.
    pub fn stop(&self) {
        self.mailbox.close();
    }

    /// Number of available messages.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.mailbox.waiting()
    }

    /// The consumed queue.
    #[must_use]
    pub fn queue(&self) -> &QueueAddress {
        &self.queue
    }

    fn hand_out(&self, letters: Vec<QueuedMessage>) -> Vec<Delivered> {
        let of_mailbox = |letter: QueuedMessage| {
            let held = letter.message.wants_acknowledge().then(|| Held::Mailbox(self.mailbox.clone()));
            Delivered::new(self.client.shared.clone(), letter, held)
        };
        letters.into_iter().map(of_mailbox).collect()
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        let shared = self.client.shared.clone();
        // The consumer leaves the channel in the same step, so that no message arrives in between without an owner. It
        // leaves before the nacks, because the broker would otherwise redeliver those messages here.
        shared.with_core(|core| {
            core.remove_taker(self.queue.channel().as_bytes(), self.queue.id(), &self.mailbox);
            if let Some(membership) = &mut self.membership {
                membership.end(core);
            }
        });
        self.mailbox.close();
        drop(self.take(usize::MAX).into_iter().map(Delivered::requeue_unsettled).collect::<Vec<_>>());
    }
}

/// A resource that a delivery holds until it is settled or dropped.
#[derive(Debug)]
pub(crate) enum Held {
    /// Its place in the prefetch.
    Mailbox(Arc<Mailbox>),
    /// The membership in the channel of its pull.
    Channel(#[allow(dead_code, reason = "kept for its drop")] Arc<Membership>),
}

/// A delivered message, which can be settled once.
pub struct Delivered {
    message: Received,
    shared: Arc<Shared>,
    epoch: u32,
    settled: AtomicBool,
    held: Option<Held>,
}

impl Delivered {
    pub(crate) fn new(shared: Arc<Shared>, letter: QueuedMessage, held: Option<Held>) -> Self {
        Self { message: letter.message, shared, epoch: letter.epoch, settled: AtomicBool::new(false), held }
    }

    /// The message.
    #[must_use]
    pub fn message(&self) -> &Received {
        &self.message
    }

    /// Acknowledges it. Returns the outcome; see [`Settlement`].
    pub fn ack(&self) -> Settlement {
        self.settle(None)
    }

    /// Sends a nack; the queue's delivery handler decides whether to requeue the message. An empty reason becomes
    /// `none`.
    ///
    /// # Errors
    ///
    /// [`ClientError::InvalidArgument`] for a reason that is not a valid header value, [`ClientError::NotSupported`] if
    /// the protocol has no nack. The message stays unsettled then.
    pub fn nack(&self, reason: &str) -> Result<Settlement, ClientError> {
        if self.message.wants_acknowledge() {
            self.shared.with_core(|core| core.conversation.check_refusal())?;
        }
        crate::request::push(&mut Vec::new(), mqcore_wire::tmqp::header::key::NACK_REASON, reason)?;
        Ok(self.settle(Some(reason)))
    }

    /// Rejects it like [`Delivered::nack`]. If the broker requeues it, it is not redelivered before `delay` has passed,
    /// whatever the queue's retry delay.
    ///
    /// # Errors
    ///
    /// As [`Delivered::nack`], and [`ClientError::NotSupported`] if the protocol has no delays.
    pub fn nack_after(&self, reason: &str, delay: Duration) -> Result<Settlement, ClientError> {
        if self.message.wants_acknowledge() {
            self.shared.with_core(|core| core.conversation.check_delay())?;
        }
        crate::request::push(&mut Vec::new(), mqcore_wire::tmqp::header::key::NACK_REASON, reason)?;
        Ok(self.settle_by(|conversation| conversation.postpone(&self.message, reason, delay)))
    }

    /// Whether the program has settled it.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Relaxed)
    }

    fn settle(&self, refusal: Option<&str>) -> Settlement {
        self.settle_by(|conversation| conversation.acknowledge(&self.message, refusal))
    }

    fn settle_by(&self, write: impl FnOnce(&mut Dialogue) -> Result<(), ClientError>) -> Settlement {
        if self.settled.swap(true, Ordering::Relaxed) {
            return Settlement::Already;
        }
        if let Some(Held::Mailbox(mailbox)) = &self.held {
            mailbox.settled();
        }
        if !self.message.wants_acknowledge() {
            return Settlement::NotAsked;
        }
        self.shared.with_core(|core| {
            if core.epoch != self.epoch || !core.conversation.is_open() {
                Counters::add(&self.shared.counters.stale_settlements, 1);
                return Settlement::Stale;
            }
            let written = write(&mut core.conversation);
            debug_assert_eq!(written, Ok(()), "the reason is valid and the rest comes from a frame");
            Settlement::Sent
        })
    }

    /// Requeues it with a nack; without nacks the broker requeues it when the connection ends.
    fn requeue_unsettled(self) {
        let refused = self.nack(REASON_CONSUMER_CLOSED);
        tracing::trace!(?refused, "requeued a message that the program did not take");
    }
}

impl Drop for Delivered {
    fn drop(&mut self) {
        if *self.settled.get_mut() {
            return;
        }
        if let Some(Held::Mailbox(mailbox)) = &self.held {
            mailbox.settled();
        }
        if self.message.wants_acknowledge() {
            self.shared.with_core(|core| {
                if core.epoch == self.epoch && core.conversation.is_open() {
                    core.conversation.dropped(&self.message);
                }
            });
        }
    }
}

impl fmt::Debug for Delivered {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Delivered")
            .field("message", &self.message)
            .field("settled", &self.is_settled())
            .finish_non_exhaustive()
    }
}

/// The outcome of an acknowledgement. None is an error, so a late acknowledgement does not stop the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// The client sends it.
    Sent,
    /// The queue requests none.
    NotAsked,
    /// The connection of the message was lost, so the broker redelivers the message. Counted in
    /// [`crate::client::ClientStats::stale_settlements`].
    Stale,
    /// The message was settled before.
    Already,
}
