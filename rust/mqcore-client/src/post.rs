//! Puts received messages into mailboxes, and wakes their readers, and those of confirmations, once for each read.

use std::sync::Arc;

use tokio::time::Instant;

use crate::confirmations::WakeList;
use crate::mailbox::{Mailbox, TIMEOUT_CHECK_MIN};
use crate::received::Received;
use crate::shared::Core;

/// Readers to wake after all messages and confirmations of a read are stored.
#[derive(Default)]
pub(crate) struct Post {
    mailboxes: Vec<Arc<Mailbox>>,
    /// Programs with new confirmations.
    pub(crate) confirmations: WakeList,
    /// When to look whether the messages still wait.
    pub(crate) check_at: Option<Instant>,
}

impl Post {
    /// Puts a message into the mailbox of its only reader.
    pub(crate) fn put(&mut self, mailbox: Arc<Mailbox>, core: &Core, message: Received, now: Instant) {
        if let Some(timeout) = mailbox.timeout() {
            let check_at = now + (timeout / 3).max(TIMEOUT_CHECK_MIN);
            self.check_at = Some(self.check_at.map_or(check_at, |other| other.min(check_at)));
        }
        if mailbox.put(core.queued(message, now)) {
            self.mailboxes.push(mailbox);
        }
    }

    /// Puts a message into the mailboxes of all its readers.
    pub(crate) fn put_all(
        &mut self,
        mailboxes: Vec<Arc<Mailbox>>,
        core: &Core,
        message: &Received,
        now: Instant,
    ) {
        for mailbox in mailboxes {
            self.put(mailbox, core, message.clone(), now);
        }
    }

    /// Wakes the readers.
    pub(crate) fn deliver(self) {
        for mailbox in self.mailboxes {
            mailbox.wake();
        }
        self.confirmations.wake();
    }
}
