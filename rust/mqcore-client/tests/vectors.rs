//! Compares the bytes that this client writes with recorded bytes of the original client.
//!
//! Each client generates its own message ids, so the vector's id replaces ours before the comparison.

use std::sync::Arc;

use mqcore_client::address::QueueAddress;
use mqcore_client::conversation::{Conversation, DirectMessage, QueueMessage, Wait};
use mqcore_client::models::QueueOptions;
use mqcore_client::received::Received;
use mqcore_client::request::{Clear, Intent, PullRequest, Request, Subscription, push};
use mqcore_wire::codec::Limits;
use mqcore_wire::tmqp::{Frame, decode, encode};
use serde_json::Value;

fn vector(name: &str) -> Vec<u8> {
    let lines = include_str!("../../../tests/vectors/tmqp.jsonl").lines();
    let mut vectors = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
    let vector = vectors.find(|vector| vector["name"] == name).unwrap();
    let mut bytes = unhex(vector["hex"].as_str().unwrap());
    if let Some(size) = vector["body_size"].as_u64() {
        bytes.resize(bytes.len() + size as usize, unhex(vector["body_fill"].as_str().unwrap())[0]);
    }
    bytes
}

fn unhex(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// A conversation of the client `cli`, as in the vectors.
fn conversation() -> Conversation<()> {
    let mut conversation = Conversation::new(Limits::default());
    conversation.opened("cli");
    conversation
}

/// Checks that the conversation wrote the frame of the vector, apart from its id.
fn assert_writes(conversation: &mut Conversation<()>, name: &str) {
    let expected = vector(name);
    let limits = Limits::default();
    let (theirs, _) = decode(&expected, &limits).unwrap().unwrap();
    let (ours, size) = decode(conversation.output(), &limits).unwrap().unwrap();
    let mut bytes = Vec::new();
    encode(&Frame { id: theirs.id, ..ours }, &mut bytes);
    assert_eq!(bytes, expected, "{name}: {ours:?} instead of {theirs:?}");
    assert_eq!(size, conversation.output().len(), "{name}: one frame and nothing else");
    conversation.output().clear();
}

fn queue(id: u16) -> QueueAddress {
    QueueAddress::new("ch", id).unwrap()
}

fn channel() -> Arc<str> {
    "ch".into()
}

#[test]
fn joining_and_leaving_are_written_as_the_original_writes_them() {
    let mut conversation = conversation();
    let join = Intent::Join(channel());
    conversation.take_up(join.clone(), ()).unwrap();
    // The header that original servers ignore.
    let written = std::mem::take(conversation.output());
    let (joined, _) = decode(&written, &Limits::default()).unwrap().unwrap();
    assert_eq!(joined.headers, b"Queue-Ids:\r\n");
    encode(&Frame { headers: b"", ..joined }, conversation.output());
    assert_writes(&mut conversation, "V10");
    // This client does not wait for the answer to leaving, so that bit is clear; V13 is the same with it.
    conversation.give_up(&join);
    let (left, _) = decode(conversation.output(), &Limits::default()).unwrap().unwrap();
    let mut bytes = Vec::new();
    encode(&Frame { pending_response: true, id: b"id-018", ..left }, &mut bytes);
    assert_eq!(bytes, vector("V13"));
}

#[test]
fn operations_are_written_as_the_original_writes_them() {
    let cases: [(&str, Request); 6] = [
        ("V14", Request::create_queue(&queue(7), Vec::new(), None).unwrap()),
        ("V15", Request::remove_queue(&queue(258))),
        ("V16", Request::queue_information(&queue(258))),
        ("V17", Request::clear_queue(&queue(7), true, true)),
        ("V18", Request::channel_list(Some("*x*")).unwrap()),
        ("V19", Request::client_list(Some("ty*"))),
    ];
    for (name, request) in cases {
        let mut conversation = conversation();
        conversation.request(&request, ()).unwrap();
        assert_writes(&mut conversation, name);
    }
}

#[test]
fn given_options_are_written_with_the_names_of_the_protocol() {
    let options = QueueOptions { request_acknowledge: Some(true), ..QueueOptions::default() };
    assert_eq!(serde_json::to_string(&options).unwrap(), r#"{"RequestAcknowledge":true}"#);
    assert_eq!(serde_json::to_string(&QueueOptions::default()).unwrap(), "{}");
}

#[test]
fn messages_for_queues_are_written_as_the_original_writes_them() {
    fn plain<'a>(queue: &'a QueueAddress, body: &'a [u8]) -> QueueMessage<'a> {
        QueueMessage { queue, id: None, headers: &[], body, high_priority: false }
    }
    let mut conversation = conversation();
    conversation.publish(&plain(&queue(258), b"hello"), None).unwrap();
    assert_writes(&mut conversation, "V20");
    conversation.publish(&plain(&queue(1), b"hello"), Some(())).unwrap();
    assert_writes(&mut conversation, "V21");
    let mut headers = Vec::new();
    push(&mut headers, "CC", "b;2;xx").unwrap();
    let queue = queue(7);
    let copied = QueueMessage { headers: &headers, high_priority: true, ..plain(&queue, &[b'z'; 253]) };
    // The original requested no acknowledgement here.
    conversation.publish(&copied, None).unwrap();
    assert_writes(&mut conversation, "V22");
}

#[test]
fn acknowledgements_are_written_as_the_original_writes_them() {
    let delivery = Frame {
        first_acquirer: true,
        pending_acknowledge: true,
        id: b"QM1",
        source: b"prod",
        target: b"ch",
        content_type: 7,
        ..Frame::new(mqcore_wire::tmqp::Kind::QUEUE)
    };
    let received = Received::copy(&delivery);
    let mut conversation = conversation();
    conversation.acknowledge(&received, None).unwrap();
    assert_writes(&mut conversation, "V27");
    conversation.acknowledge(&received, Some("")).unwrap();
    assert_writes(&mut conversation, "V28");
}

#[test]
fn pulling_is_written_as_the_original_writes_it() {
    let clear = Clear { high_priority: true, normal: false };
    let pull = PullRequest { count: 10, lifo: true, clear, info: true, attempts: false };
    let mut conversation = conversation();
    conversation.pull(&Request::pull(&queue(7), &pull), ()).unwrap();
    assert_writes(&mut conversation, "V32");
}

#[test]
fn direct_messages_are_written_as_the_original_writes_them() {
    let message = |wait| DirectMessage {
        target: "other",
        id: None,
        headers: &[],
        body: b"hi",
        content_type: 3,
        high_priority: false,
        only_first: false,
        wait,
    };
    let mut conversation = conversation();
    conversation.send(&message(Wait::Acknowledge), Some(())).unwrap();
    assert_writes(&mut conversation, "V36");
    conversation.send(&message(Wait::Response), Some(())).unwrap();
    assert_writes(&mut conversation, "V37");
}

#[test]
fn event_subscriptions_are_written_as_the_original_writes_them() {
    let mut conversation = conversation();
    let everywhere = Subscription { name: "ClientConnected", channel: None, queue: None };
    conversation.take_up(Intent::Event(everywhere), ()).unwrap();
    assert_writes(&mut conversation, "V42");
    let one_queue = Subscription { name: "MessageProduced", channel: Some(channel()), queue: Some(7) };
    conversation.take_up(Intent::Event(one_queue), ()).unwrap();
    assert_writes(&mut conversation, "V43");
}
