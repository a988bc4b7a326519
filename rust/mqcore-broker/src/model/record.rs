//! What must survive a crash: the broker's records, and how they are written down.
//!
//! The journal that keeps them sees numbers and octets. Everything here carries a version of its own; a
//! reader refuses versions that it does not know, it never guesses.

use std::sync::Arc;
use std::time::Duration;

use crate::model::id::{ChannelName, MessageNumber, QueueAddress, RouterName, Sequence, TopicName};
use crate::model::intake;
use crate::model::intake::Ticket;
use crate::model::message::{Layout, Message, Properties};
use crate::model::options::{ChannelOptions, Durability, QueueOptions, Status};
use crate::model::router::{Binding, Interaction, RouterDefinition, RouterMethod, Target};
use crate::model::time::Timestamp;
use crate::model::topic::TopicPattern;
use crate::model::unique::key_in;

/// One durable fact.
#[derive(Debug, Clone)]
pub enum Record {
    /// A message is in a queue, until [`Record::Settle`] names its sequence.
    Put {
        /// Where it is.
        queue: Arc<QueueAddress>,
        /// What.
        message: Message,
        /// When it was taken from its producer.
        received: Timestamp,
        /// Its number in the history; 0 without one.
        number: MessageNumber,
    },
    /// The message put under this sequence left for good.
    Settle(Sequence),
    /// What changed about the message put under this sequence.
    Touch(Sequence, DeliveryProgress),
    /// A channel exists, with these options; the latest definition of a name holds.
    DefineChannel(ChannelName, Box<ChannelOptions>),
    /// A queue exists, with these options.
    DefineQueue(QueueAddress, Box<QueueOptions>),
    /// A channel is gone (its queues say so themselves).
    RemoveChannel(ChannelName),
    /// A queue is gone (its messages are settled themselves).
    RemoveQueue(QueueAddress),
    /// A router exists, with these bindings.
    DefineRouter(Box<RouterDefinition>),
    /// A router is gone.
    RemoveRouter(RouterName),
    /// A queue gets copies of what is published to topics.
    BindTopic(TopicPattern, QueueAddress),
    /// No longer.
    UnbindTopic(TopicPattern, QueueAddress),
    /// Which messages of another broker are done; the latest of each holds.
    DefineIntake(Arc<str>, intake::IntakeProgress),
    /// Another broker is not remembered any more.
    RemoveIntake(Arc<str>),
    /// The history has used, or will soon use, message numbers below this one.
    Numbers(MessageNumber),
}

/// How far a message got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeliveryProgress {
    /// How often it was handed out.
    pub attempts: u16,
    /// How often it was put back.
    pub requeues: u16,
    /// Its place: smaller is sooner. A message that arrives has its sequence; one put back at the end gets a
    /// larger number than all before, one put back at the start a smaller one.
    pub rank: i64,
    /// It is not handed out before this time; 0: it may be at once.
    pub not_before: Timestamp,
}

/// Why a record cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// Written by a later version of mqcore.
    #[error("a {what} of version {version} cannot be read by this version, which knows {VERSION}")]
    Version {
        /// What sort of record.
        what: &'static str,
        /// The version that it names.
        version: u8,
    },
    /// Its checksum was right and its content is not: it was not written by mqcore.
    #[error("malformed {what}: {why}")]
    Malformed {
        /// What sort of record.
        what: &'static str,
        /// What is wrong.
        why: &'static str,
    },
}

const VERSION: u8 = 1;
/// A message that another broker passed on, with its ticket in front of its number in the history. A version that does not
/// know it would take that message twice.
const PASSED_ON: u8 = 3;
/// The progress of a message that waits for its time.
const TIMED: u8 = 2;
const INTAKE_KEY: &str = "intake ";
/// A message with its number in the history. Versions without a history go on writing the first.
const NUMBERED: u8 = 2;
const CHANNEL_KEY: &str = "channel ";
const QUEUE_KEY: &str = "queue ";
const ROUTER_KEY: &str = "router ";
const TOPIC_KEY: &str = "topic ";
/// The key under which it is kept which message numbers are used.
pub const NUMBERS_KEY: &[u8] = b"numbers";
const MESSAGE: &str = "message";
const PROGRESS: &str = "progress of a message";
const DEFINITION: &str = "definition";

// ---- Messages --------------------------------------------------------------------------------------------

/// The fixed part and the names of a put message; id, source, headers and body follow as they are in it.
pub fn encode_put(
    queue: &QueueAddress,
    message: &Message,
    received: Timestamp,
    number: MessageNumber,
) -> Vec<u8> {
    let properties = message.properties();
    let address = queue.to_string();
    let flags = [
        properties.high_priority,
        properties.first_acquirer,
        properties.pending_response,
        properties.pending_acknowledge,
        properties.unique,
    ];
    let flags = flags.iter().enumerate().fold(0_u8, |bits, (bit, on)| bits | (u8::from(*on) << bit));
    let (id, source, headers, body) = (message.id(), message.source(), message.headers(), message.body());
    let parts = address.len() + id.len() + source.len() + headers.len() + body.len();
    let mut output = Vec::with_capacity(28 + parts);
    let numbered = number != MessageNumber(0) || message.ticket().is_some();
    output.push(match message.ticket() {
        Some(_) => PASSED_ON,
        None if numbered => NUMBERED,
        None => VERSION,
    });
    output.push(flags);
    output.push(properties.hops);
    output.extend_from_slice(&properties.content_type.to_le_bytes());
    output.extend_from_slice(&received.0.to_le_bytes());
    output.extend_from_slice(&(address.len() as u16).to_le_bytes());
    output.push(id.len() as u8);
    output.push(source.len() as u8);
    output.extend_from_slice(&(headers.len() as u16).to_le_bytes());
    if let Some(ticket) = message.ticket() {
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

/// A message as it was put.
#[derive(Debug, Clone)]
pub struct PutMessage {
    /// Where it is.
    pub queue: QueueAddress,
    /// What.
    pub message: Message,
    /// When it was taken from its producer.
    pub received: Timestamp,
    /// Its number in the history; 0 if there was none.
    pub number: MessageNumber,
}

/// What can be told of a put message without reading all of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutHead<'a> {
    /// Where it is, as text for [`decode_address`].
    pub queue: &'a str,
    /// Whether it goes before all messages that have this not.
    pub high_priority: bool,
    /// Octets that the message takes in memory.
    pub memory_bytes: u64,
    /// Its number in the history; 0 if there was none.
    pub number: MessageNumber,
    /// Which message of another broker it is, if that passed it on.
    pub ticket: Option<Ticket>,
    /// The key of which its queue has one message at a time.
    pub unique_key: Option<&'a [u8]>,
}

/// Reads the beginning of what [`encode_put`] wrote.
pub fn decode_put_head(input: &[u8]) -> Result<PutHead<'_>, RecordError> {
    let mut reader = Reader { what: MESSAGE, rest: input };
    let (numbered, passed_on) = reader.form()?;
    let flags = reader.take::<1>()?[0];
    let _hops_and_content_type_and_received = reader.take::<11>()?;
    let address_len = usize::from(u16::from_le_bytes(reader.take()?));
    let lengths = reader.take::<4>()?;
    let ticket = if passed_on { Some(reader.ticket()?) } else { None };
    let number = MessageNumber(if numbered { u64::from_le_bytes(reader.take()?) } else { 0 });
    let queue = reader.text(address_len)?;
    let headers_at = usize::from(lengths[0]) + usize::from(lengths[1]);
    let parts = headers_at + usize::from(u16::from_le_bytes([lengths[2], lengths[3]]));
    let Some(headers) = reader.rest.get(headers_at..parts) else {
        return Err(RecordError::Malformed { what: MESSAGE, why: "it ends before its body" });
    };
    let unique_key = if flags & 16 == 0 { None } else { key_in(headers) };
    let memory_bytes = Message::memory_bytes_of(reader.rest.len());
    Ok(PutHead { queue, high_priority: flags & 1 != 0, memory_bytes, number, ticket, unique_key })
}

/// Reads a queue's address as [`PutHead`] has it.
pub fn decode_address(text: &str) -> Result<QueueAddress, RecordError> {
    address(text).ok_or(RecordError::Malformed { what: MESSAGE, why: "the queue's address" })
}

/// Reads what [`encode_put`] wrote.
pub fn decode_put(input: &[u8]) -> Result<PutMessage, RecordError> {
    let mut reader = Reader { what: MESSAGE, rest: input };
    let (numbered, passed_on) = reader.form()?;
    let flags = reader.take::<1>()?[0];
    let hops = reader.take::<1>()?[0];
    let content_type = u16::from_le_bytes(reader.take()?);
    let received = Timestamp(u64::from_le_bytes(reader.take()?));
    let address_len = usize::from(u16::from_le_bytes(reader.take()?));
    let id_len = usize::from(reader.take::<1>()?[0]);
    let source_len = usize::from(reader.take::<1>()?[0]);
    let headers_len = usize::from(u16::from_le_bytes(reader.take()?));
    let ticket = if passed_on { Some(reader.ticket()?) } else { None };
    let number = if numbered { u64::from_le_bytes(reader.take()?) } else { 0 };
    let number = MessageNumber(number);
    let queue = reader.text(address_len)?;
    let queue = decode_address(queue)?;
    let block = reader.rest;
    let body = id_len + source_len + headers_len;
    if block.len() < body {
        return Err(RecordError::Malformed { what: MESSAGE, why: "it ends before its body" });
    }
    let layout = Layout {
        id: 0..id_len,
        source: id_len..id_len + source_len,
        headers: id_len + source_len..body,
        body: body..block.len(),
    };
    let properties = Properties {
        high_priority: flags & 1 != 0,
        first_acquirer: flags & 2 != 0,
        pending_response: flags & 4 != 0,
        pending_acknowledge: flags & 8 != 0,
        unique: flags & 16 != 0,
        hops,
        content_type,
    };
    let message = match ticket {
        None => Message::new(block, &layout, properties, None),
        Some(ticket) => Message::passed_on(block, &layout, properties, ticket),
    };
    Ok(PutMessage { queue, message, received, number })
}

impl DeliveryProgress {
    /// Thirteen octets, or 21 with a time. A version that does not know of times refuses the latter, instead of handing out too
    /// early.
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

    /// Reads what [`DeliveryProgress::encode`] wrote.
    pub fn decode(input: &[u8]) -> Result<Self, RecordError> {
        let mut reader = Reader { what: PROGRESS, rest: input };
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

struct Reader<'a> {
    what: &'static str,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Whether a message's number follows its lengths, and whether a ticket does before.
    fn form(&mut self) -> Result<(bool, bool), RecordError> {
        match self.take::<1>()?[0] {
            VERSION => Ok((false, false)),
            NUMBERED => Ok((true, false)),
            PASSED_ON => Ok((true, true)),
            version => Err(RecordError::Version { what: self.what, version }),
        }
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
            .ok_or(RecordError::Malformed { what: self.what, why: "it ends too early" })?;
        self.rest = rest;
        Ok(*taken)
    }

    fn text(&mut self, len: usize) -> Result<&'a str, RecordError> {
        let malformed = |why| RecordError::Malformed { what: self.what, why };
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(malformed("it ends too early"))?;
        let text = std::str::from_utf8(taken).map_err(|_| malformed("a name is not UTF-8"))?;
        self.rest = rest;
        Ok(text)
    }
}

/// `channel/id`, where the id is always there: unlike what people type.
fn address(text: &str) -> Option<QueueAddress> {
    let (channel, id) = text.rsplit_once('/')?;
    Some(QueueAddress { channel: ChannelName::new(channel).ok()?, id: id.parse().ok()? })
}

// ---- Definitions -----------------------------------------------------------------------------------------

/// The key under which a channel's definition is kept.
pub fn channel_key(name: &ChannelName) -> Vec<u8> {
    format!("{CHANNEL_KEY}{}", name.as_str().to_ascii_lowercase()).into_bytes()
}

/// The key under which a queue's definition is kept.
pub fn queue_key(queue: &QueueAddress) -> Vec<u8> {
    format!("{QUEUE_KEY}{}", queue.to_string().to_ascii_lowercase()).into_bytes()
}

/// The key under which a router's definition is kept.
pub fn router_key(name: &RouterName) -> Vec<u8> {
    format!("{ROUTER_KEY}{name}").into_bytes()
}

/// The key under which it is kept that a queue is bound to topics.
pub fn topic_binding_key(pattern: &TopicPattern, queue: &QueueAddress) -> Vec<u8> {
    let (kind, name) = pattern_words(pattern);
    format!("{TOPIC_KEY}{kind} {name} {}", queue.to_string().to_ascii_lowercase()).into_bytes()
}

/// The key under which is kept what is done of another broker.
pub fn intake_key(node: &str) -> Vec<u8> {
    format!("{INTAKE_KEY}{node}").into_bytes()
}

/// A definition that was read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Definition {
    /// Of a channel.
    Channel(ChannelName, Box<ChannelOptions>),
    /// Of a queue.
    Queue(QueueAddress, Box<QueueOptions>),
    /// Of a router.
    Router(Box<RouterDefinition>),
    /// Of a queue's binding to topics.
    TopicBinding(TopicPattern, QueueAddress),
    /// What is done of another broker.
    Intake(Arc<str>, intake::IntakeProgress),
    /// The history has used message numbers below this one.
    Numbers(MessageNumber),
}

/// Definitions are text, one `name=value` a line: options that a reader does not know are skipped, and those
/// that are missing have their defaults, so that versions can add some.
pub fn encode_channel(name: &ChannelName, options: &ChannelOptions) -> Vec<u8> {
    let mut text = format!("{VERSION}\nname={name}\n");
    write_queue_options(&options.queue, &mut text);
    line(&mut text, "allow_multiple_queues", options.allow_multiple_queues);
    if let Some(allowed) = &options.allowed_queues {
        let ids: Vec<_> = allowed.iter().map(u16::to_string).collect();
        line(&mut text, "allowed_queues", ids.join(","));
    }
    line(&mut text, "client_limit", options.client_limit);
    line(&mut text, "queue_limit", options.queue_limit);
    line(&mut text, "destroy_when_empty", options.destroy_when_empty);
    text.into_bytes()
}

/// See [`encode_channel`].
pub fn encode_queue(queue: &QueueAddress, options: &QueueOptions) -> Vec<u8> {
    let mut text = format!("{VERSION}\nname={queue}\n");
    write_queue_options(options, &mut text);
    text.into_bytes()
}

/// See [`encode_channel`]. Each binding is a group of lines that its name begins.
pub fn encode_router(router: &RouterDefinition) -> Vec<u8> {
    let mut text = format!("{VERSION}\nname={}\n", router.name);
    line(&mut text, "method", router.method.as_str());
    line(&mut text, "enabled", router.enabled);
    for binding in &router.bindings {
        line(&mut text, "binding", &binding.name);
        line(&mut text, "target", &binding.target);
        line(&mut text, "priority", binding.priority);
        line(&mut text, "interaction", binding.interaction.as_str());
        line(&mut text, "spread", binding.method.as_str());
        if let Some(content_type) = binding.content_type {
            line(&mut text, "content_type", content_type);
        }
    }
    text.into_bytes()
}

/// See [`encode_channel`].
pub fn encode_topic_binding(pattern: &TopicPattern, queue: &QueueAddress) -> Vec<u8> {
    let (kind, name) = pattern_words(pattern);
    let mut text = format!("{VERSION}\nname={queue}\n");
    line(&mut text, "kind", kind);
    line(&mut text, "topic", name);
    text.into_bytes()
}

/// What sort of pattern, and its name with `%XX` for every octet that is no visible ASCII: topics may have any octets.
fn pattern_words(pattern: &TopicPattern) -> (&'static str, String) {
    use std::fmt::Write as _;
    let kind = match pattern {
        TopicPattern::Exact(_) => "exact",
        TopicPattern::Mask(_) => "mask",
        TopicPattern::Prefix(_) => "prefix",
    };
    let mut name = String::new();
    for octet in pattern.name().as_bytes() {
        if octet.is_ascii_graphic() && *octet != b'%' {
            name.push(char::from(*octet));
        } else {
            let _ = write!(name, "%{octet:02x}");
        }
    }
    (kind, name)
}

fn read_topic_binding(pairs: &[(&str, &str)]) -> Option<TopicPattern> {
    let value = |key: &str| pairs.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
    let mut octets = Vec::new();
    let mut rest = value("topic")?.bytes();
    while let Some(octet) = rest.next() {
        octets.push(match octet {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(str::from_utf8(&digits).ok()?, 16).ok()?
            }
            octet => octet,
        });
    }
    let name = TopicName::new(&octets).ok()?;
    Some(match value("kind")? {
        "exact" => TopicPattern::Exact(name),
        "mask" => TopicPattern::Mask(name),
        "prefix" => TopicPattern::Prefix(name),
        _ => return None,
    })
}

/// See [`encode_channel`].
pub fn encode_intake(node: &str, progress: &intake::IntakeProgress) -> Vec<u8> {
    let mut text = format!("{VERSION}\nname={node}\n");
    line(&mut text, "epoch", progress.epoch);
    line(&mut text, "through", progress.through);
    if !progress.above.is_empty() {
        let above: Vec<_> = progress.above.iter().map(u64::to_string).collect();
        line(&mut text, "above", above.join(","));
    }
    text.into_bytes()
}

fn read_router(name: &str, pairs: &[(&str, &str)]) -> Option<RouterDefinition> {
    let mut router = RouterDefinition::new(RouterName::new(name).ok()?, RouterMethod::Distribute);
    let mut bindings: Vec<Binding> = Vec::new();
    // The binding whose target was not read yet. One whose target a later version invented is left out.
    let mut begun = None;
    for (name, value) in pairs {
        match (*name, bindings.last_mut()) {
            ("binding", _) => begun = Some(*value),
            ("target", _) => {
                if let (Some(name), Ok(target)) = (begun, Target::parse(value)) {
                    bindings.push(Binding::new(name, target));
                    begun = None;
                }
            }
            (_, _) if begun.is_some() => {}
            ("method", None) => router.method = RouterMethod::from_text(value).unwrap_or_default(),
            ("enabled", None) => set(&mut router.enabled, value),
            ("priority", Some(binding)) => set(&mut binding.priority, value),
            ("interaction", Some(binding)) => {
                binding.interaction = Interaction::from_text(value).unwrap_or_default();
            }
            ("spread", Some(binding)) => binding.method = RouterMethod::from_text(value).unwrap_or_default(),
            ("content_type", Some(binding)) => binding.content_type = value.parse().ok(),
            _ => {}
        }
    }
    for binding in bindings {
        router.add(binding).ok()?;
    }
    Some(router)
}

fn read_intake(pairs: &[(&str, &str)]) -> Option<intake::IntakeProgress> {
    let value = |key: &str| pairs.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
    let above = value("above").map_or(Some(Default::default()), |numbers| {
        numbers.split(',').map(|number| number.parse().ok()).collect()
    });
    Some(intake::IntakeProgress {
        epoch: value("epoch")?.parse().ok()?,
        through: value("through")?.parse().ok()?,
        above: above?,
    })
}

fn line(text: &mut String, name: &str, value: impl std::fmt::Display) {
    use std::fmt::Write as _;
    let _ = writeln!(text, "{name}={value}");
}

fn write_queue_options(options: &QueueOptions, text: &mut String) {
    line(text, "status", options.status.as_str());
    line(text, "only_first_acquirer", options.only_first_acquirer);
    line(text, "request_acknowledge", options.request_acknowledge);
    line(text, "acknowledge_timeout_ms", options.acknowledge_timeout.as_millis());
    line(text, "message_timeout_ms", options.message_timeout.as_millis());
    line(text, "use_message_id", options.use_message_id);
    line(text, "wait_for_acknowledge", options.wait_for_acknowledge);
    line(text, "hide_client_names", options.hide_client_names);
    line(text, "message_limit", options.message_limit);
    line(text, "message_size_limit", options.message_size_limit);
    line(text, "put_back_limit", options.put_back_limit);
    line(text, "durability", options.durability.as_str());
    for (name, value) in [("delivery_handler", &options.delivery_handler), ("tag", &options.tag)] {
        if let Some(value) = value {
            // A line break would start another option.
            line(text, name, value.replace(['\n', '\r'], " "));
        }
    }
    if let Some(dead_letter) = &options.dead_letter {
        line(text, "dead_letter", dead_letter);
    }
    if let Some(rate) = &options.publish_limit {
        line(text, "publish_limit", rate);
    }
}

/// See [`NUMBERS_KEY`].
pub fn encode_numbers(below: MessageNumber) -> Vec<u8> {
    format!("{VERSION}\nname={}\n", below.0).into_bytes()
}

/// Reads a definition under its key.
pub fn decode_definition(key: &[u8], value: &[u8]) -> Result<Definition, RecordError> {
    let malformed = |why| RecordError::Malformed { what: DEFINITION, why };
    let key = std::str::from_utf8(key).map_err(|_| malformed("its key is not UTF-8"))?;
    let text = std::str::from_utf8(value).map_err(|_| malformed("it is not UTF-8"))?;
    let mut lines = text.lines();
    match lines.next().and_then(|version| version.parse::<u8>().ok()) {
        Some(VERSION) => {}
        Some(version) => return Err(RecordError::Version { what: DEFINITION, version }),
        None => return Err(malformed("it has no version")),
    }
    let pairs: Vec<_> = lines.filter_map(|line| line.split_once('=')).collect();
    let name = pairs.iter().find(|(name, _)| *name == "name").map(|(_, value)| *value);
    let name = name.ok_or(malformed("it names nothing"))?;
    if key.starts_with(CHANNEL_KEY) {
        let channel = ChannelName::new(name).map_err(|_| malformed("the channel's name"))?;
        let mut options = ChannelOptions::default();
        for (name, value) in pairs {
            read_channel_option(&mut options, name, value);
        }
        Ok(Definition::Channel(channel, Box::new(options)))
    } else if key.starts_with(QUEUE_KEY) {
        let queue = address(name).ok_or(malformed("the queue's address"))?;
        let mut options = QueueOptions::default();
        for (name, value) in pairs {
            read_queue_option(&mut options, name, value);
        }
        Ok(Definition::Queue(queue, Box::new(options)))
    } else if key.starts_with(ROUTER_KEY) {
        let router = read_router(name, &pairs).ok_or(malformed("the router's names"))?;
        Ok(Definition::Router(Box::new(router)))
    } else if key.starts_with(TOPIC_KEY) {
        let queue = address(name).ok_or(malformed("the queue's address"))?;
        let pattern = read_topic_binding(&pairs).ok_or(malformed("the topics that a queue is bound to"))?;
        Ok(Definition::TopicBinding(pattern, queue))
    } else if key.starts_with(INTAKE_KEY) {
        // Unlike an option, a number that is not understood cannot be guessed: something would come twice, or never.
        let progress = read_intake(&pairs).ok_or(malformed("the numbers of a node"))?;
        Ok(Definition::Intake(name.into(), progress))
    } else if key.as_bytes() == NUMBERS_KEY {
        let below = name.parse().map_err(|_| malformed("the message numbers"))?;
        Ok(Definition::Numbers(MessageNumber(below)))
    } else {
        Err(malformed("its key is of no known kind"))
    }
}

fn set<T: std::str::FromStr>(option: &mut T, value: &str) {
    if let Ok(value) = value.parse() {
        *option = value;
    }
}

fn set_ms(option: &mut Duration, value: &str) {
    if let Ok(millis) = value.parse() {
        *option = Duration::from_millis(millis);
    }
}

fn read_channel_option(options: &mut ChannelOptions, name: &str, value: &str) {
    match name {
        "allow_multiple_queues" => set(&mut options.allow_multiple_queues, value),
        "allowed_queues" => {
            options.allowed_queues = Some(value.split(',').filter_map(|id| id.parse().ok()).collect());
        }
        "client_limit" => set(&mut options.client_limit, value),
        "queue_limit" => set(&mut options.queue_limit, value),
        "destroy_when_empty" => set(&mut options.destroy_when_empty, value),
        _ => read_queue_option(&mut options.queue, name, value),
    }
}

fn read_queue_option(options: &mut QueueOptions, name: &str, value: &str) {
    match name {
        "status" => options.status = Status::from_text(value).unwrap_or(options.status),
        "only_first_acquirer" => set(&mut options.only_first_acquirer, value),
        "request_acknowledge" => set(&mut options.request_acknowledge, value),
        "acknowledge_timeout_ms" => set_ms(&mut options.acknowledge_timeout, value),
        "message_timeout_ms" => set_ms(&mut options.message_timeout, value),
        "use_message_id" => set(&mut options.use_message_id, value),
        "wait_for_acknowledge" => set(&mut options.wait_for_acknowledge, value),
        "hide_client_names" => set(&mut options.hide_client_names, value),
        "message_limit" => set(&mut options.message_limit, value),
        "message_size_limit" => set(&mut options.message_size_limit, value),
        "put_back_limit" => set(&mut options.put_back_limit, value),
        "durability" => options.durability = Durability::from_text(value).unwrap_or(options.durability),
        "delivery_handler" => options.delivery_handler = Some(value.into()),
        "tag" => options.tag = Some(value.into()),
        "dead_letter" => options.dead_letter = address(value),
        "publish_limit" => options.publish_limit = value.parse().ok(),
        // An option of a later version: its default here is what this version does anyway.
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let octets = encode_put(&queue, &message, Timestamp(77), number);
            let put = decode_put(&octets).expect("just written");
            assert_eq!((put.queue, put.received, put.number), (queue.clone(), Timestamp(77), number));
            assert_eq!(put.message.properties(), properties);
            assert_eq!((put.message.id(), put.message.headers()), (&b"id-1"[..], &b"A:1\r\n"[..]));
            assert_eq!((put.message.source(), put.message.body()), (&b""[..], &b"body"[..]));
            let head = decode_put_head(&octets).expect("just written");
            assert_eq!((head.queue, head.high_priority, head.number), ("logs/eu/1001", true, number));
            assert_eq!(head.memory_bytes, put.message.memory_bytes() as u64);
            for cut in 0..octets.len() - 4 {
                assert!(decode_put_head(&octets[..cut]).is_err(), "cut at {cut}");
                assert!(decode_put(&octets[..cut]).is_err(), "cut at {cut}");
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
        let octets = encode_put(&queue, &message, Timestamp(77), MessageNumber(4));
        let put = decode_put(&octets).expect("just written");
        assert_eq!((put.message.ticket(), put.number), (Some(&ticket), MessageNumber(4)));
        assert_eq!((put.message.source(), put.message.body()), (&b"ci"[..], &b"b"[..]));
    }

    #[test]
    fn definitions_come_back_as_they_were() {
        let queue = QueueOptions {
            status: Status::RoundRobin,
            request_acknowledge: true,
            acknowledge_timeout: Duration::from_millis(1234),
            message_timeout: Duration::from_secs(9),
            message_limit: 10,
            put_back_limit: 3,
            durability: Durability::Os,
            dead_letter: QueueAddress::parse("dead/9").ok(),
            delivery_handler: Some("orders".into()),
            tag: Some("a=b".into()),
            ..QueueOptions::default()
        };
        let options = ChannelOptions {
            queue: queue.clone(),
            allowed_queues: Some(vec![1, 7]),
            client_limit: 4,
            destroy_when_empty: true,
            ..ChannelOptions::default()
        };
        let name = ChannelName::new("Orders/EU").expect("a good name");
        let read = decode_definition(&channel_key(&name), &encode_channel(&name, &options));
        assert_eq!(read, Ok(Definition::Channel(name.clone(), Box::new(options))));
        for above in [vec![], vec![9, 12]] {
            let progress =
                intake::IntakeProgress { epoch: 3, through: 7, above: above.into_iter().collect() };
            let read = decode_definition(&intake_key("n"), &encode_intake("n", &progress));
            assert_eq!(read, Ok(Definition::Intake("n".into(), progress)));
        }
        assert!(decode_definition(&intake_key("n"), b"1\nname=n\nepoch=1\n").is_err());
        let address = QueueAddress { channel: name, id: 0 };
        let read = decode_definition(&queue_key(&address), &encode_queue(&address, &queue));
        assert_eq!(read, Ok(Definition::Queue(address, Box::new(queue))));
        let read = decode_definition(NUMBERS_KEY, &encode_numbers(MessageNumber(77)));
        assert_eq!(read, Ok(Definition::Numbers(MessageNumber(77))));
    }

    #[test]
    fn a_router_comes_back_as_it_was() {
        let mut router = RouterDefinition::new(
            RouterName::new("Order-Events").expect("a good name"),
            RouterMethod::OnlyFirst,
        );
        router.enabled = false;
        for (name, target) in [
            ("a=b", "orders/7"),
            ("b", "@topic:a=b"),
            ("c", "@type:x y"),
            ("d", "@client:1"),
            ("e", "@handler:h"),
        ] {
            let binding = Binding {
                content_type: (name == "c").then_some(9),
                priority: name.len() as i32 - 2,
                interaction: Interaction::Acknowledge,
                method: RouterMethod::RoundRobin,
                ..Binding::new(name, Target::parse(target).expect("a good target"))
            };
            router.add(binding).expect("a new name");
        }
        let read = decode_definition(&router_key(&router.name), &encode_router(&router));
        assert_eq!(read, Ok(Definition::Router(Box::new(router))));
        let text = b"1\nname=r\nbinding=x\ntarget=@later:y\npriority=3\nbinding=y\ntarget=q\n";
        let read = decode_definition(b"router r", text).expect("what is unknown is left out");
        let Definition::Router(read) = read else { panic!("{read:?}") };
        assert_eq!(read.bindings, [Binding::new("y", Target::parse("q").expect("a queue"))]);
    }

    #[test]
    fn a_binding_to_topics_of_any_octets_comes_back_as_it_was() {
        let queue = QueueAddress::parse("Orders/7").expect("a queue");
        let every: Vec<u8> = (0..=254).collect();
        for name in [&b"orders.*"[..], b"", b"a b%41=\n", &every] {
            let name = TopicName::new(name).expect("not too long");
            let mut keys = std::collections::BTreeSet::new();
            for pattern in
                [TopicPattern::Exact, TopicPattern::Mask, TopicPattern::Prefix].map(|make| make(name.clone()))
            {
                let key = topic_binding_key(&pattern, &queue);
                let read = decode_definition(&key, &encode_topic_binding(&pattern, &queue));
                assert_eq!(read, Ok(Definition::TopicBinding(pattern, queue.clone())));
                assert!(keys.insert(key), "each has a key of its own");
            }
        }
        for broken in
            ["kind=exact\ntopic=%4\n", "kind=exact\ntopic=%zz\n", "kind=later\ntopic=a\n", "kind=exact\n"]
        {
            let text = format!("1\nname=q/1\n{broken}");
            assert!(decode_definition(b"topic exact a q/1", text.as_bytes()).is_err(), "{broken}");
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
