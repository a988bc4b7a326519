//! The receiving half of a conversation: interprets each incoming frame.

use std::time::Duration;

use mqcore_wire::tmqp::header::{header_value, key, pairs};
use mqcore_wire::tmqp::operation::status;
use mqcore_wire::tmqp::{Frame, HOPS_FRESH, Kind, PONG};

use super::{
    AckedBy, Conversation, Expect, FrameEvent, Inbox, PendingRequest, PullAnswer, PullEnd, RequestAnswer,
};
use crate::address::QueueAddress;
use crate::error::{ClientError, Refusal};
use crate::message_id::MessageId;
use crate::received::Received;
use crate::request::Intent;

impl<W> Conversation<W> {
    /// Handles one frame. A frame without hops left is ignored, except a delivered message: this client is its last
    /// hop, and an ignored message would stay in flight.
    pub fn receive(&mut self, frame: &Frame<'_>) -> FrameEvent<W> {
        if frame.hops == 0 && frame.kind != Kind::QUEUE {
            return FrameEvent::Nothing;
        }
        match frame.kind {
            Kind::QUEUE => self.receive_message(frame),
            Kind::ACKNOWLEDGE => self.receive_acknowledgement(frame),
            Kind::RESPONSE => self.receive_response(frame),
            Kind::DIRECT => FrameEvent::Direct(Inbox::Direct, Received::copy(frame)),
            Kind::OTHER => FrameEvent::Direct(Inbox::Custom, Received::copy(frame)),
            Kind::EVENT => FrameEvent::Event(Received::copy(frame)),
            Kind::PING => {
                self.output.extend_from_slice(&PONG);
                FrameEvent::Nothing
            }
            Kind::TERMINATE => FrameEvent::Terminated,
            _ => FrameEvent::Nothing,
        }
    }

    fn receive_message(&mut self, frame: &Frame<'_>) -> FrameEvent<W> {
        let Some(request) = self.pull_of(frame) else { return FrameEvent::Delivery(Received::copy(frame)) };
        // A pulled message has an index. Its own header may be a `No-Content`.
        let is_message = header_value(frame.headers, key::INDEX).is_some();
        let end = header_value(frame.headers, key::NO_CONTENT).filter(|_| !is_message);
        let expect = self.pending.get_mut(request).map(|pending| &mut pending.expect);
        match (expect, end) {
            (Some(Expect::Pull(_) | Expect::PullStream), Some(reason)) => {
                let reason = String::from_utf8_lossy(reason).into();
                self.end_pull(request, PullEnd::NoContent(reason))
            }
            (Some(Expect::Pull(messages)), None) => {
                messages.push(Received::copy(frame));
                FrameEvent::Nothing
            }
            (Some(Expect::PullStream), None) => {
                FrameEvent::Pulled(MessageId::from_slice(request), Received::copy(frame))
            }
            (_, None) => self.receive_late_pulled(frame),
            (_, Some(_)) => {
                self.forgotten_pulls.retain(|id| &**id != request);
                FrameEvent::Nothing
            }
        }
    }

    /// The id of the pull that a message answers. A message that was not pulled may have a header of this name, too, and
    /// the headers of a pulled one may contain several: the broker appends that of the pull.
    fn pull_of<'a>(&self, frame: &Frame<'a>) -> Option<&'a [u8]> {
        // Most deliveries have no headers, and most clients no pull.
        if frame.headers.is_empty() || (self.pulls == 0 && self.forgotten_pulls.is_empty()) {
            return None;
        }
        let is_pull = |id: &[u8]| {
            self.pending.get(id).is_some_and(|pending| pending.expect.is_pull())
                || self.forgotten_pulls.iter().any(|forgotten| &**forgotten == id)
        };
        let ids =
            pairs(frame.headers).filter(|(name, _)| name.eq_ignore_ascii_case(key::REQUEST_ID.as_bytes()));
        ids.map(|(_, id)| id).filter(|id| is_pull(id)).last()
    }

    /// Handles a message whose pull has ended. The broker requeues it, or it is kept if the broker has removed it.
    fn receive_late_pulled(&mut self, frame: &Frame<'_>) -> FrameEvent<W> {
        self.tally.late_pulled += 1;
        if frame.pending_acknowledge {
            self.give_back(&Received::copy(frame));
        } else {
            self.late.push(Received::copy(frame));
        }
        FrameEvent::Nothing
    }

    /// Keeps messages that were taken with [`Conversation::take_late`].
    pub fn keep_late(&mut self, messages: Vec<Received>) {
        self.late.splice(0..0, messages);
    }

    /// Takes messages of a queue that arrived after their pull had ended, at most `max`.
    pub fn take_late(&mut self, queue: &QueueAddress, max: usize) -> Vec<Received> {
        let is_of = |message: &Received| queue.is(message.target(), message.content_type());
        let mut taken = Vec::new();
        self.late.retain(|message| {
            let takes = taken.len() < max && is_of(message);
            if takes {
                taken.push(message.clone());
            }
            !takes
        });
        taken
    }

    fn receive_acknowledgement(&mut self, frame: &Frame<'_>) -> FrameEvent<W> {
        let Some(pending) = self.take_pending(frame.id) else {
            self.tally.late_answers += 1;
            return FrameEvent::Nothing;
        };
        let result = match header_value(frame.headers, key::NACK_REASON) {
            Some(reason) => Err(ClientError::Nacked {
                target: pending.about.to_text(),
                reason: String::from_utf8_lossy(reason).into(),
            }),
            None if frame.source.is_empty() && frame.hops == HOPS_FRESH => {
                Ok(RequestAnswer::Confirmed(AckedBy::Server))
            }
            None => Ok(RequestAnswer::Confirmed(AckedBy::Consumer)),
        };
        self.settle(pending, result)
    }

    fn receive_response(&mut self, frame: &Frame<'_>) -> FrameEvent<W> {
        let code = frame.content_type;
        let Some(pending) = self.take_pending(frame.id) else {
            // The answer to a message published without confirmation has the channel as its target.
            let unconfirmed = code != status::OK && frame.target != self.own_id.as_bytes();
            let counter =
                if unconfirmed { &mut self.tally.refused_unconfirmed } else { &mut self.tally.late_answers };
            *counter += 1;
            return FrameEvent::Nothing;
        };
        if code != status::OK && code < status_of_applications() {
            let refusal = refusal(&pending, frame);
            return self.settle(pending, Err(refusal.into()));
        }
        let answer = match pending.expect {
            Expect::Pull(_) | Expect::PullStream => RequestAnswer::Pulled(PullAnswer {
                messages: vec![Received::copy(frame)],
                end: PullEnd::Cached,
            }),
            Expect::Confirmation => RequestAnswer::Confirmed(AckedBy::Server),
            Expect::Intent(_) => {
                self.joins_queues |= header_value(frame.headers, key::QUEUE_IDS).is_some();
                RequestAnswer::Response(Received::copy(frame))
            }
            Expect::Response | Expect::Leave(_) => RequestAnswer::Response(Received::copy(frame)),
        };
        self.settle(pending, Ok(answer))
    }

    fn end_pull(&mut self, request: &[u8], end: PullEnd) -> FrameEvent<W> {
        let Some(mut pending) = self.take_pending(request) else { return FrameEvent::Nothing };
        let messages = match &mut pending.expect {
            Expect::Pull(messages) => std::mem::take(messages),
            _ => Vec::new(),
        };
        self.settle(pending, Ok(RequestAnswer::Pulled(PullAnswer { messages, end })))
    }

    fn take_pending(&mut self, id: &[u8]) -> Option<PendingRequest<W>> {
        let pending = self.pending.remove(id)?;
        self.pulls -= usize::from(pending.expect.is_pull());
        Some(pending)
    }

    /// Updates the intent of an answer, and returns the answer with its waiter.
    fn settle(
        &mut self,
        pending: PendingRequest<W>,
        result: Result<RequestAnswer, ClientError>,
    ) -> FrameEvent<W> {
        if let Expect::Leave(queue) = pending.expect {
            return FrameEvent::Left(queue);
        }
        if let Expect::Intent(key) = &pending.expect
            && let Some(standing) = self.intents.get_mut(key)
        {
            match (&result, &pending.waiter) {
                (Ok(_), _) => standing.agreed = true,
                // The broker may have accepted another user's request meanwhile.
                (Err(_), _) if standing.agreed => {}
                (Err(_), Some(_)) => standing.announced = false,
                (Err(error), None) => {
                    standing.announced = false;
                    return FrameEvent::NotRestored(pending.about, error.clone());
                }
            }
        }
        if let (Expect::Intent(Intent::Consume(queue, _)), Ok(RequestAnswer::Response(response))) =
            (&pending.expect, &result)
        {
            let (queue, timeout) = (queue.clone(), acknowledge_timeout(response));
            return FrameEvent::Joined {
                queue,
                timeout,
                by_queue: self.joins_queues,
                settled: pending.waiter.map(|waiter| (waiter, result)),
            };
        }
        match pending.waiter {
            Some(waiter) => FrameEvent::Settled(waiter, result),
            None => FrameEvent::Nothing,
        }
    }
}

/// The acknowledge timeout in the answer to a join of one queue.
fn acknowledge_timeout(response: &Received) -> Option<Duration> {
    let millis = response.header(key::ACKNOWLEDGE_TIMEOUTS)?.parse().ok()?;
    (millis > 0).then(|| Duration::from_millis(millis))
}

/// The first status that belongs to applications.
const fn status_of_applications() -> u16 {
    1000
}

/// Maximum bytes of a reason in an error.
const REASON_BYTES_MAX: usize = 1024;

fn refusal<W>(pending: &PendingRequest<W>, frame: &Frame<'_>) -> Refusal {
    // mqcore gives the reason in a header. Older versions of it give the reason in the body.
    let reason = header_value(frame.headers, key::REASON)
        .or_else(|| header_value(frame.headers, key::ERROR))
        .unwrap_or(frame.payload);
    let reason = String::from_utf8_lossy(&reason[..reason.len().min(REASON_BYTES_MAX)]);
    Refusal {
        code: frame.content_type,
        operation: pending.operation,
        target: pending.about.to_text(),
        reason: reason.into(),
        queue_stopped: frame.content_type == status::UNAUTHORIZED
            && header_value(frame.headers, key::QUEUE_STATUS) == Some(b"stopped"),
    }
}
