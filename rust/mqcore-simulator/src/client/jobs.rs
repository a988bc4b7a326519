//! Jobs whose results the broker keeps, as clients see them: ids, bodies, and what the broker sends about them.

use mqcore_wire::eventmq::Job;

use crate::oracle::jobs::{JobReport, JobResult};

/// The result of an attempt after which the broker tries again.
pub(super) const RETRY: &str = "{\"error\": {\"type\": \"Simulated\"}, \"retry_after\": 0.02}";
/// The result of an attempt after which it does not.
pub(super) const FAILED: &str = "{\"error\": {\"type\": \"Simulated\", \"final\": true}}";

/// Something that the broker sent about a job.
#[derive(Debug)]
pub(super) enum JobEvent {
    /// A worker gets it, with the results of these jobs.
    Delivered { job: u32, inputs: Vec<u32>, id: Box<[u8]> },
    /// The broker keeps it.
    Kept(u32),
    /// It has ended.
    Told(u32, JobResult),
    /// Whether it is cancelled.
    Cancelled(u32, bool),
    /// Whether the flow begins whose first job this is.
    Begun(u32, bool),
}

/// The id of a job.
pub(super) fn job_id(job: u32) -> String {
    format!("j{job}")
}

fn number_after(text: &[u8], prefix: char) -> Option<u32> {
    str::from_utf8(text).ok()?.strip_prefix(prefix)?.parse().ok()
}

/// The part of a job's body before the results of other jobs, and the part after it.
pub(super) fn body_around(job: u32) -> (String, &'static str) {
    (format!("{{\"job\":\"{}\",\"of\":[", job_id(job)), "]}")
}

impl JobEvent {
    /// The job that a worker gets, if it is one of these.
    pub(super) fn of_request(id: &[u8], job: &Job<'_>) -> Option<Self> {
        let text = str::from_utf8(job.body).ok().filter(|text| text.starts_with("{\"job\":"))?;
        let mut jobs = text.split('"').filter_map(|word| number_after(word.as_bytes(), 'j'));
        // `job` itself is none: no number follows.
        let job = jobs.next()?;
        Some(Self::Delivered { job, inputs: jobs.collect(), id: id.into() })
    }

    /// An answer with an id that one of these requests had.
    pub(super) fn of_answer(id: Option<&[u8]>, body: &[u8]) -> Option<Self> {
        let Some(id) = id else { return number_after(body, 'j').map(Self::Kept) };
        let text = String::from_utf8_lossy(body);
        if let Some(job) = number_after(id, 'j') {
            let result = match () {
                () if text == done(job) => JobResult::Done,
                () if text.contains("\"Cancelled\"") => JobResult::Cancelled,
                () if text.contains("\"Simulated\"") => JobResult::Failed,
                () if text.contains("\"Lost\"") => JobResult::Lost,
                () => panic!("job {job} has the result {text}"),
            };
            return Some(Self::Told(job, result));
        }
        if let Some(job) = number_after(id, 'c') {
            return Some(Self::Cancelled(job, text.contains("\"cancelled\":true")));
        }
        number_after(id, 'f').map(|first| Self::Begun(first, text.contains("\"begun\":true")))
    }
}

/// The result of an attempt that succeeds.
pub(super) fn done(job: u32) -> String {
    format!("{{\"value\":\"{}\"}}", job_id(job))
}

/// A job of a worker, and when it reports what.
#[derive(Debug)]
pub(super) struct JobWork {
    pub(super) job: u32,
    pub(super) id: Box<[u8]>,
    pub(super) report: JobReport,
}
