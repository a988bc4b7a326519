//! The way of a message through a router.

use std::sync::Arc;

use crate::model::id::{ConnectionId, RequestId, RouterName};
use crate::model::message::Message;
use crate::model::rejection::Rejection;
use crate::model::router::{Binding, RouterMethod, Target};

/// The bindings of a router as messages follow them.
#[derive(Debug)]
pub(crate) struct RoutePlan {
    pub(crate) method: RouterMethod,
    pub(crate) bindings: Vec<Binding>,
    /// Where each of them lives.
    pub(crate) shards: Vec<usize>,
    /// In which order a message visits them that is for all: those of the router's own shard first, then shard by shard,
    /// and handlers last, so that nobody waits for them.
    pub(crate) visits: Vec<usize>,
}

impl RoutePlan {
    /// The plan for `bindings` of a router that lives on shard `home`.
    pub(crate) fn new(method: RouterMethod, bindings: Vec<Binding>, home: usize, shards: usize) -> Arc<Self> {
        let places: Vec<_> = bindings.iter().map(|binding| shard_of(&binding.target, home, shards)).collect();
        let mut visits: Vec<_> = (0..bindings.len()).collect();
        visits.sort_by_key(|index| {
            let asks = matches!(bindings[*index].target, Target::Handler(_));
            (asks, places[*index] != home, places[*index])
        });
        Arc::new(Self { method, bindings, shards: places, visits })
    }
}

fn shard_of(target: &Target, home: usize, shards: usize) -> usize {
    match target {
        Target::Queue(queue) => queue.channel.shard(shards),
        // All clients are known to the first shard.
        Target::Client(_) => 0,
        Target::Topic(topic) => topic.shard(shards),
        Target::Handler(_) => home,
    }
}

/// How far a message is in a plan.
#[derive(Debug, Clone)]
pub(crate) struct RouteProgress {
    pub(crate) plan: Arc<RoutePlan>,
    /// The binding whose turn it is in round robin.
    pub(crate) start: usize,
    pub(crate) done: usize,
    /// A binding took the message.
    pub(crate) taken: bool,
}

impl RouteProgress {
    pub(crate) fn new(plan: Arc<RoutePlan>, start: usize) -> Self {
        Self { plan, start, done: 0, taken: false }
    }

    /// The next step: which plan and which of its bindings. `None`: it is over.
    pub(crate) fn next(&self) -> Option<(Arc<RoutePlan>, usize)> {
        let plan = &self.plan;
        let count = plan.bindings.len();
        if self.done >= count {
            return None;
        }
        let index = match plan.method {
            RouterMethod::Distribute => plan.visits[self.done],
            RouterMethod::OnlyFirst => self.done,
            RouterMethod::RoundRobin => (self.start + self.done) % count,
        };
        Some((Arc::clone(plan), index))
    }

    pub(crate) fn step(&mut self, took: bool) {
        self.done += 1;
        self.taken |= took;
        if took && self.plan.method != RouterMethod::Distribute {
            self.done = self.plan.bindings.len();
        }
    }
}

impl RoutePlan {
    pub(crate) fn binding(&self, index: usize) -> (&Binding, usize) {
        (&self.bindings[index], self.shards[index])
    }
}

/// A message on its way through a router.
#[derive(Debug, Clone)]
pub struct Route {
    pub(crate) router: RouterName,
    /// The router's shard.
    pub(crate) home: usize,
    pub(crate) message: Message,
    pub(crate) progress: RouteProgress,
    /// What goes on once the targets that a handler named are done.
    pub(crate) outer: Option<Box<RouteProgress>>,
    /// A receiver took it that answers the producer itself.
    pub(crate) answered: bool,
    /// Why a binding could not even decide.
    pub(crate) refusal: Option<Rejection>,
    /// It is only looked at where it would go.
    pub(crate) test: Option<Box<RouteTrace>>,
}

/// A trip that somebody wants to see, while nothing is sent.
#[derive(Debug, Clone)]
pub(crate) struct RouteTrace {
    pub(crate) to: ConnectionId,
    pub(crate) request: RequestId,
    pub(crate) steps: Vec<RouteStep>,
}

/// What a trip would do at one binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteStep {
    /// The binding; empty for a target that a handler named.
    pub binding: Box<str>,
    /// Where it leads.
    pub target: Target,
    /// Whether it would take the message.
    pub takes: bool,
    /// Why, or why not.
    pub why: String,
}

/// Where a message would go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteTest {
    /// How the router chooses.
    pub method: RouterMethod,
    /// What it would do, step by step.
    pub steps: Vec<RouteStep>,
    /// Bindings that it would not come to, because another one takes the message.
    pub skipped: Vec<Box<str>>,
    /// Why nobody would take it, where nobody would.
    pub refusal: Option<Rejection>,
}
