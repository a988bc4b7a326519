//! Calls that do not wait: their writes, and the timeouts of the confirmations that they leave pending.

use std::sync::atomic::Ordering::Relaxed;

use tokio::time::Instant;

use crate::confirmations::{PendingConfirmation, WakeList};
use crate::conversation::MessageId;
use crate::dialogue::Dialogue;
use crate::error::ClientError;
use crate::mailbox::lock;
use crate::shared::{Core, SharedClient};
use crate::waiter::Waiter;

/// Maximum bytes that a caller writes. A longer write is cheaper in the connection task, beside the caller.
const CALLER_WRITE_BYTES_MAX: usize = 64 * 1024;

impl SharedClient {
    /// Runs `act` if there is a connection with room for output, and no call waits for one. Returns its result, and
    /// whether a [`SharedClient::flush`] makes a difference.
    ///
    /// `deadline`: when the confirmation of what it sends is late. Then a flush has to follow. Without a confirmation, it
    /// only has the output written earlier.
    pub(crate) fn say_now<R>(
        &self,
        deadline: Option<Instant>,
        act: impl FnOnce(&mut Dialogue) -> R,
    ) -> Result<Option<(R, bool)>, ClientError> {
        let mut core = lock(&self.core);
        if core.closing.is_some() || core.ended {
            return Err(ClientError::Closed);
        }
        // A call that waits goes first; the output must not be full again whenever it looks.
        let may_say = self.waiting.load(Relaxed) == 0 && core.conversation.is_open();
        if !may_say || !core.conversation.has_room(&self.config) {
            return Ok(None);
        }
        let Some(deadline) = deadline else {
            return Ok(Some(self.with_deferred_wake(&mut core, |core| act(&mut core.conversation))));
        };
        core.unannounced |= core.conversation.output().is_empty();
        if core.expire_at.is_none_or(|at| deadline < at) {
            core.expire_at = Some(deadline);
            // The connection task may sleep until a later time.
            self.gauge.wake.notify_one();
        }
        Ok(Some((act(&mut core.conversation), true)))
    }

    /// Writes the output: a little from this thread if nothing is being written, otherwise in the connection task.
    pub(crate) fn flush(&self) {
        let mut core = lock(&self.core);
        // The connection task takes this output after what it is writing.
        if core.writing || core.conversation.output().is_empty() {
            return;
        }
        let Core { conversation, socket, .. } = &mut *core;
        if let (Some(socket), Some(output)) = (socket, conversation.untouched_output())
            && output.len() <= CALLER_WRITE_BYTES_MAX
        {
            let written = socket.write(output);
            output.drain(..written);
        }
        core.unannounced = false;
        if core.conversation.output().is_empty() {
            core.deferrable = false;
            drop(core);
            self.written.notify_waiters();
        } else {
            self.gauge.wake.notify_one();
        }
    }

    /// Ends the waits for confirmations that are late.
    pub(crate) fn expire_confirmations(&self, now: Instant) {
        let mut list = WakeList::default();
        let mut core = lock(&self.core);
        if core.expire_at.is_none_or(|at| now < at) {
            return;
        }
        for (id, pending) in core.take_late(now) {
            core.conversation.forget(&id);
            pending.expire(&mut list);
        }
        drop(core);
        list.wake();
        self.room.notify_waiters();
    }
}

impl Core {
    /// The messages whose confirmations are late. Sets the time of the next look.
    ///
    /// This looks at all pending calls, but not before the earliest deadline of the last look: while confirmations come
    /// in time, once for each timeout.
    fn take_late(&mut self, now: Instant) -> Vec<(MessageId, PendingConfirmation)> {
        let (mut late, mut next) = (Vec::new(), None);
        self.conversation.each_waiter(|id, waiter| {
            let Waiter::Collected(pending) = waiter else { return };
            if pending.deadline <= now {
                late.push((id.clone(), PendingConfirmation::clone(pending)));
            } else {
                next = Some(next.map_or(pending.deadline, |next: Instant| next.min(pending.deadline)));
            }
        });
        self.expire_at = next;
        late
    }
}
