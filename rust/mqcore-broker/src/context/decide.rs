//! Decisions of delivery handlers and policies.

use std::sync::Arc;

use crate::context::Context;
use crate::context::commits::{Awaiting, Storage, WaitingSave};
use crate::context::questions::{OpenQuestion, Suspended};
use crate::history::LifecycleEvent;
use crate::model::client::Client;
use crate::model::decision::{Decision, PutBack, Step};
use crate::model::effect::{AcknowledgementView, Effect, Question};
use crate::model::entry::Entry;
use crate::model::id::{QuestionId, Sequence};
use crate::model::metadata::QueueMetadata;
use crate::model::options::Durability;
use crate::model::record::Record;

/// A decision, and whether a handler made it or its policy did.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepDecision {
    pub(crate) decision: Decision,
    pub(crate) own: bool,
    /// Whether the handler failed to decide, so that this is its fallback.
    pub(crate) failed: bool,
}

impl StepDecision {
    /// The decision of a policy.
    pub(crate) fn of_policy(decision: Decision) -> Self {
        Self { decision, own: false, failed: false }
    }
}

/// A decision for a handler or policy, apart from the queue and the message.
pub(crate) struct StepRequest<'a> {
    pub(crate) step: Step,
    /// For acknowledgements: whether the acknowledgement is positive.
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

/// The open decision about a message. At most one question about it is open at any time.
#[derive(Debug, Default)]
pub(crate) struct DecisionState {
    /// The answer that has arrived and is not used yet.
    answer: Option<StepDecision>,
    /// The decision that waits until its message is saved, as it asks for.
    saving: Option<StepDecision>,
    /// Whether saving was tried for the current decision.
    save_tried: bool,
    /// The step that the open question is about, and whether it is positive. They select the fallback
    /// if the answer fails.
    step: Option<(Step, bool)>,
}

/// Returns the decision for a step. A policy decides at once. `None` means that a handler was asked:
/// the caller parks its work until [`DecisionState::answered`]. If the decision asks to save the
/// message, the message is saved first.
pub(crate) fn decide(
    metadata: &mut QueueMetadata,
    decision_state: &mut DecisionState,
    entry: &mut Entry,
    step_request: StepRequest<'_>,
    context: &mut Context<'_>,
) -> Option<StepDecision> {
    let (step, positive) = (step_request.step, step_request.positive);
    let suspended = step_request.suspended;
    let step_decision = match decision_state.answer.take() {
        Some(step_decision) => step_decision,
        None if metadata.overrides.contains(step) => {
            decision_state.step = Some((step, positive));
            ask(metadata, entry, step_request, context);
            return None;
        }
        None => {
            let decision = context.state.spec(metadata.handler).base.decide(step, positive);
            StepDecision::of_policy(decision)
        }
    };
    if step_decision.decision.save && !entry.saved && !decision_state.save_tried {
        decision_state.save_tried = true;
        if metadata.overrides.contains(Step::SaveMessage) {
            decision_state.saving = Some(step_decision);
            decision_state.step = Some((Step::SaveMessage, true));
            ask(metadata, entry, StepRequest::new(Step::SaveMessage, suspended), context);
            return None;
        }
        if save(metadata, entry, suspended, context) {
            decision_state.saving = Some(step_decision);
            decision_state.step = Some((Step::SaveMessage, true));
            return None;
        }
    }
    decision_state.save_tried = false;
    Some(step_decision)
}

/// Saves a message in the journal. Returns true if the decision must wait for the commit.
fn save(
    metadata: &mut QueueMetadata,
    entry: &mut Entry,
    suspended: Suspended,
    context: &mut Context<'_>,
) -> bool {
    if context.state.commits.storage != Storage::Ready {
        metadata.stats.save_failed += 1;
        return false;
    }
    let (queue, message) = (metadata.address.clone(), entry.message.clone());
    let sequence =
        context.record(Record::Put { queue, message, received: context.now, number: entry.number });
    entry.sequence = sequence.unwrap_or_default();
    if metadata.options.durability == Durability::None {
        context.saved_without_waiting(entry);
        metadata.stats.saved += 1;
        context.record_event(&metadata.address, entry, LifecycleEvent::Saved);
        return false;
    }
    let bytes = entry.message.memory_bytes() as u64;
    let save = WaitingSave { queue: metadata.queue_ref, suspended, bytes };
    context.state.commits.wait(metadata.options.durability, Awaiting::Save(save));
    true
}

impl DecisionState {
    /// A decision that is made already and only has to be carried out.
    pub(crate) fn decided(decision: Decision) -> Self {
        let answer = StepDecision { decision, own: true, failed: false };
        Self { answer: Some(answer), ..Self::default() }
    }

    /// Takes the answer to the open question; `None` if it failed or missed its deadline.
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
        if let Some(step_decision) = self.saving.take() {
            entry.saved = answer.is_some_and(|saved| saved.allow);
            if entry.saved {
                if entry.sequence.0 > 0 {
                    // A handler that saves messages itself does not make them leave memory.
                    context.state.unsaved.leave(entry);
                }
                metadata.stats.saved += 1;
                context.record_event(&metadata.address, entry, LifecycleEvent::Saved);
            } else {
                metadata.stats.save_failed += 1;
            }
            self.answer = Some(step_decision);
            return;
        }
        let failed = answer.is_none();
        let decision =
            answer.unwrap_or_else(|| fallback(context.state.spec(metadata.handler).fallback, step, positive));
        self.answer = Some(StepDecision { decision, own: true, failed });
    }

    /// A message that its handler failed to decide about stays in the queue: it becomes as safe as the policy of the handler
    /// wants it.
    pub(crate) fn keep_safely(&mut self, policy: Decision) {
        if let Some(step_decision) = self.answer.as_mut().filter(|answer| answer.failed && !self.save_tried) {
            step_decision.decision.save |= step_decision.decision.allow && policy.save;
        }
    }
}

/// Adapts a handler's fallback to `step`. Requeueing a message that is being delivered would deliver it
/// twice; not requeueing a failed message would lose it. So the fallback requeues only after a failure.
fn fallback(decision: Decision, step: Step, positive: bool) -> Decision {
    let failed = match step {
        Step::AcknowledgeReceived => !positive,
        Step::AcknowledgeTimedOut | Step::ConsumerReceiveFailed | Step::MessageTimedOut => true,
        _ => false,
    };
    Decision { put_back: if failed { decision.put_back } else { PutBack::No }, ..decision }
}

fn ask(metadata: &QueueMetadata, entry: &Entry, step_request: StepRequest<'_>, context: &mut Context<'_>) {
    let open_question = OpenQuestion {
        queue_ref: metadata.queue_ref,
        suspended: step_request.suspended,
        handler: metadata.handler,
    };
    let id = context.state.ask(open_question, context.now);
    context.effects.push(Effect::Ask(question_about(id, metadata, entry, step_request, true)));
}

/// Notifies a handler that overrides `message_dequeued` that a paged-out message left its queue for
/// good.
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
            saved: true,
            consumer: None,
            acknowledgement: None,
            wants_answer: false,
        };
        context.effects.push(Effect::Dequeued(sequence, question));
    }
}

/// Notifies a handler that overrides `message_dequeued` that a message left its queue for good.
pub(crate) fn notify_dequeued(metadata: &QueueMetadata, entry: &Entry, context: &mut Context<'_>) {
    if metadata.overrides.contains(Step::MessageDequeued) {
        let step_request = StepRequest::new(Step::MessageDequeued, Suspended::Admission(0));
        context.effects.push(Effect::Ask(question_about(
            QuestionId(0),
            metadata,
            entry,
            step_request,
            false,
        )));
    }
}

fn question_about(
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
        saved: entry.saved,
        consumer: step_request.consumer.cloned(),
        acknowledgement: step_request.acknowledgement,
        wants_answer,
    }
}
