//! Checks the promises of the ZMTP codec about arbitrary bytes, as one function.
//!
//! Shared by the tests of this crate and by the fuzz target `zmtp_codec`, so that an input found by either can be added
//! to the corpus as a regression test. It panics where a promise is broken.

use mqcore_wire::codec::Limits;
use mqcore_wire::error::WireError;
use mqcore_wire::zmtp::command::{ZmtpCommand, subscription};
use mqcore_wire::zmtp::{GREETING_BYTES, Greeting, Item, PARTS_MAX, ZmtpDecoder, encode_message};

/// A decoded item, without its bytes.
#[derive(Debug, PartialEq)]
pub(crate) enum Found {
    Message(Vec<Vec<u8>>),
    Command(Vec<u8>),
}

/// Reads `input` as a greeting and what follows, and as what follows a greeting; under generous limits and under tight ones.
pub(crate) fn check(input: &[u8]) {
    check_greeting(input);
    for limits in [Limits::default(), Limits { frame_bytes_max: 100, header_bytes_max: 40 }] {
        let whole = read(input, input.len().max(1), &limits);
        for piece in [1, 7] {
            assert_eq!(whole, read(input, piece, &limits), "pieces of {piece} bytes say something else");
        }
        for found in &whole.0 {
            check_found(found, &limits);
        }
    }
}

fn check_greeting(input: &[u8]) {
    let whole = Greeting::decode(input);
    for end in 0..input.len().min(GREETING_BYTES) {
        match Greeting::decode(&input[..end]) {
            Ok(None) => {}
            Err(error) => assert_eq!(whole, Err(error)),
            found => panic!("{found:?} of {end} bytes"),
        }
    }
    if let Ok(Some((greeting, consumed))) = whole {
        assert_eq!(consumed, GREETING_BYTES);
        let mut again = Vec::new();
        greeting.encode(&mut again);
        assert_eq!(Greeting::decode(&again), Ok(Some((greeting, GREETING_BYTES))));
    }
}

/// All messages and commands of `input` read in pieces, the number of bytes left, and the error that ended it.
pub(crate) fn read(input: &[u8], piece: usize, limits: &Limits) -> (Vec<Found>, usize, Option<WireError>) {
    let (mut decoder, mut all, mut buffer) = (ZmtpDecoder::new(), Vec::new(), Vec::new());
    for piece in input.chunks(piece) {
        buffer.extend_from_slice(piece);
        loop {
            let consumed = match decoder.next(&buffer, limits) {
                Ok(Some((Item::Message(parts), consumed))) => {
                    all.push(Found::Message(parts.iter().map(<[u8]>::to_vec).collect()));
                    consumed
                }
                Ok(Some((Item::Command(body), consumed))) => {
                    all.push(Found::Command(body.to_vec()));
                    consumed
                }
                Ok(None) => break,
                Err(error) => return (all, 0, Some(error)),
            };
            buffer.drain(..consumed);
        }
        let needed = decoder.needed(&buffer, limits);
        assert!(needed == 0 || needed > buffer.len(), "{needed} of {} bytes", buffer.len());
        assert!(needed as u64 <= limits.frame_bytes_max);
    }
    (all, buffer.len(), None)
}

fn check_found(found: &Found, limits: &Limits) {
    match found {
        Found::Message(parts) => {
            assert!((1..=PARTS_MAX).contains(&parts.len()));
            assert!(parts.iter().map(Vec::len).sum::<usize>() as u64 <= limits.frame_bytes_max);
            let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let mut again = Vec::new();
            encode_message(&slices, &mut again);
            let (read, left, error) = read(&again, again.len(), &Limits::default());
            assert_eq!((read.as_slice(), left, error), (std::slice::from_ref(found), 0, None));
            let _ = subscription(slices[0]);
        }
        Found::Command(body) => {
            assert!(body.len() as u64 <= limits.header_bytes_max.into());
            let Ok(command) = ZmtpCommand::parse(body) else { return };
            let mut again = Vec::new();
            command.encode(&mut again);
            let mut decoder = ZmtpDecoder::new();
            let Ok(Some((Item::Command(body), _))) = decoder.next(&again, &Limits::default()) else {
                panic!("{command:?} was not read back");
            };
            assert_eq!(ZmtpCommand::parse(body), Ok(command));
        }
    }
}
