//! Topics over several shards: receivers of published messages, compared with lists that are searched linearly.

use crate::shards;

use std::collections::{BTreeMap, BTreeSet};

use mqcore_broker::model::command::{Command, Request};
use mqcore_broker::model::effect::{Effect, Event, Reply};
use mqcore_broker::model::id::{RequestId, TopicName};
use mqcore_broker::model::message::{Message, Properties};
use mqcore_broker::model::options::{QueueChanges, Status};
use mqcore_broker::model::rejection::RejectionKind;
use mqcore_broker::model::topic::{PASSING_MAX, PATTERNS_MAX, SUBSCRIPTIONS_MAX, TopicLimits, TopicPattern};
use mqcore_testkit::Random;
use shards::{Shards, queue};

fn topic(name: &str) -> TopicName {
    TopicName::new(name.as_bytes()).expect("tests use short names")
}

fn exact(name: &str) -> TopicPattern {
    TopicPattern::Exact(topic(name))
}

fn mask(name: &str) -> TopicPattern {
    TopicPattern::from_name(topic(name))
}

fn prefix(name: &str) -> TopicPattern {
    TopicPattern::Prefix(topic(name))
}

fn subscribe(shards: &mut Shards, who: usize, pattern: TopicPattern) {
    shards.request(who, Request::SubscribeTopic { pattern }).expect("nothing is in the way");
}

/// Publishes a message; returns its receivers in the order of the effects, and the number of receivers in the answer.
fn publish(shards: &mut Shards, who: usize, name: &str, to_producer: bool) -> (Vec<String>, u32) {
    let message = Message::from_parts(b"m", b"", b"body", Properties::default(), Some(shards.client(who)));
    let answer = Some(RequestId(u32::MAX - 1));
    let command = Command::PublishTopic { topic: topic(name), message, to_producer, answer };
    let effects = shards.command(who, command);
    let mut got = Vec::new();
    let mut receivers = 0;
    for effect in effects {
        match effect {
            Effect::Publication(publication) => {
                assert_eq!(publication.topic, topic(name));
                got.extend(publication.to.as_slice().iter().map(|to| shards.name(*to)));
            }
            Effect::Notify(_, Event::Answered(_, Ok(Reply::Published(count)))) => receivers = count,
            other => panic!("publishing to a topic does not cause {other:?}"),
        }
    }
    (got, receivers)
}

#[test]
fn message_reaches_exactly_the_subscribers_of_its_topic() {
    let mut shards = Shards::new(3, 3);
    subscribe(&mut shards, 1, exact("news"));
    subscribe(&mut shards, 2, exact("News"));
    assert_eq!(publish(&mut shards, 0, "news", true), (vec!["c1".to_owned()], 1));
    assert_eq!(publish(&mut shards, 0, "other", true), (vec![], 0));
    let stats = shards.topic_stats();
    assert_eq!((stats.published, stats.delivered, stats.dropped_no_consumer), (2, 1, 1));
    assert_eq!(stats.published_bytes, 8);
}

#[test]
fn client_with_several_matches_gets_a_message_once() {
    let mut shards = Shards::new(2, 2);
    for pattern in [exact("a.b"), exact("a.b"), mask("a.*"), prefix("a"), prefix("")] {
        subscribe(&mut shards, 1, pattern);
    }
    assert_eq!(publish(&mut shards, 0, "a.b", true).0, ["c1"]);
    shards.request(1, Request::UnsubscribeTopic { pattern: exact("a.b") }).expect("it had subscribed");
    assert_eq!(publish(&mut shards, 0, "a.b", true).0, ["c1"], "the patterns are still there");
}

#[test]
fn unsubscribing_without_a_subscription_is_an_error() {
    let mut shards = Shards::new(2, 1);
    for pattern in [exact("t"), mask("t.*")] {
        let refused = shards.request(0, Request::UnsubscribeTopic { pattern: pattern.clone() });
        assert_eq!(refused.unwrap_err().kind, RejectionKind::NotFound);
        subscribe(&mut shards, 0, pattern.clone());
        shards.request(0, Request::UnsubscribeTopic { pattern }).expect("now it had");
    }
    assert_eq!(publish(&mut shards, 0, "t", true).0, [""; 0]);
}

#[test]
fn a_producer_gets_its_own_message_only_if_it_wants_that() {
    let mut shards = Shards::new(1, 2);
    subscribe(&mut shards, 0, exact("t"));
    subscribe(&mut shards, 1, mask("t*"));
    subscribe(&mut shards, 1, exact("t"));
    assert_eq!(publish(&mut shards, 0, "t", true).0, ["c0", "c1"]);
    assert_eq!(publish(&mut shards, 0, "t", false).0, ["c1"]);
    assert_eq!(publish(&mut shards, 1, "t", false).0, ["c0"]);
    assert_eq!(publish(&mut shards, 1, "t", true).0, ["c0", "c1"]);
}

#[test]
fn messages_missed_by_slow_subscribers_are_counted() {
    let mut shards = Shards::new(2, 3);
    subscribe(&mut shards, 1, exact("t"));
    subscribe(&mut shards, 2, exact("t"));
    shards.congested(1, true);
    assert_eq!(publish(&mut shards, 0, "t", true), (vec!["c2".to_owned()], 1));
    shards.congested(2, true);
    assert_eq!(publish(&mut shards, 0, "t", true), (vec![], 0));
    shards.congested(1, false);
    assert_eq!(publish(&mut shards, 0, "t", true).0, ["c1"]);
    let stats = shards.topic_stats();
    assert_eq!((stats.dropped_slow, stats.dropped_no_consumer), (4, 0));
}

#[test]
fn each_bound_queue_gets_a_copy_as_if_it_had_been_published_there() {
    let mut shards = Shards::new(4, 2);
    let names = ["one/1", "two/2", "three/3", "Four/4"];
    for name in names {
        shards.create_pull_queue(name);
        shards.request(0, Request::BindTopic { pattern: mask("e.*"), queue: queue(name) }).expect("fine");
        shards.request(0, Request::BindTopic { pattern: exact("e.x"), queue: queue(name) }).expect("fine");
    }
    assert_eq!(publish(&mut shards, 1, "e.x", true), (vec![], 4));
    assert_eq!(publish(&mut shards, 1, "e.y", true), (vec![], 4));
    for name in names {
        assert_eq!(shards.stored(name), 2, "{name}");
    }
    let unbind = Request::UnbindTopic { pattern: mask("e.*"), queue: queue("ONE/1") };
    shards.request(0, unbind).expect("channels have no case");
    assert_eq!(publish(&mut shards, 1, "e.x", true), (vec![], 4));
    assert_eq!(publish(&mut shards, 1, "e.y", true), (vec![], 3));
    assert_eq!([shards.stored("one/1"), shards.stored("two/2")], [3, 4]);
}

#[test]
fn copy_for_a_missing_queue_is_dropped_and_counted() {
    let mut shards = Shards::new(2, 1);
    shards.request(0, Request::BindTopic { pattern: exact("t"), queue: queue("later/1") }).expect("fine");
    assert_eq!(publish(&mut shards, 0, "t", true).1, 0);
    shards.create_pull_queue("later/1");
    assert_eq!(publish(&mut shards, 0, "t", true).1, 1);
    assert_eq!(shards.stored("later/1"), 1);
    assert_eq!(shards.dropped_no_consumer(), 1);
}

#[test]
fn answer_counts_only_the_queues_that_took_their_copy() {
    let mut shards = Shards::new(4, 2);
    for name in ["one/1", "two/2", "three/3"] {
        let changes = QueueChanges {
            status: Some(Status::Pull),
            message_limit: (name == "two/2").then_some(1),
            ..QueueChanges::default()
        };
        shards.create_queue(name, changes);
        shards.request(0, Request::BindTopic { pattern: exact("t"), queue: queue(name) }).expect("fine");
    }
    subscribe(&mut shards, 1, exact("t"));
    assert_eq!(publish(&mut shards, 0, "t", true).1, 4);
    assert_eq!(publish(&mut shards, 0, "t", true).1, 3);
    assert_eq!(["one/1", "two/2", "three/3"].map(|name| shards.stored(name)), [2, 1, 2]);
}

#[test]
fn closed_connection_leaves_its_topics() {
    let mut shards = Shards::new(2, 2);
    for pattern in [exact("t"), exact("u"), mask("t.*")] {
        subscribe(&mut shards, 1, pattern);
    }
    shards.close(1);
    for name in ["t", "u", "t.x"] {
        assert_eq!(publish(&mut shards, 0, name, true).0, [""; 0], "{name}");
    }
}

#[test]
fn connection_has_a_maximum_of_topics_and_patterns() {
    let mut shards = Shards::new(1, 2);
    for number in 0..SUBSCRIPTIONS_MAX {
        subscribe(&mut shards, 0, exact(&format!("t{number}")));
    }
    let one_more = Request::SubscribeTopic { pattern: exact("more") };
    assert_eq!(shards.request(0, one_more.clone()).unwrap_err().kind, RejectionKind::LimitExceeded);
    for number in 0..PATTERNS_MAX {
        subscribe(&mut shards, 0, mask(&format!("t{number}.*")));
    }
    let refused = shards.request(0, Request::SubscribeTopic { pattern: mask("more.*") });
    assert_eq!(refused.unwrap_err().kind, RejectionKind::LimitExceeded);
    subscribe(&mut shards, 0, exact("t0"));
    shards.request(1, one_more).expect("the limit is each connection's own");
}

#[test]
fn topic_limits_are_those_of_the_configuration() {
    let limits = TopicLimits { subscriptions_max: 2, patterns_max: 3, patterns_per_user_max: 10 };
    let mut shards = Shards::with(1, 2, |config| config.topic_limits = limits);
    for name in ["a", "b", "a.*", "b.*", "c.*"] {
        subscribe(&mut shards, 1, mask(name));
    }
    for (name, limit) in [("c", "limit of 2 topics"), ("d.*", "limit of 3 patterns of a connection")] {
        let refused = shards.request(1, Request::SubscribeTopic { pattern: mask(name) }).unwrap_err();
        assert_eq!(refused.kind, RejectionKind::LimitExceeded);
        assert!(refused.to_string().contains(limit), "{refused}");
    }
    subscribe(&mut shards, 1, mask("a.*"));
    assert_eq!(shards.brokers[0].stats(shards.now).topics_rejected, 2);
    for name in ["c", "d.*"] {
        assert_eq!(publish(&mut shards, 0, name, true).0, [""; 0], "{name}");
    }
    shards.request(1, Request::UnsubscribeTopic { pattern: mask("b.*") }).expect("it had subscribed");
    subscribe(&mut shards, 1, mask("d.*"));
    assert_eq!(publish(&mut shards, 0, "d.x", true).0, ["c1"]);
}

#[test]
fn masks_made_to_be_expensive_still_find_their_topics() {
    let mut shards = Shards::new(1, 11);
    let mut random = Random::new(3);
    for who in 1..11 {
        for _ in 0..1_000 {
            let stars = (0..20).map(|_| if random.below(2) == 0 { "*a" } else { "*b" });
            let pattern = mask(&(stars.collect::<String>() + ".x"));
            subscribe(&mut shards, who, pattern);
        }
    }
    let start = shards.brokers[0].stats(shards.now).pattern_steps;
    let letters = "ab".repeat(100);
    assert_eq!(publish(&mut shards, 0, &format!("{letters}.y"), true).0, [""; 0]);
    assert_eq!(publish(&mut shards, 0, &format!("{letters}.x"), true).0.len(), 10);
    let steps = shards.brokers[0].stats(shards.now).pattern_steps - start;
    // Two publishes, and the statistics of two topics. Following all masks would take 30 million steps for each.
    assert!(steps < 200 * 10_000, "{steps}");
}

#[test]
fn unused_topic_names_are_removed() {
    let mut shards = Shards::new(1, 2);
    subscribe(&mut shards, 1, exact("kept"));
    for number in 0..3 * PASSING_MAX {
        publish(&mut shards, 0, &format!("t{number}"), true);
    }
    let survey = shards.survey();
    assert!(survey.topics.len() <= PASSING_MAX + 1, "{}", survey.topics.len());
    assert_eq!(shards.topic_stats().published, 3 * PASSING_MAX as u64, "what was counted is not forgotten");
    assert_eq!(publish(&mut shards, 0, "kept", true).0, ["c1"]);
}

#[test]
fn as_many_unused_topic_names_stay_as_documented() {
    let mut shards = Shards::new(1, 2);
    for (others, kept) in [(PASSING_MAX - 1, PASSING_MAX), (PASSING_MAX, 0)] {
        subscribe(&mut shards, 1, exact("used"));
        for number in 0..others {
            publish(&mut shards, 0, &format!("t{number}"), true);
        }
        assert_eq!(shards.survey().topics.len(), others + 1);
        shards.request(1, Request::UnsubscribeTopic { pattern: exact("used") }).expect("it was subscribed");
        assert_eq!(shards.survey().topics.len(), kept, "beyond the maximum all of them leave");
    }
}

/// A slow, simple definition of masks: part by part, each star tried at every length.
fn fits_slowly(mask: &str, name: &str) -> bool {
    fn part(mask: &[u8], name: &[u8]) -> bool {
        match mask.split_first() {
            None => name.is_empty(),
            Some((b'*', rest)) => (0..=name.len()).any(|taken| part(rest, &name[taken..])),
            Some((byte, rest)) => name.first() == Some(byte) && part(rest, &name[1..]),
        }
    }
    let (masks, names): (Vec<_>, Vec<_>) = (mask.split('.').collect(), name.split('.').collect());
    names.len() > 1
        && masks.len() == names.len()
        && masks.iter().zip(&names).all(|(mask, name)| part(mask.as_bytes(), name.as_bytes()))
}

#[test]
fn masks_match_their_definition() {
    for (pattern, name, fits) in [
        ("*.updated", "user.updated", true),
        ("user.*.connected", "user.57e8.connected", true),
        ("e3.*", "e3.123.c", false),
        ("e3.*", "e3.", true),
        ("*", "anything", false),
        ("*", "a.b", false),
        ("*.*", ".", true),
        ("a*c.d", "abbc.d", true),
        ("a*c.d", "abb.d", false),
    ] {
        assert_eq!(mask(pattern).matches(name.as_bytes()), fits, "{pattern} {name}");
        assert_eq!(fits_slowly(pattern, name), fits, "{pattern} {name}");
    }
    let mut dice = Random::new(1);
    for _ in 0..mqcore_testkit::by_depth(50_000, 200_000) {
        let mut word = |letters: &[u8]| -> String {
            (0..dice.index(9)).map(|_| char::from(letters[dice.index(letters.len())])).collect()
        };
        let (pattern, name) = (word(b"ab.**"), word(b"ab."));
        if pattern.contains('*') {
            let fits = mask(&pattern).matches(name.as_bytes());
            assert_eq!(fits, fits_slowly(&pattern, &name), "{pattern} {name}");
        }
    }
}

#[test]
fn a_mask_of_many_stars_is_decided_quickly() {
    let stars = format!("{}b.x", "*a".repeat(120));
    let name = format!("{}.x", "a".repeat(250));
    let pattern = mask(&stars);
    let begun = std::time::Instant::now();
    for _ in 0..100 {
        assert!(!pattern.matches(name.as_bytes()));
    }
    assert!(begun.elapsed().as_secs() < 5, "it took {:?}", begun.elapsed());
}

/// The model: all state as lists.
#[derive(Default)]
struct Model {
    subscriptions: BTreeSet<(usize, TopicPattern)>,
    bindings: BTreeSet<(TopicPattern, usize)>,
    congested: BTreeSet<usize>,
    queues: BTreeMap<usize, u64>,
    slow: u64,
    lost: u64,
}

#[test]
fn random_subscriptions_bindings_and_messages_end_as_in_the_model() {
    const CLIENTS: usize = 5;
    const QUEUES: [&str; 3] = ["qa/1", "qb/2", "qc/3"];
    const TOPICS: [&str; 6] = ["a", "a.b", "a.c", "b.c", "a.b.c", ""];
    let patterns: Vec<_> = TOPICS
        .iter()
        .map(|name| exact(name))
        .chain([mask("a.*"), mask("*.c"), mask("*.*"), prefix("a."), prefix("")])
        .collect();
    for seed in mqcore_testkit::seeds(60, 300) {
        let mut dice = Random::new(seed);
        let mut shards = Shards::new(1 + seed as usize % 4, CLIENTS);
        let mut model = Model::default();
        for name in QUEUES {
            shards.create_pull_queue(name);
        }
        for step in 0..60 {
            let (who, pattern) = (dice.index(CLIENTS), patterns[dice.index(patterns.len())].clone());
            let at = dice.index(QUEUES.len());
            let bound = queue(QUEUES[at]);
            match dice.index(12) {
                0..=2 => {
                    subscribe(&mut shards, who, pattern.clone());
                    model.subscriptions.insert((who, pattern));
                }
                3 => {
                    let had = model.subscriptions.remove(&(who, pattern.clone()));
                    let done = shards.request(who, Request::UnsubscribeTopic { pattern });
                    assert_eq!(done.is_ok(), had, "seed {seed} step {step}");
                }
                4 => {
                    let bind = Request::BindTopic { pattern: pattern.clone(), queue: bound };
                    shards.request(who, bind).expect("few bindings");
                    model.bindings.insert((pattern, at));
                }
                5 => {
                    let had = model.bindings.remove(&(pattern.clone(), at));
                    let done = shards.request(who, Request::UnbindTopic { pattern, queue: bound });
                    assert_eq!(done.is_ok(), had, "seed {seed} step {step}");
                }
                6 => {
                    let on = dice.index(2) == 0;
                    shards.congested(who, on);
                    if on {
                        model.congested.insert(who);
                    } else {
                        model.congested.remove(&who);
                    }
                }
                _ => {
                    let name = TOPICS[dice.index(TOPICS.len())];
                    let to_producer = dice.index(2) == 0;
                    let (mut got, receivers) = publish(&mut shards, who, name, to_producer);
                    got.sort();
                    let reached: BTreeSet<_> = model
                        .subscriptions
                        .iter()
                        .filter(|(_, pattern)| pattern.matches(name.as_bytes()))
                        .map(|(subscriber, _)| *subscriber)
                        .filter(|subscriber| to_producer || *subscriber != who)
                        .collect();
                    let copied: BTreeSet<_> = model
                        .bindings
                        .iter()
                        .filter(|(pattern, _)| pattern.matches(name.as_bytes()))
                        .map(|(_, at)| *at)
                        .collect();
                    let free: Vec<_> = reached.difference(&model.congested).collect();
                    let expected: Vec<_> = free.iter().map(|subscriber| format!("c{subscriber}")).collect();
                    assert_eq!(got, expected, "seed {seed} step {step}");
                    assert_eq!(receivers as usize, free.len() + copied.len(), "seed {seed} step {step}");
                    model.slow += (reached.len() - free.len()) as u64;
                    model.lost += u64::from(reached.is_empty() && copied.is_empty());
                    for at in copied {
                        *model.queues.entry(at).or_default() += 1;
                    }
                }
            }
        }
        for (at, name) in QUEUES.iter().enumerate() {
            assert_eq!(
                shards.stored(name),
                model.queues.get(&at).copied().unwrap_or(0),
                "seed {seed} {name}"
            );
        }
        let stats = shards.topic_stats();
        assert_eq!((stats.dropped_slow, stats.dropped_no_consumer), (model.slow, model.lost), "seed {seed}");
    }
}
