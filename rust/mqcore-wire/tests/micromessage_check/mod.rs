//! Checks the promises of the MicroMessage2 codec about arbitrary bytes, as one function.
//!
//! Shared by the tests of this crate and by the fuzz target `micromessage_codec`, so that an input found by either
//! can be added to the corpus as a regression test. It panics where a promise is broken.

use mqcore_wire::codec::Limits;
use mqcore_wire::error::WireError;
use mqcore_wire::micromessage::filter::{Filter, FilteredMessage, STEPS_MAX};
use mqcore_wire::micromessage::handshake::{self, Handshake, HandshakeInput};
use mqcore_wire::micromessage::negotiation::{self, Capabilities, Lists};
use mqcore_wire::micromessage::properties::{self, Typing, parse_value};
use mqcore_wire::micromessage::{Assembled, Assembly, Frame, command, decode, encode, needed};

/// Extensions that count as agreed.
pub(crate) const AGREED: u8 = 3;

/// Cuts at these many places at the front, and at every so manieth behind them.
const CUT_SINGLY: usize = 48;
const CUT_STRIDE: usize = 61;

/// Reads `input` as frames, as handshakes and as the texts inside both.
pub(crate) fn check(input: &[u8]) {
    for limits in [Limits::default(), Limits { frame_bytes_max: 64, header_bytes_max: 16 }] {
        check_frames(input, &limits);
        check_handshake(input, &limits);
    }
    check_texts(input);
}

fn pieces(input: &[u8]) -> impl Iterator<Item = &[u8]> {
    let singly = 0..input.len().min(CUT_SINGLY);
    let strided = (CUT_SINGLY..input.len()).step_by(CUT_STRIDE);
    singly.chain(strided).map(|end| &input[..end])
}

fn check_frames(input: &[u8], limits: &Limits) {
    let mut assembly = Assembly::new(100);
    let mut rest = input;
    loop {
        let whole = decode(rest, AGREED, limits);
        for piece in pieces(rest) {
            match (decode(piece, AGREED, limits), &whole) {
                (Ok(None), Ok(Some((_, size)))) => assert!(*size > piece.len()),
                (Ok(None), _) => {}
                (found, whole) => assert_eq!(found, *whole),
            }
        }
        let Ok(Some((frame, size))) = whole else { return check_end(rest, &whole, limits) };
        assert_eq!(needed(rest, AGREED, limits), Ok(size));
        assert!(size as u64 <= limits.frame_bytes_max);
        let mut again = Vec::new();
        encode(&frame, &mut again);
        assert!(again.len() <= size, "the shortest form is written");
        assert_eq!(decode(&again, AGREED, &Limits::default()), Ok(Some((frame, again.len()))));
        if let Frame::Message(message) = frame {
            match assembly.push(message) {
                Ok(Assembled::Joined(joined)) => assert!(joined.payload.len() <= 100),
                Ok(_) => {}
                Err(WireError::TooLarge { max, .. }) => return assert_eq!(max, 100),
                // A part of another message.
                Err(error) => return assert!(matches!(error, WireError::Malformed { part: "message", .. })),
            }
        }
        rest = &rest[size..];
    }
}

fn check_end(rest: &[u8], end: &Result<Option<(Frame<'_>, usize)>, WireError>, limits: &Limits) {
    match (end, needed(rest, AGREED, limits)) {
        (Ok(_), Ok(size)) => {
            assert!(size > rest.len(), "{size} bytes are there");
            assert!(size as u64 <= limits.frame_bytes_max + 66_000);
        }
        (Err(error), found) => assert_eq!(found.as_ref(), Err(error)),
        other => panic!("{other:?}"),
    }
}

fn check_handshake(input: &[u8], limits: &Limits) {
    let whole = handshake::decode(input, limits);
    for piece in pieces(input) {
        match (handshake::decode(piece, limits), &whole) {
            (Ok(None), Ok(Some((_, size)))) => assert!(*size > piece.len()),
            (Ok(None), _) => {}
            (found, whole) => assert_eq!(found, *whole),
        }
    }
    let Ok(Some((HandshakeInput::Handshake(found), size))) = whole else { return };
    let mut again = Vec::new();
    handshake::encode(&found, &mut again);
    assert_eq!(again, &input[..size]);
    check_lists(&found);
}

fn check_lists(found: &Handshake<'_>) {
    check_agreement(found);
    for list in [found.required, found.optional] {
        let Ok(extensions) = handshake::parse_list(list) else { continue };
        let mut again = Vec::new();
        handshake::encode_list(&extensions, &mut again);
        assert_eq!(handshake::parse_list(&again), Ok(extensions));
    }
}

/// Checks that server and client agree on the same result, whatever the client offers.
fn check_agreement(found: &Handshake<'_>) {
    let abilities = Capabilities { vendors: &[], window_max: 1000 };
    let of_client = Capabilities::default();
    let Ok(offer) = Lists::read(found) else { return };
    let Ok(reply) = negotiation::reply(&offer, &[], &abilities) else { return };
    let Ok((last, agreement)) = negotiation::choose(&offer, &reply, &of_client) else { return };
    assert_eq!(negotiation::conclude(&offer, &reply, &last, &abilities), Ok(agreement));
}

fn check_texts(input: &[u8]) {
    if let Ok(found) = command::parse(input) {
        let arguments: Vec<_> = found.arguments.iter().map(|(key, value)| (*key, &**value)).collect();
        let mut again = Vec::new();
        command::encode(&found.name, &arguments, &mut again);
        assert_eq!(command::parse(&again).as_ref(), Ok(&found));
    }
    if properties::check(input).is_ok() {
        assert!(properties::parse(input).is_ok());
    }
    if let Ok(found) = properties::parse(input) {
        for (key, text) in &found {
            let value = parse_value(text, Typing::Typed);
            let mut again = Vec::new();
            properties::encode(key, &value, &mut again);
            let read = properties::parse(&again).expect("what was written is read");
            assert_eq!(parse_value(read[0].1, Typing::Typed), value);
        }
        let (front, _) = input.split_at(input.len() / 2);
        if let Ok(filter) = Filter::parse(front) {
            let _ = filter.matches(&mut FilteredMessage::new(&found, Typing::Typed, STEPS_MAX));
        }
    }
    if let Ok(filter) = Filter::parse(input) {
        let _ = filter.matches(&mut FilteredMessage::new(&[], Typing::Typed, STEPS_MAX));
    }
}
