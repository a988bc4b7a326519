//! One producer, some consumers who share a round robin queue and acknowledge every message: how many messages a second,
//! from the first write to the last acknowledgement that the broker has taken.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use crate::fanout::unblocked;
use crate::process::Process;
use crate::tmqp::{ID_AT, ID_BYTES, Tmqp, acknowledgement, publication};
use crate::wire::{Outbox, Wire, learn_delivery_bytes};

/// Messages that may be published and not acknowledged.
const WINDOW: u64 = 16_384;

const REFILL: u64 = WINDOW / 4;

const SCRATCH_BYTES: usize = 256 * 1024;

/// Result of a run.
#[derive(Debug, Clone, Copy)]
pub struct WorkQueue {
    /// Messages published, delivered and acknowledged.
    pub messages: u64,
    /// The same together with those of the warm-up.
    pub in_all: u64,
    /// How long that took.
    pub elapsed: Duration,
}

impl WorkQueue {
    /// Messages a second.
    pub fn rate(&self) -> f64 {
        self.messages as f64 / self.elapsed.as_secs_f64()
    }
}

/// A socket with what waits to be written to it.
struct Pipe {
    stream: TcpStream,
    output: Outbox,
}

impl Pipe {
    /// Writes what the socket takes.
    fn flush(&mut self) -> io::Result<()> {
        self.output.flush(&mut self.stream)
    }
}

struct Consumer {
    pipe: Pipe,
    input: Vec<u8>,
    filled: usize,
}

struct Run {
    poll: Poll,
    producer: Pipe,
    publication: Vec<u8>,
    acknowledgement: Vec<u8>,
    delivery_bytes: usize,
    consumers: Vec<Consumer>,
    published: u64,
    acknowledged: u64,
}

const PRODUCER: Token = Token(usize::MAX);

/// Publishes for `warm_up`, and then for `duration`, which is measured together with the time until the broker has
/// taken every acknowledgement.
///
/// # Errors
/// If a connection breaks, or messages are lost or delivered twice.
pub fn measure(
    process: &Process,
    consumers: usize,
    warm_up: Duration,
    duration: Duration,
) -> io::Result<WorkQueue> {
    let mut run = Run::connect(&Tmqp::new(process.address), consumers)?;
    run.until(Instant::now() + warm_up)?;
    let (before, start) = (run.acknowledged, Instant::now());
    run.until(start + duration)?;
    run.finish()?;
    let totals = process.totals_when(|totals| {
        totals["ready"] == 0 && totals["in_flight"] == 0 && totals["messages"]["acks"] == run.published
    })?;
    let elapsed = start.elapsed();
    if totals["messages"]["put_back"] != 0 {
        return Err(io::Error::other(format!("messages were delivered again: {totals}")));
    }
    Ok(WorkQueue { messages: run.acknowledged - before, in_all: run.acknowledged, elapsed })
}

impl Run {
    fn connect(wire: &Tmqp, consumers: usize) -> io::Result<Self> {
        let mut producer = wire.producer()?;
        let mut first = wire.consumer(0)?;
        let delivery_bytes = learn_delivery_bytes(wire, &mut producer, &mut first)?;
        // The message with the size is acknowledged like all others.
        first.write_all(&acknowledgement())?;
        let poll = Poll::new()?;
        let mut streams = vec![first];
        for number in 1..consumers {
            streams.push(wire.consumer(number)?);
        }
        let mut all = Vec::new();
        for (index, stream) in streams.into_iter().enumerate() {
            let mut stream = unblocked(stream)?;
            poll.registry().register(&mut stream, Token(index), Interest::READABLE | Interest::WRITABLE)?;
            let pipe = Pipe { stream, output: Outbox::default() };
            all.push(Consumer { pipe, input: vec![0; SCRATCH_BYTES], filled: 0 });
        }
        let mut stream = unblocked(producer)?;
        poll.registry().register(&mut stream, PRODUCER, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Self {
            poll,
            producer: Pipe { stream, output: Outbox::default() },
            publication: publication(),
            acknowledgement: acknowledgement(),
            delivery_bytes,
            consumers: all,
            published: 1,
            acknowledged: 1,
        })
    }

    fn until(&mut self, end: Instant) -> io::Result<()> {
        while Instant::now() < end {
            let free = WINDOW - (self.published - self.acknowledged);
            if free >= REFILL && self.producer.output.bytes.is_empty() {
                self.publish(free);
            }
            self.turn()?;
        }
        Ok(())
    }

    /// Publishes nothing more, and takes what is still on its way.
    fn finish(&mut self) -> io::Result<()> {
        let start = Instant::now();
        while self.acknowledged < self.published || self.unwritten() {
            self.turn()?;
            if start.elapsed() > Duration::from_secs(30) {
                let lost = self.published - self.acknowledged;
                return Err(io::Error::other(format!("{lost} messages never came")));
            }
        }
        Ok(())
    }

    fn unwritten(&self) -> bool {
        self.consumers.iter().any(|consumer| !consumer.pipe.output.bytes.is_empty())
    }

    fn publish(&mut self, messages: u64) {
        for _ in 0..messages {
            let at = self.producer.output.bytes.len();
            self.producer.output.bytes.extend_from_slice(&self.publication);
            let id = &mut self.producer.output.bytes[at + ID_AT..at + ID_AT + ID_BYTES];
            // Any bytes will do as an id, as long as they differ.
            id.copy_from_slice(&hexadecimal(self.published));
            self.published += 1;
        }
    }

    fn turn(&mut self) -> io::Result<()> {
        self.producer.flush()?;
        for consumer in &mut self.consumers {
            consumer.pipe.flush()?;
        }
        let mut events = Events::with_capacity(64);
        self.poll.poll(&mut events, Some(Duration::from_millis(20)))?;
        for event in &events {
            if event.token() == PRODUCER {
                continue;
            }
            let consumer = &mut self.consumers[event.token().0];
            self.acknowledged += consumer.read(self.delivery_bytes, &self.acknowledgement)?;
        }
        Ok(())
    }
}

impl Consumer {
    /// Reads all that is there, and acknowledges it.
    fn read(&mut self, delivery_bytes: usize, acknowledgement: &[u8]) -> io::Result<u64> {
        let mut messages = 0;
        loop {
            let room = self.input.len() - self.filled;
            match self.pipe.stream.read(&mut self.input[self.filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    self.filled += read;
                    messages += self.acknowledge(delivery_bytes, acknowledgement);
                    if read < room {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.pipe.flush()?;
        Ok(messages)
    }

    fn acknowledge(&mut self, delivery_bytes: usize, acknowledgement: &[u8]) -> u64 {
        let mut messages = 0;
        let whole = self.filled - self.filled % delivery_bytes;
        for delivery in self.input[..whole].chunks_exact(delivery_bytes) {
            let at = self.pipe.output.bytes.len();
            self.pipe.output.bytes.extend_from_slice(acknowledgement);
            let id = &delivery[ID_AT..ID_AT + ID_BYTES];
            self.pipe.output.bytes[at + ID_AT..at + ID_AT + ID_BYTES].copy_from_slice(id);
            messages += 1;
        }
        self.input.copy_within(whole..self.filled, 0);
        self.filled -= whole;
        messages
    }
}

fn hexadecimal(number: u64) -> [u8; ID_BYTES] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    std::array::from_fn(|index| DIGITS[(number >> (28 - 4 * index)) as usize & 0xF])
}
