//! What every part of a shard works with during one call: the time, the effects, the shard's shared books.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use foldhash::HashMap;

use crate::history::{Happened, Log};
use crate::model::client::Client;
use crate::model::config::{BrokerConfig, HandlerSpec};
use crate::model::decision::{Decision, PutBack, Step};
use crate::model::effect::{AcknowledgementView, Effect, Event, Forwarded, Origin, Question};
use crate::model::entry::{Entry, Unread};
use crate::model::id::{ConnectionId, HandlerId, MessageNumber, Place, QuestionId, QueueAddress, Sequence};
use crate::model::intake::Intake;
use crate::model::memory::Meter;
use crate::model::message::Message;
use crate::model::metadata::Face;
use crate::model::options::Durability;
use crate::model::policy;
use crate::model::record::Record;
use crate::model::rejection::{Rejection, RejectionKind};
use crate::model::stats::{BodyStats, DropReason, QueueStats};
use crate::model::time::Timestamp;

/// What of a queue, or of a router, waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    /// A message that is not admitted yet, by its number.
    Admission(u64),
    /// A message on its way to consumers, by its number.
    Flow(u64),
    /// A delivery that is being settled, or a message that expired, by its number.
    Settlement(u64),
    /// A message on its way through a router, by its number at the handler's gate. It is at no queue.
    Trip(u64),
}

/// A question that is out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) place: Place,
    pub(crate) asker: Asker,
    pub(crate) handler: HandlerId,
}

/// Whether messages can be saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Storage {
    /// There is no journal: this broker keeps everything in memory.
    Absent,
    /// There is, and it takes records.
    Ready,
    /// There is, and it does not take records now; why.
    Refusing(Box<str>),
}

/// Who waits until a record is committed.
#[derive(Debug)]
pub(crate) enum Awaiting {
    /// A message's verdict wants it saved.
    Save(Place, Asker),
    /// Somebody who asked for a change of definitions is answered when it is durable.
    Answer(ConnectionId, Event),
    /// A dead letter is safe here: its old shard may forget it.
    Transfer(Origin),
    /// A broker that passes on is told that these numbers are done.
    Confirm(ConnectionId, Vec<u64>),
}

/// The books that all queues of a shard share.
pub(crate) struct Books {
    pub(crate) config: BrokerConfig,
    pub(crate) handlers: Vec<HandlerSpec>,
    questions: HashMap<QuestionId, Asked>,
    next_question: u64,
    /// Deadlines of questions, one list a handler: within it they ascend, as its timeout is constant.
    question_deadlines: Vec<VecDeque<(Timestamp, QuestionId)>>,
    /// Consumers that cannot take more now, and since when.
    pub(crate) congested: HashMap<ConnectionId, Timestamp>,
    /// Grows with every change of who is congested.
    pub(crate) congestion: u64,
    /// Queues that have something to hand out.
    pub(crate) work: VecDeque<Place>,
    /// When to look at which queue again.
    pub(crate) timers: BTreeSet<(Timestamp, Place)>,
    pub(crate) storage: Storage,
    /// The sequence of the latest record.
    pub(crate) sequence: Sequence,
    /// Who waits for records to be written, and who for them to be synced; in their order.
    written: VecDeque<(Sequence, Awaiting)>,
    synced: VecDeque<(Sequence, Awaiting)>,
    /// The latest record that is committed, at whichever level.
    committed: Sequence,
    /// Records that may have been refused, although a later one is committed: first and last number.
    doubtful: Vec<(Sequence, Sequence)>,
    /// Octets of saved messages that wait in memory.
    pub(crate) meter: Meter,
    /// Queues with bodies that may leave memory.
    pub(crate) backlogs: VecDeque<Place>,
    /// Bodies that were asked for and have not come.
    pub(crate) loading: u64,
    pub(crate) bodies: BodyStats,
    serial: u64,
    ids: u64,
    /// Commands refused.
    pub(crate) refused: u64,
    /// Acknowledgements of something that is not in flight.
    pub(crate) unknown_acks: u64,
    /// Counters of queues that are gone.
    pub(crate) retired: QueueStats,
    /// What other brokers passed on.
    pub(crate) intake: Intake,
    /// The connection of each broker that passes on, by its id.
    pub(crate) links: HashMap<Arc<str>, ConnectionId>,
    /// What happens to messages is written down here; `None`: it is not.
    pub(crate) history: Option<Box<Log>>,
    /// What was handed to other shards so far.
    pub(crate) forwards: u64,
}

impl Books {
    pub(crate) fn new(config: BrokerConfig) -> Self {
        let handlers: Vec<_> = policy::ALL.into_iter().map(HandlerSpec::of_policy).collect();
        Self {
            history: config.history.map(|options| Box::new(Log::new(options))),
            config,
            question_deadlines: vec![VecDeque::new(); handlers.len()],
            handlers,
            questions: HashMap::default(),
            next_question: 0,
            congested: HashMap::default(),
            congestion: 0,
            work: VecDeque::new(),
            timers: BTreeSet::new(),
            storage: Storage::Absent,
            sequence: Sequence(0),
            written: VecDeque::new(),
            synced: VecDeque::new(),
            committed: Sequence(0),
            doubtful: Vec::new(),
            meter: Meter::default(),
            backlogs: VecDeque::new(),
            loading: 0,
            bodies: BodyStats::default(),
            serial: 0,
            ids: 0,
            refused: 0,
            unknown_acks: 0,
            retired: QueueStats::default(),
            intake: Intake::new(),
            links: HashMap::default(),
            forwards: 0,
        }
    }

    /// Adds a handler or replaces the one of the same key.
    pub(crate) fn register(&mut self, spec: HandlerSpec) -> HandlerId {
        if let Some(place) = self.handlers.iter().position(|known| known.key == spec.key) {
            // A shorter timeout would break the order of the deadlines that are out; they keep theirs.
            self.handlers[place] = spec;
            return HandlerId(place as u16);
        }
        assert!(
            self.handlers.len() < usize::from(u16::MAX),
            "handlers are registered by the program, not by peers"
        );
        self.handlers.push(spec);
        self.question_deadlines.push(VecDeque::new());
        HandlerId((self.handlers.len() - 1) as u16)
    }

    pub(crate) fn handler(&self, key: &str) -> Option<HandlerId> {
        self.handlers.iter().position(|spec| &*spec.key == key).map(|place| HandlerId(place as u16))
    }

    pub(crate) fn spec(&self, handler: HandlerId) -> &HandlerSpec {
        &self.handlers[usize::from(handler.0)]
    }

    /// A number that no other queue of this shard has had.
    pub(crate) fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// A message or client id that nobody has: 32 lower-case hex digits. The counter makes it unique in this
    /// shard, the seed across shards and starts; mixing both makes it hard to guess the next one.
    pub(crate) fn next_id(&mut self) -> String {
        self.ids += 1;
        let seed = self.config.seed;
        let mixed = mix(seed ^ self.ids.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        format!("{:016x}{:016x}", mixed, mix(mixed ^ seed).wrapping_add(self.ids))
    }

    /// Who waited for records up to `sequence` at this level of durability, in their order.
    pub(crate) fn committed(&mut self, level: Durability, sequence: Sequence) -> Vec<Awaiting> {
        self.committed = self.committed.max(sequence);
        let list = if level == Durability::Fsync { &mut self.synced } else { &mut self.written };
        let done = list.partition_point(|(waits_for, _)| *waits_for <= sequence);
        list.drain(..done).map(|(_, awaiting)| awaiting).collect()
    }

    /// Everybody who waits for a commit: it will not come.
    pub(crate) fn uncommitted(&mut self) -> Vec<Awaiting> {
        self.written.drain(..).chain(self.synced.drain(..)).map(|(_, awaiting)| awaiting).collect()
    }

    /// The journal refused some of the records behind the last commit.
    pub(crate) fn doubt_uncommitted(&mut self) {
        if self.committed < self.sequence {
            self.doubtful.push((Sequence(self.committed.0 + 1), self.sequence));
        }
        // Many refusals in a row: one long doubt costs some memory, never a message.
        if self.doubtful.len() > 16 {
            let first = self.doubtful[0].0;
            self.doubtful = vec![(first, self.sequence)];
        }
    }

    /// Everything so far is in the journal: it came from there.
    pub(crate) fn committed_all(&mut self) {
        self.committed = self.sequence;
    }

    /// Whether the journal is sure to have this record.
    pub(crate) fn is_committed(&self, sequence: Sequence) -> bool {
        sequence.0 > 0
            && sequence <= self.committed
            && !self.doubtful.iter().any(|(first, last)| (first..=last).contains(&&sequence))
    }

    /// Waits for the latest record to be committed as `durability` says, which must not be `None`.
    pub(crate) fn wait(&mut self, durability: Durability, awaiting: Awaiting) {
        debug_assert_ne!(durability, Durability::None, "nobody waits for what is not promised");
        let list = if durability == Durability::Fsync { &mut self.synced } else { &mut self.written };
        list.push_back((self.sequence, awaiting));
    }

    /// Somebody waits until records are written.
    pub(crate) fn waits_for_write(&self) -> bool {
        !self.written.is_empty()
    }

    /// Somebody waits until records are synced.
    pub(crate) fn waits_for_sync(&self) -> bool {
        !self.synced.is_empty()
    }

    /// Somebody waits until records are written or synced.
    pub(crate) fn waits_for_commit(&self) -> bool {
        !self.synced.is_empty() || !self.written.is_empty()
    }

    /// Takes a question off the books; `None` if its answer came too late.
    pub(crate) fn answered(&mut self, id: QuestionId) -> Option<Asked> {
        self.questions.remove(&id)
    }

    /// A question whose answer did not come in time, off the books.
    pub(crate) fn overdue(&mut self, now: Timestamp) -> Option<Asked> {
        for list in &mut self.question_deadlines {
            while let Some((deadline, id)) = list.front().copied() {
                if self.questions.contains_key(&id) && deadline > now {
                    break;
                }
                list.pop_front();
                if let Some(asked) = self.questions.remove(&id) {
                    return Some(asked);
                }
            }
        }
        None
    }

    /// The earliest deadline of a question. May be one that was answered: that costs a look.
    pub(crate) fn next_question_deadline(&self) -> Timestamp {
        let fronts = self.question_deadlines.iter().filter_map(VecDeque::front);
        fronts.map(|(deadline, _)| *deadline).min().unwrap_or(Timestamp::NEVER)
    }

    /// Questions that are out.
    pub(crate) fn questions_open(&self) -> usize {
        self.questions.len()
    }

    pub(crate) fn ask(&mut self, asked: Asked, now: Timestamp) -> QuestionId {
        self.next_question += 1;
        let id = QuestionId(self.next_question);
        let deadline = now.after(self.spec(asked.handler).timeout);
        let Self { questions, question_deadlines, .. } = self;
        let list = &mut question_deadlines[usize::from(asked.handler.0)];
        while list.front().is_some_and(|(_, id)| !questions.contains_key(id)) {
            list.pop_front();
        }
        list.push_back((deadline, id));
        questions.insert(id, asked);
        id
    }
}

/// The finalizer of SplitMix64: every bit of the input changes about half of the output.
fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// One call into the shard.
pub(crate) struct Turn<'a> {
    pub(crate) now: Timestamp,
    pub(crate) books: &'a mut Books,
    pub(crate) effects: &'a mut Vec<Effect>,
}

impl Turn<'_> {
    /// Has a record written, if there is a journal; tells its sequence.
    pub(crate) fn record(&mut self, record: Record) -> Option<Sequence> {
        if self.books.storage == Storage::Absent {
            return None;
        }
        if self.books.intake.is_dirty() && matches!(record, Record::Settle(_)) {
            // The record that may go now could be the only one that says which message of another broker it was.
            self.write_intake();
        }
        self.books.sequence.0 += 1;
        let sequence = self.books.sequence;
        self.effects.push(Effect::Record(sequence, record));
        Some(sequence)
    }

    /// A message that another broker passed on is where it belongs, or was dropped for good.
    pub(crate) fn finish_passed_on(&mut self, message: &Message) {
        if let Some(ticket) = message.ticket() {
            self.books.intake.done(ticket);
        }
    }

    /// A message that another broker passed on was refused: for good, or, if there is only no room for it, for now.
    pub(crate) fn refuse_passed_on(&mut self, message: &Message, rejection: &Rejection) {
        let Some(ticket) = message.ticket() else { return };
        if rejection.kind != RejectionKind::Busy {
            return self.books.intake.done(ticket);
        }
        self.books.intake.put_off(ticket);
        if let Some(link) = self.books.links.get(&ticket.node).copied() {
            self.tell(link, Event::PutOff(ticket.number, rejection.clone()));
        }
    }

    /// Writes down what is done of other brokers since the last time, and has them told once that is safe.
    pub(crate) fn write_intake(&mut self) {
        for node in self.books.intake.take_forgotten() {
            self.record(Record::RemoveIntake(node));
        }
        for (node, progress, numbers) in self.books.intake.flush() {
            let link = self.books.links.get(&node).copied();
            self.record(Record::DefineIntake(node, progress));
            let Some(link) = link.filter(|_| !numbers.is_empty()) else { continue };
            if self.books.storage == Storage::Ready {
                self.books.wait(Durability::Os, Awaiting::Confirm(link, numbers));
            } else {
                self.tell(link, Event::Confirmed(numbers));
            }
        }
    }

    /// Writes down what happened to a message, if there is a history.
    pub(crate) fn life(&mut self, queue: &Arc<QueueAddress>, entry: &Entry, what: Happened<'_>) {
        if let Some(history) = &mut self.books.history {
            history.write(self.now, queue, entry, what);
        }
    }

    /// The same of a message whose body is not in memory: neither its id nor its sizes can be told.
    pub(crate) fn life_unread(&mut self, queue: &Arc<QueueAddress>, unread: &Unread, what: Happened<'_>) {
        if self.books.history.is_some() {
            self.life(queue, &unread.bare(), what);
        }
    }

    /// Writes down that a message whose body is not in memory left for good.
    pub(crate) fn end_of_life_unread(&mut self, queue: &Arc<QueueAddress>, unread: &Unread) {
        if self.books.history.is_some() {
            self.end_of_life(queue, &unread.bare());
        }
    }

    /// Writes down that a message came to a queue that is not there or has no room for it, and was dropped at once.
    pub(crate) fn nowhere(
        &mut self,
        queue: &QueueAddress,
        message: Message,
        came: Happened<'_>,
        reason: DropReason,
    ) {
        if self.books.history.is_some() {
            let (number, queue) = (self.number(), Arc::new(queue.clone()));
            let entry = Entry { number, ..Entry::new(message, Timestamp::NEVER) };
            self.life(&queue, &entry, came);
            self.life(&queue, &entry, Happened::Dropped(reason));
            self.end_of_life(&queue, &entry);
        }
    }

    /// Writes down that a message left its queue for good, if there is a history.
    pub(crate) fn end_of_life(&mut self, queue: &Arc<QueueAddress>, entry: &Entry) {
        if let Some(history) = &mut self.books.history {
            history.end(self.now, queue, entry);
        }
    }

    /// A number for a new message, if there is a history. Numbers are reserved in the journal before they are used.
    pub(crate) fn number(&mut self) -> MessageNumber {
        let Some(history) = &mut self.books.history else { return MessageNumber(0) };
        let number = history.number();
        if let Some(reserved) = history.reserve() {
            self.record(Record::Numbers(reserved));
        }
        number
    }

    /// Hands something to the shard of this number, which may be this one.
    pub(crate) fn forward(&mut self, shard: usize, what: Forwarded) {
        self.books.forwards += 1;
        self.effects.push(Effect::Forward(shard, what));
    }

    pub(crate) fn tell(&mut self, to: ConnectionId, event: Event) {
        self.effects.push(Effect::Tell(to, event));
    }
}

/// A decision, and whether a handler made it itself or its policy did.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Verdict {
    pub(crate) decision: Decision,
    pub(crate) own: bool,
}

/// What is asked, beside the queue and the message.
pub(crate) struct Inquiry<'a> {
    pub(crate) step: Step,
    /// For acknowledgements: whether it is a positive one.
    pub(crate) positive: bool,
    pub(crate) consumer: Option<&'a Arc<Client>>,
    pub(crate) acknowledgement: Option<Box<AcknowledgementView>>,
    pub(crate) asker: Asker,
}

impl<'a> Inquiry<'a> {
    pub(crate) fn new(step: Step, asker: Asker) -> Self {
        Self { step, positive: true, consumer: None, acknowledgement: None, asker }
    }

    pub(crate) fn about(self, consumer: &'a Arc<Client>) -> Self {
        Self { consumer: Some(consumer), ..self }
    }
}

/// Where a message stands with its handler: at most one question is out for it at any time.
#[derive(Debug, Default)]
pub(crate) struct Deciding {
    /// The answer that came and is not used yet.
    answer: Option<Verdict>,
    /// The verdict that waits until its wish to save is fulfilled.
    saving: Option<Verdict>,
    /// Saving was tried for the verdict at hand.
    save_tried: bool,
    /// What the question that is out was about; it tells what holds if the answer fails.
    step: Option<(Step, bool)>,
}

/// Gets the verdict of a step: at once from the policy, or from the handler, and then `None` means that the
/// question is out and the caller has to park what it does until [`Deciding::answered`]. The verdict's wish to
/// save is carried out before it is returned.
pub(crate) fn decide(
    face: &mut Face,
    deciding: &mut Deciding,
    entry: &mut Entry,
    inquiry: Inquiry<'_>,
    turn: &mut Turn<'_>,
) -> Option<Verdict> {
    let (step, positive) = (inquiry.step, inquiry.positive);
    let asker = inquiry.asker;
    let verdict = match deciding.answer.take() {
        Some(verdict) => verdict,
        None if face.overrides.contains(step) => {
            deciding.step = Some((step, positive));
            ask(face, entry, inquiry, turn);
            return None;
        }
        None => {
            let decision = turn.books.spec(face.handler).base.decide(step, positive);
            Verdict { decision, own: false }
        }
    };
    if verdict.decision.save && !entry.saved && !deciding.save_tried {
        deciding.save_tried = true;
        if face.overrides.contains(Step::SaveMessage) {
            deciding.saving = Some(verdict);
            deciding.step = Some((Step::SaveMessage, true));
            ask(face, entry, Inquiry::new(Step::SaveMessage, asker), turn);
            return None;
        }
        if save(face, entry, asker, turn) {
            deciding.saving = Some(verdict);
            deciding.step = Some((Step::SaveMessage, true));
            return None;
        }
    }
    deciding.save_tried = false;
    Some(verdict)
}

/// Has a message saved by the journal. True if the verdict has to wait for that.
fn save(face: &mut Face, entry: &mut Entry, asker: Asker, turn: &mut Turn<'_>) -> bool {
    if turn.books.storage != Storage::Ready {
        face.stats.save_failed += 1;
        return false;
    }
    let (queue, message) = (face.address.clone(), entry.message.clone());
    let sequence = turn.record(Record::Put { queue, message, received: turn.now, number: entry.number });
    entry.sequence = sequence.unwrap_or_default();
    if face.options.durability == Durability::None {
        entry.saved = true;
        face.stats.saved += 1;
        turn.life(&face.address, entry, Happened::Saved);
        return false;
    }
    turn.books.wait(face.options.durability, Awaiting::Save(face.place, asker));
    true
}

impl Deciding {
    /// The answer to the question that is out; `None` if it failed or is late.
    pub(crate) fn answered(
        &mut self,
        face: &mut Face,
        entry: &mut Entry,
        answer: Option<Decision>,
        turn: &mut Turn<'_>,
    ) {
        let (step, positive) = self.step.take().expect("an answer is only routed to who asked");
        if answer.is_none() {
            face.stats.errors += 1;
        }
        if let Some(verdict) = self.saving.take() {
            entry.saved = answer.is_some_and(|saved| saved.allow);
            if entry.saved {
                face.stats.saved += 1;
                turn.life(&face.address, entry, Happened::Saved);
            } else {
                face.stats.save_failed += 1;
            }
            self.answer = Some(verdict);
            return;
        }
        let decision =
            answer.unwrap_or_else(|| fallback(turn.books.spec(face.handler).fallback, step, positive));
        self.answer = Some(Verdict { decision, own: true });
    }
}

/// What a handler's fallback means at `step`. Where a message is on its way, putting it back would deliver it
/// twice; where it already failed, not putting it back would lose it. So "put back" counts only there.
fn fallback(decision: Decision, step: Step, positive: bool) -> Decision {
    let failed = match step {
        Step::AcknowledgeReceived => !positive,
        Step::AcknowledgeTimedOut | Step::ConsumerReceiveFailed | Step::MessageTimedOut => true,
        _ => false,
    };
    Decision { put_back: if failed { decision.put_back } else { PutBack::No }, ..decision }
}

fn ask(face: &Face, entry: &Entry, inquiry: Inquiry<'_>, turn: &mut Turn<'_>) {
    let asked = Asked { place: face.place, asker: inquiry.asker, handler: face.handler };
    let id = turn.books.ask(asked, turn.now);
    turn.effects.push(Effect::Ask(question(id, face, entry, inquiry, true)));
}

/// Tells a handler that overrides `message_dequeued` that a message left for good whose body is not here.
pub(crate) fn bid_farewell(face: &Face, sequence: Sequence, attempt: u16, turn: &mut Turn<'_>) {
    if face.overrides.contains(Step::MessageDequeued) {
        let question = Question {
            id: QuestionId(0),
            handler: face.handler,
            step: Step::MessageDequeued,
            queue: face.address.clone(),
            status: face.options.status,
            message: None,
            attempt,
            consumer: None,
            acknowledgement: None,
            wants_answer: false,
        };
        turn.effects.push(Effect::Farewell(sequence, question));
    }
}

/// Tells a handler that overrides `message_dequeued` that a message left for good.
pub(crate) fn tell_dequeued(face: &Face, entry: &Entry, turn: &mut Turn<'_>) {
    if face.overrides.contains(Step::MessageDequeued) {
        let inquiry = Inquiry::new(Step::MessageDequeued, Asker::Admission(0));
        turn.effects.push(Effect::Ask(question(QuestionId(0), face, entry, inquiry, false)));
    }
}

fn question(
    id: QuestionId,
    face: &Face,
    entry: &Entry,
    inquiry: Inquiry<'_>,
    wants_answer: bool,
) -> Question {
    Question {
        id,
        handler: face.handler,
        step: inquiry.step,
        queue: face.address.clone(),
        status: face.options.status,
        message: Some(entry.message.clone()),
        attempt: entry.attempts,
        consumer: inquiry.consumer.cloned(),
        acknowledgement: inquiry.acknowledgement,
        wants_answer,
    }
}
