//! Pulls: messages of pull queues, and the message of a cache queue.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use mqcore_wire::tmqp::Kind;
use mqcore_wire::tmqp::header::{key, last_header_value, no_content};
use mqcore_wire::tmqp::operation::status;

use crate::address::QueueAddress;
use crate::client::Client;
use crate::consume::{Delivered, DeliveryHold};
use crate::conversation::{PullAnswer, PullEnd, RequestAnswer};
use crate::dialogue::Part;
use crate::error::{ClientError, Refusal};
use crate::mailbox::{QueuedMessage, lock};
use crate::membership::Membership;
use crate::received::Received;
use crate::request::{Clear, Intent, PullRequest, Request};
use crate::shared::{Core, SharedClient, Waited};

/// Options of a pull.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullOptions {
    /// Maximum messages, at least 1. Default 1.
    pub count: u32,
    /// Whether to take the newest messages first. Default no.
    pub lifo: bool,
    /// Messages to remove from the queue afterwards. Default none.
    pub clear: Clear,
    /// Whether to request the number of remaining messages. Default yes.
    pub info: bool,
    /// Timeout. Default: the config's request timeout.
    pub timeout: Option<Duration>,
}

impl Default for PullOptions {
    fn default() -> Self {
        Self { count: 1, lifo: false, clear: Clear::default(), info: true, timeout: None }
    }
}

/// The result of a pull.
///
/// If it is dropped before [`Pulled::take`], for example because its task was cancelled, the program did not get the
/// messages. The broker requeues those with acknowledgement. It has removed the others, so the next pull of their queue
/// in this client returns them.
#[derive(Debug)]
pub struct Pulled {
    shared: Arc<SharedClient>,
    messages: Vec<Delivered>,
    /// Remaining messages of high and of normal priority, if requested and known. An empty pull leaves none.
    pub remaining: Option<(u64, u64)>,
    /// Whether the broker ended the pull. If not, the timeout expired or the connection was lost; these messages have
    /// left the queue anyway.
    pub complete: bool,
}

impl Pulled {
    /// Takes the messages, in order. A second call returns none.
    pub fn take(&mut self) -> Vec<Delivered> {
        std::mem::take(&mut self.messages)
    }
}

impl Drop for Pulled {
    fn drop(&mut self) {
        if !self.messages.is_empty() {
            let messages = self.messages.iter().map(Delivered::take_back).collect();
            self.shared.with_core(|core| core.give_back_pulled(messages));
        }
    }
}

impl Client {
    /// Takes up to `count` messages from a pull queue. An empty queue returns none.
    ///
    /// Only members of a channel may pull from it. The client joins it for the pull, and leaves it when the last
    /// message with acknowledgement is dropped.
    ///
    /// Messages of a call that is cancelled are treated like those of a [`Pulled`] that is dropped.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with status 404 for a missing queue, 401 without permission, 406 for a queue that is
    /// not in pull status; [`ClientError::RequestTimeout`] and [`ClientError::ConnectionLost`] if no message arrived.
    pub async fn pull(&self, queue: &QueueAddress, options: &PullOptions) -> Result<Pulled, ClientError> {
        let (answer, membership) = self.pull_raw(queue, options).await?;
        let complete = match &answer.end {
            PullEnd::NoContent(_) | PullEnd::Cached => true,
            PullEnd::CutShort => false,
        };
        let remaining = match answer.messages.last() {
            Some(last) => counts(last),
            None if complete => Some((0, 0)),
            None => None,
        };
        let messages = self.deliver(answer.messages, membership);
        Ok(Pulled { shared: self.shared.clone(), messages, remaining, complete })
    }

    /// Returns the message of a cache queue, which stays in the queue; `None` if it is empty.
    ///
    /// # Errors
    ///
    /// As [`Client::pull`].
    pub async fn get_cached(
        &self,
        queue: &QueueAddress,
        timeout: Option<Duration>,
    ) -> Result<Option<Received>, ClientError> {
        let options = PullOptions { info: false, timeout, ..PullOptions::default() };
        let (answer, _membership) = self.pull_raw(queue, &options).await?;
        Ok(answer.messages.into_iter().next())
    }

    async fn pull_raw(
        &self,
        queue: &QueueAddress,
        options: &PullOptions,
    ) -> Result<(PullAnswer, Membership), ClientError> {
        let started = Instant::now();
        let deadline = self.shared.deadline(options.timeout);
        let membership = self.join_to_pull(queue, options).await?;
        let PullOptions { count, lifo, clear, info, .. } = *options;
        let late = lock(&self.shared.core).conversation.take_late(queue, count as usize);
        if late.len() == count as usize {
            let end = PullEnd::NoContent(no_content::END.into());
            return Ok((PullAnswer { messages: late, end }, membership));
        }
        let count = count - late.len() as u32;
        let request = Request::pull(queue, &PullRequest { count, lifo, clear, info, attempts: true });
        let mut late = LateMessages { shared: &self.shared, messages: late };
        let waited = self.shared.answer(deadline, |conversation, waiter| conversation.pull(&request, waiter));
        let waited = waited.await?;
        late.take_more(queue, count, &waited);
        match waited {
            Waited::Answered((Ok(RequestAnswer::Pulled(answer)), _)) => {
                if let PullEnd::NoContent(reason) = &answer.end {
                    accepted(queue, reason)?;
                }
                Ok((late.before(answer), membership))
            }
            Waited::Answered((Err(error), _)) => Err(error),
            Waited::TooLong(Some(answer)) if !answer.messages.is_empty() || !late.messages.is_empty() => {
                Ok((late.before(answer), membership))
            }
            Waited::Answered((Ok(_), _)) | Waited::TooLong(_) => Err(ClientError::RequestTimeout {
                operation: request.operation,
                target: request.about.to_text(),
                waited: started.elapsed(),
            }),
        }
    }

    pub(crate) async fn join_to_pull(
        &self,
        queue: &QueueAddress,
        options: &PullOptions,
    ) -> Result<Membership, ClientError> {
        if options.count == 0 {
            return Err(ClientError::invalid("count", "it must be at least 1"));
        }
        let part = Part::Intent(Intent::Join(queue.channel().clone()));
        self.shared.take_part(part, options.timeout).await
    }

    fn deliver(&self, messages: Vec<Received>, membership: Membership) -> Vec<Delivered> {
        let membership = Arc::new(membership);
        let epoch = lock(&self.shared.core).epoch;
        let of_channel = |message: Received| {
            let held = message.wants_acknowledge().then(|| DeliveryHold::Channel(membership.clone()));
            Delivered::new(self.shared.clone(), QueuedMessage { message, epoch, since: Instant::now() }, held)
        };
        messages.into_iter().map(of_channel).collect()
    }
}

impl Core {
    /// Returns pulled messages that the program did not get. The broker requeues those with acknowledgement; the others
    /// are kept for the next pull.
    pub(crate) fn give_back_pulled(&mut self, messages: Vec<QueuedMessage>) {
        let (to_requeue, to_keep): (Vec<_>, Vec<_>) =
            messages.into_iter().partition(|queued| queued.message.wants_acknowledge());
        self.give_back(to_requeue);
        let to_keep = to_keep.into_iter().map(|queued| queued.message);
        // The message of a cache queue is a response, and is still in its queue.
        self.conversation.keep_late(to_keep.filter(|message| message.kind() == Kind::QUEUE).collect());
    }
}

/// Messages of earlier pulls, which arrived late. Dropping them keeps them for the next pull.
struct LateMessages<'a> {
    shared: &'a SharedClient,
    messages: Vec<Received>,
}

impl LateMessages<'_> {
    /// Takes the late messages that arrived while this pull waited, so that it is not empty although a message is here.
    fn take_more(&mut self, queue: &QueueAddress, count: u32, waited: &Waited) {
        let pulled = match waited {
            Waited::Answered((Ok(RequestAnswer::Pulled(answer)), _)) => answer.messages.len(),
            _ => return,
        };
        let missing = (count as usize).saturating_sub(pulled);
        self.messages.extend(lock(&self.shared.core).conversation.take_late(queue, missing));
    }

    /// Puts them before the messages of this pull.
    fn before(mut self, mut answer: PullAnswer) -> PullAnswer {
        answer.messages.splice(0..0, std::mem::take(&mut self.messages));
        answer
    }
}

impl Drop for LateMessages<'_> {
    fn drop(&mut self) {
        if !self.messages.is_empty() {
            lock(&self.shared.core).conversation.keep_late(std::mem::take(&mut self.messages));
        }
    }
}

/// Interprets the value of `No-Content`.
pub(crate) fn accepted(queue: &QueueAddress, reason: &str) -> Result<(), ClientError> {
    let (code, reason) = match reason {
        no_content::END | no_content::EMPTY => return Ok(()),
        no_content::UNAUTHORIZED => (status::UNAUTHORIZED, "this client must not pull from it"),
        no_content::UNACCEPTABLE => (
            status::UNACCEPTABLE,
            "the queue is not in pull status, or waits for its handler (see queue show)",
        ),
        no_content::NO_CHANNEL => (status::NOT_FOUND, "no such channel"),
        no_content::NO_QUEUE => (status::NOT_FOUND, "no such queue"),
        other => (status::FAILED, other),
    };
    let target = queue.to_string().into();
    Err(Refusal { code, operation: "pull from", target, reason: reason.into(), queue_stopped: false }.into())
}

/// Numbers of remaining messages, if the message has them.
pub(crate) fn counts(message: &Received) -> Option<(u64, u64)> {
    // The message's own headers come first.
    let number = |key| std::str::from_utf8(last_header_value(message.header_text(), key)?).ok()?.parse().ok();
    Some((number(key::PRIORITY_MESSAGES)?, number(key::MESSAGES)?))
}
