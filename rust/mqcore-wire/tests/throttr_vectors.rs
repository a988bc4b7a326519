//! The dialogues of `tests/vectors/throttr.jsonl`, through the decoders of both directions: whole, one byte at a time
//! and followed by other bytes; and the same requests derived for the other three widths.

use crate::throttr_check;

use std::collections::BTreeMap;

use mqcore_wire::codec::Limits;
use mqcore_wire::throttr::reply::{self, Expected, FragmentedRequest, ThrottrReply};
use mqcore_wire::throttr::request::{self, ThrottrRequest};
use mqcore_wire::throttr::{Dialect, Family, Width};
use proptest::prelude::*;
use serde_json::Value;

/// The beginning of another request, so that what is behind a request looks like one.
const TAIL: &[u8] = &[0x01, 0x02, 0x03];

/// A request and its response.
type Step = (Vec<u8>, Vec<u8>);

struct Dialogue {
    id: String,
    dialect: Dialect,
    quirk: bool,
    metrics: bool,
    /// By connection: what it sends and what it is answered, step by step.
    steps: BTreeMap<String, Vec<Step>>,
}

fn dialogues() -> Vec<Dialogue> {
    include_str!("../../../tests/vectors/throttr.jsonl").lines().map(dialogue).collect()
}

fn dialogue(line: &str) -> Dialogue {
    let record: Value = serde_json::from_str(line).unwrap();
    let family = Family::from_name(&record["protocol"].as_str().unwrap()[..3]).unwrap();
    let width = Width::from_name(record["variant"].as_str().unwrap()).unwrap();
    let mut steps: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for step in record["steps"].as_array().unwrap() {
        let text = |field: &str| step[field].as_str().unwrap_or("").to_owned();
        // Ids are random: any will do.
        let sent = text("send_hex").replace("{idhex}", &"61".repeat(32)).replace("{id}", &"07".repeat(16));
        steps.entry(text("conn")).or_default().push((unhex(&sent), unhex(&text("expect_hex"))));
    }
    Dialogue {
        id: record["id"].as_str().unwrap().into(),
        dialect: Dialect { width, family },
        quirk: record["class"] != "conformance",
        metrics: record["metrics"].as_bool().unwrap(),
        steps,
    }
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// All requests of all dialogues, each with its bytes.
fn for_each_request(mut then: impl FnMut(&str, Dialect, &[u8], ThrottrRequest<'_>)) {
    for dialogue in dialogues() {
        for steps in dialogue.steps.values() {
            let sent: Vec<u8> = steps.iter().flat_map(|(sent, _)| sent.clone()).collect();
            let mut rest = &sent[..];
            while let Ok(Some((found, size))) = request::decode(rest, dialogue.dialect, &Limits::default()) {
                then(&dialogue.id, dialogue.dialect, &rest[..size], found);
                rest = &rest[size..];
            }
            let leftover_is_unknown = rest.is_empty() || dialogue.quirk;
            assert!(leftover_is_unknown, "{}: {rest:02x?} is no request", dialogue.id);
        }
    }
}

/// Whole, with a tail, and cut everywhere.
fn expect_request(id: &str, dialect: Dialect, bytes: &[u8], expected: ThrottrRequest<'_>) {
    let limits = Limits::default();
    let found = Ok(Some((expected, bytes.len())));
    assert_eq!(request::decode(bytes, dialect, &limits), found, "{id}");
    assert_eq!(request::decode(&[bytes, TAIL].concat(), dialect, &limits), found, "{id} with a tail");
    for end in 0..bytes.len() {
        assert_eq!(request::decode(&bytes[..end], dialect, &limits), Ok(None), "{id} cut at {end}");
    }
}

#[test]
fn all_dialogues_are_there() {
    assert_eq!(dialogues().len(), 272);
}

#[test]
fn every_request_is_found_whole_in_pieces_and_with_a_tail() {
    let mut requests = 0;
    for_each_request(|id, dialect, bytes, found| {
        expect_request(id, dialect, bytes, found);
        let mut again = Vec::new();
        request::encode(&found, dialect, &mut again).unwrap();
        assert_eq!(again, bytes, "{id}");
        requests += 1;
    });
    assert!(requests > 1000, "{requests}");
}

#[test]
fn the_same_requests_in_other_widths_say_the_same() {
    for_each_request(|id, dialect, _, found| {
        for width in Width::ALL {
            let dialect = Dialect { width, ..dialect };
            let mut bytes = Vec::new();
            if request::encode(&found, dialect, &mut bytes).is_err() {
                assert_eq!(width, Width::U8, "{id}: only long values do not fit");
                assert!(bytes.is_empty());
                continue;
            }
            let (derived, _) = request::decode(&bytes, dialect, &Limits::default()).unwrap().unwrap();
            expect_request(id, dialect, &bytes, derived);
            if width > Width::U8 {
                assert_eq!(derived, found, "{id} in {}", width.as_str());
            }
        }
    });
}

/// The expected parts of the response.
fn expected(request: &ThrottrRequest<'_>, dialogue: &Dialogue) -> Vec<Expected> {
    let with_time = dialogue.metrics || dialogue.dialect.family == Family::V73;
    match request {
        ThrottrRequest::Query { .. } => vec![Expected::Counter],
        ThrottrRequest::Get { .. } => vec![Expected::Buffer],
        ThrottrRequest::Stat { .. } => vec![Expected::Stat],
        ThrottrRequest::Info => vec![Expected::Info { with_time }],
        ThrottrRequest::Connection { .. } => vec![Expected::Connection],
        ThrottrRequest::Channel { .. } => vec![Expected::Channel],
        ThrottrRequest::WhoAmI => vec![Expected::Id],
        ThrottrRequest::List => vec![Expected::Fragments, Expected::Fragment(FragmentedRequest::List)],
        ThrottrRequest::Stats => vec![Expected::Fragments, Expected::Fragment(FragmentedRequest::Stats)],
        ThrottrRequest::Connections => {
            vec![Expected::Fragments, Expected::Fragment(FragmentedRequest::Connections)]
        }
        ThrottrRequest::Channels => {
            vec![Expected::Fragments, Expected::Fragment(FragmentedRequest::Channels)]
        }
        ThrottrRequest::Event { request, .. } => {
            let inner = request::decode(request, dialogue.dialect, &Limits::default()).unwrap().unwrap().0;
            [vec![Expected::Status], expected(&inner, dialogue)].concat()
        }
        _ => vec![Expected::Status],
    }
}

/// Reads one reply three ways, and answers with what is behind it.
fn expect_reply<'a>(
    id: &str,
    input: &'a [u8],
    expected: Expected,
    dialect: Dialect,
) -> (ThrottrReply<'a>, &'a [u8]) {
    let limits = Limits::default();
    let decoded = reply::decode(input, expected, dialect, &limits);
    let Ok(Some((found, size))) = decoded else {
        panic!("{id}: {expected:?} of {input:02x?} is {decoded:?}")
    };
    assert_eq!(reply::decode(&input[..size], expected, dialect, &limits), Ok(Some((found.clone(), size))));
    for end in 0..size {
        assert_eq!(reply::decode(&input[..end], expected, dialect, &limits), Ok(None), "{id} cut at {end}");
    }
    (found, &input[size..])
}

#[test]
fn every_answer_is_found_whole_in_pieces_and_with_a_tail() {
    for dialogue in dialogues().iter().filter(|dialogue| !dialogue.quirk) {
        let (id, dialect) = (&dialogue.id, dialogue.dialect);
        for (sent, answered) in dialogue.steps.values().flatten() {
            let mut answered = &answered[..];
            let mut rest = &sent[..];
            while let Ok(Some((request, size))) = request::decode(rest, dialect, &Limits::default()) {
                rest = &rest[size..];
                for expected in expected(&request, dialogue) {
                    let mut times = 1;
                    while times > 0 && !answered.is_empty() {
                        let (found, behind) = expect_reply(id, answered, expected, dialect);
                        answered = behind;
                        times -= usize::from(!matches!(found, ThrottrReply::Push { .. }));
                        if matches!(expected, Expected::Fragment(_)) {
                            // One was expected; there may be more, and nothing follows them in these dialogues.
                            times = usize::from(!answered.is_empty());
                        }
                    }
                }
            }
            while !answered.is_empty() {
                answered = expect_reply(id, answered, Expected::Status, dialect).1;
            }
        }
    }
}

#[test]
fn each_byte_that_is_not_a_code_is_rejected_at_once() {
    let limits = Limits::default();
    for family in [Family::V71, Family::V73] {
        for code in 0..=255_u8 {
            let known =
                matches!(code, 1..=9 | 0x10..=0x18 | 0xC0 | 0xC1) || (code == 0x19 && family == Family::V73);
            let input = [code];
            let found = request::decode(&input, Dialect { width: Width::U16, family }, &limits);
            assert_eq!(found.is_ok(), known, "{code:#x} in {}", family.as_str());
        }
    }
}

#[test]
fn a_size_beyond_the_limit_is_rejected_before_its_bytes_arrive() {
    let limits = Limits { frame_bytes_max: 1000, ..Limits::default() };
    let dialect = Dialect { width: Width::U64, family: Family::V73 };
    for code in [request::code::SET, request::code::PUBLISH, request::code::EVENT] {
        for size in [1001_u64, u64::MAX] {
            let mut head = vec![code];
            if code == request::code::SET {
                head.extend_from_slice(&[4; 9]);
            }
            head.push(0);
            head.extend_from_slice(&size.to_le_bytes());
            assert!(request::decode(&head, dialect, &limits).is_err(), "{code:#x} of {size}");
            let rest = 1000 - head.len() as u64;
            let at = head.len() - 8;
            head[at..].copy_from_slice(&rest.to_le_bytes());
            assert_eq!(request::needed(&head, dialect, &limits), Ok(1000));
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_keep_the_promises(input in proptest::collection::vec(any::<u8>(), 0..600)) {
        throttr_check::check(&input);
    }

    #[test]
    fn any_request_codes_keep_the_promises(choice in 0_u8..8, code in 0_usize..21, rest in proptest::collection::vec(0_u8..9, 0..200)) {
        let codes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0xC0, 0xC1];
        throttr_check::check(&[&[choice, codes[code]], &rest[..]].concat());
    }
}
