//! The handshake, from the first byte to the welcome.

use std::time::Duration;

use mqcore_broker::model::effect::Event;
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::time::Timestamp;
use mqcore_session::session::{Session, SessionConfig, SessionError};
use mqcore_wire::error::WireError;
use mqcore_wire::tmqp::{Frame, Kind, PREAMBLE, PREAMBLE_V1};

use super::talk::{Talk, client, config, encoded, introduction, is_generated, only_frame, vector};

fn hello(body: &str) -> Vec<u8> {
    encoded(&Frame { content_type: 101, payload: body.as_bytes(), ..Frame::new(Kind::SERVER) })
}

fn greeted() -> Talk {
    let mut talk = Talk::new();
    assert_eq!(talk.answer(&PREAMBLE), PREAMBLE);
    talk
}

#[test]
fn the_preamble_is_echoed_at_once_wherever_it_is_split() {
    for preamble in [PREAMBLE, PREAMBLE_V1] {
        for cut in 0..preamble.len() {
            let mut talk = Talk::new();
            assert_eq!(talk.answer(&preamble[..cut]), b"");
            assert_eq!(talk.answer(&preamble[cut..]), preamble);
        }
    }
}

#[test]
fn anything_else_is_closed_without_an_answer_at_the_first_wrong_byte() {
    for start in ["GET / HTTP/1.1\r\n", "TMQP/2.1", "TMQP/3", "TMQX", "\0"] {
        let mut talk = Talk::new();
        assert!(matches!(talk.try_receive(start.as_bytes()), Err(SessionError::Misbehaved(_))), "{start}");
        assert!(talk.session.is_closing());
    }
}

#[test]
fn a_hello_introduces_the_client() {
    let (commands, output) = greeted().receive(&vector("V06"));
    assert_eq!(output, b"");
    let introduction = introduction(commands);
    assert_eq!(introduction.id.as_deref(), Some("cli"));
    assert_eq!(introduction.name.as_deref(), Some("nm"));
    assert_eq!(introduction.kind.as_deref(), Some("ty"));
    assert_eq!(introduction.token.as_deref(), Some("tok"));
    assert!(introduction.properties.is_empty());
}

#[test]
fn a_hello_is_read_in_both_orders_and_keeps_unknown_fields() {
    for first_line in ["CONNECT /", "tmq://remote-host CONNECT", ""] {
        let body = format!("{first_line}\r\nClient-Id:w-1\r\nColour: blue\r\n");
        let introduction = introduction(greeted().receive(&hello(&body)).0);
        assert_eq!(introduction.id.as_deref(), Some("w-1"), "{first_line}");
        assert_eq!(introduction.properties, [("Colour".to_owned(), "blue".to_owned())]);
    }
}

#[test]
fn a_hello_split_over_segments_is_read() {
    let mut talk = greeted();
    let bytes = vector("V06");
    let (last, start) = bytes.split_last().unwrap();
    for byte in start {
        assert_eq!(talk.answer(&[*byte]), b"");
    }
    introduction(talk.receive(&[*last]).0);
}

#[test]
fn preamble_hello_and_more_may_come_in_one_piece() {
    let mut talk = Talk::new();
    let bytes = [&PREAMBLE[..], &vector("V06"), &vector("V03")].concat();
    let (commands, output) = talk.receive(&bytes);
    introduction(commands);
    assert_eq!(output, PREAMBLE);
    assert_eq!(talk.unread(), 8, "nothing is read until the broker has answered");
    assert_eq!(talk.session.needed(&vector("V03")), 8, "so there is no point in having more");
    talk.event(Event::Welcomed(client("cli")));
    assert_eq!(talk.answer(&[]), vector("V04"));
    assert_eq!(talk.unread(), 0);
}

#[test]
fn a_welcome_is_the_accepted_frame_with_the_clients_id() {
    let mut talk = greeted();
    talk.receive(&vector("V06"));
    assert!(talk.session.client().is_none());
    let output = talk.event(Event::Welcomed(client("cli")));
    let frame = only_frame(&output);
    assert!(is_generated(frame.id));
    assert_eq!(encoded(&Frame { id: b"acc", ..frame }), vector("V07"));
    assert_eq!(&*talk.session.client().unwrap().id, "cli");
}

#[test]
fn client_without_an_id_receives_a_generated_one() {
    for body in ["CONNECT /\r\n", "CONNECT /\r\nClient-Id: \r\n"] {
        let mut talk = greeted();
        assert_eq!(introduction(talk.receive(&hello(body)).0).id, None);
        let output = talk.event(Event::Welcomed(client("0123456789abcdef0123456789abcdef")));
        assert_eq!(only_frame(&output).target, b"0123456789abcdef0123456789abcdef");
    }
}

#[test]
fn an_unauthorized_client_gets_401_and_is_closed() {
    let mut talk = greeted();
    talk.receive(&vector("V06"));
    let refusal = Rejection::new(RejectionKind::Unauthorized, "no such token");
    let output = talk.event(Event::Refused(refusal));
    let frame = only_frame(&output);
    assert!(is_generated(frame.id));
    assert_eq!(encoded(&Frame { id: b"x", ..frame }), vector("V08"));
    assert!(talk.session.is_closing() && talk.session.client().is_none());
}

#[test]
fn duplicate_id_is_rejected_as_busy_with_the_reason_and_closed() {
    let mut talk = greeted();
    talk.receive(&vector("V06"));
    let output = talk.event(Event::Refused(Rejection::new(RejectionKind::Busy, "the id cli is taken")));
    let frame = only_frame(&output);
    assert_eq!(
        (frame.kind, frame.content_type, frame.payload),
        (Kind::SERVER, 503, &b"the id cli is taken"[..])
    );
    assert!(talk.session.is_closing());
    assert_eq!(talk.answer(&vector("V03")), b"", "nothing is read any more");
}

#[test]
fn first_frame_other_than_hello_closes_after_the_echo() {
    let ping = vector("V03");
    let no_hops =
        encoded(&Frame { content_type: 101, hops: 0, first_acquirer: true, ..Frame::new(Kind::QUEUE) });
    for bytes in [ping, vector("V09"), vector("V20"), no_hops] {
        let mut talk = greeted();
        assert!(matches!(talk.try_receive(&bytes), Err(SessionError::Misbehaved(_))));
    }
}

#[test]
fn twino_4_client_is_recognized_by_its_first_two_bytes() {
    let mut talk = greeted();
    let error = talk.try_receive(&vector("V56")[..2]).unwrap_err();
    assert!(error.to_string().contains("Twino 4"), "{error}");
}

#[test]
fn invalid_hello_is_rejected_as_a_bad_request() {
    let long_name = format!("Client-Name: {}\r\n", "n".repeat(256));
    let long_type = format!("Client-Type: {}\r\n", "t".repeat(256));
    let long_id = format!("Client-Id: {}\r\n", "i".repeat(256));
    for body in ["Client-Id: a\r\nclient-id: b\r\n", &long_name, &long_type, &long_id] {
        let mut talk = greeted();
        let (mut commands, mut output) = (Vec::new(), Vec::new());
        let result = talk.session.receive(&hello(body), talk.now, &mut commands, &mut output);
        assert!(matches!(result, Err(SessionError::Misbehaved(_))), "{body}");
        let frame = only_frame(&output);
        assert_eq!((frame.kind, frame.content_type), (Kind::SERVER, 400));
        assert!(commands.is_empty() && !frame.payload.is_empty());
    }
}

#[test]
fn unknown_peer_cannot_announce_a_large_frame() {
    let mut talk = greeted();
    // A Hello with a body of 65,536 bytes: its length is enough to reject it.
    let bytes = [0x10, 0x10, 0, 0, 0, 101, 0, 254, 0, 0, 1, 0];
    assert_eq!(talk.session.needed(&bytes[..8]), 0);
    let (mut commands, mut output) = (Vec::new(), Vec::new());
    let error = talk.session.receive(&bytes, talk.now, &mut commands, &mut output).unwrap_err();
    assert!(matches!(error, SessionError::Wire(WireError::TooLarge { part: "frame", .. })), "{error}");
    let frame = only_frame(&output);
    assert_eq!((frame.kind, frame.content_type), (Kind::SERVER, 482));
    assert!(str::from_utf8(frame.payload).unwrap().contains("the limit of 65536 bytes"));
}

#[test]
fn a_smaller_limit_for_logins_applies_to_the_hello_only() {
    let mut talk = Talk::with(SessionConfig { login_bytes_max: 1024, ..config() });
    talk.receive(&PREAMBLE);
    // A Hello with a body of 2,048 bytes.
    let bytes = [0x10, 0x10, 0, 0, 0, 101, 0, 253, 0, 8];
    let error = talk.try_receive(&bytes).unwrap_err();
    assert!(matches!(error, SessionError::Wire(WireError::TooLarge { max: 1024, .. })), "{error}");
    let mut talk = Talk::open_with(SessionConfig { login_bytes_max: 1024, ..config() });
    assert!(talk.try_receive(&[0x11, 0x10, 0, 0, 0, 0, 0, 253, 0, 8]).is_ok());
}

#[test]
fn frames_behind_a_hello_are_not_read_before_the_answer() {
    let mut talk = greeted();
    talk.receive(&vector("V06"));
    // A frame that announces 16 MiB.
    let behind = [0x11, 0x10, 0, 0, 0, 0, 0, 254, 0, 0, 0, 1];
    assert_eq!(talk.session.needed(&behind), behind.len());
}

#[test]
fn silent_peer_is_closed_after_the_handshake_timeout() {
    let greeting = [&PREAMBLE[..], &vector("V06")[..40]].concat();
    for bytes in [&greeting[..0], &greeting[..3], &greeting[..8], &greeting] {
        let mut talk = Talk::new();
        talk.receive(bytes);
        talk.wait(Duration::from_millis(9_999));
        assert_eq!(talk.timeout(), Ok(Vec::new()));
        talk.wait(Duration::from_millis(1));
        assert_eq!(talk.session.next_timeout(), talk.now);
        assert_eq!(talk.timeout(), Err(SessionError::HandshakeTimeout(Duration::from_secs(10))));
        assert!(talk.session.is_closing());
        assert_eq!(talk.session.next_timeout(), Timestamp::NEVER);
    }
}

#[test]
fn peer_without_an_answer_of_the_broker_is_closed_too() {
    let mut talk = greeted();
    talk.receive(&vector("V06"));
    talk.wait(Duration::from_secs(10));
    assert!(matches!(talk.timeout(), Err(SessionError::HandshakeTimeout(_))));
    assert_eq!(talk.event(Event::Welcomed(client("cli"))), b"");
}
