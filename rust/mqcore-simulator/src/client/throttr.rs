//! Throttr at the client's side: publishers and subscribers of channels, which are topics.

use mqcore_wire::codec::Limits;
use mqcore_wire::throttr::reply::{Expected, ThrottrReply, decode};
use mqcore_wire::throttr::request::{ThrottrRequest, encode};
use mqcore_wire::throttr::{Dialect, Family, Width};

use super::{MessageHandle, Received, delivery};

/// The dialect of the simulated listeners. Its width has room for every body and every time.
pub(crate) const DIALECT: Dialect = Dialect { width: Width::U32, family: Family::V71 };

/// The bytes of a request.
pub(super) fn encoded(request: &ThrottrRequest<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(request, DIALECT, &mut bytes).expect("a short request");
    bytes
}

/// Subscribes to a channel.
pub(super) fn subscribe(channel: &str) -> Vec<u8> {
    encoded(&ThrottrRequest::Subscribe { channel: channel.as_bytes() })
}

/// Publishes to a channel. The answer says whether there is a receiver, and promises nothing.
pub(super) fn publish(channel: &str, body: &str) -> Vec<u8> {
    encoded(&ThrottrRequest::Publish { channel: channel.as_bytes(), payload: body.as_bytes() })
}

/// Reads the next thing that the broker sent, and its size.
pub(super) fn next(input: &[u8], limits: &Limits) -> Option<(Received, usize)> {
    let decoded = decode(input, Expected::Status, DIALECT, limits);
    let (reply, size) = decoded.expect("the broker sends valid replies")?;
    let received = match reply {
        ThrottrReply::Push { payload, .. } => delivery(MessageHandle::Id(Box::default()), payload, true),
        // Answers to SUBSCRIBE and PUBLISH look the same: only the first one of a subscriber matters.
        _ => Received::Ready,
    };
    Some((received, size))
}
