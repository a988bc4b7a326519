//! Output that no call waits for: unconfirmed messages and acknowledgements. Messages that follow each other closely share
//! a write.
//!
//! The connection task is faster than the program. If each message in an empty buffer woke it, it would write one message,
//! sleep, and be woken by the next one. So after it has written such output it lingers: for a short time, more of it needs no
//! wake-up. The task takes it at the end of that time, or earlier if it is much, or if something else needs a write.

use std::time::Duration;

use tokio::time::Instant;

use crate::mailbox::lock;
use crate::shared::{Core, SharedClient};

/// How long the connection task lingers after a write. Tokio's timers have this resolution.
const LINGER: Duration = Duration::from_millis(1);
/// Output for which the connection task does not linger any longer, in bytes.
const LINGERING_BYTES_MAX: usize = 64 * 1024;
/// An output buffer that grew beyond this size is freed once it is empty.
const OUTPUT_BUFFER_KEPT_BYTES: usize = 1024 * 1024;

impl SharedClient {
    /// Runs `act`, whose output no call waits for: the connection task may linger before it takes it. Returns its result,
    /// and whether this output waits for the task, as the first one.
    pub(crate) fn with_deferred_wake<R>(
        &self,
        core: &mut Core,
        act: impl FnOnce(&mut Core) -> R,
    ) -> (R, bool) {
        core.deferrable = true;
        if !core.lingers {
            return (self.with_wake(core, act), false);
        }
        let was_empty = core.conversation.output().is_empty();
        core.unannounced |= was_empty;
        let result = act(core);
        let size = core.conversation.output().len();
        if size >= LINGERING_BYTES_MAX {
            self.end_lingering(core);
        }
        (result, was_empty && size > 0)
    }

    /// Wakes the connection task for output that came without a wake-up.
    pub(crate) fn end_lingering(&self, core: &mut Core) {
        if std::mem::take(&mut core.unannounced) {
            self.gauge.wake.notify_one();
        }
    }

    /// Takes the output in exchange for the previous buffer. Takes and returns the time until which the task lingers, that is,
    /// until which output may come without a wake-up.
    pub(crate) fn take_output(&self, bytes: &mut Vec<u8>, linger_until: Option<Instant>) -> Option<Instant> {
        bytes.clear();
        // Frees the memory of a burst.
        bytes.shrink_to(OUTPUT_BUFFER_KEPT_BYTES);
        let mut core = lock(&self.core);
        core.conversation.take_output(bytes);
        core.unannounced = false;
        let linger_until = if std::mem::take(&mut core.deferrable) {
            Some(Instant::now() + LINGER)
        } else {
            linger_until.filter(|until| *until > Instant::now())
        };
        core.lingers = linger_until.is_some();
        let was_writing = std::mem::replace(&mut core.writing, !bytes.is_empty());
        drop(core);
        if !bytes.is_empty() {
            self.room.notify_waiters();
        } else if was_writing {
            self.written.notify_waiters();
        }
        linger_until
    }
}
