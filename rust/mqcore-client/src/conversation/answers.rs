//! Answers of a consumer to messages: acknowledgements, returned messages, and requests for more time.

use std::time::Duration;

use mqcore_wire::tmqp::header::{VALUE_YES, key, nack_reason, push_header};
use mqcore_wire::tmqp::operation::Operation;
use mqcore_wire::tmqp::{Frame, Kind};

use super::{Conversation, REASON_CONSUMER_CLOSED};
use crate::address::QueueAddress;
use crate::error::ClientError;
use crate::received::Received;
use crate::request::{Intent, Request};

impl<W> Conversation<W> {
    /// Returns a message that the program did not get. The broker requeues it.
    pub fn give_back(&mut self, message: &Received) {
        let mut headers = Vec::new();
        let mut lines = vec![(key::NACK_REASON, REASON_CONSUMER_CLOSED)];
        if self.joins_queues {
            lines.push((key::UNSTARTED, VALUE_YES));
        }
        for (key, value) in lines {
            let pushed = push_header(&mut headers, key, value.as_bytes());
            debug_assert_eq!(pushed, Ok(()), "constants are valid");
        }
        let written = self.write_acknowledgement(message, &headers);
        debug_assert_eq!(written, Ok(()), "the rest comes from a frame");
    }

    /// Ends the deliveries of a queue that no user consumes, if the broker sent one nevertheless.
    pub fn leave_unused(&mut self, message: &Received) {
        let Ok(channel) = str::from_utf8(message.target()) else { return };
        let is_unused = self.joins_queues && self.has_joined(message.target());
        if let (true, Ok(queue)) = (is_unused, QueueAddress::new(channel, message.content_type())) {
            self.write_unanswered(&Request::give_up(&Intent::Consume(queue, 0)));
        }
    }

    /// Asks for the whole acknowledge timeout again. Returns whether the broker knows this request.
    pub fn extend(&mut self, message: &Received) -> bool {
        if !self.joins_queues {
            return false;
        }
        let mut headers = Vec::new();
        let id = message.content_type().to_string();
        let pushed = push_header(&mut headers, key::QUEUE_ID, id.as_bytes());
        debug_assert_eq!(pushed, Ok(()), "digits are valid");
        let frame = Frame {
            content_type: Operation::ExtendDelivery.code(),
            id: message.id(),
            target: message.target(),
            headers: &headers,
            ..Frame::new(Kind::SERVER)
        };
        let written = self.write(&frame);
        debug_assert_eq!(written, Ok(()), "the rest comes from a frame");
        true
    }

    /// Sends an ack for a message of a queue, or a nack with a reason.
    ///
    /// # Errors
    ///
    /// [`ClientError::InvalidArgument`] for a reason that is not a valid header value.
    pub fn acknowledge(&mut self, message: &Received, refusal: Option<&str>) -> Result<(), ClientError> {
        let headers = refusal_headers(refusal)?;
        self.write_acknowledgement(message, &headers)
    }

    fn write_acknowledgement(&mut self, message: &Received, headers: &[u8]) -> Result<(), ClientError> {
        self.write(&Frame {
            first_acquirer: message.first_acquirer(),
            content_type: message.content_type(),
            id: message.id(),
            target: message.target(),
            headers,
            ..Frame::new(Kind::ACKNOWLEDGE)
        })
    }

    /// Sends a nack for a message of a queue, with the delay before it is redelivered.
    ///
    /// # Errors
    ///
    /// As [`Conversation::acknowledge`].
    pub fn postpone(&mut self, message: &Received, reason: &str, delay: Duration) -> Result<(), ClientError> {
        let mut headers = refusal_headers(Some(reason))?;
        crate::request::push(&mut headers, key::RETRY_AFTER, &format!("{:.3}", delay.as_secs_f64()))?;
        self.write_acknowledgement(message, &headers)
    }

    /// Sends an ack for a direct message to its sender, or a nack with a reason.
    ///
    /// # Errors
    ///
    /// [`ClientError::InvalidArgument`] for a reason that is not a valid header value.
    pub fn acknowledge_direct(
        &mut self,
        message: &Received,
        refusal: Option<&str>,
    ) -> Result<(), ClientError> {
        let headers = refusal_headers(refusal)?;
        self.write(&Frame {
            first_acquirer: message.first_acquirer(),
            // Marks the target as a client, not a channel.
            high_priority: true,
            content_type: message.content_type(),
            id: message.id(),
            target: message.source(),
            headers: &headers,
            ..Frame::new(Kind::ACKNOWLEDGE)
        })
    }
}

fn refusal_headers(refusal: Option<&str>) -> Result<Vec<u8>, ClientError> {
    let mut headers = Vec::new();
    if let Some(reason) = refusal {
        let reason = if reason.is_empty() { nack_reason::NONE } else { reason };
        crate::request::push(&mut headers, key::NACK_REASON, reason)?;
    }
    Ok(headers)
}
