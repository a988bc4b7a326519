//! Results by job, cancellations, and flows of jobs that begin when others have ended: state beside the queues.
//!
//! A job whose headers have `result-ttl:SECONDS` ends in the ledger: its delivery is settled only when the ledger has saved
//! its result. A FLOW names jobs that the ledger itself sends, each when the jobs before it have ended:
//!
//! ```text
//! {"id": "...", "steps": [
//!     {"id": "a", "queue": "default", "headers": "guarantee,result-ttl:3600", "head": "[\"run\", {\"args\": [1], ...}]"},
//!     {"id": "b", ..., "head": "[\"run\", {\"args\": [", "tail": "], ...}]", "after": [0]}
//! ]}
//! ```
//!
//! The job of a step is its head, the results of the steps before it, and its tail.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use mqcore_broker::model::id::{ConnectionId, QueueAddress};
use mqcore_broker::model::intake::Ticket;
use mqcore_broker::model::message::{Layout, Message};
use mqcore_wire::eventmq::headers::{self, Headers};
use mqcore_wire::eventmq::{Job, NAME_BYTES_MAX};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::board::JobBoard;
use super::job;

/// The header of jobs whose results are kept: for how many seconds.
pub(super) const RESULT_TTL: &[u8] = b"result-ttl";
/// Maximum steps of a flow.
pub const STEPS_MAX: usize = 10_000;
/// Maximum bytes of the id of a job.
pub const JOB_ID_BYTES_MAX: usize = NAME_BYTES_MAX;
/// Maximum seconds for which a result is kept.
const TTL_MAX: u64 = 366 * 24 * 3600;

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobEnd {
    /// It returned a value.
    Done,
    /// Its last attempt failed.
    Failed,
    /// It was cancelled.
    Cancelled,
}

impl JobEnd {
    /// Its name in answers.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The receiver of the news that the end of a job is saved. It hears the end that counts, which may be an earlier one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndReceiver {
    /// No client asked for the result.
    Unneeded,
    /// The session of the worker, which then answers the client and settles the job.
    Session(ConnectionId),
    /// The client with this id: no session has the job any more.
    Client(Box<str>),
}

/// A job that has ended.
#[derive(Debug, Clone)]
pub struct EndedJob {
    /// The receiver of the news that it is saved.
    pub receiver: EndReceiver,
    /// The queue that it was delivered from.
    pub queue: QueueAddress,
    /// Its id, with its result as the body.
    pub result: Message,
    /// How it ended.
    pub end: JobEnd,
    /// For how long to keep the result.
    pub ttl_ms: u64,
}

/// A request of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LedgerRequest {
    /// Send the result of a job as soon as there is one.
    Await {
        /// The job.
        job: Box<[u8]>,
    },
    /// Tell what is known about a job.
    Lookup {
        /// The id of the request.
        request: Box<[u8]>,
        /// The job.
        job: Box<[u8]>,
    },
    /// Cancel a job.
    Cancel {
        /// The id of the request.
        request: Box<[u8]>,
        /// The job.
        job: Box<[u8]>,
        /// Its queue, on which the client has the right to publish.
        queue: QueueAddress,
        /// Whether a running job is killed.
        hard: bool,
    },
    /// Begin a flow.
    Begin {
        /// The id of the request.
        request: Box<[u8]>,
        /// The flow, on whose queues the client has the right to publish.
        flow: Box<Flow>,
    },
}

impl LedgerRequest {
    /// The id of a request that has an answer.
    #[must_use]
    pub fn id(&self) -> Option<&[u8]> {
        match self {
            Self::Cancel { request, .. } | Self::Begin { request, .. } | Self::Lookup { request, .. } => {
                Some(request)
            }
            Self::Await { .. } => None,
        }
    }
}

/// Keeps results, cancellations and flows. Called while a connection reads, so it must not block.
pub trait JobLedger: fmt::Debug + Send + Sync {
    /// The state that sessions share with it.
    fn board(&self) -> &Arc<JobBoard>;

    /// A job has ended.
    fn ended(&self, job: EndedJob);

    /// Handles a request of a client, which hears the answer.
    fn request(&self, asker: ConnectionId, request: LedgerRequest);
}

// ---- Flows ---------------------------------------------------------------------------------------------------------

/// Jobs of which each begins when others have ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// Its id.
    pub id: String,
    /// Its jobs; each comes after those that it waits for.
    pub steps: Vec<FlowStep>,
}

/// A job of a flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowStep {
    /// The id of the job.
    pub id: String,
    /// Its queue.
    pub queue: String,
    /// Its headers.
    pub headers: String,
    /// The job up to the results that it gets.
    pub head: String,
    /// The job after them.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tail: String,
    /// The steps that it waits for, all of them before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<u32>,
    /// Whether it gets a list of all their results instead of the one result.
    #[serde(default, skip_serializing_if = "is_false")]
    pub gathers: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !value
}

impl Flow {
    /// Parses a flow and checks it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let flow: Self = serde_json::from_slice(text).map_err(|error| format!("invalid flow: {error}"))?;
        if flow.id.is_empty() || flow.id.len() > NAME_BYTES_MAX {
            return Err(format!("the id of a flow must have 1 to {NAME_BYTES_MAX} bytes"));
        }
        if flow.steps.is_empty() || flow.steps.len() > STEPS_MAX {
            let steps = flow.steps.len();
            return Err(format!("a flow must have 1 to {STEPS_MAX} steps, not {steps}; split it"));
        }
        let mut ids = HashSet::with_capacity(flow.steps.len());
        for (place, step) in flow.steps.iter().enumerate() {
            step.check(place).map_err(|why| format!("step {place} of the flow: {why}"))?;
            if !ids.insert(&*step.id) {
                return Err(format!("step {place} of the flow: its id {:?} occurs twice", step.id));
            }
        }
        Ok(flow)
    }
}

impl FlowStep {
    fn check(&self, place: usize) -> Result<(), String> {
        if self.id.is_empty() || self.id.len() > NAME_BYTES_MAX {
            return Err(format!("its id must have 1 to {NAME_BYTES_MAX} bytes"));
        }
        QueueAddress::parse(&self.queue).map_err(|error| error.to_string())?;
        Headers::check(self.headers.as_bytes()).map_err(|error| error.to_string())?;
        if self.headers.len() > usize::from(u16::MAX) || self.headers.chars().any(char::is_control) {
            return Err("its headers are too long or contain control characters".to_owned());
        }
        if result_ttl(self.headers.as_bytes()).is_none() {
            return Err("it has no header result-ttl, such as result-ttl:3600".to_owned());
        }
        if self.after.iter().any(|before| *before as usize >= place) {
            return Err("it waits for a step that does not come before it".to_owned());
        }
        if !self.gathers && self.after.len() > 1 {
            return Err("it waits for several steps and does not gather their results".to_owned());
        }
        Ok(())
    }

    /// Its queue.
    ///
    /// # Panics
    /// If the step was not checked.
    #[must_use]
    pub fn address(&self) -> QueueAddress {
        QueueAddress::parse(&self.queue).expect("the step was checked")
    }

    /// For how long its result is kept.
    #[must_use]
    pub fn ttl_ms(&self) -> u64 {
        result_ttl(self.headers.as_bytes()).unwrap_or(0)
    }

    /// Its job. `results` are those of the steps that it waits for.
    #[must_use]
    pub fn job(&self, results: &[&[u8]]) -> Vec<u8> {
        let values: Vec<&[u8]> = results.iter().map(|result| value_of(result)).collect();
        let values = values.join(&b","[..]);
        let parts: [&[u8]; 5] = if self.gathers {
            [self.head.as_bytes(), b"[", &values, b"]", self.tail.as_bytes()]
        } else {
            [self.head.as_bytes(), b"", &values, b"", self.tail.as_bytes()]
        };
        parts.concat()
    }
}

/// The message of a step's job for its queue, which accepts a ticket once.
///
/// # Errors
/// The reason why the job is invalid.
pub fn step_message(
    id: &[u8],
    (queue, headers, body): (&[u8], &[u8], &[u8]),
    to: &QueueAddress,
    ticket: Ticket,
) -> Result<Message, String> {
    let job = Job { queue, headers, body, extra: Vec::new() };
    let text = job::header_text(&job, to)?;
    let block = [id, &text, body].concat();
    let headers_at = id.len()..id.len() + text.len();
    let layout = Layout {
        id: 0..id.len(),
        source: id.len()..id.len(),
        body: headers_at.end..block.len(),
        headers: headers_at,
    };
    Ok(Message::passed_on(&block, &layout, job::properties(&job, to, Headers::parse(headers)), ticket))
}

#[derive(Deserialize)]
struct ResultValue<'a> {
    #[serde(borrow, default)]
    value: Option<&'a RawValue>,
}

/// The value in a worker's result. Workers that write something else return that.
fn value_of(result: &[u8]) -> &[u8] {
    let parsed = serde_json::from_slice::<ResultValue<'_>>(result);
    match parsed {
        Ok(ResultValue { value: Some(value) }) => value.get().as_bytes(),
        Ok(ResultValue { value: None }) => b"null",
        Err(_) if serde_json::from_slice::<&RawValue>(result).is_ok() => result,
        Err(_) => b"null",
    }
}

/// For how many milliseconds the result of a job with these headers is kept; `None`: it is not.
pub(super) fn result_ttl(text: &[u8]) -> Option<u64> {
    let seconds = headers::value(text, RESULT_TTL)?;
    let seconds: u64 = str::from_utf8(seconds).ok()?.parse().ok()?;
    (seconds > 0).then(|| seconds.min(TTL_MAX) * 1000)
}

/// The result of a cancelled job.
#[must_use]
pub fn cancelled_result() -> String {
    job::failure("Cancelled", "the job was cancelled")
}

/// The answer to a request that failed: `kind` is for programs, `why` for people.
#[must_use]
pub fn failed_answer(kind: &str, why: &str) -> String {
    job::failure(kind, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(steps: &str) -> Result<Flow, String> {
        Flow::parse(format!(r#"{{"id": "f", "steps": [{steps}]}}"#).as_bytes())
    }

    #[test]
    fn a_step_gets_the_results_of_the_steps_before_it() {
        let first = r#"{"id": "a", "queue": "q", "headers": "result-ttl:60", "head": "[1]"}"#;
        let second = r#"{"id": "b", "queue": "q", "headers": "result-ttl:60", "head": "[", "tail": "]", "after": [0]}"#;
        let flow = flow(&format!("{first},{second}")).unwrap();
        assert_eq!(flow.steps[0].job(&[]), b"[1]");
        assert_eq!(flow.steps[1].job(&[br#"{"value": {"x": [1, 2]}}"#]), br#"[{"x": [1, 2]}]"#);
        let gathering = FlowStep { gathers: true, ..flow.steps[1].clone() };
        assert_eq!(gathering.job(&[br#"{"value":1}"#, b"true", b"not JSON", b"{}"]), b"[[1,true,null,null]]");
        assert_eq!(gathering.job(&[]), b"[[]]");
        assert_eq!(flow.steps[1].ttl_ms(), 60_000);
    }

    #[test]
    fn flows_that_could_never_end_are_rejected() {
        let step = |id: &str, more: &str| {
            format!(r#"{{"id": "{id}", "queue": "q", "headers": "result-ttl:60", "head": "" {more}}}"#)
        };
        for (steps, why) in [
            (String::new(), "1 to 10000 steps"),
            (step("a", r#", "after": [0]"#), "does not come before it"),
            (step("a", r#", "after": [7]"#), "does not come before it"),
            (format!("{},{}", step("a", ""), step("a", "")), "occurs twice"),
            (step("", ""), "1 to 255 bytes"),
            (
                format!("{},{},{}", step("a", ""), step("b", ""), step("c", r#", "after": [0, 1]"#)),
                "does not gather",
            ),
            (r#"{"id": "a", "queue": "q", "headers": "", "head": ""}"#.to_owned(), "no header result-ttl"),
            (r#"{"id": "a"}"#.to_owned(), "missing field"),
        ] {
            let error = flow(&steps).unwrap_err();
            assert!(error.contains(why), "{steps}: {error}");
        }
    }
}
