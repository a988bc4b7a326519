//! Producers that wait for receipts of messages that a queue saves: receipts per second, and messages per sync.
//!
//! One thread does all of it with non-blocking sockets. Every receipt is decoded; a rejection is an error.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use mqcore_wire::codec::Limits;
use mqcore_wire::tmqp::{self, Kind};

use crate::fanout::unblocked;
use crate::process::Process;
use crate::tmqp::{Tmqp, publication_with_receipt};
use crate::wire::{Outbox, Wire};

const SCRATCH_BYTES: usize = 64 * 1024;

/// If no receipt arrives for this time, none will.
const PATIENCE: Duration = Duration::from_secs(20);

/// Result of a run.
#[derive(Debug, Clone, Copy)]
pub struct Receipts {
    /// Messages confirmed as saved.
    pub receipts: u64,
    /// Duration of the measurement.
    pub elapsed: Duration,
    /// Syncs in this time.
    pub syncs: u64,
}

impl Receipts {
    /// Receipts per second.
    pub fn rate(&self) -> f64 {
        self.receipts as f64 / self.elapsed.as_secs_f64()
    }

    /// Messages per sync: the size of the batches.
    pub fn batch(&self) -> f64 {
        self.receipts as f64 / self.syncs.max(1) as f64
    }
}

/// A directory for one measurement, on the measured disk. Removed when dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates one in the directory that `MQCORE_BENCH_DIR` names, or beside this program in the target directory.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn new(name: &str) -> io::Result<Self> {
        let parent = match std::env::var_os("MQCORE_BENCH_DIR") {
            Some(named) => PathBuf::from(named),
            None => std::env::current_exe()?.parent().map(Path::to_path_buf).unwrap_or_default(),
        };
        let path = parent.join(format!("load-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Publishes for `warm_up`, and then for `duration`, which is measured: `producers` connections, each with at most
/// `window` messages that wait for their receipts.
///
/// # Errors
/// If a connection breaks, a message is rejected, or the queue does not contain the confirmed messages.
pub fn measure(
    process: &Process,
    producers: usize,
    window: usize,
    warm_up: Duration,
    duration: Duration,
) -> io::Result<Receipts> {
    let mut run = Run::connect(&Tmqp { address: process.address }, producers, window, u64::MAX)?;
    run.until(|_, now| now >= warm_up)?;
    let (receipts_before, syncs_before) = (run.receipts, process.metric(SYNCS)?);
    let start = Instant::now();
    run.until(|_, elapsed| elapsed >= duration)?;
    let (receipts, elapsed) = (run.receipts - receipts_before, start.elapsed());
    let syncs = (process.metric(SYNCS)? - syncs_before) as u64;
    run.finish()?;
    let stored = process.totals()?["ready"].as_u64();
    if stored != Some(run.published) {
        return Err(io::Error::other(format!("{} receipts, and {stored:?} are stored", run.receipts)));
    }
    Ok(Receipts { receipts, elapsed, syncs })
}

/// Saves exactly `count` messages, and waits for all receipts.
///
/// # Errors
/// As [`measure`].
pub fn save(process: &Process, count: u64) -> io::Result<()> {
    let mut run = Run::connect(&Tmqp { address: process.address }, 1, 4096, count)?;
    run.until(|receipts, _| receipts >= count)
}

const SYNCS: &str = "mqcore_journal_fsync_seconds_count";

struct Producer {
    stream: TcpStream,
    output: Outbox,
    input: Vec<u8>,
    filled: usize,
    /// Messages that may be published now.
    free: usize,
}

struct Run {
    poll: Poll,
    publication: Vec<u8>,
    producers: Vec<Producer>,
    published: u64,
    publish_max: u64,
    receipts: u64,
}

impl Run {
    fn connect(wire: &Tmqp, producers: usize, window: usize, publish_max: u64) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut all = Vec::new();
        for index in 0..producers {
            let mut stream = unblocked(wire.producer()?)?;
            poll.registry().register(&mut stream, Token(index), Interest::READABLE | Interest::WRITABLE)?;
            all.push(Producer {
                stream,
                output: Outbox::default(),
                input: vec![0; SCRATCH_BYTES],
                filled: 0,
                free: window,
            });
        }
        let publication = publication_with_receipt();
        Ok(Self { poll, publication, producers: all, published: 0, publish_max, receipts: 0 })
    }

    /// Runs until `done` returns true; its arguments are the receipts so far and the time since the start.
    fn until(&mut self, done: impl Fn(u64, Duration) -> bool) -> io::Result<()> {
        let start = Instant::now();
        let (mut latest, mut receipts) = (start, self.receipts);
        let mut events = Events::with_capacity(128);
        for index in 0..self.producers.len() {
            self.publish(index)?;
        }
        while !done(self.receipts, start.elapsed()) {
            self.poll.poll(&mut events, Some(Duration::from_millis(20)))?;
            for event in &events {
                let index = event.token().0;
                if event.is_readable() {
                    self.receipts += self.producers[index].read()?;
                }
                self.publish(index)?;
            }
            if self.receipts > receipts {
                (latest, receipts) = (Instant::now(), self.receipts);
            } else if latest.elapsed() > PATIENCE {
                return Err(io::Error::other("receipts do not come any more"));
            }
        }
        Ok(())
    }

    /// Publishes no more, and receives the outstanding receipts.
    fn finish(&mut self) -> io::Result<()> {
        self.publish_max = self.published;
        let published = self.published;
        self.until(|receipts, _| receipts >= published)
    }

    fn publish(&mut self, index: usize) -> io::Result<()> {
        let producer = &mut self.producers[index];
        let left = self.publish_max - self.published;
        let messages = left.min(producer.free as u64);
        for _ in 0..messages {
            producer.output.bytes.extend_from_slice(&self.publication);
        }
        producer.free -= messages as usize;
        self.published += messages;
        producer.flush()
    }
}

impl Producer {
    /// Writes as much as the socket accepts.
    fn flush(&mut self) -> io::Result<()> {
        self.output.flush(&mut self.stream)
    }

    /// Reads all available input, and returns the number of receipts.
    fn read(&mut self) -> io::Result<u64> {
        let mut receipts = 0;
        loop {
            let room = self.input.len() - self.filled;
            match self.stream.read(&mut self.input[self.filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    self.filled += read;
                    receipts += self.take_receipts()?;
                    if read < room {
                        return Ok(receipts);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(receipts),
                Err(error) => return Err(error),
            }
        }
    }

    fn take_receipts(&mut self) -> io::Result<u64> {
        let (mut receipts, mut at) = (0, 0);
        while let Some((frame, size)) =
            tmqp::decode(&self.input[at..self.filled], &Limits::default()).map_err(io::Error::other)?
        {
            // A receipt has no header lines; a refusal has one with the reason.
            if frame.kind != Kind::ACKNOWLEDGE || !frame.headers.is_empty() {
                return Err(io::Error::other(format!("expected a receipt, got {frame:?}")));
            }
            at += size;
            receipts += 1;
        }
        self.input.copy_within(at..self.filled, 0);
        self.filled -= at;
        self.free += receipts;
        Ok(receipts as u64)
    }
}
