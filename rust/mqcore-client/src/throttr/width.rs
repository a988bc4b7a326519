//! Asks a listener for the width of its values, which the protocol does not announce.
//!
//! A listener of another width would read part of a request as the next one: its answers are missing, or look valid and
//! are wrong. So a new connection begins with a question that every width reads as complete, harmless requests: an
//! UPDATE of an attribute that does not exist, as many WHOAMI as the width leaves over, and an UNSUBSCRIBE that fails,
//! which marks the end. The number of ids in the answer is the width.
//!
//! ```text
//! 03 02 00                 UPDATE of attribute 2: every listener answers with failure
//! k1 k2 .. k4 .. .. .. k8  the value; the byte after it is the length of the key, in each width another one of these
//! .. ..                    the key
//! 18 18 18                 inside the key or WHOAMI: the wider the values, the earlier the key ends
//! 12 ..                    UNSUBSCRIBE
//! ```

use std::sync::Arc;

use mqcore_wire::throttr::request::{PATCH, code};
use mqcore_wire::throttr::{ID_BYTES, Width};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::address::Protocol;
use crate::dial::{Stream, broken, closed_at_once, spoke_otherwise};
use crate::error::ClientError;

/// An attribute that no edition has.
const NO_ATTRIBUTE: u8 = 2;
/// Key of the UPDATE and channel of the UNSUBSCRIBE.
const NAME: &[u8] = b"mqcore/width";
/// Bytes from the value to the end of the key in the widest request.
const KEY_END: usize = Width::U64.bytes() + 1 + NAME.len();

const SUCCESS: u8 = 1;
const FAILURE: u8 = 0;

/// Asks for the width. Fails unless it is `wanted`.
pub(super) async fn check(stream: &mut Stream, wanted: Width, address: &Arc<str>) -> Result<(), ClientError> {
    let io = |error| broken(address, &error);
    stream.write_all(&question()).await.map_err(io)?;
    stream.flush().await.map_err(io)?;
    // At most an id for each width but the narrowest, and two states.
    let mut input = Vec::with_capacity(2 + (Width::ALL.len() - 1) * (1 + ID_BYTES));
    loop {
        match answered(&input) {
            WidthAnswer::Incomplete => {}
            WidthAnswer::Width(width) if width == wanted => return Ok(()),
            WidthAnswer::Width(found) => {
                return Err(ClientError::WidthMismatch { address: address.clone(), wanted, found });
            }
            WidthAnswer::Foreign => return Err(spoke_otherwise(&input, Protocol::Throttr, address)),
        }
        if stream.read_buf(&mut input).await.map_err(io)? == 0 {
            return Err(match input.is_empty() {
                true => closed_at_once(address),
                false => spoke_otherwise(&input, Protocol::Throttr, address),
            });
        }
    }
}

fn question() -> Vec<u8> {
    let mut bytes = vec![code::UPDATE, NO_ATTRIBUTE, PATCH];
    let value = bytes.len();
    bytes.resize(value + Width::U64.bytes() + 1, 0);
    bytes.extend_from_slice(NAME);
    for (left_over, width) in Width::ALL.into_iter().rev().enumerate() {
        let length_at = width.bytes();
        bytes[value + length_at] = u8::try_from(KEY_END + left_over - length_at - 1).unwrap_or(u8::MAX);
    }
    bytes.extend_from_slice(&[code::WHOAMI; Width::ALL.len() - 1]);
    bytes.extend_from_slice(&[code::UNSUBSCRIBE, u8::try_from(NAME.len()).unwrap_or(u8::MAX)]);
    bytes.extend_from_slice(NAME);
    bytes
}

#[derive(Debug, PartialEq, Eq)]
enum WidthAnswer {
    Incomplete,
    Width(Width),
    /// Not the answer of a Throttr listener.
    Foreign,
}

fn answered(input: &[u8]) -> WidthAnswer {
    let Some((&FAILURE, mut rest)) = input.split_first() else {
        return if input.is_empty() { WidthAnswer::Incomplete } else { WidthAnswer::Foreign };
    };
    for width in Width::ALL {
        match rest.split_first() {
            None => return WidthAnswer::Incomplete,
            Some((&FAILURE, [])) => return WidthAnswer::Width(width),
            Some((&SUCCESS, id)) => match id.get(ID_BYTES..) {
                Some(next) => rest = next,
                None => return WidthAnswer::Incomplete,
            },
            Some(_) => return WidthAnswer::Foreign,
        }
    }
    WidthAnswer::Foreign
}

#[cfg(test)]
mod tests {
    use mqcore_wire::codec::Limits;
    use mqcore_wire::throttr::request::{ThrottrRequest, decode};
    use mqcore_wire::throttr::{Dialect, Family};

    use super::*;

    /// The requests that a listener reads in the question.
    fn requests(width: Width, family: Family) -> Vec<String> {
        let (bytes, mut at, mut found) = (question(), 0, Vec::new());
        while at < bytes.len() {
            let decoded = decode(&bytes[at..], Dialect { width, family }, &Limits::default());
            let (request, size) = decoded.unwrap().expect("the question ends with a request");
            at += size;
            found.push(match request {
                ThrottrRequest::Update { attribute: 2, .. } => "UPDATE".to_owned(),
                ThrottrRequest::WhoAmI => "WHOAMI".to_owned(),
                ThrottrRequest::Unsubscribe { channel } => format!("UNSUBSCRIBE {}", channel.escape_ascii()),
                other => panic!("{other:?}"),
            });
        }
        found
    }

    #[test]
    fn every_width_reads_the_question_as_harmless_requests() {
        for family in [Family::V71, Family::V73] {
            for (ids, width) in Width::ALL.into_iter().enumerate() {
                let mut wanted = vec!["UPDATE"];
                wanted.extend(vec!["WHOAMI"; ids]);
                wanted.push("UNSUBSCRIBE mqcore/width");
                assert_eq!(requests(width, family), wanted, "{width:?} {family:?}");
            }
        }
    }

    #[test]
    fn the_number_of_ids_in_the_answer_is_the_width() {
        for (ids, width) in Width::ALL.into_iter().enumerate() {
            let mut answer = vec![FAILURE];
            for id in 0..ids {
                answer.push(SUCCESS);
                answer.extend([u8::try_from(id).unwrap(); ID_BYTES]);
            }
            answer.push(FAILURE);
            for end in 0..answer.len() {
                assert_eq!(answered(&answer[..end]), WidthAnswer::Incomplete, "{width:?}, {end} bytes");
            }
            assert_eq!(answered(&answer), WidthAnswer::Width(width));
            answer.push(FAILURE);
            assert_eq!(answered(&answer), WidthAnswer::Foreign);
        }
    }

    #[test]
    fn other_answers_are_foreign() {
        let mut ids = vec![FAILURE];
        for _ in Width::ALL {
            ids.push(SUCCESS);
            ids.extend([7; ID_BYTES]);
        }
        for answer in [&b"HTTP/1.1 400"[..], &[SUCCESS, FAILURE], &[FAILURE, 9], &ids] {
            assert_eq!(answered(answer), WidthAnswer::Foreign, "{answer:?}");
        }
    }
}
