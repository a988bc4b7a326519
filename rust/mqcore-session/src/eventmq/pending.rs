//! What was asked of the broker and is not answered yet.

use mqcore_broker::model::command::{Command, Request};
use mqcore_broker::model::id::{QueueAddress, RequestId};
use slab::Slab;

use super::schedules::ScheduleRequest;

/// A peer that asks faster than it is answered is not read any further at this many.
const OPEN_MAX: usize = 4_096;

/// What an answer is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Asked {
    /// A worker's subscription to one of its queues.
    Subscription,
    /// The queue `default`.
    DefaultQueue,
    /// A subscription to topics.
    Topic,
    /// Whether the client may have a schedule begun (or ended) whose runs go to its queue.
    Schedule(Box<ScheduleRequest>, bool),
    /// Nothing: its answer comes behind what the shard has to say about jobs before it.
    Fence,
    /// How many jobs wait in this queue.
    Waiting(Box<str>),
}

/// How many jobs wait in which queue.
type Waiting = Vec<(Box<str>, u64)>;

/// Everything that waits, by the number that the broker was given for it.
#[derive(Debug, Default)]
pub(super) struct Pending {
    open: Slab<(Asked, usize)>,
    /// The numbers of a STATUS so far, and how many are missing.
    counted: Vec<(Box<str>, u64)>,
    uncounted: usize,
    /// How often STATUS was asked for meanwhile.
    askers: usize,
}

impl Pending {
    /// Whether nothing more may be asked for now.
    pub(super) fn holds(&self) -> bool {
        self.open.len() >= OPEN_MAX
    }

    /// The number of a question that `parts` shards answer.
    pub(super) fn expect(&mut self, asked: Asked, parts: usize) -> RequestId {
        let key = self.open.insert((asked, parts));
        RequestId(u32::try_from(key).expect("there are never so many as to overflow"))
    }

    /// A part of an answer: what it is about, and whether it is the last one.
    pub(super) fn answered(&mut self, number: RequestId) -> Option<(Asked, bool)> {
        let key = number.0 as usize;
        let (asked, parts) = self.open.get_mut(key)?;
        *parts -= 1;
        let asked = asked.clone();
        let last = *parts == 0;
        if last {
            self.open.remove(key);
        }
        Some((asked, last))
    }

    /// Asks each queue how much waits in it. False if there is none. While an answer is on its way, no second one is begun: it
    /// would say the same.
    pub(super) fn begin_status(
        &mut self,
        queues: impl Iterator<Item = (QueueAddress, Box<str>)>,
        commands: &mut Vec<Command>,
    ) -> bool {
        self.askers += 1;
        if self.uncounted > 0 {
            return true;
        }
        for (queue, name) in queues {
            let number = self.expect(Asked::Waiting(name), 1);
            commands.push(Command::Request(number, Box::new(Request::QueueInformation { queue })));
            self.uncounted += 1;
        }
        if self.uncounted == 0 {
            self.askers = 0;
        }
        self.uncounted > 0
    }

    /// A queue has answered; with the last one, all of them have. How often the answer is to be given stands behind them.
    pub(super) fn counted(&mut self, name: Box<str>, waiting: u64) -> Option<(Waiting, usize)> {
        self.counted.push((name, waiting));
        self.uncounted = self.uncounted.saturating_sub(1);
        (self.uncounted == 0).then(|| (std::mem::take(&mut self.counted), std::mem::take(&mut self.askers)))
    }
}
