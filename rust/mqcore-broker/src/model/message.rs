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
/// Invariant, checked by [`Message::new`]: the block begins with the id, directly followed by the source, and ends with
/// the headers, directly followed by the body. A gap is allowed between source and headers, so that a codec can pass a
/// part of its buffer.
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

    /// Its flags as bits. The journal stores them, so no bit may change its meaning.
    #[inline]
    pub(crate) fn flags(self) -> u8 {
        u8::from(self.high_priority)
            | u8::from(self.first_acquirer) << 1
            | u8::from(self.pending_response) << 2
            | u8::from(self.pending_acknowledge) << 3
            | u8::from(self.unique) << 4
            | u8::from(self.terms) << 5
            | u8::from(self.remembered) << 6
    }

    /// The same properties with the flags of [`Properties::flags`].
    #[inline]
    pub(crate) fn with_flags(self, flags: u8) -> Self {
        let is_set = |bit: u8| flags >> bit & 1 == 1;
        Self {
            high_priority: is_set(0),
            first_acquirer: is_set(1),
            pending_response: is_set(2),
            pending_acknowledge: is_set(3),
            unique: is_set(4),
            terms: is_set(5),
            remembered: is_set(6),
            ..self
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

/// [`Properties`] in half the size. Each message is written by one thread and read by another, so its size costs time.
#[derive(Debug, Clone, Copy)]
struct PackedProperties {
    flags: u8,
    priority: u8,
    hops: u8,
    content_type: u16,
}

impl PackedProperties {
    #[inline]
    fn pack(properties: Properties) -> Self {
        let Properties { priority, hops, content_type, .. } = properties;
        Self { flags: properties.flags(), priority, hops, content_type }
    }

    #[inline]
    fn unpack(self) -> Properties {
        let Self { flags, priority, hops, content_type } = self;
        Properties { priority, hops, content_type, ..Properties::default() }.with_flags(flags)
    }
}

#[derive(Debug)]
struct MessageHead {
    producer: Option<Arc<Client>>,
    /// When the first queue took it, in Unix milliseconds; 0: none has.
    received: AtomicU64,
    ticket: Option<Box<Ticket>>,
    properties: PackedProperties,
    // The other offsets follow from these.
    id_len: u8,
    source_len: u8,
    headers_len: u16,
    headers_at: u32,
}

// With the counters of its allocation, the head fills less than a cache line.
const _: () = assert!(size_of::<MessageHead>() <= 40);

impl MessageHead {
    fn body_at(&self) -> usize {
        self.headers_at as usize + usize::from(self.headers_len)
    }
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
        let (id, source) = (layout.id.len(), layout.source.len());
        let headers_at =
            layout.body.start.checked_sub(layout.headers.len()).expect("headers precede the body");
        assert!(
            (id == 0 || layout.id.start == 0)
                && (source == 0 || layout.source.start == id)
                && (layout.headers.is_empty() || layout.headers.start == headers_at)
                && layout.body.end == block.len()
                && id + source <= headers_at,
            "the parts of a message fill its block in order"
        );
        let head = MessageHead {
            producer,
            received: AtomicU64::new(0),
            ticket,
            properties: PackedProperties::pack(properties),
            id_len: u8::try_from(id).expect("ids have at most 255 bytes"),
            source_len: u8::try_from(source).expect("sources have at most 255 bytes"),
            headers_len: u16::try_from(layout.headers.len()).expect("headers have at most 65535 bytes"),
            headers_at: headers_at as u32,
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
        let same =
            Self::build(&block, &layout, self.properties(), head.producer.clone(), head.ticket.clone());
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
        let same =
            Self::build(&block, &layout, self.properties(), head.producer.clone(), head.ticket.clone());
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
        let properties = PackedProperties::pack(Properties { remembered: true, ..self.properties() });
        let (producer, ticket) = (head.producer.clone(), head.ticket.clone());
        let received = AtomicU64::new(self.received().0);
        let head = MessageHead { producer, ticket, properties, received, ..*head };
        Self(ThinArc::from_header_and_slice(head, &self.0.slice))
    }

    fn part(&self, at: usize, len: usize) -> &[u8] {
        &self.0.slice[at..at + len]
    }

    /// Whether `other` is a clone of this message.
    pub fn is_same(&self, other: &Self) -> bool {
        std::ptr::addr_eq(&*self.0, &*other.0)
    }

    /// Message id; empty if it has none.
    pub fn id(&self) -> &[u8] {
        self.part(0, self.0.header.header.id_len.into())
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
        let head = &self.0.header.header;
        self.part(head.id_len.into(), head.source_len.into())
    }

    /// The same message without a ticket.
    pub(crate) fn without_ticket(&self) -> Self {
        let head = &self.0.header.header;
        if head.ticket.is_none() {
            return self.clone();
        }
        let (id, headers_at, body_at) = (usize::from(head.id_len), head.headers_at as usize, head.body_at());
        let layout = Layout {
            id: 0..id,
            source: id..id + usize::from(head.source_len),
            headers: headers_at..body_at,
            body: body_at..self.0.slice.len(),
        };
        Self::build(&self.0.slice, &layout, self.properties(), head.producer.clone(), None)
    }

    /// The ticket of a message from a downstream broker.
    pub fn ticket(&self) -> Option<&Ticket> {
        self.0.header.header.ticket.as_deref()
    }

    /// Header text, `key:value` lines each ended by CR LF; empty if there is none.
    pub fn headers(&self) -> &[u8] {
        let head = &self.0.header.header;
        self.part(head.headers_at as usize, head.headers_len.into())
    }

    /// The body.
    pub fn body(&self) -> &[u8] {
        &self.0.slice[self.0.header.header.body_at()..]
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
    #[inline]
    pub fn properties(&self) -> Properties {
        self.0.header.header.properties.unpack()
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
        allocated(HEAD_BYTES + parts) as u64
    }

    /// Bytes of this message besides its body.
    pub fn bytes_without_body(&self) -> usize {
        HEAD_BYTES + self.0.slice.len() - self.body().len()
    }

    /// Memory of this message in bytes.
    pub fn memory_bytes(&self) -> usize {
        allocated(HEAD_BYTES + self.0.slice.len())
    }
}

/// Bytes before the parts of a message in its allocation: its head, its length and its reference count.
const HEAD_BYTES: usize = size_of::<MessageHead>() + 2 * size_of::<usize>();

/// Bytes that the allocator takes for an object of this size. jemalloc has four sizes between two powers of two, so that it takes
/// up to a quarter more than it is asked for; a limit of memory that counted only what is asked for would be exceeded.
const fn allocated(bytes: usize) -> usize {
    const QUANTUM: usize = 16;
    let step = if bytes <= 8 * QUANTUM { QUANTUM } else { 1 << ((bytes - 1).ilog2() - 2) };
    bytes.next_multiple_of(step)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_counted_as_the_allocator_takes_it() {
        for (bytes, taken) in [
            (1, 16),
            (16, 16),
            (113, 128),
            (128, 128),
            (129, 160),
            (256, 256),
            (257, 320),
            (4096, 4096),
            (4097, 5120),
            (5121, 6144),
            (1 << 20, 1 << 20),
            ((1 << 20) + 1, 5 << 18),
        ] {
            assert_eq!(allocated(bytes), taken, "{bytes}");
        }
    }

    #[test]
    fn each_property_survives_packing() {
        let plain = Properties { high_priority: false, hops: 0, ..Properties::default() };
        let set = [
            Properties { high_priority: true, ..plain },
            Properties { first_acquirer: true, ..plain },
            Properties { pending_response: true, ..plain },
            Properties { pending_acknowledge: true, ..plain },
            Properties { unique: true, ..plain },
            Properties { terms: true, ..plain },
            Properties { remembered: true, ..plain },
            Properties { priority: u8::MAX, ..plain },
            Properties { hops: u8::MAX, ..plain },
            Properties { content_type: u16::MAX, ..plain },
        ];
        for properties in set.into_iter().chain([plain, Properties::default()]) {
            assert_eq!(PackedProperties::pack(properties).unpack(), properties);
        }
    }

    #[test]
    fn parts_keep_their_bytes_around_a_gap() {
        let layout = Layout { id: 0..2, source: 2..5, headers: 9..13, body: 13..16 };
        let message = Message::new(b"idsrcGAP!a:b\nend", &layout, Properties::default(), None);
        assert_eq!((message.id(), message.source()), (&b"id"[..], &b"src"[..]));
        assert_eq!((message.headers(), message.body()), (&b"a:b\n"[..], &b"end"[..]));
        let renamed = message.with_id(b"other");
        assert_eq!((renamed.id(), renamed.source()), (&b"other"[..], &b"src"[..]));
        assert_eq!((renamed.headers(), renamed.body()), (&b"a:b\n"[..], &b"end"[..]));
    }

    #[test]
    #[should_panic(expected = "the parts of a message fill its block in order")]
    fn body_that_ends_before_its_block_panics() {
        let layout = Layout { body: 0..3, ..Layout::default() };
        Message::new(b"body", &layout, Properties::default(), None);
    }
}
