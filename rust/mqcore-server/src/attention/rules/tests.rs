//! Tests of the rules: each problem, and the normal operation beside it.

use std::sync::Arc;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::id::{ConnectionId, QueueAddress};
use mqcore_broker::model::node::NodeInformation;
use mqcore_broker::model::stats::QueueStats;

use super::*;
use crate::handler::HandlerLoad;
use crate::stats::tasks::TaskFailure;

const START: u64 = 1_800_000_000_000;

fn quiet(at: u64) -> Observation {
    Observation {
        now: Timestamp(START + at),
        clock_offset_ms: 0,
        queues: Vec::new(),
        nodes: Vec::new(),
        cluster: None,
        handlers: Vec::new(),
        losses: Vec::new(),
        refusing_shards: Vec::new(),
        disk: None,
        publish_rejected: 0,
        connect_rejected: 0,
        archive: None,
        backup: None,
        certificates: Vec::new(),
    }
}

fn sample(queue: &str) -> QueueSample {
    QueueSample {
        queue: Arc::new(QueueAddress::parse(queue).unwrap()),
        status: Status::Push,
        handler: None,
        missing_handler: None,
        ready: 0,
        delayed: 0,
        in_flight: 0,
        undecided: 0,
        consumers: 0,
        oldest_ms: 0,
        block: None,
        blocking: Vec::new(),
        memory_bytes: 0,
        message_limit: 0,
        publish_limit: None,
        dead_letter: None,
        stats: QueueStats::default(),
    }
}

/// Rounds over one broker.
#[derive(Default)]
struct Rounds {
    tracks: QueueTracks,
    previous: Previous,
}

impl Rounds {
    fn of(first: &Observation) -> Self {
        let mut rounds = Self::default();
        rounds.look(first);
        rounds
    }

    fn look(&mut self, seen: &Observation) -> Vec<Finding> {
        self.tracks.update(&seen.queues, seen.now);
        examine(seen, &self.tracks, &mut self.previous)
    }

    /// The only finding.
    fn only(&mut self, seen: &Observation) -> Finding {
        let mut found = self.look(seen);
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }
}

fn with_queue(at: u64, sample: QueueSample) -> Observation {
    Observation { queues: vec![sample], ..quiet(at) }
}

#[test]
fn a_broker_that_works_has_no_findings() {
    let busy = |at: u64, count: u64| {
        let stats = QueueStats { received: count, deliveries: count, acks: count, ..QueueStats::default() };
        let block = Some(DeliveryBlock::PrefetchReached);
        with_queue(at, QueueSample { ready: 100, in_flight: 50, consumers: 2, block, stats, ..sample("a/1") })
    };
    let mut rounds = Rounds::of(&busy(0, 0));
    for round in 1..20 {
        assert_eq!(rounds.look(&busy(round * 1000, round * 5000)), [], "consumers are busy, and keep up");
    }
}

#[test]
fn messages_without_a_consumer_name_the_queue_their_number_and_their_age() {
    let stuck = QueueSample {
        ready: 1002,
        oldest_ms: START - 7_200_000,
        block: Some(DeliveryBlock::NoConsumers),
        ..sample("orders/1001")
    };
    let found = Rounds::default().only(&with_queue(0, stuck));
    assert_eq!((found.kind, found.subject.as_str()), (FindingKind::NoConsumer, "queue orders/1001"));
    assert_eq!(found.cause, "1,002 messages wait, the oldest for 2 h, and it has no consumer");
    assert!(
        found.remedy.contains("mqcore consume orders/1001")
            && found.remedy.contains("queue clear orders/1001")
    );
}

#[test]
fn a_pull_queue_is_reported_only_after_a_long_time_without_a_pull() {
    let waiting = |at: u64, last_sent: u64| {
        let stats = QueueStats { last_sent_ms: last_sent, ..QueueStats::default() };
        let block = Some(DeliveryBlock::NotPulled);
        with_queue(
            at,
            QueueSample { ready: 3, oldest_ms: START, status: Status::Pull, block, stats, ..sample("a/1") },
        )
    };
    let mut rounds = Rounds::of(&waiting(0, 0));
    assert_eq!(rounds.look(&waiting(299_000, 0)), []);
    assert_eq!(rounds.look(&waiting(301_000, START + 60_000)), [], "one was pulled after four minutes");
    let found = rounds.only(&waiting(361_000, START + 60_000));
    assert_eq!(found.cause, "3 messages wait, the oldest for 6 min, and no consumer has pulled for 5 min");
}

#[test]
fn a_consumer_that_acknowledges_nothing_is_slow_at_once_and_named() {
    let client = Client {
        connection: ConnectionId(1),
        id: "c1".into(),
        authenticated: false,
        name: Some("kiosk".into()),
        kind: None,
        protocol: "tmqp",
        user: None,
        admin: false,
        connected_at: Timestamp(START),
        data: None,
    };
    let stuck = |at: u64, acks: u64| {
        let stats = QueueStats { received: 60, deliveries: 50, acks, ..QueueStats::default() };
        let queue = QueueSample {
            ready: 10,
            in_flight: 50,
            consumers: 1,
            block: Some(DeliveryBlock::PrefetchReached),
            blocking: vec![Arc::new(client.clone())],
            stats,
            ..sample("a/1")
        };
        with_queue(at, queue)
    };
    let mut rounds = Rounds::of(&stuck(0, 0));
    rounds.look(&stuck(2_000, 1));
    assert_eq!(rounds.look(&stuck(4_000, 1)), [], "it acknowledged two seconds ago");
    let found = rounds.only(&stuck(5_000, 1));
    assert_eq!(found.kind, FindingKind::SlowConsumer);
    assert_eq!(
        found.cause,
        "10 messages wait and 50 are in flight; 1 consumer (kiosk), at the prefetch limit: nothing acknowledged for 3 s"
    );
}

#[test]
fn consumers_are_slow_while_the_queue_grows() {
    let growing = |at: u64, received: u64, acks: u64| {
        let stats = QueueStats { received, deliveries: acks, acks, ..QueueStats::default() };
        let block = Some(DeliveryBlock::PrefetchReached);
        with_queue(at, QueueSample { ready: received - acks, consumers: 2, block, stats, ..sample("a/1") })
    };
    let mut rounds = Rounds::of(&growing(0, 0, 0));
    rounds.look(&growing(1_000, 2_000, 900));
    let found = rounds.only(&growing(2_000, 4_000, 1_800));
    assert!(found.cause.ends_with("900/s acknowledged, 2000/s published"), "{}", found.cause);
}

#[test]
fn dead_letters_are_reported_when_there_are_many_within_a_minute() {
    let dead = |at: u64, dead_lettered: u64| {
        with_queue(
            at,
            QueueSample { stats: QueueStats { dead_lettered, ..QueueStats::default() }, ..sample("a/1") },
        )
    };
    let mut rounds = Rounds::of(&dead(0, 500));
    assert_eq!(rounds.look(&dead(1_000, 509)), [], "nine");
    assert_eq!(rounds.only(&dead(2_000, 510)).kind, FindingKind::DeadLetters);
    assert_eq!(rounds.look(&dead(90_000, 510)), [], "that was long ago");
}

#[test]
fn a_queue_created_after_the_start_counts_from_zero() {
    let mut rounds = Rounds::of(&quiet(0));
    let stats = QueueStats { dead_lettered: 12, ..QueueStats::default() };
    let found = rounds.only(&with_queue(1_000, QueueSample { stats, ..sample("new/1") }));
    assert_eq!(found.cause, "12 messages were dead-lettered within a minute");
}

#[test]
fn a_handler_is_blocked_while_it_answers_nothing_although_questions_wait() {
    let load = |at: u64, asked: u64, waiting: u64| Observation {
        handlers: vec![HandlerLoad { key: "orders".into(), asked, waiting, timeout: Duration::from_secs(5) }],
        ..quiet(at)
    };
    let mut rounds = Rounds::of(&load(0, 10, 5));
    assert_eq!(rounds.look(&load(2_000, 40, 35)), [], "two seconds");
    let found = rounds.only(&load(3_000, 90, 85));
    assert_eq!((found.kind, found.subject.as_str()), (FindingKind::BlockedHandler, "handler orders"));
    assert_eq!(
        (found.severity, found.cause.as_str()),
        (
            Severity::Warning,
            "it has answered nothing for 3 s while 85 questions wait: it may take 5 s for an answer"
        )
    );
    let found = rounds.only(&load(5_000, 90, 85));
    assert_eq!(
        (found.severity, found.cause.as_str()),
        (
            Severity::Critical,
            "it has answered nothing for 5 s while 85 questions wait: one of its methods does not return"
        )
    );
    assert_eq!(rounds.look(&load(6_000, 100, 80)), [], "it answers again");
    assert_eq!(rounds.look(&load(60_000, 100, 0)), []);
    assert_eq!(rounds.look(&load(61_000, 101, 1)), [], "an idle handler was not blocked");
}

#[test]
fn handlers_that_are_missing_or_fail_are_reported_for_their_queue() {
    let missing = QueueSample { missing_handler: Some("lost".into()), ..sample("a/1") };
    let found = Rounds::default().only(&with_queue(0, missing));
    assert_eq!((found.kind, found.severity), (FindingKind::MissingHandler, Severity::Critical));
    assert!(found.cause.contains("\"lost\""));

    let failing = |at: u64, errors: u64| {
        let stats = QueueStats { errors, ..QueueStats::default() };
        with_queue(at, QueueSample { handler: Some("h".into()), stats, ..sample("a/1") })
    };
    let mut rounds = Rounds::of(&failing(0, 3));
    assert_eq!(rounds.look(&failing(1_000, 3)), []);
    assert_eq!(
        rounds.only(&failing(2_000, 4)).cause,
        "its delivery handler \"h\" failed or was late once within a minute"
    );
}

#[test]
fn limits_that_reject_name_the_limit() {
    let limited = |at: u64, rejected: u64, publish_limit: Option<&str>, message_limit: u64| {
        let stats = QueueStats { rejected, ..QueueStats::default() };
        let publish_limit = publish_limit.map(|limit| limit.parse().unwrap());
        with_queue(at, QueueSample { ready: 100, message_limit, publish_limit, stats, ..sample("a/1") })
    };
    let mut rounds = Rounds::of(&limited(0, 0, None, 100));
    assert!(rounds.only(&limited(1_000, 7, None, 100)).cause.ends_with("its message limit is 100"));
    assert!(rounds.only(&limited(2_000, 8, Some("10/s"), 0)).cause.ends_with("its publish limit is 10/s"));
    assert_eq!(rounds.look(&limited(3_000, 8, Some("10/s"), 0)), []);

    let of_broker = |at: u64, publish_rejected: u64, connect_rejected: u64| Observation {
        publish_rejected,
        connect_rejected,
        ..quiet(at)
    };
    let mut rounds = Rounds::of(&of_broker(0, 0, 0));
    let found = rounds.look(&of_broker(1_000, 3, 1));
    let subjects: Vec<_> = found.iter().map(|finding| finding.subject.as_str()).collect();
    assert_eq!(subjects, ["limit publish_limit", "limit connect_limit"]);
    assert_eq!(rounds.look(&of_broker(2_000, 3, 1)), []);
}

#[test]
fn a_paused_queue_is_worth_a_mention() {
    let paused =
        QueueSample { status: Status::Paused, block: Some(DeliveryBlock::Paused), ready: 1, ..sample("a/1") };
    let found = Rounds::default().only(&with_queue(0, paused));
    assert_eq!((found.kind, found.severity), (FindingKind::PausedQueue, Severity::Info));
}

#[test]
fn an_upstream_broker_that_is_not_connected_is_down_and_a_downstream_one_has_left() {
    let node = |connected: bool, downstream: bool| NodeInformation {
        id: "id".into(),
        name: "branch".into(),
        host: "10.0.0.7:2622".into(),
        downstream,
        connected,
        lifetime_ms: 0,
    };
    let nodes = vec![node(true, false), node(false, true), node(false, false)];
    let found = Rounds::default().only(&Observation { nodes, ..quiet(0) });
    assert_eq!((found.kind, found.subject.as_str()), (FindingKind::NodeDown, "node branch"));
}

#[test]
fn a_clock_that_is_set_is_reported_once_with_its_direction() {
    let clock = |at: u64, clock_offset_ms: i64| Observation { clock_offset_ms, ..quiet(at) };
    let mut rounds = Rounds::of(&clock(0, 5_000));
    assert_eq!(rounds.look(&clock(1_000, 5_900)), [], "a time server corrects it");
    assert_eq!(
        rounds.only(&clock(2_000, 3_605_900)).cause,
        "it was set forward by 60 min, or the machine slept"
    );
    assert_eq!(rounds.look(&clock(3_000, 3_605_900)), []);
    assert_eq!(rounds.only(&clock(4_000, 5_900)).cause, "it was set back by 60 min");
}

#[test]
fn a_disk_is_full_when_the_journal_cannot_write_and_scarce_before() {
    let disk = |free: u64, total: u64| Some(DiskSpace { directory: "/data".into(), free, total });
    let scarce =
        |free: u64, total: u64| Rounds::default().look(&Observation { disk: disk(free, total), ..quiet(0) });
    assert_eq!(scarce(2 << 30, 500 << 30), [], "2 GiB are enough");
    assert_eq!(scarce(60 << 20, 1 << 30), [], "so are six percent");
    assert_eq!(scarce(50 << 20, 1 << 30)[0].cause, "50 MiB of 1.0 GiB are free");
    assert_eq!(scarce(900 << 20, 500 << 30)[0].severity, Severity::Warning);

    let refusing = Observation { refusing_shards: vec![1], disk: disk(2 << 30, 500 << 30), ..quiet(0) };
    let found = Rounds::default().only(&refusing);
    assert_eq!((found.severity, found.subject.as_str()), (Severity::Critical, "journal of shard 1"));
    assert!(found.cause.contains("/data has 2.0 GiB free"));
}

#[test]
fn a_late_backup_names_the_age_of_its_latest_moment_and_the_error() {
    let lag = BackupLag {
        failure: None,
        stored_ms: Some(START),
        age_ms: 300_000,
        upload: Some((3 << 20, 9 << 20)),
        is_lagging: true,
    };
    let seen = |lag: &BackupLag| Observation { backup: Some(lag.clone()), ..quiet(300_000) };
    let found = Rounds::default().only(&seen(&lag));
    assert_eq!((found.kind, found.subject.as_str()), (FindingKind::BackupLag, "continuous backup"));
    assert_eq!(found.cause, "the latest restore point is 5 min old; 3 MiB of 9 MiB are uploaded");
    let failure = Some(TaskFailure { error: "no such bucket".to_owned(), since: Timestamp(START) });
    let failing = BackupLag { failure, stored_ms: None, upload: None, ..lag.clone() };
    let found = Rounds::default().only(&seen(&failing));
    assert_eq!(
        found.cause,
        "the continuous backup fails: no such bucket; there is no restore point since the start, 5 min ago"
    );
    let in_time = BackupLag { is_lagging: false, ..lag };
    assert_eq!(Rounds::default().look(&seen(&in_time)), []);
}
