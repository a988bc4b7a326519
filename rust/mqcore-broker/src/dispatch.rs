//! Handing out: to whom, in which order, how much at a time. What a policy decides is decided here at once;
//! queues whose handler decides sending steps itself go through `workflow`.

use std::sync::Arc;

use crate::client::Client;
use crate::command::Pull;
use crate::decision::Step;
use crate::effect::{Deliver, Event, PullOutcome, Recipients};
use crate::history::Happened;
use crate::id::ConnectionId;
use crate::members::Members;
use crate::options::Status;
use crate::queue::Queue;
use crate::ready::Entry;
use crate::record::{Progress, Record};
use crate::stats::DropReason;
use crate::turn::{Turn, Verdict};
use crate::workflow::{FLOWS_MAX, Mode};

/// How much a message counts against the budget of a turn: one, and one more for each 512 octets, so that a
/// turn's effects stay small even if its messages are not.
fn cost(entry: &Entry) -> usize {
    1 + entry.message.body().len() / 512
}

impl Queue {
    /// Hands out stored messages until the budget is used up or nobody can take more. Leaves what is left of
    /// the budget; true if there is more to do at once.
    pub(crate) fn work(&mut self, members: &Members, budget: &mut usize, turn: &mut Turn<'_>) -> bool {
        let asks = self.asks_while_sending(turn.books);
        while *budget > 0 {
            if !self.can_start(members, turn) {
                return false;
            }
            let Some(entry) = self.ready.pop(false) else { return false };
            if entry.deadline <= turn.now {
                self.expired(entry, turn);
                continue;
            }
            *budget = budget.saturating_sub(cost(&entry));
            if asks || !self.flows.is_empty() {
                let mode = if self.face.options.status == Status::RoundRobin { Mode::One } else { Mode::All };
                self.start_flow(entry, mode, members, turn);
            } else if let Some(entry) = self.hand_out(entry, members, turn) {
                self.ready.push_front(entry);
                return false;
            }
        }
        !self.ready.is_empty()
    }

    /// Whether the next stored message may go out now.
    fn can_start(&self, members: &Members, turn: &Turn<'_>) -> bool {
        let options = &self.face.options;
        let drains = matches!(options.status, Status::Push | Status::RoundRobin | Status::Broadcast);
        if !drains || members.is_empty() || self.flows.len() >= FLOWS_MAX {
            return false;
        }
        let waits = options.wait_for_acknowledge && options.request_acknowledge;
        if waits && (self.deliveries.messages() > 0 || !self.settling.is_empty()) {
            return false;
        }
        let congested = &turn.books.congested;
        if congested.is_empty() || options.status == Status::Broadcast {
            return true;
        }
        let free = |connection: &ConnectionId| !congested.contains_key(connection);
        if options.status == Status::RoundRobin || options.only_first_acquirer {
            members.everyone().iter().any(free)
        } else {
            // Everybody gets every message, so everybody is waited for; who stays away too long is closed.
            members.everyone().iter().all(free)
        }
    }

    /// Gives a message to those it is for. Gives it back if there is nobody after all.
    fn hand_out(&mut self, entry: Entry, members: &Members, turn: &mut Turn<'_>) -> Option<Entry> {
        let single = self.face.options.status == Status::RoundRobin || self.face.options.only_first_acquirer;
        if single {
            let Some(position) = self.choose(members, turn) else { return Some(entry) };
            let consumer = members.list()[position].client.clone();
            self.send(entry, Recipients::One(consumer.connection), &[consumer], turn);
        } else {
            self.send_to_all(entry, members, turn);
        }
        None
    }

    /// The consumer whose turn it is in round robin, or the first acquirer; those that cannot take more are
    /// passed over.
    pub(crate) fn choose(&mut self, members: &Members, turn: &Turn<'_>) -> Option<usize> {
        let count = members.len();
        let first = if self.face.options.status == Status::RoundRobin { self.cursor } else { 0 };
        let congested = &turn.books.congested;
        let position = (0..count)
            .map(|step| (first + step) % count)
            .find(|position| !congested.contains_key(&members.everyone()[*position]))?;
        self.cursor = (position + 1) % count;
        Some(position)
    }

    fn send_to_all(&mut self, entry: Entry, members: &Members, turn: &mut Turn<'_>) {
        let to = if members.len() == 1 {
            Recipients::One(members.everyone()[0])
        } else {
            Recipients::Many(members.everyone().clone())
        };
        if self.face.options.request_acknowledge || turn.books.history.is_some() {
            let consumers: Vec<_> = members.list().iter().map(|member| member.client.clone()).collect();
            self.send(entry, to, &consumers, turn);
        } else {
            self.send(entry, to, &[], turn);
        }
    }

    /// Writes the delivery down, opens it if it must be acknowledged, and ends the message's way if not.
    /// `consumers` are the recipients; needed only where they must acknowledge, or where a history is kept.
    fn send(&mut self, mut entry: Entry, to: Recipients, consumers: &[Arc<Client>], turn: &mut Turn<'_>) {
        self.deliver(&mut entry, to, turn);
        for consumer in consumers {
            turn.life(&self.face.address, &entry, Happened::Delivered(consumer));
        }
        self.conclude(entry, consumers, turn);
    }

    /// What follows a hand-out, pulled or not: the producer hears of it if the policy says so, and the message
    /// waits for its acknowledgements, or is gone if none is asked for.
    fn conclude(&mut self, mut entry: Entry, consumers: &[Arc<Client>], turn: &mut Turn<'_>) {
        let decision = turn.books.spec(self.face.handler).base.decide(Step::EndSend, true);
        let verdict = Verdict { decision, own: false };
        self.acknowledge(&mut entry, verdict, None, "none", turn);
        if !self.face.options.request_acknowledge {
            return self.remove(entry, turn);
        }
        let deadline = turn.now.after(self.face.options.acknowledge_timeout);
        let held = self.deliveries.insert(entry);
        for consumer in consumers {
            self.deliveries.deliver(held, consumer, deadline);
        }
        self.deliveries.release(held);
        self.arm(deadline, turn);
    }

    /// The delivery itself, counted.
    pub(crate) fn deliver(&mut self, entry: &mut Entry, to: Recipients, turn: &mut Turn<'_>) {
        let stats = &mut self.face.stats;
        stats.sent += 1;
        stats.deliveries += to.as_slice().len() as u64;
        stats.last_sent_ms = turn.now.0;
        let first = entry.attempts == 0;
        self.attempted(entry, turn);
        turn.effects.push(crate::effect::Effect::Deliver(Deliver {
            queue: self.face.address.clone(),
            message: entry.message.clone(),
            to,
            acknowledge: self.face.options.request_acknowledge,
            hide_source: self.face.options.hide_client_names,
            first,
        }));
    }

    /// Counts an attempt. The first one of a saved message is written down, so that after a crash a consumer can
    /// tell that it may have seen the message before; the later ones are written when it is put back.
    fn attempted(&self, entry: &mut Entry, turn: &mut Turn<'_>) {
        let first = entry.attempts == 0;
        entry.attempts = entry.attempts.saturating_add(1);
        if first && entry.sequence.0 > 0 && self.face.options.request_acknowledge {
            let rank = entry.sequence.0 as i64;
            let progress = Progress { attempts: 1, put_backs: entry.put_backs, rank };
            turn.record(Record::Touch(entry.sequence, progress));
        }
    }

    /// A message for whoever is there now; nothing is kept.
    pub(crate) fn broadcast(&mut self, entry: Entry, members: &Members, turn: &mut Turn<'_>) {
        if members.is_empty() {
            self.discard(entry, DropReason::NoConsumer, turn);
        } else if self.asks_while_sending(turn.books) {
            self.start_flow(entry, Mode::All, members, turn);
        } else if turn.books.congested.is_empty() || self.face.options.only_first_acquirer {
            if let Some(entry) = self.hand_out(entry, members, turn) {
                self.discard(entry, DropReason::Slow, turn);
            }
        } else {
            self.broadcast_to_free(entry, members, turn);
        }
    }

    /// Some consumers do not keep up: they miss this one, which is counted, and the others get it.
    fn broadcast_to_free(&mut self, entry: Entry, members: &Members, turn: &mut Turn<'_>) {
        let (slow, free): (Vec<_>, Vec<_>) = members
            .list()
            .iter()
            .map(|member| member.client.clone())
            .partition(|client| turn.books.congested.contains_key(&client.connection));
        self.face.stats.dropped[DropReason::Slow as usize] += slow.len() as u64;
        for consumer in &slow {
            turn.life(&self.face.address, &entry, Happened::Missed(consumer));
        }
        if free.is_empty() {
            self.remove(entry, turn);
            return;
        }
        let to = Recipients::Many(free.iter().map(|client| client.connection).collect());
        self.send(entry, to, &free, turn);
    }

    /// A consumer asks for messages.
    pub(crate) fn pull(&mut self, client: &Arc<Client>, pull: &Pull, members: &Members, turn: &mut Turn<'_>) {
        let request = pull.request;
        let end = |outcome| Event::PullEnded { request, outcome };
        if members.position(client.connection).is_none() {
            return turn.tell(client.connection, end(PullOutcome::Unauthorized));
        }
        match self.face.options.status {
            Status::Pull if pull.count == 0 => turn.tell(client.connection, end(PullOutcome::Unacceptable)),
            Status::Pull => self.pull_stored(client, pull, members, turn),
            Status::Cache => self.pull_cached(client, pull, turn),
            _ => turn.tell(client.connection, end(PullOutcome::Unacceptable)),
        }
    }

    fn pull_stored(&mut self, client: &Arc<Client>, pull: &Pull, members: &Members, turn: &mut Turn<'_>) {
        self.expire(turn);
        let available = self.ready.len();
        let count = available.min(pull.count as usize);
        if count == 0 {
            self.clear(pull.clear, turn);
            let event = Event::PullEnded { request: pull.request, outcome: PullOutcome::Empty };
            return turn.tell(client.connection, event);
        }
        let taken: Vec<_> = (0..count)
            .filter_map(|_| {
                let entry = self.ready.pop(pull.lifo)?;
                Some((entry, pull.info.then(|| self.ready.counts())))
            })
            .collect();
        self.clear(pull.clear, turn);
        let asks = self.asks_while_sending(turn.books) || !self.flows.is_empty();
        let count = taken.len() as u32;
        for (index, (entry, left)) in (1..).zip(taken) {
            let parcel = Parcel { request: pull.request, index, count, left };
            if asks {
                self.start_flow(entry, Mode::Pulled(client.clone(), parcel), members, turn);
            } else {
                self.send_pulled(entry, client, parcel, turn);
            }
        }
        if !asks {
            let event = Event::PullEnded { request: pull.request, outcome: PullOutcome::Complete };
            turn.tell(client.connection, event);
        }
    }

    fn send_pulled(&mut self, mut entry: Entry, client: &Arc<Client>, parcel: Parcel, turn: &mut Turn<'_>) {
        self.deliver_pulled(&mut entry, client.connection, parcel, turn);
        turn.life(&self.face.address, &entry, Happened::Delivered(client));
        self.conclude(entry, std::slice::from_ref(client), turn);
    }

    /// One message of a pull, counted.
    pub(crate) fn deliver_pulled(
        &mut self,
        entry: &mut Entry,
        to: ConnectionId,
        parcel: Parcel,
        turn: &mut Turn<'_>,
    ) {
        let stats = &mut self.face.stats;
        stats.sent += 1;
        stats.deliveries += 1;
        stats.last_sent_ms = turn.now.0;
        let first = entry.attempts == 0;
        self.attempted(entry, turn);
        let event = Event::Pulled {
            request: parcel.request,
            message: entry.message.clone(),
            acknowledge: self.face.options.request_acknowledge,
            hide_source: self.face.options.hide_client_names,
            first,
            index: parcel.index,
            count: parcel.count,
            left: parcel.left,
        };
        turn.tell(to, event);
    }

    fn pull_cached(&mut self, client: &Arc<Client>, pull: &Pull, turn: &mut Turn<'_>) {
        let request = pull.request;
        let latest = self.ready.newest().filter(|entry| entry.deadline > turn.now);
        let Some(entry) = latest else {
            return turn.tell(client.connection, Event::PullEnded { request, outcome: PullOutcome::Empty });
        };
        turn.life(&self.face.address, entry, Happened::Delivered(client));
        let message = entry.message.clone();
        let stats = &mut self.face.stats;
        stats.sent += 1;
        stats.deliveries += 1;
        stats.last_sent_ms = turn.now.0;
        let hide_source = self.face.options.hide_client_names;
        turn.tell(client.connection, Event::Cached { request, message, hide_source });
    }

    /// Nobody was there after all: the message stays the next one.
    pub(crate) fn return_to_head(&mut self, entry: Entry, turn: &mut Turn<'_>) {
        self.arm(entry.deadline, turn);
        self.ready.push_front(entry);
    }
}

/// Where a message stands in the pull that took it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parcel {
    pub(crate) request: crate::id::RequestId,
    pub(crate) index: u32,
    pub(crate) count: u32,
    pub(crate) left: Option<(u64, u64)>,
}
