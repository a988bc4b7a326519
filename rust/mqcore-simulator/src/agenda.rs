//! Pending events by virtual time.

use std::collections::BTreeMap;

use mqcore_broker::model::config::HandlerSpec;
use mqcore_broker::model::effect::Answer;
use mqcore_broker::model::id::ConnectionId;

use crate::journal::BodyRead;
use crate::network::{Bytes, Side};
use crate::time::Micros;

/// An event.
#[derive(Debug)]
pub(crate) enum Due {
    /// The next step of the scenario.
    Step,
    /// Bytes arrive at a side of a connection.
    Arrival(ConnectionId, Side, Bytes),
    /// A side of a connection sees the end of its input.
    End(ConnectionId, Side),
    /// A client continues: it settles messages that it has worked on.
    Client(usize),
    /// A crashed broker starts again, if it is still down since that life.
    Start(u64),
    /// A calm ends.
    CalmEnd,
    /// Something inside the broker. Void after it has crashed.
    Inside(u64, Task),
}

/// An event inside the broker.
#[derive(Debug)]
pub(crate) enum Task {
    /// The task of a shard runs.
    Shard(usize),
    /// The task of a connection runs.
    Connection(ConnectionId),
    /// The journal thread of a shard takes what is pending.
    JournalTake(usize),
    /// The sync of a shard's journal ends.
    JournalSync(usize),
    /// The journal thread of a shard was idle for some time. Void if it worked since this round.
    JournalIdle(usize, u64),
    /// The task that saves limits begins a round.
    LimitRound,
    /// The sync of the journal of limits ends.
    LimitSync,
    /// The thread that runs schedules begins a round. Void if another event does so at another time.
    ScheduleRound(Micros),
    /// The sync of the journal of schedules ends.
    ScheduleSync,
    /// The program answers a question of a shard.
    Answer(usize, Answer),
    /// The program registers delivery handlers of a shard.
    Register(usize, Box<HandlerSpec>),
    /// The thread that reads bodies works.
    BodyRead(usize, Box<BodyRead>),
}

/// Events by time; those of one time in the order in which they were added.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    events: BTreeMap<(Micros, u64), Due>,
    added: u64,
}

impl Agenda {
    pub(crate) fn add(&mut self, at: Micros, due: Due) {
        self.added += 1;
        self.events.insert((at, self.added), due);
    }

    pub(crate) fn next(&mut self) -> Option<(Micros, Due)> {
        self.events.pop_first().map(|((at, _), due)| (at, due))
    }
}
