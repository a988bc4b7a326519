//! Scripted conversations: output, input and results of waiters, without IO and clock.

use std::time::Duration;

use mqcore_client::address::QueueAddress;
use mqcore_client::conversation::{
    AckedBy, Conversation, FrameEvent, IntentState, MessageId, PullAnswer, PullEnd, QueueMessage,
    RequestAnswer,
};
use mqcore_client::error::{ClientError, StatusMeaning};
use mqcore_client::received::Received;
use mqcore_client::request::{Clear, Intent, PullRequest, Request};
use mqcore_wire::codec::Limits;
use mqcore_wire::tmqp::{Frame, HOPS_FRESH, Kind, PING, PONG, decode};

type Names = Conversation<&'static str>;

fn open() -> Names {
    let mut conversation = Names::new(Limits::default());
    conversation.opened("me");
    conversation
}

/// The frames that were written since the last call.
fn written(conversation: &mut Names) -> Vec<(Kind, u16, String, Vec<u8>)> {
    let bytes = std::mem::take(conversation.output());
    let (mut at, mut frames) = (0, Vec::new());
    while let Some((frame, size)) = decode(&bytes[at..], &Limits::default()).unwrap() {
        let target = String::from_utf8(frame.target.to_vec()).unwrap();
        frames.push((frame.kind, frame.content_type, target, frame.id.to_vec()));
        at += size;
    }
    assert_eq!(at, bytes.len());
    frames
}

fn publish(conversation: &mut Names, id: Option<&str>, who: &'static str) -> MessageId {
    let queue = QueueAddress::new("ch", 1).unwrap();
    let publication = QueueMessage { queue: &queue, id, headers: &[], body: b"x", high_priority: false };
    conversation.publish(&publication, Some(who)).unwrap()
}

fn acknowledgement(id: &[u8]) -> Frame<'_> {
    Frame { id, target: b"ch", content_type: 1, ..Frame::new(Kind::ACKNOWLEDGE) }
}

fn response(id: &[u8], status: u16) -> Frame<'_> {
    Frame { id, target: b"me", content_type: status, ..Frame::new(Kind::RESPONSE) }
}

fn settled(arrival: FrameEvent<&'static str>) -> (&'static str, Result<RequestAnswer, ClientError>) {
    match arrival {
        FrameEvent::Settled(who, result) => (who, result),
        other => panic!("nobody's wait is over: {other:?}"),
    }
}

fn pull(conversation: &mut Names, who: &'static str) -> MessageId {
    let queue = QueueAddress::new("ch", 1).unwrap();
    let pull = PullRequest { count: 3, lifo: false, clear: Clear::default(), info: true, attempts: false };
    conversation.pull(&Request::pull(&queue, &pull), who).unwrap()
}

fn pulled<'a>(headers: &'a [u8], id: &'a [u8]) -> Frame<'a> {
    Frame { id, headers, target: b"ch", content_type: 1, ..Frame::new(Kind::QUEUE) }
}

fn request_id(id: &[u8], more: &str) -> Vec<u8> {
    [b"Request-Id:", id, b"\r\n", more.as_bytes()].concat()
}

#[test]
fn a_receipt_names_the_sender_of_the_acknowledgement() {
    let mut conversation = open();
    let id = publish(&mut conversation, None, "a");
    let (who, result) = settled(conversation.receive(&acknowledgement(&id)));
    assert!(matches!((who, result), ("a", Ok(RequestAnswer::Confirmed(AckedBy::Server)))));

    let id = publish(&mut conversation, None, "b");
    let by_consumer = Frame { source: b"c1", hops: 15, ..acknowledgement(&id) };
    let (_, result) = settled(conversation.receive(&by_consumer));
    assert!(matches!(result, Ok(RequestAnswer::Confirmed(AckedBy::Consumer))));

    let id = publish(&mut conversation, None, "c");
    let of_hidden_consumer = Frame { hops: HOPS_FRESH - 1, ..acknowledgement(&id) };
    let (_, result) = settled(conversation.receive(&of_hidden_consumer));
    assert!(matches!(result, Ok(RequestAnswer::Confirmed(AckedBy::Consumer))));
}

#[test]
fn a_refused_publish_is_an_error_whichever_way_it_is_said() {
    let mut conversation = open();
    let id = publish(&mut conversation, None, "a");
    let refused = Frame { target: b"ch", payload: b"no channel ch", ..response(&id, 404) };
    let (_, result) = settled(conversation.receive(&refused));
    let Err(ClientError::Refused(refusal)) = result else { panic!("{result:?}") };
    assert_eq!((refusal.status(), &*refusal.target), (StatusMeaning::NotFound, "ch/1"));
    assert_eq!(refusal.to_string(), "cannot publish to ch/1: no channel ch (status 404)");
    // Older brokers give the reason in the body, this one in a header.
    let id = publish(&mut conversation, None, "a");
    let refused = Frame { headers: b"Reason:no channel ch\r\n", target: b"ch", ..response(&id, 404) };
    let (_, result) = settled(conversation.receive(&refused));
    assert_eq!(result.unwrap_err().to_string(), "cannot publish to ch/1: no channel ch (status 404)");
    // The broker sends a second answer, for clients that read acknowledgements only.
    let again = Frame { headers: b"Nack-Reason:no channel ch\r\n", ..acknowledgement(&id) };
    assert!(matches!(conversation.receive(&again), FrameEvent::Nothing));

    let id = publish(&mut conversation, None, "b");
    let nack = Frame { headers: b"nack-reason:not-saved\r\n", ..acknowledgement(&id) };
    let (_, result) = settled(conversation.receive(&nack));
    assert_eq!(
        result.unwrap_err(),
        ClientError::Nacked { target: "ch/1".into(), reason: "not-saved".into() }
    );
}

#[test]
fn an_acknowledgement_counts_once() {
    let mut conversation = open();
    let id = publish(&mut conversation, None, "a");
    settled(conversation.receive(&acknowledgement(&id))).1.unwrap();
    assert!(matches!(conversation.receive(&acknowledgement(&id)), FrameEvent::Nothing));
    assert_eq!((conversation.tally().late_answers, conversation.outstanding()), (1, 0));
}

#[test]
fn refusals_without_a_waiter_are_counted() {
    let mut conversation = open();
    let queue = QueueAddress::new("ch", 1).unwrap();
    let publication =
        QueueMessage { queue: &queue, id: None, headers: &[], body: b"x", high_priority: false };
    let id = conversation.publish(&publication, None).unwrap();
    conversation.receive(&Frame { target: b"ch", ..response(&id, 404) });
    assert_eq!((conversation.tally().refused_unconfirmed, conversation.tally().late_answers), (1, 0));
}

#[test]
fn an_id_is_used_once_at_a_time() {
    let mut conversation = open();
    publish(&mut conversation, Some("mine"), "a");
    let queue = QueueAddress::new("ch", 1).unwrap();
    let publication =
        QueueMessage { queue: &queue, id: Some("mine"), headers: &[], body: b"x", high_priority: false };
    let twice = conversation.publish(&publication, Some("b"));
    assert!(matches!(twice, Err(ClientError::InvalidArgument { .. })));
    settled(conversation.receive(&acknowledgement(b"mine"))).1.unwrap();
    conversation.publish(&publication, Some("b")).unwrap();
}

#[test]
fn a_copy_is_confirmed_under_its_own_id() {
    let mut conversation = open();
    let copy = QueueAddress::new("copies", 2).unwrap();
    let [fresh, named] = [None, Some("c1")].map(|given| conversation.copy_id(given).unwrap());
    let message = publish(&mut conversation, Some("mine"), "message");
    conversation.expect_copy(fresh.clone(), &copy, "fresh");
    conversation.expect_copy(named, &copy, "named");
    assert!(matches!(conversation.copy_id(Some("c1")), Err(ClientError::InvalidArgument { .. })));
    let (who, result) = settled(conversation.receive(&acknowledgement(&fresh)));
    assert!(matches!((who, result), ("fresh", Ok(RequestAnswer::Confirmed(AckedBy::Server)))));
    let refused = Frame { headers: b"Reason:no\r\n", target: b"copies", ..response(b"c1", 404) };
    let (who, result) = settled(conversation.receive(&refused));
    assert_eq!(
        (who, result.unwrap_err().to_string()),
        ("named", "cannot publish to copies/2: no (status 404)".into())
    );
    settled(conversation.receive(&acknowledgement(&message))).1.unwrap();
    assert_eq!(conversation.outstanding(), 0);
}

#[test]
fn new_ids_are_32_hex_digits_and_never_repeat() {
    let mut conversation = open();
    let ids: Vec<MessageId> = (0..100).map(|_| publish(&mut conversation, None, "a")).collect();
    assert!(ids.iter().all(|id| id.len() == 32 && id.iter().all(u8::is_ascii_hexdigit)));
    assert_eq!(ids.iter().collect::<std::collections::HashSet<_>>().len(), 100);
}

#[test]
fn a_message_too_large_for_a_frame_is_rejected_and_not_written() {
    let limits = Limits { frame_bytes_max: 1024, ..Limits::default() };
    let mut conversation = Names::new(limits);
    conversation.opened("me");
    let queue = QueueAddress::new("ch", 1).unwrap();
    let mut publication =
        QueueMessage { queue: &queue, id: None, headers: &[], body: &[0; 2000], high_priority: false };
    let refused = conversation.publish(&publication, Some("a")).unwrap_err();
    assert!(matches!(refused, ClientError::TooLarge { part: "message", limit: 1024, .. }), "{refused:?}");
    let long = "i".repeat(256);
    publication = QueueMessage { id: Some(&long), body: b"", ..publication };
    let refused = conversation.publish(&publication, Some("a")).unwrap_err();
    assert!(matches!(refused, ClientError::TooLarge { part: "message id", .. }), "{refused:?}");
    assert_eq!((conversation.outstanding(), conversation.output().len()), (0, 0));
}

#[test]
fn a_pull_gathers_its_messages_until_the_broker_says_end() {
    let mut conversation = open();
    let id = pull(&mut conversation, "p");
    let message = request_id(&id, "Count:2\r\nIndex:1\r\nPriority-Messages:0\r\nMessages:1\r\n");
    assert!(matches!(conversation.receive(&pulled(&message, b"m1")), FrameEvent::Nothing));
    assert!(matches!(conversation.receive(&pulled(&message, b"m2")), FrameEvent::Nothing));
    assert!(matches!(conversation.receive(&pulled(b"", b"m3")), FrameEvent::Delivery(_)), "not of the pull");
    let end = request_id(&id, "No-Content:End\r\n");
    let (who, result) = settled(conversation.receive(&pulled(&end, &id)));
    let Ok(RequestAnswer::Pulled(PullAnswer { messages, end })) = result else { panic!("{result:?}") };
    assert_eq!((who, end), ("p", PullEnd::NoContent("End".into())));
    assert_eq!(messages.iter().map(|m| m.id().to_vec()).collect::<Vec<_>>(), [b"m1", b"m2"]);
}

#[test]
fn the_id_of_the_pull_wins_over_headers_of_the_message() {
    let mut conversation = open();
    let id = pull(&mut conversation, "p");
    // Brokers append their lines to those of the message.
    let own = "Request-Id:other\r\nNo-Content:End\r\n";
    let message = [own.as_bytes(), &request_id(&id, "Count:2\r\nIndex:1\r\n")].concat();
    assert!(matches!(conversation.receive(&pulled(&message, b"m1")), FrameEvent::Nothing));
    assert!(
        matches!(conversation.receive(&pulled(own.as_bytes(), b"m2")), FrameEvent::Delivery(_)),
        "not pulled"
    );
    let end = request_id(&id, "No-Content:End\r\n");
    let (_, result) = settled(conversation.receive(&pulled(&end, &id)));
    let Ok(RequestAnswer::Pulled(PullAnswer { messages, .. })) = result else { panic!("{result:?}") };
    assert_eq!(messages.iter().map(|m| m.id().to_vec()).collect::<Vec<_>>(), [b"m1"]);
}

#[test]
fn a_delivery_with_the_id_of_an_ended_pull_is_a_delivery() {
    let mut conversation = open();
    let (ended, cancelled) = (pull(&mut conversation, "p"), pull(&mut conversation, "q"));
    let message = |id: &[u8]| request_id(id, "Count:1\r\nIndex:1\r\n");
    let end = |id: &[u8]| request_id(id, "No-Content:End\r\n");
    let (who, _) = settled(conversation.receive(&pulled(&end(&ended), &ended)));
    assert_eq!(who, "p");
    // A program published a pulled message again, with all of its headers.
    assert!(matches!(conversation.receive(&pulled(&message(&ended), b"m1")), FrameEvent::Delivery(_)));
    conversation.forget(&cancelled).unwrap();
    assert!(matches!(conversation.receive(&pulled(&message(&cancelled), b"m2")), FrameEvent::Nothing));
    assert!(matches!(conversation.receive(&pulled(&end(&cancelled), &cancelled)), FrameEvent::Nothing));
    assert_eq!(conversation.tally().late_pulled, 1);
    // The broker has ended it, so that nothing of it can arrive any more.
    assert!(matches!(conversation.receive(&pulled(&message(&cancelled), b"m3")), FrameEvent::Delivery(_)));
    assert_eq!(conversation.tally().late_pulled, 1);
}

#[test]
fn a_cached_message_comes_as_a_response() {
    let mut conversation = open();
    let id = pull(&mut conversation, "p");
    let (_, result) = settled(conversation.receive(&Frame { payload: b"cached", ..response(&id, 0) }));
    let Ok(RequestAnswer::Pulled(PullAnswer { messages, end: PullEnd::Cached })) = result else {
        panic!("{result:?}")
    };
    assert_eq!(messages[0].body_slice(), b"cached");
}

#[test]
fn a_cancelled_pull_keeps_received_messages_and_requeues_the_rest() {
    let mut conversation = open();
    let id = pull(&mut conversation, "p");
    let message = request_id(&id, "");
    conversation.receive(&pulled(&message, b"m1"));
    let partial = conversation.forget(&id).unwrap();
    assert_eq!((partial.messages.len(), partial.end), (1, PullEnd::CutShort));
    written(&mut conversation);
    let asks = Frame { pending_acknowledge: true, ..pulled(&message, b"m2") };
    assert!(matches!(conversation.receive(&asks), FrameEvent::Nothing));
    let refused = written(&mut conversation);
    assert_eq!(refused, [(Kind::ACKNOWLEDGE, 1, "ch".to_owned(), b"m2".to_vec())]);
    assert_eq!(conversation.tally().late_pulled, 1);
}

#[test]
fn a_channel_is_joined_once_and_left_by_the_last() {
    let mut conversation = open();
    let join = Intent::Join("Ch".into());
    let IntentState::Asked(id) = conversation.take_up(join.clone(), "a").unwrap() else { panic!() };
    settled(conversation.receive(&response(&id, 0))).1.unwrap();
    let same = Intent::Join("cH".into());
    assert!(matches!(conversation.take_up(same.clone(), "b").unwrap(), IntentState::Already("b")));
    assert_eq!(written(&mut conversation).len(), 1);
    conversation.give_up(&join);
    assert!(written(&mut conversation).is_empty());
    assert!(conversation.has_joined(b"CH"));
    conversation.give_up(&same);
    let left = written(&mut conversation);
    assert_eq!((left.len(), left[0].1, left[0].2.as_str()), (1, 602, "Ch"));
    assert!(!conversation.has_joined(b"ch"));
}

fn consume(channel: &str, id: u16, prefetch: u32) -> Intent {
    Intent::Consume(QueueAddress::new(channel, id).unwrap(), prefetch)
}

/// The headers of all written frames, with their operation.
fn operations(conversation: &mut Names) -> Vec<(u16, String)> {
    let output = std::mem::take(conversation.output());
    let mut rest = &output[..];
    let mut operations = Vec::new();
    while let Some((frame, size)) = decode(rest, &Limits::default()).unwrap() {
        let headers = String::from_utf8(frame.headers.to_vec()).unwrap().replace("\r\n", ";");
        operations.push((frame.content_type, headers));
        rest = &rest[size..];
    }
    operations
}

/// The answer of a server that delivers only joined queues.
fn joined<'a>(id: &'a [u8], headers: &'a [u8]) -> Frame<'a> {
    Frame { headers, ..response(id, 0) }
}

#[test]
fn consumers_of_a_queue_share_a_subscription_with_the_sum_of_their_prefetches() {
    let mut conversation = open();
    let IntentState::Asked(id) = conversation.take_up(consume("Ch", 1, 10), "a").unwrap() else { panic!() };
    let answer = joined(&id, b"Queue-Ids:1\r\nPrefetch:10\r\nAcknowledge-Timeouts:15000\r\n");
    match conversation.receive(&answer) {
        FrameEvent::Joined { queue, timeout, by_queue: true, settled: Some(("a", Ok(_))) } => {
            assert_eq!((queue.id(), timeout), (1, Some(Duration::from_secs(15))));
        }
        other => panic!("{other:?}"),
    }
    conversation.take_up(consume("cH", 1, 5), "b").unwrap();
    conversation.take_up(consume("ch", 2, 1), "c").unwrap();
    assert!(!conversation.give_up(&consume("ch", 1, 10)), "the other consumer stays");
    assert!(conversation.give_up(&consume("ch", 1, 5)), "the broker confirms the end");
    conversation.take_up(Intent::Join("ch".into()), "d").unwrap();
    assert!(conversation.give_up(&consume("ch", 2, 1)));
    assert!(!conversation.give_up(&Intent::Join("ch".into())));
    let expected = [
        (601, "Queue-Ids:1;Prefetch:10;"),
        (601, "Queue-Ids:1;Prefetch:15;"),
        (601, "Queue-Ids:2;Prefetch:1;"),
        (601, "Queue-Ids:1;Prefetch:5;"),
        (602, "Queue-Ids:1;"),
        (601, "Queue-Ids:;"),
        (602, "Queue-Ids:2;"),
        (602, ""),
    ];
    let expected: Vec<_> = expected.map(|(code, headers)| (code, headers.to_owned())).into();
    assert_eq!(operations(&mut conversation), expected);
}

#[test]
fn a_server_that_ignores_queues_is_left_with_the_last_consumer_of_the_channel() {
    let mut conversation = open();
    for (queue, waiter) in [(1, "a"), (2, "b")] {
        let IntentState::Asked(id) = conversation.take_up(consume("ch", queue, 9), waiter).unwrap() else {
            panic!()
        };
        let answer = joined(&id, b"");
        assert!(matches!(conversation.receive(&answer), FrameEvent::Joined { timeout: None, .. }));
    }
    operations(&mut conversation);
    assert!(!conversation.give_up(&consume("ch", 1, 9)));
    assert_eq!(operations(&mut conversation), []);
    assert!(conversation.give_up(&consume("ch", 2, 9)));
    assert_eq!(operations(&mut conversation), [(602, String::new())]);
}

#[test]
fn a_message_is_returned_and_extended_as_the_server_understands() {
    let mut conversation = open();
    let message = Received::copy(&Frame {
        id: b"m",
        target: b"ch",
        content_type: 7,
        pending_acknowledge: true,
        ..Frame::new(Kind::QUEUE)
    });
    conversation.give_back(&message);
    assert!(!conversation.extend(&message));
    assert_eq!(operations(&mut conversation), [(7, "Nack-Reason:consumer-closed;".to_owned())]);
    let IntentState::Asked(id) = conversation.take_up(consume("ch", 7, 1), "a").unwrap() else { panic!() };
    conversation.receive(&joined(&id, b"Queue-Ids:7\r\n"));
    operations(&mut conversation);
    conversation.give_back(&message);
    assert!(conversation.extend(&message));
    let returned = (7, "Nack-Reason:consumer-closed;Unstarted:yes;".to_owned());
    assert_eq!(operations(&mut conversation), [returned, (670, "Queue-Id:7;".to_owned())]);
}

#[test]
fn messages_without_acknowledgement_that_come_after_their_pull_are_kept_for_the_next() {
    let mut conversation = open();
    let id = pull(&mut conversation, "late");
    conversation.forget(&id);
    let headers = request_id(&id, "");
    for name in [&b"m1"[..], b"m2"] {
        assert!(matches!(conversation.receive(&pulled(&headers, name)), FrameEvent::Nothing));
    }
    let other = QueueAddress::new("ch", 2).unwrap();
    assert!(conversation.take_late(&other, 9).is_empty());
    let queue = QueueAddress::new("CH", 1).unwrap();
    let one = conversation.take_late(&queue, 1);
    assert_eq!((one.len(), one[0].id()), (1, &b"m1"[..]));
    conversation.keep_late(one);
    assert_eq!(conversation.take_late(&queue, 9).len(), 2);
}

#[test]
fn a_refused_join_fails_its_caller_and_is_not_kept() {
    let mut conversation = open();
    let join = Intent::Join("ch".into());
    let IntentState::Asked(id) = conversation.take_up(join.clone(), "a").unwrap() else { panic!() };
    written(&mut conversation);
    let (_, result) = settled(conversation.receive(&response(&id, 404)));
    assert!(matches!(result, Err(ClientError::Refused(_))));
    conversation.give_up(&join);
    assert!(written(&mut conversation).is_empty(), "there is nothing to leave");
}

#[test]
fn intents_are_restored_first_on_a_new_connection() {
    let mut conversation = open();
    let join = Intent::Join("ch".into());
    let IntentState::Asked(id) = conversation.take_up(join, "a").unwrap() else { panic!() };
    conversation.receive(&response(&id, 0));
    conversation.lost();
    conversation.opened("me2");
    publish(&mut conversation, None, "p");
    let kinds: Vec<_> = written(&mut conversation).iter().map(|frame| (frame.0, frame.1)).collect();
    assert_eq!(kinds, [(Kind::SERVER, 601), (Kind::QUEUE, 1)]);
}

#[test]
fn an_intent_that_the_broker_refuses_after_a_reconnect_is_asked_for_again() {
    let mut conversation = open();
    let IntentState::Asked(id) = conversation.take_up(Intent::Join("ch".into()), "a").unwrap() else {
        panic!()
    };
    conversation.receive(&response(&id, 0));
    conversation.lost();
    conversation.opened("me");
    let asked = written(&mut conversation);
    let arrival = conversation.receive(&response(&asked[0].3, 404));
    assert!(matches!(arrival, FrameEvent::NotRestored(_, ClientError::Refused(_))), "{arrival:?}");
    conversation.restore();
    let asked = written(&mut conversation);
    assert_eq!(asked.len(), 1);
    assert!(matches!(conversation.receive(&response(&asked[0].3, 0)), FrameEvent::Nothing));
    conversation.restore();
    assert!(written(&mut conversation).is_empty(), "it stands");
}

#[test]
fn a_lost_connection_returns_all_waiters() {
    let mut conversation = open();
    publish(&mut conversation, None, "p");
    let id = pull(&mut conversation, "q");
    conversation.receive(&pulled(&request_id(&id, ""), b"m1"));
    let mut lost = conversation.lost();
    lost.sort_by_key(|(who, _)| *who);
    assert_eq!(lost.len(), 2);
    assert!(matches!(&lost[0], ("p", None)));
    let ("q", Some(partial)) = &lost[1] else { panic!("{lost:?}") };
    assert_eq!(partial.messages.len(), 1);
    assert_eq!(conversation.outstanding(), 0);
}

#[test]
fn pings_are_answered_and_frames_without_hops_mean_nothing() {
    let mut conversation = open();
    let limits = Limits::default();
    let (ping, _) = decode(&PING, &limits).unwrap().unwrap();
    conversation.receive(&ping);
    assert_eq!(*conversation.output(), PONG);
    conversation.output().clear();
    let dead = Frame { hops: 0, ..Frame::new(Kind::PING) };
    assert!(matches!(conversation.receive(&dead), FrameEvent::Nothing));
    assert!(conversation.output().is_empty());
    assert!(matches!(conversation.receive(&Frame::new(Kind::TERMINATE)), FrameEvent::Terminated));
    assert!(matches!(conversation.receive(&Frame::new(Kind(0x2A))), FrameEvent::Nothing));
}

#[test]
fn a_delivered_message_without_hops_is_not_dropped() {
    let mut conversation = open();
    let last_hop = Frame { hops: 0, target: b"ch", content_type: 1, ..Frame::new(Kind::QUEUE) };
    assert!(matches!(conversation.receive(&last_hop), FrameEvent::Delivery(_)));
}

#[test]
fn applications_have_their_own_statuses() {
    let mut conversation = open();
    let id = conversation.request(&Request::node_list(), "a").unwrap();
    let (_, result) = settled(conversation.receive(&response(&id, 1000)));
    let Ok(RequestAnswer::Response(response)) = result else { panic!("{result:?}") };
    assert_eq!(response.content_type(), 1000);
}
