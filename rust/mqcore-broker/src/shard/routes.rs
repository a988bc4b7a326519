//! Routes: messages arrive at routers, go from binding to binding, and wait for handlers.

use std::sync::Arc;

use crate::context::Context;
use crate::context::questions::{OpenQuestion, Suspended};
use crate::context::state::ShardState;
use crate::model::client::Client;
use crate::model::decision::Step;
use crate::model::definition::router_key;
use crate::model::effect::{Answer, Effect, Event, Forwarded, HandlerFailure, Reply};
use crate::model::id::{HandlerId, QueueAddress, QueueRef, RequestId, RouterName, TopicName};
use crate::model::message::Message;
use crate::model::record::Record;
use crate::model::rejection::{Rejection, RejectionKind};
use crate::model::route::{Route, RouteStep, RouteTrace};
use crate::model::router::{Binding, Interaction, RouterDefinition, RouterMethod, Target};
use crate::routing::RouteAnswer;
use crate::shard::channel::Channel;
use crate::shard::entities::Entities;

impl Entities {
    /// A producer publishes a message to a router.
    pub(crate) fn route(&mut self, router: RouterName, message: Message, context: &mut Context<'_>) {
        let properties = message.properties();
        let waits = properties.pending_acknowledge || properties.pending_response;
        // A binding may be lost: then only messages that wait for no answer take the bindings that are left.
        let complete = if waits { context.check_nothing_is_lost() } else { Ok(()) };
        let begun = complete.and_then(|()| self.routers.begin(&router).ok_or_else(|| no_router(&router)));
        let progress = match begun {
            Ok(progress) => progress,
            Err(rejection) => {
                context.state.counters.refused += 1;
                if let Some(producer) = message.producer().filter(|_| waits) {
                    let to = producer.connection;
                    let refusal = Some(rejection);
                    context.effects.push(Effect::Notify(to, Event::Routed { router, message, refusal }));
                }
                return;
            }
        };
        self.routers.counts.of(&router).received += 1;
        let route = Route {
            router,
            home: context.state.config.shard,
            message,
            progress,
            outer: None,
            answered: false,
            refusal: None,
            test: None,
        };
        self.advance_route(route, context);
    }

    /// Tests where a message would go.
    pub(crate) fn test_route(
        &mut self,
        client: &Arc<Client>,
        request: RequestId,
        router: RouterName,
        message: Message,
        context: &mut Context<'_>,
    ) {
        let refuse = |context: &mut Context<'_>, rejection| {
            context.effects.push(Effect::Notify(client.connection, Event::Answered(request, Err(rejection))));
        };
        if !client.admin {
            let reason = "only administrators may do this";
            return refuse(context, Rejection::new(RejectionKind::Unauthorized, reason));
        }
        let Some(progress) = self.routers.get(&router).map(|router| router.begin_test()) else {
            return refuse(context, no_router(&router));
        };
        let test = RouteTrace { to: client.connection, request, steps: Vec::new() };
        let route = Route {
            router,
            home: context.state.config.shard,
            message,
            progress,
            outer: None,
            answered: false,
            refusal: None,
            test: Some(Box::new(test)),
        };
        self.advance_route(route, context);
    }

    /// Continues a route as far as this shard can.
    pub(crate) fn advance_route(&mut self, mut route: Route, context: &mut Context<'_>) {
        loop {
            let Some((plan, index)) = route.progress.next() else {
                if route.go_back() {
                    continue;
                }
                if route.test.is_some() && route.home != context.state.config.shard {
                    // The program that asked, unlike a connection, waits at the shard that it asked.
                    let home = route.home;
                    return context.forward(home, Forwarded::Route(Box::new(route)));
                }
                return route.end(&mut self.routers.counts, context);
            };
            let (binding, shard) = plan.binding(index);
            if shard != context.state.config.shard {
                return context.forward(shard, Forwarded::Route(Box::new(route)));
            }
            if let Target::Handler(key) = &binding.target {
                match self.ask_handler(route, key, context) {
                    Some(back) => route = back,
                    None => return,
                }
                let why = route.refusal.as_ref().map(ToString::to_string).unwrap_or_default();
                route.trace_step(binding, false, why);
                self.done(&mut route, binding, false);
                continue;
            }
            let took = self.try_binding(&mut route, binding, context);
            self.done(&mut route, binding, took);
        }
    }

    fn done(&mut self, route: &mut Route, binding: &Binding, took: bool) {
        if route.test.is_none() && !binding.name.is_empty() {
            self.routers.counts.tried(&route.router, binding, took);
        }
        route.step(binding, took);
    }

    /// Delivers a message to the target of a binding on this shard. Returns whether the target took it.
    fn try_binding(&mut self, route: &mut Route, binding: &Binding, context: &mut Context<'_>) -> bool {
        if route.test.is_some() {
            let (takes, why) = self.would_take(route, binding, context);
            route.trace_step(binding, takes, why);
            return takes;
        }
        let message = route.message_for(binding, context);
        match &binding.target {
            Target::Queue(queue) => {
                let answers = binding.interaction == Interaction::Acknowledge;
                self.give_to_queue(queue, message, answers, context).is_ok()
            }
            Target::Client(pattern) => {
                let receivers = self.receivers(route, binding);
                for receiver in &receivers {
                    let event = Event::Direct { to: pattern.clone(), message: message.clone() };
                    context.effects.push(Effect::Notify(*receiver, event));
                }
                !receivers.is_empty()
            }
            Target::Topic(topic) => {
                let properties = route.message.properties();
                if (properties.pending_acknowledge || properties.pending_response)
                    && let Err(rejection) = context.check_nothing_is_lost()
                {
                    route.fail(rejection);
                    return false;
                }
                self.publish_topic(topic, &message, true, None, context) > 0
            }
            // A handler may not name another handler, because that chain might never end.
            Target::Handler(_) => false,
        }
    }

    fn give_to_queue(
        &mut self,
        to: &QueueAddress,
        message: Message,
        answers: bool,
        context: &mut Context<'_>,
    ) -> Result<(), Rejection> {
        let producer = message.producer().map(|producer| &**producer);
        let key = self.channel_for_publishing(to, producer, context)?;
        let Channel { members, queues, .. } = &mut self.channels[key];
        match queues.get_mut(&to.id) {
            Some(queue) => queue.publish_routed(message, answers, members, context),
            None => Err(crate::shard::channel::no_queue(&to.channel, to.id)),
        }
    }

    /// The clients that a binding's target and method select now.
    fn receivers(&self, route: &Route, binding: &Binding) -> Vec<crate::model::id::ConnectionId> {
        let Target::Client(pattern) = &binding.target else { return Vec::new() };
        let first = binding.method == RouterMethod::OnlyFirst;
        let all = self.directory.receivers(pattern, first);
        if binding.method != RouterMethod::RoundRobin || all.len() < 2 {
            return all;
        }
        let next = self.routers.counts.taken(&route.router, binding) % all.len() as u64;
        vec![all[next as usize]]
    }

    /// Asks a handler where a message goes; the route waits. Returns the route if the handler cannot be
    /// asked.
    fn ask_handler(&mut self, mut route: Route, key: &str, context: &mut Context<'_>) -> Option<Route> {
        let handler = context
            .state
            .handler(key)
            .filter(|handler| context.state.spec(*handler).overrides.contains(Step::Route))
            .filter(|_| route.outer.is_none());
        let (Some(handler), Some(router)) = (handler, self.routers.get(&route.router)) else {
            let reason = format!(
                "no registered handler {key:?} decides where messages go; register one that overrides route"
            );
            route.fail(Rejection::new(RejectionKind::Unacceptable, reason));
            return Some(route);
        };
        let waiting_routes = self.routers.handler_queues.get(&handler);
        if waiting_routes
            .is_some_and(|waiting_routes| waiting_routes.len() >= context.state.config.undecided_max)
        {
            let reason =
                format!("too many messages wait for the handler of router {}; try again later", route.router);
            route.fail(Rejection::new(RejectionKind::Busy, reason));
            return Some(route);
        }
        let number = waiting_routes.map_or(0, crate::routing::HandlerQueue::next_number);
        let question =
            OpenQuestion { queue_ref: QueueRef::NONE, suspended: Suspended::Route(number), handler };
        let id = context.state.ask(question, context.now);
        context.effects.push(Effect::Ask(router.question(&route.message, handler, id)));
        self.routers.handler_queues.entry(handler).or_default().park(route);
        None
    }

    /// Takes a handler's answer about a route; `None` if the deadline passed.
    pub(crate) fn route_answered(
        &mut self,
        handler: HandlerId,
        number: u64,
        answer: Option<Answer>,
        context: &mut Context<'_>,
    ) {
        let answer = match answer {
            None => RouteAnswer::Failed("did not answer in time"),
            Some(Answer { result: Err(HandlerFailure::Raised), .. }) => {
                RouteAnswer::Failed("raised an error")
            }
            Some(Answer { result: Err(HandlerFailure::Gone), .. }) => RouteAnswer::Failed("is not running"),
            Some(Answer { targets: Some(targets), .. }) => RouteAnswer::Targets(targets.into_vec()),
            Some(Answer { result: Ok(decision), .. }) if decision.allow => RouteAnswer::Took,
            Some(_) => RouteAnswer::Refused,
        };
        let Some(waiting_routes) = self.routers.handler_queues.get_mut(&handler) else { return };
        waiting_routes.answered(number, answer);
        // Routes behind an undecided one wait for it, which keeps the order.
        while let Some((route, answer)) =
            self.routers.handler_queues.get_mut(&handler).and_then(crate::routing::HandlerQueue::leave)
        {
            self.decided(route, answer, context);
        }
    }

    fn decided(&mut self, mut route: Route, answer: RouteAnswer, context: &mut Context<'_>) {
        let Some((plan, index)) = route.progress.next() else { return };
        let (binding, _) = plan.binding(index);
        match answer {
            RouteAnswer::Targets(targets) if !targets.is_empty() => {
                route.trace_step(binding, true, format!("the handler names {} targets", targets.len()));
                route.detour(targets, context.state.config.placement);
                return self.advance_route(route, context);
            }
            RouteAnswer::Took => {
                route.trace_step(binding, true, "the handler took the message itself".into());
                self.done(&mut route, binding, true);
            }
            RouteAnswer::Refused | RouteAnswer::Targets(_) => {
                route.trace_step(binding, false, "the handler names no target".into());
                self.done(&mut route, binding, false);
            }
            RouteAnswer::Failed(how) => {
                self.routers.counts.of(&route.router).errors += 1;
                let reason = format!("the handler of router {} {how}", route.router);
                route.trace_step(binding, false, reason.clone());
                route.fail(Rejection::new(RejectionKind::Failed, reason));
                self.done(&mut route, binding, false);
            }
        }
        self.advance_route(route, context);
    }

    /// Whether a target would take a message, and why.
    fn would_take(&mut self, route: &Route, binding: &Binding, context: &mut Context<'_>) -> (bool, String) {
        match &binding.target {
            Target::Queue(queue) => self.queue_would_take(queue, &route.message, context),
            Target::Client(_) => match self.receivers(route, binding).len() {
                0 => (false, "no such client is connected".into()),
                1 => (true, "one client receives it".into()),
                count => (true, format!("{count} clients receive it")),
            },
            Target::Topic(topic) => self.topic_would_take(topic),
            Target::Handler(_) => (false, "a handler cannot name a handler".into()),
        }
    }

    fn queue_would_take(
        &mut self,
        to: &QueueAddress,
        message: &Message,
        context: &mut Context<'_>,
    ) -> (bool, String) {
        let config = &context.state.config;
        let (channels, queues) = (config.auto_create_channels, config.auto_create_queues);
        let Some(key) = self.lookup(&to.channel) else {
            let created = channels && queues;
            let why = if created { "the queue would be created" } else { "the channel does not exist" };
            return (created, why.into());
        };
        match self.channels[key].queues.get(&to.id).map(|queue| queue.would_take(message, context)) {
            Some(Ok(())) => (true, "the queue takes it".into()),
            Some(Err(error)) => (false, error.rejection.reason.into_owned()),
            None if queues => (true, "the queue would be created".into()),
            None => (false, "the queue does not exist".into()),
        }
    }

    fn topic_would_take(&self, topic: &TopicName) -> (bool, String) {
        let (subscribers, queues) = self.topics.reach(topic);
        let takes = subscribers + queues > 0;
        (takes, format!("{subscribers} subscribers and {queues} queues receive it"))
    }

    /// Adds a router of the program, or replaces the one with the same name. The router is not saved:
    /// the program defines it again at its next start.
    ///
    /// # Errors
    /// `LimitExceeded`.
    pub(crate) fn define_router(
        &mut self,
        router: RouterDefinition,
        state: &ShardState,
    ) -> Result<(), Rejection> {
        let (shard, placement) = (state.config.shard, state.config.placement);
        self.routers.define(router, false, shard, placement)
    }

    /// Restores a router from the journal.
    pub(crate) fn restore_router(&mut self, router: RouterDefinition, state: &ShardState) {
        let (shard, placement) = (state.config.shard, state.config.placement);
        // Only the limit can prevent this, and then the maximum is reached anyway.
        let _ = self.routers.define(router, true, shard, placement);
    }

    /// Replaces a router and records it.
    pub(crate) fn redefine(
        &mut self,
        router: RouterDefinition,
        context: &mut Context<'_>,
    ) -> Result<Reply, Rejection> {
        context.check_definitions()?;
        let (shard, placement) = (context.state.config.shard, context.state.config.placement);
        self.routers.define(router.clone(), true, shard, placement)?;
        context.record_router(router);
        Ok(Reply::Done)
    }

    pub(crate) fn create_router(
        &mut self,
        name: RouterName,
        method: RouterMethod,
        context: &mut Context<'_>,
    ) -> Result<Reply, Rejection> {
        match self.routers.get(&name) {
            None => self.redefine(RouterDefinition::new(name, method), context),
            Some(router) if router.definition.method == method => {
                context.check_definition(true, &router_key(&name))?;
                Ok(Reply::Done)
            }
            Some(router) => {
                let known = router.definition.method.as_str();
                let reason = format!("router {name} already exists with method {known}");
                Err(Rejection::new(RejectionKind::AlreadyExists, reason))
            }
        }
    }

    /// Whether clients may change this router. Where code of the program decides, only the program may.
    pub(crate) fn check_router_is_changeable(&self, name: &RouterName) -> Result<(), Rejection> {
        let Some(router) = self.routers.get(name).filter(|router| !router.saved) else { return Ok(()) };
        if !router.definition.bindings.iter().any(|binding| matches!(binding.target, Target::Handler(_))) {
            return Ok(());
        }
        let reason = format!(
            "code of the broker's program decides for router {name}; change the router in that program"
        );
        Err(Rejection::new(RejectionKind::Unacceptable, reason))
    }

    /// Removes a router; no effect if it does not exist.
    pub(crate) fn remove_router(&mut self, name: &RouterName, context: &mut Context<'_>) {
        let Some(router) = self.routers.remove(name) else { return };
        if router.saved {
            context.record(Record::RemoveRouter(name.clone()));
        }
        for shard in 0..context.state.config.placement.shards() {
            context.forward(shard, Forwarded::ForgetRouter(name.clone(), None));
        }
    }

    pub(crate) fn enable_router(
        &mut self,
        name: &RouterName,
        enabled: bool,
        context: &mut Context<'_>,
    ) -> Result<Reply, Rejection> {
        self.check_router_is_changeable(name)?;
        let router = self.routers.get(name).ok_or_else(|| no_router(name))?;
        let definition = RouterDefinition { enabled, ..router.definition.clone() };
        self.redefine(definition, context)
    }

    pub(crate) fn add_binding(
        &mut self,
        name: &RouterName,
        binding: Binding,
        context: &mut Context<'_>,
    ) -> Result<Reply, Rejection> {
        check_target(&binding.target, context.state)?;
        self.check_router_is_changeable(name)?;
        let router = self.routers.get(name).ok_or_else(|| no_router(name))?;
        let mut definition = router.definition.clone();
        definition.add(binding)?;
        self.redefine(definition, context)
    }

    pub(crate) fn remove_binding(
        &mut self,
        name: &RouterName,
        binding: &str,
        context: &mut Context<'_>,
    ) -> Result<Reply, Rejection> {
        self.check_router_is_changeable(name)?;
        let router = self.routers.get(name).ok_or_else(|| no_router(name))?;
        let mut definition = router.definition.clone();
        if !definition.remove(binding) {
            return Ok(Reply::Done);
        }
        let done = self.redefine(definition, context)?;
        for shard in 0..context.state.config.placement.shards() {
            context.forward(shard, Forwarded::ForgetRouter(name.clone(), Some(binding.into())));
        }
        Ok(done)
    }
}

impl Route {
    /// Notes why a binding could not decide.
    fn fail(&mut self, rejection: Rejection) {
        self.refusal.get_or_insert(rejection);
    }

    /// Notes a step of a tested route.
    fn trace_step(&mut self, binding: &Binding, takes: bool, why: String) {
        if let Some(test) = &mut self.test {
            let (name, target) = (binding.name.clone(), binding.target.clone());
            test.steps.push(RouteStep { binding: name, target, takes, why });
        }
    }
}

/// Rejects a binding to a handler that is not registered.
pub(crate) fn check_target(target: &Target, state: &ShardState) -> Result<(), Rejection> {
    let Target::Handler(key) = target else { return Ok(()) };
    if state.handler(key).is_some_and(|known| state.spec(known).overrides.contains(Step::Route)) {
        return Ok(());
    }
    let reason =
        format!("no registered handler {key:?} decides where messages go; register one that overrides route");
    Err(Rejection::new(RejectionKind::BadRequest, reason))
}

pub(crate) fn no_router(name: &RouterName) -> Rejection {
    Rejection::new(RejectionKind::NotFound, format!("router {name} does not exist; create it first"))
}
