//! EventMQ at the client's side: clients that request jobs, workers, and subscribers.

use mqcore_session::eventmq::listener::Role;
use mqcore_session::schedules::headers;
use mqcore_wire::codec::Limits;
use mqcore_wire::eventmq::{Case, EmqpCommand, EmqpMessage, Job, PeerKind, Schedule, parse};
use mqcore_wire::zmtp::command::{Ready, SocketType, ZmtpCommand};
use mqcore_wire::zmtp::{Greeting, Item, ZmtpDecoder, encode_part};

use super::body::{label_of, message_id};
use super::jobs::JobEvent;
use super::{MessageHandle, Received, delivery};
use crate::oracle::schedules::RunDelivery;
use crate::scenario::schedules::SimulatedSchedule;

/// Result of a job that the worker rejects. The broker delivers it again after that time.
const FAILURE: &[u8] = b"{\"error\": {\"type\": \"Simulated\"}, \"retry_after\": 0.02}";

/// The state of one connection.
pub(super) struct EventMqSide {
    role: Role,
    is_greeted: bool,
    decoder: ZmtpDecoder,
}

impl EventMqSide {
    /// A connection, and the first bytes that the client sends.
    pub(super) fn open(role: Role) -> (Self, Vec<u8>) {
        let mut bytes = Vec::new();
        Greeting { minor: 0, as_server: false }.encode(&mut bytes);
        let socket = if role == Role::Subscribe { SocketType::Sub } else { SocketType::Dealer };
        ZmtpCommand::Ready(Ready { socket, identity: b"", token: b"" }).encode(&mut bytes);
        (Self { role, is_greeted: false, decoder: ZmtpDecoder::new() }, bytes)
    }

    /// Announces a worker of a queue. `counts`: it asks for the number of each attempt, and the broker can ask it to end a job.
    pub(super) fn inform(address: &str, counts: bool) -> Vec<u8> {
        let queues = format!("[[10, \"{address}\"]]");
        let command = EmqpCommand::Inform { queues: queues.as_bytes(), kind: PeerKind::Worker, counts };
        encode(b"i", command)
    }

    /// Announces that the worker can take so many more jobs.
    pub(super) fn ready(count: u32) -> Vec<u8> {
        (0..count).flat_map(|_| encode(b"r", EmqpCommand::Ready)).collect()
    }

    /// Subscribes to topics that begin with this name.
    pub(super) fn subscribe(topic: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode_part(&[&[1], topic.as_bytes()].concat(), false, &mut bytes);
        bytes
    }

    /// Requests a job. `is_kept`: the broker keeps it until a worker has finished it. Otherwise it gives it to one worker. `key`:
    /// its key, and how many jobs with that run at a time.
    pub(super) fn request(
        address: &str,
        label: u32,
        body: &str,
        is_kept: bool,
        key: Option<(u32, u32)>,
    ) -> Vec<u8> {
        let guarantee = if is_kept { ",guarantee" } else { "" };
        let key = key.map(|(key, most)| format!(",concurrency:k{key},concurrency-max:{most}"));
        let headers = format!("reply-requested{guarantee}{}", key.unwrap_or_default());
        let job = Job {
            queue: address.as_bytes(),
            headers: headers.as_bytes(),
            body: body.as_bytes(),
            extra: Vec::new(),
        };
        encode(message_id(label, 0).as_bytes(), EmqpCommand::Request(job))
    }

    /// Requests a schedule, or ends it.
    pub(super) fn schedule(address: &str, index: usize, terms: &SimulatedSchedule, begins: bool) -> Vec<u8> {
        let (headers, job) = (terms.headers(), SimulatedSchedule::job(index));
        let schedule = Schedule {
            queue: address.as_bytes(),
            headers: headers.as_bytes(),
            interval: Some(b"1"),
            body: job.as_bytes(),
            cron: Some(b""),
        };
        let command =
            if begins { EmqpCommand::Schedule(schedule) } else { EmqpCommand::Unschedule(schedule) };
        encode(b"s", command)
    }

    /// Publishes to a topic, which nothing confirms.
    pub(super) fn publish(topic: &str, label: u32, body: &str) -> Vec<u8> {
        let command = EmqpCommand::Publish { topic: topic.as_bytes(), headers: None, body: body.as_bytes() };
        encode(message_id(label, 0).as_bytes(), command)
    }

    /// Reports the result of a job.
    pub(super) fn settle(id: &[u8], positive: bool) -> Vec<u8> {
        let body = if positive { b"true" } else { FAILURE };
        encode(b"e", EmqpCommand::Reply { body, request: Some(id) })
    }

    /// Reads the next thing that the broker sent, and its size.
    pub(super) fn next(&mut self, input: &[u8], limits: &Limits) -> Option<(Received, usize)> {
        if !self.is_greeted {
            let (_, size) = Greeting::decode(input).expect("the broker greets")?;
            self.is_greeted = true;
            return Some((Received::Other, size));
        }
        let (item, size) = self.decoder.next(input, limits).expect("the broker sends valid frames")?;
        let received = match item {
            Item::Command(body) => match ZmtpCommand::parse(body).expect("a valid command") {
                ZmtpCommand::Ready(_) => Received::Greeted(Vec::new()),
                ZmtpCommand::Error(reason) => Received::Refused(String::from_utf8_lossy(reason).into_owned()),
                _ => Received::Other,
            },
            Item::Message(parts) if self.role == Role::Subscribe => {
                let body = parts.get(1).unwrap_or_default();
                delivery(MessageHandle::Id(Box::default()), body, true)
            }
            Item::Message(parts) => {
                message(&parse(parts, Case::Exact).expect("the broker sends valid messages"))
            }
        };
        Some((received, size))
    }
}

pub(super) fn encode(id: &[u8], command: EmqpCommand<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    EmqpMessage { id, command }.encode(&mut bytes);
    bytes
}

fn message(message: &EmqpMessage<'_>) -> Received {
    match &message.command {
        EmqpCommand::Ack(_) => Received::Ready,
        EmqpCommand::Heartbeat => Received::Ping(encode(b"h", EmqpCommand::Heartbeat)),
        EmqpCommand::Request(job) => {
            if let Some(event) = JobEvent::of_request(message.id, job) {
                return Received::Job(event);
            }
            let handle = MessageHandle::Id(message.id.into());
            match run_of(job, message.id) {
                Some(run) => Received::Run { run, handle },
                None => delivery(handle, job.body, true),
            }
        }
        // The notice that the job is as safe as its queue promises.
        EmqpCommand::Reply { body, request: None } => match label_of(body) {
            Some((label, part)) => Received::Answers { labels: vec![label], part, confirmed: true },
            None => JobEvent::of_answer(None, body).map_or(Received::Other, Received::Job),
        },
        EmqpCommand::Reply { body, request } => {
            JobEvent::of_answer(*request, body).map_or(Received::Other, Received::Job)
        }
        _ => Received::Other,
    }
}

/// The run that a job is, if it is one of a schedule.
fn run_of(job: &Job<'_>, id: &[u8]) -> Option<RunDelivery> {
    let number = |name: &[u8]| -> Option<u64> {
        std::str::from_utf8(headers::value(job.headers, name)?).ok()?.parse().ok()
    };
    let schedule = SimulatedSchedule::of_job(job.body)?;
    let id = id.iter().fold(0, |hash: u64, byte| hash.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    Some(RunDelivery { schedule, due_ms: number(b"due")?, fence: number(b"fence")?, id })
}
