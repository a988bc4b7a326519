//! A received message in one allocation.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use mqcore_wire::tmqp::header::{Pairs, header_value, key, pairs};
use mqcore_wire::tmqp::{Frame, Kind};

/// A received message. Cloning shares it.
///
/// It is copied from the read buffer, so that a kept message does not keep the whole buffer.
#[derive(Clone)]
pub struct Received {
    /// Id, source, target, headers and body, in this order.
    block: Bytes,
    id: u8,
    source: u8,
    target: u8,
    headers: u16,
    kind: Kind,
    content_type: u16,
    hops: u8,
    first_acquirer: bool,
    high_priority: bool,
    pending_response: bool,
    pending_acknowledge: bool,
    receipt: u32,
    /// 0: unknown, or in a header.
    attempt: u32,
}

impl Received {
    /// Copies a decoded frame, whose parts fit their length fields.
    #[must_use]
    pub fn copy(frame: &Frame<'_>) -> Self {
        let parts = [frame.id, frame.source, frame.target, frame.headers, frame.payload];
        let mut block = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
        for part in parts {
            block.extend_from_slice(part);
        }
        Self {
            block: block.into(),
            id: frame.id.len() as u8,
            source: frame.source.len() as u8,
            target: frame.target.len() as u8,
            headers: frame.headers.len() as u16,
            kind: frame.kind,
            content_type: frame.content_type,
            hops: frame.hops,
            first_acquirer: frame.first_acquirer,
            high_priority: frame.high_priority,
            pending_response: frame.pending_response,
            pending_acknowledge: frame.pending_acknowledge,
            receipt: 0,
            attempt: 0,
        }
    }

    /// Adds the receipt with which the conversation settles it, for protocols where the id is not enough.
    pub(crate) fn with_receipt(self, receipt: u32) -> Self {
        Self { receipt, ..self }
    }

    /// Sets the number of this attempt to deliver it.
    pub(crate) fn with_attempt(self, attempt: u32) -> Self {
        Self { attempt, ..self }
    }

    pub(crate) fn receipt(&self) -> u32 {
        self.receipt
    }

    /// Its id, at most 255 bytes: usually 32 lower-case hex digits; in MicroMessage2 its number on this connection.
    #[must_use]
    pub fn id(&self) -> &[u8] {
        &self.block[..self.id.into()]
    }

    /// The client that sent it; empty if the queue hides client names.
    #[must_use]
    pub fn source(&self) -> &[u8] {
        self.part(self.id.into(), self.source.into())
    }

    /// The channel, or the target of a direct message.
    #[must_use]
    pub fn target(&self) -> &[u8] {
        self.part(usize::from(self.id) + usize::from(self.source), self.target.into())
    }

    /// Header text.
    #[must_use]
    pub fn header_text(&self) -> &[u8] {
        self.part(self.headers_at(), self.headers.into())
    }

    /// Header keys and values in their order; a key may repeat.
    #[must_use]
    pub fn headers(&self) -> Pairs<'_> {
        pairs(self.header_text())
    }

    /// The first header with this name, ignoring ASCII case.
    #[must_use]
    pub fn header(&self, key: &str) -> Option<Cow<'_, str>> {
        header_value(self.header_text(), key).map(String::from_utf8_lossy)
    }

    /// The body, without a copy.
    #[must_use]
    pub fn body(&self) -> Bytes {
        self.block.slice(self.body_at()..)
    }

    /// The body, borrowed.
    #[must_use]
    pub fn body_slice(&self) -> &[u8] {
        &self.block[self.body_at()..]
    }

    /// The queue's id, the status of a response, or the content type of a direct message.
    #[must_use]
    pub fn content_type(&self) -> u16 {
        self.content_type
    }

    /// The kind of message.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Remaining hops.
    #[must_use]
    pub fn hops(&self) -> u8 {
        self.hops
    }

    /// Whether this client is the first that gets a message of a queue.
    #[must_use]
    pub fn first_acquirer(&self) -> bool {
        self.first_acquirer
    }

    /// Whether it has high priority.
    #[must_use]
    pub fn high_priority(&self) -> bool {
        self.high_priority
    }

    /// Whether its sender waits for a response.
    #[must_use]
    pub fn wants_response(&self) -> bool {
        self.pending_response
    }

    /// Whether the queue or the sender waits for an acknowledgement.
    #[must_use]
    pub fn wants_acknowledge(&self) -> bool {
        self.pending_acknowledge
    }

    /// The number of this attempt to deliver a message of a queue, from 1; `None` if the broker did not send it.
    #[must_use]
    pub fn attempt(&self) -> Option<u32> {
        if self.attempt > 0 {
            return Some(self.attempt);
        }
        // The broker's header follows those of the producer.
        let own =
            self.headers().filter(|(name, _)| name.eq_ignore_ascii_case(key::ATTEMPT.as_bytes())).last();
        own.and_then(|(_, value)| str::from_utf8(value).ok()?.trim().parse().ok())
    }

    /// Memory use in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.block.len()
    }

    fn headers_at(&self) -> usize {
        usize::from(self.id) + usize::from(self.source) + usize::from(self.target)
    }

    fn body_at(&self) -> usize {
        self.headers_at() + usize::from(self.headers)
    }

    fn part(&self, at: usize, len: usize) -> &[u8] {
        &self.block[at..at + len]
    }
}

impl fmt::Debug for Received {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Received")
            .field("kind", &self.kind)
            .field("id", &String::from_utf8_lossy(self.id()))
            .field("source", &String::from_utf8_lossy(self.source()))
            .field("target", &String::from_utf8_lossy(self.target()))
            .field("content_type", &self.content_type)
            .field("body_bytes", &self.body_slice().len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_found_again() {
        let frame = Frame {
            id: b"i1",
            source: b"src",
            target: b"tgt4",
            headers: b"A:1\r\na:2\r\n",
            payload: b"body",
            content_type: 9,
            pending_acknowledge: true,
            ..Frame::new(Kind::QUEUE)
        };
        let received = Received::copy(&frame);
        assert_eq!(
            (received.id(), received.source(), received.target()),
            (&b"i1"[..], &b"src"[..], &b"tgt4"[..])
        );
        assert_eq!(received.header("a").as_deref(), Some("1"));
        assert_eq!(received.headers().count(), 2);
        assert_eq!((received.body_slice(), &received.body()[..]), (&b"body"[..], &b"body"[..]));
        assert!(received.wants_acknowledge() && !received.wants_response());
        assert_eq!(received.content_type(), 9);
    }
}
