//! What every part of a shard works with during one call: the time, the effects, the shard's shared books.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use foldhash::HashMap;

use crate::history::{HistoryLog, LifecycleEvent};
use crate::model::client::Client;
use crate::model::config::{BrokerConfig, HandlerSpec};
use crate::model::decision::{Decision, PutBack, Step};
use crate::model::effect::{AcknowledgementView, Effect, Event, Forwarded, Origin, Question};
use crate::model::entry::{Entry, PagedOut};
use crate::model::id::{
    ConnectionId, HandlerId, MessageNumber, QuestionId, QueueAddress, QueueRef, Sequence,
};
use crate::model::intake::Intake;
use crate::model::memory::MemoryGauge;
use crate::model::message::Message;
use crate::model::metadata::QueueMetadata;
use crate::model::options::Durability;
use crate::model::policy;
use crate::model::record::Record;
use crate::model::rejection::{Rejection, RejectionKind};
use crate::model::stats::{BodyStats, DropReason, QueueStats};
use crate::model::time::Timestamp;

/// What of a queue, or of a router, waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Suspended {
    /// A message that is not admitted yet, by its number.
    Admission(u64),
    /// A message on its way to consumers, by its number.
    Flow(u64),
    /// A delivery that is being settled, or a message that expired, by its number.
    Settlement(u64),
    /// A message on its way through a router, by its number at the handler's gate. It is at no queue.
    Route(u64),
}

/// A question that is out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpenQuestion {
    pub(crate) queue_ref: QueueRef,
    pub(crate) suspended: Suspended,
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
    Save(QueueRef, Suspended),
    /// Somebody who asked for a change of definitions is answered when it is durable.
    Answer(ConnectionId, Event),
    /// A dead letter is safe here: its old shard may forget it.
    Transfer(Origin),
    /// A broker that passes on is told that these numbers are done.
    Confirm(ConnectionId, Vec<u64>),
}

/// The books that all queues of a shard share.
pub(crate) struct ShardState {
    pub(crate) config: BrokerConfig,
    pub(crate) handlers: Vec<HandlerSpec>,
    questions: HashMap<QuestionId, OpenQuestion>,
    next_question: u64,
    /// Deadlines of questions, one list a handler: within it they ascend, as its timeout is constant.
    question_deadlines: Vec<VecDeque<(Timestamp, QuestionId)>>,
    /// Consumers that cannot take more now, and since when.
    pub(crate) congested: HashMap<ConnectionId, Timestamp>,
    /// Grows with every change of who is congested.
    pub(crate) congestion: u64,
    /// Queues that have something to hand out.
    pub(crate) work: VecDeque<QueueRef>,
    /// When to look at which queue again.
    pub(crate) timers: BTreeSet<(Timestamp, QueueRef)>,
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
    pub(crate) memory: MemoryGauge,
    /// Queues with bodies that may leave memory.
    pub(crate) backlogs: VecDeque<QueueRef>,
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
    pub(crate) history: Option<Box<HistoryLog>>,
    /// Handler answers that arrived after their deadline.
    pub(crate) answers_late: u64,
    /// What was handed to other shards so far.
    pub(crate) forwards: u64,
}

impl ShardState {
    pub(crate) fn new(config: BrokerConfig) -> Self {
        let handlers: Vec<_> = policy::ALL.into_iter().map(HandlerSpec::of_policy).collect();
        Self {
            history: config.history.map(|options| Box::new(HistoryLog::new(options))),
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
            memory: MemoryGauge::default(),
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
            answers_late: 0,
        }
    }

    /// Adds a handler or replaces the one of the same key.
    pub(crate) fn register(&mut self, spec: HandlerSpec) -> HandlerId {
        if let Some(index) = self.handlers.iter().position(|known| known.key == spec.key) {
            // A shorter timeout would break the order of the deadlines that are out; they keep theirs.
            self.handlers[index] = spec;
            return HandlerId(index as u16);
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
        self.handlers.iter().position(|spec| &*spec.key == key).map(|index| HandlerId(index as u16))
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
    pub(crate) fn answered(&mut self, id: QuestionId) -> Option<OpenQuestion> {
        self.questions.remove(&id)
    }

    /// A question whose answer did not come in time, off the books.
    pub(crate) fn overdue(&mut self, now: Timestamp) -> Option<OpenQuestion> {
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

    pub(crate) fn ask(&mut self, asked: OpenQuestion, now: Timestamp) -> QuestionId {
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
pub(crate) struct Context<'a> {
    pub(crate) now: Timestamp,
    pub(crate) state: &'a mut ShardState,
    pub(crate) effects: &'a mut Vec<Effect>,
}

impl Context<'_> {
    /// Has a record written, if there is a journal; tells its sequence.
    pub(crate) fn record(&mut self, record: Record) -> Option<Sequence> {
        if self.state.storage == Storage::Absent {
            return None;
        }
        if self.state.intake.is_dirty() && matches!(record, Record::Settle(_)) {
            // The record that may go now could be the only one that says which message of another broker it was.
            self.write_intake();
        }
        self.state.sequence.0 += 1;
        let sequence = self.state.sequence;
        self.effects.push(Effect::Record(sequence, record));
        Some(sequence)
    }

    /// A message that another broker passed on is where it belongs, or was dropped for good.
    pub(crate) fn finish_passed_on(&mut self, message: &Message) {
        if let Some(ticket) = message.ticket() {
            self.state.intake.done(ticket);
        }
    }

    /// A message that another broker passed on was refused: for good, or, if there is only no room for it, for now.
    pub(crate) fn reject_passed_on(&mut self, message: &Message, rejection: &Rejection) {
        let Some(ticket) = message.ticket() else { return };
        if rejection.kind != RejectionKind::Busy {
            return self.state.intake.done(ticket);
        }
        self.state.intake.defer(ticket);
        if let Some(link) = self.state.links.get(&ticket.node).copied() {
            self.notify(link, Event::Deferred(ticket.number, rejection.clone()));
        }
    }

    /// Writes down what is done of other brokers since the last time, and has them told once that is safe.
    pub(crate) fn write_intake(&mut self) {
        for node in self.state.intake.take_forgotten() {
            self.record(Record::RemoveIntake(node));
        }
        for (node, progress, numbers) in self.state.intake.flush() {
            let link = self.state.links.get(&node).copied();
            self.record(Record::DefineIntake(node, progress));
            let Some(link) = link.filter(|_| !numbers.is_empty()) else { continue };
            if self.state.storage == Storage::Ready {
                self.state.wait(Durability::Os, Awaiting::Confirm(link, numbers));
            } else {
                self.notify(link, Event::Confirmed(numbers));
            }
        }
    }

    /// Writes down what happened to a message, if there is a history.
    pub(crate) fn record_event(
        &mut self,
        queue: &Arc<QueueAddress>,
        entry: &Entry,
        what: LifecycleEvent<'_>,
    ) {
        if let Some(history) = &mut self.state.history {
            history.write(self.now, queue, entry, what);
        }
    }

    /// The same of a message whose body is not in memory: neither its id nor its sizes can be told.
    pub(crate) fn record_paged_out_event(
        &mut self,
        queue: &Arc<QueueAddress>,
        paged_out: &PagedOut,
        what: LifecycleEvent<'_>,
    ) {
        if self.state.history.is_some() {
            self.record_event(queue, &paged_out.bare(), what);
        }
    }

    /// Writes down that a message whose body is not in memory left for good.
    pub(crate) fn record_paged_out_end(&mut self, queue: &Arc<QueueAddress>, paged_out: &PagedOut) {
        if self.state.history.is_some() {
            self.record_end(queue, &paged_out.bare());
        }
    }

    /// Writes down that a message came to a queue that is not there or has no room for it, and was dropped at once.
    pub(crate) fn record_undeliverable(
        &mut self,
        queue: &QueueAddress,
        message: Message,
        came: LifecycleEvent<'_>,
        reason: DropReason,
    ) {
        if self.state.history.is_some() {
            let (number, queue) = (self.number(), Arc::new(queue.clone()));
            let entry = Entry { number, ..Entry::new(message, Timestamp::NEVER) };
            self.record_event(&queue, &entry, came);
            self.record_event(&queue, &entry, LifecycleEvent::Dropped(reason));
            self.record_end(&queue, &entry);
        }
    }

    /// Writes down that a message left its queue for good, if there is a history.
    pub(crate) fn record_end(&mut self, queue: &Arc<QueueAddress>, entry: &Entry) {
        if let Some(history) = &mut self.state.history {
            history.end(self.now, queue, entry);
        }
    }

    /// A number for a new message, if there is a history. Numbers are reserved in the journal before they are used.
    pub(crate) fn number(&mut self) -> MessageNumber {
        let Some(history) = &mut self.state.history else { return MessageNumber(0) };
        let number = history.number();
        if let Some(reserved) = history.reserve() {
            self.record(Record::Numbers(reserved));
        }
        number
    }

    /// Hands something to the shard of this number, which may be this one.
    pub(crate) fn forward(&mut self, shard: usize, what: Forwarded) {
        self.state.forwards += 1;
        self.effects.push(Effect::Forward(shard, what));
    }

    pub(crate) fn notify(&mut self, to: ConnectionId, event: Event) {
        self.effects.push(Effect::Notify(to, event));
    }
}

/// A decision, and whether a handler made it itself or its policy did.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepDecision {
    pub(crate) decision: Decision,
    pub(crate) own: bool,
}

/// What is asked, beside the queue and the message.
pub(crate) struct StepRequest<'a> {
    pub(crate) step: Step,
    /// For acknowledgements: whether it is a positive one.
    pub(crate) positive: bool,
    pub(crate) consumer: Option<&'a Arc<Client>>,
    pub(crate) acknowledgement: Option<Box<AcknowledgementView>>,
    pub(crate) suspended: Suspended,
}

impl<'a> StepRequest<'a> {
    pub(crate) fn new(step: Step, suspended: Suspended) -> Self {
        Self { step, positive: true, consumer: None, acknowledgement: None, suspended }
    }

    pub(crate) fn about(self, consumer: &'a Arc<Client>) -> Self {
        Self { consumer: Some(consumer), ..self }
    }
}

/// Where a message stands with its handler: at most one question is out for it at any time.
#[derive(Debug, Default)]
pub(crate) struct DecisionState {
    /// The answer that came and is not used yet.
    answer: Option<StepDecision>,
    /// The verdict that waits until its wish to save is fulfilled.
    saving: Option<StepDecision>,
    /// Saving was tried for the verdict at hand.
    save_tried: bool,
    /// What the question that is out was about; it tells what holds if the answer fails.
    step: Option<(Step, bool)>,
}

/// Gets the verdict of a step: at once from the policy, or from the handler, and then `None` means that the
/// question is out and the caller has to park what it does until [`DecisionState::answered`]. The verdict's wish to
/// save is carried out before it is returned.
pub(crate) fn decide(
    metadata: &mut QueueMetadata,
    decision_state: &mut DecisionState,
    entry: &mut Entry,
    step_request: StepRequest<'_>,
    context: &mut Context<'_>,
) -> Option<StepDecision> {
    let (step, positive) = (step_request.step, step_request.positive);
    let suspended = step_request.suspended;
    let verdict = match decision_state.answer.take() {
        Some(verdict) => verdict,
        None if metadata.overrides.contains(step) => {
            decision_state.step = Some((step, positive));
            ask(metadata, entry, step_request, context);
            return None;
        }
        None => {
            let decision = context.state.spec(metadata.handler).base.decide(step, positive);
            StepDecision { decision, own: false }
        }
    };
    if verdict.decision.save && !entry.saved && !decision_state.save_tried {
        decision_state.save_tried = true;
        if metadata.overrides.contains(Step::SaveMessage) {
            decision_state.saving = Some(verdict);
            decision_state.step = Some((Step::SaveMessage, true));
            ask(metadata, entry, StepRequest::new(Step::SaveMessage, suspended), context);
            return None;
        }
        if save(metadata, entry, suspended, context) {
            decision_state.saving = Some(verdict);
            decision_state.step = Some((Step::SaveMessage, true));
            return None;
        }
    }
    decision_state.save_tried = false;
    Some(verdict)
}

/// Has a message saved by the journal. True if the verdict has to wait for that.
fn save(
    metadata: &mut QueueMetadata,
    entry: &mut Entry,
    suspended: Suspended,
    context: &mut Context<'_>,
) -> bool {
    if context.state.storage != Storage::Ready {
        metadata.stats.save_failed += 1;
        return false;
    }
    let (queue, message) = (metadata.address.clone(), entry.message.clone());
    let sequence =
        context.record(Record::Put { queue, message, received: context.now, number: entry.number });
    entry.sequence = sequence.unwrap_or_default();
    if metadata.options.durability == Durability::None {
        entry.saved = true;
        metadata.stats.saved += 1;
        context.record_event(&metadata.address, entry, LifecycleEvent::Saved);
        return false;
    }
    context.state.wait(metadata.options.durability, Awaiting::Save(metadata.queue_ref, suspended));
    true
}

impl DecisionState {
    /// The answer to the question that is out; `None` if it failed or is late.
    pub(crate) fn answered(
        &mut self,
        metadata: &mut QueueMetadata,
        entry: &mut Entry,
        answer: Option<Decision>,
        context: &mut Context<'_>,
    ) {
        let (step, positive) = self.step.take().expect("an answer is only routed to who asked");
        if answer.is_none() {
            metadata.stats.errors += 1;
        }
        if let Some(verdict) = self.saving.take() {
            entry.saved = answer.is_some_and(|saved| saved.allow);
            if entry.saved {
                metadata.stats.saved += 1;
                context.record_event(&metadata.address, entry, LifecycleEvent::Saved);
            } else {
                metadata.stats.save_failed += 1;
            }
            self.answer = Some(verdict);
            return;
        }
        let decision =
            answer.unwrap_or_else(|| fallback(context.state.spec(metadata.handler).fallback, step, positive));
        self.answer = Some(StepDecision { decision, own: true });
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

fn ask(metadata: &QueueMetadata, entry: &Entry, step_request: StepRequest<'_>, context: &mut Context<'_>) {
    let asked = OpenQuestion {
        queue_ref: metadata.queue_ref,
        suspended: step_request.suspended,
        handler: metadata.handler,
    };
    let id = context.state.ask(asked, context.now);
    context.effects.push(Effect::Ask(question(id, metadata, entry, step_request, true)));
}

/// Tells a handler that overrides `message_dequeued` that a message left for good whose body is not here.
pub(crate) fn notify_paged_out_dequeued(
    metadata: &QueueMetadata,
    sequence: Sequence,
    attempt: u16,
    context: &mut Context<'_>,
) {
    if metadata.overrides.contains(Step::MessageDequeued) {
        let question = Question {
            id: QuestionId(0),
            handler: metadata.handler,
            step: Step::MessageDequeued,
            queue: metadata.address.clone(),
            status: metadata.options.status,
            message: None,
            attempt,
            consumer: None,
            acknowledgement: None,
            wants_answer: false,
        };
        context.effects.push(Effect::Dequeued(sequence, question));
    }
}

/// Tells a handler that overrides `message_dequeued` that a message left for good.
pub(crate) fn notify_dequeued(metadata: &QueueMetadata, entry: &Entry, context: &mut Context<'_>) {
    if metadata.overrides.contains(Step::MessageDequeued) {
        let step_request = StepRequest::new(Step::MessageDequeued, Suspended::Admission(0));
        context.effects.push(Effect::Ask(question(QuestionId(0), metadata, entry, step_request, false)));
    }
}

fn question(
    id: QuestionId,
    metadata: &QueueMetadata,
    entry: &Entry,
    step_request: StepRequest<'_>,
    wants_answer: bool,
) -> Question {
    Question {
        id,
        handler: metadata.handler,
        step: step_request.step,
        queue: metadata.address.clone(),
        status: metadata.options.status,
        message: Some(entry.message.clone()),
        attempt: entry.attempts,
        consumer: step_request.consumer.cloned(),
        acknowledgement: step_request.acknowledgement,
        wants_answer,
    }
}
