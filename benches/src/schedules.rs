//! A million schedules in the broker: their cost in memory, and how late they run.
//!
//! The intervals are spread over a thousand seconds, so a thousand schedules are due in each second. One worker
//! receives their jobs and compares the due time in each with the clock.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mqcore_wire::codec::Limits;
use mqcore_wire::eventmq::headers;
use mqcore_wire::eventmq::{EmqpCommand, EmqpMessage, PeerKind, Schedule, encode_heartbeat};
use mqcore_wire::zmtp::{Item, ZmtpDecoder};

use crate::eventmq::{Sockets, dealer};
use crate::process::Process;

/// Result of a run.
#[derive(Debug, Clone, Copy)]
pub struct Lateness {
    /// Runs that arrived.
    pub runs: u64,
    /// Median time from due to received, in milliseconds.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Maximum.
    pub max: f64,
    /// Resident bytes of the whole broker with all schedules, before the first of them is due.
    pub bytes: u64,
    /// Schedules accepted per second.
    pub taken: f64,
}

/// Time from sending the first schedule until it is due; by then all must be accepted.
const FIRST: Duration = Duration::from_secs(40);
/// The others are spread over this time in milliseconds.
const SPREAD_MS: u64 = 1_000_000;
/// Schedules sent between two checks that they were accepted; the protocol has no confirmation.
const CHUNK: u64 = 25_000;
const SLOTS: usize = 4_096;
/// Interval between heartbeats of the worker.
const BEAT: Duration = Duration::from_secs(2);
const KEPT: &str = "mqcore_schedules";

fn say(command: EmqpCommand<'_>, bytes: &mut Vec<u8>) {
    EmqpMessage { id: b"00000000-0000-4000-8000-000000000000", command }.encode(bytes);
}

fn heartbeat() -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_heartbeat(b"00000000-0000-4000-8000-000000000000", 0, &mut bytes);
    bytes
}

/// Creates `count` schedules and receives their runs for `duration`.
///
/// # Errors
/// If a connection breaks, or the broker has not accepted all schedules before the first is due.
pub fn measure(process: &Process, sockets: Sockets, count: u64, duration: Duration) -> io::Result<Lateness> {
    let mut worker = dealer(sockets.backend, "bench-worker")?;
    let mut bytes = Vec::new();
    say(
        EmqpCommand::Inform { queues: br#"[[10, "default"]]"#, kind: PeerKind::Worker, counts: false },
        &mut bytes,
    );
    worker.write_all(&bytes)?;
    // The broker ignores messages of a worker that has not joined.
    let _acknowledgement = worker.read(&mut [0; 1024])?;
    bytes.clear();
    (0..SLOTS).for_each(|_| say(EmqpCommand::Ready, &mut bytes));
    worker.write_all(&bytes)?;
    let mut client = dealer(sockets.frontend, "bench-client")?;
    let start = Instant::now();
    let mut sent = 0;
    while sent < count {
        bytes.clear();
        for number in sent..(sent + CHUNK).min(count) {
            let after = FIRST.as_millis() as u64 + number * 7919 % SPREAD_MS;
            let wishes = format!("nohaste,interval-ms:{after}");
            let job = format!(
                r#"["run", {{"callable": "nothing", "path": "jobs", "args": [{number}], "kwargs": {{}}, "class_args": [], "class_kwargs": {{}}}}]"#
            );
            let schedule = Schedule {
                queue: b"default",
                headers: wishes.as_bytes(),
                interval: Some(b"1"),
                body: job.as_bytes(),
                cron: Some(b""),
            };
            say(EmqpCommand::Schedule(schedule), &mut bytes);
        }
        client.write_all(&bytes)?;
        worker.write_all(&heartbeat())?;
        sent = (sent + CHUNK).min(count);
        while (process.metric(KEPT)? as u64) < sent {
            if start.elapsed() > FIRST {
                return Err(io::Error::other("the broker does not take the schedules in time"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    let taken = count as f64 / start.elapsed().as_secs_f64();
    let bytes = process.resident_bytes()?;
    let mut late = take_runs(&mut worker, duration)?;
    late.sort_unstable_by(f64::total_cmp);
    let share = |part: f64| late.get((late.len() as f64 * part) as usize).or(late.last()).copied();
    let runs = late.len() as u64;
    let [p50, p99, max] = [0.5, 0.99, 1.0].map(|part| share(part).unwrap_or(f64::NAN));
    Ok(Lateness { runs, p50, p99, max, bytes, taken })
}

/// How late each run arrives, in milliseconds, from the first one on.
fn take_runs(worker: &mut TcpStream, duration: Duration) -> io::Result<Vec<f64>> {
    let mut late = Vec::new();
    let mut input = Vec::new();
    let mut scratch = vec![0; 64 * 1024];
    let mut end = None;
    let begin = Instant::now();
    let mut beat = begin;
    // The broker considers a silent worker dead.
    worker.set_read_timeout(Some(BEAT))?;
    while end.is_none_or(|end| Instant::now() < end) && begin.elapsed() < FIRST + 2 * duration {
        if beat.elapsed() >= BEAT {
            beat = Instant::now();
            worker.write_all(&heartbeat())?;
        }
        let read = match worker.read(&mut scratch) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() * 1e3;
        input.extend_from_slice(&scratch[..read]);
        let mut answers = Vec::new();
        let mut at = 0;
        while let Some((item, size)) =
            ZmtpDecoder::new().next(&input[at..], &Limits::default()).map_err(io::Error::other)?
        {
            if let Item::Message(parts) = item
                && parts.get(2) == Some(b"REQUEST")
            {
                let due = headers::value(parts.get(5).unwrap_or_default(), b"due");
                let due = due.and_then(|due| str::from_utf8(due).ok()?.parse::<f64>().ok());
                late.push(now - due.ok_or_else(|| io::Error::other("a run does not say when it was due"))?);
                say(EmqpCommand::Ready, &mut answers);
                end = end.or_else(|| Some(Instant::now() + duration));
            }
            at += size;
        }
        input.drain(..at);
        worker.write_all(&answers)?;
    }
    Ok(late)
}
