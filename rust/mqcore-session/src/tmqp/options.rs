//! Options of channels and queues as clients send them: JSON, and the headers that came with 3.7.
//!
//! The names of the document and of the program are accepted; unknown ones are ignored. Members that are absent or null
//! change nothing. `PutBackLimit`, `DeadLetter`, `MessageSizeLimit`, `Tag`, `TagName`, `PublishLimit`, `Durability`,
//! and a status by name are extensions of mqcore.

use std::time::Duration;

use mqcore_broker::model::id::QueueAddress;
use mqcore_broker::model::options::{ChannelChanges, Durability, QueueChanges, Status};
use mqcore_broker::model::rate::Rate;
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_wire::tmqp::header::{self, key};
use serde::Deserialize;

/// Enough for a channel that lists every queue id.
pub(super) const OPTIONS_BYTES_MAX: usize = 1024 * 1024;
/// Maximum bytes of a tag or a handler's key.
const WORD_BYTES_MAX: usize = 255;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct QueueOptions {
    send_only_first_acquirer: Option<bool>,
    only_first_acquirer: Option<bool>,
    request_acknowledge: Option<bool>,
    acknowledge_timeout: Option<u64>,
    message_timeout: Option<u64>,
    use_message_id: Option<bool>,
    wait_for_acknowledge: Option<bool>,
    hide_client_names: Option<bool>,
    status: Option<StatusWord>,
    message_delivery_handler: Option<String>,
    delivery_handler: Option<String>,
    message_limit: Option<u64>,
    message_size_limit: Option<u64>,
    put_back_limit: Option<u16>,
    dead_letter: Option<String>,
    tag: Option<String>,
    tag_name: Option<String>,
    durability: Option<String>,
    publish_limit: Option<String>,
}

/// Options of a channel besides those of its queues.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct ChannelOptions {
    allow_multiple_queues: Option<bool>,
    allowed_queues: Option<Vec<u16>>,
    client_limit: Option<u32>,
    queue_limit: Option<u32>,
    destroy_when_empty: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum StatusWord {
    Number(u64),
    Text(String),
}

impl StatusWord {
    fn status(&self) -> Result<Status, Rejection> {
        let status = match self {
            Self::Number(number) => Status::from_number(*number),
            Self::Text(text) => Status::from_text(text),
        };
        status.ok_or_else(|| bad("Status: unknown queue status".into()))
    }
}

/// Reads the options of a queue. An empty body changes nothing.
pub(super) fn queue_changes(json: &[u8]) -> Result<QueueChanges, Rejection> {
    parse::<QueueOptions>(json)?.changes()
}

/// Reads the options of a channel, including those of its queues. An empty body changes nothing.
pub(super) fn channel_changes(json: &[u8]) -> Result<ChannelChanges, Rejection> {
    // Read twice: flattening one struct into the other would keep all names in memory, known or not.
    let options = parse::<ChannelOptions>(json)?;
    Ok(ChannelChanges {
        queue: queue_changes(json)?,
        allow_multiple_queues: options.allow_multiple_queues,
        // An empty list means that all queues are allowed.
        allowed_queues: options.allowed_queues.map(|queues| (!queues.is_empty()).then_some(queues)),
        client_limit: options.client_limit,
        queue_limit: options.queue_limit,
        destroy_when_empty: options.destroy_when_empty,
    })
}

/// Options of a new queue in headers (3.7). The body takes precedence.
pub(super) fn apply_headers(headers: &[u8], changes: &mut QueueChanges) -> Result<(), Rejection> {
    let text = |key: &str| {
        let value = header::header_value(headers, key)?;
        Some(str::from_utf8(value).map(str::trim).map_err(|_| bad(format!("the header {key} is not UTF-8"))))
    };
    if let (None, Some(word)) = (changes.status, text(key::QUEUE_STATUS)) {
        changes.status = Some(StatusWord::Text(word?.into()).status()?);
    }
    if let (None, Some(yes)) = (changes.wait_for_acknowledge, text(key::WAIT_FOR_ACKNOWLEDGE)) {
        let yes = yes?;
        changes.wait_for_acknowledge =
            Some(["yes", "true", "1"].iter().any(|word| yes.eq_ignore_ascii_case(word)));
    }
    if let (None, Some(rate)) = (changes.publish_limit, text(key::PUBLISH_LIMIT)) {
        changes.publish_limit = Some(publish_limit(rate?)?);
    }
    if let (None, Some(tag)) = (&changes.tag, text(key::QUEUE_TAG)) {
        changes.tag = Some(word(key::QUEUE_TAG, tag?)?);
    }
    if let (None, Some(handler)) = (&changes.delivery_handler, text(key::DELIVERY_HANDLER)) {
        changes.delivery_handler = Some(word(key::DELIVERY_HANDLER, handler?)?);
    }
    Ok(())
}

impl QueueOptions {
    fn changes(self) -> Result<QueueChanges, Rejection> {
        let handler = self.message_delivery_handler.or(self.delivery_handler);
        Ok(QueueChanges {
            status: self.status.map(|status| status.status()).transpose()?,
            only_first_acquirer: self.send_only_first_acquirer.or(self.only_first_acquirer),
            request_acknowledge: self.request_acknowledge,
            acknowledge_timeout: self.acknowledge_timeout.map(Duration::from_millis),
            message_timeout: self.message_timeout.map(Duration::from_millis),
            use_message_id: self.use_message_id,
            wait_for_acknowledge: self.wait_for_acknowledge,
            hide_client_names: self.hide_client_names,
            message_limit: self.message_limit,
            message_size_limit: self.message_size_limit,
            put_back_limit: self.put_back_limit,
            dead_letter: self.dead_letter.map(|address| dead_letter(&address)).transpose()?,
            delivery_handler: handler.map(|key| word("MessageDeliveryHandler", &key)).transpose()?,
            tag: self.tag.or(self.tag_name).map(|tag| word("Tag", &tag)).transpose()?,
            durability: self.durability.map(|text| durability(&text)).transpose()?,
            publish_limit: self.publish_limit.map(|text| publish_limit(&text)).transpose()?,
        })
    }
}

/// Empty text and `none` remove the limit.
fn publish_limit(text: &str) -> Result<Option<Rate>, Rejection> {
    Rate::change(text).map_err(|error| bad(format!("PublishLimit: {error}")))
}

fn durability(text: &str) -> Result<Durability, Rejection> {
    Durability::from_text(text).ok_or_else(|| bad("Durability must be none, os or fsync".into()))
}

/// Empty text removes the dead-letter queue.
fn dead_letter(address: &str) -> Result<Option<QueueAddress>, Rejection> {
    if address.is_empty() {
        return Ok(None);
    }
    QueueAddress::parse(address).map(Some).map_err(|error| bad(format!("DeadLetter: {error}")))
}

fn word(what: &str, text: &str) -> Result<Box<str>, Rejection> {
    if text.len() > WORD_BYTES_MAX {
        return Err(bad(format!("{what} has {} bytes; the limit is {WORD_BYTES_MAX}", text.len())));
    }
    Ok(text.into())
}

fn parse<'a, Options: Default + Deserialize<'a>>(json: &'a [u8]) -> Result<Options, Rejection> {
    if json.is_empty() {
        return Ok(Options::default());
    }
    if json.len() > OPTIONS_BYTES_MAX {
        let reason = format!("the options have {} bytes; the limit is {OPTIONS_BYTES_MAX}", json.len());
        return Err(bad(reason));
    }
    // Serde would take an array for the options in their order.
    if json.trim_ascii_start().starts_with(b"[") {
        return Err(bad("the options must be a JSON object, not an array".into()));
    }
    let options: Option<Options> = serde_json::from_slice(json)
        .map_err(|error| bad(format!("the options are not valid JSON: {error}")))?;
    Ok(options.unwrap_or_default())
}

fn bad(reason: String) -> Rejection {
    Rejection::new(RejectionKind::BadRequest, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_of_a_queue_is_read() {
        let json = br#"{"SendOnlyFirstAcquirer":true,"RequestAcknowledge":true,"AcknowledgeTimeout":33000,
            "MessageTimeout":5,"UseMessageId":false,"WaitForAcknowledge":true,"HideClientNames":true,"Status":3,
            "MessageDeliveryHandler":"memory","MessageLimit":7,"MessageSizeLimit":8,"PutBackLimit":9,"Durability":"os",
            "DeadLetter":"dead/2","Tag":"t","PublishLimit":"20/10s"}"#;
        let expected = QueueChanges {
            status: Some(Status::Pull),
            only_first_acquirer: Some(true),
            request_acknowledge: Some(true),
            acknowledge_timeout: Some(Duration::from_secs(33)),
            message_timeout: Some(Duration::from_millis(5)),
            use_message_id: Some(false),
            wait_for_acknowledge: Some(true),
            hide_client_names: Some(true),
            message_limit: Some(7),
            message_size_limit: Some(8),
            put_back_limit: Some(9),
            dead_letter: Some(Some(QueueAddress::parse("dead/2").unwrap())),
            delivery_handler: Some("memory".into()),
            publish_limit: Some(Some("20/10s".parse().unwrap())),
            tag: Some("t".into()),
            durability: Some(Durability::Os),
        };
        assert_eq!(queue_changes(json), Ok(expected));
    }

    #[test]
    fn names_of_document_and_program_mean_the_same() {
        let changes = |json: &str| queue_changes(json.as_bytes()).unwrap();
        assert_eq!(changes(r#"{"TagName":"t"}"#), changes(r#"{"Tag":"t"}"#));
        assert_eq!(changes(r#"{"OnlyFirstAcquirer":true}"#), changes(r#"{"SendOnlyFirstAcquirer":true}"#));
        assert_eq!(changes(r#"{"DeliveryHandler":"k"}"#), changes(r#"{"MessageDeliveryHandler":"k"}"#));
        assert_eq!(changes(r#"{"Status":"RoundRobin"}"#), changes(r#"{"Status":2}"#));
    }

    #[test]
    fn absent_null_and_unknown_change_nothing() {
        for json in ["", "null", "{}", r#"{"Tag":null,"Status":null}"#, r#"{"tag":"x","Other":[{}]}"#] {
            assert_eq!(queue_changes(json.as_bytes()), Ok(QueueChanges::default()), "{json}");
            assert_eq!(channel_changes(json.as_bytes()), Ok(ChannelChanges::default()), "{json}");
        }
    }

    #[test]
    fn a_channel_takes_its_own_options_and_those_of_its_queues() {
        let json = br#"{"AllowMultipleQueues":false,"AllowedQueues":[1,2],"ClientLimit":3,"QueueLimit":4,
            "DestroyWhenEmpty":true,"EventHandler":"x","Authenticator":"y","RequestAcknowledge":true}"#;
        let changes = channel_changes(json).unwrap();
        assert_eq!(changes.allow_multiple_queues, Some(false));
        assert_eq!(changes.allowed_queues, Some(Some(vec![1, 2])));
        assert_eq!((changes.client_limit, changes.queue_limit), (Some(3), Some(4)));
        assert_eq!(changes.destroy_when_empty, Some(true));
        assert_eq!(changes.queue.request_acknowledge, Some(true));
        assert_eq!(channel_changes(br#"{"AllowedQueues":[]}"#).unwrap().allowed_queues, Some(None));
    }

    #[test]
    fn invalid_options_are_a_bad_request() {
        let long_tag = format!(r#"{{"Tag":"{}"}}"#, "t".repeat(256));
        let large = format!("{}{{}}", " ".repeat(OPTIONS_BYTES_MAX));
        for json in [
            "{",
            "[]",
            "[true]",
            "\u{1}",
            r#"{"Status":7}"#,
            r#"{"Status":"dance"}"#,
            r#"{"Status":true}"#,
            r#"{"AcknowledgeTimeout":-1}"#,
            r#"{"AcknowledgeTimeout":"soon"}"#,
            r#"{"PutBackLimit":65536}"#,
            r#"{"DeadLetter":"a b/1"}"#,
            r#"{"Tag":1}"#,
            &long_tag,
            &large,
        ] {
            let rejection = queue_changes(json.as_bytes()).unwrap_err();
            assert_eq!(rejection.kind, RejectionKind::BadRequest, "{json:.40}");
        }
        assert!(channel_changes(br#"{"AllowedQueues":[65536]}"#).is_err());
    }

    #[test]
    fn an_empty_dead_letter_queue_removes_it() {
        assert_eq!(queue_changes(br#"{"DeadLetter":""}"#).unwrap().dead_letter, Some(None));
    }

    #[test]
    fn headers_set_options_that_the_body_omits() {
        let headers =
            b"Queue-Status:round\r\nQueue-Tag: t \r\nDelivery-Handler:k\r\nWait-For-Acknowledge:True\r\n";
        let mut changes = QueueChanges { tag: Some("body".into()), ..QueueChanges::default() };
        apply_headers(headers, &mut changes).unwrap();
        assert_eq!(changes.status, Some(Status::RoundRobin));
        assert_eq!(changes.tag.as_deref(), Some("body"));
        assert_eq!(changes.delivery_handler.as_deref(), Some("k"));
        assert_eq!(changes.wait_for_acknowledge, Some(true));
        assert!(apply_headers(b"Queue-Status:dance\r\n", &mut QueueChanges::default()).is_err());
    }
}
