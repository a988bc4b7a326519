//! Delivery step by step, for queues whose handler decides sending steps itself.
//!
//! The delivery of each message is a [`Flow`](crate::queue::flows::Flow). It has at most one open
//! question, and is parked until the answer arrives. Many flows of a queue run side by side, so that a
//! handler is asked in batches. But they write in the order in which they began: a flow that may write
//! and is not the first unfinished one waits.

use std::time::Duration;

use smallvec::SmallVec;

use crate::context::Context;
use crate::context::decide::{DecisionState, StepDecision, StepRequest, decide};
use crate::context::questions::Suspended;
use crate::history::LifecycleEvent;
use crate::model::decision::{Decision, PutBack, Step};
use crate::model::effect::{Event, PullOutcome};
use crate::model::entry::Entry;
use crate::model::id::Sequence;
use crate::model::options::Status;
use crate::model::stats::DropReason;
use crate::queue::Queue;
use crate::queue::delayed::Awaits;
use crate::queue::delivery::Disposition;
use crate::queue::flows::{Flow, FlowSlot, FlowStep, FlowTarget};
use crate::queue::members::{Consumer, Members};
use crate::queue::ready::Unlisted;

/// How long a message waits that every consumer refused, unless the consumers change before.
const REFUSED_DELAY: Duration = Duration::from_millis(100);

/// How a run of steps ended.
enum RunResult {
    /// A question is open, or it is not this flow's turn to write.
    Parked,
    /// The flow is finished.
    Over(FlowEnd),
}

enum FlowEnd {
    /// Finish the message as decided.
    Decided,
    /// Every consumer refused the message: it waits for other consumers.
    Refused,
    /// There was no consumer: the message stays the next one.
    NoConsumer,
    /// The message expired while the handler decided.
    Expired,
}

impl Queue {
    /// Begins the delivery of a message.
    pub(crate) fn start_flow(
        &mut self,
        entry: Entry,
        mode: FlowTarget,
        members: &Members,
        context: &mut Context<'_>,
    ) {
        // A copy of a cached message is neither saved nor confirmed again.
        let entry = match mode {
            FlowTarget::Cached(..) => {
                self.flows.copies += 1;
                Entry { answered: true, saved: true, sequence: Sequence(0), ..entry }
            }
            FlowTarget::All | FlowTarget::One | FlowTarget::Pulled(..) => entry,
        };
        let held = self.deliveries.insert(entry);
        let number = self.flows.first + self.flows.slots.len() as u64;
        let flow = Flow {
            held,
            mode,
            stage: FlowStep::Begin,
            decision_state: DecisionState::default(),
            untried: SmallVec::new(),
            current: None,
            refusers: SmallVec::new(),
            before: None,
            sent: 0,
            joined: None,
            slot: None,
            reserved: SmallVec::new(),
            written: false,
        };
        self.flows.slots.push_back(FlowSlot::Parked(Box::new(flow)));
        self.run(number, members, context);
    }

    /// Takes the answer about a flow.
    pub(crate) fn flow_answered(
        &mut self,
        number: u64,
        answer: Option<Decision>,
        members: &Members,
        context: &mut Context<'_>,
    ) {
        let Some(FlowSlot::Parked(flow)) = self.flows.slot(number) else { return };
        let entry = &mut self.deliveries.get_mut(flow.held).entry;
        flow.decision_state.answered(&mut self.metadata, entry, answer, context);
        self.run(number, members, context);
    }

    /// Runs a flow, and then the flows that may write because of it.
    fn run(&mut self, number: u64, members: &Members, context: &mut Context<'_>) {
        let mut next = Some(number);
        while let Some(number) = next {
            let Some(mut flow) = self.flows.take(number) else { return };
            let before = flow.written;
            let run = self.steps(&mut flow, number, members, context);
            let written = flow.written;
            match run {
                RunResult::Parked => self.flows.set(number, FlowSlot::Parked(flow)),
                RunResult::Over(end) => {
                    // A broadcast queue keeps no message, so that its later ones need not wait: each goes to its own consumers.
                    let keeps_order = self.metadata.options.status != Status::Broadcast;
                    if matches!(end, FlowEnd::NoConsumer) && keeps_order {
                        self.recall(number + 1, context);
                    }
                    self.finish(*flow, end, context);
                    self.flows.set(number, FlowSlot::Done);
                }
            }
            let passed =
                !before && (written || self.flows.slot(number).is_none_or(|s| matches!(s, FlowSlot::Done)));
            next = self.flows.next_writer().filter(|writer| passed && self.flows.waits_to_write(*writer));
        }
        self.schedule(context);
    }

    /// Runs as many steps of a flow as possible now.
    fn steps(
        &mut self,
        flow: &mut Flow,
        number: u64,
        members: &Members,
        context: &mut Context<'_>,
    ) -> RunResult {
        loop {
            let over = match flow.stage {
                FlowStep::Begin => self.begin(flow, number, members, context),
                FlowStep::Choose => self.choose_next(flow, members, context),
                FlowStep::Can => self.ask_consumer(flow, number, context),
                FlowStep::Write => self.write(flow, number, members, context),
                FlowStep::Received => self.received(flow, number, context),
                FlowStep::Combine => self.combine(flow, context),
                FlowStep::End => self.end(flow, number, context),
            };
            match over {
                None => return RunResult::Parked,
                Some(StepResult::Next(stage)) => flow.stage = stage,
                Some(StepResult::Over(end)) => return RunResult::Over(end),
            }
        }
    }

    fn step_decision(
        &mut self,
        flow: &mut Flow,
        step: Step,
        number: u64,
        context: &mut Context<'_>,
    ) -> Option<StepDecision> {
        let entry = &mut self.deliveries.get_mut(flow.held).entry;
        let mut step_request = StepRequest::new(step, Suspended::Flow(number));
        let consumer = flow.current.clone();
        if let Some(consumer) = &consumer {
            step_request = step_request.about(&consumer.client);
        }
        decide(&mut self.metadata, &mut flow.decision_state, entry, step_request, context)
    }

    /// Carries out a decision: acknowledges now, requeues at the end.
    fn carry_out(&mut self, flow: &Flow, step_decision: StepDecision, context: &mut Context<'_>) {
        // The entry is cloned for the call, because both belong to the queue.
        let mut entry = self.deliveries.get(flow.held).entry.clone();
        self.acknowledge(&mut entry, step_decision, None, "none", context);
        let held = self.deliveries.get_mut(flow.held);
        held.entry.answered = entry.answered;
        match (held.requeue, step_decision.decision.put_back) {
            (_, PutBack::No) | (PutBack::Start, _) => {}
            (_, put_back) => held.requeue = put_back,
        }
        held.requeued_by_handler |= step_decision.own && step_decision.decision.put_back != PutBack::No;
    }

    fn begin(
        &mut self,
        flow: &mut Flow,
        number: u64,
        members: &Members,
        context: &mut Context<'_>,
    ) -> Option<StepResult> {
        let step_decision = self.step_decision(flow, Step::BeginSend, number, context)?;
        self.carry_out(flow, step_decision, context);
        if !step_decision.decision.allow {
            return Some(self.refused(flow));
        }
        match &flow.mode {
            FlowTarget::All => {
                // The first free consumer, or all of them. All had room when the delivery began, except for a consumer that
                // joined while the handler decided. A broadcast does not wait, so no prefetch limits it.
                let options = &self.metadata.options;
                let is_limited = options.only_first_acquirer || options.status != Status::Broadcast;
                let consumers = members.list().iter().rev().map(|member| &member.consumer);
                let free = consumers.filter(|consumer| !is_limited || self.deliveries.has_room(consumer));
                flow.untried = free.cloned().collect();
            }
            FlowTarget::One => self.choose_one(flow, members, context),
            FlowTarget::Pulled(consumer, _) | FlowTarget::Cached(consumer, _) => {
                flow.untried.push(consumer.clone());
            }
        }
        if flow.untried.is_empty() {
            return Some(StepResult::Over(FlowEnd::NoConsumer));
        }
        self.reserve(flow);
        Some(StepResult::Next(FlowStep::Choose))
    }

    /// Reserves room for the message in the windows of the chosen consumers.
    fn reserve(&mut self, flow: &mut Flow) {
        for consumer in flow.untried.iter().filter(|consumer| consumer.terms.window > 0) {
            self.deliveries.reserve(consumer);
            flow.reserved.push(consumer.clone());
        }
    }

    /// Gives back the room that was reserved for a consumer.
    fn unreserve(&mut self, flow: &mut Flow, consumer: &Consumer) {
        if let Some(place) = flow.reserved.iter().position(|reserved| reserved.key() == consumer.key()) {
            self.deliveries.unreserve(&flow.reserved.swap_remove(place));
        }
    }

    /// Chooses the next free consumer that has not refused the message.
    fn choose_one(&mut self, flow: &mut Flow, members: &Members, context: &Context<'_>) {
        if let Some((position, slot)) = self.choose(members, &flow.refusers, context) {
            flow.untried.push(members.list()[position].consumer.clone());
            flow.slot = slot;
        }
    }

    fn choose_next(
        &mut self,
        flow: &mut Flow,
        members: &Members,
        context: &Context<'_>,
    ) -> Option<StepResult> {
        if matches!(flow.mode, FlowTarget::One) && flow.sent == 0 && flow.untried.is_empty() {
            self.choose_one(flow, members, context);
            self.reserve(flow);
        }
        let enough = self.metadata.options.only_first_acquirer && flow.sent > 0;
        flow.current = if enough { None } else { flow.untried.pop() };
        Some(StepResult::Next(if flow.current.is_some() { FlowStep::Can } else { FlowStep::Combine }))
    }

    fn ask_consumer(
        &mut self,
        flow: &mut Flow,
        number: u64,
        context: &mut Context<'_>,
    ) -> Option<StepResult> {
        let step_decision = self.step_decision(flow, Step::CanConsumerReceive, number, context)?;
        if step_decision.decision.allow {
            if matches!(flow.mode, FlowTarget::All) {
                flow.before = Some(step_decision);
            } else {
                self.carry_out(flow, step_decision, context);
            }
            return Some(StepResult::Next(FlowStep::Write));
        }
        // The others are still tried.
        flow.slot = None;
        if let Some(consumer) = flow.current.clone() {
            self.unreserve(flow, &consumer);
            flow.refusers.push(consumer.key());
        }
        Self::join(flow, step_decision);
        Some(StepResult::Next(FlowStep::Choose))
    }

    /// Combines the decision about a consumer with those about the others.
    fn join(flow: &mut Flow, step_decision: StepDecision) {
        flow.joined = Some(match flow.joined {
            None => step_decision,
            Some(so_far) => StepDecision {
                decision: so_far.decision.combine(step_decision.decision),
                own: so_far.own || step_decision.own,
                failed: so_far.failed || step_decision.failed,
            },
        });
    }

    fn write(
        &mut self,
        flow: &mut Flow,
        number: u64,
        members: &Members,
        context: &mut Context<'_>,
    ) -> Option<StepResult> {
        if self.flows.next_writer() != Some(number) {
            return None;
        }
        let consumer = flow.current.clone().expect("a consumer was chosen before");
        let gone = match &flow.mode {
            FlowTarget::Pulled(..) | FlowTarget::Cached(..) => {
                !members.has_joined(consumer.client.connection)
            }
            FlowTarget::All | FlowTarget::One => members.position(consumer.key()).is_none(),
        };
        if gone {
            return Some(StepResult::Next(FlowStep::Received));
        }
        let mut entry = self.deliveries.get(flow.held).entry.clone();
        let is_stored = matches!(flow.mode, FlowTarget::All | FlowTarget::One);
        if is_stored && flow.sent == 0 && entry.deadline <= context.now {
            return Some(StepResult::Over(FlowEnd::Expired));
        }
        // A cached message may have been replaced while the handler decided: its history has ended, so this
        // delivery does not count.
        let replaced = matches!(flow.mode, FlowTarget::Cached(..))
            && self.ready.newest().is_none_or(|(newest, _)| newest.number != entry.number);
        match &flow.mode {
            FlowTarget::Pulled(_, pull_position) => {
                self.deliver_pulled(&mut entry, consumer.client.connection, *pull_position, context);
            }
            FlowTarget::Cached(_, request) => {
                self.deliver_cached(&entry, &consumer, *request, !replaced, context);
            }
            // Several consumers get one message: it is sent once.
            FlowTarget::All | FlowTarget::One => {
                self.deliver_to(&mut entry, &consumer, flow.sent > 0, context);
            }
        }
        if let Some(slot) = flow.slot.take() {
            slot.spend();
        }
        if !replaced {
            let delivered = LifecycleEvent::Delivered(&consumer.client);
            context.record_event(&self.metadata.address, &entry, delivered);
        }
        flow.sent += 1;
        self.deliveries.get_mut(flow.held).entry.attempts = entry.attempts;
        self.unreserve(flow, &consumer);
        if self.stays_open(&consumer) && !matches!(flow.mode, FlowTarget::Cached(..)) {
            self.open(flow.held, &consumer, context);
        }
        if flow.untried.is_empty() || self.metadata.options.only_first_acquirer {
            flow.written = true;
        }
        Some(StepResult::Next(FlowStep::Received))
    }

    fn received(&mut self, flow: &mut Flow, number: u64, context: &mut Context<'_>) -> Option<StepResult> {
        let after = self.step_decision(flow, Step::ConsumerReceived, number, context)?;
        if !matches!(flow.mode, FlowTarget::All) {
            self.carry_out(flow, after, context);
            let goes_on = after.decision.allow || flow.sent == 0;
            return Some(if goes_on {
                StepResult::Next(FlowStep::Combine)
            } else {
                StepResult::Over(FlowEnd::Decided)
            });
        }
        let both = flow.before.take().map_or(after, |before| {
            // The later decision tells whether the steps continue.
            let allow = after.decision.allow;
            let decision = Decision { allow, ..before.decision.combine(after.decision) };
            StepDecision { decision, own: before.own || after.own, failed: before.failed || after.failed }
        });
        Self::join(flow, both);
        Some(StepResult::Next(FlowStep::Choose))
    }

    /// All consumers were tried.
    fn combine(&mut self, flow: &mut Flow, context: &mut Context<'_>) -> Option<StepResult> {
        flow.current = None;
        flow.written = true;
        if flow.sent == 0 && flow.refusers.is_empty() {
            // All consumers left in the meantime.
            return Some(StepResult::Over(FlowEnd::NoConsumer));
        }
        if flow.sent == 0 {
            if let Some(joined) = flow.joined.take() {
                // The message stays in its queue, so there is no need to requeue it.
                let decision = Decision { put_back: PutBack::No, ..joined.decision };
                self.carry_out(flow, StepDecision { decision, ..joined }, context);
            }
            return Some(StepResult::Over(FlowEnd::Refused));
        }
        if !matches!(flow.mode, FlowTarget::All) {
            // Another consumer took it, so the refusals mean nothing.
            flow.joined = None;
        }
        if let Some(joined) = flow.joined.take() {
            self.carry_out(flow, joined, context);
            if !joined.decision.allow {
                return Some(StepResult::Over(FlowEnd::Decided));
            }
        }
        Some(StepResult::Next(FlowStep::End))
    }

    fn end(&mut self, flow: &mut Flow, number: u64, context: &mut Context<'_>) -> Option<StepResult> {
        let step_decision = self.step_decision(flow, Step::EndSend, number, context)?;
        self.carry_out(flow, step_decision, context);
        Some(StepResult::Over(FlowEnd::Decided))
    }

    /// The handler refused the message before it was offered to a consumer.
    fn refused(&mut self, flow: &Flow) -> StepResult {
        let held = self.deliveries.get_mut(flow.held);
        held.disposition = held.disposition.max(Disposition::Refused);
        StepResult::Over(FlowEnd::Decided)
    }

    /// Releases the message.
    fn finish(&mut self, flow: Flow, end: FlowEnd, context: &mut Context<'_>) {
        for consumer in &flow.reserved {
            self.deliveries.unreserve(consumer);
        }
        let released = self.deliveries.release(flow.held);
        if let FlowTarget::Cached(consumer, request) = flow.mode {
            // The message itself is still in the cache.
            self.flows.copies -= 1;
            if flow.sent == 0 {
                let event = Event::PullEnded { request, outcome: PullOutcome::Unauthorized };
                context.notify(consumer.client.connection, event);
            }
            return;
        }
        if let Some(released) = released {
            match end {
                FlowEnd::Decided => self.close(released, context),
                FlowEnd::NoConsumer => self.handle_no_consumer(released.held.entry, context),
                FlowEnd::Refused => self.await_consumer(released.held.entry, context),
                FlowEnd::Expired => self.expired(released.held.entry, context),
            }
        }
        if let FlowTarget::Pulled(consumer, pull_position) = flow.mode
            && pull_position.index == pull_position.count
        {
            let event = Event::PullEnded { request: pull_position.request, outcome: PullOutcome::Complete };
            context.notify(consumer.client.connection, event);
        }
    }

    /// Ends the flow of a message that its consumers have returned, although a handler still decides about it: messages keep
    /// their order only if they are requeued when they are returned. No effect if a consumer has it, or may still get it.
    pub(crate) fn end_flow_of(&mut self, outstanding: usize, context: &mut Context<'_>) {
        if self.deliveries.get(outstanding).holders > 1 {
            return;
        }
        let is_over = |slot: &FlowSlot| {
            let FlowSlot::Parked(flow) = slot else { return false };
            flow.held == outstanding && flow.sent > 0 && flow.written
        };
        let Some(place) = self.flows.slots.iter().position(is_over) else { return };
        let number = self.flows.first + place as u64;
        if let Some(flow) = self.flows.take(number) {
            self.finish(*flow, FlowEnd::Decided, context);
            // The handler's answer is ignored.
            self.flows.set(number, FlowSlot::Done);
        }
    }

    /// Without a consumer, a message goes back to the head of the queue. So do the flows that began
    /// after it and have reached no consumer, the last one first. Otherwise each would be put before
    /// the one that it followed.
    fn recall(&mut self, from: u64, context: &mut Context<'_>) {
        let end = self.flows.first + self.flows.slots.len() as u64;
        for number in (from..end).rev() {
            let Some(FlowSlot::Parked(flow)) = self.flows.slot(number) else { continue };
            if flow.sent > 0 || matches!(flow.mode, FlowTarget::Pulled(..) | FlowTarget::Cached(..)) {
                continue;
            }
            let held = flow.held;
            for consumer in &flow.reserved {
                self.deliveries.unreserve(consumer);
            }
            self.flows.set(number, FlowSlot::Done);
            if let Some(released) = self.deliveries.release(held) {
                self.handle_no_consumer(released.held.entry, context);
            }
        }
    }

    /// Every consumer refused the message. It waits until the consumers change, or a moment; other
    /// messages pass it. Its attempts do not run out, because it was not delivered.
    fn await_consumer(&mut self, entry: Entry, context: &mut Context<'_>) {
        match self.metadata.options.status {
            Status::Broadcast => self.discard(entry, DropReason::Refused, context),
            Status::Stopped => self.discard(entry, DropReason::Erased, context),
            _ => {
                let (level, until) = (entry.level(), context.now.after(REFUSED_DELAY));
                self.delay(Unlisted::InMemory(entry), level, until, Awaits::Consumer, context);
            }
        }
    }

    fn handle_no_consumer(&mut self, entry: Entry, context: &mut Context<'_>) {
        match self.metadata.options.status {
            Status::Broadcast => self.discard(entry, DropReason::NoConsumer, context),
            Status::Stopped => self.discard(entry, DropReason::Erased, context),
            _ => self.return_to_head(entry, context),
        }
    }
}

/// The result of a step.
enum StepResult {
    Next(FlowStep),
    Over(FlowEnd),
}
