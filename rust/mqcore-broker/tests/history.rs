//! Every path of a message leaves its steps in the history, and nothing else does.

use crate::world;

use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::history::reader::each_step;
use mqcore_broker::history::{Block, LifecycleKind};
use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::{Clear, Command, Request};
use mqcore_broker::model::config::BrokerConfig;
use mqcore_broker::model::config::HistoryOptions;
use mqcore_broker::model::decision::{Decision, Step};
use mqcore_broker::model::definition::encode_numbers;
use mqcore_broker::model::definition::{Definition, NUMBERS_KEY, decode_definition};
use mqcore_broker::model::effect::Effect;
use mqcore_broker::model::id::{MessageNumber, RequestId, Sequence};
use mqcore_broker::model::options::{DeadLetter, Durability, QueueChanges, Status};
use mqcore_broker::model::record::encode_put;
use mqcore_broker::model::record::{Record, decode_put_head};
use mqcore_broker::model::recovery::{RecoveredMessage, RecoveredState};
use world::ledger::Ledger;
use world::{World, acknowledged, changes, handler, queue};

fn recorded() -> World {
    World::with(BrokerConfig { seed: 7, history: Some(HistoryOptions::default()), ..BrokerConfig::default() })
}

/// The steps since the last call as text: the kind, the reason, and `!` for the last step of a message.
fn new_steps(world: &mut World) -> Vec<String> {
    let mut ledger = Ledger::default();
    let mut blocks = Vec::new();
    world.broker.take_history(&mut blocks);
    for block in &blocks {
        each_step(&block.bytes, &mut |step| {
            let reason = step.reason.map_or(String::new(), |reason| format!(" {reason}"));
            let to = step.target.map_or(String::new(), |target| format!(" to {target}"));
            let by = step.consumer.map_or(String::new(), |consumer| format!(" {}", consumer.id));
            let end = if step.last { "!" } else { "" };
            ledger.steps.push((step.kind, Some(format!("{by}{reason}{to}{end}")), step.number.0, step.last));
        })
        .expect("the broker writes what can be read");
    }
    ledger
        .steps
        .iter()
        .map(|(kind, rest, ..)| format!("{}{}", kind.as_str(), rest.as_deref().unwrap_or("")))
        .collect()
}

fn with_consumer(options: QueueChanges) -> (World, Arc<Client>, Arc<Client>) {
    let mut world = recorded();
    let (producer, consumer) = (world.client("p"), world.client("a"));
    world.create(&producer, "ch/1", options);
    world.join(&consumer, "ch").expect("there is no limit");
    (world, producer, consumer)
}

#[test]
fn without_a_history_nothing_is_written_and_nothing_is_numbered() {
    let mut w = World::new();
    let p = w.client("p");
    w.create(&p, "ch/1", changes(Status::Pull));
    w.publish(&p, "ch/1", "1");
    assert!(new_steps(&mut w).is_empty());
}

#[test]
fn message_without_acknowledgements_ends_with_its_delivery() {
    let (mut w, p, _a) = with_consumer(changes(Status::Push));
    w.publish(&p, "ch/1", "1");
    assert_eq!(new_steps(&mut w), ["produced", "delivered a!"]);
}

#[test]
fn every_consumer_of_a_message_is_named_and_only_the_last_step_ends_it() {
    let (mut w, p, a) = with_consumer(acknowledged(Status::Push));
    let b = w.client("b");
    w.join(&b, "ch").expect("there is no limit");
    w.publish(&p, "ch/1", "1");
    w.ack(&b, "ch/1", "1");
    w.ack(&a, "ch/1", "1");
    assert_eq!(new_steps(&mut w), ["produced", "delivered a", "delivered b", "acked b", "acked a!"]);
}

#[test]
fn nack_timeout_and_lost_consumer_requeue_until_the_limit() {
    let dead_letter = Some(Some(DeadLetter::Drop));
    let options = QueueChanges { put_back_limit: Some(3), dead_letter, ..acknowledged(Status::RoundRobin) };
    let (mut w, p, a) = with_consumer(options);
    w.publish(&p, "ch/1", "1");
    w.nack(&a, "ch/1", "1", "busy");
    w.advance(Duration::from_secs(15));
    w.close(&a);
    assert_eq!(
        new_steps(&mut w),
        [
            "produced",
            "delivered a",
            "nacked a busy",
            "put-back end",
            "delivered a",
            "timed-out a",
            "put-back end",
            "delivered a",
            "consumer-lost a",
            "put-back start"
        ]
    );
    let b = w.client("b");
    w.join(&b, "ch").expect("there is no limit");
    w.nack(&b, "ch/1", "1", "no");
    assert_eq!(new_steps(&mut w), ["delivered b", "nacked b no", "dropped limit!"]);
}

#[test]
fn without_requeue_a_message_ends_with_its_nack_or_timeout() {
    let options =
        QueueChanges { delivery_handler: Some("at-most-once".into()), ..acknowledged(Status::RoundRobin) };
    let (mut w, p, a) = with_consumer(options);
    w.publish(&p, "ch/1", "1");
    w.nack(&a, "ch/1", "1", "no");
    assert_eq!(new_steps(&mut w), ["produced", "delivered a", "nacked a no", "dropped refused!"]);
    w.publish(&p, "ch/1", "2");
    w.advance(Duration::from_secs(15));
    assert_eq!(new_steps(&mut w), ["produced", "delivered a", "timed-out a!"]);
}

#[test]
fn a_message_that_waits_too_long_expires_and_is_dropped_or_dead_lettered() {
    let timeout = Some(Duration::from_secs(5));
    let mut w = recorded();
    let p = w.client("p");
    w.create(&p, "ch/1", QueueChanges { message_timeout: timeout, ..changes(Status::Pull) });
    w.publish(&p, "ch/1", "1");
    w.advance(Duration::from_secs(6));
    assert_eq!(new_steps(&mut w), ["produced", "expired", "dropped expired!"]);
    w.create(&p, "dead/9", changes(Status::Pull));
    let dead_letter = Some(Some(DeadLetter::Queue(queue("dead/9"))));
    w.create(&p, "ch/2", QueueChanges { message_timeout: timeout, dead_letter, ..changes(Status::Pull) });
    w.publish(&p, "ch/2", "2");
    w.advance(Duration::from_secs(6));
    assert_eq!(new_steps(&mut w), ["produced", "expired", "dead-lettered expired to dead/9!"]);
    w.transfer();
    assert_eq!(new_steps(&mut w), ["arrived"]);
}

#[test]
fn broadcasts_record_the_consumers_that_missed_them() {
    let (mut w, p, a) = with_consumer(changes(Status::Broadcast));
    let b = w.client("b");
    w.join(&b, "ch").expect("there is no limit");
    w.broker.congested(a.connection, w.now, &mut w.effects);
    w.publish(&p, "ch/1", "1");
    assert_eq!(new_steps(&mut w), ["produced", "dropped a slow", "delivered b!"]);
    w.broker.congested(b.connection, w.now, &mut w.effects);
    w.publish(&p, "ch/1", "2");
    assert_eq!(new_steps(&mut w), ["produced", "dropped a slow", "dropped b slow!"]);
    w.close(&a);
    w.close(&b);
    w.publish(&p, "ch/1", "3");
    assert_eq!(new_steps(&mut w), ["produced", "dropped no-consumer!"]);
}

#[test]
fn a_cache_replaces_and_its_readers_do_not_end_the_message() {
    let (mut w, p, a) = with_consumer(changes(Status::Cache));
    w.publish(&p, "ch/1", "1");
    w.pull(&a, "ch/1", 1);
    w.publish(&p, "ch/1", "2");
    assert_eq!(new_steps(&mut w), ["produced", "delivered a", "produced", "replaced!"]);
}

#[test]
fn clearing_stopping_and_removing_a_queue_drop_its_messages_as_erased() {
    let (mut w, p, a) = with_consumer(acknowledged(Status::Pull));
    let clear = Clear { high_priority: true, normal: true };
    w.publish(&p, "ch/1", "1");
    w.request(&p, Request::ClearQueue { queue: queue("ch/1"), clear }).expect("it is there");
    assert_eq!(new_steps(&mut w), ["produced", "dropped erased!"]);
    w.publish(&p, "ch/1", "2");
    w.pull(&a, "ch/1", 1);
    w.update(&p, "ch/1", changes(Status::Stopped));
    assert_eq!(new_steps(&mut w), ["produced", "delivered a", "dropped erased!"]);
    w.update(&p, "ch/1", changes(Status::Pull));
    w.publish(&p, "ch/1", "3");
    w.request(&p, Request::RemoveQueue { queue: queue("ch/1") }).expect("it is there");
    assert_eq!(new_steps(&mut w), ["produced", "dropped erased!"]);
}

#[test]
fn a_handler_that_decides_later_ends_a_message_with_a_step_of_its_own() {
    let (mut w, p, a) = with_consumer(acknowledged(Status::Push));
    let spec = handler("own", &[Step::ReceivedFromProducer, Step::AcknowledgeReceived]);
    w.broker.register_handler(spec);
    w.update(&p, "ch/1", QueueChanges { delivery_handler: Some("own".into()), ..QueueChanges::default() });
    w.publish(&p, "ch/1", "1");
    w.publish(&p, "ch/1", "2");
    w.answer(Step::ReceivedFromProducer, Decision::ALLOW);
    w.answer(Step::ReceivedFromProducer, Decision::REFUSE);
    assert_eq!(new_steps(&mut w), ["produced", "produced", "delivered a", "dropped refused!"]);
    w.ack(&a, "ch/1", "1");
    assert_eq!(new_steps(&mut w), ["acked a"]);
    w.answer(Step::AcknowledgeReceived, Decision::ALLOW);
    assert_eq!(new_steps(&mut w), ["done!"]);
}

#[test]
fn saved_step_is_recorded_when_handler_or_journal_saved_the_message() {
    let (mut w, p, _a) = with_consumer(changes(Status::Paused));
    w.broker.register_handler(handler("own", &[Step::ReceivedFromProducer, Step::SaveMessage]));
    w.update(&p, "ch/1", QueueChanges { delivery_handler: Some("own".into()), ..QueueChanges::default() });
    w.publish(&p, "ch/1", "1");
    w.answer(Step::ReceivedFromProducer, Decision { save: true, ..Decision::ALLOW });
    assert_eq!(new_steps(&mut w), ["produced"]);
    w.answer(Step::SaveMessage, Decision::ALLOW);
    assert_eq!(new_steps(&mut w), ["saved"]);
}

/// A shard with a journal in which everything is durable at once; returns its records.
fn commit(world: &mut World) -> Vec<(Sequence, Record)> {
    let mut records = Vec::new();
    for effect in std::mem::take(&mut world.effects) {
        match effect {
            Effect::Record(sequence, record) => records.push((sequence, record)),
            other => world.effects.push(other),
        }
    }
    if let Some((sequence, _)) = records.last() {
        world.broker.committed(Durability::Os, *sequence, world.now, &mut world.effects);
        world.broker.committed(Durability::Fsync, *sequence, world.now, &mut world.effects);
        world.turn();
    }
    records
}

#[test]
fn a_message_keeps_its_number_over_a_restart_and_no_number_is_used_twice() {
    let mut w = recorded();
    w.broker.restore(RecoveredState::default(), w.now, &mut w.effects);
    let p = w.client("p");
    let saving = QueueChanges { delivery_handler: Some("at-least-once".into()), ..changes(Status::Pull) };
    let create = Request::CreateQueue { queue: queue("ch/1"), changes: saving };
    w.command(&p, Command::Request(RequestId(9), Box::new(create)));
    let mut records = commit(&mut w);
    w.publish(&p, "ch/1", "1");
    assert_eq!(new_steps(&mut w), ["started", "produced"]);
    records.extend(commit(&mut w));
    assert_eq!(new_steps(&mut w), ["saved"]);
    w.publish(&p, "ch/1", "2");
    let numbers = records.iter().rev().find_map(|(_, record)| match record {
        Record::Numbers(below) => Some(*below),
        _ => None,
    });
    let numbers = numbers.expect("numbers are reserved before they are used");
    assert!(numbers > MessageNumber(2));
    let read = decode_definition(NUMBERS_KEY, &encode_numbers(numbers));
    assert_eq!(read, Ok(Definition::Numbers(numbers)));
    let restored: Vec<_> = records
        .iter()
        .filter_map(|(sequence, record)| match record {
            Record::Put { queue, message, received, number } => {
                let bytes = encode_put(queue, message, *received, *number, None);
                let head = decode_put_head(&bytes).expect("just encoded");
                Some(RecoveredMessage {
                    sequence: *sequence,
                    queue: 0,
                    bytes: head.memory_bytes as u32,
                    number: head.number,
                    received_s: 0,
                    high_priority: head.high_priority,
                })
            }
            _ => None,
        })
        .collect();
    let number = restored[0].number;
    assert_eq!((restored.len(), number), (1, MessageNumber(1)));
    let mut again = recorded();
    let had = RecoveredState {
        definitions: vec![read.expect("just compared")],
        queues: vec![queue("ch/1")],
        messages: restored,
        sequence: records.last().expect("there are some").0,
        ..RecoveredState::default()
    };
    again.broker.restore(had, again.now, &mut again.effects);
    again.publish(&p, "ch/1", "3");
    let mut blocks: Vec<Block> = Vec::new();
    again.broker.take_history(&mut blocks);
    let mut steps = Vec::new();
    for block in &blocks {
        each_step(&block.bytes, &mut |step| steps.push((step.kind, step.number))).expect("just written");
    }
    assert_eq!(steps[..2], [(LifecycleKind::Started, MessageNumber(0)), (LifecycleKind::Restored, number)]);
    assert_eq!(
        steps[2],
        (LifecycleKind::Produced, numbers),
        "the next run begins where the last one may have ended"
    );
}
