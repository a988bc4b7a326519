//! One producer and several consumers that receive everything: deliveries per second.
//!
//! One thread does all of it with non-blocking sockets. The producer stays a window ahead of the slowest consumer, so
//! nothing needs to be dropped and only received messages are measured.

use std::io::{self, Read, Write};
use std::net::TcpStream as StdTcpStream;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use crate::wire::{Wire, learn_delivery_bytes};

/// Maximum lead of the producer, in bytes of bodies: 8192 messages of 128 bytes. Brokers drop messages of a consumer whose
/// unread output exceeds a limit.
const WINDOW_BYTES: u64 = 1 << 20;

/// If no message arrives for this time, one was lost.
const PATIENCE: Duration = Duration::from_secs(20);

/// Messages encoded one behind the other, to be written in large pieces.
const BLOCK_MESSAGES: usize = 1024;

const SCRATCH_BYTES: usize = 256 * 1024;

/// Result of a run.
#[derive(Debug, Clone, Copy)]
pub struct Fanout {
    /// Total deliveries.
    pub deliveries: u64,
    /// Duration of the measurement.
    pub elapsed: Duration,
}

impl Fanout {
    /// Deliveries per second.
    pub fn rate(&self) -> f64 {
        self.deliveries as f64 / self.elapsed.as_secs_f64()
    }
}

struct Consumer {
    stream: TcpStream,
    bytes: u64,
}

struct Run {
    poll: Poll,
    producer: TcpStream,
    /// `BLOCK_MESSAGES` messages.
    block: Vec<u8>,
    publication_bytes: u64,
    delivery_bytes: u64,
    sent_bytes: u64,
    /// Maximum lead of the producer, in messages.
    window: u64,
    /// The producer writes when this much of the window is free: small writes would measure system calls.
    refill: u64,
    consumers: Vec<Consumer>,
    scratch: Vec<u8>,
}

const PRODUCER: Token = Token(usize::MAX);

/// Runs for `warm_up`, and then for `duration`, which is measured.
///
/// # Errors
/// If a connection breaks, or no message arrives.
pub fn measure(
    wire: &dyn Wire,
    consumers: usize,
    warm_up: Duration,
    duration: Duration,
) -> io::Result<Fanout> {
    let mut run = Run::connect(wire, consumers)?;
    run.until(Instant::now() + warm_up)?;
    let (before, start) = (run.delivered(), Instant::now());
    run.until(start + duration)?;
    while run.delivered() == before {
        if start.elapsed() > PATIENCE {
            return Err(io::Error::other("messages do not come any more"));
        }
        run.until(Instant::now() + Duration::from_millis(10))?;
    }
    Ok(Fanout { deliveries: run.delivered() - before, elapsed: start.elapsed() })
}

impl Run {
    fn connect(wire: &dyn Wire, consumers: usize) -> io::Result<Self> {
        let mut producer = wire.producer()?;
        let mut first = wire.consumer(0)?;
        let delivery_bytes = learn_delivery_bytes(wire, &mut producer, &mut first)? as u64;
        let poll = Poll::new()?;
        let mut all = vec![first];
        for number in 1..consumers {
            all.push(wire.consumer(number)?);
        }
        let mut run_consumers = Vec::new();
        for (index, stream) in all.into_iter().enumerate() {
            let mut stream = unblocked(stream)?;
            poll.registry().register(&mut stream, Token(index), Interest::READABLE)?;
            run_consumers.push(Consumer { stream, bytes: 0 });
        }
        let mut producer = unblocked(producer)?;
        poll.registry().register(&mut producer, PRODUCER, Interest::READABLE | Interest::WRITABLE)?;
        let publication = wire.publication();
        let window = (WINDOW_BYTES / wire.body_bytes().max(1) as u64).max(1);
        Ok(Self {
            poll,
            producer,
            publication_bytes: publication.len() as u64,
            block: publication.repeat(BLOCK_MESSAGES),
            delivery_bytes,
            sent_bytes: 0,
            window,
            refill: (window / 4).max(1),
            consumers: run_consumers,
            scratch: vec![0; SCRATCH_BYTES],
        })
    }

    fn delivered(&self) -> u64 {
        self.consumers.iter().map(|consumer| consumer.bytes / self.delivery_bytes).sum()
    }

    fn slowest(&self) -> u64 {
        self.consumers.iter().map(|consumer| consumer.bytes / self.delivery_bytes).min().unwrap_or(0)
    }

    fn until(&mut self, end: Instant) -> io::Result<()> {
        let mut events = Events::with_capacity(256);
        let mut writable = true;
        while Instant::now() < end {
            let allowed = (self.slowest() + self.window) * self.publication_bytes;
            if writable && allowed >= self.sent_bytes + self.refill * self.publication_bytes {
                writable = self.write(allowed)?;
            }
            self.poll.poll(&mut events, Some(Duration::from_millis(100)))?;
            for event in &events {
                if event.token() != PRODUCER {
                    self.read(event.token().0)?;
                    continue;
                }
                writable |= event.is_writable();
                if event.is_readable() {
                    drain(&mut self.producer, &mut self.scratch)?;
                }
            }
        }
        Ok(())
    }

    /// Writes up to `allowed` bytes in total. False if the socket accepts no more for now.
    fn write(&mut self, allowed: u64) -> io::Result<bool> {
        while self.sent_bytes < allowed {
            let at = (self.sent_bytes % self.block.len() as u64) as usize;
            let end = self.block.len().min(at + (allowed - self.sent_bytes) as usize);
            match self.producer.write(&self.block[at..end]) {
                Ok(written) => self.sent_bytes += written as u64,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn read(&mut self, index: usize) -> io::Result<()> {
        let consumer = &mut self.consumers[index];
        consumer.bytes += drain(&mut consumer.stream, &mut self.scratch)?;
        Ok(())
    }
}

/// Reads all available input, and returns its size.
///
/// # Errors
/// If the peer has closed.
pub fn drain(stream: &mut TcpStream, scratch: &mut [u8]) -> io::Result<u64> {
    let mut bytes = 0;
    loop {
        match stream.read(scratch) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                bytes += read as u64;
                if read < scratch.len() {
                    return Ok(bytes);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(bytes),
            Err(error) => return Err(error),
        }
    }
}

/// The same connection, for an event loop.
///
/// # Errors
/// As [`StdTcpStream::set_nonblocking`].
pub fn unblocked(stream: StdTcpStream) -> io::Result<TcpStream> {
    stream.set_nonblocking(true)?;
    Ok(TcpStream::from_std(stream))
}
