//! The permissions that each command needs, and how the broker rejects it. Commands of every protocol pass here.
//!
//! The matches are exhaustive, so a new command does not compile until its permissions are stated here.

use mqcore_authority::action::Action;
use mqcore_authority::resource::Resource;
use mqcore_broker::model::bindings::QueueBinding;
use mqcore_broker::model::command::{ClientPattern, Command, EventScope, EventSubscription, Request};
use mqcore_broker::model::effect::{Event, PullOutcome};
use mqcore_broker::model::id::{ChannelName, QueueAddress, TopicName};
use mqcore_broker::model::options::{DeadLetter, QueueChanges};
use mqcore_broker::model::rejection::Rejection;
use mqcore_broker::model::router::Target;
use mqcore_broker::model::topic::TopicPattern;
use mqcore_broker::model::transfer::MoveTarget;

/// Calls `visit` for each permission that `command` needs; all of them must be granted.
pub(crate) fn demands<'a>(command: &'a Command, visit: &mut impl FnMut(Action, Resource<'a>)) {
    match command {
        Command::Publish { queue: address, .. } => visit(Action::Push, queue(address)),
        Command::Pull(pull) => visit(Action::Pull, queue(&pull.queue)),
        Command::Direct { to, .. } => visit(Action::Direct, clients(to)),
        // An answer reaches any client whose ID the sender knows, so it needs the same permission as a message.
        Command::AcknowledgeDirect { to, .. } | Command::Respond { to, .. } => {
            visit(Action::Direct, Resource::ClientId(to));
        }
        Command::Custom(_) => visit(Action::Direct, Resource::ClientId(PROGRAM)),
        Command::PublishTopic { topic, .. } => visit(Action::Publish, Resource::Topic(topic.as_bytes())),
        Command::Route { router, .. } => visit(Action::Route, Resource::Router(router.as_str())),
        // The client of another broker, which has authorized it. This broker's filter decides what it accepts from
        // there.
        Command::PassedOn(_) => {}
        // Only the consumer of a delivery can settle it.
        Command::Acknowledge(_)
        | Command::AcknowledgeAll { .. }
        | Command::Extend { .. }
        | Command::RoomFor { .. } => {}
        // Arrives before the client is identified.
        Command::Introduce(_) => {}
        Command::Request(_, request) => of_request(request, visit),
    }
}

/// The program that the broker is part of, in rules about custom messages.
const PROGRAM: &str = "@broker";
/// The part of a scheduler, in rules about who may run the schedules of others.
const SCHEDULER: &str = "@scheduler";

fn of_request<'a>(request: &'a Request, visit: &mut impl FnMut(Action, Resource<'a>)) {
    match request {
        // A consumer of a channel receives the messages of all its queues.
        Request::Join { channel } => {
            visit(Action::Join, Resource::Channel(channel.as_str()));
            visit(Action::Receive, all_queues(channel));
        }
        // The client receives the messages of these queues only.
        Request::JoinQueues(join) => {
            visit(Action::Join, Resource::Channel(join.channel.as_str()));
            for id in &join.queues {
                visit(Action::Receive, Resource::Queue(join.channel.as_str(), *id));
            }
        }
        // Protocols that create the consumed queues themselves need no permission for this.
        Request::SubscribeQueue(subscription) => {
            visit(Action::Receive, queue(&subscription.queue));
            if let Some(changes) = &subscription.create {
                dead_letters(changes, visit);
            }
            if let Some(binding) = &subscription.binding {
                heard(binding, visit);
            }
        }
        Request::SubscribeTopic { pattern, .. } => visit(Action::Subscribe, topics(pattern)),
        // Reducing a subscription is always allowed.
        Request::Leave { .. }
        | Request::LeaveQueues { .. }
        | Request::UnsubscribeQueue { .. }
        | Request::UnsubscribeTopic { .. } => {}
        // The queue receives the topic on behalf of the client that binds it.
        Request::BindTopic { pattern, queue: address } => {
            visit(Action::Subscribe, topics(pattern));
            visit(Action::Push, queue(address));
        }
        // Consumers choose the bindings of their queue; they need permission to receive what they add.
        Request::RebindQueue { queue: address, binding } => {
            visit(Action::Receive, queue(address));
            heard(binding, visit);
        }
        // Affects what another connection holds, usually one of the same client.
        Request::ToSubscriptions { name, .. } => {
            visit(Action::Direct, str::from_utf8(name).map_or(Resource::Server, Resource::ClientId));
        }
        Request::MayPublish { queue: address } => visit(Action::Push, queue(address)),
        Request::MayDirect { to } => visit(Action::Direct, clients(to)),
        Request::MayRunSchedules => visit(Action::Administer, Resource::ClientId(SCHEDULER)),
        Request::DropQueue { queue: address } => visit(Action::Administer, queue(address)),
        Request::UnbindTopic { queue: address, .. } => {
            visit(Action::Administer, queue(address));
        }
        Request::CreateChannel { channel, changes } => {
            visit(Action::Create, Resource::Channel(channel.as_str()));
            dead_letters(&changes.queue, visit);
        }
        Request::CreateQueue { queue: address, changes } => {
            visit(Action::Create, queue(address));
            dead_letters(changes, visit);
        }
        Request::UpdateChannel { channel, changes } => {
            visit(Action::Administer, Resource::Channel(channel.as_str()));
            dead_letters(&changes.queue, visit);
        }
        Request::UpdateQueue { queue: address, changes } => {
            visit(Action::Administer, queue(address));
            dead_letters(changes, visit);
        }
        Request::RemoveQueue { queue: address }
        | Request::ClearQueue { queue: address, .. }
        | Request::QueueInformation { queue: address } => visit(Action::Administer, queue(address)),
        // The messages are published to the new queue on behalf of the client.
        Request::MoveMessages(wanted) => {
            visit(Action::Administer, queue(&wanted.queue));
            if let MoveTarget::Queue(to) = &wanted.to {
                visit(Action::Push, queue(to));
            }
        }
        Request::RemoveChannel { channel } | Request::ListQueues { channel, .. } => {
            visit(Action::Administer, all_queues(channel));
        }
        Request::ChannelInformation { channel } | Request::ListConsumers { channel, .. } => {
            visit(Action::Administer, Resource::Channel(channel.as_str()));
        }
        // A binding publishes or sends on behalf of the client that creates it.
        Request::AddBinding { router, binding } => {
            visit(Action::Administer, Resource::Router(router.as_str()));
            match &binding.target {
                Target::Queue(address) => visit(Action::Push, queue(address)),
                Target::Client(pattern) => visit(Action::Direct, clients(pattern)),
                Target::Topic(topic) => visit(Action::Publish, Resource::Topic(topic.as_bytes())),
                Target::Handler(_) => visit(Action::Administer, Resource::Server),
            }
        }
        Request::CreateRouter { router, .. }
        | Request::RemoveRouter { router }
        | Request::EnableRouter { router, .. }
        | Request::ListBindings { router }
        | Request::RemoveBinding { router, .. }
        | Request::TestRoute { router, .. } => visit(Action::Administer, Resource::Router(router.as_str())),
        Request::ListRouters { .. }
        | Request::ListChannels { .. }
        | Request::ListClients { .. }
        | Request::ListNodes { .. }
        | Request::MayAdminister
        | Request::RemovePolicy { .. }
        | Request::ListPolicies
        | Request::Disconnect { .. }
        | Request::ObjectCounts => {
            visit(Action::Administer, Resource::Server);
        }
        Request::SetPolicy(policy) => {
            visit(Action::Administer, Resource::Server);
            dead_letters(&policy.options, visit);
        }
        Request::Subscribe(subscription) => of_subscription(subscription, visit),
    }
}

/// The messages that a queue receives through this binding.
fn heard<'a>(binding: &'a QueueBinding, visit: &mut impl FnMut(Action, Resource<'a>)) {
    for name in binding.replace.iter().flatten().chain(&binding.add) {
        visit(Action::Subscribe, named_topics(name));
    }
}

fn of_subscription<'a>(subscription: &'a EventSubscription, visit: &mut impl FnMut(Action, Resource<'a>)) {
    // Removing a subscription is always allowed.
    if !subscription.on {
        return;
    }
    let resource = match (subscription.kind.scope(), &subscription.channel, subscription.queue) {
        (EventScope::Queue, Some(channel), Some(id)) => Resource::Queue(channel.as_str(), id),
        (EventScope::Queue | EventScope::Channel, Some(channel), _) => Resource::Channel(channel.as_str()),
        _ => Resource::Server,
    };
    visit(Action::Events, resource);
}

/// A queue that dead-letters into another one publishes there on behalf of the client that configured it.
fn dead_letters<'a>(changes: &'a QueueChanges, visit: &mut impl FnMut(Action, Resource<'a>)) {
    if let Some(Some(DeadLetter::Queue(address))) = &changes.dead_letter {
        visit(Action::Push, queue(address));
    }
}

fn queue(address: &QueueAddress) -> Resource<'_> {
    Resource::Queue(address.channel.as_str(), address.id)
}

fn all_queues(channel: &ChannelName) -> Resource<'_> {
    Resource::AllQueues(channel.as_str())
}

fn topics(pattern: &TopicPattern) -> Resource<'_> {
    match pattern {
        TopicPattern::Exact(topic) => Resource::Topic(topic.as_bytes()),
        TopicPattern::Prefix(prefix) => Resource::TopicsFrom(prefix.as_bytes()),
        TopicPattern::Mask(mask) => named_topics(mask),
    }
}

/// A topic or a mask. Names that match a mask begin with the part before its first star.
fn named_topics(name: &TopicName) -> Resource<'_> {
    let name = name.as_bytes();
    match name.iter().position(|byte| *byte == b'*') {
        Some(star) => Resource::TopicsFrom(&name[..star]),
        None => Resource::Topic(name),
    }
}

fn clients(pattern: &ClientPattern) -> Resource<'_> {
    match pattern {
        ClientPattern::Id(id) => Resource::ClientId(id),
        ClientPattern::Name(name) => Resource::ClientName(name),
        ClientPattern::Kind(kind) => Resource::ClientType(kind),
    }
}

/// Creates the events with which the broker would reject `command`, given `shards` shards, so that the session cannot
/// tell the difference. Some commands have no answer, and neither has their rejection.
pub(crate) fn refuse(command: Command, rejection: Rejection, shards: usize, emit: &mut impl FnMut(Event)) {
    match command {
        Command::Publish { queue, message } => emit(Event::PublishRefused { queue, message, rejection }),
        Command::Pull(pull) => {
            emit(Event::PullEnded { request: pull.request, outcome: PullOutcome::Unauthorized });
        }
        Command::Direct { to, message } => emit(Event::DirectRefused { to, message, rejection }),
        Command::Route { router, message } => {
            let properties = message.properties();
            if properties.pending_acknowledge || properties.pending_response {
                emit(Event::Routed { router, message, refusal: Some(rejection) });
            }
        }
        Command::Introduce(_) => emit(Event::Refused(rejection)),
        Command::PublishTopic { answer: Some(id), .. } => emit(Event::Answered(id, Err(rejection))),
        Command::PublishTopic { answer: None, message, .. } => {
            emit(Event::TopicRefused { message, rejection })
        }
        Command::Request(id, request) => {
            for _ in 0..request.answers(shards) {
                emit(Event::Answered(id, Err(rejection.clone())));
            }
        }
        Command::Acknowledge(_)
        | Command::AcknowledgeAll { .. }
        | Command::Extend { .. }
        | Command::RoomFor { .. }
        | Command::AcknowledgeDirect { .. }
        | Command::PassedOn(_)
        | Command::Custom(_)
        | Command::Respond { .. } => {}
    }
}
