//! Recorded messages of the original router and its peers (`tests/vectors/eventmq.jsonl`), invalid messages, and arbitrary
//! bytes through the eMQP codec.

use crate::eventmq_check;

use std::fs;
use std::path::Path;

use mqcore_wire::codec::Limits;
use mqcore_wire::eventmq::headers::{Headers, unique_key};
use mqcore_wire::eventmq::queues::{self, WeightedQueue};
use mqcore_wire::eventmq::{Case, EmqpCommand, EmqpError, EmqpMessage, encode_heartbeat, parse};
use mqcore_wire::zmtp::{Item, ZmtpDecoder, encode_message};
use proptest::prelude::*;
use serde_json::Value;

fn vectors() -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors/eventmq.jsonl");
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// The message of a vector as it stands on the wire.
fn bytes(vector: &Value) -> Vec<u8> {
    let frames: Vec<_> =
        vector["frames"].as_array().unwrap().iter().map(|frame| unhex(frame.as_str().unwrap())).collect();
    let mut bytes = Vec::new();
    encode_message(&frames.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut bytes);
    bytes
}

/// Parses the one message in `bytes`.
fn read<T>(bytes: &[u8], case: Case, then: impl FnOnce(Result<EmqpMessage<'_>, EmqpError>) -> T) -> T {
    let mut decoder = ZmtpDecoder::new();
    let Ok(Some((Item::Message(parts), consumed))) = decoder.next(bytes, &Limits::default()) else {
        panic!("a message")
    };
    assert_eq!(consumed, bytes.len());
    then(parse(parts, case))
}

fn case(vector: &Value) -> Case {
    if vector["socket"] == "backend" { Case::Any } else { Case::Exact }
}

/// The command's name, as the codec understood it.
fn name(message: &EmqpMessage<'_>) -> String {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    let mut decoder = ZmtpDecoder::new();
    let Ok(Some((Item::Message(parts), _))) = decoder.next(&bytes, &Limits::default()) else {
        panic!("a message")
    };
    String::from_utf8(parts.get(2).unwrap().to_vec()).unwrap()
}

#[test]
fn every_message_of_the_original_is_read_and_written_as_it_was() {
    let mut messages = 0;
    for vector in vectors().iter().filter(|vector| vector["kind"] == "message") {
        let sent = bytes(vector);
        eventmq_check::check(&sent);
        let word = vector["text"][2].as_str().unwrap();
        read(&sent, case(vector), |message| match message {
            Ok(message) => {
                assert_eq!(name(&message), word);
                if message.command != EmqpCommand::Heartbeat {
                    let mut written = Vec::new();
                    message.encode(&mut written);
                    assert_eq!(written, sent, "{}", vector["name"]);
                }
            }
            // Unknown to the original as well: its command line greets like this.
            Err(EmqpError::UnknownCommand(_)) => assert!(["HELLO", "BOGUS"].contains(&word), "{word}"),
            Err(mistake) => panic!("{}: {mistake}", vector["name"]),
        });
        messages += 1;
    }
    assert!(messages > 210, "only {messages} messages");
}

#[test]
fn every_probe_is_read_or_refused_as_it_should() {
    let vectors = vectors();
    let probes: Vec<_> = vectors.iter().filter(|vector| vector["kind"] == "probe").collect();
    assert_eq!(probes.len(), 32);
    for probe in probes {
        eventmq_check::check(&bytes(probe));
        read(&bytes(probe), case(probe), |message| {
            let found = message.as_ref().map(name).ok();
            assert_eq!(found.as_deref(), probe["command"].as_str(), "{}: {message:?}", probe["name"]);
        });
    }
}

#[test]
fn a_heartbeat_tells_the_time_as_the_original_does() {
    let mut bytes = Vec::new();
    encode_heartbeat(b"id", 1_795_216_278_089, &mut bytes);
    read(&bytes, Case::Exact, |message| assert_eq!(message.unwrap().command, EmqpCommand::Heartbeat));
    assert!(bytes.ends_with(b"1795216278.089"));
}

#[test]
fn headers_are_words_between_commas_and_numbers_behind_colons() {
    let all = Headers::parse(
        b"reply-requested,guarantee, nohaste ,retry-count:3,timeout:7,priority:5,run_count:2,other:x,create-queue",
    );
    let wanted = Headers {
        reply_requested: true,
        guarantee: true,
        nohaste: true,
        retry_count: 3,
        timeout: 7,
        priority: 5,
        run_count: 2,
        create_queue: true,
    };
    assert_eq!(all, wanted);
    assert_eq!(unique_key(b"guarantee, unique:a:b ,timeout:7"), Some(&b"a:b"[..]));
    assert_eq!(unique_key(b"guarantee,uniques:x"), None);
    assert_eq!(Headers::parse(b""), Headers::default());
    for unsaid in
        [&b"guarantee:false"[..], b"retry-count:x,timeout:-1", b"retry-count,timeout:99999999999", b"\xff,{}"]
    {
        assert_eq!(Headers::parse(unsaid), Headers::default(), "{}", unsaid.escape_ascii());
    }
}

#[test]
fn check_refuses_values_that_a_header_cannot_have_and_names_them() {
    for (text, named) in [
        (&b"run_count:abc"[..], "run_count:abc"),
        (b"guarantee,retry-count:-1", "retry-count:-1"),
        (b"timeout:abc", "timeout:abc"),
        (b"timeout:-0.5", "timeout:-0.5"),
        (b"timeout:nan", "timeout:nan"),
        (b"priority:x", "priority:x"),
        (b"priority:1.5", "priority:1.5"),
        (b"retry-count", "retry-count:"),
        (b"run-count:4294967296", "run_count:4294967296"),
        (b"priority:\xff", "priority:\\xff"),
    ] {
        let mistake = Headers::check(text).expect_err("not a value of this header").to_string();
        assert!(mistake.contains(&format!("`{named}`")), "{mistake}");
    }
    let checked = Headers::check(b"timeout:0.2, retry-count: 3 ,other:x").expect("all values are valid");
    assert_eq!((checked.timeout, checked.retry_count), (1, 3));
}

fn queue(weight: i32, name: &str) -> WeightedQueue {
    WeightedQueue { weight, name: name.into() }
}

#[test]
fn queues_are_read_as_programs_and_as_the_document_write_them() {
    let both = [queue(30, "hi"), queue(10, "default")];
    for text in [
        r#"[[30, "hi"], [10, "default"]]"#,
        r#" [ [30,"hi"] ,[10,"\u0064efault"] ] "#,
        "[30, 'hi'], [10, 'default']",
        r#"[[30, "hi"], [10, "default"], [5, "hi"]]"#,
    ] {
        assert_eq!(queues::parse(text.as_bytes()).as_deref(), Ok(&both[..]), "{text}");
    }
    assert_eq!(queues::parse(b"[-1, 'email']"), Ok(vec![queue(-1, "email")]));
    for nothing in ["", "  ", "[]"] {
        assert_eq!(queues::parse(nothing.as_bytes()), Ok(vec![queue(10, "default")]), "{nothing:?}");
    }
    assert_eq!(queues::parse(br#"[[1, "\ud83d\ude00"]]"#), Ok(vec![queue(1, "\u{1f600}")]));
}

#[test]
fn an_invalid_list_of_queues_is_rejected() {
    let many = format!("[{}]", [r#"[1, "q"]"#; 2].join(",").replace('q', &"q".repeat(300)));
    let crowd: Vec<_> = (0..257).map(|number| format!("[1, \"q{number}\"]")).collect();
    for text in [
        "not json",
        "42",
        "[42]",
        "[[]]",
        "[[1]]",
        r#"[["a", 1]]"#,
        r#"[[1.5, "a"]]"#,
        r#"[[1, "a"]"#,
        r#"[[1, "a"]] x"#,
        r#"[[1, "a]]"#,
        r#"[[1, "\x"]]"#,
        r#"[[1, "\ud83d"]]"#,
        r#"[[1, "\u+123"]]"#,
        r#"[[99999999999, "a"]]"#,
        &many,
        &crowd.join(","),
    ] {
        let found = queues::parse(text.as_bytes());
        assert!(
            matches!(found, Err(EmqpError::Queues(_) | EmqpError::NameTooLong { .. })),
            "{text}: {found:?}"
        );
    }
    assert!(queues::parse(b"\xff").is_err());
}

#[test]
fn names_beyond_their_limit_are_refused() {
    let long = [b'n'; 256];
    for frames in [
        [&b""[..], b"eMQP/1.0", b"READY", &long, b"", b"", b""],
        [b"", b"eMQP/1.0", b"REQUEST", b"id", &long, b"", b"job"],
        [b"", b"eMQP/1.0", b"PUBLISH", b"id", &long, b"", b"news"],
        [b"", b"eMQP/1.0", b"REPLY", b"id", b"{}", &long, b""],
    ] {
        let mut bytes = Vec::new();
        encode_message(&frames, &mut bytes);
        read(&bytes, Case::Any, |message| assert!(matches!(message, Err(EmqpError::NameTooLong { .. }))));
    }
}

#[test]
fn every_input_of_the_corpus_keeps_the_promises() {
    let inputs = mqcore_testkit::corpus("eventmq_codec");
    inputs.iter().for_each(|input| eventmq_check::check(&input.bytes));
    assert!(inputs.len() >= 32, "only {} inputs: the probes at least belong to the corpus", inputs.len());
}

fn frame() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::sample::select(vec![
            "INFORM",
            "worker",
            "scheduler",
            "REQUEST",
            "ready",
            "REPLY",
            "SCHEDULE",
            "PUBLISH",
            "AWAIT",
            "LOOKUP",
            "CANCEL",
            "hard",
            "FLOW",
            "KBYE",
            "",
            "default",
            "retry-count:2,guarantee",
            "[[10, \"default\"]]",
            "[10, 'email'], [3, 'x']",
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 0..12),
    ]
}

proptest! {
    #[test]
    fn arbitrary_bytes_keep_the_promises(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        eventmq_check::check(&bytes);
    }

    #[test]
    fn any_frames_keep_the_promises(frames in prop::collection::vec(frame(), 1..10)) {
        let mut bytes = Vec::new();
        encode_message(&frames.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut bytes);
        eventmq_check::check(&bytes);
    }

    #[test]
    fn any_text_about_queues_keeps_the_promises(text in r#"[\[\], 0-9"'a-z\\u-]{0,40}"#) {
        eventmq_check::check(text.as_bytes());
    }
}
