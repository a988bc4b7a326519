//! The route of a message through a router.

use std::sync::Arc;

use crate::model::id::{ConnectionId, RequestId, RouterName};
use crate::model::message::Message;
use crate::model::placement::Placement;
use crate::model::rejection::Rejection;
use crate::model::router::{Binding, RouterMethod, Target};

/// The bindings of a router in the order in which messages visit them.
#[derive(Debug)]
pub(crate) struct RoutePlan {
    pub(crate) method: RouterMethod,
    pub(crate) bindings: Vec<Binding>,
    /// The shard of each binding.
    pub(crate) shards: Vec<usize>,
    /// The order in which a message for all bindings visits them: first those on the router's own
    /// shard, then shard by shard, and handlers last, so that no other binding waits for them.
    pub(crate) visits: Vec<usize>,
}

impl RoutePlan {
    /// The plan for `bindings` of a router on shard `home`.
    pub(crate) fn new(
        method: RouterMethod,
        bindings: Vec<Binding>,
        home: usize,
        placement: Placement,
    ) -> Arc<Self> {
        let places: Vec<_> =
            bindings.iter().map(|binding| shard_of(&binding.target, home, placement)).collect();
        let mut visits: Vec<_> = (0..bindings.len()).collect();
        visits.sort_by_key(|index| {
            let asks = matches!(bindings[*index].target, Target::Handler(_));
            (asks, places[*index] != home, places[*index])
        });
        Arc::new(Self { method, bindings, shards: places, visits })
    }
}

fn shard_of(target: &Target, home: usize, placement: Placement) -> usize {
    match target {
        Target::Queue(queue) => queue.channel.shard(placement),
        // The first shard knows all clients.
        Target::Client(_) => 0,
        Target::Topic(topic) => topic.shard(placement),
        Target::Handler(_) => home,
    }
}

/// How far a message is in a plan.
#[derive(Debug, Clone)]
pub(crate) struct RouteProgress {
    pub(crate) plan: Arc<RoutePlan>,
    /// The binding that is next in round robin.
    pub(crate) start: usize,
    pub(crate) done: usize,
    /// Whether a binding took the message.
    pub(crate) taken: bool,
}

impl RouteProgress {
    pub(crate) fn new(plan: Arc<RoutePlan>, start: usize) -> Self {
        Self { plan, start, done: 0, taken: false }
    }

    /// The next step: the plan and the index of its binding. `None`: the plan is finished.
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

/// A message on its route through a router.
#[derive(Debug, Clone)]
pub struct Route {
    pub(crate) router: RouterName,
    /// The shard of the router.
    pub(crate) home: usize,
    pub(crate) message: Message,
    pub(crate) progress: RouteProgress,
    /// The route to continue once the targets that a handler named are done.
    pub(crate) outer: Option<Box<RouteProgress>>,
    /// Whether a receiver that took the message answers the producer itself.
    pub(crate) answered: bool,
    /// Why a binding could not decide.
    pub(crate) refusal: Option<Rejection>,
    /// `Some`: the route is only tested and nothing is delivered.
    pub(crate) test: Option<Box<RouteTrace>>,
}

/// A tested route.
#[derive(Debug, Clone)]
pub(crate) struct RouteTrace {
    pub(crate) to: ConnectionId,
    pub(crate) request: RequestId,
    pub(crate) steps: Vec<RouteStep>,
}

/// A tested step of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteStep {
    /// Name of the binding; empty for a target that a handler named.
    pub binding: Box<str>,
    /// The target.
    pub target: Target,
    /// Whether the target would take the message.
    pub takes: bool,
    /// The explanation.
    pub why: String,
}

/// The result of testing a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteTest {
    /// How the router chooses bindings.
    pub method: RouterMethod,
    /// The steps in order.
    pub steps: Vec<RouteStep>,
    /// Bindings that the route would not reach, because another one takes the message.
    pub skipped: Vec<Box<str>>,
    /// The rejection if no binding would take the message.
    pub refusal: Option<Rejection>,
}
