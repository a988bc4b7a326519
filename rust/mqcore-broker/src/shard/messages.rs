//! Commands: published messages, acknowledgements, pulls, direct messages, and what other shards
//! forward.

use std::borrow::Cow;
use std::hint::black_box;
use std::sync::Arc;

use crate::context::Context;
use crate::context::confirmations::Confirmed;
use crate::history::LifecycleEvent;
use crate::model::client::{Client, Introduction};
use crate::model::command::{Acknowledgement, ClientPattern, Command, PassedOn, Pull};
use crate::model::config::BrokerConfig;
use crate::model::decision::Step;
use crate::model::effect::{CopyOrigin, Effect, Event, Forwarded, PullOutcome, Reply};
use crate::model::id::{QueueAddress, Tag, TopicName};
use crate::model::intake::Arrival;
use crate::model::message::Message;
use crate::model::observation::ObservedSubject;
use crate::model::options::{ChannelChanges, QueueChanges};
use crate::model::record::Record;
use crate::model::rejection::{Rejection, RejectionKind};
use crate::model::stats::DropReason;
use crate::model::topic::TopicPattern;
use crate::model::topic_header::with_topic;
use crate::shard::channel::{Channel, no_queue};
use crate::shard::entities::{Entities, consumers, folded, no_channel};

impl Entities {
    /// Reads the memory that the first of `commands` will need, and returns how many commands these
    /// are. Pass them to [`Broker::command`](crate::shard::Broker::command) next. This changes nothing,
    /// but makes a batch faster: each message or acknowledgement is found by a chain of uncached reads,
    /// and a processor follows several such chains at once if nothing else happens between them.
    pub(crate) fn look_ahead(&mut self, client: &Client, commands: &[Command]) -> usize {
        /// As many as fit into the first-level cache with what they need.
        const AHEAD_MAX: usize = 16;
        let ahead = &commands[..commands.len().min(AHEAD_MAX)];
        // A single chain is as fast later.
        if ahead.len() > 1 {
            ahead.iter().for_each(|command| self.look_at(client, command));
        }
        ahead.len()
    }

    pub(crate) fn look_at(&mut self, client: &Client, command: &Command) {
        match command {
            Command::Publish { message, .. } => {
                black_box(message.properties());
            }
            Command::Acknowledge(acknowledgement) => {
                let key = self.lookup(&acknowledgement.queue.channel);
                if let Some(queue) =
                    key.and_then(|key| self.channels[key].queues.get(&acknowledgement.queue.id))
                {
                    queue
                        .deliveries
                        .look(&acknowledgement.message_id, (client.connection, acknowledgement.tag));
                }
            }
            _ => {}
        }
    }

    /// Carries out a command of a peer. Before the handshake is complete, `client` is provisional and
    /// its id is empty.
    pub(crate) fn command(&mut self, client: &Arc<Client>, command: Command, context: &mut Context<'_>) {
        match command {
            Command::Publish { queue, message } => self.publish(&queue, message, context),
            Command::Route { router, message } => self.route(router, message, context),
            Command::PublishTopic { topic, message, to_producer, answer } => {
                let answer = answer.map(|request| Confirmed::Producer(client.connection, request));
                self.publish_topic(&topic, &message, to_producer, answer, context);
            }
            Command::Acknowledge(acknowledgement) => self.acknowledge(client, &acknowledgement, context),
            Command::AcknowledgeAll { queue, tag, negative } => {
                self.acknowledge_all(client, &queue, tag, negative.as_deref(), context);
            }
            Command::Extend { queue, tag, message_id } => {
                self.extend(client, &queue, tag, &message_id, context);
            }
            Command::RoomFor { queue } => self.room_for(&queue, context),
            Command::Pull(pull) => self.pull(client, &pull, context),
            Command::Introduce(introduction) => self.introduce(client, *introduction, context),
            Command::Direct { to, message } => self.direct(client, to, message, context),
            Command::AcknowledgeDirect { to, message } => {
                self.relay(&to, Event::DirectAcknowledged(message), context);
            }
            Command::Respond { to, message } => self.relay(&to, Event::Responded(message), context),
            Command::Custom(message) => Self::custom(client, &message, context),
            Command::PassedOn(passed_on) => self.passed_on(client, *passed_on, context),
            Command::Request(id, request) => self.answer_request(client, id, *request, context),
        }
    }

    pub(crate) fn introduce(
        &mut self,
        client: &Arc<Client>,
        introduction: Introduction,
        context: &mut Context<'_>,
    ) {
        let event = match self.directory.welcome(client, introduction, context) {
            Ok(welcomed) => Event::Welcomed(welcomed),
            Err(rejection) => Event::Refused(rejection),
        };
        context.notify(client.connection, event);
    }

    pub(crate) fn room_for(&mut self, address: &QueueAddress, context: &mut Context<'_>) {
        let Some(key) = self.lookup(&address.channel) else { return };
        if let Some(queue) = self.channels[key].queues.get_mut(&address.id) {
            queue.schedule(context);
        }
    }

    /// A downstream broker passes on a command, possibly again.
    pub(crate) fn passed_on(&mut self, link: &Arc<Client>, passed_on: PassedOn, context: &mut Context<'_>) {
        let PassedOn { ticket, command } = passed_on;
        let latest = context.state.links.entry(Arc::clone(&ticket.node)).or_insert(link.connection);
        if link.connection < *latest {
            // The downstream broker has reconnected, and sends unconfirmed commands again on its new
            // connection.
            return;
        }
        *latest = link.connection;
        if !context.state.intake.is_current(&ticket) {
            context.begin_intake(&ticket);
        }
        match context.state.intake.arrive(&ticket) {
            Arrival::New => {}
            Arrival::Done => return context.state.intake.again(&ticket),
            Arrival::Pending | Arrival::Later => return,
        }
        match command {
            // The queue reports when the message is done, possibly much later.
            Command::Publish { queue, message } => return self.publish(&queue, message, context),
            Command::Direct { to, message } => {
                let receivers = self.directory.receivers(&to, message.properties().first_acquirer);
                for receiver in receivers {
                    let event = Event::Direct { to: to.clone(), message: message.clone() };
                    context.effects.push(Effect::Notify(receiver, event));
                }
            }
            Command::AcknowledgeDirect { to, message } => {
                self.relay(&to, Event::DirectAcknowledged(message), context);
            }
            Command::Respond { to, message } => self.relay(&to, Event::Responded(message), context),
            // Done when all queues have saved their copies.
            Command::PublishTopic { topic, message, to_producer, .. } => {
                let to = Confirmed::Downstream(Box::new(ticket));
                self.publish_topic(&topic, &message, to_producer, Some(to), context);
                return;
            }
            Command::Route { router, message } => match context.check_nothing_is_lost() {
                Ok(()) => self.route(router, message, context),
                Err(rejection) => return context.settle_passed_on(&ticket, Some(&rejection)),
            },
            // Deliveries are settled at the broker that made them; this broker only passes them by.
            _ => {}
        }
        context.state.intake.done(&ticket);
    }

    pub(crate) fn publish(&mut self, to: &QueueAddress, message: Message, context: &mut Context<'_>) {
        let producer = message.producer().map(|producer| &**producer);
        let key = match self.channel_for_publishing(to, producer, context) {
            Ok(key) => key,
            Err(rejection) => {
                context.state.counters.refused += 1;
                context.reject_passed_on(&message, &rejection);
                if let Some(producer) = message.producer() {
                    let connection = producer.connection;
                    let event = Event::PublishRefused { queue: to.clone(), message, rejection };
                    context.effects.push(Effect::Notify(connection, event));
                }
                return;
            }
        };
        let Channel { members, queues, .. } = &mut self.channels[key];
        if let Some(queue) = queues.get_mut(&to.id) {
            queue.publish(message, &consumers(members, queue), context);
        }
    }

    /// The channel of the queue `to`. Creates both if the configuration allows it, for `creator`.
    pub(crate) fn channel_for_publishing(
        &mut self,
        to: &QueueAddress,
        creator: Option<&Client>,
        context: &mut Context<'_>,
    ) -> Result<usize, Rejection> {
        let creates = context.state.config.auto_create_queues;
        let key = match self.lookup(&to.channel) {
            Some(key) => key,
            None if context.state.config.auto_create_channels => {
                if creates {
                    self.create_channel_for_queue(to, creator, context)?
                } else {
                    self.create_channel(&to.channel, &ChannelChanges::default(), creator, context)?
                }
            }
            None => return Err(context.missing(no_channel(&to.channel))),
        };
        if !self.channels[key].queues.contains_key(&to.id) {
            if !creates {
                return Err(context.missing(no_queue(&to.channel, to.id)));
            }
            self.channels[key].create_queue(key, to.id, &QueueChanges::default(), creator, context)?;
        }
        Ok(key)
    }

    /// Publishes to a topic and returns the number of subscribers and queues. Copies in queues have a header with the
    /// topic. `answer`: the sender to answer once each queue has saved its copy or rejected it. While bindings may be lost,
    /// a message with such a sender is rejected.
    pub(crate) fn publish_topic(
        &mut self,
        topic: &TopicName,
        message: &Message,
        to_producer: bool,
        answer: Option<Confirmed>,
        context: &mut Context<'_>,
    ) -> u32 {
        if let Some(to) = &answer
            && let Err(rejection) = context.check_nothing_is_lost()
        {
            match to {
                Confirmed::Producer(connection, request) => {
                    context.notify(*connection, Event::Answered(*request, Err(rejection)));
                }
                Confirmed::Downstream(ticket) => context.settle_passed_on(ticket, Some(&rejection)),
            }
            context.state.counters.refused += 1;
            return 0;
        }
        let published = self.topics.publish(topic, message, to_producer, context);
        let (shard, placement) = (context.state.config.shard, context.state.config.placement);
        let (receivers, copies) = (published.receivers, published.queues.len());
        let is_here = |queue: &QueueAddress| queue.channel.shard(placement) == shard;
        let mut copy = if copies == 0 { Cow::Borrowed(message) } else { with_topic(message, topic) };
        let origin = match answer {
            None => {
                // The router that sent it here finishes the message of a downstream broker.
                if message.ticket().is_some() {
                    copy = Cow::Owned(copy.without_ticket());
                }
                None
            }
            Some(Confirmed::Producer(connection, request)) if copies == 0 => {
                let event = Event::Answered(request, Ok(Reply::Published(receivers)));
                context.notify(connection, event);
                None
            }
            Some(Confirmed::Downstream(ticket)) if copies == 0 => {
                context.state.intake.done(&ticket);
                None
            }
            // The only queue finishes the message, like one that was published to it.
            Some(Confirmed::Downstream(_)) if copies == 1 && is_here(&published.queues[0]) => None,
            Some(to) => {
                // One of several copies does not identify the message.
                copy = Cow::Owned(copy.without_ticket());
                Some(context.state.confirmations.expect(to, receivers, copies, shard))
            }
        };
        for queue in &*published.queues {
            let of_queue = queue.channel.shard(placement);
            let message = Message::clone(&copy);
            if of_queue == shard {
                self.copy_to_queue(queue, message, origin, context);
            } else {
                context.forward(of_queue, Forwarded::Copy { to: queue.clone(), message, origin });
            }
        }
        receivers
    }

    /// Publishes a copy to a queue, which may not exist.
    pub(crate) fn copy_to_queue(
        &mut self,
        to: &QueueAddress,
        message: Message,
        origin: Option<CopyOrigin>,
        context: &mut Context<'_>,
    ) {
        let key = self.lookup(&to.channel);
        let channel = key.map(|key| &mut self.channels[key]);
        let found =
            channel.and_then(|Channel { members, queues, .. }| Some((members, queues.get_mut(&to.id)?)));
        match found {
            Some((members, queue)) => {
                queue.publish_copy(message, origin, &consumers(members, queue), context);
            }
            None => {
                let rejection = context.missing(no_queue(&to.channel, to.id));
                context.reject_passed_on(&message, &rejection);
                if let Some(origin) = origin {
                    context.report_copy(origin, Err(rejection));
                }
                context.state.counters.retired.dropped[DropReason::NoConsumer as usize] += 1;
                context.record_undeliverable(to, message, LifecycleEvent::Produced, DropReason::NoConsumer);
            }
        }
    }

    /// Whether a queue exists, or publishing to it would create it.
    pub(crate) fn takes(&self, queue: &QueueAddress, config: &BrokerConfig) -> bool {
        match self.names.get(&folded(&queue.channel)) {
            Some(key) => config.auto_create_queues || self.channels[*key].queues.contains_key(&queue.id),
            None => config.auto_create_channels && config.auto_create_queues,
        }
    }

    pub(crate) fn acknowledge(
        &mut self,
        client: &Arc<Client>,
        acknowledgement: &Acknowledgement,
        context: &mut Context<'_>,
    ) {
        let Some(key) = self.lookup(&acknowledgement.queue.channel) else { return };
        let queue = self.channels[key].queues.get_mut(&acknowledgement.queue.id);
        let known =
            queue.is_some_and(|queue| queue.acknowledged(client.connection, acknowledgement, context));
        if !known {
            // The acknowledgement is late or repeated: the delivery was settled before.
            context.state.counters.unknown_acks += 1;
        }
    }

    pub(crate) fn extend(
        &mut self,
        client: &Arc<Client>,
        queue: &QueueAddress,
        tag: Tag,
        message_id: &[u8],
        context: &mut Context<'_>,
    ) {
        let Some(key) = self.lookup(&queue.channel) else { return };
        if let Some(queue) = self.channels[key].queues.get_mut(&queue.id) {
            queue.extended(client.connection, tag, message_id, context);
        }
    }

    pub(crate) fn acknowledge_all(
        &mut self,
        client: &Arc<Client>,
        queue: &QueueAddress,
        tag: Tag,
        negative: Option<&str>,
        context: &mut Context<'_>,
    ) {
        let Some(key) = self.lookup(&queue.channel) else { return };
        if let Some(queue) = self.channels[key].queues.get_mut(&queue.id) {
            queue.acknowledged_all((client.connection, tag), negative, context);
        }
    }

    pub(crate) fn pull(&mut self, client: &Arc<Client>, pull: &Pull, context: &mut Context<'_>) {
        let key = self.lookup(&pull.queue.channel);
        let outcome = match key.map(|key| &mut self.channels[key]) {
            None => PullOutcome::NoChannel,
            Some(Channel { members, queues, .. }) => match queues.get_mut(&pull.queue.id) {
                None => PullOutcome::NoQueue,
                Some(queue) => {
                    return queue.pull(client, pull, &consumers(members, queue), context);
                }
            },
        };
        context.notify(client.connection, Event::PullEnded { request: pull.request, outcome });
    }

    pub(crate) fn direct(
        &mut self,
        client: &Arc<Client>,
        to: ClientPattern,
        message: Message,
        context: &mut Context<'_>,
    ) {
        let receivers = self.directory.receivers(&to, message.properties().first_acquirer);
        if receivers.is_empty() {
            context.state.counters.refused += 1;
            let rejection = Rejection::new(RejectionKind::NotFound, "no such client is connected");
            let event = Event::DirectRefused { to, message, rejection };
            context.effects.push(Effect::Notify(client.connection, event));
            return;
        }
        for receiver in receivers {
            let event = Event::Direct { to: to.clone(), message: message.clone() };
            context.effects.push(Effect::Notify(receiver, event));
        }
    }

    /// Passes a custom message to the program. Without a handler for such messages it is dropped and counted.
    fn custom(client: &Arc<Client>, message: &Message, context: &mut Context<'_>) {
        let before = context.effects.len();
        context.observe_everywhere(Step::CustomMessage, || {
            ObservedSubject::Custom(client.clone(), message.clone())
        });
        if context.effects.len() == before {
            context.state.counters.refused += 1;
        }
    }

    /// Sends an event to clients, or closes their connections if there is none. Returns the number of clients.
    pub(crate) fn reach_clients(
        &self,
        to: &ClientPattern,
        event: Option<&Event>,
        context: &mut Context<'_>,
    ) -> usize {
        let receivers = self.directory.receivers(to, false);
        for receiver in &receivers {
            context.effects.push(match event {
                Some(event) => Effect::Notify(*receiver, event.clone()),
                None => {
                    let reason = "an administrator closed the connection";
                    Effect::Close(*receiver, Rejection::new(RejectionKind::Unauthorized, reason))
                }
            });
        }
        receivers.len()
    }

    /// Sends an answer to its client, if that is still connected.
    pub(crate) fn relay(&mut self, to: &str, event: Event, context: &mut Context<'_>) {
        let receivers = self.directory.receivers(&ClientPattern::Id(to.into()), true);
        context.effects.extend(receivers.first().map(|receiver| Effect::Notify(*receiver, event)));
    }

    /// Takes what a shard forwarded, for [`Effect::Forward`].
    pub(crate) fn forwarded(&mut self, forwarded: Forwarded, context: &mut Context<'_>) {
        match forwarded {
            Forwarded::Copy { to, message, origin } => self.copy_to_queue(&to, message, origin, context),
            Forwarded::CopyReport { origin, result } => context.report_copy(origin, result),
            Forwarded::Route(route) => self.advance_route(*route, context),
            Forwarded::ForgetRouter(router, None) => self.routers.counts.forget(&router),
            Forwarded::ForgetRouter(router, Some(binding)) => {
                self.routers.counts.forget_binding(&router, &binding);
            }
            Forwarded::Bind { queue, bind, unbind, from, ticket } => {
                for topic in bind {
                    // The queue's own shard enforces the limit; bindings made by others do not matter
                    // here.
                    let _ = self.topics.bind(TopicPattern::Exact(topic), &queue);
                }
                for topic in unbind {
                    self.unbind_topic(&TopicPattern::Exact(topic), &queue, context);
                }
                context.forward(from, Forwarded::Bound { ticket });
            }
            Forwarded::Bound { ticket } => {
                self.bindings.done(ticket, context);
            }
        }
    }

    /// `false` if it was not bound.
    pub(crate) fn unbind_topic(
        &mut self,
        pattern: &TopicPattern,
        queue: &QueueAddress,
        context: &mut Context<'_>,
    ) -> bool {
        if self.topics.forget_saved(pattern, queue) {
            context.record(Record::UnbindTopic(pattern.clone(), queue.clone()));
        }
        self.topics.unbind(pattern, queue)
    }
}
