//! Rate limits as clients ask for them: so many connections, each with so many requests under way, as fast as the answers
//! come. The generator only counts octets or lines, so that it costs as little as it can.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use mqcore_wire::throttr::request::{DECREASE, QUOTA, Request, Rule, TAKE, encode};
use mqcore_wire::throttr::{Dialect, Family, Ttl, Width};

use crate::process::Process;
use crate::wire::connect;

/// What is sent again and again on one connection, and how its answer is recognised.
#[derive(Debug, Clone)]
pub struct Ask {
    /// One request.
    pub request: Vec<u8>,
    /// What its answer is made of.
    pub answer: Answer,
}

/// How much an answer is.
#[derive(Debug, Clone, Copy)]
pub enum Answer {
    /// So many octets.
    Octets(usize),
    /// So many lines.
    Lines(usize),
}

/// What one limit is called: 16 octets.
const KEY: &[u8; 16] = b"user:00000012345";

/// The listener that is measured: wide enough for any count.
pub const DIALECT: Dialect = Dialect { width: Width::U64, family: Family::V71 };

const HOUR: Ttl = Ttl { unit: 6, amount: 1 };

fn throttr(request: &Request<'_>, octets: usize) -> Ask {
    let mut encoded = Vec::new();
    encode(request, DIALECT, &mut encoded).expect("the key is short");
    Ask { request: encoded, answer: Answer::Octets(octets) }
}

fn resp(words: &[&[u8]]) -> Vec<u8> {
    let mut octets = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        octets.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        octets.extend_from_slice(word);
        octets.extend_from_slice(b"\r\n");
    }
    octets
}

/// Takes one from a counter: Throttr's own idiom.
#[must_use]
pub fn decrease() -> Ask {
    throttr(&Request::Update { attribute: QUOTA, change: DECREASE, value: 1, key: KEY }, 1)
}

/// What Redis users count with.
#[must_use]
pub fn incr() -> Ask {
    Ask { request: resp(&[b"INCR", KEY]), answer: Answer::Lines(1) }
}

/// Create, check and subtract in one request.
#[must_use]
pub fn consume() -> Ask {
    let rule = Rule { algorithm: 0, limit: 1 << 50, cost: 1, period: HOUR, key: KEY };
    throttr(&Request::Consume { mode: TAKE, rule }, 1 + 2 * 8 + 16)
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

/// Loads the script into a Redis, and answers with what calls it.
///
/// # Errors
/// If it does not take it.
pub fn script(redis: &Process) -> io::Result<Ask> {
    let mut stream = connect(redis.address)?;
    stream.write_all(&resp(&[b"SCRIPT", b"LOAD", SCRIPT.as_bytes()]))?;
    let mut answer = [0; 47];
    stream.read_exact(&mut answer)?;
    let digest = answer[5..45].to_vec();
    let key = [KEY, &b":script"[..]].concat();
    let request = resp(&[b"EVALSHA", &digest, b"1", &key, b"1000000000000", b"1", b"3600000"]);
    Ok(Ask { request, answer: Answer::Lines(6) })
}

/// Makes the counter that [`decrease`] takes from.
///
/// # Errors
/// If the server does not answer.
pub fn create(address: SocketAddr) -> io::Result<()> {
    let request = throttr(&Request::Insert { quota: u64::MAX, ttl: HOUR, key: KEY }, 1).request;
    let mut stream = connect(address)?;
    stream.write_all(&request)?;
    stream.read_exact(&mut [0])
}

struct Client {
    stream: TcpStream,
    /// Octets or lines still to come for the batch that is under way.
    missing: usize,
    unsent: usize,
}

/// Requests a second: `connections` of them, each with `pipeline` requests under way at a time.
///
/// # Errors
/// If a connection breaks.
pub fn rate(
    address: SocketAddr,
    ask: &Ask,
    connections: usize,
    pipeline: usize,
    warm_up: Duration,
    duration: Duration,
) -> io::Result<f64> {
    let batch = ask.request.repeat(pipeline);
    let whole = match ask.answer {
        Answer::Octets(each) | Answer::Lines(each) => each * pipeline,
    };
    let mut poll = Poll::new()?;
    let mut clients = Vec::new();
    for number in 0..connections {
        let stream = connect(address)?;
        stream.set_nonblocking(true)?;
        let mut stream = TcpStream::from_std(stream);
        poll.registry().register(&mut stream, Token(number), Interest::READABLE | Interest::WRITABLE)?;
        clients.push(Client { stream, missing: whole, unsent: batch.len() });
    }
    let mut events = Events::with_capacity(connections.max(64));
    let mut scratch = vec![0; 64 * 1024];
    let begin = Instant::now();
    let (mut counted, mut since) = (0_u64, begin);
    let mut warm = false;
    loop {
        poll.poll(&mut events, Some(Duration::from_millis(100)))?;
        for event in &events {
            let client = &mut clients[event.token().0];
            counted += client.go_on(&batch, whole, ask.answer, &mut scratch)? * pipeline as u64;
        }
        let now = Instant::now();
        if !warm && now - begin >= warm_up {
            (warm, counted, since) = (true, 0, now);
        } else if warm && now - since >= duration {
            return Ok(counted as f64 / (now - since).as_secs_f64());
        }
    }
}

impl Client {
    /// Sends and receives what can be, and answers how many batches came to their end.
    fn go_on(&mut self, batch: &[u8], whole: usize, answer: Answer, scratch: &mut [u8]) -> io::Result<u64> {
        let mut done = 0;
        loop {
            while self.unsent > 0 {
                match self.stream.write(&batch[batch.len() - self.unsent..]) {
                    Ok(written) => self.unsent -= written,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
            match self.stream.read(scratch) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    self.missing -= match answer {
                        Answer::Octets(_) => read,
                        Answer::Lines(_) => scratch[..read].iter().filter(|octet| **octet == b'\n').count(),
                    };
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(done),
                Err(error) => return Err(error),
            }
            if self.missing == 0 {
                done += 1;
                (self.missing, self.unsent) = (whole, batch.len());
            }
        }
    }
}

/// What many counters cost.
#[derive(Debug, Clone, Copy)]
pub struct Growth {
    /// Creations a second, of the first tenth.
    pub first: f64,
    /// Of the last tenth.
    pub last: f64,
    /// Resident octets for each of them.
    pub bytes_each: f64,
}

/// Creates so many counters with keys of 16 octets.
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
        let mut octets = Vec::new();
        for number in batch * BATCH..(batch + 1) * BATCH {
            let key = format!("user:{number:011}");
            let request = Request::Insert { quota: 5, ttl, key: key.as_bytes() };
            encode(&request, DIALECT, &mut octets).expect("the key is short");
        }
        stream.write_all(&octets)?;
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

/// The longest that anybody else waits while a million counters expire at once, in microseconds, and the same without.
///
/// # Errors
/// If the server does not answer.
pub fn mass_expiry(process: &Process, address: SocketAddr, count: u64) -> io::Result<(f64, f64)> {
    let ttl = Ttl { unit: 4, amount: 8 };
    let begin = Instant::now();
    create_many(process, address, count, ttl)?;
    let mut stream = connect(address)?;
    create(address)?;
    let ask = decrease();
    let mut longest = |until: Duration| -> io::Result<f64> {
        let mut worst = Duration::ZERO;
        while begin.elapsed() < until {
            let asked = Instant::now();
            stream.write_all(&ask.request)?;
            stream.read_exact(&mut [0])?;
            worst = worst.max(asked.elapsed());
        }
        Ok(worst.as_secs_f64() * 1e6)
    };
    // All of them were created within the first seconds; none expires before the eighth.
    let quiet_end = Duration::from_millis(7_800);
    let quiet = longest(quiet_end)?;
    let expiring = longest(begin.elapsed().max(quiet_end) + Duration::from_secs(8))?;
    Ok((expiring, quiet))
}
