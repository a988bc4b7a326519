//! Custom messages to the program of the broker.

use mqcore_wire::tmqp::{Frame, Kind};

use super::{Conversation, DirectMessage, MessageId};
use crate::error::ClientError;

impl<W> Conversation<W> {
    /// Sends a custom message, whose target is ignored. It has no answer.
    ///
    /// # Errors
    ///
    /// As [`Conversation::publish`].
    pub fn send_custom(&mut self, message: &DirectMessage<'_>) -> Result<MessageId, ClientError> {
        let id = self.id_for(message.id, false)?;
        self.write(&Frame {
            high_priority: message.high_priority,
            content_type: message.content_type,
            id: &id,
            headers: message.headers,
            payload: message.body,
            ..Frame::new(Kind::OTHER)
        })?;
        Ok(id)
    }
}
