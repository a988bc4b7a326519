//! Answers that are held back until the broker answers, so that all leave in the order of their requests. Messages of
//! channels wait behind them: a message does not overtake the answer to an earlier request.

use std::collections::VecDeque;

use mqcore_broker::model::id::{RequestId, TopicName};
use mqcore_broker::model::message::Message;
use mqcore_wire::throttr::answer;

/// Maximum requests that wait for the broker; at this many the session stops reading.
const WAITING_MAX: usize = 1024;
/// Maximum bytes of answers that are held back.
const BYTES_MAX: usize = 256 * 1024;

/// Requests that wait for the broker, and the answers held back behind them.
#[derive(Debug, Default)]
pub(super) struct HeldRequests {
    waiting: VecDeque<HeldRequest>,
    bytes: usize,
    last: u32,
}

#[derive(Debug)]
struct HeldRequest {
    request: RequestId,
    then: AnswerUse,
    status: Option<bool>,
    /// The message that the request publishes, if the peer gets it itself.
    publishes: Option<Message>,
    /// Answers to requests after this one, and messages that arrived meanwhile.
    behind: Vec<u8>,
    /// Whether `behind` contains messages.
    holds_messages: bool,
}

/// How to use the broker's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AnswerUse {
    /// The peer gets the result.
    Respond,
    /// The peer gets the result. It subscribes to the channel itself and counts as one receiver in any case.
    Subscriber,
    /// The peer asked for this subscription and gets the result.
    Subscribed(TopicName),
    /// The same without an answer to the peer.
    Joined(TopicName),
}

impl HeldRequests {
    /// A request to the broker whose answer the peer waits for.
    pub(super) fn ask(&mut self, then: AnswerUse) -> RequestId {
        self.last = self.last.wrapping_add(1);
        let request = RequestId(self.last);
        self.waiting.push_back(HeldRequest {
            request,
            then,
            status: None,
            publishes: None,
            behind: Vec::new(),
            holds_messages: false,
        });
        request
    }

    /// A request that publishes a message, which the peer itself gets before the answer.
    pub(super) fn ask_to_publish(&mut self, then: AnswerUse, message: &Message) -> RequestId {
        let request = self.ask(then);
        if let Some(last) = self.waiting.back_mut() {
            last.publishes = Some(message.clone());
        }
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

    /// Writes the frame of a channel's message, or holds it back behind the answers to earlier requests. A message that
    /// this peer published precedes the answer to its own request, unless an earlier message is held back behind that.
    pub(super) fn push(&mut self, message: &Message, frame: &[u8], output: &mut Vec<u8>) {
        let own = self.waiting.iter().position(|waiting| {
            waiting.publishes.as_ref().is_some_and(|published| published.is_same(message))
        });
        let place = match own {
            Some(own) if self.waiting.range(own..).all(|waiting| !waiting.holds_messages) => own,
            _ => self.waiting.len(),
        };
        match place.checked_sub(1).map(|place| &mut self.waiting[place]) {
            None => output.extend_from_slice(frame),
            Some(waiting) => {
                waiting.behind.extend_from_slice(frame);
                waiting.holds_messages = true;
                self.bytes += frame.len();
            }
        }
    }

    /// Bytes that are held back.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
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
        let is_subscriber = answered.then == AnswerUse::Subscriber;
        answered.status = Some(yes.is_some_and(|yes| yes || is_subscriber));
        let refused = match &answered.then {
            AnswerUse::Subscribed(topic) | AnswerUse::Joined(topic) if yes.is_none() => Some(topic.clone()),
            _ => None,
        };
        while let Some(HeldRequest { status: Some(yes), then, .. }) = self.waiting.front() {
            if !matches!(then, AnswerUse::Joined(_)) {
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
    use mqcore_broker::model::message::Properties;

    use super::*;

    #[test]
    fn answers_leave_in_the_order_of_their_requests_whichever_comes_first() {
        let mut held = HeldRequests::default();
        let mut output = Vec::new();
        let first = held.ask(AnswerUse::Respond);
        held.hold(&[7]);
        let second = held.ask(AnswerUse::Respond);
        held.hold(&[8]);
        held.answered(second, Some(false), &mut output);
        assert!(output.is_empty());
        held.answered(first, Some(true), &mut output);
        assert_eq!(output, [1, 7, 0, 8]);
        assert!(held.is_empty());
    }

    fn message() -> Message {
        Message::from_parts(b"", b"", b"x", Properties::default(), None)
    }

    #[test]
    fn a_message_does_not_overtake_answers_to_earlier_requests() {
        let (mut held, mut output) = (HeldRequests::default(), Vec::new());
        let (first, second) = (held.ask(AnswerUse::Respond), held.ask(AnswerUse::Respond));
        held.push(&message(), &[9], &mut output);
        held.hold(&[7]);
        held.answered(second, Some(true), &mut output);
        assert!(output.is_empty());
        held.answered(first, Some(false), &mut output);
        assert_eq!(output, [0, 1, 9, 7]);
        assert_eq!(held.bytes(), 0);
        held.push(&message(), &[9], &mut output);
        assert_eq!(output, [0, 1, 9, 7, 9]);
    }

    #[test]
    fn a_message_to_its_own_producer_precedes_the_answer_and_keeps_the_order_of_messages() {
        let (mut held, mut output) = (HeldRequests::default(), Vec::new());
        let first = held.ask(AnswerUse::Respond);
        let own = message();
        let second = held.ask_to_publish(AnswerUse::Subscriber, &own);
        held.push(&own, &[8], &mut output);
        held.answered(first, Some(false), &mut output);
        held.answered(second, Some(false), &mut output);
        assert_eq!(output, [0, 8, 1]);
        output.clear();
        let third = held.ask_to_publish(AnswerUse::Subscriber, &own);
        held.push(&message(), &[9], &mut output);
        held.push(&own, &[8], &mut output);
        held.answered(third, Some(true), &mut output);
        assert_eq!(output, [1, 9, 8]);
    }

    #[test]
    fn too_many_waiting_requests_pause_reading() {
        let mut held = HeldRequests::default();
        for _ in 0..WAITING_MAX {
            held.ask(AnswerUse::Respond);
        }
        assert!(held.is_full());
        let mut held = HeldRequests::default();
        held.ask(AnswerUse::Respond);
        held.hold(&[0; BYTES_MAX]);
        assert!(held.is_full());
    }
}
