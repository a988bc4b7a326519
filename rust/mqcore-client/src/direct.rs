//! Messages from client to client: sending, asking, and being asked.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::client::Client;
use crate::conversation::{Answer, DirectMessage, Wait};
use crate::counters::Counters;
use crate::dialogue::DIRECT;
use crate::error::ClientError;
use crate::mailbox::{Bound, Mailbox};
use crate::received::Received;
use crate::request::push;
use crate::shared::Waited;

/// How to send.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SendOptions {
    /// What sender and receiver agreed on. Default 0.
    pub content_type: u16,
    /// The message's id. Default: a new one.
    pub id: Option<String>,
    /// Headers, in this order.
    pub headers: Vec<(String, String)>,
    /// Before all others. Default no.
    pub high_priority: bool,
    /// Of the clients that match `@name:` or `@type:`, only the one connected longest. Default no.
    pub only_first: bool,
    /// How long an acknowledgement or response may take. Default: the config's request timeout.
    pub timeout: Option<Duration>,
}

impl Client {
    /// Sends to a client: its id, `@name:NAME` or `@type:KIND`. Answers as soon as it is on its way; that nobody was
    /// there is not known.
    ///
    /// # Errors
    ///
    /// [`ClientError::InvalidArgument`], [`ClientError::TooLarge`], [`ClientError::ConnectionLost`].
    pub async fn send(
        &self,
        target: &str,
        body: impl AsRef<[u8]>,
        options: &SendOptions,
    ) -> Result<(), ClientError> {
        let headers = header_text(options)?;
        let message = direct_message(target, body.as_ref(), &headers, options, Wait::Nothing);
        let deadline = self.shared.deadline(options.timeout);
        self.shared.say(deadline, |conversation| conversation.send(&message, None)).await?.map(drop)
    }

    /// Sends, and waits until the receiver acknowledged. Answers how long that took.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with status 404 if nobody of that id is there, [`ClientError::Nacked`],
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
            Waited::Answered((result, at)) => result.map(|_: Answer| at.saturating_duration_since(started)),
            Waited::TooLong(_) => {
                Err(ClientError::ConfirmTimeout { target: target.into(), waited: started.elapsed() })
            }
        }
    }

    /// Sends, and waits for the receiver's response, which has status 0 or one of an application (1000 and above).
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with status 404 if nobody matches, and with whatever other status the receiver answered;
    /// [`ClientError::RequestTimeout`], and those of [`Client::send`].
    pub async fn request(
        &self,
        target: &str,
        body: impl AsRef<[u8]>,
        options: &SendOptions,
    ) -> Result<Received, ClientError> {
        let started = Instant::now();
        let headers = header_text(options)?;
        let message = direct_message(target, body.as_ref(), &headers, options, Wait::Response);
        let deadline = self.shared.deadline(options.timeout);
        let waited =
            self.shared.answer(deadline, |conversation, waiter| conversation.send(&message, Some(waiter)));
        match waited.await? {
            Waited::Answered((Ok(Answer::Response(response)), _)) => Ok(response),
            Waited::Answered((Err(error), _)) => Err(error),
            Waited::Answered((Ok(other), _)) => Err(ClientError::BadAnswer {
                operation: "request of",
                target: target.into(),
                why: format!("a response was expected and not {other:?}").into(),
            }),
            Waited::TooLong(_) => Err(ClientError::RequestTimeout {
                operation: "request of",
                target: target.into(),
                waited: started.elapsed(),
            }),
        }
    }

    /// Direct messages to this client from now on. There is one such stream a client: a second one takes the place of
    /// the first, which ends.
    ///
    /// # Errors
    ///
    /// [`ClientError::NotSupported`] where the protocol has no such messages.
    pub fn incoming(&self) -> Result<Incoming, ClientError> {
        let mailbox = Mailbox::new(self.shared.gauge.clone(), Bound::None);
        let before = self.shared.say_now(|core| {
            core.conversation.tmqp(DIRECT)?;
            Ok::<_, ClientError>(core.direct().replace(mailbox.clone()))
        })?;
        if let Some(before) = before {
            before.close();
        }
        Ok(Incoming { client: self.clone(), mailbox })
    }

    /// Answers a direct message that asked for it. Status 0 is success, 1000 and above belong to applications.
    ///
    /// # Errors
    ///
    /// [`ClientError::InvalidArgument`] if it did not ask, [`ClientError::TooLarge`], [`ClientError::ConnectionLost`].
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

    /// Acknowledges a direct message to its sender, or refuses it with a reason.
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
            return Err(ClientError::invalid("message", "it has no id or no source, so nobody waits for it"));
        }
        let deadline = self.shared.deadline(None);
        self.shared
            .say(deadline, |dialogue| dialogue.tmqp(DIRECT)?.acknowledge_direct(message, refusal))
            .await?
    }
}

/// Direct messages to this client. Dropping it counts those that come later as unclaimed.
#[derive(Debug)]
pub struct Incoming {
    client: Client,
    mailbox: Arc<Mailbox>,
}

impl Incoming {
    /// Waits for messages, and takes up to `max` of those that are there. Empty: the client is closed, or another
    /// stream took this one's place.
    pub async fn next_batch(&self, max: usize) -> Vec<Received> {
        self.mailbox.next(max).await.into_iter().map(|letter| letter.message).collect()
    }

    /// Waits until [`Incoming::take`] finds something, or nothing will come any more. Cancelling it loses nothing.
    pub async fn ready(&self) {
        self.mailbox.ready().await;
    }

    /// Whether no more will come: what is there now is the rest.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.mailbox.is_closed()
    }

    /// Takes up to `max` of the messages that are there now, without waiting.
    pub fn take(&self, max: usize) -> Vec<Received> {
        self.mailbox.take(max).into_iter().map(|letter| letter.message).collect()
    }

    /// Ends the waiting of whoever takes from it.
    pub fn stop(&self) {
        self.mailbox.close();
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        let waiting = self.mailbox.waiting() as u64;
        Counters::add(&self.client.shared.counters.unclaimed_direct, waiting);
        self.client.shared.say_now(|core| {
            if core.direct().as_ref().is_some_and(|current| Arc::ptr_eq(current, &self.mailbox)) {
                *core.direct() = None;
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
