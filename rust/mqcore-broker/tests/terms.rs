//! Terms of single messages: delay, expiry and priority, with and without a restart.

use crate::durability::{create, durable, saving};
use crate::world;

use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::{Clear, Command, Retry};
use mqcore_broker::model::decision::Step;
use mqcore_broker::model::effect::PullOutcome;
use mqcore_broker::model::message::{Message, Properties};
use mqcore_broker::model::options::{DeadLetter, QueueChanges, Status};
use mqcore_broker::model::stats::DropReason;
use mqcore_broker::model::time::Timestamp;
use world::{ALLOW, World, acknowledged, changes, handler, queue};

const SECOND: Duration = Duration::from_secs(1);

fn publish(w: &mut World, client: &Arc<Client>, address: &str, id: &str, terms: &[(&str, u64)]) {
    let headers: String = terms.iter().map(|(name, value)| format!("Mqcore-{name}:{value}\r\n")).collect();
    let properties = Properties { pending_acknowledge: true, content_type: 1, ..Properties::default() }
        .with_terms_of(headers.as_bytes());
    let producer = Some(client.clone());
    let message = Message::from_parts(id.as_bytes(), headers.as_bytes(), b"body", properties, producer);
    w.command(client, Command::Publish { queue: queue(address), message });
}

fn expired(w: &World, address: &str) -> u64 {
    w.information(address).stats.dropped[DropReason::Expired as usize]
}

#[test]
fn delayed_message_is_delivered_at_its_time_and_others_pass_it() {
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    w.create(&p, "ch/1", changes(Status::Push));
    w.join(&a, "ch").unwrap();
    publish(&mut w, &p, "ch/1", "late", &[("Delay", 10_000)]);
    publish(&mut w, &p, "ch/1", "soon", &[("Delay", 5_000)]);
    publish(&mut w, &p, "ch/1", "now", &[("Delay", 0)]);
    assert_eq!(w.delivered(), ["a:now"]);
    let information = w.information("ch/1");
    assert_eq!((information.delayed, information.next_attempt_ms), (2, w.now.0 + 5_000));
    w.advance(Duration::from_millis(4_999));
    assert!(w.delivered().is_empty());
    w.advance(Duration::from_millis(1));
    assert_eq!(w.delivered(), ["a:soon"]);
    w.advance(5 * SECOND);
    assert_eq!(w.delivered(), ["a:late"]);
    assert_eq!(w.stored("ch/1"), 0);
}

#[test]
fn delay_begins_with_the_arrival_also_if_the_handler_takes_its_time() {
    let mut w = World::new();
    w.broker.register_handler(handler("h", &[Step::ReceivedFromProducer]));
    let (p, a) = (w.client("p"), w.client("a"));
    let asks = QueueChanges { delivery_handler: Some("h".into()), ..changes(Status::Push) };
    w.create(&p, "ch/1", asks);
    w.join(&a, "ch").unwrap();
    publish(&mut w, &p, "ch/1", "1", &[("Delay", 3_000), ("Expires-In", 4_000)]);
    w.advance(2 * SECOND);
    w.answer(Step::ReceivedFromProducer, ALLOW);
    w.advance(Duration::from_millis(999));
    assert!(w.delivered().is_empty());
    w.advance(Duration::from_millis(1));
    assert_eq!(w.delivered(), ["a:1"]);
}

#[test]
fn delay_is_over_after_the_first_delivery() {
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    w.create(&p, "ch/1", acknowledged(Status::RoundRobin));
    w.join(&a, "ch").unwrap();
    publish(&mut w, &p, "ch/1", "1", &[("Delay", 10_000)]);
    w.advance(10 * SECOND);
    assert_eq!(w.delivered(), ["a:1"]);
    w.nack(&a, "ch/1", "1", "no");
    assert_eq!(w.delivered(), ["a:1"], "requeued without another delay");
}

#[test]
fn expired_message_is_counted_and_never_delivered() {
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    w.create(&p, "ch/1", changes(Status::Push));
    publish(&mut w, &p, "ch/1", "long", &[("Expires-In", 60_000)]);
    publish(&mut w, &p, "ch/1", "short", &[("Expires-In", 1_000)]);
    publish(&mut w, &p, "ch/1", "for ever", &[]);
    publish(&mut w, &p, "ch/1", "delayed", &[("Delay", 500), ("Expires-In", 2_000)]);
    w.advance(SECOND);
    assert_eq!((expired(&w, "ch/1"), w.stored("ch/1")), (1, 3));
    w.advance(SECOND);
    assert_eq!((expired(&w, "ch/1"), w.stored("ch/1")), (2, 2));
    w.join(&a, "ch").unwrap();
    assert_eq!(w.delivered(), ["a:long", "a:for ever"]);
    assert_eq!(w.information("ch/1").stats.timed_out, 2);
}

#[test]
fn expired_messages_go_to_a_dead_letter_queue_that_the_options_name_and_stay_there() {
    let mut w = World::new();
    let p = w.client("p");
    w.create(&p, "ch/9", changes(Status::Pull));
    let to = DeadLetter::parse("ch/9").expect("a queue");
    w.create(&p, "ch/1", QueueChanges { dead_letter: Some(Some(to)), ..changes(Status::Push) });
    publish(&mut w, &p, "ch/1", "1", &[("Delay", 500), ("Expires-In", 1_000), ("Priority", 200)]);
    w.advance(SECOND);
    w.transfer();
    assert_eq!((w.stored("ch/1"), w.stored("ch/9")), (0, 1));
    w.advance(60 * SECOND);
    w.join(&p, "ch").unwrap();
    assert_eq!(w.pull(&p, "ch/9", 1), (vec!["1".to_owned()], Some(PullOutcome::Complete)));
}

#[test]
fn timeout_of_the_queue_begins_when_the_delay_ends() {
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    let timeout = QueueChanges { message_timeout: Some(5 * SECOND), ..changes(Status::Push) };
    w.create(&p, "ch/1", timeout);
    publish(&mut w, &p, "ch/1", "1", &[("Delay", 20_000)]);
    publish(&mut w, &p, "ch/1", "2", &[("Delay", 20_000), ("Expires-In", 21_000)]);
    w.advance(20 * SECOND);
    assert_eq!(expired(&w, "ch/1"), 0);
    w.advance(SECOND);
    assert_eq!(expired(&w, "ch/1"), 1, "its own expiry is earlier");
    w.advance(3 * SECOND);
    w.join(&a, "ch").unwrap();
    assert_eq!(w.delivered(), ["a:1"]);
}

#[test]
fn priorities_are_delivered_highest_first_and_in_order_within_each() {
    let mut w = World::new();
    let p = w.client("p");
    w.create(&p, "ch/1", acknowledged(Status::Pull));
    w.join(&p, "ch").unwrap();
    for (id, priority) in [("a", 0), ("b", 9), ("c", 200), ("d", 9), ("e", 0)] {
        publish(&mut w, &p, "ch/1", id, &[("Priority", priority)]);
    }
    w.publish_as(&p, "ch/1", "high", true);
    w.publish(&p, "ch/1", "normal");
    let information = w.information("ch/1");
    assert_eq!((information.high_priority, information.normal), (2, 5), "from 128 on it is high");
    let (ids, _) = w.pull(&p, "ch/1", 2);
    assert_eq!(ids, ["high", "c"]);
    w.nack(&p, "ch/1", "c", "no");
    publish(&mut w, &p, "ch/1", "f", &[("Priority", 200)]);
    let (ids, _) = w.pull(&p, "ch/1", 7);
    assert_eq!(ids, ["c", "f", "b", "d", "a", "e", "normal"]);
    publish(&mut w, &p, "ch/1", "g", &[("Priority", 200)]);
    publish(&mut w, &p, "ch/1", "h", &[("Priority", 100)]);
    let clear = Clear { high_priority: true, normal: false };
    w.publish(&p, "ch/1", "i");
    assert_eq!(w.pull_with(&p, "ch/1", 1, false, clear).0, ["g"]);
    assert_eq!(w.pull(&p, "ch/1", 2).0, ["h", "i"]);
}

#[test]
fn delay_expiry_and_priority_survive_a_restart() {
    let (mut w, mut disk) = durable();
    let p = w.client("p");
    create(&mut w, &mut disk, &p, "ch/1", saving(Status::Pull));
    let began = w.now;
    for (id, terms) in [
        ("delayed", &[("Delay", 600_000)][..]),
        ("expires", &[("Expires-In", 60_000)]),
        ("stays", &[("Expires-In", 3_600_000)]),
        ("low", &[("Priority", 3)]),
        ("top", &[("Priority", 250)]),
        ("lower", &[("Priority", 3)]),
        ("plain", &[]),
    ] {
        publish(&mut w, &p, "ch/1", id, terms);
        disk.commit(&mut w);
    }
    assert_eq!(w.heard(&p).len(), 7, "all are confirmed, the delayed one too");
    let mut again = disk.start_at(began.after(120 * SECOND));
    again.commits = true;
    let p = again.client("p");
    again.join(&p, "ch").unwrap();
    again.advance(Duration::ZERO);
    assert_eq!(expired(&again, "ch/1"), 1);
    let information = again.information("ch/1");
    assert_eq!((information.delayed, information.next_attempt_ms), (1, began.0 + 600_000));
    assert_eq!((information.high_priority, information.normal), (1, 5));
    let order = ["top", "low", "lower", "stays", "plain"];
    assert_eq!(again.pull(&p, "ch/1", 9).0, order);
    for id in order {
        again.ack(&p, "ch/1", id);
    }
    again.advance(Duration::from_millis(479_999));
    assert_eq!(again.pull(&p, "ch/1", 1).0, [""; 0]);
    again.advance(Duration::from_millis(1));
    assert_eq!(again.pull(&p, "ch/1", 1).0, ["delayed"]);
}

#[test]
fn timeout_of_the_queue_continues_over_a_restart() {
    let (mut w, mut disk) = durable();
    let p = w.client("p");
    let options = QueueChanges { message_timeout: Some(60 * SECOND), ..saving(Status::Pull) };
    create(&mut w, &mut disk, &p, "ch/1", options);
    let began = w.now;
    publish(&mut w, &p, "ch/1", "old", &[]);
    publish(&mut w, &p, "ch/1", "delayed", &[("Delay", 30_000)]);
    disk.commit(&mut w);
    w.advance(40 * SECOND);
    publish(&mut w, &p, "ch/1", "new", &[]);
    disk.commit(&mut w);
    let mut again = disk.start_at(began.after(50 * SECOND));
    assert_eq!(expired(&again, "ch/1"), 0);
    // Arrivals are restored in whole seconds.
    again.advance(11 * SECOND);
    assert_eq!(expired(&again, "ch/1"), 1);
    again.advance(30 * SECOND);
    assert_eq!(expired(&again, "ch/1"), 2);
    again.advance(10 * SECOND);
    assert_eq!(expired(&again, "ch/1"), 3);
    let mut back = disk.start_at(Timestamp(began.0 / 2));
    back.advance(61 * SECOND);
    assert_eq!(expired(&back, "ch/1"), 2, "a clock that was set back begins the timeout anew");
}

#[test]
fn message_whose_delay_ended_while_the_broker_was_down_is_delivered_at_once() {
    let (mut w, mut disk) = durable();
    let p = w.client("p");
    create(&mut w, &mut disk, &p, "ch/1", saving(Status::Push));
    publish(&mut w, &p, "ch/1", "1", &[("Delay", 60_000)]);
    disk.commit(&mut w);
    let mut again = disk.start_at(w.now.after(60 * SECOND));
    let a = again.client("a");
    again.join(&a, "ch").unwrap();
    assert_eq!(again.delivered(), ["a:1"]);
}

#[test]
fn many_messages_that_wait_for_their_next_attempt_leave_memory() {
    let (mut w, mut disk) = durable();
    let (p, a) = (w.client("p"), w.client("a"));
    let options = QueueChanges { request_acknowledge: Some(true), ..saving(Status::Push) };
    create(&mut w, &mut disk, &p, "ch/1", options);
    w.join(&a, "ch").unwrap();
    let body = vec![7; 600 << 10];
    for id in ["1", "2", "3"] {
        let properties = Properties { pending_acknowledge: true, ..Properties::default() };
        let message = Message::from_parts(id.as_bytes(), b"", &body, properties, Some(p.clone()));
        w.command(&p, Command::Publish { queue: queue("ch/1"), message });
        disk.commit(&mut w);
        assert_eq!(w.delivered(), [format!("a:{id}")]);
        let until = w.now.after(60 * SECOND);
        w.nack_until(&a, "ch/1", id, Retry::NotBefore(until));
    }
    assert_eq!(w.broker.stats(w.now).bodies.evicted, 2);
    assert!(w.information("ch/1").memory_bytes < 1 << 20, "as much as is loaded ahead");
    for (sequence, message) in disk.messages() {
        w.journal.insert(sequence, message);
    }
    w.advance(60 * SECOND);
    assert_eq!(w.delivered().len(), 3, "they come back with their bodies");
    assert_eq!(w.information("ch/1").delayed, 0);
}

#[test]
fn saved_body_of_a_message_with_a_long_delay_leaves_memory() {
    let (mut w, mut disk) = durable();
    let (p, a) = (w.client("p"), w.client("a"));
    create(&mut w, &mut disk, &p, "ch/1", saving(Status::Push));
    publish(&mut w, &p, "ch/1", "long", &[("Delay", 60_000)]);
    publish(&mut w, &p, "ch/1", "short", &[("Delay", 900)]);
    disk.commit(&mut w);
    assert_eq!(w.heard(&p), ["long ok", "short ok"]);
    assert_eq!(w.broker.stats(w.now).bodies.evicted, 1);
    let in_memory = Message::memory_bytes_of(100);
    assert!(w.information("ch/1").memory_bytes < 2 * in_memory, "only the short one");
    w.join(&a, "ch").unwrap();
    w.advance(SECOND);
    assert_eq!(w.delivered(), ["a:short"]);
    w.ack(&a, "ch/1", "short");
    for (sequence, message) in disk.messages() {
        w.journal.insert(sequence, message);
    }
    w.advance(59 * SECOND);
    assert_eq!(w.delivered(), ["a:long"]);
}

#[test]
fn queues_that_store_nothing_reject_delays() {
    let mut w = World::new();
    let p = w.client("p");
    for (address, status) in [("ch/1", Status::Broadcast), ("ch/2", Status::Cache)] {
        w.create(&p, address, changes(status));
        publish(&mut w, &p, address, "1", &[("Delay", 1)]);
        assert_eq!(w.heard(&p), ["1 refused 406"]);
        publish(&mut w, &p, address, "2", &[("Delay", 0), ("Expires-In", 60_000), ("Priority", 3)]);
        assert!(!w.heard(&p).contains(&"2 refused 406".to_owned()));
    }
}

#[test]
fn times_far_ahead_do_not_overflow() {
    let mut w = World::new();
    let p = w.client("p");
    w.create(&p, "ch/1", changes(Status::Push));
    w.now = Timestamp(u64::MAX - 5);
    publish(&mut w, &p, "ch/1", "1", &[("Delay", 3_000_000_000_000)]);
    assert_eq!(w.stored("ch/1"), 1);
}
