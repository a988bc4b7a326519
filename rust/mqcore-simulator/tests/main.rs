//! Many seeds of the simulator, and tests of the simulator itself.

mod rules;

use mqcore_simulator::run::run;
use mqcore_simulator::scenario::Scenario;
use mqcore_testkit::seeds;

/// Seeds that have found something.
const REPAIRED: [u64; 29] = [
    // The operator restored a paused queue before its dead-letter queue, and did not notice that the broker refused.
    20_144_333,
    // The oracle took a message for gone that waited behind the runs of a schedule for longer than a calm.
    30_113_598,
    // A message that a full disk did not save replaced the saved message of a cache for good.
    40_083_410,
    30_270_627,
    // A downstream broker's messages between a deferred one and one that a crash had kept counted as done.
    60_823_265,
    // A consumer that joined while a handler decided got more messages than its prefetch.
    60_588_854,
    60_737_534,
    // A power failure during the first save after the clock was set back moved limits back twice.
    60_838_551,
    60_960_285,
    // A message that its consumer returned while a handler decided about its delivery was removed, or lost its order.
    1_099_517_627_987,
    1_099_520_628_107,
    // The oracle took a settlement for processed that the broker had not read when the connection was cut.
    60_819_461,
    // It expected a message in a queue of a router that took none yet, because its handler was not registered.
    60_220_921,
    60_385_213,
    60_672_282,
    // It overlooked runs of a schedule that were due later than the clock showed, which had been set back.
    1_099_521_629_595,
    // It took the late rejection of a delivery that had timed out for one of the next delivery.
    101_001_316,
    // The oracle took a run that a consumer returned late for the beginning of a finished schedule.
    1_099_612_017_221,
    // The empty file of a segment that was not created counted as damage if a crash lost all records of the next one.
    1_099_612_929_648,
    // A job that had succeeded ran again after a power failure, and its second end replaced the result that its client knew.
    3_298_534_883_732,
    // A worker's result reached the client of a job after the client had heard that the job was cancelled.
    3_299_629_741_228,
    // A cancellation removed a job before it was saved: after a crash its flow waited for ever.
    2_199_023_556_302,
    // The oracle expected a broadcast message that expired while a handler decided about the one before it.
    2_199_026_273_902,
    // It took a dead letter for doubled that several consumers of an earlier queue had received.
    1_099_513_108_817,
    // It took the last run that a consumer got for the latest one, although another consumer had a later one.
    3_298_535_948_459,
    // It expected messages that a subscriber was too slow for, because their producer had sent them before it subscribed.
    2_199_031_303_762,
    // The worker of a job was lost after its result was saved: the job returned, and its client heard that it was lost.
    7_696_582_592_627,
    // A broadcast message was dropped because the consumer of the one before it left while a handler decided.
    6_597_071_687_040,
    // The oracle expected a run that had been returned to wait as if the clock had not been set back before a restart.
    1_099_513_368_865,
];

#[test]
fn clients_see_no_broken_promise() {
    let new = seeds(100, 5_000).flat_map(|seed| (0..8).map(move |turn| Scenario::variant(seed, turn)));
    for seed in REPAIRED.into_iter().chain(new) {
        let report = run(&Scenario::of_seed(seed), false);
        if let Some(finding) = report.finding {
            panic!("seed {seed}: {finding}; replay and shrink it with `make simulate SEED={seed}`");
        }
    }
}

#[test]
fn a_seed_replays_to_the_last_byte() {
    // In the first, a worker with several jobs is lost: their clients must hear in the same order each time.
    let new = seeds(10, 250).flat_map(|seed| (0..8).map(move |turn| Scenario::variant(seed, turn)));
    for seed in std::iter::once(2_894_081_680).chain(new) {
        let scenario = Scenario::of_seed(seed);
        let (first, second) = (run(&scenario, true), run(&scenario, true));
        let difference = first.trace.lines().iter().zip(second.trace.lines()).find(|(one, two)| one != two);
        assert_eq!(difference, None, "seed {seed}");
        assert_eq!(first.trace.hash(), second.trace.hash(), "seed {seed}");
    }
}

#[test]
fn runs_exercise_what_they_are_for() {
    let mut events = vec![
        "is confirmed",
        " acks ",
        " nacks ",
        "a dead letter",
        "PowerLoss",
        "Kill",
        "Silence",
        "recovers",
        "calm ends",
        "is defined",
        " hears m",
        "from a cache",
        " again",
        "ClockJump",
        "NoDescriptors",
        "the damage is reported",
        "limits synced",
        "restored 1 schedules and 1 runs",
        "run 3 of schedule",
        "restored 2 limits",
        "granted: false",
        "BeginSend of",
        "Err(Raised)",
        "change: Remove",
        "change: Pause",
        " has key ",
        " returns m",
        "gets Kept(",
        "true)",
        "Delivered { job: 1, inputs: [0]",
        ", Done)",
        ", Failed)",
        ", Cancelled)",
    ];
    // The rarest of them is in one run of about two hundred.
    for seed in (0..3000).flat_map(|seed| (0..8).map(move |turn| Scenario::variant(seed, turn))) {
        let report = run(&Scenario::of_seed(seed), true);
        events.retain(|event| !report.trace.lines().iter().any(|line| line.contains(event)));
        if events.is_empty() {
            return;
        }
    }
    panic!("no run has {events:?}");
}
