//! Routers at work: messages come to them, go from binding to binding, and wait for handlers.

use std::sync::Arc;

use crate::context::{Asked, Asker, Turn};
use crate::model::client::Client;
use crate::model::decision::Step;
use crate::model::effect::{Answer, Effect, Event, Forwarded, HandlerFailure, Reply};
use crate::model::filter;
use crate::model::id::{HandlerId, Place, QueueAddress, RequestId, RouterName, TopicName};
use crate::model::message::Message;
use crate::model::record::Record;
use crate::model::rejection::{Rejection, RejectionKind};
use crate::model::route::{RouteStep, Test, Trip};
use crate::model::router::{Binding, Interaction, RouterDefinition, RouterMethod, Target};
use crate::model::time::Timestamp;
use crate::routing::RouteAnswer;
use crate::shard::Broker;
use crate::shard::channel::Channel;

impl Broker {
    // ---- Messages ----------------------------------------------------------------------------------------

    /// A producer brings a message to a router.
    pub(crate) fn route(
        &mut self,
        router: RouterName,
        message: Message,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let Some(leg) = self.routers.depart(&router) else {
            self.books.refused += 1;
            let properties = message.properties();
            let waits = properties.pending_acknowledge || properties.pending_response;
            if let Some(producer) = message.producer().filter(|_| waits) {
                let to = producer.connection;
                let refusal = Some(no_router(&router));
                effects.push(Effect::Tell(to, Event::Routed { router, message, refusal }));
            }
            return;
        };
        self.routers.counts.of(&router).received += 1;
        let trip = Trip {
            router,
            home: self.books.config.shard,
            message,
            leg,
            outer: None,
            answered: false,
            refusal: None,
            test: None,
        };
        self.travel(trip, now, effects);
    }

    /// Lets somebody see where a message would go.
    pub(crate) fn test_route(
        &mut self,
        client: &Arc<Client>,
        request: RequestId,
        router: RouterName,
        message: Message,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let refuse = |effects: &mut Vec<Effect>, rejection| {
            effects.push(Effect::Tell(client.connection, Event::Answered(request, Err(rejection))));
        };
        if !client.admin {
            let reason = "only administrators may do this";
            return refuse(effects, Rejection::new(RejectionKind::Unauthorized, reason));
        }
        let Some(leg) = self.routers.get(&router).map(|router| router.look()) else {
            return refuse(effects, no_router(&router));
        };
        let test = Test { to: client.connection, request, steps: Vec::new() };
        let trip = Trip {
            router,
            home: self.books.config.shard,
            message,
            leg,
            outer: None,
            answered: false,
            refusal: None,
            test: Some(Box::new(test)),
        };
        self.travel(trip, now, effects);
    }

    /// Goes as far as this shard can take a message.
    pub(crate) fn travel(&mut self, mut trip: Trip, now: Timestamp, effects: &mut Vec<Effect>) {
        loop {
            let Some((plan, index)) = trip.leg.next() else {
                if trip.go_back() {
                    continue;
                }
                let mut turn = Turn { now, books: &mut self.books, effects };
                return trip.end(&mut self.routers.counts, &mut turn);
            };
            let (binding, shard) = plan.binding(index);
            if shard != self.books.config.shard {
                let mut turn = Turn { now, books: &mut self.books, effects };
                return turn.forward(shard, Forwarded::Trip(Box::new(trip)));
            }
            if let Target::Handler(key) = &binding.target {
                match self.ask_where(trip, key, now, effects) {
                    Some(back) => trip = back,
                    None => return,
                }
                let why = trip.refusal.as_ref().map(ToString::to_string).unwrap_or_default();
                trip.saw(binding, false, why);
                self.done(&mut trip, binding, false);
                continue;
            }
            let took = self.try_binding(&mut trip, binding, now, effects);
            self.done(&mut trip, binding, took);
        }
    }

    fn done(&mut self, trip: &mut Trip, binding: &Binding, took: bool) {
        if trip.test.is_none() && !binding.name.is_empty() {
            self.routers.counts.tried(&trip.router, binding, took);
        }
        trip.step(binding, took);
    }

    /// Hands a message to the target of a binding that lives here. Whether it took it.
    fn try_binding(
        &mut self,
        trip: &mut Trip,
        binding: &Binding,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> bool {
        if trip.test.is_some() {
            let (takes, why) = self.would_take(trip, binding, now, effects);
            trip.saw(binding, takes, why);
            return takes;
        }
        let mut turn = Turn { now, books: &mut self.books, effects };
        let message = trip.message_for(binding, &mut turn);
        match &binding.target {
            Target::Queue(queue) => {
                let answers = binding.interaction == Interaction::Acknowledge;
                self.give_to_queue(queue, message, answers, now, effects).is_ok()
            }
            Target::Client(pattern) => {
                let receivers = self.receivers(trip, binding);
                for receiver in &receivers {
                    let event = Event::Direct { to: pattern.clone(), message: message.clone() };
                    effects.push(Effect::Tell(*receiver, event));
                }
                !receivers.is_empty()
            }
            Target::Topic(topic) => self.publish_topic(topic, &message, true, now, effects) > 0,
            // A handler that was named by a handler: asking on would never end.
            Target::Handler(_) => false,
        }
    }

    fn give_to_queue(
        &mut self,
        to: &QueueAddress,
        message: Message,
        answers: bool,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Rejection> {
        let key = self.channel_for_publishing(to, now, effects)?;
        let mut turn = Turn { now, books: &mut self.books, effects };
        let Channel { members, queues, .. } = &mut self.channels[key];
        match queues.get_mut(&to.id) {
            Some(queue) => queue.publish_routed(message, answers, members, &mut turn),
            None => Err(crate::shard::channel::no_queue(&to.channel, to.id)),
        }
    }

    /// The clients that a binding's target means now, as far as its method goes.
    fn receivers(&self, trip: &Trip, binding: &Binding) -> Vec<crate::model::id::ConnectionId> {
        let Target::Client(pattern) = &binding.target else { return Vec::new() };
        let first = binding.method == RouterMethod::OnlyFirst;
        let all = self.directory.receivers(pattern, first);
        if binding.method != RouterMethod::RoundRobin || all.len() < 2 {
            return all;
        }
        let turn = self.routers.counts.taken(&trip.router, binding) % all.len() as u64;
        vec![all[turn as usize]]
    }

    // ---- Handlers ----------------------------------------------------------------------------------------

    /// Asks a handler where a message goes; the message waits. Given back if nobody can be asked.
    fn ask_where(
        &mut self,
        mut trip: Trip,
        key: &str,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> Option<Trip> {
        let handler = self
            .books
            .handler(key)
            .filter(|handler| self.books.spec(*handler).overrides.contains(Step::Route))
            .filter(|_| trip.outer.is_none());
        let (Some(handler), Some(router)) = (handler, self.routers.get(&trip.router)) else {
            let reason = format!("no handler {key:?} is registered that could say where the message goes");
            trip.fail(Rejection::new(RejectionKind::Unacceptable, reason));
            return Some(trip);
        };
        let gate = self.routers.gates.get(&handler);
        if gate.is_some_and(|gate| gate.len() >= self.books.config.undecided_max) {
            let reason = format!("too many messages wait for the handler of router {}", trip.router);
            trip.fail(Rejection::new(RejectionKind::Busy, reason));
            return Some(trip);
        }
        let number = gate.map_or(0, crate::routing::Gate::next_number);
        let asked = Asked { place: Place::NOWHERE, asker: Asker::Trip(number), handler };
        let id = self.books.ask(asked, now);
        effects.push(Effect::Ask(router.question(&trip.message, handler, id)));
        self.routers.gates.entry(handler).or_default().park(trip);
        None
    }

    /// A handler said where a message goes; `None`: it did not, in time.
    pub(crate) fn route_answered(
        &mut self,
        handler: HandlerId,
        number: u64,
        answer: Option<Answer>,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let answer = match answer {
            None => RouteAnswer::Failed("did not decide in time"),
            Some(Answer { result: Err(HandlerFailure::Raised), .. }) => {
                RouteAnswer::Failed("raised an error")
            }
            Some(Answer { result: Err(HandlerFailure::Gone), .. }) => RouteAnswer::Failed("is not running"),
            Some(Answer { targets: Some(targets), .. }) => RouteAnswer::Targets(targets.into_vec()),
            Some(Answer { result: Ok(decision), .. }) if decision.allow => RouteAnswer::Took,
            Some(_) => RouteAnswer::Refused,
        };
        let Some(gate) = self.routers.gates.get_mut(&handler) else { return };
        gate.answered(number, answer);
        // Those behind one that is not decided wait for it: nobody is overtaken.
        while let Some((trip, answer)) =
            self.routers.gates.get_mut(&handler).and_then(crate::routing::Gate::leave)
        {
            self.decided(trip, answer, now, effects);
        }
    }

    fn decided(&mut self, mut trip: Trip, answer: RouteAnswer, now: Timestamp, effects: &mut Vec<Effect>) {
        let Some((plan, index)) = trip.leg.next() else { return };
        let (binding, _) = plan.binding(index);
        match answer {
            RouteAnswer::Targets(targets) if !targets.is_empty() => {
                trip.saw(binding, true, format!("it names {} targets", targets.len()));
                trip.detour(targets, self.books.config.shards);
                return self.travel(trip, now, effects);
            }
            RouteAnswer::Took => {
                trip.saw(binding, true, "it took the message itself".into());
                self.done(&mut trip, binding, true);
            }
            RouteAnswer::Refused | RouteAnswer::Targets(_) => {
                trip.saw(binding, false, "it names no target".into());
                self.done(&mut trip, binding, false);
            }
            RouteAnswer::Failed(how) => {
                self.routers.counts.of(&trip.router).errors += 1;
                let reason = format!("the handler of router {} {how}", trip.router);
                trip.saw(binding, false, reason.clone());
                trip.fail(Rejection::new(RejectionKind::Failed, reason));
                self.done(&mut trip, binding, false);
            }
        }
        self.travel(trip, now, effects);
    }

    // ---- Looking, not sending ----------------------------------------------------------------------------

    /// Whether a target would take a message, and why.
    fn would_take(
        &mut self,
        trip: &Trip,
        binding: &Binding,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> (bool, String) {
        match &binding.target {
            Target::Queue(queue) => self.queue_would_take(queue, &trip.message, now, effects),
            Target::Client(_) => match self.receivers(trip, binding).len() {
                0 => (false, "no such client is connected".into()),
                1 => (true, "one client gets it".into()),
                count => (true, format!("{count} clients get it")),
            },
            Target::Topic(topic) => self.topic_would_take(topic),
            Target::Handler(_) => (false, "a handler cannot name a handler".into()),
        }
    }

    fn queue_would_take(
        &mut self,
        to: &QueueAddress,
        message: &Message,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> (bool, String) {
        let config = &self.books.config;
        let (channels, queues) = (config.auto_create_channels, config.auto_create_queues);
        let Some(key) = self.lookup(&to.channel) else {
            let created = channels && queues;
            let why = if created { "the queue would be created" } else { "there is no such channel" };
            return (created, why.into());
        };
        let turn = Turn { now, books: &mut self.books, effects };
        match self.channels[key].queues.get(&to.id).map(|queue| queue.would_take(message, &turn)) {
            Some(Ok(())) => (true, "the queue takes it".into()),
            Some(Err(rejection)) => (false, rejection.reason.into_owned()),
            None if queues => (true, "the queue would be created".into()),
            None => (false, "there is no such queue".into()),
        }
    }

    fn topic_would_take(&self, topic: &TopicName) -> (bool, String) {
        let (subscribers, queues) = self.topics.reach(topic);
        let takes = subscribers + queues > 0;
        (takes, format!("{subscribers} subscribers and {queues} queues get it"))
    }

    // ---- Definitions -------------------------------------------------------------------------------------

    /// The program says that there is such a router. It takes the place of another of its name, and is not saved: the
    /// program says so again at its next start.
    ///
    /// # Errors
    /// `LimitExceeded`.
    pub fn define_router(&mut self, router: RouterDefinition) -> Result<(), Rejection> {
        let (shard, shards) = (self.books.config.shard, self.books.config.shards);
        self.routers.define(router, false, shard, shards)
    }

    /// What the journal had.
    pub(crate) fn restore_router(&mut self, router: RouterDefinition) {
        let (shard, shards) = (self.books.config.shard, self.books.config.shards);
        // Only the limit could be in the way, and then there are as many as there may be.
        let _ = self.routers.define(router, true, shard, shards);
    }

    /// Puts a changed router in its place, and has it saved.
    fn redefine(
        &mut self,
        router: RouterDefinition,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, Rejection> {
        let (shard, shards) = (self.books.config.shard, self.books.config.shards);
        self.routers.define(router.clone(), true, shard, shards)?;
        let mut turn = Turn { now, books: &mut self.books, effects };
        turn.record(Record::DefineRouter(Box::new(router)));
        Ok(Reply::Done)
    }

    pub(crate) fn create_router(
        &mut self,
        name: RouterName,
        method: RouterMethod,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, Rejection> {
        match self.routers.get(&name) {
            None => self.redefine(RouterDefinition::new(name, method), now, effects),
            Some(router) if router.definition.method == method => Ok(Reply::Done),
            Some(router) => {
                let known = router.definition.method.as_str();
                let reason = format!("router {name} exists already, and its method is {known}");
                Err(Rejection::new(RejectionKind::AlreadyExists, reason))
            }
        }
    }

    /// Removes a router; fine if there is none.
    pub fn remove_router(&mut self, name: &RouterName, now: Timestamp, effects: &mut Vec<Effect>) {
        let Some(router) = self.routers.remove(name) else { return };
        let mut turn = Turn { now, books: &mut self.books, effects };
        if router.saved {
            turn.record(Record::RemoveRouter(name.clone()));
        }
        for shard in 0..turn.books.config.shards {
            turn.forward(shard, Forwarded::ForgetRouter(name.clone(), None));
        }
    }

    pub(crate) fn add_binding(
        &mut self,
        name: &RouterName,
        binding: Binding,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, Rejection> {
        if let Target::Handler(key) = &binding.target
            && self
                .books
                .handler(key)
                .is_none_or(|known| !self.books.spec(known).overrides.contains(Step::Route))
        {
            let reason = format!("no handler is registered as {key:?} that could say where messages go");
            return Err(Rejection::new(RejectionKind::BadRequest, reason));
        }
        let router = self.routers.get(name).ok_or_else(|| no_router(name))?;
        let mut definition = router.definition.clone();
        definition.add(binding)?;
        self.redefine(definition, now, effects)
    }

    pub(crate) fn remove_binding(
        &mut self,
        name: &RouterName,
        binding: &str,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, Rejection> {
        let router = self.routers.get(name).ok_or_else(|| no_router(name))?;
        let mut definition = router.definition.clone();
        if !definition.remove(binding) {
            return Ok(Reply::Done);
        }
        let mut turn = Turn { now, books: &mut self.books, effects };
        for shard in 0..turn.books.config.shards {
            turn.forward(shard, Forwarded::ForgetRouter(name.clone(), Some(binding.into())));
        }
        self.redefine(definition, now, effects)
    }

    /// Routers whose name passes the filter.
    pub(crate) fn list_routers(&self, filter: Option<&str>) -> Vec<RouterDefinition> {
        let passes = |router: &&RouterDefinition| {
            filter.is_none_or(|filter| filter::matches(filter, router.name.as_str()))
        };
        self.routers.iter().map(|router| &router.definition).filter(passes).cloned().collect()
    }
}

impl Trip {
    /// Somebody who was to decide could not.
    fn fail(&mut self, rejection: Rejection) {
        self.refusal.get_or_insert(rejection);
    }

    /// Notes a step for whoever only looks.
    fn saw(&mut self, binding: &Binding, takes: bool, why: String) {
        if let Some(test) = &mut self.test {
            let (name, target) = (binding.name.clone(), binding.target.clone());
            test.steps.push(RouteStep { binding: name, target, takes, why });
        }
    }
}

pub(crate) fn no_router(name: &RouterName) -> Rejection {
    Rejection::new(RejectionKind::NotFound, format!("there is no router {name}; create it first"))
}
