//! Direct messages between clients: send, request, receive and respond.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::address::is_topic;
use crate::client::Client;
pub use crate::conversation::Inbox;
use crate::conversation::{DirectMessage, RequestAnswer, Wait};
use crate::counters::ClientCounters;
use crate::dialogue::DIRECT;
use crate::error::ClientError;
use crate::mailbox::{Bound, Mailbox};
use crate::received::Received;
use crate::request::push;
use crate::shared::Waited;

/// Options of sending.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SendOptions {
    /// A number with a meaning for sender and receiver. Default 0.
    pub content_type: u16,
    /// The message's id. Default: a new one.
    pub id: Option<String>,
    /// Headers, in this order.
    pub headers: Vec<(String, String)>,
    /// Whether it goes before messages of normal priority. Default no.
    pub high_priority: bool,
    /// Whether only the client connected longest among those that match `@name:` or `@type:` gets it. Default no.
    pub only_first: bool,
    /// Timeout of the acknowledgement or response. Default: the config's request timeout.
    pub timeout: Option<Duration>,
}

impl Client {
    /// Sends to a client: its id, `@name:NAME` or `@type:KIND`. Returns when the message is queued for sending; it does
    /// not report whether a client received it. A message to a topic, `@topic:NAME`, is published and confirmed.
    ///
    /// # Errors
    ///
    /// [`ClientError::Nacked`] if a topic has neither subscribers nor queues, [`ClientError::InvalidArgument`], [`ClientError::TooLarge`], [`ClientError::ConnectionLost`].
    pub async fn send(
        &self,
        target: &str,
        body: impl AsRef<[u8]>,
        options: &SendOptions,
    ) -> Result<(), ClientError> {
        if is_topic(target.as_bytes()) {
            // The broker answers at once, and says nothing otherwise if there is no subscriber.
            return self.send_confirmed(target, body, options).await.map(drop);
        }
        let headers = header_text(options)?;
        let message = direct_message(target, body.as_ref(), &headers, options, Wait::Nothing);
        let deadline = self.shared.deadline(options.timeout);
        self.shared.say(deadline, |conversation| conversation.send(&message, None)).await?.map(drop)
    }

    /// Sends, and waits for the acknowledgement. Returns the time it took.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with status 404 if no client has that id, [`ClientError::Nacked`],
    /// [`ClientError::ConfirmTimeout`], and those of [`Client::send`].
    pub async fn send_confirmed(
        &self,
        target: &str,
        body: impl AsRef<[u8]>,
        options: &SendOptions,
    ) -> Result<Duration, ClientError> {
        let started = Instant::now();
        let headers = header_text(options)?;
        let message = direct_message(target, body.as_ref(), &headers, options, Wait::Acknowledge);
        let deadline = self.shared.deadline(options.timeout);
        let waited =
            self.shared.answer(deadline, |conversation, waiter| conversation.send(&message, Some(waiter)));
        match waited.await? {
            Waited::Answered((result, at)) => {
                result.map(|_: RequestAnswer| at.saturating_duration_since(started))
            }
            Waited::TooLong(_) => {
                Err(ClientError::ConfirmTimeout { target: target.into(), waited: started.elapsed() })
            }
        }
    }

    /// Sends, and waits for the receiver's response with status 0 or an application's status (1000 and above).
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with status 404 if no client matches, or with the status of the response;
    /// [`ClientError::RequestTimeout`], and those of [`Client::send`].
    pub async fn request(
        &self,
        target: &str,
        body: impl AsRef<[u8]>,
        options: &SendOptions,
    ) -> Result<Received, ClientError> {
        if is_topic(target.as_bytes()) {
            let why = "a topic does not respond; publish to it, or send the request to a client or router";
            return Err(ClientError::invalid("target", format!("{target}: {why}")));
        }
        let started = Instant::now();
        let headers = header_text(options)?;
        let message = direct_message(target, body.as_ref(), &headers, options, Wait::Response);
        let deadline = self.shared.deadline(options.timeout);
        let waited =
            self.shared.answer(deadline, |conversation, waiter| conversation.send(&message, Some(waiter)));
        match waited.await? {
            Waited::Answered((Ok(RequestAnswer::Response(response)), _)) => Ok(response),
            Waited::Answered((Err(error), _)) => Err(error),
            Waited::Answered((Ok(other), _)) => Err(ClientError::BadAnswer {
                operation: "request of",
                target: target.into(),
                why: format!("expected a response, got {other:?}").into(),
            }),
            Waited::TooLong(_) => Err(ClientError::RequestTimeout {
                operation: "request of",
                target: target.into(),
                waited: started.elapsed(),
            }),
        }
    }

    /// Direct messages to this client from now on, or custom messages of the broker. A client has one stream of each
    /// kind: a second one replaces and ends the first.
    ///
    /// # Errors
    ///
    /// [`ClientError::NotSupported`] if the protocol has no such messages.
    pub fn incoming(&self, inbox: Inbox) -> Result<Incoming, ClientError> {
        let mailbox = Mailbox::new(self.shared.gauge.clone(), Bound::None);
        let before = self.shared.with_core(|core| {
            core.conversation.tmqp(DIRECT)?;
            Ok::<_, ClientError>(core.inbox(inbox).replace(mailbox.clone()))
        })?;
        if let Some(before) = before {
            before.close();
        }
        Ok(Incoming { client: self.clone(), inbox, mailbox })
    }

    /// Sends a custom message to the program of the broker. Returns when the message is queued for sending; there is
    /// no answer.
    ///
    /// # Errors
    ///
    /// As [`Client::send`], and [`ClientError::NotSupported`] if the protocol has no custom messages.
    pub async fn send_custom(
        &self,
        body: impl AsRef<[u8]>,
        options: &SendOptions,
    ) -> Result<(), ClientError> {
        let headers = header_text(options)?;
        let message = direct_message("", body.as_ref(), &headers, options, Wait::Nothing);
        let deadline = self.shared.deadline(options.timeout);
        self.shared.say(deadline, |dialogue| dialogue.tmqp(DIRECT)?.send_custom(&message)).await?.map(drop)
    }

    /// Responds to a direct message that requests it. Status 0 is success; 1000 and above belong to applications.
    ///
    /// # Errors
    ///
    /// [`ClientError::InvalidArgument`] if it requests no response, [`ClientError::TooLarge`],
    /// [`ClientError::ConnectionLost`].
    pub async fn respond(
        &self,
        message: &Received,
        status: u16,
        body: impl AsRef<[u8]>,
    ) -> Result<(), ClientError> {
        if message.id().is_empty() || message.source().is_empty() {
            return Err(ClientError::invalid(
                "message",
                "it has no id or no source, so it cannot be answered",
            ));
        }
        let deadline = self.shared.deadline(None);
        let body = body.as_ref();
        self.shared
            .say(deadline, |dialogue| dialogue.tmqp(DIRECT)?.respond(message, status, &[], body))
            .await?
    }

    /// Sends an ack for a direct message to its sender, or a nack with a reason.
    ///
    /// # Errors
    ///
    /// As [`Client::respond`].
    pub async fn acknowledge_direct(
        &self,
        message: &Received,
        refusal: Option<&str>,
    ) -> Result<(), ClientError> {
        if message.id().is_empty() || message.source().is_empty() {
            return Err(ClientError::invalid(
                "message",
                "it has no id or no source, so its sender expects no acknowledgement",
            ));
        }
        let deadline = self.shared.deadline(None);
        self.shared
            .say(deadline, |dialogue| dialogue.tmqp(DIRECT)?.acknowledge_direct(message, refusal))
            .await?
    }
}

/// Direct messages to this client. After it is dropped, further messages count as unclaimed.
#[derive(Debug)]
pub struct Incoming {
    client: Client,
    inbox: Inbox,
    mailbox: Arc<Mailbox>,
}

impl Incoming {
    /// Waits for messages, and takes up to `max`. Empty: the client is closed, or another stream replaced this one.
    pub async fn next_batch(&self, max: usize) -> Vec<Received> {
        self.mailbox.next(max).await.into_iter().map(|queued| queued.message).collect()
    }

    /// Waits until [`Incoming::take`] returns something, or the stream ends. Cancel-safe.
    pub async fn ready(&self) {
        self.mailbox.ready().await;
    }

    /// Whether the stream has ended; available elements can still be taken.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.mailbox.is_closed()
    }

    /// Takes up to `max` available messages without waiting.
    pub fn take(&self, max: usize) -> Vec<Received> {
        self.mailbox.take(max).into_iter().map(|queued| queued.message).collect()
    }

    /// Ends the stream and wakes its waiting tasks.
    pub fn stop(&self) {
        self.mailbox.close();
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        let waiting = self.mailbox.waiting() as u64;
        ClientCounters::add(&self.client.shared.counters.unclaimed_direct, waiting);
        self.client.shared.with_core(|core| {
            let current = core.inbox(self.inbox);
            if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, &self.mailbox)) {
                *current = None;
            }
        });
    }
}

fn direct_message<'a>(
    target: &'a str,
    body: &'a [u8],
    headers: &'a [u8],
    options: &'a SendOptions,
    wait: Wait,
) -> DirectMessage<'a> {
    DirectMessage {
        target,
        id: options.id.as_deref(),
        headers,
        body,
        content_type: options.content_type,
        high_priority: options.high_priority,
        only_first: options.only_first,
        wait,
    }
}

fn header_text(options: &SendOptions) -> Result<Vec<u8>, ClientError> {
    let mut text = Vec::new();
    for (key, value) in &options.headers {
        push(&mut text, key, value)?;
    }
    Ok(text)
}
