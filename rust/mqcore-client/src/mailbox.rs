//! Where received messages wait for the program, and when the socket is not to be read.
//!
//! TMQP has no credit: a broker sends what it has, for all queues in one stream, with the answers to requests between.
//! Not to read is therefore never about one consumer: whatever is behind its messages would wait with them, and a
//! broker closes connections that take too long to read. So a client reads on while a consumer is slow, until the
//! messages that wait in it, over all consumers, have more bytes than its limit; only above that is the socket left
//! alone, which the broker feels as a full connection. Prefetch is the other bound: how many messages of a consumer the
//! program may hold unsettled at once; what it may not have yet waits here.
//!
//! A client that does not read still pings, so the broker knows that it lives however long a handler takes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::received::Received;

/// Locks without regard to poison: nothing here is left half changed by a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many bytes wait in all mailboxes of one client, and the bell of its connection task.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    bytes: AtomicUsize,
    bytes_max: usize,
    /// Rung when there is something to write, or reason to read again.
    pub(crate) bell: Notify,
}

impl Gauge {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, ..Self::default() }
    }

    /// Whether there is room for what arrives.
    pub(crate) fn may_read(&self) -> bool {
        self.bytes.load(Relaxed) <= self.bytes_max
    }

    fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Relaxed);
    }

    fn remove(&self, bytes: usize) {
        let before = self.bytes.fetch_sub(bytes, Relaxed);
        if before > self.bytes_max && before - bytes <= self.bytes_max {
            self.bell.notify_one();
        }
    }
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
    /// Handed out and not settled.
    unsettled: usize,
    closed: bool,
}

/// What bounds a mailbox, beside the client's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bound {
    /// Nothing.
    None,
    /// Messages that the program may hold unsettled at once.
    Unsettled(usize),
    /// Messages that may wait; later ones are dropped and counted, because nothing else must wait for them.
    Waiting(usize),
}

/// Messages that wait for one taker. Any number of tasks may take from it; each message goes to one.
#[derive(Debug)]
pub(crate) struct Mailbox {
    gauge: Arc<Gauge>,
    shelf: Mutex<Shelf>,
    ready: Notify,
    bound: Bound,
    dropped: AtomicUsize,
}

impl Mailbox {
    pub(crate) fn new(gauge: Arc<Gauge>, bound: Bound) -> Arc<Self> {
        let (shelf, ready, dropped) = (Mutex::default(), Notify::new(), AtomicUsize::new(0));
        Arc::new(Self { gauge, shelf, ready, bound, dropped })
    }

    /// Puts a message in. Answers whether takers have to be woken with [`Mailbox::wake`], once for all messages of
    /// one read.
    pub(crate) fn put(&self, letter: Letter) -> bool {
        let mut shelf = lock(&self.shelf);
        let refuses = match self.bound {
            // What asks for an acknowledgement is handed back by whoever closed this, once it gets no more.
            Bound::Unsettled(_) => shelf.closed && !letter.message.wants_acknowledge(),
            Bound::Waiting(most) => shelf.closed || shelf.letters.len() >= most,
            Bound::None => shelf.closed,
        };
        if refuses {
            self.dropped.fetch_add(1, Relaxed);
            return false;
        }
        self.gauge.add(letter.message.memory_bytes());
        shelf.letters.push_back(letter);
        shelf.letters.len() == 1
    }

    /// Wakes whoever waits for messages.
    pub(crate) fn wake(&self) {
        self.ready.notify_waiters();
    }

    /// Takes up to `max` messages that are there now, as far as the bound allows. Those that ask for an
    /// acknowledgement count as unsettled until [`Mailbox::settled`].
    pub(crate) fn take(&self, max: usize) -> Vec<Letter> {
        let mut shelf = lock(&self.shelf);
        let most = match self.bound {
            // Whoever is closed cannot settle anything any more: nothing is worth waiting for.
            Bound::Unsettled(most) if !shelf.closed => most,
            _ => usize::MAX,
        };
        let mut count = 0;
        let mut bytes = 0;
        let mut unsettled = shelf.unsettled;
        for letter in shelf.letters.iter().take(max) {
            let asks = usize::from(letter.message.wants_acknowledge());
            if unsettled + asks > most {
                break;
            }
            unsettled += asks;
            bytes += letter.message.memory_bytes();
            count += 1;
        }
        shelf.unsettled = unsettled;
        let letters = shelf.letters.drain(..count).collect();
        drop(shelf);
        self.gauge.remove(bytes);
        letters
    }

    /// Takes up to `max` messages, at least one; waits for it. Empty: the mailbox is closed and nothing is left.
    pub(crate) async fn next(&self, max: usize) -> Vec<Letter> {
        loop {
            let ready = self.ready.notified();
            tokio::pin!(ready);
            // Before looking: what is put in after the look must find somebody to wake.
            ready.as_mut().enable();
            let closed = self.is_closed();
            let letters = self.take(max.max(1));
            if closed || !letters.is_empty() {
                return letters;
            }
            ready.await;
        }
    }

    /// Waits until something can be taken, or nothing will come any more, and takes nothing: whoever is cancelled
    /// meanwhile loses no message.
    pub(crate) async fn ready(&self) {
        loop {
            let ready = self.ready.notified();
            tokio::pin!(ready);
            ready.as_mut().enable();
            if self.has_something() {
                return;
            }
            ready.await;
        }
    }

    fn has_something(&self) -> bool {
        let shelf = lock(&self.shelf);
        let Some(first) = shelf.letters.front() else { return shelf.closed };
        let full = matches!(self.bound, Bound::Unsettled(most) if shelf.unsettled >= most);
        shelf.closed || !(full && first.message.wants_acknowledge())
    }

    /// One message that was handed out is settled, or was dropped.
    pub(crate) fn settled(&self) {
        let mut shelf = lock(&self.shelf);
        shelf.unsettled -= 1;
        let was_full = self.bound == Bound::Unsettled(shelf.unsettled + 1);
        let others_wait = !shelf.letters.is_empty();
        drop(shelf);
        if was_full && others_wait {
            self.wake();
        }
    }

    /// Takers get what is left and then nothing. What still comes is dropped, or kept for its owner to hand back.
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
        self.gauge.remove(bytes);
        discarded
    }

    /// Messages waiting.
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.shelf).letters.len()
    }

    /// Messages dropped because nobody took those before them.
    pub(crate) fn dropped(&self) -> usize {
        self.dropped.load(Relaxed)
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        let shelf = self.shelf.get_mut().unwrap_or_else(PoisonError::into_inner);
        let bytes = shelf.letters.iter().map(|letter| letter.message.memory_bytes()).sum();
        self.gauge.remove(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqcore_wire::tmqp::{Frame, Kind};

    fn letter(asks: bool) -> Letter {
        let frame = Frame { pending_acknowledge: asks, payload: &[0; 100], ..Frame::new(Kind::QUEUE) };
        Letter { message: Received::copy(&frame), epoch: 0 }
    }

    fn gauge() -> Arc<Gauge> {
        Arc::new(Gauge::new(1 << 20))
    }

    #[test]
    fn the_program_holds_as_many_unsettled_messages_as_it_asked_for() {
        let mailbox = Mailbox::new(gauge(), Bound::Unsettled(2));
        for _ in 0..5 {
            mailbox.put(letter(true));
        }
        assert_eq!(mailbox.take(9).len(), 2);
        assert_eq!(mailbox.take(9).len(), 0);
        mailbox.settled();
        assert_eq!(mailbox.take(9).len(), 1);
        mailbox.close();
        assert_eq!(mailbox.take(9).len(), 2, "at the end nothing is held back");
    }

    #[test]
    fn what_comes_after_the_end_is_kept_only_if_it_has_to_be_handed_back() {
        let mailbox = Mailbox::new(gauge(), Bound::Unsettled(2));
        mailbox.close();
        mailbox.put(letter(true));
        mailbox.put(letter(false));
        assert_eq!((mailbox.take(9).len(), mailbox.dropped()), (1, 1));
    }

    #[test]
    fn messages_that_ask_for_nothing_are_not_counted() {
        let mailbox = Mailbox::new(gauge(), Bound::Unsettled(1));
        for _ in 0..5 {
            mailbox.put(letter(false));
        }
        assert_eq!(mailbox.take(9).len(), 5);
    }

    #[test]
    fn too_many_octets_stop_the_reading_until_some_are_taken() {
        let gauge = Arc::new(Gauge::new(150));
        let mailbox = Mailbox::new(gauge.clone(), Bound::None);
        mailbox.put(letter(false));
        mailbox.put(letter(false));
        assert!(!gauge.may_read());
        mailbox.take(2);
        assert!(gauge.may_read());
    }

    #[test]
    fn what_overflows_is_dropped_and_counted() {
        let mailbox = Mailbox::new(gauge(), Bound::Waiting(2));
        for _ in 0..5 {
            mailbox.put(letter(false));
        }
        assert_eq!((mailbox.waiting(), mailbox.dropped()), (2, 3));
    }

    #[test]
    fn a_mailbox_that_goes_away_takes_its_octets_with_it() {
        let gauge = gauge();
        let mailbox = Mailbox::new(gauge.clone(), Bound::None);
        mailbox.put(letter(true));
        mailbox.put(letter(false));
        assert_eq!(mailbox.discard(|letter| letter.message.wants_acknowledge()), 1);
        assert!(gauge.bytes.load(Relaxed) > 0);
        drop(mailbox);
        assert_eq!(gauge.bytes.load(Relaxed), 0);
    }

    #[tokio::test]
    async fn a_taker_is_woken_by_a_message_by_a_settlement_and_by_the_end() {
        let mailbox = Mailbox::new(gauge(), Bound::Unsettled(1));
        let taker = tokio::spawn({
            let mailbox = mailbox.clone();
            async move {
                let mut counts = Vec::new();
                for _ in 0..3 {
                    counts.push(mailbox.next(9).await.len());
                }
                counts
            }
        });
        tokio::task::yield_now().await;
        mailbox.put(letter(true));
        mailbox.put(letter(true));
        mailbox.wake();
        while mailbox.waiting() == 2 {
            tokio::task::yield_now().await;
        }
        mailbox.settled();
        while mailbox.waiting() == 1 {
            tokio::task::yield_now().await;
        }
        mailbox.close();
        assert_eq!(taker.await.unwrap(), [1, 1, 0]);
    }
}
