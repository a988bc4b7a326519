//! Statistics that are collected in steps: everything is counted once, whatever happens between the steps.

use std::collections::BTreeSet;

use mqcore_broker::model::command::{Command, Request};
use mqcore_broker::model::id::{ChannelName, RequestId, RouterName, TopicName};
use mqcore_broker::model::message::{Message, Properties};
use mqcore_broker::model::options::{ChannelChanges, Status};
use mqcore_broker::model::router::RouterMethod;
use mqcore_broker::model::stats::ShardStats;
use mqcore_broker::model::topic::TopicPattern;
use mqcore_testkit::Random;

use crate::world::{World, changes, queue};

/// All steps of a collection, and their number. `between` runs after each step.
fn collect(w: &mut World, limit: usize, mut between: impl FnMut(&mut World, usize)) -> (ShardStats, usize) {
    let mut collection = w.broker.begin_stats(limit);
    for step in 1.. {
        if w.broker.continue_stats(&mut collection, w.now) {
            return (collection.into_stats(), step);
        }
        between(w, step);
    }
    unreachable!("a collection ends")
}

/// Messages that arrived in queues, including removed ones.
fn received(stats: &ShardStats) -> u64 {
    stats.totals.stats.received + stats.retired.received
}

fn publish_topic(w: &mut World, name: &str) {
    let p = w.client(&format!("producer of {name}"));
    let message = Message::from_parts(b"m", b"", b"body", Properties::default(), Some(p.clone()));
    let topic = TopicName::new(name.as_bytes()).unwrap();
    w.command(&p, Command::PublishTopic { topic, message, to_producer: true, answer: Some(RequestId(1)) });
    w.turn();
}

#[test]
fn many_entries_take_many_steps_and_are_all_counted() {
    let mut w = World::new();
    let p = w.client("p");
    for channel in 0..30 {
        for id in 0..100 {
            w.create(&p, &format!("c{channel:02}/{id}"), changes(Status::Pull));
        }
    }
    // Channels without queues cost steps too.
    for channel in 0..2_000 {
        w.create_channel(&p, &format!("empty-{channel}"), ChannelChanges::default());
    }
    for number in 0..200 {
        w.publish(&p, &format!("c{:02}/{}", number % 30, number % 100), "m");
    }
    let whole = w.broker.stats(w.now);
    assert_eq!((whole.queues.len(), whole.channels.len()), (3_000, 2_030));
    let (stats, steps) = collect(&mut w, 10, |_, _| {});
    assert!((5..15).contains(&steps), "{steps} steps");
    assert_eq!((stats.counts.queues, stats.counts.channels), (3_000, 2_030));
    assert_eq!((stats.totals, stats.counts), (whole.totals, whole.counts));
    assert_eq!((stats.totals.ready, received(&stats)), (200, 200));
    assert_eq!(stats.queues, whole.queues[..10], "the first ones by name");
    assert_eq!(stats.channels, whole.channels[..10]);
}

#[test]
fn lists_have_the_first_entries_by_name_or_id() {
    let mut w = World::new();
    for id in ["d", "b", "c", "a"] {
        w.client(id);
    }
    let p = w.client("p");
    for name in ["z", "x", "y"] {
        let router = RouterName::new(name).unwrap();
        w.request(&p, Request::CreateRouter { router, method: RouterMethod::Distribute }).unwrap();
        let pattern = TopicPattern::Exact(TopicName::new(name.as_bytes()).unwrap());
        w.request(&p, Request::SubscribeTopic { pattern }).unwrap();
    }
    let (stats, _) = collect(&mut w, 2, |_, _| {});
    let clients: Vec<_> = stats.clients.iter().map(|client| &*client.client.id).collect();
    assert_eq!(clients, ["b", "a"], "the first ids, oldest first");
    let topics: Vec<_> = stats.topics.iter().map(|topic| topic.topic.to_string()).collect();
    assert_eq!(topics, ["x", "y"]);
    assert_eq!(stats.topics[0].subscribers, 1);
    let routers: Vec<_> = stats.routers.iter().map(|router| router.name.as_str()).collect();
    assert_eq!(routers, ["x", "y"]);
    let counts = stats.counts;
    assert_eq!((counts.clients, counts.topics, counts.routers), (5, 3, 3));
    let (stats, _) = collect(&mut w, 0, |_, _| {});
    assert_eq!((stats.clients.len(), stats.topics.len(), stats.routers.len()), (0, 0, 0));
    assert_eq!(stats.counts, counts);
}

#[test]
fn sums_of_counters_never_decrease_whatever_is_removed_between_the_steps() {
    for seed in mqcore_testkit::seeds(20, 200) {
        let mut random = Random::new(seed);
        let mut w = World::new();
        let p = w.client("p");
        let mut existing = BTreeSet::new();
        let (mut published, mut before) = (0, 0);
        for _ in 0..3 {
            // So many queues that their part takes several steps.
            while existing.len() < 2_500 {
                let name = format!("c{}/{}", random.below(50), random.below(60_000));
                if existing.insert(name.clone()) {
                    w.create(&p, &name, changes(Status::Pull));
                }
            }
            let (stats, _) = collect(&mut w, 3, |w, _| {
                for _ in 0..random.below(40) {
                    let name =
                        existing.iter().nth(random.below(existing.len() as u64) as usize).unwrap().clone();
                    w.publish(&p, &name, "m");
                    published += 1;
                    if random.below(2) == 0 {
                        existing.remove(&name);
                        w.request(&p, Request::RemoveQueue { queue: queue(&name) }).unwrap();
                    }
                }
                if random.below(4) == 0 {
                    let channel = ChannelName::new(&format!("c{}", random.below(50))).unwrap();
                    existing.retain(|name| !name.starts_with(&format!("{channel}/")));
                    // It may have been removed before.
                    let _ = w.request(&p, Request::RemoveChannel { channel });
                }
                w.effects.clear();
            });
            let now = received(&stats);
            assert!((before..=published).contains(&now), "seed {seed}: {now} after {before}, of {published}");
            let (after, _) = collect(&mut w, 3, |_, _| {});
            assert_eq!(received(&after), published, "seed {seed}");
            before = published;
        }
    }
}

#[test]
fn topics_are_counted_also_after_they_are_forgotten() {
    let mut w = World::new();
    for number in 0..20 {
        publish_topic(&mut w, &format!("t{number}"));
    }
    let (stats, _) = collect(&mut w, 3, |_, _| {});
    assert_eq!((stats.topic_totals.published, stats.topic_totals.dropped_no_consumer), (20, 20));
    assert_eq!((stats.topics.len(), stats.counts.topics), (3, 20));
}
