//! Every vector of `tests/vectors/micromessage2.jsonl` and arbitrary bytes through the MicroMessage2 codec.

use crate::micromessage_check;

use std::fs;
use std::path::Path;

use micromessage_check::AGREED;
use mqcore_wire::codec::Limits;
use mqcore_wire::error::WireError;
use mqcore_wire::micromessage::filter::{Filter, FilterError, FilteredMessage, OverBudget, STEPS_MAX};
use mqcore_wire::micromessage::handshake::{self, HandshakeInput};
use mqcore_wire::micromessage::properties::{self, Number, Typing, Value, parse_value};
use mqcore_wire::micromessage::{
    Assembled, Assembly, FRAGMENT_BYTES_MAX, Frame, MessageFrame, command, decode, encode, encode_split,
    next_sequence,
};
use proptest::prelude::*;

const TAIL: &[u8] = b"\x00\x00\x01next";

struct Vector(serde_json::Value);

impl Vector {
    fn name(&self) -> &str {
        self.0["name"].as_str().unwrap()
    }

    fn kind(&self) -> &str {
        self.0["kind"].as_str().unwrap()
    }

    fn bytes(&self) -> Vec<u8> {
        let hex = self.0["hex"].as_str().unwrap();
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }
}

fn vectors(kinds: &[&str]) -> Vec<Vector> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors/micromessage2.jsonl");
    let text = fs::read_to_string(path).unwrap();
    let vectors = text.lines().map(|line| Vector(serde_json::from_str(line).unwrap()));
    let found: Vec<_> = vectors.filter(|vector| kinds.contains(&vector.kind())).collect();
    assert!(!found.is_empty());
    found
}

fn vector(name: &str) -> Vec<u8> {
    let kinds = ["handshake", "error", "message", "fragment", "command", "extension", "bad"];
    vectors(&kinds).iter().find(|vector| vector.name() == name).unwrap().bytes()
}

#[test]
fn every_frame_is_read_whole_in_pieces_and_with_others_behind_it_and_written_as_it_was() {
    for vector in vectors(&["error", "message", "fragment", "command", "extension"]) {
        let bytes = vector.bytes();
        let limits = Limits::default();
        for end in 0..bytes.len() {
            assert_eq!(decode(&bytes[..end], AGREED, &limits), Ok(None), "{} cut at {end}", vector.name());
        }
        let longer = [&bytes[..], TAIL].concat();
        let (frame, size) = decode(&longer, AGREED, &limits).unwrap().unwrap();
        assert_eq!(size, bytes.len(), "{}", vector.name());
        assert_eq!(decode(&bytes, AGREED, &limits), Ok(Some((frame, size))));
        if vector.0["canonical"] != false {
            let mut again = Vec::new();
            encode(&frame, &mut again);
            assert_eq!(again, bytes, "{}", vector.name());
        }
    }
}

#[test]
fn every_handshake_is_read_whole_in_pieces_and_with_others_behind_it_and_written_as_it_was() {
    for vector in vectors(&["handshake"]) {
        let bytes = vector.bytes();
        let limits = Limits::default();
        for end in 0..bytes.len() {
            assert_eq!(handshake::decode(&bytes[..end], &limits), Ok(None), "{} cut at {end}", vector.name());
        }
        let longer = [&bytes[..], TAIL].concat();
        let Some((HandshakeInput::Handshake(found), size)) = handshake::decode(&longer, &limits).unwrap()
        else {
            panic!("{} is a handshake", vector.name())
        };
        assert_eq!(size, bytes.len());
        let mut again = Vec::new();
        handshake::encode(&found, &mut again);
        assert_eq!(again, bytes, "{}", vector.name());
        for list in [found.required, found.optional] {
            let mut again = Vec::new();
            handshake::encode_list(&handshake::parse_list(list).unwrap(), &mut again);
            // A `!` may stand raw, and is written encoded.
            assert_eq!(String::from_utf8(again).unwrap(), String::from_utf8_lossy(list), "{}", vector.name());
        }
    }
}

#[test]
fn a_bad_frame_fails_at_the_first_byte_that_makes_it_invalid() {
    for vector in vectors(&["bad"]) {
        let Some(fails_at) = vector.0["fails_at"].as_u64() else { continue };
        let bytes = vector.bytes();
        for end in 0..=bytes.len() {
            let found = decode(&bytes[..end], AGREED, &Limits::default());
            let fails = end as u64 >= fails_at;
            assert_eq!(found.is_err(), fails, "{} with {end} bytes: {found:?}", vector.name());
        }
    }
    assert!(command::parse(&vector("B8")[2..]).is_err());
    let awaited = handshake::decode(&[4, 0], &Limits::default());
    assert_eq!(awaited, Ok(Some((HandshakeInput::Error { text: b"" }, 2))));
}

#[test]
fn parts_of_a_message_are_joined_and_acknowledgements_may_stand_between_them() {
    let stream = [vector("F1"), vector("X1"), vector("F2"), vector("F3")].concat();
    let mut assembly = Assembly::new(100);
    let (mut rest, mut joined) = (&stream[..], None);
    while let Some((frame, size)) = decode(rest, AGREED, &Limits::default()).unwrap() {
        if let Frame::Message(message) = frame
            && let Assembled::Joined(whole) = assembly.push(message).unwrap()
        {
            joined = Some(whole);
        }
        rest = &rest[size..];
    }
    let joined = joined.expect("the last part ends it");
    assert_eq!(joined.payload, b"AAAABBBBCC");
    assert_eq!((&*joined.destination, &*joined.properties, joined.sequence), (&b"q"[..], &b"k:N1;"[..], 7));
    assert!(!assembly.is_open());
}

#[test]
fn a_message_in_parts_is_refused_when_all_together_are_too_large() {
    let part =
        MessageFrame { continued: true, sequence: 1, destination: b"q", properties: b"", payload: &[0; 60] };
    let mut assembly = Assembly::new(100);
    assert_eq!(assembly.push(part), Ok(Assembled::Unfinished));
    assert_eq!(assembly.push(part), Err(WireError::TooLarge { part: "message", size: 120, max: 100 }));
}

#[test]
fn a_large_message_is_written_in_parts_of_a_mebibyte() {
    for (size, parts) in [(0, 1), (FRAGMENT_BYTES_MAX, 1), (FRAGMENT_BYTES_MAX + 1, 2), (3 << 20, 3)] {
        let payload = vec![b'p'; size];
        let mut bytes = Vec::new();
        encode_split(9, b"q", b"k:N1;", &payload, &mut bytes);
        let (mut assembly, mut rest, mut found) = (Assembly::new(1 << 30), &bytes[..], 0);
        let mut whole = Vec::new();
        while let Some((Frame::Message(frame), taken)) = decode(rest, 0, &Limits::default()).unwrap() {
            assert_eq!(frame.sequence, 9);
            assert_eq!(frame.properties.is_empty(), found > 0);
            assert!(frame.payload.len() <= FRAGMENT_BYTES_MAX);
            rest = &rest[taken..];
            found += 1;
            match assembly.push(frame).unwrap() {
                Assembled::Whole(frame) => whole = frame.payload.to_vec(),
                Assembled::Joined(joined) => whole = joined.payload,
                Assembled::Unfinished => {}
            }
        }
        assert!(whole == payload, "{size} bytes come back");
        assert_eq!(found, parts);
    }
}

#[test]
fn sequence_numbers_wrap_past_zero() {
    assert_eq!(next_sequence(65_534), 65_535);
    assert_eq!(next_sequence(65_535), 1);
}

#[test]
fn commands_and_their_arguments_are_read() {
    let found = command::parse(&vector("C2")[2..]).map(|command| {
        let text = |key| String::from_utf8(command.argument(key).unwrap().to_vec()).unwrap();
        (command.name.clone(), text("destination"), text("id"), text("filter"))
    });
    let wanted = ("subscribe", "topic/orders", "1", "price>N10;region=Teu");
    let (name, destination, id, filter) = found.unwrap();
    assert_eq!((&*name, &*destination, &*id, &*filter), wanted);
    assert_eq!(command::parse(b"SUBSCRIBE").unwrap().name, "subscribe");
}

#[test]
fn lists_of_extensions_are_read_as_leniently_as_the_originals_write_them() {
    let read = |list: &'static str| {
        handshake::parse_list(list.as_bytes())
            .unwrap()
            .into_iter()
            .map(|e| e.name.into_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(read("json;;xml;"), ["json", "xml"]);
    let with_colon = handshake::parse_list(b"batch-ack:max-count:100").unwrap();
    assert_eq!(with_colon[0].property("max-count"), Some(&b"100"[..]));
    let original = handshake::parse_list(b"ack:MessagesPerAck=10,AckExpireTime=500").unwrap();
    assert_eq!(original[0].property("AckExpireTime"), Some(&b"500"[..]));
    for bad in ["a;a", "A", "a b", "a:=1", "a:b", "a:b=%zz", "a:b= "] {
        assert!(handshake::parse_list(bad.as_bytes()).is_err(), "{bad}");
    }
    let many: Vec<_> = (0..10_000).map(|number| format!("x-{number}")).collect();
    assert!(handshake::parse_list(many.join(";").as_bytes()).is_err());
}

#[test]
fn values_have_the_type_that_their_letter_says_and_anything_else_is_text() {
    let typed = |text: &'static str| parse_value(text.as_bytes(), Typing::Typed);
    let text = |text: &'static str| Value::Text(text.as_bytes().into());
    assert_eq!(typed("N1"), Value::Number(Number::Whole(1)));
    assert_eq!(typed("N9223372036854775807"), Value::Number(Number::Whole(i64::MAX)));
    assert_eq!(typed("D1413198000.0"), Value::Date(Number::Fraction(1_413_198_000.0)));
    assert_eq!(typed("THello%20%22world%22"), text("Hello \"world\""));
    assert_eq!(typed("kalle"), text("kalle"));
    assert_eq!(typed("Nora"), text("Nora"));
    assert_eq!(parse_value(b"N1", Typing::Untyped), text("N1"));
}

#[test]
fn filters_compare_as_their_table_says() {
    let line = b"price:N10;sent:D1413198000.5;region:Teu-west;plain:kalle;";
    let properties = properties::parse(line).unwrap();
    for (filter, passes) in [
        ("", true),
        ("price=N10", true),
        ("price!=N10", false),
        ("price<N10", false),
        ("price<=N10", true),
        ("price>N9.5", true),
        ("price>=N11", false),
        ("sent>D1413198000", true),
        ("sent<=D1413198000", false),
        ("region=Teu-west", true),
        ("region<Teu", true),
        ("region>Twest", true),
        ("region>Teu", false),
        ("region&Tu-w", true),
        ("region~Tu-w", false),
        ("region~Tus", true),
        ("plain=Tkalle", true),
        ("price>N9;region<Tus", false),
        ("missing=N1", false),
        ("missing!=N1", true),
        ("missing~Tx", true),
        ("price=Tten", false),
        ("price!=Tten", true),
    ] {
        let read = Filter::parse(filter.as_bytes()).unwrap_or_else(|error| panic!("{filter}: {error}"));
        let mut message = FilteredMessage::new(&properties, Typing::Typed, STEPS_MAX);
        assert_eq!(read.matches(&mut message), Ok(passes), "{filter}");
    }
}

#[test]
fn filters_of_a_message_share_its_parsed_properties_and_its_steps() {
    let text = ["T".to_owned(), "a".repeat(6_400)].concat();
    let properties = [("text", text.as_bytes()), ("other", b"N1".as_slice())];
    let filter = Filter::parse(b"text<Taa;text>Taa").unwrap();
    let mut message = FilteredMessage::new(&properties, Typing::Typed, 1_000);
    assert_eq!(filter.matches(&mut message), Ok(true));
    assert_eq!(message.steps_left(), 1_000 - 101 - 2, "it is parsed once, and each term is a step");
    assert_eq!(filter.matches(&mut message), Ok(true));
    assert_eq!(message.steps_left(), 1_000 - 101 - 4);
    let search = Filter::parse(b"text&Tb").unwrap();
    assert_eq!(search.matches(&mut message), Ok(false));
    assert_eq!(message.steps_left(), 1_000 - 101 - 4 - 101);
    let mut message = FilteredMessage::new(&properties, Typing::Typed, 150);
    assert_eq!(search.matches(&mut message), Err(OverBudget));
    assert_eq!(Filter::parse(b"other=N1").unwrap().matches(&mut message), Err(OverBudget));
}

#[test]
fn filters_that_cannot_be_meant_are_refused_with_the_term() {
    for bad in
        ["price", "=N1", "price=", "price=10", "price=Nten", "region<=Teu", "price&N1", "sent~D1", "a b=N1"]
    {
        assert!(Filter::parse(bad.as_bytes()).is_err(), "{bad}");
    }
    let many = "a=N1;".repeat(33);
    assert_eq!(Filter::parse(many.as_bytes()), Err(FilterError::TooManyTerms));
}

#[test]
fn every_input_of_the_corpus_keeps_the_promises() {
    let inputs = mqcore_testkit::corpus("micromessage_codec");
    inputs.iter().for_each(|input| micromessage_check::check(&input.bytes));
    assert!(inputs.len() >= 40, "only {} inputs: the vectors at least belong to the corpus", inputs.len());
}

proptest! {
    #[test]
    fn arbitrary_bytes_keep_the_promises(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        micromessage_check::check(&bytes);
    }

    #[test]
    fn damaged_frames_keep_the_promises(
        which in 0..40_usize, at in any::<prop::sample::Index>(), byte in any::<u8>(),
    ) {
        let kinds = ["handshake", "error", "message", "fragment", "command", "extension", "bad"];
        let all = vectors(&kinds);
        let mut bytes = all[which % all.len()].bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        micromessage_check::check(&bytes);
    }

    #[test]
    fn any_text_keeps_the_promises(text in "[a-c;:=,%2NDT<>!~&.0-9-]{0,60}") {
        micromessage_check::check(text.as_bytes());
    }
}
