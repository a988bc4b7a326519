//! Buffers for received messages, and flow control of reads.
//!
//! TMQP has no credit: a broker sends messages of all queues and answers in one stream. Pausing reads for one slow
//! consumer would delay everything behind its messages, and the broker closes connections that read too slowly. So a
//! client keeps reading until the waiting messages of all consumers exceed its limit in bytes. Above the limit it
//! pauses reads, and the broker sees a full connection. Prefetch is the other limit: the number of unsettled messages
//! of a consumer. Brokers that do not know it send more, and further messages wait here.
//!
//! The broker's acknowledge timeout runs while a message waits. So the client asks for more time for waiting messages,
//! as long as the program makes progress. If it makes none, the messages go back to the broker.
//!
//! A client that pauses reads still sends pings, so a slow handler does not end its connection.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::received::Received;

/// Minimum time between two checks of messages that wait.
pub(crate) const TIMEOUT_CHECK_MIN: Duration = Duration::from_millis(5);

/// Locks and ignores poisoning: no panic leaves this data inconsistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes waiting in all mailboxes of one client, and the waker of its connection task.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    bytes: AtomicUsize,
    bytes_max: usize,
    /// Notified when there is output, or reads can resume.
    pub(crate) wake: Notify,
}

impl Gauge {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, ..Self::default() }
    }

    /// Whether the client may read.
    pub(crate) fn may_read(&self) -> bool {
        self.bytes.load(Relaxed) <= self.bytes_max
    }

    fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Relaxed);
    }

    fn remove(&self, bytes: usize) {
        let before = self.bytes.fetch_sub(bytes, Relaxed);
        if before > self.bytes_max && before - bytes <= self.bytes_max {
            self.wake.notify_one();
        }
    }
}

/// A message and the connection it came over.
#[derive(Debug)]
pub(crate) struct QueuedMessage {
    pub(crate) message: Received,
    pub(crate) epoch: u32,
    /// When its acknowledge timeout began.
    pub(crate) since: Instant,
}

#[derive(Debug, Default)]
struct MailboxState {
    messages: VecDeque<QueuedMessage>,
    /// Delivered and not settled.
    unsettled: usize,
    /// When the program last took or settled a message, or got one while it had none.
    progress: Option<Instant>,
    /// The smallest number of waiting messages that a task of [`Mailbox::filled`] waits for; 0: none waits.
    wanted: usize,
    closed: bool,
}

/// Messages that wait, by what they need.
#[derive(Debug, Default)]
pub(crate) struct OverdueMessages {
    /// Messages that need more time.
    pub(crate) extend: Vec<Received>,
    /// Messages to return to the broker, because the program makes no progress; oldest first.
    pub(crate) give_back: Vec<QueuedMessage>,
    /// When to look again; `None`: nothing waits.
    pub(crate) next: Option<Instant>,
}

/// The limit of a mailbox besides the client's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bound {
    /// Nothing.
    None,
    /// Maximum unsettled messages in the program.
    Unsettled(usize),
    /// Maximum waiting messages. Later ones are dropped and counted, so that they do not delay other data.
    Waiting(usize),
}

/// Messages for one consumer or stream. Any number of tasks may take from it; each message goes to one.
#[derive(Debug)]
pub(crate) struct Mailbox {
    gauge: Arc<Gauge>,
    state: Mutex<MailboxState>,
    ready: Notify,
    bound: Bound,
    dropped: AtomicUsize,
    /// The time to acknowledge a message in milliseconds, if the client can extend it; otherwise 0.
    timeout_ms: AtomicU64,
    /// Whether the broker numbers repeated attempts, so that one without a number is the first.
    numbers_attempts: AtomicBool,
}

impl Mailbox {
    pub(crate) fn new(gauge: Arc<Gauge>, bound: Bound) -> Arc<Self> {
        let (state, ready, dropped) = (Mutex::default(), Notify::new(), AtomicUsize::new(0));
        let (timeout_ms, numbers_attempts) = (AtomicU64::new(0), AtomicBool::new(false));
        Arc::new(Self { gauge, state, ready, bound, dropped, timeout_ms, numbers_attempts })
    }

    /// Sets the time to acknowledge a message, if the client can extend it, and whether the broker numbers repeated
    /// attempts.
    pub(crate) fn joined(&self, timeout: Option<Duration>, numbers_attempts: bool) {
        self.numbers_attempts.store(numbers_attempts, Relaxed);
        let millis = timeout.map_or(0, |timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
        self.timeout_ms.store(millis, Relaxed);
    }

    /// The time to acknowledge a message, if the client can extend it.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        let millis = self.timeout_ms.load(Relaxed);
        (millis > 0).then(|| Duration::from_millis(millis))
    }

    /// Whether the broker numbers repeated attempts.
    pub(crate) fn numbers_attempts(&self) -> bool {
        self.numbers_attempts.load(Relaxed)
    }

    /// Adds a message. Returns whether the caller must call [`Mailbox::wake`] after all messages of a read.
    pub(crate) fn put(&self, queued: QueuedMessage) -> bool {
        let mut state = lock(&self.state);
        let refuses = match self.bound {
            // The consumer that closed this mailbox requeues messages with acknowledgement.
            Bound::Unsettled(_) => state.closed && !queued.message.wants_acknowledge(),
            Bound::Waiting(most) => state.closed || state.messages.len() >= most,
            Bound::None => state.closed,
        };
        if refuses {
            self.dropped.fetch_add(1, Relaxed);
            return false;
        }
        self.gauge.add(queued.message.memory_bytes());
        if state.unsettled == 0 && state.messages.is_empty() {
            state.progress = Some(queued.since);
        }
        state.messages.push_back(queued);
        let is_full = state.wanted > 0 && state.messages.len() >= state.wanted;
        if is_full {
            state.wanted = 0;
        }
        is_full || state.messages.len() == 1
    }

    /// Wakes the tasks that wait for messages.
    pub(crate) fn wake(&self) {
        self.ready.notify_waiters();
    }

    /// Takes up to `max` available messages within the limit. Messages with acknowledgement count as unsettled until
    /// [`Mailbox::settled`].
    pub(crate) fn take(&self, max: usize) -> Vec<QueuedMessage> {
        self.take_some(max, false)
    }

    /// Like [`Mailbox::take`], but at most one message with acknowledgement, so that the others still wait here until
    /// the program gets to them.
    pub(crate) fn take_next(&self, max: usize) -> Vec<QueuedMessage> {
        self.take_some(max, true)
    }

    fn take_some(&self, max: usize, one: bool) -> Vec<QueuedMessage> {
        let mut state = lock(&self.state);
        let most = match self.bound {
            // A closed consumer settles nothing more, so the limit no longer applies.
            Bound::Unsettled(most) if !state.closed => most,
            _ => usize::MAX,
        };
        let mut count = 0;
        let mut bytes = 0;
        let mut unsettled = state.unsettled;
        for queued in state.messages.iter().take(max) {
            let asks = usize::from(queued.message.wants_acknowledge());
            if unsettled + asks > most || (one && count > 0 && asks > 0) {
                break;
            }
            unsettled += asks;
            bytes += queued.message.memory_bytes();
            count += 1;
            if one && asks > 0 {
                break;
            }
        }
        state.unsettled = unsettled;
        if count > 0 && self.timeout_ms.load(Relaxed) > 0 {
            state.progress = Some(Instant::now());
        }
        let messages = state.messages.drain(..count).collect();
        drop(state);
        self.gauge.remove(bytes);
        messages
    }

    /// Waits for messages, and takes one to `max`. Empty: the mailbox is closed and empty.
    pub(crate) async fn next(&self, max: usize) -> Vec<QueuedMessage> {
        loop {
            let ready = self.ready.notified();
            tokio::pin!(ready);
            // Before the check, so that a message between the check and the wait is not missed.
            ready.as_mut().enable();
            let closed = self.is_closed();
            let messages = self.take(max.max(1));
            if closed || !messages.is_empty() {
                return messages;
            }
            ready.await;
        }
    }

    /// Waits until a message is available, or the mailbox is closed. It takes nothing, so it is cancel-safe.
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

    /// Whether a message is available, or the mailbox is closed.
    pub(crate) fn has_something(&self) -> bool {
        let state = lock(&self.state);
        let Some(first) = state.messages.front() else { return state.closed };
        let full = matches!(self.bound, Bound::Unsettled(most) if state.unsettled >= most);
        state.closed || !(full && first.message.wants_acknowledge())
    }

    /// Waits for a message, and then at most `wait` until `max` can be taken: all that the limit allows, if it is lower.
    /// It takes nothing, so it is cancel-safe.
    pub(crate) async fn filled(&self, max: usize, wait: Duration) {
        self.ready().await;
        // When the time is over, the caller takes what there is.
        let _ = tokio::time::timeout(wait, self.reaches(max)).await;
    }

    async fn reaches(&self, max: usize) {
        loop {
            let ready = self.ready.notified();
            tokio::pin!(ready);
            ready.as_mut().enable();
            if self.wants_more(max) {
                ready.await;
            } else {
                return;
            }
        }
    }

    /// Whether more messages can come before `max` are taken. Then [`Mailbox::put`] reports when there are enough.
    fn wants_more(&self, max: usize) -> bool {
        let mut state = lock(&self.state);
        let room = match self.bound {
            Bound::Unsettled(most) => most.saturating_sub(state.unsettled),
            Bound::None | Bound::Waiting(_) => usize::MAX,
        };
        let enough = max.min(room);
        if state.closed || state.messages.len() >= enough {
            return false;
        }
        state.wanted = if state.wanted == 0 { enough } else { state.wanted.min(enough) };
        true
    }

    /// Records that the program works on a message.
    pub(crate) fn works(&self) {
        lock(&self.state).progress = Some(Instant::now());
    }

    /// Records that `count` delivered messages are settled or dropped.
    pub(crate) fn settled(&self, count: usize) {
        let mut state = lock(&self.state);
        let before = state.unsettled;
        state.unsettled -= count;
        if self.timeout_ms.load(Relaxed) > 0 {
            state.progress = Some(Instant::now());
        }
        let was_full =
            matches!(self.bound, Bound::Unsettled(most) if (state.unsettled + 1..=before).contains(&most));
        let others_wait = !state.messages.is_empty();
        drop(state);
        if was_full && others_wait {
            self.wake();
        }
    }

    /// Number of messages that the program took and has not settled.
    pub(crate) fn unsettled(&self) -> usize {
        lock(&self.state).unsettled
    }

    /// Closes the mailbox. Waiting messages can still be taken. Later ones are dropped, or kept for the consumer to
    /// requeue.
    pub(crate) fn close(&self) {
        lock(&self.state).closed = true;
        self.wake();
    }

    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.state).closed
    }

    /// Whether the program may take one more message with acknowledgement now, with those that wait.
    pub(crate) fn has_room(&self) -> bool {
        let state = lock(&self.state);
        match self.bound {
            Bound::Unsettled(most) => !state.closed && state.unsettled + state.messages.len() < most,
            Bound::None | Bound::Waiting(_) => true,
        }
    }

    /// Removes all waiting messages, oldest first.
    pub(crate) fn drain(&self) -> Vec<QueuedMessage> {
        let messages = std::mem::take(&mut lock(&self.state).messages);
        self.gauge.remove(messages.iter().map(|queued| queued.message.memory_bytes()).sum());
        messages.into()
    }

    /// Decides about messages that have waited for a third of their acknowledge timeout: they get more time if the
    /// program made progress within the timeout. If it did not, they are removed after two thirds.
    pub(crate) fn waited(&self, now: Instant) -> OverdueMessages {
        let mut waiting = OverdueMessages::default();
        let Some(timeout) = self.timeout() else { return waiting };
        let mut state = lock(&self.state);
        let third = (timeout / 3).max(TIMEOUT_CHECK_MIN);
        let makes_progress = state.progress.is_some_and(|progress| now < progress + timeout);
        let mut kept = VecDeque::with_capacity(state.messages.len());
        let mut bytes = 0;
        for mut queued in state.messages.drain(..) {
            if !queued.message.wants_acknowledge() {
                kept.push_back(queued);
                continue;
            }
            if makes_progress && queued.since + third <= now {
                queued.since = now;
                waiting.extend.push(queued.message.clone());
            } else if !makes_progress && queued.since + 2 * third <= now {
                bytes += queued.message.memory_bytes();
                waiting.give_back.push(queued);
                continue;
            }
            let next = now.max(queued.since) + third;
            waiting.next = Some(waiting.next.map_or(next, |other| other.min(next)));
            kept.push_back(queued);
        }
        state.messages = kept;
        drop(state);
        self.gauge.remove(bytes);
        waiting
    }

    /// Removes the waiting messages for which `wanted` is true, oldest first.
    pub(crate) fn extract(&self, wanted: impl Fn(&QueuedMessage) -> bool) -> Vec<QueuedMessage> {
        let mut state = lock(&self.state);
        let (extracted, kept) = std::mem::take(&mut state.messages).into_iter().partition(wanted);
        state.messages = kept;
        drop(state);
        let extracted = Vec::from(extracted);
        self.gauge.remove(extracted.iter().map(|queued| queued.message.memory_bytes()).sum());
        extracted
    }

    /// Number of waiting messages.
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.state).messages.len()
    }

    /// Messages dropped because the program had not taken earlier ones.
    pub(crate) fn dropped(&self) -> usize {
        self.dropped.load(Relaxed)
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let bytes = state.messages.iter().map(|queued| queued.message.memory_bytes()).sum();
        self.gauge.remove(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqcore_wire::tmqp::{Frame, Kind};

    fn queued(asks: bool) -> QueuedMessage {
        let frame = Frame { pending_acknowledge: asks, payload: &[0; 100], ..Frame::new(Kind::QUEUE) };
        QueuedMessage { message: Received::copy(&frame), epoch: 0, since: Instant::now() }
    }

    fn gauge() -> Arc<Gauge> {
        Arc::new(Gauge::new(1 << 20))
    }

    #[test]
    fn the_program_holds_as_many_unsettled_messages_as_it_asked_for() {
        let mailbox = Mailbox::new(gauge(), Bound::Unsettled(2));
        for _ in 0..5 {
            mailbox.put(queued(true));
        }
        assert_eq!(mailbox.take(9).len(), 2);
        assert_eq!(mailbox.take(9).len(), 0);
        mailbox.settled(1);
        assert_eq!(mailbox.take(9).len(), 1);
        mailbox.close();
        assert_eq!(mailbox.take(9).len(), 2, "a closed mailbox has no limit");
    }

    #[test]
    fn what_comes_after_the_end_is_kept_only_if_it_has_to_be_handed_back() {
        let mailbox = Mailbox::new(gauge(), Bound::Unsettled(2));
        mailbox.close();
        mailbox.put(queued(true));
        mailbox.put(queued(false));
        assert_eq!((mailbox.take(9).len(), mailbox.dropped()), (1, 1));
    }

    #[test]
    fn one_message_to_settle_is_taken_at_a_time() {
        let mailbox = Mailbox::new(gauge(), Bound::Unsettled(9));
        for asks in [false, false, true, true, false] {
            mailbox.put(queued(asks));
        }
        let taken: Vec<_> = (0..5).map(|_| mailbox.take_next(9).len()).collect();
        assert_eq!(taken, [2, 1, 1, 1, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_messages_get_more_time_while_the_program_makes_progress() {
        let timeout = Duration::from_secs(3);
        let mailbox = Mailbox::new(gauge(), Bound::Unsettled(9));
        mailbox.joined(Some(timeout), true);
        for asks in [true, true, false, true] {
            mailbox.put(queued(asks));
        }
        assert_eq!(mailbox.take_next(9).len(), 1);
        for _ in 0..4 {
            tokio::time::advance(timeout / 3).await;
            let waiting = mailbox.waited(Instant::now());
            assert_eq!((waiting.extend.len(), waiting.give_back.len()), (2, 0));
            mailbox.settled(1);
            assert_eq!(mailbox.waited(Instant::now()).extend.len(), 0, "not twice");
            mailbox.take_next(0);
            lock(&mailbox.state).unsettled = 1;
        }
        // The program hangs from here on.
        let mut extended = 0;
        while mailbox.waiting() > 1 {
            tokio::time::advance(timeout / 3).await;
            let waiting = mailbox.waited(Instant::now());
            extended += waiting.extend.len();
            assert!(waiting.next.is_some() || waiting.give_back.len() == 2);
        }
        assert_eq!(extended, 4, "twice, within the timeout after its last progress");
    }

    #[test]
    fn messages_that_ask_for_nothing_are_not_counted() {
        let mailbox = Mailbox::new(gauge(), Bound::Unsettled(1));
        for _ in 0..5 {
            mailbox.put(queued(false));
        }
        assert_eq!(mailbox.take(9).len(), 5);
    }

    #[test]
    fn reads_pause_above_the_byte_limit_and_resume_after_a_take() {
        let gauge = Arc::new(Gauge::new(150));
        let mailbox = Mailbox::new(gauge.clone(), Bound::None);
        mailbox.put(queued(false));
        mailbox.put(queued(false));
        assert!(!gauge.may_read());
        mailbox.take(2);
        assert!(gauge.may_read());
    }

    #[test]
    fn what_overflows_is_dropped_and_counted() {
        let mailbox = Mailbox::new(gauge(), Bound::Waiting(2));
        for _ in 0..5 {
            mailbox.put(queued(false));
        }
        assert_eq!((mailbox.waiting(), mailbox.dropped()), (2, 3));
    }

    #[test]
    fn a_dropped_mailbox_releases_its_bytes() {
        let gauge = gauge();
        let mailbox = Mailbox::new(gauge.clone(), Bound::None);
        mailbox.put(queued(true));
        mailbox.put(queued(false));
        assert_eq!(mailbox.extract(|queued| queued.message.wants_acknowledge()).len(), 1);
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
        mailbox.put(queued(true));
        mailbox.put(queued(true));
        mailbox.wake();
        while mailbox.waiting() == 2 {
            tokio::task::yield_now().await;
        }
        mailbox.settled(1);
        while mailbox.waiting() == 1 {
            tokio::task::yield_now().await;
        }
        mailbox.close();
        assert_eq!(taker.await.unwrap(), [1, 1, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_waits_for_its_size_or_the_limit_or_the_time() {
        const LONG: Duration = Duration::from_secs(10);
        let mailbox = Mailbox::new(gauge(), Bound::Unsettled(4));
        let begin = Instant::now();
        let filled = |max| {
            let mailbox = mailbox.clone();
            tokio::spawn(async move { mailbox.filled(max, LONG).await })
        };
        let by_size = filled(3);
        tokio::task::yield_now().await;
        for expected in [true, false, true, false] {
            let wakes = mailbox.put(queued(true));
            assert_eq!(wakes, expected, "for the first message, and for the third");
            if wakes {
                mailbox.wake();
                tokio::task::yield_now().await;
            }
        }
        by_size.await.unwrap();
        filled(9).await.unwrap();
        assert_eq!(begin.elapsed(), Duration::ZERO, "the limit allows no more than four");
        assert_eq!(mailbox.take(2).len(), 2);
        mailbox.settled(2);
        filled(9).await.unwrap();
        assert_eq!(begin.elapsed(), LONG, "two of four");
    }
}
