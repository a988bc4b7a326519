//! One queue: what it is, how messages get in, how they return, and how they leave for good.
//!
//! How they are handed out is in `dispatch` (decided by a policy, at once) and `workflow` (decided step by
//! step by a handler); how deliveries end is in `settlement`.

pub(crate) mod delayed;
pub(crate) mod delivery;
pub(crate) mod dispatch;
pub(crate) mod members;
pub(crate) mod pulling;
pub(crate) mod ready;
pub(crate) mod settlement;
pub(crate) mod shelf;
pub(crate) mod unique;
pub(crate) mod unread;
pub(crate) mod workflow;

use crate::context::{
    Asker, Awaiting, Books, Deciding, Inquiry, Storage, Turn, Verdict, decide, tell_dequeued,
};
use crate::history::Happened;
use crate::model::client::Client;
use crate::model::command::{Acknowledgement, Clear, EventKind};
use crate::model::decision::{Acknowledge, PutBack, Step, Steps};
use crate::model::effect::{Effect, Event, Occurrence, Origin, Subject, Transfer};
use crate::model::entry::{Entry, Unread};
use crate::model::id::{ConnectionId, HandlerId, MessageNumber, Place, QueueAddress, Sequence, Tag};
use crate::model::message::Message;
use crate::model::metadata::Face;
use crate::model::options::{Durability, QueueChanges, QueueOptions, Status};
use crate::model::rate::Meter;
use crate::model::record::{Progress, Record};
use crate::model::rejection::{Rejection, RejectionKind};
use crate::model::stats::{DropReason, QueueInformation, QueueStats};
use crate::model::time::Timestamp;
use crate::queue::delayed::Delayed;
use crate::queue::delivery::{Deliveries, Ending, Released};
use crate::queue::members::{Consumer, ConsumerKey, Member, Members};
use crate::queue::pulling::Pulling;
use crate::queue::ready::{Ready, Taken};
use crate::queue::settlement::Settlement;
use crate::queue::unique::UniqueKeys;
use crate::queue::workflow::Flows;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use foldhash::HashMap;

/// A message whose admission is not decided yet.
#[derive(Debug)]
struct Admission {
    entry: Entry,
    deciding: Deciding,
    verdict: Option<Verdict>,
}

/// One queue.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) face: Face,
    pub(crate) ready: Ready,
    /// Messages that were put back and wait for their time.
    pub(crate) delayed: Delayed,
    pub(crate) deliveries: Deliveries,
    pub(crate) flows: Flows,
    /// Ends that wait for a handler, by number.
    pub(crate) settling: HashMap<u64, Settlement>,
    /// The number of the last settlement; numbers are not used again, so late answers find nobody.
    pub(crate) settlements: u64,
    /// Messages are admitted in the order of their arrival: one that waits for its decision holds those behind.
    undecided: VecDeque<Admission>,
    /// The number of the first of `undecided`.
    first_undecided: u64,
    /// Index of the member that is next in round robin.
    pub(crate) cursor: usize,
    /// Everybody who consumes it, where it has subscriptions of its own; else those who joined the channel do.
    own: Option<Arc<Members>>,
    /// Who wants to know of each message produced.
    pub(crate) watchers: Vec<ConnectionId>,
    /// Pull requests that have not got everything yet.
    pub(crate) pulls: VecDeque<Pulling>,
    /// Messages that waited too long, until their bodies are here for whoever wants to see them.
    pub(crate) expiring: VecDeque<Unread>,
    /// Producers that wait to hear of messages whose bodies left memory, and they with them.
    pub(crate) debts: HashMap<Sequence, Arc<Client>>,
    /// Keys of messages of which there is one at a time.
    pub(crate) unique: UniqueKeys,
    /// The queue is in the shard's list of those with bodies that may leave memory.
    pub(crate) backlogged: bool,
    /// The queue is in the shard's list of work.
    pub(crate) scheduled: bool,
    /// The earliest moment for which the shard was told to look at this queue.
    armed: Timestamp,
    /// What was published, where that is limited and anything was.
    meter: Option<Box<Meter>>,
}

/// The steps between a message's leaving the ready list and the end of its hand-out.
const SENDING: [Step; 4] = [Step::BeginSend, Step::CanConsumerReceive, Step::ConsumerReceived, Step::EndSend];

impl Queue {
    pub(crate) fn new(
        address: QueueAddress,
        channel: usize,
        options: QueueOptions,
        books: &mut Books,
    ) -> Self {
        let place = Place { channel, queue: address.id, serial: books.next_serial() };
        let seed = books.config.seed ^ place.serial;
        let mut queue = Self {
            face: Face {
                address: Arc::new(address),
                place,
                options,
                handler: HandlerId(0),
                overrides: Steps::NONE,
                stats: QueueStats::default(),
            },
            ready: Ready::new(books.meter.clone()),
            delayed: Delayed::default(),
            deliveries: Deliveries::new(seed),
            flows: Flows::default(),
            settling: HashMap::default(),
            settlements: 0,
            undecided: VecDeque::new(),
            first_undecided: 0,
            cursor: 0,
            own: None,
            watchers: Vec::new(),
            pulls: VecDeque::new(),
            expiring: VecDeque::new(),
            debts: HashMap::default(),
            unique: UniqueKeys::default(),
            backlogged: false,
            scheduled: false,
            armed: Timestamp::NEVER,
            meter: None,
        };
        queue.choose_handler(books);
        queue
    }

    /// Finds the handler that the options name; the server's if they name none.
    pub(crate) fn choose_handler(&mut self, books: &Books) {
        let named = self.face.options.delivery_handler.as_deref();
        let handler = named
            .and_then(|key| books.handler(key))
            .or_else(|| books.handler(&books.config.delivery_handler))
            .unwrap_or(HandlerId(0));
        self.face.handler = handler;
        self.face.overrides = books.spec(handler).overrides;
    }

    /// Whether hand-outs have to be asked about.
    pub(crate) fn asks_while_sending(&self, books: &Books) -> bool {
        SENDING.into_iter().any(|step| self.face.overrides.contains(step))
            || books.spec(self.face.handler).base.sent.save
    }

    pub(crate) fn information(&self) -> QueueInformation {
        let (high_priority, normal) = self.waiting();
        QueueInformation {
            queue: (*self.face.address).clone(),
            options: self.face.options.clone(),
            high_priority,
            normal,
            in_flight: self.deliveries.open() as u64,
            undecided: self.undecided.len() as u64,
            unsettled: (self.deliveries.messages() + self.expiring() + self.held_by_pulls()) as u64,
            memory_bytes: self.ready.bytes() + self.delayed.bytes() + self.deliveries.bytes(),
            stats: self.face.stats,
        }
    }

    /// Messages whose admission is not decided yet.
    pub(crate) fn undecided(&self) -> impl Iterator<Item = &Entry> {
        self.undecided.iter().map(|admission| &admission.entry)
    }

    /// Messages in the queue, those of high priority and the others; also those that wait for their time.
    pub(crate) fn waiting(&self) -> (u64, u64) {
        let ((high, normal), (high_delayed, normal_delayed)) = (self.ready.counts(), self.delayed.counts());
        (high + high_delayed, normal + normal_delayed)
    }

    // ---- Consumers ---------------------------------------------------------------------------------------

    /// Its own list of consumers, if it has one. Sharing it costs one count for each call into the queue, and only for
    /// queues that have it.
    pub(crate) fn own(&self) -> Option<Arc<Members>> {
        self.own.clone()
    }

    /// Subscriptions of its own, apart from those who joined the channel.
    pub(crate) fn subscriptions(&self) -> impl Iterator<Item = &Member> {
        let own = self.own.as_deref().map(Members::list).unwrap_or_default();
        own.iter().filter(|member| member.consumer.tag != Tag::CHANNEL)
    }

    /// Whether this subscription is there and has this name.
    pub(crate) fn has_subscription(&self, key: ConsumerKey, name: &[u8]) -> bool {
        self.subscriptions()
            .any(|member| member.consumer.key() == key && member.consumer.name.as_deref() == Some(name))
    }

    /// Somebody consumes this queue on terms of its own.
    pub(crate) fn subscribe(&mut self, consumer: Arc<Consumer>, channel: &Members, turn: &mut Turn<'_>) {
        let own = self.own.get_or_insert_with(|| Arc::new(channel.clone()));
        Arc::make_mut(own).join(consumer, turn.now);
        self.schedule(turn);
    }

    /// A subscription ends; what it has not settled goes back. `false` if there is none.
    pub(crate) fn unsubscribe(&mut self, consumer: ConnectionId, tag: Tag, turn: &mut Turn<'_>) -> bool {
        if !self.leave_own((consumer, tag)) {
            return false;
        }
        self.consumer_lost(consumer, Some(tag), turn);
        self.schedule(turn);
        true
    }

    /// All subscriptions of a connection end.
    pub(crate) fn forget_subscriber(&mut self, consumer: ConnectionId) {
        let tags: Vec<_> = self
            .subscriptions()
            .filter(|member| member.consumer.client.connection == consumer)
            .map(|member| member.consumer.tag)
            .collect();
        for tag in tags {
            self.leave_own((consumer, tag));
        }
    }

    /// Somebody joined the channel.
    pub(crate) fn joined(&mut self, client: &Arc<Client>, turn: &mut Turn<'_>) {
        if let Some(own) = &mut self.own {
            Arc::make_mut(own).join(Consumer::of_channel(client.clone()), turn.now);
        }
        self.schedule(turn);
    }

    /// Somebody left the channel, where it stood at `position`.
    pub(crate) fn left(&mut self, connection: ConnectionId, position: usize, turn: &mut Turn<'_>) {
        if self.own.is_some() {
            self.leave_own((connection, Tag::CHANNEL));
        } else if position < self.cursor {
            // The one behind the cursor moved up by one place.
            self.cursor -= 1;
        }
        self.schedule(turn);
    }

    fn leave_own(&mut self, key: ConsumerKey) -> bool {
        let Some(own) = &mut self.own else { return false };
        let Some(position) = Arc::make_mut(own).leave(key) else { return false };
        if position < self.cursor {
            self.cursor -= 1;
        }
        if !own.has_tagged() {
            // From here on the channel's list says the same, in the same order.
            self.own = None;
        }
        true
    }

    /// The queue goes: its subscriptions end, and who has one is told.
    pub(crate) fn end_subscriptions(&mut self, turn: &mut Turn<'_>) {
        let Some(own) = self.own.take() else { return };
        for consumer in own.tagged() {
            let queue = (*self.face.address).clone();
            turn.tell(consumer.client.connection, Event::SubscriptionEnded { queue, tag: consumer.tag });
        }
    }

    /// No message is in it, anywhere.
    pub(crate) fn is_empty(&self) -> bool {
        self.ready.is_empty()
            && self.delayed.is_empty()
            && self.deliveries.messages() == 0
            && self.undecided.is_empty()
            && self.settling.is_empty()
            && self.expiring.is_empty()
            && self.held_by_pulls() == 0
    }

    /// Messages whose waiting time is over, while their handler decides what becomes of them.
    fn expiring(&self) -> usize {
        self.settling.values().filter(|settlement| settlement.is_expiry()).count() + self.expiring.len()
    }

    // ---- In ----------------------------------------------------------------------------------------------

    /// A producer brings a message.
    pub(crate) fn publish(&mut self, message: Message, members: &Members, turn: &mut Turn<'_>) {
        if let Err(rejection) = self.admit_published(&message, turn) {
            turn.books.refused += 1;
            self.refuse(message, rejection, turn);
            return;
        }
        let message = self.with_id(message, turn);
        let entry = Entry::new(message, self.deadline(turn.now));
        self.take(entry, members, turn);
    }

    /// A copy of a message that was published elsewhere: it is decided about and saved as any other, but its producer
    /// does not know of it and hears nothing.
    pub(crate) fn publish_copy(&mut self, message: Message, members: &Members, turn: &mut Turn<'_>) {
        if self.admit_published(&message, turn).is_err() {
            self.face.stats.dropped[DropReason::Limit as usize] += 1;
            return turn.nowhere(&self.face.address, message, Happened::Produced, DropReason::Limit);
        }
        let message = self.with_id(message, turn);
        let entry = Entry { answered: true, ..Entry::new(message, self.deadline(turn.now)) };
        self.take(entry, members, turn);
    }

    /// A message that a router brings. Refused, nobody is told but the router. `answers`: its producer hears what becomes
    /// of it.
    pub(crate) fn publish_routed(
        &mut self,
        message: Message,
        answers: bool,
        members: &Members,
        turn: &mut Turn<'_>,
    ) -> Result<(), Rejection> {
        self.admit_published(&message, turn)?;
        let message = self.with_id(message, turn);
        let entry = Entry { answered: !answers, ..Entry::new(message, self.deadline(turn.now)) };
        self.take(entry, members, turn);
        Ok(())
    }

    fn take(&mut self, mut entry: Entry, members: &Members, turn: &mut Turn<'_>) {
        self.unique.take(&entry.message);
        self.face.stats.received += 1;
        self.face.stats.last_received_ms = turn.now.0;
        entry.number = turn.number();
        turn.life(&self.face.address, &entry, Happened::Produced);
        let mut deciding = Deciding::default();
        if self.undecided.is_empty() && !self.face.overrides.contains(Step::ReceivedFromProducer) {
            // Nobody is ahead and, as a rule, nobody is asked: no need to queue up for a decision.
            let inquiry = Inquiry::new(Step::ReceivedFromProducer, Asker::Admission(self.first_undecided));
            if let Some(verdict) = decide(&mut self.face, &mut deciding, &mut entry, inquiry, turn) {
                return self.admit_one(entry, verdict, members, turn);
            }
            self.undecided.push_back(Admission { entry, deciding, verdict: None });
            return;
        }
        self.undecided.push_back(Admission { entry, deciding, verdict: None });
        self.consider(self.undecided.len() - 1, turn);
        self.admit(members, turn);
    }

    /// A message comes from another queue: nobody is asked, nobody is answered, only room counts. If it was
    /// saved there it is saved here, and only then may the other queue forget it.
    pub(crate) fn transfer(
        &mut self,
        message: Message,
        origin: Option<Origin>,
        members: &Members,
        turn: &mut Turn<'_>,
    ) {
        let number = turn.number();
        let mut entry = Entry { answered: true, number, ..Entry::new(message, self.deadline(turn.now)) };
        turn.life(&self.face.address, &entry, Happened::Arrived);
        self.face.stats.received += 1;
        if self.check(&entry.message, turn).is_err() {
            turn.effects.extend(origin.map(Effect::Transferred));
            self.discard(entry, DropReason::Limit, turn);
            return;
        }
        if let Some(origin) = origin.filter(|_| turn.books.storage == Storage::Ready) {
            let (queue, message) = (self.face.address.clone(), entry.message.clone());
            let put = Record::Put { queue, message, received: turn.now, number };
            entry.sequence = turn.record(put).unwrap_or_default();
            entry.saved = true;
            self.face.stats.saved += 1;
            turn.life(&self.face.address, &entry, Happened::Saved);
            turn.books.wait(Durability::Fsync, Awaiting::Transfer(origin));
        }
        self.store(entry, members, turn);
    }

    /// A message that the journal had when the broker started. Messages come in the order of their places, and stay in
    /// the journal until they are wanted.
    pub(crate) fn restore(
        &mut self,
        mut unread: Unread,
        high: bool,
        not_before: Timestamp,
        turn: &mut Turn<'_>,
    ) {
        unread.deadline = self.deadline(turn.now);
        self.face.stats.received += 1;
        if unread.number == MessageNumber(0) {
            unread.number = turn.number();
        }
        turn.life_unread(&self.face.address, &unread, Happened::Restored);
        match self.face.options.status {
            Status::Stopped => {
                return self.discard_taken(Taken::Unread(unread), DropReason::Erased, turn);
            }
            Status::Cache => self.replace_cached(turn),
            _ if not_before > turn.now => return self.delay(Taken::Unread(unread), high, not_before, turn),
            _ => {}
        }
        self.arm(unread.deadline, turn);
        self.ready.push_unread(unread, high);
        self.schedule(turn);
    }

    /// Something newer takes the place of what a cache holds.
    fn replace_cached(&mut self, turn: &mut Turn<'_>) {
        for replaced in self.ready.clear(Clear { high_priority: true, normal: true }) {
            match replaced {
                Taken::Read(entry) => self.replace(entry, turn),
                Taken::Unread(unread) => {
                    turn.life_unread(&self.face.address, &unread, Happened::Replaced);
                    self.remove_unread(unread, turn);
                }
            }
        }
    }

    /// Whether the queue takes what is published now, as far as that can be said before anybody is asked.
    pub(crate) fn would_take(&self, message: &Message, turn: &Turn<'_>) -> Result<(), Rejection> {
        self.check(message, turn)?;
        let Some(rate) = self.face.options.publish_limit else { return Ok(()) };
        let retry = match Meter::wait(self.meter.as_deref(), rate, turn.now) {
            Some(Duration::ZERO) => return Ok(()),
            Some(wait) => format!("retry after {:.3} s", wait.as_secs_f64()),
            None => "it takes nothing".into(),
        };
        let address = &self.face.address;
        let reason = format!("publish limit of queue {address} reached ({rate}); {retry}");
        Err(Rejection::new(RejectionKind::LimitExceeded, reason))
    }

    /// The same, and what is taken counts. Only what is published does: not what comes from another queue of this broker,
    /// or comes back.
    fn admit_published(&mut self, message: &Message, turn: &Turn<'_>) -> Result<(), Rejection> {
        self.would_take(message, turn)?;
        if let Some(rate) = self.face.options.publish_limit {
            self.meter.get_or_insert_with(|| Box::new(Meter::new(rate))).take(rate, turn.now);
        }
        Ok(())
    }

    fn check(&self, message: &Message, turn: &Turn<'_>) -> Result<(), Rejection> {
        let options = &self.face.options;
        let refuse = |kind, reason: String| Err(Rejection::new(kind, reason));
        let address = &self.face.address;
        if options.status == Status::Stopped {
            return refuse(
                RejectionKind::Unauthorized,
                format!("queue {address} is stopped and takes no messages; give it another status first"),
            );
        }
        let size = message.body().len() as u64;
        if options.message_size_limit > 0 && size > options.message_size_limit {
            let limit = options.message_size_limit;
            let reason = format!("a body of {size} octets is larger than queue {address} takes ({limit})");
            return refuse(RejectionKind::LimitExceeded, reason);
        }
        if let Some(key) = self.unique.conflict(message) {
            let key = String::from_utf8_lossy(key);
            let reason = format!("queue {address} has a message with the unique key {key} already");
            return refuse(RejectionKind::AlreadyExists, reason);
        }
        self.check_storage(turn)?;
        let stored = (self.ready.len() + self.delayed.len() + self.undecided.len()) as u64;
        let limited = options.message_limit > 0 && options.status != Status::Cache;
        if limited && stored >= options.message_limit {
            return refuse(
                RejectionKind::LimitExceeded,
                format!("queue {address} is full ({stored} messages)"),
            );
        }
        if self.undecided.len() >= turn.books.config.undecided_max {
            let waiting = self.undecided.len();
            let reason =
                format!("{waiting} messages of queue {address} wait for its handler; try again later");
            return refuse(RejectionKind::Busy, reason);
        }
        Ok(())
    }

    /// A policy that promises "saved" takes nothing that it could not save.
    fn check_storage(&self, turn: &Turn<'_>) -> Result<(), Rejection> {
        let face = &self.face;
        let asks =
            face.overrides.contains(Step::ReceivedFromProducer) || face.overrides.contains(Step::SaveMessage);
        let base = &turn.books.spec(face.handler).base;
        if asks || !base.refuse_unsaved {
            return Ok(());
        }
        match &turn.books.storage {
            Storage::Ready => Ok(()),
            Storage::Absent => {
                let reason = format!(
                    "queue {} saves its messages (policy {}), and this broker keeps nothing on disk: start it \
                     with a data directory or choose another policy",
                    face.address, base.key
                );
                Err(Rejection::new(RejectionKind::Unacceptable, reason))
            }
            Storage::Refusing(why) => Err(Rejection::new(RejectionKind::Busy, not_saved(&face.address, why))),
        }
    }

    fn refuse(&self, message: Message, rejection: Rejection, turn: &mut Turn<'_>) {
        turn.refuse_passed_on(&message, &rejection);
        if let Some(producer) = message.producer() {
            let to = producer.connection;
            let queue = (*self.face.address).clone();
            turn.tell(to, Event::PublishRefused { queue, message, rejection });
        }
    }

    fn with_id(&self, message: Message, turn: &mut Turn<'_>) -> Message {
        if !message.id().is_empty() || !self.face.options.use_message_id {
            return message;
        }
        let id = turn.books.next_id();
        message.with_id(id.as_bytes())
    }

    pub(crate) fn deadline(&self, now: Timestamp) -> Timestamp {
        match self.face.options.message_timeout {
            timeout if timeout.is_zero() => Timestamp::NEVER,
            timeout => now.after(timeout),
        }
    }

    /// Gets the verdict of an undecided message, or asks for it.
    fn consider(&mut self, index: usize, turn: &mut Turn<'_>) {
        let number = self.first_undecided + index as u64;
        let Admission { entry, deciding, verdict } = &mut self.undecided[index];
        let inquiry = Inquiry::new(Step::ReceivedFromProducer, Asker::Admission(number));
        *verdict = decide(&mut self.face, deciding, entry, inquiry, turn);
    }

    /// An answer about an undecided message came.
    pub(crate) fn admission_answered(
        &mut self,
        number: u64,
        answer: Option<crate::model::decision::Decision>,
        members: &Members,
        turn: &mut Turn<'_>,
    ) {
        let Some(index) = number.checked_sub(self.first_undecided).map(|index| index as usize) else {
            return;
        };
        let Some(admission) = self.undecided.get_mut(index) else { return };
        admission.deciding.answered(&mut self.face, &mut admission.entry, answer, turn);
        self.consider(index, turn);
        self.admit(members, turn);
    }

    /// Admits from the front whatever is decided.
    fn admit(&mut self, members: &Members, turn: &mut Turn<'_>) {
        while self.undecided.front().is_some_and(|admission| admission.verdict.is_some()) {
            let Some(Admission { entry, verdict: Some(verdict), .. }) = self.undecided.pop_front() else {
                unreachable!("the front was looked at")
            };
            self.first_undecided += 1;
            self.admit_one(entry, verdict, members, turn);
        }
    }

    fn admit_one(&mut self, mut entry: Entry, verdict: Verdict, members: &Members, turn: &mut Turn<'_>) {
        if self.broke_promise(&entry, verdict, turn) {
            let why = match &turn.books.storage {
                Storage::Refusing(why) => why.clone(),
                Storage::Absent | Storage::Ready => "the journal failed".into(),
            };
            let rejection = Rejection::new(RejectionKind::Busy, not_saved(&self.face.address, &why));
            self.refuse(entry.message.clone(), rejection, turn);
            return self.discard(entry, DropReason::Refused, turn);
        }
        turn.finish_passed_on(&entry.message);
        self.acknowledge(&mut entry, verdict, None, "none", turn);
        if verdict.decision.allow {
            self.announce(&entry, turn);
            self.store(entry, members, turn);
        } else if verdict.decision.put_back == PutBack::No {
            self.refuse_admission(entry, turn);
        } else {
            self.store_at(entry, verdict.decision.put_back, members, turn);
        }
    }

    /// Whether a policy wanted the message saved and that failed: then it is not taken.
    fn broke_promise(&self, entry: &Entry, verdict: Verdict, turn: &Turn<'_>) -> bool {
        verdict.decision.acknowledge == Acknowledge::IfSaved
            && !entry.saved
            && !verdict.own
            && turn.books.spec(self.face.handler).base.refuse_unsaved
    }

    /// A producer that waits is told that its message went nowhere, even if the handler did not say so:
    /// otherwise it would learn it from a timeout.
    fn refuse_admission(&mut self, mut entry: Entry, turn: &mut Turn<'_>) {
        self.answer_producer(&mut entry, Some("refused"), None, true, turn);
        self.discard(entry, DropReason::Refused, turn);
    }

    fn announce(&self, entry: &Entry, turn: &mut Turn<'_>) {
        if self.watchers.is_empty() {
            return;
        }
        let occurrence = Arc::new(Occurrence {
            kind: EventKind::MessageProduced,
            channel: Some(self.face.address.channel.clone()),
            queue: Some(self.face.address.id),
            subject: Subject::Message {
                id: entry.message.id().into(),
                saved: entry.saved,
                producer: entry.message.producer().cloned(),
            },
        });
        for watcher in &self.watchers {
            turn.tell(*watcher, Event::Occurred(occurrence.clone()));
        }
    }

    fn store(&mut self, entry: Entry, members: &Members, turn: &mut Turn<'_>) {
        self.store_at(entry, PutBack::End, members, turn);
    }

    /// Puts a message where its queue's status wants it.
    fn store_at(&mut self, entry: Entry, place: PutBack, members: &Members, turn: &mut Turn<'_>) {
        match self.face.options.status {
            Status::Broadcast => self.broadcast(entry, members, turn),
            Status::Stopped => self.discard(entry, DropReason::Erased, turn),
            Status::Cache => {
                self.replace_cached(turn);
                self.keep(entry, place, turn);
            }
            Status::Push | Status::RoundRobin | Status::Pull | Status::Paused => {
                self.keep(entry, place, turn)
            }
        }
    }

    fn keep(&mut self, entry: Entry, place: PutBack, turn: &mut Turn<'_>) {
        self.arm(entry.deadline, turn);
        let saved = entry.saved;
        if place == PutBack::Start {
            self.ready.push_front(entry);
        } else {
            self.ready.push_back(entry);
        }
        if saved {
            self.note_backlog(turn);
        }
        self.schedule(turn);
    }

    // ---- Back --------------------------------------------------------------------------------------------

    /// Returns a message to the queue, unless it was put back too often. It is not handed out before `not_before`.
    pub(crate) fn put_back(
        &mut self,
        mut entry: Entry,
        place: PutBack,
        not_before: Timestamp,
        turn: &mut Turn<'_>,
    ) {
        entry.put_backs = entry.put_backs.saturating_add(1);
        if entry.put_backs > self.face.options.put_back_limit {
            self.bury(entry, DropReason::Limit, turn);
            return;
        }
        if entry.deadline <= turn.now {
            // It could wait no longer even before it was handed out.
            self.expired(entry, turn);
            return;
        }
        match self.face.options.status {
            Status::Stopped => return self.discard(entry, DropReason::Erased, turn),
            // The cache holds something newer by now; and what is not stored cannot return.
            Status::Cache if !self.ready.is_empty() => return self.discard(entry, DropReason::Erased, turn),
            Status::Broadcast => return self.discard(entry, DropReason::NoConsumer, turn),
            _ => {}
        }
        self.face.stats.put_back += 1;
        turn.life(&self.face.address, &entry, Happened::PutBack(place));
        if entry.sequence.0 > 0 {
            // Larger than all ranks so far, or smaller: as the sequence of this very record is new, so is it.
            let rank = (turn.books.sequence.0 + 1) as i64;
            let rank = if place == PutBack::Start { -rank } else { rank };
            let (attempts, put_backs) = (entry.attempts, entry.put_backs);
            let not_before = if not_before > turn.now { not_before } else { Timestamp(0) };
            turn.record(Record::Touch(entry.sequence, Progress { attempts, put_backs, rank, not_before }));
        }
        if not_before > turn.now && self.face.options.status != Status::Cache {
            let high = entry.message.properties().high_priority;
            return self.delay(Taken::Read(entry), high, not_before, turn);
        }
        self.keep(entry, place, turn);
    }

    /// Keeps a message until its time.
    fn delay(&mut self, taken: Taken, high: bool, until: Timestamp, turn: &mut Turn<'_>) {
        self.delayed.insert(until, taken, high);
        self.arm(until, turn);
    }

    /// Messages whose time has come join the others, behind them.
    fn end_delays(&mut self, turn: &mut Turn<'_>) {
        while let Some((taken, high)) = self.delayed.due(turn.now) {
            match self.face.options.status {
                Status::Broadcast => self.discard_taken(taken, DropReason::NoConsumer, turn),
                Status::Cache if !self.ready.is_empty() => {
                    self.discard_taken(taken, DropReason::Erased, turn);
                }
                _ => match taken {
                    Taken::Read(entry) => self.keep(entry, PutBack::End, turn),
                    Taken::Unread(unread) => {
                        self.arm(unread.deadline, turn);
                        self.ready.push_unread(unread, high);
                        self.schedule(turn);
                    }
                },
            }
        }
    }

    /// Moves a message that failed for good to the dead-letter queue, or drops it.
    pub(crate) fn bury(&mut self, mut entry: Entry, reason: DropReason, turn: &mut Turn<'_>) {
        let Some(to) = self.face.options.dead_letter.clone() else {
            self.discard(entry, reason, turn);
            return;
        };
        let message = dead_letter(&entry, &self.face.address, &to, reason);
        self.face.stats.dead_lettered += 1;
        turn.life(&self.face.address, &entry, Happened::DeadLettered(reason, &Arc::new(to.clone())));
        // Its record here stays until the other queue has it.
        let sequence = std::mem::take(&mut entry.sequence);
        let shard = turn.books.config.shard;
        let origin = (sequence.0 > 0).then_some(Origin { shard, sequence });
        turn.effects.push(Effect::Transfer(Transfer { to, message, origin }));
        self.remove(entry, turn);
    }

    // ---- Out ---------------------------------------------------------------------------------------------

    /// A message is dropped, which is counted.
    pub(crate) fn discard(&mut self, entry: Entry, reason: DropReason, turn: &mut Turn<'_>) {
        self.face.stats.dropped[reason as usize] += 1;
        turn.life(&self.face.address, &entry, Happened::Dropped(reason));
        self.remove(entry, turn);
    }

    /// A newer message takes this one's place in a cache, which is no drop.
    fn replace(&mut self, entry: Entry, turn: &mut Turn<'_>) {
        turn.life(&self.face.address, &entry, Happened::Replaced);
        self.remove(entry, turn);
    }

    /// A message leaves for good.
    #[expect(clippy::needless_pass_by_value, reason = "taking it is what makes it the end")]
    pub(crate) fn remove(&mut self, entry: Entry, turn: &mut Turn<'_>) {
        self.face.stats.removed += 1;
        self.unique.give(&entry.message);
        turn.end_of_life(&self.face.address, &entry);
        if entry.sequence.0 > 0 {
            turn.record(Record::Settle(entry.sequence));
        }
        tell_dequeued(&self.face, &entry, turn);
    }

    /// The last holder of a message let go.
    pub(crate) fn close(&mut self, Released { held, not_before }: Released, turn: &mut Turn<'_>) {
        if held.put_back != PutBack::No && (held.put_back_own || !held.acked) {
            self.put_back(held.entry, held.put_back, not_before, turn);
        } else if held.acked {
            self.remove(held.entry, turn);
        } else {
            match held.ending {
                Ending::Done => self.remove(held.entry, turn),
                Ending::Refused => self.discard(held.entry, DropReason::Refused, turn),
                Ending::Failed => self.bury(held.entry, DropReason::Limit, turn),
            }
        }
        // Whoever waits for acknowledgements may go on now.
        self.schedule(turn);
    }

    /// Removes stored messages; returns how many there were.
    pub(crate) fn clear(&mut self, clear: Clear, turn: &mut Turn<'_>) -> u64 {
        let mut cleared = self.ready.clear(clear);
        cleared.extend(self.delayed.clear(clear));
        let count = cleared.len() as u64;
        for taken in cleared {
            self.discard_taken(taken, DropReason::Erased, turn);
        }
        // A pull may have waited for what is gone now.
        self.schedule(turn);
        count
    }

    /// Forgets everything: stored, undecided and handed out.
    pub(crate) fn erase(&mut self, turn: &mut Turn<'_>) {
        self.clear(Clear { high_priority: true, normal: true }, turn);
        for mut admission in std::mem::take(&mut self.undecided) {
            self.first_undecided += 1;
            turn.finish_passed_on(&admission.entry.message);
            self.answer_producer(&mut admission.entry, Some("erased"), None, true, turn);
            self.discard(admission.entry, DropReason::Erased, turn);
        }
        self.flows.forget();
        self.end_pulls(turn);
        self.erase_expiring(turn);
        for settlement in std::mem::take(&mut self.settling).into_values() {
            if let Some(entry) = settlement.into_expired() {
                self.discard(entry, DropReason::Erased, turn);
            }
        }
        for held in self.deliveries.drain() {
            self.discard(held.entry, DropReason::Erased, turn);
        }
    }

    // ---- Telling the producer ----------------------------------------------------------------------------

    /// Carries out the acknowledge part of a verdict.
    pub(crate) fn acknowledge(
        &self,
        entry: &mut Entry,
        verdict: Verdict,
        relayed: Option<(Acknowledgement, Box<str>)>,
        reason: &str,
        turn: &mut Turn<'_>,
    ) {
        let negative = match verdict.decision.acknowledge {
            Acknowledge::None => return,
            Acknowledge::IfSaved if !entry.saved => return,
            Acknowledge::IfSaved | Acknowledge::Always => None,
            Acknowledge::Negative => Some(reason),
        };
        self.answer_producer(entry, negative, relayed, !verdict.own, turn);
    }

    /// Tells a message's producer its fate, once. `if_asked`: only a producer that asked for it.
    fn answer_producer(
        &self,
        entry: &mut Entry,
        negative: Option<&str>,
        relayed: Option<(Acknowledgement, Box<str>)>,
        if_asked: bool,
        turn: &mut Turn<'_>,
    ) {
        if entry.answered || (if_asked && !entry.message.properties().pending_acknowledge) {
            return;
        }
        let Some(producer) = entry.message.producer() else { return };
        entry.answered = true;
        let hidden = self.face.options.hide_client_names;
        // A consumer's word is relayed only if it says what was decided.
        let relayed = relayed
            .filter(|(word, _)| word.refusal.is_some() == negative.is_some())
            .map(|(word, consumer)| Box::new((word, (!hidden).then_some(consumer))));
        let to = producer.connection;
        let event = Event::Acknowledged {
            queue: self.face.address.clone(),
            message: entry.message.clone(),
            negative: negative.map(Into::into),
            relayed,
        };
        turn.tell(to, event);
    }

    // ---- Options and time --------------------------------------------------------------------------------

    /// Changes options, the status among them.
    pub(crate) fn update(&mut self, changes: &QueueChanges, turn: &mut Turn<'_>) {
        let before = self.face.options.status;
        changes.apply_to(&mut self.face.options);
        self.choose_handler(turn.books);
        let status = self.face.options.status;
        match status {
            _ if status == before => {}
            Status::Stopped => self.erase(turn),
            Status::Cache => self.keep_latest(turn),
            _ => {}
        }
        self.schedule(turn);
    }

    fn keep_latest(&mut self, turn: &mut Turn<'_>) {
        for taken in self.ready.keep_newest() {
            self.discard_taken(taken, DropReason::Erased, turn);
        }
    }

    /// Puts the queue on the shard's list of work, if it is not there.
    pub(crate) fn schedule(&mut self, turn: &mut Turn<'_>) {
        if !self.scheduled && (!self.ready.is_empty() || !self.pulls.is_empty()) {
            self.scheduled = true;
            turn.books.work.push_back(self.face.place);
        }
    }

    /// Makes sure that the shard looks at this queue at `deadline` or before.
    pub(crate) fn arm(&mut self, deadline: Timestamp, turn: &mut Turn<'_>) {
        if deadline < self.armed {
            turn.books.timers.remove(&(self.armed, self.face.place));
            turn.books.timers.insert((deadline, self.face.place));
            self.armed = deadline;
        }
    }

    /// The moment for which this queue was armed has come.
    pub(crate) fn timeout(&mut self, turn: &mut Turn<'_>) {
        self.armed = Timestamp::NEVER;
        self.end_delays(turn);
        self.expire(turn);
        self.time_out_deliveries(turn);
        let next = self.ready.next_deadline().min(self.deliveries.next_deadline()).min(self.delayed.next());
        self.arm(next, turn);
    }

    /// The moment it is armed for, to be taken off the list when the queue goes.
    pub(crate) fn armed(&self) -> Timestamp {
        self.armed
    }
}

fn not_saved(queue: &QueueAddress, why: &str) -> String {
    format!("queue {queue} could not save the message and did not take it: {why}; try again later")
}

/// The message as it arrives in the dead-letter queue: its own headers, and where it came from and why.
fn dead_letter(entry: &Entry, from: &QueueAddress, to: &QueueAddress, reason: DropReason) -> Message {
    let message = &entry.message;
    let mut headers = message.headers().to_vec();
    let told = format!(
        "Dead-Letter-Reason:{}\r\nDead-Letter-Queue:{from}\r\nDead-Letter-Attempts:{}\r\n",
        reason.as_str(),
        entry.attempts
    );
    // A header block cannot grow beyond 65,535 octets; a full one keeps what its producer said.
    if headers.len() + told.len() <= usize::from(u16::MAX) {
        headers.extend_from_slice(told.as_bytes());
    }
    let properties = crate::model::message::Properties {
        content_type: to.id,
        pending_acknowledge: false,
        pending_response: false,
        // Here its key says nothing; two that failed are two.
        unique: false,
        ..message.properties()
    };
    Message::from_parts(message.id(), &headers, message.body(), properties, message.producer().cloned())
}
