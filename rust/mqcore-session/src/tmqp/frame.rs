//! Parts that frames and messages have in common, read and written.

use mqcore_broker::model::command::ClientPattern;
use mqcore_broker::model::message::Properties;
use mqcore_wire::tmqp::Frame;

/// The client that a frame is addressed to, if the target can be a client id.
pub(super) fn addressee<'a>(frame: &Frame<'a>) -> Option<&'a str> {
    str::from_utf8(frame.target).ok().filter(|id| !id.is_empty() && !frame.id.is_empty())
}

const BY_NAME: &str = "@name:";
const BY_TYPE: &str = "@type:";

pub(super) fn client_pattern(target: &str) -> ClientPattern {
    if let Some(name) = target.strip_prefix(BY_NAME) {
        ClientPattern::Name(unquoted(name).into())
    } else if let Some(kind) = target.strip_prefix(BY_TYPE) {
        ClientPattern::Kind(unquoted(kind).into())
    } else {
        ClientPattern::Id(target.into())
    }
}

pub(crate) fn pattern_text(pattern: &ClientPattern) -> String {
    match pattern {
        ClientPattern::Id(id) => id.to_string(),
        ClientPattern::Name(name) => format!("{BY_NAME}{name}"),
        ClientPattern::Kind(kind) => format!("{BY_TYPE}{kind}"),
    }
}

/// The document writes quotes around names, the program does not.
fn unquoted(text: &str) -> &str {
    text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text)
}

/// The properties of a frame that its message keeps.
#[inline]
pub(super) fn properties(frame: &Frame<'_>) -> Properties {
    Properties {
        high_priority: frame.high_priority,
        first_acquirer: frame.first_acquirer,
        pending_response: frame.pending_response,
        pending_acknowledge: frame.pending_acknowledge,
        unique: false,
        hops: frame.hops,
        content_type: frame.content_type,
    }
}
