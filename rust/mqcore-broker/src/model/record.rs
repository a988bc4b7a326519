//! Records: what must survive a crash, and how it is encoded.
//!
//! The journal stores numbers and bytes. Every encoding has its own version. A reader rejects versions
//! that it does not know; it never guesses.

use std::sync::Arc;

use crate::model::id::{ChannelName, MessageNumber, QueueAddress, RouterName, Sequence};
use crate::model::intake;
use crate::model::intake::Ticket;
use crate::model::message::{Layout, Message, Properties};
use crate::model::options::{ChannelOptions, QueueOptions};
use crate::model::queue_policy::QueuePolicy;
use crate::model::router::RouterDefinition;
use crate::model::terms::MessageTerms;
use crate::model::time::Timestamp;
use crate::model::topic::TopicPattern;
use crate::model::transfer::{Origin, TransferSource, TransferredPut};
use crate::model::unique::key_in;

/// A durable fact.
#[derive(Debug, Clone)]
pub enum Record {
    /// A message is in a queue until [`Record::Settle`] names its sequence.
    Put {
        /// The queue.
        queue: Arc<QueueAddress>,
        /// The message.
        message: Message,
        /// When it arrived from its producer.
        received: Timestamp,
        /// Its number in the history; 0 without a history.
        number: MessageNumber,
    },
    /// A message that came from another queue is in a queue until [`Record::Settle`] names its sequence.
    PutTransferred(Box<TransferredPut>),
    /// The message with this sequence left its queue for good.
    Settle(Sequence),
    /// The progress of the message with this sequence.
    Touch(Sequence, DeliveryProgress),
    /// A channel exists with these options; the latest definition of a name applies.
    DefineChannel(ChannelName, Box<ChannelOptions>),
    /// A queue exists with these options.
    DefineQueue(QueueAddress, Box<QueueOptions>),
    /// A channel was removed. Its queues have records of their own.
    RemoveChannel(ChannelName),
    /// A queue was removed. Its messages have records of their own.
    RemoveQueue(QueueAddress),
    /// A router exists with these bindings.
    DefineRouter(Box<RouterDefinition>),
    /// A router was removed.
    RemoveRouter(RouterName),
    /// A policy has these options.
    DefinePolicy(Box<QueuePolicy>),
    /// A policy was removed.
    RemovePolicy(Box<str>),
    /// A queue is bound to topics.
    BindTopic(TopicPattern, QueueAddress),
    /// A queue is no longer bound to topics.
    UnbindTopic(TopicPattern, QueueAddress),
    /// Which messages of a downstream broker are done; the latest record of each applies.
    DefineIntake(Arc<str>, intake::IntakeProgress),
    /// A downstream broker is forgotten.
    RemoveIntake(Arc<str>),
    /// A queue remembers the id of a message that left it, until this time.
    RememberId(Arc<QueueAddress>, Arc<[u8]>, Timestamp),
    /// A queue has forgotten the id of a message.
    ForgetId(Arc<QueueAddress>, Arc<[u8]>),
    /// The history uses, or will soon use, message numbers below this one.
    Numbers(MessageNumber),
}

impl Record {
    /// Whether it saves a message.
    pub fn is_put(&self) -> bool {
        matches!(self, Self::Put { .. } | Self::PutTransferred(_))
    }

    /// Whether it changes which channels, queues, routers or topic bindings exist, or their options.
    pub(crate) fn changes_definitions(&self) -> bool {
        matches!(
            self,
            Self::DefineChannel(..)
                | Self::DefineQueue(..)
                | Self::RemoveChannel(_)
                | Self::RemoveQueue(_)
                | Self::DefineRouter(_)
                | Self::RemoveRouter(_)
                | Self::DefinePolicy(_)
                | Self::RemovePolicy(_)
                | Self::BindTopic(..)
                | Self::UnbindTopic(..)
        )
    }
}

/// The progress of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeliveryProgress {
    /// Number of deliveries.
    pub attempts: u16,
    /// How often it was requeued.
    pub requeues: u16,
    /// Position: smaller is sooner. An arriving message has its sequence as its rank. A message
    /// requeued at the end gets a larger rank than all others, one requeued at the start a smaller one.
    pub rank: i64,
    /// Earliest time of the next delivery; 0: any time.
    pub not_before: Timestamp,
}

/// Why a record cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// A later version of mqcore wrote it.
    #[error(
        "{what} has version {version}, but this version of mqcore reads only {VERSION}; start a later version"
    )]
    Version {
        /// The kind of record.
        what: &'static str,
        /// The version in the record.
        version: u8,
    },
    /// Its checksum is right and its content is not: mqcore did not write it.
    #[error("malformed {what}: {why}")]
    Malformed {
        /// The kind of record.
        what: &'static str,
        /// The reason.
        why: &'static str,
    },
}

pub(crate) const VERSION: u8 = 1;
/// A message from a downstream broker, with its ticket before its number in the history. A version that
/// does not know this form would take the message twice.
const PASSED_ON: u8 = 3;
/// A message from another queue of this broker, with its source before its number in the history. A version that
/// does not know this form would deliver the message in both queues after a crash.
const TRANSFERRED: u8 = 4;
/// The progress of a delayed message.
const TIMED: u8 = 2;
/// A message with its number in the history. Without a history, version 1 is written.
const NUMBERED: u8 = 2;
const MESSAGE: &str = "message";
const PROGRESS: &str = "progress of a message";

/// Encodes a message: lengths and flags, then address, id, source, headers and body.
pub fn encode_put(
    queue: &QueueAddress,
    message: &Message,
    received: Timestamp,
    number: MessageNumber,
    transferred_from: Option<&TransferSource>,
) -> Vec<u8> {
    let properties = message.properties();
    let address = queue.to_string();
    let (id, source, headers, body) = (message.id(), message.source(), message.headers(), message.body());
    let parts = address.len() + id.len() + source.len() + headers.len() + body.len();
    let mut output = Vec::with_capacity(28 + parts);
    let numbered = number != MessageNumber(0) || message.ticket().is_some() || transferred_from.is_some();
    output.push(match (message.ticket(), transferred_from) {
        (_, Some(_)) => TRANSFERRED,
        (Some(_), None) => PASSED_ON,
        (None, None) if numbered => NUMBERED,
        (None, None) => VERSION,
    });
    output.push(properties.flags());
    output.push(properties.hops);
    output.extend_from_slice(&properties.content_type.to_le_bytes());
    output.extend_from_slice(&received.0.to_le_bytes());
    output.extend_from_slice(&(address.len() as u16).to_le_bytes());
    output.push(id.len() as u8);
    output.push(source.len() as u8);
    output.extend_from_slice(&(headers.len() as u16).to_le_bytes());
    if let Some(TransferSource { origin, queue }) = transferred_from {
        let queue = queue.to_string();
        output.extend_from_slice(&(origin.shard as u32).to_le_bytes());
        output.extend_from_slice(&origin.sequence.0.to_le_bytes());
        output.extend_from_slice(&(queue.len() as u16).to_le_bytes());
        output.extend_from_slice(queue.as_bytes());
    } else if let Some(ticket) = message.ticket() {
        output.push(ticket.node.len() as u8);
        output.extend_from_slice(ticket.node.as_bytes());
        output.extend_from_slice(&ticket.epoch.to_le_bytes());
        output.extend_from_slice(&ticket.number.to_le_bytes());
    }
    if numbered {
        output.extend_from_slice(&number.0.to_le_bytes());
    }
    for part in [address.as_bytes(), id, source, headers, body] {
        output.extend_from_slice(part);
    }
    output
}

/// A decoded message.
#[derive(Debug, Clone)]
pub struct PutMessage {
    /// The queue.
    pub queue: QueueAddress,
    /// The message.
    pub message: Message,
    /// When it arrived from its producer.
    pub received: Timestamp,
    /// Its number in the history; 0 if there was none.
    pub number: MessageNumber,
}

/// The part of a message's record that is needed to restore it without its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutHead<'a> {
    /// The queue, as text for [`decode_address`].
    pub queue: &'a str,
    /// Whether it goes ahead of messages of normal priority.
    pub high_priority: bool,
    /// Memory of the message in bytes.
    pub memory_bytes: u64,
    /// Its number in the history; 0 if there was none.
    pub number: MessageNumber,
    /// The ticket of a message from a downstream broker.
    pub ticket: Option<Ticket>,
    /// The record that a message from another queue had there: shard, sequence, and the queue as text.
    pub source: Option<(Origin, &'a str)>,
    /// The key that only one message of a queue may have.
    pub unique_key: Option<&'a [u8]>,
    /// The terms that its producer set.
    pub terms: Option<PutTerms>,
    /// Its id, if its queue remembers it.
    pub remembered: Option<&'a [u8]>,
    /// When it arrived at its queue.
    pub received: Timestamp,
}

/// The terms of a saved message, with times in place of durations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PutTerms {
    /// The earliest delivery.
    pub not_before: Timestamp,
    /// Its expiry.
    pub expires: Timestamp,
    /// Its priority.
    pub level: u8,
}

/// Decodes the beginning of the output of [`encode_put`].
pub fn decode_put_head(input: &[u8]) -> Result<PutHead<'_>, RecordError> {
    let mut reader = MessageReader { what: MESSAGE, rest: input };
    let form = reader.form()?;
    let flags = Properties::default().with_flags(reader.take::<1>()?[0]);
    let _hops_and_content_type = reader.take::<3>()?;
    let received = Timestamp(u64::from_le_bytes(reader.take()?));
    let address_len = usize::from(u16::from_le_bytes(reader.take()?));
    let lengths = reader.take::<4>()?;
    let ticket = if form == PASSED_ON { Some(reader.ticket()?) } else { None };
    let source = if form == TRANSFERRED { Some(reader.source()?) } else { None };
    let number = MessageNumber(if form != VERSION { u64::from_le_bytes(reader.take()?) } else { 0 });
    let queue = reader.text(address_len)?;
    let headers_at = usize::from(lengths[0]) + usize::from(lengths[1]);
    let parts = headers_at + usize::from(u16::from_le_bytes([lengths[2], lengths[3]]));
    let Some(headers) = reader.rest.get(headers_at..parts) else {
        return Err(RecordError::Malformed { what: MESSAGE, why: "truncated before its body" });
    };
    let unique_key = if flags.unique { key_in(headers) } else { None };
    let memory_bytes = Message::memory_bytes_of(reader.rest.len());
    let high_priority = flags.high_priority;
    let terms = flags.terms.then(|| {
        let terms = MessageTerms::read(headers).unwrap_or_default();
        let level = Properties { high_priority, ..Properties::default() }.with_terms_of(headers).level();
        PutTerms { not_before: terms.not_before(received), expires: terms.expires(received), level }
    });
    let remembered = flags.remembered.then(|| &reader.rest[..usize::from(lengths[0])]);
    Ok(PutHead {
        queue,
        high_priority,
        memory_bytes,
        number,
        ticket,
        source,
        unique_key,
        terms,
        remembered,
        received,
    })
}

/// Parses the address of a queue in [`PutHead`].
pub fn decode_address(text: &str) -> Result<QueueAddress, RecordError> {
    address(text).ok_or(RecordError::Malformed { what: MESSAGE, why: "the queue's address" })
}

/// Decodes the output of [`encode_put`].
pub fn decode_put(input: &[u8]) -> Result<PutMessage, RecordError> {
    let mut reader = MessageReader { what: MESSAGE, rest: input };
    let form = reader.form()?;
    let flags = reader.take::<1>()?[0];
    let hops = reader.take::<1>()?[0];
    let content_type = u16::from_le_bytes(reader.take()?);
    let received = Timestamp(u64::from_le_bytes(reader.take()?));
    let address_len = usize::from(u16::from_le_bytes(reader.take()?));
    let id_len = usize::from(reader.take::<1>()?[0]);
    let source_len = usize::from(reader.take::<1>()?[0]);
    let headers_len = usize::from(u16::from_le_bytes(reader.take()?));
    let ticket = if form == PASSED_ON { Some(reader.ticket()?) } else { None };
    if form == TRANSFERRED {
        reader.source()?;
    }
    let number = if form != VERSION { u64::from_le_bytes(reader.take()?) } else { 0 };
    let number = MessageNumber(number);
    let queue = reader.text(address_len)?;
    let queue = decode_address(queue)?;
    let block = reader.rest;
    let body = id_len + source_len + headers_len;
    if block.len() < body {
        return Err(RecordError::Malformed { what: MESSAGE, why: "truncated before its body" });
    }
    let layout = Layout {
        id: 0..id_len,
        source: id_len..id_len + source_len,
        headers: id_len + source_len..body,
        body: body..block.len(),
    };
    let flagged = Properties { hops, content_type, ..Properties::default() }.with_flags(flags);
    let properties = Properties { terms: false, ..flagged };
    let headers = &block[layout.headers.clone()];
    let properties = if flagged.terms { properties.with_terms_of(headers) } else { properties };
    let message = match ticket {
        None => Message::new(block, &layout, properties, None),
        Some(ticket) => Message::passed_on(block, &layout, properties, ticket),
    };
    message.received_at(received);
    Ok(PutMessage { queue, message, received, number })
}

impl DeliveryProgress {
    /// 13 bytes, or 21 with a time. A version that does not know times rejects the latter instead of
    /// delivering too early.
    pub fn encode(self) -> Vec<u8> {
        let timed = self.not_before > Timestamp(0);
        let mut output = vec![if timed { TIMED } else { VERSION }];
        output.extend_from_slice(&self.attempts.to_le_bytes());
        output.extend_from_slice(&self.requeues.to_le_bytes());
        output.extend_from_slice(&self.rank.to_le_bytes());
        if timed {
            output.extend_from_slice(&self.not_before.0.to_le_bytes());
        }
        output
    }

    /// Decodes the output of [`DeliveryProgress::encode`].
    pub fn decode(input: &[u8]) -> Result<Self, RecordError> {
        let mut reader = MessageReader { what: PROGRESS, rest: input };
        let timed = match reader.take::<1>()?[0] {
            VERSION => false,
            TIMED => true,
            version => return Err(RecordError::Version { what: PROGRESS, version }),
        };
        Ok(Self {
            attempts: u16::from_le_bytes(reader.take()?),
            requeues: u16::from_le_bytes(reader.take()?),
            rank: i64::from_le_bytes(reader.take()?),
            not_before: Timestamp(if timed { u64::from_le_bytes(reader.take()?) } else { 0 }),
        })
    }
}

struct MessageReader<'a> {
    what: &'static str,
    rest: &'a [u8],
}

impl<'a> MessageReader<'a> {
    /// The form of the record. In all but the first, a number follows the lengths, behind a ticket or a source.
    fn form(&mut self) -> Result<u8, RecordError> {
        match self.take::<1>()?[0] {
            form @ (VERSION | NUMBERED | PASSED_ON | TRANSFERRED) => Ok(form),
            version => Err(RecordError::Version { what: self.what, version }),
        }
    }

    fn source(&mut self) -> Result<(Origin, &'a str), RecordError> {
        let shard = u32::from_le_bytes(self.take()?) as usize;
        let sequence = Sequence(u64::from_le_bytes(self.take()?));
        let len = usize::from(u16::from_le_bytes(self.take()?));
        Ok((Origin { shard, sequence }, self.text(len)?))
    }

    fn ticket(&mut self) -> Result<Ticket, RecordError> {
        let len = usize::from(self.take::<1>()?[0]);
        let node = self.text(len)?.into();
        let epoch = u64::from_le_bytes(self.take()?);
        Ok(Ticket { node, epoch, number: u64::from_le_bytes(self.take()?) })
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], RecordError> {
        let (taken, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(RecordError::Malformed { what: self.what, why: "truncated" })?;
        self.rest = rest;
        Ok(*taken)
    }

    fn text(&mut self, len: usize) -> Result<&'a str, RecordError> {
        let malformed = |why| RecordError::Malformed { what: self.what, why };
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(malformed("truncated"))?;
        let text = std::str::from_utf8(taken).map_err(|_| malformed("a name is not UTF-8"))?;
        self.rest = rest;
        Ok(text)
    }
}

/// Parses `channel/id`. Unlike in text that people type, the id is always present.
pub(crate) fn address(text: &str) -> Option<QueueAddress> {
    let (channel, id) = text.rsplit_once('/')?;
    Some(QueueAddress { channel: ChannelName::new(channel).ok()?, id: id.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::definition::*;

    #[test]
    fn a_put_message_comes_back_as_it_was() {
        let properties = Properties {
            high_priority: true,
            pending_acknowledge: true,
            hops: 15,
            content_type: 1001,
            ..Properties::default()
        };
        let message = Message::from_parts(b"id-1", b"A:1\r\n", b"body", properties, None);
        let queue = QueueAddress::parse("logs/eu/1001").expect("a good name");
        for number in [0, 1 << 40].map(MessageNumber) {
            let bytes = encode_put(&queue, &message, Timestamp(77), number, None);
            let put = decode_put(&bytes).expect("just written");
            assert_eq!((put.queue, put.received, put.number), (queue.clone(), Timestamp(77), number));
            assert_eq!(put.message.properties(), properties);
            assert_eq!((put.message.id(), put.message.headers()), (&b"id-1"[..], &b"A:1\r\n"[..]));
            assert_eq!((put.message.source(), put.message.body()), (&b""[..], &b"body"[..]));
            let head = decode_put_head(&bytes).expect("just written");
            assert_eq!((head.queue, head.high_priority, head.number), ("logs/eu/1001", true, number));
            assert_eq!(head.memory_bytes, put.message.memory_bytes() as u64);
            for cut in 0..bytes.len() - 4 {
                assert!(decode_put_head(&bytes[..cut]).is_err(), "cut at {cut}");
                assert!(decode_put(&bytes[..cut]).is_err(), "cut at {cut}");
            }
        }
    }

    #[test]
    fn a_message_of_another_broker_keeps_its_source_and_its_ticket() {
        let layout = Layout { id: 0..1, source: 1..3, headers: 3..3, body: 3..4 };
        let ticket = Ticket { node: "node-1".into(), epoch: 7, number: u64::MAX };
        let message = Message::passed_on(b"icib", &layout, Properties::default(), ticket.clone());
        let renamed = message.with_id(b"other");
        assert_eq!((renamed.id(), renamed.source(), renamed.body()), (&b"other"[..], &b"ci"[..], &b"b"[..]));
        assert_eq!(renamed.ticket(), Some(&ticket));
        let queue = QueueAddress::parse("ch/1").expect("a good name");
        let bytes = encode_put(&queue, &message, Timestamp(77), MessageNumber(4), None);
        let put = decode_put(&bytes).expect("just written");
        assert_eq!((put.message.ticket(), put.number), (Some(&ticket), MessageNumber(4)));
        assert_eq!((put.message.source(), put.message.body()), (&b"ci"[..], &b"b"[..]));
    }

    #[test]
    fn a_message_of_another_queue_keeps_the_record_that_it_had_there() {
        let message = Message::from_parts(b"id-1", b"A:1\r\n", b"body", Properties::default(), None);
        let [queue, from] = ["ch/1", "ch/65535"].map(|name| QueueAddress::parse(name).expect("a good name"));
        let origin = Origin { shard: 3, sequence: Sequence(1 << 40) };
        let source = TransferSource { origin, queue: Arc::new(from) };
        for number in [0, 9].map(MessageNumber) {
            let bytes = encode_put(&queue, &message, Timestamp(77), number, Some(&source));
            let head = decode_put_head(&bytes).expect("just written");
            assert_eq!((head.source, head.number), (Some((origin, "ch/65535")), number));
            assert_eq!((head.queue, head.ticket), ("ch/1", None));
            let put = decode_put(&bytes).expect("just written");
            assert_eq!((put.queue, put.number, put.received), (queue.clone(), number, Timestamp(77)));
            assert_eq!((put.message.headers(), put.message.body()), (&b"A:1\r\n"[..], &b"body"[..]));
            for cut in 0..bytes.len() - 4 {
                assert!(decode_put_head(&bytes[..cut]).is_err(), "cut at {cut}");
                assert!(decode_put(&bytes[..cut]).is_err(), "cut at {cut}");
            }
        }
    }

    #[test]
    fn later_versions_are_refused_and_unknown_options_skipped() {
        let name = ChannelName::new("ch").expect("a good name");
        let key = channel_key(&name);
        let later = decode_definition(&key, b"2\nname=ch\n");
        assert_eq!(later, Err(RecordError::Version { what: DEFINITION, version: 2 }));
        let unknown = decode_definition(&key, b"1\nname=ch\ncolour=blue\n").expect("it is skipped");
        assert_eq!(unknown, Definition::Channel(name, Box::default()));
        let progress = DeliveryProgress { attempts: 3, requeues: 2, rank: -9, not_before: Timestamp(0) };
        assert_eq!(DeliveryProgress::decode(&progress.encode()), Ok(progress));
        assert_eq!(progress.encode().len(), 13, "as versions wrote it that knew of no time");
        let timed = DeliveryProgress { not_before: Timestamp(1_795_216_278_000), ..progress };
        assert_eq!(DeliveryProgress::decode(&timed.encode()), Ok(timed));
    }
}
