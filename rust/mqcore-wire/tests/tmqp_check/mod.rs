//! Checks the promises of the TMQP codec about arbitrary bytes, as one function.
//!
//! Shared by the tests of this crate and by the fuzz target `tmqp_codec`, so that an input found by either can be added
//! to the corpus as a regression test. It panics where a promise is broken.

use mqcore_wire::codec::Limits;
use mqcore_wire::error::WireError;
use mqcore_wire::tmqp::{Frame, Kind, decode, encode, encode_head, header, hello, needed};

/// The frame at the front of the input, or its fault. Short for what `decode` answers.
type Decoded<'a> = Result<Option<(Frame<'a>, usize)>, WireError>;

/// Prefix in which every length is tried: the fixed part, any length form and some of the names.
const CUT_SINGLY: usize = 40;
/// After that prefix, the step between tried lengths in bytes.
const CUT_STRIDE: usize = 61;

/// Decodes `input` as a stream of frames, under generous limits and under tight ones, and checks every answer.
pub(crate) fn check(input: &[u8]) {
    for limits in [Limits::default(), Limits { frame_bytes_max: 96, header_bytes_max: 24 }] {
        let mut rest = input;
        while let Some(consumed) = check_front(rest, &limits) {
            rest = &rest[consumed..];
        }
    }
    check_header_text(input);
    check_hello(input);
}

/// Checks what `decode` says about the front of `input`; answers how far the next frame is.
fn check_front(input: &[u8], limits: &Limits) -> Option<usize> {
    let whole = decode(input, limits);
    check_pieces(input, limits, &whole);
    match whole {
        Ok(Some((frame, consumed))) => {
            check_frame(&frame, &input[..consumed], limits);
            Some(consumed)
        }
        Ok(None) => {
            let size = needed(input, limits).expect("decode found no fault");
            assert!(size == 0 || size > input.len(), "nothing is missing of {size} bytes");
            assert!(size as u64 <= limits.frame_bytes_max);
            None
        }
        Err(error) => {
            assert_eq!(needed(input, limits), Err(error));
            None
        }
    }
}

/// A shorter input never gives another answer than the whole one, only none yet.
fn check_pieces(input: &[u8], limits: &Limits, whole: &Decoded<'_>) {
    let singly = 0..input.len().min(CUT_SINGLY);
    let strided = (CUT_SINGLY..input.len()).step_by(CUT_STRIDE);
    for end in singly.chain(strided).chain(input.len().checked_sub(1)) {
        let piece = decode(&input[..end], limits);
        match (whole, &piece) {
            (_, Ok(None)) => assert!(!matches!(whole, Ok(Some((_, consumed))) if *consumed <= end)),
            (whole, piece) => assert_eq!(whole, piece),
        }
    }
}

/// Checks that the frame is within its bytes and the limits, and that encoding it gives the same frame.
fn check_frame(frame: &Frame<'_>, bytes: &[u8], limits: &Limits) {
    assert!(bytes.len() as u64 <= limits.frame_bytes_max);
    assert!(frame.headers.len() as u64 <= u64::from(limits.header_bytes_max));
    assert_eq!(frame.check(), Ok(()));
    assert_eq!(needed(bytes, limits), Ok(bytes.len()));

    let mut encoded = Vec::new();
    encode(frame, &mut encoded);
    assert_eq!(encoded.len(), frame.encoded_size());
    assert!(encoded.len() <= bytes.len());
    assert_eq!(decode(&encoded, limits), Ok(Some((*frame, encoded.len()))));
    let keeps_its_header_bit = !matches!(frame.kind, Kind::PING | Kind::PONG);
    if encoded.len() == bytes.len() && keeps_its_header_bit {
        assert_eq!(encoded, bytes);
    }

    let mut head = Vec::new();
    encode_head(frame, frame.payload.len() as u64, &mut head);
    assert_eq!([&head[..], frame.payload].concat(), encoded);
    check_header_text(frame.headers);
    check_hello(frame.payload);
}

/// Every pair can be looked up, and those that may be written are read back as they were.
fn check_header_text(headers: &[u8]) {
    let mut rewritten = Vec::new();
    let mut accepted = Vec::new();
    for (key, value) in header::pairs(headers).take(64) {
        assert!(!key.is_empty() && !key.contains(&b':'));
        let Ok(name) = str::from_utf8(key) else { continue };
        assert!(header::header_value(headers, name).is_some());
        if header::push_header(&mut rewritten, name, value).is_ok() {
            accepted.push((key, value));
        } else {
            assert!(
                [key, value].concat().iter().any(|byte| b"\r\n".contains(byte)) || rewritten.len() > 60_000
            );
        }
    }
    assert_eq!(header::pairs(&rewritten).collect::<Vec<_>>(), accepted);
}

/// Checks that a Hello keeps its meaning when it is encoded again.
fn check_hello(body: &[u8]) {
    let Ok(hello) = hello::decode(body) else { return };
    let mut written = Vec::new();
    match hello::encode(&hello, &mut written) {
        Ok(()) => assert_eq!(hello::decode(&written), Ok(hello)),
        Err(_) => assert!(written.is_empty()),
    }
}
