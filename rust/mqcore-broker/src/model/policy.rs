//! Ready-made delivery handlers. A policy is data: what to decide at each step, without asking anybody.
//!
//! A Python handler stands on a policy too: the steps that it does not override are decided by it.

use crate::model::decision::{Acknowledge, Decision, PutBack, Step};

/// What a policy decides at each step. Acknowledgements of a policy go only to producers that asked for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// The key under which queues name it.
    pub key: &'static str,
    /// When a message arrives.
    pub received: Decision,
    /// When it is handed out: joined over begin, each consumer, and end.
    pub sent: Decision,
    /// When a consumer acknowledged.
    pub acknowledged: Decision,
    /// When a consumer refused.
    pub refused: Decision,
    /// When a consumer did not acknowledge in time.
    pub timed_out: Decision,
    /// When a consumer was lost while it had the message.
    pub consumer_lost: Decision,
    /// When a message waited too long in its queue.
    pub expired: Decision,
    /// Whether a producer that asked is told "not saved" when saving failed, instead of nothing.
    pub refuse_unsaved: bool,
}

const ALLOW: Decision = Decision::ALLOW;
const RETRY_FIRST: Decision = Decision { put_back: PutBack::Start, ..ALLOW };
const RETRY_LAST: Decision = Decision { put_back: PutBack::End, ..ALLOW };
const TELL: Decision = Decision { acknowledge: Acknowledge::Always, ..ALLOW };
const TELL_NO: Decision = Decision { acknowledge: Acknowledge::Negative, ..ALLOW };
const SAVE_AND_TELL: Decision = Decision { save: true, acknowledge: Acknowledge::IfSaved, ..ALLOW };

/// Kept in memory, acknowledged to the producer on receipt, redelivered until a consumer takes it. The default.
pub const MEMORY: Policy = Policy {
    key: "memory",
    received: TELL,
    sent: ALLOW,
    acknowledged: ALLOW,
    refused: RETRY_LAST,
    timed_out: RETRY_LAST,
    consumer_lost: RETRY_FIRST,
    expired: Decision::REFUSE,
    refuse_unsaved: false,
};

/// Handed out once; what a consumer refuses or loses is gone.
pub const AT_MOST_ONCE: Policy =
    Policy { key: "at-most-once", refused: ALLOW, timed_out: ALLOW, consumer_lost: ALLOW, ..MEMORY };

/// Saved, acknowledged to the producer once saved, redelivered until a consumer acknowledges.
pub const AT_LEAST_ONCE: Policy =
    Policy { key: "at-least-once", received: SAVE_AND_TELL, refuse_unsaved: true, ..MEMORY };

/// Saved, acknowledged to the producer once saved, handed out once.
pub const ACK_ON_SAVE: Policy =
    Policy { key: "ack-on-save", received: SAVE_AND_TELL, refuse_unsaved: true, ..AT_MOST_ONCE };

/// Kept in memory; the producer is acknowledged when all consumers were tried.
pub const ACK_ON_SEND: Policy = Policy { key: "ack-on-send", received: ALLOW, sent: TELL, ..MEMORY };

/// Kept in memory; the producer hears what the consumer said, and "timeout" if it said nothing.
pub const ACK_ON_CONSUME: Policy = Policy {
    key: "ack-on-consume",
    received: ALLOW,
    acknowledged: TELL,
    refused: TELL_NO,
    timed_out: Decision { put_back: PutBack::End, ..TELL_NO },
    ..MEMORY
};

/// All ready-made policies.
pub const ALL: [Policy; 6] = [MEMORY, AT_MOST_ONCE, AT_LEAST_ONCE, ACK_ON_SAVE, ACK_ON_SEND, ACK_ON_CONSUME];

impl Policy {
    /// The decision at `step`. `positive` tells acknowledgements apart and is ignored elsewhere.
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
            | Step::Route => ALLOW,
        }
    }
}
