//! Tests of the MQKS conversation.

use super::*;
use crate::consumption::ConsumeTerms;
use std::time::Duration;

type Names = Conversation<&'static str>;

fn open() -> Names {
    let mut conversation = Names::new(Limits::default());
    conversation.opened();
    conversation
}

fn queue(name: &str) -> QueueAddress {
    QueueAddress::plain(name).unwrap()
}

/// All lines.
fn all_written(conversation: &mut Names) -> String {
    String::from_utf8(std::mem::take(conversation.output())).unwrap()
}

/// The lines without those about prefetch.
fn written(conversation: &mut Names) -> String {
    let lines = all_written(conversation);
    lines.split_inclusive('\n').filter(|line| !line.starts_with("prefetch ")).collect()
}

fn consumption(name: &str, terms: ConsumeTerms) -> Consumption {
    Consumption { queue: queue(name), terms, prefetch: 5 }
}

fn hear(conversation: &mut Names, line: &str) -> FrameEvent<&'static str> {
    let (arrival, size) = conversation.receive(line.as_bytes()).unwrap().unwrap();
    assert_eq!(size, line.len());
    arrival
}

fn publication<'a>(queue: &'a QueueAddress, body: &'a [u8]) -> QueueMessage<'a> {
    QueueMessage { queue, id: Some("m1"), headers: &[], body, high_priority: false }
}

/// Begins a consumer, and answers with its id.
fn consume(conversation: &mut Names, consumption: &Consumption) -> String {
    conversation.take_up(consumption, "consumer").unwrap();
    let line = written(conversation);
    let id = line.split(' ').next().unwrap().to_owned();
    let arrival = hear(conversation, &format!("{id} ok \n"));
    assert!(matches!(&arrival, FrameEvent::SettledMany(all) if all.len() == 1), "{arrival:?}");
    id
}

#[test]
fn a_publish_waits_under_its_own_id() {
    let mut conversation = open();
    let event = queue("hello");
    conversation.publish(&publication(&event, b" two  words"), Some("me")).unwrap();
    assert_eq!(written(&mut conversation), "m1 publish --confirm hello  two  words\n");
    assert!(conversation.publish(&publication(&event, b"x"), Some("other")).is_err(), "the id waits");
    let arrival = hear(&mut conversation, "m1 ok \n");
    assert!(
        matches!(arrival, FrameEvent::Settled("me", Ok(RequestAnswer::Confirmed(AckedBy::Server)))),
        "{arrival:?}"
    );
    conversation.publish(&publication(&event, b"x"), None).unwrap();
    assert_eq!(written(&mut conversation), "m1 publish hello x\n");
    assert_eq!(conversation.outstanding(), 0);
    hear(&mut conversation, "m1 error 2026\n");
    assert_eq!(conversation.tally().refused_unconfirmed, 1);
}

#[test]
fn arguments_that_would_break_a_line_are_rejected_before_sending() {
    let mut conversation = open();
    let event = queue("hello");
    for body in [&b""[..], b"a\nb", b"a\tb", b"a ", b"a\r"] {
        let refused = conversation.publish(&publication(&event, body), None).unwrap_err();
        assert!(matches!(refused, ClientError::InvalidArgument { what: "body", .. }), "{refused}");
    }
    let headers = QueueMessage { headers: b"a:b\r\n", ..publication(&event, b"x") };
    let refused = conversation.publish(&headers, None).unwrap_err();
    assert!(matches!(refused, ClientError::NotSupported { .. }), "{refused}");
    let id = QueueMessage { id: Some("a b"), ..publication(&event, b"x") };
    assert!(conversation.publish(&id, None).is_err());
    assert_eq!(written(&mut conversation), "");
}

#[test]
fn an_error_names_the_request_and_its_error_number() {
    let mut conversation = open();
    let question =
        MqksRequest { operation: "rebind", about: "q1", action: "rebind", confirm: true, data: b"q1 e1" };
    let id = conversation.question(&question, "me").unwrap();
    let id = String::from_utf8(id.to_vec()).unwrap();
    assert_eq!(written(&mut conversation), format!("{id} rebind --confirm q1 e1\n"));
    let FrameEvent::Settled("me", Err(error)) = hear(&mut conversation, &format!("{id} error 2026\n")) else {
        panic!("the request has a waiter")
    };
    assert_eq!(error.to_string(), "cannot rebind q1: error 2026; see 'mqcore errors 2026' (status 1)");
}

#[test]
fn deliveries_tell_their_event_and_how_often_they_came_back() {
    let mut conversation = open();
    let terms = ConsumeTerms { events: Some(vec!["e1".into()]), ..ConsumeTerms::default() };
    let id = consume(&mut conversation, &consumption("q/7", terms));
    let FrameEvent::Delivery(message) =
        hear(&mut conversation, &format!("{id} ok m1 event=e1,retry=2 a  b \n"))
    else {
        panic!("a message came")
    };
    assert_eq!((message.id(), message.target(), message.content_type()), (&b"m1"[..], &b"q"[..], 7));
    assert_eq!((message.body_slice(), message.wants_acknowledge()), (&b"a  b "[..], true));
    assert_eq!(message.header("topic").as_deref(), Some("e1"));
    assert_eq!((message.header("retry").as_deref(), message.attempt()), (Some("2"), Some(3)));
    conversation.settle(&message, false);
    conversation.settle(&message, true);
    assert_eq!(written(&mut conversation), format!("- ack {id} m1\n- reject {id} m1\n"));
}

#[test]
fn a_consumer_reports_the_bindings_of_its_queue() {
    let line = |terms: ConsumeTerms| {
        let mut conversation = open();
        conversation.take_up(&consumption("q", terms), "me").unwrap();
        written(&mut conversation).split_once(' ').unwrap().1.to_owned()
    };
    assert_eq!(line(ConsumeTerms::default()), "consume --confirm q --add q --manual-ack\n");
    let keep = ConsumeTerms { events: Some(Vec::new()), manual_ack: false, ..ConsumeTerms::default() };
    assert_eq!(line(keep), "consume --confirm q\n");
    let all = ConsumeTerms {
        events: Some(vec!["a".into()]),
        add_events: vec!["b".into()],
        delete_unused: UnusedQueue::Deleted(Duration::from_secs(5)),
        ..ConsumeTerms::default()
    };
    assert_eq!(line(all), "consume --confirm q a --add b --delete-queue-when-unused=5.0 --manual-ack\n");
    let once =
        ConsumeTerms { delete_unused: UnusedQueue::Deleted(Duration::ZERO), ..ConsumeTerms::default() };
    assert_eq!(line(once), "consume --confirm q --add q --delete-queue-when-unused --manual-ack\n");
}

#[test]
fn reconnected_consumers_restore_the_latest_bindings() {
    let mut conversation = open();
    let terms = ConsumeTerms { events: Some(vec!["old".into()]), ..ConsumeTerms::default() };
    let one = consume(&mut conversation, &consumption("q", terms));
    hear(&mut conversation, &format!("{one} ok --update q e1 e2 --manual-ack\n"));
    assert_eq!(conversation.lost().len(), 0);
    conversation.opened();
    let line = written(&mut conversation);
    let (other, rest) = line.split_once(' ').unwrap();
    assert_ne!(one, other, "the consumer of the lost connection may still be there");
    assert_eq!(rest, "consume --confirm q e1 e2 --manual-ack\n");
    let refused = hear(&mut conversation, &format!("{other} error 2026\n"));
    assert!(matches!(refused, FrameEvent::NotRestored(Target::Name(_), _)), "{refused:?}");
    conversation.restore();
    assert!(written(&mut conversation).ends_with("consume --confirm q e1 e2 --manual-ack\n"));
}

#[test]
fn consumers_of_one_queue_share_one_and_the_last_one_ends_it() {
    let mut conversation = open();
    let wanted = consumption("q", ConsumeTerms::default());
    conversation.take_up(&wanted, "one").unwrap();
    conversation.take_up(&wanted, "two").unwrap();
    let line = written(&mut conversation);
    assert_eq!(line.matches('\n').count(), 1);
    let id = line.split(' ').next().unwrap();
    let FrameEvent::SettledMany(all) = hear(&mut conversation, &format!("{id} ok \n")) else { panic!() };
    assert_eq!(all.len(), 2);
    let other = ConsumeTerms { manual_ack: false, ..ConsumeTerms::default() };
    assert!(conversation.take_up(&consumption("q", other), "three").is_err());
    conversation.give_up(&wanted, 0);
    assert_eq!(written(&mut conversation), "");
    conversation.give_up(&wanted, 3);
    assert_eq!(written(&mut conversation), format!("- delete_consumer {id} --started=3\n"));
    let late = hear(&mut conversation, &format!("{id} ok m1 event=q d\n"));
    assert!(matches!(late, FrameEvent::Nothing), "{late:?}");
}

#[test]
fn the_prefetch_of_all_users_precedes_their_consumer_and_follows_their_number() {
    let mut conversation = open();
    let wanted = |prefetch| Consumption { prefetch, ..consumption("q", ConsumeTerms::default()) };
    conversation.take_up(&wanted(3), "one").unwrap();
    let lines = all_written(&mut conversation);
    let [first, second] = lines.lines().collect::<Vec<_>>()[..] else { panic!("{lines}") };
    let id = second.split(' ').next().unwrap();
    assert_eq!(first, format!("prefetch prefetch {id} 3"));
    conversation.take_up(&wanted(2), "two").unwrap();
    assert_eq!(all_written(&mut conversation), format!("prefetch prefetch {id} 5\n"));
    conversation.give_up(&wanted(3), 0);
    assert_eq!(all_written(&mut conversation), format!("prefetch prefetch {id} 2\n"));
    let automatic = ConsumeTerms { manual_ack: false, ..ConsumeTerms::default() };
    conversation.take_up(&consumption("other", automatic), "three").unwrap();
    assert_eq!(all_written(&mut conversation).lines().count(), 1);
}

#[test]
fn the_client_sends_no_more_prefetch_to_a_server_that_does_not_know_it() {
    let mut conversation = open();
    let wanted = consumption("q", ConsumeTerms::default());
    consume(&mut conversation, &wanted);
    let unknown = hear(&mut conversation, "prefetch error 2026\n");
    assert!(matches!(unknown, FrameEvent::Nothing));
    assert_eq!(conversation.tally().refused_unconfirmed, 0);
    conversation.take_up(&wanted, "two").unwrap();
    assert_eq!(all_written(&mut conversation), "");
    conversation.leave_all(|_| 1);
    let last = all_written(&mut conversation);
    assert!(last.starts_with("- delete_consumer ") && !last.contains("--started"), "{last}");
    conversation.lost();
    conversation.opened();
    assert!(all_written(&mut conversation).starts_with("prefetch prefetch "), "it may be another server");
}

#[test]
fn malformed_answers_end_the_conversation() {
    for line in ["nonsense\n", "a b c\n", "\n", "a\tb\n"] {
        assert!(open().receive(line.as_bytes()).is_err(), "{line:?}");
    }
    assert!(open().receive(b"unfinished ok").unwrap().is_none());
    let mut conversation = open();
    let id = consume(&mut conversation, &consumption("q", ConsumeTerms::default()));
    let long = format!("{id} ok {} event=e d\n", "x".repeat(256));
    assert!(conversation.receive(long.as_bytes()).is_err(), "an id that fits nowhere");
    assert!(conversation.receive(format!("{id} ok strange\n").as_bytes()).is_err());
}
