//! Pull requests: one after the other, each as far as the bodies that it asks for are in memory.

use std::sync::Arc;

use crate::context::Turn;
use crate::history::Happened;
use crate::model::client::Client;
use crate::model::command::Pull;
use crate::model::effect::{Event, PullOutcome};
use crate::model::entry::Entry;
use crate::model::options::Status;
use crate::queue::Queue;
use crate::queue::dispatch::Parcel;
use crate::queue::members::{Consumer, Members};
use crate::queue::workflow::Mode;

/// A pull that has not got everything yet.
#[derive(Debug)]
pub(crate) struct Pulling {
    consumer: Arc<Consumer>,
    pull: Pull,
    /// How many messages it gets; `None` before it has its turn.
    count: Option<u32>,
    /// How many it got.
    given: u32,
    /// Messages for a queue whose handler decides while sending: these set out together, because their number is told
    /// with the first, and the last one ends the pull.
    held: Vec<(Entry, Option<(u64, u64)>)>,
}

impl Queue {
    /// A consumer asks for messages.
    pub(crate) fn pull(&mut self, client: &Arc<Client>, pull: &Pull, members: &Members, turn: &mut Turn<'_>) {
        let consumer = Consumer::of_channel(client.clone());
        self.pulls.push_back(Pulling {
            consumer,
            pull: pull.clone(),
            count: None,
            given: 0,
            held: Vec::new(),
        });
        if self.pulls.len() == 1 {
            self.go_on_pulling(members, turn);
        }
    }

    /// Serves pulls in their order, until one has to wait for a body.
    pub(crate) fn go_on_pulling(&mut self, members: &Members, turn: &mut Turn<'_>) {
        while let Some(mut pulling) = self.pulls.pop_front() {
            match self.serve(&mut pulling, members, turn) {
                None => return self.pulls.push_front(pulling),
                Some(Ended::Told) => {}
                Some(Ended::With(outcome)) => end(&pulling, outcome, turn),
            }
        }
    }

    /// Ends all pulls that wait: what they wait for is gone.
    pub(crate) fn end_pulls(&mut self, turn: &mut Turn<'_>) {
        for pulling in std::mem::take(&mut self.pulls) {
            for (entry, _) in &pulling.held {
                self.debts.remove(&entry.sequence);
            }
            let outcome = if pulling.given > 0 { PullOutcome::Complete } else { PullOutcome::Empty };
            end(&pulling, outcome, turn);
            for (entry, _) in pulling.held {
                self.discard(entry, crate::model::stats::DropReason::Erased, turn);
            }
        }
    }

    /// Messages that pulls hold while the rest of theirs is read.
    pub(crate) fn held_by_pulls(&self) -> usize {
        self.pulls.iter().map(|pulling| pulling.held.len()).sum()
    }

    /// As far as one pull gets now. `None`: it waits.
    fn serve(&mut self, pulling: &mut Pulling, members: &Members, turn: &mut Turn<'_>) -> Option<Ended> {
        if !members.has_joined(pulling.consumer.client.connection) {
            self.return_held(pulling, turn);
            return Some(Ended::With(PullOutcome::Unauthorized));
        }
        match self.face.options.status {
            Status::Pull if pulling.pull.count == 0 => Some(Ended::With(PullOutcome::Unacceptable)),
            Status::Pull => self.serve_stored(pulling, members, turn),
            Status::Cache if pulling.count.is_none() => self.serve_cached(pulling, turn),
            _ if pulling.given > 0 => Some(Ended::With(PullOutcome::Complete)),
            _ => {
                self.return_held(pulling, turn);
                Some(Ended::With(PullOutcome::Unacceptable))
            }
        }
    }

    fn serve_stored(
        &mut self,
        pulling: &mut Pulling,
        members: &Members,
        turn: &mut Turn<'_>,
    ) -> Option<Ended> {
        let count = match pulling.count {
            Some(count) => count,
            None => {
                self.expire(turn);
                let available = u32::try_from(self.ready.len()).unwrap_or(u32::MAX);
                let count = available.min(pulling.pull.count);
                pulling.count = Some(count);
                count
            }
        };
        let asks = self.asks_while_sending(turn.books) || !self.flows.is_empty();
        let taken = self.take_for(pulling, count, turn);
        let waits =
            !self.ready.is_empty() && pulling.given + (pulling.held.len() + taken.len()) as u32 != count;
        if asks || !pulling.held.is_empty() {
            pulling.held.extend(taken);
            if waits {
                return None;
            }
            return Some(self.send_held(pulling, members, turn));
        }
        if !waits {
            self.clear(pulling.pull.clear, turn);
        }
        for (entry, left) in taken {
            pulling.given += 1;
            let parcel = Parcel { request: pulling.pull.request, index: pulling.given, count, left };
            self.send_pulled(entry, &pulling.consumer, parcel, turn);
        }
        if waits {
            return None;
        }
        let outcome = if pulling.given == 0 { PullOutcome::Empty } else { PullOutcome::Complete };
        Some(Ended::With(outcome))
    }

    /// What is here of what a pull still gets, off the list.
    fn take_for(
        &mut self,
        pulling: &Pulling,
        count: u32,
        turn: &mut Turn<'_>,
    ) -> Vec<(Entry, Option<(u64, u64)>)> {
        // Who takes nothing more now waits, as a pull of a long queue reads it bit by bit.
        let begun = pulling.given > 0;
        if begun && turn.books.congested.contains_key(&pulling.consumer.client.connection) {
            return Vec::new();
        }
        let left = (count - pulling.given) as usize - pulling.held.len();
        let Pull { lifo, info, .. } = pulling.pull;
        (0..left)
            .map_while(|_| {
                let entry = self.next(lifo, turn)?;
                Some((entry, info.then(|| self.ready.counts())))
            })
            .collect()
    }

    fn send_held(&mut self, pulling: &mut Pulling, members: &Members, turn: &mut Turn<'_>) -> Ended {
        self.clear(pulling.pull.clear, turn);
        let held = std::mem::take(&mut pulling.held);
        if held.is_empty() {
            return Ended::With(PullOutcome::Empty);
        }
        let count = held.len() as u32;
        for (index, (entry, left)) in (1..).zip(held) {
            let parcel = Parcel { request: pulling.pull.request, index, count, left };
            self.start_flow(entry, Mode::Pulled(pulling.consumer.clone(), parcel), members, turn);
        }
        Ended::Told
    }

    fn return_held(&mut self, pulling: &mut Pulling, turn: &mut Turn<'_>) {
        for (entry, _) in std::mem::take(&mut pulling.held).into_iter().rev() {
            match self.face.options.status {
                Status::Stopped => self.discard(entry, crate::model::stats::DropReason::Erased, turn),
                _ => self.return_to_head(entry, turn),
            }
        }
    }

    fn serve_cached(&mut self, pulling: &mut Pulling, turn: &mut Turn<'_>) -> Option<Ended> {
        while let Some(unread) = self.ready.take_lost_newest() {
            self.lose(unread, turn);
        }
        let request = pulling.pull.request;
        let latest = self.ready.newest().filter(|(unread, _)| unread.deadline > turn.now);
        let Some((unread, message)) = latest else { return Some(Ended::With(PullOutcome::Empty)) };
        let Some(message) = message.cloned() else {
            self.ask_ahead(true, turn);
            return None;
        };
        let entry = unread.with(message.clone());
        turn.life(&self.face.address, &entry, Happened::Delivered(&pulling.consumer.client));
        let stats = &mut self.face.stats;
        stats.sent += 1;
        stats.deliveries += 1;
        stats.last_sent_ms = turn.now.0;
        let hide_source = self.face.options.hide_client_names;
        turn.tell(pulling.consumer.client.connection, Event::Cached { request, message, hide_source });
        Some(Ended::Told)
    }
}

/// How a pull ended.
enum Ended {
    /// Its end was told, or will be with its last message.
    Told,
    With(PullOutcome),
}

fn end(pulling: &Pulling, outcome: PullOutcome, turn: &mut Turn<'_>) {
    turn.tell(
        pulling.consumer.client.connection,
        Event::PullEnded { request: pulling.pull.request, outcome },
    );
}
