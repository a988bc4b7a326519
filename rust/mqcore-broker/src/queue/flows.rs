//! Messages on their way to consumers while a handler decides about them.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::context::decide::{DecisionState, StepDecision};
use crate::model::subscription::TakenSlot;
use crate::queue::members::Consumer;

/// Messages of one queue on their way at once. As many as one batch to a handler holds.
pub(crate) const FLOWS_MAX: usize = 256;

/// For whom a message is.
#[derive(Debug, Clone)]
pub(crate) enum Mode {
    /// For all consumers there are.
    All,
    /// For one of them.
    One,
    /// For the one that asked for it.
    Pulled(Arc<Consumer>, PullPosition),
}

/// What happens to a flow next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Begin,
    Choose,
    Can,
    Write,
    Received,
    Combine,
    End,
}

/// A message on its way to consumers.
#[derive(Debug)]
pub(crate) struct Flow {
    /// Where the message is meanwhile.
    pub(crate) held: usize,
    pub(crate) mode: Mode,
    pub(crate) stage: Stage,
    pub(crate) decision_state: DecisionState,
    /// Consumers not tried yet, the next one last.
    pub(crate) untried: SmallVec<[Arc<Consumer>; 1]>,
    pub(crate) current: Option<Arc<Consumer>>,
    pub(crate) sent: u32,
    /// What the consumers' steps decided so far, joined; `None` before the first.
    pub(crate) joined: Option<StepDecision>,
    /// What it takes of the one consumer that was chosen for it; dropped, it is free again.
    pub(crate) slot: Option<TakenSlot>,
    /// It will not write any more, so the next one may.
    pub(crate) written: bool,
}

#[derive(Debug)]
pub(crate) enum Slot {
    Parked(Box<Flow>),
    Running { written: bool },
    Done,
}

/// All flows of a queue, in the order in which they began.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    pub(crate) slots: VecDeque<Slot>,
    pub(crate) first: u64,
}

impl Flows {
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Forgets all flows; answers that still come find nobody.
    pub(crate) fn forget(&mut self) {
        self.first += self.slots.len() as u64;
        self.slots.clear();
    }

    pub(crate) fn slot(&mut self, number: u64) -> Option<&mut Slot> {
        self.slots.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    pub(crate) fn take(&mut self, number: u64) -> Option<Box<Flow>> {
        let slot = self.slot(number)?;
        match std::mem::replace(slot, Slot::Running { written: false }) {
            Slot::Parked(flow) => {
                *slot = Slot::Running { written: flow.written };
                Some(flow)
            }
            other => {
                *slot = other;
                None
            }
        }
    }

    pub(crate) fn set(&mut self, number: u64, to: Slot) {
        if let Some(slot) = self.slot(number) {
            *slot = to;
        }
        while matches!(self.slots.front(), Some(Slot::Done)) {
            self.slots.pop_front();
            self.first += 1;
        }
    }

    /// The first flow that may still write.
    pub(crate) fn next_writer(&self) -> Option<u64> {
        let writes = |slot: &Slot| match slot {
            Slot::Parked(flow) => !flow.written,
            Slot::Running { written } => !written,
            Slot::Done => false,
        };
        self.slots.iter().position(writes).map(|index| self.first + index as u64)
    }

    pub(crate) fn waits_to_write(&mut self, number: u64) -> bool {
        matches!(self.slot(number), Some(Slot::Parked(flow)) if flow.stage == Stage::Write)
    }
}

/// Where a message stands in the pull that took it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PullPosition {
    pub(crate) request: crate::model::id::RequestId,
    pub(crate) index: u32,
    pub(crate) count: u32,
    pub(crate) left: Option<(u64, u64)>,
}
