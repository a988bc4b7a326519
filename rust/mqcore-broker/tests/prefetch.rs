//! Clients that join a channel for some of its queues, and how many messages they prefetch.

use crate::world;

use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::{Acknowledgement, Command, EventKind, Nack, Request, Retry};
use mqcore_broker::model::config::BrokerConfig;
use mqcore_broker::model::decision::Step;
use mqcore_broker::model::effect::{Effect, PullOutcome, Reply};
use mqcore_broker::model::id::{ChannelName, ConnectionId, Tag};
use mqcore_broker::model::message::{Message, Properties};
use mqcore_broker::model::options::{ChannelChanges, QueueChanges, Status};
use mqcore_broker::model::page::Page;
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::subscription::QueueJoin;
use world::{ALLOW, World, acknowledged, changes, handler, queue};

const TIMEOUT: Duration = Duration::from_secs(4);

trait Prefetching {
    fn join_queues(
        &mut self,
        client: &Arc<Client>,
        queues: &[u16],
        prefetch: u32,
    ) -> Result<Reply, Rejection>;
    fn leave_queues(&mut self, client: &Arc<Client>, queues: &[u16]) -> Result<Reply, Rejection>;
    fn give_back(&mut self, client: &Arc<Client>, address: &str, id: &str);
    fn extend(&mut self, client: &Arc<Client>, address: &str, id: &str);
    fn members(&mut self, admin: &Arc<Client>) -> usize;
}

fn channel() -> ChannelName {
    ChannelName::new("orders").expect("a good name")
}

impl Prefetching for World {
    fn join_queues(
        &mut self,
        client: &Arc<Client>,
        queues: &[u16],
        prefetch: u32,
    ) -> Result<Reply, Rejection> {
        let join = QueueJoin { channel: channel(), queues: queues.to_vec(), prefetch };
        self.request(client, Request::JoinQueues(Box::new(join)))
    }

    fn leave_queues(&mut self, client: &Arc<Client>, queues: &[u16]) -> Result<Reply, Rejection> {
        self.request(client, Request::LeaveQueues { channel: channel(), queues: queues.to_vec() })
    }

    fn give_back(&mut self, client: &Arc<Client>, address: &str, id: &str) {
        let refusal = Some(Nack::new("consumer-closed", Retry::Unstarted));
        let word = Acknowledgement { refusal, ..World::word(address, id, None) };
        self.command(client, Command::Acknowledge(word));
    }

    fn extend(&mut self, client: &Arc<Client>, address: &str, id: &str) {
        let (queue, message_id) = (queue(address), id.as_bytes().into());
        self.command(client, Command::Extend { queue, tag: Tag::CHANNEL, message_id });
    }

    fn members(&mut self, admin: &Arc<Client>) -> usize {
        match self.request(admin, Request::ListConsumers { channel: channel(), page: Page::default() }) {
            Ok(Reply::Clients(clients)) => clients.items.len(),
            other => panic!("{other:?}"),
        }
    }
}

/// A producer, two consumers, and two queues that request acknowledgements.
fn siblings(status: Status) -> (World, Arc<Client>, Arc<Client>, Arc<Client>) {
    let mut world = World::new();
    let (producer, one, two) = (world.client("producer"), world.client("one"), world.client("two"));
    for address in ["orders/1", "orders/2"] {
        let changes = QueueChanges { acknowledge_timeout: Some(TIMEOUT), ..acknowledged(status) };
        world.create(&producer, address, changes);
    }
    (world, producer, one, two)
}

#[test]
fn consumers_of_sibling_queues_receive_only_their_own_queue() {
    for status in [Status::RoundRobin, Status::Push, Status::Broadcast] {
        let (mut world, producer, one, two) = siblings(status);
        world.join_queues(&one, &[1], 10).unwrap();
        world.join_queues(&two, &[2], 10).unwrap();
        for id in ["a", "b"] {
            world.publish(&producer, "orders/1", id);
        }
        world.publish(&producer, "orders/2", "c");
        assert_eq!(world.delivered(), ["one:a", "one:b", "two:c"], "{status:?}");
    }
}

#[test]
fn a_member_of_the_channel_shares_a_queue_with_a_consumer_of_that_queue() {
    let (mut world, producer, one, two) = siblings(Status::RoundRobin);
    world.join(&one, "orders").unwrap();
    world.join_queues(&two, &[1], 10).unwrap();
    for id in ["a", "b", "c"] {
        world.publish(&producer, "orders/1", id);
    }
    world.publish(&producer, "orders/2", "d");
    assert_eq!(world.delivered(), ["one:a", "two:b", "one:c", "one:d"]);
    world.leave_queues(&two, &[1]).unwrap();
    world.publish(&producer, "orders/1", "e");
    assert_eq!(world.delivered(), ["one:e"]);
}

#[test]
fn prefetch_limits_in_flight_deliveries() {
    let (mut world, producer, one, _) = siblings(Status::RoundRobin);
    world.join_queues(&one, &[1], 2).unwrap();
    for id in ["a", "b", "c", "d", "e"] {
        world.publish(&producer, "orders/1", id);
    }
    assert_eq!(world.delivered(), ["one:a", "one:b"]);
    world.ack(&one, "orders/1", "a");
    assert_eq!(world.delivered(), ["one:c"]);
    // A new join changes the terms of later deliveries.
    world.join_queues(&one, &[1], 3).unwrap();
    world.turn();
    assert_eq!(world.delivered(), ["one:d"]);
    world.join_queues(&one, &[1], 1).unwrap();
    world.ack(&one, "orders/1", "b");
    world.ack(&one, "orders/1", "c");
    assert_eq!(world.delivered(), [""; 0]);
    world.ack(&one, "orders/1", "d");
    assert_eq!(world.delivered(), ["one:e"]);
}

#[test]
fn messages_of_a_lost_consumer_go_before_those_that_wait() {
    let (mut world, producer, one, two) = siblings(Status::RoundRobin);
    world.join_queues(&one, &[1], 2).unwrap();
    for id in ["a", "b", "c"] {
        world.publish(&producer, "orders/1", id);
    }
    assert_eq!(world.delivered(), ["one:a", "one:b"]);
    world.close(&one);
    world.join_queues(&two, &[1], 9).unwrap();
    assert_eq!(world.delivered(), ["two:a", "two:b", "two:c"]);
}

#[test]
fn a_slow_consumer_gets_no_more_than_its_prefetch_while_a_fast_one_gets_the_rest() {
    let (mut world, producer, one, two) = siblings(Status::RoundRobin);
    world.join_queues(&one, &[1], 1).unwrap();
    world.join_queues(&two, &[1], 1).unwrap();
    for id in ["a", "b", "c", "d", "e"] {
        world.publish(&producer, "orders/1", id);
    }
    for id in ["b", "c", "d"] {
        world.ack(&two, "orders/1", id);
    }
    assert_eq!(world.delivered(), ["one:a", "two:b", "two:c", "two:d", "two:e"]);
}

#[test]
fn prefetch_holds_with_a_handler_that_decides_about_many_messages_at_once() {
    for step in [Step::BeginSend, Step::CanConsumerReceive, Step::ConsumerReceived] {
        let mut world = World::new();
        world.broker.register_handler(handler("asks", &[step]));
        let (producer, one) = (world.client("producer"), world.client("one"));
        let options =
            QueueChanges { delivery_handler: Some("asks".into()), ..acknowledged(Status::RoundRobin) };
        world.create(&producer, "orders/1", options);
        world.join_queues(&one, &[1], 8).unwrap();
        let ids: Vec<String> = (0..20).map(|n| n.to_string()).collect();
        for id in &ids {
            world.publish(&producer, "orders/1", id);
        }
        assert!(world.questions.len() > 1, "{step:?}: questions are asked side by side");
        let mut delivered = Vec::new();
        while !world.questions.is_empty() {
            world.answer(step, ALLOW);
            delivered.extend(world.delivered());
        }
        assert_eq!(delivered.len(), 8, "{step:?}");
        while delivered.len() < 20 {
            let id = ids[delivered.len() - 8].clone();
            world.ack(&one, "orders/1", &id);
            while !world.questions.is_empty() {
                world.answer(step, ALLOW);
            }
            delivered.extend(world.delivered());
        }
        let expected: Vec<_> = ids.iter().map(|id| format!("one:{id}")).collect();
        assert_eq!(delivered, expected, "{step:?}");
    }
}

#[test]
fn a_consumer_that_joins_while_a_handler_decides_gets_no_more_than_its_prefetch() {
    for step in [Step::BeginSend, Step::CanConsumerReceive] {
        let mut world = World::new();
        world.broker.register_handler(handler("asks", &[step]));
        let (producer, one, two) = (world.client("producer"), world.client("one"), world.client("two"));
        let options = QueueChanges { delivery_handler: Some("asks".into()), ..acknowledged(Status::Push) };
        world.create(&producer, "orders/1", options);
        world.join_queues(&one, &[1], 10).unwrap();
        for id in ["a", "b", "c", "d"] {
            world.publish(&producer, "orders/1", id);
        }
        world.join_queues(&two, &[1], 2).unwrap();
        let mut delivered = Vec::new();
        while !world.questions.is_empty() {
            world.answer(step, ALLOW);
            delivered.extend(world.delivered());
        }
        let of = |client: &str| delivered.iter().filter(|one| one.starts_with(client)).count();
        assert_eq!(of("one"), 4, "{step:?}: {delivered:?}");
        assert!(of("two") <= 2, "{step:?}: {delivered:?}");
        for id in ["a", "b", "c", "d"] {
            world.ack(&one, "orders/1", id);
            world.ack(&two, "orders/1", id);
        }
        world.publish(&producer, "orders/1", "e");
        while !world.questions.is_empty() {
            world.answer(step, ALLOW);
        }
        let mut last = world.delivered();
        last.sort();
        assert_eq!(last, ["one:e", "two:e"], "{step:?}");
    }
}

#[test]
fn a_message_waits_if_only_a_consumer_without_room_is_left_once_a_handler_has_decided() {
    let mut world = World::new();
    world.broker.register_handler(handler("asks", &[Step::BeginSend]));
    let (producer, one, two) = (world.client("producer"), world.client("one"), world.client("two"));
    let options = QueueChanges { delivery_handler: Some("asks".into()), ..acknowledged(Status::Push) };
    world.create(&producer, "orders/1", options);
    world.join_queues(&one, &[1], 10).unwrap();
    for id in ["a", "b", "c"] {
        world.publish(&producer, "orders/1", id);
    }
    world.join_queues(&two, &[1], 1).unwrap();
    world.leave_queues(&one, &[1]).unwrap();
    let mut delivered = Vec::new();
    for id in ["a", "b", "c"] {
        while !world.questions.is_empty() {
            world.answer(Step::BeginSend, ALLOW);
        }
        delivered.extend(world.delivered());
        assert_eq!(
            delivered.last().map(String::as_str),
            Some(&*format!("two:{id}")),
            "one at a time, in order"
        );
        world.ack(&two, "orders/1", id);
    }
    assert_eq!(delivered, ["two:a", "two:b", "two:c"]);
}

/// The deliveries since the last call: consumers, number of the attempt, and whether they joined for the queue.
fn attempts(world: &mut World) -> Vec<(Vec<ConnectionId>, u16, bool)> {
    let mut made = Vec::new();
    world.effects.retain(|effect| match effect {
        Effect::Deliver(deliver) => {
            made.push((deliver.to.as_slice().to_vec(), deliver.attempt, deliver.by_queue));
            false
        }
        _ => true,
    });
    made
}

#[test]
fn repeated_deliveries_to_consumers_of_queues_are_apart_from_those_to_members_of_the_channel() {
    let (mut world, producer, one, two) = siblings(Status::Push);
    let three = world.client("three");
    world.join(&one, "orders").unwrap();
    world.join_queues(&two, &[1], 10).unwrap();
    world.join_queues(&three, &[1], 10).unwrap();
    world.publish(&producer, "orders/1", "a");
    let all = [&one, &two, &three].map(|client| client.connection);
    assert_eq!(attempts(&mut world), [(all.to_vec(), 1, false)]);
    for client in [&one, &two, &three] {
        world.nack(client, "orders/1", "a", "no");
    }
    world.turn();
    let by_queue = (all[1..].to_vec(), 2, true);
    assert_eq!(attempts(&mut world), [by_queue, (all[..1].to_vec(), 2, false)]);
    assert_eq!(world.information("orders/1").stats.sent, 2, "once for each attempt");
}

#[test]
fn several_consumers_share_one_attempt() {
    for steps in [&[][..], &[Step::BeginSend]] {
        let mut world = World::new();
        world.broker.register_handler(handler("asks", steps));
        let (producer, one, two) = (world.client("producer"), world.client("one"), world.client("two"));
        let options = QueueChanges { delivery_handler: Some("asks".into()), ..acknowledged(Status::Push) };
        world.create(&producer, "orders/1", options);
        world.join_queues(&one, &[1], 10).unwrap();
        world.join_queues(&two, &[1], 10).unwrap();
        for attempt in 1..=2 {
            if attempt == 1 {
                world.publish(&producer, "orders/1", "a");
            }
            while !world.questions.is_empty() {
                world.answer(Step::BeginSend, ALLOW);
            }
            let made = attempts(&mut world);
            assert!(made.iter().all(|(_, number, _)| *number == attempt), "{steps:?}: {made:?}");
            assert_eq!(made.iter().map(|(to, ..)| to.len()).sum::<usize>(), 2);
            for client in [&one, &two] {
                world.nack(client, "orders/1", "a", "no");
            }
            world.turn();
        }
    }
}

#[test]
fn a_join_by_queues_counts_as_a_join_of_the_channel() {
    let mut world = World::new();
    let (admin, one, two) = (world.client("admin"), world.client("one"), world.client("two"));
    let changes = ChannelChanges { client_limit: Some(1), ..ChannelChanges::default() };
    world.create_channel(&admin, "orders", changes);
    for address in ["orders/1", "orders/2"] {
        world.create(&admin, address, acknowledged(Status::RoundRobin));
    }
    world.subscribe(&admin, EventKind::ClientJoined, "orders", true);
    world.subscribe(&admin, EventKind::ClientLeft, "orders", true);
    world.join_queues(&one, &[1], 1).unwrap();
    world.join_queues(&one, &[2], 5).unwrap();
    assert_eq!(world.events(&admin), ["ClientJoined"]);
    assert_eq!(world.members(&admin), 1);
    let refused = world.join_queues(&two, &[1], 1).unwrap_err();
    assert_eq!(refused.kind, RejectionKind::LimitExceeded);
    assert_eq!(world.join(&two, "orders").unwrap_err().kind, RejectionKind::LimitExceeded);
    world.leave_queues(&one, &[1]).unwrap();
    assert_eq!(world.events(&admin), [""; 0]);
    world.leave_queues(&one, &[2]).unwrap();
    assert_eq!(world.events(&admin), ["ClientLeft"]);
    assert_eq!(world.leave_queues(&one, &[2]).unwrap_err().kind, RejectionKind::NotFound);
    assert_eq!(world.members(&admin), 0);
}

#[test]
fn a_join_without_queues_receives_nothing_and_may_pull() {
    let (mut world, producer, one, _) = siblings(Status::RoundRobin);
    world.update(&producer, "orders/2", changes(Status::Pull));
    world.publish(&producer, "orders/2", "p");
    assert_eq!(world.pull(&one, "orders/2", 1), (vec![], Some(PullOutcome::Unauthorized)));
    world.join_queues(&one, &[], 0).unwrap();
    world.publish(&producer, "orders/1", "a");
    assert_eq!(world.delivered(), [""; 0]);
    assert_eq!(world.pull(&one, "orders/2", 1), (vec!["p".to_owned()], Some(PullOutcome::Complete)));
    // It stays for its pulls when it consumes no queue any more.
    world.join_queues(&one, &[1], 1).unwrap();
    assert_eq!(world.delivered(), ["one:a"]);
    world.leave_queues(&one, &[1]).unwrap();
    assert_eq!(world.members(&producer), 1);
    world.leave(&one, "orders");
    assert_eq!(world.members(&producer), 0);
}

#[test]
fn a_pull_through_a_handler_reaches_a_client_that_consumes_another_queue() {
    let mut world = World::new();
    world.broker.register_handler(handler("asks", &[Step::BeginSend]));
    let (producer, one) = (world.client("producer"), world.client("one"));
    let options = QueueChanges { delivery_handler: Some("asks".into()), ..acknowledged(Status::Pull) };
    world.create(&producer, "orders/2", options);
    world.create(&producer, "orders/1", acknowledged(Status::RoundRobin));
    world.join_queues(&one, &[1], 1).unwrap();
    world.publish(&producer, "orders/2", "p");
    world.pull(&one, "orders/2", 1);
    world.answer(Step::BeginSend, ALLOW);
    assert_eq!(world.notifications(one.connection).len(), 2, "the message and the end of the pull");
    world.ack(&one, "orders/2", "p");
    assert_eq!(world.information("orders/2").unsettled, 0);
}

#[test]
fn a_join_by_queues_replaces_a_join_of_the_channel() {
    let (mut world, producer, one, _) = siblings(Status::RoundRobin);
    world.join(&one, "orders").unwrap();
    world.subscribe(&producer, EventKind::ClientLeft, "orders", true);
    assert_eq!(world.leave_queues(&one, &[1]).unwrap_err().kind, RejectionKind::Unacceptable);
    world.join_queues(&one, &[1], 1).unwrap();
    world.publish(&producer, "orders/2", "b");
    world.publish(&producer, "orders/1", "a");
    assert_eq!(world.delivered(), ["one:a"]);
    assert_eq!((world.members(&producer), world.events(&producer).len()), (1, 0));
}

#[test]
fn a_missing_queue_is_created_if_the_configuration_allows_it_and_refused_otherwise() {
    let (mut world, _, one, _) = siblings(Status::RoundRobin);
    let refused = world.join_queues(&one, &[1, 7], 1).unwrap_err();
    assert_eq!((refused.kind, refused.reason.contains("orders/7")), (RejectionKind::NotFound, true));
    assert_eq!(world.members(&one), 0, "all or nothing");

    let config =
        BrokerConfig { auto_create_channels: true, auto_create_queues: true, ..BrokerConfig::default() };
    let mut world = World::with(config);
    let (producer, one) = (world.client("producer"), world.client("one"));
    world.join_queues(&one, &[7], 1).unwrap();
    world.publish(&producer, "orders/7", "a");
    assert_eq!(world.delivered(), ["one:a"]);
}

#[test]
fn a_consumer_receives_from_its_queue_after_that_was_removed_and_created_again() {
    let (mut world, producer, one, _) = siblings(Status::RoundRobin);
    world.join_queues(&one, &[1], 1).unwrap();
    world.request(&producer, Request::RemoveQueue { queue: queue("orders/1") }).unwrap();
    world.create(&producer, "orders/1", acknowledged(Status::RoundRobin));
    for id in ["a", "b"] {
        world.publish(&producer, "orders/1", id);
        world.publish(&producer, "orders/2", id);
    }
    assert_eq!(world.delivered(), ["one:a"]);
    world.leave_queues(&one, &[1]).unwrap();
    assert_eq!(world.members(&producer), 0);
}

#[test]
fn a_returned_message_goes_first_and_does_not_count_as_an_attempt() {
    let (mut world, producer, one, two) = siblings(Status::RoundRobin);
    let options = QueueChanges {
        put_back_limit: Some(1),
        delivery_handler: Some("ack-on-consume".into()),
        ..QueueChanges::default()
    };
    world.update(&producer, "orders/1", options);
    world.join_queues(&one, &[1], 3).unwrap();
    for id in ["a", "b", "c", "d"] {
        world.publish(&producer, "orders/1", id);
    }
    world.ack(&one, "orders/1", "a");
    world.leave_queues(&one, &[1]).unwrap();
    for id in ["d", "c", "b"] {
        world.give_back(&one, "orders/1", id);
    }
    world.delivered();
    let stats = world.information("orders/1").stats;
    assert_eq!((stats.negative_acks, stats.requeued), (0, 3));
    assert_eq!(world.heard(&producer), ["a ok by one"], "and nothing about those that were returned");
    for _ in 0..5 {
        world.join_queues(&two, &[1], 1).unwrap();
        assert_eq!(world.seen(), [("two".to_owned(), "b".to_owned(), true)], "as if never delivered");
        world.leave_queues(&two, &[1]).unwrap();
        world.give_back(&two, "orders/1", "b");
    }
    world.join_queues(&two, &[1], 9).unwrap();
    assert_eq!(world.delivered(), ["two:b", "two:c", "two:d"]);
}

#[test]
fn a_returned_message_that_another_consumer_has_is_settled_by_that_one() {
    let (mut world, producer, one, two) = siblings(Status::Push);
    world.join_queues(&one, &[1], 3).unwrap();
    world.join_queues(&two, &[1], 3).unwrap();
    world.publish(&producer, "orders/1", "a");
    world.publish(&producer, "orders/1", "b");
    assert_eq!(world.delivered().len(), 4);
    world.leave_queues(&one, &[1]).unwrap();
    world.ack(&two, "orders/1", "b");
    for id in ["b", "a"] {
        world.give_back(&one, "orders/1", id);
    }
    assert_eq!(world.information("orders/1").unsettled, 1);
    world.ack(&two, "orders/1", "a");
    assert_eq!((world.information("orders/1").unsettled, world.stored("orders/1")), (0, 0));
    assert_eq!(world.delivered(), [""; 0]);
}

#[test]
fn a_message_that_is_returned_while_a_handler_decides_about_its_delivery_is_delivered_again() {
    for (step, status) in [
        (Step::ConsumerReceived, Status::RoundRobin),
        (Step::EndSend, Status::RoundRobin),
        (Step::EndSend, Status::Push),
    ] {
        let mut world = World::new();
        world.broker.register_handler(handler("asks", &[step]));
        let (producer, one, two) = (world.client("producer"), world.client("one"), world.client("two"));
        let options = QueueChanges { delivery_handler: Some("asks".into()), ..acknowledged(status) };
        world.create(&producer, "orders/1", options);
        world.join_queues(&one, &[1], 10).unwrap();
        for id in ["a", "b", "c"] {
            world.publish(&producer, "orders/1", id);
        }
        assert_eq!(world.delivered(), ["one:a", "one:b", "one:c"], "{step:?}");
        world.leave_queues(&one, &[1]).unwrap();
        world.ack(&one, "orders/1", "a");
        for id in ["c", "b"] {
            world.give_back(&one, "orders/1", id);
        }
        assert_eq!(world.stored("orders/1"), 2, "{step:?}: only the acknowledged message is gone");
        while !world.questions.is_empty() {
            world.answer(step, ALLOW);
        }
        world.join_queues(&two, &[1], 10).unwrap();
        let expected = ["b", "c"].map(|id| ("two".to_owned(), id.to_owned(), true));
        assert_eq!(world.seen(), expected, "{step:?}: as if never delivered");
        while !world.questions.is_empty() {
            world.answer(step, ALLOW);
        }
        for id in ["b", "c"] {
            world.ack(&two, "orders/1", id);
        }
        assert_eq!((world.stored("orders/1"), world.information("orders/1").unsettled), (0, 0), "{step:?}");
    }
}

/// Publishes a message with an id that other messages may have too.
fn publish_body(world: &mut World, client: &Arc<Client>, id: &str, body: &str) {
    let properties = Properties { hops: 15, content_type: 1, ..Properties::default() };
    let message = Message::from_parts(id.as_bytes(), b"", body.as_bytes(), properties, Some(client.clone()));
    world.command(client, Command::Publish { queue: queue("orders/1"), message });
}

/// Bodies that were delivered since the last call.
fn delivered_bodies(world: &mut World) -> Vec<String> {
    let effects = std::mem::take(&mut world.effects).into_iter();
    let bodies = effects.filter_map(|effect| match effect {
        Effect::Deliver(deliver) => Some(String::from_utf8_lossy(deliver.message.body()).into_owned()),
        _ => None,
    });
    bodies.collect()
}

#[test]
fn of_several_messages_with_one_id_the_oldest_is_settled_first() {
    let (mut world, producer, one, _) = siblings(Status::RoundRobin);
    world.join_queues(&one, &[1], 1000).unwrap();
    for round in 0..100 {
        // Other deliveries come and go, so the table of deliveries has free places in other positions.
        let others: Vec<String> = (0..20).map(|number| format!("other-{round}-{number}")).collect();
        for id in &others {
            publish_body(&mut world, &producer, id, id);
        }
        let id = format!("shared-{round}");
        publish_body(&mut world, &producer, &id, "first");
        for id in &others {
            world.ack(&one, "orders/1", id);
        }
        publish_body(&mut world, &producer, &id, "second");
        delivered_bodies(&mut world);
        world.nack(&one, "orders/1", &id, "later");
        world.ack(&one, "orders/1", &id);
        world.turn();
        assert_eq!(delivered_bodies(&mut world), ["first"], "round {round}");
        world.ack(&one, "orders/1", &id);
        assert_eq!(world.information("orders/1").unsettled, 0);
    }
}

#[test]
fn more_time_for_an_id_is_more_time_for_all_messages_with_it() {
    let (mut world, producer, one, _) = siblings(Status::RoundRobin);
    world.join_queues(&one, &[1], 2).unwrap();
    for body in ["first", "second"] {
        publish_body(&mut world, &producer, "shared", body);
    }
    world.advance(TIMEOUT * 3 / 4);
    world.extend(&one, "orders/1", "shared");
    world.advance(TIMEOUT * 3 / 4);
    assert_eq!(world.information("orders/1").stats.negative_acks, 0);
    world.advance(TIMEOUT / 2);
    assert_eq!(world.information("orders/1").stats.negative_acks, 2);
}

#[test]
fn extending_a_delivery_restarts_its_timeout() {
    let (mut world, producer, one, _) = siblings(Status::RoundRobin);
    let timeouts = |world: &World| world.information("orders/1").stats.negative_acks;
    world.join_queues(&one, &[1], 2).unwrap();
    world.publish(&producer, "orders/1", "a");
    for _ in 0..5 {
        world.advance(TIMEOUT * 3 / 4);
        world.extend(&one, "orders/1", "a");
        world.extend(&one, "orders/1", "unknown");
    }
    assert_eq!(timeouts(&world), 0);
    world.advance(TIMEOUT - Duration::from_millis(1));
    assert_eq!(timeouts(&world), 0);
    world.advance(Duration::from_millis(1));
    assert_eq!(timeouts(&world), 1);
}

#[test]
fn an_extended_delivery_keeps_its_place_when_its_consumer_is_lost() {
    let (mut world, producer, one, two) = siblings(Status::RoundRobin);
    world.join_queues(&one, &[1], 2).unwrap();
    for id in ["a", "b"] {
        world.publish(&producer, "orders/1", id);
    }
    assert_eq!(world.delivered(), ["one:a", "one:b"]);
    world.extend(&one, "orders/1", "a");
    world.close(&one);
    world.join_queues(&two, &[1], 2).unwrap();
    assert_eq!(world.delivered(), ["two:a", "two:b"]);
}

#[test]
fn the_answer_names_the_terms_of_each_queue() {
    let (mut world, producer, one, _) = siblings(Status::RoundRobin);
    let quiet = QueueChanges { request_acknowledge: Some(false), ..QueueChanges::default() };
    world.update(&producer, "orders/2", quiet);
    match world.join_queues(&one, &[2, 1], 9) {
        Ok(Reply::JoinedQueues(joined)) => {
            assert_eq!((joined.join.queues.as_slice(), joined.join.prefetch), (&[2, 1][..], 9));
            assert_eq!(joined.acknowledge_timeouts, [None, Some(TIMEOUT)]);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn returned_message_is_the_latest_of_those_with_its_id() {
    for count in 2..12_u8 {
        let (mut world, producer, one, two) = siblings(Status::RoundRobin);
        world.join_queues(&one, &[1], 20).unwrap();
        for number in 0..count {
            let properties = Properties { pending_acknowledge: true, ..Properties::default() };
            let message =
                Message::from_parts(b"same", b"", &[number], properties, Some(Arc::clone(&producer)));
            world.command(&producer, Command::Publish { queue: queue("orders/1"), message });
        }
        assert_eq!(world.delivered().len(), usize::from(count));
        world.leave_queues(&one, &[1]).unwrap();
        // Its program has started the first one only.
        for _ in 1..count {
            world.give_back(&one, "orders/1", "same");
        }
        world.ack(&one, "orders/1", "same");
        world.delivered();
        world.join_queues(&two, &[1], 20).unwrap();
        let deliveries = world.effects.iter().filter_map(|effect| match effect {
            Effect::Deliver(deliver) => Some(deliver.message.body()[0]),
            _ => None,
        });
        assert_eq!(deliveries.collect::<Vec<_>>(), (1..count).collect::<Vec<_>>());
    }
}

#[test]
fn a_postponed_message_lets_others_pass_and_its_attempt_does_not_count() {
    let (mut world, producer, one, _two) = siblings(Status::RoundRobin);
    world.join_queues(&one, &[1], 1).unwrap();
    for id in ["a", "b"] {
        world.publish(&producer, "orders/1", id);
    }
    assert_eq!(world.delivered(), ["one:a"]);
    let not_before = world.now.after(Duration::from_secs(1));
    let refusal = Some(Nack::new("concurrency", Retry::Postponed(not_before)));
    let word = Acknowledgement { refusal, ..World::word("orders/1", "a", None) };
    world.command(&one, Command::Acknowledge(word));
    assert_eq!(world.delivered(), ["one:b"]);
    world.command(&one, Command::Acknowledge(World::word("orders/1", "b", None)));
    assert!(world.delivered().is_empty());
    world.advance(Duration::from_secs(1));
    assert_eq!(world.delivered(), ["one:a"]);
}
