//! Heartbeats, pings and the end of a conversation.

use std::time::Duration;

use mqcore_broker::model::effect::Event;
use mqcore_broker::model::time::Timestamp;
use mqcore_session::session::{Session, SessionConfig, SessionError};
use mqcore_wire::tmqp::{PING, PONG, PREAMBLE};

use super::talk::{Talk, config, message, queue, vector};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_ping_is_answered_whatever_its_flags() {
    let mut talk = Talk::open();
    assert_eq!(talk.answer(&vector("V03")), vector("V04"));
    for (first, second) in [(0x09, 0x10), (0x49, 0x01), (0xC9, 0x3F), (0x89, 0x21)] {
        assert_eq!(talk.answer(&[first, second, 0, 0, 0, 0, 0, 0]), PONG);
    }
    assert_eq!(talk.answer(&[0x09, 0, 0, 0, 0, 0, 0, 0]), b"", "without hops it is no frame for anybody");
}

#[test]
fn an_idle_peer_is_pinged_and_stays_if_it_answers() {
    let mut talk = Talk::open();
    for _ in 0..10 {
        talk.wait(60 * SECOND);
        assert_eq!(talk.timeout(), Ok(PING.to_vec()));
        talk.wait(9 * SECOND);
        assert_eq!(talk.timeout(), Ok(Vec::new()));
        assert_eq!(talk.answer(&PONG), b"");
        assert_eq!(talk.session.next_timeout(), talk.now.after(60 * SECOND));
    }
}

#[test]
fn a_peer_that_does_not_answer_a_ping_is_closed() {
    let mut talk = Talk::open();
    talk.wait(60 * SECOND);
    assert_eq!(talk.session.next_timeout(), talk.now);
    assert_eq!(talk.timeout(), Ok(PING.to_vec()));
    assert_eq!(talk.session.next_timeout(), talk.now.after(10 * SECOND));
    talk.wait(10 * SECOND);
    assert_eq!(talk.timeout(), Err(SessionError::PingTimeout(10 * SECOND)));
    assert!(talk.session.is_closing());
}

#[test]
fn a_busy_peer_is_never_pinged() {
    let mut talk = Talk::open();
    for _ in 0..100 {
        talk.wait(59 * SECOND);
        talk.receive(&vector("V20"));
        assert_eq!(talk.timeout(), Ok(Vec::new()));
    }
}

#[test]
fn output_to_a_peer_does_not_count_as_heartbeat() {
    let mut talk = Talk::open();
    talk.wait(59 * SECOND);
    let acknowledged = Event::Acknowledged {
        queue: queue("ch/1").into(),
        message: message("M1", "cli", "", ""),
        negative: None,
        relayed: None,
    };
    assert!(!talk.event(acknowledged).is_empty());
    talk.wait(SECOND);
    assert_eq!(talk.timeout(), Ok(PING.to_vec()));
}

#[test]
fn incomplete_frame_counts_as_heartbeat_once() {
    let mut talk = Talk::open();
    talk.wait(59 * SECOND);
    talk.receive(&vector("V20")[..10]);
    talk.wait(59 * SECOND);
    assert_eq!(talk.timeout(), Ok(Vec::new()));
    // The same bytes, offered again after an event, are not a heartbeat.
    talk.receive(&[]);
    talk.wait(SECOND);
    assert_eq!(talk.timeout(), Ok(PING.to_vec()));
}

#[test]
fn clock_jump_leaves_the_peer_time_to_answer() {
    let mut talk = Talk::open();
    talk.wait(1_000_000 * SECOND);
    assert_eq!(talk.timeout(), Ok(PING.to_vec()));
    assert_eq!(talk.timeout(), Ok(Vec::new()));
    assert_eq!(talk.answer(&PONG), b"");
}

#[test]
fn zero_interval_disables_pings() {
    let mut talk = Talk::open_with(SessionConfig { ping_interval: Duration::ZERO, ..config() });
    assert_eq!(talk.session.next_timeout(), Timestamp::NEVER);
    talk.wait(1_000_000 * SECOND);
    assert_eq!(talk.timeout(), Ok(Vec::new()));
}

#[test]
fn terminate_ends_the_conversation_without_an_answer() {
    let mut talk = Talk::open();
    let bytes = [vector("V05"), vector("V03")].concat();
    assert_eq!(talk.answer(&bytes), b"");
    assert!(talk.session.is_closing());
    assert_eq!(talk.session.next_timeout(), Timestamp::NEVER);
}

#[test]
fn stopping_server_sends_terminate_after_the_preamble() {
    for (bytes, goodbye) in [(&PREAMBLE[..0], Vec::new()), (&PREAMBLE, vector("V05"))] {
        let mut talk = Talk::new();
        talk.receive(bytes);
        let mut output = Vec::new();
        talk.session.shutdown(&mut output);
        assert_eq!(output, goodbye);
        assert!(talk.session.is_closing());
    }
    let (mut talk, mut output) = (Talk::open(), Vec::new());
    talk.session.shutdown(&mut output);
    talk.session.shutdown(&mut output);
    assert_eq!(output, vector("V05"));
}
