//! Random operations against a slow, simple queue: after each step both must have delivered the same messages to the
//! same consumers in the same order, and must store the same messages in the same places.

use crate::world;

use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::{Clear, Request};
use mqcore_broker::model::config::BrokerConfig;
use mqcore_broker::model::config::HistoryOptions;
use mqcore_broker::model::options::{DeadLetter, QueueChanges, Status};
use mqcore_broker::model::recovery::RecoveredState;
use mqcore_broker::model::time::Timestamp;
use mqcore_testkit::{Random, seeds};
use world::ledger::Ledger;
use world::{World, becoming, changes, queue};

const QUEUE: &str = "ch/1";
const CLIENTS: usize = 4;

#[derive(Clone, Debug)]
struct Letter {
    id: String,
    high: bool,
    deadline: u64,
    put_backs: u16,
    sent: bool,
}

/// A message that is in flight.
#[derive(Clone, Debug)]
struct Out {
    letter: Letter,
    /// (consumer, due), in the order of delivery.
    holders: Vec<(usize, u64, u64)>,
    acked: bool,
    /// A holder failed; where the message is requeued: first or last.
    back: Option<bool>,
}

/// The simple queue: lists that are searched linearly.
#[derive(Default)]
struct Model {
    status: Option<Status>,
    acks: bool,
    waits: bool,
    first_only: bool,
    limit: u64,
    put_back_limit: u16,
    message_timeout: u64,
    ack_timeout: u64,
    ready: Vec<Letter>,
    out: Vec<Out>,
    members: Vec<usize>,
    cursor: usize,
    deliveries: u64,
    /// The expected deliveries: "consumer:message:first".
    log: Vec<String>,
    /// Number of removed messages.
    gone: u64,
}

impl Model {
    fn status(&self) -> Status {
        self.status.expect("it was created")
    }

    fn publish(&mut self, id: String, high: bool, now: u64) -> &'static str {
        let limited = self.limit > 0 && self.status() != Status::Cache;
        if self.status() == Status::Stopped {
            return "401";
        }
        if limited && self.ready.len() as u64 >= self.limit {
            return "482";
        }
        let deadline = if self.message_timeout == 0 { u64::MAX } else { now + self.message_timeout };
        let letter = Letter { id, high, deadline, put_backs: 0, sent: false };
        match self.status() {
            Status::Broadcast => {
                if self.members.is_empty() {
                    self.gone += 1;
                } else {
                    self.send(letter, now);
                }
            }
            Status::Cache => {
                self.gone += self.ready.len() as u64;
                self.ready = vec![letter];
            }
            _ => self.ready.push(letter),
        }
        "ok"
    }

    /// The index of the next message: the first of high priority, or the first.
    fn next(&self) -> Option<usize> {
        self.ready.iter().position(|letter| letter.high).or((!self.ready.is_empty()).then_some(0))
    }

    fn newest(&self) -> Option<usize> {
        self.ready.iter().rposition(|letter| letter.high).or(self.ready.len().checked_sub(1))
    }

    fn drain(&mut self, now: u64) {
        loop {
            let drains = matches!(self.status(), Status::Push | Status::RoundRobin | Status::Broadcast);
            if !drains || self.members.is_empty() || (self.waits && self.acks && !self.out.is_empty()) {
                return;
            }
            let Some(next) = self.next() else { return };
            let letter = self.ready.remove(next);
            if letter.deadline <= now {
                self.gone += 1;
            } else {
                self.send(letter, now);
            }
        }
    }

    fn expire(&mut self, now: u64) {
        let before = self.ready.len();
        self.ready.retain(|letter| letter.deadline > now);
        self.gone += (before - self.ready.len()) as u64;
    }

    fn send(&mut self, mut letter: Letter, now: u64) {
        let to = if self.status() == Status::RoundRobin {
            let chosen = self.members[self.cursor % self.members.len()];
            self.cursor = (self.cursor + 1) % self.members.len();
            vec![chosen]
        } else if self.first_only {
            // The turn of round robin advances whichever consumer is chosen.
            self.cursor = 1 % self.members.len();
            vec![self.members[0]]
        } else {
            self.members.clone()
        };
        for (index, consumer) in to.iter().enumerate() {
            self.log.push(format!("{consumer}:{}:{}", letter.id, !letter.sent && index == 0));
        }
        letter.sent = true;
        self.hand(letter, &to, now);
    }

    fn hand(&mut self, letter: Letter, to: &[usize], now: u64) {
        if !self.acks {
            self.gone += 1;
            return;
        }
        let mut holders = Vec::new();
        for consumer in to {
            self.deliveries += 1;
            holders.push((*consumer, now + self.ack_timeout, self.deliveries));
        }
        self.out.push(Out { letter, holders, acked: false, back: None });
    }

    /// One holder releases a message: it acknowledged (`Some(true)`), rejected it or timed out (requeued last), or was
    /// lost (requeued first).
    fn settle(&mut self, id: &str, consumer: usize, good: bool, first: bool, now: u64) -> bool {
        let found = self
            .out
            .iter()
            .position(|out| out.letter.id == id && out.holders.iter().any(|holder| holder.0 == consumer));
        let Some(at) = found else { return false };
        let out = &mut self.out[at];
        out.holders.retain(|holder| holder.0 != consumer);
        if good {
            out.acked = true;
        } else if out.back != Some(true) {
            out.back = Some(first);
        }
        if out.holders.is_empty() {
            let out = self.out.remove(at);
            match out.back {
                Some(first) if !out.acked => self.put_back(out.letter, first, now),
                _ => self.gone += 1,
            }
        }
        true
    }

    fn put_back(&mut self, mut letter: Letter, first: bool, now: u64) {
        letter.put_backs += 1;
        let no_room = match self.status() {
            Status::Stopped | Status::Broadcast => true,
            Status::Cache => !self.ready.is_empty(),
            _ => false,
        };
        if letter.put_backs > self.put_back_limit || letter.deadline <= now || no_room {
            self.gone += 1;
        } else if first {
            self.ready.insert(0, letter);
        } else {
            self.ready.push(letter);
        }
    }

    fn pull(&mut self, consumer: usize, count: usize, newest: bool, now: u64) -> Vec<String> {
        if !self.members.contains(&consumer) {
            return Vec::new();
        }
        match self.status() {
            Status::Cache => {
                let latest = self.ready.first().filter(|letter| letter.deadline > now);
                latest.map(|letter| letter.id.clone()).into_iter().collect()
            }
            Status::Pull => {
                self.expire(now);
                let mut ids = Vec::new();
                let at_once = match self.waits && self.acks {
                    true => usize::from(self.out.is_empty()),
                    false => usize::MAX,
                };
                for _ in 0..count.min(at_once) {
                    let Some(at) = (if newest { self.newest() } else { self.next() }) else { break };
                    let mut letter = self.ready.remove(at);
                    letter.sent = true;
                    ids.push(letter.id.clone());
                    self.hand(letter, &[consumer], now);
                }
                ids
            }
            _ => Vec::new(),
        }
    }

    fn become_status(&mut self, status: Status) {
        let before = self.status.replace(status);
        self.waits &= status != Status::Broadcast;
        if before == Some(status) {
            return;
        }
        if status == Status::Stopped {
            self.gone += (self.ready.len() + self.out.len()) as u64;
            self.ready.clear();
            self.out.clear();
        }
        if status == Status::Cache {
            let newest = self.newest().map(|at| self.ready.remove(at));
            self.gone += self.ready.len() as u64;
            self.ready = newest.into_iter().collect();
        }
    }

    fn leave(&mut self, consumer: usize) {
        let Some(at) = self.members.iter().position(|member| *member == consumer) else { return };
        self.members.remove(at);
        if at < self.cursor {
            self.cursor -= 1;
        }
    }

    fn lose(&mut self, consumer: usize, now: u64) {
        self.leave(consumer);
        let mut had: Vec<_> = self
            .out
            .iter()
            .flat_map(|out| out.holders.iter().map(|holder| (out.letter.id.clone(), *holder)))
            .filter(|(_, holder)| holder.0 == consumer)
            .collect();
        had.sort_by_key(|(_, holder)| std::cmp::Reverse(holder.2));
        for (id, _) in had {
            self.settle(&id, consumer, false, true, now);
        }
    }

    /// The time of the next timeout.
    fn next_moment(&self) -> Option<u64> {
        let waiting = self.ready.iter().map(|letter| letter.deadline).filter(|deadline| *deadline < u64::MAX);
        let out = self.out.iter().flat_map(|out| out.holders.iter().map(|holder| holder.1));
        waiting.chain(out).min()
    }

    fn pass(&mut self, now: u64) {
        self.expire(now);
        loop {
            let due = self
                .out
                .iter()
                .flat_map(|out| {
                    out.holders.iter().map(|holder| (holder.1, holder.2, out.letter.id.clone(), holder.0))
                })
                .filter(|(due, ..)| *due <= now)
                .min();
            let Some((_, _, id, consumer)) = due else { return };
            self.settle(&id, consumer, false, false, now);
        }
    }

    fn ids(&self) -> Vec<String> {
        let (high, normal): (Vec<_>, Vec<_>) = self.ready.iter().partition(|letter| letter.high);
        high.into_iter().chain(normal).map(|letter| letter.id.clone()).collect()
    }
}

/// The broker and its model, compared after each step.
struct Pair {
    dice: Random,
    world: World,
    model: Model,
    admin: Arc<Client>,
    clients: Vec<Arc<Client>>,
    /// Numbers of `clients` in the log; a client that reconnects gets a new one.
    numbers: Vec<usize>,
    published: u64,
    accepted: u64,
    history: Vec<String>,
    memory: Option<u64>,
    ledger: Ledger,
}

impl Pair {
    /// `memory`: bytes of saved messages that may stay in memory; `None`: messages are not saved.
    fn new(seed: u64, memory: Option<u64>) -> Self {
        let mut dice = Random::new(seed);
        let memory_watermark = memory.unwrap_or(u64::MAX);
        let mut world = World::with(BrokerConfig {
            seed,
            memory_watermark,
            history: Some(HistoryOptions::default()),
            ..BrokerConfig::default()
        });
        if memory.is_some() {
            world.commits = true;
            world.broker.restore(RecoveredState::default(), world.now, &mut world.effects);
        }
        let admin = world.client("admin");
        let clients: Vec<_> = (1..=CLIENTS).map(|number| world.client(&number.to_string())).collect();
        let mut model = Model {
            status: Some(Status::Push),
            acks: dice.percent(70),
            waits: dice.percent(15),
            first_only: dice.percent(15),
            limit: if dice.percent(30) { 8 } else { 0 },
            put_back_limit: 1 + dice.index(4) as u16,
            message_timeout: if dice.percent(40) { 4_000 } else { 0 },
            ack_timeout: 2_500,
            ..Model::default()
        };
        let statuses = [Status::Push, Status::RoundRobin, Status::Pull, Status::Broadcast, Status::Cache];
        let status = statuses[dice.index(statuses.len())];
        model.status = Some(status);
        // A queue that stores nothing refuses the option.
        model.waits &= status != Status::Broadcast;
        let options = QueueChanges {
            request_acknowledge: Some(model.acks),
            wait_for_acknowledge: Some(model.waits),
            only_first_acquirer: Some(model.first_only),
            message_limit: Some(model.limit),
            put_back_limit: Some(model.put_back_limit),
            retry_delay: Some(Some(Duration::ZERO)),
            dead_letter: Some(Some(DeadLetter::Drop)),
            message_timeout: Some(Duration::from_millis(model.message_timeout)),
            acknowledge_timeout: Some(Duration::from_millis(model.ack_timeout)),
            delivery_handler: memory.map(|_| "at-least-once".into()),
            ..changes(status)
        };
        world.create(&admin, QUEUE, options);
        Self {
            dice,
            world,
            model,
            admin,
            clients,
            numbers: (1..=CLIENTS).collect(),
            published: 0,
            accepted: 0,
            history: Vec::new(),
            memory,
            ledger: Ledger::default(),
        }
    }

    fn now(&self) -> u64 {
        self.world.now.0
    }

    fn step(&mut self) {
        let who = self.dice.index(CLIENTS);
        match self.dice.index(100) {
            0..35 => self.publish(),
            35..60 => self.acknowledge(who),
            60..68 => self.join(who),
            68..72 => self.leave(who),
            72..75 => self.reconnect(who),
            75..84 => self.pull(who),
            84..94 => self.wait(),
            94..99 => self.change_status(),
            _ => self.clear(),
        }
        self.compare();
    }

    fn publish(&mut self) {
        self.published += 1;
        let id = format!("m{}", self.published);
        let high = self.dice.percent(20);
        self.history.push(format!("publish {id} high={high}"));
        let expected = self.model.publish(id.clone(), high, self.now());
        self.model.drain(self.now());
        let admin = self.admin.clone();
        self.world.publish_as(&admin, QUEUE, &id, high);
        let heard = self.world.heard(&admin);
        match expected {
            "ok" => {
                self.accepted += 1;
                assert_eq!(heard, [format!("{id} ok")]);
            }
            code => assert_eq!(heard, [format!("{id} refused {code}")]),
        }
    }

    fn acknowledge(&mut self, who: usize) {
        let number = self.numbers[who];
        let has: Vec<_> = self
            .model
            .out
            .iter()
            .filter(|out| out.holders.iter().any(|holder| holder.0 == number))
            .map(|out| out.letter.id.clone())
            .collect();
        // Occasionally a consumer acknowledges a message that it does not have.
        let id = if has.is_empty() || self.dice.percent(5) {
            format!("m{}", 1 + self.dice.index(self.published as usize + 1))
        } else {
            has[self.dice.index(has.len())].clone()
        };
        let good = self.dice.percent(70);
        self.history.push(format!("{number} acknowledges {id} {good}"));
        let now = self.now();
        self.model.settle(&id, number, good, false, now);
        self.model.drain(self.now());
        let client = self.clients[who].clone();
        if good {
            self.world.ack(&client, QUEUE, &id);
        } else {
            self.world.nack(&client, QUEUE, &id, "no");
        }
    }

    fn join(&mut self, who: usize) {
        let number = self.numbers[who];
        self.history.push(format!("{number} joins"));
        if !self.model.members.contains(&number) {
            self.model.members.push(number);
        }
        self.model.drain(self.now());
        let client = self.clients[who].clone();
        self.world.join(&client, "ch").expect("there is no limit");
    }

    fn leave(&mut self, who: usize) {
        let number = self.numbers[who];
        if !self.model.members.contains(&number) {
            return;
        }
        self.history.push(format!("{number} leaves"));
        self.model.leave(number);
        self.model.drain(self.now());
        let client = self.clients[who].clone();
        self.world.leave(&client, "ch");
    }

    fn reconnect(&mut self, who: usize) {
        let number = self.numbers[who];
        let next = self.numbers.iter().max().expect("there are clients") + 1;
        self.history.push(format!("{number} is lost and comes back as {next}"));
        let now = self.now();
        self.model.lose(number, now);
        self.model.drain(self.now());
        let client = self.clients[who].clone();
        self.world.close(&client);
        self.clients[who] = self.world.client(&next.to_string());
        self.numbers[who] = next;
    }

    fn pull(&mut self, who: usize) {
        let (number, count, newest) = (self.numbers[who], 1 + self.dice.index(3), self.dice.percent(30));
        self.history.push(format!("{number} pulls {count} newest={newest}"));
        let expected = self.model.pull(number, count, newest, self.now());
        let client = self.clients[who].clone();
        let (ids, _) = self.world.pull_with(&client, QUEUE, count as u32, newest, Clear::default());
        assert_eq!(ids, expected, "{}", self.story());
    }

    fn wait(&mut self) {
        let until = self.now() + 1 + self.dice.index(3_000) as u64;
        self.history.push(format!("time passes until {until}"));
        while let Some(moment) = self.model.next_moment().filter(|moment| *moment <= until) {
            self.model.pass(moment);
            self.model.drain(moment);
        }
        self.world.advance(Duration::from_millis(until - self.now()));
        assert_eq!(self.world.now, Timestamp(until));
    }

    fn change_status(&mut self) {
        let all = [
            Status::Broadcast,
            Status::Push,
            Status::RoundRobin,
            Status::Pull,
            Status::Cache,
            Status::Paused,
            Status::Stopped,
        ];
        // Stopping erases everything, so it is rarer than the others.
        let choices = if self.dice.percent(20) { all.len() } else { all.len() - 1 };
        let status = all[self.dice.index(choices)];
        self.history.push(format!("becomes {status:?}"));
        self.model.become_status(status);
        self.model.drain(self.now());
        let admin = self.admin.clone();
        self.world.update(&admin, QUEUE, becoming(status));
    }

    fn clear(&mut self) {
        let clear = Clear { high_priority: self.dice.percent(50), normal: self.dice.percent(50) };
        self.history.push(format!("{clear:?}"));
        let before = self.model.ready.len();
        self.model.ready.retain(|letter| if letter.high { !clear.high_priority } else { !clear.normal });
        self.model.gone += (before - self.model.ready.len()) as u64;
        let admin = self.admin.clone();
        self.world.request(&admin, Request::ClearQueue { queue: queue(QUEUE), clear }).expect("it is there");
    }

    fn compare(&mut self) {
        let seen: Vec<_> =
            self.world.seen().into_iter().map(|(who, what, first)| format!("{who}:{what}:{first}")).collect();
        let expected = std::mem::take(&mut self.model.log);
        assert_eq!(seen, expected, "what was handed out differs\n{}", self.story());
        let information = self.world.information(QUEUE);
        let stored = information.high_priority + information.normal;
        let ready = self.model.ids();
        assert_eq!(stored, ready.len() as u64, "what is stored differs\n{}", self.story());
        let holders: usize = self.model.out.iter().map(|out| out.holders.len()).sum();
        assert_eq!(information.in_flight, holders as u64, "what is in flight differs\n{}", self.story());
        // No message is lost or invented: each accepted one is stored, in flight, or removed for a counted reason.
        assert_eq!(information.stats.received, self.accepted);
        assert_eq!(information.stats.removed, self.model.gone, "{}", self.story());
        let out = self.model.out.len() as u64;
        assert_eq!(self.accepted, stored + out + information.stats.removed, "{}", self.story());
        self.ledger.read(&mut self.world.broker);
        self.ledger.agrees_with(&information);
        if stored == 0 && out == 0 {
            assert_eq!(information.memory_bytes, 0, "an empty queue keeps no memory");
        }
        if let Some(watermark) = self.memory {
            // The next message always stays in memory, and so do loaded bodies that are not delivered yet.
            let bodies = self.world.broker.stats(self.world.now).bodies;
            let largest = 200;
            let read = bodies.loaded.min(stored);
            assert!(bodies.memory_bytes <= watermark + (1 + read) * largest, "{bodies:?}\n{}", self.story());
        }
        self.world.effects.clear();
    }

    fn story(&self) -> String {
        let last = self.history.len().saturating_sub(25);
        format!("the last steps:\n  {}", self.history[last..].join("\n  "))
    }
}

fn run(seeds: std::ops::Range<u64>, steps: usize, memory: impl Fn(u64) -> Option<u64>) {
    for seed in seeds {
        let mut pair = Pair::new(seed, memory(seed));
        for step in 0..steps {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pair.step()));
            assert!(outcome.is_ok(), "seed {seed}, step {step}\n{}", pair.story());
        }
    }
}

#[test]
fn no_message_is_lost_or_invented_in_random_steps() {
    run(seeds(200, 2_000), 500, |_| None);
}

#[test]
fn queue_with_paged_out_bodies_matches_the_model() {
    run(seeds(100, 1_000), 500, |seed| Some([0, 0, 400, 1_000][seed as usize % 4]));
}
