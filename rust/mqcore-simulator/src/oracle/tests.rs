//! Histories that keep the rules, and histories that break one.

use super::*;
use crate::oracle::labels::SeenPublish;
use crate::scenario::definitions::QueueChange;
use crate::scenario::{ACKNOWLEDGE_TIMEOUT, RouteKind, SimulatedQueue};
use mqcore_broker::model::router::RouterMethod;

const LINK: ConnectionId = ConnectionId(1);
const PRODUCER: ConnectionId = ConnectionId(2);
const OTHER: ConnectionId = ConnectionId(3);
const LATER: Micros = 100;
/// When a calm ends.
const CALM: Micros = 60_000_000;

/// An oracle with two queues, two consumers with a prefetch of 2, and three confirmed messages of the first queue.
fn oracle() -> Oracle {
    let queue = SimulatedQueue {
        address: "channel/1".to_owned(),
        saves: true,
        durability: Durability::Fsync,
        promise: Durability::Fsync,
        status: Status::RoundRobin,
        one_at_a_time: false,
        retry_delay_ms: 0,
        dead_letter: None,
        deduplicates: false,
        handler: None,
        concurrency: Some(1),
    };
    let topic = SimulatedRoute { kind: RouteKind::Topic { by_pattern: false }, queues: vec![0, 1] };
    let router = SimulatedRoute { kind: RouteKind::Router(RouterMethod::RoundRobin), queues: vec![0, 1] };
    let scenario = Scenario {
        queues: vec![queue.clone(), queue],
        routes: vec![topic, router],
        output_bytes_max: 1 << 20,
        ..Scenario::of_seed(0)
    };
    let mut oracle = Oracle::new(&scenario);
    oracle.opened(LINK, 2);
    oracle.opened(PRODUCER, 0);
    oracle.opened(OTHER, 2);
    for _ in 0..3 {
        let label = oracle.published(publish(Target::Queue(0), PublishTerms::default()), 0);
        oracle.answered(label, 0, true, 1);
    }
    oracle
}

fn publish(target: Target, terms: PublishTerms) -> SeenPublish {
    SeenPublish { target, link: PRODUCER, terms, size: 10, is_answered: true }
}

fn rule(oracle: &Oracle) -> Option<&'static str> {
    oracle.finding().map(|finding| finding.rule)
}

#[test]
fn a_history_without_faults_keeps_all_rules() {
    let mut oracle = oracle();
    for label in 0..3 {
        oracle.delivered(label, 0, LINK, false, LATER);
        oracle.settled(label, LINK, true, 10);
    }
    oracle.calm(&[true, true], CALM, 0);
    assert_eq!(rule(&oracle), None);
}

#[test]
fn unpublished_messages_and_those_of_other_queues_are_phantoms() {
    for (label, queue) in [(9, 0), (0, 1)] {
        let mut oracle = oracle();
        oracle.delivered(label, queue, LINK, false, LATER);
        assert_eq!(rule(&oracle), Some("phantom"), "message {label} of queue {queue}");
    }
}

#[test]
fn rejected_messages_are_not_delivered() {
    let mut oracle = oracle();
    oracle.answered(0, 0, false, 1);
    oracle.delivered(0, 0, LINK, false, LATER);
    assert_eq!(rule(&oracle), Some("rejected"));
}

#[test]
fn a_repetition_needs_a_reason() {
    let again = |prepare: &dyn Fn(&mut Oracle), now: Micros| {
        let mut oracle = oracle();
        oracle.delivered(0, 0, LINK, false, LATER);
        prepare(&mut oracle);
        oracle.delivered(0, 0, OTHER, true, now);
        rule(&oracle)
    };
    assert_eq!(again(&|_| {}, 2 * LATER), Some("doubled"));
    assert_eq!(again(&|oracle| oracle.settled(0, LINK, true, 10), 2 * LATER), Some("doubled"));
    assert_eq!(again(&|oracle| oracle.settled(0, LINK, false, 10), 2 * LATER), None, "rejected");
    assert_eq!(again(&|oracle| oracle.closed(LINK, 0, LATER), 2 * LATER), None, "connection lost");
    assert_eq!(again(&|_| {}, LATER + ACKNOWLEDGE_TIMEOUT), None, "timed out");
    assert_eq!(again(&|oracle| oracle.doubt(OTHER, LATER), 2 * LATER), None, "sent before, and read late");
}

#[test]
fn first_deliveries_keep_their_order() {
    let mut oracle = oracle();
    oracle.delivered(1, 0, LINK, false, LATER);
    oracle.delivered(0, 0, LINK, true, LATER);
    assert_eq!(rule(&oracle), None, "repeated messages have another place");
    let mut oracle = self::oracle();
    oracle.delivered(1, 0, LINK, false, LATER);
    oracle.delivered(0, 0, LINK, false, LATER);
    assert_eq!(rule(&oracle), Some("order"));
}

#[test]
fn messages_that_a_router_passes_on_from_a_removed_or_full_queue_may_be_overtaken() {
    for change in [QueueChange::Remove, QueueChange::Limit(2)] {
        let mut oracle = oracle();
        oracle.redefined(1, change);
        let labels: Vec<u32> = (0..2)
            .map(|_| oracle.published(publish(Target::Route(1), PublishTerms::default()), LATER))
            .collect();
        labels.iter().rev().for_each(|label| oracle.delivered(*label, 0, LINK, false, 2 * LATER));
        assert_eq!(rule(&oracle), None);
    }
}

#[test]
fn delayed_and_expired_messages_have_their_time() {
    let finding = |terms: PublishTerms, prepare: &dyn Fn(&mut Oracle), now: Micros| {
        let mut oracle = oracle();
        let label = oracle.published(publish(Target::Queue(0), terms), 0);
        prepare(&mut oracle);
        oracle.delivered(label, 0, LINK, false, now);
        rule(&oracle)
    };
    let delayed = PublishTerms { delay_ms: 50, ..PublishTerms::default() };
    assert_eq!(finding(delayed, &|_| {}, 48_000), Some("early"));
    assert_eq!(finding(delayed, &|_| {}, 50_000), None);
    let expiring = PublishTerms { expires_ms: 100, ..PublishTerms::default() };
    let expired = 100_000 + 2 * TRANSIT_MAX + 1;
    assert_eq!(finding(expiring, &|_| {}, expired), Some("late"));
    assert_eq!(finding(expiring, &|_| {}, 90_000), None);
    assert_eq!(finding(expiring, &|oracle| oracle.doubt(LINK, LATER), expired), None, "read late");
}

#[test]
fn first_deliveries_of_other_priorities_and_of_delayed_messages_have_no_order() {
    let high = PublishTerms { priority: 9, ..PublishTerms::default() };
    let delayed = PublishTerms { delay_ms: 1, ..PublishTerms::default() };
    for (terms, expected) in [(high, None), (delayed, None), (PublishTerms::default(), Some("order"))] {
        let mut oracle = oracle();
        let label = oracle.published(publish(Target::Queue(0), terms), 0);
        oracle.delivered(label, 0, LINK, false, 10_000);
        oracle.delivered(0, 0, LINK, false, 10_000);
        assert_eq!(rule(&oracle), expected, "{terms:?}");
    }
}

#[test]
fn dead_letters_are_delivered_by_their_new_queue() {
    let mut oracle = oracle();
    oracle.queues[0].dead_letter = Some(1);
    oracle.delivered(0, 1, OTHER, false, LATER);
    assert_eq!(rule(&oracle), None);
    // A queue without consumers may still have its messages, and so may the queue of its dead letters.
    oracle.calm(&[true, false], CALM, 0);
    oracle.calm(&[false, true], CALM, 0);
    assert_eq!(rule(&oracle), None);
    oracle.calm(&[true, true], CALM, 0);
    assert_eq!(rule(&oracle), Some("lost"));
}

#[test]
fn only_a_crash_or_a_faulty_disk_may_double_a_dead_letter() {
    let twice = |prepare: &dyn Fn(&mut Oracle)| {
        let mut oracle = oracle();
        oracle.queues[0].dead_letter = Some(1);
        prepare(&mut oracle);
        oracle.delivered(0, 0, LINK, false, LATER);
        oracle.delivered(0, 1, OTHER, false, LATER);
        rule(&oracle)
    };
    assert_eq!(twice(&|_| {}), Some("doubled"));
    assert_eq!(twice(&|oracle| oracle.ended(Ending::Killed, LATER)), None);
    assert_eq!(twice(&|oracle| oracle.doubt_rejections(true, LATER)), None);
}

#[test]
fn a_third_message_exceeds_a_prefetch_of_two() {
    let mut oracle = oracle();
    for label in 0..3 {
        assert_eq!(rule(&oracle), None);
        oracle.delivered(label, 0, LINK, false, LATER);
    }
    assert_eq!(rule(&oracle), Some("prefetch"));
}

#[test]
fn workers_run_no_more_jobs_with_one_key_than_they_may() {
    let second = |between: &dyn Fn(&mut Oracle), key: Option<u32>| {
        let mut oracle = oracle();
        [LINK, OTHER].into_iter().for_each(|link| oracle.works(link));
        oracle.keyed(0, 1);
        key.into_iter().for_each(|key| oracle.keyed(1, key));
        oracle.delivered(0, 0, LINK, false, LATER);
        between(&mut oracle);
        oracle.delivered(1, 0, OTHER, false, LATER);
        rule(&oracle)
    };
    assert_eq!(second(&|_| {}, Some(1)), Some("concurrency"));
    assert_eq!(second(&|_| {}, Some(2)), None, "another key");
    assert_eq!(second(&|_| {}, None), None, "no key");
    assert_eq!(
        second(&|oracle| oracle.settled(0, LINK, false, 10), Some(1)),
        None,
        "the first one has ended"
    );
    assert_eq!(second(&|oracle| oracle.closed(LINK, 0, LATER), Some(1)), None, "its worker is gone");
    let move_first = |oracle: &mut Oracle| {
        oracle.queues[0].dead_letter = Some(1);
        oracle.settled(0, LINK, false, 10);
        oracle.delivered(0, 1, LINK, false, LATER);
    };
    assert_eq!(second(&move_first, Some(1)), None, "the first one is a dead letter in another queue");
}

#[test]
fn confirmed_messages_are_lost_unless_an_acknowledgement_arrived() {
    let settle = |oracle: &mut Oracle, label| {
        oracle.delivered(label, 0, LINK, false, LATER);
        oracle.settled(label, LINK, true, 10 * u64::from(label) + 10);
    };
    let mut oracle = oracle();
    (0..3).for_each(|label| settle(&mut oracle, label));
    // The third acknowledgement ends at byte 30.
    oracle.closed(LINK, 29, LATER);
    oracle.calm(&[false, true], CALM, 0);
    assert_eq!(rule(&oracle), None, "there is no consumer");
    oracle.calm(&[true, true], CALM, 0);
    assert_eq!(rule(&oracle), Some("lost"));
}

#[test]
fn a_late_rejection_of_an_earlier_delivery_does_not_undo_an_acknowledgement() {
    let mut oracle = oracle();
    oracle.delivered(0, 0, LINK, false, LATER);
    for label in 1..3 {
        oracle.delivered(label, 0, LINK, false, LATER);
        oracle.settled(label, LINK, true, 10);
    }
    oracle.delivered(0, 0, LINK, true, LATER + ACKNOWLEDGE_TIMEOUT);
    oracle.settled(0, LINK, true, 20);
    oracle.settled(0, LINK, false, 30);
    oracle.calm(&[true, true], CALM, 0);
    assert_eq!(rule(&oracle), None);
}

#[test]
fn a_crash_excuses_only_what_was_not_promised() {
    for (ending, lost) in [(Ending::Killed, true), (Ending::PowerLost, true)] {
        let mut oracle = oracle();
        oracle.ended(ending, LATER);
        oracle.calm(&[true, true], CALM, 0);
        assert_eq!(rule(&oracle).is_some(), lost, "{ending:?} of a queue that syncs");
        let mut oracle = self::oracle();
        oracle.queues[0].durability = Durability::None;
        oracle.ended(ending, LATER);
        oracle.calm(&[true, true], CALM, 0);
        assert_eq!(rule(&oracle), None, "{ending:?} of a queue that does not");
    }
}

#[test]
fn a_message_of_an_earlier_calm_does_not_return() {
    let mut oracle = oracle();
    for label in 0..3 {
        oracle.delivered(label, 0, LINK, false, LATER);
        oracle.settled(label, LINK, true, 10);
    }
    oracle.calm(&[true, true], CALM, 0);
    oracle.ended(Ending::PowerLost, LATER);
    oracle.delivered(1, 0, LINK, true, 2 * LATER);
    assert_eq!(rule(&oracle), Some("settled-returns"));
}

#[test]
fn a_message_that_was_settled_long_before_a_crash_does_not_return() {
    let returns = |offset: u64, ended: Micros| {
        let mut oracle = oracle();
        oracle.delivered(0, 0, LINK, false, LATER);
        oracle.settled(0, LINK, true, offset);
        oracle.closed(LINK, 100, ended);
        oracle.ended(Ending::Killed, ended);
        oracle.delivered(0, 0, OTHER, true, ended + LATER);
        rule(&oracle)
    };
    assert_eq!(returns(10, LATER + SETTLED_AFTER), Some("settled-returns"));
    assert_eq!(returns(10, LATER + SETTLED_AFTER - 1), None, "the settlement may not be synced");
    let mut oracle = oracle();
    oracle.delivered(0, 0, LINK, false, LATER);
    oracle.settled(0, LINK, true, 10);
    oracle.closed(LINK, 100, LATER);
    oracle.ended(Ending::PowerLost, LATER);
    oracle.ended(Ending::Killed, LATER + SETTLED_AFTER);
    oracle.delivered(0, 0, OTHER, true, 2 * SETTLED_AFTER);
    assert_eq!(rule(&oracle), None, "the first crash has undone it");
    assert_eq!(returns(101, LATER + SETTLED_AFTER), None, "the settlement has not arrived");
}

#[test]
fn a_message_that_an_operator_cleared_may_be_dropped_as_a_duplicate() {
    let mut oracle = oracle();
    oracle.redefined(0, QueueChange::Clear);
    oracle.republished(0, PRODUCER);
    oracle.answered(0, 0, true, LATER);
    oracle.calm(&[true, true], CALM, 0);
    assert_eq!(rule(&oracle), None);
}

#[test]
fn a_downstream_brokers_message_is_lost_only_if_it_was_confirmed() {
    let lost = |is_confirmed: bool, crashes: bool| {
        let mut oracle = oracle();
        let label = oracle.published(publish(Target::Queue(0), PublishTerms::default()), 0);
        oracle.forwarded(label);
        if crashes {
            oracle.ended(Ending::PowerLost, LATER);
        }
        if is_confirmed {
            oracle.accepted(label, 2 * LATER);
        }
        for label in 0..3 {
            oracle.delivered(label, 0, LINK, false, 3 * LATER);
            oracle.settled(label, LINK, true, 10);
        }
        oracle.calm(&[true, true], CALM, 0);
        rule(&oracle)
    };
    assert_eq!(lost(true, false), Some("lost"));
    assert_eq!(lost(true, true), Some("lost"), "it is sent again after the crash");
    assert_eq!(lost(false, true), Some("unanswered"));
}

#[test]
fn a_job_that_runs_once_is_delivered_to_one_worker_and_need_not_be_finished() {
    let job = || {
        let mut oracle = oracle();
        oracle.works(LINK);
        oracle.runs_once(0);
        for label in 1..3 {
            oracle.delivered(label, 0, OTHER, false, LATER);
            oracle.settled(label, OTHER, true, 10);
        }
        oracle
    };
    let mut lost = job();
    lost.calm(&[true, true], CALM, 0);
    assert_eq!(rule(&lost), Some("lost"));
    let mut lost_with_its_worker = job();
    lost_with_its_worker.closed(LINK, 100, LATER);
    lost_with_its_worker.calm(&[true, true], CALM, 0);
    assert_eq!(rule(&lost_with_its_worker), None);
    let again = |prepare: &dyn Fn(&mut Oracle)| {
        let mut oracle = job();
        oracle.delivered(0, 0, LINK, false, LATER);
        prepare(&mut oracle);
        oracle.delivered(0, 0, OTHER, true, 2 * LATER);
        rule(&oracle)
    };
    assert_eq!(again(&|oracle| oracle.calm(&[true, true], LATER, 0)), Some("doubled"), "it is not lost");
    assert_eq!(again(&|oracle| oracle.settled(0, LINK, false, 10)), Some("doubled"));
    assert_eq!(again(&|oracle| oracle.closed(LINK, 100, LATER)), Some("doubled"));
    assert_eq!(again(&|oracle| oracle.ended(Ending::Killed, LATER)), None, "a crash undoes it");
}

#[test]
fn a_publish_on_an_open_connection_is_answered() {
    let mut oracle = oracle();
    oracle.published(publish(Target::Queue(1), PublishTerms::default()), 0);
    oracle.calm(&[false, false], CALM, 0);
    assert_eq!(rule(&oracle), Some("unanswered"));
}

#[test]
fn a_confirmation_of_a_topic_stands_for_each_queue_if_its_bindings_are_defined() {
    let lost = |is_defined: bool| {
        let mut oracle = oracle();
        if is_defined {
            oracle.defined(0);
        }
        let label = oracle.published(publish(Target::Route(0), PublishTerms::default()), 0);
        oracle.answered(label, 0, true, 1);
        for label in 0..=label {
            oracle.delivered(label, 0, LINK, false, LATER);
            oracle.settled(label, LINK, true, 10);
        }
        oracle.calm(&[true, true], CALM, 0);
        rule(&oracle)
    };
    assert_eq!(lost(true), Some("lost"), "the second queue has no copy");
    assert_eq!(lost(false), None);
}

#[test]
fn a_subscriber_misses_no_message_and_hears_each_once_in_order() {
    let hear = |order: &[u32]| {
        let mut oracle = oracle();
        oracle.opened(ConnectionId(9), 0);
        oracle.listens(ConnectionId(9), Target::Route(0), 0);
        for _ in 0..2 {
            let label = oracle.published(publish(Target::Route(0), PublishTerms::default()), 1);
            oracle.answered(label, 0, true, 2);
        }
        order.iter().for_each(|label| oracle.heard(*label, Target::Route(0), ConnectionId(9)));
        oracle.check_fanout();
        rule(&oracle)
    };
    assert_eq!(hear(&[3, 4]), None);
    assert_eq!(hear(&[3]), Some("missed"));
    assert_eq!(hear(&[4, 3]), Some("order"));
    assert_eq!(hear(&[3, 4, 4]), Some("doubled"));
    assert_eq!(hear(&[0]), Some("phantom"));
}

#[test]
fn a_cache_has_the_latest_message_that_was_confirmed_before_it_is_read() {
    let read = |label: Option<u32>, asked: Micros| {
        let mut oracle = oracle();
        let label_of = |oracle: &mut Oracle, at| {
            let label = oracle.published(publish(Target::Queue(1), PublishTerms::default()), at);
            oracle.answered(label, 0, true, at + 5);
        };
        label_of(&mut oracle, 10);
        label_of(&mut oracle, 20);
        oracle.cached(1, label, asked);
        rule(&oracle)
    };
    assert_eq!(read(Some(4), 30), None);
    assert_eq!(read(Some(3), 30), Some("stale"));
    assert_eq!(read(Some(3), 22), None, "the later one is not confirmed");
    assert_eq!(read(None, 30), Some("lost"));
    assert_eq!(read(Some(0), 30), Some("phantom"));
}

#[test]
fn a_message_that_is_published_again_is_delivered_once() {
    let again = |prepare: &dyn Fn(&mut Oracle)| {
        let mut oracle = oracle();
        oracle.delivered(0, 0, LINK, false, LATER);
        oracle.settled(0, LINK, true, 10);
        prepare(&mut oracle);
        oracle.republished(0, PRODUCER);
        oracle.answered(0, 0, true, 2 * LATER);
        oracle.delivered(0, 0, OTHER, false, 2 * LATER);
        rule(&oracle)
    };
    assert_eq!(again(&|_| {}), Some("doubled"));
    let calm = |oracle: &mut Oracle| {
        (1..3).for_each(|label| {
            oracle.delivered(label, 0, LINK, false, LATER);
            oracle.settled(label, LINK, true, 10);
        })
    };
    let crash = |oracle: &mut Oracle| {
        calm(oracle);
        oracle.calm(&[true, true], CALM, 0);
        oracle.closed(LINK, 100, LATER);
        oracle.ended(Ending::PowerLost, LATER);
    };
    assert_eq!(again(&crash), Some("settled-returns"));
    let forgets = |oracle: &mut Oracle| {
        oracle.queues[0].saves = false;
        oracle.ended(Ending::Killed, LATER);
        oracle.closed(LINK, 100, LATER);
    };
    assert_eq!(again(&forgets), None);
}
