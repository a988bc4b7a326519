//! A broker that breaks a promise is found: the oracle expects more than the queue's options promise. One that keeps its promises
//! is not accused.

use std::collections::BTreeSet;

use mqcore_session::any::Protocol;
use mqcore_simulator::run::run;
use mqcore_simulator::scenario::definitions::QueueChange;
use mqcore_simulator::scenario::{
    ClientRole, ConsumerBehavior, PublishTerms, Scenario, ScenarioStep, SimulatedClient, SimulatedQueue,
    Target,
};
use mqcore_simulator::shrink::shrink;
use mqcore_testkit::seeds;

use mqcore_broker::model::id::QueueAddress;
use mqcore_broker::model::options::{Durability, Status};
use mqcore_broker::model::placement::Placement;

/// A queue that saves with this durability, of which the oracle expects synced messages; a producer and a consumer.
fn scenario(seed: u64, durability: Durability, steps: Vec<(u64, ScenarioStep)>) -> Scenario {
    let client = |role| SimulatedClient { protocol: Protocol::Tmqp, role };
    let habits = ConsumerBehavior { prefetch: 5, rejects: 0, ignores: 0, work_micros: 0 };
    Scenario {
        seed,
        shards: 2,
        segment_bytes: 16_384,
        memory_watermark: 1 << 20,
        output_bytes_max: 1 << 20,
        queues: vec![SimulatedQueue {
            address: "channel/1".to_owned(),
            saves: true,
            durability,
            promise: Durability::Fsync,
            status: Status::RoundRobin,
            one_at_a_time: false,
            retry_delay_ms: 0,
            dead_letter: None,
            deduplicates: false,
            handler: None,
            concurrency: None,
        }],
        routes: Vec::new(),
        limits: Vec::new(),
        schedules: Vec::new(),
        jobs: None,
        clients: vec![
            client(ClientRole::Producer(Target::Queue(0))),
            client(ClientRole::Consumer(0, habits)),
        ],
        steps,
    }
}

#[test]
fn an_undisturbed_run_breaks_no_rule() {
    let publish = ScenarioStep::Publish { client: 0, count: 10, bytes: 100, terms: PublishTerms::default() };
    let steps = vec![
        (0, ScenarioStep::Connect(0)),
        (0, ScenarioStep::Connect(1)),
        (100_000, publish),
        (1_000_000, ScenarioStep::Restart),
        (1_000_000, ScenarioStep::Connect(0)),
        (100_000, publish),
    ];
    for seed in seeds(10, 100) {
        let report = run(&scenario(seed, Durability::Fsync, steps.clone()), false);
        assert_eq!(report.finding, None, "seed {seed}");
    }
}

#[test]
fn a_message_that_was_confirmed_before_its_sync_is_lost_and_the_scenario_shrinks() {
    let publish = ScenarioStep::Publish { client: 0, count: 10, bytes: 100, terms: PublishTerms::default() };
    let steps = vec![
        (0, ScenarioStep::Connect(0)),
        (50_000, ScenarioStep::Connect(1)),
        (100_000, publish),
        (50_000, ScenarioStep::Leave(1)),
        (50_000, ScenarioStep::Pause(0)),
        (50_000, ScenarioStep::Resume(0)),
        (300_000, publish),
        (100_000, ScenarioStep::PowerLoss),
        (500_000, ScenarioStep::Connect(0)),
        (50_000, publish),
    ];
    let failing = (0..100)
        .map(|seed| scenario(seed, Durability::None, steps.clone()))
        .find(|scenario| run(scenario, false).finding.is_some_and(|finding| finding.rule == "lost"));
    let failing = failing.expect("a power failure loses unsynced messages");
    let smaller = shrink(&failing);
    let rule = run(&smaller, false).finding.map(|finding| finding.rule);
    assert_eq!(rule, Some("lost"));
    assert!(smaller.steps.len() <= 7, "{smaller}");
    assert!(smaller.steps.iter().any(|(_, step)| *step == ScenarioStep::PowerLoss), "{smaller}");
}

#[test]
fn a_calm_restores_a_queue_although_its_dead_letter_queue_is_missing_at_first() {
    let publish = ScenarioStep::Publish { client: 2, count: 3, bytes: 100, terms: PublishTerms::default() };
    let steps = vec![
        (0, ScenarioStep::Connect(2)),
        (100_000, ScenarioStep::Redefine { queue: 1, change: QueueChange::Pause }),
        (100_000, publish),
        (100_000, ScenarioStep::Redefine { queue: 0, change: QueueChange::Remove }),
        (100_000, ScenarioStep::Calm),
        (100_000, ScenarioStep::Kill),
    ];
    // Either of the shards may be the first to restore its queue.
    for seed in seeds(20, 200) {
        let mut scenario = scenario(seed, Durability::Fsync, steps.clone());
        let dead_letters = scenario.queues[0].clone();
        scenario.queues.push(SimulatedQueue {
            address: "channel0/2".to_owned(),
            dead_letter: Some((3, dead_letters.address)),
            ..dead_letters
        });
        let behavior = ConsumerBehavior { prefetch: 5, rejects: 0, ignores: 0, work_micros: 0 };
        for role in [ClientRole::Producer(Target::Queue(1)), ClientRole::Consumer(1, behavior)] {
            scenario.clients.push(SimulatedClient { protocol: Protocol::Tmqp, role });
        }
        let shards = scenario.queues.iter().map(|queue| {
            let address = QueueAddress::parse(&queue.address).expect("a valid address");
            address.channel.shard(Placement::unkeyed(scenario.shards))
        });
        assert_eq!(shards.collect::<BTreeSet<_>>().len(), 2, "each queue has a shard of its own");
        let report = run(&scenario, true);
        assert_eq!(report.finding, None, "seed {seed}");
        let before_kill = report.trace.lines().iter().take_while(|line| !line.contains("step Kill"));
        let settled = before_kill.filter(|line| line.contains("client 3 acks m"));
        assert_eq!(settled.count(), 3, "seed {seed}");
    }
}
