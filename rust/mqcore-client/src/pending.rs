//! Requests whose callers wait. A caller that is cancelled drops them, and the client forgets them.

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::conversation::{MessageId, RequestAnswer};
use crate::error::ClientError;
use crate::mailbox::{QueuedMessage, lock};
use crate::shared::{SharedClient, Waited};
use crate::waiter::Outcome;

/// The requests of messages that are published together. Dropping it forgets them.
pub(crate) struct PendingCall<'a> {
    pub(crate) shared: &'a SharedClient,
    pub(crate) ids: Vec<MessageId>,
}

impl PendingCall<'_> {
    /// Forgets them.
    pub(crate) fn forget(&mut self) {
        if self.ids.is_empty() {
            return;
        }
        let mut core = lock(&self.shared.core);
        for id in self.ids.drain(..) {
            core.conversation.forget(&id);
        }
        drop(core);
        self.shared.room.notify_waiters();
    }
}

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        self.forget();
    }
}

/// A request, and where its answer arrives. Dropping it forgets the request. Messages of a pull that have arrived go to
/// the next pull, or back to the broker.
pub(crate) struct PendingAnswer<'a> {
    shared: &'a SharedClient,
    /// Of its connection.
    epoch: u32,
    /// `None`: answered or forgotten.
    id: Option<MessageId>,
    receiver: oneshot::Receiver<Outcome>,
}

impl<'a> PendingAnswer<'a> {
    pub(crate) fn new(
        shared: &'a SharedClient,
        epoch: u32,
        id: MessageId,
        receiver: oneshot::Receiver<Outcome>,
    ) -> Self {
        Self { shared, epoch, id: Some(id), receiver }
    }

    /// Waits for the answer, and forgets the request if the caller is cancelled or the deadline passes.
    pub(crate) async fn outcome(mut self, deadline: Instant) -> Result<Waited, ClientError> {
        match tokio::time::timeout_at(deadline, &mut self.receiver).await {
            Ok(Ok(outcome)) => {
                self.id = None;
                Ok(Waited::Answered(outcome))
            }
            // A waiter is dropped without an answer only if the connection task is dropped.
            Ok(Err(_)) => Err(ClientError::Closed),
            Err(_) => Ok(self.forget()),
        }
    }

    /// Forgets the request, unless its answer has arrived meanwhile.
    fn forget(&mut self) -> Waited {
        let Some(id) = self.id.take() else { return Waited::TooLong(None) };
        let mut core = lock(&self.shared.core);
        // Answers are sent under this lock, in the same step as the request ends.
        if let Ok(outcome) = self.receiver.try_recv() {
            return Waited::Answered(outcome);
        }
        let partial = core.conversation.forget(&id);
        drop(core);
        self.shared.room.notify_waiters();
        Waited::TooLong(partial)
    }
}

impl Drop for PendingAnswer<'_> {
    fn drop(&mut self) {
        let answer = match self.forget() {
            Waited::Answered((Ok(RequestAnswer::Pulled(answer)), _)) | Waited::TooLong(Some(answer)) => {
                answer
            }
            Waited::Answered(_) | Waited::TooLong(None) => return,
        };
        let (epoch, since) = (self.epoch, Instant::now());
        let queued = |message| QueuedMessage { message, epoch, since };
        let messages = answer.messages.into_iter().map(queued).collect();
        self.shared.with_core(|core| core.give_back_pulled(messages));
    }
}
