//! Checks the promises of the eMQP codec about arbitrary bytes, as one function.
//!
//! Shared by the tests of this crate and by the fuzz target `eventmq_codec`, so that an input found by either can be added
//! to the corpus as a regression test. It panics where a promise is broken.

use mqcore_wire::codec::Limits;
use mqcore_wire::eventmq::headers::Headers;
use mqcore_wire::eventmq::{Case, EmqpCommand, NAME_BYTES_MAX, parse, queues};
use mqcore_wire::zmtp::{Item, ZmtpDecoder};

/// Reads `input` as frames of messages, and as what may stand in a frame.
pub(crate) fn check(input: &[u8]) {
    let mut decoder = ZmtpDecoder::new();
    let mut rest = input;
    while let Ok(Some((item, consumed))) = decoder.next(rest, &Limits::default()) {
        if let Item::Message(parts) = item {
            for case in [Case::Exact, Case::Any] {
                match parse(parts, case) {
                    Ok(message) => {
                        assert!(message.id.len() <= NAME_BYTES_MAX);
                        check_message(&message);
                    }
                    Err(mistake) => {
                        assert!(mistake.to_string().len() < 512, "the text of an error is short")
                    }
                }
            }
        }
        rest = &rest[consumed..];
    }
    check_texts(input);
}

fn check_message(message: &mqcore_wire::eventmq::EmqpMessage<'_>) {
    let mut again = Vec::new();
    message.encode(&mut again);
    let mut decoder = ZmtpDecoder::new();
    let Ok(Some((Item::Message(parts), consumed))) = decoder.next(&again, &Limits::default()) else {
        panic!("{message:?} was not read back");
    };
    assert_eq!(consumed, again.len());
    assert_eq!(parse(parts, Case::Exact).as_ref(), Ok(message));
    match &message.command {
        EmqpCommand::Inform { queues, .. } => check_texts(queues),
        EmqpCommand::Request(job) => check_texts(job.headers),
        _ => {}
    }
}

fn check_texts(text: &[u8]) {
    let headers = Headers::parse(text);
    let mut again = Vec::new();
    headers.encode(&mut again);
    assert_eq!(Headers::parse(&again), headers);
    match queues::parse(text) {
        Ok(found) => {
            assert!((1..=queues::QUEUES_MAX).contains(&found.len()));
            let mut again = String::new();
            queues::encode(&found, &mut again);
            assert!(again.is_ascii());
            assert_eq!(queues::parse(again.as_bytes()), Ok(found));
        }
        Err(mistake) => assert!(mistake.to_string().len() < 512, "the text of an error is short"),
    }
}
