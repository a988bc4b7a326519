//! Answers to producers and downstream brokers that wait until the queues of a topic have saved their copies.
//!
//! The shard of the topic keeps the answer. Each queue reports there, possibly from another shard, once it has taken
//! and saved its copy, or has rejected it.

use slab::Slab;

use crate::model::effect::{CopyOrigin, Event, Reply};
use crate::model::id::{ConnectionId, RequestId};
use crate::model::intake::Ticket;
use crate::model::rejection::{Rejection, RejectionKind};

/// The sender of a topic's message that waits for its confirmation.
#[derive(Debug)]
pub(crate) enum Confirmed {
    /// A producer's request.
    Producer(ConnectionId, RequestId),
    /// A message of a downstream broker.
    Downstream(Box<Ticket>),
}

/// The outcome of a topic's message.
#[derive(Debug)]
pub(crate) enum Confirmation {
    /// An answer for a connection.
    Answer(ConnectionId, Event),
    /// A message of a downstream broker is done, or cannot be taken now.
    PassedOn(Box<Ticket>, Result<(), Rejection>),
}

/// An answer that waits for the reports of queues.
#[derive(Debug)]
struct PendingConfirmation {
    to: Confirmed,
    /// Subscribers, and queues that have not rejected their copies.
    receivers: u32,
    /// Queues that have not reported.
    copies_left: usize,
    /// The first rejection, unless one could not save its copy.
    rejection: Option<Rejection>,
}

/// All answers of a shard that wait for reports.
#[derive(Debug, Default)]
pub(crate) struct Confirmations {
    pending: Slab<PendingConfirmation>,
}

impl Confirmations {
    /// Adds an answer that waits for `copies` reports; at least one. Returns the origin to pass on with each copy.
    pub(crate) fn expect(
        &mut self,
        to: Confirmed,
        receivers: u32,
        copies: usize,
        shard: usize,
    ) -> CopyOrigin {
        let pending = PendingConfirmation { to, receivers, copies_left: copies, rejection: None };
        CopyOrigin { shard, confirmation: self.pending.insert(pending) }
    }

    /// Takes a queue's report. Returns the answer after the last one.
    pub(crate) fn report(
        &mut self,
        confirmation: usize,
        result: Result<(), Rejection>,
    ) -> Option<Confirmation> {
        let pending = self.pending.get_mut(confirmation)?;
        pending.copies_left -= 1;
        if let Err(rejection) = result {
            pending.receivers -= 1;
            let known = pending.rejection.as_ref().map(|known| known.kind);
            let replaces = match rejection.kind {
                // A binding may name a queue that does not exist: then there is one receiver less.
                RejectionKind::NotFound => false,
                RejectionKind::Busy => known != Some(RejectionKind::Busy),
                _ => known.is_none(),
            };
            if replaces {
                pending.rejection = Some(rejection);
            }
        }
        if pending.copies_left > 0 {
            return None;
        }
        let PendingConfirmation { to, receivers, rejection, .. } = self.pending.remove(confirmation);
        // A queue that promises to save could not: the message has to be published again.
        let is_unsaved = rejection.as_ref().is_some_and(|rejection| rejection.kind == RejectionKind::Busy);
        Some(match to {
            Confirmed::Producer(connection, request) => {
                let answer = match rejection {
                    Some(rejection) if is_unsaved || receivers == 0 => Err(rejection),
                    _ => Ok(Reply::Published(receivers)),
                };
                Confirmation::Answer(connection, Event::Answered(request, answer))
            }
            Confirmed::Downstream(ticket) => {
                let unsaved = rejection.filter(|_| is_unsaved);
                Confirmation::PassedOn(ticket, unsaved.map_or(Ok(()), Err))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected(kind: RejectionKind) -> Result<(), Rejection> {
        Err(Rejection::new(kind, "why"))
    }

    fn answer(results: &[Result<(), Rejection>], subscribers: u32) -> Result<u32, RejectionKind> {
        let mut confirmations = Confirmations::default();
        let receivers = subscribers + results.len() as u32;
        let to = Confirmed::Producer(ConnectionId(1), RequestId(7));
        let origin = confirmations.expect(to, receivers, results.len(), 3);
        assert_eq!(origin.shard, 3);
        let (last, first) = results.split_last().expect("at least one copy");
        for result in first {
            assert!(confirmations.report(origin.confirmation, result.clone()).is_none());
        }
        match confirmations.report(origin.confirmation, last.clone()).expect("all reported") {
            Confirmation::Answer(ConnectionId(1), Event::Answered(RequestId(7), answer)) => match answer {
                Ok(Reply::Published(receivers)) => Ok(receivers),
                Ok(other) => panic!("{other:?}"),
                Err(rejection) => Err(rejection.kind),
            },
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn answer_comes_after_the_last_report_and_counts_the_queues_that_took_a_copy() {
        assert_eq!(answer(&[Ok(()), Ok(())], 1), Ok(3));
        assert_eq!(answer(&[Ok(()), rejected(RejectionKind::LimitExceeded)], 0), Ok(1));
    }

    #[test]
    fn a_copy_that_could_not_be_saved_fails_the_answer() {
        let (full, unsaved) = (rejected(RejectionKind::LimitExceeded), rejected(RejectionKind::Busy));
        assert_eq!(answer(&[Ok(()), unsaved.clone()], 1), Err(RejectionKind::Busy));
        assert_eq!(answer(&[full.clone(), unsaved, Ok(())], 1), Err(RejectionKind::Busy));
        assert_eq!(answer(&[full.clone(), full], 0), Err(RejectionKind::LimitExceeded));
    }

    #[test]
    fn a_queue_that_does_not_exist_only_receives_nothing() {
        assert_eq!(answer(&[rejected(RejectionKind::NotFound)], 0), Ok(0));
        assert_eq!(answer(&[rejected(RejectionKind::NotFound), Ok(())], 0), Ok(1));
    }
}
