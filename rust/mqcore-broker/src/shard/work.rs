//! Timers, delivery of stored messages, and answers that a queue waits for.

use crate::context::Context;
use crate::context::questions::{OpenQuestion, Suspended};
use crate::context::state::ShardState;
use crate::model::decision::Decision;
use crate::model::effect::{Answer, Effect, Loaded};
use crate::model::id::QueueRef;
use crate::model::rejection::{Rejection, RejectionKind};
use crate::model::time::Timestamp;
use crate::shard::entities::{Entities, at};

impl Entities {
    /// Runs everything whose time has come. Call it when [`Broker::next_timeout`] has passed.
    pub(crate) fn timeout(&mut self, context: &mut Context<'_>) {
        while let Some(question) = context.state.questions.overdue(context.now) {
            match question.suspended {
                Suspended::Route(number) => self.route_answered(question.handler, number, None, context),
                Suspended::Authentication(number) => self.authenticated(number, None, context),
                _ => self.answered(question, None, context),
            }
        }
        while let Some((deadline, queue_ref)) = context.state.schedule.timers.first().copied() {
            if deadline > context.now {
                break;
            }
            context.state.schedule.timers.remove(&(deadline, queue_ref));
            if let Some((_, queue)) = at(&mut self.channels, queue_ref) {
                queue.timeout(context);
            }
            self.destroy_if_abandoned(queue_ref.channel, context);
        }
        while let Some(queue) = self.bindings.expired(context.now) {
            self.drop_queue(&queue, context);
        }
        self.close_slow_consumers(context);
    }

    /// When to call [`Broker::timeout`]; [`Timestamp::NEVER`] if nothing waits for a time.
    pub(crate) fn next_timeout(&self, state: &ShardState) -> Timestamp {
        let timer = state.schedule.timers.first().map_or(Timestamp::NEVER, |(deadline, _)| *deadline);
        let limit = state.config.slow_consumer_timeout;
        let slow = state.congestion.since.values().min().map_or(Timestamp::NEVER, |since| since.after(limit));
        timer.min(slow).min(state.questions.next_deadline()).min(self.bindings.next_expiry())
    }

    /// Delivers stored messages, about `budget` of them; large ones count more. Returns true if there
    /// is more to deliver at once: carry out the effects and call again.
    pub(crate) fn work(&mut self, budget: usize, context: &mut Context<'_>) -> bool {
        let more = self.deliver_work(budget, context);
        if context.state.paging.memory.get() > context.state.config.memory_watermark {
            self.page_out_excess(context.state);
        }
        more
    }

    pub(crate) fn deliver_work(&mut self, mut budget: usize, context: &mut Context<'_>) -> bool {
        /// The share of one queue before the next one is served.
        const SHARE: usize = 256;
        if context.state.intake.is_dirty() {
            context.write_intake();
        }
        while budget > 0 {
            let Some(queue_ref) = context.state.schedule.work.pop_front() else { return false };
            let Some((members, queue)) = at(&mut self.channels, queue_ref) else { continue };
            queue.scheduled = false;
            let mut share = SHARE.min(budget);
            let offered = share;
            if queue.work(&members, &mut share, context) {
                queue.schedule(context);
            }
            budget -= offered - share;
        }
        !context.state.schedule.work.is_empty()
    }

    pub(crate) fn close_slow_consumers(&mut self, context: &mut Context<'_>) {
        let limit = context.state.config.slow_consumer_timeout;
        let slow = |since: &Timestamp| since.after(limit) <= context.now;
        for (connection, since) in &mut context.state.congestion.since {
            if slow(since) {
                let reason = format!(
                    "the consumer's output buffer was full for {limit:?}; read faster or raise the \
                     slow-consumer timeout"
                );
                context.effects.push(Effect::Close(*connection, Rejection::new(RejectionKind::Busy, reason)));
                // The connection is being closed; until then it is not closed again.
                *since = Timestamp::NEVER;
            }
        }
    }

    /// Takes a handler's answer.
    pub(crate) fn answer(&mut self, answer: Answer, context: &mut Context<'_>) {
        match context.state.questions.answered(answer.id) {
            Some(OpenQuestion { suspended: Suspended::Route(number), handler, .. }) => {
                self.route_answered(handler, number, Some(answer), context);
            }
            Some(OpenQuestion { suspended: Suspended::Authentication(number), .. }) => {
                self.authenticated(number, Some(answer), context);
            }
            Some(question) => {
                if let Some(lines) = &answer.headers {
                    self.add_headers(question, lines, context);
                }
                self.answered(question, answer.result.ok(), context);
            }
            None => context.state.counters.answers_late += 1,
        }
    }

    /// Adds header lines of a handler to the message that its question is about.
    fn add_headers(&mut self, question: OpenQuestion, lines: &[u8], context: &mut Context<'_>) {
        let Some((_, queue)) = at(&mut self.channels, question.queue_ref) else { return };
        let Some(entry) = queue.suspended_entry(question.suspended) else { return };
        match entry.message.with_headers(lines) {
            Some(message) => context.state.unsaved.replace(entry, message),
            // The message continues without them.
            None => queue.metadata.stats.errors += 1,
        }
    }

    pub(crate) fn answered(
        &mut self,
        question: OpenQuestion,
        answer: Option<Decision>,
        context: &mut Context<'_>,
    ) {
        self.resume(question.queue_ref, question.suspended, answer, context);
    }

    /// Resumes what waited for an answer (`None` if it failed) or for a saved message.
    pub(crate) fn resume(
        &mut self,
        queue_ref: QueueRef,
        suspended: Suspended,
        answer: Option<Decision>,
        context: &mut Context<'_>,
    ) {
        let Some((members, queue)) = at(&mut self.channels, queue_ref) else { return };
        match suspended {
            Suspended::Admission(number) => queue.admission_answered(number, answer, &members, context),
            Suspended::Flow(number) => queue.flow_answered(number, answer, &members, context),
            Suspended::Settlement(number) => queue.settlement_answered(number, answer, context),
            // They belong to no queue.
            Suspended::Route(_) | Suspended::Authentication(_) => return,
        }
        self.destroy_if_abandoned(queue_ref.channel, context);
    }

    /// Takes bodies that were loaded for [`Effect::Load`], or could not be read.
    pub(crate) fn loaded(&mut self, loaded: Loaded, context: &mut Context<'_>) {
        let Loaded { queue_ref, messages } = loaded;
        context.state.paging.loading = context.state.paging.loading.saturating_sub(messages.len() as u64);
        context.state.paging.bodies.loaded +=
            messages.iter().filter(|(_, message)| message.is_some()).count() as u64;
        if let Some((_, queue)) = at(&mut self.channels, queue_ref) {
            queue.loaded(messages, context);
            self.destroy_if_abandoned(queue_ref.channel, context);
        }
    }

    /// Pages out bodies until the shard is below its watermark.
    pub(crate) fn page_out_excess(&mut self, state: &mut ShardState) {
        for _ in 0..state.paging.backlogs.len() {
            if state.paging.memory.get() <= state.config.memory_watermark {
                return;
            }
            let Some(queue_ref) = state.paging.backlogs.pop_front() else { return };
            let Some((_, queue)) = at(&mut self.channels, queue_ref) else { continue };
            if queue.page_out_excess(state) {
                state.paging.backlogs.push_front(queue_ref);
            } else if queue.backlogged {
                state.paging.backlogs.push_back(queue_ref);
            }
        }
    }
}
