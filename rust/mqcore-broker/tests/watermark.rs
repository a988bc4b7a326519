//! Paged-out bodies: delivery, order, and the treatment of those that cannot be read.

use crate::world;

use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::{Clear, Request};
use mqcore_broker::model::config::BrokerConfig;
use mqcore_broker::model::decision::Step;
use mqcore_broker::model::effect::{Effect, Event, PullOutcome};
use mqcore_broker::model::options::{DeadLetter, QueueChanges, Status};
use mqcore_broker::model::policy;
use mqcore_broker::model::recovery::RecoveredState;
use mqcore_broker::model::stats::DropReason;
use world::{World, acknowledged, changes, handler, queue};

/// A world that keeps only the next message of a queue in memory; the test loads bodies explicitly.
fn forgetful() -> (World, Arc<Client>) {
    let mut world = World::with(BrokerConfig { seed: 7, memory_watermark: 0, ..BrokerConfig::default() });
    world.commits = true;
    world.prompt = false;
    world.broker.restore(RecoveredState::default(), world.now, &mut world.effects);
    let producer = world.client("p");
    (world, producer)
}

fn saving(status: Status) -> QueueChanges {
    QueueChanges { delivery_handler: Some("at-least-once".into()), ..changes(status) }
}

/// Loads all requested bodies; returns their number.
fn bring(world: &mut World, readable: bool) -> usize {
    let loads = std::mem::take(&mut world.loads);
    for load in &loads {
        world.bring(load, &load.sequences, readable);
    }
    world.turn();
    loads.iter().map(|load| load.sequences.len()).sum()
}

#[test]
fn long_queue_is_loaded_in_windows_and_delivered_in_order() {
    let (mut w, p) = forgetful();
    w.create(&p, "ch/1", saving(Status::Push));
    for number in 0..3000 {
        w.publish(&p, "ch/1", &number.to_string());
    }
    let bodies = w.broker.stats(w.now).bodies;
    assert_eq!(bodies.evicted, 2999, "all but the next one leave: {bodies:?}");
    assert!(bodies.memory_bytes < 200, "{bodies:?}");
    let a = w.client("a");
    w.join(&a, "ch").unwrap();
    let mut got = w.delivered();
    assert_eq!(got, ["a:0"], "what is here goes at once, what is not waits");
    let mut rounds = 0;
    while w.stored("ch/1") > 0 {
        let brought = bring(&mut w, true);
        assert!((1..=1024).contains(&brought), "{brought} in one window");
        rounds += 1;
        got.extend(w.delivered());
    }
    let expected: Vec<_> = (0..3000).map(|number| format!("a:{number}")).collect();
    assert_eq!(got, expected);
    assert!(rounds < 20, "{rounds} windows");
    assert_eq!(w.information("ch/1").memory_bytes, 0);
}

#[test]
fn unreadable_body_is_counted_and_blocks_no_other_message() {
    let (mut w, p) = forgetful();
    w.create(&p, "ch/1", saving(Status::Push));
    for number in 0..5 {
        w.publish(&p, "ch/1", &number.to_string());
    }
    let a = w.client("a");
    w.join(&a, "ch").unwrap();
    let load = w.loads.remove(0);
    w.bring(&load, &load.sequences[..2], false);
    w.bring(&load, &load.sequences[2..], true);
    w.turn();
    assert_eq!(w.delivered(), ["a:0", "a:3", "a:4"]);
    let information = w.information("ch/1");
    assert_eq!(information.stats.dropped[DropReason::Unreadable as usize], 2);
    assert_eq!((information.stats.removed, information.normal), (5, 0));
    assert_eq!(w.broker.stats(w.now).bodies.unreadable, 2);
}

#[test]
fn pulls_wait_for_their_bodies_one_after_the_other() {
    let (mut w, p) = forgetful();
    w.create(&p, "ch/1", saving(Status::Pull));
    for number in 0..6 {
        w.publish(&p, "ch/1", &number.to_string());
    }
    let (a, b) = (w.client("a"), w.client("b"));
    w.join(&a, "ch").unwrap();
    w.join(&b, "ch").unwrap();
    let (first, end) = w.pull_with(&a, "ch/1", 3, true, Clear::default());
    assert_eq!((first.len(), end), (0, None), "the newest is not here");
    let (second, end) = w.pull(&b, "ch/1", 9);
    assert_eq!((second.len(), end), (0, None), "though the oldest is, it is not this one's turn");
    bring(&mut w, true);
    bring(&mut w, true);
    let pulled = |events: Vec<Event>| -> Vec<String> {
        let word = |event| match event {
            Event::Pulled { message, index, count, .. } => {
                format!("{} {index}/{count}", world::id_of(&message))
            }
            Event::PullEnded { outcome: PullOutcome::Complete, .. } => "end".to_owned(),
            other => format!("{other:?}"),
        };
        events.into_iter().map(word).collect()
    };
    assert_eq!(pulled(w.notifications(a.connection)), ["5 1/3", "4 2/3", "3 3/3", "end"]);
    assert_eq!(pulled(w.notifications(b.connection)), ["0 1/3", "1 2/3", "2 3/3", "end"]);
}

#[test]
fn a_pull_whose_messages_are_cleared_away_ends() {
    let (mut w, p) = forgetful();
    w.create(&p, "ch/1", saving(Status::Pull));
    for number in 0..4 {
        w.publish(&p, "ch/1", &number.to_string());
    }
    let a = w.client("a");
    w.join(&a, "ch").unwrap();
    assert_eq!(w.pull(&a, "ch/1", 4), (vec!["0".to_owned()], None));
    let clear = Clear { high_priority: true, normal: true };
    w.request(&p, Request::ClearQueue { queue: queue("ch/1"), clear }).unwrap();
    let ended = w.notifications(a.connection);
    assert!(matches!(ended[..], [Event::PullEnded { outcome: PullOutcome::Complete, .. }]), "{ended:?}");
    bring(&mut w, true);
    assert_eq!(w.information("ch/1").memory_bytes, 0, "bodies that nobody waits for are not kept");
}

#[test]
fn messages_that_a_waiting_pull_holds_are_unsettled() {
    let (mut w, p) = forgetful();
    let spec = handler("asking", &[Step::BeginSend]);
    w.broker
        .register_handler(mqcore_broker::model::config::HandlerSpec { base: policy::AT_LEAST_ONCE, ..spec });
    let asked = QueueChanges { delivery_handler: Some("asking".into()), ..changes(Status::Pull) };
    w.create(&p, "ch/1", asked);
    for number in 0..3 {
        w.publish(&p, "ch/1", &number.to_string());
    }
    let a = w.client("a");
    w.join(&a, "ch").unwrap();
    assert_eq!(w.pull(&a, "ch/1", 3), (Vec::new(), None), "two bodies are missing");
    let information = w.information("ch/1");
    assert_eq!((information.normal, information.unsettled), (2, 1));
}

#[test]
fn expired_messages_are_loaded_only_if_needed() {
    let (mut w, p) = forgetful();
    let mortal = QueueChanges { message_timeout: Some(Duration::from_secs(1)), ..saving(Status::Pull) };
    w.create(&p, "ch/1", mortal.clone());
    w.create(&p, "dead/1", changes(Status::Pull));
    w.create(
        &p,
        "ch/2",
        QueueChanges { dead_letter: Some(Some(DeadLetter::Queue(queue("dead/1")))), ..mortal },
    );
    for number in 0..4 {
        w.publish(&p, "ch/1", &number.to_string());
        w.publish(&p, "ch/2", &number.to_string());
    }
    w.advance(Duration::from_secs(2));
    assert_eq!(w.information("ch/1").stats.dropped[DropReason::Expired as usize], 4);
    assert_eq!(w.information("ch/2").unsettled, 3, "the first was here; the others are read");
    assert_eq!(bring(&mut w, true), 3);
    let buried = w.effects.iter().filter_map(|effect| match effect {
        Effect::Transfer(transfer) => Some(world::id_of(&transfer.message)),
        _ => None,
    });
    assert_eq!(buried.collect::<Vec<_>>(), ["0", "1", "2", "3"]);
}

#[test]
fn handler_is_notified_of_a_cleared_message_before_it_is_settled() {
    let (mut w, p) = forgetful();
    let spec = handler("watching", &[Step::MessageDequeued]);
    w.broker
        .register_handler(mqcore_broker::model::config::HandlerSpec { base: policy::AT_LEAST_ONCE, ..spec });
    let watched = QueueChanges { delivery_handler: Some("watching".into()), ..changes(Status::Pull) };
    w.create(&p, "ch/1", watched);
    for number in 0..3 {
        w.publish(&p, "ch/1", &number.to_string());
    }
    w.commits = false;
    let clear = Clear { high_priority: true, normal: true };
    w.broker.command(
        &p,
        mqcore_broker::model::command::Command::Request(
            mqcore_broker::model::id::RequestId(99),
            Box::new(Request::ClearQueue { queue: queue("ch/1"), clear }),
        ),
        w.now,
        &mut w.effects,
    );
    let mut farewells = Vec::new();
    for effect in &w.effects {
        match effect {
            Effect::Dequeued(sequence, question) => {
                assert_eq!(question.step, Step::MessageDequeued);
                farewells.push(*sequence);
            }
            Effect::Record(_, mqcore_broker::model::record::Record::Settle(settled)) => {
                farewells.retain(|sequence| sequence != settled);
            }
            _ => {}
        }
    }
    assert!(farewells.is_empty(), "each is settled, behind its farewell");
    let notices = w.effects.iter().filter(|effect| matches!(effect, Effect::Dequeued(..))).count();
    assert_eq!(notices, 2, "the third was in memory");
}

#[test]
fn producer_is_notified_about_a_message_with_a_paged_out_body() {
    let (mut w, p) = forgetful();
    let patient = policy::Policy {
        key: "patient",
        received: mqcore_broker::model::decision::Decision { save: true, ..world::ALLOW },
        ..policy::ACK_ON_CONSUME
    };
    w.broker.register_handler(mqcore_broker::model::config::HandlerSpec::of_policy(patient));
    let options =
        QueueChanges { delivery_handler: Some("patient".into()), ..acknowledged(Status::RoundRobin) };
    w.create(&p, "ch/1", options);
    for number in 0..3 {
        w.publish(&p, "ch/1", &number.to_string());
    }
    let a = w.client("a");
    w.join(&a, "ch").unwrap();
    bring(&mut w, true);
    assert_eq!(w.delivered(), ["a:0", "a:1", "a:2"]);
    for number in 0..3 {
        w.ack(&a, "ch/1", &number.to_string());
    }
    assert_eq!(w.heard(&p), ["0 ok by a", "1 ok by a", "2 ok by a"]);
}

#[test]
fn unsaved_messages_stay_where_they_are() {
    let (mut w, p) = forgetful();
    w.create(&p, "ch/1", changes(Status::Pull));
    for number in 0..50 {
        w.publish(&p, "ch/1", &number.to_string());
    }
    assert_eq!(w.broker.stats(w.now).bodies, mqcore_broker::model::stats::BodyStats::default());
    assert!(w.loads.is_empty());
}
