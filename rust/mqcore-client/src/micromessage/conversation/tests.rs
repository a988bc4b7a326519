//! Tests of the MicroMessage2 conversation.

use super::*;
use mqcore_wire::micromessage::extension::{ACK, BATCH_ACK, DOTNET, PUB_SUB, X_MQCORE, X_NACK};
use mqcore_wire::micromessage::handshake::Extension;

type Names = Conversation<&'static str>;

fn open(extensions: &[&'static str]) -> Names {
    let mut conversation = Names::new(Limits::default());
    let extensions = extensions.iter().map(|name| Extension::new(*name)).collect();
    conversation.opened(&Agreement::of(extensions).unwrap());
    conversation
}

fn queue(name: &str) -> QueueAddress {
    QueueAddress::plain(name).unwrap()
}

fn publish(conversation: &mut Names, headers: &[u8], who: Option<&'static str>) -> Result<(), ClientError> {
    let queue = queue("orders");
    let publication = QueueMessage { queue: &queue, id: None, headers, body: b"x", high_priority: false };
    conversation.publish(&publication, who).map(drop)
}

fn hear(conversation: &mut Names, frame: &Frame<'_>) -> FrameEvent<&'static str> {
    let mut bytes = Vec::new();
    encode(frame, &mut bytes);
    let (arrival, size) = conversation.receive(&bytes).unwrap().unwrap();
    assert_eq!(size, bytes.len());
    arrival
}

fn deliver(conversation: &mut Names, sequence: u16) -> Received {
    let message = MessageFrame {
        continued: false,
        sequence,
        destination: b"orders",
        properties: b"a:N1;",
        payload: b"x",
    };
    match hear(conversation, &Frame::Message(message)) {
        FrameEvent::Delivery(received) => received,
        other => panic!("a message came: {other:?}"),
    }
}

fn acknowledgement(id: u8, number: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(&Frame::Extension { id, payload: &number.to_be_bytes() }, &mut bytes);
    bytes
}

fn written(conversation: &mut Names) -> Vec<u8> {
    let mut bytes = Vec::new();
    conversation.take_output(&mut bytes);
    bytes
}

#[test]
fn one_acknowledgement_goes_out_for_all_that_was_settled_since_the_last_write() {
    let mut conversation = open(&[BATCH_ACK]);
    let messages: Vec<Received> = (1..=6).map(|number| deliver(&mut conversation, number)).collect();
    for settled in [1, 0, 2] {
        conversation.settle(&messages[settled], false);
    }
    assert_eq!(written(&mut conversation), acknowledgement(1, 3));
    conversation.settle(&messages[4], false);
    assert_eq!(written(&mut conversation), b"", "the fourth is not settled");
    conversation.settle(&messages[3], false);
    publish(&mut conversation, b"", None).unwrap();
    conversation.settle(&messages[5], false);
    let bytes = written(&mut conversation);
    assert!(bytes.starts_with(&acknowledgement(1, 5)) && bytes.ends_with(&acknowledgement(1, 6)));
}

#[test]
fn a_message_behind_an_unsettled_one_is_acknowledged_alone() {
    let mut conversation = open(&[BATCH_ACK, X_MQCORE]);
    let messages: Vec<Received> = (1..=4).map(|number| deliver(&mut conversation, number)).collect();
    conversation.settle(&messages[2], false);
    assert_eq!(written(&mut conversation), acknowledgement(2, 3));
    conversation.settle(&messages[2], false);
    assert_eq!(written(&mut conversation), b"", "it is settled");
    conversation.settle(&messages[0], false);
    assert_eq!(written(&mut conversation), acknowledgement(1, 1));
    conversation.settle(&messages[1], false);
    conversation.settle(&messages[3], false);
    assert_eq!(written(&mut conversation), acknowledgement(1, 4));
}

#[test]
fn the_prefetch_of_a_subscription_is_that_of_all_its_users() {
    let mut conversation = open(&[BATCH_ACK, PUB_SUB, X_MQCORE]);
    let said = |conversation: &mut Names| String::from_utf8_lossy(&written(conversation)).into_owned();
    let wanted = |prefetch| Consumption { queue: queue("q"), terms: ConsumeTerms::default(), prefetch };
    conversation.take_up(&wanted(3), "one").unwrap();
    assert!(said(&mut conversation).ends_with("subscribe;destination=q,id=s1,prefetch=3"));
    conversation.take_up(&wanted(4), "two").unwrap();
    assert!(said(&mut conversation).ends_with("prefetch;id=s1,count=7"));
    hear(&mut conversation, &Frame::Command { payload: b"ok;id=s1" });
    let refused = Frame::Command { payload: b"fail;id=s1,command=prefetch,reason=auth%3A%20no" };
    assert!(matches!(hear(&mut conversation, &refused), FrameEvent::Nothing), "the subscription stays");
    conversation.give_up(&wanted(3), 0);
    assert!(said(&mut conversation).ends_with("prefetch;id=s1,count=4"));
    conversation.give_up(&wanted(4), 2);
    assert!(said(&mut conversation).ends_with("unsubscribe;id=s1,started=2"));
}

#[test]
fn a_refusal_is_not_taken_for_an_acknowledgement_that_a_later_one_replaces() {
    let mut conversation = open(&[BATCH_ACK, X_NACK]);
    let messages: Vec<Received> = (1..=3).map(|number| deliver(&mut conversation, number)).collect();
    conversation.settle(&messages[0], false);
    assert_eq!(written(&mut conversation), acknowledgement(1, 1));
    conversation.settle(&messages[1], true);
    conversation.settle(&messages[2], false);
    let bytes = [acknowledgement(2, 2), acknowledgement(1, 3)].concat();
    assert_eq!(written(&mut conversation), bytes);
}

#[test]
fn a_receipt_is_the_acknowledgement_of_the_message_or_of_a_later_one() {
    let mut conversation = open(&[BATCH_ACK, X_NACK]);
    for who in ["one", "two", "three"] {
        publish(&mut conversation, b"", Some(who)).unwrap();
    }
    let FrameEvent::Settled("two", Err(ClientError::Nacked { .. })) =
        hear(&mut conversation, &Frame::Extension { id: 2, payload: &[0, 2] })
    else {
        panic!("it was refused")
    };
    let FrameEvent::SettledMany(settled) =
        hear(&mut conversation, &Frame::Extension { id: 1, payload: &[0, 3] })
    else {
        panic!("the rest was taken")
    };
    let who: Vec<_> = settled.iter().map(|(who, result)| (*who, result.is_ok())).collect();
    assert_eq!(who, [("one", true), ("three", true)]);
    assert_eq!(conversation.outstanding(), 0);
}

#[test]
fn no_more_is_sent_than_the_agreement_lets_be_unacknowledged() {
    let mut conversation = open(&[ACK]);
    assert!(conversation.has_room());
    publish(&mut conversation, b"", None).unwrap();
    assert!(!conversation.has_room());
    hear(&mut conversation, &Frame::Extension { id: 1, payload: &[0, 1] });
    assert!(conversation.has_room());
}

#[test]
fn a_type_is_named_once_for_consecutive_messages() {
    let mut conversation = open(&[DOTNET]);
    for _ in 0..2 {
        publish(&mut conversation, b"Mm2-Type:T1\r\n", None).unwrap();
    }
    let bytes = written(&mut conversation);
    assert_eq!(bytes.windows(2).filter(|two| *two == b"T1").count(), 1);
    publish(&mut conversation, b"", None).unwrap();
    assert!(written(&mut conversation).starts_with(&[2, 1, 0]), "it is taken back");
    hear(&mut conversation, &Frame::Extension { id: 1, payload: b"T2" });
    for _ in 0..2 {
        let received = deliver(&mut conversation, 1);
        assert_eq!(received.header("mm2-type").as_deref(), Some("T2"));
        assert_eq!(received.header("Mm2-Properties").as_deref(), Some("a:N1;"));
    }
}

#[test]
fn subscriptions_are_made_again_and_answered_where_the_broker_answers() {
    let consumption = Consumption { queue: queue("topic/t"), terms: ConsumeTerms::default(), prefetch: 5 };
    let mut conversation = open(&[PUB_SUB, X_MQCORE]);
    assert!(matches!(conversation.take_up(&consumption, "me"), Ok(IntentState::Asked(_))));
    let said = String::from_utf8_lossy(&written(&mut conversation)).into_owned();
    assert!(said.ends_with("subscribe;destination=topic%2Ft,id=s1,prefetch=5"), "{said}");
    let refused = Frame::Command { payload: b"fail;id=s1,reason=auth%3A%20no" };
    let FrameEvent::SettledMany(settled) = hear(&mut conversation, &refused) else { panic!("answered") };
    let (_, Err(ClientError::Refused(refusal))) = &settled[0] else { panic!("refused: {settled:?}") };
    assert_eq!((refusal.code, &*refusal.reason), (status::UNAUTHORIZED, "auth: no"));
    conversation.restore();
    hear(&mut conversation, &Frame::Command { payload: b"ok;id=s2" });
    conversation.lost();
    let mute = Agreement::of(vec![Extension::new(PUB_SUB)]).unwrap();
    conversation.opened(&mute);
    let said = String::from_utf8_lossy(&written(&mut conversation)).into_owned();
    assert!(said.contains("id=s3"), "{said}");
    assert!(matches!(conversation.take_up(&consumption, "other"), Ok(IntentState::Already(_))));
    assert_eq!(written(&mut conversation), b"", "it stands already");
    conversation.give_up(&consumption, 0);
    conversation.give_up(&consumption, 0);
    assert!(written(&mut conversation).ends_with(b"unsubscribe;id=s3"));
}
