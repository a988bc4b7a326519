//! Flows: jobs of which each begins when others have ended.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use mqcore_session::jobs::{Flow, FlowStep, JobEnd};

/// A flow that has not ended.
#[derive(Debug)]
pub(super) struct LiveFlow {
    pub(super) flow: Flow,
    /// By step.
    steps: Vec<StepState>,
    /// Steps that wait for each step.
    followers: Vec<Vec<u32>>,
    /// Steps that have not ended.
    left: usize,
    bytes: usize,
}

#[derive(Debug, Clone, Default)]
struct StepState {
    /// Steps before it that have not ended.
    missing: u32,
    /// The number of its job in the journal.
    begun: Option<u64>,
    end: Option<JobEnd>,
}

/// A consequence of the end of a step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// All steps before it have returned values.
    Begins(u32),
    /// The step that it waited for has not.
    EndsLike {
        step: u32,
        end: JobEnd,
        /// The step whose result it gets.
        like: u32,
    },
}

impl LiveFlow {
    fn new(flow: Flow, bytes: usize) -> Self {
        let mut followers = vec![Vec::new(); flow.steps.len()];
        let mut steps = vec![StepState::default(); flow.steps.len()];
        for (place, step) in flow.steps.iter().enumerate() {
            steps[place].missing = step.after.len() as u32;
            for before in &step.after {
                followers[*before as usize].push(place as u32);
            }
        }
        let left = flow.steps.len();
        Self { flow, steps, followers, left, bytes }
    }

    pub(super) fn step(&self, step: u32) -> &FlowStep {
        &self.flow.steps[step as usize]
    }

    pub(super) fn has_begun(&self, step: u32) -> bool {
        self.steps[step as usize].begun.is_some()
    }

    pub(super) fn end_of(&self, step: u32) -> Option<JobEnd> {
        self.steps[step as usize].end
    }

    pub(super) fn has_ended(&self) -> bool {
        self.left == 0
    }

    /// Notes the number of a step's job.
    pub(super) fn begin(&mut self, step: u32, number: u64) {
        self.steps[step as usize].begun = Some(number);
    }

    /// Notes the end of a step. Returns the number of its job, if it had begun. The caller calls [`LiveFlow::after`].
    pub(super) fn end(&mut self, step: u32, end: JobEnd) -> Option<u64> {
        let state = &mut self.steps[step as usize];
        if state.end.replace(end).is_none() {
            self.left -= 1;
        }
        state.begun
    }

    /// The consequences of the end of a step. Each end is followed once.
    pub(super) fn after(&mut self, step: u32) -> Vec<Next> {
        let Some(end) = self.steps[step as usize].end else { return Vec::new() };
        let mut next = Vec::new();
        for follower in &self.followers[step as usize] {
            let state = &mut self.steps[*follower as usize];
            state.missing = state.missing.saturating_sub(1);
            if state.end.is_some() || state.begun.is_some() {
                continue;
            }
            match end {
                JobEnd::Done if state.missing == 0 => next.push(Next::Begins(*follower)),
                JobEnd::Done => {}
                end => next.push(Next::EndsLike { step: *follower, end, like: step }),
            }
        }
        next
    }

    /// Steps that wait for nothing.
    pub(super) fn first(&self) -> Vec<u32> {
        let waits = |place: &u32| {
            let state = &self.steps[*place as usize];
            state.missing == 0 && state.begun.is_none() && state.end.is_none()
        };
        (0..self.steps.len() as u32).filter(waits).collect()
    }
}

/// All flows that have not ended.
#[derive(Debug, Default)]
pub(super) struct Flows {
    live: BTreeMap<u64, LiveFlow>,
    /// The flow and the place of each job.
    steps: HashMap<Box<[u8]>, (u64, u32), foldhash::fast::RandomState>,
    bytes: usize,
}

impl Flows {
    pub(super) fn insert(&mut self, number: u64, flow: Flow, bytes: usize) {
        for (place, step) in flow.steps.iter().enumerate() {
            self.steps.insert(step.id.as_bytes().into(), (number, place as u32));
        }
        self.bytes += bytes;
        self.live.insert(number, LiveFlow::new(flow, bytes));
    }

    /// Removes a flow that has ended.
    pub(super) fn remove(&mut self, number: u64) -> Option<Flow> {
        let live = self.live.remove(&number)?;
        self.bytes -= live.bytes;
        for step in &live.flow.steps {
            self.steps.remove(step.id.as_bytes());
        }
        Some(live.flow)
    }

    pub(super) fn get(&self, number: u64) -> Option<&LiveFlow> {
        self.live.get(&number)
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut LiveFlow> {
        self.live.get_mut(&number)
    }

    /// The flow and the place of a job.
    pub(super) fn find(&self, job: &[u8]) -> Option<(u64, u32)> {
        self.steps.get(job).copied()
    }

    pub(super) fn numbers(&self) -> Vec<u64> {
        self.live.keys().copied().collect()
    }

    /// Jobs of all flows.
    pub(super) fn jobs(&self) -> usize {
        self.steps.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}
