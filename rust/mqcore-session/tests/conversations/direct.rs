//! Messages, acknowledgements and responses from client to client.

use mqcore_broker::model::command::{ClientPattern, Command};
use mqcore_broker::model::effect::Event;
use mqcore_broker::model::message::{Message, Properties};
use mqcore_broker::model::rejection::RejectionKind;
use mqcore_session::session::Session;
use mqcore_wire::tmqp::{Frame, Kind};

use super::talk::{Talk, encoded, frames, is_generated, message_with, only_frame, rejection, vector};

fn direct(command: Command) -> (ClientPattern, Message) {
    match command {
        Command::Direct { to, message } => (to, message),
        other => panic!("{other:?}"),
    }
}

fn to(target: &str) -> Frame<'_> {
    Frame { id: b"D", target: target.as_bytes(), payload: b"hi", ..Frame::new(Kind::DIRECT) }
}

#[test]
fn a_direct_message_reaches_a_client_with_its_answer_options() {
    let mut talk = Talk::open();
    let (to, message) = direct(talk.command(&vector("V36")));
    assert_eq!(to, ClientPattern::Id("other".into()));
    assert_eq!((message.id(), message.source(), message.body()), (&b"id-025"[..], &b"cli"[..], &b"hi"[..]));
    let expected =
        Properties { pending_acknowledge: true, hops: 15, content_type: 3, ..Properties::default() };
    assert_eq!(message.properties(), expected);
    let (_, message) = direct(talk.command(&vector("V37")));
    assert!(message.properties().pending_response && !message.properties().pending_acknowledge);
}

#[test]
fn clients_are_addressed_by_name_and_type_with_quotes_or_without() {
    let mut talk = Talk::open();
    let mut pattern = |target| direct(talk.command(&encoded(&to(target)))).0;
    assert_eq!(pattern("@name:worker"), ClientPattern::Name("worker".into()));
    assert_eq!(pattern("@name:\"E-Mail Sender\""), ClientPattern::Name("E-Mail Sender".into()));
    assert_eq!(pattern("@type:ty"), ClientPattern::Kind("ty".into()));
    assert_eq!(pattern("@type:\"ty\""), ClientPattern::Kind("ty".into()));
    assert_eq!(pattern("@type:\""), ClientPattern::Kind("\"".into()));
    assert_eq!(pattern("@Name:x"), ClientPattern::Id("@Name:x".into()));
}

#[test]
fn only_the_oldest_match_is_asked_for_by_the_first_acquirer_bit() {
    let mut talk = Talk::open();
    let bytes = encoded(&Frame { first_acquirer: true, ..to("@name:x") });
    assert!(direct(talk.command(&bytes)).1.properties().first_acquirer);
}

#[test]
fn a_direct_message_without_an_id_gets_one() {
    let mut talk = Talk::open();
    let bytes = encoded(&Frame { id: b"", pending_response: true, ..to("other") });
    let (_, message) = direct(talk.command(&bytes));
    assert!(is_generated(message.id()));
    assert!(!message.properties().pending_response);
}

#[test]
fn direct_message_without_a_target_is_a_bad_request() {
    let mut talk = Talk::open();
    for target in [&b""[..], b"\xFF"] {
        let output = talk.answer(&encoded(&Frame { target, ..to("") }));
        let frame = only_frame(&output);
        assert_eq!((frame.kind, frame.content_type, frame.target), (Kind::RESPONSE, 400, &b"cli"[..]));
        assert_eq!(talk.answer(&encoded(&Frame { target, id: b"", ..to("") })), b"");
    }
}

#[test]
fn a_direct_message_is_relayed_as_it_was_addressed() {
    let mut talk = Talk::open();
    let properties =
        Properties { pending_acknowledge: true, hops: 15, content_type: 5, ..Properties::default() };
    let message = message_with(properties, "D1", "prod", "", "hi");
    let output = talk.event(Event::Direct { to: ClientPattern::Id("c1".into()), message: message.clone() });
    assert_eq!(output, vector("V38"));
    for (pattern, target) in
        [(ClientPattern::Name("n".into()), "@name:n"), (ClientPattern::Kind("t".into()), "@type:t")]
    {
        let output = talk.event(Event::Direct { to: pattern, message: message.clone() });
        assert_eq!(only_frame(&output).target, target.as_bytes());
    }
}

#[test]
fn an_acknowledgement_with_high_priority_goes_to_a_client() {
    let mut talk = Talk::open();
    let bytes = encoded(&Frame {
        high_priority: true,
        id: b"D1",
        target: b"prod",
        headers: b"Nack-Reason:no\r\n",
        ..Frame::new(Kind::ACKNOWLEDGE)
    });
    let Command::AcknowledgeDirect { to, message } = talk.command(&bytes) else { panic!() };
    assert_eq!((&*to, message.id(), message.headers()), ("prod", &b"D1"[..], &b"Nack-Reason:no\r\n"[..]));
    assert!(message.properties().high_priority);
}

#[test]
fn acknowledgement_reaches_the_sender_of_a_direct_message() {
    let mut talk = Talk::open();
    talk.session = {
        let mut other = Talk::new();
        other.receive(&mqcore_wire::tmqp::PREAMBLE);
        other.receive(&vector("V06"));
        other.event(Event::Welcomed(super::talk::client("prod")));
        other.session
    };
    let properties = Properties { high_priority: true, hops: 15, content_type: 5, ..Properties::default() };
    let output = talk.event(Event::DirectAcknowledged(message_with(properties, "D1", "c1", "", "")));
    assert_eq!(output, vector("V39"));
}

#[test]
fn a_response_goes_to_a_client_and_arrives_with_its_status() {
    let mut talk = Talk::open();
    let bytes = encoded(&Frame {
        content_type: 1001,
        id: b"D1",
        target: b"prod",
        payload: b"answer",
        ..Frame::new(Kind::RESPONSE)
    });
    let Command::Respond { to, message } = talk.command(&bytes) else { panic!() };
    assert_eq!((&*to, message.body(), message.properties().content_type), ("prod", &b"answer"[..], 1001));
    let output = talk.event(Event::Responded(message));
    let frame = only_frame(&output);
    assert_eq!((frame.kind, frame.content_type, frame.hops), (Kind::RESPONSE, 1001, 15));
    assert_eq!((frame.source, frame.target, frame.payload), (&b"cli"[..], &b"cli"[..], &b"answer"[..]));
    for frame in [Frame { id: b"", ..frame }, Frame { target: b"", ..frame }] {
        assert_eq!(talk.answer(&encoded(&frame)), b"", "nobody can match it");
    }
    assert_eq!(talk.session.ignored_frames(), 2);
}

#[test]
fn sender_without_a_receiver_is_notified_for_an_id_or_if_it_waits() {
    let mut talk = Talk::open();
    let mut refused = |to: ClientPattern, properties, id: &str| {
        let message = message_with(properties, id, "cli", "", "");
        talk.event(Event::DirectRefused { to, message, rejection: rejection(RejectionKind::NotFound) })
    };
    let by_id = || ClientPattern::Id("other".into());
    let by_name = || ClientPattern::Name("other".into());
    let silent = Properties { content_type: 5, ..Properties::default() };
    let response = Properties { pending_response: true, ..silent };
    let acknowledge = Properties { pending_acknowledge: true, ..silent };

    let output = refused(by_id(), silent, "D");
    let frame = only_frame(&output);
    assert_eq!((frame.kind, frame.content_type, frame.target), (Kind::RESPONSE, 404, &b"cli"[..]));
    assert_eq!(refused(by_name(), silent, "D"), b"");
    let output = refused(by_name(), response, "D");
    assert_eq!(only_frame(&output).content_type, 404);
    let output = refused(by_name(), acknowledge, "D");
    let nack = only_frame(&output);
    assert_eq!((nack.kind, nack.high_priority, nack.content_type), (Kind::ACKNOWLEDGE, true, 5));
    assert_eq!(nack.headers, b"Nack-Reason:no-consumers\r\n");
    let output = refused(by_id(), acknowledge, "D");
    assert_eq!(frames(&output).len(), 2);
    assert_eq!(refused(by_id(), response, ""), b"");
}

#[test]
fn custom_messages_go_to_the_program_of_the_broker_and_come_from_it() {
    let mut talk = Talk::open();
    let frame = Frame { id: b"C", content_type: 9, payload: b"hi", ..Frame::new(Kind::OTHER) };
    let Command::Custom(message) = talk.command(&encoded(&frame)) else { panic!() };
    assert_eq!((message.id(), message.source(), message.body()), (&b"C"[..], &b"cli"[..], &b"hi"[..]));
    assert_eq!(message.properties().content_type, 9);
    let properties = Properties { content_type: 7, ..Properties::default() };
    let answer = Message::from_parts(b"", b"Re:C\r\n", b"ho", properties, None);
    let output = talk.event(Event::Custom(answer));
    let frame = only_frame(&output);
    assert_eq!((frame.kind, frame.content_type, frame.hops), (Kind::OTHER, 7, 16));
    assert_eq!((frame.source, frame.target), (&b""[..], &b"cli"[..]));
    assert_eq!((frame.headers, frame.payload), (&b"Re:C\r\n"[..], &b"ho"[..]));
}
