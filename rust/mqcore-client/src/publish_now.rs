//! Publishing without waiting, for programs that collect confirmations in batches.

use std::sync::Arc;

use tokio::time::Instant;

use crate::address::QueueAddress;
use crate::client::Client;
use crate::confirmations::{ConfirmationTicket, Confirmations, PendingConfirmation};
use crate::conversation::MessageId;
use crate::error::ClientError;
use crate::mailbox::lock;
use crate::publish::PublishOptions;
use crate::waiter::Waiter;

/// The result of [`Client::publish_now`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublishNow {
    /// The message is queued for writing.
    Queued {
        /// Its id.
        id: MessageId,
        /// Whether a call of [`Client::flush`] makes a difference: a message with confirmation waits for it, and one without
        /// is written a millisecond later otherwise.
        unwritten: bool,
    },
    /// Nothing: there is no connection or no room, another call waits for one, or these options need
    /// [`Client::publish`].
    NotNow,
}

impl Client {
    /// Publishes one message if that is possible without waiting. A message with confirmation needs `confirmations`, which
    /// get its outcome: a confirmation, or an error as from [`Client::publish`]. If the call fails or returns
    /// [`PublishNow::NotNow`], they get nothing.
    ///
    /// A message with confirmation is not written before a call of [`Client::flush`], so that several share one write.
    /// Messages without, which follow each other closely, share one too.
    ///
    /// Retries, and copies with confirmations, are never possible without waiting.
    ///
    /// # Errors
    ///
    /// [`ClientError::Closed`], and as from [`Client::publish`] for invalid arguments.
    pub fn publish_now(
        &self,
        queue: &QueueAddress,
        body: &[u8],
        options: &PublishOptions,
        confirmations: Option<(&Arc<dyn Confirmations>, ConfirmationTicket)>,
    ) -> Result<PublishNow, ClientError> {
        let waits = options.retry || (options.confirm && !options.cc.is_empty());
        if waits || options.confirm != confirmations.is_some() {
            return Ok(PublishNow::NotNow);
        }
        self.check(queue, options)?;
        let pending = confirmations.map(|(confirmations, ticket)| {
            let (started, deadline) = (Instant::now(), self.shared.deadline(options.timeout));
            let (confirmations, queue) = (confirmations.clone(), queue.clone());
            PendingConfirmation { confirmations, ticket, queue, started, deadline }
        });
        let deadline = pending.as_ref().map(|pending| pending.deadline);
        let waiter = pending.map(|pending| Waiter::Collected(Box::new(pending)));
        let said = options.with_message(queue, body, |message| {
            self.shared.say_now(deadline, |conversation| conversation.publish(message, waiter))
        })??;
        let Some((id, unwritten)) = said else { return Ok(PublishNow::NotNow) };
        Ok(PublishNow::Queued { id: id?, unwritten })
    }

    /// Writes what [`Client::publish_now`] has queued: a little from this thread, and more in the connection task.
    pub fn flush(&self) {
        self.shared.flush();
    }

    /// Whether both are handles of the same client.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Stops waiting for the confirmation of a message that [`Client::publish_now`] queued. Its outcome may have been put
    /// already.
    pub fn forget_confirmation(&self, id: &MessageId) {
        lock(&self.shared.core).conversation.forget(id);
        self.shared.room.notify_waiters();
    }
}
