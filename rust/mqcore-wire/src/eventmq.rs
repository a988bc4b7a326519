//! eMQP/1.0, the messages of EventMQ, as frames of ZMTP: an empty frame, the version, a command, a message id, and what the
//! command is about.
//!
//! ```text
//! INFORM      queues, kind of peer, ...       ACK         id that is acknowledged
//! READY                                       HEARTBEAT   seconds since 1970, as text
//! REQUEST     queue, headers, job, ...        REPLY       reply, id of the request
//! SCHEDULE    queue, headers, seconds between runs, job, cron expression          (UNSCHEDULE likewise)
//!             queue, headers, job             the published document's form
//! PUBLISH     topic, message                  PUBLISH     topic, headers, message
//! KBYE, KBAI, DISCONNECT, STATUS, ROUTER_SHOW_WORKERS, ROUTER_SHOW_SCHEDULERS
//! ```
//!
//! The first two frames say nothing that would change what is meant, and are not looked at. Octets are passed on untouched,
//! whatever their encoding. [`headers`] and [`queues`] read what stands in those frames.

pub mod headers;
pub mod queues;

use crate::error::Shown;
use crate::zmtp::{Parts, encode_message, encode_part};

/// What stands in the second frame.
pub const VERSION: &[u8] = b"eMQP/1.0";
/// Octets of a message id, of a queue's or of a topic's name, at most.
pub const NAME_BYTES_MAX: usize = 255;

/// A word behind a worker's kind, of those that want to be told which attempt a job is.
const ATTEMPTS: &[u8] = b"attempts";
/// Frames before those of a command's own.
const ENVELOPE: usize = 4;

/// One message.
#[derive(Debug, Clone, PartialEq)]
pub struct Message<'a> {
    /// The sender's id for it; may be empty.
    pub id: &'a [u8],
    /// What it says.
    pub command: Command<'a>,
}

/// Who joins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerKind {
    /// Runs jobs.
    Worker,
    /// Keeps schedules.
    Scheduler,
}

/// A job that is to be run.
#[derive(Debug, Clone, PartialEq)]
pub struct Job<'a> {
    /// The queue's name; may be empty.
    pub queue: &'a [u8],
    /// To be read by [`headers::Headers::parse`].
    pub headers: &'a [u8],
    /// What is to be done.
    pub body: &'a [u8],
    /// Frames that nobody asked for, passed on with the others.
    pub extra: Vec<&'a [u8]>,
}

/// A job that is to be run again and again, or no longer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule<'a> {
    /// The queue's name.
    pub queue: &'a [u8],
    /// To be read by [`headers::Headers::parse`].
    pub headers: &'a [u8],
    /// Seconds between two runs, as text; `-1` where a cron expression says when. `None` in the document's form.
    pub interval: Option<&'a [u8]>,
    /// What is to be done.
    pub body: &'a [u8],
    /// A cron expression, or nothing. `None` in the document's form.
    pub cron: Option<&'a [u8]>,
}

/// What a message says.
#[derive(Debug, Clone, PartialEq)]
pub enum Command<'a> {
    /// A peer joins.
    Inform {
        /// To be read by [`queues::parse`].
        queues: &'a [u8],
        /// What it does.
        kind: PeerKind,
        /// A worker: it wants to be told which attempt a job is. The original's never do.
        counts: bool,
    },
    /// A message was understood; its id.
    Ack(&'a [u8]),
    /// A worker can run one more job.
    Ready,
    /// The peer is there.
    Heartbeat,
    /// Run a job.
    Request(Job<'a>),
    /// An answer.
    Reply {
        /// What it says.
        body: &'a [u8],
        /// Of a worker: the id of the request whose result it is.
        request: Option<&'a [u8]>,
    },
    /// Run a job again and again.
    Schedule(Schedule<'a>),
    /// No longer.
    Unschedule(Schedule<'a>),
    /// Something for whoever wants to know.
    Publish {
        /// About what.
        topic: &'a [u8],
        /// `None` in the publisher's form, which has none.
        headers: Option<&'a [u8]>,
        /// What.
        body: &'a [u8],
    },
    /// The peer leaves: what programs say.
    Kbye,
    /// The peer leaves: what the document says.
    Kbai,
    /// The other side is to stop.
    Disconnect,
    /// Wants numbers.
    Status,
    /// Wants to know who works.
    ShowWorkers,
    /// Wants to know who keeps schedules.
    ShowSchedulers,
}

/// What is wrong with a whole message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Mistake {
    /// Fewer than four frames.
    #[error("a message is an empty frame, the version, a command and an id, and this one has {0} frames")]
    Incomplete(usize),
    /// Nobody knows the command.
    #[error("there is no command `{0}`")]
    UnknownCommand(Shown),
    /// A command without what it is about.
    #[error("{command} needs {what}")]
    Missing {
        /// Which command.
        command: &'static str,
        /// What it needs.
        what: &'static str,
    },
    /// INFORM of something that nobody knows.
    #[error("INFORM is of a `worker` or of a `scheduler`, not of `{0}`")]
    UnknownPeer(Shown),
    /// INFORM with something that is no list of queues.
    #[error("the queues of a worker are written [[10, \"default\"]]: {0}")]
    Queues(&'static str),
    /// A name is too long to be one.
    #[error("{what} of {size} octets is longer than {NAME_BYTES_MAX}")]
    NameTooLong {
        /// Which name.
        what: &'static str,
        /// How long it is.
        size: usize,
    },
}

/// Whether the case of a command's letters matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// Capital letters only: what clients, schedulers and administrators are held to.
    Exact,
    /// Any: what workers may write.
    Any,
}

fn named<'a>(what: &'static str, name: &'a [u8]) -> Result<&'a [u8], Mistake> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Mistake::NameTooLong { what, size: name.len() });
    }
    Ok(name)
}

/// Reads a message.
///
/// # Errors
/// [`Mistake`]: the message is worth nothing, and says nothing about those behind it.
pub fn parse<'a>(parts: Parts<'a>, case: Case) -> Result<Message<'a>, Mistake> {
    let (Some(command), Some(id)) = (parts.get(2), parts.get(3)) else {
        return Err(Mistake::Incomplete(parts.count()));
    };
    let id = named("the message's id", id)?;
    let longest = b"ROUTER_SHOW_SCHEDULERS".len();
    let unknown = || Mistake::UnknownCommand(Shown::new(command));
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
        b"REQUEST" => Command::Request(body.job()?),
        b"READY" => Command::Ready,
        b"REPLY" => body.reply()?,
        b"HEARTBEAT" => Command::Heartbeat,
        b"INFORM" => body.inform()?,
        b"ACK" => Command::Ack(body.of("ACK", 0, "the id of what is acknowledged")?),
        b"SCHEDULE" => Command::Schedule(body.schedule("SCHEDULE")?),
        b"UNSCHEDULE" => Command::Unschedule(body.schedule("UNSCHEDULE")?),
        b"PUBLISH" => body.publish()?,
        b"KBYE" => Command::Kbye,
        b"KBAI" => Command::Kbai,
        b"DISCONNECT" => Command::Disconnect,
        b"STATUS" => Command::Status,
        b"ROUTER_SHOW_WORKERS" => Command::ShowWorkers,
        b"ROUTER_SHOW_SCHEDULERS" => Command::ShowSchedulers,
        _ => return Err(unknown()),
    };
    Ok(Message { id, command })
}

/// The frames behind the envelope.
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

    fn of(&self, command: &'static str, index: usize, what: &'static str) -> Result<&'a [u8], Mistake> {
        self.get(index).ok_or(Mistake::Missing { command, what })
    }

    fn inform(&self) -> Result<Command<'a>, Mistake> {
        let what = "queues and a kind of peer";
        let (queues, kind) = (self.of("INFORM", 0, what)?, self.of("INFORM", 1, what)?);
        let kind = match kind {
            b"worker" => PeerKind::Worker,
            b"scheduler" => PeerKind::Scheduler,
            other => return Err(Mistake::UnknownPeer(Shown::new(other))),
        };
        Ok(Command::Inform { queues, kind, counts: self.get(2) == Some(ATTEMPTS) })
    }

    fn job(&self) -> Result<Job<'a>, Mistake> {
        let what = "a queue, headers and a job";
        let queue = named("the queue's name", self.of("REQUEST", 0, what)?)?;
        let (headers, body) = (self.of("REQUEST", 1, what)?, self.of("REQUEST", 2, what)?);
        let extra = self.parts.iter().skip(ENVELOPE + 3).collect();
        Ok(Job { queue, headers, body, extra })
    }

    fn reply(&self) -> Result<Command<'a>, Mistake> {
        let body = self.of("REPLY", 0, "a reply")?;
        let request = self.get(1).map(|id| named("the request's id", id)).transpose()?;
        Ok(Command::Reply { body, request })
    }

    fn schedule(&self, command: &'static str) -> Result<Schedule<'a>, Mistake> {
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

    fn publish(&self) -> Result<Command<'a>, Mistake> {
        let what = "a topic and a message";
        let topic = named("the topic's name", self.of("PUBLISH", 0, what)?)?;
        let second = self.of("PUBLISH", 1, what)?;
        Ok(match self.get(2) {
            Some(body) => Command::Publish { topic, headers: Some(second), body },
            None => Command::Publish { topic, headers: None, body: second },
        })
    }
}

impl Message<'_> {
    /// Appends it as a message of ZMTP.
    pub fn encode(&self, output: &mut Vec<u8>) {
        let id = self.id;
        match &self.command {
            Command::Inform { queues, kind, counts } => {
                let kind: &[u8] = match kind {
                    PeerKind::Worker => b"worker",
                    PeerKind::Scheduler => b"scheduler",
                };
                let frames: &[&[u8]] = if *counts { &[queues, kind, ATTEMPTS] } else { &[queues, kind] };
                encode(b"INFORM", id, frames, output);
            }
            Command::Ack(of) => encode(b"ACK", id, &[of], output),
            Command::Ready => encode(b"READY", id, &[], output),
            Command::Heartbeat => encode(b"HEARTBEAT", id, &[], output),
            Command::Request(job) => encode_request(id, job, output),
            Command::Reply { body, request: Some(request) } => encode(b"REPLY", id, &[body, request], output),
            Command::Reply { body, request: None } => encode(b"REPLY", id, &[body], output),
            Command::Schedule(schedule) => encode_schedule(b"SCHEDULE", id, schedule, output),
            Command::Unschedule(schedule) => encode_schedule(b"UNSCHEDULE", id, schedule, output),
            Command::Publish { topic, headers: Some(headers), body } => {
                encode(b"PUBLISH", id, &[topic, headers, body], output);
            }
            Command::Publish { topic, headers: None, body } => encode(b"PUBLISH", id, &[topic, body], output),
            Command::Kbye => encode(b"KBYE", id, &[], output),
            Command::Kbai => encode(b"KBAI", id, &[], output),
            Command::Disconnect => encode(b"DISCONNECT", id, &[], output),
            Command::Status => encode(b"STATUS", id, &[], output),
            Command::ShowWorkers => encode(b"ROUTER_SHOW_WORKERS", id, &[], output),
            Command::ShowSchedulers => encode(b"ROUTER_SHOW_SCHEDULERS", id, &[], output),
        }
    }
}

/// Appends a HEARTBEAT that tells the time, in milliseconds since 1970.
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

/// Appends a REQUEST.
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
