//! Rules for every frame, whatever its type.

use mqcore_broker::model::command::Command;
use mqcore_session::any::AnySession;
use mqcore_session::session::{Session, SessionError};
use mqcore_wire::error::WireError;
use mqcore_wire::tmqp::{Frame, Kind};

use super::talk::{Talk, encoded, vector};

#[test]
fn a_frame_without_hops_is_dropped_and_counted() {
    let mut talk = Talk::open();
    assert_eq!(talk.answer(&vector("V55")), b"");
    assert_eq!(talk.session.ignored_frames(), 1);
    assert!(!talk.session.is_closing());
}

#[test]
fn each_hop_is_used_up() {
    let mut talk = Talk::open();
    for hops in 1..32 {
        let frame = Frame { hops, target: b"ch", ..Frame::new(Kind::QUEUE) };
        let Command::Publish { message, .. } = talk.command(&encoded(&frame)) else { panic!() };
        assert_eq!(message.properties().hops, hops - 1);
    }
}

#[test]
fn a_foreign_source_closes_the_connection() {
    for kind in [Kind::QUEUE, Kind::DIRECT, Kind::SERVER, Kind::PING, Kind::OTHER] {
        let mut talk = Talk::open();
        let bytes = encoded(&Frame { source: b"somebody", ..Frame::new(kind) });
        assert!(matches!(talk.try_receive(&bytes), Err(SessionError::Misbehaved(_))));
        assert!(talk.session.is_closing());
    }
}

#[test]
fn a_source_may_be_left_out() {
    let mut talk = Talk::open();
    let bytes = encoded(&Frame { target: b"ch", ..Frame::new(Kind::QUEUE) });
    let Command::Publish { message, .. } = talk.command(&bytes) else { panic!() };
    assert_eq!(message.source(), b"cli");
}

#[test]
fn unknown_types_are_ignored_and_counted() {
    let mut talk = Talk::open();
    let kinds = (0..64).filter(|kind| !matches!(kind, 0x00 | 0x08..=0x0A | 0x10..=0x17));
    let bytes: Vec<u8> = kinds.clone().flat_map(|kind| encoded(&Frame::new(Kind(kind)))).collect();
    assert_eq!(talk.answer(&bytes), b"");
    assert_eq!(talk.session.ignored_frames(), kinds.count() as u64);
}

#[test]
fn a_header_bit_without_a_header_closes_the_connection() {
    let mut talk = Talk::open();
    let error = talk.try_receive(&vector("V54")).unwrap_err();
    assert!(matches!(error, SessionError::Wire(WireError::Malformed { part: "header", .. })));
}

#[test]
fn several_frames_in_one_piece_are_all_read() {
    let mut talk = Talk::open();
    let bytes = [vector("V20"), vector("V03"), vector("V21")].concat();
    let (commands, output) = talk.receive(&bytes);
    assert_eq!((commands.len(), output), (2, vector("V04")));
}

#[test]
fn frames_before_an_invalid_one_are_executed() {
    let mut talk = Talk::open();
    let (mut commands, mut output) = (Vec::new(), Vec::new());
    let bytes = [vector("V20"), vector("V54")].concat();
    assert!(talk.session.receive(&bytes, talk.now, &mut commands, &mut output).is_err());
    assert_eq!(commands.len(), 1);
}

#[test]
fn session_knows_the_size_of_the_next_frame() {
    let talk = Talk::open();
    let bytes = vector("V20");
    assert_eq!(talk.session.needed(&bytes[..7]), 0);
    assert_eq!(talk.session.needed(&bytes[..8]), bytes.len());
    assert_eq!(talk.session.needed(&[0x11, 0x10, 0, 0, 0, 0, 0, 255, 0, 0, 0, 0, 0, 0, 0, 255]), 0);
    assert_eq!(Talk::new().session.needed(b""), 8);
}

#[test]
fn an_idle_session_is_small() {
    assert!(size_of::<AnySession>() <= 424, "{} bytes", size_of::<AnySession>());
}
