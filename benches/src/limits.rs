//! Rate limit requests: a number of connections, each with a number of requests in flight, as fast as the answers
//! arrive. To cost little, the generator only counts bytes or lines.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use mqcore_wire::throttr::request::{DECREASE, QUOTA, Rule, TAKE, ThrottrRequest, encode};
use mqcore_wire::throttr::{Dialect, Family, Ttl, Width};

use crate::process::Process;
use crate::wire::connect;

/// Requests to send repeatedly, and the form of their answers.
#[derive(Debug, Clone)]
pub struct Ask {
    /// One request, or several that connections send in turn.
    pub requests: Vec<Vec<u8>>,
    /// Form of the answer to each request.
    pub answer: ThrottrAnswer,
}

/// Size of an answer.
#[derive(Debug, Clone, Copy)]
pub enum ThrottrAnswer {
    /// In bytes.
    Bytes(usize),
    /// In lines.
    Lines(usize),
}

/// Name of a limit: 16 bytes.
const KEY: &[u8; 16] = b"user:00000012345";

/// The listener that is measured: wide enough for any count.
pub const DIALECT: Dialect = Dialect { width: Width::U64, family: Family::V71 };

const HOUR: Ttl = Ttl { unit: 6, amount: 1 };

fn encoded(request: &ThrottrRequest<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(request, DIALECT, &mut bytes).expect("the key is short");
    bytes
}

/// The key of one of many counters: as long as [`KEY`].
fn key(number: u64) -> String {
    format!("user:{number:011}")
}

fn resp(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn decrease_of(key: &[u8]) -> Vec<u8> {
    encoded(&ThrottrRequest::Update { attribute: QUOTA, change: DECREASE, value: 1, key })
}

/// Takes one from a counter: Throttr's own idiom.
#[must_use]
pub fn decrease() -> Ask {
    Ask { requests: vec![decrease_of(KEY)], answer: ThrottrAnswer::Bytes(1) }
}

/// The same from each of the counters of [`create_many`].
#[must_use]
pub fn decrease_each(count: u64) -> Ask {
    let requests = (0..count).map(|number| decrease_of(key(number).as_bytes())).collect();
    Ask { requests, answer: ThrottrAnswer::Bytes(1) }
}

/// The usual command for counters in Redis.
#[must_use]
pub fn incr() -> Ask {
    Ask { requests: vec![resp(&[b"INCR", KEY])], answer: ThrottrAnswer::Lines(1) }
}

/// Create, check and subtract in one request.
#[must_use]
pub fn consume() -> Ask {
    let rule = Rule { algorithm: 0, limit: 1 << 50, cost: 1, period: HOUR, key: KEY };
    let requests = vec![encoded(&ThrottrRequest::Consume { mode: TAKE, rule })];
    Ask { requests, answer: ThrottrAnswer::Bytes(1 + 2 * 8 + 16) }
}

/// The same logic and the same five answers in Redis.
const SCRIPT: &str = "\
local left = redis.call('GET', KEYS[1])
local limit, cost, period = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
if not left then redis.call('SET', KEYS[1], limit, 'PX', period) left = limit else left = tonumber(left) end
local rest = redis.call('PTTL', KEYS[1])
if left < cost then return {0, limit, left, rest, rest} end
left = redis.call('DECRBY', KEYS[1], cost)
return {1, limit, left, 0, rest}";

/// Loads the script into a Redis, and returns the command that calls it.
///
/// # Errors
/// If Redis rejects the script.
pub fn script(redis: &Process) -> io::Result<Ask> {
    let mut stream = connect(redis.address)?;
    stream.write_all(&resp(&[b"SCRIPT", b"LOAD", SCRIPT.as_bytes()]))?;
    let mut answer = [0; 47];
    stream.read_exact(&mut answer)?;
    let digest = answer[5..45].to_vec();
    let key = [KEY, &b":script"[..]].concat();
    let requests = vec![resp(&[b"EVALSHA", &digest, b"1", &key, b"1000000000000", b"1", b"3600000"])];
    Ok(Ask { requests, answer: ThrottrAnswer::Lines(6) })
}

/// Makes the counter that [`decrease`] takes from.
///
/// # Errors
/// If the server does not answer.
pub fn create(address: SocketAddr) -> io::Result<()> {
    let request = encoded(&ThrottrRequest::Insert { quota: u64::MAX, ttl: HOUR, key: KEY });
    let mut stream = connect(address)?;
    stream.write_all(&request)?;
    stream.read_exact(&mut [0])
}

/// Result of a run that sends requests as fast as the answers arrive.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// Requests per second, without the warm-up.
    pub rate: f64,
    /// Total requests.
    pub count: u64,
}

struct Client {
    stream: TcpStream,
    /// Pipelines of requests, sent in turn.
    batches: Vec<Vec<u8>>,
    /// Index of the batch in flight.
    at: usize,
    unsent: usize,
    /// Bytes or lines of it that have not arrived.
    missing: usize,
}

/// Sends requests on a number of connections, each with `pipeline` requests in flight.
///
/// # Errors
/// If a connection breaks.
pub fn ask(
    address: SocketAddr,
    ask: &Ask,
    connections: usize,
    pipeline: usize,
    warm_up: Duration,
    duration: Duration,
) -> io::Result<Asked> {
    let whole = match ask.answer {
        ThrottrAnswer::Bytes(each) | ThrottrAnswer::Lines(each) => each * pipeline,
    };
    let mut poll = Poll::new()?;
    let mut clients = Vec::new();
    for number in 0..connections {
        let stream = connect(address)?;
        stream.set_nonblocking(true)?;
        let mut stream = TcpStream::from_std(stream);
        poll.registry().register(&mut stream, Token(number), Interest::READABLE | Interest::WRITABLE)?;
        let batches = batches(&ask.requests, connections, pipeline, number);
        let unsent = batches[0].len();
        clients.push(Client { stream, batches, at: 0, unsent, missing: whole });
    }
    let mut events = Events::with_capacity(connections.max(64));
    let mut scratch = vec![0; 64 * 1024];
    let begin = Instant::now();
    let (mut counted, mut before, mut since) = (0_u64, 0, begin);
    let mut warm = false;
    loop {
        poll.poll(&mut events, Some(Duration::from_millis(100)))?;
        for event in &events {
            let client = &mut clients[event.token().0];
            counted += client.go_on(whole, ask.answer, &mut scratch)? * pipeline as u64;
        }
        let now = Instant::now();
        if !warm && now - begin >= warm_up {
            (warm, before, since) = (true, counted, now);
        } else if warm && now - since >= duration {
            let rate = (counted - before) as f64 / (now - since).as_secs_f64();
            return Ok(Asked { rate, count: counted });
        }
    }
}

/// The batches of one connection; together, the connections send all requests.
fn batches(requests: &[Vec<u8>], connections: usize, pipeline: usize, number: usize) -> Vec<Vec<u8>> {
    let rounds = (requests.len() / (connections * pipeline)).max(1);
    let first = |round: usize| (round * connections + number) * pipeline;
    let of_round = |round| (0..pipeline).map(move |place| first(round) + place);
    let batch =
        |round| of_round(round).flat_map(|place| requests[place % requests.len()].iter().copied()).collect();
    (0..rounds).map(batch).collect()
}

impl Client {
    /// Sends and receives as much as possible, and returns the number of completed batches.
    fn go_on(&mut self, whole: usize, answer: ThrottrAnswer, scratch: &mut [u8]) -> io::Result<u64> {
        let mut done = 0;
        self.send()?;
        loop {
            let read = match self.stream.read(scratch) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(done),
                Err(error) => return Err(error),
            };
            self.missing -= match answer {
                ThrottrAnswer::Bytes(_) => read,
                ThrottrAnswer::Lines(_) => scratch[..read].iter().filter(|byte| **byte == b'\n').count(),
            };
            if self.missing == 0 {
                done += 1;
                self.at = (self.at + 1) % self.batches.len();
                (self.missing, self.unsent) = (whole, self.batches[self.at].len());
                self.send()?;
            }
            // All available input is read. Later input causes an event, and checking for it now costs a system call.
            if read < scratch.len() {
                return Ok(done);
            }
        }
    }

    fn send(&mut self) -> io::Result<()> {
        let batch = &self.batches[self.at];
        while self.unsent > 0 {
            match self.stream.write(&batch[batch.len() - self.unsent..]) {
                Ok(written) => self.unsent -= written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Cost of many counters.
#[derive(Debug, Clone, Copy)]
pub struct Growth {
    /// Creations per second of the first tenth.
    pub first: f64,
    /// Creations per second of the last tenth.
    pub last: f64,
    /// Resident bytes per counter.
    pub bytes_each: f64,
}

/// Creates this many counters with keys of 16 bytes.
///
/// # Errors
/// If the server does not answer.
pub fn create_many(process: &Process, address: SocketAddr, count: u64, ttl: Ttl) -> io::Result<Growth> {
    const BATCH: u64 = 1000;
    let mut stream = connect(address)?;
    let before = process.resident_bytes()?;
    let mut tenths = Vec::new();
    let mut begin = Instant::now();
    let mut answers = [0; BATCH as usize];
    for batch in 0..count / BATCH {
        let mut bytes = Vec::new();
        for number in batch * BATCH..(batch + 1) * BATCH {
            let key = key(number);
            bytes.extend(encoded(&ThrottrRequest::Insert { quota: u64::MAX, ttl, key: key.as_bytes() }));
        }
        stream.write_all(&bytes)?;
        stream.read_exact(&mut answers)?;
        if (batch + 1) % (count / BATCH / 10).max(1) == 0 {
            tenths.push(count as f64 / 10.0 / begin.elapsed().as_secs_f64());
            begin = Instant::now();
        }
    }
    let bytes_each = process.resident_bytes()?.saturating_sub(before) as f64 / count as f64;
    let ends = (tenths.first().copied(), tenths.last().copied());
    Ok(Growth { first: ends.0.unwrap_or(0.0), last: ends.1.unwrap_or(0.0), bytes_each })
}

/// How long requests took, in microseconds.
#[derive(Debug, Clone, Copy)]
pub struct Waits {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Maximum.
    pub max: f64,
    /// Number of requests over one millisecond.
    pub over_millisecond: f64,
}

impl Waits {
    fn of(mut waits: Vec<Duration>) -> Self {
        waits.sort_unstable();
        let at = |share: f64| {
            let place = (waits.len() as f64 * share) as usize;
            waits
                .get(place.min(waits.len().saturating_sub(1)))
                .map_or(f64::NAN, |wait| wait.as_secs_f64() * 1e6)
        };
        let over = waits.iter().filter(|wait| **wait > Duration::from_millis(1)).count();
        Self { p50: at(0.5), p99: at(0.99), p999: at(0.999), max: at(1.0), over_millisecond: over as f64 }
    }
}

/// Response time of another client before a million counters expire at once, and while they expire.
///
/// # Errors
/// If the server does not answer, or was too slow to have them all before the first expires.
pub fn mass_expiry(process: &Process, address: SocketAddr, count: u64) -> io::Result<(Waits, Waits)> {
    /// Duration of each period. Sweeping takes one or two seconds.
    const WATCHED: Duration = Duration::from_secs(3);
    const SECONDS: u64 = 8;
    let begin = Instant::now();
    // Created one after the other, they expire in that order; from then on all of them are gone within these seconds.
    create_many(process, address, count, Ttl { unit: 4, amount: SECONDS })?;
    let created = begin.elapsed();
    let first = Duration::from_secs(SECONDS);
    let mut stream = connect(address)?;
    create(address)?;
    let request = decrease_of(KEY);
    let mut watch = |until: Duration| -> io::Result<Waits> {
        let mut waits = Vec::new();
        while begin.elapsed() < until {
            let asked = Instant::now();
            stream.write_all(&request)?;
            stream.read_exact(&mut [0])?;
            waits.push(asked.elapsed());
        }
        Ok(Waits::of(waits))
    };
    if created + WATCHED > first {
        return Err(io::Error::other(format!(
            "creating {count} counters took {created:?}, longer than they live"
        )));
    }
    let before = watch(created + WATCHED)?;
    std::thread::sleep(first.saturating_sub(begin.elapsed()));
    let expiring = watch(first + created + WATCHED)?;
    Ok((before, expiring))
}
