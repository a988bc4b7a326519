//! Handlers that decide at random, answer out of order, late, or not at all, while other commands arrive: no message is
//! lost or invented, every delivered message was published, and in the end every question has been answered or has
//! timed out.

use crate::world;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::Clear;
use mqcore_broker::model::config::HistoryOptions;
use mqcore_broker::model::config::{BrokerConfig, HandlerSpec};
use mqcore_broker::model::decision::{Acknowledge, Decision, PutBack, Step, Steps};
use mqcore_broker::model::effect::HandlerFailure;
use mqcore_broker::model::options::{DeadLetter, QueueChanges, Status};
use mqcore_testkit::Random;
use world::ledger::Ledger;
use world::{World, acknowledged, becoming, changes, handler};

const QUEUE: &str = "ch/1";

/// Draws random decisions, steps and statuses.
trait RandomChoice {
    fn decision(&mut self) -> Decision;
    fn steps(&mut self) -> Vec<Step>;
    fn status(&mut self) -> Status;
}

impl RandomChoice for Random {
    fn decision(&mut self) -> Decision {
        Decision {
            allow: self.percent(85),
            save: self.percent(20),
            put_back: [PutBack::No, PutBack::No, PutBack::Start, PutBack::End][self.index(4)],
            acknowledge: [
                Acknowledge::None,
                Acknowledge::Always,
                Acknowledge::IfSaved,
                Acknowledge::Negative,
            ][self.index(4)],
        }
    }

    fn steps(&mut self) -> Vec<Step> {
        let of_queues = |step: &Step| handler("any", &[*step]).is_for_queues();
        Step::ALL.into_iter().filter(of_queues).filter(|_| self.percent(40)).collect()
    }

    fn status(&mut self) -> Status {
        [Status::Push, Status::RoundRobin, Status::Pull, Status::Broadcast, Status::Cache, Status::Paused]
            [self.index(6)]
    }
}

struct Chaos {
    dice: Random,
    world: World,
    producer: Arc<Client>,
    consumers: Vec<Arc<Client>>,
    published: HashSet<String>,
    names: usize,
    ledger: Ledger,
}

impl Chaos {
    fn new(seed: u64) -> Self {
        let mut dice = Random::new(seed);
        let mut world = World::with(BrokerConfig {
            seed,
            history: Some(HistoryOptions::default()),
            ..BrokerConfig::default()
        });
        let spec = HandlerSpec { timeout: Duration::from_secs(5), ..handler("own", &dice.steps()) };
        world.broker.register_handler(spec);
        let producer = world.client("p");
        let status = dice.status();
        let options = QueueChanges {
            delivery_handler: Some("own".into()),
            message_timeout: dice.percent(40).then_some(Duration::from_secs(3)),
            only_first_acquirer: Some(dice.percent(20)),
            wait_for_acknowledge: Some(dice.percent(20) && status != Status::Broadcast),
            put_back_limit: Some(3),
            dead_letter: Some(Some(DeadLetter::Drop)),
            ..if dice.percent(60) { acknowledged(status) } else { changes(status) }
        };
        world.create(&producer, QUEUE, options);
        let consumers = (0..3).map(|number| world.client(&format!("c{number}"))).collect();
        Self {
            dice,
            world,
            producer,
            consumers,
            published: HashSet::new(),
            names: 3,
            ledger: Ledger::default(),
        }
    }

    fn step(&mut self) {
        let who = self.dice.index(self.consumers.len());
        let consumer = self.consumers[who].clone();
        match self.dice.index(20) {
            0..6 => {
                let id = format!("m{}", self.published.len());
                let high = self.dice.percent(20);
                self.published.insert(id.clone());
                let producer = self.producer.clone();
                self.world.publish_as(&producer, QUEUE, &id, high);
            }
            6..11 => self.answer(),
            11..13 => {
                let id = format!("m{}", self.dice.index(self.published.len() + 1));
                if self.dice.percent(70) {
                    self.world.ack(&consumer, QUEUE, &id);
                } else {
                    self.world.nack(&consumer, QUEUE, &id, "no");
                }
            }
            13..15 => {
                self.world.join(&consumer, "ch").expect("there is no limit");
            }
            15 => {
                self.world.pull_with(&consumer, QUEUE, 2, false, Clear::default());
            }
            16 => {
                self.world.close(&consumer);
                self.names += 1;
                self.consumers[who] = self.world.client(&format!("c{}", self.names));
            }
            17 => {
                let status = if self.dice.percent(10) { Status::Stopped } else { self.dice.status() };
                let producer = self.producer.clone();
                self.world.update(&producer, QUEUE, becoming(status));
            }
            18 => {
                let overrides = self.dice.steps().iter().fold(Steps::NONE, |set, step| set.with(*step));
                let spec = HandlerSpec { overrides, ..handler("own", &[]) };
                self.world.broker.register_handler(spec);
            }
            _ => {
                let millis = self.dice.index(2_000) as u64;
                self.world.advance(Duration::from_millis(millis));
            }
        }
        self.check();
    }

    fn answer(&mut self) {
        if self.world.questions.is_empty() {
            return;
        }
        let at = self.dice.index(self.world.questions.len());
        let question = self.world.questions.remove(at);
        match self.dice.index(12) {
            0 => {} // The handler never answers.
            1 => self.world.reply(&question, Err(HandlerFailure::Raised)),
            _ => {
                let decision = self.dice.decision();
                self.world.reply(&question, Ok(decision));
            }
        }
    }

    fn check(&mut self) {
        for (_, id, _) in self.world.seen() {
            assert!(self.published.contains(&id), "{id} was never published");
        }
        self.world.effects.clear();
        let now = self.world.information(QUEUE);
        let inside = now.high_priority + now.normal + now.undecided + now.unsettled;
        assert_eq!(now.stats.received, inside + now.stats.removed, "{now:?}");
        self.ledger.read(&mut self.world.broker);
        self.ledger.agrees_with(&now);
    }

    fn questions_open(&self) -> u64 {
        self.world.broker.stats(self.world.now).questions_open
    }

    /// The handler and the consumers are silent from here on: timeouts alone must finish everything. How long that takes
    /// depends on the number of messages that wait for each other, so each stretch of time needs progress.
    fn finish(&mut self) {
        const ROUNDS_WITHOUT_PROGRESS: u32 = 100;
        let (mut progress, mut idle) = (None, 0);
        loop {
            let now = self.world.information(QUEUE);
            if now.undecided + now.unsettled + self.questions_open() == 0 {
                break;
            }
            let stats = (now.stats.sent, now.stats.removed, now.stats.requeued, now.stats.errors);
            idle = if progress == Some(stats) { idle + 1 } else { 0 };
            progress = Some(stats);
            assert!(idle < ROUNDS_WITHOUT_PROGRESS, "something is stuck: {now:?}");
            self.world.questions.clear();
            self.world.advance(Duration::from_secs(5));
            self.check();
        }
        let now = self.world.information(QUEUE);
        assert_eq!((now.undecided, now.unsettled, now.in_flight), (0, 0, 0), "something is stuck: {now:?}");
        assert_eq!(self.questions_open(), 0, "a question has no deadline");
    }
}

#[test]
fn random_handlers_never_lose_invent_or_block_messages() {
    for seed in mqcore_testkit::seeds(150, 1_500) {
        let outcome = std::panic::catch_unwind(|| {
            let mut chaos = Chaos::new(seed);
            for _ in 0..150 {
                chaos.step();
            }
            chaos.finish();
        });
        assert!(outcome.is_ok(), "seed {seed}");
    }
}
