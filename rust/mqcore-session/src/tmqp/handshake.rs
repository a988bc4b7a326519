//! The first octets and the first frame of a connection, and what is said to them.

use mqcore_broker::client::{Client, Introduction};
use mqcore_broker::rejection::{Rejection, RejectionKind};
use mqcore_wire::codec::Limits;
use mqcore_wire::tmqp::hello::{self, Hello};
use mqcore_wire::tmqp::{self, Frame, Kind, NAME_BYTES_MAX, PREAMBLE, PREAMBLE_V1, operation};

use super::{answer, misbehaved};
use crate::session::SessionError;

/// A peer that has not said who it is may not make the server keep more than this for it.
pub(super) const HELLO_BYTES_MAX: u64 = 64 * 1024;

/// The preamble at the front of `input`, once it is there.
pub(super) fn preamble(input: &[u8]) -> Result<Option<[u8; 8]>, SessionError> {
    let start = &input[..input.len().min(PREAMBLE.len())];
    let known = [PREAMBLE, PREAMBLE_V1].into_iter().find(|preamble| preamble.starts_with(start));
    match known {
        None => Err(misbehaved("the connection does not begin with TMQP/2.0: this port speaks nothing else")),
        Some(preamble) if start.len() == preamble.len() => Ok(Some(preamble)),
        Some(_) => Ok(None),
    }
}

/// What the listener allows, lessened to what a first frame may have.
pub(super) fn limits(limits: &Limits) -> Limits {
    Limits { frame_bytes_max: limits.frame_bytes_max.min(HELLO_BYTES_MAX), ..*limits }
}

/// The first frame, once it is there.
pub(super) fn first_frame<'a>(
    input: &'a [u8],
    listener: &Limits,
) -> Result<Option<(Frame<'a>, usize)>, SessionError> {
    if let Some(&start) = input.first_chunk::<2>()
        && hello::looks_like_twino4(start)
    {
        return Err(misbehaved(
            "a Twino 4 client: its frames have another layout after the same preamble; use a Twino MQ 3 client",
        ));
    }
    let Some((frame, size)) = tmqp::decode(input, &limits(listener))? else { return Ok(None) };
    if frame.kind != Kind::SERVER || frame.content_type != operation::HELLO || frame.hops == 0 {
        return Err(misbehaved("the first frame is not a Hello (type 0x10, content type 101)"));
    }
    Ok(Some((frame, size)))
}

/// What the Hello says about the peer.
pub(super) fn introduction(frame: &Frame<'_>) -> Result<Introduction, Rejection> {
    let hello = hello::decode(frame.payload)
        .map_err(|error| Rejection::new(RejectionKind::BadRequest, error.to_string()))?;
    for (what, value) in [("Client-Name", hello.client_name), ("Client-Type", hello.client_type)] {
        let octets = value.map_or(0, str::len);
        if octets > NAME_BYTES_MAX {
            let reason = format!("{what} has {octets} octets, at most {NAME_BYTES_MAX} are allowed");
            return Err(Rejection::new(RejectionKind::BadRequest, reason));
        }
    }
    Ok(owned(&hello))
}

fn owned(hello: &Hello<'_>) -> Introduction {
    let text = |value: Option<&str>| value.map(str::to_owned);
    Introduction {
        id: text(hello.client_id),
        name: text(hello.client_name),
        kind: text(hello.client_type),
        token: text(hello.client_token),
        properties: hello.properties.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect(),
    }
}

/// Tells the peer that it is a client now, and under which id.
pub(super) fn accept(id: &[u8], client: &Client, output: &mut Vec<u8>) {
    let frame = Frame {
        first_acquirer: true,
        content_type: operation::ACCEPTED,
        id,
        target: answer::name(client.id.as_bytes()),
        ..Frame::new(Kind::SERVER)
    };
    tmqp::encode(&frame, output);
}

/// Tells the peer that it will not be a client. The connection is closed after this.
pub(super) fn refuse(id: &[u8], rejection: &Rejection, output: &mut Vec<u8>) {
    // Unauthorized is known to the original's clients, which get it without a body. They know none of the others.
    let payload = match rejection.kind {
        RejectionKind::Unauthorized => &[],
        _ => rejection.reason.as_bytes(),
    };
    let content_type = rejection.kind.code();
    let frame = Frame { first_acquirer: true, content_type, id, payload, ..Frame::new(Kind::SERVER) };
    tmqp::encode(&frame, output);
}
