//! The dialogues of `tests/vectors/mqks.jsonl` and arbitrary lines through the MQKS codec.

use crate::mqks_check;

use std::fs;
use std::path::Path;

use mqcore_wire::codec::Limits;
use mqcore_wire::error::WireError;
use mqcore_wire::mqks::answer::{self, AnswerResult, DeliveryLine};
use mqcore_wire::mqks::arguments::WhenUnused;
use mqcore_wire::mqks::{AckScope, Lines, MqksAction, RequestLineError, parse};
use proptest::prelude::*;
use serde_json::Value;

fn dialogues() -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors/mqks.jsonl");
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The input and the output of a step.
fn step(step: &Value) -> Option<(Vec<u8>, Vec<String>)> {
    let mut sent = step["send"].as_str()?.as_bytes().to_vec();
    sent.push(b'\n');
    let lines = step["expect_lines"].as_array().unwrap();
    Some((sent, lines.iter().map(|line| line.as_str().unwrap().to_owned()).collect()))
}

#[test]
fn every_request_of_the_dialogues_is_read_and_refused_as_the_original_does() {
    let mut requests = 0;
    for dialogue in dialogues() {
        for (sent, lines) in dialogue["steps"].as_array().unwrap().iter().filter_map(step) {
            mqks_check::check(&sent);
            mqks_check::check(&[&sent[..], b"next ping\t"].concat());
            requests += 1;
            let line = match Lines::new().next(&sent, &Limits::default()) {
                Ok(Some((line, consumed))) => {
                    assert_eq!(consumed, sent.len());
                    line
                }
                Err(WireError::Malformed { .. }) => {
                    assert_eq!(lines, ["<EOF>"]);
                    continue;
                }
                other => panic!("{other:?}"),
            };
            let request = parse(line);
            let error = format!("{} error {{ERROR_ID}}", String::from_utf8_lossy(request.id));
            assert_eq!(request.action.is_err(), lines == [error], "{}", String::from_utf8_lossy(line));
        }
    }
    assert!(requests > 150, "only {requests} requests in the dialogues");
}

#[test]
fn every_answer_of_the_dialogues_is_read_and_written_as_it_was() {
    for dialogue in dialogues() {
        for (_, lines) in dialogue["steps"].as_array().unwrap().iter().filter_map(step) {
            for line in lines.iter().filter(|line| *line != "<EOF>") {
                let found = answer::parse(line.as_bytes()).unwrap_or_else(|| panic!("{line} is an answer"));
                let mut written = Vec::new();
                match found.said {
                    AnswerResult::Done(data) => match answer::delivered(data) {
                        Some(message) => answer::encode_delivered(found.id, &message, &mut written),
                        None => answer::encode_done(found.id, data, &mut written),
                    },
                    AnswerResult::Failed(error) => answer::encode_failed(found.id, error, &mut written),
                }
                assert_eq!(written, format!("{line}\n").as_bytes());
            }
        }
    }
}

#[test]
fn the_arguments_of_a_consume_may_stand_in_any_order() {
    let line = b"c2 consume --confirm q1 e0 --delete-queue-when-unused=5 --add e3 --manual-ack e4";
    let request = parse(line);
    assert!(request.confirm);
    let Ok(MqksAction::Consume(consume)) = request.action else { panic!("{request:?}") };
    assert_eq!(consume.queue, b"q1");
    assert_eq!(consume.replace, [b"e0"]);
    assert_eq!(consume.add, [b"e3", b"e4"]);
    assert_eq!(consume.when_unused, WhenUnused::DeleteAfter(5.0));
    assert!(consume.manual_ack && consume.adds);
    let mut update = Vec::new();
    answer::encode_update(b"c2", b"q1", &[b"e0", b"e3"], consume.when_unused, true, &mut update);
    assert_eq!(update, b"c2 ok --update q1 e0 e3 --delete-queue-when-unused=5.0 --manual-ack\n");
}

#[test]
fn a_rebind_without_any_change_is_a_mistake_and_replace_with_nothing_is_not() {
    assert!(matches!(parse(b"r rebind q").action, Err(RequestLineError::Missing { action: "rebind", .. })));
    let Ok(MqksAction::Rebind(rebind)) = parse(b"r rebind q --replace").action else {
        panic!("it is a rebind")
    };
    assert_eq!(rebind.replace, Some(vec![]));
}

#[test]
fn meaningless_numbers_are_rejected() {
    for number in ["abc", "-1", "nan", "inf", "1e300", ""] {
        let line = format!("c consume q --delete-queue-when-unused={number}");
        let action = parse(line.as_bytes()).action;
        assert!(matches!(action, Err(RequestLineError::BadNumber { .. })), "{number}: {action:?}");
    }
    assert!(matches!(
        parse(b"e _eval --worker=x len(state.queues)").action,
        Err(RequestLineError::BadNumber { .. })
    ));
    assert_eq!(
        parse(b"e _eval --worker=1 len(state.queues)").action,
        Ok(MqksAction::Eval { worker: Some(1), code: b"len(state.queues)" })
    );
}

#[test]
fn names_beyond_their_limit_are_refused_and_the_answer_still_has_an_id() {
    let long = "n".repeat(256);
    for line in [format!("x publish {long} d"), format!("x ack c {long}"), format!("{long} ping d")] {
        let request = parse(line.as_bytes());
        assert!(matches!(request.action, Err(RequestLineError::NameTooLong { .. })), "{:?}", request.action);
        assert!(!request.id.is_empty());
    }
    let prefetch = |count| Ok(MqksAction::Prefetch { consumer: &b"c1"[..], count });
    assert_eq!(parse(b"p prefetch c1 5").action, prefetch(5));
    assert_eq!(parse(b"p prefetch --confirm c1 0").action, prefetch(0));
    for wrong in
        [&b"p prefetch c1"[..], b"p prefetch c1 -1", b"p prefetch c1 4294967296", b"p prefetch c1 5 6"]
    {
        assert!(parse(wrong).action.is_err(), "{}", wrong.escape_ascii());
    }
    assert_eq!(parse(b"a ack c --all").action, Ok(MqksAction::Ack { consumer: b"c", which: AckScope::All }));
}

#[test]
fn a_line_without_an_end_is_refused_at_its_limit_and_not_before() {
    let limits = Limits { frame_bytes_max: 100, header_bytes_max: 0 };
    assert_eq!(Lines::new().next(&[b'x'; 100], &limits), Ok(None));
    assert!(matches!(Lines::new().next(&[b'x'; 101], &limits), Err(WireError::TooLarge { max: 100, .. })));
    let mut exact = vec![b'x'; 100];
    exact.push(b'\n');
    assert!(matches!(Lines::new().next(&exact, &limits), Ok(Some((line, 101))) if line.len() == 100));
}

#[test]
fn every_input_of_the_corpus_keeps_the_promises() {
    let inputs = mqcore_testkit::corpus("mqks_codec");
    inputs.iter().for_each(|input| mqks_check::check(&input.bytes));
    assert!(inputs.len() >= 30, "only {} inputs: the dialogues at least belong to the corpus", inputs.len());
}

fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("consume".to_owned()),
        Just("rebind".to_owned()),
        Just("publish".to_owned()),
        Just("ack".to_owned()),
        Just("--add".to_owned()),
        Just("--remove-mask".to_owned()),
        Just("--replace".to_owned()),
        Just("--confirm".to_owned()),
        Just("--manual-ack".to_owned()),
        Just("--delete-queue-when-unused".to_owned()),
        Just("--delete-queue-when-unused=0.25".to_owned()),
        Just("ok".to_owned()),
        Just("event=a,retry=3".to_owned()),
        "[a-z.*]{0,4}",
    ]
}

proptest! {
    #[test]
    fn arbitrary_bytes_keep_the_promises(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        mqks_check::check(&bytes);
    }

    #[test]
    fn any_words_keep_the_promises(words in proptest::collection::vec(word(), 0..12)) {
        mqks_check::check((words.join(" ") + "\n").as_bytes());
    }
}

#[test]
fn an_event_whose_name_looks_like_a_retry_keeps_its_name() {
    for event in [&b"a,retry=0b"[..], b"a,retry=7", b"a,retry=", b"a,b", b"a,retry=0,retry=1"] {
        for retry in [0, 3] {
            let delivered = DeliveryLine { message: b"m1", event, retry, data: b"d" };
            let mut line = Vec::new();
            answer::encode_delivered(b"c1", &delivered, &mut line);
            line.pop();
            let Some(AnswerResult::Done(data)) = answer::parse(&line).map(|answer| answer.said) else {
                panic!("no delivery: {line:?}")
            };
            assert_eq!(answer::delivered(data), Some(delivered));
        }
    }
}
