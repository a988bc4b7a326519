//! Inputs in, effects out: one property per test.

use crate::world;

use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::client::{Client, Introduction};
use mqcore_broker::model::command::{Clear, ClientPattern, Command, EventKind, Request, Retry};
use mqcore_broker::model::config::BrokerConfig;
use mqcore_broker::model::decision::{Acknowledge, Decision, PutBack, Step};
use mqcore_broker::model::effect::{Effect, Event, HandlerFailure, PullOutcome, Reply};
use mqcore_broker::model::id::{ChannelName, ConnectionId};
use mqcore_broker::model::message::{Message, Properties};
use mqcore_broker::model::node::Upstream;
use mqcore_broker::model::options::{ChannelChanges, DeadLetter, QueueChanges, Status};
use mqcore_broker::model::page::Page;
use mqcore_broker::model::rejection::RejectionKind;
use mqcore_broker::model::stats::DropReason;
use mqcore_broker::model::time::Timestamp;
use world::{ALLOW, World, acknowledged, changes, handler, putting_back, queue, telling};

const SECOND: Duration = Duration::from_secs(1);

fn dropped(world: &World, address: &str, reason: DropReason) -> u64 {
    world.information(address).stats.dropped[reason as usize]
}

// ---- Statuses --------------------------------------------------------------------------------------------

#[test]
fn broadcast_reaches_present_consumers_and_is_not_stored() {
    let mut w = World::new();
    let (p, a, b) = (w.client("p"), w.client("a"), w.client("b"));
    w.create(&p, "ch/1", changes(Status::Broadcast));
    w.publish(&p, "ch/1", "m0");
    assert_eq!(dropped(&w, "ch/1", DropReason::NoConsumer), 1);
    w.join(&a, "ch").unwrap();
    w.join(&b, "ch").unwrap();
    assert!(w.delivered().is_empty(), "a late consumer gets nothing");
    w.publish(&p, "ch/1", "m1");
    assert_eq!(w.seen(), [("a".into(), "m1".into(), true), ("b".into(), "m1".into(), false)]);
    assert_eq!(w.stored("ch/1"), 0);
}

#[test]
fn push_stores_messages_until_a_consumer_joins_and_delivers_to_all() {
    let mut w = World::new();
    let (p, a, b) = (w.client("p"), w.client("a"), w.client("b"));
    w.create(&p, "ch/1", changes(Status::Push));
    w.publish(&p, "ch/1", "m1");
    w.publish(&p, "ch/1", "m2");
    assert_eq!(w.stored("ch/1"), 2);
    w.join(&a, "ch").unwrap();
    assert_eq!(w.delivered(), ["a:m1", "a:m2"]);
    w.join(&b, "ch").unwrap();
    w.publish(&p, "ch/1", "m3");
    assert_eq!(w.delivered(), ["a:m3", "b:m3"]);
    assert_eq!(w.stored("ch/1"), 0);
}

#[test]
fn round_robin_gives_each_message_to_one_consumer_in_turn() {
    let mut w = World::new();
    let (p, a, b, c) = (w.client("p"), w.client("a"), w.client("b"), w.client("c"));
    w.create(&p, "ch/1", changes(Status::RoundRobin));
    for consumer in [&a, &b, &c] {
        w.join(consumer, "ch").unwrap();
    }
    for id in ["1", "2", "3", "4"] {
        w.publish(&p, "ch/1", id);
    }
    assert_eq!(w.delivered(), ["a:1", "b:2", "c:3", "a:4"]);
    w.leave(&a, "ch");
    w.publish(&p, "ch/1", "5");
    w.publish(&p, "ch/1", "6");
    w.publish(&p, "ch/1", "7");
    assert_eq!(w.delivered(), ["b:5", "c:6", "b:7"], "leaving disturbs nobody's turn");
}

#[test]
fn pull_delivers_only_requested_messages() {
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    w.create(&p, "ch/1", changes(Status::Pull));
    w.join(&a, "ch").unwrap();
    for id in ["1", "2", "3", "4", "5"] {
        w.publish(&p, "ch/1", id);
    }
    assert!(w.delivered().is_empty());
    for id in ["1", "2", "3", "4", "5"] {
        assert_eq!(w.pull(&a, "ch/1", 1), (vec![id.to_owned()], Some(PullOutcome::Complete)));
    }
    assert_eq!(w.pull(&a, "ch/1", 1), (vec![], Some(PullOutcome::Empty)));
}

#[test]
fn pull_takes_the_newest_first_if_asked_and_clears_afterwards() {
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    w.create(&p, "ch/1", changes(Status::Pull));
    w.join(&a, "ch").unwrap();
    for (id, high) in [("1", false), ("2", false), ("h1", true), ("h2", true), ("h3", true)] {
        w.publish_as(&p, "ch/1", id, high);
    }
    let clear = Clear { high_priority: true, normal: false };
    let (ids, outcome) = w.pull_with(&a, "ch/1", 2, true, clear);
    assert_eq!((ids, outcome), (vec!["h3".into(), "h2".into()], Some(PullOutcome::Complete)));
    assert_eq!(w.information("ch/1").high_priority, 0);
    assert_eq!(w.information("ch/1").normal, 2);
    assert_eq!(dropped(&w, "ch/1", DropReason::Erased), 1);
}

#[test]
fn empty_pull_reports_the_reason() {
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    w.create(&p, "ch/1", changes(Status::Pull));
    w.create(&p, "ch/2", changes(Status::Push));
    assert_eq!(w.pull(&a, "ch/1", 1).1, Some(PullOutcome::Unauthorized));
    w.join(&a, "ch").unwrap();
    assert_eq!(w.pull(&a, "ch/1", 0).1, Some(PullOutcome::Unacceptable));
    assert_eq!(w.pull(&a, "ch/2", 1).1, Some(PullOutcome::Unacceptable));
    assert_eq!(w.pull(&a, "ch/3", 1).1, Some(PullOutcome::NoQueue));
    assert_eq!(w.pull(&a, "nowhere/1", 1).1, Some(PullOutcome::NoChannel));
}

#[test]
fn cache_keeps_the_latest_message_however_often_it_is_pulled() {
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    w.create(&p, "ch/1", changes(Status::Cache));
    w.join(&a, "ch").unwrap();
    assert_eq!(w.pull(&a, "ch/1", 1), (vec![], Some(PullOutcome::Empty)));
    w.publish(&p, "ch/1", "old");
    w.publish_as(&p, "ch/1", "new", true);
    for count in [0, 1, 9] {
        assert_eq!(w.pull(&a, "ch/1", count), (vec!["new".to_owned()], None));
    }
    assert_eq!(w.stored("ch/1"), 1);
}

#[test]
fn pause_stores_and_delivers_after_the_status_changes() {
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    w.create(&p, "ch/1", changes(Status::Paused));
    w.join(&a, "ch").unwrap();
    w.publish(&p, "ch/1", "1");
    w.publish(&p, "ch/1", "2");
    assert!(w.delivered().is_empty());
    assert_eq!(w.pull(&a, "ch/1", 1).1, Some(PullOutcome::Unacceptable));
    w.update(&p, "ch/1", changes(Status::Push));
    assert_eq!(w.delivered(), ["a:1", "a:2"]);
}

#[test]
fn stop_erases_and_rejects() {
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    w.create(&p, "ch/1", acknowledged(Status::Push));
    w.publish(&p, "ch/1", "1");
    w.join(&a, "ch").unwrap();
    assert_eq!(w.delivered(), ["a:1"]);
    w.update(&p, "ch/1", changes(Status::Paused));
    w.publish(&p, "ch/1", "2");
    w.update(&p, "ch/1", changes(Status::Stopped));
    assert_eq!(dropped(&w, "ch/1", DropReason::Erased), 2, "stored and handed out alike");
    w.heard(&p);
    w.publish(&p, "ch/1", "3");
    assert_eq!(w.heard(&p), ["3 refused 401"]);
    w.update(&p, "ch/1", changes(Status::Push));
    w.publish(&p, "ch/1", "4");
    assert_eq!(w.delivered(), ["a:4"]);
    w.advance(46 * SECOND);
    assert_eq!(w.delivered(), ["a:4"; 3], "only the new delivery times out, not the erased one");
}

#[test]
fn becoming_a_cache_keeps_the_newest_message_only() {
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    w.create(&p, "ch/1", changes(Status::Pull));
    w.join(&a, "ch").unwrap();
    w.publish(&p, "ch/1", "1");
    w.publish(&p, "ch/1", "2");
    w.update(&p, "ch/1", changes(Status::Cache));
    assert_eq!(w.pull(&a, "ch/1", 1).0, ["2"]);
    assert_eq!(w.stored("ch/1"), 1);
}

#[test]
fn high_priority_goes_first_and_order_holds_within_a_priority() {
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    w.create(&p, "ch/1", changes(Status::Push));
    for (id, high) in [("1", false), ("h1", true), ("2", false), ("h2", true)] {
        w.publish_as(&p, "ch/1", id, high);
    }
    w.join(&a, "ch").unwrap();
    assert_eq!(w.delivered(), ["a:h1", "a:h2", "a:1", "a:2"]);
}

// ---- Options ---------------------------------------------------------------------------------------------

#[test]
fn first_acquirer_option_limits_delivery_to_one_consumer() {
    for status in [Status::Push, Status::Broadcast] {
        let mut w = World::new();
        let (p, a, b) = (w.client("p"), w.client("a"), w.client("b"));
        w.create(&p, "ch/1", QueueChanges { only_first_acquirer: Some(true), ..changes(status) });
        w.join(&a, "ch").unwrap();
        w.join(&b, "ch").unwrap();
        w.publish(&p, "ch/1", "1");
        w.publish(&p, "ch/1", "2");
        assert_eq!(w.delivered(), ["a:1", "a:2"], "{status:?}");
        w.leave(&a, "ch");
        w.publish(&p, "ch/1", "3");
        assert_eq!(w.delivered(), ["b:3"], "{status:?}");
    }
}

#[test]
fn messages_without_an_id_get_one_unless_the_queue_does_not_want_that() {
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    w.create(&p, "ch/1", changes(Status::Push));
    w.create(&p, "ch/2", QueueChanges { use_message_id: Some(false), ..changes(Status::Push) });
    w.join(&a, "ch").unwrap();
    w.publish(&p, "ch/1", "");
    w.publish(&p, "ch/1", "");
    w.publish(&p, "ch/2", "");
    let ids: Vec<_> = w.seen().into_iter().map(|(_, id, _)| id).collect();
    assert!(ids[..2].iter().all(|id| id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit())));
    assert_ne!(ids[0], ids[1]);
    assert_eq!(ids[2], "");
}

#[test]
fn message_that_gets_an_id_keeps_its_headers_and_body() {
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    w.create(&p, "ch/1", changes(Status::Push));
    w.join(&a, "ch").unwrap();
    let message =
        Message::from_parts(b"", b"Kind:fruit\r\n", b"body", Properties::default(), Some(p.clone()));
    w.command(&p, Command::Publish { queue: queue("ch/1"), message });
    let delivered = w.effects.iter().find_map(|effect| match effect {
        Effect::Deliver(deliver) => Some(deliver.message.clone()),
        _ => None,
    });
    let delivered = delivered.expect("the consumer is there");
    assert_eq!(delivered.id().len(), 32);
    assert_eq!((delivered.headers(), delivered.body()), (&b"Kind:fruit\r\n"[..], &b"body"[..]));
}

#[test]
fn limits_of_number_and_size_reject_with_482() {
    let mut w = World::new();
    let p = w.client("p");
    let limits =
        QueueChanges { message_limit: Some(2), message_size_limit: Some(11), ..changes(Status::Push) };
    w.create(&p, "ch/1", limits);
    for id in ["1", "2", "3", "a longer one"] {
        w.publish(&p, "ch/1", id);
    }
    assert_eq!(w.heard(&p), ["1 ok", "2 ok", "3 refused 482", "a longer one refused 482"]);
    assert_eq!(w.stored("ch/1"), 2);
}

#[test]
fn a_message_that_waits_too_long_is_dropped_and_counted() {
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    w.create(&p, "ch/1", QueueChanges { message_timeout: Some(2 * SECOND), ..changes(Status::Push) });
    w.publish(&p, "ch/1", "1");
    w.advance(SECOND);
    w.publish(&p, "ch/1", "2");
    w.advance(SECOND + Duration::from_millis(1));
    assert_eq!(w.stored("ch/1"), 1);
    assert_eq!(w.information("ch/1").stats.timed_out, 1);
    assert_eq!(dropped(&w, "ch/1", DropReason::Expired), 1);
    w.join(&a, "ch").unwrap();
    assert_eq!(w.delivered(), ["a:2"]);
}

#[test]
fn waiting_for_the_acknowledgement_holds_the_next_message() {
    let mut w = World::new();
    let (p, a, b) = (w.client("p"), w.client("a"), w.client("b"));
    let waits = QueueChanges { wait_for_acknowledge: Some(true), ..acknowledged(Status::RoundRobin) };
    w.create(&p, "ch/1", waits);
    w.join(&a, "ch").unwrap();
    w.join(&b, "ch").unwrap();
    for id in ["1", "2", "3", "4"] {
        w.publish(&p, "ch/1", id);
    }
    assert_eq!(w.delivered(), ["a:1"]);
    w.ack(&a, "ch/1", "1");
    assert_eq!(w.delivered(), ["b:2"]);
    w.nack(&b, "ch/1", "2", "no");
    assert_eq!(w.delivered(), ["a:3"]);
    w.advance(15 * SECOND);
    assert_eq!(w.delivered(), ["b:4"], "a timeout lets go as well");
}

#[test]
fn channel_options_are_inherited_by_its_queues_and_the_servers_by_its_channels() {
    let mut config = BrokerConfig::default();
    config.channel.queue.put_back_limit = 3;
    let mut w = World::with(config);
    let p = w.client("p");
    let channel = ChannelChanges {
        queue: QueueChanges { hide_client_names: Some(true), ..changes(Status::Pull) },
        ..ChannelChanges::default()
    };
    w.create_channel(&p, "ch", channel);
    w.create(&p, "ch/1", QueueChanges { message_limit: Some(9), ..QueueChanges::default() });
    let options = w.information("ch/1").options;
    assert_eq!((options.status, options.hide_client_names), (Status::Pull, true));
    assert_eq!((options.put_back_limit, options.message_limit), (3, 9));
}

#[test]
fn channels_reject_queues_and_clients_beyond_their_limits() {
    let mut w = World::new();
    let (p, a, b) = (w.client("p"), w.client("a"), w.client("b"));
    let kind = |w: &mut World, id: u16| {
        let create =
            Request::CreateQueue { queue: queue(&format!("ch/{id}")), changes: QueueChanges::default() };
        w.request(&p.clone(), create).map_or_else(|rejection| Some(rejection.kind), |_| None)
    };
    let limited = ChannelChanges {
        allowed_queues: Some(Some(vec![1, 2, 3])),
        queue_limit: Some(2),
        client_limit: Some(1),
        ..ChannelChanges::default()
    };
    w.create_channel(&p, "ch", limited);
    assert_eq!(kind(&mut w, 9), Some(RejectionKind::Unacceptable));
    assert_eq!(kind(&mut w, 1), None);
    assert_eq!(kind(&mut w, 1), Some(RejectionKind::AlreadyExists));
    assert_eq!(kind(&mut w, 2), None);
    assert_eq!(kind(&mut w, 3), Some(RejectionKind::LimitExceeded));
    w.join(&a, "ch").unwrap();
    w.join(&a, "ch").expect("joining twice is fine");
    assert_eq!(w.join(&b, "ch").unwrap_err().kind, RejectionKind::LimitExceeded);

    let single = ChannelChanges { allow_multiple_queues: Some(false), ..ChannelChanges::default() };
    w.create_channel(&p, "single", single);
    w.create(&p, "single/1", QueueChanges::default());
    let second = Request::CreateQueue { queue: queue("single/2"), changes: QueueChanges::default() };
    assert_eq!(w.request(&p, second).unwrap_err().kind, RejectionKind::Unacceptable);
}

#[test]
fn channels_are_found_without_respect_to_case_and_listed_by_filter() {
    let mut w = World::new();
    let p = w.client("p");
    w.create(&p, "Ch-Push/1", QueueChanges::default());
    w.create(&p, "other/1", QueueChanges::default());
    w.publish(&p, "CH-PUSH/1", "1");
    assert_eq!(w.stored("Ch-Push/1"), 1);
    let Ok(Reply::Channels(found)) =
        w.request(&p, Request::ListChannels { filter: Some("*h-pu*".into()), page: Page::default() })
    else {
        panic!("a list of channels is the answer")
    };
    assert_eq!(found.items.iter().map(|c| c.channel.as_str()).collect::<Vec<_>>(), ["Ch-Push"]);
    let again = Request::CreateChannel {
        channel: ChannelName::new("CH-push").unwrap(),
        changes: ChannelChanges::default(),
    };
    assert_eq!(w.request(&p, again).unwrap_err().kind, RejectionKind::AlreadyExists);
}

#[test]
fn channel_with_auto_removal_is_removed_when_empty() {
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    let passing = ChannelChanges { destroy_when_empty: Some(true), ..ChannelChanges::default() };
    w.create_channel(&p, "ch", passing);
    w.create(&p, "ch/1", changes(Status::Pull));
    w.join(&a, "ch").unwrap();
    w.publish(&p, "ch/1", "1");
    w.leave(&a, "ch");
    assert_eq!(w.stored("ch/1"), 1, "a message keeps it");
    w.join(&a, "ch").unwrap();
    w.pull(&a, "ch/1", 1);
    w.close(&a);
    assert!(w.broker.stats(w.now).channels.is_empty());
}

#[test]
fn channel_with_auto_removal_stays_until_a_client_of_its_own_leaves() {
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    let passing = ChannelChanges { destroy_when_empty: Some(true), ..ChannelChanges::default() };
    w.create_channel(&p, "ch", passing);
    w.create_channel(&p, "other", ChannelChanges::default());
    w.join(&a, "other").unwrap();
    w.leave(&a, "other");
    w.join(&a, "other").unwrap();
    w.close(&a);
    assert_eq!(w.broker.stats(w.now).channels.len(), 2);
}

#[test]
fn messages_of_a_channel_that_a_client_has_left_are_requeued_when_it_is_closed() {
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    let passing = ChannelChanges { destroy_when_empty: Some(true), ..ChannelChanges::default() };
    w.create_channel(&p, "ch", passing);
    w.create(&p, "ch/1", acknowledged(Status::RoundRobin));
    w.join(&a, "ch").unwrap();
    w.publish(&p, "ch/1", "1");
    assert_eq!(w.delivered(), ["a:1"]);
    w.leave(&a, "ch");
    assert_eq!((w.information("ch/1").in_flight, w.stored("ch/1")), (1, 0));
    w.close(&a);
    assert_eq!((w.information("ch/1").in_flight, w.stored("ch/1")), (0, 1));
}

#[test]
fn nothing_is_created_implicitly_unless_configured() {
    let mut w = World::new();
    let p = w.client("p");
    w.publish(&p, "nowhere/1", "1");
    assert_eq!(w.heard(&p), ["1 refused 404"]);
    assert_eq!(w.join(&p, "nowhere").unwrap_err().kind, RejectionKind::NotFound);

    let config =
        BrokerConfig { auto_create_channels: true, auto_create_queues: true, ..BrokerConfig::default() };
    let mut w = World::with(config);
    let p = w.client("p");
    w.publish(&p, "somewhere/1", "1");
    assert_eq!(w.heard(&p), ["1 ok"]);
    assert_eq!(w.stored("somewhere/1"), 1);
}

// ---- Acknowledgements ------------------------------------------------------------------------------------

#[test]
fn acknowledged_message_is_removed_and_rejected_one_is_requeued_last() {
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    w.create(&p, "ch/1", acknowledged(Status::RoundRobin));
    for id in ["1", "2"] {
        w.publish(&p, "ch/1", id);
    }
    w.join(&a, "ch").unwrap();
    assert_eq!(w.delivered(), ["a:1", "a:2"]);
    w.nack(&a, "ch/1", "1", "broken");
    assert_eq!(w.seen(), [("a".into(), "1".into(), false)], "a redelivery is no first acquisition");
    w.ack(&a, "ch/1", "2");
    w.ack(&a, "ch/1", "1");
    let information = w.information("ch/1");
    assert_eq!((information.in_flight, information.stats.acks, information.stats.negative_acks), (0, 2, 1));
    w.ack(&a, "ch/1", "1");
    assert_eq!(w.broker.stats(w.now).unknown_acks, 1, "a second acknowledgement changes nothing");
}

#[test]
fn processing_time_is_that_of_positive_acknowledgements_whatever_the_clock_does() {
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    let slow = QueueChanges {
        acknowledge_timeout: Some(Duration::from_secs(40 * 86_400)),
        ..acknowledged(Status::RoundRobin)
    };
    w.create(&p, "ch/1", slow);
    w.join(&a, "ch").unwrap();
    for id in ["1", "2", "3", "4"] {
        w.publish(&p, "ch/1", id);
    }
    w.delivered();
    let times = |w: &World| w.information("ch/1").processed_in.map(|times| (times.count(), times.micros()));
    w.advance(Duration::from_millis(250));
    w.nack(&a, "ch/1", "1", "broken");
    assert_eq!(times(&w), None);
    w.ack(&a, "ch/1", "2");
    assert_eq!(times(&w), Some((1, 250_000)));
    let now = w.now;
    w.now = Timestamp(now.0 - 10_000);
    w.ack(&a, "ch/1", "3");
    assert_eq!(times(&w), Some((2, 250_000)), "the clock was set back");
    w.now = now;
    w.advance(Duration::from_secs(30 * 86_400));
    w.ack(&a, "ch/1", "4");
    assert_eq!(times(&w), Some((3, 250_000)), "too long for a place of 32 bits");
    assert_eq!(w.broker.stats(w.now).processed_in.count(), 3);
}

#[test]
fn an_unacknowledged_message_goes_to_another_consumer_after_the_timeout() {
    let mut w = World::new();
    let (p, a, b) = (w.client("p"), w.client("a"), w.client("b"));
    let quick = QueueChanges { acknowledge_timeout: Some(3 * SECOND), ..acknowledged(Status::RoundRobin) };
    w.create(&p, "ch/1", quick);
    w.join(&a, "ch").unwrap();
    w.join(&b, "ch").unwrap();
    w.publish(&p, "ch/1", "1");
    assert_eq!(w.delivered(), ["a:1"]);
    w.advance(Duration::from_millis(2_999));
    assert!(w.delivered().is_empty());
    w.advance(Duration::from_millis(1));
    assert_eq!(w.delivered(), ["b:1"]);
    w.ack(&a, "ch/1", "1");
    assert_eq!(w.information("ch/1").in_flight, 1, "the late word of the first consumer does not count");
    w.ack(&b, "ch/1", "1");
    assert_eq!(w.information("ch/1").in_flight, 0);
}

#[test]
fn messages_of_a_lost_consumer_are_requeued_first_in_order() {
    let mut w = World::new();
    let (p, a, b) = (w.client("p"), w.client("a"), w.client("b"));
    w.create(&p, "ch/1", acknowledged(Status::RoundRobin));
    w.join(&a, "ch").unwrap();
    for id in ["1", "2", "3"] {
        w.publish(&p, "ch/1", id);
    }
    assert_eq!(w.delivered(), ["a:1", "a:2", "a:3"]);
    w.ack(&a, "ch/1", "2");
    w.close(&a);
    w.publish(&p, "ch/1", "4");
    w.join(&b, "ch").unwrap();
    assert_eq!(w.delivered(), ["b:1", "b:3", "b:4"]);
}

#[test]
fn push_returns_a_message_once_and_only_if_no_consumer_took_it() {
    let mut w = World::new();
    let (p, a, b) = (w.client("p"), w.client("a"), w.client("b"));
    w.create(&p, "ch/1", acknowledged(Status::Push));
    w.join(&a, "ch").unwrap();
    w.join(&b, "ch").unwrap();
    w.publish(&p, "ch/1", "1");
    w.publish(&p, "ch/1", "2");
    w.delivered();
    w.ack(&a, "ch/1", "1");
    w.nack(&b, "ch/1", "1", "no");
    w.nack(&a, "ch/1", "2", "no");
    assert!(w.delivered().is_empty(), "the other consumer still has it");
    w.nack(&b, "ch/1", "2", "no");
    assert_eq!(w.delivered(), ["a:2", "b:2"]);
    assert_eq!(w.information("ch/1").stats.requeued, 1);
}

#[test]
fn message_requeued_too_often_is_dead_lettered_with_its_history() {
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    w.create(&p, "dead/1", changes(Status::Pull));
    let limited = QueueChanges {
        put_back_limit: Some(2),
        dead_letter: Some(Some(DeadLetter::Queue(queue("dead/1")))),
        ..acknowledged(Status::Push)
    };
    w.create(&p, "ch/1", limited);
    w.join(&a, "ch").unwrap();
    w.publish(&p, "ch/1", "1");
    for _ in 0..3 {
        assert_eq!(w.delivered(), ["a:1"]);
        w.nack(&a, "ch/1", "1", "no");
    }
    let transfer = w.effects.iter().find_map(|effect| match effect {
        Effect::Transfer(transfer) => Some(transfer.clone()),
        _ => None,
    });
    let transfer = transfer.expect("the message goes to the dead-letter queue");
    assert_eq!(transfer.to, queue("dead/1"));
    let headers = String::from_utf8_lossy(transfer.message.headers()).into_owned();
    assert_eq!(
        headers,
        "Dead-Letter-Reason:limit\r\nDead-Letter-Queue:ch/1\r\nDead-Letter-Attempts:3\r\nDead-Letter-Error:no\r\n"
    );
    w.broker.transfer(*transfer, w.now, &mut w.effects);
    assert_eq!(w.stored("dead/1"), 1);
    assert_eq!(w.information("ch/1").stats.dead_lettered, 1);
}

#[test]
fn message_requeued_too_often_is_dropped_if_its_option_is_drop() {
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    let drops = QueueChanges { dead_letter: Some(Some(DeadLetter::Drop)), ..acknowledged(Status::Push) };
    w.create(&p, "ch/1", drops);
    w.join(&a, "ch").unwrap();
    w.publish(&p, "ch/1", "1");
    for _ in 0..17 {
        assert_eq!(w.delivered(), ["a:1"]);
        w.nack(&a, "ch/1", "1", "no");
    }
    assert!(w.delivered().is_empty());
    assert_eq!(dropped(&w, "ch/1", DropReason::Limit), 1);
}

#[test]
fn permanently_rejected_message_is_dead_lettered_at_once() {
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    w.create(&p, "dead/1", changes(Status::Pull));
    let buried = QueueChanges {
        dead_letter: Some(Some(DeadLetter::Queue(queue("dead/1")))),
        ..acknowledged(Status::RoundRobin)
    };
    w.create(&p, "ch/1", buried);
    w.create(&p, "ch/2", acknowledged(Status::RoundRobin));
    w.join(&a, "ch").unwrap();
    for address in ["ch/1", "ch/2"] {
        w.publish(&p, address, "1");
        w.nack_until(&a, address, "1", Retry::Never);
    }
    let transfer = w.effects.iter().find_map(|effect| match effect {
        Effect::Transfer(transfer) => Some(transfer.clone()),
        _ => None,
    });
    let headers = transfer.expect("it goes to the dead-letter queue").message;
    let headers = String::from_utf8_lossy(headers.headers()).into_owned();
    assert_eq!(
        headers,
        "Dead-Letter-Reason:limit\r\nDead-Letter-Queue:ch/1\r\nDead-Letter-Attempts:1\r\nDead-Letter-Error:later\r\n"
    );
    w.transfer();
    assert_eq!(w.stored("ch/65535"), 1, "the channel has a queue for it");
    assert_eq!((w.stored("ch/1"), w.stored("ch/2")), (0, 0));
}

#[test]
fn handler_may_requeue_a_permanently_rejected_message_at_once() {
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    w.broker.register_handler(handler("kind", &[Step::AcknowledgeReceived]));
    let kind = QueueChanges { delivery_handler: Some("kind".into()), ..acknowledged(Status::RoundRobin) };
    w.create(&p, "ch/1", kind);
    w.join(&a, "ch").unwrap();
    w.publish(&p, "ch/1", "1");
    assert_eq!(w.delivered(), ["a:1"]);
    w.nack_until(&a, "ch/1", "1", Retry::Never);
    w.answer(Step::AcknowledgeReceived, putting_back(PutBack::End));
    assert_eq!(w.delivered(), ["a:1"]);
}

#[test]
fn delayed_requeue_waits_without_blocking_other_messages() {
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    w.create(&p, "ch/1", acknowledged(Status::RoundRobin));
    w.join(&a, "ch").unwrap();
    for (id, seconds) in [("1", 2), ("2", 1), ("3", 3)] {
        w.publish(&p, "ch/1", id);
        assert_eq!(w.delivered(), [format!("a:{id}")]);
        let until = w.now.after(Duration::from_secs(seconds));
        w.nack_until(&a, "ch/1", id, Retry::NotBefore(until));
    }
    assert!(w.delivered().is_empty());
    let information = w.information("ch/1");
    assert_eq!((information.normal, information.unsettled), (3, 0), "they wait in their queue");
    assert!(information.memory_bytes > 0);
    w.publish(&p, "ch/1", "4");
    assert_eq!(w.delivered(), ["a:4"]);
    w.advance(Duration::from_millis(999));
    assert!(w.delivered().is_empty());
    for expected in ["a:2", "a:1"] {
        w.advance(Duration::from_secs(1));
        assert_eq!(w.delivered(), [expected]);
    }
    let clear = Clear { high_priority: true, normal: false };
    w.request(&p, Request::ClearQueue { queue: queue("ch/1"), clear }).unwrap();
    assert_eq!(w.stored("ch/1"), 1, "it is of no high priority");
    w.request(&p, Request::ClearQueue { queue: queue("ch/1"), clear: Clear { normal: true, ..clear } })
        .unwrap();
    assert_eq!(w.stored("ch/1"), 0);
    assert_eq!(dropped(&w, "ch/1", DropReason::Erased), 1);
    w.advance(Duration::from_secs(5));
    assert!(w.delivered().is_empty());
}

// ---- Notifications of producers --------------------------------------------------------------------------

#[test]
fn each_policy_confirms_once_at_its_own_step() {
    let keyed =
        |key: &str| QueueChanges { delivery_handler: Some(key.into()), ..acknowledged(Status::RoundRobin) };
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    for (key, number) in [("memory", 1), ("ack-on-send", 2), ("ack-on-consume", 3), ("at-least-once", 4)] {
        w.create(&p, &format!("ch/{number}"), keyed(key));
    }
    for number in 1..=4 {
        w.publish(&p, &format!("ch/{number}"), &number.to_string());
    }
    assert_eq!(w.heard(&p), ["1 ok", "4 refused 406"]);
    w.join(&a, "ch").unwrap();
    assert_eq!(w.heard(&p), ["2 ok"]);
    w.ack(&a, "ch/3", "3");
    assert_eq!(w.heard(&p), ["3 ok by a"]);
    w.publish(&p, "ch/3", "5");
    w.nack(&a, "ch/3", "5", "sold out");
    assert_eq!(w.heard(&p), ["5 nack sold out by a"]);
    w.nack(&a, "ch/3", "5", "again");
    assert!(w.heard(&p).is_empty(), "its outcome is reported once");
    w.publish(&p, "ch/3", "6");
    w.advance(15 * SECOND);
    assert!(w.heard(&p).contains(&"6 nack timeout".to_owned()));
}

#[test]
fn hidden_producers_and_consumers_stay_hidden() {
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    let hidden = QueueChanges {
        hide_client_names: Some(true),
        delivery_handler: Some("ack-on-consume".into()),
        ..acknowledged(Status::Push)
    };
    w.create(&p, "ch/1", hidden);
    w.join(&a, "ch").unwrap();
    w.publish(&p, "ch/1", "1");
    let hides = |effect: &Effect| matches!(effect, Effect::Deliver(deliver) if deliver.hide_source);
    assert!(w.effects.iter().any(hides));
    w.ack(&a, "ch/1", "1");
    assert_eq!(w.heard(&p), ["1 ok"]);
}

// ---- Handlers --------------------------------------------------------------------------------------------

fn handled(
    w: &mut World,
    steps: &[Step],
    status: Status,
) -> std::sync::Arc<mqcore_broker::model::client::Client> {
    w.broker.register_handler(handler("own", steps));
    let p = w.client("p");
    let changes = QueueChanges { delivery_handler: Some("own".into()), ..acknowledged(status) };
    w.create(&p, "ch/1", changes);
    p
}

#[test]
fn only_overridden_steps_are_asked() {
    let mut w = World::new();
    let p = handled(&mut w, &[Step::EndSend], Status::Push);
    let a = w.client("a");
    w.join(&a, "ch").unwrap();
    w.publish(&p, "ch/1", "1");
    assert_eq!(w.steps(), [Step::EndSend]);
    assert_eq!(w.delivered(), ["a:1"], "it was written before that step");
}

#[test]
fn a_pending_decision_delays_only_later_messages_of_its_queue() {
    let mut w = World::new();
    let p = handled(&mut w, &[Step::ReceivedFromProducer], Status::Push);
    let a = w.client("a");
    w.create(&p, "ch/2", changes(Status::Push));
    w.join(&a, "ch").unwrap();
    w.publish(&p, "ch/1", "1");
    w.publish(&p, "ch/1", "2");
    w.publish(&p, "ch/2", "other");
    assert_eq!(w.delivered(), ["a:other"]);
    let first = w.question(Step::ReceivedFromProducer);
    let second = w.question(Step::ReceivedFromProducer);
    w.reply(&second, Ok(ALLOW));
    assert!(w.delivered().is_empty(), "order of arrival holds");
    w.reply(&first, Ok(ALLOW));
    assert_eq!(w.delivered(), ["a:1", "a:2"]);
}

#[test]
fn rejection_at_receipt_drops_and_notifies_a_waiting_producer() {
    let mut w = World::new();
    let p = handled(&mut w, &[Step::ReceivedFromProducer], Status::Push);
    w.publish(&p, "ch/1", "1");
    w.answer(Step::ReceivedFromProducer, Decision::REFUSE);
    assert_eq!(w.heard(&p), ["1 nack refused"]);
    assert_eq!(dropped(&w, "ch/1", DropReason::Refused), 1);
    w.publish(&p, "ch/1", "2");
    w.answer(Step::ReceivedFromProducer, Decision { acknowledge: Acknowledge::Negative, ..Decision::REFUSE });
    assert_eq!(w.heard(&p), ["2 nack none"]);
    w.publish(&p, "ch/1", "3");
    w.answer(Step::ReceivedFromProducer, Decision { put_back: PutBack::Start, ..Decision::REFUSE });
    assert_eq!(w.stored("ch/1"), 1, "not allowed but put back: it is stored");
}

#[test]
fn arriving_message_that_the_handler_puts_at_the_start_is_delivered_first() {
    let mut w = World::new();
    let p = handled(&mut w, &[Step::ReceivedFromProducer], Status::Push);
    let a = w.client("a");
    for (id, put_back) in [("1", PutBack::No), ("2", PutBack::Start), ("3", PutBack::End)] {
        w.publish(&p, "ch/1", id);
        w.answer(Step::ReceivedFromProducer, putting_back(put_back));
    }
    w.join(&a, "ch").unwrap();
    assert_eq!(w.delivered(), ["a:2", "a:1", "a:3"]);
}

#[test]
fn producer_that_waits_hears_at_once_that_the_handler_failed() {
    let mut w = World::new();
    let p = handled(&mut w, &[Step::ReceivedFromProducer], Status::Push);
    w.publish(&p, "ch/1", "1");
    let question = w.question(Step::ReceivedFromProducer);
    w.reply(&question, Err(HandlerFailure::Raised));
    assert_eq!(w.heard(&p), ["1 refused 503"]);
    assert_eq!((w.stored("ch/1"), dropped(&w, "ch/1", DropReason::Refused)), (0, 1));
}

#[test]
fn save_step_asks_the_handler_and_reports_the_outcome() {
    let mut w = World::new();
    let p = handled(&mut w, &[Step::ReceivedFromProducer, Step::SaveMessage], Status::Push);
    let save = Decision { save: true, ..telling(Acknowledge::IfSaved) };
    w.publish(&p, "ch/1", "1");
    w.answer(Step::ReceivedFromProducer, save);
    assert!(w.heard(&p).is_empty());
    w.answer(Step::SaveMessage, ALLOW);
    assert_eq!(w.heard(&p), ["1 ok"]);
    w.publish(&p, "ch/1", "2");
    w.answer(Step::ReceivedFromProducer, save);
    w.answer(Step::SaveMessage, Decision::REFUSE);
    assert_eq!(w.heard(&p), ["2 refused 503"], "its producer waits, so it can publish again");
    w.publish_unconfirmed(&p, "ch/1", "3");
    w.answer(Step::ReceivedFromProducer, save);
    w.answer(Step::SaveMessage, Decision::REFUSE);
    assert!(w.heard(&p).is_empty());
    let stats = w.information("ch/1").stats;
    assert_eq!((stats.saved, stats.save_failed), (1, 2));
    assert_eq!(w.stored("ch/1"), 2, "the first and the third");
}

#[test]
fn each_consumer_can_be_allowed_or_refused() {
    let mut w = World::new();
    let p = handled(&mut w, &[Step::CanConsumerReceive], Status::Push);
    let (a, b) = (w.client("a"), w.client("b"));
    w.join(&a, "ch").unwrap();
    w.join(&b, "ch").unwrap();
    w.publish(&p, "ch/1", "1");
    let question = w.answer(Step::CanConsumerReceive, Decision::REFUSE);
    assert_eq!(question.consumer.map(|client| client.id.to_string()).as_deref(), Some("a"));
    w.answer(Step::CanConsumerReceive, ALLOW);
    assert_eq!(w.delivered(), ["b:1"]);
}

#[test]
fn a_broadcast_reaches_its_consumer_if_that_of_an_earlier_one_leaves_while_the_handler_decides() {
    let mut w = World::new();
    let p = handled(&mut w, &[Step::CanConsumerReceive], Status::Broadcast);
    let leaving = w.client("leaving");
    w.join(&leaving, "ch").unwrap();
    w.publish(&p, "ch/1", "first");
    let first = w.question(Step::CanConsumerReceive);
    let staying = w.client("staying");
    w.join(&staying, "ch").unwrap();
    w.close(&leaving);
    w.publish(&p, "ch/1", "second");
    let second = w.question(Step::CanConsumerReceive);
    w.reply(&second, Ok(ALLOW));
    assert!(w.delivered().is_empty(), "not before the first one");
    w.reply(&first, Ok(ALLOW));
    assert_eq!(w.delivered(), ["staying:second"]);
}

#[test]
fn a_message_that_expires_while_the_handler_decides_is_not_delivered() {
    for (status, step) in [(Status::Push, Step::BeginSend), (Status::RoundRobin, Step::CanConsumerReceive)] {
        let mut w = World::new();
        let p = handled(&mut w, &[step], status);
        w.update(&p, "ch/1", QueueChanges { message_timeout: Some(2 * SECOND), ..QueueChanges::default() });
        let a = w.client("a");
        w.join(&a, "ch").unwrap();
        w.publish(&p, "ch/1", "1");
        w.advance(3 * SECOND);
        w.publish(&p, "ch/1", "2");
        w.answer(step, ALLOW);
        w.answer(step, ALLOW);
        assert_eq!(w.delivered(), ["a:2"], "{status:?}");
        assert_eq!(w.information("ch/1").stats.timed_out, 1, "{status:?}");
    }
}

#[test]
fn message_denied_to_every_consumer_waits_for_another_one() {
    for status in [Status::Push, Status::RoundRobin] {
        let mut w = World::new();
        let p = handled(&mut w, &[Step::CanConsumerReceive], status);
        let (a, b, c) = (w.client("a"), w.client("b"), w.client("c"));
        w.join(&a, "ch").unwrap();
        w.join(&b, "ch").unwrap();
        w.publish(&p, "ch/1", "1");
        w.answer(Step::CanConsumerReceive, Decision::REFUSE);
        w.answer(Step::CanConsumerReceive, Decision { put_back: PutBack::End, ..Decision::REFUSE });
        assert!(w.steps().is_empty(), "both were asked");
        assert_eq!((w.stored("ch/1"), w.information("ch/1").stats.requeued), (1, 0));
        w.publish(&p, "ch/1", "2");
        w.answer(Step::CanConsumerReceive, ALLOW);
        if status == Status::Push {
            w.answer(Step::CanConsumerReceive, ALLOW);
        }
        assert!(w.delivered().iter().all(|seen| seen.ends_with(":2")), "it passes the other message");
        w.join(&c, "ch").unwrap();
        assert_eq!(w.steps(), [Step::CanConsumerReceive], "a new consumer may take it at once");
        while w.steps() == [Step::CanConsumerReceive] {
            let for_c = w.questions[0].consumer.as_ref().is_some_and(|client| *client.id == *"c");
            w.answer(Step::CanConsumerReceive, if for_c { ALLOW } else { Decision::REFUSE });
        }
        assert_eq!(w.delivered(), ["c:1"]);
        assert_eq!(w.stored("ch/1"), 0);
    }
}

#[test]
fn consumer_that_the_handler_refuses_is_passed_over_in_round_robin() {
    let mut w = World::new();
    let p = handled(&mut w, &[Step::CanConsumerReceive], Status::RoundRobin);
    let (a, b) = (w.client("a"), w.client("b"));
    w.join(&a, "ch").unwrap();
    w.join(&b, "ch").unwrap();
    for id in ["1", "2", "3"] {
        w.publish(&p, "ch/1", id);
        while w.steps() == [Step::CanConsumerReceive] {
            let for_a = w.questions[0].consumer.as_ref().is_some_and(|client| *client.id == *"a");
            w.answer(Step::CanConsumerReceive, if for_a { Decision::REFUSE } else { ALLOW });
        }
    }
    assert_eq!(w.delivered(), ["b:1", "b:2", "b:3"]);
    assert!(w.information("ch/1").stats.dropped.iter().all(|count| *count == 0));
}

#[test]
fn message_refused_to_its_only_consumer_is_tried_again_after_a_moment() {
    let mut w = World::new();
    let p = handled(&mut w, &[Step::CanConsumerReceive], Status::RoundRobin);
    let a = w.client("a");
    w.join(&a, "ch").unwrap();
    w.publish(&p, "ch/1", "1");
    for _ in 0..40 {
        w.answer(Step::CanConsumerReceive, Decision::REFUSE);
        assert!(w.steps().is_empty());
        w.advance(Duration::from_millis(100));
    }
    w.answer(Step::CanConsumerReceive, ALLOW);
    assert_eq!(w.delivered(), ["a:1"], "its attempts do not run out");
}

#[test]
fn handler_that_denies_after_delivery_ends_the_steps_in_push_too() {
    for status in [Status::Push, Status::RoundRobin] {
        let mut w = World::new();
        let p = handled(&mut w, &[Step::ConsumerReceived, Step::EndSend], status);
        let a = w.client("a");
        w.join(&a, "ch").unwrap();
        w.publish(&p, "ch/1", "1");
        w.answer(Step::ConsumerReceived, Decision::REFUSE);
        assert!(w.steps().is_empty(), "{status:?}");
        assert_eq!(w.delivered(), ["a:1"]);
    }
}

#[test]
fn handler_decides_about_each_pull_of_a_cache() {
    for step in [Step::BeginSend, Step::CanConsumerReceive] {
        let mut w = World::new();
        let p = handled(&mut w, &[step], Status::Cache);
        let a = w.client("a");
        w.join(&a, "ch").unwrap();
        w.publish(&p, "ch/1", "1");
        assert_eq!(w.pull(&a, "ch/1", 1), (vec![], None), "the handler decides");
        w.answer(step, Decision::REFUSE);
        let events = w.notifications(a.connection);
        assert!(
            matches!(events[..], [Event::PullEnded { outcome: PullOutcome::Unauthorized, .. }]),
            "{events:?}"
        );
        assert_eq!(w.pull(&a, "ch/1", 1), (vec![], None));
        w.answer(step, ALLOW);
        assert!(matches!(w.notifications(a.connection)[..], [Event::Cached { .. }]));
        let information = w.information("ch/1");
        assert_eq!((information.normal, information.unsettled), (1, 0), "the message stays");
    }
}

#[test]
fn flows_write_in_their_order_even_if_answers_come_out_of_order() {
    let mut w = World::new();
    let p = handled(&mut w, &[Step::BeginSend], Status::RoundRobin);
    let a = w.client("a");
    w.join(&a, "ch").unwrap();
    for id in ["1", "2", "3"] {
        w.publish(&p, "ch/1", id);
    }
    let questions: Vec<_> = (0..3).map(|_| w.question(Step::BeginSend)).collect();
    w.reply(&questions[2], Ok(ALLOW));
    w.reply(&questions[1], Ok(Decision::REFUSE));
    assert!(w.delivered().is_empty());
    w.reply(&questions[0], Ok(ALLOW));
    assert_eq!(w.delivered(), ["a:1", "a:3"]);
}

#[test]
fn message_for_the_first_acquirer_does_not_hold_up_the_next_one() {
    let mut w = World::new();
    let p = handled(&mut w, &[Step::ConsumerReceived], Status::Push);
    w.update(&p, "ch/1", QueueChanges { only_first_acquirer: Some(true), ..QueueChanges::default() });
    for id in ["a", "b"] {
        let consumer = w.client(id);
        w.join(&consumer, "ch").unwrap();
    }
    w.publish(&p, "ch/1", "1");
    w.publish(&p, "ch/1", "2");
    assert_eq!(w.delivered(), ["a:1", "a:2"], "no other consumer gets the first one");
    w.answer(Step::ConsumerReceived, ALLOW);
    w.answer(Step::ConsumerReceived, ALLOW);
    assert!(w.delivered().is_empty());
}

#[test]
fn requeue_decided_while_sending_applies_once_settled() {
    let mut w = World::new();
    let p = handled(&mut w, &[Step::EndSend], Status::RoundRobin);
    let a = w.client("a");
    w.join(&a, "ch").unwrap();
    w.publish(&p, "ch/1", "1");
    w.answer(Step::EndSend, putting_back(PutBack::End));
    assert_eq!(w.delivered(), ["a:1"]);
    w.ack(&a, "ch/1", "1");
    assert_eq!(w.delivered(), ["a:1"], "the handler wants it again although it was acknowledged");
}

#[test]
fn a_handler_decides_about_acknowledgements_timeouts_and_lost_consumers() {
    let steps = [Step::AcknowledgeReceived, Step::AcknowledgeTimedOut, Step::ConsumerReceiveFailed];
    let mut w = World::new();
    let p = handled(&mut w, &steps, Status::RoundRobin);
    let (a, b) = (w.client("a"), w.client("b"));
    w.join(&a, "ch").unwrap();
    w.publish(&p, "ch/1", "1");
    w.heard(&p);
    w.nack(&a, "ch/1", "1", "burnt");
    let question = w.answer(Step::AcknowledgeReceived, putting_back(PutBack::Start));
    let said = question.acknowledgement.expect("the handler sees the consumer's word");
    assert_eq!(said.negative.as_deref(), Some("burnt"));
    w.advance(15 * SECOND);
    w.answer(Step::AcknowledgeTimedOut, putting_back(PutBack::Start));
    assert_eq!(w.delivered(), ["a:1", "a:1", "a:1"]);
    w.close(&a);
    let question = w.answer(Step::ConsumerReceiveFailed, putting_back(PutBack::Start));
    assert_eq!(question.attempt, 3);
    w.join(&b, "ch").unwrap();
    assert_eq!(w.delivered(), ["b:1"]);
}

#[test]
fn a_failing_or_late_handler_keeps_the_message() {
    let steps = [Step::ReceivedFromProducer, Step::AcknowledgeReceived];
    let mut w = World::new();
    let p = handled(&mut w, &steps, Status::RoundRobin);
    let a = w.client("a");
    w.join(&a, "ch").unwrap();
    w.publish_unconfirmed(&p, "ch/1", "1");
    w.publish_unconfirmed(&p, "ch/1", "2");
    let raised = w.question(Step::ReceivedFromProducer);
    w.reply(&raised, Err(HandlerFailure::Raised));
    let late = w.question(Step::ReceivedFromProducer);
    w.advance(10 * SECOND);
    assert_eq!(w.delivered(), ["a:1", "a:2"]);
    w.reply(&late, Ok(Decision::REFUSE));
    assert_eq!(w.broker.stats(w.now).answers_late, 1);
    w.nack(&a, "ch/1", "1", "no");
    let raised = w.question(Step::AcknowledgeReceived);
    w.reply(&raised, Err(HandlerFailure::Raised));
    assert_eq!(w.delivered(), ["a:1"], "what failed is put back");
    assert_eq!(w.information("ch/1").stats.errors, 3);
}

#[test]
fn handler_is_notified_of_removed_messages() {
    let mut w = World::new();
    let p = handled(&mut w, &[Step::MessageDequeued], Status::RoundRobin);
    let a = w.client("a");
    w.join(&a, "ch").unwrap();
    w.publish(&p, "ch/1", "1");
    assert!(w.steps().is_empty());
    w.ack(&a, "ch/1", "1");
    assert!(!w.question(Step::MessageDequeued).wants_answer);
}

#[test]
fn a_queue_continues_when_the_handler_has_decided_about_an_expired_message() {
    let mut w = World::new();
    w.broker.register_handler(handler("own", &[Step::MessageTimedOut]));
    let p = w.client("p");
    let changes = QueueChanges {
        delivery_handler: Some("own".into()),
        message_timeout: Some(SECOND),
        wait_for_acknowledge: Some(true),
        ..acknowledged(Status::RoundRobin)
    };
    w.create(&p, "ch/1", changes);
    w.publish(&p, "ch/1", "1");
    w.advance(SECOND);
    w.publish(&p, "ch/1", "2");
    let a = w.client("a");
    w.join(&a, "ch").unwrap();
    assert!(w.delivered().is_empty(), "the queue delivers one message at a time");
    w.answer(Step::MessageTimedOut, Decision::REFUSE);
    assert_eq!(w.delivered(), ["a:2"]);
}

#[test]
fn handler_may_keep_an_expired_message() {
    let mut w = World::new();
    w.broker.register_handler(handler("own", &[Step::MessageTimedOut]));
    let p = w.client("p");
    let changes = QueueChanges {
        delivery_handler: Some("own".into()),
        message_timeout: Some(SECOND),
        ..changes(Status::Push)
    };
    w.create(&p, "ch/1", changes);
    w.publish(&p, "ch/1", "1");
    w.advance(SECOND);
    w.answer(Step::MessageTimedOut, putting_back(PutBack::End));
    assert_eq!(w.stored("ch/1"), 1);
    w.advance(SECOND);
    w.answer(Step::MessageTimedOut, Decision::REFUSE);
    assert_eq!(w.stored("ch/1"), 0);
}

#[test]
fn handlers_can_be_changed_by_key_and_unknown_keys_are_refused() {
    let mut w = World::new();
    let p = handled(&mut w, &[Step::ReceivedFromProducer], Status::Push);
    let named = |key: &str| QueueChanges { delivery_handler: Some(key.into()), ..QueueChanges::default() };
    w.update(&p, "ch/1", named("memory"));
    w.publish(&p, "ch/1", "1");
    assert_eq!(w.stored("ch/1"), 1);
    let wrong = Request::UpdateQueue { queue: queue("ch/1"), changes: named("nobody") };
    let rejection = w.request(&p, wrong).unwrap_err();
    assert_eq!(rejection.kind, RejectionKind::BadRequest);
    assert!(
        rejection.reason.contains("own") && rejection.reason.contains("memory"),
        "it names the known ones"
    );
}

#[test]
fn stopping_a_queue_drops_questions_and_ignores_their_answers() {
    let steps = [Step::ReceivedFromProducer, Step::BeginSend, Step::AcknowledgeReceived];
    let mut w = World::new();
    let p = handled(&mut w, &steps, Status::RoundRobin);
    let a = w.client("a");
    w.join(&a, "ch").unwrap();
    for id in ["1", "2", "3"] {
        w.publish(&p, "ch/1", id);
    }
    w.answer(Step::ReceivedFromProducer, ALLOW);
    w.answer(Step::ReceivedFromProducer, ALLOW);
    w.answer(Step::BeginSend, ALLOW);
    assert_eq!(w.delivered(), ["a:1"]);
    w.ack(&a, "ch/1", "1");
    let open: Vec<_> = std::mem::take(&mut w.questions);
    assert_eq!(open.len(), 3, "one at each step");
    w.update(&p, "ch/1", changes(Status::Stopped));
    w.update(&p, "ch/1", changes(Status::Push));
    w.publish(&p, "ch/1", "4");
    for question in &open {
        w.reply(question, Ok(ALLOW));
    }
    assert!(w.delivered().is_empty());
    assert_eq!(w.stored("ch/1"), 0);
    w.answer(Step::ReceivedFromProducer, ALLOW);
    w.answer(Step::BeginSend, ALLOW);
    assert_eq!(w.delivered(), ["a:4"]);
}

#[test]
fn pulling_asks_the_handler_too() {
    let mut w = World::new();
    let p = handled(&mut w, &[Step::CanConsumerReceive], Status::Pull);
    let a = w.client("a");
    w.join(&a, "ch").unwrap();
    w.publish(&p, "ch/1", "1");
    w.publish(&p, "ch/1", "2");
    assert_eq!(w.pull(&a, "ch/1", 2), (vec![], None), "undecided yet");
    w.answer(Step::CanConsumerReceive, ALLOW);
    w.answer(Step::CanConsumerReceive, ALLOW);
    let notices: Vec<_> = w
        .notifications(a.connection)
        .into_iter()
        .map(|event| match event {
            Event::Pulled { message, index, count, .. } => {
                format!("{} {index}/{count}", world::id_of(&message))
            }
            Event::PullEnded { outcome, .. } => format!("{outcome:?}"),
            other => panic!("a pull brings no {other:?}"),
        })
        .collect();
    assert_eq!(notices, ["1 1/2", "2 2/2", "Complete"]);
}

#[test]
fn too_many_undecided_messages_are_refused_as_busy() {
    let mut w = World::with(BrokerConfig { undecided_max: 2, ..BrokerConfig::default() });
    let p = handled(&mut w, &[Step::ReceivedFromProducer], Status::Push);
    for id in ["1", "2", "3"] {
        w.publish(&p, "ch/1", id);
    }
    assert_eq!(w.heard(&p), ["3 refused 503"]);
}

// ---- Slow consumers --------------------------------------------------------------------------------------

#[test]
fn a_slow_consumer_misses_broadcasts_is_passed_over_in_turns_and_closed_in_the_end() {
    let mut w = World::new();
    let (p, a, b) = (w.client("p"), w.client("a"), w.client("b"));
    w.create(&p, "ch/1", changes(Status::Broadcast));
    w.create(&p, "ch/2", changes(Status::RoundRobin));
    w.create(&p, "ch/3", changes(Status::Push));
    w.join(&a, "ch").unwrap();
    w.join(&b, "ch").unwrap();
    w.broker.congested(a.connection, w.now, &mut w.effects);
    w.publish(&p, "ch/1", "1");
    w.publish(&p, "ch/2", "2");
    w.publish(&p, "ch/2", "3");
    w.publish(&p, "ch/3", "4");
    assert_eq!(w.delivered(), ["b:1", "b:2", "b:3"], "push waits for everybody");
    assert_eq!(dropped(&w, "ch/1", DropReason::Slow), 1);
    w.broker.writable(a.connection, w.now, &mut w.effects);
    w.turn();
    assert_eq!(w.delivered(), ["a:4", "b:4"]);
    w.broker.congested(a.connection, w.now, &mut w.effects);
    w.advance(30 * SECOND);
    let closed = |effect: &Effect| matches!(effect, Effect::Close(who, _) if *who == a.connection);
    assert_eq!(w.effects.iter().filter(|effect| closed(effect)).count(), 1);
}

// ---- Clients, direct messages, events --------------------------------------------------------------------

#[test]
fn client_ids_are_unique_among_connected_clients() {
    let mut w = World::new();
    let a = w.client("a");
    assert_eq!(w.introduce("a", true).unwrap_err().kind, RejectionKind::Busy);
    w.close(&a);
    w.client("a");
    let unnamed = w.introduce("", true).expect("an id is made up");
    assert_eq!(unnamed.id.len(), 32);
}

#[test]
fn direct_messages_find_clients_by_id_name_and_type_all_or_the_oldest() {
    let mut w = World::new();
    let (a, b) = (w.client("a"), w.client("b"));
    let to = |w: &mut World, who: &str| {
        let connection = if who == "a" { a.connection } else { b.connection };
        w.notifications(connection).iter().filter(|event| matches!(event, Event::Direct { .. })).count()
    };
    w.direct(&a, ClientPattern::Id("b".into()), "1", false);
    assert_eq!((to(&mut w, "a"), to(&mut w, "b")), (0, 1));
    w.direct(&a, ClientPattern::Kind("tester".into()), "2", false);
    assert_eq!((to(&mut w, "a"), to(&mut w, "b")), (1, 1));
    w.direct(&b, ClientPattern::Kind("tester".into()), "3", true);
    assert_eq!((to(&mut w, "a"), to(&mut w, "b")), (1, 0));
    w.direct(&a, ClientPattern::Name("nobody".into()), "4", false);
    let refused = w.notifications(a.connection);
    assert!(matches!(&refused[..], [Event::DirectRefused { rejection, .. }]
        if rejection.kind == RejectionKind::NotFound));
}

#[test]
fn removed_channel_reports_the_removal_of_its_queues() {
    let mut w = World::new();
    let (p, s) = (w.client("p"), w.client("s"));
    w.create(&p, "ch/1", QueueChanges::default());
    w.create(&p, "ch/2", QueueChanges::default());
    w.subscribe(&s, EventKind::QueueRemoved, "ch", true);
    w.subscribe(&s, EventKind::ChannelRemoved, "", true);
    w.request(&p, Request::RemoveChannel { channel: ChannelName::new("ch").unwrap() }).unwrap();
    assert_eq!(w.events(&s), ["QueueRemoved", "QueueRemoved", "ChannelRemoved"]);
}

fn upstream(connected_since: Option<Timestamp>) -> Upstream {
    let (id, name, host) = ("m-1".into(), "north".into(), "127.0.0.1:1".into());
    Upstream { index: 0, id, name, host, connected_since }
}

#[test]
fn nodes_are_listed_with_their_uptime_and_not_as_clients() {
    let mut w = World::new();
    let p = w.client("p");
    let since = w.now;
    w.broker.upstream(upstream(Some(since)), since, &mut w.effects);
    let provisional = Client { connection: ConnectionId(77), ..(*p).clone() };
    let introduction = Introduction {
        id: Some("s-1".into()),
        name: Some("south".into()),
        node: Some("10.0.0.1".into()),
        ..Introduction::default()
    };
    w.command(&Arc::new(provisional), Command::Introduce(Box::new(introduction.clone())));
    w.now = since.after(Duration::from_millis(250));
    let nodes = |w: &mut World| match w.request(&p, Request::ListNodes { page: Page::default() }) {
        Ok(Reply::Nodes(nodes)) => nodes
            .items
            .iter()
            .map(|n| {
                format!("{} {} {} {} {} {}", n.id, n.name, n.host, n.downstream, n.connected, n.lifetime_ms)
            })
            .collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(nodes(&mut w), ["m-1 north 127.0.0.1:1 false true 250", "s-1 south 10.0.0.1 true true 250"]);
    let Ok(Reply::Clients(clients)) =
        w.request(&p, Request::ListClients { kind: None, page: Page::default() })
    else {
        panic!()
    };
    assert_eq!(clients.items.len(), 1);
    let again = Client { connection: ConnectionId(78), ..(*p).clone() };
    w.command(&Arc::new(again), Command::Introduce(Box::new(introduction)));
    let closed = w.effects.iter().any(|effect| matches!(effect, Effect::Close(ConnectionId(77), _)));
    assert!(closed, "a node that comes anew replaces what was left of it");
    w.broker.upstream(upstream(None), w.now, &mut w.effects);
    assert_eq!(nodes(&mut w), ["m-1 north 127.0.0.1:1 false false 0", "s-1 south 10.0.0.1 true true 0"]);
}

#[test]
fn a_node_of_another_user_does_not_replace_the_one_with_its_id() {
    let mut w = World::new();
    let p = w.client("p");
    let introduction = Introduction {
        id: Some("s-1".into()),
        name: Some("south".into()),
        node: Some("10.0.0.1".into()),
        ..Introduction::default()
    };
    let mut arrive = |connection, user: Option<&str>| {
        let user = user.map(Into::into);
        let node = Client { connection: ConnectionId(connection), user, ..(*p).clone() };
        w.command(&Arc::new(node), Command::Introduce(Box::new(introduction.clone())));
        let closed: Vec<_> = w
            .effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::Close(closed, _) => Some(closed.0),
                _ => None,
            })
            .collect();
        w.effects.clear();
        closed
    };
    assert_eq!(arrive(77, Some("ann")), [0; 0]);
    for user in [Some("eve"), None] {
        assert!(!arrive(78, user).contains(&77));
    }
    assert_eq!(arrive(79, Some("ann")), [77]);
}

#[test]
fn only_administrators_may_run_schedules() {
    let mut w = World::new();
    let (admin, other) = (w.client("admin"), w.introduce("other", false).unwrap());
    assert!(w.request(&admin, Request::MayRunSchedules).is_ok());
    assert_eq!(w.request(&other, Request::MayRunSchedules).unwrap_err().kind, RejectionKind::Unauthorized);
}

#[test]
fn events_come_while_subscribed_and_not_after() {
    let mut w = World::new();
    let (p, s) = (w.client("p"), w.client("s"));
    w.create(&p, "ch/1", QueueChanges::default());
    let everywhere = [
        EventKind::ClientConnected,
        EventKind::ClientDisconnected,
        EventKind::ChannelCreated,
        EventKind::ChannelRemoved,
        EventKind::NodeConnected,
        EventKind::NodeDisconnected,
    ];
    let of_channel = [
        EventKind::ClientJoined,
        EventKind::ClientLeft,
        EventKind::QueueCreated,
        EventKind::QueueUpdated,
        EventKind::QueueRemoved,
        EventKind::MessageProduced,
    ];
    let trigger_all = |w: &mut World, n: u32| {
        let c = w.client(&format!("c{n}"));
        w.join(&c, "ch").unwrap();
        w.publish(&p, "ch/1", "m");
        w.leave(&c, "ch");
        w.create(&p, &format!("ch/{}", n + 10), QueueChanges::default());
        w.update(&p, "ch/1", QueueChanges { message_limit: Some(5), ..QueueChanges::default() });
        w.request(&p, Request::RemoveQueue { queue: queue(&format!("ch/{}", n + 10)) }).unwrap();
        w.create(&p, &format!("temporary{n}/1"), QueueChanges::default());
        let channel = ChannelName::new(&format!("temporary{n}")).unwrap();
        w.request(&p, Request::RemoveChannel { channel }).unwrap();
        w.close(&c);
        for connected_since in [Some(w.now), None] {
            w.broker.upstream(upstream(connected_since), w.now, &mut w.effects);
        }
    };
    for on in [true, false] {
        for kind in everywhere {
            w.subscribe(&s, kind, "", on);
        }
        for kind in of_channel {
            w.subscribe(&s, kind, "ch/1", on);
        }
        trigger_all(&mut w, u32::from(on));
        let mut events = w.events(&s);
        events.sort_unstable();
        let mut expected: Vec<_> = EventKind::ALL.iter().map(|kind| kind.as_str()).collect();
        expected.sort_unstable();
        assert_eq!(events, if on { expected } else { vec![] });
    }
}

#[test]
fn administration_is_for_administrators() {
    let mut w = World::new();
    let (admin, plain) = (w.client("admin"), w.introduce("plain", false).unwrap());
    w.create(&admin, "ch/1", QueueChanges::default());
    let queue_1 = queue("ch/1");
    let forbidden = [
        Request::RemoveChannel { channel: queue_1.channel.clone() },
        Request::ListChannels { filter: None, page: Page::default() },
        Request::ListClients { kind: None, page: Page::default() },
        Request::ListNodes { page: Page::default() },
        Request::RemoveQueue { queue: queue_1.clone() },
        Request::QueueInformation { queue: queue_1 },
    ];
    for request in forbidden {
        assert_eq!(w.request(&plain, request).unwrap_err().kind, RejectionKind::Unauthorized);
    }
    w.join(&plain, "ch").expect("joining is for everybody");
    let Ok(Reply::Clients(clients)) =
        w.request(&admin, Request::ListClients { kind: Some("test*".into()), page: Page::default() })
    else {
        panic!("a list of clients is the answer")
    };
    assert_eq!(clients.items.len(), 2);
}

#[test]
fn answers_for_a_queue_made_anew_under_the_same_address_are_not_mixed_up() {
    let mut w = World::new();
    let p = handled(&mut w, &[Step::ReceivedFromProducer], Status::Push);
    w.publish(&p, "ch/1", "old");
    let old = w.question(Step::ReceivedFromProducer);
    w.request(&p, Request::RemoveQueue { queue: queue("ch/1") }).unwrap();
    w.create(&p, "ch/1", QueueChanges { delivery_handler: Some("own".into()), ..changes(Status::Push) });
    w.publish(&p, "ch/1", "new");
    w.reply(&old, Ok(ALLOW));
    assert_eq!(w.stored("ch/1"), 0, "the old answer is not the new message's");
    w.answer(Step::ReceivedFromProducer, ALLOW);
    assert_eq!(w.stored("ch/1"), 1);
}

#[test]
fn messages_on_their_way_keep_their_order_when_the_last_consumer_leaves() {
    let mut world = World::new();
    let (producer, one) = (world.client("producer"), world.client("one"));
    world.broker.register_handler(handler("slow", &[Step::BeginSend]));
    let slow = QueueChanges { delivery_handler: Some("slow".into()), ..changes(Status::RoundRobin) };
    world.create(&producer, "ch/1", slow);
    world.join(&one, "ch").unwrap();
    for id in ["a", "b", "c", "d"] {
        world.publish(&producer, "ch/1", id);
    }
    assert_eq!(world.questions.len(), 4);
    world.leave(&one, "ch");
    for _ in 0..4 {
        world.answer(Step::BeginSend, ALLOW);
    }
    assert_eq!(world.stored("ch/1"), 4);
    world.join(&one, "ch").unwrap();
    while !world.questions.is_empty() {
        world.answer(Step::BeginSend, ALLOW);
    }
    assert_eq!(world.delivered(), ["one:a", "one:b", "one:c", "one:d"]);
}

#[test]
fn looking_ahead_at_a_batch_changes_nothing_whatever_is_in_it() {
    const MESSAGES: usize = 1_000;
    let mut w = World::new();
    let (p, a, b) = (w.client("p"), w.client("a"), w.client("b"));
    w.create(&p, "ch/1", acknowledged(Status::RoundRobin));
    w.join(&a, "ch").expect("everybody may join");
    w.join(&b, "ch").expect("everybody may join");
    for number in 0..MESSAGES {
        w.publish(&p, "ch/1", &number.to_string());
    }
    w.seen();
    let word = |address: &str, id: &str| Command::Acknowledge(World::word(address, id, None));
    // The first two were delivered to `a` and `b`. Then: a duplicate, an unknown one, of another queue, of no channel;
    // and one beyond the batch.
    let address = mqcore_broker::model::id::QueueAddress::parse("ch/1").unwrap();
    let message = World::message(&p, &address, "new", false);
    let batch = vec![
        word("ch/1", "0"),
        word("ch/1", "1"),
        word("ch/1", "0"),
        word("ch/1", "never"),
        word("ch/2", "2"),
        word("nowhere/1", "2"),
        Command::RoomFor { queue: address.clone() },
        Command::Publish { queue: address, message },
    ];
    let before = format!("{:?}", w.broker.stats(w.now));
    assert_eq!(w.broker.look_ahead(&a, &batch), batch.len());
    assert_eq!(format!("{:?}", w.broker.stats(w.now)), before);
    let many: Vec<_> = (0..MESSAGES).map(|number| word("ch/1", &number.to_string())).collect();
    let some = w.broker.look_ahead(&a, &many);
    assert!((1..MESSAGES).contains(&some), "as many as the cache holds, and never none of some");
    assert_eq!(w.broker.look_ahead(&a, &[]), 0);
    for command in batch {
        w.command(&a, command);
    }
    let survey = w.broker.stats(w.now);
    let queue = &survey.queues[0];
    assert_eq!((queue.stats.acks, queue.in_flight), (1, MESSAGES as u64), "one is settled, one is new");
    assert_eq!(survey.unknown_acks, 4, "the twice acknowledged, another's, nobody's, and that of no queue");
}
