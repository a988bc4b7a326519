//! Routers: messages for them, their answers, and the operations on them.

use std::sync::Arc;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::{ClientPattern, Command, Request};
use mqcore_broker::model::id::{QueueAddress, RouterName};
use mqcore_broker::model::message::{Message, Properties};
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::router::{Binding, Interaction, RouterMethod, Target};
use mqcore_wire::tmqp::Frame;
use mqcore_wire::tmqp::header::{self, key, nack_reason};
use mqcore_wire::tmqp::operation::status;
use serde::Deserialize;

use super::answer::{self, RepeatedParts};
use super::binding_type::BindingType;
use super::frame::properties;
use super::publish::channel_name;
use super::topic;
use crate::message_id::MessageIds;

/// Maximum bytes of the JSON of one binding.
const BINDING_BYTES_MAX: usize = 64 * 1024;

/// Reads a message for a router. A missing id is generated, so that receivers can answer, but a producer that gave none
/// waits for nothing.
pub(super) fn read(
    client: &Arc<Client>,
    frame: &Frame<'_>,
    ids: &mut MessageIds,
) -> Result<Command, Rejection> {
    // A name that no router can have is the name of no router.
    let missing = |_| Rejection::new(RejectionKind::NotFound, "the router does not exist; create it first");
    let router = router_name(frame.target).map_err(missing)?;
    let fresh;
    let id = if frame.id.is_empty() {
        fresh = ids.next();
        &fresh[..]
    } else {
        frame.id
    };
    let waits = !frame.id.is_empty();
    let properties = Properties {
        pending_acknowledge: frame.pending_acknowledge && waits,
        pending_response: frame.pending_response && waits,
        ..properties(frame)
    };
    let message = Message::from_parts(id, frame.headers, frame.payload, properties, Some(client.clone()));
    message.check_terms()?;
    Ok(Command::Route { router, message })
}

/// Reads a router's name.
pub(super) fn router_name(bytes: &[u8]) -> Result<RouterName, Rejection> {
    let bad = |why: String| Rejection::new(RejectionKind::BadRequest, format!("invalid router name: {why}"));
    let text = str::from_utf8(bytes).map_err(|_| bad("it is not UTF-8".into()))?;
    RouterName::new(text).map_err(|error| bad(error.to_string()))
}

/// The answer of a router in its own name: an acknowledgement, a response, or both, as its producer requested.
pub(super) fn answered(
    repeated: &RepeatedParts<'_>,
    (waits_for_acknowledgement, waits_for_response): (bool, bool),
    (router, content_type): (&[u8], u16),
    client_id: &[u8],
    refusal: Option<&Rejection>,
    output: &mut Vec<u8>,
) {
    if repeated.id.is_empty() {
        return;
    }
    if waits_for_acknowledgement {
        // High priority would make it the acknowledgement of a direct message.
        let repeated = RepeatedParts { high_priority: false, ..*repeated };
        let reason = refusal.map(|refusal| match refusal.kind {
            RejectionKind::NotFound => nack_reason::NO_CONSUMERS,
            _ => &*refusal.reason,
        });
        answer::acknowledgement(&repeated, router, content_type, reason, output);
    }
    if waits_for_response {
        match refusal {
            None => answer::response(repeated, client_id, status::OK, &[], output),
            Some(refusal) => answer::refusal(repeated, client_id, refusal, output),
        }
    }
}

/// The request to create a router.
pub(super) fn create(frame: &Frame<'_>) -> Result<Request, Rejection> {
    let method = match header::header_value(frame.headers, key::ROUTE_METHOD).map(<[u8]>::trim_ascii) {
        None => RouterMethod::Distribute,
        Some(value) => {
            let text = str::from_utf8(value).unwrap_or_default();
            let method = match text.parse() {
                Ok(number) => RouterMethod::from_number(number),
                Err(_) => RouterMethod::from_text(text),
            };
            method.ok_or_else(|| bad(format!("{}: unknown method", key::ROUTE_METHOD)))?
        }
    };
    Ok(Request::CreateRouter { router: router_name(frame.target)?, method })
}

/// Whether an operation enables a router: its header `Enabled`, `yes` or `no`.
pub(super) fn is_enabled(headers: &[u8]) -> Result<bool, Rejection> {
    match header::header_value(headers, key::ENABLED).map(<[u8]>::trim_ascii) {
        Some(value) if value.eq_ignore_ascii_case(b"yes") => Ok(true),
        Some(value) if value.eq_ignore_ascii_case(b"no") => Ok(false),
        _ => Err(bad(format!("the header {} must be yes or no", key::ENABLED))),
    }
}

/// The request to add a binding to a router, or to bind a queue to topics if the target is topics.
pub(super) fn add_binding(frame: &Frame<'_>) -> Result<Request, Rejection> {
    let binding = parse(frame.payload)?.binding()?;
    match (topic::pattern(frame.target), binding.target) {
        (None, target) => Ok(Request::AddBinding {
            router: router_name(frame.target)?,
            binding: Binding { target, ..binding },
        }),
        (Some(pattern), Target::Queue(queue)) => Ok(Request::BindTopic { pattern: pattern?, queue }),
        (Some(_), _) => {
            Err(bad("a binding to topics needs a queue as its target; clients subscribe to topics".into()))
        }
    }
}

/// The request to remove a binding. A queue is unbound from topics by its address.
pub(super) fn remove_binding(frame: &Frame<'_>) -> Result<Request, Rejection> {
    let name = header::header_value(frame.headers, key::BINDING_NAME).map(<[u8]>::trim_ascii);
    let name = name.and_then(|name| str::from_utf8(name).ok()).filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| bad(format!("this operation needs the header {}", key::BINDING_NAME)))?;
    match topic::pattern(frame.target) {
        None => Ok(Request::RemoveBinding { router: router_name(frame.target)?, binding: name.into() }),
        Some(pattern) => {
            let queue = QueueAddress::parse(name).map_err(|error| bad(error.to_string()))?;
            Ok(Request::UnbindTopic { pattern: pattern?, queue })
        }
    }
}

/// The request to compute the route of a frame's message.
pub(super) fn test(client: &Arc<Client>, frame: &Frame<'_>) -> Result<Request, Rejection> {
    let properties = Properties { content_type: 0, ..properties(frame) };
    let producer = Some(client.clone());
    let message = Message::from_parts(frame.id, frame.headers, frame.payload, properties, producer);
    Ok(Request::TestRoute { router: router_name(frame.target)?, message })
}

/// A binding as clients of 3.7 send it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct BindingModel {
    name: Option<String>,
    target: Option<String>,
    content_type: Option<u16>,
    priority: Option<i32>,
    interaction: Option<EnumValue>,
    binding_type: Option<EnumValue>,
    method: Option<EnumValue>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum EnumValue {
    Number(u64),
    Text(String),
}

impl EnumValue {
    fn read<T>(
        self,
        what: &str,
        number: fn(u64) -> Option<T>,
        text: fn(&str) -> Option<T>,
    ) -> Result<T, Rejection> {
        let read = match &self {
            Self::Number(value) => number(*value),
            Self::Text(value) => text(value),
        };
        read.ok_or_else(|| bad(format!("{what}: {self:?} is not a valid value")))
    }
}

impl BindingModel {
    fn binding(self) -> Result<Binding, Rejection> {
        let text = self.target.filter(|target| !target.is_empty());
        let text = text.ok_or_else(|| bad("Target: a binding needs a target".into()))?;
        let kind = self
            .binding_type
            .map(|value| value.read("BindingType", BindingType::from_number, BindingType::from_text))
            .transpose()?;
        let target = target(kind, &text, self.content_type)?;
        let name = self.name.filter(|name| !name.is_empty()).unwrap_or_else(|| target.to_string());
        Ok(Binding {
            content_type: self.content_type,
            priority: self.priority.unwrap_or(0),
            interaction: self
                .interaction
                .map(|value| value.read("Interaction", Interaction::from_number, Interaction::from_text))
                .transpose()?
                .unwrap_or_default(),
            method: self
                .method
                .map(|value| value.read("Method", RouterMethod::from_number, RouterMethod::from_text))
                .transpose()?
                .unwrap_or_default(),
            ..Binding::new(&name, target)
        })
    }
}

/// The original writes a queue as its channel and, in the content type, its id. Without a type the target text
/// determines it, as everywhere else in mqcore.
fn target(kind: Option<BindingType>, text: &str, content_type: Option<u16>) -> Result<Target, Rejection> {
    match kind {
        None => Target::parse(text),
        Some(BindingType::Queue) => match content_type {
            Some(id) => Ok(Target::Queue(QueueAddress { channel: channel_name(text.as_bytes())?, id })),
            None => QueueAddress::parse(text).map(Target::Queue).map_err(|error| bad(error.to_string())),
        },
        Some(BindingType::Direct) => match text.strip_prefix("@client:") {
            Some(id) => Target::parse(&format!("@client:{id}")),
            None => Ok(Target::Client(ClientPattern::parse(text))),
        },
        Some(BindingType::Topic) => match topic::pattern(text.as_bytes()) {
            Some(_) => Target::parse(text),
            None => Target::parse(&format!("@topic:{text}")),
        },
        Some(BindingType::Handler) => match text.strip_prefix("@handler:") {
            Some(_) => Target::parse(text),
            None => Target::parse(&format!("@handler:{text}")),
        },
        Some(kind @ (BindingType::Http | BindingType::Tag)) => {
            let reason = format!("BindingType: {kind:?} is not supported; bind queues, clients or topics");
            Err(Rejection::new(RejectionKind::Unacceptable, reason))
        }
    }
}

fn parse(json: &[u8]) -> Result<BindingModel, Rejection> {
    if json.len() > BINDING_BYTES_MAX {
        let reason = format!("the binding has {} bytes; the limit is {BINDING_BYTES_MAX}", json.len());
        return Err(bad(reason));
    }
    // Serde would take an array for the members in their order.
    if json.trim_ascii_start().starts_with(b"[") {
        return Err(bad("the binding must be a JSON object, not an array".into()));
    }
    serde_json::from_slice(json).map_err(|error| bad(format!("the binding is not valid JSON: {error}")))
}

fn bad(reason: String) -> Rejection {
    Rejection::new(RejectionKind::BadRequest, reason)
}
