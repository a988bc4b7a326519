//! eMQP/1.0, the protocol of EventMQ. Each message consists of ZMTP frames: an empty frame, the version, a command, a message
//! id, and the arguments of the command (EventMQ Protocol Specification, "Global Frames").
//!
//! ```text
//! INFORM      queues, kind of peer, ...       ACK         acknowledged id
//! READY                                       HEARTBEAT   Unix time in seconds, as text
//! REQUEST     queue, headers, job, ...        REPLY       reply, id of the request
//! SCHEDULE    queue, headers, seconds between runs, job, cron expression          (UNSCHEDULE likewise)
//!             queue, headers, job             the published document's form
//! PUBLISH     topic, message                  PUBLISH     topic, headers, message
//! CANCEL      job, queue, `soft` or `hard`        AWAIT, LOOKUP   job
//! FLOW        jobs that follow each other
//! KBYE, KBAI, DISCONNECT, STATUS, ROUTER_SHOW_WORKERS, ROUTER_SHOW_SCHEDULERS
//! ```
//!
//! The decoder ignores the first two frames because they carry no information. Bytes are passed on unchanged, whatever their
//! encoding. [`headers`] and [`queues`] parse the frames of the same names.

pub mod headers;
pub mod queues;

use crate::error::EscapedBytes;
use crate::zmtp::{Parts, encode_message, encode_part};

/// Content of the second frame.
pub const VERSION: &[u8] = b"eMQP/1.0";
/// Maximum size in bytes of a message id, a queue name or a topic name.
pub const NAME_BYTES_MAX: usize = 255;

/// Follows the kind of peer in INFORM if the worker wants to receive the attempt number of each job.
const ATTEMPTS: &[u8] = b"attempts";
/// Follows the queue in CANCEL if a running job is killed.
const HARD: &[u8] = b"hard";
/// Number of frames before the arguments of a command.
const ENVELOPE: usize = 4;

/// An eMQP message.
#[derive(Debug, Clone, PartialEq)]
pub struct EmqpMessage<'a> {
    /// Message id chosen by the sender; may be empty.
    pub id: &'a [u8],
    /// Command with its arguments.
    pub command: EmqpCommand<'a>,
}

/// The kind of peer that sends INFORM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerKind {
    /// A worker, which runs jobs.
    Worker,
    /// A scheduler, which manages schedules.
    Scheduler,
}

/// A job to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Job<'a> {
    /// Queue name; may be empty.
    pub queue: &'a [u8],
    /// Header text, for [`headers::Headers::parse`].
    pub headers: &'a [u8],
    /// Job description, opaque to the broker.
    pub body: &'a [u8],
    /// Additional frames, passed on unchanged.
    pub extra: Vec<&'a [u8]>,
}

/// A schedule to create or to delete.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule<'a> {
    /// Queue name.
    pub queue: &'a [u8],
    /// Header text, for [`headers::Headers::parse`].
    pub headers: &'a [u8],
    /// Seconds between two runs, as text; `-1` if the schedule uses a cron expression. `None` in the document's form.
    pub interval: Option<&'a [u8]>,
    /// Job description, opaque to the broker.
    pub body: &'a [u8],
    /// Cron expression, or empty. `None` in the document's form.
    pub cron: Option<&'a [u8]>,
}

/// An eMQP command with its arguments.
#[derive(Debug, Clone, PartialEq)]
pub enum EmqpCommand<'a> {
    /// Registers a peer.
    Inform {
        /// Queues that the peer serves, for [`queues::parse`].
        queues: &'a [u8],
        /// Kind of peer.
        kind: PeerKind,
        /// The worker wants the attempt number of each job. Workers of the original never do.
        counts: bool,
    },
    /// Acknowledges the message with this id.
    Ack(&'a [u8]),
    /// A worker has capacity for one more job.
    Ready,
    /// Heartbeat.
    Heartbeat,
    /// Requests a job.
    Request(Job<'a>),
    /// Replies to a request.
    Reply {
        /// Content of the reply.
        body: &'a [u8],
        /// From a worker: id of the request that produced this result.
        request: Option<&'a [u8]>,
    },
    /// Creates a schedule.
    Schedule(Schedule<'a>),
    /// Deletes a schedule.
    Unschedule(Schedule<'a>),
    /// Publishes a message to the subscribers of a topic.
    Publish {
        /// Topic name.
        topic: &'a [u8],
        /// Header text; `None` in the publisher's form, which has no headers.
        headers: Option<&'a [u8]>,
        /// Message body.
        body: &'a [u8],
    },
    /// Requests the result of a job as soon as there is one. Not in the original, like the next three.
    Await(&'a [u8]),
    /// Requests what is known about a job.
    Lookup(&'a [u8]),
    /// Cancels a job; or, to a worker, the running job.
    Cancel {
        /// Id of the job.
        job: &'a [u8],
        /// Queue of the job.
        queue: &'a [u8],
        /// Whether a running job is killed.
        hard: bool,
    },
    /// Requests jobs of which each begins when others have ended, as JSON.
    Flow(&'a [u8]),
    /// The peer disconnects, as the original programs send it.
    Kbye,
    /// The peer disconnects, as the document specifies it.
    Kbai,
    /// Tells the receiver to stop.
    Disconnect,
    /// Requests statistics.
    Status,
    /// Requests the list of workers.
    ShowWorkers,
    /// Requests the list of schedulers.
    ShowSchedulers,
}

/// Why a complete message is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EmqpError {
    /// The message has fewer than four frames.
    #[error(
        "a message starts with an empty frame, the version, a command and an id; this one has {0} frames"
    )]
    Incomplete(usize),
    /// The command is unknown.
    #[error("unknown command `{0}`")]
    UnknownCommand(EscapedBytes),
    /// Arguments of the command are missing.
    #[error("{command} requires {what}")]
    Missing {
        /// Command name.
        command: &'static str,
        /// Required arguments.
        what: &'static str,
    },
    /// INFORM names an unknown kind of peer.
    #[error("INFORM must name a `worker` or a `scheduler`, not `{0}`")]
    UnknownPeer(EscapedBytes),
    /// INFORM has an invalid list of queues.
    #[error("invalid queue list, expected the form [[10, \"default\"]]: {0}")]
    Queues(&'static str),
    /// A name exceeds [`NAME_BYTES_MAX`].
    #[error("{what} of {size} bytes exceeds the limit of {NAME_BYTES_MAX} bytes")]
    NameTooLong {
        /// Which name.
        what: &'static str,
        /// Size in bytes.
        size: usize,
    },
}

/// Whether command names are case-sensitive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// Upper case only: for clients, schedulers and administrators.
    Exact,
    /// Case-insensitive: for workers.
    Any,
}

fn named<'a>(what: &'static str, name: &'a [u8]) -> Result<&'a [u8], EmqpError> {
    if name.len() > NAME_BYTES_MAX {
        return Err(EmqpError::NameTooLong { what, size: name.len() });
    }
    Ok(name)
}

/// Parses a message.
///
/// # Errors
/// [`EmqpError`] if the message is invalid. Later messages of the connection are unaffected.
pub fn parse<'a>(parts: Parts<'a>, case: Case) -> Result<EmqpMessage<'a>, EmqpError> {
    let (Some(command), Some(id)) = (parts.get(2), parts.get(3)) else {
        return Err(EmqpError::Incomplete(parts.count()));
    };
    let id = named("the message's id", id)?;
    let longest = b"ROUTER_SHOW_SCHEDULERS".len();
    let unknown = || EmqpError::UnknownCommand(EscapedBytes::new(command));
    if command.len() > longest {
        return Err(unknown());
    }
    let mut letters = [0; b"ROUTER_SHOW_SCHEDULERS".len()];
    let letters = &mut letters[..command.len()];
    letters.copy_from_slice(command);
    if case == Case::Any {
        letters.make_ascii_uppercase();
    }
    let body = Body { parts };
    let command = match &*letters {
        b"REQUEST" => EmqpCommand::Request(body.job()?),
        b"READY" => EmqpCommand::Ready,
        b"REPLY" => body.reply()?,
        b"HEARTBEAT" => EmqpCommand::Heartbeat,
        b"INFORM" => body.inform()?,
        b"ACK" => EmqpCommand::Ack(body.of("ACK", 0, "the acknowledged id")?),
        b"SCHEDULE" => EmqpCommand::Schedule(body.schedule("SCHEDULE")?),
        b"UNSCHEDULE" => EmqpCommand::Unschedule(body.schedule("UNSCHEDULE")?),
        b"PUBLISH" => body.publish()?,
        b"AWAIT" => EmqpCommand::Await(named("the job's id", body.of("AWAIT", 0, "the id of a job")?)?),
        b"LOOKUP" => EmqpCommand::Lookup(named("the job's id", body.of("LOOKUP", 0, "the id of a job")?)?),
        b"CANCEL" => body.cancel()?,
        b"FLOW" => EmqpCommand::Flow(body.of("FLOW", 0, "a flow")?),
        b"KBYE" => EmqpCommand::Kbye,
        b"KBAI" => EmqpCommand::Kbai,
        b"DISCONNECT" => EmqpCommand::Disconnect,
        b"STATUS" => EmqpCommand::Status,
        b"ROUTER_SHOW_WORKERS" => EmqpCommand::ShowWorkers,
        b"ROUTER_SHOW_SCHEDULERS" => EmqpCommand::ShowSchedulers,
        _ => return Err(unknown()),
    };
    Ok(EmqpMessage { id, command })
}

/// The frames after the envelope.
struct Body<'a> {
    parts: Parts<'a>,
}

impl<'a> Body<'a> {
    fn get(&self, index: usize) -> Option<&'a [u8]> {
        self.parts.get(ENVELOPE + index)
    }

    fn count(&self) -> usize {
        self.parts.count() - ENVELOPE
    }

    fn of(&self, command: &'static str, index: usize, what: &'static str) -> Result<&'a [u8], EmqpError> {
        self.get(index).ok_or(EmqpError::Missing { command, what })
    }

    fn inform(&self) -> Result<EmqpCommand<'a>, EmqpError> {
        let what = "queues and a kind of peer";
        let (queues, kind) = (self.of("INFORM", 0, what)?, self.of("INFORM", 1, what)?);
        let kind = match kind {
            b"worker" => PeerKind::Worker,
            b"scheduler" => PeerKind::Scheduler,
            other => return Err(EmqpError::UnknownPeer(EscapedBytes::new(other))),
        };
        Ok(EmqpCommand::Inform { queues, kind, counts: self.get(2) == Some(ATTEMPTS) })
    }

    fn job(&self) -> Result<Job<'a>, EmqpError> {
        let what = "a queue, headers and a job";
        let queue = named("the queue's name", self.of("REQUEST", 0, what)?)?;
        let (headers, body) = (self.of("REQUEST", 1, what)?, self.of("REQUEST", 2, what)?);
        let extra = self.parts.iter().skip(ENVELOPE + 3).collect();
        Ok(Job { queue, headers, body, extra })
    }

    fn cancel(&self) -> Result<EmqpCommand<'a>, EmqpError> {
        let what = "a job and its queue";
        let job = named("the job's id", self.of("CANCEL", 0, what)?)?;
        let queue = named("the queue's name", self.of("CANCEL", 1, what)?)?;
        Ok(EmqpCommand::Cancel { job, queue, hard: self.get(2) == Some(HARD) })
    }

    fn reply(&self) -> Result<EmqpCommand<'a>, EmqpError> {
        let body = self.of("REPLY", 0, "a reply")?;
        let request = self.get(1).map(|id| named("the request's id", id)).transpose()?;
        Ok(EmqpCommand::Reply { body, request })
    }

    fn schedule(&self, command: &'static str) -> Result<Schedule<'a>, EmqpError> {
        let what = "a queue, headers, an interval, a job and a cron expression";
        let queue = named("the queue's name", self.of(command, 0, what)?)?;
        let headers = self.of(command, 1, what)?;
        if self.count() == 3 {
            let body = self.of(command, 2, what)?;
            return Ok(Schedule { queue, headers, interval: None, body, cron: None });
        }
        let interval = Some(self.of(command, 2, what)?);
        let body = self.of(command, 3, what)?;
        let cron = Some(self.of(command, 4, what)?);
        Ok(Schedule { queue, headers, interval, body, cron })
    }

    fn publish(&self) -> Result<EmqpCommand<'a>, EmqpError> {
        let what = "a topic and a message";
        let topic = named("the topic's name", self.of("PUBLISH", 0, what)?)?;
        let second = self.of("PUBLISH", 1, what)?;
        Ok(match self.get(2) {
            Some(body) => EmqpCommand::Publish { topic, headers: Some(second), body },
            None => EmqpCommand::Publish { topic, headers: None, body: second },
        })
    }
}

impl EmqpMessage<'_> {
    /// Appends the message to `output` as a ZMTP message.
    pub fn encode(&self, output: &mut Vec<u8>) {
        let id = self.id;
        match &self.command {
            EmqpCommand::Inform { queues, kind, counts } => {
                let kind: &[u8] = match kind {
                    PeerKind::Worker => b"worker",
                    PeerKind::Scheduler => b"scheduler",
                };
                let frames: &[&[u8]] = if *counts { &[queues, kind, ATTEMPTS] } else { &[queues, kind] };
                encode(b"INFORM", id, frames, output);
            }
            EmqpCommand::Ack(of) => encode(b"ACK", id, &[of], output),
            EmqpCommand::Ready => encode(b"READY", id, &[], output),
            EmqpCommand::Heartbeat => encode(b"HEARTBEAT", id, &[], output),
            EmqpCommand::Request(job) => encode_request(id, job, output),
            EmqpCommand::Reply { body, request: Some(request) } => {
                encode(b"REPLY", id, &[body, request], output)
            }
            EmqpCommand::Reply { body, request: None } => encode(b"REPLY", id, &[body], output),
            EmqpCommand::Schedule(schedule) => encode_schedule(b"SCHEDULE", id, schedule, output),
            EmqpCommand::Unschedule(schedule) => encode_schedule(b"UNSCHEDULE", id, schedule, output),
            EmqpCommand::Publish { topic, headers: Some(headers), body } => {
                encode(b"PUBLISH", id, &[topic, headers, body], output);
            }
            EmqpCommand::Publish { topic, headers: None, body } => {
                encode(b"PUBLISH", id, &[topic, body], output)
            }
            EmqpCommand::Await(job) => encode(b"AWAIT", id, &[job], output),
            EmqpCommand::Lookup(job) => encode(b"LOOKUP", id, &[job], output),
            EmqpCommand::Cancel { job, queue, hard } => {
                encode(b"CANCEL", id, &[job, queue, if *hard { HARD } else { b"soft" }], output);
            }
            EmqpCommand::Flow(flow) => encode(b"FLOW", id, &[flow], output),
            EmqpCommand::Kbye => encode(b"KBYE", id, &[], output),
            EmqpCommand::Kbai => encode(b"KBAI", id, &[], output),
            EmqpCommand::Disconnect => encode(b"DISCONNECT", id, &[], output),
            EmqpCommand::Status => encode(b"STATUS", id, &[], output),
            EmqpCommand::ShowWorkers => encode(b"ROUTER_SHOW_WORKERS", id, &[], output),
            EmqpCommand::ShowSchedulers => encode(b"ROUTER_SHOW_SCHEDULERS", id, &[], output),
        }
    }
}

/// Appends a HEARTBEAT with the current time `now_millis`, in milliseconds since the Unix epoch.
pub fn encode_heartbeat(id: &[u8], now_millis: u64, output: &mut Vec<u8>) {
    let time = format!("{}.{:03}", now_millis / 1000, now_millis % 1000);
    encode(b"HEARTBEAT", id, &[time.as_bytes()], output);
}

fn encode_envelope(command: &[u8], id: &[u8], more: bool, output: &mut Vec<u8>) {
    encode_part(b"", true, output);
    encode_part(VERSION, true, output);
    encode_part(command, true, output);
    encode_part(id, more, output);
}

fn encode(command: &[u8], id: &[u8], body: &[&[u8]], output: &mut Vec<u8>) {
    encode_envelope(command, id, !body.is_empty(), output);
    encode_message(body, output);
}

/// Appends a REQUEST for `job`.
pub fn encode_request(id: &[u8], job: &Job<'_>, output: &mut Vec<u8>) {
    encode_envelope(b"REQUEST", id, true, output);
    encode_part(job.queue, true, output);
    encode_part(job.headers, true, output);
    encode_part(job.body, !job.extra.is_empty(), output);
    encode_message(&job.extra, output);
}

fn encode_schedule(command: &[u8], id: &[u8], schedule: &Schedule<'_>, output: &mut Vec<u8>) {
    let Schedule { queue, headers, interval, body, cron } = *schedule;
    match interval {
        None => encode(command, id, &[queue, headers, body], output),
        Some(interval) => {
            encode(command, id, &[queue, headers, interval, body, cron.unwrap_or_default()], output);
        }
    }
}
