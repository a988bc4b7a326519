//! Delivery handlers of a scenario.

use mqcore_broker::model::decision::{Step, Steps};
use mqcore_testkit::Random;

use crate::time::Micros;

/// The steps that a simulated handler may decide.
const STEPS: [Step; 9] = [
    Step::ReceivedFromProducer,
    Step::BeginSend,
    Step::CanConsumerReceive,
    Step::ConsumerReceived,
    Step::EndSend,
    Step::AcknowledgeReceived,
    Step::AcknowledgeTimedOut,
    Step::ConsumerReceiveFailed,
    Step::MessageTimedOut,
];

/// The delivery handler of one queue. It decides like the queue's policy, except for what it refuses.
#[derive(Debug, Clone, Copy)]
pub struct SimulatedHandler {
    /// The steps that it decides. The policy decides all others.
    pub overrides: Steps,
    /// Maximum time to decide, in microseconds. Longer than [`HANDLER_TIMEOUT`] means that some answers are late.
    pub decide_micros: Micros,
    /// Decisions of 100 that fail with an exception or are never made.
    pub fails: u64,
    /// Decisions of 100 that refuse a message of a producer, its delivery, or a consumer.
    pub refuses: u64,
    /// Maximum time after a restart until the program registers it, in microseconds.
    pub registered_after: Micros,
}

/// The time in which a simulated handler must decide, in microseconds.
pub(crate) const HANDLER_TIMEOUT: Micros = 500_000;

impl SimulatedHandler {
    /// Whether it may fail to decide that an expired message is dropped.
    pub(crate) fn keeps_expired(&self) -> bool {
        let may_fail = self.fails > 0 || self.decide_micros >= HANDLER_TIMEOUT;
        may_fail && self.overrides.contains(Step::MessageTimedOut)
    }

    /// `waits`: whether messages wait in the queue. `may_refuse`: whether a message that is refused stays there.
    pub(super) fn choose(random: &mut Random, waits: bool, may_refuse: bool) -> Self {
        let mut overrides = Steps::NONE;
        for step in STEPS {
            if random.one_in(2) {
                overrides = overrides.with(step);
            }
        }
        let refuses = [0, 10, 40][random.index(3)];
        let registered_after = [0, 0, 1_000_000][random.index(3)];
        Self {
            overrides,
            decide_micros: [0, 500, 20_000, HANDLER_TIMEOUT + 100_000][random.index(4)],
            fails: [0, 0, 10][random.index(3)],
            refuses: if may_refuse { refuses } else { 0 },
            // A cache has nothing to read until its handler is registered, and a broadcast does not wait for it.
            registered_after: if waits { registered_after } else { 0 },
        }
    }
}
