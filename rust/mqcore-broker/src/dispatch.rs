//! Handing out: to whom, in which order, how much at a time. What a policy decides is decided here at once;
//! queues whose handler decides sending steps itself go through `workflow`.

use std::sync::Arc;

use crate::client::Client;
use crate::decision::Step;
use crate::effect::{Deliver, Event, Recipients};
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
        if !self.pulls.is_empty() {
            self.go_on_pulling(members, turn);
        }
        let asks = self.asks_while_sending(turn.books);
        while *budget > 0 {
            if !self.can_start(members, turn) {
                return false;
            }
            let Some(entry) = self.next(false, turn) else { return false };
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
        if self.face.options.request_acknowledge {
            let consumers: Vec<_> = members.list().iter().map(|member| member.client.clone()).collect();
            self.send(entry, to, &consumers, turn);
        } else {
            self.send(entry, to, &[], turn);
        }
    }

    /// Writes the delivery down, opens it if it must be acknowledged, and ends the message's way if not.
    /// `consumers` are the recipients; needed only where they must acknowledge.
    fn send(&mut self, mut entry: Entry, to: Recipients, consumers: &[Arc<Client>], turn: &mut Turn<'_>) {
        self.deliver(&mut entry, to, turn);
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
        let free: Vec<_> = members
            .list()
            .iter()
            .filter(|member| !turn.books.congested.contains_key(&member.client.connection))
            .map(|member| member.client.clone())
            .collect();
        let missed = (members.len() - free.len()) as u64;
        self.face.stats.dropped[DropReason::Slow as usize] += missed;
        if free.is_empty() {
            self.remove(entry, turn);
            return;
        }
        let to = Recipients::Many(free.iter().map(|client| client.connection).collect());
        self.send(entry, to, &free, turn);
    }

    pub(crate) fn send_pulled(
        &mut self,
        mut entry: Entry,
        client: &Arc<Client>,
        parcel: Parcel,
        turn: &mut Turn<'_>,
    ) {
        self.deliver_pulled(&mut entry, client.connection, parcel, turn);
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
