//! No peer gets access by the bytes of a handshake: whatever it sends, in whatever pieces, the session only asks the
//! broker to accept it, and the peer is not a client before the answer.

use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::command::Command;
use mqcore_broker::model::effect::Event;
use mqcore_broker::model::id::ConnectionId;
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::time::Timestamp;
use mqcore_session::micromessage::MicroMessageSession;
use mqcore_session::mqks::MqksSession;
use mqcore_session::session::{Session, SessionConfig};
use mqcore_session::throttr::ThrottrSession;
use mqcore_session::tmqp::TmqpSession;
use mqcore_wire::codec::Limits;
use mqcore_wire::micromessage::handshake::{self, Handshake};
use mqcore_wire::tmqp::hello::{self, Hello};
use mqcore_wire::tmqp::{Frame, Kind, PREAMBLE, encode, operation};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

const NOW: Timestamp = Timestamp(1_795_216_278_000);

fn config() -> SessionConfig {
    SessionConfig {
        connection: ConnectionId(1),
        shards: 2,
        limits: Limits { frame_bytes_max: 1 << 16, ..Limits::default() },
        login_bytes_max: 1 << 16,
        answer_bytes_max: 1 << 23,
        handshake_timeout: Duration::from_secs(10),
        ping_interval: Duration::from_secs(60),
        pong_timeout: Duration::from_secs(10),
        admin: false,
        peer: Arc::default(),
        node: None,
    }
}

fn hello_frame() -> Vec<u8> {
    let (mut body, mut bytes) = (Vec::new(), Vec::new());
    hello::encode(&Hello { client_token: Some("mqt_guess"), ..Hello::default() }, &mut body).unwrap();
    let frame =
        Frame { content_type: operation::HELLO, id: b"h", payload: &body, ..Frame::new(Kind::SERVER) };
    encode(&frame, &mut bytes);
    bytes
}

fn frame(kind: u8, content_type: u16, target: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let frame =
        Frame { content_type, id: b"f", target: target.as_bytes(), payload: b"p", ..Frame::new(Kind(kind)) };
    encode(&frame, &mut bytes);
    bytes
}

/// Input of an unknown peer: pieces of handshakes and requests of every protocol, and random bytes between them.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        3 => Just(PREAMBLE.to_vec()),
        3 => Just(hello_frame()),
        3 => (0x10_u8..0x18, select(vec![0_u16, 1, 601, 603, 604, 631, 652]), select(vec!["", "orders", "@topic:a"]))
            .prop_map(|(kind, content_type, target)| frame(kind, content_type, target)),
        2 => select(vec!["1 auth mqt_guess\n", "2 publish --confirm e d\n", "3 delete_queue orders\n", "4 _eval x\n"])
            .prop_map(|line| line.as_bytes().to_vec()),
        2 => select(vec!["", "batch-ack;pub-sub", "x-mqcore:token=mqt_guess", "ack;x-nack;json"]).prop_map(agreeing),
        2 => select(vec![&b"\x01\x18subscribe;destination=a"[..], b"\0\0\x01\x01a\0\0\x01x", b"\x02\x01\x02\0\x01"])
            .prop_map(<[u8]>::to_vec),
        2 => vec(any::<u8>(), 0..40),
    ]
}

/// A message of the MicroMessage2 handshake, twice.
fn agreeing(required: &str) -> Vec<u8> {
    let required = required.as_bytes();
    let said = Handshake { major: 1, minor: 0, flags: 0, identity: b"guess", required, optional: b"" };
    let mut bytes = Vec::new();
    handshake::encode(&said, &mut bytes);
    handshake::encode(&said, &mut bytes);
    bytes
}

/// Handshakes that begin correctly more often than not, and may have one wrong byte.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let damage = proptest::option::of((any::<Index>(), any::<u8>()));
    (any::<bool>(), vec(piece(), 0..8), damage).prop_map(|(well, pieces, damage)| {
        let mut bytes = if well { [PREAMBLE.to_vec(), hello_frame()].concat() } else { Vec::new() };
        bytes.extend(pieces.concat());
        if let Some((at, byte)) = damage
            && !bytes.is_empty()
        {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes
    })
}

/// Offers all input in pieces that end at `cuts`; returns the commands before and after the rejection.
fn offer(session: &mut impl Session, bytes: &[u8], cuts: &[Index]) -> (Vec<Command>, Vec<Command>) {
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    ends.push(bytes.len());
    ends.sort_unstable();
    let (mut before, mut after, mut output) = (Vec::new(), Vec::new(), Vec::new());
    let mut consumed = 0;
    for end in ends {
        match session.receive(&bytes[consumed.min(end)..end], NOW, &mut before, &mut output) {
            Ok(size) => consumed += size,
            Err(_) => return (before, after),
        }
    }
    assert!(session.client().is_none(), "in, and nobody has said so");
    let refused = Event::Refused(Rejection::new(RejectionKind::Unauthorized, "no"));
    let asked = before.iter().any(|command| matches!(command, Command::Introduce(_)));
    if asked && session.event(refused, NOW, &mut output).is_ok() && !session.is_closing() {
        let _ = session.receive(&bytes[consumed..], NOW, &mut after, &mut output);
    }
    assert!(session.client().is_none(), "in, although it was refused");
    (before, after)
}

fn introduces_at_most(commands: &[Command]) -> bool {
    commands.len() <= 1 && commands.iter().all(|command| matches!(command, Command::Introduce(_)))
}

proptest! {
    #[test]
    fn unknown_tmqp_peer_can_only_ask_for_admission(bytes in bytes(), cuts in vec(any::<Index>(), 0..6)) {
        let (before, after) = offer(&mut TmqpSession::new(config(), NOW), &bytes, &cuts);
        prop_assert!(introduces_at_most(&before), "{before:?}");
        prop_assert!(after.is_empty(), "{after:?}");
    }

    #[test]
    fn unknown_mqks_peer_can_only_ask_for_admission(bytes in bytes(), cuts in vec(any::<Index>(), 0..6)) {
        let (before, after) = offer(&mut MqksSession::new(config(), NOW), &bytes, &cuts);
        prop_assert!(introduces_at_most(&before), "{before:?}");
        prop_assert!(after.is_empty(), "{after:?}");
    }

    #[test]
    fn unknown_micromessage_peer_can_only_ask_for_admission(
        required in select(vec!["", "batch-ack;pub-sub", "x-mqcore:token=mqt_guess"]),
        bytes in bytes(),
        cuts in vec(any::<Index>(), 0..6),
    ) {
        let bytes = [agreeing(required), bytes].concat();
        let mut session = MicroMessageSession::new(config(), Arc::default(), Arc::default(), NOW);
        let (before, after) = offer(&mut session, &bytes, &cuts);
        prop_assert!(introduces_at_most(&before), "{before:?}");
        prop_assert!(after.is_empty(), "{after:?}");
    }

    #[test]
    fn throttr_peer_is_not_read_before_admission(bytes in bytes(), cuts in vec(any::<Index>(), 0..6)) {
        let mut session = ThrottrSession::alone(&config(), NOW);
        let mut introduction = Vec::new();
        session.open(true, &mut introduction);
        prop_assert!(introduces_at_most(&introduction));
        let (before, after) = offer(&mut session, &bytes, &cuts);
        prop_assert!(before.is_empty() && after.is_empty(), "{before:?} {after:?}");
    }
}
