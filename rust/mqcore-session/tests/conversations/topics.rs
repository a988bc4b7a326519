//! Topics, which TMQP reaches by targets that are not valid channel names.

use mqcore_broker::model::command::{Command, Request};
use mqcore_broker::model::effect::{Event, Publication, Recipients, Reply};
use mqcore_broker::model::id::{ConnectionId, TopicName};
use mqcore_broker::model::message::Properties;
use mqcore_broker::model::rejection::RejectionKind;
use mqcore_broker::model::topic::TopicPattern;
use mqcore_session::tmqp::encode_publication;
use mqcore_wire::tmqp::operation::{Operation, status};
use mqcore_wire::tmqp::{Frame, Kind};

use super::talk::{Talk, encoded, message, message_with, only_frame, operation, rejection};

fn topic(name: &str) -> TopicName {
    TopicName::new(name.as_bytes()).unwrap()
}

fn publishing(target: &str) -> Frame<'_> {
    Frame {
        content_type: 9,
        id: b"M",
        source: b"cli",
        target: target.as_bytes(),
        payload: b"hello",
        ..Frame::new(Kind::QUEUE)
    }
}

#[test]
fn a_queue_message_for_a_topic_is_published_there() {
    let mut talk = Talk::open();
    let frame = Frame { pending_response: true, ..publishing("@topic:a.b") };
    let Command::PublishTopic { topic: to, message, to_producer, answer } = talk.command(&encoded(&frame))
    else {
        panic!("it is for a topic")
    };
    assert_eq!((to, to_producer, answer), (topic("a.b"), true, None));
    assert_eq!((message.id(), message.source(), message.body()), (&b"M"[..], &b"cli"[..], &b"hello"[..]));
    assert_eq!(message.properties(), Properties { hops: 15, content_type: 9, ..Properties::default() });
}

#[test]
fn topic_acknowledgement_reports_whether_a_subscriber_received_the_message() {
    for (reply, reason) in [
        (Ok(Reply::Published(3)), ""),
        (Ok(Reply::Published(0)), "Nack-Reason:no-consumers\r\n"),
        (Err(rejection(RejectionKind::Busy)), "Nack-Reason:because\r\n"),
    ] {
        let mut talk = Talk::open();
        let frame = Frame { pending_acknowledge: true, high_priority: true, ..publishing("@topic:t") };
        let Command::PublishTopic { answer: Some(request), message, .. } = talk.command(&encoded(&frame))
        else {
            panic!("an answer is wanted")
        };
        assert!(!message.properties().pending_acknowledge, "subscribers have nothing to acknowledge");
        let output = talk.reply(request, reply);
        let expected = Frame {
            first_acquirer: true,
            content_type: 9,
            id: b"M",
            target: b"@topic:t",
            headers: reason.as_bytes(),
            ..Frame::new(Kind::ACKNOWLEDGE)
        };
        assert_eq!(only_frame(&output), expected);
    }
}

#[test]
fn joining_a_topic_subscribes_to_it_and_a_star_makes_it_a_mask() {
    let mut talk = Talk::open();
    for (target, pattern) in [
        ("@topic:news", TopicPattern::Exact(topic("news"))),
        ("@topic:a.*", TopicPattern::Mask(topic("a.*"))),
        ("@topic:", TopicPattern::Exact(topic(""))),
    ] {
        let (request, asked) = talk.request(&encoded(&operation(Operation::JoinChannel.code(), target)));
        let Request::SubscribeTopic { pattern: wanted } = asked else { panic!("{asked:?}") };
        assert_eq!(wanted, pattern);
        let parts = if matches!(pattern, TopicPattern::Exact(_)) { 1 } else { 4 };
        let mut output = Vec::new();
        for _ in 0..parts {
            assert!(output.is_empty(), "the answer comes once");
            output = talk.reply(request, Ok(Reply::Done));
        }
        assert_eq!(only_frame(&output).content_type, status::OK);
        let (_, asked) = talk.request(&encoded(&operation(Operation::LeaveChannel.code(), target)));
        let Request::UnsubscribeTopic { pattern: left } = asked else { panic!("{asked:?}") };
        assert_eq!(left, pattern);
    }
}

#[test]
fn a_topics_message_arrives_as_a_queue_message_with_the_topic_as_target() {
    let properties = Properties { pending_acknowledge: true, hops: 15, ..Properties::default() };
    let message = message_with(properties, "M", "prod", "A:1\r\n", "hello");
    let to = Recipients::One(ConnectionId(1));
    let mut output = Vec::new();
    let publication = Publication { topic: topic("a.b"), message: message.clone(), to };
    encode_publication(&publication, &mut output);
    let expected = Frame {
        hops: 15,
        id: b"M",
        source: b"prod",
        target: b"@topic:a.b",
        headers: b"A:1\r\n",
        payload: b"hello",
        ..Frame::new(Kind::QUEUE)
    };
    assert_eq!(only_frame(&output), expected);
    let mut talk = Talk::open();
    assert_eq!(talk.event(Event::Published { topic: topic("a.b"), message }), output);
}

#[test]
fn a_topic_with_a_name_too_long_for_a_frame_is_cut() {
    let mut output = Vec::new();
    let to = Recipients::One(ConnectionId(1));
    let long = topic(&"x".repeat(255));
    let publication = Publication { topic: long, message: message("M", "p", "", ""), to };
    encode_publication(&publication, &mut output);
    assert_eq!(only_frame(&output).target, format!("@topic:{}", "x".repeat(248)).as_bytes());
}
