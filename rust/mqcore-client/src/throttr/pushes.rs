//! Messages of subscribed channels for the program, and counters of a client.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::mailbox::lock;

/// Maximum waiting messages. Further ones are dropped and counted, so that a slow program does not delay answers.
const WAITING_MAX: usize = 65_536;
/// Maximum bytes of waiting messages.
const WAITING_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Push {
    /// Its channel; edition 7.1 does not transmit it.
    pub channel: Option<Bytes>,
    /// The payload.
    pub payload: Bytes,
}

#[derive(Debug, Default)]
pub(crate) struct Pushes {
    waiting: Mutex<(VecDeque<Push>, usize)>,
    more: Notify,
    dropped: AtomicU64,
    connects: AtomicU64,
    ended: AtomicBool,
}

impl Pushes {
    pub(crate) fn put(&self, messages: Vec<Push>) {
        if messages.is_empty() {
            return;
        }
        let mut guard = lock(&self.waiting);
        let (waiting, bytes) = &mut *guard;
        for message in messages {
            if waiting.len() >= WAITING_MAX || *bytes + message.payload.len() > WAITING_BYTES_MAX {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            } else {
                *bytes += message.payload.len();
                waiting.push_back(message);
            }
        }
        drop(guard);
        self.more.notify_waiters();
    }

    pub(crate) fn take(&self, count: usize) -> Vec<Push> {
        let mut guard = lock(&self.waiting);
        let (waiting, bytes) = &mut *guard;
        let count = count.min(waiting.len());
        let taken: Vec<Push> = waiting.drain(..count).collect();
        *bytes -= taken.iter().map(|message| message.payload.len()).sum::<usize>();
        taken
    }

    pub(crate) async fn ready(&self) {
        loop {
            let more = self.more.notified();
            tokio::pin!(more);
            // Enabled before the check, so that a message between the check and the wait is not missed.
            more.as_mut().enable();
            if self.ended.load(Ordering::Acquire) || !lock(&self.waiting).0.is_empty() {
                return;
            }
            more.await;
        }
    }

    pub(crate) fn connected(&self) {
        self.connects.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.more.notify_waiters();
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    pub(crate) fn connects(&self) -> u64 {
        self.connects.load(Ordering::Relaxed)
    }
}
