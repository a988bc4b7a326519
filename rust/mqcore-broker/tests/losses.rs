//! Lost definitions: until an operator accepts the loss, the broker confirms no message that may miss a lost queue, router
//! or binding.

use std::sync::Arc;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::{Command, PassedOn, Request};
use mqcore_broker::model::effect::{Effect, Event, Reply};
use mqcore_broker::model::id::{RequestId, RouterName, TopicName};
use mqcore_broker::model::intake::Ticket;
use mqcore_broker::model::message::{Layout, Message, Properties};
use mqcore_broker::model::options::Status;
use mqcore_broker::model::placement::Placement;
use mqcore_broker::model::rejection::RejectionKind;
use mqcore_broker::model::router::{Binding, RouterMethod, Target};
use mqcore_broker::model::topic::TopicPattern;

use crate::shards::Shards;
use crate::world::{World, changes, queue};

fn topic() -> TopicName {
    TopicName::new(b"news").unwrap()
}

fn router() -> RouterName {
    RouterName::new("spread").unwrap()
}

/// A broker that knows one of the queues, bindings and routers that it had.
fn lossy() -> World {
    let mut w = World::new();
    let p = w.client("admin");
    w.create(&p, "left/1", changes(Status::Pull));
    let pattern = TopicPattern::Exact(topic());
    for known in ["left/1", "lost/1"] {
        w.request(&p, Request::BindTopic { pattern: pattern.clone(), queue: queue(known) }).unwrap();
    }
    w.request(&p, Request::CreateRouter { router: router(), method: RouterMethod::Distribute }).unwrap();
    for target in ["left/1", "@topic:news"] {
        let binding = Binding::new(target, Target::parse(target).unwrap());
        w.request(&p, Request::AddBinding { router: router(), binding }).unwrap();
    }
    w.broker.records_lost("accept the loss", w.now, &mut w.effects);
    w.effects.clear();
    w
}

fn message(client: &Arc<Client>, waits: bool) -> Message {
    let properties = Properties { pending_acknowledge: waits, ..Properties::default() };
    Message::from_parts(b"m", b"", b"body", properties, Some(client.clone()))
}

/// A command of a downstream broker with this message.
fn passed_on(command: impl FnOnce(Message) -> Command) -> Command {
    let ticket = Ticket { node: "node-1".into(), epoch: 1, number: 1 };
    let layout = Layout { id: 0..1, source: 0..0, headers: 1..1, body: 1..2 };
    let properties = Properties { pending_acknowledge: true, ..Properties::default() };
    let message = Message::passed_on(b"mb", &layout, properties, ticket.clone());
    Command::PassedOn(Box::new(PassedOn { ticket, command: command(message) }))
}

fn to_topic(message: Message, answer: Option<RequestId>) -> Command {
    Command::PublishTopic { topic: topic(), message, to_producer: true, answer }
}

fn to_queue(message: Message, to: &str) -> Command {
    Command::Publish { queue: queue(to), message }
}

#[test]
fn a_topic_confirms_no_message_but_delivers_those_that_ask_for_no_confirmation() {
    let mut w = lossy();
    let p = w.client("p");
    w.command(&p, to_topic(message(&p, true), Some(RequestId(5))));
    w.turn();
    let events = w.notifications(p.connection);
    let [Event::Answered(RequestId(5), Err(rejection))] = &events[..] else { panic!("{events:?}") };
    assert_eq!(rejection.kind, RejectionKind::Busy);
    assert!(rejection.reason.contains("accept the loss"), "{rejection}");
    assert_eq!(w.stored("left/1"), 0, "nothing is delivered twice when the producer tries again");
    w.command(&p, to_topic(message(&p, false), None));
    w.turn();
    assert_eq!(w.stored("left/1"), 1);
}

#[test]
fn a_queue_or_router_that_is_not_known_may_exist_again() {
    let mut w = lossy();
    let p = w.client("p");
    for to in ["left/2", "lost/1"] {
        w.command(&p, to_queue(message(&p, true), to));
        w.turn();
        assert_eq!(w.heard(&p), ["m refused 503"], "{to}");
    }
    for name in ["spread", "lost"] {
        let name = RouterName::new(name).unwrap();
        w.command(&p, Command::Route { router: name, message: message(&p, true) });
        w.turn();
        let events = w.notifications(p.connection);
        let [Event::Routed { refusal: Some(rejection), .. }] = &events[..] else { panic!("{events:?}") };
        assert_eq!(rejection.kind, RejectionKind::Busy);
    }
    assert_eq!(w.stored("left/1"), 0);
    w.command(&p, Command::Route { router: router(), message: message(&p, false) });
    w.turn();
    assert_eq!(w.stored("left/1"), 2, "directly and by the topic");
}

#[test]
fn a_downstream_broker_keeps_its_message_and_sends_it_again() {
    let commands: [fn(Message) -> Command; 4] = [
        |message| to_topic(message, None),
        |message| Command::Route { router: router(), message },
        |message| to_queue(message, "left/2"),
        |message| to_queue(message, "lost/1"),
    ];
    for (number, command) in commands.into_iter().enumerate() {
        let mut w = lossy();
        let link = w.client("link");
        for _ in 0..2 {
            w.command(&link, passed_on(command));
            w.turn();
            let events = w.notifications(link.connection);
            assert!(matches!(&events[..], [Event::Deferred(1, _)]), "{number}: {events:?}");
        }
        assert_eq!(w.stored("left/1"), 0, "{number}");
    }
}

#[test]
fn a_copy_for_a_queue_whose_definition_is_lost_fails_the_confirmation() {
    // The topic is on a shard without loss, the queue on another one.
    let placement = Placement::unkeyed(2);
    let mut shards = Shards::new(2, 1);
    let home = topic().shard(placement);
    let names = (0..100).map(|number| queue(&format!("lost-{number}/1")));
    let lost = names.clone().find(|queue| queue.channel.shard(placement) != home).expect("one of a hundred");
    let pattern = TopicPattern::Exact(topic());
    shards.request(0, Request::BindTopic { pattern, queue: lost.clone() }).unwrap();
    let mut publish = || {
        let message = message(&shards.client(0), true);
        let effects = shards.command(0, to_topic(message, Some(RequestId(900))));
        let mut answers = effects.into_iter().filter_map(|effect| match effect {
            Effect::Notify(_, Event::Answered(RequestId(900), answer)) => Some(answer),
            _ => None,
        });
        let answer = answers.next().expect("it is answered");
        let now = shards.now;
        shards.brokers[lost.channel.shard(placement)].records_lost("accept the loss", now, &mut Vec::new());
        answer
    };
    assert!(matches!(publish(), Ok(Reply::Published(0))), "it does not exist");
    assert_eq!(publish().expect_err("it may be lost").kind, RejectionKind::Busy);
}
