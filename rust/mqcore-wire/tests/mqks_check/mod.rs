//! Checks the promises of the MQKS codec about arbitrary bytes, as one function.
//!
//! Shared by the tests of this crate and by the fuzz target `mqks_codec`, so that an input found by either can be added
//! to the corpus as a regression test. It panics where a promise is broken.

use mqcore_wire::codec::Limits;
use mqcore_wire::error::WireError;
use mqcore_wire::mqks::answer::{self, AnswerResult};
use mqcore_wire::mqks::arguments::{Consume, Rebind};
use mqcore_wire::mqks::{Lines, MqksAction, NAME_BYTES_MAX, parse};

/// Reads `input` as a stream of requests and as one of answers, under generous limits and under tight ones.
pub(crate) fn check(input: &[u8]) {
    for limits in [Limits::default(), Limits { frame_bytes_max: 40, header_bytes_max: 0 }] {
        let whole = read(input, input.len().max(1), &limits);
        for piece in [1, 7] {
            assert_eq!(whole, read(input, piece, &limits), "pieces of {piece} bytes say something else");
        }
        for line in whole.0 {
            assert!(line.len() as u64 <= limits.frame_bytes_max);
            check_request(&line);
            check_answer(&line);
        }
    }
}

/// All lines of `input` that comes in pieces, what is left, and how it ended.
fn read(input: &[u8], piece: usize, limits: &Limits) -> (Vec<Vec<u8>>, Vec<u8>, Option<WireError>) {
    let (mut lines, mut found, mut buffer) = (Lines::new(), Vec::new(), Vec::new());
    for piece in input.chunks(piece) {
        buffer.extend_from_slice(piece);
        loop {
            match lines.next(&buffer, limits) {
                Ok(Some((line, consumed))) => {
                    assert!(!line.contains(&b'\n') && !line.contains(&b'\t'));
                    found.push(line.to_vec());
                    buffer.drain(..consumed);
                }
                Ok(None) => break,
                // How much of what is too long has come depends on the pieces.
                Err(WireError::TooLarge { part, max, .. }) => {
                    return (found, Vec::new(), Some(WireError::TooLarge { part, size: max, max }));
                }
                Err(error) => return (found, Vec::new(), Some(error)),
            }
        }
    }
    (found, buffer, None)
}

fn check_request(line: &[u8]) {
    let request = parse(line);
    assert!(request.id.len() <= NAME_BYTES_MAX);
    match &request.action {
        Ok(MqksAction::Consume(consume)) => check_consume(request.id, consume),
        Ok(MqksAction::Rebind(rebind)) => check_rebind(request.id, rebind),
        Ok(MqksAction::Publish { event, data }) => assert!(!event.is_empty() && !data.is_empty()),
        Ok(_) => {}
        Err(mistake) => assert!(mistake.to_string().len() < 512, "the text of an error is short"),
    }
}

fn check_consume(id: &[u8], consume: &Consume<'_>) {
    let mut again = [id, b" consume "].concat();
    consume.encode(&mut again);
    assert_eq!(parse(&again).action, Ok(MqksAction::Consume(consume.clone())));
}

fn check_rebind(id: &[u8], rebind: &Rebind<'_>) {
    let mut again = [id, b" rebind "].concat();
    rebind.encode(&mut again);
    // A rebind that changes nothing cannot be written: that is not a request.
    if *rebind != (Rebind { queue: rebind.queue, ..Rebind::default() }) {
        assert_eq!(parse(&again).action, Ok(MqksAction::Rebind(rebind.clone())));
    }
}

fn check_answer(line: &[u8]) {
    let Some(found) = answer::parse(line) else { return };
    let mut again = Vec::new();
    match found.said {
        AnswerResult::Done(data) => {
            answer::encode_done(found.id, data, &mut again);
            if let Some(delivered) = answer::delivered(data) {
                let mut line = Vec::new();
                answer::encode_delivered(found.id, &delivered, &mut line);
                line.pop();
                let read = answer::parse(&line).expect("what was written is read");
                let AnswerResult::Done(data) = read.said else { panic!("a delivery became an error") };
                assert_eq!(answer::delivered(data), Some(delivered));
            }
        }
        AnswerResult::Failed(error) => answer::encode_failed(found.id, error, &mut again),
    }
    again.pop();
    assert_eq!(answer::parse(&again), Some(found));
}
