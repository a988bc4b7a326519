//! Messages whose bodies are not in memory: which leave, when they are asked for, and what becomes of those that need
//! none, or cannot be read.
//!
//! Bodies leave from the tail of a queue, and are asked for in windows ahead of its head, so that draining a long queue
//! reads the journal in long runs and never waits for single messages. Handing out stops at a body that is on its way,
//! and goes on when it is here; so order stays what it was.

use crate::context::{Books, Turn, bid_farewell};
use crate::history::Happened;
use crate::model::decision::{Acknowledge, PutBack, Step};
use crate::model::effect::{Effect, Load};
use crate::model::entry::{Entry, Unread};
use crate::model::id::Sequence;
use crate::model::message::Message;
use crate::model::record::Record;
use crate::model::stats::DropReason;
use crate::queue::Queue;
use crate::queue::ready::{Eviction, Next, Taken};
use crate::queue::shelf::Shelved;

/// Messages of one queue that are asked for at a time, at most.
const WINDOW_MESSAGES: usize = 1024;
/// Octets of these, at most, but for a single message that is larger.
const WINDOW_BYTES: u64 = 1 << 20;

impl Queue {
    /// The next message, off the list. `None`: there is none, or its body is on its way, and the queue will be put on
    /// the list of work when it is here.
    pub(crate) fn next(&mut self, newest: bool, turn: &mut Turn<'_>) -> Option<Entry> {
        loop {
            match self.ready.take(newest) {
                Next::Nothing => return None,
                Next::Entry(entry) => {
                    if self.ready.runs_low() {
                        self.ask_ahead(newest, turn);
                    }
                    return Some(self.indebted(entry));
                }
                Next::Lost(unread) => self.lose(unread, turn),
                Next::Absent => {
                    let Some(unread) = self.ready.take_expired(newest, turn.now) else {
                        self.ask_ahead(newest, turn);
                        return None;
                    };
                    self.expired_unread(unread, turn);
                    self.go_on_expiring(turn);
                }
            }
        }
    }

    /// Asks for the bodies of the next messages that are neither here nor on their way.
    pub(crate) fn ask_ahead(&mut self, newest: bool, turn: &mut Turn<'_>) {
        let wanted = self.ready.want(newest, WINDOW_MESSAGES, WINDOW_BYTES);
        self.ask_for(wanted, turn);
    }

    fn ask_for(&mut self, sequences: Vec<Sequence>, turn: &mut Turn<'_>) {
        if !sequences.is_empty() {
            turn.books.loading += sequences.len() as u64;
            turn.effects.push(Effect::Load(Load { place: self.face.place, sequences }));
        }
    }

    /// Bodies came back, or could not be read.
    pub(crate) fn loaded(&mut self, messages: Vec<(Sequence, Option<Message>)>, turn: &mut Turn<'_>) {
        for (sequence, message) in messages {
            self.ready.shelf.put(sequence, message);
        }
        self.go_on_expiring(turn);
        self.schedule(turn);
    }

    /// A message with the producer that waits to hear of it, which the journal does not know.
    #[inline]
    pub(crate) fn indebted(&mut self, mut entry: Entry) -> Entry {
        self.unique.unshelve(entry.sequence);
        if !self.debts.is_empty()
            && let Some(producer) = self.debts.remove(&entry.sequence)
            && entry.message.producer().is_none()
        {
            entry.message = entry.message.produced_by(producer);
        }
        entry
    }

    // ---- Leaving memory ----------------------------------------------------------------------------------

    /// Notes that bodies of this queue may leave memory.
    pub(crate) fn note_backlog(&mut self, turn: &mut Turn<'_>) {
        if !self.backlogged && self.ready.len() > 1 {
            self.backlogged = true;
            turn.books.backlogs.push_back(self.face.place);
        }
    }

    /// Lets bodies go until the shard has few enough. False if that was not enough.
    pub(crate) fn relieve(&mut self, books: &mut Books) -> bool {
        let watermark = books.config.memory_watermark;
        // What is about to be handed out stays: of all queues together not more than a quarter of what is allowed.
        let keep = self.ready.head((watermark / 4 / books.meter.queues().max(1)).min(WINDOW_BYTES));
        let meter = books.meter.clone();
        let (mut evicted, mut delayed) = (0, false);
        let mut may = |sequence| {
            if meter.get() <= watermark {
                Eviction::Enough
            } else if books.is_committed(sequence) {
                evicted += 1;
                Eviction::Done
            } else {
                delayed = true;
                Eviction::NotYet
            }
        };
        let Self { ready, debts, unique, face, .. } = self;
        let any_handler = !face.overrides.is_empty();
        let mut gone = |sequence: Sequence, answered: bool, message: &Message| {
            unique.shelve(sequence, message);
            let owed = any_handler || message.properties().pending_acknowledge;
            if !answered
                && owed
                && let Some(producer) = message.producer()
            {
                debts.insert(sequence, producer.clone());
            }
        };
        ready.evict(keep, &mut may, &mut gone);
        books.bodies.evicted += evicted;
        let enough = books.meter.get() <= watermark;
        // Not to be looked at in vain until something new arrives, unless some may go soon.
        self.backlogged = enough || delayed;
        enough
    }

    // ---- The end without a body --------------------------------------------------------------------------

    /// A message is dropped, which is counted, whether or not its body is here.
    pub(crate) fn discard_taken(&mut self, taken: Taken, reason: DropReason, turn: &mut Turn<'_>) {
        match taken {
            Taken::Read(entry) => {
                self.debts.remove(&entry.sequence);
                self.unique.unshelve(entry.sequence);
                self.discard(entry, reason, turn);
            }
            Taken::Unread(unread) => self.discard_unread(unread, reason, turn),
        }
    }

    fn discard_unread(&mut self, unread: Unread, reason: DropReason, turn: &mut Turn<'_>) {
        self.face.stats.dropped[reason as usize] += 1;
        turn.life_unread(&self.face.address, &unread, Happened::Dropped(reason));
        self.remove_unread(unread, turn);
    }

    /// A message leaves for good that nobody needs to read.
    pub(crate) fn remove_unread(&mut self, unread: Unread, turn: &mut Turn<'_>) {
        self.debts.remove(&unread.sequence);
        self.unique.give_unread(unread.sequence);
        self.ready.shelf.take(unread.sequence);
        self.face.stats.removed += 1;
        turn.end_of_life_unread(&self.face.address, &unread);
        bid_farewell(&self.face, unread.sequence, unread.attempts, turn);
        turn.record(Record::Settle(unread.sequence));
    }

    /// A message whose body cannot be read. Its record is not settled: the next start may find it readable.
    pub(crate) fn lose(&mut self, unread: Unread, turn: &mut Turn<'_>) {
        self.debts.remove(&unread.sequence);
        self.unique.give_unread(unread.sequence);
        self.face.stats.dropped[DropReason::Unreadable as usize] += 1;
        self.face.stats.removed += 1;
        turn.life_unread(&self.face.address, &unread, Happened::Dropped(DropReason::Unreadable));
        turn.end_of_life_unread(&self.face.address, &unread);
        turn.books.bodies.unreadable += 1;
    }

    /// A message that waited too long, and is out of the queue already. It is read only if somebody wants to see it.
    pub(crate) fn expired_unread(&mut self, unread: Unread, turn: &mut Turn<'_>) {
        let decision = turn.books.spec(self.face.handler).base.decide(Step::MessageTimedOut, true);
        let wanted = self.face.overrides.contains(Step::MessageTimedOut)
            || self.face.options.dead_letter.is_some()
            || decision.put_back != PutBack::No
            || decision.acknowledge != Acknowledge::None;
        if wanted {
            self.expiring.push_back(unread);
        } else {
            self.face.stats.timed_out += 1;
            turn.life_unread(&self.face.address, &unread, Happened::Expired);
            self.discard_unread(unread, DropReason::Expired, turn);
        }
    }

    /// Ends the waiting of messages whose bodies are here now, in their order, and asks for the next ones.
    pub(crate) fn go_on_expiring(&mut self, turn: &mut Turn<'_>) {
        while let Some(unread) = self.expiring.front().copied() {
            if !self.ready.shelf.has_answer(unread.sequence) {
                let wanted = self.expiring_window();
                return self.ask_for(wanted, turn);
            }
            self.expiring.pop_front();
            match self.ready.shelf.take(unread.sequence) {
                Some(Shelved::Here(message)) => {
                    let entry = self.indebted(unread.with(message));
                    self.expired(entry, turn);
                }
                _ => self.lose(unread, turn),
            }
        }
    }

    /// Numbers of expired messages to be asked for: a whole window, once the last one is used up.
    fn expiring_window(&mut self) -> Vec<Sequence> {
        let mut bytes = 0;
        let window = self.expiring.iter().take(WINDOW_MESSAGES).take_while(|unread| {
            let first = bytes == 0;
            bytes += unread.bytes;
            first || bytes <= WINDOW_BYTES
        });
        let sequences: Vec<Sequence> = window.map(|unread| unread.sequence).collect();
        sequences.into_iter().filter(|sequence| self.ready.shelf.ask(*sequence)).collect()
    }

    /// Forgets the expired messages whose bodies did not come yet.
    pub(crate) fn erase_expiring(&mut self, turn: &mut Turn<'_>) {
        for unread in std::mem::take(&mut self.expiring) {
            self.discard_unread(unread, DropReason::Erased, turn);
        }
    }
}
