//! Confirmations of copies, which the headers of a message ask for.

use super::{Conversation, Expect, MessageId};
use crate::address::QueueAddress;
use crate::error::ClientError;
use crate::request::Target;

impl<W> Conversation<W> {
    /// The id of a copy that the headers of a message ask for.
    ///
    /// # Errors
    ///
    /// [`ClientError::InvalidArgument`] for an id in use.
    pub fn copy_id(&mut self, given: Option<&str>) -> Result<MessageId, ClientError> {
        self.id_for(given, true)
    }

    /// Waits for the confirmation of a copy with this id.
    pub fn expect_copy(&mut self, id: MessageId, queue: &QueueAddress, waiter: W) {
        let about = Target::Queue(queue.clone());
        self.wait(id, Expect::Confirmation, "publish to", about, Some(waiter));
    }
}
