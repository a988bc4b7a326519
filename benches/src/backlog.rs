//! A long queue of saved messages: published with receipts, stored, half drained, crashed, drained completely.
//! Measures the rate and the memory of the server.

use std::io::{self, Read};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use mqcore_wire::codec::Limits;
use mqcore_wire::tmqp::{self, Frame, Kind};

use crate::fanout::unblocked;
use crate::process::Process;
use crate::tmqp::{CHANNEL, Tmqp};
use crate::wire::{Outbox, Wire};

/// Bytes of a body.
pub const BODY_BYTES: usize = 1024;
/// Messages that wait for their receipts.
const WINDOW: u64 = 4096;
const SCRATCH_BYTES: usize = 1 << 20;
/// Interval between readings of memory.
const LOOK: Duration = Duration::from_millis(50);
/// If no frame arrives for this time, none will.
const PATIENCE: Duration = Duration::from_secs(60);

/// Result of a phase.
#[derive(Debug, Clone, Copy)]
pub struct Phase {
    /// Messages confirmed or drained.
    pub messages: u64,
    /// Duration of the phase.
    pub elapsed: Duration,
    /// Maximum memory of the server in bytes.
    pub peak_bytes: u64,
}

impl Phase {
    /// Messages per second.
    pub fn rate(&self) -> f64 {
        self.messages as f64 / self.elapsed.as_secs_f64()
    }
}

/// Publishes `count` messages and waits for all receipts.
///
/// # Errors
/// If a message is rejected, or the connection breaks.
pub fn take(process: &Process, count: u64) -> io::Result<Phase> {
    let mut peer = Peer::new(Tmqp::new(process.address).producer()?)?;
    let mut watch = Watch::new(process);
    let (mut published, mut receipts) = (0, 0);
    while receipts < count {
        while published < count && published - receipts < WINDOW {
            let id = (published as u32).to_be_bytes();
            let frame = Frame {
                id: &id,
                target: CHANNEL.as_bytes(),
                payload: &[7; BODY_BYTES],
                pending_acknowledge: true,
                ..Frame::new(Kind::QUEUE)
            };
            tmqp::encode(&frame, &mut peer.output.bytes);
            published += 1;
        }
        let before = receipts;
        peer.turn(&mut |frame, _| {
            // A receipt has no header lines; a refusal has one with the reason.
            if frame.kind != Kind::ACKNOWLEDGE || !frame.headers.is_empty() {
                return Err(io::Error::other(format!("expected a receipt, got {frame:?}")));
            }
            receipts += 1;
            Ok(())
        })?;
        watch.look(receipts > before)?;
    }
    watch.phase(count)
}

/// Receives and acknowledges `count` messages; the queue must be round robin.
///
/// # Errors
/// If a body differs from the published one, or no more messages arrive.
pub fn drain(process: &Process, count: u64) -> io::Result<Phase> {
    let mut peer = Peer::new(Tmqp::new(process.address).consumer(0)?)?;
    let mut watch = Watch::new(process);
    let mut received = 0;
    while received < count {
        let before = received;
        peer.turn(&mut |frame, output| {
            if frame.kind != Kind::QUEUE || frame.payload != [7; BODY_BYTES] {
                return Err(io::Error::other(format!("expected a message, got {:?}", frame.kind)));
            }
            let word = Frame { id: frame.id, target: CHANNEL.as_bytes(), ..Frame::new(Kind::ACKNOWLEDGE) };
            tmqp::encode(&word, output);
            received += 1;
            Ok(())
        })?;
        watch.look(received > before)?;
    }
    peer.finish()?;
    watch.phase(received)
}

/// Memory use over a period.
struct Watch<'a> {
    process: &'a Process,
    start: Instant,
    moved: Instant,
    looked: Instant,
    peak_bytes: u64,
}

impl<'a> Watch<'a> {
    fn new(process: &'a Process) -> Self {
        let now = Instant::now();
        Self { process, start: now, moved: now, looked: now, peak_bytes: 0 }
    }

    fn look(&mut self, moved: bool) -> io::Result<()> {
        if moved {
            self.moved = Instant::now();
        } else if self.moved.elapsed() > PATIENCE {
            return Err(io::Error::other("nothing comes any more"));
        }
        if self.looked.elapsed() >= LOOK {
            self.looked = Instant::now();
            self.peak_bytes = self.peak_bytes.max(self.process.resident_bytes()?);
        }
        Ok(())
    }

    fn phase(mut self, messages: u64) -> io::Result<Phase> {
        let elapsed = self.start.elapsed();
        self.peak_bytes = self.peak_bytes.max(self.process.resident_bytes()?);
        Ok(Phase { messages, elapsed, peak_bytes: self.peak_bytes })
    }
}

/// One connection, written and read without blocking.
struct Peer {
    poll: Poll,
    events: Events,
    stream: TcpStream,
    output: Outbox,
    input: Vec<u8>,
    filled: usize,
}

impl Peer {
    fn new(stream: std::net::TcpStream) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut stream = unblocked(stream)?;
        poll.registry().register(&mut stream, Token(0), Interest::READABLE | Interest::WRITABLE)?;
        Ok(Self {
            poll,
            events: Events::with_capacity(8),
            stream,
            output: Outbox::default(),
            input: vec![0; SCRATCH_BYTES],
            filled: 0,
        })
    }

    /// Writes as much as possible, and calls the function for each received frame with the output buffer.
    fn turn(&mut self, show: &mut dyn FnMut(&Frame<'_>, &mut Vec<u8>) -> io::Result<()>) -> io::Result<()> {
        self.flush()?;
        match self.stream.read(&mut self.input[self.filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => self.filled += read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.poll.poll(&mut self.events, Some(LOOK))?;
            }
            Err(error) => return Err(error),
        }
        let mut at = 0;
        while let Some((frame, size)) =
            tmqp::decode(&self.input[at..self.filled], &Limits::default()).map_err(io::Error::other)?
        {
            show(&frame, &mut self.output.bytes)?;
            at += size;
        }
        self.input.copy_within(at..self.filled, 0);
        self.filled -= at;
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush(&mut self.stream)
    }

    /// Writes the rest.
    fn finish(&mut self) -> io::Result<()> {
        let start = Instant::now();
        while !self.output.bytes.is_empty() && start.elapsed() < PATIENCE {
            self.flush()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}
