//! Moves of messages between queues of one and of several shards, with crashes at every point between two steps.
//!
//! The model of a machine: each shard has a list of records, of which the first ones are synced. A crash keeps these and
//! any number of the others. Messages between shards arrive in order, and are lost in a crash.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::{Command, Request};
use mqcore_broker::model::config::BrokerConfig;
use mqcore_broker::model::effect::{Effect, Event, Reply};
use mqcore_broker::model::id::{ConnectionId, RequestId, Sequence};
use mqcore_broker::model::journal_entry::JournalEntry;
use mqcore_broker::model::message::{Message, Properties};
use mqcore_broker::model::options::{Durability, QueueChanges, Status};
use mqcore_broker::model::placement::Placement;
use mqcore_broker::model::record::{Record, decode_put};
use mqcore_broker::model::recovery::{RecoveredState, RecoveryBuilder, settle_transfers};
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::stats::{DropReason, QueueInformation};
use mqcore_broker::model::time::Timestamp;
use mqcore_broker::model::transfer::{
    ArrivedMessage, MoveMessages, MoveReport, MoveTarget, Transfer, TransferEnd,
};
use mqcore_broker::shard::Broker;
use mqcore_testkit::{Random, seeds};

use crate::durability::saving;
use crate::shards::queue;
use crate::world::{World, acknowledged, id_of};

/// Input of a shard from another one, or from itself.
enum Input {
    Transfer(Transfer),
    Transferred(TransferEnd),
    Release(ArrivedMessage),
}

#[derive(Default)]
struct Disk {
    records: Vec<(Sequence, Record)>,
    synced: usize,
    /// The shard asked for a sync, with new records or without.
    is_asked_to_sync: bool,
}

struct Machine {
    brokers: Vec<Broker>,
    disks: Vec<Disk>,
    inboxes: Vec<VecDeque<Input>>,
    /// Messages that consumers received and that are not acknowledged: client, queue, id.
    delivered: Vec<(Arc<Client>, String, String)>,
    answers: BTreeMap<u32, Result<Reply, Rejection>>,
    /// Ids of acknowledged messages, with the shard and the records that it needs to be durable.
    acknowledged: BTreeMap<String, (usize, usize)>,
    now: Timestamp,
    last_request: u32,
}

fn operator(connection: u64) -> Arc<Client> {
    Arc::new(Client {
        connection: ConnectionId(connection),
        id: format!("c{connection}").into(),
        authenticated: true,
        name: None,
        kind: None,
        protocol: "test",
        admin: true,
        user: None,
        connected_at: Timestamp(0),
        data: None,
    })
}

impl Machine {
    fn new(shards: usize) -> Self {
        let mut machine = Self {
            brokers: Vec::new(),
            disks: (0..shards).map(|_| Disk::default()).collect(),
            inboxes: Vec::new(),
            delivered: Vec::new(),
            answers: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            now: Timestamp(1_000_000),
            last_request: 0,
        };
        machine.start();
        machine
    }

    /// Starts all shards from what their disks have.
    fn start(&mut self) {
        let shards = self.disks.len();
        let mut states: Vec<RecoveredState> = self.disks.iter().map(recovered).collect();
        settle_transfers(&mut states.iter_mut().collect::<Vec<_>>());
        (self.brokers, self.inboxes) = (Vec::new(), Vec::new());
        self.delivered.clear();
        let placement = Placement::unkeyed(shards);
        for (shard, state) in states.into_iter().enumerate() {
            let mut broker = Broker::new(BrokerConfig {
                shard,
                placement,
                seed: 7,
                // Bodies leave memory, so that moves have to load them.
                memory_watermark: 300,
                ..BrokerConfig::default()
            });
            let mut effects = Vec::new();
            broker.restore(state, self.now, &mut effects);
            self.brokers.push(broker);
            self.inboxes.push(VecDeque::new());
            self.take_effects(shard, effects);
        }
    }

    /// Loses what is not synced, apart from some of it.
    fn crash(&mut self, random: &mut Random) {
        for disk in &mut self.disks {
            let kept = disk.synced + random.index(disk.records.len() - disk.synced + 1);
            disk.records.truncate(kept);
            disk.synced = kept;
            disk.is_asked_to_sync = false;
        }
        self.acknowledged.retain(|_, (shard, records)| *records <= self.disks[*shard].records.len());
        self.start();
    }

    fn take_effects(&mut self, shard: usize, mut effects: Vec<Effect>) {
        let records = self.disks[shard].records.len();
        while !effects.is_empty() {
            let mut further = Vec::new();
            for effect in effects {
                match effect {
                    Effect::Record(sequence, record) => self.disks[shard].records.push((sequence, record)),
                    Effect::Transfer(transfer) => {
                        let to = transfer.to.channel.shard(Placement::unkeyed(self.brokers.len()));
                        self.inboxes[to].push_back(Input::Transfer(*transfer));
                    }
                    Effect::Transferred(end) => {
                        if let Some(to) = end.shard() {
                            self.inboxes[to].push_back(Input::Transferred(*end));
                        }
                    }
                    Effect::Release(arrival) => {
                        self.inboxes[arrival.shard].push_back(Input::Release(*arrival));
                    }
                    Effect::Load(load) => {
                        let bodies =
                            load.sequences.iter().map(|sequence| (*sequence, self.body(shard, *sequence)));
                        let loaded = load.loaded(bodies.collect());
                        self.brokers[shard].loaded(loaded, self.now, &mut further);
                    }
                    Effect::Deliver(deliver) => {
                        for to in deliver.to.as_slice() {
                            let what = (operator(to.0), deliver.queue.to_string(), id_of(&deliver.message));
                            self.delivered.push(what);
                        }
                    }
                    Effect::Notify(_, Event::Answered(id, result)) => {
                        self.answers.insert(id.0, result);
                    }
                    _ => {}
                }
            }
            while self.brokers[shard].work(self.now, 64, &mut further) {}
            effects = further;
        }
        let (broker, disk) = (&mut self.brokers[shard], &mut self.disks[shard]);
        let is_asked = broker.take_sync_request() || disk.records.len() > records;
        disk.is_asked_to_sync |= is_asked && broker.waits_for_sync();
    }

    fn body(&self, shard: usize, sequence: Sequence) -> Option<Message> {
        let (_, record) = self.disks[shard].records.iter().find(|(at, _)| *at == sequence)?;
        match JournalEntry::from(record) {
            JournalEntry::Put(put) => Some(decode_put(&put.encode()).expect("just encoded").message),
            _ => None,
        }
    }

    fn command(&mut self, client: &Arc<Client>, on: &str, command: Command) {
        let shard = queue(on).channel.shard(Placement::unkeyed(self.brokers.len()));
        let mut effects = Vec::new();
        self.brokers[shard].command(client, command, self.now, &mut effects);
        while self.brokers[shard].work(self.now, 64, &mut effects) {}
        self.take_effects(shard, effects);
    }

    fn request(&mut self, client: &Arc<Client>, on: &str, request: Request) -> u32 {
        self.last_request += 1;
        let id = RequestId(self.last_request);
        self.command(client, on, Command::Request(id, Box::new(request)));
        self.last_request
    }

    fn create(&mut self, address: &str, changes: QueueChanges) {
        let request = Request::CreateQueue { queue: queue(address), changes };
        let id = self.request(&operator(1), address, request);
        self.rest();
        self.answers.remove(&id).expect("it is durable").expect("it can be created");
    }

    fn publish(&mut self, address: &str, id: &str, headers: &str) {
        let properties = Properties { content_type: queue(address).id, hops: 15, ..Properties::default() };
        let body = format!("body of {id}, which is longer than a few bytes");
        let message =
            Message::from_parts(id.as_bytes(), headers.as_bytes(), body.as_bytes(), properties, None);
        self.command(&operator(1), address, Command::Publish { queue: queue(address), message });
    }

    fn begin_move(&mut self, from: &str, to: Option<&str>, max: u32) -> u32 {
        let to = to.map_or(MoveTarget::Origin, |to| MoveTarget::Queue(queue(to)));
        let wanted = MoveMessages { queue: queue(from), to, ids: Vec::new(), max };
        self.request(&operator(1), from, Request::MoveMessages(Box::new(wanted)))
    }

    /// The answer to a move that has ended.
    fn moved(&mut self, request: u32) -> Result<MoveReport, Rejection> {
        self.rest();
        match self.answers.remove(&request).expect("it has ended") {
            Ok(Reply::Moved(report)) => Ok(*report),
            Ok(other) => panic!("not the answer to a move: {other:?}"),
            Err(rejection) => Err(rejection),
        }
    }

    fn sync(&mut self, shard: usize) {
        let disk = &mut self.disks[shard];
        disk.synced = disk.records.len();
        disk.is_asked_to_sync = false;
        let Some((sequence, _)) = disk.records.last() else { return };
        let (sequence, mut effects) = (*sequence, Vec::new());
        self.brokers[shard].committed(Durability::Fsync, sequence, self.now, &mut effects);
        self.take_effects(shard, effects);
    }

    fn handle(&mut self, shard: usize) {
        let Some(input) = self.inboxes[shard].pop_front() else { return };
        let mut effects = Vec::new();
        let broker = &mut self.brokers[shard];
        match input {
            Input::Transfer(transfer) => broker.transfer(transfer, self.now, &mut effects),
            Input::Transferred(end) => broker.transferred(end, self.now, &mut effects),
            Input::Release(arrival) => broker.release(arrival, self.now, &mut effects),
        }
        while self.brokers[shard].work(self.now, 64, &mut effects) {}
        self.take_effects(shard, effects);
    }

    /// A consumer acknowledges what it received first.
    fn acknowledge(&mut self) {
        if self.delivered.is_empty() {
            return;
        }
        let (client, address, id) = self.delivered.remove(0);
        self.command(&client, &address, Command::Acknowledge(World::word(&address, &id, None)));
        let shard = queue(&address).channel.shard(Placement::unkeyed(self.brokers.len()));
        let records = self.disks[shard].records.len();
        let before = self.acknowledged.insert(id.clone(), (shard, records));
        assert_eq!(before, None, "{id} was acknowledged before, durably");
    }

    /// One step of the machine.
    fn step(&mut self, random: &mut Random) {
        let shard = random.index(self.brokers.len());
        match random.below(4) {
            0 => self.sync(shard),
            1 => self.acknowledge(),
            _ => self.handle(shard),
        }
    }

    /// Steps until nothing is left to do, with no more syncs than the shards ask for. Then everything is synced.
    fn rest(&mut self) {
        loop {
            let busy = self.inboxes.iter().any(|inbox| !inbox.is_empty());
            if !busy && !self.disks.iter().any(|disk| disk.is_asked_to_sync) {
                break;
            }
            for shard in 0..self.brokers.len() {
                self.handle(shard);
                if self.disks[shard].is_asked_to_sync {
                    self.sync(shard);
                }
            }
        }
        for shard in 0..self.brokers.len() {
            assert!(
                !self.brokers[shard].waits_for_sync(),
                "shard {shard} waits for a sync that it has not requested"
            );
            self.sync(shard);
        }
    }

    fn information(&self, address: &str) -> QueueInformation {
        let address = queue(address);
        let shard = address.channel.shard(Placement::unkeyed(self.brokers.len()));
        self.brokers[shard].queue(&address).expect("the queue exists")
    }

    fn stored(&self, address: &str) -> u64 {
        let information = self.information(address);
        information.normal + information.high_priority
    }
}

/// The state that the records of a disk contain.
fn recovered(disk: &Disk) -> RecoveredState {
    let mut builder = RecoveryBuilder::default();
    let (mut definitions, mut live, mut touches) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
    for (sequence, record) in &disk.records {
        match JournalEntry::from(record) {
            JournalEntry::Put(put) => {
                builder.put(sequence.0, &put.encode());
                live.insert(sequence.0);
            }
            JournalEntry::Settle(settled) => {
                live.remove(&settled.0);
            }
            JournalEntry::Touch(touched, progress) => {
                touches.insert(touched.0, progress);
            }
            JournalEntry::Define(key, value) => {
                definitions.insert(key, value);
            }
            JournalEntry::Undefine(key) => {
                definitions.remove(&key);
            }
        }
    }
    for (key, value) in &definitions {
        builder.define(key, value).expect("just encoded");
    }
    for (sequence, progress) in touches.iter().filter(|(sequence, _)| live.contains(*sequence)) {
        builder.touch(*sequence, progress).expect("just encoded");
    }
    let next = disk.records.last().map_or(0, |(sequence, _)| sequence.0) + 1;
    let (state, unreadable) = builder.finish(live.into_iter(), next).expect("just encoded");
    assert_eq!(unreadable, [0_u64; 0]);
    state
}

/// The messages that a machine would have after a crash that keeps everything synced and nothing else: queue and id.
fn durable_messages(machine: &Machine) -> Vec<(String, String)> {
    let kept: Vec<Disk> = machine
        .disks
        .iter()
        .map(|disk| Disk { records: disk.records[..disk.synced].to_vec(), ..Disk::default() })
        .collect();
    let mut states: Vec<RecoveredState> = kept.iter().map(recovered).collect();
    settle_transfers(&mut states.iter_mut().collect::<Vec<_>>());
    let mut found = Vec::new();
    for (disk, state) in kept.iter().zip(&states) {
        for message in &state.messages {
            let record = disk.records.iter().find(|(sequence, _)| *sequence == message.sequence);
            if let Some(JournalEntry::Put(put)) = record.map(|(_, record)| JournalEntry::from(record)) {
                let put = decode_put(&put.encode()).expect("just encoded");
                found.push((put.queue.to_string(), id_of(&put.message)));
            }
        }
    }
    found
}

/// Two channels, of different shards if there are several.
fn machine(shards: usize) -> (Machine, String) {
    let placement = Placement::unkeyed(shards);
    let home = queue("failed/1").channel.shard(placement);
    let others = (0..).map(|number| format!("work{number}/1"));
    let other = others.into_iter().find(|name| shards == 1 || queue(name).channel.shard(placement) != home);
    let other = other.expect("some name is placed elsewhere");
    let mut machine = Machine::new(shards);
    machine.create("failed/1", saving(Status::Pull));
    machine.create(&other, saving(Status::RoundRobin));
    (machine, other)
}

#[test]
fn moved_messages_are_in_one_queue_whenever_the_machine_crashes() {
    for seed in seeds(200, 5_000) {
        let mut random = Random::new(seed);
        let (mut machine, work) = machine(1 + random.index(3));
        let returns = random.one_in(2);
        let total = 1 + random.index(30);
        for number in 0..total {
            let headers = if returns { format!("Dead-Letter-Queue:{work}\r\n") } else { String::new() };
            machine.publish("failed/1", &format!("m{number}"), &headers);
        }
        machine.rest();
        let consumed = random.one_in(2);
        let mut crashes = 0;
        loop {
            if consumed {
                let channel = queue(&work).channel;
                machine.request(&operator(2), &work, Request::Join { channel });
            }
            let to = (!returns).then_some(&*work);
            machine.begin_move("failed/1", to, 1 + random.below(40) as u32);
            for _ in 0..random.index(120) {
                machine.step(&mut random);
                let found = durable_messages(&machine);
                let ids: BTreeSet<_> = found.iter().map(|(_, id)| id.clone()).collect();
                assert_eq!(ids.len(), found.len(), "seed {seed}: some message is in two queues: {found:?}");
                let is_gone = |id: &String| {
                    machine.acknowledged.get(id).is_some_and(|(_, _)| true) && !ids.contains(id)
                };
                for number in 0..total {
                    let id = format!("m{number}");
                    assert!(ids.contains(&id) || is_gone(&id), "seed {seed}: {id} is lost: {found:?}");
                }
                for (id, (shard, records)) in &machine.acknowledged {
                    let durable = *records <= machine.disks[*shard].synced;
                    assert!(!durable || !ids.contains(id), "seed {seed}: {id} returns after its settlement");
                }
            }
            if crashes == 6 {
                break;
            }
            crashes += 1;
            machine.crash(&mut random);
        }
        machine.rest();
        let to = (!returns).then_some(&*work);
        let last = machine.begin_move("failed/1", to, 1_000);
        machine.moved(last).expect("nothing rejects messages");
        while !machine.delivered.is_empty() {
            machine.acknowledge();
            machine.rest();
        }
        let left = machine.stored(&work) + machine.acknowledged.len() as u64;
        assert_eq!((machine.stored("failed/1"), left), (0, total as u64), "seed {seed}");
    }
}

#[test]
fn messages_that_a_full_queue_rejects_stay_in_their_order() {
    let (mut machine, work) = machine(2);
    let limit = QueueChanges { message_limit: Some(3), ..QueueChanges::default() };
    let request = Request::UpdateQueue { queue: queue(&work), changes: limit };
    machine.request(&operator(1), &work, request);
    for number in 0..8 {
        machine.publish("failed/1", &format!("m{number}"), "");
    }
    machine.rest();
    let request = machine.begin_move("failed/1", Some(&work), 100);
    let report = machine.moved(request).expect("three fit");
    assert_eq!((report.moved, report.left), (3, 5));
    let rejection = report.rejection.expect("the queue is full");
    assert_eq!(rejection.kind, RejectionKind::LimitExceeded);
    assert!(rejection.reason.contains("is full (3 messages)"), "{rejection}");
    let stayed: Vec<String> = durable_messages(&machine)
        .into_iter()
        .filter_map(|(address, id)| (address == "failed/1").then_some(id))
        .collect();
    assert_eq!(stayed, ["m3", "m4", "m5", "m6", "m7"]);
    let again = machine.begin_move("failed/1", Some(&work), 100);
    let rejection = machine.moved(again).expect_err("nothing fits");
    assert_eq!(rejection.kind, RejectionKind::LimitExceeded);
    assert_eq!((machine.stored("failed/1"), machine.stored(&work)), (5, 3));
}

#[test]
fn only_messages_that_name_their_queue_return_to_it_and_without_the_headers_about_that() {
    let (mut machine, work) = machine(2);
    let from = |queue: &str| {
        format!(
            "kind:x\r\nDead-Letter-Reason:limit\r\nDead-Letter-Queue:{queue}\r\nDead-Letter-Attempts:7\r\nlast:y\r\n"
        )
    };
    machine.publish("failed/1", "no-origin", "kind:x\r\n");
    machine.publish("failed/1", "twice", &format!("{}{}", from("elsewhere/9"), from(&work)));
    machine.publish("failed/1", "malformed", "Dead-Letter-Queue:a/b/c/\r\n");
    machine.rest();
    let request = machine.begin_move("failed/1", None, 100);
    let report = machine.moved(request).expect("one has an origin");
    assert_eq!((report.moved, report.without_origin, report.left), (1, 2, 2));
    assert_eq!(machine.information("failed/1").stats.moved, 1);
    let (shard, sequence) = machine
        .disks
        .iter()
        .enumerate()
        .find_map(|(shard, disk)| {
            let put = disk.records.iter().find(|(_, record)| matches!(record, Record::PutTransferred(_)));
            put.map(|(sequence, _)| (shard, *sequence))
        })
        .expect("it is saved in its queue");
    let message = machine.body(shard, sequence).expect("it is a message");
    assert_eq!(message.headers(), b"kind:x\r\nlast:y\r\nkind:x\r\nlast:y\r\n");
    assert_eq!(message.properties().content_type, 1);
}

#[test]
fn messages_of_a_queue_in_memory_move_too_and_only_the_wanted_ones() {
    let (mut machine, work) = machine(2);
    machine.create("memory/1", acknowledged(Status::Pull));
    for number in 0..5 {
        machine.publish("memory/1", &format!("m{number}"), "");
    }
    let ids = vec![b"m3".as_slice().into(), b"m1".as_slice().into()];
    let to = MoveTarget::Queue(queue(&work));
    let wanted = MoveMessages { queue: queue("memory/1"), to, ids, max: 100 };
    let request = machine.request(&operator(1), "memory/1", Request::MoveMessages(Box::new(wanted.clone())));
    let report = machine.moved(request).expect("nothing rejects messages");
    assert_eq!((report.moved, report.left), (2, 3));
    let ids = vec![b"m4".as_slice().into()];
    let wanted = MoveMessages { to: MoveTarget::Nowhere, ids, ..wanted };
    let request = machine.request(&operator(1), "memory/1", Request::MoveMessages(Box::new(wanted)));
    let report = machine.moved(request).expect("it can be erased");
    assert_eq!((report.moved, report.left), (1, 2));
    assert_eq!(machine.information("memory/1").stats.dropped[DropReason::Erased as usize], 1);
    let moved: Vec<String> = durable_messages(&machine).into_iter().map(|(_, id)| id).collect();
    assert_eq!(moved, ["m1", "m3"], "they are saved where they are now");
}

#[test]
fn a_move_without_a_target_or_to_itself_is_rejected() {
    let (mut machine, _) = machine(2);
    machine.publish("failed/1", "m", "");
    machine.rest();
    for (from, to, kind) in [
        ("failed/1", "failed/1", RejectionKind::Unacceptable),
        ("failed/7", "failed/1", RejectionKind::NotFound),
        ("absent/1", "failed/1", RejectionKind::NotFound),
    ] {
        let request = machine.begin_move(from, Some(to), 10);
        assert_eq!(machine.moved(request).expect_err("it cannot move").kind, kind, "{from} to {to}");
    }
    assert_eq!(machine.stored("failed/1"), 1);
}

#[test]
fn a_queue_that_is_erased_ends_its_moves() {
    let (mut machine, work) = machine(2);
    for number in 0..4 {
        machine.publish("failed/1", &format!("m{number}"), "");
    }
    machine.rest();
    let request = machine.begin_move("failed/1", Some(&work), 100);
    let removal = Request::RemoveQueue { queue: queue("failed/1") };
    machine.request(&operator(1), "failed/1", removal);
    assert_eq!(machine.moved(request).expect_err("its queue is gone").kind, RejectionKind::NotFound);
    let found: BTreeSet<String> =
        durable_messages(&machine).into_iter().map(|(address, _)| address).collect();
    assert_eq!(found, BTreeSet::from([work.clone()]), "those that were leaving arrive");
    assert_eq!(machine.stored(&work), 4);
}

#[test]
fn message_of_a_removed_queue_is_released_although_no_record_follows() {
    let (mut machine, work) = machine(2);
    machine.publish("failed/1", "moves", "");
    machine.create("failed/2", saving(Status::RoundRobin));
    machine.publish("failed/2", "stays", "");
    machine.rest();
    let shard = |name: &str| queue(name).channel.shard(Placement::unkeyed(2));
    machine.begin_move("failed/1", Some(&work), 1);
    machine.handle(shard(&work));
    machine.sync(shard(&work));
    machine.request(&operator(1), "failed/1", Request::RemoveQueue { queue: queue("failed/1") });
    machine.sync(shard("failed/1"));
    // A record that nothing waits for.
    let channel = queue("failed/2").channel;
    machine.request(&operator(2), "failed/2", Request::Join { channel });
    machine.acknowledge();
    machine.rest();
    assert_eq!(machine.stored(&work), 1);
    let pulled = Request::Join { channel: queue(&work).channel };
    machine.request(&operator(3), &work, pulled);
    assert_eq!(machine.delivered.len(), 1, "a consumer of the new queue gets it");
}
