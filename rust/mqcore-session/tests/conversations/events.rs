//! Subscriptions to events, and the events.

use std::sync::Arc;

use mqcore_broker::model::command::{EventKind, EventSubscription, Request};
use mqcore_broker::model::effect::{Event, Notification, Reply, Subject};
use mqcore_broker::model::options::Status;
use mqcore_broker::model::rejection::RejectionKind;
use mqcore_wire::tmqp::{Frame, Kind};

use super::talk::{Talk, channel, encoded, is_generated, only_frame, rejection, vector};

fn subscribe<'a>(event: &'a str, headers: &'a str) -> Frame<'a> {
    Frame {
        content_type: 1,
        id: b"e",
        source: b"cli",
        target: event.as_bytes(),
        headers: headers.as_bytes(),
        ..Frame::new(Kind::EVENT)
    }
}

fn subscription(talk: &mut Talk, bytes: &[u8]) -> EventSubscription {
    match talk.request(bytes).1 {
        Request::Subscribe(subscription) => subscription,
        other => panic!("{other:?}"),
    }
}

#[test]
fn event_subscriptions_carry_their_arguments() {
    let mut talk = Talk::open();
    let server = subscription(&mut talk, &vector("V42"));
    assert_eq!(
        (server.kind, server.channel, server.queue, server.on),
        (EventKind::ClientConnected, None, None, true)
    );
    let of_queue = subscription(&mut talk, &vector("V43"));
    assert_eq!(of_queue.kind, EventKind::MessageProduced);
    assert_eq!((of_queue.channel, of_queue.queue), (Some(channel("ch")), Some(7)));
    for kind in EventKind::ALL {
        let frame = subscribe(kind.as_str(), "Channel-Name:ch\r\nQueue-Id:7\r\n");
        assert_eq!(subscription(&mut talk, &encoded(&frame)).kind, kind);
    }
}

#[test]
fn any_other_content_type_unsubscribes() {
    let mut talk = Talk::open();
    for content_type in [0, 2, 999] {
        let frame = Frame { content_type, ..subscribe("ChannelCreated", "") };
        assert!(!subscription(&mut talk, &encoded(&frame)).on);
    }
}

#[test]
fn a_subscription_is_always_answered_with_yes_or_no() {
    let mut talk = Talk::open();
    let bytes = encoded(&subscribe("ClientConnected", ""));
    let (request, _) = talk.request(&bytes);
    let output = talk.reply(request, Ok(Reply::Done));
    let yes = only_frame(&output);
    assert_eq!((yes.kind, yes.content_type, yes.id, yes.target), (Kind::RESPONSE, 0, &b"e"[..], &b"cli"[..]));
    let (request, _) = talk.request(&bytes);
    let output = talk.reply(request, Err(rejection(RejectionKind::Unauthorized)));
    assert_eq!(only_frame(&output).content_type, 1, "whatever the reason, no is 1");
    let (request, _) = talk.request(&encoded(&Frame { id: b"", ..subscribe("ClientConnected", "") }));
    let output = talk.reply(request, Ok(Reply::Done));
    assert!(is_generated(only_frame(&output).id));
}

#[test]
fn an_event_of_every_shard_is_answered_once() {
    let mut talk = Talk::open();
    let (request, _) = talk.request(&encoded(&subscribe("ChannelCreated", "")));
    for _ in 0..3 {
        assert_eq!(talk.reply(request, Ok(Reply::Done)), b"");
    }
    let output = talk.reply(request, Ok(Reply::Done));
    assert_eq!(only_frame(&output).content_type, 0);
}

#[test]
fn a_subscription_to_nothing_is_answered_with_no() {
    let mut talk = Talk::open();
    for frame in [
        subscribe("NodeSeen", ""),
        subscribe("clientconnected", ""),
        subscribe("", ""),
        subscribe("ClientJoined", ""),
        subscribe("ClientJoined", "Channel-Name:a b\r\n"),
        subscribe("MessageProduced", "Channel-Name:ch\r\n"),
        subscribe("MessageProduced", "Channel-Name:ch\r\nQueue-Id:x\r\n"),
        Frame { target: b"\xFF", ..subscribe("", "") },
    ] {
        let output = talk.answer(&encoded(&frame));
        let no = only_frame(&output);
        assert_eq!((no.kind, no.content_type, no.id), (Kind::RESPONSE, 1, &b"e"[..]));
        assert!(no.headers.starts_with(b"Reason:") && no.payload.is_empty());
    }
}

fn occurred(kind: EventKind, queue: Option<u16>, subject: Subject) -> Vec<u8> {
    let of_channel = !matches!(subject, Subject::Client { .. });
    let channel = of_channel.then(|| channel("ch-pull"));
    Talk::open().event(Event::Notified(Arc::new(Notification { kind, channel, queue, subject })))
}

#[test]
fn message_produced_event_has_the_originals_form() {
    let producer = mqcore_broker::model::client::Client {
        name: None,
        kind: None,
        ..(*super::talk::client("prod")).clone()
    };
    let subject = Subject::Message { id: b"P2"[..].into(), saved: false, producer: Some(Arc::new(producer)) };
    assert_eq!(occurred(EventKind::MessageProduced, Some(1), subject), vector("V44"));
}

#[test]
fn a_message_without_a_producer_has_nulls() {
    let subject = Subject::Message { id: b"a\"\xFF"[..].into(), saved: true, producer: None };
    let output = occurred(EventKind::MessageProduced, Some(1), subject);
    let body = str::from_utf8(only_frame(&output).payload).unwrap();
    assert!(body.contains(r#""Id":"a\"�","Saved":true,"ProducerId":null"#), "{body}");
}

#[test]
fn every_event_has_its_body() {
    for (kind, queue, subject, expected) in [
        (
            EventKind::ClientConnected,
            None,
            Subject::Client { id: "c".into(), name: Some("n".into()), kind: None },
            r#"{"Id":"c","Name":"n","Type":null,"Node":null}"#,
        ),
        (
            EventKind::ChannelCreated,
            None,
            Subject::Channel { active_clients: 1, client_limit: 2 },
            r#"{"Name":"ch-pull","ActiveClients":1,"ClientLimit":2,"Node":null}"#,
        ),
        (
            EventKind::ClientJoined,
            None,
            Subject::Subscription { client_id: "c".into(), client_name: None, client_kind: Some("t".into()) },
            r#"{"Channel":"ch-pull","ClientId":"c","ClientName":null,"ClientType":"t","Node":null}"#,
        ),
        (
            EventKind::QueueUpdated,
            Some(9),
            Subject::Queue { tag: Some("t".into()), status: Status::RoundRobin, high_priority: 1, normal: 2 },
            concat!(
                r#"{"Channel":"ch-pull","Id":9,"Tag":"t","Status":"RoundRobin","PriorityMessages":1,"#,
                r#""Messages":2,"Node":null}"#
            ),
        ),
    ] {
        let output = occurred(kind, queue, subject);
        let frame = only_frame(&output);
        assert_eq!(str::from_utf8(frame.payload), Ok(expected));
        assert_eq!((frame.kind, frame.id, frame.hops), (Kind::EVENT, &b""[..], 16));
        assert_eq!((frame.source, frame.content_type), (kind.as_str().as_bytes(), 0));
        let of_broker = matches!(kind, EventKind::ClientConnected | EventKind::ChannelCreated);
        let target = if of_broker { &b""[..] } else { b"ch-pull" };
        assert_eq!((frame.target, frame.headers), (target, &b""[..]));
    }
}
