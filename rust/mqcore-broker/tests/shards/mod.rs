//! A broker of several shards without a server: commands go to their shards, and effects for other shards are
//! forwarded.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

use std::sync::Arc;

use mqcore_broker::model::client::{Client, Introduction};
use mqcore_broker::model::command::{Command, Destination, Request};
use mqcore_broker::model::config::BrokerConfig;
use mqcore_broker::model::effect::{Effect, Event, Reply};
use mqcore_broker::model::id::{ConnectionId, QueueAddress, RequestId};
use mqcore_broker::model::options::{QueueChanges, Status};
use mqcore_broker::model::placement::Placement;
use mqcore_broker::model::rejection::Rejection;
use mqcore_broker::model::stats::{DropReason, ShardStats, TopicStats};
use mqcore_broker::model::time::Timestamp;
use mqcore_broker::shard::Broker;

pub fn queue(text: &str) -> QueueAddress {
    QueueAddress::parse(text).expect("tests use good names")
}

pub struct Shards {
    pub brokers: Vec<Broker>,
    pub now: Timestamp,
    clients: Vec<Arc<Client>>,
    requests: u32,
}

impl Shards {
    /// A broker with this many shards, and clients `c0`, `c1`, ... with administrator rights.
    pub fn new(shards: usize, clients: usize) -> Self {
        Self::with(shards, clients, |_| {})
    }

    pub fn with(shards: usize, clients: usize, change: impl Fn(&mut BrokerConfig)) -> Self {
        let placement = Placement::unkeyed(shards);
        let brokers = (0..shards).map(|shard| {
            let mut config =
                BrokerConfig { shard, placement, seed: 7 + shard as u64, ..BrokerConfig::default() };
            change(&mut config);
            Broker::new(config)
        });
        let mut shards =
            Self { brokers: brokers.collect(), now: Timestamp(1_000_000), clients: Vec::new(), requests: 0 };
        for number in 0..clients {
            shards.connect(&format!("c{number}"), "tester");
        }
        shards
    }

    /// Connects one more client; its name is its id.
    pub fn connect(&mut self, id: &str, kind: &str) -> usize {
        let connection = ConnectionId(self.clients.len() as u64 + 1);
        let provisional = Client {
            connection,
            id: "".into(),
            authenticated: false,
            name: None,
            kind: None,
            protocol: "test",
            admin: true,
            user: None,
            connected_at: self.now,
            data: None,
        };
        self.clients.push(Arc::new(provisional));
        let introduction = Introduction {
            id: Some(id.to_owned()),
            name: Some(id.to_owned()),
            kind: Some(kind.to_owned()),
            ..Introduction::default()
        };
        let place = self.clients.len() - 1;
        let welcomed =
            self.command(place, Command::Introduce(Box::new(introduction))).into_iter().find_map(|effect| {
                match effect {
                    Effect::Notify(_, Event::Welcomed(client)) => Some(client),
                    _ => None,
                }
            });
        self.clients[place] = welcomed.expect("a new id is welcome");
        place
    }

    pub fn client(&self, who: usize) -> Arc<Client> {
        self.clients[who].clone()
    }

    pub fn name(&self, connection: ConnectionId) -> String {
        self.clients[connection.0 as usize - 1].id.to_string()
    }

    /// All effects of a command, in all shards.
    pub fn command(&mut self, who: usize, command: Command) -> Vec<Effect> {
        let client = self.clients[who].clone();
        let shards = self.brokers.len();
        let to = match command.destination(Placement::unkeyed(shards)) {
            Destination::Home => vec![0],
            Destination::Shard(shard) => vec![shard],
            Destination::Every => (0..shards).collect(),
        };
        let mut all = Vec::new();
        for shard in to {
            let mut effects = Vec::new();
            self.brokers[shard].command(&client, command.clone(), self.now, &mut effects);
            self.carry_out(shard, effects, &mut all);
        }
        all
    }

    /// Delivers stored messages, forwards effects for other shards, and collects the rest.
    pub fn carry_out(&mut self, shard: usize, mut effects: Vec<Effect>, all: &mut Vec<Effect>) {
        while self.brokers[shard].work(self.now, 1024, &mut effects) {}
        for effect in effects {
            match effect {
                Effect::Forward(to, forwarded) => {
                    let mut further = Vec::new();
                    self.brokers[to].forwarded(forwarded, self.now, &mut further);
                    self.carry_out(to, further, all);
                }
                other => all.push(other),
            }
        }
    }

    /// Sends a request to all its shards; the first rejection wins, lists are joined.
    pub fn request(&mut self, who: usize, request: Request) -> Result<Reply, Rejection> {
        self.requests += 1;
        let id = RequestId(self.requests);
        let effects = self.command(who, Command::Request(id, Box::new(request)));
        let mut parts = effects.into_iter().filter_map(|effect| match effect {
            Effect::Notify(_, Event::Answered(answered, part)) if answered == id => Some(part),
            _ => None,
        });
        let first = parts.next().expect("every request is answered");
        parts.fold(first, |all, part| match (all?, part?) {
            (Reply::Channels(mut all), Reply::Channels(more)) => {
                all.merge(more);
                Ok(Reply::Channels(all))
            }
            (Reply::Routers(mut all), Reply::Routers(more)) => {
                all.merge(more);
                Ok(Reply::Routers(all))
            }
            (all, _) => Ok(all),
        })
    }

    pub fn create_queue(&mut self, name: &str, changes: QueueChanges) {
        self.request(0, Request::CreateQueue { queue: queue(name), changes }).expect("it is new");
    }

    pub fn create_pull_queue(&mut self, name: &str) {
        self.create_queue(name, QueueChanges { status: Some(Status::Pull), ..QueueChanges::default() });
    }

    pub fn congested(&mut self, who: usize, on: bool) {
        let connection = self.clients[who].connection;
        for broker in &mut self.brokers {
            let mut effects = Vec::new();
            if on {
                broker.congested(connection, self.now, &mut effects);
            } else {
                broker.writable(connection, self.now, &mut effects);
            }
        }
    }

    pub fn close(&mut self, who: usize) {
        let connection = self.clients[who].connection;
        for broker in &mut self.brokers {
            broker.closed(connection, self.now, &mut Vec::new());
        }
    }

    pub fn survey(&self) -> ShardStats {
        let mut all = ShardStats::default();
        for broker in &self.brokers {
            let survey = broker.stats(self.now);
            all.queues.extend(survey.queues);
            all.topics.extend(survey.topics);
            all.retired_topics.add(&survey.retired_topics);
            all.retired.add(&survey.retired);
            for (name, counts) in survey.router_counts {
                match all.router_counts.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, sum)) => sum.add(&counts),
                    None => all.router_counts.push((name, counts)),
                }
            }
        }
        all
    }

    pub fn topic_stats(&self) -> TopicStats {
        let survey = self.survey();
        let mut stats = survey.retired_topics;
        for topic in &survey.topics {
            stats.add(&topic.stats);
        }
        stats
    }

    pub fn stored(&self, name: &str) -> u64 {
        let survey = self.survey();
        let found = survey.queues.iter().find(|found| found.queue == queue(name)).expect("it exists");
        found.high_priority + found.normal
    }

    /// Number of messages for queues that do not exist.
    pub fn dropped_no_consumer(&self) -> u64 {
        self.survey().retired.dropped[DropReason::NoConsumer as usize]
    }
}
