//! Publishing: one message or many, confirmed or not.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use bytes::Bytes;

use crate::address::{Protocol, QueueAddress};
use crate::client::Client;
use crate::conversation::{By, QueueMessage, RequestAnswer};
use crate::dialogue::Dialogue;
use crate::error::ClientError;
use crate::request::push;
use crate::shared::{Question, Waited};
use crate::waiter::{Batch, Outcome, Waiter};
use mqcore_wire::tmqp::header::key;

/// How to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishOptions {
    /// The message's id. Default: a new one.
    pub id: Option<String>,
    /// Headers, in this order.
    pub headers: Vec<(String, String)>,
    /// Whether it goes before messages of normal priority. Default no.
    pub high_priority: bool,
    /// Whether to wait for the acknowledgement. Default yes. Otherwise publishing returns when the message is queued
    /// for sending, and a refusal only increments a counter.
    pub confirm: bool,
    /// Queues that get a copy.
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
            confirm: true,
            cc: Vec::new(),
            timeout: None,
            retry: false,
        }
    }
}

/// A queue that gets a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CarbonCopy {
    /// Its queue.
    pub queue: QueueAddress,
    /// The id of the copy. Default: the broker generates one.
    pub id: Option<String>,
}

/// One of many messages that are published together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outgoing {
    /// Body.
    pub body: Bytes,
    /// Its id. Default: a new one.
    pub id: Option<String>,
    /// Its headers, after those of the options.
    pub headers: Vec<(String, String)>,
}

/// The confirmation of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    /// The sender of the acknowledgement; `None`: none was requested.
    pub by: Option<By>,
    /// Time from the call to the acknowledgement.
    pub latency: Duration,
}

impl Client {
    /// Publishes one message.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] (no such queue, a limit, ...), [`ClientError::Nacked`],
    /// [`ClientError::ConfirmTimeout`], [`ClientError::ConnectionLost`], and [`ClientError::InvalidArgument`] for
    /// invalid arguments.
    pub async fn publish(
        &self,
        queue: &QueueAddress,
        body: impl AsRef<[u8]>,
        options: &PublishOptions,
    ) -> Result<Receipt, ClientError> {
        let started = Instant::now();
        let deadline = self.shared.deadline(options.timeout);
        self.check_copies(queue, options)?;
        if options.retry && options.id.is_none() {
            return Err(ClientError::invalid(
                "retry",
                "a message that may be sent twice needs an id; give one",
            ));
        }
        let headers = header_text(options, &[])?;
        let publication = QueueMessage {
            queue,
            id: options.id.as_deref(),
            headers: &headers,
            body: body.as_ref(),
            high_priority: options.high_priority,
        };
        if !options.confirm {
            self.shared.say(deadline, |conversation| conversation.publish(&publication, None)).await??;
            return Ok(Receipt { by: None, latency: started.elapsed() });
        }
        loop {
            let result = self.publish_confirmed(&publication, started, deadline).await;
            match result {
                Err(ClientError::ConnectionLost { .. }) if options.retry && Instant::now() < deadline => {}
                result => return result,
            }
        }
    }

    /// Checks copies, which only TMQP transmits as headers.
    fn check_copies(&self, queue: &QueueAddress, options: &PublishOptions) -> Result<(), ClientError> {
        match self.protocol() {
            Protocol::Tmqp if queue.is_topic() && !options.cc.is_empty() => Err(ClientError::invalid(
                "cc",
                format!("{queue} is a topic; bind the queues to it, or publish to them"),
            )),
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
    /// As [`Client::publish`], separately for each message. [`PublishOptions::id`] and [`PublishOptions::retry`] are
    /// invalid for many messages.
    pub async fn publish_many(
        &self,
        queue: &QueueAddress,
        messages: &[Outgoing],
        options: &PublishOptions,
    ) -> Vec<Result<Receipt, ClientError>> {
        let started = Instant::now();
        let deadline = self.shared.deadline(options.timeout);
        if options.id.is_some() || options.retry {
            let error =
                ClientError::invalid("options", "an id and a retry are for one message, not for many");
            return vec![Err(error); messages.len()];
        }
        if let Err(error) = self.check_copies(queue, options) {
            return vec![Err(error); messages.len()];
        }
        let mut together = Together::new(self, queue, messages, options);
        let said = together.say_all(deadline).await;
        together.finish(said, started, deadline).await
    }
}

/// Messages that are being published together.
struct Together<'a> {
    queue: &'a QueueAddress,
    messages: &'a [Outgoing],
    options: &'a PublishOptions,
    batch: Arc<Batch>,
    /// Number of messages that were sent or found invalid.
    said: usize,
    question: Question<'a>,
}

impl<'a> Together<'a> {
    fn new(
        client: &'a Client,
        queue: &'a QueueAddress,
        messages: &'a [Outgoing],
        options: &'a PublishOptions,
    ) -> Self {
        let batch = Batch::new(messages.len());
        let question = Question { shared: &client.shared, ids: Vec::with_capacity(messages.len()) };
        Self { queue, messages, options, batch, said: 0, question }
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
                let waiter = Waiter::Many(self.batch.clone(), index as u32);
                waiter.settle(Err(error), Instant::now());
            }
            if self.said == self.messages.len() || !conversation.has_room(config) {
                return;
            }
        }
    }

    fn say_one(&mut self, conversation: &mut Dialogue, index: usize) -> Result<(), ClientError> {
        let message = &self.messages[index];
        let headers = header_text(self.options, &message.headers)?;
        let publication = QueueMessage {
            queue: self.queue,
            id: message.id.as_deref(),
            headers: &headers,
            body: &message.body,
            high_priority: self.options.high_priority,
        };
        let waiter = self.options.confirm.then(|| Waiter::Many(self.batch.clone(), index as u32));
        let id = conversation.publish(&publication, waiter)?;
        if self.options.confirm {
            self.question.ids.push(id);
        } else {
            let confirmed = Ok(RequestAnswer::Confirmed(By::Server));
            Waiter::Many(self.batch.clone(), index as u32).settle(confirmed, Instant::now());
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
                Waiter::Many(self.batch.clone(), index as u32).settle(Err(error.clone()), Instant::now());
            }
        }
        if tokio::time::timeout_at(deadline, self.batch.completed()).await.is_ok() {
            self.question.ids.clear();
        }
        // Forgets pending requests before taking the outcomes, so that none arrives in between.
        self.question.forget();
        let by_nobody = !self.options.confirm;
        let receipts = self.batch.take().into_iter().map(|outcome| match outcome {
            Some(outcome) => receipt(outcome, started)
                .map(|receipt| if by_nobody { Receipt { by: None, ..receipt } } else { receipt }),
            None => Err(confirm_timeout(self.queue, started)),
        });
        receipts.collect()
    }
}

fn receipt((result, at): Outcome, started: Instant) -> Result<Receipt, ClientError> {
    let by = match result? {
        RequestAnswer::Confirmed(by) => by,
        RequestAnswer::Response(_) | RequestAnswer::Pulled(_) => By::Server,
    };
    Ok(Receipt { by: Some(by), latency: at.saturating_duration_since(started) })
}

fn confirm_timeout(queue: &QueueAddress, started: Instant) -> ClientError {
    ClientError::ConfirmTimeout { target: queue.to_string().into(), waited: started.elapsed() }
}

/// The header text of a message: the options' headers, its own, then one line per copy.
fn header_text(options: &PublishOptions, own: &[(String, String)]) -> Result<Vec<u8>, ClientError> {
    let mut text = Vec::new();
    for (key, value) in options.headers.iter().chain(own) {
        push(&mut text, key, value)?;
    }
    for copy in &options.cc {
        let mut value = format!("{};{}", copy.queue.channel(), copy.queue.id());
        if let Some(id) = &copy.id {
            if id.contains(';') {
                return Err(ClientError::invalid("copy's message id", "it must not contain a semicolon"));
            }
            value = format!("{value};{id}");
        }
        push(&mut text, key::CC, &value)?;
    }
    Ok(text)
}
