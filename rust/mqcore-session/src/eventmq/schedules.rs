//! Requests to create and end schedules, and the messages of their runs.
//!
//! Beyond the document's headers, SCHEDULE may carry headers of mqcore:
//!
//! ```text
//! timezone:Europe/Berlin    the zone of its cron expression; UTC without it
//! catch-up:all              which missed runs are made up for: none, latest (the default) or all
//! interval-ms:250           the interval in milliseconds; replaces the one in seconds
//! unless-ended:1            an ended schedule with the same terms does not start again
//! ```
//!
//! Each run carries `schedule:ID,due:MILLISECONDS,fence:NUMBER`: its schedule, when it was due, and its ordinal number.

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;

use mqcore_broker::model::id::QueueAddress;
use mqcore_broker::model::intake::Ticket;
use mqcore_broker::model::message::{Layout, Message};
use mqcore_broker::model::rejection::Rejection;
use mqcore_wire::error::EscapedBytes;
use mqcore_wire::eventmq::Job;
use mqcore_wire::eventmq::headers::{self, Headers};
use serde_json::value::RawValue;
use sha1::{Digest, Sha1};

use super::job;

/// Maximum bytes of a scheduled job.
pub const JOB_BYTES_MAX: usize = 64 * 1024;

const TIMEZONE: &[u8] = b"timezone";
const CATCH_UP: &[u8] = b"catch-up";
const INTERVAL_MS: &[u8] = b"interval-ms";
const UNLESS_ENDED: &[u8] = b"unless-ended";
/// Headers about the schedule itself, or set anew for each run.
const NOT_OF_RUNS: [&[u8]; 10] = [
    TIMEZONE,
    CATCH_UP,
    INTERVAL_MS,
    UNLESS_ENDED,
    b"nohaste",
    b"run_count",
    b"run-count",
    b"schedule",
    b"due",
    b"fence",
];
/// The members of a job that identify its schedule, in alphabetical order.
const IDENTIFYING: [&str; 6] = ["args", "callable", "class_args", "class_kwargs", "kwargs", "path"];

/// A job to run repeatedly, as a client wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleRequest {
    /// The client's id for the request.
    pub id: Box<[u8]>,
    /// The queue that the runs go to.
    pub queue: Box<[u8]>,
    /// The headers of each run, as text.
    pub headers: Box<[u8]>,
    /// The parsed headers: `nohaste` and `run_count` are about the schedule, the others about each run.
    pub wishes: Headers,
    /// Seconds between two runs, as text; `-1` if `cron` determines them. `None` if the request has none.
    pub interval: Option<Box<[u8]>>,
    /// The job.
    pub job: Box<[u8]>,
    /// A cron expression, or an empty one.
    pub cron: Option<Box<[u8]>>,
}

impl ScheduleRequest {
    /// The name of the time zone of its cron expression, if it has one.
    #[must_use]
    pub fn timezone(&self) -> Option<&str> {
        self.word(TIMEZONE)
    }

    /// Which missed runs are made up for, if the request contains that.
    #[must_use]
    pub fn catch_up(&self) -> Option<&str> {
        self.word(CATCH_UP)
    }

    /// Milliseconds between two runs, as text, if the request has them.
    #[must_use]
    pub fn interval_ms(&self) -> Option<&str> {
        self.word(INTERVAL_MS)
    }

    /// Whether an ended schedule with the same terms stays ended. Workers send this with the schedules of their programs.
    #[must_use]
    pub fn unless_ended(&self) -> bool {
        headers::value(&self.headers, UNLESS_ENDED).is_some()
    }

    /// The value of a header; one that is not UTF-8 is ignored.
    fn word(&self, name: &[u8]) -> Option<&str> {
        headers::value(&self.headers, name).map(|value| str::from_utf8(value).unwrap_or("\u{fffd}"))
    }

    /// Whether it asks for something that the original's schedulers do not support or crash on.
    #[must_use]
    pub fn needs_broker(&self) -> bool {
        let six_fields = self.cron.as_ref().is_some_and(|cron| {
            cron.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty()).count() > 5
        });
        let incomplete = self.interval.is_none() || self.cron.is_none();
        let ours = [TIMEZONE, CATCH_UP, INTERVAL_MS];
        six_fields || incomplete || ours.iter().any(|name| headers::value(&self.headers, name).is_some())
    }

    /// The identity of a schedule: a hash of the call that it makes. The original's schedulers compute the same number,
    /// unless its texts contain control characters.
    #[must_use]
    pub fn identity(&self) -> [u8; 20] {
        let text = canonical_call(&self.job);
        Sha1::digest(text.as_ref().map_or(&*self.job, String::as_bytes)).into()
    }

    /// The headers of each run.
    #[must_use]
    pub fn headers_of_runs(&self) -> Vec<u8> {
        let mut kept = Vec::new();
        for word in self.headers.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            let name = word.split(|byte| *byte == b':').next().unwrap_or_default().trim_ascii();
            if !name.is_empty() && !NOT_OF_RUNS.contains(&name) {
                job::say(word, &mut kept);
            }
        }
        kept
    }
}

/// How the log names a schedule: its task and its queue.
pub(super) fn title(queue: &[u8], job: &[u8]) -> String {
    let queue = EscapedBytes::new(queue);
    match called(job) {
        Some(task) => format!("schedule of {} in queue {queue}", EscapedBytes::new(task.as_bytes())),
        None => format!("schedule in queue {queue}"),
    }
}

/// The name of the task that a job calls. `None` if it is not a job in the original's form.
fn called(job: &[u8]) -> Option<String> {
    let parts: Vec<&RawValue> = serde_json::from_slice(job).ok()?;
    let call: BTreeMap<String, &RawValue> = serde_json::from_str(parts.get(1)?.get()).ok()?;
    let text = |name| serde_json::from_str::<String>(call.get(name)?.get()).ok();
    let (path, function) = (text("path")?, text("callable")?);
    Some(if path.is_empty() { function } else { format!("{path}.{function}") })
}

/// One run of a schedule.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// The queue that its schedule names.
    pub queue: &'a [u8],
    /// The result of [`ScheduleRequest::headers_of_runs`].
    pub headers: &'a [u8],
    /// The job.
    pub job: &'a [u8],
    /// The result of [`ScheduleRequest::identity`].
    pub schedule: &'a [u8; 20],
    /// When the run was due, in Unix milliseconds.
    pub due_ms: u64,
    /// Its ordinal number.
    pub fence: u64,
}

impl Run<'_> {
    /// The message for `to`, the queue of the run. `ticket` ensures that the queue accepts it once. Its id is derived
    /// from the schedule, the due time and the ticket, so that workers recognize a repeated run.
    ///
    /// # Errors
    /// The reason why the job is invalid.
    pub fn message(&self, to: &QueueAddress, ticket: Ticket) -> Result<Message, String> {
        let mut words = self.headers.to_vec();
        let mut own = String::from("schedule:");
        hexadecimal(self.schedule, &mut own);
        let written = write!(own, ",due:{},fence:{}", self.due_ms, self.fence);
        debug_assert!(written.is_ok(), "writing to a string does not fail");
        job::say(own.as_bytes(), &mut words);
        let job = Job { queue: self.queue, headers: &words, body: self.job, extra: Vec::new() };
        let headers = job::header_text(&job, to)?;
        let id = self.message_id(ticket.number);
        let block = [id.as_bytes(), &headers, self.job].concat();
        let headers = id.len()..id.len() + headers.len();
        let layout =
            Layout { id: 0..id.len(), source: id.len()..id.len(), body: headers.end..block.len(), headers };
        Ok(Message::passed_on(&block, &layout, job::properties(&job, to, Headers::parse(&words)), ticket))
    }

    /// A UUID, like the ids of other jobs. A schedule that starts again counts its runs from 1 again, possibly in the same
    /// millisecond; the number of the ticket tells them from earlier ones, which may still wait or run.
    fn message_id(&self, number: u64) -> String {
        let mut digits = String::new();
        let mut first = self.due_ms.to_be_bytes();
        first.iter_mut().zip(self.schedule).for_each(|(byte, other)| *byte ^= other);
        hexadecimal(&first, &mut digits);
        hexadecimal(&number.to_be_bytes(), &mut digits);
        let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
        parts.join("-")
    }
}

fn hexadecimal(bytes: &[u8], text: &mut String) {
    for byte in bytes {
        let written = write!(text, "{byte:02x}");
        debug_assert!(written.is_ok(), "writing to a string does not fail");
    }
}

/// The call of a job in the form that the original's schedulers hash. `None` if it is not such a job.
fn canonical_call(job: &[u8]) -> Option<String> {
    let parts: Vec<&RawValue> = serde_json::from_slice(job).ok()?;
    let call: BTreeMap<String, &RawValue> = serde_json::from_str(parts.get(1)?.get()).ok()?;
    let mut text = String::from("{");
    for (place, name) in IDENTIFYING.into_iter().enumerate() {
        if place > 0 {
            text.push_str(", ");
        }
        text.push_str(&format!("\"{name}\": "));
        canonical(call.get(name)?, 0, &mut text)?;
    }
    text.push('}');
    Some(text)
}

/// JSON with sorted keys, one space after commas and colons, and only ASCII. Numbers stay as they were written.
fn canonical(value: &RawValue, depth: usize, text: &mut String) -> Option<()> {
    /// Maximum nesting of a job's arguments. Each level is parsed once more.
    const DEPTH_MAX: usize = 32;
    let raw = value.get();
    let first = *raw.as_bytes().first()?;
    if depth > DEPTH_MAX {
        return None;
    }
    let joined = |text: &mut String, place: usize| {
        if place > 0 {
            text.push_str(", ");
        }
    };
    match first {
        b'{' => {
            let fields: BTreeMap<String, &RawValue> = serde_json::from_str(raw).ok()?;
            text.push('{');
            for (place, (name, value)) in fields.into_iter().enumerate() {
                joined(text, place);
                quote(&name, text);
                text.push_str(": ");
                canonical(value, depth + 1, text)?;
            }
            text.push('}');
        }
        b'[' => {
            let items: Vec<&RawValue> = serde_json::from_str(raw).ok()?;
            text.push('[');
            for (place, value) in items.into_iter().enumerate() {
                joined(text, place);
                canonical(value, depth + 1, text)?;
            }
            text.push(']');
        }
        b'"' => quote(&serde_json::from_str::<String>(raw).ok()?, text),
        _ => text.push_str(raw),
    }
    Some(())
}

fn quote(plain: &str, text: &mut String) {
    mqcore_wire::eventmq::queues::encode_text(plain, text);
}

/// Why this broker stops running a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScheduleEnd {
    /// A client ended it.
    Ended,
    /// A scheduler that has joined runs it from now on.
    HandedOver,
}

/// Runs schedules. Called while a connection reads, so it must not block.
///
/// Only clients with a right on the queue of a schedule may change or end it. Sessions ask for this right, and pass on
/// the queues for which they were granted it.
pub trait Schedules: fmt::Debug + Send + Sync {
    /// The queue that the schedule with the same call has now; `None` if this broker runs no such schedule.
    fn queue_of(&self, request: &ScheduleRequest) -> Option<QueueAddress>;

    /// Adds a schedule; replaces an equal one, whose queue must be one of `allowed`.
    ///
    /// # Errors
    /// The reason for the log why the schedule cannot run. The protocol has no answer for the client.
    fn schedule(&self, request: ScheduleRequest, allowed: &[QueueAddress]) -> Result<(), Rejection>;

    /// Ends a schedule, whose queue must be one of `allowed`.
    ///
    /// # Errors
    /// As [`Schedules::schedule`].
    fn unschedule(
        &self,
        request: ScheduleRequest,
        allowed: &[QueueAddress],
        end: ScheduleEnd,
    ) -> Result<(), Rejection>;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Workers settle jobs by their ids, and queues recognize duplicates by them.
    #[test]
    fn a_schedule_that_starts_again_has_runs_with_other_ids() {
        let id = |due_ms, number| {
            let run = Run { queue: b"q", headers: b"", job: b"{}", schedule: &[7; 20], due_ms, fence: 1 };
            run.message_id(number)
        };
        assert_eq!(id(1_800_000_000_000, 5), id(1_800_000_000_000, 5), "a run that is sent again");
        assert_ne!(
            id(1_800_000_000_000, 5),
            id(1_800_000_000_000, 6),
            "started again in the same millisecond"
        );
        assert_ne!(id(1_800_000_000_000, 1), id(1_800_000_000_001, 1), "another journal");
        assert_eq!(id(1_800_000_000_000, 1).len(), 36);
    }
}
