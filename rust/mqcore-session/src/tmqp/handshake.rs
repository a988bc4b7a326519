//! The first bytes and the first frame of a connection, and the answers to them.

use mqcore_broker::model::client::{Client, Introduction, Peer};
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_cluster::message;
use mqcore_wire::codec::Limits;
use mqcore_wire::tmqp::header::push_header;
use mqcore_wire::tmqp::hello::{self, Hello};
use mqcore_wire::tmqp::{self, Frame, Kind, NAME_BYTES_MAX, PREAMBLE, PREAMBLE_V1, operation};

use super::answer;
use super::passing::Greeting;
use crate::node::NodeTerms;
use crate::session::{SessionConfig, SessionError};

/// Maximum bytes that the server buffers for a peer that has not identified itself.
pub(super) const HELLO_BYTES_MAX: u64 = 64 * 1024;

/// The preamble at the front of `input`, once it is there.
pub(super) fn preamble(input: &[u8]) -> Result<Option<[u8; 8]>, SessionError> {
    let start = &input[..input.len().min(PREAMBLE.len())];
    let known = [PREAMBLE, PREAMBLE_V1].into_iter().find(|preamble| preamble.starts_with(start));
    match known {
        None => Err(SessionError::misbehaved(
            "the connection does not begin with TMQP/2.0, the only protocol of this port",
        )),
        Some(preamble) if start.len() == preamble.len() => Ok(Some(preamble)),
        Some(_) => Ok(None),
    }
}

/// The listener's limits, reduced to those of a first frame.
pub(super) fn limits(config: &SessionConfig) -> Limits {
    let longest = config.limits.frame_bytes_max.min(config.login_bytes_max.into()).min(HELLO_BYTES_MAX);
    Limits { frame_bytes_max: longest, ..config.limits }
}

/// The first frame, once it is complete.
pub(super) fn first_frame<'a>(
    input: &'a [u8],
    config: &SessionConfig,
) -> Result<Option<(Frame<'a>, usize)>, SessionError> {
    if let Some(&start) = input.first_chunk::<2>()
        && hello::looks_like_twino4(start)
    {
        return Err(SessionError::misbehaved(
            "a Twino 4 client: its frames have another layout after the same preamble; use a Twino MQ 3 client",
        ));
    }
    let Some((frame, size)) = tmqp::decode(input, &limits(config))? else { return Ok(None) };
    if frame.kind != Kind::SERVER || frame.content_type != operation::HELLO || frame.hops == 0 {
        return Err(SessionError::misbehaved("the first frame is not a Hello (type 0x10, content type 101)"));
    }
    Ok(Some((frame, size)))
}

/// The client described by the Hello and, for another broker that may forward to this one, its numbering.
pub(super) fn introduction(
    frame: &Frame<'_>,
    terms: Option<&NodeTerms>,
    peer: &Peer,
) -> Result<(Introduction, Option<Greeting>), Rejection> {
    let hello = hello::decode(frame.payload)
        .map_err(|error| Rejection::new(RejectionKind::BadRequest, error.to_string()))?;
    for (what, value) in [("Client-Name", hello.client_name), ("Client-Type", hello.client_type)] {
        let bytes = value.map_or(0, str::len);
        if bytes > NAME_BYTES_MAX {
            let reason = format!("{what} has {bytes} bytes; the limit is {NAME_BYTES_MAX}");
            return Err(Rejection::new(RejectionKind::BadRequest, reason));
        }
    }
    let mut introduction = owned(&hello);
    let Some(terms) = terms.filter(|terms| terms.accepts && is_node(&hello)) else {
        return Ok((introduction, None));
    };
    if !terms.admits(hello.client_token) {
        return Err(Rejection::new(
            RejectionKind::Unauthorized,
            "this node's token is not the one expected here",
        ));
    }
    let property = |wanted: &str| {
        hello.properties.iter().find(|(key, _)| key.eq_ignore_ascii_case(wanted)).map(|(_, value)| *value)
    };
    let host = property(message::HOST_KEY).filter(|host| !host.is_empty());
    introduction.node = Some(host.or_else(|| host_of(peer)).unwrap_or_default().to_owned());
    let numbered = property(message::VERSION_KEY) == Some(message::VERSION);
    let epoch = property(message::EPOCH_KEY).and_then(|epoch| epoch.parse().ok()).filter(|_| numbered);
    Ok((introduction, Some(Greeting { epoch })))
}

/// The host from which the peer connected.
fn host_of(peer: &Peer) -> Option<&str> {
    let (host, _port) = peer.address.as_deref()?.rsplit_once(':')?;
    Some(host.trim_start_matches('[').trim_end_matches(']'))
}

fn is_node(hello: &Hello<'_>) -> bool {
    hello.client_type.is_some_and(|kind| kind.eq_ignore_ascii_case(message::CLIENT_TYPE))
}

fn owned(hello: &Hello<'_>) -> Introduction {
    let text = |value: Option<&str>| value.map(str::to_owned);
    Introduction {
        id: text(hello.client_id),
        name: text(hello.client_name),
        kind: text(hello.client_type),
        token: text(hello.client_token),
        properties: hello.properties.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect(),
        path: hello.path.to_owned(),
        method: hello.method.to_owned(),
        node: None,
    }
}

/// Notifies the peer that it is accepted, with its id; and a node that this broker understands its numbers.
pub(super) fn accept(id: &[u8], client: &Client, numbered_by: Option<&NodeTerms>, output: &mut Vec<u8>) {
    let mut headers = Vec::new();
    if let Some(terms) = numbered_by {
        let lines = [
            (message::VERSION_KEY, message::VERSION),
            (message::ID_KEY, &terms.id),
            (message::NAME_KEY, &terms.name),
        ];
        for (key, value) in lines {
            // The configuration does not accept a name that does not fit in a line.
            let _ = push_header(&mut headers, key, value.as_bytes());
        }
    }
    let frame = Frame {
        first_acquirer: true,
        content_type: operation::ACCEPTED,
        id,
        target: answer::name(client.id.as_bytes()),
        headers: &headers,
        ..Frame::new(Kind::SERVER)
    };
    tmqp::encode(&frame, output);
}

/// Notifies the peer that it is rejected. The connection is closed afterwards.
pub(super) fn refuse(id: &[u8], rejection: &Rejection, output: &mut Vec<u8>) {
    // The original's clients know Unauthorized and receive it without a body. They know no other reason.
    let payload = match rejection.kind {
        RejectionKind::Unauthorized => &[],
        _ => rejection.reason.as_bytes(),
    };
    let content_type = rejection.kind.code();
    let frame = Frame { first_acquirer: true, content_type, id, payload, ..Frame::new(Kind::SERVER) };
    tmqp::encode(&frame, output);
}
