//! Redelivery after a delay, dead letters, and queues whose handler is missing: no message leaves its queue unless it
//! was settled, expired, replaced, or dropped by an option.

use crate::world;

use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::{Clear, Request, Retry};
use mqcore_broker::model::config::BrokerConfig;
use mqcore_broker::model::decision::Step;
use mqcore_broker::model::effect::{Effect, PullOutcome, Report};
use mqcore_broker::model::id::ChannelName;
use mqcore_broker::model::names::BrokerNames;
use mqcore_broker::model::options::{ChannelChanges, DeadLetter, QueueChanges, Status};
use mqcore_broker::model::placement::Placement;
use mqcore_broker::model::recovery::RecoveredState;
use mqcore_broker::model::rejection::RejectionKind;
use world::{ALLOW, World, acknowledged, changes, handler, queue};

const SECOND: Duration = Duration::from_secs(1);

/// A broker with a journal that commits at once, and a client.
fn durable() -> (World, Arc<Client>) {
    let mut w = World::new();
    w.commits = true;
    w.broker.restore(RecoveredState::default(), w.now, &mut w.effects);
    let p = w.client("p");
    (w, p)
}

fn saving(status: Status) -> QueueChanges {
    QueueChanges { delivery_handler: Some("at-least-once".into()), ..acknowledged(status) }
}

/// The time until the next delivery, after the message "1" was delivered to `a`.
fn delay(w: &mut World) -> Duration {
    assert!(w.delivered().is_empty());
    let from = w.now;
    let due = w.information("ch/1").next_attempt_ms;
    let waited = Duration::from_millis(due - from.0);
    w.advance(waited.saturating_sub(Duration::from_millis(1)));
    assert!(w.delivered().is_empty(), "not earlier");
    w.advance(Duration::from_millis(1));
    assert_eq!(w.delivered(), ["a:1"]);
    waited
}

#[test]
fn delay_doubles_with_each_rejection_of_a_saved_message_up_to_a_minute() {
    let (mut w, p) = durable();
    let a = w.client("a");
    w.create(&p, "ch/1", saving(Status::RoundRobin));
    w.join(&a, "ch").unwrap();
    w.publish(&p, "ch/1", "1");
    assert_eq!(w.delivered(), ["a:1"]);
    let mut delays = Vec::new();
    for _ in 0..12 {
        w.nack(&a, "ch/1", "1", "no");
        assert_eq!(w.information("ch/1").delayed, 1);
        delays.push(delay(&mut w).as_millis());
    }
    assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 51_200, 60_000, 60_000]);
    assert_eq!((w.information("ch/1").delayed, w.information("ch/1").next_attempt_ms), (0, 0));
}

#[test]
fn messages_in_memory_are_redelivered_at_once_unless_the_queue_names_a_delay() {
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    w.create(&p, "ch/1", acknowledged(Status::RoundRobin));
    w.join(&a, "ch").unwrap();
    w.publish(&p, "ch/1", "1");
    w.nack(&a, "ch/1", "1", "no");
    assert_eq!(w.delivered(), ["a:1", "a:1"]);
    let second = QueueChanges {
        retry_delay: Some(Some(SECOND)),
        retry_delay_max: Some(3 * SECOND),
        ..QueueChanges::default()
    };
    w.update(&p, "ch/1", second);
    let mut delays = Vec::new();
    for _ in 0..3 {
        w.nack(&a, "ch/1", "1", "no");
        delays.push(delay(&mut w));
    }
    assert_eq!(delays, [2 * SECOND, 3 * SECOND, 3 * SECOND]);
}

#[test]
fn acknowledgement_timeout_delays_like_a_rejection_and_a_lost_consumer_does_not() {
    let (mut w, p) = durable();
    let (a, b) = (w.client("a"), w.client("b"));
    w.create(&p, "ch/1", saving(Status::RoundRobin));
    w.join(&a, "ch").unwrap();
    w.publish(&p, "ch/1", "1");
    w.advance(15 * SECOND);
    assert_eq!(w.delivered(), ["a:1"]);
    assert_eq!(w.information("ch/1").delayed, 1);
    w.advance(SECOND);
    assert_eq!(w.delivered(), ["a:1"]);
    w.join(&b, "ch").unwrap();
    w.close(&a);
    assert_eq!(w.delivered(), ["b:1"], "at once");
}

#[test]
fn consumer_chooses_the_delay_of_a_rejected_message() {
    let (mut w, p) = durable();
    let a = w.client("a");
    w.create(&p, "ch/1", saving(Status::RoundRobin));
    w.join(&a, "ch").unwrap();
    w.publish(&p, "ch/1", "1");
    assert_eq!(w.delivered(), ["a:1"]);
    w.nack_until(&a, "ch/1", "1", Retry::After(90 * SECOND));
    assert_eq!(delay(&mut w), 90 * SECOND, "longer than the queue's maximum");
    w.nack_until(&a, "ch/1", "1", Retry::After(Duration::ZERO));
    assert_eq!(w.delivered(), ["a:1"], "at once");
}

#[test]
fn other_messages_pass_a_delayed_one_and_it_returns_to_the_end() {
    let (mut w, p) = durable();
    let a = w.client("a");
    w.create(&p, "ch/1", saving(Status::RoundRobin));
    w.join(&a, "ch").unwrap();
    w.publish(&p, "ch/1", "1");
    w.nack(&a, "ch/1", "1", "no");
    w.leave(&a, "ch");
    w.publish(&p, "ch/1", "2");
    w.advance(SECOND);
    w.publish(&p, "ch/1", "3");
    w.join(&a, "ch").unwrap();
    assert_eq!(w.delivered(), ["a:1", "a:2", "a:1", "a:3"]);
}

#[test]
fn delayed_message_expires_at_its_deadline() {
    let (mut w, p) = durable();
    let a = w.client("a");
    let options = QueueChanges { message_timeout: Some(SECOND), ..saving(Status::RoundRobin) };
    w.create(&p, "ch/1", options);
    w.join(&a, "ch").unwrap();
    w.publish(&p, "ch/1", "1");
    w.nack_until(&a, "ch/1", "1", Retry::After(60 * SECOND));
    w.advance(SECOND);
    assert_eq!((w.stored("ch/1"), w.information("ch/1").stats.timed_out), (0, 1));
}

#[test]
fn message_without_attempts_left_goes_to_the_dead_letter_queue_of_its_channel() {
    let (mut w, p) = durable();
    let a = w.client("a");
    let only_one = ChannelChanges {
        allow_multiple_queues: Some(false),
        allowed_queues: Some(Some(vec![1])),
        queue_limit: Some(1),
        ..ChannelChanges::default()
    };
    w.create_channel(&p, "ch", only_one);
    let options = QueueChanges { put_back_limit: Some(0), ..saving(Status::RoundRobin) };
    w.create(&p, "ch/1", options);
    w.join(&a, "ch").unwrap();
    for id in ["1", "2"] {
        w.publish(&p, "ch/1", id);
        w.nack(&a, "ch/1", id, "no");
        w.transfer();
    }
    let dead = w.information("ch/65535");
    assert_eq!(dead.options.status, Status::Pull);
    assert_eq!(dead.options.delivery_handler.as_deref(), Some("at-least-once"));
    assert_eq!(dead.options.tag.as_deref(), Some("dead-letters"));
    assert_eq!((dead.normal, dead.stats.saved, w.stored("ch/1")), (2, 2, 0));
    let created = Report::DeadLetterQueueCreated { queue: queue("ch/65535"), from: queue("ch/1") };
    let reports =
        w.effects.iter().filter(|effect| matches!(effect, Effect::Report(report) if **report == created));
    assert_eq!(reports.count(), 1, "reported once");
}

#[test]
fn dead_letter_queue_keeps_messages_that_its_consumers_reject() {
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    w.create(&p, "ch/1", QueueChanges { put_back_limit: Some(0), ..acknowledged(Status::RoundRobin) });
    w.join(&a, "ch").unwrap();
    w.publish(&p, "ch/1", "1");
    w.nack(&a, "ch/1", "1", "no");
    w.transfer();
    assert_eq!(w.information("ch/65535").options.delivery_handler.as_deref(), Some("memory"), "no journal");
    for retry in [Retry::AsDecided, Retry::Never].into_iter().cycle().take(40) {
        assert_eq!(w.pull(&a, "ch/65535", 1).0, ["1"]);
        w.nack_until(&a, "ch/65535", "1", retry);
        w.transfer();
    }
    assert_eq!(w.stored("ch/65535"), 1);
}

#[test]
fn dead_letter_of_a_queue_in_memory_is_saved_before_consumers_get_it() {
    let (mut w, p) = durable();
    let a = w.client("a");
    w.create(&p, "dead/1", saving(Status::Pull));
    let options = QueueChanges {
        put_back_limit: Some(0),
        dead_letter: Some(Some(DeadLetter::Queue(queue("dead/1")))),
        ..acknowledged(Status::RoundRobin)
    };
    w.create(&p, "ch/1", options);
    w.join(&a, "ch").unwrap();
    w.publish(&p, "ch/1", "1");
    w.commits = false;
    w.nack(&a, "ch/1", "1", "no");
    w.transfer();
    assert_eq!(
        (w.stored("dead/1"), w.information("dead/1").undecided),
        (0, 1),
        "its record is not committed"
    );
    w.commits = true;
    w.turn();
    let dead = w.information("dead/1");
    assert_eq!((dead.normal, dead.undecided, dead.stats.saved), (1, 0, 1));
}

#[test]
fn dead_letter_queue_must_exist_when_it_is_named() {
    let mut w = World::new();
    let p = w.client("p");
    let to = |name: &str| QueueChanges {
        dead_letter: Some(Some(DeadLetter::Queue(queue(name)))),
        ..changes(Status::Push)
    };
    let create = |changes: QueueChanges| Request::CreateQueue { queue: queue("ch/1"), changes };
    let refused = w.request(&p, create(to("nowhere/1"))).unwrap_err();
    assert_eq!(refused.kind, RejectionKind::NotFound);
    assert!(refused.reason.contains("nowhere/1 does not exist"), "{refused}");
    assert_eq!(w.request(&p, create(to("CH/1"))).unwrap_err().kind, RejectionKind::Unacceptable, "itself");
    w.create(&p, "ch/1", changes(Status::Push));
    let update = Request::UpdateQueue { queue: queue("ch/1"), changes: to("nowhere/1") };
    assert_eq!(w.request(&p, update).unwrap_err().kind, RejectionKind::NotFound);
    w.update(&p, "ch/1", to("ch/65535"));
    w.create(&p, "dead/1", changes(Status::Pull));
    w.update(&p, "ch/1", to("dead/1"));
    let channel = mqcore_broker::model::id::ChannelName::new("other").expect("a good name");
    let changes = ChannelChanges { queue: to("nowhere/1"), ..ChannelChanges::default() };
    let create = Request::CreateChannel { channel, changes };
    assert_eq!(w.request(&p, create).unwrap_err().kind, RejectionKind::NotFound);
}

#[test]
fn dead_letter_queue_that_was_removed_is_replaced_by_that_of_the_channel() {
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    w.create(&p, "dead/1", changes(Status::Pull));
    let options = QueueChanges {
        put_back_limit: Some(0),
        dead_letter: Some(Some(DeadLetter::Queue(queue("dead/1")))),
        ..acknowledged(Status::RoundRobin)
    };
    w.create(&p, "ch/1", options);
    w.join(&a, "ch").unwrap();
    w.request(&p, Request::RemoveQueue { queue: queue("dead/1") }).unwrap();
    w.publish(&p, "ch/1", "1");
    w.nack(&a, "ch/1", "1", "no");
    w.transfer();
    assert_eq!(w.stored("ch/65535"), 1);
    let missing = |effect: &Effect| matches!(effect, Effect::Report(report) if matches!(**report, Report::DeadLetterQueueMissing { .. }));
    assert!(w.effects.iter().any(missing));
}

#[test]
fn queue_without_its_handler_neither_takes_nor_delivers_nor_expires_messages() {
    let config = BrokerConfig { delivery_handler: "lost".into(), ..BrokerConfig::default() };
    let mut w = World::with(config);
    let (p, a) = (w.client("p"), w.client("a"));
    let options = QueueChanges { message_timeout: Some(10 * SECOND), ..changes(Status::Push) };
    let register = |w: &mut World| w.broker.register_handler(handler("lost", &[Step::MessageTimedOut]));
    w.create(&p, "ch/1", options);
    w.publish(&p, "ch/1", "1");
    assert_eq!(w.heard(&p), ["1 refused 503"]);
    assert_eq!(w.information("ch/1").missing_handler.as_deref(), Some("lost"));
    assert_eq!(w.broker.waiting_for_handlers().count(), 1);
    register(&mut w);
    assert_eq!(w.information("ch/1").missing_handler, None);
    w.publish(&p, "ch/1", "2");
    assert_eq!(w.heard(&p), ["2 ok"]);
    w.join(&a, "ch").unwrap();
    assert_eq!(w.delivered(), ["a:2"]);
}

#[test]
fn queues_without_their_handler_are_listed_until_they_have_it_or_are_removed() {
    let mut w = World::with(BrokerConfig { delivery_handler: "lost".into(), ..BrokerConfig::default() });
    let p = w.client("p");
    for name in ["ch/2", "ch/1", "other/1"] {
        w.create(&p, name, changes(Status::Push));
    }
    w.create(&p, "ch/3", QueueChanges { delivery_handler: Some("memory".into()), ..changes(Status::Push) });
    let waiting = |w: &World| -> Vec<String> {
        w.broker.waiting_for_handlers().map(|(queue, key)| format!("{queue} {key}")).collect()
    };
    assert_eq!(waiting(&w), ["ch/1 lost", "ch/2 lost", "other/1 lost"]);
    w.request(&p, Request::RemoveQueue { queue: queue("ch/1") }).unwrap();
    assert_eq!(waiting(&w), ["ch/2 lost", "other/1 lost"]);
    w.request(&p, Request::RemoveChannel { channel: ChannelName::new("other").unwrap() }).unwrap();
    assert_eq!(waiting(&w), ["ch/2 lost"]);
    w.broker.register_handler(handler("another", &[]));
    assert_eq!(waiting(&w), ["ch/2 lost"]);
    w.broker.register_handler(handler("lost", &[]));
    assert!(waiting(&w).is_empty());
}

#[test]
fn queue_continues_when_its_handler_is_registered_after_a_restart() {
    let (mut w, p) = durable();
    w.create(&p, "dead/1", changes(Status::Pull));
    let mut again = World::new();
    again.commits = true;
    let options = QueueChanges { message_timeout: Some(SECOND), ..saving(Status::Pull) };
    let mut known = mqcore_broker::model::options::QueueOptions::default();
    options.apply_to(&mut known);
    known.delivery_handler = Some("lost".into());
    let definition = mqcore_broker::model::definition::Definition::Queue(queue("ch/1"), Box::new(known));
    let recovered = RecoveredState { definitions: vec![definition], ..RecoveredState::default() };
    again.broker.restore(recovered, again.now, &mut again.effects);
    let a = again.client("a");
    again.join(&a, "ch").unwrap();
    again.publish(&a, "ch/1", "1");
    assert_eq!(again.heard(&a), ["1 refused 503"]);
    assert_eq!(again.pull(&a, "ch/1", 1), (vec![], Some(PullOutcome::Unacceptable)));
    again.broker.register_handler(handler("lost", &[Step::BeginSend]));
    again.publish(&a, "ch/1", "2");
    assert_eq!(again.heard(&a), ["2 ok"]);
    assert_eq!(again.pull(&a, "ch/1", 1), (vec![], None));
    again.answer(Step::BeginSend, ALLOW);
    assert_eq!(again.stored("ch/1"), 0);
}

#[test]
fn empty_channel_is_removed_when_its_last_message_expires_or_is_cleared() {
    for clears in [false, true] {
        let mut w = World::new();
        let p = w.client("p");
        let options = QueueChanges { message_timeout: Some(SECOND), ..changes(Status::Push) };
        let temporary = ChannelChanges { destroy_when_empty: Some(true), ..ChannelChanges::default() };
        w.create_channel(&p, "ch", temporary);
        w.create(&p, "ch/1", options);
        w.join(&p, "ch").unwrap();
        w.update(&p, "ch/1", changes(Status::Paused));
        w.publish(&p, "ch/1", "1");
        w.leave(&p, "ch");
        assert_eq!(w.broker.stats(w.now).channels.len(), 1, "it has a message");
        if clears {
            let clear = Clear { high_priority: true, normal: true };
            w.request(&p, Request::ClearQueue { queue: queue("ch/1"), clear }).unwrap();
        } else {
            w.advance(SECOND);
        }
        assert_eq!(w.broker.stats(w.now).channels.len(), 0);
    }
}

#[test]
fn channel_limit_is_that_of_all_shards_together() {
    let names = Arc::<BrokerNames>::default();
    let shard = |shard: usize| {
        let names = Arc::clone(&names);
        World::with(BrokerConfig {
            shard,
            placement: Placement::unkeyed(2),
            channel_limit: 3,
            names,
            ..BrokerConfig::default()
        })
    };
    let (mut one, mut two) = (shard(0), shard(1));
    let (p, q) = (one.client("p"), two.client("q"));
    one.create(&p, "a/1", changes(Status::Push));
    one.create(&p, "b/1", changes(Status::Push));
    two.create(&q, "c/1", changes(Status::Push));
    let create = |name: &str| Request::CreateQueue { queue: queue(name), changes: changes(Status::Push) };
    assert_eq!(two.request(&q, create("d/1")).unwrap_err().kind, RejectionKind::LimitExceeded);
    assert_eq!(one.request(&p, create("d/1")).unwrap_err().kind, RejectionKind::LimitExceeded);
    let channel = mqcore_broker::model::id::ChannelName::new("a").expect("a good name");
    one.request(&p, Request::RemoveChannel { channel }).unwrap();
    two.create(&q, "d/1", changes(Status::Push));
}

#[test]
fn pull_gets_no_message_until_the_previous_one_is_settled_if_the_queue_waits() {
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    let waits = QueueChanges { wait_for_acknowledge: Some(true), ..acknowledged(Status::Pull) };
    w.create(&p, "ch/1", waits.clone());
    w.join(&a, "ch").unwrap();
    for id in ["1", "2"] {
        w.publish(&p, "ch/1", id);
    }
    assert_eq!(w.pull(&a, "ch/1", 2).0, ["1"]);
    assert_eq!(w.pull(&a, "ch/1", 2), (vec![], Some(PullOutcome::Empty)));
    w.ack(&a, "ch/1", "1");
    assert_eq!(w.pull(&a, "ch/1", 2).0, ["2"]);
    let broadcasts = QueueChanges { status: Some(Status::Broadcast), ..waits };
    let create = Request::CreateQueue { queue: queue("ch/2"), changes: broadcasts.clone() };
    assert_eq!(w.request(&p, create).unwrap_err().kind, RejectionKind::Unacceptable);
    let update = Request::UpdateQueue { queue: queue("ch/1"), changes: broadcasts };
    assert_eq!(w.request(&p, update).unwrap_err().kind, RejectionKind::Unacceptable);
}

#[test]
fn a_broadcast_queue_never_waits_for_an_acknowledgement() {
    let mut w = World::new();
    let p = w.client("p");
    let waits = QueueChanges { wait_for_acknowledge: Some(true), ..acknowledged(Status::Push) };
    w.create(&p, "ch/1", waits);
    let broadcasts = QueueChanges { status: Some(Status::Broadcast), ..QueueChanges::default() };
    let update = |changes| Request::UpdateQueue { queue: queue("ch/1"), changes };
    assert_eq!(w.request(&p, update(broadcasts.clone())).unwrap_err().kind, RejectionKind::Unacceptable);
    let both = QueueChanges { wait_for_acknowledge: Some(false), ..broadcasts.clone() };
    w.request(&p, update(both)).unwrap();
    assert!(!w.information("ch/1").options.wait_for_acknowledge);

    let defaults = QueueChanges { wait_for_acknowledge: Some(true), ..QueueChanges::default() };
    w.create_channel(&p, "other", ChannelChanges { queue: defaults, ..ChannelChanges::default() });
    w.create(&p, "other/1", broadcasts);
    assert!(!w.information("other/1").options.wait_for_acknowledge, "a default of the channel has no effect");
    w.create(&p, "other/2", acknowledged(Status::Push));
    assert!(w.information("other/2").options.wait_for_acknowledge);
}
