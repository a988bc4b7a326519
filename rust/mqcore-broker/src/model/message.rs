//! A published message: one allocation, shared by everything that handles it.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use triomphe::ThinArc;

use crate::model::client::Client;
use crate::model::intake::Ticket;
use crate::model::rejection::{Rejection, RejectionKind};
use crate::model::terms::{LEVEL_HIGH, LEVEL_HIGH_MIN, LEVEL_NORMAL, MessageTerms, has_terms};
use crate::model::time::Timestamp;

/// Offsets of the parts of a message in its block.
///
/// Invariant, checked by [`Message::new`]: `id`, `source`, `headers` and `body` lie inside the block,
/// in this order, without overlap. Gaps are allowed, so that a codec can pass a part of its buffer.
#[derive(Debug, Clone, Default)]
pub struct Layout {
    /// Message id; empty if the message has none.
    pub id: Range<usize>,
    /// Id of the producer if the block contains it (messages relayed by other nodes); otherwise empty.
    pub source: Range<usize>,
    /// Header text: `key:value` lines, each ended by CR LF.
    pub headers: Range<usize>,
    /// The body.
    pub body: Range<usize>,
}

/// Hops of a message that starts at this broker, as in TMQP.
pub const HOPS_FRESH: u8 = 16;

/// Properties of a message apart from its bytes. The default: no flags, content type 0 and [`HOPS_FRESH`] hops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Properties {
    /// Whether it goes ahead of messages of normal priority.
    pub high_priority: bool,
    /// For direct messages to a name or a type: only the oldest match receives it.
    pub first_acquirer: bool,
    /// Whether the sender waits for a response.
    pub pending_response: bool,
    /// Whether the sender waits for an acknowledgement.
    pub pending_acknowledge: bool,
    /// Whether its header `Unique-Key` has a key that only one message of a queue may have.
    pub unique: bool,
    /// Whether its headers have [terms](crate::model::terms) that its queues apply.
    pub terms: bool,
    /// Whether its queue remembers its id, so that another message with the same id is a duplicate.
    pub remembered: bool,
    /// Its priority if its headers have one; otherwise 0, and `high_priority` decides.
    pub priority: u8,
    /// Remaining hops, after this one.
    pub hops: u8,
    /// Content type, agreed on by sender and receiver; for queue messages the queue id.
    pub content_type: u16,
}

impl Default for Properties {
    fn default() -> Self {
        Self {
            high_priority: false,
            first_acquirer: false,
            pending_response: false,
            pending_acknowledge: false,
            unique: false,
            terms: false,
            remembered: false,
            priority: LEVEL_NORMAL,
            // TMQP clients ignore frames without hops.
            hops: HOPS_FRESH,
            content_type: 0,
        }
    }
}

impl Properties {
    /// The same properties with the terms that header text contains. [`Message::check_terms`] reports invalid ones,
    /// which have no effect.
    #[inline]
    #[must_use]
    pub fn with_terms_of(self, headers: &[u8]) -> Self {
        if has_terms(headers) { self.with_terms(headers) } else { self }
    }

    #[cold]
    fn with_terms(self, headers: &[u8]) -> Self {
        match MessageTerms::read(headers) {
            Ok(MessageTerms { priority: Some(priority), .. }) => {
                Self { terms: true, priority, high_priority: priority >= LEVEL_HIGH_MIN, ..self }
            }
            Ok(terms) => Self { terms: terms != MessageTerms::default(), ..self },
            // The session that publishes the message rejects it.
            Err(_) => Self { terms: true, ..self },
        }
    }

    /// Its priority: higher is sooner.
    #[inline]
    #[must_use]
    pub fn level(self) -> u8 {
        match self.priority {
            LEVEL_NORMAL if self.high_priority => LEVEL_HIGH,
            priority => priority,
        }
    }
}

#[derive(Debug)]
struct MessageHead {
    producer: Option<Arc<Client>>,
    /// When the first queue took it, in Unix milliseconds; 0: none has.
    received: AtomicU64,
    ticket: Option<Box<Ticket>>,
    properties: Properties,
    id_len: u8,
    source_len: u8,
    headers_len: u16,
    id_at: u32,
    source_at: u32,
    headers_at: u32,
    body_at: u32,
    body_len: u32,
}

/// A published message. Cloning shares the allocation.
#[derive(Clone)]
pub struct Message(ThinArc<MessageHead, u8>);

/// Maximum size of a message's block in bytes.
pub const BLOCK_BYTES_MAX: usize = u32::MAX as usize;

impl Message {
    /// Copies `block` once and keeps its layout.
    ///
    /// # Panics
    /// If the layout violates its invariant, which is a defect of the session, never of a peer.
    pub fn new(block: &[u8], layout: &Layout, properties: Properties, producer: Option<Arc<Client>>) -> Self {
        Self::build(block, layout, properties, producer, None)
    }

    /// A message from a downstream broker: it has no local producer, and `ticket` identifies it at that
    /// broker.
    ///
    /// # Panics
    /// See [`Message::new`].
    pub fn passed_on(block: &[u8], layout: &Layout, properties: Properties, ticket: Ticket) -> Self {
        Self::build(block, layout, properties, None, Some(Box::new(ticket)))
    }

    fn build(
        block: &[u8],
        layout: &Layout,
        properties: Properties,
        producer: Option<Arc<Client>>,
        ticket: Option<Box<Ticket>>,
    ) -> Self {
        assert!(block.len() <= BLOCK_BYTES_MAX, "codecs limit frames far below this");
        assert!(
            layout.id.end <= layout.source.start.max(layout.id.end)
                && layout.headers.end <= layout.body.start
                && layout.body.end <= block.len()
                && layout.source.end <= block.len()
                && layout.id.end <= block.len(),
            "the parts of a message lie inside its block"
        );
        let head = MessageHead {
            producer,
            received: AtomicU64::new(0),
            ticket,
            properties,
            id_len: u8::try_from(layout.id.len()).expect("ids have at most 255 bytes"),
            source_len: u8::try_from(layout.source.len()).expect("sources have at most 255 bytes"),
            headers_len: u16::try_from(layout.headers.len()).expect("headers have at most 65535 bytes"),
            id_at: layout.id.start as u32,
            source_at: layout.source.start as u32,
            headers_at: layout.headers.start as u32,
            body_at: layout.body.start as u32,
            body_len: layout.body.len() as u32,
        };
        Self(ThinArc::from_header_and_slice(head, block))
    }

    /// Builds a message from separate parts.
    pub fn from_parts(
        id: &[u8],
        headers: &[u8],
        body: &[u8],
        properties: Properties,
        producer: Option<Arc<Client>>,
    ) -> Self {
        let mut block = Vec::with_capacity(id.len() + headers.len() + body.len());
        block.extend_from_slice(id);
        block.extend_from_slice(headers);
        block.extend_from_slice(body);
        let headers_at = id.len();
        let body_at = headers_at + headers.len();
        let layout = Layout {
            id: 0..id.len(),
            source: id.len()..id.len(),
            headers: headers_at..body_at,
            body: body_at..block.len(),
        };
        Self::new(&block, &layout, properties, producer)
    }

    /// The same message with another id.
    pub fn with_id(&self, id: &[u8]) -> Self {
        let (source, headers, body) = (self.own_source(), self.headers(), self.body());
        let mut block = Vec::with_capacity(id.len() + source.len() + headers.len() + body.len());
        for part in [id, source, headers, body] {
            block.extend_from_slice(part);
        }
        let source_at = id.len();
        let headers_at = source_at + source.len();
        let body_at = headers_at + headers.len();
        let layout = Layout {
            id: 0..source_at,
            source: source_at..headers_at,
            headers: headers_at..body_at,
            body: body_at..block.len(),
        };
        let head = &self.0.header.header;
        let same = Self::build(&block, &layout, head.properties, head.producer.clone(), head.ticket.clone());
        same.received_at(self.received());
        same
    }

    /// The same message with header lines before its own, so that they take precedence: `key:value`, each ended by
    /// CR LF. `None` if all lines together have more than 65,535 bytes.
    #[must_use]
    pub fn with_headers(&self, lines: &[u8]) -> Option<Self> {
        if lines.len() + self.headers().len() > usize::from(u16::MAX) {
            return None;
        }
        let (id, source, headers, body) = (self.id(), self.own_source(), self.headers(), self.body());
        let block = [id, source, lines, headers, body].concat();
        let headers_at = id.len() + source.len();
        let body_at = headers_at + lines.len() + headers.len();
        let layout = Layout {
            id: 0..id.len(),
            source: id.len()..headers_at,
            headers: headers_at..body_at,
            body: body_at..block.len(),
        };
        let head = &self.0.header.header;
        let same = Self::build(&block, &layout, head.properties, head.producer.clone(), head.ticket.clone());
        same.received_at(self.received());
        Some(same)
    }

    /// When the first queue of this broker took it; `Timestamp(0)` if none has.
    pub fn received(&self) -> Timestamp {
        Timestamp(self.0.header.header.received.load(Ordering::Relaxed))
    }

    /// Notes when the first queue took it. All copies that share the message see the time.
    pub fn received_at(&self, now: Timestamp) {
        self.0.header.header.received.store(now.0, Ordering::Relaxed);
    }

    /// The same message, marked as one whose id counts.
    pub(crate) fn remembered(&self) -> Self {
        let head = &self.0.header.header;
        let properties = Properties { remembered: true, ..head.properties };
        let (producer, ticket) = (head.producer.clone(), head.ticket.clone());
        let received = AtomicU64::new(self.received().0);
        let head = MessageHead { producer, ticket, properties, received, ..*head };
        Self(ThinArc::from_header_and_slice(head, &self.0.slice))
    }

    fn part(&self, at: u32, len: usize) -> &[u8] {
        &self.0.slice[at as usize..at as usize + len]
    }

    /// Whether `other` is a clone of this message.
    pub fn is_same(&self, other: &Self) -> bool {
        std::ptr::addr_eq(&*self.0, &*other.0)
    }

    /// Message id; empty if it has none.
    pub fn id(&self) -> &[u8] {
        self.part(self.0.header.header.id_at, self.0.header.header.id_len.into())
    }

    /// Id of the producing client; empty if it is unknown.
    pub fn source(&self) -> &[u8] {
        let head = &self.0.header.header;
        match &head.producer {
            _ if head.source_len > 0 => self.own_source(),
            Some(producer) => producer.id.as_bytes(),
            None => &[],
        }
    }

    /// The source in the block.
    fn own_source(&self) -> &[u8] {
        self.part(self.0.header.header.source_at, self.0.header.header.source_len.into())
    }

    /// The same message without a ticket.
    pub(crate) fn without_ticket(&self) -> Self {
        let head = &self.0.header.header;
        if head.ticket.is_none() {
            return self.clone();
        }
        let (id, headers) = (usize::from(head.id_len), usize::from(head.headers_len));
        let range = |at: u32, len: usize| at as usize..at as usize + len;
        let layout = Layout {
            id: range(head.id_at, id),
            source: range(head.source_at, head.source_len.into()),
            headers: range(head.headers_at, headers),
            body: range(head.body_at, head.body_len as usize),
        };
        Self::build(&self.0.slice, &layout, head.properties, head.producer.clone(), None)
    }

    /// The ticket of a message from a downstream broker.
    pub fn ticket(&self) -> Option<&Ticket> {
        self.0.header.header.ticket.as_deref()
    }

    /// Header text, `key:value` lines each ended by CR LF; empty if there is none.
    pub fn headers(&self) -> &[u8] {
        self.part(self.0.header.header.headers_at, self.0.header.header.headers_len.into())
    }

    /// The body.
    pub fn body(&self) -> &[u8] {
        self.part(self.0.header.header.body_at, self.0.header.header.body_len as usize)
    }

    /// The terms that its producer set.
    pub fn terms(&self) -> MessageTerms {
        if self.properties().terms {
            MessageTerms::read(self.headers()).unwrap_or_default()
        } else {
            MessageTerms::default()
        }
    }

    /// Checks the terms that its producer set.
    ///
    /// # Errors
    /// `BadRequest` for a value that is not a number in its range, and for an expiry that is not after the delay.
    #[inline]
    pub fn check_terms(&self) -> Result<(), Rejection> {
        if self.properties().terms { self.read_terms() } else { Ok(()) }
    }

    #[cold]
    fn read_terms(&self) -> Result<(), Rejection> {
        let read = MessageTerms::read(self.headers()).map(drop);
        read.map_err(|error| Rejection::new(RejectionKind::BadRequest, error.to_string()))
    }

    /// Flags, hops and content type.
    pub fn properties(&self) -> Properties {
        self.0.header.header.properties
    }

    /// The producer if it is connected to this broker.
    pub fn producer(&self) -> Option<&Arc<Client>> {
        self.0.header.header.producer.as_ref()
    }

    /// The same message with this producer, which may still be connected although the message was
    /// loaded from the journal.
    #[must_use]
    pub(crate) fn produced_by(&self, producer: Arc<Client>) -> Self {
        let head = &self.0.header.header;
        let received = AtomicU64::new(self.received().0);
        let head = MessageHead { producer: Some(producer), ticket: head.ticket.clone(), received, ..*head };
        Self(ThinArc::from_header_and_slice(head, &self.0.slice))
    }

    /// Memory, in bytes, of a message whose parts have this total length.
    pub fn memory_bytes_of(parts: usize) -> u64 {
        (size_of::<MessageHead>() + 2 * size_of::<usize>() + parts) as u64
    }

    /// Memory of this message in bytes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<MessageHead>() + 2 * size_of::<usize>() + self.0.slice.len()
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Message")
            .field("id", &String::from_utf8_lossy(self.id()))
            .field("source", &String::from_utf8_lossy(self.source()))
            .field("body_bytes", &self.body().len())
            .field("properties", &self.properties())
            .finish()
    }
}
