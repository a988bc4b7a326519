//! Messages that a handler decides about while they are delivered.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::context::decide::{DecisionState, StepDecision};
use crate::model::id::RequestId;
use crate::model::subscription::ReservedSlot;
use crate::queue::members::{Consumer, ConsumerKey};

/// Maximum number of flows of one queue at a time: as many as a batch of questions to a handler.
pub(crate) const FLOWS_MAX: usize = 256;

/// The consumers of a message.
#[derive(Debug, Clone)]
pub(crate) enum FlowTarget {
    /// All consumers.
    All,
    /// One of the consumers.
    One,
    /// The consumer that pulls.
    Pulled(Arc<Consumer>, PullPosition),
    /// The consumer that pulls a copy of the message of a cache.
    Cached(Arc<Consumer>, RequestId),
}

/// The next step of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlowStep {
    Begin,
    Choose,
    Can,
    Write,
    Received,
    Combine,
    End,
}

/// The delivery of one message, step by step.
#[derive(Debug)]
pub(crate) struct Flow {
    /// The place of the message meanwhile.
    pub(crate) held: usize,
    pub(crate) mode: FlowTarget,
    pub(crate) stage: FlowStep,
    pub(crate) decision_state: DecisionState,
    /// Consumers not tried yet, the next one last.
    pub(crate) untried: SmallVec<[Arc<Consumer>; 1]>,
    pub(crate) current: Option<Arc<Consumer>>,
    /// Consumers that refused the message, if it is for one of several.
    pub(crate) refusers: SmallVec<[ConsumerKey; 2]>,
    /// The handler's decision before the message was written to the current consumer.
    pub(crate) before: Option<StepDecision>,
    pub(crate) sent: u32,
    /// The combined decisions of the consumers' steps; `None` before the first.
    pub(crate) joined: Option<StepDecision>,
    /// The slot of the consumer that was chosen; free again when dropped.
    pub(crate) slot: Option<ReservedSlot>,
    /// Consumers whose windows have a place for the message that it does not take yet.
    pub(crate) reserved: SmallVec<[Arc<Consumer>; 1]>,
    /// Whether the flow writes no more, so that the next one may.
    pub(crate) written: bool,
}

#[derive(Debug)]
pub(crate) enum FlowSlot {
    Parked(Box<Flow>),
    Running { written: bool },
    Done,
}

/// All flows of a queue in the order in which they began.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    pub(crate) slots: VecDeque<FlowSlot>,
    pub(crate) first: u64,
    /// How many of them deliver copies of a cached message.
    pub(crate) copies: usize,
}

impl Flows {
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Forgets all flows; later answers are ignored. Returns the places of copies of cached messages.
    pub(crate) fn forget(&mut self) -> Vec<usize> {
        self.first += self.slots.len() as u64;
        self.copies = 0;
        let copy = |slot| match slot {
            FlowSlot::Parked(flow) if matches!(flow.mode, FlowTarget::Cached(..)) => Some(flow.held),
            _ => None,
        };
        self.slots.drain(..).filter_map(copy).collect()
    }

    pub(crate) fn slot(&mut self, number: u64) -> Option<&mut FlowSlot> {
        self.slots.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    pub(crate) fn take(&mut self, number: u64) -> Option<Box<Flow>> {
        let slot = self.slot(number)?;
        match std::mem::replace(slot, FlowSlot::Running { written: false }) {
            FlowSlot::Parked(flow) => {
                *slot = FlowSlot::Running { written: flow.written };
                Some(flow)
            }
            other => {
                *slot = other;
                None
            }
        }
    }

    pub(crate) fn set(&mut self, number: u64, to: FlowSlot) {
        if let Some(slot) = self.slot(number) {
            *slot = to;
        }
        while matches!(self.slots.front(), Some(FlowSlot::Done)) {
            self.slots.pop_front();
            self.first += 1;
        }
    }

    /// The first flow that may still write.
    pub(crate) fn next_writer(&self) -> Option<u64> {
        let writes = |slot: &FlowSlot| match slot {
            FlowSlot::Parked(flow) => !flow.written,
            FlowSlot::Running { written } => !written,
            FlowSlot::Done => false,
        };
        self.slots.iter().position(writes).map(|index| self.first + index as u64)
    }

    pub(crate) fn waits_to_write(&mut self, number: u64) -> bool {
        matches!(self.slot(number), Some(FlowSlot::Parked(flow)) if flow.stage == FlowStep::Write)
    }
}

/// The position of a message in its pull.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PullPosition {
    pub(crate) request: RequestId,
    pub(crate) index: u32,
    pub(crate) count: u32,
    pub(crate) left: Option<(u64, u64)>,
}
