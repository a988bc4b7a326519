//! Producers that wait for confirmations of their messages: one thread with non-blocking sockets, for any protocol.

use std::io::{self, Read};
use std::net::TcpStream as StdTcpStream;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use crate::fanout::unblocked;
use crate::wire::Outbox;

const SCRATCH_BYTES: usize = 64 * 1024;

/// If no confirmation arrives for this time, none will.
const PATIENCE: Duration = Duration::from_secs(20);

/// A protocol in which the broker confirms messages.
pub trait Confirming {
    /// Connects a producer.
    ///
    /// # Errors
    /// If it cannot connect, or the broker does not confirm messages.
    fn confirmed_producer(&self, number: usize) -> io::Result<StdTcpStream>;

    /// A message of this producer that asks for a confirmation.
    fn confirmed_publication(&self, number: usize) -> Vec<u8>;

    /// Reads what one producer receives.
    fn reader(&self) -> Box<dyn ConfirmationReader>;
}

/// Counts confirmations. Every confirmation is decoded.
pub trait ConfirmationReader {
    /// Number of consumed bytes, and how many messages they confirm.
    ///
    /// # Errors
    /// If the broker rejects a message.
    fn read(&mut self, input: &[u8]) -> io::Result<(usize, u64)>;
}

struct Producer {
    stream: TcpStream,
    publication: Vec<u8>,
    reader: Box<dyn ConfirmationReader>,
    output: Outbox,
    input: Vec<u8>,
    filled: usize,
    /// Messages that may be published now.
    free: usize,
}

/// Producers, each with at most a window of messages that wait for their confirmations.
pub struct Run {
    poll: Poll,
    producers: Vec<Producer>,
    publish_max: u64,
    /// Published messages.
    pub published: u64,
    /// Confirmed messages.
    pub confirmed: u64,
}

impl Run {
    /// Connects `producers`, which together publish at most `publish_max` messages.
    ///
    /// # Errors
    /// If one cannot connect.
    pub fn connect(
        wire: &dyn Confirming,
        producers: usize,
        window: usize,
        publish_max: u64,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut all = Vec::new();
        for number in 0..producers {
            let mut stream = unblocked(wire.confirmed_producer(number)?)?;
            poll.registry().register(&mut stream, Token(number), Interest::READABLE | Interest::WRITABLE)?;
            all.push(Producer {
                stream,
                publication: wire.confirmed_publication(number),
                reader: wire.reader(),
                output: Outbox::default(),
                input: vec![0; SCRATCH_BYTES],
                filled: 0,
                free: window,
            });
        }
        Ok(Self { poll, producers: all, publish_max, published: 0, confirmed: 0 })
    }

    /// Runs until `done` returns true; its arguments are the confirmations so far and the time since the start.
    ///
    /// # Errors
    /// If a connection breaks, a message is rejected, or confirmations stop.
    pub fn until(&mut self, done: impl Fn(u64, Duration) -> bool) -> io::Result<()> {
        let start = Instant::now();
        let (mut latest, mut confirmed) = (start, self.confirmed);
        let mut events = Events::with_capacity(128);
        for index in 0..self.producers.len() {
            self.publish(index)?;
        }
        while !done(self.confirmed, start.elapsed()) {
            self.poll.poll(&mut events, Some(Duration::from_millis(20)))?;
            for event in &events {
                let index = event.token().0;
                if event.is_readable() {
                    self.confirmed += self.producers[index].read()?;
                }
                self.publish(index)?;
            }
            if self.confirmed > confirmed {
                (latest, confirmed) = (Instant::now(), self.confirmed);
            } else if latest.elapsed() > PATIENCE {
                return Err(io::Error::other("confirmations do not come any more"));
            }
        }
        Ok(())
    }

    /// Publishes no more, and receives the outstanding confirmations.
    ///
    /// # Errors
    /// As [`Run::until`].
    pub fn finish(&mut self) -> io::Result<()> {
        self.publish_max = self.published;
        let published = self.published;
        self.until(|confirmed, _| confirmed >= published)
    }

    fn publish(&mut self, index: usize) -> io::Result<()> {
        let producer = &mut self.producers[index];
        let left = self.publish_max - self.published;
        let messages = left.min(producer.free as u64);
        for _ in 0..messages {
            producer.output.bytes.extend_from_slice(&producer.publication);
        }
        producer.free -= messages as usize;
        self.published += messages;
        producer.output.flush(&mut producer.stream)
    }
}

impl Producer {
    /// Reads all available input, and returns the number of confirmed messages.
    fn read(&mut self) -> io::Result<u64> {
        let mut confirmed = 0;
        loop {
            let room = self.input.len() - self.filled;
            match self.stream.read(&mut self.input[self.filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    self.filled += read;
                    confirmed += self.take_confirmations()?;
                    if read < room {
                        return Ok(confirmed);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(confirmed),
                Err(error) => return Err(error),
            }
        }
    }

    fn take_confirmations(&mut self) -> io::Result<u64> {
        let (consumed, confirmed) = self.reader.read(&self.input[..self.filled])?;
        self.input.copy_within(consumed..self.filled, 0);
        self.filled -= consumed;
        self.free += confirmed as usize;
        Ok(confirmed)
    }
}
