//! Durability: the broker confirms nothing before its record is committed, and a broker that restarts from the records
//! of a crashed one has everything that was confirmed.

use crate::world;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::{Clear, Command, PassedOn, Request, Retry};
use mqcore_broker::model::config::{BrokerConfig, HandlerSpec};
use mqcore_broker::model::decision::{Acknowledge, Decision, Step};
use mqcore_broker::model::effect::{Effect, Event, HandlerFailure, Reply, Report};
use mqcore_broker::model::id::{RequestId, RouterName, Sequence, TopicName};
use mqcore_broker::model::intake::Ticket;
use mqcore_broker::model::journal_entry::JournalEntry;
use mqcore_broker::model::message::{Layout, Message, Properties};
use mqcore_broker::model::options::{DeadLetter, Durability, QueueChanges, Status};
use mqcore_broker::model::page::Page;
use mqcore_broker::model::policy::AT_LEAST_ONCE;
use mqcore_broker::model::record::{Record, decode_put};
use mqcore_broker::model::recovery::{RecoveredState, RecoveryBuilder};
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::router::{Binding, RouterDefinition, RouterMethod, Target};
use mqcore_broker::model::time::Timestamp;
use mqcore_broker::model::topic::TopicPattern;
use mqcore_broker::model::transfer::{MoveMessages, MoveTarget};
use mqcore_broker::model::unique::header_line;
use mqcore_testkit::Random;
use world::{World, acknowledged, changes, handler, id_of, queue, telling};

/// The records of a broker, as a journal would have them: written, encoded, some of them committed.
#[derive(Default)]
pub(crate) struct Disk {
    records: Vec<(Sequence, Record)>,
    committed: usize,
}

impl Disk {
    /// Moves the records out of a world's effects.
    pub(crate) fn take(&mut self, world: &mut World) {
        let effects = std::mem::take(&mut world.effects);
        for effect in effects {
            match effect {
                Effect::Record(sequence, record) => {
                    assert!(self.records.last().is_none_or(|(last, _)| *last < sequence), "sequences ascend");
                    self.records.push((sequence, record));
                }
                other => world.effects.push(other),
            }
        }
    }

    /// Commits all records so far, and notifies the broker.
    pub(crate) fn commit(&mut self, world: &mut World) {
        self.take(world);
        self.committed = self.records.len();
        let Some((sequence, _)) = self.records.last() else { return };
        for level in [Durability::Os, Durability::Fsync] {
            world.broker.committed(level, *sequence, world.now, &mut world.effects);
        }
        world.turn();
        self.take(world);
    }

    /// The messages of all records.
    pub(crate) fn messages(&self) -> impl Iterator<Item = (Sequence, Message)> {
        self.records.iter().filter_map(|(sequence, record)| match record {
            Record::Put { message, .. } => Some((*sequence, message.clone())),
            Record::PutTransferred(put) => Some((*sequence, put.message.clone())),
            _ => None,
        })
    }

    /// Number of records.
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// Number of messages that a restart finds.
    fn unsettled(&self) -> usize {
        let settled = |(_, record): &&(Sequence, Record)| matches!(record, Record::Settle(_));
        self.messages().count() - self.records.iter().filter(settled).count()
    }

    /// Number of ids that have a definition.
    pub(crate) fn remembered_ids(&self) -> usize {
        let mut ids = BTreeSet::new();
        for (_, record) in &self.records {
            match record {
                Record::RememberId(queue, id, _) => ids.insert((queue.to_string(), id.clone())),
                Record::ForgetId(queue, id) => ids.remove(&(queue.to_string(), id.clone())),
                _ => false,
            };
        }
        ids.len()
    }

    /// A broker that starts from all records, each encoded and decoded, at this time.
    pub(crate) fn start_at(&self, now: Timestamp) -> World {
        self.start_from(self.records.len(), now)
    }

    /// A broker that starts from the first `kept` records, each encoded and decoded.
    fn start(&self, kept: usize) -> World {
        self.start_from(kept, Timestamp(9_000_000))
    }

    pub(crate) fn start_from(&self, kept: usize, now: Timestamp) -> World {
        let mut definitions = BTreeMap::new();
        let mut puts = BTreeMap::new();
        let mut written = Vec::new();
        let mut progress = BTreeMap::new();
        for (sequence, record) in &self.records[..kept] {
            match JournalEntry::from(record) {
                JournalEntry::Put(put) => {
                    written.push((*sequence, put.encode()));
                    puts.insert(*sequence, put.encode());
                }
                JournalEntry::Settle(settled) => {
                    puts.remove(&settled);
                }
                JournalEntry::Touch(touched, progress_bytes) => {
                    progress.insert(touched, progress_bytes);
                }
                JournalEntry::Define(key, value) => {
                    definitions.insert(key, value);
                }
                JournalEntry::Undefine(key) => {
                    definitions.remove(&key);
                }
            }
        }
        let mut builder = RecoveryBuilder::default();
        for (key, value) in &definitions {
            builder.define(key, value).expect("just encoded");
        }
        // A journal still has settled messages; only what is live is restored.
        for (sequence, bytes) in &written {
            builder.put(sequence.0, bytes);
        }
        for (sequence, bytes) in progress.iter().filter(|(sequence, _)| puts.contains_key(*sequence)) {
            builder.touch(sequence.0, bytes).expect("just encoded");
        }
        let last = self.records[..kept].last().map_or(0, |(sequence, _)| sequence.0);
        let live = puts.keys().map(|sequence| sequence.0);
        let (had, unreadable) = builder.finish(live, last + 1).expect("just encoded");
        assert_eq!(unreadable, [0_u64; 0]);
        let mut world = World::new();
        world.now = now;
        for (sequence, bytes) in &puts {
            world.journal.insert(*sequence, decode_put(bytes).expect("just encoded").message);
        }
        world.broker.restore(had, world.now, &mut world.effects);
        world.turn();
        world
    }
}

pub(crate) fn durable() -> (World, Disk) {
    durable_with(BrokerConfig { seed: 7, ..BrokerConfig::default() })
}

fn durable_with(config: BrokerConfig) -> (World, Disk) {
    let mut world = World::with(config);
    world.broker.restore(RecoveredState::default(), world.now, &mut world.effects);
    (world, Disk::default())
}

/// Creates a queue. The answer waits for the commit, so the test commits explicitly.
pub(crate) fn create(
    world: &mut World,
    disk: &mut Disk,
    client: &Arc<Client>,
    address: &str,
    changes: QueueChanges,
) {
    let create = Request::CreateQueue { queue: queue(address), changes };
    world.command(client, Command::Request(RequestId(9), Box::new(create)));
    assert!(world.notifications(client.connection).is_empty(), "not answered before it is durable");
    disk.commit(world);
    let answers = world.notifications(client.connection);
    assert!(matches!(&answers[..], [Event::Answered(RequestId(9), Ok(_))]), "{answers:?}");
}

pub(crate) fn saving(status: Status) -> QueueChanges {
    QueueChanges { delivery_handler: Some("at-least-once".into()), ..acknowledged(status) }
}

#[test]
fn saved_message_is_confirmed_and_delivered_only_after_its_commit() {
    let (mut w, mut disk) = durable();
    let (p, a) = (w.client("p"), w.client("a"));
    create(&mut w, &mut disk, &p, "ch/1", saving(Status::Push));
    w.join(&a, "ch").unwrap();
    w.publish(&p, "ch/1", "1");
    w.publish(&p, "ch/1", "2");
    disk.take(&mut w);
    assert!(w.heard(&p).is_empty() && w.delivered().is_empty());
    let is_put = |(_, record): &&(Sequence, Record)| record.is_put();
    let first = disk.records.iter().find(is_put).expect("the messages are written down").0;
    w.broker.committed(Durability::Os, first, w.now, &mut w.effects);
    assert!(w.heard(&p).is_empty(), "written is not synced");
    w.broker.committed(Durability::Fsync, first, w.now, &mut w.effects);
    w.turn();
    assert_eq!(w.heard(&p), ["1 ok"]);
    assert_eq!(w.delivered(), ["a:1"]);
}

#[test]
fn queue_durability_selects_the_commit_to_wait_for() {
    for (durability, level) in [(Durability::Os, Some(Durability::Os)), (Durability::None, None)] {
        let (mut w, mut disk) = durable();
        let p = w.client("p");
        let changes = QueueChanges { durability: Some(durability), ..saving(Status::Push) };
        create(&mut w, &mut disk, &p, "ch/1", changes);
        w.publish(&p, "ch/1", "1");
        disk.take(&mut w);
        if let Some(level) = level {
            assert!(w.heard(&p).is_empty());
            let last = disk.records.last().expect("it was put").0;
            w.broker.committed(level, last, w.now, &mut w.effects);
            w.turn();
        }
        assert_eq!(w.heard(&p), ["1 ok"], "{durability:?}");
    }
}

#[test]
fn a_topics_message_is_confirmed_when_all_its_queues_have_saved_their_copies() {
    let (mut w, mut disk) = durable();
    let p = w.client("p");
    create(&mut w, &mut disk, &p, "ch/1", saving(Status::Push));
    create(&mut w, &mut disk, &p, "ch/2", saving(Status::Pull));
    create(&mut w, &mut disk, &p, "memory/1", changes(Status::Push));
    let topic = TopicName::new(b"news").expect("a short name");
    for name in ["ch/1", "ch/2", "memory/1"] {
        let bind = Request::BindTopic { pattern: TopicPattern::Exact(topic.clone()), queue: queue(name) };
        w.command(&p, Command::Request(RequestId(3), Box::new(bind)));
    }
    disk.commit(&mut w);
    w.notifications(p.connection);
    let publish = |w: &mut World, id: &[u8]| {
        let message = Message::from_parts(id, b"", b"", Properties::default(), Some(p.clone()));
        let answer = Some(RequestId(5));
        w.command(&p, Command::PublishTopic { topic: topic.clone(), message, to_producer: true, answer });
        w.notifications(p.connection)
    };
    assert!(publish(&mut w, b"1").is_empty());
    disk.take(&mut w);
    let mut puts = disk.records.iter().filter(|(_, record)| record.is_put());
    let first = puts.next().expect("two copies are saved").0;
    w.broker.committed(Durability::Fsync, first, w.now, &mut w.effects);
    w.turn();
    assert!(w.notifications(p.connection).is_empty(), "one copy is not saved yet");
    disk.commit(&mut w);
    let answers = w.notifications(p.connection);
    assert!(matches!(&answers[..], [Event::Answered(RequestId(5), Ok(Reply::Published(3)))]), "{answers:?}");

    assert!(publish(&mut w, b"2").is_empty());
    w.broker.storage_refuses("the disk is full", w.now, &mut w.effects);
    w.turn();
    let refused = [w.notifications(p.connection), publish(&mut w, b"3")];
    for answers in refused {
        let [Event::Answered(RequestId(5), Err(rejection))] = &answers[..] else { panic!("{answers:?}") };
        assert!(rejection.kind == RejectionKind::Busy && rejection.reason.contains("the disk is full"));
    }
}

/// Binds ch/1 to a topic, and publishes a message to the topic as request 5.
fn publish_to_bound(w: &mut World, disk: &mut Disk, p: &Arc<Client>) {
    let topic = TopicName::new(b"news").expect("a short name");
    let bind = Request::BindTopic { pattern: TopicPattern::Exact(topic.clone()), queue: queue("ch/1") };
    w.command(p, Command::Request(RequestId(3), Box::new(bind)));
    disk.commit(w);
    w.notifications(p.connection);
    let message = Message::from_parts(b"1", b"", b"", Properties::default(), Some(p.clone()));
    let publish = Command::PublishTopic { topic, message, to_producer: true, answer: Some(RequestId(5)) };
    w.command(p, publish);
}

#[test]
fn a_copy_about_which_its_handler_fails_to_decide_is_not_confirmed() {
    let (mut w, mut disk) = durable();
    w.broker.register_handler(handler("own", &[Step::ReceivedFromProducer]));
    let p = w.client("p");
    let own = QueueChanges { delivery_handler: Some("own".into()), ..changes(Status::Push) };
    create(&mut w, &mut disk, &p, "ch/1", own);
    publish_to_bound(&mut w, &mut disk, &p);
    let question = w.question(Step::ReceivedFromProducer);
    w.reply(&question, Err(HandlerFailure::Raised));
    let answers = w.notifications(p.connection);
    let [Event::Answered(RequestId(5), Err(rejection))] = &answers[..] else { panic!("{answers:?}") };
    assert!(rejection.kind == RejectionKind::Busy && rejection.reason.contains("raised"), "{rejection}");
    assert_eq!(w.stored("ch/1"), 0, "its producer publishes it again");
}

#[test]
fn a_message_that_stays_because_its_handler_failed_is_saved_if_its_policy_saves() {
    let (mut w, mut disk) = durable();
    let spec = handler("own", &[Step::ReceivedFromProducer]);
    w.broker.register_handler(HandlerSpec { base: AT_LEAST_ONCE, ..spec });
    let p = w.client("p");
    let own = QueueChanges { delivery_handler: Some("own".into()), ..changes(Status::Push) };
    create(&mut w, &mut disk, &p, "ch/1", own);
    w.publish_unconfirmed(&p, "ch/1", "1");
    let question = w.question(Step::ReceivedFromProducer);
    w.reply(&question, Err(HandlerFailure::Raised));
    disk.commit(&mut w);
    assert_eq!((w.stored("ch/1"), w.information("ch/1").stats.saved), (1, 1));
    w.broker.storage_refuses("the disk is full", w.now, &mut w.effects);
    w.turn();
    w.publish_unconfirmed(&p, "ch/1", "2");
    let question = w.question(Step::ReceivedFromProducer);
    w.reply(&question, Err(HandlerFailure::Raised));
    assert_eq!(w.stored("ch/1"), 1, "the policy takes no message that it cannot save");
}

#[test]
fn a_copy_that_its_removed_queue_never_decided_is_reported() {
    let (mut w, mut disk) = durable();
    let p = w.client("p");
    create(&mut w, &mut disk, &p, "ch/1", saving(Status::Push));
    publish_to_bound(&mut w, &mut disk, &p);
    w.command(&p, Command::Request(RequestId(6), Box::new(Request::RemoveQueue { queue: queue("ch/1") })));
    let answers = w.notifications(p.connection);
    assert!(matches!(&answers[..], [Event::Answered(RequestId(5), Ok(Reply::Published(0)))]), "{answers:?}");
}

/// The answer to one request.
fn answer(w: &mut World, client: &Arc<Client>, request: Request) -> Result<Reply, Rejection> {
    w.command(client, Command::Request(RequestId(9), Box::new(request)));
    let mut answers = w.notifications(client.connection);
    match answers.pop() {
        Some(Event::Answered(RequestId(9), answer)) => answer,
        other => panic!("{other:?}"),
    }
}

#[test]
fn answer_about_an_unsaved_definition_waits_for_the_commit_of_another_client() {
    let (mut w, mut disk) = durable();
    let (p, q) = (w.client("p"), w.client("q"));
    create(&mut w, &mut disk, &p, "ch/1", saving(Status::Push));
    let channel = || queue("new/1").channel;
    let router = || RouterName::new("r").expect("a short name");
    let topic = || TopicPattern::Exact(TopicName::new(b"news").expect("a short name"));
    let requests: [&dyn Fn() -> Request; 8] = [
        &|| Request::CreateChannel { channel: channel(), changes: Default::default() },
        &|| Request::CreateQueue { queue: queue("ch/2"), changes: Default::default() },
        &|| Request::CreateRouter { router: router(), method: RouterMethod::Distribute },
        &|| Request::BindTopic { pattern: topic(), queue: queue("ch/1") },
        &|| Request::UnbindTopic { pattern: topic(), queue: queue("ch/1") },
        &|| Request::RemoveRouter { router: router() },
        &|| Request::RemoveQueue { queue: queue("ch/2") },
        &|| Request::RemoveChannel { channel: channel() },
    ];
    for request in requests {
        let shown = format!("{:?}", request());
        for client in [&p, &q] {
            w.command(client, Command::Request(RequestId(9), Box::new(request())));
            assert!(w.notifications(client.connection).is_empty(), "{shown}: its record is not committed");
        }
        disk.commit(&mut w);
        for client in [&p, &q] {
            let answers = w.notifications(client.connection);
            let is_answer = |event: &Event| matches!(event, Event::Answered(RequestId(9), _));
            assert!(answers.iter().any(is_answer), "{shown}: {answers:?}");
        }
        let again =
            answer(&mut w, &q, Request::CreateQueue { queue: queue("ch/1"), changes: Default::default() });
        assert_eq!(
            again.expect_err("it exists").kind,
            RejectionKind::AlreadyExists,
            "{shown}: all is committed"
        );
    }
}

#[test]
fn failed_journal_rejects_changes_of_definitions_and_leaves_them_as_they_were() {
    let (mut w, mut disk) = durable();
    let p = w.client("p");
    create(&mut w, &mut disk, &p, "ch/1", saving(Status::Push));
    let router = RouterName::new("r").expect("a short name");
    let topic = TopicPattern::Exact(TopicName::new(b"news").expect("a short name"));
    // In flight while the journal fails: it exists, but is not saved.
    let in_flight = || Request::CreateQueue { queue: queue("ch/9"), changes: QueueChanges::default() };
    w.command(&p, Command::Request(RequestId(9), Box::new(in_flight())));
    assert!(w.notifications(p.connection).is_empty());
    w.broker.storage_refuses("the disk failed", w.now, &mut w.effects);
    w.turn();
    let answers = w.notifications(p.connection);
    let is_refused = |event: &Event| matches!(event, Event::Answered(RequestId(9), Err(_)));
    assert!(answers.iter().any(is_refused), "{answers:?}");
    let again = answer(&mut w, &p, in_flight()).expect_err("it is not saved");
    assert_eq!(again.kind, RejectionKind::Busy);
    let channel = |name: &str| queue(&format!("{name}/1")).channel;
    let changed = QueueChanges { message_limit: Some(7), ..QueueChanges::default() };
    let refused: [Request; 6] = [
        Request::CreateChannel { channel: channel("new"), changes: Default::default() },
        Request::CreateQueue { queue: queue("ch/2"), changes: Default::default() },
        Request::UpdateQueue { queue: queue("ch/1"), changes: changed },
        Request::UpdateChannel { channel: channel("ch"), changes: Default::default() },
        Request::CreateRouter { router: router.clone(), method: RouterMethod::Distribute },
        Request::BindTopic { pattern: topic.clone(), queue: queue("ch/1") },
    ];
    for request in refused {
        let shown = format!("{request:?}");
        let rejection = answer(&mut w, &p, request).expect_err(&shown);
        assert_eq!(rejection.kind, RejectionKind::Busy, "{shown}");
        assert!(rejection.reason.contains("the disk failed"), "{shown}: {rejection}");
    }
    assert!(w.broker.waiting(&queue("ch/2"), 1).is_none(), "it was created");
    let found =
        answer(&mut w, &p, Request::CreateQueue { queue: queue("ch/1"), changes: Default::default() });
    assert_eq!(found.expect_err("it exists").kind, RejectionKind::AlreadyExists);
    let routers =
        answer(&mut w, &p, Request::ListRouters { filter: None, page: Page::default() }).expect("a list");
    assert!(matches!(&routers, Reply::Routers(routers) if routers.items.is_empty()), "{routers:?}");
    let unbound = answer(&mut w, &p, Request::UnbindTopic { pattern: topic, queue: queue("ch/1") });
    assert_eq!(unbound.expect_err("it is not bound").kind, RejectionKind::NotFound);
    w.broker.storage_accepts(w.now, &mut w.effects);
    w.turn();
    create(&mut w, &mut disk, &p, "ch/2", saving(Status::Push));
}

#[test]
fn failed_journal_rejects_only_saved_messages() {
    let (mut w, mut disk) = durable();
    let (p, a) = (w.client("p"), w.client("a"));
    create(&mut w, &mut disk, &p, "ch/1", saving(Status::RoundRobin));
    create(&mut w, &mut disk, &p, "ch/2", changes(Status::Push));
    w.publish(&p, "ch/1", "1");
    disk.commit(&mut w);
    w.publish(&p, "ch/1", "2");
    w.broker.storage_refuses("the disk is full", w.now, &mut w.effects);
    w.turn();
    w.publish(&p, "ch/1", "3");
    w.publish(&p, "ch/2", "4");
    assert_eq!(w.heard(&p), ["1 ok", "2 refused 503", "3 refused 503", "4 ok"]);
    w.join(&a, "ch").unwrap();
    assert_eq!(w.delivered(), ["a:1", "a:4"], "consumers go on");
    w.broker.storage_accepts(w.now, &mut w.effects);
    w.publish(&p, "ch/1", "5");
    disk.commit(&mut w);
    assert_eq!(w.heard(&p), ["5 ok"]);
}

/// A cache whose handler saves messages, with two saved ones and then an unsaved one, because the disk was full.
fn cache_with_an_unsaved_message(message_timeout: Option<Duration>) -> (World, Disk, Arc<Client>) {
    let (mut w, mut disk) = durable();
    w.broker.register_handler(handler("own", &[Step::ReceivedFromProducer]));
    let p = w.client("p");
    let delivery_handler = Some("own".into());
    let own = QueueChanges { delivery_handler, message_timeout, ..changes(Status::Cache) };
    create(&mut w, &mut disk, &p, "ch/1", own);
    for id in ["1", "2"] {
        publish_to_own(&mut w, &p, id);
        disk.commit(&mut w);
    }
    w.broker.storage_refuses("the disk is full", w.now, &mut w.effects);
    w.turn();
    publish_to_own(&mut w, &p, "3");
    (w, disk, p)
}

fn publish_to_own(world: &mut World, producer: &Arc<Client>, id: &str) {
    publish_deciding(world, producer, id, true);
}

/// Publishes a message that its handler saves or does not save.
fn publish_deciding(world: &mut World, producer: &Arc<Client>, id: &str, save: bool) {
    world.publish_unconfirmed(producer, "ch/1", id);
    world.answer(Step::ReceivedFromProducer, Decision { save, ..telling(Acknowledge::IfSaved) });
}

/// The message that readers of the cache get.
fn cached(world: &mut World) -> Vec<String> {
    let reader = world.client("reader");
    world.join(&reader, "ch").unwrap();
    let pulled = world.pull(&reader, "ch/1", 1).0;
    world.close(&reader);
    pulled
}

fn cached_after_restart(world: &mut World, disk: &mut Disk) -> Vec<String> {
    disk.take(world);
    let mut again = disk.start(disk.len());
    again.broker.register_handler(handler("own", &[Step::ReceivedFromProducer]));
    cached(&mut again)
}

#[test]
fn an_unsaved_message_of_a_cache_replaces_a_saved_one_until_the_restart() {
    let (mut w, mut disk, p) = cache_with_an_unsaved_message(None);
    assert_eq!(cached(&mut w), ["3"]);
    assert_eq!(cached_after_restart(&mut w, &mut disk), ["2"]);
    publish_to_own(&mut w, &p, "4");
    assert_eq!(cached_after_restart(&mut w, &mut disk), ["2"]);
    w.broker.storage_accepts(w.now, &mut w.effects);
    publish_to_own(&mut w, &p, "5");
    disk.commit(&mut w);
    assert_eq!(cached(&mut w), ["5"]);
    assert_eq!(cached_after_restart(&mut w, &mut disk), ["5"]);
    publish_deciding(&mut w, &p, "6", false);
    assert_eq!(cached(&mut w), ["6"]);
    assert_eq!(cached_after_restart(&mut w, &mut disk), ["5"], "the handler did not save message 6");
    let high = Clear { high_priority: true, normal: false };
    request(&mut w, &p, Request::ClearQueue { queue: queue("ch/1"), clear: high });
    disk.commit(&mut w);
    assert_eq!(cached(&mut w), ["6"], "it has a normal priority");
    assert_eq!(cached_after_restart(&mut w, &mut disk), ["5"]);
    request(&mut w, &p, clear_all());
    disk.commit(&mut w);
    assert_eq!(cached_after_restart(&mut w, &mut disk), [""; 0], "message 5 is settled");
}

#[test]
fn emptying_a_cache_settles_the_saved_message_that_an_unsaved_one_replaced() {
    let stopped = QueueChanges { status: Some(Status::Stopped), ..QueueChanges::default() };
    let ends = [
        ("cleared", Some(clear_all())),
        ("stopped", Some(Request::UpdateQueue { queue: queue("ch/1"), changes: stopped })),
        ("erased", Some(erase_waiting())),
        ("expired", None),
    ];
    for (name, end) in ends {
        let (mut w, mut disk, p) = cache_with_an_unsaved_message(Some(Duration::from_secs(10)));
        w.broker.storage_accepts(w.now, &mut w.effects);
        match end {
            Some(end) => request(&mut w, &p, end),
            None => w.advance(Duration::from_secs(11)),
        }
        disk.commit(&mut w);
        assert_eq!(w.stored("ch/1"), 0, "{name}");
        assert_eq!(disk.unsettled(), 0, "{name}");
    }
}

/// Makes a request whose answer waits for the commit.
fn request(world: &mut World, client: &Arc<Client>, request: Request) {
    world.command(client, Command::Request(RequestId(9), Box::new(request)));
    world.turn();
}

fn erase_waiting() -> Request {
    let wanted = MoveMessages { queue: queue("ch/1"), to: MoveTarget::Nowhere, ids: Vec::new(), max: 9 };
    Request::MoveMessages(Box::new(wanted))
}

fn clear_all() -> Request {
    Request::ClearQueue { queue: queue("ch/1"), clear: Clear { high_priority: true, normal: true } }
}

#[test]
fn restart_restores_definitions_messages_order_priority_and_attempts() {
    let (mut w, mut disk) = durable();
    let (p, a) = (w.client("p"), w.client("a"));
    let options =
        QueueChanges { tag: Some("created".into()), message_limit: Some(99), ..saving(Status::RoundRobin) };
    create(&mut w, &mut disk, &p, "Orders/1001", options);
    for (id, high) in [("1", false), ("2", false), ("h", true), ("3", false), ("4", false), ("5", false)] {
        w.publish_as(&p, "Orders/1001", id, high);
    }
    disk.commit(&mut w);
    w.join(&a, "Orders").unwrap();
    disk.take(&mut w);
    assert_eq!(w.delivered().len(), 6);
    w.ack(&a, "Orders/1001", "2");
    w.leave(&a, "Orders");
    w.nack(&a, "Orders/1001", "1", "later");
    disk.take(&mut w);
    let mut again = disk.start(disk.records.len());
    let information = again.information("Orders/1001");
    assert_eq!(information.options, w.information("Orders/1001").options);
    assert_eq!((information.high_priority, information.normal), (1, 4));
    let b = again.client("b");
    again.join(&b, "Orders").unwrap();
    assert_eq!(
        again.seen().into_iter().map(|(_, id, first)| (id, first)).collect::<Vec<_>>(),
        [("h", false), ("3", false), ("4", false), ("5", false), ("1", false)]
            .map(|(id, first)| (id.to_owned(), first)),
        "in their old order, the one put back behind them, and all marked as seen before"
    );
}

#[test]
fn a_series_of_changes_of_a_router_is_one_record() {
    let (mut w, mut disk) = durable();
    let p = w.client("p");
    let router = RouterName::new("r").unwrap();
    let create = Request::CreateRouter { router: router.clone(), method: RouterMethod::Distribute };
    let add = |number: u32| {
        let target = format!("@name:{number}");
        let binding = Binding::new(&target, Target::parse(&target).unwrap());
        Request::AddBinding { router: router.clone(), binding }
    };
    let before = disk.len();
    for (number, request) in (0..).zip([create].into_iter().chain((0..200).map(add))) {
        w.command(&p, Command::Request(RequestId(number), Box::new(request)));
    }
    disk.take(&mut w);
    assert_eq!(disk.len() - before, 1);
    assert!(w.notifications(p.connection).is_empty(), "the answers wait for the commit");
    disk.commit(&mut w);
    let answers = w.notifications(p.connection);
    assert_eq!(answers.len(), 201);
    assert!(answers.iter().all(|event| matches!(event, Event::Answered(_, Ok(_)))));
    // The record is written, so that the next change needs one of its own.
    w.command(&p, Command::Request(RequestId(900), Box::new(add(900))));
    disk.commit(&mut w);
    assert_eq!(disk.len() - before, 2);
    let mut again = disk.start(disk.len());
    let p = again.client("p");
    let Ok(Reply::Bindings(bindings)) = again.request(&p, Request::ListBindings { router }) else { panic!() };
    assert_eq!(bindings.len(), 201);
}

#[test]
fn bindings_of_queues_survive_a_crash() {
    let (mut w, mut disk) = durable();
    let p = w.client("p");
    let topic = |name: &str| TopicName::new(name.as_bytes()).expect("not too long");
    let (exact, mask) = (TopicPattern::Exact(topic("orders new")), TopicPattern::Mask(topic("late.*")));
    let gone = TopicPattern::Prefix(topic("orders"));
    let requests = [
        Request::BindTopic { pattern: exact.clone(), queue: queue("Copies/1") },
        Request::BindTopic { pattern: exact.clone(), queue: queue("copies/1") },
        Request::BindTopic { pattern: mask.clone(), queue: queue("copies/1") },
        Request::BindTopic { pattern: gone.clone(), queue: queue("copies/1") },
        Request::UnbindTopic { pattern: gone, queue: queue("COPIES/1") },
    ];
    for request in requests {
        w.command(&p, Command::Request(RequestId(7), Box::new(request)));
        disk.commit(&mut w);
        let answered =
            w.notifications(p.connection).into_iter().any(|event| matches!(event, Event::Answered(_, Ok(_))));
        assert!(answered, "it is answered once it is durable");
    }
    assert_eq!(disk.records.len(), 4, "what is bound already is not written again");
    let mut w = disk.start(disk.committed);
    let p = w.client("p");
    let mut unbind = |pattern: &TopicPattern| {
        let unbind = Request::UnbindTopic { pattern: pattern.clone(), queue: queue("copies/1") };
        w.command(&p, Command::Request(RequestId(1), Box::new(unbind)));
        disk.commit(&mut w);
        w.notifications(p.connection).iter().any(|event| matches!(event, Event::Answered(_, Ok(_))))
    };
    let gone = TopicPattern::Prefix(topic("orders"));
    assert_eq!([&exact, &mask, &gone, &exact].map(&mut unbind), [true, true, false, false]);
}

#[test]
fn routers_of_peers_survive_a_crash_with_their_bindings() {
    let (mut w, mut disk) = durable();
    let p = w.client("p");
    let name = |text: &str| RouterName::new(text).expect("a good name");
    let binding = |target: &str| Binding::new(target, Target::parse(target).expect("a good target"));
    let ask = |w: &mut World, disk: &mut Disk, request: Request| {
        w.command(&p, Command::Request(RequestId(99_999), Box::new(request)));
        disk.commit(w);
        let answered =
            w.notifications(p.connection).into_iter().any(|event| matches!(event, Event::Answered(_, Ok(_))));
        assert!(answered, "it is answered once it is durable");
    };
    for router in ["kept", "gone"] {
        let method = RouterMethod::OnlyFirst;
        ask(&mut w, &mut disk, Request::CreateRouter { router: name(router), method });
        for target in ["q/1", "@topic:t", "@client:x"] {
            let binding = binding(target);
            ask(&mut w, &mut disk, Request::AddBinding { router: name(router), binding });
        }
    }
    ask(&mut w, &mut disk, Request::RemoveBinding { router: name("kept"), binding: "q/1".into() });
    ask(&mut w, &mut disk, Request::RemoveRouter { router: name("gone") });
    w.broker.define_router(RouterDefinition::new(name("declared"), RouterMethod::Distribute)).expect("few");
    disk.take(&mut w);
    let again = disk.start(disk.records.len());
    let routers = again.broker.stats(again.now).routers;
    let mut expected = RouterDefinition::new(name("kept"), RouterMethod::OnlyFirst);
    for target in ["@topic:t", "@client:x"] {
        expected.add(binding(target)).expect("a new one");
    }
    assert_eq!(routers, [expected], "and what the program declares is not saved");
}

#[test]
fn a_queue_that_was_removed_or_stopped_stays_empty() {
    let (mut w, mut disk) = durable();
    let p = w.client("p");
    for number in [1, 2] {
        create(&mut w, &mut disk, &p, &format!("ch/{number}"), saving(Status::Pull));
        w.publish(&p, &format!("ch/{number}"), "m");
        disk.commit(&mut w);
        assert_eq!(w.heard(&p), ["m ok"]);
    }
    w.command(&p, Command::Request(RequestId(1), Box::new(Request::RemoveQueue { queue: queue("ch/1") })));
    let stop = Request::UpdateQueue { queue: queue("ch/2"), changes: changes(Status::Stopped) };
    w.command(&p, Command::Request(RequestId(2), Box::new(stop)));
    disk.commit(&mut w);
    let again = disk.start(disk.records.len());
    let survey = again.broker.stats(again.now);
    assert_eq!(survey.queues.len(), 1);
    assert_eq!(again.stored("ch/2"), 0);
    assert_eq!(again.information("ch/2").options.status, Status::Stopped);
}

#[test]
fn a_queue_whose_definition_is_lost_keeps_its_messages_until_it_is_declared_again() {
    let (mut w, mut disk) = durable();
    let p = w.client("p");
    create(&mut w, &mut disk, &p, "ch/1", saving(Status::Pull));
    w.publish(&p, "ch/1", "old");
    disk.commit(&mut w);
    assert_eq!(w.heard(&p), ["old ok"]);
    disk.records.retain(|(_, record)| !matches!(record, Record::DefineQueue(..)));
    let mut again = disk.start(disk.records.len());
    let lost = Report::DefinitionLost { queue: queue("ch/1") };
    assert!(again.effects.iter().any(|effect| matches!(effect, Effect::Report(report) if **report == lost)));
    assert_eq!(again.information("ch/1").options.status, Status::Paused);
    let (p, a) = (again.client("p"), again.client("a"));
    again.join(&a, "ch").unwrap();
    again.publish(&p, "ch/1", "new");
    assert_eq!(again.heard(&p), [""; 0], "it is confirmed once it is saved");
    disk.commit(&mut again);
    assert_eq!(again.heard(&p), ["new ok"]);
    assert_eq!((again.delivered().len(), again.stored("ch/1")), (0, 2));
    create(&mut again, &mut disk, &p, "ch/1", saving(Status::Push));
    assert_eq!(again.information("ch/1").options.status, Status::Push);
    assert_eq!(again.seen().into_iter().map(|(_, id, _)| id).collect::<Vec<_>>(), ["old", "new"]);
    let refused =
        answer(&mut again, &p, Request::CreateQueue { queue: queue("ch/1"), changes: saving(Status::Pull) });
    assert_eq!(refused.expect_err("it exists").kind, RejectionKind::AlreadyExists);
}

#[test]
fn a_start_without_definitions_records_nothing_in_their_place() {
    let (mut w, mut disk) = durable();
    let (p, a) = (w.client("p"), w.client("a"));
    let window = Some(Duration::from_secs(60));
    let options = QueueChanges { deduplication_window: window, ..saving(Status::RoundRobin) };
    create(&mut w, &mut disk, &p, "ch/1", options);
    w.join(&a, "ch").unwrap();
    for id in ["gone", "left"] {
        w.publish(&p, "ch/1", id);
        disk.commit(&mut w);
    }
    w.ack(&a, "ch/1", "gone");
    disk.take(&mut w);
    assert!(disk.records.iter().any(|(_, record)| matches!(record, Record::RememberId(..))));
    let all = disk.records.clone();
    let is_definition =
        |record: &Record| matches!(record, Record::DefineQueue(..) | Record::DefineChannel(..));
    let is_left = |record: &Record| matches!(record, Record::Put { message, .. } if message.id() == b"left");
    for has_messages in [true, false] {
        // The damaged part has the definitions, and all messages of the queue or none. It may be readable again later.
        disk.records.clone_from(&all);
        disk.records.retain(|(_, record)| !is_definition(record) && (has_messages || !is_left(record)));
        let mut again = disk.start_from(disk.records.len(), w.now);
        again.broker.storage_accepts(again.now, &mut again.effects);
        let recorded = again.effects.iter().filter(|effect| matches!(effect, Effect::Record(..)));
        assert_eq!(recorded.count(), 0, "{:?}", again.effects);
    }
    disk.records = all;
    let mut again = disk.start_from(disk.records.len(), w.now);
    let p = again.client("p");
    again.publish(&p, "ch/1", "gone");
    assert_eq!((again.heard(&p), again.stored("ch/1")), (vec!["gone ok".to_owned()], 1), "a duplicate");
}

#[test]
fn dead_letter_stays_in_its_old_journal_until_the_new_one_has_it() {
    let (mut w, mut disk) = durable();
    let (p, a) = (w.client("p"), w.client("a"));
    create(&mut w, &mut disk, &p, "dead/1", changes(Status::Pull));
    let options = QueueChanges {
        put_back_limit: Some(0),
        dead_letter: Some(Some(DeadLetter::Queue(queue("dead/1")))),
        ..saving(Status::RoundRobin)
    };
    create(&mut w, &mut disk, &p, "ch/1", options);
    w.publish(&p, "ch/1", "1");
    disk.commit(&mut w);
    w.join(&a, "ch").unwrap();
    w.nack(&a, "ch/1", "1", "no");
    disk.take(&mut w);
    let before = disk.start(disk.records.len());
    assert_eq!((before.stored("ch/1"), before.stored("dead/1")), (1, 0));
    let transfer = w.effects.iter().find_map(|effect| match effect {
        Effect::Transfer(transfer) => Some(transfer.clone()),
        _ => None,
    });
    w.broker.transfer(*transfer.expect("it is buried"), w.now, &mut w.effects);
    disk.take(&mut w);
    let between = disk.start(disk.records.len());
    assert_eq!((between.stored("ch/1"), between.stored("dead/1")), (1, 1), "rather twice than never");
    disk.commit(&mut w);
    let origin = w.effects.iter().find_map(|effect| match effect {
        Effect::Transferred(end) => Some(end.clone()),
        _ => None,
    });
    w.broker.transferred(*origin.expect("it is safe now"), w.now, &mut w.effects);
    disk.take(&mut w);
    let after = disk.start(disk.records.len());
    assert_eq!((after.stored("ch/1"), after.stored("dead/1")), (0, 1));
}

#[test]
fn delay_and_attempts_of_a_message_survive_a_restart() {
    let (mut w, mut disk) = durable();
    let (p, a) = (w.client("p"), w.client("a"));
    create(&mut w, &mut disk, &p, "ch/1", saving(Status::RoundRobin));
    w.join(&a, "ch").unwrap();
    for id in ["soon", "late"] {
        w.publish(&p, "ch/1", id);
    }
    disk.commit(&mut w);
    // A broker that starts from the disk begins at 9,000,000.
    w.nack_until(&a, "ch/1", "soon", Retry::NotBefore(Timestamp(8_000_000)));
    w.nack_until(&a, "ch/1", "late", Retry::NotBefore(Timestamp(9_005_000)));
    disk.commit(&mut w);
    let mut again = disk.start(disk.records.len());
    let b = again.client("b");
    again.join(&b, "ch").unwrap();
    assert_eq!(again.delivered(), ["b:soon"], "its time came while nobody was there");
    assert_eq!(again.stored("ch/1"), 1);
    again.advance(Duration::from_millis(4_999));
    assert!(again.delivered().is_empty());
    again.advance(Duration::from_millis(1));
    let delivered = again.effects.iter().find_map(|effect| match effect {
        Effect::Deliver(deliver) => Some((id_of(&deliver.message), deliver.requeues, deliver.first)),
        _ => None,
    });
    assert_eq!(delivered, Some(("late".to_owned(), 1, false)));
}

/// Random steps with occasional commits, and a crash that keeps the committed records and some of the others.
struct Run {
    dice: Random,
    world: World,
    disk: Disk,
    producer: Arc<Client>,
    consumer: Arc<Client>,
    published: u64,
    /// Messages that were confirmed to their producers as saved.
    promised: BTreeSet<String>,
    /// Messages whose settlement is recorded, with the number of records at that time.
    settled: BTreeMap<String, usize>,
}

impl Run {
    fn new(seed: u64) -> Self {
        // Most runs keep almost nothing in memory, and load bodies late and in pieces.
        let memory_watermark = [0, 0, 300, 1 << 20][seed as usize % 4];
        let (mut world, mut disk) =
            durable_with(BrokerConfig { seed, memory_watermark, ..BrokerConfig::default() });
        world.prompt = false;
        let (producer, consumer) = (world.client("p"), world.client("c"));
        let statuses = [Status::Push, Status::RoundRobin, Status::Pull];
        let options = QueueChanges {
            put_back_limit: Some(100),
            acknowledge_timeout: Some(Duration::from_secs(2)),
            ..saving(statuses[seed as usize % statuses.len()])
        };
        create(&mut world, &mut disk, &producer, "ch/1", options);
        world.join(&consumer, "ch").unwrap();
        Self {
            dice: Random::new(seed),
            world,
            disk,
            producer,
            consumer,
            published: 0,
            promised: BTreeSet::new(),
            settled: BTreeMap::new(),
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.dice.below(bound)
    }

    fn step(&mut self) {
        match self.below(11) {
            0..4 => {
                self.published += 1;
                let id = format!("m{}", self.published);
                let high = self.below(5) == 0;
                let producer = self.producer.clone();
                self.world.publish_as(&producer, "ch/1", &id, high);
            }
            4..7 => {
                let id = format!("m{}", 1 + self.below(self.published.max(1)));
                let consumer = self.consumer.clone();
                match self.below(8) {
                    0 => self.world.nack(&consumer, "ch/1", &id, "no"),
                    1 => {
                        let until = Retry::NotBefore(self.world.now.after(Duration::from_millis(700)));
                        self.world.nack_until(&consumer, "ch/1", &id, until);
                    }
                    _ => self.world.ack(&consumer, "ch/1", &id),
                }
            }
            7 => {
                let consumer = self.consumer.clone();
                self.world.pull(&consumer, "ch/1", 3);
            }
            8 => self.disk.commit(&mut self.world),
            9 => self.bring(),
            _ => {
                let millis = self.below(1_500);
                self.world.advance(Duration::from_millis(millis));
            }
        }
        self.disk.take(&mut self.world);
        let producer = self.producer.clone();
        for heard in self.world.heard(&producer) {
            let id = heard.strip_suffix(" ok").expect("nothing refuses here");
            self.promised.insert(id.to_owned());
        }
        self.world.delivered();
        self.remember_settled();
    }

    /// The journal loads a part of the requested bodies; rarely, it cannot read them.
    fn bring(&mut self) {
        if self.world.loads.is_empty() {
            return;
        }
        let readable = self.below(8) > 0;
        let at = self.below(self.world.loads.len() as u64) as usize;
        let mut load = self.world.loads.swap_remove(at);
        let part = 1 + self.below(load.sequences.len() as u64) as usize;
        let rest = load.sequences.split_off(part);
        self.world.bring(&load, &load.sequences, readable);
        if !rest.is_empty() {
            load.sequences = rest;
            self.world.loads.push(load);
        }
        self.world.turn();
    }

    fn remember_settled(&mut self) {
        let ids: BTreeMap<Sequence, String> = self
            .disk
            .records
            .iter()
            .filter_map(|(sequence, record)| match record {
                Record::Put { message, .. } => Some((*sequence, id_of(message))),
                _ => None,
            })
            .collect();
        for (index, (_, record)) in self.disk.records.iter().enumerate() {
            if let Record::Settle(sequence) = record {
                self.settled.insert(ids[sequence].clone(), index + 1);
            }
        }
    }

    fn crash(mut self) {
        let uncommitted = (self.disk.records.len() - self.disk.committed) as u64;
        let kept = self.disk.committed + self.below(uncommitted + 1) as usize;
        let again = self.disk.start(kept);
        let waiting = again.broker.waiting(&queue("ch/1"), usize::MAX).expect("the queue came back");
        let found: Vec<_> = waiting.iter().map(|waiting| id_of(&again.journal[&waiting.sequence])).collect();
        let unique: BTreeSet<_> = found.iter().cloned().collect();
        assert_eq!(unique.len(), found.len(), "nothing comes twice");
        for id in &self.promised {
            let gone = self.settled.get(id).is_some_and(|records| *records <= kept);
            assert!(unique.contains(id) || gone, "{id} was promised and is lost");
        }
        for (id, records) in &self.settled {
            assert!(*records > kept || !unique.contains(id), "{id} was settled and came back");
        }
    }
}

#[test]
fn a_crash_at_any_moment_keeps_every_promise() {
    for seed in mqcore_testkit::seeds(300, 3_000) {
        let outcome = std::panic::catch_unwind(|| {
            let mut run = Run::new(seed);
            for _ in 0..80 {
                run.step();
            }
            run.crash();
        });
        assert!(outcome.is_ok(), "seed {seed}");
    }
}

#[test]
fn without_a_journal_nothing_is_recorded() {
    let mut w = World::with(BrokerConfig::default());
    let p = w.client("p");
    w.create(&p, "ch/1", changes(Status::Push));
    w.publish(&p, "ch/1", "1");
    assert!(!w.effects.iter().any(|effect| matches!(effect, Effect::Record(..))));
}

// ---- Messages that other brokers forward ---------------------------------------------------------------

fn passed_on(epoch: u64, number: u64, body: &str, to: &str) -> Command {
    let ticket = Ticket { node: "node-1".into(), epoch, number };
    let layout = Layout { id: 0..body.len(), source: 0..0, headers: 0..0, body: 0..body.len() };
    let layout = Layout { headers: body.len()..body.len(), body: body.len()..2 * body.len(), ..layout };
    let block = body.repeat(2);
    let properties = Properties { pending_acknowledge: true, ..Properties::default() };
    let message = Message::passed_on(block.as_bytes(), &layout, properties, ticket.clone());
    let command = Command::Publish { queue: queue(to), message };
    Command::PassedOn(Box::new(PassedOn { ticket, command }))
}

/// Like [`passed_on`], for a topic.
fn passed_on_to_topic(number: u64, body: &str, topic: &TopicName) -> Command {
    let Command::PassedOn(mut passed_on) = passed_on(1, number, body, "ch/1") else { unreachable!() };
    if let Command::Publish { message, .. } = passed_on.command {
        let (topic, answer) = (topic.clone(), None);
        passed_on.command = Command::PublishTopic { topic, message, to_producer: true, answer };
    }
    Command::PassedOn(passed_on)
}

#[test]
fn a_forwarded_message_that_a_handler_cannot_save_is_deferred() {
    let (mut w, mut disk) = durable();
    w.broker.register_handler(handler("own", &[Step::ReceivedFromProducer]));
    let (p, link) = (w.client("p"), w.client("link"));
    let own = QueueChanges { delivery_handler: Some("own".into()), ..changes(Status::Push) };
    create(&mut w, &mut disk, &p, "ch/1", own);
    w.command(&link, passed_on(1, 1, "a", "ch/1"));
    w.broker.storage_refuses("the disk is full", w.now, &mut w.effects);
    w.turn();
    w.answer(Step::ReceivedFromProducer, Decision { save: true, ..telling(Acknowledge::IfSaved) });
    assert!(matches!(&w.notifications(link.connection)[..], [Event::Deferred(1, _)]));
    assert_eq!(w.stored("ch/1"), 0);
}

#[test]
fn forwarded_message_of_a_topic_is_confirmed_when_all_its_queues_have_saved_it() {
    let (mut w, mut disk) = durable();
    let (p, link) = (w.client("p"), w.client("link"));
    let topic = TopicName::new(b"news").expect("a short name");
    for bound in [&["ch/1"][..], &["ch/2", "memory/1", "missing/1"]] {
        for name in bound {
            if *name != "missing/1" {
                let options = if *name == "memory/1" { changes(Status::Pull) } else { saving(Status::Pull) };
                create(&mut w, &mut disk, &p, name, options);
            }
            let bind = Request::BindTopic { pattern: TopicPattern::Exact(topic.clone()), queue: queue(name) };
            w.command(&p, Command::Request(RequestId(3), Box::new(bind)));
            disk.commit(&mut w);
            let answers = w.notifications(p.connection);
            assert!(matches!(&answers[..], [Event::Answered(RequestId(3), Ok(_))]), "{answers:?}");
        }
        let number = bound.len() as u64;
        for _ in 0..2 {
            w.command(&link, passed_on_to_topic(number, "m", &topic));
        }
        w.turn();
        disk.take(&mut w);
        let last = disk.records.last().expect("the copies are saved").0;
        w.broker.committed(Durability::Os, last, w.now, &mut w.effects);
        w.turn();
        assert_eq!(confirmed(&mut w, &link), [0; 0], "{bound:?}: the system could still lose the copies");
        disk.commit(&mut w);
        disk.commit(&mut w);
        assert_eq!(confirmed(&mut w, &link), [number], "{bound:?}");
        w.command(&link, passed_on_to_topic(number, "m", &topic));
        w.turn();
        disk.commit(&mut w);
        assert_eq!(confirmed(&mut w, &link), [number], "{bound:?}: it is done");
    }
    assert_eq!(["ch/1", "ch/2", "memory/1"].map(|name| w.stored(name)), [2, 1, 1]);
    w.broker.storage_refuses("the disk is full", w.now, &mut w.effects);
    w.turn();
    w.command(&link, passed_on_to_topic(7, "m", &topic));
    w.turn();
    let events = w.notifications(link.connection);
    assert!(matches!(&events[..], [Event::Deferred(7, _)]), "it arrives again: {events:?}");
}

fn confirmed(world: &mut World, link: &Arc<Client>) -> Vec<u64> {
    let notices = world.notifications(link.connection).into_iter();
    let numbers =
        notices.filter_map(|event| if let Event::Confirmed(numbers) = event { Some(numbers) } else { None });
    numbers.flatten().collect()
}

#[test]
fn forwarded_message_is_confirmed_when_saved_and_accepted_once() {
    let (mut w, mut disk) = durable();
    let (p, link, a) = (w.client("p"), w.client("link"), w.client("a"));
    create(&mut w, &mut disk, &p, "ch/1", saving(Status::Push));
    w.join(&a, "ch").unwrap();
    w.command(&link, passed_on(1, 5, "m5", "ch/1"));
    w.command(&link, passed_on(1, 5, "m5", "ch/1"));
    w.command(&link, passed_on(1, 6, "m6", "nowhere/1"));
    w.turn();
    assert_eq!(confirmed(&mut w, &link), [0; 0]);
    disk.commit(&mut w);
    disk.commit(&mut w);
    assert_eq!(confirmed(&mut w, &link).into_iter().collect::<BTreeSet<_>>(), [5, 6].into());
    assert_eq!(w.delivered(), ["a:m5"]);
    w.command(&link, passed_on(1, 5, "m5", "ch/1"));
    w.turn();
    disk.commit(&mut w);
    assert_eq!(
        (confirmed(&mut w, &link), w.delivered()),
        (vec![5], vec![]),
        "once more: only confirmed again"
    );
    assert_eq!(w.notifications(link.connection).len(), 0, "and no notification for producers");
}

/// Sends all messages, settles some of them, crashes after every record, and sends unconfirmed messages again.
#[test]
fn forwarded_messages_survive_any_crash_exactly_once() {
    let (mut w, mut disk) = durable();
    let (p, link, a) = (w.client("p"), w.client("link"), w.client("a"));
    create(&mut w, &mut disk, &p, "ch/1", saving(Status::Push));
    create(&mut w, &mut disk, &p, "ch/2", saving(Status::Pull));
    w.join(&a, "ch").unwrap();
    let numbers: Vec<u64> = (1..=12).collect();
    // The number of records when a number was confirmed, and when its message was settled.
    let (mut known, mut settled) = (BTreeMap::new(), BTreeMap::new());
    for &number in &numbers {
        let to = if number % 3 == 0 { "ch/2" } else { "ch/1" };
        w.command(&link, passed_on(1, number, &format!("m{number}"), to));
        if number % 2 == 0 {
            disk.commit(&mut w);
        }
        for delivered in w.delivered() {
            let id = delivered.trim_start_matches("a:");
            w.ack(&a, "ch/1", id);
            settled
                .insert(id.trim_start_matches('m').parse::<u64>().expect("its number"), disk.records.len());
        }
        for number in confirmed(&mut w, &link) {
            known.insert(number, disk.committed);
        }
    }
    disk.commit(&mut w);
    assert!(!known.is_empty() && !settled.is_empty());
    for kept in 0..=disk.records.len() {
        let mut w = disk.start(kept);
        let link = w.client("link");
        let open = numbers.iter().filter(|number| known.get(number).is_none_or(|records| *records > kept));
        for &number in open {
            let to = if number % 3 == 0 { "ch/2" } else { "ch/1" };
            w.command(&link, passed_on(1, number, &format!("m{number}"), to));
        }
        Disk::default().commit(&mut w);
        let mut taken = BTreeMap::<String, u32>::new();
        for address in ["ch/1", "ch/2"] {
            for waiting in w.broker.waiting(&queue(address), 100).unwrap_or_default() {
                let message = waiting.message.as_ref().unwrap_or_else(|| &w.journal[&waiting.sequence]);
                *taken.entry(id_of(message)).or_default() += 1;
            }
        }
        assert!(taken.values().all(|times| *times == 1), "after {kept} records: {taken:?}");
        let gone = disk.records[..kept].iter().filter(|(_, r)| matches!(r, Record::Settle(_))).count();
        let exists = |address| w.broker.waiting(&queue(address), 0).is_some();
        if exists("ch/1") && exists("ch/2") {
            assert_eq!(taken.len() + gone, numbers.len(), "after {kept} records: {taken:?}");
        }
    }
}

/// A clock that is set back gives a downstream broker a smaller epoch at its next start.
#[test]
fn messages_of_a_new_count_with_a_smaller_epoch_survive_any_crash_exactly_once() {
    let (mut w, mut disk) = durable();
    let (p, link) = (w.client("p"), w.client("link"));
    create(&mut w, &mut disk, &p, "ch/1", saving(Status::Pull));
    let send = |w: &mut World, link: &Arc<Client>, epoch: u64, body: &str| {
        for number in 1..=3 {
            w.command(link, passed_on(epoch, number, &format!("{body}{number}"), "ch/1"));
        }
    };
    send(&mut w, &link, 7, "old");
    disk.commit(&mut w);
    disk.commit(&mut w);
    let before = disk.records.len();
    let link = w.client("link-again");
    send(&mut w, &link, 6, "new");
    disk.commit(&mut w);
    assert!(disk.records.len() >= before + 3);
    for kept in before..=disk.records.len() {
        let mut w = disk.start(kept);
        let link = w.client("link");
        send(&mut w, &link, 6, "new");
        Disk::default().commit(&mut w);
        assert_eq!(w.stored("ch/1"), 6, "after {kept} records");
    }
}

#[test]
fn message_without_room_is_deferred_and_keeps_its_order() {
    let (mut w, mut disk) = durable();
    let (p, link) = (w.client("p"), w.client("link"));
    create(&mut w, &mut disk, &p, "ch/1", saving(Status::Pull));
    w.broker.storage_refuses("the disk is full", w.now, &mut w.effects);
    w.turn();
    w.command(&link, passed_on(1, 1, "m1", "ch/1"));
    assert!(matches!(&w.notifications(link.connection)[..], [Event::Deferred(1, _)]));
    w.broker.storage_accepts(w.now, &mut w.effects);
    w.command(&link, passed_on(1, 2, "m2", "ch/1"));
    disk.commit(&mut w);
    assert_eq!(confirmed(&mut w, &link), [0; 0]);
    let again = w.client("link-again");
    for number in [1, 2] {
        w.command(&again, passed_on(1, number, &format!("m{number}"), "ch/1"));
    }
    w.command(&link, passed_on(9, 1, "old", "ch/1"));
    disk.commit(&mut w);
    disk.commit(&mut w);
    assert_eq!(confirmed(&mut w, &again), [1, 2]);
    let waiting = w.broker.waiting(&queue("ch/1"), 10).expect("it is there");
    let ids: Vec<_> = waiting.iter().filter_map(|waiting| waiting.message.as_ref()).map(id_of).collect();
    assert_eq!(ids, ["m1", "m2"]);
}

/// Publishes a message with a unique key.
fn publish_unique(world: &mut World, client: &Arc<Client>, address: &str, id: &str, key: &str) {
    let address = queue(address);
    let properties = Properties {
        pending_acknowledge: true,
        unique: true,
        content_type: address.id,
        ..Properties::default()
    };
    let headers = header_line(key.as_bytes());
    let message = Message::from_parts(id.as_bytes(), &headers, b"body", properties, Some(client.clone()));
    world.command(client, Command::Publish { queue: address, message });
}

#[test]
fn unique_key_allows_one_unsettled_message_also_after_a_restart() {
    // With a watermark of zero the headers are loaded again; with a large one they are still in memory.
    for memory_watermark in [0, 1 << 30] {
        let config = BrokerConfig { seed: 7, memory_watermark, ..BrokerConfig::default() };
        let (mut w, mut disk) = durable_with(config);
        let p = w.client("p");
        create(&mut w, &mut disk, &p, "ch/1", saving(Status::RoundRobin));
        create(&mut w, &mut disk, &p, "ch/2", saving(Status::RoundRobin));
        for (address, id, key) in
            [("ch/1", "1", "k"), ("ch/1", "2", "k"), ("ch/1", "3", "other"), ("ch/2", "4", "k")]
        {
            publish_unique(&mut w, &p, address, id, key);
        }
        disk.commit(&mut w);
        assert_eq!(w.heard(&p), ["2 refused 481", "1 ok", "3 ok", "4 ok"]);
        let mut again = disk.start(disk.records.len());
        let (p, a) = (again.client("p"), again.client("a"));
        publish_unique(&mut again, &p, "ch/1", "5", "k");
        assert_eq!(again.heard(&p), ["5 refused 481"], "it waits");
        again.join(&a, "ch").unwrap();
        assert_eq!(again.delivered(), ["a:1", "a:3", "a:4"]);
        publish_unique(&mut again, &p, "ch/1", "6", "k");
        assert_eq!(again.heard(&p), ["6 refused 481"], "it is in flight");
        again.nack(&a, "ch/1", "1", "later");
        publish_unique(&mut again, &p, "ch/1", "7", "k");
        assert_eq!(again.heard(&p), ["7 refused 481"], "it was requeued");
        again.advance(Duration::from_millis(100));
        again.ack(&a, "ch/1", "1");
        publish_unique(&mut again, &p, "ch/1", "8", "k");
        disk.commit(&mut again);
        assert_eq!(again.heard(&p), ["8 ok"], "it is done");
    }
}

#[test]
fn a_unique_key_is_free_when_its_message_is_cleared_unread() {
    let (mut w, mut disk) = durable();
    let p = w.client("p");
    create(&mut w, &mut disk, &p, "ch/1", saving(Status::Paused));
    publish_unique(&mut w, &p, "ch/1", "1", "k");
    disk.commit(&mut w);
    let mut again = disk.start(disk.records.len());
    let p = again.client("p");
    let clear =
        Request::ClearQueue { queue: queue("ch/1"), clear: Clear { high_priority: true, normal: true } };
    again.command(&p, Command::Request(RequestId(1), Box::new(clear)));
    publish_unique(&mut again, &p, "ch/1", "2", "k");
    disk.commit(&mut again);
    assert_eq!(again.heard(&p), ["2 ok"]);
}
