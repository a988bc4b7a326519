//! A shard, a clock that the test advances, and short methods for the actions of peers.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

pub mod ledger;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::client::{Client, Introduction};
use mqcore_broker::model::command::{
    Acknowledgement, Clear, ClientPattern, Command, EventKind, EventSubscription, Nack, Pull, Request, Retry,
};
use mqcore_broker::model::config::{BrokerConfig, HandlerSpec};
use mqcore_broker::model::decision::{Acknowledge, Decision, PutBack, Step, Steps};
use mqcore_broker::model::effect::{
    Answer, Effect, Event, HandlerFailure, Load, PullOutcome, Question, Reply,
};
use mqcore_broker::model::id::{ChannelName, ConnectionId, QueueAddress, RequestId, Sequence, Tag};
use mqcore_broker::model::journal_entry::JournalEntry;
use mqcore_broker::model::message::{Message, Properties};
use mqcore_broker::model::options::{ChannelChanges, Durability, QueueChanges, Status};
use mqcore_broker::model::policy;
use mqcore_broker::model::record::decode_put;
use mqcore_broker::model::rejection::Rejection;
use mqcore_broker::model::stats::QueueInformation;
use mqcore_broker::model::time::Timestamp;
use mqcore_broker::shard::Broker;

/// One delivery that a consumer saw: (consumer, message id, "first acquirer" bit).
pub type Seen = (String, String, bool);

pub struct World {
    pub broker: Broker,
    pub now: Timestamp,
    /// Effects that no test step has read yet.
    pub effects: Vec<Effect>,
    /// Questions without an answer.
    pub questions: Vec<Question>,
    /// Saved messages, as the journal would load them.
    pub journal: BTreeMap<Sequence, Message>,
    /// Whether bodies are loaded at once.
    pub prompt: bool,
    /// Whether records are committed at once.
    pub commits: bool,
    /// Bodies that were requested and not loaded yet.
    pub loads: Vec<Load>,
    names: Vec<String>,
    requests: u32,
}

pub fn queue(text: &str) -> QueueAddress {
    QueueAddress::parse(text).expect("tests use good names")
}

pub fn changes(status: Status) -> QueueChanges {
    QueueChanges { status: Some(status), ..QueueChanges::default() }
}

/// Changes after which any queue has this status.
pub fn becoming(status: Status) -> QueueChanges {
    // A broadcast queue cannot wait for acknowledgements.
    let wait_for_acknowledge = (status == Status::Broadcast).then_some(false);
    QueueChanges { wait_for_acknowledge, ..changes(status) }
}

pub fn acknowledged(status: Status) -> QueueChanges {
    QueueChanges { request_acknowledge: Some(true), ..changes(status) }
}

/// A handler that decides `steps` itself and leaves the rest to the memory policy.
pub fn handler(key: &str, steps: &[Step]) -> HandlerSpec {
    let overrides = steps.iter().fold(Steps::NONE, |set, step| set.with(*step));
    HandlerSpec { key: key.into(), overrides, ..HandlerSpec::of_policy(policy::MEMORY) }
}

pub const ALLOW: Decision = Decision::ALLOW;

pub fn telling(acknowledge: Acknowledge) -> Decision {
    Decision { acknowledge, ..ALLOW }
}

pub fn putting_back(put_back: PutBack) -> Decision {
    Decision { put_back, ..ALLOW }
}

impl World {
    pub fn new() -> Self {
        Self::with(BrokerConfig { seed: 7, ..BrokerConfig::default() })
    }

    pub fn with(config: BrokerConfig) -> Self {
        Self {
            broker: Broker::new(config),
            now: Timestamp(1_000_000),
            effects: Vec::new(),
            questions: Vec::new(),
            journal: BTreeMap::new(),
            prompt: true,
            commits: false,
            loads: Vec::new(),
            names: Vec::new(),
            requests: 0,
        }
    }

    // ---- Peers -------------------------------------------------------------------------------------------

    /// A client that connects; its type is "tester", its name is that of its id.
    pub fn client(&mut self, id: &str) -> Arc<Client> {
        self.introduce(id, true).expect("a new id is welcome")
    }

    pub fn introduce(&mut self, id: &str, admin: bool) -> Result<Arc<Client>, Rejection> {
        self.names.push(id.to_owned());
        let connection = ConnectionId(self.names.len() as u64);
        let provisional = Arc::new(Client {
            connection,
            id: "".into(),
            authenticated: false,
            name: None,
            kind: None,
            protocol: "test",
            admin,
            user: None,
            connected_at: self.now,
            data: None,
        });
        let introduction = Introduction {
            id: Some(id.to_owned()),
            name: Some(id.to_owned()),
            kind: Some("tester".to_owned()),
            ..Introduction::default()
        };
        self.command(&provisional, Command::Introduce(Box::new(introduction)));
        self.notifications(connection)
            .into_iter()
            .find_map(|event| match event {
                Event::Welcomed(client) => Some(Ok(client)),
                Event::Refused(rejection) => Some(Err(rejection)),
                _ => None,
            })
            .expect("an introduction is answered")
    }

    pub fn command(&mut self, client: &Arc<Client>, command: Command) {
        self.broker.command(client, command, self.now, &mut self.effects);
        self.turn();
    }

    pub fn request(&mut self, client: &Arc<Client>, request: Request) -> Result<Reply, Rejection> {
        self.requests += 1;
        let id = RequestId(self.requests);
        self.command(client, Command::Request(id, Box::new(request)));
        let at = self
            .effects
            .iter()
            .position(
                |effect| matches!(effect, Effect::Notify(_, Event::Answered(answered, _)) if *answered == id),
            )
            .expect("every request is answered");
        match self.effects.remove(at) {
            Effect::Notify(to, Event::Answered(_, result)) => {
                assert_eq!(to, client.connection, "the answer goes to who asked");
                result
            }
            _ => unreachable!("the position was found by this pattern"),
        }
    }

    pub fn create(&mut self, client: &Arc<Client>, address: &str, changes: QueueChanges) {
        self.request(client, Request::CreateQueue { queue: queue(address), changes })
            .expect("the queue can be created");
    }

    pub fn update(&mut self, client: &Arc<Client>, address: &str, changes: QueueChanges) {
        self.request(client, Request::UpdateQueue { queue: queue(address), changes })
            .expect("the queue can be changed");
    }

    pub fn create_channel(&mut self, client: &Arc<Client>, name: &str, changes: ChannelChanges) {
        let channel = ChannelName::new(name).expect("tests use good names");
        self.request(client, Request::CreateChannel { channel, changes })
            .expect("the channel can be created");
    }

    pub fn join(&mut self, client: &Arc<Client>, name: &str) -> Result<Reply, Rejection> {
        let channel = ChannelName::new(name).expect("tests use good names");
        self.request(client, Request::Join { channel })
    }

    pub fn leave(&mut self, client: &Arc<Client>, name: &str) {
        let channel = ChannelName::new(name).expect("tests use good names");
        self.request(client, Request::Leave { channel }).expect("the client has joined");
    }

    pub fn subscribe(&mut self, client: &Arc<Client>, kind: EventKind, on: &str, yes: bool) {
        let address = (!on.is_empty()).then(|| queue(on));
        let subscription = EventSubscription {
            kind,
            channel: address.as_ref().map(|address| address.channel.clone()),
            queue: address.map(|address| address.id),
            on: yes,
        };
        self.request(client, Request::Subscribe(subscription)).expect("the event exists");
    }

    pub fn close(&mut self, client: &Arc<Client>) {
        self.broker.closed(client.connection, self.now, &mut self.effects);
        self.turn();
    }

    // ---- Messages ----------------------------------------------------------------------------------------

    pub fn message(client: &Arc<Client>, address: &QueueAddress, id: &str, high: bool) -> Message {
        let properties = Properties {
            high_priority: high,
            pending_acknowledge: true,
            hops: 15,
            content_type: address.id,
            ..Properties::default()
        };
        Message::from_parts(
            id.as_bytes(),
            b"",
            format!("body of {id}").as_bytes(),
            properties,
            Some(client.clone()),
        )
    }

    pub fn publish(&mut self, client: &Arc<Client>, address: &str, id: &str) {
        self.publish_as(client, address, id, false);
    }

    pub fn publish_as(&mut self, client: &Arc<Client>, address: &str, id: &str, high: bool) {
        let address = queue(address);
        let message = Self::message(client, &address, id, high);
        self.command(client, Command::Publish { queue: address, message });
    }

    /// Publishes a message whose producer wants no confirmation.
    pub fn publish_unconfirmed(&mut self, client: &Arc<Client>, address: &str, id: &str) {
        let properties = Properties { hops: 15, ..Properties::default() };
        let message = Message::from_parts(id.as_bytes(), b"", b"body", properties, Some(client.clone()));
        self.command(client, Command::Publish { queue: queue(address), message });
    }

    pub fn word(address: &str, id: &str, negative: Option<&str>) -> Acknowledgement {
        Acknowledgement {
            tag: Tag::CHANNEL,
            queue: queue(address),
            message_id: id.as_bytes().into(),
            refusal: Nack::of(negative),
            headers: Box::default(),
            hops: 15,
            first_acquirer: true,
        }
    }

    pub fn ack(&mut self, client: &Arc<Client>, address: &str, id: &str) {
        self.command(client, Command::Acknowledge(Self::word(address, id, None)));
    }

    pub fn nack(&mut self, client: &Arc<Client>, address: &str, id: &str, reason: &str) {
        self.command(client, Command::Acknowledge(Self::word(address, id, Some(reason))));
    }

    /// A consumer rejects a message with the time of the next attempt.
    pub fn nack_until(&mut self, client: &Arc<Client>, address: &str, id: &str, retry: Retry) {
        let refusal = Some(Nack::new("later", retry));
        let word = Acknowledgement { refusal, ..Self::word(address, id, None) };
        self.command(client, Command::Acknowledge(word));
    }

    /// Pulls, and returns the ids of the messages and how the pull ended.
    pub fn pull(
        &mut self,
        client: &Arc<Client>,
        address: &str,
        count: u32,
    ) -> (Vec<String>, Option<PullOutcome>) {
        self.pull_with(client, address, count, false, Clear::default())
    }

    pub fn pull_with(
        &mut self,
        client: &Arc<Client>,
        address: &str,
        count: u32,
        lifo: bool,
        clear: Clear,
    ) -> (Vec<String>, Option<PullOutcome>) {
        self.requests += 1;
        let request = RequestId(self.requests);
        let pull = Pull { request, queue: queue(address), count, lifo, clear, info: false };
        self.command(client, Command::Pull(Box::new(pull)));
        let mut ids = Vec::new();
        let mut outcome = None;
        for event in self.notifications(client.connection) {
            match event {
                Event::Pulled { message, .. } | Event::Cached { message, .. } => ids.push(id_of(&message)),
                Event::PullEnded { outcome: ended, .. } => outcome = Some(ended),
                _ => {}
            }
        }
        (ids, outcome)
    }

    pub fn direct(&mut self, client: &Arc<Client>, to: ClientPattern, id: &str, oldest: bool) {
        let properties = Properties { first_acquirer: oldest, hops: 15, ..Properties::default() };
        let message = Message::from_parts(id.as_bytes(), b"", b"hi", properties, Some(client.clone()));
        self.command(client, Command::Direct { to, message });
    }

    // ---- Time, work, handlers ----------------------------------------------------------------------------

    /// Does the engine's work after each batch: delivers messages and collects questions.
    pub fn turn(&mut self) {
        loop {
            while self.broker.work(self.now, 1024, &mut self.effects) {}
            self.note_journal();
            if self.commits && self.commit() {
                continue;
            }
            if !self.prompt || self.loads.is_empty() {
                break;
            }
            for load in std::mem::take(&mut self.loads) {
                self.bring(&load, &load.sequences, true);
            }
        }
        let (asked, rest) = std::mem::take(&mut self.effects)
            .into_iter()
            .partition(|effect| matches!(effect, Effect::Ask(_)));
        let asked: Vec<Effect> = asked;
        self.effects = rest;
        self.questions.extend(asked.into_iter().filter_map(|effect| match effect {
            Effect::Ask(question) => Some(question),
            _ => None,
        }));
    }

    /// Stores messages and requests for bodies, as the journal would. Records stay among the effects.
    fn note_journal(&mut self) {
        for effect in &self.effects {
            if let Effect::Record(sequence, record) = effect
                && let JournalEntry::Put(put) = JournalEntry::from(record)
                && !self.journal.contains_key(sequence)
            {
                self.journal.insert(*sequence, decode_put(&put.encode()).expect("just encoded").message);
            }
        }
        let loads = self.effects.extract_if(.., |effect| matches!(effect, Effect::Load(_)));
        self.loads.extend(loads.filter_map(|effect| match effect {
            Effect::Load(load) => Some(load),
            _ => None,
        }));
    }

    /// Loads a part of the requested bodies.
    pub fn bring(&mut self, load: &Load, sequences: &[Sequence], readable: bool) {
        let messages = sequences
            .iter()
            .map(|sequence| (*sequence, self.journal.get(sequence).filter(|_| readable).cloned()))
            .collect();
        self.broker.loaded(load.loaded(messages), self.now, &mut self.effects);
    }

    /// Commits all records and removes them from the effects. False if there was none.
    fn commit(&mut self) -> bool {
        let records = self.effects.extract_if(.., |effect| matches!(effect, Effect::Record(..)));
        let sequences = records.filter_map(|effect| match effect {
            Effect::Record(sequence, _) => Some(sequence),
            _ => None,
        });
        let Some(last) = sequences.max() else { return false };
        self.broker.committed(Durability::Fsync, last, self.now, &mut self.effects);
        true
    }

    /// Moves dead letters to their queues, as the engine does.
    pub fn transfer(&mut self) {
        while let Some(at) = self.effects.iter().position(|effect| matches!(effect, Effect::Transfer(_))) {
            if let Effect::Transfer(transfer) = self.effects.remove(at) {
                self.broker.transfer(*transfer, self.now, &mut self.effects);
            }
        }
        self.turn();
    }

    pub fn advance(&mut self, by: Duration) {
        let until = self.now.after(by);
        while self.broker.next_timeout() <= until {
            self.now = self.now.max(self.broker.next_timeout());
            self.broker.timeout(self.now, &mut self.effects);
            self.turn();
        }
        self.now = until;
    }

    /// Removes and returns the oldest question at `step`.
    pub fn question(&mut self, step: Step) -> Question {
        let at = self.questions.iter().position(|question| question.step == step);
        let at = at.unwrap_or_else(|| panic!("nobody asked {step:?}; open: {:?}", self.steps()));
        self.questions.remove(at)
    }

    pub fn steps(&self) -> Vec<Step> {
        self.questions.iter().map(|question| question.step).collect()
    }

    pub fn answer(&mut self, step: Step, decision: Decision) -> Question {
        let question = self.question(step);
        self.reply(&question, Ok(decision));
        question
    }

    pub fn reply(&mut self, question: &Question, result: Result<Decision, HandlerFailure>) {
        self.broker.answer(Answer::new(question.id, result), self.now, &mut self.effects);
        self.turn();
    }

    // ---- Results -----------------------------------------------------------------------------------------

    /// Deliveries since the last call, in order, one entry per consumer.
    pub fn seen(&mut self) -> Vec<Seen> {
        let mut seen = Vec::new();
        let mut rest = Vec::new();
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                Effect::Deliver(deliver) => {
                    for (index, to) in deliver.to.as_slice().iter().enumerate() {
                        let first = deliver.first && index == 0;
                        seen.push((self.name(*to), id_of(&deliver.message), first));
                    }
                }
                other => rest.push(other),
            }
        }
        self.effects = rest;
        seen
    }

    /// Deliveries since the last call, without the first-acquirer bit: `"consumer:message"`.
    pub fn delivered(&mut self) -> Vec<String> {
        self.seen().into_iter().map(|(who, what, _)| format!("{who}:{what}")).collect()
    }

    /// Events for a connection since the last call.
    pub fn notifications(&mut self, to: ConnectionId) -> Vec<Event> {
        let (mine, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.effects)
            .into_iter()
            .partition(|effect| matches!(effect, Effect::Notify(other, _) if *other == to));
        self.effects = rest;
        mine.into_iter()
            .filter_map(|effect| match effect {
                Effect::Notify(_, event) => Some(event),
                _ => None,
            })
            .collect()
    }

    /// Answers to a producer about its messages: `"id ok"`, `"id ok by consumer"`, `"id nack reason"`, `"id refused
    /// code"`.
    pub fn heard(&mut self, producer: &Arc<Client>) -> Vec<String> {
        self.notifications(producer.connection)
            .into_iter()
            .filter_map(|event| match event {
                Event::Acknowledged { message, negative, relayed, .. } => {
                    let fate = negative.map_or("ok".to_owned(), |reason| format!("nack {reason}"));
                    let by =
                        relayed.and_then(|relayed| relayed.1).map_or(String::new(), |by| format!(" by {by}"));
                    Some(format!("{} {fate}{by}", id_of(&message)))
                }
                Event::PublishRefused { message, rejection, .. } => {
                    Some(format!("{} refused {}", id_of(&message), rejection.kind.code()))
                }
                _ => None,
            })
            .collect()
    }

    /// Names of the events that a client received.
    pub fn events(&mut self, who: &Arc<Client>) -> Vec<&'static str> {
        self.notifications(who.connection)
            .into_iter()
            .filter_map(|event| match event {
                Event::Notified(occurrence) => Some(occurrence.kind.as_str()),
                _ => None,
            })
            .collect()
    }

    pub fn information(&self, address: &str) -> QueueInformation {
        let address = queue(address);
        let survey = self.broker.stats(self.now);
        survey.queues.into_iter().find(|found| found.queue == address).expect("the queue exists")
    }

    pub fn stored(&self, address: &str) -> u64 {
        let information = self.information(address);
        information.high_priority + information.normal
    }

    fn name(&self, connection: ConnectionId) -> String {
        self.names[connection.0 as usize - 1].clone()
    }
}

pub fn id_of(message: &Message) -> String {
    String::from_utf8(message.id().to_vec()).expect("tests use text ids")
}
