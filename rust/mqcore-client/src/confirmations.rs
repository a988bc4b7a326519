//! Confirmations that a program collects in batches, with one wake-up for each batch.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::address::QueueAddress;
use crate::conversation::{AckedBy, RequestAnswer};
use crate::error::ClientError;

/// Identifies a message to the program that published it. The client returns it with the outcome and does not interpret
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConfirmationTicket {
    /// The key under which the program finds the message.
    pub slot: usize,
    /// Distinguishes messages that use the same slot one after the other.
    pub number: u64,
}

/// The confirmation of a message without copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Confirmation {
    /// The sender of the acknowledgement.
    pub by: AckedBy,
    /// Time from the call to the acknowledgement.
    pub latency: Duration,
}

/// Collects the outcomes of messages for the program.
pub trait Confirmations: Debug + Send + Sync {
    /// Takes the outcome of one message. Returns whether [`Confirmations::wake`] has to follow: no earlier outcome waits
    /// for the program.
    ///
    /// The client holds its lock meanwhile: an implementation must not block and must not call the client.
    fn put(&self, ticket: ConfirmationTicket, outcome: Result<Confirmation, ClientError>) -> bool;

    /// Wakes the program. The client calls this after each read that had outcomes.
    fn wake(&self);
}

/// Programs to wake for new outcomes.
#[derive(Debug, Default)]
pub(crate) struct WakeList(Vec<Arc<dyn Confirmations>>);

impl WakeList {
    pub(crate) fn wake(self) {
        for confirmations in self.0 {
            confirmations.wake();
        }
    }
}

/// A published message whose outcome a program collects.
#[derive(Debug, Clone)]
pub(crate) struct PendingConfirmation {
    pub(crate) confirmations: Arc<dyn Confirmations>,
    pub(crate) ticket: ConfirmationTicket,
    pub(crate) queue: QueueAddress,
    pub(crate) started: Instant,
    /// When the confirmation is late.
    pub(crate) deadline: Instant,
}

impl PendingConfirmation {
    /// Passes the outcome on.
    pub(crate) fn settle(
        &self,
        result: Result<RequestAnswer, ClientError>,
        now: Instant,
        list: &mut WakeList,
    ) {
        let latency = now.saturating_duration_since(self.started);
        self.put(result.map(|answer| Confirmation { by: confirmed_by(&answer), latency }), list);
    }

    /// Reports that no confirmation came in time.
    pub(crate) fn expire(&self, list: &mut WakeList) {
        self.put(Err(confirm_timeout(&self.queue, self.started)), list);
    }

    fn put(&self, outcome: Result<Confirmation, ClientError>, list: &mut WakeList) {
        if self.confirmations.put(self.ticket, outcome) {
            list.0.push(self.confirmations.clone());
        }
    }
}

/// The sender of an acknowledgement. A response is one of the broker.
pub(crate) fn confirmed_by(answer: &RequestAnswer) -> AckedBy {
    match answer {
        RequestAnswer::Confirmed(by) => *by,
        RequestAnswer::Response(_) | RequestAnswer::Pulled(_) => AckedBy::Server,
    }
}

pub(crate) fn confirm_timeout(queue: &QueueAddress, started: Instant) -> ClientError {
    ClientError::ConfirmTimeout { target: queue.to_string().into(), waited: started.elapsed() }
}
