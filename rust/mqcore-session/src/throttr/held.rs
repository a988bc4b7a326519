//! Answers that are held back until the broker answers, so that all leave in the order of their requests.

use std::collections::VecDeque;

use mqcore_broker::model::id::{RequestId, TopicName};
use mqcore_wire::throttr::answer;

/// Maximum requests that wait for the broker; at this many the session stops reading.
const WAITING_MAX: usize = 1024;
/// Maximum bytes of answers that are held back.
const BYTES_MAX: usize = 256 * 1024;

/// Requests that wait for the broker, and the answers held back behind them.
#[derive(Debug, Default)]
pub(super) struct Held {
    waiting: VecDeque<Waiting>,
    bytes: usize,
    last: u32,
}

#[derive(Debug)]
struct Waiting {
    request: RequestId,
    then: Then,
    status: Option<bool>,
    /// Answers to requests after this one.
    behind: Vec<u8>,
}

/// How to use the broker's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Then {
    /// The peer gets the result.
    Tell,
    /// The peer gets the result. It subscribes to the channel itself and counts as one receiver in any case.
    Subscriber,
    /// The peer asked for this subscription and gets the result.
    Subscribed(TopicName),
    /// The same without an answer to the peer.
    Joined(TopicName),
}

impl Held {
    /// A request to the broker whose answer the peer waits for.
    pub(super) fn ask(&mut self, then: Then) -> RequestId {
        self.last = self.last.wrapping_add(1);
        let request = RequestId(self.last);
        self.waiting.push_back(Waiting { request, then, status: None, behind: Vec::new() });
        request
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= WAITING_MAX || self.bytes >= BYTES_MAX
    }

    /// Holds an answer back behind the waiting requests, of which there must be one.
    pub(super) fn hold(&mut self, answer: &[u8]) {
        debug_assert!(!self.is_empty());
        if let Some(last) = self.waiting.back_mut() {
            last.behind.extend_from_slice(answer);
            self.bytes += answer.len();
        }
    }

    /// Takes the broker's answer, `None` if it rejected the request. Releases all answers that wait for nothing else.
    /// Returns the channel of a subscription that was rejected.
    pub(super) fn answered(
        &mut self,
        request: RequestId,
        yes: Option<bool>,
        output: &mut Vec<u8>,
    ) -> Option<TopicName> {
        let answered = self.waiting.iter_mut().find(|waiting| waiting.request == request)?;
        let is_subscriber = answered.then == Then::Subscriber;
        answered.status = Some(yes.is_some_and(|yes| yes || is_subscriber));
        let refused = match &answered.then {
            Then::Subscribed(topic) | Then::Joined(topic) if yes.is_none() => Some(topic.clone()),
            _ => None,
        };
        while let Some(Waiting { status: Some(yes), then, .. }) = self.waiting.front() {
            if !matches!(then, Then::Joined(_)) {
                answer::status(*yes, output);
            }
            if let Some(first) = self.waiting.pop_front() {
                self.bytes -= first.behind.len();
                output.extend_from_slice(&first.behind);
            }
        }
        refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_leave_in_the_order_of_their_requests_whichever_comes_first() {
        let mut held = Held::default();
        let mut output = Vec::new();
        let first = held.ask(Then::Tell);
        held.hold(&[7]);
        let second = held.ask(Then::Tell);
        held.hold(&[8]);
        held.answered(second, Some(false), &mut output);
        assert!(output.is_empty());
        held.answered(first, Some(true), &mut output);
        assert_eq!(output, [1, 7, 0, 8]);
        assert!(held.is_empty());
    }

    #[test]
    fn too_many_waiting_requests_pause_reading() {
        let mut held = Held::default();
        for _ in 0..WAITING_MAX {
            held.ask(Then::Tell);
        }
        assert!(held.is_full());
        let mut held = Held::default();
        held.ask(Then::Tell);
        held.hold(&[0; BYTES_MAX]);
        assert!(held.is_full());
    }
}
