//! Definitions in the journal: channels, queues, routers, bindings to topics, and counters that survive a restart.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::model::id::{ChannelName, MessageNumber, QueueAddress, RouterName, TopicName};
use crate::model::intake;
use crate::model::options::{ChannelOptions, DeadLetter, Durability, QueueChanges, QueueOptions, Status};
use crate::model::queue_policy::{QueuePattern, QueuePolicy};
use crate::model::record::{RecordError, VERSION, address};
use crate::model::router::{Binding, Interaction, RouterDefinition, RouterMethod, Target};
use crate::model::time::Timestamp;
use crate::model::topic::TopicPattern;

const INTAKE_KEY: &str = "intake ";

const CHANNEL_KEY: &str = "channel ";

const QUEUE_KEY: &str = "queue ";

const ROUTER_KEY: &str = "router ";

const POLICY_KEY: &str = "policy ";

const TOPIC_KEY: &str = "topic ";

const ID_KEY: &str = "id ";

/// Key of the definition that reserves message numbers.
pub const NUMBERS_KEY: &[u8] = b"numbers";

pub(crate) const DEFINITION: &str = "definition";

/// Key of a channel's definition.
pub fn channel_key(name: &ChannelName) -> Vec<u8> {
    format!("{CHANNEL_KEY}{}", name.as_str().to_ascii_lowercase()).into_bytes()
}

/// Key of a queue's definition.
pub fn queue_key(queue: &QueueAddress) -> Vec<u8> {
    format!("{QUEUE_KEY}{}", queue.to_string().to_ascii_lowercase()).into_bytes()
}

/// Key of a router's definition.
pub fn router_key(name: &RouterName) -> Vec<u8> {
    format!("{ROUTER_KEY}{name}").into_bytes()
}

/// Key of a policy's definition.
pub fn policy_key(name: &str) -> Vec<u8> {
    format!("{POLICY_KEY}{name}").into_bytes()
}

/// Key of the binding of a queue to topics.
pub fn topic_binding_key(pattern: &TopicPattern, queue: &QueueAddress) -> Vec<u8> {
    let (kind, name) = pattern_words(pattern);
    format!("{TOPIC_KEY}{kind} {name} {}", queue.to_string().to_ascii_lowercase()).into_bytes()
}

/// Key of the id of a message that left its queue.
pub fn message_id_key(queue: &QueueAddress, id: &[u8]) -> Vec<u8> {
    format!("{ID_KEY}{} {}", queue.to_string().to_ascii_lowercase(), visible(id)).into_bytes()
}

/// Key of the progress of a downstream broker.
pub fn intake_key(node: &str) -> Vec<u8> {
    format!("{INTAKE_KEY}{node}").into_bytes()
}

/// A decoded definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Definition {
    /// A channel.
    Channel(ChannelName, Box<ChannelOptions>),
    /// A queue.
    Queue(QueueAddress, Box<QueueOptions>),
    /// A router.
    Router(Box<RouterDefinition>),
    /// A policy.
    Policy(Box<QueuePolicy>),
    /// The binding of a queue to topics.
    TopicBinding(TopicPattern, QueueAddress),
    /// The progress of a downstream broker.
    Intake(Arc<str>, intake::IntakeProgress),
    /// A queue remembers the id of a message that left it, until this time.
    MessageId(QueueAddress, Box<[u8]>, Timestamp),
    /// The history has used message numbers below this one.
    Numbers(MessageNumber),
}

/// Encodes a definition as text, one `name=value` a line. Decoding ignores unknown options and gives
/// missing ones their defaults, so that versions can add options.
pub fn encode_channel(name: &ChannelName, options: &ChannelOptions) -> Vec<u8> {
    let mut text = format!("{VERSION}\nname={name}\n");
    write_channel_options(options, &mut text);
    text.into_bytes()
}

/// See [`encode_channel`].
pub fn encode_queue(queue: &QueueAddress, options: &QueueOptions) -> Vec<u8> {
    let mut text = format!("{VERSION}\nname={queue}\n");
    write_queue_options(options, &mut text);
    text.into_bytes()
}

/// See [`encode_channel`]. The name of a binding begins its group of lines.
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

/// See [`encode_channel`]. Only options that the policy sets have lines.
pub fn encode_policy(policy: &QueuePolicy) -> Vec<u8> {
    let mut text = format!("{VERSION}\nname={}\n", policy.name);
    line(&mut text, "pattern", policy.pattern.as_str());
    line(&mut text, "priority", policy.priority);
    write_queue_changes(&policy.options, &mut text);
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

/// See [`encode_channel`].
pub fn encode_message_id(queue: &QueueAddress, id: &[u8], until: Timestamp) -> Vec<u8> {
    let mut text = format!("{VERSION}\nname={queue}\n");
    line(&mut text, "id", visible(id));
    line(&mut text, "until_ms", until.0);
    text.into_bytes()
}

/// The kind of the pattern, and its name with `%XX` for every byte that is not visible ASCII, since
/// topics may contain any bytes.
fn pattern_words(pattern: &TopicPattern) -> (&'static str, String) {
    let kind = match pattern {
        TopicPattern::Exact(_) => "exact",
        TopicPattern::Mask(_) => "mask",
        TopicPattern::Prefix(_) => "prefix",
    };
    (kind, visible(pattern.name().as_bytes()))
}

/// Text with `%XX` for every byte that is not visible ASCII.
fn visible(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for byte in bytes {
        if byte.is_ascii_graphic() && *byte != b'%' {
            text.push(char::from(*byte));
        } else {
            let _ = write!(text, "%{byte:02x}");
        }
    }
    text
}

fn read_topic_binding(pairs: &[(&str, &str)]) -> Option<TopicPattern> {
    let value = |key: &str| pairs.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
    let name = TopicName::new(&bytes_of(value("topic")?)?).ok()?;
    Some(match value("kind")? {
        "exact" => TopicPattern::Exact(name),
        "mask" => TopicPattern::Mask(name),
        "prefix" => TopicPattern::Prefix(name),
        _ => return None,
    })
}

/// Reads the output of [`visible`].
fn bytes_of(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    Some(bytes)
}

fn read_message_id(pairs: &[(&str, &str)]) -> Option<(Box<[u8]>, Timestamp)> {
    let value = |key: &str| pairs.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
    Some((bytes_of(value("id")?)?.into(), Timestamp(value("until_ms")?.parse().ok()?)))
}

/// See [`encode_channel`].
pub fn encode_intake(node: &str, progress: &intake::IntakeProgress) -> Vec<u8> {
    let mut text = format!("{VERSION}\nname={node}\n");
    line(&mut text, "epoch", progress.epoch);
    line(&mut text, "through", progress.through);
    if !progress.above.is_empty() {
        // While one message waits, thousands after it are done, and each of them changes this record.
        let ranges: Vec<_> =
            intake::ranges(&progress.above).map(|(first, last)| format!("{first}-{last}")).collect();
        line(&mut text, "ranges", ranges.join(","));
    }
    text.into_bytes()
}

fn read_router(name: &str, pairs: &[(&str, &str)]) -> Option<RouterDefinition> {
    let mut router = RouterDefinition::new(RouterName::new(name).ok()?, RouterMethod::Distribute);
    let mut bindings: Vec<Binding> = Vec::new();
    // The binding whose target was not read yet. A binding with a target of a later version is left
    // out.
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
    // Earlier versions list the numbers.
    let mut above: BTreeSet<u64> = value("above")
        .into_iter()
        .flat_map(|numbers| numbers.split(','))
        .map(|number| number.parse().ok())
        .collect::<Option<_>>()?;
    for range in value("ranges").into_iter().flat_map(|ranges| ranges.split(',')) {
        let (first, last): (u64, u64) =
            range.split_once('-').map(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)))??;
        if last.checked_sub(first)? >= intake::RANGE_MAX {
            return None;
        }
        above.extend(first..=last);
    }
    Some(intake::IntakeProgress {
        epoch: value("epoch")?.parse().ok()?,
        through: value("through")?.parse().ok()?,
        above,
    })
}

fn line(text: &mut String, name: &str, value: impl std::fmt::Display) {
    use std::fmt::Write as _;
    let _ = writeln!(text, "{name}={value}");
}

/// See [`NUMBERS_KEY`].
pub fn encode_numbers(below: MessageNumber) -> Vec<u8> {
    format!("{VERSION}\nname={}\n", below.0).into_bytes()
}

/// Decodes the definition with this key.
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
    let name = name.ok_or(malformed("it has no name"))?;
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
    } else if key.starts_with(POLICY_KEY) {
        let policy = read_policy(name, &pairs).ok_or(malformed("the policy's pattern"))?;
        Ok(Definition::Policy(Box::new(policy)))
    } else if key.starts_with(TOPIC_KEY) {
        let queue = address(name).ok_or(malformed("the queue's address"))?;
        let pattern = read_topic_binding(&pairs).ok_or(malformed("the topics that a queue is bound to"))?;
        Ok(Definition::TopicBinding(pattern, queue))
    } else if key.starts_with(INTAKE_KEY) {
        // Unlike an option, a malformed number cannot be replaced by a default: messages would arrive
        // twice, or never.
        let progress = read_intake(&pairs).ok_or(malformed("the numbers of a node"))?;
        Ok(Definition::Intake(name.into(), progress))
    } else if key.starts_with(ID_KEY) {
        let queue = address(name).ok_or(malformed("the queue's address"))?;
        let (id, until) = read_message_id(&pairs).ok_or(malformed("the id of a message"))?;
        Ok(Definition::MessageId(queue, id, until))
    } else if key.as_bytes() == NUMBERS_KEY {
        let below = name.parse().map_err(|_| malformed("the message numbers"))?;
        Ok(Definition::Numbers(MessageNumber(below)))
    } else {
        Err(malformed("unknown kind of key"))
    }
}

fn read_policy(name: &str, pairs: &[(&str, &str)]) -> Option<QueuePolicy> {
    let value = |wanted| pairs.iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value);
    let mut options = QueueChanges::default();
    for (name, value) in pairs {
        read_queue_change(&mut options, name, value);
    }
    Some(QueuePolicy {
        name: name.into(),
        pattern: QueuePattern::new(value("pattern")?).ok()?,
        priority: value("priority").and_then(|value| value.parse().ok()).unwrap_or(0),
        options,
    })
}

/// The options of a queue whose values differ, each as `name is VALUE, declared VALUE`.
pub(crate) fn queue_differences(options: &QueueOptions, declared: &QueueOptions) -> Vec<String> {
    let [is, wanted] = [options, declared].map(|options| {
        let mut text = String::new();
        write_queue_options(options, &mut text);
        text
    });
    differences(&is, &wanted)
}

/// See [`queue_differences`]; the options of the channel's queues begin with `queue.`.
pub(crate) fn channel_differences(options: &ChannelOptions, declared: &ChannelOptions) -> Vec<String> {
    let queues = queue_differences(&options.queue, &declared.queue);
    let mut found: Vec<_> = queues.iter().map(|difference| format!("queue.{difference}")).collect();
    let [is, wanted] = [options, declared].map(|options| {
        let mut text = String::new();
        write_channel_options(
            &ChannelOptions { queue: QueueOptions::default(), ..options.clone() },
            &mut text,
        );
        text
    });
    found.extend(differences(&is, &wanted));
    found
}

fn differences(is: &str, wanted: &str) -> Vec<String> {
    let pairs = |text| str::lines(text).filter_map(|line| line.split_once('='));
    let value = |text, name: &str| pairs(text).find(|(known, _)| *known == name).map(|(_, value)| value);
    let removed = pairs(is).filter(|(name, _)| value(wanted, name).is_none());
    let names = pairs(wanted).chain(removed).map(|(name, _)| name);
    let differs = names.filter(|name| value(is, name) != value(wanted, name));
    let shown = |value: Option<&str>| value.unwrap_or("not set").to_owned();
    differs
        .map(|name| format!("{name} is {}, declared {}", shown(value(is, name)), shown(value(wanted, name))))
        .collect()
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

/// A line break would begin another option.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

fn ids(ids: &[u16]) -> String {
    ids.iter().map(u16::to_string).collect::<Vec<_>>().join(",")
}

fn read_ids(text: &str) -> Vec<u16> {
    text.split(',').filter_map(|id| id.parse().ok()).collect()
}

// generated by tools/generate_options.py
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
    if let Some(value) = &options.tag {
        line(text, "tag", one_line(value));
    }
    if let Some(value) = &options.delivery_handler {
        line(text, "delivery_handler", one_line(value));
    }
    line(text, "put_back_limit", options.put_back_limit);
    if let Some(value) = &options.retry_delay {
        line(text, "retry_delay_ms", value.as_millis());
    }
    line(text, "retry_delay_max_ms", options.retry_delay_max.as_millis());
    if let Some(value) = &options.dead_letter {
        line(text, "dead_letter", value);
    }
    line(text, "durability", options.durability.as_str());
    line(text, "deduplication_window_ms", options.deduplication_window.as_millis());
    if let Some(value) = &options.publish_limit {
        line(text, "publish_limit", value);
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
        "tag" => options.tag = Some(value.into()),
        "delivery_handler" => options.delivery_handler = Some(value.into()),
        "put_back_limit" => set(&mut options.put_back_limit, value),
        "retry_delay_ms" => options.retry_delay = value.parse().ok().map(Duration::from_millis),
        "retry_delay_max_ms" => set_ms(&mut options.retry_delay_max, value),
        "dead_letter" => options.dead_letter = DeadLetter::parse(value).ok(),
        "durability" => options.durability = Durability::from_text(value).unwrap_or(options.durability),
        "deduplication_window_ms" => set_ms(&mut options.deduplication_window, value),
        "publish_limit" => options.publish_limit = value.parse().ok(),
        // An option of a later version. This version behaves like its default.
        _ => {}
    }
}

fn write_channel_options(options: &ChannelOptions, text: &mut String) {
    write_queue_options(&options.queue, text);
    line(text, "allow_multiple_queues", options.allow_multiple_queues);
    if let Some(value) = &options.allowed_queues {
        line(text, "allowed_queues", ids(value));
    }
    line(text, "client_limit", options.client_limit);
    line(text, "queue_limit", options.queue_limit);
    line(text, "destroy_when_empty", options.destroy_when_empty);
    if let Some(value) = &options.event_handler {
        line(text, "event_handler", one_line(value));
    }
    if let Some(value) = &options.authenticator {
        line(text, "authenticator", one_line(value));
    }
}

fn read_channel_option(options: &mut ChannelOptions, name: &str, value: &str) {
    match name {
        "allow_multiple_queues" => set(&mut options.allow_multiple_queues, value),
        "allowed_queues" => options.allowed_queues = Some(read_ids(value)),
        "client_limit" => set(&mut options.client_limit, value),
        "queue_limit" => set(&mut options.queue_limit, value),
        "destroy_when_empty" => set(&mut options.destroy_when_empty, value),
        "event_handler" => options.event_handler = Some(value.into()),
        "authenticator" => options.authenticator = Some(value.into()),
        _ => read_queue_option(&mut options.queue, name, value),
    }
}
// end generated

// generated by tools/generate_options.py
fn write_queue_changes(changes: &QueueChanges, text: &mut String) {
    if let Some(value) = &changes.status {
        line(text, "status", value.as_str());
    }
    if let Some(value) = &changes.only_first_acquirer {
        line(text, "only_first_acquirer", value);
    }
    if let Some(value) = &changes.request_acknowledge {
        line(text, "request_acknowledge", value);
    }
    if let Some(value) = &changes.acknowledge_timeout {
        line(text, "acknowledge_timeout_ms", value.as_millis());
    }
    if let Some(value) = &changes.message_timeout {
        line(text, "message_timeout_ms", value.as_millis());
    }
    if let Some(value) = &changes.use_message_id {
        line(text, "use_message_id", value);
    }
    if let Some(value) = &changes.wait_for_acknowledge {
        line(text, "wait_for_acknowledge", value);
    }
    if let Some(value) = &changes.hide_client_names {
        line(text, "hide_client_names", value);
    }
    if let Some(value) = &changes.message_limit {
        line(text, "message_limit", value);
    }
    if let Some(value) = &changes.message_size_limit {
        line(text, "message_size_limit", value);
    }
    if let Some(value) = &changes.tag {
        line(text, "tag", one_line(value));
    }
    if let Some(value) = &changes.delivery_handler {
        line(text, "delivery_handler", one_line(value));
    }
    if let Some(value) = &changes.put_back_limit {
        line(text, "put_back_limit", value);
    }
    if let Some(value) = &changes.retry_delay {
        line(text, "retry_delay_ms", value.map(|delay| delay.as_millis().to_string()).unwrap_or_default());
    }
    if let Some(value) = &changes.retry_delay_max {
        line(text, "retry_delay_max_ms", value.as_millis());
    }
    if let Some(value) = &changes.dead_letter {
        line(text, "dead_letter", value.as_ref().map(ToString::to_string).unwrap_or_default());
    }
    if let Some(value) = &changes.durability {
        line(text, "durability", value.as_str());
    }
    if let Some(value) = &changes.deduplication_window {
        line(text, "deduplication_window_ms", value.as_millis());
    }
    if let Some(value) = &changes.publish_limit {
        line(text, "publish_limit", value.as_ref().map(ToString::to_string).unwrap_or_default());
    }
}

fn read_queue_change(changes: &mut QueueChanges, name: &str, value: &str) {
    // Both have the same text.
    let mut options = QueueOptions::default();
    read_queue_option(&mut options, name, value);
    match name {
        "status" => changes.status = Some(options.status),
        "only_first_acquirer" => changes.only_first_acquirer = Some(options.only_first_acquirer),
        "request_acknowledge" => changes.request_acknowledge = Some(options.request_acknowledge),
        "acknowledge_timeout_ms" => changes.acknowledge_timeout = Some(options.acknowledge_timeout),
        "message_timeout_ms" => changes.message_timeout = Some(options.message_timeout),
        "use_message_id" => changes.use_message_id = Some(options.use_message_id),
        "wait_for_acknowledge" => changes.wait_for_acknowledge = Some(options.wait_for_acknowledge),
        "hide_client_names" => changes.hide_client_names = Some(options.hide_client_names),
        "message_limit" => changes.message_limit = Some(options.message_limit),
        "message_size_limit" => changes.message_size_limit = Some(options.message_size_limit),
        "tag" => changes.tag = options.tag,
        "delivery_handler" => changes.delivery_handler = options.delivery_handler,
        "put_back_limit" => changes.put_back_limit = Some(options.put_back_limit),
        "retry_delay_ms" => changes.retry_delay = Some(options.retry_delay),
        "retry_delay_max_ms" => changes.retry_delay_max = Some(options.retry_delay_max),
        "dead_letter" => changes.dead_letter = Some(options.dead_letter),
        "durability" => changes.durability = Some(options.durability),
        "deduplication_window_ms" => changes.deduplication_window = Some(options.deduplication_window),
        "publish_limit" => changes.publish_limit = Some(options.publish_limit),
        _ => {}
    }
}
// end generated
