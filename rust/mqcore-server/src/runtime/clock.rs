//! The clock of the broker and of all sessions.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mqcore_broker::model::time::Timestamp;
use tokio::time::Sleep;

/// The source of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClockConfig {
    /// The system: Unix time at the start, and then a clock that never runs backwards.
    #[default]
    System,
    /// [`Server::advance`](crate::server::Server::advance) only. Starts at [`MANUAL_START_MS`].
    Manual,
}

/// Start of a manual clock in Unix milliseconds: a round number, so that tests can write times as literals.
pub const MANUAL_START_MS: u64 = 1_800_000_000_000;

/// The time in Unix milliseconds. Never runs backwards, even if the system clock is set back.
#[derive(Debug)]
pub(crate) struct Clock(ClockSource);

#[derive(Debug)]
enum ClockSource {
    System { unix_ms_at_start: u64, started: Instant },
    Manual { unix_ms: AtomicU64 },
}

impl Clock {
    pub(crate) fn new(config: ClockConfig) -> Self {
        Self(match config {
            ClockConfig::System => {
                let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                ClockSource::System { unix_ms_at_start: millis(since_epoch), started: Instant::now() }
            }
            ClockConfig::Manual => ClockSource::Manual { unix_ms: AtomicU64::new(MANUAL_START_MS) },
        })
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp(match &self.0 {
            ClockSource::System { unix_ms_at_start, started } => unix_ms_at_start + millis(started.elapsed()),
            ClockSource::Manual { unix_ms } => unix_ms.load(Ordering::SeqCst),
        })
    }

    /// The time in Unix nanoseconds. Never runs backwards either.
    pub(crate) fn nanos(&self) -> u64 {
        match &self.0 {
            ClockSource::System { unix_ms_at_start, started } => {
                let elapsed = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
                unix_ms_at_start.saturating_mul(1_000_000).saturating_add(elapsed)
            }
            ClockSource::Manual { unix_ms } => unix_ms.load(Ordering::SeqCst).saturating_mul(1_000_000),
        }
    }

    /// The current time of the system clock in Unix milliseconds. It may have been set forward or back since the
    /// start. For schedules, which follow wall-clock time, and for expiry. A manual clock is never set.
    pub(crate) fn system_ms(&self) -> u64 {
        match &self.0 {
            ClockSource::System { .. } => {
                millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
            }
            ClockSource::Manual { .. } => self.now().0,
        }
    }

    /// The time by which credentials expire, in Unix milliseconds: the later of the system clock, which may have been set
    /// forward since the start or have run while the machine slept, and [`Clock::now`]. Setting the clock back does not make
    /// an expired token valid again.
    pub(crate) fn expiry_ms(&self) -> u64 {
        self.system_ms().max(self.now().0)
    }

    /// Advances a manual clock; `false` if this is the system clock.
    pub(crate) fn advance(&self, by: Duration) -> bool {
        match &self.0 {
            ClockSource::System { .. } => false,
            ClockSource::Manual { unix_ms } => {
                unix_ms.fetch_add(millis(by), Ordering::SeqCst);
                true
            }
        }
    }

    fn is_manual(&self) -> bool {
        matches!(self.0, ClockSource::Manual { .. })
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Wakes a task at a deadline that often moves later. The timer stays unchanged until it fires or the deadline
/// becomes earlier, so that a busy connection does not touch the timer wheel.
///
/// Under a manual clock no timer is set: advancing the clock wakes all tasks.
#[derive(Debug)]
pub(crate) struct Alarm {
    sleep: Option<Pin<Box<Sleep>>>,
    set_for: Timestamp,
}

impl Alarm {
    pub(crate) fn new() -> Self {
        Self { sleep: None, set_for: Timestamp::NEVER }
    }

    /// Ready when `deadline` has passed; otherwise the task is woken when it may have.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
        deadline: Timestamp,
        mut now: Timestamp,
        clock: &Clock,
    ) -> Poll<()> {
        loop {
            if now >= deadline {
                return Poll::Ready(());
            }
            if deadline == Timestamp::NEVER || clock.is_manual() {
                return Poll::Pending;
            }
            if self.sleep.is_none() || deadline < self.set_for {
                self.set(deadline, now);
            }
            let Some(sleep) = &mut self.sleep else { return Poll::Pending };
            if sleep.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.sleep = None;
            now = clock.now();
        }
    }

    fn set(&mut self, deadline: Timestamp, now: Timestamp) {
        let at = tokio::time::Instant::now() + deadline.since(now).min(FAR);
        match &mut self.sleep {
            Some(sleep) => sleep.as_mut().reset(at),
            None => self.sleep = Some(Box::pin(tokio::time::sleep_until(at))),
        }
        self.set_for = deadline;
    }
}

/// Maximum distance of a timer; one that fires too early is set again.
const FAR: Duration = Duration::from_secs(24 * 3600);

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[test]
    fn a_manual_clock_moves_only_when_it_is_turned() {
        let clock = Clock::new(ClockConfig::Manual);
        assert_eq!(clock.now(), Timestamp(MANUAL_START_MS));
        assert!(clock.advance(Duration::from_secs(2)));
        assert_eq!(clock.now(), Timestamp(MANUAL_START_MS + 2000));
        assert!(!Clock::new(ClockConfig::System).advance(Duration::from_secs(1)));
    }

    #[tokio::test]
    async fn an_alarm_fires_at_a_deadline_that_moved_in_either_direction() {
        let clock = Clock::new(ClockConfig::System);
        let start = clock.now();
        let mut alarm = Alarm::new();
        let mut polls = 0;
        // First a distant deadline, then a near one, then one a little later.
        let deadlines = [start.after(Duration::from_secs(3600)), start.after(Duration::from_millis(20))];
        let last = start.after(Duration::from_millis(40));
        poll_fn(|context| {
            let deadline = deadlines.get(polls).copied().unwrap_or(last);
            polls += 1;
            match alarm.poll(context, deadline, clock.now(), &clock) {
                Poll::Pending if polls < 2 => {
                    context.waker().wake_by_ref();
                    Poll::Pending
                }
                other => other,
            }
        })
        .await;
        assert!(clock.now() >= deadlines[1]);
        assert!(clock.now() < deadlines[0]);
    }
}
