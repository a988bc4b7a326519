//! Answers to producers that wait until the queues of a topic have saved their copies.
//!
//! The shard of the topic keeps the answer. Each queue reports there, possibly from another shard, once it has taken
//! and saved its copy, or has rejected it.

use slab::Slab;

use crate::model::effect::{CopyOrigin, Event, Reply};
use crate::model::id::{ConnectionId, RequestId};
use crate::model::rejection::{Rejection, RejectionKind};

/// An answer that waits for the reports of queues.
#[derive(Debug)]
struct PendingConfirmation {
    connection: ConnectionId,
    request: RequestId,
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
        (connection, request): (ConnectionId, RequestId),
        receivers: u32,
        copies: usize,
        shard: usize,
    ) -> CopyOrigin {
        let pending =
            PendingConfirmation { connection, request, receivers, copies_left: copies, rejection: None };
        CopyOrigin { shard, confirmation: self.pending.insert(pending) }
    }

    /// Takes a queue's report. Returns the answer after the last one.
    pub(crate) fn report(
        &mut self,
        confirmation: usize,
        result: Result<(), Rejection>,
    ) -> Option<(ConnectionId, Event)> {
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
        let PendingConfirmation { connection, request, receivers, rejection, .. } =
            self.pending.remove(confirmation);
        let answer = match rejection {
            // A queue that promises to save could not: the producer has to publish again.
            Some(rejection) if rejection.kind == RejectionKind::Busy || receivers == 0 => Err(rejection),
            _ => Ok(Reply::Published(receivers)),
        };
        Some((connection, Event::Answered(request, answer)))
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
        let origin = confirmations.expect((ConnectionId(1), RequestId(7)), receivers, results.len(), 3);
        assert_eq!(origin.shard, 3);
        let (last, first) = results.split_last().expect("at least one copy");
        for result in first {
            assert!(confirmations.report(origin.confirmation, result.clone()).is_none());
        }
        let (connection, event) =
            confirmations.report(origin.confirmation, last.clone()).expect("all reported");
        assert_eq!(connection, ConnectionId(1));
        match event {
            Event::Answered(RequestId(7), Ok(Reply::Published(receivers))) => Ok(receivers),
            Event::Answered(RequestId(7), Err(rejection)) => Err(rejection.kind),
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
