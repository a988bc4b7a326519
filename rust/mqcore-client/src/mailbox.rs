//! Where received messages wait for the program, and when the socket is not to be read.
//!
//! TMQP has no credit: a broker sends what it has. What a client can do is not to read, which the broker feels as a
//! full connection and answers by giving the queue's messages to others. The rule, kept by [`Gauge`]:
//!
//! * a mailbox is *full* from its bound on (messages waiting and messages handed out but not settled), until it is
//!   half empty again;
//! * the socket is not read while **all** mailboxes are full and nobody waits for an answer, because then nothing that
//!   could arrive has a taker; one taker is enough to go on reading, so a full mailbox never starves another;
//! * it is not read, whoever waits, while the waiting messages have more octets than the client's limit.
//!
//! A client that does not read still pings, so the broker knows that it lives however long a handler takes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::received::Received;

/// Locks without regard to poison: nothing here is left half changed by a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How full all mailboxes of one client are, and the bell of its connection task.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    mailboxes: AtomicUsize,
    full: AtomicUsize,
    bytes: AtomicUsize,
    bytes_max: usize,
    /// Rung when there is something to write, or reason to read again.
    pub(crate) bell: Notify,
}

impl Gauge {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, ..Self::default() }
    }

    /// Whether what arrives has a taker. `outstanding`: how many wait for an answer.
    pub(crate) fn may_read(&self, outstanding: usize) -> bool {
        let mailboxes = self.mailboxes.load(Relaxed);
        let taker = outstanding > 0 || mailboxes == 0 || self.full.load(Relaxed) < mailboxes;
        taker && self.bytes.load(Relaxed) <= self.bytes_max
    }

    fn add_bytes(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Relaxed);
    }

    fn remove_bytes(&self, bytes: usize) {
        let before = self.bytes.fetch_sub(bytes, Relaxed);
        if before > self.bytes_max {
            self.bell.notify_one();
        }
    }
}

/// What a mailbox does when it is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Overflow {
    /// Takes more all the same, and counts towards not reading.
    HoldBack,
    /// Drops the newest and counts them: for what must not hold back anything else.
    Drop,
}

/// A message and the connection it came over.
#[derive(Debug)]
pub(crate) struct Letter {
    pub(crate) message: Received,
    pub(crate) epoch: u32,
}

#[derive(Debug, Default)]
struct Shelf {
    letters: VecDeque<Letter>,
    closed: bool,
}

/// Messages that wait for one taker. Any number of tasks may take from it; each message goes to one.
#[derive(Debug)]
pub(crate) struct Mailbox {
    gauge: Arc<Gauge>,
    shelf: Mutex<Shelf>,
    ready: Notify,
    bound: usize,
    overflow: Overflow,
    /// Waiting, or handed out and not settled.
    held: AtomicUsize,
    full: AtomicBool,
    dropped: AtomicUsize,
}

impl Mailbox {
    pub(crate) fn new(gauge: Arc<Gauge>, bound: usize, overflow: Overflow) -> Self {
        gauge.mailboxes.fetch_add(1, Relaxed);
        Self {
            gauge,
            shelf: Mutex::default(),
            ready: Notify::new(),
            bound: bound.max(1),
            overflow,
            held: AtomicUsize::new(0),
            full: AtomicBool::new(false),
            dropped: AtomicUsize::new(0),
        }
    }

    /// Puts a message in. Answers whether takers have to be woken with [`Mailbox::wake`], once for all messages of
    /// one read.
    pub(crate) fn put(&self, letter: Letter) -> bool {
        let mut shelf = lock(&self.shelf);
        if shelf.closed || (self.overflow == Overflow::Drop && shelf.letters.len() >= self.bound) {
            self.dropped.fetch_add(1, Relaxed);
            return false;
        }
        self.gauge.add_bytes(letter.message.memory_bytes());
        let was_empty = shelf.letters.is_empty();
        shelf.letters.push_back(letter);
        self.hold(1);
        was_empty
    }

    /// Wakes whoever waits for messages.
    pub(crate) fn wake(&self) {
        self.ready.notify_waiters();
    }

    /// Takes up to `max` messages that are there now. Those that `keeps` stay held until
    /// [`Mailbox::release`].
    pub(crate) fn take(&self, max: usize, keeps: impl Fn(&Received) -> bool) -> Vec<Letter> {
        let mut shelf = lock(&self.shelf);
        let count = shelf.letters.len().min(max);
        let letters: Vec<Letter> = shelf.letters.drain(..count).collect();
        drop(shelf);
        if !letters.is_empty() {
            self.gauge.remove_bytes(letters.iter().map(|letter| letter.message.memory_bytes()).sum());
            self.release(letters.iter().filter(|letter| !keeps(&letter.message)).count());
        }
        letters
    }

    /// Takes up to `max` messages, at least one; waits for it. Empty: the mailbox is closed and nothing is left.
    pub(crate) async fn next(&self, max: usize, keeps: impl Fn(&Received) -> bool) -> Vec<Letter> {
        loop {
            let ready = self.ready.notified();
            tokio::pin!(ready);
            // Before looking: what is put in after the look must find somebody to wake.
            ready.as_mut().enable();
            let letters = self.take(max.max(1), &keeps);
            if !letters.is_empty() || self.is_closed() {
                return letters;
            }
            ready.await;
        }
    }

    /// Nothing is put in any more; takers get what is left and then nothing.
    pub(crate) fn close(&self) {
        lock(&self.shelf).closed = true;
        self.wake();
    }

    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.shelf).closed
    }

    /// Removes the waiting messages that `stale` says are worth nothing any more, and answers how many.
    pub(crate) fn discard(&self, stale: impl Fn(&Letter) -> bool) -> usize {
        let mut shelf = lock(&self.shelf);
        let before = shelf.letters.len();
        let mut bytes = 0;
        shelf.letters.retain(|letter| {
            let is_stale = stale(letter);
            bytes += if is_stale { letter.message.memory_bytes() } else { 0 };
            !is_stale
        });
        let discarded = before - shelf.letters.len();
        drop(shelf);
        if discarded > 0 {
            self.gauge.remove_bytes(bytes);
            self.release(discarded);
        }
        discarded
    }

    /// Messages that were handed out are settled.
    pub(crate) fn release(&self, count: usize) {
        if count == 0 {
            return;
        }
        let held = self.held.fetch_sub(count, Relaxed) - count;
        if held <= self.bound / 2 && self.full.swap(false, Relaxed) {
            self.gauge.full.fetch_sub(1, Relaxed);
            self.gauge.bell.notify_one();
        }
    }

    /// Messages waiting.
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.shelf).letters.len()
    }

    /// Messages dropped because nobody took those before them.
    pub(crate) fn dropped(&self) -> usize {
        self.dropped.load(Relaxed)
    }

    fn hold(&self, count: usize) {
        let held = self.held.fetch_add(count, Relaxed) + count;
        let counts = self.overflow == Overflow::HoldBack;
        if counts && held >= self.bound && !self.full.swap(true, Relaxed) {
            self.gauge.full.fetch_add(1, Relaxed);
        }
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        let shelf = std::mem::take(self.shelf.get_mut().unwrap_or_else(PoisonError::into_inner));
        self.gauge.remove_bytes(shelf.letters.iter().map(|letter| letter.message.memory_bytes()).sum());
        if *self.full.get_mut() {
            self.gauge.full.fetch_sub(1, Relaxed);
        }
        self.gauge.mailboxes.fetch_sub(1, Relaxed);
        self.gauge.bell.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqcore_wire::tmqp::{Frame, Kind};

    fn letter() -> Letter {
        let frame = Frame { pending_acknowledge: true, payload: &[0; 100], ..Frame::new(Kind::QUEUE) };
        Letter { message: Received::copy(&frame), epoch: 0 }
    }

    fn keep(_: &Received) -> bool {
        true
    }

    #[test]
    fn the_socket_is_not_read_while_every_mailbox_is_full_and_nobody_waits() {
        let gauge = Arc::new(Gauge::new(1 << 20));
        assert!(gauge.may_read(0), "a client that consumes nothing reads");
        let one = Mailbox::new(gauge.clone(), 2, Overflow::HoldBack);
        let other = Mailbox::new(gauge.clone(), 2, Overflow::HoldBack);
        one.put(letter());
        one.put(letter());
        assert!(gauge.may_read(0), "the other has room");
        other.put(letter());
        other.put(letter());
        assert!(!gauge.may_read(0));
        assert!(gauge.may_read(1), "somebody waits for an answer");
        assert_eq!(one.take(1, keep).len(), 1);
        assert!(!gauge.may_read(0), "what was handed out still counts");
        one.release(1);
        assert!(gauge.may_read(0), "half empty is not full");
    }

    #[test]
    fn too_many_octets_stop_the_reading_whoever_waits() {
        let gauge = Arc::new(Gauge::new(150));
        let mailbox = Mailbox::new(gauge.clone(), 100, Overflow::HoldBack);
        mailbox.put(letter());
        mailbox.put(letter());
        assert!(!gauge.may_read(5));
        mailbox.take(2, keep);
        assert!(gauge.may_read(0));
    }

    #[test]
    fn a_mailbox_that_drops_never_holds_back_and_counts() {
        let gauge = Arc::new(Gauge::new(1 << 20));
        let mailbox = Mailbox::new(gauge.clone(), 2, Overflow::Drop);
        for _ in 0..5 {
            mailbox.put(letter());
        }
        assert_eq!((mailbox.waiting(), mailbox.dropped()), (2, 3));
        assert!(gauge.may_read(0));
    }

    #[test]
    fn a_mailbox_that_goes_away_takes_its_counts_with_it() {
        let gauge = Arc::new(Gauge::new(1 << 20));
        let mailbox = Mailbox::new(gauge.clone(), 1, Overflow::HoldBack);
        mailbox.put(letter());
        assert!(!gauge.may_read(0));
        drop(mailbox);
        assert!(gauge.may_read(0));
        assert_eq!(gauge.bytes.load(Relaxed), 0);
    }

    #[tokio::test]
    async fn a_taker_is_woken_by_a_message_and_by_the_end() {
        let mailbox = Arc::new(Mailbox::new(Arc::new(Gauge::new(1 << 20)), 9, Overflow::HoldBack));
        let taker = tokio::spawn({
            let mailbox = mailbox.clone();
            async move { (mailbox.next(9, keep).await.len(), mailbox.next(9, keep).await.len()) }
        });
        tokio::task::yield_now().await;
        if mailbox.put(letter()) {
            mailbox.wake();
        }
        while mailbox.waiting() > 0 {
            tokio::task::yield_now().await;
        }
        mailbox.close();
        assert_eq!(taker.await.unwrap(), (1, 0));
    }
}
