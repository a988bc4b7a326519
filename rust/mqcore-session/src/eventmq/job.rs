//! Jobs as messages of queues, and messages of queues as jobs.
//!
//! The body of a message is the job. The other parts of its request are headers, so that they are still known when the
//! queue delivers the message, perhaps after a restart:
//!
//! ```text
//! EventMQ-Headers: reply-requested,retry-count:2      as the client wrote them
//! EventMQ-Queue: mail                                 if the job was meant for another queue than it is in
//! EventMQ-Frames: 7831,7832                           frames behind the job, in hexadecimal digits
//! Unique-Key: order-17                                if the queue is to have one job of this key at a time
//! ```
//!
//! A result that goes to a queue is a message too: its body is the text that the worker wrote, its id the job's.

use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::effect::Deliver;
use mqcore_broker::model::id::QueueAddress;
use mqcore_broker::model::message::{Message, Properties};
use mqcore_broker::model::unique::{KEY_BYTES_MAX, header_line};
use mqcore_wire::error::EscapedBytes;
use mqcore_wire::eventmq::headers::{self, Headers, unique_key};
use mqcore_wire::eventmq::{Job, encode_request};
use serde_json::{Value, json};

/// The name of the protocol in lists of clients.
pub(super) const PROTOCOL: &str = "emqp";

const HEADERS: &[u8] = b"EventMQ-Headers:";
const QUEUE: &[u8] = b"EventMQ-Queue:";
const FRAMES: &[u8] = b"EventMQ-Frames:";
const LINE_END: &[u8] = b"\r\n";

/// The header that asks a worker for a result.
const REPLY_REQUESTED: &[u8] = b"reply-requested";
/// Name of the header that names the queue for a job's result.
const RESULT_QUEUE: &[u8] = b"result-queue";

/// Maximum bytes of a message's header text; everything in a request besides the job has to fit.
const TEXT_BYTES_MAX: usize = 60_000;

/// The message of a request. `notify`: its client is notified of the delivery.
pub(super) fn message(
    id: &[u8],
    job: &Job<'_>,
    queue: &QueueAddress,
    notify: bool,
    client: &Arc<Client>,
) -> Result<Message, String> {
    let headers = Headers::check(job.headers).map_err(|mistake| mistake.to_string())?;
    if let Some(name) = result_queue_name(job.headers)
        && let Err(error) = result_queue(name)
    {
        let name = EscapedBytes::new(name);
        return Err(format!(
            "invalid header `result-queue:{name}`: {error}; use the name of a queue, such as results"
        ));
    }
    let text = header_text(job, queue)?;
    let properties = Properties { pending_acknowledge: notify, ..properties(job, queue, headers) };
    Ok(Message::from_parts(id, &text, job.body, properties, Some(Arc::clone(client))))
}

/// The properties of a job's message.
pub(super) fn properties(job: &Job<'_>, queue: &QueueAddress, headers: Headers) -> Properties {
    Properties {
        content_type: queue.id,
        unique: unique_key(job.headers).is_some(),
        high_priority: headers.priority > 0,
        ..Properties::default()
    }
}

/// Everything in a job's request besides the job, as the header text of its message.
pub(super) fn header_text(job: &Job<'_>, queue: &QueueAddress) -> Result<Vec<u8>, String> {
    if job.headers.iter().any(u8::is_ascii_control) {
        return Err("the headers of a job must not contain control characters".to_owned());
    }
    let mut text = Vec::with_capacity(64 + job.headers.len());
    line(HEADERS, job.headers, &mut text);
    if !is_called(queue, job.queue) && !job.queue.iter().any(u8::is_ascii_control) {
        line(QUEUE, job.queue, &mut text);
    }
    if !job.extra.is_empty() {
        let frames: Vec<_> = job.extra.iter().map(|frame| hex(frame)).collect();
        line(FRAMES, frames.join(",").as_bytes(), &mut text);
    }
    if let Some(key) = unique_key(job.headers) {
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(format!("the key of a unique job must have 1 to {KEY_BYTES_MAX} bytes"));
        }
        text.extend_from_slice(&header_line(key));
    }
    if text.len() > TEXT_BYTES_MAX {
        return Err(format!(
            "the headers and additional frames of a job exceed the limit of {TEXT_BYTES_MAX} bytes"
        ));
    }
    Ok(text)
}

/// The result of a job as a message with the same id and the job's queue.
pub(super) fn result(
    id: &[u8],
    body: &[u8],
    from: &QueueAddress,
    to: &QueueAddress,
    worker: &Arc<Client>,
) -> Message {
    let mut text = Vec::new();
    line(QUEUE, shown(from).as_bytes(), &mut text);
    let properties = Properties { pending_acknowledge: true, content_type: to.id, ..Properties::default() };
    Message::from_parts(id, &text, body, properties, Some(Arc::clone(worker)))
}

/// The same message, redirected to another queue than the one that its client named.
pub(super) fn redirected(message: &Message, from: &QueueAddress, to: &QueueAddress) -> Message {
    let mut text = message.headers().to_vec();
    if find(&text, QUEUE).is_none() {
        line(QUEUE, shown(from).as_bytes(), &mut text);
    }
    let properties = Properties { content_type: to.id, ..message.properties() };
    Message::from_parts(message.id(), &text, message.body(), properties, message.producer().cloned())
}

/// Whether the queue of a job is created if it does not exist.
pub(super) fn creates_queue(message: &Message) -> bool {
    find(message.headers(), HEADERS).is_some_and(|text| Headers::parse(text).create_queue)
}

/// Whether the client of a job wants its result.
pub(super) fn wants_result(message: &Message) -> bool {
    find(message.headers(), HEADERS).is_some_and(|text| Headers::parse(text).reply_requested)
}

/// The result of a job that reached no worker: `kind` is for programs, `why` for people.
pub(super) fn failure(kind: &str, why: &str) -> String {
    json!({"value": why, "error": {"type": kind, "message": why, "final": true}}).to_string()
}

/// A queue as peers write it: `orders` means queue 0 of its channel.
pub(super) fn shown(queue: &QueueAddress) -> String {
    if queue.id == 0 { queue.channel.to_string() } else { queue.to_string() }
}

fn is_called(queue: &QueueAddress, name: &[u8]) -> bool {
    if queue.id == 0 { queue.channel.as_str().as_bytes() == name } else { shown(queue).as_bytes() == name }
}

fn line(name: &[u8], value: &[u8], text: &mut Vec<u8>) {
    for part in [name, value, LINE_END] {
        text.extend_from_slice(part);
    }
}

/// Appends a word to the headers of a job.
pub(super) fn say(word: &[u8], words: &mut Vec<u8>) {
    if !words.is_empty() {
        words.push(b',');
    }
    words.extend_from_slice(word);
}

/// The value of a header, if there is one.
fn find<'a>(text: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    text.split(|byte| *byte == b'\n').find_map(|line| {
        let (found, value) = line.split_at_checked(name.len())?;
        found.eq_ignore_ascii_case(name).then(|| value.trim_ascii())
    })
}

/// The value of `result-queue:NAME`, if there is one.
fn result_queue_name(headers: &[u8]) -> Option<&[u8]> {
    headers::value(headers, RESULT_QUEUE)
}

fn result_queue(name: &[u8]) -> Result<QueueAddress, String> {
    let name = str::from_utf8(name).map_err(|_| "it is not UTF-8".to_owned())?;
    QueueAddress::parse(name).map_err(|error| error.to_string())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &[u8]) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or(0) as u8;
    text.chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// A message that is delivered to a worker.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeliveredJob<'a> {
    message: &'a Message,
    queue: &'a QueueAddress,
    text: &'a [u8],
    /// Number of earlier requeues.
    put_backs: u16,
    /// Headers of its request. A message that was not published as a job stays queued until it is finished, and is
    /// redelivered as often as its queue allows.
    pub(super) wishes: Headers,
}

impl<'a> DeliveredJob<'a> {
    pub(super) fn of(deliver: &'a Deliver) -> Self {
        let message = &deliver.message;
        let text = find(message.headers(), HEADERS);
        let wishes = match text {
            Some(text) => Headers::parse(text),
            None => Headers { guarantee: true, retry_count: u32::MAX, ..Headers::default() },
        };
        let put_backs = deliver.requeues;
        Self { message, queue: &deliver.queue, text: text.unwrap_or_default(), put_backs, wishes }
    }

    /// For how many milliseconds its result is kept.
    pub(super) fn result_ttl(&self) -> Option<u64> {
        super::ledger::result_ttl(self.text)
    }

    /// Its key, and how many jobs of the key run at a time.
    pub(super) fn concurrency(&self) -> Option<(&'a [u8], u32)> {
        super::board::concurrency(self.text)
    }

    /// The queue for its result, if its client named one.
    pub(super) fn result_queue(&self) -> Option<QueueAddress> {
        result_queue(result_queue_name(self.text)?).ok()
    }

    /// Whether the delivery stays unsettled until the job's result arrives, instead of being settled at once.
    pub(super) fn is_kept(&self) -> bool {
        self.wishes.guarantee || self.wishes.retry_count > 0 || self.message.properties().unique
    }

    /// Appends the REQUEST. It asks the worker for the result also if only the broker needs it. `counts`: the REQUEST
    /// of a job that stays queued contains the number of the attempt, so that the worker need not retry by itself.
    pub(super) fn encode(&self, counts: bool, output: &mut Vec<u8>) {
        let mut words = Vec::new();
        let headers = if self.is_kept() && (counts || !self.wishes.reply_requested) {
            words.extend_from_slice(self.text);
            if !self.wishes.reply_requested {
                say(REPLY_REQUESTED, &mut words);
            }
            if counts {
                say(format!("attempt:{}", u32::from(self.put_backs) + 1).as_bytes(), &mut words);
            }
            words.as_slice()
        } else {
            self.text
        };
        let own = self.message.headers();
        let frames: Vec<_> = match find(own, FRAMES) {
            Some(frames) => frames.split(|byte| *byte == b',').map(unhex).collect(),
            None => Vec::new(),
        };
        let name;
        let queue = match find(own, QUEUE) {
            Some(queue) => queue,
            None if self.queue.id == 0 => self.queue.channel.as_str().as_bytes(),
            None => {
                name = self.queue.to_string();
                name.as_bytes()
            }
        };
        let extra = frames.iter().map(Vec::as_slice).collect();
        let job = Job { queue, headers, body: self.message.body(), extra };
        encode_request(self.message.id(), &job, output);
    }
}

/// Maximum characters of the reason of a failure.
const REASON_CHARS_MAX: usize = 500;

/// Why a job failed, from its result: the text of its exception, which all workers send as the value.
pub(super) fn failure_reason(body: &[u8]) -> String {
    let result = serde_json::from_slice(body).unwrap_or(Value::Null);
    match result.get("value").and_then(Value::as_str) {
        Some(text) if !text.is_empty() => text.chars().take(REASON_CHARS_MAX).collect(),
        _ => "failed".to_owned(),
    }
}

/// The outcome in a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobOutcome {
    Done,
    /// With the delay before the next attempt, if the worker asks for one.
    Failed(Option<Duration>),
    /// Each further attempt would fail in the same way.
    FailedForGood,
}

impl JobOutcome {
    /// The original's workers report only timeouts. Others send `error`, with `final` if a retry cannot succeed, and may
    /// send `retry_after`, in seconds.
    pub(super) fn of(body: &[u8], timed: bool) -> Self {
        let Ok(Value::Object(result)) = serde_json::from_slice(body) else { return Self::Done };
        let late = timed && result.get("value").is_some_and(|value| value == "TimeoutError");
        if !late && result.get("error").is_none_or(Value::is_null) {
            return Self::Done;
        }
        let is_final = result.get("error").and_then(|error| error.get("final"));
        if is_final.and_then(Value::as_bool) == Some(true) {
            return Self::FailedForGood;
        }
        let after = result.get("retry_after").and_then(Value::as_f64);
        // An invalid time is ignored.
        Self::Failed(after.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()))
    }
}
