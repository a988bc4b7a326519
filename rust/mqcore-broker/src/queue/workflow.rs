//! The delivery workflow, step by step, for queues whose handler decides sending steps itself.
//!
//! Each message on its way is a [`Flow`]: it has at most one question out, and is parked until the answer
//! comes. Many flows of a queue run side by side, so that a handler is asked in batches; but they write in the
//! order in which they began: a flow that may write and is not the first unfinished one waits for its turn.

use smallvec::SmallVec;

use crate::context::Context;
use crate::context::decide::{DecisionState, StepDecision, StepRequest, decide};
use crate::context::questions::Suspended;
use crate::history::LifecycleEvent;
use crate::model::decision::{Decision, PutBack, Step};
use crate::model::effect::{Event, PullOutcome};
use crate::model::entry::Entry;
use crate::model::options::Status;
use crate::model::stats::DropReason;
use crate::queue::Queue;
use crate::queue::delivery::Disposition;
use crate::queue::flows::{Flow, Mode, Slot, Stage};
use crate::queue::members::Members;

/// How a run of steps ended.
enum Run {
    /// A question is out, or it is not this flow's turn to write.
    Parked,
    /// The message's way is over; it is put back if that was decided, or here if nobody could take it.
    Over(End),
}

enum End {
    /// As decided.
    Decided,
    /// Nobody was there: it stays the next one.
    Nobody,
}

impl Queue {
    /// Sets a message on its way.
    pub(crate) fn start_flow(
        &mut self,
        entry: Entry,
        mode: Mode,
        members: &Members,
        context: &mut Context<'_>,
    ) {
        let held = self.deliveries.insert(entry);
        let number = self.flows.first + self.flows.slots.len() as u64;
        let flow = Flow {
            held,
            mode,
            stage: Stage::Begin,
            decision_state: DecisionState::default(),
            untried: SmallVec::new(),
            current: None,
            sent: 0,
            joined: None,
            slot: None,
            written: false,
        };
        self.flows.slots.push_back(Slot::Parked(Box::new(flow)));
        self.run(number, members, context);
    }

    /// An answer about a message on its way came.
    pub(crate) fn flow_answered(
        &mut self,
        number: u64,
        answer: Option<Decision>,
        members: &Members,
        context: &mut Context<'_>,
    ) {
        let Some(Slot::Parked(flow)) = self.flows.slot(number) else { return };
        let entry = &mut self.deliveries.get_mut(flow.held).entry;
        flow.decision_state.answered(&mut self.metadata, entry, answer, context);
        self.run(number, members, context);
    }

    /// Runs a flow, and then those whose turn to write comes through it.
    fn run(&mut self, number: u64, members: &Members, context: &mut Context<'_>) {
        let mut next = Some(number);
        while let Some(number) = next {
            let Some(mut flow) = self.flows.take(number) else { return };
            let before = flow.written;
            let run = self.steps(&mut flow, number, members, context);
            let written = flow.written;
            match run {
                Run::Parked => self.flows.set(number, Slot::Parked(flow)),
                Run::Over(end) => {
                    if matches!(end, End::Nobody) {
                        self.recall(number + 1, context);
                    }
                    self.finish(*flow, end, context);
                    self.flows.set(number, Slot::Done);
                }
            }
            let passed =
                !before && (written || self.flows.slot(number).is_none_or(|s| matches!(s, Slot::Done)));
            next = self.flows.next_writer().filter(|writer| passed && self.flows.waits_to_write(*writer));
        }
        self.schedule(context);
    }

    /// As many steps of one flow as can be done now.
    fn steps(&mut self, flow: &mut Flow, number: u64, members: &Members, context: &mut Context<'_>) -> Run {
        loop {
            let over = match flow.stage {
                Stage::Begin => self.begin(flow, number, members, context),
                Stage::Choose => self.choose_next(flow),
                Stage::Can => self.ask_consumer(flow, number, context),
                Stage::Write => self.write(flow, number, members, context),
                Stage::Received => self.received(flow, number, context),
                Stage::Combine => self.combine(flow, context),
                Stage::End => self.end(flow, number, context),
            };
            match over {
                None => return Run::Parked,
                Some(Onward::Next(stage)) => flow.stage = stage,
                Some(Onward::Over(end)) => return Run::Over(end),
            }
        }
    }

    fn verdict(
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

    /// Carries out a verdict that stands alone: its acknowledgement now, its put-back at the end.
    fn carry_out(&mut self, flow: &Flow, verdict: StepDecision, context: &mut Context<'_>) {
        // The entry leaves its place for the call, as both belong to the queue.
        let mut entry = self.deliveries.get(flow.held).entry.clone();
        self.acknowledge(&mut entry, verdict, None, "none", context);
        let held = self.deliveries.get_mut(flow.held);
        held.entry.answered = entry.answered;
        match (held.put_back, verdict.decision.put_back) {
            (_, PutBack::No) | (PutBack::Start, _) => {}
            (_, put_back) => held.put_back = put_back,
        }
        held.put_back_own |= verdict.own && verdict.decision.put_back != PutBack::No;
    }

    fn begin(
        &mut self,
        flow: &mut Flow,
        number: u64,
        members: &Members,
        context: &mut Context<'_>,
    ) -> Option<Onward> {
        let verdict = self.verdict(flow, Step::BeginSend, number, context)?;
        self.carry_out(flow, verdict, context);
        if !verdict.decision.allow {
            return Some(self.refused(flow));
        }
        match &flow.mode {
            Mode::All => {
                flow.untried = members.list().iter().rev().map(|member| member.consumer.clone()).collect();
            }
            Mode::One => {
                if let Some((position, slot)) = self.choose(members, context) {
                    flow.untried.push(members.list()[position].consumer.clone());
                    flow.slot = slot;
                }
            }
            Mode::Pulled(consumer, _) => flow.untried.push(consumer.clone()),
        }
        if flow.untried.is_empty() {
            return Some(Onward::Over(End::Nobody));
        }
        Some(Onward::Next(Stage::Choose))
    }

    fn choose_next(&mut self, flow: &mut Flow) -> Option<Onward> {
        let enough = self.metadata.options.only_first_acquirer && flow.sent > 0;
        flow.current = if enough { None } else { flow.untried.pop() };
        Some(Onward::Next(if flow.current.is_some() { Stage::Can } else { Stage::Combine }))
    }

    fn ask_consumer(&mut self, flow: &mut Flow, number: u64, context: &mut Context<'_>) -> Option<Onward> {
        let verdict = self.verdict(flow, Step::CanConsumerReceive, number, context)?;
        if self.join(flow, verdict, context) {
            return Some(Onward::Next(Stage::Write));
        }
        // For one consumer, "no" is the end of the way; among many, the others are still tried.
        Some(if matches!(flow.mode, Mode::All) { Onward::Next(Stage::Choose) } else { self.refused(flow) })
    }

    /// Takes in what a consumer's step decided; tells whether it allows to go on.
    fn join(&mut self, flow: &mut Flow, verdict: StepDecision, context: &mut Context<'_>) -> bool {
        if matches!(flow.mode, Mode::All) {
            flow.joined = Some(match flow.joined {
                None => verdict,
                Some(so_far) => StepDecision {
                    decision: so_far.decision.combine(verdict.decision),
                    own: so_far.own || verdict.own,
                },
            });
        } else {
            self.carry_out(flow, verdict, context);
        }
        verdict.decision.allow
    }

    fn write(
        &mut self,
        flow: &mut Flow,
        number: u64,
        members: &Members,
        context: &mut Context<'_>,
    ) -> Option<Onward> {
        if self.flows.next_writer() != Some(number) {
            return None;
        }
        let consumer = flow.current.clone().expect("a consumer was chosen before");
        if members.position(consumer.key()).is_none() {
            return Some(Onward::Next(Stage::Received));
        }
        let mut entry = self.deliveries.get(flow.held).entry.clone();
        match &flow.mode {
            Mode::Pulled(_, parcel) => {
                self.deliver_pulled(&mut entry, consumer.client.connection, *parcel, context);
            }
            Mode::All | Mode::One => self.deliver_to(&mut entry, &consumer, context),
        }
        if let Some(slot) = flow.slot.take() {
            slot.spend();
        }
        context.record_event(&self.metadata.address, &entry, LifecycleEvent::Delivered(&consumer.client));
        if flow.sent > 0 {
            // Several consumers get one message: it was sent once.
            self.metadata.stats.sent -= 1;
        }
        flow.sent += 1;
        self.deliveries.get_mut(flow.held).entry.attempts = entry.attempts;
        if self.stays_open(&consumer) {
            self.open(flow.held, &consumer, context);
        }
        if flow.untried.is_empty() || self.metadata.options.only_first_acquirer {
            flow.written = true;
        }
        Some(Onward::Next(Stage::Received))
    }

    fn received(&mut self, flow: &mut Flow, number: u64, context: &mut Context<'_>) -> Option<Onward> {
        let verdict = self.verdict(flow, Step::ConsumerReceived, number, context)?;
        let allowed = self.join(flow, verdict, context);
        Some(if matches!(flow.mode, Mode::All) {
            Onward::Next(Stage::Choose)
        } else if allowed {
            Onward::Next(Stage::Combine)
        } else {
            self.refused(flow)
        })
    }

    /// All consumers were tried.
    fn combine(&mut self, flow: &mut Flow, context: &mut Context<'_>) -> Option<Onward> {
        flow.current = None;
        if let Some(joined) = flow.joined.take() {
            self.carry_out(flow, joined, context);
            if !joined.decision.allow {
                return Some(self.refused(flow));
            }
        }
        flow.written = true;
        if flow.sent == 0 {
            // They all went away meanwhile.
            return Some(Onward::Over(End::Nobody));
        }
        Some(Onward::Next(Stage::End))
    }

    fn end(&mut self, flow: &mut Flow, number: u64, context: &mut Context<'_>) -> Option<Onward> {
        let verdict = self.verdict(flow, Step::EndSend, number, context)?;
        self.carry_out(flow, verdict, context);
        Some(Onward::Over(End::Decided))
    }

    /// A step said no.
    fn refused(&mut self, flow: &Flow) -> Onward {
        if flow.sent == 0 {
            let held = self.deliveries.get_mut(flow.held);
            held.ending = held.ending.max(Disposition::Refused);
        }
        Onward::Over(End::Decided)
    }

    /// The workflow lets go of the message.
    fn finish(&mut self, flow: Flow, end: End, context: &mut Context<'_>) {
        let released = self.deliveries.release(flow.held);
        if let Some(released) = released {
            match end {
                End::Decided => self.close(released, context),
                End::Nobody => self.nobody(released.held.entry, context),
            }
        }
        if let Mode::Pulled(consumer, parcel) = flow.mode
            && parcel.index == parcel.count
        {
            let event = Event::PullEnded { request: parcel.request, outcome: PullOutcome::Complete };
            context.notify(consumer.client.connection, event);
        }
    }

    /// A message goes back to the head of the queue because nobody is there: so do those that set out after it and have
    /// not reached anybody, the last one first. Otherwise each would be put before the one that it followed.
    fn recall(&mut self, from: u64, context: &mut Context<'_>) {
        let end = self.flows.first + self.flows.slots.len() as u64;
        for number in (from..end).rev() {
            let Some(Slot::Parked(flow)) = self.flows.slot(number) else { continue };
            if flow.sent > 0 || matches!(flow.mode, Mode::Pulled(..)) {
                continue;
            }
            let held = flow.held;
            self.flows.set(number, Slot::Done);
            if let Some(released) = self.deliveries.release(held) {
                self.nobody(released.held.entry, context);
            }
        }
    }

    fn nobody(&mut self, entry: Entry, context: &mut Context<'_>) {
        match self.metadata.options.status {
            Status::Broadcast => self.discard(entry, DropReason::NoConsumer, context),
            Status::Stopped => self.discard(entry, DropReason::Erased, context),
            _ => self.return_to_head(entry, context),
        }
    }
}

/// What a step leads to.
enum Onward {
    Next(Stage),
    Over(End),
}
