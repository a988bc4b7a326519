//! Duplicates by message id, within the window of the queue, with and without a restart.

use crate::durability::{create, durable, saving};
use crate::world;

use std::time::Duration;

use mqcore_broker::model::decision::Step;
use mqcore_broker::model::options::{QueueChanges, Status};
use mqcore_broker::model::stats::DropReason;
use world::{ALLOW, World, acknowledged, changes, handler};

const MINUTE: Duration = Duration::from_secs(60);

fn remembering(options: QueueChanges) -> QueueChanges {
    QueueChanges { deduplication_window: Some(MINUTE), ..options }
}

fn duplicates(w: &World, address: &str) -> u64 {
    w.information(address).stats.dropped[DropReason::Duplicate as usize]
}

#[test]
fn second_message_with_an_id_is_confirmed_and_dropped_within_the_window() {
    let mut w = World::new();
    let p = w.client("p");
    w.create(&p, "ch/1", remembering(changes(Status::Pull)));
    w.create(&p, "ch/2", changes(Status::Pull));
    w.join(&p, "ch").unwrap();
    w.publish(&p, "ch/1", "1");
    w.heard(&p);
    w.publish(&p, "ch/1", "1");
    assert_eq!(w.heard(&p), ["1 ok"]);
    assert_eq!((w.stored("ch/1"), duplicates(&w, "ch/1")), (1, 1));
    assert_eq!(w.pull(&p, "ch/1", 1).0, ["1"]);
    w.publish(&p, "ch/1", "1");
    assert_eq!((w.stored("ch/1"), duplicates(&w, "ch/1")), (0, 2), "also after it left the queue");
    w.publish(&p, "ch/2", "1");
    w.publish(&p, "ch/2", "1");
    assert_eq!((w.stored("ch/2"), duplicates(&w, "ch/2")), (2, 0), "another queue, without a window");
    w.advance(MINUTE);
    w.publish(&p, "ch/1", "1");
    assert_eq!((w.stored("ch/1"), duplicates(&w, "ch/1")), (1, 2));
}

#[test]
fn messages_without_an_id_are_never_duplicates() {
    let mut w = World::new();
    let p = w.client("p");
    w.create(&p, "ch/1", remembering(changes(Status::Pull)));
    w.publish_unconfirmed(&p, "ch/1", "");
    w.publish_unconfirmed(&p, "ch/1", "");
    assert_eq!((w.stored("ch/1"), duplicates(&w, "ch/1")), (2, 0));
}

#[test]
fn message_whose_first_copy_waits_for_its_decision_is_rejected_for_now() {
    let mut w = World::new();
    w.broker.register_handler(handler("h", &[Step::ReceivedFromProducer]));
    let p = w.client("p");
    let asks = QueueChanges { delivery_handler: Some("h".into()), ..changes(Status::Pull) };
    w.create(&p, "ch/1", remembering(asks));
    w.publish(&p, "ch/1", "1");
    w.publish(&p, "ch/1", "1");
    assert_eq!(w.heard(&p), ["1 refused 503"]);
    w.answer(Step::ReceivedFromProducer, mqcore_broker::model::decision::Decision::REFUSE);
    w.heard(&p);
    w.publish(&p, "ch/1", "1");
    w.answer(Step::ReceivedFromProducer, ALLOW);
    assert_eq!((w.stored("ch/1"), duplicates(&w, "ch/1")), (1, 0), "the first one was refused");
    w.publish(&p, "ch/1", "1");
    assert_eq!((w.stored("ch/1"), duplicates(&w, "ch/1")), (1, 1));
}

#[test]
fn ids_of_saved_messages_survive_a_crash_at_every_record() {
    let (mut w, mut disk) = durable();
    let p = w.client("p");
    create(&mut w, &mut disk, &p, "ch/1", remembering(saving(Status::Pull)));
    let began = w.now;
    for id in ["waits", "settled"] {
        w.publish(&p, "ch/1", id);
        disk.commit(&mut w);
    }
    assert_eq!(w.heard(&p), ["waits ok", "settled ok"]);
    let confirmed = disk.len();
    w.join(&p, "ch").unwrap();
    assert_eq!(w.pull(&p, "ch/1", 2).0, ["waits", "settled"]);
    w.ack(&p, "ch/1", "settled");
    disk.commit(&mut w);
    for kept in confirmed..=disk.len() {
        let mut again = disk.start_from(kept, began.after(Duration::from_secs(30)));
        again.commits = true;
        let p = again.client("p");
        let before = again.stored("ch/1");
        for id in ["waits", "settled"] {
            again.publish(&p, "ch/1", id);
        }
        assert_eq!((again.stored("ch/1"), duplicates(&again, "ch/1")), (before, 2), "{kept} records");
        assert_eq!(again.heard(&p), ["waits ok", "settled ok"]);
        again.advance(MINUTE);
        again.publish(&p, "ch/1", "settled");
        assert_eq!(again.stored("ch/1"), before + 1, "the window is over");
    }
    let mut late = disk.start_at(began.after(2 * MINUTE));
    late.commits = true;
    let p = late.client("p");
    late.publish(&p, "ch/1", "settled");
    assert_eq!(late.stored("ch/1"), 2);
}

#[test]
fn message_that_a_crash_lost_before_its_commit_can_be_published_again() {
    let (mut w, mut disk) = durable();
    let p = w.client("p");
    create(&mut w, &mut disk, &p, "ch/1", remembering(saving(Status::Pull)));
    let before = disk.len();
    w.publish(&p, "ch/1", "1");
    disk.commit(&mut w);
    let mut again = disk.start_from(before, w.now);
    again.commits = true;
    let p = again.client("p");
    again.publish(&p, "ch/1", "1");
    assert_eq!((again.stored("ch/1"), duplicates(&again, "ch/1")), (1, 0));
}

#[test]
fn definitions_of_ids_end_with_the_window_and_with_the_queue() {
    for removed in [false, true] {
        let (mut w, mut disk) = durable();
        let p = w.client("p");
        create(&mut w, &mut disk, &p, "ch/1", remembering(saving(Status::Pull)));
        w.publish(&p, "ch/1", "1");
        disk.commit(&mut w);
        w.join(&p, "ch").unwrap();
        w.pull(&p, "ch/1", 1);
        w.ack(&p, "ch/1", "1");
        disk.commit(&mut w);
        assert_eq!(disk.remembered_ids(), 1);
        if removed {
            let queue = world::queue("ch/1");
            let remove = mqcore_broker::model::command::Request::RemoveQueue { queue };
            let id = mqcore_broker::model::id::RequestId(9);
            w.command(&p, mqcore_broker::model::command::Command::Request(id, Box::new(remove)));
        } else {
            w.advance(MINUTE);
        }
        disk.commit(&mut w);
        assert_eq!(disk.remembered_ids(), 0);
    }
}

#[test]
fn dead_letter_of_a_remembered_message_is_taken() {
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    let once = QueueChanges { put_back_limit: Some(0), ..acknowledged(Status::RoundRobin) };
    w.create(&p, "ch/1", remembering(once));
    w.join(&a, "ch").unwrap();
    w.publish(&p, "ch/1", "1");
    w.nack(&a, "ch/1", "1", "no");
    w.transfer();
    assert_eq!(duplicates(&w, "ch/1"), 0);
    w.publish(&p, "ch/1", "1");
    assert_eq!(duplicates(&w, "ch/1"), 1);
}
