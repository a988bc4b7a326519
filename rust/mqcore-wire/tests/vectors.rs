//! Every vector of `tests/vectors/tmqp.jsonl`, through the decoder in three ways and through the encoder.
//!
//! The decoder gets each frame whole, one byte at a time, and followed by other bytes. All three must find the same frame,
//! and any shorter input must be incomplete.

use mqcore_wire::codec::Limits;
use mqcore_wire::error::WireError;
use mqcore_wire::tmqp::hello::{self, Hello};
use mqcore_wire::tmqp::{
    Frame, Kind, PING, PONG, PREAMBLE, PREAMBLE_V1, decode, encode, encode_head, header, needed,
};
use serde_json::Value;

/// Bodies beyond this are not put in memory; their heads are tested all the same.
const BODY_BYTES_IN_MEMORY_MAX: u64 = 1 << 20;

const TAIL: &[u8] = b"\x10\x20next frame";

struct Vector(Value);

impl Vector {
    fn text(&self, field: &str) -> &str {
        self.0[field].as_str().unwrap_or_else(|| panic!("{} has no text {field}", self.0["name"]))
    }

    fn bytes(&self) -> Vec<u8> {
        unhex(self.text("hex"))
    }

    fn is(&self, kind: &str) -> bool {
        self.text("kind") == kind
    }

    fn has_fields(&self) -> bool {
        self.0["fields"].is_object()
    }

    fn body_size(&self) -> u64 {
        self.0["body_size"].as_u64().unwrap_or(0)
    }

    /// The frame with its body. `None`: there is no frame in it, or none that memory should hold.
    fn frame_bytes(&self) -> Option<Vec<u8>> {
        if !self.has_fields() || self.body_size() > BODY_BYTES_IN_MEMORY_MAX {
            return None;
        }
        let mut bytes = self.bytes();
        if self.is("head") {
            bytes.resize(bytes.len() + self.body_size() as usize, unhex(self.text("body_fill"))[0]);
        }
        Some(bytes)
    }

    /// Calls `then` with the frame that the fields describe, body included.
    fn with_frame(&self, then: impl FnOnce(&Frame<'_>)) {
        let fields = &self.0["fields"];
        let flag = |name: &str| fields[name].as_bool().unwrap();
        let number = |name: &str| fields[name].as_u64().unwrap();
        let part = |name: &str| unhex(fields[name].as_str().unwrap());
        let body = if self.is("head") {
            vec![unhex(self.text("body_fill"))[0]; self.body_size().min(BODY_BYTES_IN_MEMORY_MAX) as usize]
        } else {
            part("payload")
        };
        then(&Frame {
            first_acquirer: flag("first_acquirer"),
            high_priority: flag("high_priority"),
            kind: Kind(number("kind") as u8),
            pending_response: flag("pending_response"),
            pending_acknowledge: flag("pending_acknowledge"),
            hops: number("hops") as u8,
            content_type: number("content_type") as u16,
            id: &part("id"),
            source: &part("source"),
            target: &part("target"),
            headers: &part("headers"),
            payload: &body,
        });
    }
}

fn vectors() -> Vec<Vector> {
    let lines = include_str!("../../../tests/vectors/tmqp.jsonl").lines();
    lines.map(|line| Vector(serde_json::from_str(line).unwrap())).collect()
}

fn vector(name: &str) -> Vector {
    vectors().into_iter().find(|vector| vector.text("name") == name).unwrap()
}

fn unhex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2));
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// Decodes each frame vector from the bytes that `arrange` returns, and compares it with its fields.
fn expect_fields(arrange: impl Fn(&[u8]) -> Vec<u8>) {
    for vector in vectors() {
        let Some(bytes) = vector.frame_bytes() else { continue };
        let input = arrange(&bytes);
        vector.with_frame(|expected| {
            let found = decode(&input, &Limits::default());
            assert_eq!(found, Ok(Some((*expected, bytes.len()))), "{}", vector.text("name"));
        });
    }
}

#[test]
fn all_are_there() {
    let names: Vec<_> = vectors().iter().map(|vector| vector.text("name").to_owned()).collect();
    let expected: Vec<_> = (1..=56).map(|number| format!("V{number:02}")).collect();
    assert_eq!(names, expected);
}

#[test]
fn a_whole_frame_is_decoded() {
    expect_fields(<[u8]>::to_vec);
}

#[test]
fn bytes_after_a_frame_are_not_consumed() {
    expect_fields(|bytes| [bytes, TAIL].concat());
}

#[test]
fn a_part_of_a_frame_is_not_yet_a_frame() {
    let limits = Limits::default();
    for vector in vectors() {
        let Some(bytes) = vector.frame_bytes() else { continue };
        let head_size = vector.bytes().len();
        for end in 0..bytes.len() {
            assert_eq!(decode(&bytes[..end], &limits), Ok(None), "{} cut at {end}", vector.text("name"));
            let size = needed(&bytes[..end], &limits).unwrap();
            assert!(size == bytes.len() || (size == 0 && end < head_size));
        }
        assert_eq!(needed(&bytes, &limits), Ok(bytes.len()));
    }
}

#[test]
fn fields_encode_to_the_bytes() {
    for vector in vectors().iter().filter(|vector| vector.has_fields() && !vector.is("head")) {
        let expected = match (vector.0["encodes_back"].as_bool().unwrap(), vector.0["encoded"].as_str()) {
            (true, None) => vector.bytes(),
            (false, Some(encoded)) => unhex(encoded),
            (false, None) => continue,
            (true, Some(_)) => panic!("two answers in {}", vector.text("name")),
        };
        vector.with_frame(|frame| {
            let mut output = b"before".to_vec();
            encode(frame, &mut output);
            assert_eq!(output, [b"before", &expected[..]].concat(), "{}", vector.text("name"));
            assert_eq!(frame.encoded_size(), expected.len());
        });
    }
}

#[test]
fn a_head_encodes_without_its_body() {
    for vector in vectors().iter().filter(|vector| vector.is("head")) {
        vector.with_frame(|frame| {
            let mut output = Vec::new();
            encode_head(frame, vector.body_size(), &mut output);
            assert_eq!(output, vector.bytes(), "{}", vector.text("name"));
            assert_eq!(frame.head_size(vector.body_size()), output.len());
        });
    }
}

#[test]
fn header_text_splits_into_its_pairs() {
    for vector in vectors().iter().filter(|vector| vector.has_fields()) {
        let expected: Vec<(Vec<u8>, Vec<u8>)> = vector.0["header_pairs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|pair| (unhex(pair[0].as_str().unwrap()), unhex(pair[1].as_str().unwrap())))
            .collect();
        vector.with_frame(|frame| {
            let mut rewritten = Vec::new();
            for ((key, value), (expected_key, expected_value)) in header::pairs(frame.headers).zip(&expected)
            {
                assert_eq!((key, value), (&expected_key[..], &expected_value[..]));
                header::push_header(&mut rewritten, str::from_utf8(key).unwrap(), value).unwrap();
            }
            assert_eq!(header::pairs(frame.headers).count(), expected.len());
            assert_eq!(rewritten, frame.headers);
        });
    }
}

#[test]
fn a_hello_body_identifies_the_client() {
    let with_hello: Vec<_> = vectors().into_iter().filter(|vector| vector.0["hello"].is_object()).collect();
    assert_eq!(with_hello.len(), 2);
    for vector in with_hello {
        let expected = &vector.0["hello"];
        vector.with_frame(|frame| {
            let hello = hello::decode(frame.payload).unwrap();
            assert_eq!(hello, expected_hello(expected));
            let mut body = Vec::new();
            hello::encode(&hello, &mut body).unwrap();
            assert_eq!(body, frame.payload);
        });
    }
}

fn expected_hello(expected: &Value) -> Hello<'_> {
    assert!(expected["properties"].as_array().unwrap().is_empty());
    Hello {
        method: expected["method"].as_str().unwrap(),
        path: expected["path"].as_str().unwrap(),
        client_id: expected["client_id"].as_str(),
        client_name: expected["client_name"].as_str(),
        client_type: expected["client_type"].as_str(),
        client_token: expected["client_token"].as_str(),
        properties: Vec::new(),
    }
}

#[test]
fn an_invalid_frame_is_refused_however_it_arrives() {
    let invalid: Vec<_> = vectors().into_iter().filter(|vector| vector.is("invalid")).collect();
    assert_eq!(invalid.len(), 1);
    for vector in invalid {
        assert_eq!(vector.text("error"), "malformed");
        let bytes = vector.bytes();
        let refused =
            |input: &[u8]| matches!(decode(input, &Limits::default()), Err(WireError::Malformed { .. }));
        assert!(refused(&bytes));
        assert!(refused(&[&bytes[..], TAIL].concat()));
        for end in 0..bytes.len() {
            assert_eq!(decode(&bytes[..end], &Limits::default()), Ok(None));
        }
    }
}

#[test]
fn constants_are_the_bytes_of_their_vectors() {
    for (name, constant) in [("V01", PREAMBLE), ("V02", PREAMBLE_V1), ("V03", PING), ("V04", PONG)] {
        assert_eq!(vector(name).bytes(), constant, "{name}");
    }
}

#[test]
fn only_the_twino_4_vector_looks_like_twino_4() {
    for vector in vectors().iter().filter(|vector| vector.has_fields()) {
        let bytes = vector.bytes();
        let looks = hello::looks_like_twino4([bytes[0], bytes[1]]);
        assert_eq!(looks, vector.is("twino4"), "{}", vector.text("name"));
    }
}

#[test]
fn a_body_beyond_the_limit_is_rejected_at_its_length() {
    let head = vector("V51").bytes();
    let length_end = 8 + 8;
    for end in 0..head.len() {
        let found = decode(&head[..end], &Limits::default());
        if end < length_end {
            assert_eq!(found, Ok(None));
        } else {
            assert!(matches!(found, Err(WireError::TooLarge { part: "frame", .. })), "{found:?}");
        }
    }
    let generous = Limits { frame_bytes_max: u64::MAX, ..Limits::default() };
    assert_eq!(decode(&head, &generous), Ok(None));
    assert_eq!(needed(&head, &generous), Ok(head.len() + (1 << 32)));
}

#[test]
fn a_lying_length_is_refused_at_once() {
    for claim in [u64::MAX, u64::MAX - 8, u64::MAX - 1000, 1 << 63] {
        let mut bytes = vec![0x11, 0x10, 255, 255, 255, 0, 0, 255];
        bytes.extend_from_slice(&claim.to_le_bytes());
        for frame_bytes_max in [0, 64 * 1024 * 1024, u64::MAX] {
            let limits = Limits { frame_bytes_max, ..Limits::default() };
            let refusal = decode(&bytes, &limits).unwrap_err();
            assert!(matches!(refusal, WireError::TooLarge { part: "frame", .. }));
            assert_eq!(needed(&bytes, &limits), Err(refusal));
        }
    }
}

#[test]
fn a_frame_too_large_without_its_header_does_not_wait_for_it() {
    let fixed = [0x11, 0x30, 255, 255, 255, 0, 0, 100];
    let least = 8 + 3 * 255 + 2 + 1 + 100;
    let limits = |frame_bytes_max| Limits { frame_bytes_max, ..Limits::default() };
    assert_eq!(decode(&fixed, &limits(least)), Ok(None));
    let refusal = WireError::TooLarge { part: "frame", size: least, max: least - 1 };
    assert_eq!(decode(&fixed, &limits(least - 1)), Err(refusal));
}

#[test]
fn limits_are_inclusive() {
    let bytes = vector("V28").bytes();
    let headers = 18;
    let limits = |frame_bytes_max, header_bytes_max| Limits { frame_bytes_max, header_bytes_max };
    let size = bytes.len() as u64;
    assert!(decode(&bytes, &limits(size, headers)).unwrap().is_some());
    let refusal = decode(&bytes, &limits(size - 1, headers)).unwrap_err();
    assert_eq!(refusal, WireError::TooLarge { part: "frame", size, max: size - 1 });
    let refusal = decode(&bytes, &limits(size, headers - 1)).unwrap_err();
    assert_eq!(refusal, WireError::TooLarge { part: "header", size: 18, max: 17 });
}

#[test]
fn ping_and_pong_have_no_header_and_may_have_parts() {
    for kind in [Kind::PING, Kind::PONG] {
        let bytes = [kind.0, 0x3F, 1, 0, 0, 0, 0, 253, 1, 0, b'i', b'p'];
        let expected = Frame { hops: 31, id: b"i", payload: b"p", ..Frame::new(kind) };
        assert_eq!(decode(&bytes, &Limits::default()), Ok(Some((expected, bytes.len()))));
    }
}

#[test]
fn check_rejects_fields_that_exceed_a_frame() {
    let long = vec![b'x'; 65_536];
    let plain = Frame::new(Kind::QUEUE);
    for frame in [
        Frame { id: &long[..256], ..plain },
        Frame { source: &long[..256], ..plain },
        Frame { target: &long[..256], ..plain },
        Frame { headers: &long, ..plain },
        Frame { kind: Kind(0x40), ..plain },
        Frame { hops: 32, ..plain },
        Frame { headers: b"a:b\r\n", ..Frame::new(Kind::PING) },
    ] {
        assert!(frame.check().is_err());
    }
    let full = &long[..255];
    let largest = Frame { id: full, source: full, target: full, headers: &long[..65_535], hops: 31, ..plain };
    assert_eq!(largest.check(), Ok(()));
}

#[test]
#[cfg(not(debug_assertions))]
fn an_overlong_part_is_clipped_and_cannot_become_a_frame_of_its_own() {
    let long = vec![b'x'; 70_000];
    let frame = Frame { id: &long[..300], headers: &long, payload: b"p", ..Frame::new(Kind::QUEUE) };
    let mut output = Vec::new();
    encode(&frame, &mut output);
    let clipped = Frame { id: &long[..255], headers: &long[..65_535], ..frame };
    assert_eq!(decode(&output, &Limits::default()), Ok(Some((clipped, output.len()))));
}
