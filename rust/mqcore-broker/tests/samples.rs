//! Samples of queues: what waits, since when, and what holds it up.

use std::time::Duration;

use mqcore_broker::model::command::{Command, Request};
use mqcore_broker::model::decision::Step;
use mqcore_broker::model::id::{ChannelName, ConnectionId};
use mqcore_broker::model::options::{QueueChanges, Status};
use mqcore_broker::model::stats::{BLOCKING_MAX, DeliveryBlock, QueueSample};
use mqcore_broker::model::subscription::QueueJoin;
use mqcore_broker::shard::sampling::QueueSampling;

use crate::world::{World, acknowledged, becoming, changes, handler, queue};

/// All steps of a sampling, and their number.
fn sample(w: &World, mut sampling: QueueSampling) -> (Vec<QueueSample>, usize) {
    let steps = (1..).find(|_| w.broker.continue_sampling(&mut sampling, w.now)).unwrap();
    (sampling.into_samples(), steps)
}

/// The only queue.
fn only(w: &World) -> QueueSample {
    let (mut samples, _) = sample(w, QueueSampling::of_all());
    assert_eq!(samples.len(), 1);
    samples.remove(0)
}

fn join_with_prefetch(w: &mut World, name: &str, prefetch: u32) -> ConnectionId {
    let client = w.client(name);
    let join = QueueJoin { channel: ChannelName::new("ch").unwrap(), queues: vec![1], prefetch };
    w.request(&client, Request::JoinQueues(Box::new(join))).unwrap();
    client.connection
}

#[test]
fn a_queue_without_messages_is_held_up_by_nothing() {
    let mut w = World::new();
    let p = w.client("p");
    w.create(&p, "ch/1", changes(Status::Push));
    let found = only(&w);
    assert_eq!((found.block, found.ready, found.oldest_ms, found.consumers), (None, 0, 0, 0));
}

#[test]
fn each_status_says_why_its_messages_wait() {
    for (status, block) in [
        (Status::Push, Some(DeliveryBlock::NoConsumers)),
        (Status::RoundRobin, Some(DeliveryBlock::NoConsumers)),
        (Status::Pull, Some(DeliveryBlock::NotPulled)),
        (Status::Cache, None),
        (Status::Paused, Some(DeliveryBlock::Paused)),
    ] {
        let mut w = World::new();
        let p = w.client("p");
        w.create(&p, "ch/1", changes(status));
        w.publish(&p, "ch/1", "m");
        let found = only(&w);
        assert_eq!((found.status, found.ready, found.block), (status, 1, block));
    }
}

#[test]
fn the_age_is_that_of_the_oldest_message_of_any_priority() {
    let mut w = World::new();
    let p = w.client("p");
    w.create(&p, "ch/1", changes(Status::Pull));
    let first = w.now;
    w.publish(&p, "ch/1", "normal");
    w.advance(Duration::from_secs(5));
    w.publish_as(&p, "ch/1", "urgent", true);
    assert_eq!(only(&w).oldest_ms, first.0, "the urgent one is next, but the other is older");
}

#[test]
fn consumers_at_their_prefetch_are_named() {
    let mut w = World::new();
    let p = w.client("p");
    w.create(&p, "ch/1", acknowledged(Status::RoundRobin));
    for name in ["c1", "c2", "c3", "c4", "c5"] {
        join_with_prefetch(&mut w, name, 1);
    }
    for number in 0..5 {
        w.publish(&p, "ch/1", &format!("m{number}"));
        w.turn();
    }
    let found = only(&w);
    assert_eq!((found.block, found.in_flight), (None, 5), "nothing waits");
    w.publish(&p, "ch/1", "one more");
    w.turn();
    let found = only(&w);
    assert_eq!((found.ready, found.consumers, found.block), (1, 5, Some(DeliveryBlock::PrefetchReached)));
    let names: Vec<_> = found.blocking.iter().map(|client| &*client.id).collect();
    assert_eq!(names, ["c1", "c2", "c3"][..BLOCKING_MAX], "some of them");
}

#[test]
fn a_queue_that_delivers_one_message_at_a_time_waits_for_its_acknowledgement() {
    let mut w = World::new();
    let (p, c) = (w.client("p"), w.client("c"));
    let options = QueueChanges { wait_for_acknowledge: Some(true), ..acknowledged(Status::RoundRobin) };
    w.create(&p, "ch/1", options);
    w.join(&c, "ch").unwrap();
    for id in ["a", "b"] {
        w.publish(&p, "ch/1", id);
    }
    w.turn();
    assert_eq!(only(&w).block, Some(DeliveryBlock::AwaitsAcknowledgement));
    w.ack(&c, "ch/1", "a");
    w.turn();
    assert_eq!(only(&w).block, None);
}

#[test]
fn messages_that_wait_for_a_decision_and_missing_handlers_are_visible() {
    let mut w = World::new();
    w.broker.register_handler(handler("slow", &[Step::ReceivedFromProducer]));
    let p = w.client("p");
    let options = QueueChanges { delivery_handler: Some("slow".into()), ..changes(Status::Push) };
    w.create(&p, "ch/1", options);
    w.publish(&p, "ch/1", "m");
    let found = only(&w);
    assert_eq!((found.undecided, found.ready), (1, 0));
    assert_eq!((found.handler.as_deref(), found.missing_handler), (Some("slow"), None));
}

#[test]
fn rejected_messages_are_counted() {
    let mut w = World::new();
    let p = w.client("p");
    w.create(&p, "ch/1", QueueChanges { message_limit: Some(1), ..changes(Status::Pull) });
    for id in ["a", "b", "c"] {
        w.publish(&p, "ch/1", id);
    }
    let found = only(&w);
    assert_eq!((found.stats.received, found.stats.rejected, found.message_limit), (1, 2, 1));
}

#[test]
fn quiet_queues_are_left_out_of_a_sampling_of_active_ones() {
    let mut w = World::new();
    let (p, c) = (w.client("p"), w.client("c"));
    for address in ["idle/1", "busy/1", "full/1", "paused/1"] {
        w.create(&p, address, changes(Status::Push));
    }
    w.join(&c, "busy").unwrap();
    w.update(&p, "paused/1", becoming(Status::Paused));
    w.publish(&p, "full/1", "waits");
    let active = |w: &World| {
        let (samples, _) = sample(w, QueueSampling::of_active(Duration::from_secs(15)));
        samples.iter().map(|found| found.queue.to_string()).collect::<Vec<_>>()
    };
    w.advance(Duration::from_secs(60));
    assert_eq!(active(&w), ["full/1", "paused/1"]);
    w.publish(&p, "busy/1", "passes");
    w.turn();
    assert_eq!(active(&w), ["busy/1", "full/1", "paused/1"]);
    w.advance(Duration::from_secs(16));
    assert_eq!(active(&w), ["full/1", "paused/1"]);
    assert_eq!(sample(&w, QueueSampling::of_all()).0.len(), 4);
}

#[test]
fn many_queues_take_many_steps_and_appear_once_each_in_order() {
    let mut w = World::new();
    let p = w.client("p");
    for channel in 0..25 {
        for id in 0..100 {
            w.create(&p, &format!("c{channel:02}/{id}"), changes(Status::Pull));
        }
    }
    let (samples, steps) = sample(&w, QueueSampling::of_all());
    assert!((3..6).contains(&steps), "{steps} steps");
    assert_eq!(samples.len(), 2_500);
    assert!(samples.windows(2).all(|pair| pair[0].queue < pair[1].queue));
}

/// The command that ends a consumer's congestion must end the block too.
#[test]
fn consumers_that_do_not_read_hold_up_the_queue_until_they_read_again() {
    let mut w = World::new();
    let (p, c) = (w.client("p"), w.client("c"));
    w.create(&p, "ch/1", changes(Status::RoundRobin));
    w.join(&c, "ch").unwrap();
    w.broker.congested(c.connection, w.now, &mut w.effects);
    w.command(
        &p,
        Command::Publish { queue: queue("ch/1"), message: World::message(&p, &queue("ch/1"), "m", false) },
    );
    w.turn();
    let found = only(&w);
    assert_eq!((found.block, found.blocking[0].id.as_ref()), (Some(DeliveryBlock::ConsumersCongested), "c"));
    w.broker.writable(c.connection, w.now, &mut w.effects);
    w.turn();
    assert_eq!(only(&w).block, None);
}
