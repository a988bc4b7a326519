//! Queues that are consumed by subscriptions: several of one connection, each with its own terms.

use crate::world;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use mqcore_broker::model::bindings::{QueueBinding, UnusedPolicy};
use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::{Command, Request};
use mqcore_broker::model::decision::{Decision, Step};
use mqcore_broker::model::effect::{Effect, Event, Reply};
use mqcore_broker::model::id::{RequestId, Tag, TopicName};
use mqcore_broker::model::options::{QueueChanges, Status};
use mqcore_broker::model::rejection::RejectionKind;
use mqcore_broker::model::subscription::{QueueSubscription, Remote, Settling, Slots, Terms};
use mqcore_broker::model::topic::TopicPattern;
use proptest::prelude::*;
use world::{ALLOW, World, acknowledged, changes, handler, id_of, queue};

const Q: &str = "jobs/0";

const EXPLICIT: Terms =
    Terms { settling: Settling::Explicit, window: 0, timeout: None, in_order: false, weight: 0, slots: None };
const AT_ONCE: Terms = Terms { settling: Settling::AtOnce, ..EXPLICIT };

fn window(window: u32) -> Terms {
    Terms { window, ..EXPLICIT }
}

fn subscription(address: &str, tag: u32) -> QueueSubscription {
    QueueSubscription {
        queue: queue(address),
        tag: Tag(tag),
        terms: EXPLICIT,
        create: None,
        name: None,
        binding: None,
        notify_self: false,
    }
}

/// Extensions of `World` for tests of subscriptions.
trait Subscriptions {
    fn consume(&mut self, client: &Arc<Client>, tag: u32, terms: Terms);
    fn consume_new(&mut self, client: &Arc<Client>, address: &str, tag: u32, create: QueueChanges);
    fn unsubscribe(&mut self, client: &Arc<Client>, tag: u32) -> Result<(), RejectionKind>;
    fn settle(&mut self, client: &Arc<Client>, tag: u32, id: &str, negative: Option<&str>);
    fn settle_all(&mut self, client: &Arc<Client>, tag: u32, negative: Option<&str>);
    fn tagged(&mut self) -> Vec<String>;
}

impl Subscriptions for World {
    fn consume(&mut self, client: &Arc<Client>, tag: u32, terms: Terms) {
        let subscription = QueueSubscription { terms, ..subscription(Q, tag) };
        self.request(client, Request::SubscribeQueue(Box::new(subscription))).expect("the queue exists");
    }

    fn consume_new(&mut self, client: &Arc<Client>, address: &str, tag: u32, create: QueueChanges) {
        let create = Some(Box::new(create));
        let subscription = QueueSubscription { create, ..subscription(address, tag) };
        self.request(client, Request::SubscribeQueue(Box::new(subscription))).expect("it is created");
    }

    fn unsubscribe(&mut self, client: &Arc<Client>, tag: u32) -> Result<(), RejectionKind> {
        let request = Request::UnsubscribeQueue { queue: queue(Q), tag: Tag(tag), started: None };
        self.request(client, request).map(|_| ()).map_err(|rejection| rejection.kind)
    }

    fn settle(&mut self, client: &Arc<Client>, tag: u32, id: &str, negative: Option<&str>) {
        let mut word = World::word(Q, id, negative);
        word.tag = Tag(tag);
        self.command(client, Command::Acknowledge(word));
    }

    fn settle_all(&mut self, client: &Arc<Client>, tag: u32, negative: Option<&str>) {
        let negative = negative.map(Into::into);
        self.command(client, Command::AcknowledgeAll { queue: queue(Q), tag: Tag(tag), negative });
    }

    /// Deliveries since the last call as `connection.tag:message`, with `+n` after `n` requeues.
    fn tagged(&mut self) -> Vec<String> {
        let (delivered, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.effects)
            .into_iter()
            .partition(|effect| matches!(effect, Effect::Deliver(_)));
        self.effects = rest;
        let mut seen = Vec::new();
        for effect in delivered {
            let Effect::Deliver(deliver) = effect else { continue };
            for to in deliver.to.as_slice() {
                let again =
                    if deliver.requeues > 0 { format!("+{}", deliver.requeues) } else { String::new() };
                seen.push(format!("{}.{}:{}{again}", to.0, deliver.tag.0, id_of(&deliver.message)));
            }
        }
        seen
    }
}

/// A producer, two consumers and a round robin queue.
fn workers() -> (World, Arc<Client>, Arc<Client>, Arc<Client>) {
    let mut world = World::new();
    let (producer, one, two) = (world.client("producer"), world.client("one"), world.client("two"));
    world.create(&producer, Q, changes(Status::RoundRobin));
    (world, producer, one, two)
}

#[test]
fn subscriptions_share_a_queue_with_consumers_of_its_channel() {
    let (mut world, producer, one, two) = workers();
    world.join(&one, "jobs").unwrap();
    world.consume(&one, 7, AT_ONCE);
    world.consume(&two, 9, AT_ONCE);
    for id in ["a", "b", "c", "d"] {
        world.publish(&producer, Q, id);
    }
    assert_eq!(world.tagged(), ["2.0:a", "2.7:b", "3.9:c", "2.0:d"]);
}

#[test]
fn loss_of_a_slow_subscriber_without_deliveries_lets_a_push_queue_continue() {
    let (mut world, producer, one, two) = workers();
    world.update(&producer, Q, changes(Status::Push));
    world.consume(&one, 7, AT_ONCE);
    world.consume(&two, 9, AT_ONCE);
    world.broker.congested(one.connection, world.now, &mut world.effects);
    world.publish(&producer, Q, "a");
    assert!(world.tagged().is_empty(), "push waits for its slow subscriber");
    world.close(&one);
    assert_eq!(world.tagged(), ["3.9:a"]);
}

#[test]
fn push_queue_delivers_to_all_subscriptions_with_their_tags() {
    let (mut world, producer, one, two) = workers();
    world.update(&producer, Q, changes(Status::Push));
    world.join(&one, "jobs").unwrap();
    world.join(&two, "jobs").unwrap();
    world.consume(&one, 7, AT_ONCE);
    world.publish(&producer, Q, "a");
    assert_eq!(world.tagged(), ["2.0:a", "3.0:a", "2.7:a"]);
    let stats = world.information(Q).stats;
    assert_eq!((stats.sent, stats.deliveries), (1, 3), "it was sent once, to three");
}

#[test]
fn an_explicit_subscription_must_acknowledge_whatever_the_options_of_the_queue_say() {
    let (mut world, producer, one, _) = workers();
    world.consume(&one, 1, EXPLICIT);
    world.publish(&producer, Q, "a");
    assert_eq!(world.tagged(), ["2.1:a"]);
    world.advance(Duration::from_secs(100_000));
    assert_eq!(world.information(Q).in_flight, 1, "it may take as long as it takes");
    world.settle(&one, 2, "a", None);
    assert_eq!(world.information(Q).in_flight, 1, "another subscription does not have it");
    world.settle(&one, 1, "a", None);
    let information = world.information(Q);
    assert_eq!((information.in_flight, information.stats.acks, information.unsettled), (0, 1, 0));
}

#[test]
fn explicit_subscription_requeues_rejected_last_and_lost_in_place() {
    let (mut world, producer, one, two) = workers();
    world.consume(&one, 1, EXPLICIT);
    for id in ["a", "b", "c"] {
        world.publish(&producer, Q, id);
    }
    world.tagged();
    world.settle(&one, 1, "a", Some("busy"));
    assert_eq!(world.tagged(), ["2.1:a+1"]);
    world.close(&one);
    assert_eq!(world.stored(Q), 3);
    world.consume(&two, 5, EXPLICIT);
    assert_eq!(world.tagged(), ["3.5:b+1", "3.5:c+1", "3.5:a+2"]);
}

#[test]
fn unsettled_delivery_is_requeued_after_its_timeout() {
    let (mut world, producer, one, _) = workers();
    let terms = Terms { timeout: Some(Duration::from_secs(5)), ..EXPLICIT };
    world.consume(&one, 1, terms);
    world.publish(&producer, Q, "a");
    world.tagged();
    world.advance(Duration::from_secs(4));
    assert!(world.tagged().is_empty());
    world.advance(Duration::from_secs(2));
    assert_eq!(world.tagged(), ["2.1:a+1"]);
}

#[test]
fn a_consumer_that_works_in_order_has_the_whole_timeout_for_each_message() {
    let (mut world, producer, one, _) = workers();
    let terms = Terms { timeout: Some(Duration::from_secs(5)), in_order: true, ..window(4) };
    world.consume(&one, 1, terms);
    for id in ["a", "b", "c", "d"] {
        world.publish(&producer, Q, id);
    }
    assert_eq!(world.tagged(), ["2.1:a", "2.1:b", "2.1:c", "2.1:d"]);
    for id in ["a", "b"] {
        world.advance(Duration::from_secs(4));
        world.settle(&one, 1, id, None);
    }
    world.advance(Duration::from_secs(4));
    assert!(world.tagged().is_empty(), "b was settled 4 s ago");
    world.settle(&one, 1, "d", None);
    world.advance(Duration::from_millis(1500));
    assert_eq!(world.tagged(), ["2.1:c+1"], "it was passed over");
    assert_eq!(world.information(Q).stats.negative_acks, 1);
}

#[test]
fn a_queue_that_stops_requesting_acknowledgements_waits_for_those_it_delivered() {
    let (mut world, producer, one, _) = workers();
    let requests = |wanted| QueueChanges {
        request_acknowledge: Some(wanted),
        acknowledge_timeout: Some(Duration::from_secs(5)),
        ..QueueChanges::default()
    };
    world.update(&producer, Q, requests(true));
    world.consume(&one, 1, Terms { in_order: true, ..window(4) });
    for id in ["a", "b"] {
        world.publish(&producer, Q, id);
    }
    world.settle(&one, 1, "a", None);
    world.update(&producer, Q, requests(false));
    world.tagged();
    world.advance(Duration::from_secs(6));
    assert!(world.tagged().is_empty(), "the deadline is gone, as for new deliveries");
    world.settle(&one, 1, "b", None);
    assert_eq!(world.information(Q).unsettled, 0);
}

#[test]
fn a_consumer_that_works_on_a_message_keeps_those_behind_it() {
    let (mut world, producer, one, _) = workers();
    let terms = Terms { timeout: Some(Duration::from_secs(5)), in_order: true, ..window(4) };
    world.consume(&one, 1, terms);
    for id in ["a", "b", "c"] {
        world.publish(&producer, Q, id);
    }
    world.settle(&one, 1, "a", None);
    world.tagged();
    for _ in 0..3 {
        world.advance(Duration::from_secs(4));
        world.command(&one, Command::Extend { queue: queue(Q), tag: Tag(1), message_id: b"b"[..].into() });
    }
    world.advance(Duration::from_secs(4));
    assert!(world.tagged().is_empty());
    world.advance(Duration::from_secs(2));
    assert_eq!(world.tagged().len(), 2, "it stopped working");
}

#[test]
fn deliveries_that_an_ending_subscription_did_not_start_keep_their_attempts() {
    let (mut world, producer, one, two) = workers();
    world.update(&producer, Q, QueueChanges { put_back_limit: Some(0), ..QueueChanges::default() });
    world.consume(&one, 1, window(10));
    for id in ["a", "b", "c", "d"] {
        world.publish(&producer, Q, id);
    }
    world.settle(&one, 1, "a", None);
    world.tagged();
    let request = Request::UnsubscribeQueue { queue: queue(Q), tag: Tag(1), started: Some(1) };
    world.request(&one, request).expect("it has this subscription");
    world.consume(&two, 1, window(10));
    assert_eq!(world.tagged(), ["3.1:c", "3.1:d"], "b was started, and has no attempts left");
}

#[test]
fn a_subscription_has_no_more_unsettled_than_its_window() {
    let (mut world, producer, one, two) = workers();
    world.consume(&one, 1, window(2));
    world.consume(&two, 1, window(1));
    for id in ["a", "b", "c", "d", "e"] {
        world.publish(&producer, Q, id);
    }
    assert_eq!(world.tagged(), ["2.1:a", "3.1:b", "2.1:c"]);
    world.settle(&two, 1, "b", None);
    assert_eq!(world.tagged(), ["3.1:d"]);
    world.settle_all(&one, 1, None);
    assert_eq!(world.tagged(), ["2.1:e"]);
}

#[test]
fn a_push_queue_waits_for_the_slowest_window() {
    let (mut world, producer, one, two) = workers();
    world.update(&producer, Q, changes(Status::Push));
    world.consume(&one, 1, window(1));
    world.consume(&two, 1, window(2));
    world.publish(&producer, Q, "a");
    world.publish(&producer, Q, "b");
    assert_eq!(world.tagged(), ["2.1:a", "3.1:a"]);
    world.settle(&one, 1, "a", None);
    assert_eq!(world.tagged(), ["2.1:b", "3.1:b"]);
}

#[test]
fn a_window_holds_even_while_a_handler_decides_about_each_message() {
    let (mut world, producer, one, _) = workers();
    world.broker.register_handler(handler("slow", &[Step::BeginSend]));
    world.update(
        &producer,
        Q,
        QueueChanges { delivery_handler: Some("slow".into()), ..changes(Status::RoundRobin) },
    );
    world.consume(&one, 1, window(1));
    for id in ["a", "b"] {
        world.publish(&producer, Q, id);
    }
    world.answer(Step::BeginSend, ALLOW);
    assert_eq!(world.tagged(), ["2.1:a"]);
    assert!(world.questions.is_empty(), "nobody is asked about what cannot be handed out");
    world.settle(&one, 1, "a", None);
    world.answer(Step::BeginSend, ALLOW);
    assert_eq!(world.tagged(), ["2.1:b"]);
}

#[test]
fn delivery_settles_at_once_without_acknowledgements() {
    let (mut world, producer, one, _) = workers();
    world.update(
        &producer,
        Q,
        QueueChanges { delivery_handler: Some("ack-on-consume".into()), ..acknowledged(Status::RoundRobin) },
    );
    world.consume(&one, 1, AT_ONCE);
    world.publish(&producer, Q, "a");
    assert_eq!(world.tagged(), ["2.1:a"]);
    let information = world.information(Q);
    assert_eq!((information.in_flight, information.unsettled, information.stats.acks), (0, 0, 1));
    assert_eq!(world.heard(&producer), ["a ok"]);
}

#[test]
fn ending_subscription_requeues_its_deliveries() {
    let (mut world, producer, one, _) = workers();
    world.consume(&one, 1, EXPLICIT);
    world.publish(&producer, Q, "a");
    world.tagged();
    assert_eq!(world.unsubscribe(&one, 2), Err(RejectionKind::NotFound));
    assert_eq!(world.unsubscribe(&one, 1), Ok(()));
    world.publish(&producer, Q, "b");
    assert!(world.tagged().is_empty());
    assert_eq!(world.stored(Q), 2);
    world.consume(&one, 3, EXPLICIT);
    assert_eq!(world.tagged(), ["2.3:a+1", "2.3:b"]);
}

#[test]
fn removing_a_queue_ends_its_subscriptions_and_notifies_them() {
    let (mut world, producer, one, _) = workers();
    world.consume(&one, 4, EXPLICIT);
    world.publish(&producer, Q, "a");
    world.request(&producer, Request::RemoveQueue { queue: queue(Q) }).unwrap();
    let notices = world.notifications(one.connection);
    assert!(
        matches!(&notices[..], [Event::SubscriptionEnded { queue: ended, tag: Tag(4) }] if *ended == queue(Q)),
        "{notices:?}"
    );
    world.create(&producer, Q, changes(Status::RoundRobin));
    world.tagged();
    world.publish(&producer, Q, "b");
    assert!(world.tagged().is_empty(), "a new queue of the same name has no consumers");
    world.close(&one);
}

#[test]
fn a_subscription_creates_its_queue_if_it_may() {
    let (mut world, producer, one, _) = workers();
    let missing = subscription("new/0", 1);
    let refused = world.request(&one, Request::SubscribeQueue(Box::new(missing)));
    assert_eq!(refused.unwrap_err().kind, RejectionKind::NotFound);
    world.consume_new(&one, "new/0", 1, changes(Status::RoundRobin));
    world.publish(&producer, "new/0", "a");
    assert_eq!(world.tagged(), ["2.1:a"]);
}

#[test]
fn a_connection_that_joined_and_subscribed_leaves_with_both() {
    let (mut world, producer, one, two) = workers();
    world.join(&one, "jobs").unwrap();
    world.consume(&one, 1, EXPLICIT);
    world.join(&two, "jobs").unwrap();
    world.close(&one);
    for id in ["a", "b"] {
        world.publish(&producer, Q, id);
    }
    assert_eq!(world.tagged(), ["3.0:a", "3.0:b"]);
    world.leave(&two, "jobs");
    assert_eq!(world.information(Q).in_flight, 0);
}

// ---- Bindings of queues ----------------------------------------------------------------------------------

fn topic(name: &str) -> TopicName {
    TopicName::new(name.as_bytes()).unwrap()
}

fn topics(names: &[&str]) -> Vec<TopicName> {
    names.iter().map(|name| topic(name)).collect()
}

/// Carries out the effects that one shard forwards to itself.
fn settle_forwards(world: &mut World) {
    while let Some(at) = world.effects.iter().position(|effect| matches!(effect, Effect::Forward(..))) {
        let Effect::Forward(0, forwarded) = world.effects.remove(at) else { panic!("there is one shard") };
        world.broker.forwarded(forwarded, world.now, &mut world.effects);
        world.turn();
    }
}

fn ask(world: &mut World, client: &Arc<Client>, request: Request) -> Result<Reply, RejectionKind> {
    const ID: RequestId = RequestId(1_000_000);
    world.command(client, Command::Request(ID, Box::new(request)));
    settle_forwards(world);
    let at = world
        .effects
        .iter()
        .position(|effect| matches!(effect, Effect::Notify(_, Event::Answered(ID, _))))
        .expect("every request is answered");
    match world.effects.remove(at) {
        Effect::Notify(_, Event::Answered(_, result)) => result.map_err(|rejection| rejection.kind),
        _ => unreachable!("the position was found by this pattern"),
    }
}

fn publish_to_topic(world: &mut World, client: &Arc<Client>, name: &str, id: &str) {
    let message = World::message(client, &queue(Q), id, false);
    let command = Command::PublishTopic { topic: topic(name), message, to_producer: true, answer: None };
    world.command(client, command);
    settle_forwards(world);
}

/// The notifications of a client about its queues' bindings: `tag [topics] removal`.
fn rebound(world: &mut World, client: &Arc<Client>) -> Vec<String> {
    let notices = world.notifications(client.connection);
    notices
        .into_iter()
        .filter_map(|event| match event {
            Event::BindingsChanged { tag, bindings } => {
                let names: Vec<_> = bindings.topics.iter().map(ToString::to_string).collect();
                Some(format!("{} {names:?} {:?}", tag.0, bindings.unused))
            }
            _ => None,
        })
        .collect()
}

fn binding(replace: &[&str]) -> Option<Box<QueueBinding>> {
    Some(Box::new(QueueBinding { replace: Some(topics(replace)), ..QueueBinding::default() }))
}

#[test]
fn binding_by_a_subscription_notifies_the_others() {
    let (mut world, producer, one, two) = workers();
    let first = QueueSubscription { binding: binding(&["e2", "e1"]), ..subscription(Q, 1) };
    ask(&mut world, &one, Request::SubscribeQueue(Box::new(first))).unwrap();
    assert!(rebound(&mut world, &one).is_empty(), "who asked knows");
    publish_to_topic(&mut world, &producer, "e1", "a");
    assert_eq!(world.tagged(), ["2.1:a"]);

    let add = Some(Box::new(QueueBinding { add: topics(&["e9"]), ..QueueBinding::default() }));
    let second = QueueSubscription { binding: add, notify_self: true, ..subscription(Q, 7) };
    ask(&mut world, &two, Request::SubscribeQueue(Box::new(second))).unwrap();
    assert_eq!(rebound(&mut world, &one), [r#"1 ["e1", "e2", "e9"] Keep"#]);
    assert_eq!(rebound(&mut world, &two), [r#"7 ["e1", "e2", "e9"] Keep"#]);

    let change = QueueBinding {
        remove: topics(&["e2", "nosuch"]),
        remove_matching: vec![TopicPattern::Mask(topic("*"))],
        add: topics(&["a.b"]),
        ..QueueBinding::default()
    };
    let request = Request::RebindQueue { queue: queue(Q), binding: Box::new(change.clone()) };
    ask(&mut world, &producer, request.clone()).unwrap();
    assert_eq!(rebound(&mut world, &one), [r#"1 ["a.b", "e1", "e9"] Keep"#]);
    ask(&mut world, &producer, request).unwrap();
    assert!(rebound(&mut world, &one).is_empty(), "nothing changed");
    publish_to_topic(&mut world, &producer, "e2", "lost");
    publish_to_topic(&mut world, &producer, "a.b", "b");
    assert_eq!(world.tagged(), ["2.1:b"]);
}

#[test]
fn an_answer_about_bindings_waits_until_the_topics_know_of_them() {
    let (mut world, _, one, _) = workers();
    let request = Request::RebindQueue { queue: queue(Q), binding: binding(&["e1"]).unwrap() };
    world.command(&one, Command::Request(RequestId(5), Box::new(request)));
    assert!(world.notifications(one.connection).is_empty());
    settle_forwards(&mut world);
    assert!(matches!(
        &world.notifications(one.connection)[..],
        [Event::Answered(RequestId(5), Ok(Reply::Done))]
    ));
}

#[test]
fn a_queue_may_be_bound_before_it_exists() {
    let (mut world, producer, one, _) = workers();
    let address = queue("later/0");
    let request = Request::RebindQueue { queue: address, binding: binding(&["e5"]).unwrap() };
    ask(&mut world, &one, request).unwrap();
    publish_to_topic(&mut world, &producer, "e5", "lost");
    let create = Some(Box::new(changes(Status::RoundRobin)));
    let subscribe = QueueSubscription { create, ..subscription("later/0", 1) };
    ask(&mut world, &one, Request::SubscribeQueue(Box::new(subscribe))).unwrap();
    publish_to_topic(&mut world, &producer, "e5", "a");
    assert_eq!(world.tagged(), ["2.1:a"]);
}

fn going(unused: UnusedPolicy) -> Box<QueueBinding> {
    Box::new(QueueBinding { add: topics(&["e1"]), unused: Some(unused), ..QueueBinding::default() })
}

fn exists(world: &World) -> bool {
    world.broker.stats(world.now).queues.iter().any(|found| found.queue == queue(Q))
}

#[test]
fn queue_is_removed_with_its_last_subscription_if_configured() {
    for leaves_by_closing in [true, false] {
        let (mut world, producer, one, two) = workers();
        for (client, tag) in [(&one, 1), (&two, 2)] {
            let subscribe =
                QueueSubscription { binding: Some(going(UnusedPolicy::Delete)), ..subscription(Q, tag) };
            ask(&mut world, client, Request::SubscribeQueue(Box::new(subscribe))).unwrap();
        }
        world.close(&two);
        assert!(exists(&world));
        if leaves_by_closing {
            world.close(&one);
        } else {
            world.unsubscribe(&one, 1).unwrap();
        }
        settle_forwards(&mut world);
        assert!(!exists(&world));
        publish_to_topic(&mut world, &producer, "e1", "lost");
        assert!(world.broker.stats(world.now).topics.iter().all(|topic| topic.queues == 0));
    }
}

#[test]
fn queue_outlives_its_last_subscription_for_the_configured_time() {
    let (mut world, producer, one, two) = workers();
    let after = UnusedPolicy::DeleteAfter(Duration::from_secs(5));
    let subscribe = QueueSubscription { binding: Some(going(after)), ..subscription(Q, 1) };
    ask(&mut world, &one, Request::SubscribeQueue(Box::new(subscribe.clone()))).unwrap();
    world.close(&one);
    world.advance(Duration::from_secs(4));
    publish_to_topic(&mut world, &producer, "e1", "kept");
    ask(&mut world, &two, Request::SubscribeQueue(Box::new(subscribe))).unwrap();
    assert_eq!(world.tagged(), ["3.1:kept"]);
    world.settle(&two, 1, "kept", None);
    world.advance(Duration::from_secs(10));
    assert!(exists(&world), "somebody came in time");
    world.unsubscribe(&two, 1).unwrap();
    world.advance(Duration::from_secs(6));
    settle_forwards(&mut world);
    assert!(!exists(&world));
}

#[test]
fn dropping_a_queue_notifies_of_no_bindings_and_then_of_the_end() {
    let (mut world, producer, one, _) = workers();
    let subscribe = QueueSubscription { binding: Some(going(UnusedPolicy::Keep)), ..subscription(Q, 1) };
    ask(&mut world, &one, Request::SubscribeQueue(Box::new(subscribe))).unwrap();
    ask(&mut world, &producer, Request::DropQueue { queue: queue(Q) }).unwrap();
    let notices = world.notifications(one.connection);
    assert!(
        matches!(&notices[..], [Event::BindingsChanged { bindings, .. }, Event::SubscriptionEnded { .. }] if bindings.topics.is_empty()),
        "{notices:?}"
    );
    ask(&mut world, &producer, Request::DropQueue { queue: queue("nosuch/0") }).unwrap();
}

#[test]
fn any_connection_can_settle_or_end_the_subscriptions_of_a_name() {
    let (mut world, producer, one, two) = workers();
    let subscribe = QueueSubscription { name: Some((*b"c1").into()), ..subscription(Q, 1) };
    ask(&mut world, &one, Request::SubscribeQueue(Box::new(subscribe))).unwrap();
    for id in ["a", "b", "c"] {
        world.publish(&producer, Q, id);
    }
    world.tagged();
    let to = |world: &mut World, name: &[u8], what: Remote| {
        ask(world, &two, Request::ToSubscriptions { name: name.into(), what })
    };
    let ack =
        |id: Option<&str>| Remote::Settle { message_id: id.map(|id| id.as_bytes().into()), negative: None };
    assert_eq!(to(&mut world, b"nosuch", ack(None)).unwrap_err(), RejectionKind::NotFound);
    to(&mut world, b"c1", ack(Some("b"))).unwrap();
    to(&mut world, b"c1", ack(Some("nosuch"))).unwrap();
    assert_eq!(world.information(Q).in_flight, 2);
    let reject = Remote::Settle { message_id: Some((*b"a").as_slice().into()), negative: Some("no".into()) };
    to(&mut world, b"c1", reject).unwrap();
    assert_eq!(world.tagged(), ["2.1:a+1"]);
    to(&mut world, b"c1", Remote::Unsubscribe).unwrap();
    assert_eq!((world.information(Q).in_flight, world.stored(Q)), (0, 2));
    assert_eq!(to(&mut world, b"c1", ack(None)).unwrap_err(), RejectionKind::NotFound);
}

// ---- Slots -----------------------------------------------------------------------------------------------

/// Workers whose slots are ordered by one clock.
#[derive(Default)]
struct Workers(Arc<AtomicU64>);

impl Workers {
    fn slots(&self, free: u32) -> Arc<Slots> {
        let slots = Arc::new(Slots::new(Arc::clone(&self.0)));
        for _ in 0..free {
            assert!(slots.give(free).is_some());
        }
        slots
    }
}

fn slotted(weight: i32, slots: &Arc<Slots>) -> Terms {
    Terms { weight, slots: Some(Arc::clone(slots)), ..EXPLICIT }
}

#[test]
fn larger_weights_come_first_while_they_have_slots_and_equals_take_turns() {
    let mut world = World::new();
    let producer = world.client("producer");
    world.create(&producer, Q, changes(Status::RoundRobin));
    let workers = Workers::default();
    for (name, weight) in [("a", 10), ("b", 30), ("c", 30), ("d", 20)] {
        let client = world.client(name);
        world.consume(&client, 1, slotted(weight, &workers.slots(2)));
    }
    for id in ["1", "2", "3", "4", "5", "6", "7", "8", "9"] {
        world.publish(&producer, Q, id);
    }
    // b c b c d d a a, by the numbers of their connections.
    let expected = ["3.1:1", "4.1:2", "3.1:3", "4.1:4", "5.1:5", "5.1:6", "2.1:7", "2.1:8"];
    assert_eq!(world.tagged(), expected);
    assert_eq!(world.stored(Q), 1, "nobody has a slot for the ninth");
}

#[test]
fn queues_of_a_worker_share_its_slots() {
    let (mut world, producer, one, _) = workers();
    world.create(&producer, "other/0", changes(Status::RoundRobin));
    let slots = Workers::default().slots(1);
    world.consume(&one, 1, slotted(0, &slots));
    let other = QueueSubscription { terms: slotted(0, &slots), ..subscription("other/0", 2) };
    world.request(&one, Request::SubscribeQueue(Box::new(other))).unwrap();
    world.publish(&producer, Q, "a");
    world.publish(&producer, "other/0", "b");
    assert_eq!((world.tagged(), slots.free()), (vec!["2.1:a".to_owned()], 0));
    world.settle(&one, 1, "a", None);
    assert!(world.tagged().is_empty(), "settled is not ready");
    assert_eq!((slots.give(1), slots.give(1)), (Some(1), None));
    assert!(world.tagged().is_empty(), "no queue was notified");
    world.command(&one, Command::RoomFor { queue: queue("other/0") });
    assert_eq!((world.tagged(), slots.free()), (vec!["2.2:b".to_owned()], 0));
}

#[test]
fn a_slot_is_free_again_if_a_handler_keeps_the_message() {
    let (mut world, producer, one, _) = workers();
    world.broker.register_handler(handler("picky", &[Step::CanConsumerReceive]));
    let picky = QueueChanges { delivery_handler: Some("picky".into()), ..changes(Status::RoundRobin) };
    world.update(&producer, Q, picky);
    let slots = Workers::default().slots(1);
    world.consume(&one, 1, slotted(0, &slots));
    world.publish(&producer, Q, "a");
    assert_eq!(slots.free(), 0, "taken while the handler thinks");
    world.answer(Step::CanConsumerReceive, Decision::REFUSE);
    assert_eq!((world.tagged(), slots.free()), (vec![], 1));
    world.publish(&producer, Q, "b");
    world.answer(Step::CanConsumerReceive, ALLOW);
    assert_eq!((world.tagged(), slots.free()), (vec!["2.1:b".to_owned()], 0));
}

// ---- Random runs -----------------------------------------------------------------------------------------

const CLIENTS: usize = 3;

#[derive(Debug, Clone)]
enum Op {
    Publish,
    Consume { client: usize, tag: u32, terms: Terms },
    Unsubscribe { client: usize, tag: u32 },
    Settle { nth: usize, negative: bool },
    SettleAll { client: usize, tag: u32, negative: bool },
    Congest { client: usize, on: bool },
}

fn terms() -> impl Strategy<Value = Terms> {
    prop_oneof![Just(EXPLICIT), Just(AT_ONCE), (1..4_u32).prop_map(window)]
}

fn op() -> impl Strategy<Value = Op> {
    let (client, tag) = (0..CLIENTS, 1..3_u32);
    prop_oneof![
        6 => Just(Op::Publish),
        2 => (client.clone(), tag.clone(), terms())
            .prop_map(|(client, tag, terms)| Op::Consume { client, tag, terms }),
        1 => (client.clone(), tag.clone()).prop_map(|(client, tag)| Op::Unsubscribe { client, tag }),
        5 => (any::<usize>(), any::<bool>()).prop_map(|(nth, negative)| Op::Settle { nth, negative }),
        1 => (client.clone(), tag, any::<bool>())
            .prop_map(|(client, tag, negative)| Op::SettleAll { client, tag, negative }),
        1 => (client, any::<bool>()).prop_map(|(client, on)| Op::Congest { client, on }),
    ]
}

/// A simple model of a queue: its subscriptions, waiting messages, and messages in flight.
#[derive(Default)]
struct Model {
    members: Vec<(usize, u32, Terms)>,
    cursor: usize,
    waiting: VecDeque<(String, u16)>,
    held: Vec<(usize, u32, String, u16)>,
    congested: [bool; CLIENTS],
}

impl Model {
    fn count(&self, client: usize, tag: u32) -> usize {
        self.held.iter().filter(|held| (held.0, held.1) == (client, tag)).count()
    }

    /// Delivers as many messages as possible; returns their receivers.
    fn work(&mut self) -> Vec<String> {
        let mut seen = Vec::new();
        while let Some((id, put_backs)) = self.waiting.front().cloned() {
            let count = self.members.len();
            let free = |at: &usize| {
                let (client, tag, terms) = &self.members[*at];
                let (client, tag) = (*client, *tag);
                let room = terms.window == 0 || self.count(client, tag) < terms.window as usize;
                room && !self.congested[client]
            };
            let Some(at) = (0..count).map(|step| (self.cursor + step) % count).find(free) else { break };
            self.cursor = (at + 1) % count;
            let (client, tag, terms) = self.members[at].clone();
            self.waiting.pop_front();
            let again = if put_backs > 0 { format!("+{put_backs}") } else { String::new() };
            seen.push(format!("{}.{tag}:{id}{again}", client + 2));
            if terms.settling == Settling::Explicit {
                self.held.push((client, tag, id, put_backs));
            }
        }
        seen
    }

    fn leave(&mut self, client: usize, tag: u32) {
        let Some(at) = self.members.iter().position(|member| (member.0, member.1) == (client, tag)) else {
            return;
        };
        self.members.remove(at);
        if at < self.cursor {
            self.cursor -= 1;
        }
        if self.members.is_empty() {
            self.cursor = 0;
        }
        let mut kept = Vec::new();
        for (client_, tag_, id, put_backs) in std::mem::take(&mut self.held).into_iter().rev() {
            if (client_, tag_) == (client, tag) {
                self.waiting.push_front((id, put_backs + 1));
            } else {
                kept.push((client_, tag_, id, put_backs));
            }
        }
        kept.reverse();
        self.held = kept;
    }

    fn settle(&mut self, at: usize, negative: bool) {
        let (_, _, id, put_backs) = self.held.remove(at);
        if negative {
            self.waiting.push_back((id, put_backs + 1));
        }
    }
}

fn run(ops: Vec<Op>) {
    let mut world = World::new();
    let producer = world.client("producer");
    let clients: Vec<_> = (0..CLIENTS).map(|number| world.client(&format!("c{number}"))).collect();
    world.create(
        &producer,
        Q,
        QueueChanges { put_back_limit: Some(u16::MAX), ..changes(Status::RoundRobin) },
    );
    let (mut model, mut next) = (Model::default(), 0);
    for op in ops {
        match op {
            Op::Publish => {
                next += 1;
                model.waiting.push_back((format!("m{next}"), 0));
                world.publish(&producer, Q, &format!("m{next}"));
            }
            Op::Consume { client, tag, terms } => {
                match model.members.iter_mut().find(|member| (member.0, member.1) == (client, tag)) {
                    // Messages in flight keep the old terms; the model supports one kind only.
                    Some(_) => continue,
                    None => model.members.push((client, tag, terms.clone())),
                }
                world.consume(&clients[client], tag, terms);
            }
            Op::Unsubscribe { client, tag } => {
                let known = model.members.iter().any(|member| (member.0, member.1) == (client, tag));
                model.leave(client, tag);
                assert_eq!(world.unsubscribe(&clients[client], tag).is_ok(), known);
            }
            Op::Settle { nth, negative } => {
                if model.held.is_empty() {
                    continue;
                }
                let at = nth % model.held.len();
                let (client, tag, id, _) = model.held[at].clone();
                model.settle(at, negative);
                world.settle(&clients[client], tag, &id, negative.then_some("no"));
            }
            Op::SettleAll { client, tag, negative } => {
                while let Some(at) = model.held.iter().position(|held| (held.0, held.1) == (client, tag)) {
                    model.settle(at, negative);
                }
                world.settle_all(&clients[client], tag, negative.then_some("no"));
            }
            Op::Congest { client, on } => {
                model.congested[client] = on;
                let connection = clients[client].connection;
                if on {
                    world.broker.congested(connection, world.now, &mut world.effects);
                } else {
                    world.broker.writable(connection, world.now, &mut world.effects);
                }
                world.turn();
            }
        }
        assert_eq!(world.tagged(), model.work());
        let information = world.information(Q);
        let counts = (information.normal as usize, information.in_flight as usize);
        assert_eq!(counts, (model.waiting.len(), model.held.len()));
    }
    let held: BTreeMap<_, _> = model.held.iter().map(|held| (&held.2, ())).collect();
    assert_eq!(held.len(), model.held.len(), "nobody has what somebody else has");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(mqcore_testkit::by_depth(100, 400)))]

    #[test]
    fn random_subscribers_get_what_a_simple_queue_would_give_them(ops in proptest::collection::vec(op(), 1..120)) {
        run(ops);
    }
}
