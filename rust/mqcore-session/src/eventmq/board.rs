//! State of jobs that sessions and the ledger share: which run, which are cancelled, and which have ended and are not settled.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::HashMap;
use mqcore_broker::model::id::{ConnectionId, QueueAddress};
use mqcore_broker::model::time::Timestamp;
use mqcore_wire::eventmq::headers;
use serde_json::value::RawValue;

use super::ledger::EndedJob;

/// The header with the key of jobs of which a limited number runs at a time.
const CONCURRENCY: &[u8] = b"concurrency";
/// The header with that number.
const CONCURRENCY_MAX: &[u8] = b"concurrency-max";
/// The shortest and the longest time after which a job without room is delivered again.
const POSTPONED_MIN: Duration = Duration::from_millis(50);
const POSTPONED_MAX: Duration = Duration::from_secs(60);
/// Additional time for each job of the key that found no room either: a long queue is not delivered all the time.
const POSTPONED_EACH: Duration = Duration::from_millis(2);

/// Running, cancelled and ended jobs. Locks are held for a few steps.
#[derive(Debug, Default)]
pub struct JobBoard {
    state: Mutex<BoardState>,
    /// Number of cancelled jobs: usually there are none, and then a delivery takes no lock for them.
    cancelled: AtomicUsize,
}

#[derive(Debug, Default)]
struct BoardState {
    running: HashMap<Box<[u8]>, RunningJob>,
    /// Keys of running jobs.
    keys: HashMap<ConcurrencyKey, KeyState>,
    cancelled: HashMap<Box<[u8]>, (QueueAddress, Cancellation)>,
    ended: HashMap<Box<[u8]>, EndedJob>,
}

/// How far the cancellation of a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancellation {
    /// The ledger has not saved it. A crash undoes it, so the delivery of the job must not be settled because of it.
    Requested,
    /// The ledger has saved it.
    Saved,
}

/// A key of a queue.
pub(super) type ConcurrencyKey = (QueueAddress, Box<[u8]>);

#[derive(Debug, Default)]
struct KeyState {
    running: u32,
    /// Deliveries that found no room since the last job began.
    postponed: u32,
}

/// The key of a job with these headers, and how many jobs of the key run at a time.
pub(super) fn concurrency(text: &[u8]) -> Option<(&[u8], u32)> {
    let key = headers::value(text, CONCURRENCY).filter(|key| !key.is_empty())?;
    let most = headers::value(text, CONCURRENCY_MAX).and_then(|most| str::from_utf8(most).ok()?.parse().ok());
    Some((key, most.unwrap_or(1).max(1)))
}

/// A job that a worker has.
#[derive(Debug, Clone)]
pub struct RunningJob {
    /// The connection of the worker.
    pub worker: ConnectionId,
    /// The queue of the job.
    pub queue: QueueAddress,
    /// When the worker got it.
    pub began: Timestamp,
    /// The last progress report, as JSON.
    pub progress: Option<Box<str>>,
    /// Its key, if a limited number of jobs with that runs at a time.
    pub(super) key: Option<Box<[u8]>>,
}

/// Jobs that run longest.
#[derive(Debug)]
pub struct LongestRunning {
    /// Number of all running jobs.
    pub total: usize,
    /// Jobs with their ids, those that run longest first.
    pub jobs: Vec<(Box<[u8]>, RunningJob)>,
}

impl BoardState {
    fn remove(&mut self, job: &[u8]) {
        let Some(RunningJob { queue, key: Some(key), .. }) = self.running.remove(job) else { return };
        let key = (queue, key);
        if let Some(of_key) = self.keys.get_mut(&key) {
            of_key.running = of_key.running.saturating_sub(1);
            if of_key.running == 0 {
                self.keys.remove(&key);
            }
        }
    }
}

impl JobBoard {
    fn lock(&self) -> MutexGuard<'_, BoardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker gets a job. Called before [`JobBoard::cancellation`]: the ledger, which cancels, does the opposite, so that one of
    /// them sees the other.
    ///
    /// # Errors
    /// So many jobs with its key run that the worker must not begin it now: the time until the next attempt.
    pub(super) fn began(
        &self,
        job: &[u8],
        worker: ConnectionId,
        queue: &QueueAddress,
        limit: Option<(&[u8], u32)>,
        now: Timestamp,
    ) -> Result<(), Duration> {
        let mut state = self.lock();
        // Another worker has lost it, and its connection has not ended yet.
        state.remove(job);
        if let Some((key, most)) = limit {
            let of_key = state.keys.entry((queue.clone(), key.into())).or_default();
            if of_key.running >= most {
                of_key.postponed = of_key.postponed.saturating_add(1);
                let delay = POSTPONED_EACH.saturating_mul(of_key.postponed);
                return Err(delay.clamp(POSTPONED_MIN, POSTPONED_MAX));
            }
            of_key.running += 1;
            of_key.postponed = 0;
        }
        let key = limit.map(|(key, _)| key.into());
        let running = RunningJob { worker, queue: queue.clone(), began: now, progress: None, key };
        state.running.insert(job.into(), running);
        Ok(())
    }

    /// A worker does not have a job any more.
    pub(super) fn left(&self, job: &[u8], worker: ConnectionId) {
        let mut state = self.lock();
        if state.running.get(job).is_some_and(|running| running.worker == worker) {
            state.remove(job);
        }
    }

    /// Notes a progress report of a running job.
    pub(super) fn progressed(&self, job: &[u8], report: &[u8]) {
        let Ok(report) = serde_json::from_slice::<&RawValue>(report) else { return };
        if let Some(running) = self.lock().running.get_mut(job) {
            running.progress = Some(report.get().into());
        }
    }

    /// The job, if it is running.
    #[must_use]
    pub fn running(&self, job: &[u8]) -> Option<RunningJob> {
        self.lock().running.get(job).cloned()
    }

    /// The up to `max` jobs that run longest.
    #[must_use]
    pub fn longest_running(&self, max: usize) -> LongestRunning {
        let state = self.lock();
        let mut jobs: Vec<_> = state.running.iter().collect();
        let total = jobs.len();
        if total > max {
            // Sorting all of them would hold the lock longer than deliveries should wait.
            jobs.select_nth_unstable_by_key(max, |(_, job)| job.began);
            jobs.truncate(max);
        }
        jobs.sort_unstable_by(|(id, job), (other_id, other)| (job.began, id).cmp(&(other.began, other_id)));
        let jobs = jobs.into_iter().map(|(id, job)| (id.clone(), job.clone())).collect();
        LongestRunning { total, jobs }
    }

    /// How far the cancellation of the job of this queue is; `None`: it is not cancelled.
    #[must_use]
    pub fn cancellation(&self, job: &[u8], queue: &QueueAddress) -> Option<Cancellation> {
        if self.cancelled.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let state = self.lock();
        state.cancelled.get(job).filter(|(of, _)| of.is(queue)).map(|(_, cancellation)| *cancellation)
    }

    /// Cancels a job: no worker gets it from now on. [`JobBoard::cancellation_saved`] must follow.
    pub fn cancel(&self, job: &[u8], queue: QueueAddress) {
        let mut state = self.lock();
        state.cancelled.entry(job.into()).or_insert((queue, Cancellation::Requested));
        self.cancelled.store(state.cancelled.len(), Ordering::SeqCst);
    }

    /// The ledger has saved that a job is cancelled.
    pub fn cancellation_saved(&self, job: &[u8]) {
        if let Some((_, cancellation)) = self.lock().cancelled.get_mut(job) {
            *cancellation = Cancellation::Saved;
        }
    }

    /// The ledger gets the end of a job whose delivery is not settled. If the connection of its worker ends before it is, the
    /// job returns to its queue; its client may have heard of this end, so no worker must run it again.
    pub fn ended(&self, job: &EndedJob) {
        self.lock().ended.insert(job.result.id().into(), job.clone());
    }

    /// The end of a job of this queue whose delivery was not settled.
    #[must_use]
    pub fn end_of(&self, job: &[u8], queue: &QueueAddress) -> Option<EndedJob> {
        self.lock().ended.get(job).filter(|ended| ended.queue.is(queue)).cloned()
    }

    /// The delivery of a job that has ended is settled, or the ledger has forgotten its end.
    pub fn settled(&self, job: &[u8]) {
        self.lock().ended.remove(job);
    }

    /// Forgets that a job was cancelled.
    pub fn forget(&self, job: &[u8]) {
        let mut state = self.lock();
        state.cancelled.remove(job);
        self.cancelled.store(state.cancelled.len(), Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_000);

    #[test]
    fn a_cancelled_job_is_known_by_its_queue_too() {
        let board = JobBoard::default();
        let queue = |name| QueueAddress::parse(name).unwrap();
        board.cancel(b"job", queue("mail"));
        assert_eq!(board.cancellation(b"job", &queue("mail")), Some(Cancellation::Requested));
        assert_eq!(board.cancellation(b"job", &queue("other")), None);
        board.cancellation_saved(b"job");
        board.cancel(b"job", queue("mail"));
        assert_eq!(board.cancellation(b"job", &queue("mail")), Some(Cancellation::Saved));
        board.forget(b"job");
        assert_eq!(board.cancellation(b"job", &queue("mail")), None);
    }

    #[test]
    fn the_jobs_that_run_longest_are_listed_first() {
        let (board, queue) = (JobBoard::default(), QueueAddress::parse("mail").unwrap());
        for (job, began) in [(b"c", 30), (b"a", 10), (b"d", 20), (b"b", 20)] {
            board.began(job, ConnectionId(1), &queue, None, Timestamp(began)).unwrap();
        }
        for (max, listed) in [(0, ""), (1, "a"), (3, "abd"), (4, "abdc"), (9, "abdc")] {
            let LongestRunning { total, jobs } = board.longest_running(max);
            let ids = jobs.into_iter().flat_map(|(id, _)| id).collect();
            assert_eq!((total, String::from_utf8(ids).unwrap().as_str()), (4, listed));
        }
    }

    #[test]
    fn a_worker_that_lost_a_job_does_not_hide_that_another_one_has_it() {
        let (board, queue) = (JobBoard::default(), QueueAddress::parse("mail").unwrap());
        board.began(b"job", ConnectionId(1), &queue, None, NOW).unwrap();
        board.began(b"job", ConnectionId(2), &queue, None, NOW).unwrap();
        board.left(b"job", ConnectionId(1));
        board.progressed(b"job", br#"{"fraction": 0.5}"#);
        let running = board.running(b"job").unwrap();
        assert_eq!(
            (running.worker, running.progress.as_deref()),
            (ConnectionId(2), Some(r#"{"fraction": 0.5}"#))
        );
        board.left(b"job", ConnectionId(2));
        assert!(board.running(b"job").is_none());
    }

    #[test]
    fn at_most_as_many_jobs_of_a_key_run_as_it_allows() {
        let (board, queue) = (JobBoard::default(), QueueAddress::parse("mail").unwrap());
        let worker = ConnectionId(1);
        let began = |job: &[u8], key: &[u8]| board.began(job, worker, &queue, Some((key, 2)), NOW);
        began(b"a", b"k").unwrap();
        began(b"b", b"k").unwrap();
        assert_eq!(began(b"c", b"k"), Err(POSTPONED_MIN));
        let other = QueueAddress::parse("other").unwrap();
        board.began(b"d", worker, &other, Some((b"k", 2)), NOW).unwrap();
        began(b"e", b"another").unwrap();
        board.left(b"a", ConnectionId(2));
        assert!(began(b"c", b"k").is_err(), "another worker has not had it");
        board.left(b"a", worker);
        began(b"c", b"k").unwrap();
        began(b"c", b"k").unwrap();
        assert!(began(b"f", b"k").is_err(), "a job that is delivered again counts once");
        for _ in 0..1_000 {
            assert!(began(b"f", b"k").is_err());
        }
        assert_eq!(began(b"f", b"k"), Err(POSTPONED_EACH * 1_002));
        for job in [b"b", b"c", b"d", b"e"] {
            board.left(job, worker);
        }
        assert!(board.lock().keys.is_empty());
    }

    #[test]
    fn a_key_without_a_number_lets_one_job_run() {
        assert_eq!(concurrency(b"guarantee,concurrency:k"), Some((&b"k"[..], 1)));
        assert_eq!(concurrency(b"concurrency:k,concurrency-max:3"), Some((&b"k"[..], 3)));
        assert_eq!(concurrency(b"concurrency:k,concurrency-max:0"), Some((&b"k"[..], 1)));
        assert_eq!(concurrency(b"concurrency:,concurrency-max:3"), None);
    }
}
