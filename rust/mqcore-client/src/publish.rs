//! Publishing: one message or many, confirmed or not.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use bytes::Bytes;

use crate::address::{Protocol, QueueAddress};
use crate::client::Client;
use crate::confirmations::{confirm_timeout, confirmed_by};
use crate::conversation::{AckedBy, MessageId, QueueMessage, RequestAnswer};
use crate::dialogue::Dialogue;
use crate::error::{ClientError, StatusMeaning};
use crate::pending::PendingCall;
use crate::request::push;
use crate::shared::Waited;
use crate::waiter::{Outcome, PublishBatch, Waiter};
use mqcore_wire::tmqp::NAME_BYTES_MAX;
use mqcore_wire::tmqp::header::key;

/// Maximum copies of one message.
pub const COPIES_MAX: usize = 64;
/// Pause before a message is published again because its queue is busy.
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// How to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishOptions {
    /// The message's id. Default: a new one.
    pub id: Option<String>,
    /// Headers, in this order.
    pub headers: Vec<(String, String)>,
    /// Whether it goes before messages of normal priority. Default no.
    pub high_priority: bool,
    /// Its priority: higher goes first. From 128 on it has high priority where there are only two. Default:
    /// `high_priority` decides.
    pub priority: Option<u8>,
    /// How long its queue holds it back. Default: not at all.
    pub delay: Option<Duration>,
    /// How long it may wait, its delay included. Default: as long as its queue lets it.
    pub expires_in: Option<Duration>,
    /// Whether to wait for the acknowledgement. Default yes. Otherwise publishing returns when the message is queued
    /// for sending, and a refusal only increments a counter.
    pub confirm: bool,
    /// Queues that get a copy; at most [`COPIES_MAX`]. A confirmed publish also waits for the confirmations of all
    /// copies. Their ids must differ from each other and from `id` then.
    pub cc: Vec<CarbonCopy>,
    /// Timeout of the acknowledgement. Default: the config's request timeout.
    pub timeout: Option<Duration>,
    /// Whether to publish again, within the timeout, if the connection is lost before the acknowledgement. Requires
    /// `id`, by which the receiver detects duplicates. Default no.
    pub retry: bool,
}

impl Default for PublishOptions {
    fn default() -> Self {
        Self {
            id: None,
            headers: Vec::new(),
            high_priority: false,
            priority: None,
            delay: None,
            expires_in: None,
            confirm: true,
            cc: Vec::new(),
            timeout: None,
            retry: false,
        }
    }
}

impl PublishOptions {
    /// The message for the connection. `headers`: from [`header_text`].
    fn message<'a>(&'a self, queue: &'a QueueAddress, headers: &'a [u8], body: &'a [u8]) -> QueueMessage<'a> {
        QueueMessage { queue, id: self.id.as_deref(), headers, body, high_priority: is_high(self) }
    }

    /// Calls `act` with the message for the connection.
    pub(crate) fn with_message<R>(
        &self,
        queue: &QueueAddress,
        body: &[u8],
        act: impl FnOnce(&QueueMessage<'_>) -> R,
    ) -> Result<R, ClientError> {
        let headers = header_text(self, &[], &[])?;
        Ok(act(&self.message(queue, &headers, body)))
    }
}

/// A queue that gets a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CarbonCopy {
    /// Its queue.
    pub queue: QueueAddress,
    /// The id of the copy. Default: a new one.
    pub id: Option<String>,
}

/// One of many messages that are published together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BatchMessage {
    /// Body.
    pub body: Bytes,
    /// Its id. Default: a new one.
    pub id: Option<String>,
    /// Its headers, after those of the options.
    pub headers: Vec<(String, String)>,
}

/// The confirmation of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// The sender of the acknowledgement; `None`: none was requested.
    pub by: Option<AckedBy>,
    /// Time from the call to the acknowledgement of the message, or of its last copy.
    pub latency: Duration,
    /// The outcome of each copy, in the order of [`PublishOptions::cc`]; empty if no acknowledgement was requested.
    pub copies: Vec<CopyReceipt>,
}

impl Receipt {
    fn new(by: Option<AckedBy>, latency: Duration) -> Self {
        Self { by, latency, copies: Vec::new() }
    }
}

/// The outcome of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyReceipt {
    /// Its queue.
    pub queue: QueueAddress,
    /// The outcome.
    pub outcome: CopyOutcome,
}

/// Whether a queue took its copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyOutcome {
    /// It did.
    Confirmed,
    /// It did not, for this reason.
    Rejected(Arc<str>),
    /// Unknown: no confirmation came, for this reason.
    Unconfirmed(Arc<str>),
}

/// The attempts to publish one message.
struct Attempts {
    /// Whether it may be sent more than once.
    retry: bool,
    deadline: Instant,
    /// The cause if the outcome of an attempt is unknown.
    lost: Option<Arc<str>>,
}

impl Attempts {
    fn new(retry: bool, deadline: Instant) -> Self {
        Self { retry, deadline, lost: None }
    }

    /// Takes the result of an attempt, and returns the result for the caller; `None`: publish again.
    ///
    /// After an attempt with an unknown outcome, a busy queue does not mean that it has no copy: it may still be saving
    /// the first one, and answers the second when that is done.
    async fn settle(&mut self, result: Result<Receipt, ClientError>) -> Option<Result<Receipt, ClientError>> {
        match result {
            Err(ClientError::ConnectionLost { cause, sent }) => {
                if self.retry && Instant::now() < self.deadline {
                    if sent {
                        self.lost = Some(cause);
                    }
                    return None;
                }
                // The last attempt may be unsent although the broker got an earlier one.
                let sent = sent || self.lost.is_some();
                Some(Err(ClientError::ConnectionLost { cause, sent }))
            }
            Err(ClientError::Closed) => Some(Err(match self.lost.take() {
                Some(cause) => ClientError::ConnectionLost { cause, sent: true },
                None => ClientError::Closed,
            })),
            Err(ClientError::Refused(refusal)) if refusal.status() == StatusMeaning::Busy => {
                let Some(cause) = &self.lost else { return Some(Err(ClientError::Refused(refusal))) };
                if Instant::now() + BUSY_PAUSE >= self.deadline {
                    let cause = format!("{cause}; the broker answered later attempts: {refusal}").into();
                    return Some(Err(ClientError::ConnectionLost { cause, sent: true }));
                }
                tokio::time::sleep(BUSY_PAUSE).await;
                None
            }
            result => Some(result),
        }
    }
}

impl Client {
    /// Publishes one message. The receipt tells which copies were rejected.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] (no such queue, a limit, ...), [`ClientError::Nacked`],
    /// [`ClientError::ConfirmTimeout`], [`ClientError::ConnectionLost`], and [`ClientError::InvalidArgument`] for
    /// invalid arguments. They concern the message itself; its copies may have been accepted nevertheless.
    pub async fn publish(
        &self,
        queue: &QueueAddress,
        body: impl AsRef<[u8]>,
        options: &PublishOptions,
    ) -> Result<Receipt, ClientError> {
        let started = Instant::now();
        let deadline = self.shared.deadline(options.timeout);
        self.check(queue, options)?;
        if options.retry && options.id.is_none() {
            return Err(ClientError::invalid(
                "retry",
                "a message that may be sent twice needs an id; give one",
            ));
        }
        if options.confirm && !options.cc.is_empty() {
            let body = Bytes::copy_from_slice(body.as_ref());
            let message = BatchMessage { body, id: options.id.clone(), headers: Vec::new() };
            return self.publish_with_copies(queue, message, options, started, deadline).await;
        }
        let headers = header_text(options, &[], &[])?;
        let publication = options.message(queue, &headers, body.as_ref());
        if !options.confirm {
            self.shared.say(deadline, |conversation| conversation.publish(&publication, None)).await??;
            return Ok(Receipt::new(None, started.elapsed()));
        }
        let mut attempts = Attempts::new(options.retry, deadline);
        loop {
            let result = self.publish_confirmed(&publication, started, deadline).await;
            if let Some(result) = attempts.settle(result).await {
                return result;
            }
        }
    }

    /// Publishes a message, and waits for the confirmations of its copies too.
    async fn publish_with_copies(
        &self,
        queue: &QueueAddress,
        message: BatchMessage,
        options: &PublishOptions,
        started: Instant,
        deadline: Instant,
    ) -> Result<Receipt, ClientError> {
        let messages = [message];
        let mut attempts = Attempts::new(options.retry, deadline);
        loop {
            let mut group = PublishGroup::new(self, queue, &messages, options);
            let said = group.say_all(deadline).await;
            let mut results = group.finish(said, started, deadline).await;
            let result = results.pop().unwrap_or_else(|| Err(confirm_timeout(queue, started)));
            if let Some(result) = attempts.settle(result).await {
                return result;
            }
        }
    }

    /// Checks the options of a message.
    pub(crate) fn check(&self, queue: &QueueAddress, options: &PublishOptions) -> Result<(), ClientError> {
        self.check_copies(queue, options)?;
        self.check_terms(options)
    }

    /// Checks the priority, delay and expiry, which only TMQP transmits as headers.
    fn check_terms(&self, options: &PublishOptions) -> Result<(), ClientError> {
        if options.priority.is_none() && options.delay.is_none() && options.expires_in.is_none() {
            return Ok(());
        }
        if options.high_priority && options.priority.is_some() {
            let why = "a message has either a priority or high priority; give one of them";
            return Err(ClientError::invalid("priority", why));
        }
        match self.shared.protocol {
            Protocol::Tmqp => Ok(()),
            other => Err(ClientError::NotSupported {
                what: "delays, expiries and priorities of messages".into(),
                protocol: other.name(),
                instead: "use TMQP (tmqp://) instead",
            }),
        }
    }

    /// Checks copies, which only TMQP transmits as headers.
    fn check_copies(&self, queue: &QueueAddress, options: &PublishOptions) -> Result<(), ClientError> {
        match self.shared.protocol {
            Protocol::Tmqp if queue.is_topic() && !options.cc.is_empty() => Err(ClientError::invalid(
                "cc",
                format!("{queue} is a topic; bind the queues to it, or publish to them"),
            )),
            Protocol::Tmqp if options.cc.len() > COPIES_MAX => {
                let given = options.cc.len();
                let why =
                    format!("{given} copies exceed the limit of {COPIES_MAX}; publish further messages");
                Err(ClientError::invalid("cc", why))
            }
            Protocol::Tmqp => Ok(()),
            _ if options.cc.is_empty() => Ok(()),
            other => Err(ClientError::NotSupported {
                what: "headers and copies".into(),
                protocol: other.name(),
                instead: "use TMQP (tmqp://) instead",
            }),
        }
    }

    async fn publish_confirmed(
        &self,
        publication: &QueueMessage<'_>,
        started: Instant,
        deadline: Instant,
    ) -> Result<Receipt, ClientError> {
        let act = |conversation: &mut Dialogue, waiter| conversation.publish(publication, Some(waiter));
        match self.shared.answer(deadline, act).await? {
            Waited::Answered(outcome) => receipt(outcome, started),
            Waited::TooLong(_) => Err(confirm_timeout(publication.queue, started)),
        }
    }

    /// Publishes many messages with one lock, one write and one wake-up for all acknowledgements, within the client's
    /// limits. The results are in the order of the messages.
    ///
    /// # Errors
    ///
    /// As [`Client::publish`], separately for each message. [`PublishOptions::id`], [`PublishOptions::retry`] and ids of
    /// copies are invalid for many messages.
    pub async fn publish_many(
        &self,
        queue: &QueueAddress,
        messages: &[BatchMessage],
        options: &PublishOptions,
    ) -> Vec<Result<Receipt, ClientError>> {
        let started = Instant::now();
        let deadline = self.shared.deadline(options.timeout);
        if options.id.is_some() || options.retry || options.cc.iter().any(|copy| copy.id.is_some()) {
            let error = ClientError::invalid("options", "ids and a retry are for one message, not for many");
            return vec![Err(error); messages.len()];
        }
        if let Err(error) = self.check(queue, options) {
            return vec![Err(error); messages.len()];
        }
        let mut group = PublishGroup::new(self, queue, messages, options);
        let said = group.say_all(deadline).await;
        group.finish(said, started, deadline).await
    }
}

/// Messages that are being published together.
struct PublishGroup<'a> {
    queue: &'a QueueAddress,
    messages: &'a [BatchMessage],
    options: &'a PublishOptions,
    /// The outcomes: of each message, followed by those of its copies.
    batch: Arc<PublishBatch>,
    /// Number of outcomes of each message.
    outcomes: usize,
    /// Number of messages that were sent or found invalid.
    said: usize,
    question: PendingCall<'a>,
}

impl<'a> PublishGroup<'a> {
    fn new(
        client: &'a Client,
        queue: &'a QueueAddress,
        messages: &'a [BatchMessage],
        options: &'a PublishOptions,
    ) -> Self {
        let outcomes = if options.confirm { 1 + options.cc.len() } else { 1 };
        let batch = PublishBatch::new(messages.len(), outcomes);
        let ids = Vec::with_capacity(messages.len() * outcomes);
        let question = PendingCall { shared: &client.shared, ids };
        Self { queue, messages, options, batch, outcomes, said: 0, question }
    }

    /// Sends them all, in as few steps as the limits allow.
    async fn say_all(&mut self, deadline: Instant) -> Result<(), ClientError> {
        let shared = self.question.shared;
        while self.said < self.messages.len() {
            shared.say(deadline, |conversation| self.say_some(conversation)).await?;
        }
        Ok(())
    }

    /// Sends as many as the limits allow, and at least one.
    fn say_some(&mut self, conversation: &mut Dialogue) {
        let config = &self.question.shared.config;
        loop {
            let index = self.said;
            self.said += 1;
            if let Err(error) = self.say_one(conversation, index) {
                self.settle(index, Err(error));
            }
            if self.said == self.messages.len() || !conversation.has_room(config) {
                return;
            }
        }
    }

    /// Waits for the outcome of the message at `index`, or of its copy `number`, counted from 1. A failed message ends
    /// the waits for its copies.
    fn waiter(&self, index: usize, number: usize) -> Waiter {
        Waiter::Many(self.batch.clone(), (index * self.outcomes + number) as u32)
    }

    /// Ends the wait for the outcome of the message at `index`.
    fn settle(&self, index: usize, result: Result<RequestAnswer, ClientError>) {
        self.batch.settle((index * self.outcomes) as u32, result, Instant::now());
    }

    fn say_one(&mut self, conversation: &mut Dialogue, index: usize) -> Result<(), ClientError> {
        let message = &self.messages[index];
        let copies = match self.outcomes {
            1 => Vec::new(),
            _ => copy_ids(conversation, &self.options.cc, message.id.as_deref())?,
        };
        let headers = header_text(self.options, &message.headers, &copies)?;
        let publication = QueueMessage {
            queue: self.queue,
            id: message.id.as_deref(),
            headers: &headers,
            body: &message.body,
            high_priority: is_high(self.options),
        };
        let waiter = self.options.confirm.then(|| self.waiter(index, 0));
        let id = conversation.publish(&publication, waiter)?;
        if self.options.confirm {
            self.question.ids.push(id);
        } else {
            self.settle(index, Ok(RequestAnswer::Confirmed(AckedBy::Server)));
        }
        for (number, (copy, id)) in self.options.cc.iter().zip(copies).enumerate() {
            conversation.expect_copy(id.clone(), &copy.queue, self.waiter(index, 1 + number));
            self.question.ids.push(id);
        }
        Ok(())
    }

    /// Waits for the outcomes of sent messages. Unsent messages get the error of sending.
    async fn finish(
        mut self,
        said: Result<(), ClientError>,
        started: Instant,
        deadline: Instant,
    ) -> Vec<Result<Receipt, ClientError>> {
        if let Err(error) = &said {
            for index in self.said..self.messages.len() {
                self.settle(index, Err(error.clone()));
            }
        }
        let is_complete = tokio::time::timeout_at(deadline, self.batch.completed()).await.is_ok();
        // Copies of a failed message may still be pending.
        if is_complete && self.outcomes == 1 {
            self.question.ids.clear();
        }
        // Forgets pending requests before taking the outcomes, so that none arrives in between.
        self.question.forget();
        let mut outcomes = self.batch.take().into_iter();
        let mut receipts = Vec::with_capacity(self.messages.len());
        while let Some(outcome) = outcomes.next() {
            let mut result = match outcome {
                Some(outcome) => receipt(outcome, started),
                None => Err(confirm_timeout(self.queue, started)),
            };
            for copy in self.options.cc.iter().take(self.outcomes - 1) {
                let outcome = outcomes.next().flatten();
                if let Ok(receipt) = &mut result {
                    add_copy(receipt, &copy.queue, outcome, started);
                }
            }
            if let (false, Ok(receipt)) = (self.options.confirm, &mut result) {
                receipt.by = None;
            }
            receipts.push(result);
        }
        receipts
    }
}

fn receipt((result, at): Outcome, started: Instant) -> Result<Receipt, ClientError> {
    Ok(Receipt::new(Some(confirmed_by(&result?)), at.saturating_duration_since(started)))
}

/// Adds the outcome of a copy to the receipt of its message.
fn add_copy(receipt: &mut Receipt, queue: &QueueAddress, outcome: Option<Outcome>, started: Instant) {
    let (outcome, at) = match outcome {
        Some((Ok(_), at)) => (CopyOutcome::Confirmed, at),
        Some((Err(ClientError::Refused(refusal)), at)) => (CopyOutcome::Rejected(refusal.reason.into()), at),
        Some((Err(ClientError::Nacked { reason, .. }), at)) => (CopyOutcome::Rejected(reason), at),
        Some((Err(error), at)) => (CopyOutcome::Unconfirmed(error.to_string().into()), at),
        None => {
            let why = confirm_timeout(queue, started).to_string();
            (CopyOutcome::Unconfirmed(why.into()), Instant::now())
        }
    };
    receipt.latency = receipt.latency.max(at.saturating_duration_since(started));
    receipt.copies.push(CopyReceipt { queue: queue.clone(), outcome });
}

/// The ids of copies. The broker confirms each copy under its own id.
fn copy_ids(
    conversation: &mut Dialogue,
    cc: &[CarbonCopy],
    message: Option<&str>,
) -> Result<Vec<MessageId>, ClientError> {
    let mut ids: Vec<MessageId> = Vec::with_capacity(cc.len());
    for copy in cc {
        if let Some(id) = &copy.id {
            check_copy_id(id)?;
        }
        let id = conversation.copy_id(copy.id.as_deref())?;
        if ids.contains(&id) || message.is_some_and(|message| *message.as_bytes() == *id) {
            let id = String::from_utf8_lossy(&id);
            let why = format!("{id:?} is also the id of the message or of another copy; use another id");
            return Err(ClientError::invalid(COPY_ID, why));
        }
        ids.push(id);
    }
    Ok(ids)
}

/// The argument in errors.
const COPY_ID: &str = "copy's message id";

/// Checks that a header line can hold the id of a copy.
fn check_copy_id(id: &str) -> Result<(), ClientError> {
    if id.contains(';') {
        return Err(ClientError::invalid(COPY_ID, "it must not contain a semicolon"));
    }
    if id.trim_ascii() != id {
        return Err(ClientError::invalid(COPY_ID, "it must not begin or end with white space"));
    }
    if id.len() > NAME_BYTES_MAX {
        let why = format!("{} bytes exceed the limit of {NAME_BYTES_MAX}", id.len());
        return Err(ClientError::invalid(COPY_ID, why));
    }
    Ok(())
}

/// Whether the frame of a message has the bit for high priority.
fn is_high(options: &PublishOptions) -> bool {
    options.priority.map_or(options.high_priority, |priority| priority >= PRIORITY_HIGH_MIN)
}

/// The lowest priority that counts as high where there are only two.
const PRIORITY_HIGH_MIN: u8 = 128;

/// The header text of a message: the options' headers, its own, then one line per copy. `ids`: the ids of all copies,
/// or none for those of the options.
fn header_text(
    options: &PublishOptions,
    own: &[(String, String)],
    ids: &[MessageId],
) -> Result<Vec<u8>, ClientError> {
    let mut text = Vec::new();
    for (key, value) in options.headers.iter().chain(own) {
        push(&mut text, key, value)?;
    }
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).to_string();
    let terms = [
        (key::DELAY, options.delay.map(millis)),
        (key::EXPIRES_IN, options.expires_in.map(millis)),
        (key::PRIORITY, options.priority.map(|priority| priority.to_string())),
    ];
    for (key, value) in terms {
        if let Some(value) = value {
            push(&mut text, key, &value)?;
        }
    }
    for (index, copy) in options.cc.iter().enumerate() {
        let mut value = format!("{};{}", copy.queue.channel(), copy.queue.id());
        let id = ids.get(index).map(|id| String::from_utf8_lossy(id));
        if let Some(id) = id.as_deref().or(copy.id.as_deref()) {
            check_copy_id(id)?;
            value = format!("{value};{id}");
        }
        push(&mut text, key::CC, &value)?;
    }
    Ok(text)
}
