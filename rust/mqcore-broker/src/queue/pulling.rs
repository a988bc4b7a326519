//! Pulls: one after the other, each as far as its bodies are in memory.

use std::sync::Arc;

use crate::context::Context;
use crate::history::LifecycleEvent;
use crate::model::client::Client;
use crate::model::command::Pull;
use crate::model::effect::{Event, PullOutcome};
use crate::model::entry::Entry;
use crate::model::id::RequestId;
use crate::model::options::Status;
use crate::queue::Queue;
use crate::queue::flows::{FlowTarget, PullPosition};
use crate::queue::members::{Consumer, Members};
use crate::queue::pulls::Pulling;

impl Queue {
    /// A consumer pulls messages.
    pub(crate) fn pull(
        &mut self,
        client: &Arc<Client>,
        pull: &Pull,
        members: &Members,
        context: &mut Context<'_>,
    ) {
        let consumer = Consumer::of_channel(client.clone());
        self.pulls.push_back(Pulling {
            consumer,
            pull: pull.clone(),
            count: None,
            given: 0,
            held: Vec::new(),
        });
        if self.pulls.len() == 1 {
            self.continue_pulls(members, context);
        }
    }

    /// Serves pulls in order, until one must wait for a body.
    pub(crate) fn continue_pulls(&mut self, members: &Members, context: &mut Context<'_>) {
        while let Some(mut pulling) = self.pulls.pop_front() {
            match self.serve(&mut pulling, members, context) {
                None => return self.pulls.push_front(pulling),
                Some(Ended::Answered) => {}
                Some(Ended::With(outcome)) => end(&pulling, outcome, context),
            }
        }
    }

    /// Ends all waiting pulls, because their messages are gone.
    pub(crate) fn end_pulls(&mut self, context: &mut Context<'_>) {
        for pulling in std::mem::take(&mut self.pulls) {
            for (entry, _) in &pulling.held {
                self.waiting_producers.remove(&entry.sequence);
            }
            let outcome = if pulling.given > 0 { PullOutcome::Complete } else { PullOutcome::Empty };
            end(&pulling, outcome, context);
            for (entry, _) in pulling.held {
                self.discard(entry, crate::model::stats::DropReason::Erased, context);
            }
        }
    }

    /// Messages that pulls hold while further bodies are loaded.
    pub(crate) fn held_by_pulls(&self) -> usize {
        self.pulls.iter().map(|pulling| pulling.held.len()).sum()
    }

    /// Serves one pull as far as possible. `None`: it must wait.
    fn serve(
        &mut self,
        pulling: &mut Pulling,
        members: &Members,
        context: &mut Context<'_>,
    ) -> Option<Ended> {
        if !members.has_joined(pulling.consumer.client.connection) {
            self.return_held(pulling, context);
            return Some(Ended::With(PullOutcome::Unauthorized));
        }
        match self.metadata.options.status {
            _ if self.metadata.missing_handler.is_some() => {
                self.return_held(pulling, context);
                Some(Ended::With(PullOutcome::Unacceptable))
            }
            Status::Pull if pulling.pull.count == 0 => Some(Ended::With(PullOutcome::Unacceptable)),
            Status::Pull => self.serve_stored(pulling, members, context),
            Status::Cache if pulling.count.is_none() => self.serve_cached(pulling, members, context),
            _ if pulling.given > 0 => Some(Ended::With(PullOutcome::Complete)),
            _ => {
                self.return_held(pulling, context);
                Some(Ended::With(PullOutcome::Unacceptable))
            }
        }
    }

    fn serve_stored(
        &mut self,
        pulling: &mut Pulling,
        members: &Members,
        context: &mut Context<'_>,
    ) -> Option<Ended> {
        let count = match pulling.count {
            Some(count) => count,
            None => {
                self.expire(context);
                let available = u32::try_from(self.ready.len()).unwrap_or(u32::MAX);
                let count = available.min(pulling.pull.count).min(self.pulled_at_once());
                pulling.count = Some(count);
                count
            }
        };
        let asks = self.asks_while_sending(context.state) || !self.flows.is_empty();
        let taken = self.take_for(pulling, count, context);
        let waits =
            !self.ready.is_empty() && pulling.given + (pulling.held.len() + taken.len()) as u32 != count;
        if asks || !pulling.held.is_empty() {
            pulling.held.extend(taken);
            if waits {
                return None;
            }
            return Some(self.send_held(pulling, members, context));
        }
        if !waits {
            self.clear(pulling.pull.clear, context);
        }
        for (entry, left) in taken {
            pulling.given += 1;
            let pull_position =
                PullPosition { request: pulling.pull.request, index: pulling.given, count, left };
            self.send_pulled(entry, &pulling.consumer, pull_position, context);
        }
        if waits {
            return None;
        }
        let outcome = if pulling.given == 0 { PullOutcome::Empty } else { PullOutcome::Complete };
        Some(Ended::With(outcome))
    }

    /// How many messages a pull may get: one if the next one waits until it is settled, and none until then.
    fn pulled_at_once(&self) -> u32 {
        let options = &self.metadata.options;
        if !(options.wait_for_acknowledge && options.request_acknowledge) {
            return u32::MAX;
        }
        u32::from(self.deliveries.messages() == 0 && self.settling.is_empty())
    }

    /// Removes the messages that a pull can get now.
    fn take_for(
        &mut self,
        pulling: &Pulling,
        count: u32,
        context: &mut Context<'_>,
    ) -> Vec<(Entry, Option<(u64, u64)>)> {
        // A pull of a long queue proceeds step by step, and pauses while its consumer is congested.
        let begun = pulling.given > 0;
        if begun && context.state.congestion.since.contains_key(&pulling.consumer.client.connection) {
            return Vec::new();
        }
        let left = (count - pulling.given) as usize - pulling.held.len();
        let Pull { lifo, info, .. } = pulling.pull;
        (0..left)
            .map_while(|_| {
                let entry = self.next(lifo, context)?;
                Some((entry, info.then(|| self.ready.counts())))
            })
            .collect()
    }

    fn send_held(&mut self, pulling: &mut Pulling, members: &Members, context: &mut Context<'_>) -> Ended {
        self.clear(pulling.pull.clear, context);
        let held = std::mem::take(&mut pulling.held);
        if held.is_empty() {
            return Ended::With(PullOutcome::Empty);
        }
        let count = held.len() as u32;
        for (index, (entry, left)) in (1..).zip(held) {
            let pull_position = PullPosition { request: pulling.pull.request, index, count, left };
            self.start_flow(
                entry,
                FlowTarget::Pulled(pulling.consumer.clone(), pull_position),
                members,
                context,
            );
        }
        Ended::Answered
    }

    fn return_held(&mut self, pulling: &mut Pulling, context: &mut Context<'_>) {
        for (entry, _) in std::mem::take(&mut pulling.held).into_iter().rev() {
            match self.metadata.options.status {
                Status::Stopped => self.discard(entry, crate::model::stats::DropReason::Erased, context),
                _ => self.return_to_head(entry, context),
            }
        }
    }

    fn serve_cached(
        &mut self,
        pulling: &mut Pulling,
        members: &Members,
        context: &mut Context<'_>,
    ) -> Option<Ended> {
        while let Some(paged_out) = self.ready.take_lost_newest() {
            self.drop_unreadable(paged_out, context);
        }
        let request = pulling.pull.request;
        let latest = self.ready.newest().filter(|(paged_out, _)| paged_out.deadline > context.now);
        let Some((paged_out, message)) = latest else { return Some(Ended::With(PullOutcome::Empty)) };
        let Some(message) = message.cloned() else {
            self.ask_ahead(true, context);
            return None;
        };
        let entry = paged_out.with(message);
        let consumer = pulling.consumer.clone();
        if self.asks_while_sending(context.state) {
            self.start_flow(entry, FlowTarget::Cached(consumer, request), members, context);
            return Some(Ended::Answered);
        }
        self.deliver_cached(&entry, &consumer, request, true, context);
        context.record_event(&self.metadata.address, &entry, LifecycleEvent::Delivered(&consumer.client));
        Some(Ended::Answered)
    }

    /// Delivers a copy of the message of a cache.
    pub(crate) fn deliver_cached(
        &mut self,
        entry: &Entry,
        consumer: &Consumer,
        request: RequestId,
        counts: bool,
        context: &mut Context<'_>,
    ) {
        let stats = &mut self.metadata.stats;
        stats.sent += u64::from(counts);
        stats.deliveries += u64::from(counts);
        stats.last_sent_ms = context.now.0;
        let (message, hide_source) = (entry.message.clone(), self.metadata.options.hide_client_names);
        context.notify(consumer.client.connection, Event::Cached { request, message, hide_source });
    }
}

/// The outcome of a pull.
enum Ended {
    /// The end was sent, or will be sent with the last message.
    Answered,
    With(PullOutcome),
}

fn end(pulling: &Pulling, outcome: PullOutcome, context: &mut Context<'_>) {
    context.notify(
        pulling.consumer.client.connection,
        Event::PullEnded { request: pulling.pull.request, outcome },
    );
}
