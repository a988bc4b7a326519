//! The signal to stop, and the count of tasks that still run.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// Longer drain times are cut to this, so that adding them to the clock cannot overflow.
const GRACE_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// The progress of a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No stop was requested.
    Running,
    /// No new work is accepted; in-flight work may finish until then.
    Draining(Instant),
    /// Shards and all other tasks end now.
    Ended,
}

/// Shared by all tasks of a server.
#[derive(Debug)]
pub(crate) struct Shutdown {
    phase: watch::Sender<Phase>,
    tasks: watch::Sender<usize>,
}

impl Shutdown {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { phase: watch::Sender::new(Phase::Running), tasks: watch::Sender::new(0) })
    }

    /// Requests a stop within `grace`. True for the first request; a later one can only shorten the time.
    pub(crate) fn begin(&self, grace: Duration) -> bool {
        let until = Instant::now() + grace.min(GRACE_MAX);
        let mut first = false;
        self.phase.send_if_modified(|phase| match *phase {
            Phase::Running => {
                first = true;
                *phase = Phase::Draining(until);
                true
            }
            Phase::Draining(earlier) if until < earlier => {
                *phase = Phase::Draining(until);
                true
            }
            Phase::Draining(_) | Phase::Ended => false,
        });
        first
    }

    /// The time to drain is over.
    pub(crate) fn end(&self) {
        self.phase.send_replace(Phase::Ended);
    }

    pub(crate) fn is_running(&self) -> bool {
        *self.phase.borrow() == Phase::Running
    }

    /// Whether all tasks must end.
    pub(crate) fn has_ended(&self) -> bool {
        *self.phase.borrow() == Phase::Ended
    }

    /// Returns when a stop was requested.
    pub(crate) async fn begun(&self) {
        self.reached(|phase| *phase != Phase::Running).await;
    }

    /// Returns when all tasks must end.
    pub(crate) async fn ended(&self) {
        self.reached(|phase| *phase == Phase::Ended).await;
    }

    /// Returns at the end of the drain time, which may become earlier during the wait.
    pub(crate) async fn drained_long_enough(&self) {
        let mut phase = self.phase.subscribe();
        loop {
            let until = match *phase.borrow_and_update() {
                Phase::Running => None,
                Phase::Draining(until) => Some(until),
                Phase::Ended => return,
            };
            tokio::select! {
                () = sleep_until(until) => return,
                _ = phase.changed() => {}
            }
        }
    }

    async fn reached(&self, wanted: impl FnMut(&Phase) -> bool) {
        // The sender is in `self`, so this cannot fail during the wait.
        let _ = self.phase.subscribe().wait_for(wanted).await;
    }

    /// Held by a task as long as it runs.
    pub(crate) fn enter(self: &Arc<Self>) -> TaskGuard {
        self.tasks.send_modify(|tasks| *tasks += 1);
        TaskGuard(Arc::clone(self))
    }

    /// Whether a stop was requested and no task is left.
    pub(crate) fn is_over(&self) -> bool {
        !self.is_running() && *self.tasks.borrow() == 0
    }

    /// Returns when no task is left.
    pub(crate) async fn all_gone(&self) {
        let _ = self.tasks.subscribe().wait_for(|tasks| *tasks == 0).await;
    }
}

async fn sleep_until(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => std::future::pending().await,
    }
}

/// Counts as a running task until it is dropped.
#[derive(Debug)]
pub(crate) struct TaskGuard(Arc<Shutdown>);

impl TaskGuard {
    /// Reports that the task has failed and that the server cannot continue without it.
    pub(crate) fn fail(&self) {
        self.0.begin(Duration::ZERO);
    }
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        self.0.tasks.send_modify(|tasks| *tasks -= 1);
    }
}

/// Held by a thread that the server cannot work without. A panic of the thread stops the server: otherwise everyone who
/// waits for the thread would wait for ever.
#[derive(Debug)]
pub(crate) struct VitalGuard(TaskGuard);

impl From<TaskGuard> for VitalGuard {
    fn from(guard: TaskGuard) -> Self {
        Self(guard)
    }
}

impl Drop for VitalGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let thread = std::thread::current();
            tracing::error!(thread = thread.name(), "a thread of the broker failed; stopping");
            self.0.fail();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_second_request_can_shorten_the_time_but_not_lengthen_it() {
        let shutdown = Shutdown::new();
        let started = Instant::now();
        assert!(shutdown.begin(Duration::from_secs(60)));
        assert!(!shutdown.begin(Duration::from_secs(600)));
        assert!(!shutdown.begin(Duration::from_secs(2)));
        shutdown.drained_long_enough().await;
        assert_eq!(started.elapsed().as_secs(), 2);
    }

    #[tokio::test]
    async fn a_panic_of_a_vital_thread_stops_the_server() {
        let shutdown = Shutdown::new();
        for (panics, stops) in [(false, false), (true, true)] {
            let alive = VitalGuard::from(shutdown.enter());
            let thread = std::thread::spawn(move || {
                assert!(!panics, "as a defect would");
                drop(alive);
            });
            assert_eq!(thread.join().is_err(), panics);
            assert_eq!(!shutdown.is_running(), stops);
        }
        shutdown.all_gone().await;
    }

    #[tokio::test]
    async fn all_are_gone_when_the_last_guard_is() {
        let shutdown = Shutdown::new();
        let guards = [shutdown.enter(), shutdown.enter()];
        let waiting = tokio::spawn({
            let shutdown = Arc::clone(&shutdown);
            async move { shutdown.all_gone().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        assert!(!shutdown.is_over());
        drop(guards);
        assert!(!shutdown.is_over(), "nobody has asked for it");
        shutdown.begin(Duration::ZERO);
        assert!(shutdown.is_over());
        waiting.await.expect("the last guard wakes who waits");
    }
}
