//! Changes of queues while messages are in flight.

use mqcore_broker::model::command::{Clear, Request};
use mqcore_broker::model::id::QueueAddress;
use mqcore_broker::model::options::{QueueChanges, Status};
use mqcore_broker::model::transfer::{MOVED_AT_ONCE_MAX, MoveMessages, MoveTarget};
use mqcore_session::any::Protocol;
use mqcore_testkit::Random;

use std::time::Duration;

use super::{ClientRole, Scenario, SimulatedClient, SimulatedQueue, Target};

/// A change that an operator makes to a queue. A start of the broker and a calm restore what the configuration declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueChange {
    /// It delivers nothing until it is restored.
    Pause,
    /// A message waits until the previous one is settled, or not.
    OneAtATime(bool),
    /// It rejects messages beyond this number.
    Limit(u64),
    /// Another delay before a redelivery, in milliseconds.
    RetryDelay(u64),
    /// Its waiting messages move to the queue with this index.
    Move(usize),
    /// Its waiting messages are removed.
    Clear,
    /// It is removed with its messages.
    Remove,
    /// It has the options of the configuration again, or exists again.
    Restore,
}

impl QueueChange {
    /// A change of a queue of the scenario, and the queue.
    pub(super) fn choose(random: &mut Random, scenario: &Scenario) -> (usize, Self) {
        let index = random.index(scenario.queues.len());
        let queue = &scenario.queues[index];
        let change = match random.below(12) {
            0 => Self::Pause,
            1 => Self::OneAtATime(random.one_in(2)),
            2 => Self::Limit(random.below(4)),
            3 => Self::RetryDelay(random.below(200)),
            4 => Self::Clear,
            5 => Self::Remove,
            6 | 7 => Self::Move(random.index(scenario.queues.len())),
            _ => Self::Restore,
        };
        let is_allowed = match change {
            // The oracle knows no reason why these do not deliver a message.
            Self::Clear => queue.status != Status::Cache && !scenario.has_schedule(index),
            Self::Pause => !matches!(queue.status, Status::Broadcast | Status::Cache),
            Self::Remove => scenario.may_remove(index),
            Self::Move(to) => to != index && scenario.may_move(index) && scenario.may_move(to),
            // A full queue rejects dead letters, which are lost then.
            Self::Limit(_) => !scenario.has_dead_letters(index) && !scenario.has_schedule(index),
            Self::OneAtATime(_) => queue.status != Status::Broadcast,
            Self::RetryDelay(_) | Self::Restore => true,
        };
        (index, if is_allowed { change } else { Self::Restore })
    }

    /// The request of the operator for one of `queues`. `None`: the queue is declared again.
    pub(crate) fn request(self, queue: usize, queues: &[SimulatedQueue]) -> Option<Request> {
        let address_of = |index: usize| QueueAddress::parse(&queues[index].address).expect("a valid address");
        let address = address_of(queue);
        let changes = match self {
            Self::Pause => QueueChanges { status: Some(Status::Paused), ..QueueChanges::default() },
            Self::OneAtATime(one) => {
                QueueChanges { wait_for_acknowledge: Some(one), ..QueueChanges::default() }
            }
            Self::Limit(limit) => QueueChanges { message_limit: Some(limit), ..QueueChanges::default() },
            Self::RetryDelay(delay) => {
                let delay = Duration::from_millis(delay);
                QueueChanges { retry_delay: Some(Some(delay)), ..QueueChanges::default() }
            }
            Self::Move(target) => {
                let to = MoveTarget::Queue(address_of(target));
                let wanted = MoveMessages { queue: address, to, ids: Vec::new(), max: MOVED_AT_ONCE_MAX };
                return Some(Request::MoveMessages(Box::new(wanted)));
            }
            Self::Clear => {
                let clear = Clear { high_priority: true, normal: true };
                return Some(Request::ClearQueue { queue: address, clear });
            }
            Self::Remove => return Some(Request::RemoveQueue { queue: address }),
            Self::Restore => return None,
        };
        Some(Request::UpdateQueue { queue: address, changes })
    }
}

impl Scenario {
    /// Whether the oracle follows what the removal of a queue does to its clients.
    fn may_remove(&self, index: usize) -> bool {
        let queue = &self.queues[index];
        let keeps = !matches!(queue.status, Status::Broadcast | Status::Cache);
        keeps && queue.handler.is_none() && !self.has_schedule(index)
    }

    /// Whether the oracle follows messages that move from or to this queue: the place of each one must be certain, and its jobs
    /// must not be bound to workers.
    fn may_move(&self, index: usize) -> bool {
        let serves = |client: &SimulatedClient| match client.role {
            ClientRole::Producer(target) => target == Target::Queue(index),
            ClientRole::Consumer(queue, _) => queue == index,
            _ => false,
        };
        let has_jobs =
            self.clients.iter().any(|client| client.protocol == Protocol::Eventmq && serves(client));
        let has_route = self.routes.iter().any(|route| route.queues.contains(&index));
        self.may_remove(index) && !has_jobs && !has_route && !self.queues[index].deduplicates
    }

    /// Whether runs of a schedule go to this queue. The oracle expects all of them.
    fn has_schedule(&self, index: usize) -> bool {
        self.schedules.iter().any(|schedule| schedule.queue == index)
    }

    /// Whether the dead letters of another queue go to this one.
    fn has_dead_letters(&self, index: usize) -> bool {
        let address = &self.queues[index].address;
        self.queues.iter().filter_map(|queue| queue.dead_letter.as_ref()).any(|(_, to)| to == address)
    }
}
