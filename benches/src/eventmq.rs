//! Jobs through an EventMQ broker, with clients and workers that do nothing but send and receive: jobs per second
//! that reach a worker, and the time of one job from client to worker.
//!
//! Clients and workers are DEALER sockets, with frames built here, so that the generator costs little and is the same for all
//! brokers. A worker sends READY for each job that it received, like a worker that has run it.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use mqcore_wire::codec::Limits;
use mqcore_wire::eventmq::{self, EmqpCommand, EmqpMessage, Job, PeerKind, encode_request};
use mqcore_wire::zmtp::command::{Ready, SocketType, ZmtpCommand};
use mqcore_wire::zmtp::{GREETING_BYTES, Greeting, Item, ZmtpDecoder, encode_message};

use crate::latency::{Latency, summary};
use crate::wire::{Outbox, connect};

/// Addresses at which a broker accepts jobs and delivers them.
#[derive(Debug, Clone, Copy)]
pub struct Sockets {
    /// For clients.
    pub frontend: SocketAddr,
    /// For workers.
    pub backend: SocketAddr,
    /// Whether the broker notifies clients of each delivered job, and not only of jobs that did not wait for a slot.
    pub tells_all: bool,
}

/// How the broker treats a job that it delivered to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Jobs {
    /// The broker deletes it.
    HandedOut,
    /// The broker keeps it until its result comes, which goes back to the client.
    Kept,
}

const CLIENTS: usize = 4;
const WORKERS: usize = 4;
/// Maximum jobs of one worker.
const SLOTS: usize = 256;
/// Jobs in flight to workers. There is always a free slot for the next one, so that only the broker is measured.
const WINDOW: u64 = 800;
const REFILL: u64 = WINDOW / 4;

const QUEUE: &[u8] = b"default";
/// Body that the original's client sends for a function without arguments.
const BODY: &[u8] = br#"["run", {"callable": "nothing", "path": "jobs", "args": [], "kwargs": {}, "class_args": [], "class_kwargs": {}}]"#;
const RESULT: &[u8] = br#"{"value": null}"#;

const ID_BYTES: usize = 36;
/// Bytes of a message before its id, for a command of seven letters: two frames of the envelope, and two heads more.
const ID_AT: usize = 2 + 2 + eventmq::VERSION.len() + 2 + b"REQUEST".len() + 2;
const NO_ID: [u8; ID_BYTES] = *b"00000000-0000-4000-8000-000000000000";

const SCRATCH_BYTES: usize = 256 * 1024;
/// If a broker sends nothing for this time, it has lost something.
const PATIENCE: Duration = Duration::from_secs(20);

impl Jobs {
    fn headers(self) -> &'static [u8] {
        match self {
            Self::HandedOut => b"",
            Self::Kept => b"reply-requested,guarantee",
        }
    }

    /// The REQUEST of such a job, with an ID that is filled in later.
    fn request(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let job = Job { queue: QUEUE, headers: self.headers(), body: BODY, extra: Vec::new() };
        encode_request(&NO_ID, &job, &mut bytes);
        bytes
    }
}

/// An id in the form of all others.
fn id_of(number: u64) -> [u8; ID_BYTES] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut id = NO_ID;
    for (place, byte) in id[24..].iter_mut().rev().enumerate() {
        *byte = DIGITS[(number >> (4 * place)) as usize & 0xf];
    }
    id
}

/// Connects a DEALER socket, up to the end of the handshake.
///
/// # Errors
/// If the peer does not answer as ZeroMQ does.
pub fn dealer(address: SocketAddr, identity: &str) -> io::Result<std::net::TcpStream> {
    let mut stream = connect(address)?;
    let mut bytes = Vec::new();
    Greeting { minor: 0, as_server: false }.encode(&mut bytes);
    stream.write_all(&bytes)?;
    stream.read_exact(&mut [0; GREETING_BYTES])?;
    bytes.clear();
    ZmtpCommand::Ready(Ready { socket: SocketType::Dealer, identity: identity.as_bytes(), token: b"" })
        .encode(&mut bytes);
    stream.write_all(&bytes)?;
    let mut head = [0; 2];
    stream.read_exact(&mut head)?;
    stream.read_exact(&mut vec![0; head[1].into()])?;
    Ok(stream)
}

/// One connection.
struct Peer {
    stream: TcpStream,
    output: Outbox,
    input: Vec<u8>,
    filled: usize,
}

/// Messages received by one read.
#[derive(Debug, Default, Clone, Copy)]
struct Came {
    requests: u64,
    notices: u64,
    results: u64,
    acks: u64,
}

impl Peer {
    /// Connects a DEALER socket with a textual identity, because not every broker accepts others.
    fn connect(address: SocketAddr, identity: &str) -> io::Result<Self> {
        let stream = dealer(address, identity)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream: TcpStream::from_std(stream),
            output: Outbox::default(),
            input: vec![0; SCRATCH_BYTES],
            filled: 0,
        })
    }

    /// A worker with this many free slots.
    fn worker(address: SocketAddr, number: usize) -> io::Result<Self> {
        let mut worker = Self::connect(address, &format!("bench-worker-{number}"))?;
        let queues = br#"[[10, "default"]]"#;
        let inform = EmqpCommand::Inform { queues, kind: PeerKind::Worker, counts: false };
        EmqpMessage { id: &id_of(0), command: inform }.encode(&mut worker.output.bytes);
        let start = Instant::now();
        while worker.turn(b"", |_, _| {})?.acks == 0 {
            if start.elapsed() > PATIENCE {
                return Err(io::Error::other("the broker does not take workers"));
            }
        }
        for _ in 0..SLOTS {
            ready(&mut worker.output.bytes);
        }
        worker.flush()?;
        Ok(worker)
    }

    /// Writes as much as the socket accepts.
    fn flush(&mut self) -> io::Result<()> {
        self.output.flush(&mut self.stream)
    }

    /// Writes and reads as much as possible. `given` is called for each job with its ID, and appends the worker's
    /// answer. A job is a message that equals `request` except for the ID.
    fn turn(&mut self, request: &[u8], mut given: impl FnMut(&[u8], &mut Vec<u8>)) -> io::Result<Came> {
        let mut came = Came::default();
        self.flush()?;
        loop {
            let room = self.input.len() - self.filled;
            match self.stream.read(&mut self.input[self.filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    self.filled += read;
                    self.look(request, &mut given, &mut came)?;
                    if read < room {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.flush()?;
        Ok(came)
    }

    fn look(
        &mut self,
        request: &[u8],
        given: &mut impl FnMut(&[u8], &mut Vec<u8>),
        came: &mut Came,
    ) -> io::Result<()> {
        let mut at = 0;
        loop {
            let rest = &self.input[at..self.filled];
            if is_job(rest, request) {
                came.requests += 1;
                given(&rest[ID_AT..ID_AT + ID_BYTES], &mut self.output.bytes);
                at += request.len();
                continue;
            }
            let mut decoder = ZmtpDecoder::new();
            match decoder.next(rest, &Limits::default()).map_err(io::Error::other)? {
                Some((Item::Message(parts), size)) => {
                    match parts.get(2) {
                        Some(b"REPLY") if parts.count() == 5 => came.notices += 1,
                        Some(b"REPLY") => came.results += 1,
                        Some(b"ACK") => came.acks += 1,
                        Some(b"HEARTBEAT") => {}
                        _ => return Err(io::Error::other("something came that nobody sent")),
                    }
                    at += size;
                }
                Some((Item::Command(_), size)) => at += size,
                None => break,
            }
        }
        self.input.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(())
    }
}

fn is_job(bytes: &[u8], request: &[u8]) -> bool {
    !request.is_empty()
        && bytes.len() >= request.len()
        && bytes[..ID_AT] == request[..ID_AT]
        && bytes[ID_AT + ID_BYTES..request.len()] == request[ID_AT + ID_BYTES..]
}

fn ready(output: &mut Vec<u8>) {
    encode_message(&[b"", eventmq::VERSION, b"READY", &NO_ID], output);
}

/// Appends the message of a worker after a job.
fn answer(jobs: Jobs, id: &[u8], output: &mut Vec<u8>) {
    if jobs == Jobs::Kept {
        EmqpMessage { id: &NO_ID, command: EmqpCommand::Reply { body: RESULT, request: Some(id) } }
            .encode(output);
    }
    ready(output);
}

struct Run {
    jobs: Jobs,
    tells_all: bool,
    request: Vec<u8>,
    poll: Poll,
    /// Clients first.
    peers: Vec<Peer>,
    sent: u64,
    given: u64,
    notices: u64,
    results: u64,
}

/// Jobs a second that reached a worker; after `warm_up`, for `duration`.
///
/// # Errors
/// If a connection breaks, or if a job, the notice of its delivery or its result is lost.
pub fn throughput(sockets: Sockets, jobs: Jobs, warm_up: Duration, duration: Duration) -> io::Result<f64> {
    let mut run = Run::connect(sockets, jobs)?;
    run.until(Instant::now() + warm_up)?;
    let (before, start) = (run.given, Instant::now());
    run.until(start + duration)?;
    let rate = (run.given - before) as f64 / start.elapsed().as_secs_f64();
    run.finish()?;
    Ok(rate)
}

impl Run {
    fn connect(sockets: Sockets, jobs: Jobs) -> io::Result<Self> {
        let poll = Poll::new()?;
        let workers = (0..WORKERS).map(|number| Peer::worker(sockets.backend, number));
        let workers = workers.collect::<io::Result<Vec<_>>>()?;
        let clients =
            (0..CLIENTS).map(|number| Peer::connect(sockets.frontend, &format!("bench-client-{number}")));
        let mut peers = clients.collect::<io::Result<Vec<_>>>()?;
        peers.extend(workers);
        for (index, peer) in peers.iter_mut().enumerate() {
            let interest = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(&mut peer.stream, Token(index), interest)?;
        }
        let request = jobs.request();
        let tells_all = sockets.tells_all;
        Ok(Self { jobs, tells_all, request, poll, peers, sent: 0, given: 0, notices: 0, results: 0 })
    }

    fn until(&mut self, end: Instant) -> io::Result<()> {
        while Instant::now() < end {
            let free = WINDOW - (self.sent - self.given);
            if free >= REFILL {
                self.send(free)?;
            }
            self.turn()?;
        }
        Ok(())
    }

    /// Sends this many jobs, shared equally by the clients.
    fn send(&mut self, jobs: u64) -> io::Result<()> {
        for client in &mut self.peers[..CLIENTS] {
            for _ in 0..jobs / CLIENTS as u64 {
                let at = client.output.bytes.len() + ID_AT;
                client.output.bytes.extend_from_slice(&self.request);
                client.output.bytes[at..at + ID_BYTES].copy_from_slice(&id_of(self.sent));
                self.sent += 1;
            }
            client.flush()?;
        }
        Ok(())
    }

    /// Sends no more, and receives everything in flight.
    fn finish(&mut self) -> io::Result<()> {
        let start = Instant::now();
        let notices = if self.tells_all { self.sent } else { 0 };
        let results = if self.jobs == Jobs::Kept { self.sent } else { 0 };
        while self.given < self.sent || self.notices < notices || self.results < results {
            self.turn()?;
            if start.elapsed() > PATIENCE {
                let Self { sent, given, notices, results, .. } = self;
                let what =
                    format!("of {sent} jobs {given} came, with {notices} notices and {results} results");
                return Err(io::Error::other(what));
            }
        }
        Ok(())
    }

    fn turn(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(64);
        self.poll.poll(&mut events, Some(Duration::from_millis(20)))?;
        let jobs = self.jobs;
        for event in &events {
            let came =
                self.peers[event.token().0].turn(&self.request, |id, output| answer(jobs, id, output))?;
            self.given += came.requests;
            self.notices += came.notices;
            self.results += came.results;
        }
        Ok(())
    }
}

/// Times of jobs from the client's write to the worker's read, one at a time. The generator has a processor of its
/// own and spins, so that its own sleeping is not measured.
///
/// # Errors
/// If a connection breaks or a job is lost.
pub fn latency(sockets: Sockets, warm_up: Duration, duration: Duration) -> io::Result<Latency> {
    let mut worker = Peer::worker(sockets.backend, 0)?;
    let mut client = Peer::connect(sockets.frontend, "bench-client-0")?;
    let mut request = Jobs::HandedOut.request();
    let begin = Instant::now();
    let mut ages = Vec::new();
    for number in 0_u64.. {
        let start = Instant::now();
        if start - begin > warm_up + duration {
            break;
        }
        request[ID_AT..ID_AT + ID_BYTES].copy_from_slice(&id_of(number));
        client.output.bytes.extend_from_slice(&request);
        client.flush()?;
        while worker.turn(&request, |id, output| answer(Jobs::HandedOut, id, output))?.requests == 0 {
            std::hint::spin_loop();
            if start.elapsed() > PATIENCE {
                return Err(io::Error::other("a job never came"));
            }
        }
        if start - begin > warm_up {
            ages.push(start.elapsed().as_nanos() as u64);
        }
        // The notice for the client, before the next job is sent.
        while client.turn(b"", |_, _| {})?.notices == 0 {
            std::hint::spin_loop();
        }
    }
    Ok(summary(&mut ages))
}
