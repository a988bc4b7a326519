//! Jobs whose results the broker keeps: each runs to its end, gets the results of the jobs before it in its flow, and has one end,
//! which all who ask hear, whatever crashes.
//!
//! A job may run again after a crash or a lost connection although its end is known: its delivery is settled after that.

use mqcore_broker::model::id::ConnectionId;

use crate::scenario::jobs::JobTerms;
use crate::time::Micros;

/// Maximum time until the delivery of a job is settled and synced after its end was saved.
const SETTLED_AFTER: Micros = 3_000_000;
/// Maximum time between two notices about a job that arrive in the other order.
const CROSSING_MAX: Micros = 500_000;

/// The end of a job, as the broker tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobResult {
    Done,
    Failed,
    /// Its worker was lost, and no other one gets it.
    Lost,
    Cancelled,
}

/// The report of a worker about an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobReport {
    Done,
    /// No further attempt would succeed.
    Failed,
    /// Another attempt may succeed.
    Retry,
}

#[derive(Debug)]
pub(super) struct SeenAttempt {
    pub(super) link: ConnectionId,
    pub(super) at: Micros,
    pub(super) report: Option<JobReport>,
}

#[derive(Debug)]
struct SeenJob {
    terms: JobTerms,
    /// A job without a guarantee may have been with a worker that was lost.
    may_be_lost: bool,
    /// The jobs whose results it gets.
    after: Vec<u32>,
    /// The broker has confirmed that it keeps the job.
    is_kept: bool,
    /// Its client has sent a request to cancel it.
    may_be_cancelled: bool,
    /// When its client heard that it is cancelled.
    cancelled: Option<Micros>,
    attempts: Vec<SeenAttempt>,
    /// Its end, and when its client heard of that.
    told: Option<(JobResult, Micros)>,
    /// A crash or a lost connection may let it run again although it has ended, until the next calm.
    may_return: bool,
    /// A faulty disk may not have saved that it became a dead letter, so it returns after a crash.
    is_unsaved: bool,
    /// The clock was set back, which lengthens the delay before another attempt.
    may_wait: bool,
}

/// All jobs, by number.
#[derive(Debug)]
pub(crate) struct SeenJobs {
    jobs: Vec<SeenJob>,
    /// The queue of all of them.
    pub(super) queue: Option<usize>,
    has_faulty_disk: bool,
    /// A disk may have lost anything without a trace.
    is_unknown: bool,
}

impl SeenJobs {
    pub(super) fn new(queue: Option<usize>) -> Self {
        Self { jobs: Vec::new(), queue, has_faulty_disk: false, is_unknown: false }
    }

    /// The number of jobs so far.
    pub(crate) fn count(&self) -> u32 {
        self.jobs.len() as u32
    }

    /// A client requests a job. Returns its number.
    pub(crate) fn requested(&mut self, after: Vec<u32>, terms: JobTerms) -> u32 {
        self.jobs.push(SeenJob {
            terms,
            may_be_lost: false,
            after,
            is_kept: false,
            may_be_cancelled: false,
            cancelled: None,
            attempts: Vec::new(),
            told: None,
            may_return: false,
            is_unsaved: self.has_faulty_disk,
            may_wait: false,
        });
        self.jobs.len() as u32 - 1
    }

    /// The broker confirms that it keeps a job.
    pub(crate) fn kept(&mut self, job: u32) {
        self.jobs[job as usize].is_kept = true;
    }

    /// The broker refuses a flow. Returns the finding.
    pub(crate) fn refused(&self, first: u32) -> Option<String> {
        let has_reason = self.has_faulty_disk || self.is_unknown;
        (!has_reason).then(|| format!("the flow that begins with job {first} is refused"))
    }

    /// A client asks for the end of a job.
    pub(crate) fn asked_to_cancel(&mut self, job: u32) {
        self.jobs[job as usize].may_be_cancelled = true;
    }

    /// A worker reports an attempt.
    pub(crate) fn reported(&mut self, job: u32, link: ConnectionId, report: JobReport) {
        let is_open = |attempt: &&mut SeenAttempt| attempt.link == link && attempt.report.is_none();
        if let Some(attempt) = self.jobs[job as usize].attempts.iter_mut().rev().find(is_open) {
            attempt.report = Some(report);
        }
    }

    /// Disks have faults from now on, or no longer.
    pub(super) fn set_faulty(&mut self, has_faulty_disk: bool) {
        self.has_faulty_disk = has_faulty_disk;
        if has_faulty_disk {
            self.jobs.iter_mut().for_each(|job| job.is_unsaved = true);
        }
    }

    /// The connection of a worker ended, or nothing arrives on it any more. `None`: the broker ended, and with it all of them.
    pub(super) fn interrupted(&mut self, link: Option<ConnectionId>, now: Micros) {
        for job in &mut self.jobs {
            let ends =
                |attempt: &SeenAttempt| link.is_none_or(|link| attempt.link == link) && attempt.has_ended();
            let is_recent = job.told.is_none_or(|(_, at)| at + SETTLED_AFTER > now);
            job.may_return |= is_recent && job.attempts.iter().any(ends);
            // It may be on its way to the worker. Without retries, its delivery is settled before, which a crash may undo.
            job.may_be_lost |= !job.terms.guarantee && is_recent;
            job.may_return |= job.may_be_lost;
        }
    }

    /// The broker starts with a clock that was set back.
    pub(super) fn clock_set_back(&mut self) {
        for job in &mut self.jobs {
            // A faulty disk that refuses a result lets its job run again, too.
            let waits = |attempt: &SeenAttempt| job.is_unsaved || attempt.report == Some(JobReport::Retry);
            job.may_wait |= job.attempts.iter().any(waits);
        }
    }

    /// The disk may have lost anything without a trace.
    pub(crate) fn doubt(&mut self) {
        self.is_unknown = true;
    }

    fn may_end(&self, job: u32, why: &dyn Fn(&SeenJob) -> bool) -> bool {
        let seen = &self.jobs[job as usize];
        why(seen) || seen.after.iter().any(|before| self.may_end(*before, why))
    }

    /// Why a job cannot have this end.
    fn contradicts(&self, job: u32, result: JobResult, now: Micros) -> Option<String> {
        let seen = &self.jobs[job as usize];
        // A failed job that runs again has its last result, unless jobs of a flow have followed it. Notices about both runs may
        // cross on their way.
        let crosses =
            |at: Micros| !matches!(result, JobResult::Done | JobResult::Cancelled) && at + CROSSING_MAX > now;
        let is_final = |told: JobResult| matches!(told, JobResult::Done | JobResult::Cancelled);
        let stands = |told: &(JobResult, Micros)| {
            told.0 != result && is_final(told.0) && !crosses(told.1) && !seen.is_told_unsaved()
        };
        if let Some((told, _)) = seen.told.filter(stands) {
            return Some(format!("its end was {told:?} before"));
        }
        // Its client may hear that its worker was lost while it is cancelled.
        if seen.cancelled.is_some() && !matches!(result, JobResult::Cancelled | JobResult::Lost) {
            return Some("it is cancelled".to_owned());
        }
        let was_reported = |report: JobReport| {
            move |seen: &SeenJob| seen.attempts.iter().any(|attempt| attempt.report == Some(report))
        };
        let is_possible = match result {
            JobResult::Done => was_reported(JobReport::Done)(seen),
            JobResult::Failed => self.may_end(job, &|seen| {
                let is_last = |attempt: &SeenAttempt| match attempt.report {
                    Some(JobReport::Failed) => true,
                    // Its attempts are used up.
                    Some(JobReport::Retry) => !seen.terms.guarantee,
                    _ => false,
                };
                seen.attempts.iter().any(is_last)
            }),
            JobResult::Lost => seen.may_be_lost,
            JobResult::Cancelled => self.may_end(job, &|seen| seen.may_be_cancelled),
        };
        (!is_possible).then(|| "nothing has led to that".to_owned())
    }

    /// A client hears how a job has ended. Returns the finding.
    pub(crate) fn told(&mut self, job: u32, result: JobResult, now: Micros) -> Option<String> {
        let contradiction = self.contradicts(job, result, now).filter(|_| !self.is_unknown);
        let told = &mut self.jobs[job as usize].told;
        let is_open = |told| matches!(told, JobResult::Failed | JobResult::Lost);
        if told.is_none_or(|(told, _)| is_open(told) && told != result) {
            *told = Some((result, now));
        }
        contradiction.map(|why| format!("job {job} has the end {result:?}, and {why}"))
    }

    /// A client hears whether it has cancelled a job. Returns the finding.
    pub(crate) fn cancelled(&mut self, job: u32, is_cancelled: bool, now: Micros) -> Option<String> {
        let seen = &mut self.jobs[job as usize];
        if !is_cancelled {
            return None;
        }
        seen.cancelled.get_or_insert(now);
        let told = seen.told.filter(|(told, _)| !matches!(told, JobResult::Cancelled | JobResult::Lost));
        let is_told_unsaved = seen.is_told_unsaved();
        let (told, _) = told.filter(|_| !self.is_unknown && !is_told_unsaved)?;
        Some(format!("job {job} is cancelled after its end was {told:?}"))
    }

    pub(super) fn is_requested(&self, job: u32) -> bool {
        (job as usize) < self.jobs.len()
    }

    /// A worker receives a job. Returns the reason why it must not.
    pub(super) fn delivered(
        &mut self,
        job: u32,
        inputs: &[u32],
        link: ConnectionId,
        now: Micros,
    ) -> Option<String> {
        let why = self.forbids(job, inputs, now).filter(|_| !self.is_unknown);
        self.jobs[job as usize].attempts.push(SeenAttempt { link, at: now, report: None });
        why
    }

    /// The key of a job, how many jobs with that run at a time, and the attempts of those jobs.
    pub(super) fn of_key(&self, job: u32) -> Option<(u32, u32, impl Iterator<Item = &SeenAttempt>)> {
        let (key, most) = self.jobs[job as usize].terms.key.filter(|_| !self.is_unknown)?;
        let of_key = self.jobs.iter().filter(move |other| other.terms.key.is_some_and(|(of, _)| of == key));
        Some((key, most, of_key.flat_map(|other| &other.attempts)))
    }

    /// The attempts of a job that keep others from running it. None if it may run again.
    pub(super) fn attempts(&self, job: u32) -> &[SeenAttempt] {
        let seen = &self.jobs[job as usize];
        if seen.may_run_again() || self.is_unknown { &[] } else { &seen.attempts }
    }

    /// Why a worker must not get a job now.
    fn forbids(&self, job: u32, inputs: &[u32], now: Micros) -> Option<String> {
        let seen = &self.jobs[job as usize];
        if seen.after != inputs {
            return Some(format!("has the results of {inputs:?} instead of {:?}", seen.after));
        }
        let is_done = |before: &&u32| {
            let before = &self.jobs[**before as usize];
            let is_reported = before.attempts.iter().any(|attempt| attempt.report == Some(JobReport::Done));
            is_reported && before.told.is_none_or(|(told, _)| told == JobResult::Done)
        };
        if let Some(before) = seen.after.iter().find(|before| !is_done(before)) {
            return Some(format!("runs although job {before} before it has not succeeded"));
        }
        if seen.cancelled.is_some_and(|at| at + SETTLED_AFTER < now) {
            return Some("runs although it is cancelled".to_owned());
        }
        let has_ended = seen.told.is_some_and(|(_, at)| at + SETTLED_AFTER < now);
        (has_ended && !seen.may_run_again())
            .then(|| "runs again although its client knows its end".to_owned())
    }

    /// A calm ends. `is_served`: workers were there all the time. `is_heard`: so was the client. Returns the findings.
    pub(super) fn calm(&mut self, is_served: bool, is_heard: bool) -> Vec<String> {
        let mut findings = Vec::new();
        if self.is_unknown || !is_served {
            return findings;
        }
        for job in 0..self.jobs.len() as u32 {
            let seen = &self.jobs[job as usize];
            let ends_otherwise = |seen: &SeenJob| {
                let has_failed = |attempt: &SeenAttempt| attempt.report == Some(JobReport::Failed);
                seen.may_be_cancelled || seen.attempts.iter().any(has_failed)
            };
            let is_done = seen.attempts.iter().any(|attempt| attempt.report == Some(JobReport::Done));
            if self.may_end(job, &|seen| seen.may_wait) || seen.may_be_lost {
                continue;
            }
            let is_done = is_done || !seen.terms.guarantee;
            if seen.is_kept && !is_done && !self.may_end(job, &ends_otherwise) {
                findings.push(format!("job {job} is kept, and has not run"));
            } else if seen.is_kept && is_heard && seen.told.is_none() {
                findings.push(format!("the client never hears how job {job} has ended"));
            }
            self.jobs[job as usize].may_return = false;
        }
        findings
    }
}

impl SeenJob {
    /// Whether its client may have heard of an end that a faulty disk has not saved. Without a guarantee, that is the last end.
    fn is_told_unsaved(&self) -> bool {
        self.is_unsaved && !self.terms.guarantee
    }

    fn may_run_again(&self) -> bool {
        self.may_return || self.is_unsaved
    }
}

impl SeenAttempt {
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.report, Some(JobReport::Done | JobReport::Failed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Micros = 1_000_000;
    const WORKER: ConnectionId = ConnectionId(1);

    /// Two jobs, the second with the result of the first. Both are kept.
    fn chain() -> SeenJobs {
        let mut jobs = SeenJobs::new(Some(0));
        let terms = JobTerms::of(0, false);
        let first = jobs.requested(Vec::new(), terms);
        let second = jobs.requested(vec![first], terms);
        jobs.kept(first);
        jobs.kept(second);
        jobs
    }

    fn runs(jobs: &mut SeenJobs, job: u32, report: JobReport) {
        jobs.jobs[job as usize].attempts.push(SeenAttempt { link: WORKER, at: 0, report: None });
        jobs.reported(job, WORKER, report);
    }

    #[test]
    fn a_job_runs_with_the_results_of_those_before_it_and_not_before_they_succeeded() {
        let mut jobs = chain();
        assert!(jobs.forbids(1, &[0], 0).is_some());
        runs(&mut jobs, 0, JobReport::Retry);
        assert!(jobs.forbids(1, &[0], 0).is_some());
        runs(&mut jobs, 0, JobReport::Done);
        assert_eq!(jobs.forbids(1, &[0], 0), None);
        assert!(jobs.forbids(1, &[], 0).is_some());
    }

    #[test]
    fn a_cancelled_job_does_not_run_after_a_while() {
        let mut jobs = chain();
        jobs.asked_to_cancel(0);
        assert_eq!(jobs.cancelled(0, true, SECOND), None);
        assert_eq!(jobs.forbids(0, &[], SECOND), None, "a worker may have had it already");
        assert!(jobs.forbids(0, &[], 10 * SECOND).is_some());
    }

    #[test]
    fn a_job_has_one_end_for_which_there_is_a_reason() {
        assert!(chain().told(0, JobResult::Done, 0).is_some());
        assert!(chain().told(1, JobResult::Cancelled, 0).is_some());
        let mut jobs = chain();
        jobs.asked_to_cancel(0);
        assert_eq!(jobs.told(1, JobResult::Cancelled, 0), None, "the job before it may be cancelled");
        runs(&mut jobs, 0, JobReport::Done);
        assert_eq!(jobs.told(0, JobResult::Done, 0), None);
        assert!(jobs.cancelled(0, true, 0).is_some());
        assert!(jobs.told(0, JobResult::Cancelled, 0).is_some());
    }

    #[test]
    fn a_job_whose_end_is_known_runs_again_only_if_a_crash_came_in_between() {
        for (crashed, is_right) in [(None, false), (Some(2 * SECOND), true), (Some(20 * SECOND), false)] {
            let mut jobs = chain();
            runs(&mut jobs, 0, JobReport::Done);
            assert_eq!(jobs.told(0, JobResult::Done, SECOND), None);
            crashed.into_iter().for_each(|at| jobs.interrupted(None, at));
            assert_eq!(jobs.forbids(0, &[], 30 * SECOND).is_none(), is_right, "{crashed:?}");
        }
    }

    #[test]
    fn in_a_calm_every_kept_job_ends_and_its_client_hears_how() {
        assert_eq!(chain().calm(true, true).len(), 2);
        assert_eq!(chain().calm(false, true), [""; 0]);
        let mut jobs = chain();
        runs(&mut jobs, 0, JobReport::Failed);
        assert_eq!(jobs.calm(true, false), [""; 0]);
        assert_eq!(jobs.calm(true, true).len(), 2, "the client has not heard of it");
        for job in [0, 1] {
            assert_eq!(jobs.told(job, JobResult::Failed, 0), None);
        }
        assert_eq!(jobs.calm(true, true), [""; 0]);
    }
}
