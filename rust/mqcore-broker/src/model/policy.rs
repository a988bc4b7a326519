//! Ready-made delivery policies. A policy is data: the decision at each step, without asking a handler.
//!
//! A Python handler has a policy too, which decides the steps that it does not override.

use crate::model::decision::{Acknowledge, Decision, PutBack, Step};

/// The decisions of a policy at each step. A policy acknowledges only to producers that asked for it.
///
/// ```
/// use mqcore_broker::model::decision::Step;
/// use mqcore_broker::model::policy::{AT_LEAST_ONCE, MEMORY};
///
/// assert!(AT_LEAST_ONCE.decide(Step::ReceivedFromProducer, true).save);
/// assert!(!MEMORY.decide(Step::ReceivedFromProducer, true).save);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// The key that queue options use.
    pub key: &'static str,
    /// When a message arrives.
    pub received: Decision,
    /// When a message is delivered: the combination of begin, each consumer, and end.
    pub sent: Decision,
    /// When a consumer acknowledges.
    pub acknowledged: Decision,
    /// When a consumer acknowledges negatively.
    pub refused: Decision,
    /// When a consumer does not acknowledge in time.
    pub timed_out: Decision,
    /// When a consumer is lost while the message is in flight.
    pub consumer_lost: Decision,
    /// When a message exceeds its timeout in the queue.
    pub expired: Decision,
    /// Whether a failed save rejects the message with "not saved" instead of staying silent.
    pub refuse_unsaved: bool,
}

const ALLOW: Decision = Decision::ALLOW;
const RETRY_FIRST: Decision = Decision { put_back: PutBack::Start, ..ALLOW };
const RETRY_LAST: Decision = Decision { put_back: PutBack::End, ..ALLOW };
const CONFIRM: Decision = Decision { acknowledge: Acknowledge::Always, ..ALLOW };
const REJECT: Decision = Decision { acknowledge: Acknowledge::Negative, ..ALLOW };
const SAVE_AND_CONFIRM: Decision = Decision { save: true, acknowledge: Acknowledge::IfSaved, ..ALLOW };

/// Kept in memory, acknowledged to the producer on receipt, redelivered until a consumer takes it. The default.
pub const MEMORY: Policy = Policy {
    key: "memory",
    received: CONFIRM,
    sent: ALLOW,
    acknowledged: ALLOW,
    refused: RETRY_LAST,
    timed_out: RETRY_LAST,
    consumer_lost: RETRY_FIRST,
    expired: Decision::REFUSE,
    refuse_unsaved: false,
};

/// Delivered once; a message that a consumer rejects or loses is dropped.
pub const AT_MOST_ONCE: Policy =
    Policy { key: "at-most-once", refused: ALLOW, timed_out: ALLOW, consumer_lost: ALLOW, ..MEMORY };

/// Saved, then confirmed to the producer, and redelivered until a consumer acknowledges.
pub const AT_LEAST_ONCE: Policy =
    Policy { key: "at-least-once", received: SAVE_AND_CONFIRM, refuse_unsaved: true, ..MEMORY };

/// Saved, then confirmed to the producer, and delivered once.
pub const ACK_ON_SAVE: Policy =
    Policy { key: "ack-on-save", received: SAVE_AND_CONFIRM, refuse_unsaved: true, ..AT_MOST_ONCE };

/// Kept in memory; confirmed to the producer when all consumers were tried.
pub const ACK_ON_SEND: Policy = Policy { key: "ack-on-send", received: ALLOW, sent: CONFIRM, ..MEMORY };

/// Kept in memory; the producer gets the consumer's acknowledgement, or "timeout" if there is none.
pub const ACK_ON_CONSUME: Policy = Policy {
    key: "ack-on-consume",
    received: ALLOW,
    acknowledged: CONFIRM,
    refused: REJECT,
    timed_out: Decision { put_back: PutBack::End, ..REJECT },
    ..MEMORY
};

/// All ready-made policies.
pub const ALL: [Policy; 6] = [MEMORY, AT_MOST_ONCE, AT_LEAST_ONCE, ACK_ON_SAVE, ACK_ON_SEND, ACK_ON_CONSUME];

impl Policy {
    /// The decision at `step`. `positive` distinguishes acknowledgements and is ignored elsewhere.
    pub fn decide(&self, step: Step, positive: bool) -> Decision {
        match step {
            Step::ReceivedFromProducer => self.received,
            Step::EndSend => self.sent,
            Step::AcknowledgeReceived if positive => self.acknowledged,
            Step::AcknowledgeReceived => self.refused,
            Step::AcknowledgeTimedOut => self.timed_out,
            Step::ConsumerReceiveFailed => self.consumer_lost,
            Step::MessageTimedOut => self.expired,
            Step::BeginSend
            | Step::CanConsumerReceive
            | Step::ConsumerReceived
            | Step::MessageDequeued
            | Step::ExceptionThrown
            | Step::SaveMessage
            | Step::Route
            | Step::Authenticate
            | Step::ClientConnected
            | Step::ClientDisconnected
            | Step::ChannelCreated
            | Step::ChannelRemoved
            | Step::ClientJoined
            | Step::ClientLeft
            | Step::QueueCreated
            | Step::QueueUpdated
            | Step::QueueStatusChanged
            | Step::QueueRemoved
            | Step::MessageProduced
            | Step::NodeConnected
            | Step::NodeDisconnected
            | Step::CustomMessage => ALLOW,
        }
    }
}
