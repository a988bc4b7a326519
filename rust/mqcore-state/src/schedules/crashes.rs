//! Tests with crashes at any moment, of a keeper and of shards whose disks lose what was not synced: each run reaches
//! its queue exactly once.
//!
//! Seeds: see the crate `mqcore-testkit`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::{Clear, Command, Request};
use mqcore_broker::model::config::BrokerConfig;
use mqcore_broker::model::effect::{Effect, Event};
use mqcore_broker::model::id::{ConnectionId, QueueAddress, RequestId, Sequence};
use mqcore_broker::model::journal_entry::JournalEntry;
use mqcore_broker::model::options::{Durability, QueueChanges, Status};
use mqcore_broker::model::placement::Placement;
use mqcore_broker::model::record::{Record, decode_put};
use mqcore_broker::model::recovery::RecoveryBuilder;
use mqcore_broker::model::time::Timestamp;
use mqcore_broker::shard::Broker;
use mqcore_journal::journal::Journal;
use mqcore_journal::options::Options;
use mqcore_journal::storage::MemoryStorage;
use mqcore_session::schedules::{Headers, ScheduleEnd, ScheduleRequest, headers};
use mqcore_testkit::Random;

use super::draft::{Crons, parse_request};
use super::keeper::Keeper;

const SHARDS: usize = 2;
const PLACEMENT: Placement = Placement::unkeyed(SHARDS);
const START: u64 = 1_800_000_000_000;
const INTERVAL_MS: u64 = 100;
/// Queues on different shards, and one that does not exist.
const QUEUES: [&str; 3] = ["mail", "reports", "unknown"];
/// How often the schedule of the last queue runs.
const RUNS: u64 = 7;

fn options(shard: u32, now: u64) -> Options {
    Options { shard, segment_bytes: 4096, now_ms: now, identity: u64::from(shard) + 5, ..Options::default() }
}

/// A shard with its journal.
struct Shard {
    broker: Broker,
    journal: Journal<MemoryStorage>,
    records: Vec<(Sequence, Record)>,
    inbox: VecDeque<Command>,
}

impl Shard {
    fn open(shard: usize, disk: &MemoryStorage, now: u64) -> Self {
        let mut state = RecoveryBuilder::default();
        let opened = Journal::open_with_observers(
            disk.clone(),
            options(shard as u32, now),
            &mut |_, _| {},
            &mut |number, payload| state.put(number, payload),
            &mut |_| Ok(()),
        );
        let (journal, recovered) = opened.expect("it opens");
        for (key, value) in &recovered.definitions {
            state.define(key, value).expect("we wrote it");
        }
        journal.each_touch(&mut |number, progress| {
            state.touch(number, progress.expect("it is readable")).expect("we wrote it");
        });
        let (had, unreadable) = state.finish(journal.live(), recovered.next_sequence).expect("we wrote it");
        assert!(unreadable.is_empty());
        let config = BrokerConfig {
            shard,
            placement: PLACEMENT,
            delivery_handler: "at-least-once".into(),
            ..BrokerConfig::default()
        };
        let mut opened =
            Self { broker: Broker::new(config), journal, records: Vec::new(), inbox: VecDeque::new() };
        let mut effects = Vec::new();
        opened.broker.restore(had, Timestamp(now), &mut effects);
        opened.carry_out(effects);
        opened
    }

    /// Passes effects of shards to the keeper.
    fn carry_out(&mut self, effects: Vec<Effect>) -> Vec<Event> {
        let mut events = Vec::new();
        for effect in effects {
            match effect {
                Effect::Record(sequence, record) => self.records.push((sequence, record)),
                Effect::Notify(super::publisher::CONNECTION, event) => events.push(event),
                _ => {}
            }
        }
        events
    }

    fn turn(&mut self, client: &Arc<Client>, commands: usize, now: u64) -> Vec<Event> {
        let (now, mut effects) = (Timestamp(now), Vec::new());
        for command in self.inbox.drain(..commands.min(self.inbox.len())) {
            self.broker.command(client, command, now, &mut effects);
        }
        self.broker.work(now, 100, &mut effects);
        self.carry_out(effects)
    }

    /// Writes some or all records, and may make them durable.
    fn write(&mut self, count: usize, sync: bool, now: u64) -> Vec<Event> {
        let mut last = None;
        for (sequence, record) in self.records.drain(..count.min(self.records.len())) {
            last = Some(sequence);
            let journal = &mut self.journal;
            let written = match JournalEntry::from(&record) {
                JournalEntry::Put(message) => journal.put(sequence.0, 0, &[&message.encode()]),
                JournalEntry::Settle(settled) => journal.settle(&[settled.0]),
                JournalEntry::Touch(touched, progress) => journal.touch(touched.0, &progress),
                JournalEntry::Define(key, value) => journal.define(&key, &value),
                JournalEntry::Undefine(key) => journal.undefine(&key),
            };
            written.expect("the disk is large enough");
        }
        let Some(last) = last else { return Vec::new() };
        self.journal.write().expect("it writes");
        let mut effects = Vec::new();
        self.broker.committed(Durability::Os, last, Timestamp(now), &mut effects);
        if sync {
            self.journal.sync().expect("it syncs");
            self.broker.committed(Durability::Fsync, last, Timestamp(now), &mut effects);
        }
        self.carry_out(effects)
    }

    /// The disk is full for a moment: messages that are not written are rejected.
    fn refuse(&mut self, now: u64) -> Vec<Event> {
        let mut effects = Vec::new();
        self.records.retain(|(_, record)| !record.is_put());
        self.broker.storage_refuses("full", Timestamp(now), &mut effects);
        let events = self.carry_out(effects);
        let mut effects = Vec::new();
        self.broker.storage_accepts(Timestamp(now), &mut effects);
        self.carry_out(effects).into_iter().chain(events).collect()
    }
}

/// When a run was due, and its numbers in the journals of shards.
type Seen = (u64, BTreeSet<(usize, u64)>);

struct World {
    chance: Random,
    now: u64,
    keeper: Keeper<MemoryStorage>,
    shards: Vec<Shard>,
    disks: Vec<MemoryStorage>,
    events: VecDeque<Event>,
    client: Arc<Client>,
    crons: Crons,
    /// By schedule and number: when it was due, and its numbers in the journals of shards.
    seen: BTreeMap<(String, u64), Seen>,
}

fn queue(name: &str) -> QueueAddress {
    QueueAddress::parse(name).expect("a name")
}

impl World {
    fn new(seed: u64) -> Self {
        let disks: Vec<_> = (0..=SHARDS as u64).map(|disk| MemoryStorage::new(seed * 31 + disk)).collect();
        let crons = Crons::default();
        let keeper =
            Keeper::open(disks[SHARDS].clone(), options(9, START), PLACEMENT, &crons, &mut |_| Ok(()));
        let (keeper, _) = keeper.expect("it opens");
        let shards = (0..SHARDS).map(|shard| Shard::open(shard, &disks[shard], START)).collect();
        let client = super::publisher::client();
        let (chance, events, seen) = (Random::new(seed), VecDeque::new(), BTreeMap::new());
        let mut world = Self { chance, now: START, keeper, shards, disks, events, client, crons, seen };
        for name in [QUEUES[0], QUEUES[1], "default"] {
            let changes = QueueChanges { status: Some(Status::RoundRobin), ..QueueChanges::default() };
            let queue = queue(name);
            let shard = &mut world.shards[queue.channel.shard(PLACEMENT)];
            let request = Request::CreateQueue { queue, changes };
            shard.inbox.push_back(Command::Request(RequestId(0), Box::new(request)));
            shard.turn(&world.client, 1, START);
            shard.write(usize::MAX, true, START);
        }
        world
    }

    fn schedule(&mut self, name: &str, runs: u64) {
        self.schedule_with(name, runs, "");
    }

    fn schedule_with(&mut self, name: &str, runs: u64, more: &str) {
        let headers = format!("interval-ms:{INTERVAL_MS},catch-up:all,run_count:{runs},guarantee,{more}");
        let request = ScheduleRequest {
            id: Box::default(),
            queue: name.as_bytes().into(),
            wishes: Headers::parse(headers.as_bytes()),
            headers: headers.into_bytes().into(),
            interval: None,
            job: name.as_bytes().into(),
            cron: None,
        };
        let wanted = parse_request(&request, &[queue(name)], &self.crons).expect("it can be planned");
        self.keeper.schedule(wanted, self.now).expect("there is room");
    }

    fn keep(&mut self) {
        self.keeper.take_due(self.now);
        let shards = &self.shards;
        let known = |queue: &QueueAddress| shards[queue.channel.shard(PLACEMENT)].broker.takes(queue);
        self.keeper.write_due(known).expect("the disk is large enough");
        self.keeper.commit().expect("it writes");
        for (shard, command) in self.keeper.take_commands(self.now) {
            self.shards[shard].inbox.push_back(command);
        }
    }

    fn pass_events(&mut self, events: usize) {
        for event in self.events.drain(..events.min(self.events.len())) {
            match event {
                Event::Confirmed(numbers) => self.keeper.confirmed(&numbers),
                Event::Deferred(number, _) => self.keeper.put_off(number, self.now),
                _ => {}
            }
        }
    }

    /// Checks everything that waits in queues, and may remove it.
    fn consume(&mut self, clear: bool) {
        for name in [QUEUES[0], QUEUES[1], "default"] {
            let queue = queue(name);
            let at = queue.channel.shard(PLACEMENT);
            let shard = &mut self.shards[at];
            for waiting in shard.broker.waiting(&queue, usize::MAX).expect("it is there") {
                let payload = shard.journal.read(waiting.sequence.0).expect("it is saved");
                let put = decode_put(&payload).expect("we wrote it");
                let text = put.message.headers();
                let line =
                    text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"EventMQ-Headers:"));
                let line = line.expect("it is a job").trim_ascii();
                let number = |name: &[u8]| -> u64 {
                    let value = headers::value(line, name).and_then(|value| str::from_utf8(value).ok());
                    value.and_then(|value| value.parse().ok()).expect("each run has it")
                };
                let schedule = String::from_utf8_lossy(put.message.body()).into_owned();
                let (due, fence) = (number(b"due"), number(b"fence"));
                let (before, places) =
                    self.seen.entry((schedule, fence)).or_insert_with(|| (due, BTreeSet::new()));
                assert_eq!(*before, due, "a number is of one due time");
                places.insert((at, waiting.sequence.0));
            }
            if clear {
                let request =
                    Request::ClearQueue { queue, clear: Clear { high_priority: true, normal: true } };
                let command = Command::Request(RequestId(0), Box::new(request));
                let mut effects = Vec::new();
                shard.broker.command(&self.client, command, Timestamp(self.now), &mut effects);
                shard.carry_out(effects);
            }
        }
    }

    fn crash(&mut self) {
        for disk in &self.disks {
            disk.crash();
        }
        self.events.clear();
        self.shards = (0..SHARDS).map(|shard| Shard::open(shard, &self.disks[shard], self.now)).collect();
        let keeper = Keeper::open(
            self.disks[SHARDS].clone(),
            options(9, self.now),
            PLACEMENT,
            &self.crons,
            &mut |_| Ok(()),
        );
        let (keeper, unreadable) = keeper.expect("it opens");
        assert_eq!(unreadable, 0);
        self.keeper = keeper;
    }

    fn step(&mut self) {
        let at = self.chance.below(SHARDS as u64) as usize;
        let some = self.chance.below(4) as usize + 1;
        match self.chance.below(20) {
            0..=4 => self.now += self.chance.below(3 * INTERVAL_MS),
            5..=7 => self.keep(),
            8..=10 => {
                let events = self.shards[at].turn(&self.client, some, self.now);
                self.events.extend(events);
            }
            11..=14 => {
                let sync = self.chance.below(2) == 0;
                let events = self.shards[at].write(some, sync, self.now);
                self.events.extend(events);
            }
            15 | 16 => self.pass_events(some),
            17 => {
                let clear = self.chance.below(2) == 0;
                self.consume(clear);
            }
            18 if self.chance.below(3) == 0 => {
                let events = self.shards[at].refuse(self.now);
                self.events.extend(events);
            }
            19 if self.chance.below(2) == 0 => self.crash(),
            _ => {}
        }
    }

    /// Continues without crashes until nothing is left to do.
    fn finish(&mut self) {
        for _ in 0..200 {
            self.now += 20;
            self.keep();
            for at in 0..SHARDS {
                for _ in 0..3 {
                    let events = self.shards[at].turn(&self.client, usize::MAX, self.now);
                    self.events.extend(events);
                    let events = self.shards[at].write(usize::MAX, true, self.now);
                    self.events.extend(events);
                }
            }
            self.pass_events(usize::MAX);
        }
        self.consume(true);
    }
}

fn every_run_is_there_once(seed: u64) {
    let mut world = World::new(seed);
    for (name, runs) in QUEUES.into_iter().zip([0, 0, RUNS]) {
        world.schedule(name, runs);
    }
    world.keep();
    let steps = 20 + world.chance.below(120);
    for _ in 0..steps {
        world.step();
    }
    // Schedules that never end would keep it busy forever; their last run is one that the clock has reached.
    world.finish();
    for (name, runs) in QUEUES.into_iter().zip([0, 0, RUNS]) {
        let of_it: Vec<_> = world.seen.iter().filter(|((schedule, _), _)| schedule == name).collect();
        for (expected, ((_, fence), (due, places))) in (1..).zip(&of_it) {
            assert_eq!(*fence, expected, "seed {seed}: a run of {name} is missing");
            assert_eq!(*due, START + (expected - 1) * INTERVAL_MS, "seed {seed}: {name}, run {fence}");
            assert_eq!(places.len(), 1, "seed {seed}: run {fence} of {name} came twice: {places:?}");
        }
        let due = (world.now - START) / INTERVAL_MS + 1;
        let expected = if runs > 0 { runs.min(due) } else { due };
        // Runs that became due in the last moments may be in flight.
        assert!(
            of_it.len() as u64 + 1 >= expected && of_it.len() as u64 <= expected,
            "seed {seed}: {} of {expected} runs of {name}",
            of_it.len()
        );
    }
}

#[test]
fn intervals_continue_after_the_clock_was_set_back_while_running_or_stopped() {
    for restarts in [false, true] {
        let mut world = World::new(1);
        world.schedule("mail", 0);
        world.keep();
        world.now += 10 * INTERVAL_MS;
        world.keep();
        world.now -= 3_600_000;
        if restarts {
            world.crash();
        } else {
            world.keeper.set_back(world.now);
        }
        let list = world.keeper.list(1);
        assert_eq!((list.schedules[0].runs, list.schedules[0].due_ms), (11, world.now + INTERVAL_MS));
        world.now += INTERVAL_MS;
        world.keep();
        assert_eq!(world.keeper.list(1).schedules[0].runs, 12);
    }
}

fn seeds() -> std::ops::Range<u64> {
    mqcore_testkit::seeds(40, 200)
}

#[test]
fn a_schedule_that_was_ended_stays_ended_whenever_broker_and_disks_crash() {
    for seed in seeds() {
        let mut world = World::new(seed);
        world.schedule(QUEUES[0], 0);
        world.schedule(QUEUES[1], 0);
        world.keep();
        for _ in 0..world.chance.below(60) {
            world.step();
        }
        let list = world.keeper.list(10);
        let ended =
            list.schedules.iter().find(|schedule| schedule.queue == QUEUES[0]).expect("it is there").id;
        assert!(world.keeper.unschedule(&ended, ScheduleEnd::Ended));
        // From here on a client knows that it has ended.
        world.keeper.commit().expect("it writes");
        for _ in 0..world.chance.below(60) {
            world.step();
        }
        world.crash();
        world.finish();
        let list = world.keeper.list(10);
        assert!(list.schedules.iter().all(|schedule| schedule.id != ended), "seed {seed}: it is back");
        assert_eq!(list.total, 1, "seed {seed}: the other one continues");
        world.schedule_with(QUEUES[0], 0, "unless-ended:1");
        assert_eq!(world.keeper.list(10).total, 1, "seed {seed}: a worker started it again");
        world.schedule(QUEUES[0], 0);
        world.keep();
        world.crash();
        assert_eq!(world.keeper.list(10).total, 2, "seed {seed}: it was started on purpose");
    }
}

#[test]
fn each_due_time_becomes_one_job_whenever_broker_and_disks_crash() {
    for seed in seeds() {
        every_run_is_there_once(seed);
    }
}

#[test]
fn an_unchanged_schedule_continues_and_a_changed_one_starts_again() {
    let mut world = World::new(1);
    world.schedule("mail", 0);
    world.keep();
    world.now += INTERVAL_MS / 2;
    world.schedule("mail", 0);
    let list = world.keeper.list(10);
    assert_eq!((list.total, list.schedules[0].runs), (1, 1));
    assert_eq!(list.schedules[0].due_ms, START + INTERVAL_MS);
    world.schedule("mail", 3);
    let list = world.keeper.list(10);
    assert_eq!((list.total, list.schedules[0].runs, list.schedules[0].left), (1, 0, Some(3)));
    assert_eq!(list.schedules[0].due_ms, world.now);
    let id = &list.schedules[0].id;
    assert!(world.keeper.unschedule(id, ScheduleEnd::Ended));
    assert!(!world.keeper.unschedule(id, ScheduleEnd::Ended));
    world.keep();
    world.crash();
    assert_eq!(world.keeper.list(10).total, 0);
    assert_eq!(ConnectionId(u64::MAX), super::publisher::CONNECTION);
}
