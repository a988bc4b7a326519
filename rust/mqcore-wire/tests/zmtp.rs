//! Bytes from libzmq (`tests/vectors/eventmq_zmtp.jsonl`), invalid bytes, and arbitrary bytes through the ZMTP codec.

use crate::zmtp_check;

use std::fs;
use std::path::Path;

use mqcore_wire::codec::Limits;
use mqcore_wire::error::WireError;
use mqcore_wire::zmtp::command::{Ready, SocketType, ZmtpCommand, subscription};
use mqcore_wire::zmtp::{
    GREETING_BYTES, Greeting, Item, PARTS_MAX, ZmtpDecoder, encode_message, encode_part,
};
use proptest::prelude::*;
use serde_json::Value;
use zmtp_check::{Found, read};

fn recorded() -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors/eventmq_zmtp.jsonl");
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn received(vector: &Value) -> Vec<u8> {
    vector["received"].as_array().unwrap().iter().flat_map(|piece| unhex(piece.as_str().unwrap())).collect()
}

#[test]
fn everything_that_libzmq_sent_is_read_whole_and_in_pieces() {
    let vectors = recorded();
    assert_eq!(vectors.len(), 8);
    for vector in vectors {
        let bytes = received(&vector);
        zmtp_check::check(&bytes);
        let (greeting, consumed) = Greeting::decode(&bytes).unwrap().expect("a whole greeting");
        let minor = u8::from(vector["peer"] == "libzmq 4.3.5");
        assert_eq!((greeting.minor, greeting.as_server), (minor, false));
        let behind = &bytes[consumed..];
        zmtp_check::check(behind);
        // The beginning of another frame is left alone.
        let tailed = [behind, &[1, 5, 7]].concat();
        let (found, left, error) = read(&tailed, tailed.len(), &Limits::default());
        assert_eq!((left, error), (3, None), "{}", vector["name"]);
        let Found::Command(ready) = &found[0] else { panic!("{found:?}") };
        let socket = SocketType::from_name(vector["socket"].as_str().unwrap().as_bytes()).unwrap();
        let Ok(ZmtpCommand::Ready(ready)) = ZmtpCommand::parse(ready) else { panic!("{ready:?}") };
        assert_eq!(ready.socket, socket);
        check_rest(&vector, ready, &found[1..]);
    }
}

/// Checks the recorded bytes of a peer after its READY.
fn check_rest(vector: &Value, ready: Ready<'_>, rest: &[Found]) {
    match vector["note"].as_str().unwrap() {
        note if note.contains("explicit") => {
            assert_eq!(ready.identity, b"worker-1");
            let parts = [vec![], b"eMQP/1.0".to_vec(), b"READY".to_vec(), vec![b'x'; 300]];
            assert_eq!(rest, [Found::Message(parts.to_vec())]);
        }
        note if note.contains("heartbeats") => {
            let [Found::Command(ping)] = rest else { panic!("{rest:?}") };
            assert_eq!(ZmtpCommand::parse(ping), Ok(ZmtpCommand::Ping { time_to_live: 20, context: b"" }));
        }
        note if note.contains("subscription") => {
            let topics: Vec<_> = rest
                .iter()
                .map(|found| match found {
                    Found::Message(parts) => subscription(&parts[0]),
                    Found::Command(body) => ZmtpCommand::parse(body).ok(),
                })
                .collect();
            assert_eq!(topics, [Some(ZmtpCommand::Subscribe(b"topic")), Some(ZmtpCommand::Cancel(b"topic"))]);
        }
        _ => assert_eq!(rest, []),
    }
}

#[test]
fn our_encoding_equals_the_bytes_that_libzmq_accepted() {
    for vector in recorded() {
        let mut greeting = Vec::new();
        Greeting { minor: 0, as_server: false }.encode(&mut greeting);
        assert_eq!(greeting, unhex(vector["answered_greeting"].as_str().unwrap()));
        let socket = if vector["socket"] == "SUB" { SocketType::Pub } else { SocketType::Router };
        let mut ready = Vec::new();
        ZmtpCommand::Ready(Ready { socket, identity: b"", token: b"" }).encode(&mut ready);
        assert_eq!(ready, unhex(vector["answered_ready"].as_str().unwrap()));
    }
}

fn greeting_with(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut greeting = Vec::new();
    Greeting { minor: 0, as_server: false }.encode(&mut greeting);
    greeting[at..at + bytes.len()].copy_from_slice(bytes);
    greeting
}

#[test]
fn an_invalid_greeting_is_rejected_at_the_first_invalid_byte() {
    for (at, bytes) in [
        (0, &b"G"[..]),
        (0, b"\x00"),
        (9, b"\x7e"),
        (10, b"\x02"),
        (10, b"\x01"),
        (12, b"PLAIN\0"),
        (12, b"CURVE\0"),
        (16, b"X"),
        (31, b"X"),
        (32, b"\x02"),
    ] {
        let greeting = greeting_with(at, bytes);
        let proof = Greeting::decode(&greeting[..at + bytes.len()]);
        assert!(matches!(proof, Err(WireError::Malformed { .. })), "{bytes:?} at {at}: {proof:?}");
        zmtp_check::check(&greeting);
    }
    // A later version is spoken as this one.
    let later = greeting_with(10, &[4, 9]);
    assert_eq!(Greeting::decode(&later), Ok(Some((Greeting { minor: 9, as_server: false }, GREETING_BYTES))));
}

fn refused(bytes: &[u8], limits: &Limits) -> Option<WireError> {
    zmtp_check::check(bytes);
    read(bytes, bytes.len(), limits).2
}

#[test]
fn frames_that_cannot_be_are_refused() {
    let limits = Limits::default();
    for flags in [8, 16, 32, 64, 128, 255] {
        assert!(matches!(refused(&[flags], &limits), Some(WireError::Malformed { part: "flags", .. })));
    }
    assert!(matches!(refused(&[5, 1], &limits), Some(WireError::Malformed { part: "flags", .. })));
    let endless = [&[2][..], &u64::MAX.to_be_bytes()].concat();
    assert!(matches!(refused(&endless, &limits), Some(WireError::TooLarge { part: "message", .. })));
    let command = [&[6][..], &(1_u64 << 32).to_be_bytes()].concat();
    assert!(matches!(refused(&command, &limits), Some(WireError::TooLarge { part: "command", .. })));
}

#[test]
fn a_message_is_bounded_in_bytes_and_frames() {
    let limits = Limits { frame_bytes_max: 20, header_bytes_max: 10 };
    let mut bytes = Vec::new();
    encode_message(&[&[1; 8], &[2; 8]], &mut bytes);
    assert_eq!(refused(&bytes, &limits), None);
    bytes.clear();
    encode_message(&[&[1; 8], &[2; 9]], &mut bytes);
    assert!(matches!(
        refused(&bytes, &limits),
        Some(WireError::TooLarge { part: "message", size: 21, max: 20 })
    ));

    let mut bytes = Vec::new();
    for _ in 0..PARTS_MAX {
        encode_part(b"", true, &mut bytes);
    }
    assert_eq!(refused(&bytes, &Limits::default()), None);
    encode_part(b"", false, &mut bytes);
    let error = refused(&bytes, &Limits::default());
    assert!(matches!(error, Some(WireError::TooLarge { part: "number of frames", .. })));
}

#[test]
fn a_command_inside_of_a_message_is_read_before_the_message_is_whole_and_counts_into_its_bound() {
    let mut bytes = Vec::new();
    encode_part(b"one", true, &mut bytes);
    ZmtpCommand::Ping { time_to_live: 1, context: b"here" }.encode(&mut bytes);
    let mut decoder = ZmtpDecoder::new();
    let Ok(Some((Item::Command(ping), 0))) = decoder.next(&bytes, &Limits::default()) else {
        panic!("a PING")
    };
    assert_eq!(ZmtpCommand::parse(ping), Ok(ZmtpCommand::Ping { time_to_live: 1, context: b"here" }));
    assert_eq!(decoder.next(&bytes, &Limits::default()), Ok(None));
    encode_part(b"two", false, &mut bytes);
    let Ok(Some((Item::Message(parts), consumed))) = decoder.next(&bytes, &Limits::default()) else {
        panic!("a message")
    };
    assert_eq!(consumed, bytes.len());
    assert_eq!(parts.iter().collect::<Vec<_>>(), [b"one", b"two"]);

    let mut endless = Vec::new();
    encode_part(b"one", true, &mut endless);
    for _ in 0..20 {
        ZmtpCommand::Pong(b"").encode(&mut endless);
    }
    let limits = Limits { frame_bytes_max: 100, header_bytes_max: 40 };
    assert!(matches!(refused(&endless, &limits), Some(WireError::TooLarge { part: "message", .. })));
}

#[test]
fn commands_that_cannot_be_are_refused() {
    let long = [&b"\x05READY\x08Identity\0\0\x01\0"[..], &[7; 256]].concat();
    for body in [
        &b""[..],
        b"\0",
        b"\x05READ",
        b"\x05READY",
        b"\x05READY\x0bSocket-Type\0\0\0\x09DEALER",
        b"\x05READY\x0bSocket-Type\xff\xff\xff\xffDEALER",
        b"\x05READY\x0bSocket-Type\0\0\0\x06NOBODY",
        b"\x05READY\0\0\0\0\0",
        b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\x02\0x",
        &long,
        b"\x05ERROR",
        b"\x05ERROR\x04why",
        b"\x04PING\0",
        b"\x04PING\0\x01more than sixteen",
    ] {
        let found = ZmtpCommand::parse(body);
        assert!(matches!(found, Err(WireError::Malformed { .. })), "{}: {found:?}", body.escape_ascii());
    }
    let other = b"\x05READY\x01x\0\0\0\x01y\x0bsocket-TYPE\0\0\0\x03REQ";
    assert_eq!(
        ZmtpCommand::parse(other),
        Ok(ZmtpCommand::Ready(Ready { socket: SocketType::Req, identity: b"", token: b"" }))
    );
    let with_token = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0\x07X-Token\0\0\0\x01t";
    let ready = ZmtpCommand::Ready(Ready { socket: SocketType::Dealer, identity: b"", token: b"t" });
    assert_eq!(ZmtpCommand::parse(with_token), Ok(ready));
    let mut written = Vec::new();
    ready.encode(&mut written);
    assert!(written.ends_with(with_token));
    assert_eq!(ZmtpCommand::parse(b"\x04WHAT?"), Ok(ZmtpCommand::Other(b"WHAT")));
}

#[test]
fn socket_types_connect_as_zeromq_allows() {
    let router = SocketType::Router;
    for (other, talks) in [(SocketType::Dealer, true), (SocketType::Req, true), (SocketType::Sub, false)] {
        assert_eq!((router.talks_to(other), other.talks_to(router)), (talks, talks));
    }
    assert!(SocketType::Pub.talks_to(SocketType::XSub) && !SocketType::Pub.talks_to(SocketType::Dealer));
}

#[test]
fn every_input_of_the_corpus_keeps_the_promises() {
    let inputs = mqcore_testkit::corpus("zmtp_codec");
    inputs.iter().for_each(|input| zmtp_check::check(&input.bytes));
    assert!(
        inputs.len() >= 16,
        "only {} inputs: what was recorded at least belongs to the corpus",
        inputs.len()
    );
}

proptest! {
    #[test]
    fn arbitrary_bytes_keep_the_promises(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        zmtp_check::check(&bytes);
    }

    #[test]
    fn any_frames_keep_the_promises(
        frames in proptest::collection::vec((0_u8..8, proptest::collection::vec(any::<u8>(), 0..40)), 0..12)
    ) {
        let mut bytes = Vec::new();
        for (flags, body) in frames {
            bytes.push(flags);
            if flags & 2 == 0 {
                bytes.push(body.len() as u8);
            } else {
                bytes.extend_from_slice(&(body.len() as u64).to_be_bytes());
            }
            bytes.extend_from_slice(&body);
        }
        zmtp_check::check(&bytes);
    }
}
