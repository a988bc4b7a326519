//! Routers of a shard, and the routes of messages to their targets.
//!
//! A router is on the shard given by the hash of its name, its targets are on theirs. A message does
//! not return to its router: it carries the rest of its route from shard to shard, and the last step
//! answers the producer. So a router keeps no state for messages on their route. Messages for the same
//! bindings visit shards in the same order, so they reach each target in the order in which they were
//! published.

pub(crate) mod bindings;
pub(crate) mod pattern_index;
pub(crate) mod topics;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use foldhash::HashMap;
use slab::Slab;

use crate::context::Context;
use crate::model::decision::Step;
use crate::model::effect::{Event, Question, Reply};
use crate::model::id::{HandlerId, QuestionId, QueueAddress, RouterName};
use crate::model::message::{HOPS_FRESH, Message, Properties};
use crate::model::options::Status;
use crate::model::placement::Placement;
use crate::model::rejection::{Rejection, RejectionKind};
use crate::model::route::{Route, RoutePlan, RouteProgress, RouteTest, RouteTrace};
use crate::model::router::{Binding, Interaction, ROUTERS_MAX, RouterDefinition, RouterMethod, Target};
use crate::model::stats::{BindingCounts, RouterCounts};

impl Route {
    /// Notes the result of a step.
    pub(crate) fn step(&mut self, binding: &Binding, took: bool) {
        self.answered |= took && binding.interaction != Interaction::None;
        self.progress.step(took);
    }

    /// Inserts the targets that a handler named before the rest of the route.
    pub(crate) fn detour(&mut self, targets: Vec<Binding>, placement: Placement) {
        let plan = RoutePlan::new(RouterMethod::Distribute, targets, self.home, placement);
        let outer = std::mem::replace(&mut self.progress, RouteProgress::new(plan, 0));
        self.outer = Some(Box::new(outer));
    }

    /// Returns from the targets that a handler named; `false` if the route is finished.
    pub(crate) fn go_back(&mut self) -> bool {
        let Some(outer) = self.outer.take() else { return false };
        let inner = std::mem::replace(&mut self.progress, *outer);
        self.progress.step(inner.taken);
        true
    }

    /// The message for the receiver of a binding: with or without an answer wanted, with its own id or
    /// a new one.
    pub(crate) fn message_for(&self, binding: &Binding, context: &mut Context<'_>) -> Message {
        let message = &self.message;
        let (content_type, hops) = match &binding.target {
            Target::Queue(queue) => (queue.id, HOPS_FRESH),
            _ => {
                (binding.content_type.unwrap_or(message.properties().content_type), message.properties().hops)
            }
        };
        let properties = Properties {
            pending_acknowledge: binding.interaction == Interaction::Acknowledge,
            pending_response: binding.interaction == Interaction::Response,
            content_type,
            hops,
            ..message.properties()
        };
        let new_id;
        let id = if binding.interaction == Interaction::None {
            new_id = context.state.next_id();
            new_id.as_bytes()
        } else {
            message.id()
        };
        let producer = message.producer().cloned();
        Message::from_parts(id, message.headers(), message.body(), properties, producer)
    }

    /// Finishes the route and answers the producer, unless a receiver will.
    pub(crate) fn end(self, counts: &mut RouterCounters, context: &mut Context<'_>) {
        let taken = self.progress.taken;
        let refusal = (!taken).then(|| self.refusal.clone().unwrap_or_else(|| not_taken(&self.router)));
        if let Some(test) = self.test {
            return test.end(&self.progress, refusal, context);
        }
        let stats = counts.of(&self.router);
        stats.routed += u64::from(taken);
        stats.dropped_no_consumer += u64::from(!taken);
        let Properties { pending_acknowledge, pending_response, .. } = self.message.properties();
        if (taken && self.answered) || !(pending_acknowledge || pending_response) {
            return;
        }
        if let Some(producer) = self.message.producer() {
            let to = producer.connection;
            context.notify(to, Event::Routed { router: self.router, message: self.message, refusal });
        }
    }
}

impl RouteTrace {
    fn end(self, progress: &RouteProgress, refusal: Option<Rejection>, context: &mut Context<'_>) {
        let reached: Vec<_> = self.steps.iter().map(|step| &step.binding).collect();
        let skipped = progress
            .plan
            .bindings
            .iter()
            .map(|binding| &binding.name)
            .filter(|name| !reached.contains(name))
            .cloned()
            .collect();
        let result = RouteTest { method: progress.plan.method, steps: self.steps, skipped, refusal };
        context.notify(self.to, Event::Answered(self.request, Ok(Reply::RouteTest(Box::new(result)))));
    }
}

fn not_taken(router: &RouterName) -> Rejection {
    let reason = format!("no binding of router {router} took the message");
    Rejection::new(RejectionKind::NotFound, reason)
}

/// A router of this shard.
#[derive(Debug)]
pub(crate) struct Router {
    pub(crate) definition: RouterDefinition,
    plan: Arc<RoutePlan>,
    next_binding: usize,
    /// Its name as questions to handlers carry it.
    address: Arc<QueueAddress>,
    /// Whether it is in the journal, because a peer created it. The program creates its own routers
    /// again at each start.
    pub(crate) saved: bool,
}

/// Counters of routers, separate on each shard.
#[derive(Debug, Default)]
pub(crate) struct RouterCounters(HashMap<RouterName, RouterCounts>);

impl RouterCounters {
    pub(crate) fn of(&mut self, router: &RouterName) -> &mut RouterCounts {
        if !self.0.contains_key(router) {
            self.0.insert(router.clone(), RouterCounts::default());
        }
        self.0.get_mut(router).expect("it was put there")
    }

    /// Counts that a binding took a message, or did not.
    pub(crate) fn tried(&mut self, router: &RouterName, binding: &Binding, took: bool) -> &mut BindingCounts {
        let bindings = &mut self.of(router).bindings;
        let place = match bindings.iter().position(|(name, _)| *name == binding.name) {
            Some(place) => place,
            None => {
                bindings.push((binding.name.clone(), BindingCounts::default()));
                bindings.len() - 1
            }
        };
        let counts = &mut bindings[place].1;
        counts.taken += u64::from(took);
        counts.refused += u64::from(!took);
        counts
    }

    /// How often a binding took a message on this shard.
    pub(crate) fn taken(&self, router: &RouterName, binding: &Binding) -> u64 {
        let counts = self.0.get(router).into_iter().flat_map(|counts| &counts.bindings);
        counts.filter(|(name, _)| *name == binding.name).map(|(_, counts)| counts.taken).sum()
    }

    pub(crate) fn all(&self) -> Vec<(RouterName, RouterCounts)> {
        self.0.iter().map(|(name, counts)| (name.clone(), counts.clone())).collect()
    }

    pub(crate) fn forget(&mut self, router: &RouterName) {
        self.0.remove(router);
    }

    pub(crate) fn forget_binding(&mut self, router: &RouterName, binding: &str) {
        if let Some(counts) = self.0.get_mut(router) {
            counts.bindings.retain(|(name, _)| **name != *binding);
        }
    }
}

/// Routes that wait for one handler, in order.
#[derive(Debug, Default)]
pub(crate) struct HandlerQueue {
    parked: VecDeque<ParkedRoute>,
    /// The number of the first one.
    first: u64,
}

#[derive(Debug)]
struct ParkedRoute {
    route: Route,
    answer: Option<RouteAnswer>,
}

/// A handler's answer about a message.
#[derive(Debug, Clone)]
pub(crate) enum RouteAnswer {
    /// It took the message itself.
    Took,
    /// It refused the message.
    Refused,
    /// It named targets.
    Targets(Vec<Binding>),
    /// It did not answer; how it failed.
    Failed(&'static str),
}

impl HandlerQueue {
    pub(crate) fn len(&self) -> usize {
        self.parked.len()
    }

    /// The number of the next route.
    pub(crate) fn next_number(&self) -> u64 {
        self.first + self.parked.len() as u64
    }

    pub(crate) fn park(&mut self, route: Route) {
        self.parked.push_back(ParkedRoute { route, answer: None });
    }

    pub(crate) fn answered(&mut self, number: u64, answer: RouteAnswer) {
        let index = number.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        if let Some(parked) = index.and_then(|index| self.parked.get_mut(index)) {
            parked.answer = Some(answer);
        }
    }

    /// Removes the first route if it is decided.
    pub(crate) fn leave(&mut self) -> Option<(Route, RouteAnswer)> {
        self.parked.front()?.answer.as_ref()?;
        let ParkedRoute { route, answer } = self.parked.pop_front()?;
        self.first += 1;
        Some((route, answer?))
    }
}

/// The routers of a shard.
#[derive(Debug, Default)]
pub(crate) struct Routers {
    entries: Slab<Router>,
    names: HashMap<RouterName, usize>,
    /// The same keys in the order in which routers are listed.
    ordered: BTreeMap<RouterName, usize>,
    /// The router that was published to last, compared by pointer.
    last: Option<(RouterName, usize)>,
    pub(crate) counts: RouterCounters,
    pub(crate) handler_queues: HashMap<HandlerId, HandlerQueue>,
}

impl Routers {
    pub(crate) fn get(&self, name: &RouterName) -> Option<&Router> {
        self.names.get(name).map(|key| &self.entries[*key])
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Router> {
        self.entries.iter().map(|(_, router)| router)
    }

    /// The routers whose names follow `after`, in the order of their names.
    pub(crate) fn following(&self, after: Option<&str>) -> impl Iterator<Item = &RouterDefinition> {
        let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
        let keys = self.ordered.range::<str, _>((begin, Bound::Unbounded)).map(|(_, key)| *key);
        keys.map(|key| &self.entries[key].definition)
    }

    /// Begins the route of a message; `None` if the router does not exist or is disabled.
    pub(crate) fn begin(&mut self, name: &RouterName) -> Option<RouteProgress> {
        let key = match &self.last {
            Some((last, key)) if last.is_same(name) => *key,
            _ => {
                let key = *self.names.get(name)?;
                self.last = Some((name.clone(), key));
                key
            }
        };
        let router = &mut self.entries[key];
        if !router.definition.enabled {
            return None;
        }
        let start = router.next_binding;
        router.next_binding = (start + 1) % router.definition.bindings.len().max(1);
        Some(RouteProgress::new(Arc::clone(&router.plan), start))
    }

    /// Adds a router, or replaces the one with the same name.
    pub(crate) fn define(
        &mut self,
        definition: RouterDefinition,
        saved: bool,
        home: usize,
        placement: Placement,
    ) -> Result<(), Rejection> {
        let plan = RoutePlan::new(definition.method, definition.bindings.clone(), home, placement);
        let address = Arc::new(QueueAddress { channel: definition.name.as_channel().clone(), id: 0 });
        if let Some(key) = self.names.get(&definition.name) {
            let next_binding = self.entries[*key].next_binding;
            self.entries[*key] = Router { definition, plan, next_binding, address, saved };
            return Ok(());
        }
        if self.entries.len() >= ROUTERS_MAX {
            let reason = format!("the limit of {ROUTERS_MAX} routers is reached; remove a router first");
            return Err(Rejection::new(RejectionKind::LimitExceeded, reason));
        }
        let name = definition.name.clone();
        let key = self.entries.insert(Router { definition, plan, next_binding: 0, address, saved });
        self.names.insert(name.clone(), key);
        self.ordered.insert(name, key);
        Ok(())
    }

    pub(crate) fn remove(&mut self, name: &RouterName) -> Option<Router> {
        self.last = None;
        self.ordered.remove(name);
        self.names.remove(name).map(|key| self.entries.remove(key))
    }
}

impl Router {
    /// Begins a tested route, which does not advance round robin.
    pub(crate) fn begin_test(&self) -> RouteProgress {
        RouteProgress::new(Arc::clone(&self.plan), self.next_binding)
    }

    /// The question whether a handler takes a message, or where it goes.
    pub(crate) fn question(&self, message: &Message, handler: HandlerId, id: QuestionId) -> Question {
        Question {
            id,
            handler,
            step: Step::Route,
            queue: Arc::clone(&self.address),
            status: Status::Push,
            message: Some(message.clone()),
            attempt: 0,
            saved: false,
            consumer: None,
            acknowledgement: None,
            wants_answer: true,
        }
    }
}
