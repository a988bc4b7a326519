//! The thread that forwards frames to upstream brokers: it numbers them, saves them, passes them to links, and drops
//! them once they are confirmed.
//!
//! A connection that offers frames waits for the answer before its commands go to their shards. A message is therefore saved for
//! its upstream brokers before this broker processes it, and a producer that is faster than they are waits. Frames that are offered
//! during one sync form the next batch.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mqcore_cluster::log::{DropCounts, LogOptions, OutgoingLog, UpstreamSet};
use mqcore_journal::error::JournalError;
use mqcore_session::forwards::ForwardBatch;
use tokio::sync::{Notify, oneshot};

use crate::nodes::store::{ForwardJournal, SavedForward};
use crate::runtime::clock::{Clock, ClockConfig};
use crate::storage::data_dir::SideJournal;
use crate::storage::loss::Loss;

/// How long the thread sleeps without requests. After it, the thread syncs changes for which no caller waits.
const IDLE: Duration = Duration::from_millis(200);
/// Requests taken in one batch.
const BATCH_MAX: usize = 256;
/// Time between two rounds of housekeeping while there is work.
const HOUSEKEEPING: Duration = Duration::from_millis(200);
/// Maximum bytes that one step of housekeeping moves.
const HOUSEKEEPING_BYTES: usize = 4 << 20;

/// Frames for a link, with their numbers.
pub(crate) type Frames = Vec<(u64, Bytes)>;

/// A request to the thread.
enum ForwarderRequest {
    /// Accept these frames; the answer comes once they are safe.
    Take(ForwardBatch, oneshot::Sender<()>),
    /// The frames for an upstream broker after a number, up to about this many bytes.
    Next { upstream: usize, after: u64, bytes: usize, answer: oneshot::Sender<Frames> },
    /// An upstream broker confirmed all messages up to a number.
    Confirm { upstream: usize, through: u64 },
    /// An upstream broker is connected, or disconnected.
    Here { upstream: usize, here: bool },
    /// The server has drained: the thread ends.
    End,
}

/// The backlog of one upstream broker, for metrics.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    pub(crate) messages: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// Messages that were not forwarded: disconnected, full, old.
    pub(crate) dropped: [AtomicU64; 3],
    /// Messages confirmed since the start.
    pub(crate) confirmed: AtomicU64,
}

/// The reasons of [`Backlog::dropped`], as metrics spell them.
pub(crate) const DROP_REASONS: [&str; 3] = ["node-away", "node-full", "node-old"];

/// A handle to the thread.
#[derive(Debug, Clone)]
pub(crate) struct Forwarder {
    asks: Sender<ForwarderRequest>,
    pub(crate) shared: Arc<ForwarderState>,
}

/// State that the thread publishes.
#[derive(Debug)]
pub(crate) struct ForwarderState {
    /// By upstream broker.
    pub(crate) backlogs: Vec<Backlog>,
    /// Notified when there is something new for an upstream broker.
    pub(crate) news: Vec<Notify>,
    /// Messages that could not be saved.
    pub(crate) save_failures: AtomicU64,
}

/// The state that the thread starts with.
pub(crate) struct ForwarderStart {
    pub(crate) options: LogOptions,
    pub(crate) upstreams: usize,
    pub(crate) next: u64,
    pub(crate) kept: Vec<SavedForward>,
    /// Where messages are stored; `None`: in memory only.
    pub(crate) store: Option<ForwardJournal>,
}

impl Forwarder {
    /// Starts the thread. `alive` is dropped at its end.
    pub(crate) fn start<T: Send + 'static>(beginning: ForwarderStart, alive: T) -> std::io::Result<Self> {
        let (asks, receiver) = channel();
        let shared = Arc::new(ForwarderState {
            backlogs: (0..beginning.upstreams).map(|_| Backlog::default()).collect(),
            news: (0..beginning.upstreams).map(|_| Notify::new()).collect(),
            save_failures: AtomicU64::new(0),
        });
        let mut log = OutgoingLog::new(beginning.options, beginning.upstreams, beginning.next);
        for kept in beginning.kept {
            log.restore(kept.number, kept.upstreams, kept.bytes, kept.taken_ms);
        }
        let thread = ForwarderThread {
            keeps: beginning.options.keep,
            log,
            store: beginning.store,
            failed: false,
            full_until: None,
            held: VecDeque::new(),
            taken: Vec::new(),
            settled: Vec::new(),
            // Ages of messages are a matter of days, also for tests with a manual clock.
            clock: Clock::new(ClockConfig::System),
            housekept: Instant::now(),
            shared: Arc::clone(&shared),
        };
        std::thread::Builder::new().name("mqcore-nodes".into()).spawn(move || {
            thread.run(&receiver);
            drop(alive);
        })?;
        Ok(Self { asks, shared })
    }

    /// Offers frames. The answer comes when they are safe, or never if the thread has ended. The caller need not
    /// repeat them.
    pub(crate) fn take(&self, noted: ForwardBatch) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.ask(ForwarderRequest::Take(noted, sender));
        receiver
    }

    /// The frames for an upstream broker after the number `after`.
    pub(crate) fn next(&self, upstream: usize, after: u64, bytes: usize) -> oneshot::Receiver<Frames> {
        let (answer, receiver) = oneshot::channel();
        self.ask(ForwarderRequest::Next { upstream, after, bytes, answer });
        receiver
    }

    pub(crate) fn confirm(&self, upstream: usize, through: u64) {
        self.ask(ForwarderRequest::Confirm { upstream, through });
    }

    /// The thread writes what is left and ends. Later requests get no answer.
    pub(crate) fn end(&self) {
        self.ask(ForwarderRequest::End);
    }

    pub(crate) fn here(&self, upstream: usize, here: bool) {
        self.ask(ForwarderRequest::Here { upstream, here });
    }

    /// Without effect once the thread has ended: no caller waits then.
    fn ask(&self, ask: ForwarderRequest) {
        let _ = self.asks.send(ask);
    }
}

/// Offered frames, and how many of them are accepted.
struct Offer {
    noted: ForwardBatch,
    taken: usize,
    answer: oneshot::Sender<()>,
}

struct ForwarderThread {
    keeps: bool,
    log: OutgoingLog<Bytes>,
    store: Option<ForwardJournal>,
    /// The journal failed: nothing is saved until the next start.
    failed: bool,
    /// The disk was full; when to retry.
    full_until: Option<Instant>,
    /// Offers that wait for room, in order.
    held: VecDeque<Offer>,
    /// The senders of frames that are accepted and not saved yet.
    taken: Vec<oneshot::Sender<()>>,
    /// Settled in memory, and not yet in the journal.
    settled: Vec<u64>,
    clock: Clock,
    housekept: Instant,
    shared: Arc<ForwarderState>,
}

impl ForwarderThread {
    fn run(mut self, asks: &Receiver<ForwarderRequest>) {
        loop {
            let first = match asks.recv_timeout(IDLE) {
                Ok(first) => Some(first),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let idle = first.is_none();
            let mut ended = false;
            for ask in first.into_iter().chain(asks.try_iter().take(BATCH_MAX)) {
                ended |= matches!(ask, ForwarderRequest::End);
                self.handle(ask);
            }
            self.take_held();
            if idle {
                self.write_settled();
            }
            if idle || self.housekept.elapsed() >= HOUSEKEEPING {
                self.keep_house();
            }
            self.show();
            if ended {
                break;
            }
        }
        self.write_settled();
        if let Some(store) = self.store.take()
            && !self.failed
            && let Err(error) = store.close()
        {
            tracing::error!(%error, "cannot close the journal of messages for upstream brokers; the next start reads it in full");
        }
    }

    fn handle(&mut self, ask: ForwarderRequest) {
        match ask {
            ForwarderRequest::Take(noted, answer) => self.held.push_back(Offer { noted, taken: 0, answer }),
            ForwarderRequest::Next { upstream, after, bytes, answer } => {
                let frames = self.next(upstream, after, bytes);
                // If the link has disconnected, it asks again after it reconnects.
                let _ = answer.send(frames);
            }
            ForwarderRequest::Confirm { upstream, through } => {
                let before = self.log.backlog(upstream).0;
                let done = self.log.confirm(upstream, through);
                self.settled.extend(done);
                let confirmed = before - self.log.backlog(upstream).0;
                self.shared.backlogs[upstream].confirmed.fetch_add(confirmed, Ordering::Relaxed);
            }
            ForwarderRequest::Here { upstream, here } => self.log.set_here(upstream, here),
            ForwarderRequest::End => {}
        }
    }

    /// Accepts offered frames as far as there is room, saves them, and answers.
    fn take_held(&mut self) {
        let mut anything = !self.taken.is_empty();
        while let Some(mut offer) = self.held.pop_front() {
            let whole = self.take_offer(&mut offer);
            anything |= offer.taken > 0;
            if !whole {
                self.held.push_front(offer);
                break;
            }
            self.taken.push(offer.answer);
        }
        if anything && self.make_safe() {
            for answer in self.taken.drain(..) {
                // The connection may have closed; its messages are accepted anyway.
                let _ = answer.send(());
            }
            self.shared.news.iter().for_each(Notify::notify_one);
        }
    }

    /// False: the rest of the offer must wait for room.
    fn take_offer(&mut self, offer: &mut Offer) -> bool {
        let now_ms = self.clock.now().0;
        for (upstreams, frame) in offer.noted.iter().skip(offer.taken) {
            if !self.log.has_room() || !self.put(upstreams, frame, now_ms) {
                return false;
            }
            offer.taken += 1;
        }
        true
    }

    /// False: the disk is full; retry later.
    fn put(&mut self, upstreams: UpstreamSet, frame: &[u8], now_ms: u64) -> bool {
        let number = self.log.next_number();
        if self.keeps && !self.failed {
            if self.full_until.is_some_and(|until| Instant::now() < until) {
                return false;
            }
            let Some(store) = &mut self.store else { return true };
            match store.put(number, upstreams, now_ms, frame) {
                Ok(()) => self.full_until = None,
                Err(JournalError::Full { .. }) => {
                    if self.full_until.is_none() {
                        tracing::error!(
                            "no disk space to save messages for upstream brokers: producers wait"
                        );
                    }
                    self.full_until = Some(Instant::now() + IDLE);
                    return false;
                }
                Err(error) => self.fail(&error),
            }
        }
        if self.failed {
            self.shared.save_failures.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        self.log.take(upstreams, Bytes::copy_from_slice(frame), frame.len() as u32, now_ms);
        true
    }

    /// False: the disk is full, and what is buffered is not safe yet.
    fn make_safe(&mut self) -> bool {
        if !self.keeps || self.failed {
            return true;
        }
        self.settle();
        match self.store.as_mut().map_or(Ok(()), ForwardJournal::commit) {
            Ok(()) => {}
            Err(JournalError::Full { .. }) => {
                self.full_until = Some(Instant::now() + IDLE);
                return false;
            }
            Err(error) => {
                self.fail(&error);
                return true;
            }
        }
        self.log.commit();
        self.log.trim_cache();
        let gone = self.log.enforce(self.clock.now().0);
        self.settled.extend(gone);
        true
    }

    fn fail(&mut self, error: &JournalError) {
        self.failed = true;
        tracing::error!(%error, "cannot save messages for upstream brokers: nothing is forwarded until the next start; check the disk and restart the broker");
    }

    fn settle(&mut self) {
        if let Some(store) = &mut self.store {
            match store.settle(&self.settled) {
                Ok(()) => self.settled.clear(),
                Err(JournalError::Full { .. }) => {}
                Err(error) => self.fail(&error),
            }
        } else {
            self.settled.clear();
        }
    }

    /// No caller waits for it: if a crash loses it, the message is sent once more, and the upstream broker detects
    /// the duplicate.
    fn write_settled(&mut self) {
        let gone = self.log.enforce(self.clock.now().0);
        self.settled.extend(gone);
        if self.settled.is_empty() || self.failed {
            return;
        }
        self.settle();
        if let Some(store) = &mut self.store
            && let Err(error) = store.commit()
            && !matches!(error, JournalError::Full { .. })
        {
            self.fail(&error);
        }
    }

    fn keep_house(&mut self) {
        self.housekept = Instant::now();
        if self.failed {
            return;
        }
        let now_ms = self.clock.now().0;
        let Some(store) = &mut self.store else { return };
        match store.keep_house(now_ms, HOUSEKEEPING_BYTES) {
            Ok(done) => {
                for segment in done.damaged {
                    Loss::of_housekeeping(SideJournal::Nodes.as_str(), segment).log();
                }
            }
            Err(JournalError::Full { .. }) => {}
            Err(error) => self.fail(&error),
        }
    }

    fn next(&self, upstream: usize, mut after: u64, bytes: usize) -> Frames {
        let (mut frames, mut size) = (Vec::new(), 0);
        while size < bytes
            && let Some((number, entry)) = self.log.next_for(upstream, after)
        {
            after = number;
            let frame = match (&entry.payload, &self.store) {
                (Some(payload), _) => payload.clone(),
                (None, Some(store)) => match store.read(number) {
                    Ok(frame) => Bytes::from(frame),
                    Err(error) => {
                        tracing::error!(number, %error, "cannot read a saved message for an upstream broker; it is dropped");
                        continue;
                    }
                },
                (None, None) => continue,
            };
            size += frame.len();
            frames.push((number, frame));
        }
        frames
    }

    fn show(&self) {
        for (upstream, backlog) in self.shared.backlogs.iter().enumerate() {
            let (messages, bytes, DropCounts { away, full, old }) = self.log.backlog(upstream);
            backlog.messages.store(messages, Ordering::Relaxed);
            backlog.bytes.store(bytes, Ordering::Relaxed);
            for (shown, dropped) in backlog.dropped.iter().zip([away, full, old]) {
                shown.store(dropped, Ordering::Relaxed);
            }
        }
    }
}
