//! Threads that answer Throttr, each with an event loop of its own.
//!
//! A limit is answered by the task that reads the request, and that takes less time than handing a task from one thread to
//! another, or waking one. So connections of Throttr stay on the thread that they were given to, and no scheduler looks
//! whether another one is idle. A loop that is alone on its thread can also look for the next request for some
//! microseconds instead of going to sleep, without keeping anybody else from being served.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::shutdown::Shutdown;

/// Tasks that run before a loop looks what has arrived, while some are ready.
const EVENT_INTERVAL: u32 = 16;

/// Where connections of Throttr live.
#[derive(Debug)]
pub(crate) struct Reactors {
    handles: Box<[Handle]>,
    next: AtomicUsize,
}

/// Keeps the threads going. Dropped, it ends them, and whatever still lives there.
#[derive(Debug)]
pub(crate) struct Running(
    #[expect(dead_code, reason = "dropping them is what they are for")] Vec<oneshot::Sender<()>>,
);

impl Reactors {
    /// Starts so many threads.
    pub(crate) fn start(count: usize, shutdown: &Arc<Shutdown>) -> io::Result<(Self, Running)> {
        let mut handles = Vec::new();
        let mut running = Vec::new();
        for number in 0..count {
            let runtime =
                Builder::new_current_thread().enable_all().event_interval(EVENT_INTERVAL).build()?;
            handles.push(runtime.handle().clone());
            let (sender, end) = oneshot::channel();
            let alive = shutdown.enter();
            std::thread::Builder::new().name(format!("mqcore-throttr-{number}")).spawn(move || {
                // Nobody sends anything: the end comes when the sender is gone.
                let _ = runtime.block_on(end);
                drop(runtime);
                drop(alive);
            })?;
            running.push(sender);
        }
        Ok((Self { handles: handles.into(), next: AtomicUsize::new(0) }, Running(running)))
    }

    /// The thread for the next connection.
    pub(crate) fn next(&self) -> &Handle {
        &self.handles[self.next.fetch_add(1, Ordering::Relaxed) % self.handles.len()]
    }
}

thread_local! {
    /// Reads of all connections of this thread.
    static READS: Cell<u64> = const { Cell::new(0) };
    /// A connection of this thread looks for its next request.
    static LOOKING: Cell<bool> = const { Cell::new(false) };
}

/// Nanoseconds for which a connection looks for its next request: a little more than a peer on the same machine takes to
/// ask again.
const LOOK_NANOS: u64 = 40_000;

/// Reads of others, between two of its own, from which on a connection does not look: whoever is one of many finds the next
/// request on the thread before it finds its own.
const OTHERS_MAX: u64 = 2;

/// How often a connection that looked in vain goes to sleep at once, at most, as a power of two.
const MISSES_MAX: u32 = 10;

/// Whether a connection looks for its next request instead of going to sleep. Only while that has paid lately: each time in
/// vain doubles how often it goes to sleep at once.
#[derive(Debug, Default)]
pub(crate) struct Lookout {
    looking: Option<Looking>,
    /// Something was read since it slept.
    read: bool,
    /// Reads of the thread when this connection read last.
    reads: u64,
    others: u64,
    /// How often it goes to sleep at once.
    skip: u32,
    misses: u32,
}

/// The right to look, of which there is one a thread.
#[derive(Debug)]
struct Looking {
    until: u64,
}

impl Drop for Looking {
    fn drop(&mut self) {
        LOOKING.set(false);
    }
}

impl Lookout {
    /// The connection looks at the moment.
    #[inline]
    pub(crate) fn is_looking(&self) -> bool {
        self.looking.is_some()
    }

    /// Something was read.
    #[inline]
    pub(crate) fn found(&mut self) {
        let reads = READS.get();
        READS.set(reads + 1);
        self.others = reads - self.reads;
        self.reads = reads + 1;
        self.read = true;
        if self.looking.take().is_some() {
            self.misses = 0;
        }
    }

    /// Nothing is left to do at this moment, in nanoseconds. True if the connection should not sleep, but look again.
    #[inline]
    pub(crate) fn goes_on(&mut self, now: u64) -> bool {
        match &self.looking {
            Some(looking) if now < looking.until && READS.get() - self.reads <= OTHERS_MAX => true,
            Some(_) => {
                self.looking = None;
                self.misses = (self.misses + 1).min(MISSES_MAX);
                self.skip = 1 << self.misses;
                false
            }
            None if !std::mem::take(&mut self.read) || self.others > OTHERS_MAX || LOOKING.get() => false,
            None if self.skip > 0 => {
                self.skip -= 1;
                false
            }
            None => {
                LOOKING.set(true);
                self.looking = Some(Looking { until: now + LOOK_NANOS });
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a connection whose peer asks again after so long looks until then.
    fn finds(lookout: &mut Lookout, now: &mut u64, gap: u64) -> bool {
        lookout.found();
        let until = *now + gap;
        while *now < until {
            if !lookout.goes_on(*now) {
                *now = until;
                return false;
            }
            *now += 1_000;
        }
        true
    }

    #[test]
    fn a_connection_looks_while_its_peer_asks_again_at_once_and_soon_not_any_more_when_it_does_not() {
        let (mut lookout, mut now) = (Lookout::default(), 1);
        assert!((0..100).all(|_| finds(&mut lookout, &mut now, 10_000)));
        let looked: u64 = (0..10_000)
            .map(|_| {
                lookout.found();
                let mut looks = 0;
                while lookout.goes_on(now) {
                    (now, looks) = (now + 1_000, looks + 1);
                }
                now += 1_000_000;
                looks
            })
            .sum();
        // Forty looks each time in vain, which becomes rare.
        assert!(looked < 40 * 25, "{looked}");
        // When the peer asks at once again, that is noticed some day, and from then on it looks each time.
        let noticed = (0..5_000).position(|_| finds(&mut lookout, &mut now, 10_000));
        assert!(noticed.is_some());
        assert!((0..100).all(|_| finds(&mut lookout, &mut now, 10_000)));
    }

    #[test]
    fn one_connection_of_a_thread_looks_and_none_of_many_that_are_busy() {
        let (mut one, mut other) = (Lookout::default(), Lookout::default());
        one.found();
        other.found();
        assert!(one.goes_on(1));
        assert!(!other.goes_on(1), "the thread looks for one already");
        drop(one);
        other.found();
        assert!(other.goes_on(1), "whoever goes gives the right to look back");
        other.found();
        let mut many: Vec<Lookout> = (0..5).map(|_| Lookout::default()).collect();
        for _ in 0..10 {
            many.iter_mut().for_each(Lookout::found);
            assert!(many.iter_mut().all(|one| !one.goes_on(1)));
        }
    }
}
