//! Consuming: deliveries in batches, and settling them.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::address::{Protocol, QueueAddress};
use crate::client::Client;
use crate::consumption::Consumption;
pub use crate::consumption::{ConsumeTerms, UnusedQueue};
pub use crate::conversation::REASON_CONSUMER_CLOSED;
use crate::counters::ClientCounters;
use crate::dialogue::{Dialogue, Part};
use crate::error::ClientError;
use crate::mailbox::{Bound, Mailbox, QueuedMessage, lock};
use crate::membership::Membership;
use crate::received::Received;
use crate::request::Intent;
use crate::shared::{Core, SharedClient};

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
    /// The broker delivers messages of this queue only. In protocols other than TMQP, all consumers of a queue in one
    /// client must have the same terms. Several consumers of one queue in one client share its messages in turn.
    ///
    /// Original TMQP servers know joined channels only. They deliver messages of the channel's other queues too, which
    /// the client rejects. These count as unclaimed, and the log warns once for each such queue.
    ///
    /// `prefetch` (at least 1) is the maximum number of unsettled messages of this consumer, for queues with
    /// acknowledgements, and in other protocols for consumers with [`ConsumeTerms::manual_ack`]. In TMQP, while messages wait for the program, the client extends their acknowledge timeouts, as long as
    /// the program takes or settles a message within the timeout. If the program hangs, they go back to the queue.
    ///
    /// A topic of TMQP is consumed likewise: each consumer gets each message that is published while it is subscribed. Its
    /// messages need no acknowledgement, so `prefetch` has no effect.
    ///
    /// Servers that do not know prefetch send more. Further messages wait in the client then, which does not slow the
    /// broker down; only the config's `read_buffer_bytes`, over all consumers, does.
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
        let part = self.part(queue, prefetch.max(1), terms)?;
        let mailbox = Mailbox::new(shared.gauge.clone(), Bound::Unsettled(prefetch.max(1)));
        // Before joining, because stored messages may arrive before the answer.
        shared.with_core(|core| core.add_consumer(queue, mailbox.clone()));
        let mut consumer = Consumer { client: self.clone(), queue: queue.clone(), mailbox, membership: None };
        consumer.membership = Some(shared.take_part(part, None).await?);
        Ok(consumer)
    }

    /// The subscription of a consumer.
    fn part(&self, queue: &QueueAddress, prefetch: usize, terms: ConsumeTerms) -> Result<Part, ClientError> {
        let prefetch = u32::try_from(prefetch).unwrap_or(u32::MAX);
        if self.protocol() != Protocol::Tmqp {
            return Ok(Part::Consumption(Consumption { queue: queue.clone(), terms, prefetch }));
        }
        if queue.is_topic() {
            return Ok(Part::Intent(Intent::Topic(queue.channel().clone())));
        }
        let known = ConsumeTerms { manual_ack: terms.manual_ack, ..ConsumeTerms::default() };
        if terms != known {
            return Err(ClientError::NotSupported {
                what: "events to bind a queue to, deletion of unused queues, or filters".into(),
                protocol: Protocol::Tmqp.name(),
                instead: "bind queues to topics by routers, or connect to mqks:// or mm2://",
            });
        }
        Ok(Part::Intent(Intent::Consume(queue.clone(), prefetch)))
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
/// Dropping it ends the deliveries of the queue and returns the messages that the program did not take. The broker
/// requeues them at once at their old positions, and the attempt does not count. If this client has other consumers of
/// the queue, they get the messages. Servers that do not know this receive a nack with the reason
/// [`REASON_CONSUMER_CLOSED`].
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
        self.flush_before_wait();
        let messages = self.mailbox.next(max).await;
        self.deliver(messages)
    }

    /// Waits until [`Consumer::take`] returns something, or the stream ends. Cancel-safe.
    pub async fn ready(&self) {
        self.flush_before_wait();
        self.mailbox.ready().await;
    }

    /// Writes acknowledgements, for which the next message may wait.
    fn flush_before_wait(&self) {
        if !self.mailbox.has_something() {
            self.client.shared.flush();
        }
    }

    /// Waits for a message, and then at most `wait` until `max` can be taken, or as many as the prefetch allows. It takes
    /// nothing, so it is cancel-safe. If other tasks take from this consumer, there may be fewer, or none.
    pub async fn batch_ready(&self, max: usize, wait: Duration) {
        self.flush_before_wait();
        self.mailbox.filled(max, wait).await;
    }

    /// Takes up to `max` available messages without waiting.
    pub fn take(&self, max: usize) -> Vec<Delivered> {
        self.deliver(self.mailbox.take(max))
    }

    /// Takes available messages without waiting: up to `max` without acknowledgement, or one with. The others still
    /// wait here, and go back if the consumer is dropped.
    pub fn take_next(&self, max: usize) -> Vec<Delivered> {
        self.deliver(self.mailbox.take_next(max))
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

    fn deliver(&self, messages: Vec<QueuedMessage>) -> Vec<Delivered> {
        let shared = &self.client.shared;
        let timeout = self.mailbox.timeout();
        let now = timeout.map(|_| Instant::now());
        let numbers_attempts = self.mailbox.numbers_attempts();
        let mut delivered = Vec::with_capacity(messages.len());
        for mut queued in messages {
            if numbers_attempts && queued.message.attempt().is_none() {
                queued.message = queued.message.with_attempt(1);
            }
            let asks = queued.message.wants_acknowledge();
            let mut deadline = None;
            if let (true, Some(timeout), Some(now)) = (asks, timeout, now) {
                // The program has the whole timeout, whenever the message arrived.
                if queued.since + timeout / 10 < now && shared.extend(&queued) {
                    queued.since = now;
                }
                deadline = Some(Deadline { timeout, at: Mutex::new(queued.since + timeout) });
            }
            let held = asks.then(|| DeliveryHold::Mailbox(self.mailbox.clone()));
            delivered.push(Delivered::with_deadline(shared.clone(), queued, held, deadline));
        }
        delivered
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        let shared = self.client.shared.clone();
        self.mailbox.close();
        // The consumer leaves its queue in the same step, so that no message arrives in between without an owner.
        let other =
            shared.with_core(|core| core.end_consumer(&self.queue, &self.mailbox, self.membership.as_mut()));
        if let Some(other) = other {
            other.wake();
        }
    }
}

/// A resource that a delivery holds until it is settled or dropped.
#[derive(Debug)]
pub(crate) enum DeliveryHold {
    /// Its place in the prefetch.
    Mailbox(Arc<Mailbox>),
    /// The membership in the channel of its pull.
    Channel(#[allow(dead_code, reason = "kept for its drop")] Arc<Membership>),
}

/// The time to acknowledge a delivery.
struct Deadline {
    timeout: Duration,
    at: Mutex<Instant>,
}

/// A delivered message, which can be settled once.
pub struct Delivered {
    message: Received,
    shared: Arc<SharedClient>,
    epoch: u32,
    settled: AtomicBool,
    held: Option<DeliveryHold>,
    /// `None`: unknown, or the message needs no acknowledgement.
    deadline: Option<Deadline>,
}

impl Delivered {
    pub(crate) fn new(shared: Arc<SharedClient>, queued: QueuedMessage, held: Option<DeliveryHold>) -> Self {
        Self::with_deadline(shared, queued, held, None)
    }

    fn with_deadline(
        shared: Arc<SharedClient>,
        queued: QueuedMessage,
        held: Option<DeliveryHold>,
        deadline: Option<Deadline>,
    ) -> Self {
        let (message, epoch) = (queued.message, queued.epoch);
        Self { message, shared, epoch, settled: AtomicBool::new(false), held, deadline }
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
        self.check_nack(reason, None)?;
        Ok(self.settle(Some(reason)))
    }

    /// Rejects it like [`Delivered::nack`]. If the broker requeues it, it is not redelivered before `delay` has passed,
    /// whatever the queue's retry delay.
    ///
    /// # Errors
    ///
    /// As [`Delivered::nack`], and [`ClientError::NotSupported`] if the protocol has no delays.
    pub fn nack_after(&self, reason: &str, delay: Duration) -> Result<Settlement, ClientError> {
        self.check_nack(reason, Some(delay))?;
        Ok(self.settle_by(|conversation| conversation.postpone(&self.message, reason, delay)))
    }

    fn check_nack(&self, reason: &str, delay: Option<Duration>) -> Result<(), ClientError> {
        if self.message.wants_acknowledge() {
            self.shared.with_core(|core| match delay {
                None => core.conversation.check_refusal(),
                Some(_) => core.conversation.check_delay(),
            })?;
        }
        crate::request::push(&mut Vec::new(), mqcore_wire::tmqp::header::key::NACK_REASON, reason)
    }

    /// Asks the broker for more time: the acknowledge timeout starts again. For messages whose processing takes longer
    /// than the timeout. [`Settlement::NotAsked`] if there is no such timeout, or the server does not know this request.
    pub fn working(&self) -> Settlement {
        if self.is_settled() {
            return Settlement::Already;
        }
        if !self.message.wants_acknowledge() {
            return Settlement::NotAsked;
        }
        let is_late = self.is_late();
        let extended = self.shared.with_core(|core| {
            if core.epoch != self.epoch || !core.conversation.is_open() {
                return Settlement::Stale;
            }
            if core.conversation.extend(&self.message) { Settlement::Sent } else { Settlement::NotAsked }
        });
        match &self.deadline {
            _ if extended != Settlement::Sent => return extended,
            _ if is_late => return Settlement::Late,
            Some(deadline) => *lock(&deadline.at) = Instant::now() + deadline.timeout,
            None => {}
        }
        if let Some(DeliveryHold::Mailbox(mailbox)) = &self.held {
            mailbox.works();
        }
        extended
    }

    /// The message again, if the program did not get it. Nothing settles it here any more.
    pub(crate) fn take_back(&self) -> QueuedMessage {
        self.settled.store(true, Ordering::Relaxed);
        QueuedMessage { message: self.message.clone(), epoch: self.epoch, since: Instant::now() }
    }

    /// Whether the acknowledge timeout has passed, so that the broker has requeued it.
    fn is_late(&self) -> bool {
        self.deadline.as_ref().is_some_and(|deadline| *lock(&deadline.at) < Instant::now())
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
        if let Some(DeliveryHold::Mailbox(mailbox)) = &self.held {
            mailbox.settled(1);
        }
        if !self.message.wants_acknowledge() {
            return Settlement::NotAsked;
        }
        let mut core = lock(&self.shared.core);
        self.shared.with_deferred_wake(&mut core, |core| self.write_settlement(core, write)).0
    }

    fn write_settlement(
        &self,
        core: &mut Core,
        write: impl FnOnce(&mut Dialogue) -> Result<(), ClientError>,
    ) -> Settlement {
        if core.epoch != self.epoch || !core.conversation.is_open() {
            ClientCounters::add(&self.shared.counters.stale_settlements, 1);
            return Settlement::Stale;
        }
        let written = write(&mut core.conversation);
        debug_assert_eq!(written, Ok(()), "the reason is valid and the rest comes from a frame");
        if self.is_late() { Settlement::Late } else { Settlement::Sent }
    }

    /// Acknowledges those of `batch` that the program has not settled, which the client sends together. Returns the
    /// number of acknowledgements that it sends in time: [`Settlement::Sent`].
    ///
    /// `batch` are messages of one consumer or of one pull.
    pub fn ack_all(batch: &[Self]) -> usize {
        Self::settle_all(batch, |dialogue, message| dialogue.acknowledge(message, None))
    }

    /// Rejects those of `batch` that the program has not settled, like [`Delivered::nack`], or with a delay like
    /// [`Delivered::nack_after`]. Returns the same as [`Delivered::ack_all`].
    ///
    /// # Errors
    ///
    /// As [`Delivered::nack_after`]. No message is settled then.
    pub fn nack_all(batch: &[Self], reason: &str, delay: Option<Duration>) -> Result<usize, ClientError> {
        let asking = batch.iter().find(|delivered| delivered.message.wants_acknowledge());
        if let Some(delivered) = asking.or(batch.first()) {
            delivered.check_nack(reason, delay)?;
        }
        Ok(Self::settle_all(batch, |dialogue, message| match delay {
            None => dialogue.acknowledge(message, Some(reason)),
            Some(delay) => dialogue.postpone(message, reason, delay),
        }))
    }

    fn settle_all(
        batch: &[Self],
        write: impl Fn(&mut Dialogue, &Received) -> Result<(), ClientError>,
    ) -> usize {
        let Some(first) = batch.first() else { return 0 };
        let unsettled: Vec<&Self> =
            batch.iter().filter(|delivered| !delivered.settled.swap(true, Ordering::Relaxed)).collect();
        let mut held = unsettled.iter().filter_map(|delivered| match &delivered.held {
            Some(DeliveryHold::Mailbox(mailbox)) => Some(mailbox),
            Some(DeliveryHold::Channel(_)) | None => None,
        });
        if let Some(mailbox) = held.next() {
            mailbox.settled(1 + held.count());
        }
        let mut core = lock(&first.shared.core);
        let write_all = |core: &mut Core| {
            let asking = unsettled.into_iter().filter(|delivered| delivered.message.wants_acknowledge());
            asking
                .filter(|delivered| {
                    let settlement =
                        delivered.write_settlement(core, |dialogue| write(dialogue, &delivered.message));
                    settlement == Settlement::Sent
                })
                .count()
        };
        first.shared.with_deferred_wake(&mut core, write_all).0
    }
}

impl Drop for Delivered {
    fn drop(&mut self) {
        if *self.settled.get_mut() {
            return;
        }
        if let Some(DeliveryHold::Mailbox(mailbox)) = &self.held {
            mailbox.settled(1);
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
    /// The client sends it, but the acknowledge timeout has passed. The broker has requeued the message.
    Late,
}
