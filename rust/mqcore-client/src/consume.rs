//! Consuming: deliveries in batches, and settling them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::address::{Protocol, QueueAddress};
use crate::client::Client;
use crate::consumption::Consumption;
pub use crate::consumption::{ConsumeTerms, UnusedQueue};
use crate::counters::Counters;
use crate::dialogue::Part;
use crate::error::ClientError;
use crate::mailbox::{Bound, Letter, Mailbox};
use crate::membership::Membership;
use crate::received::Received;
use crate::request::Intent;
use crate::shared::Shared;

/// The reason with which a consumer that ends hands back what nobody took from it.
pub const REASON_CONSUMER_CLOSED: &str = "consumer-closed";

/// Messages that the program may hold unsettled by default.
pub const PREFETCH_DEFAULT: usize = 100;

impl Client {
    /// Becomes a consumer of `queue`, on the default terms; see [`Client::consume_on`].
    ///
    /// # Errors
    ///
    /// As [`Client::consume_on`].
    pub async fn consume(&self, queue: &QueueAddress, prefetch: usize) -> Result<Consumer, ClientError> {
        self.consume_on(queue, prefetch, ConsumeTerms::default()).await
    }

    /// Becomes a consumer of `queue`, until the answer is dropped, over all reconnects.
    ///
    /// In TMQP one joins channels and not queues: the channel is joined with its first consumer in this client and left
    /// with the last one. Messages of its other queues arrive too; they are counted as unclaimed, and a warning names
    /// each such queue once. In other protocols one consumes queues, and a client consumes one queue on the same terms
    /// throughout. Several consumers of one queue in one client share its messages in turn.
    ///
    /// `prefetch` (at least 1): messages that the program may hold unsettled at once, for queues that ask for
    /// acknowledgements; further ones wait in the client. There is no credit, so the broker is not held back by that:
    /// only by the config's `read_buffer_bytes`, over all consumers, above which the socket is not read.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] (no such channel, it is full, ...), [`ClientError::ConnectionLost`],
    /// [`ClientError::RequestTimeout`], [`ClientError::NotSupported`] for terms that the protocol does not know.
    pub async fn consume_on(
        &self,
        queue: &QueueAddress,
        prefetch: usize,
        terms: ConsumeTerms,
    ) -> Result<Consumer, ClientError> {
        let shared = &self.shared;
        let part = self.part(queue, terms)?;
        let mailbox = Mailbox::new(shared.gauge.clone(), Bound::Unsettled(prefetch.max(1)));
        // Before joining: what is stored may arrive before the answer does.
        shared.say_now(|core| core.add_taker(queue.channel().as_bytes(), queue.id(), mailbox.clone()));
        let mut consumer = Consumer { client: self.clone(), queue: queue.clone(), mailbox, membership: None };
        consumer.membership = Some(shared.take_part(part, None).await?);
        Ok(consumer)
    }

    /// What a consumer takes part in.
    fn part(&self, queue: &QueueAddress, terms: ConsumeTerms) -> Result<Part, ClientError> {
        if self.protocol() != Protocol::Tmqp {
            return Ok(Part::Consumption(Consumption { queue: queue.clone(), terms }));
        }
        let known = ConsumeTerms { manual_ack: terms.manual_ack, ..ConsumeTerms::default() };
        if terms != known {
            return Err(ClientError::NotSupported {
                what: "events that a queue is bound to, queues that go when they are unused, or filters"
                    .into(),
                protocol: Protocol::Tmqp.name(),
                instead: "bind queues to topics by routers, or connect to mqks:// or mm2://",
            });
        }
        Ok(Part::Intent(Intent::Join(queue.channel().clone())))
    }

    /// Joins a channel without consuming, for a program that pulls from it often: each pull joins by itself, and
    /// leaves when its messages are settled, unless something else keeps the channel joined.
    ///
    /// # Errors
    ///
    /// As [`Client::consume`].
    pub async fn join(&self, channel: &str) -> Result<Membership, ClientError> {
        let channel = crate::address::channel_name(channel)?;
        self.shared.take_part(Part::Intent(Intent::Join(channel)), None).await
    }
}

/// A consumer of one queue. Any number of tasks may take from it.
///
/// Dropping it leaves the channel, unless others in this client need it, and hands back what nobody took: messages
/// that ask for an acknowledgement are refused with [`REASON_CONSUMER_CLOSED`].
#[derive(Debug)]
pub struct Consumer {
    client: Client,
    queue: QueueAddress,
    mailbox: Arc<Mailbox>,
    membership: Option<Membership>,
}

impl Consumer {
    /// Waits for messages, and takes up to `max` (at least 1) of those that are there. Empty: the client is closed.
    pub async fn next_batch(&self, max: usize) -> Vec<Delivered> {
        let letters = self.mailbox.next(max).await;
        self.hand_out(letters)
    }

    /// Waits until [`Consumer::take`] finds something, or nothing will come any more. Cancelling it loses nothing.
    pub async fn ready(&self) {
        self.mailbox.ready().await;
    }

    /// Takes up to `max` of the messages that are there now, without waiting.
    pub fn take(&self, max: usize) -> Vec<Delivered> {
        self.hand_out(self.mailbox.take(max))
    }

    /// Whether no more will come: what is there now is the rest.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.mailbox.is_closed()
    }

    /// Ends the waiting of everybody who takes from it; what is there can still be taken.
    pub fn stop(&self) {
        self.mailbox.close();
    }

    /// Messages that wait here.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.mailbox.waiting()
    }

    /// What it consumes.
    #[must_use]
    pub fn queue(&self) -> &QueueAddress {
        &self.queue
    }

    fn hand_out(&self, letters: Vec<Letter>) -> Vec<Delivered> {
        let of_mailbox = |letter: Letter| {
            let held = letter.message.wants_acknowledge().then(|| Held::Mailbox(self.mailbox.clone()));
            Delivered::new(self.client.shared.clone(), letter, held)
        };
        letters.into_iter().map(of_mailbox).collect()
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        let shared = self.client.shared.clone();
        // Left in the same step: a message between the two would belong to a channel that is joined and to nobody, and
        // stay where it is. And left before anything is refused: the broker would hand it right back.
        shared.say_now(|core| {
            core.remove_taker(self.queue.channel().as_bytes(), self.queue.id(), &self.mailbox);
            if let Some(membership) = &mut self.membership {
                membership.end(core);
            }
        });
        self.mailbox.close();
        drop(self.take(usize::MAX).into_iter().map(Delivered::hand_back).collect::<Vec<_>>());
    }
}

/// What a delivery keeps in place until it is settled or dropped.
#[derive(Debug)]
pub(crate) enum Held {
    /// Its place among those that the program may hold unsettled.
    Mailbox(Arc<Mailbox>),
    /// The channel that it was pulled from.
    Channel(#[allow(dead_code, reason = "kept for its drop")] Arc<Membership>),
}

/// A message that was handed to the program, and can be settled once.
pub struct Delivered {
    message: Received,
    shared: Arc<Shared>,
    epoch: u32,
    settled: AtomicBool,
    held: Option<Held>,
}

impl Delivered {
    pub(crate) fn new(shared: Arc<Shared>, letter: Letter, held: Option<Held>) -> Self {
        Self { message: letter.message, shared, epoch: letter.epoch, settled: AtomicBool::new(false), held }
    }

    /// The message.
    #[must_use]
    pub fn message(&self) -> &Received {
        &self.message
    }

    /// Acknowledges it. Answers what became of that; see [`Settlement`].
    pub fn ack(&self) -> Settlement {
        self.settle(None)
    }

    /// Refuses it; the queue's delivery handler decides what happens to it. An empty reason is `none`.
    ///
    /// # Errors
    ///
    /// [`ClientError::InvalidArgument`] for a reason that is no header value, [`ClientError::NotSupported`] where a message
    /// cannot be refused; it is not settled then.
    pub fn nack(&self, reason: &str) -> Result<Settlement, ClientError> {
        if self.message.wants_acknowledge() {
            self.shared.say_now(|core| core.conversation.check_refusal())?;
        }
        crate::request::push(&mut Vec::new(), mqcore_wire::tmqp::header::key::NACK_REASON, reason)?;
        Ok(self.settle(Some(reason)))
    }

    /// Whether it was settled here already.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Relaxed)
    }

    fn settle(&self, refusal: Option<&str>) -> Settlement {
        if self.settled.swap(true, Ordering::Relaxed) {
            return Settlement::Already;
        }
        if let Some(Held::Mailbox(mailbox)) = &self.held {
            mailbox.settled();
        }
        if !self.message.wants_acknowledge() {
            return Settlement::NotAsked;
        }
        self.shared.say_now(|core| {
            if core.epoch != self.epoch || !core.conversation.is_open() {
                Counters::add(&self.shared.counters.stale_settlements, 1);
                return Settlement::Stale;
            }
            let written = core.conversation.acknowledge(&self.message, refusal);
            debug_assert_eq!(written, Ok(()), "the reason was checked, the rest was read from a frame");
            Settlement::Sent
        })
    }

    /// Refuses it; where that is impossible, the broker has it back when the connection ends.
    fn hand_back(self) {
        let refused = self.nack(REASON_CONSUMER_CLOSED);
        tracing::trace!(?refused, "nobody took it");
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
            self.shared.say_now(|core| {
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

/// What became of an acknowledgement. None of these is an error: a program that acknowledges too late must go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// It is on its way.
    Sent,
    /// The queue does not ask for one.
    NotAsked,
    /// The connection that the message came over is gone, so the broker delivers it again. Counted in
    /// [`crate::client::ClientStats::stale_settlements`].
    Stale,
    /// The message was settled before.
    Already,
}
