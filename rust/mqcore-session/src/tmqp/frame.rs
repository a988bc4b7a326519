//! Parts that frames and messages have in common, read and written.

use mqcore_broker::model::command::ClientPattern;
use mqcore_broker::model::message::Properties;
use mqcore_wire::tmqp::Frame;

/// The client that a frame is addressed to, if the target can be a client id.
pub(super) fn addressee<'a>(frame: &Frame<'a>) -> Option<&'a str> {
    str::from_utf8(frame.target).ok().filter(|id| !id.is_empty() && !frame.id.is_empty())
}

pub(crate) fn pattern_text(pattern: &ClientPattern) -> String {
    match pattern {
        ClientPattern::Id(id) => id.to_string(),
        ClientPattern::Name(name) => format!("@name:{name}"),
        ClientPattern::Kind(kind) => format!("@type:{kind}"),
    }
}

/// The properties of a frame that its message keeps.
#[inline]
pub(super) fn properties(frame: &Frame<'_>) -> Properties {
    Properties {
        high_priority: frame.high_priority,
        first_acquirer: frame.first_acquirer,
        pending_response: frame.pending_response,
        pending_acknowledge: frame.pending_acknowledge,
        hops: frame.hops,
        content_type: frame.content_type,
        ..Properties::default()
    }
    .with_terms_of(frame.headers)
}
