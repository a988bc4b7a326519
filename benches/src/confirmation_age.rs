//! Time from a message to its confirmation: one message at a time, and at a fixed rate.
//!
//! Nothing spins here: the nodes of a cluster on this machine need its processors.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::confirmed::{ConfirmationReader, Confirming};
use crate::latency::{Latency, summary};

const SCRATCH_BYTES: usize = 64 * 1024;

/// If no confirmation arrives for this time, none will.
const PATIENCE: Duration = Duration::from_secs(20);

/// The receiving side of a producer.
struct Confirmations {
    stream: TcpStream,
    reader: Box<dyn ConfirmationReader>,
    input: Vec<u8>,
    filled: usize,
}

impl Confirmations {
    fn new(stream: TcpStream, reader: Box<dyn ConfirmationReader>) -> io::Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream, reader, input: vec![0; SCRATCH_BYTES], filled: 0 })
    }

    /// Waits for input, and returns the number of confirmations in it.
    fn next(&mut self) -> io::Result<u64> {
        let read = self.stream.read(&mut self.input[self.filled..])?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.filled += read;
        let (consumed, confirmed) = self.reader.read(&self.input[..self.filled])?;
        self.input.copy_within(consumed..self.filled, 0);
        self.filled -= consumed;
        Ok(confirmed)
    }
}

/// Publishes one message after the other for `warm_up`, and then for `duration`, which is measured.
///
/// # Errors
/// If the connection breaks, or a message is rejected.
pub fn alone(wire: &dyn Confirming, warm_up: Duration, duration: Duration) -> io::Result<Latency> {
    let mut stream = wire.confirmed_producer(0)?;
    let publication = wire.confirmed_publication(0);
    let mut confirmations = Confirmations::new(stream.try_clone()?, wire.reader())?;
    let mut ages = Vec::new();
    let start = Instant::now();
    while start.elapsed() < warm_up + duration {
        let (sent, is_measured) = (Instant::now(), start.elapsed() >= warm_up);
        stream.write_all(&publication)?;
        while confirmations.next()? == 0 {}
        if is_measured {
            ages.push(sent.elapsed().as_nanos() as u64);
        }
    }
    Ok(summary(&mut ages))
}

/// Publishes `rate` messages a second for `warm_up`, and then for `duration`, which is measured.
///
/// Open loop: a message is due at its time whatever the broker does, and its age counts from then. The first confirmation
/// counts as that of the first message, and so on, because some brokers confirm in another order.
///
/// # Errors
/// If the connection breaks, a message is rejected, or confirmations stop.
pub fn paced(wire: &dyn Confirming, rate: f64, warm_up: Duration, duration: Duration) -> io::Result<Latency> {
    let stream = wire.confirmed_producer(0)?;
    let publication = wire.confirmed_publication(0);
    let mut confirmations = Confirmations::new(stream.try_clone()?, wire.reader())?;
    let total = ((warm_up + duration).as_secs_f64() * rate) as usize;
    let skipped = (warm_up.as_secs_f64() * rate) as usize;
    let start = Instant::now();
    let due = move |number: usize| Duration::from_secs_f64(number as f64 / rate);
    let sender = thread::spawn(move || send(stream, &publication, total, start, due));
    let mut ages = Vec::with_capacity(total);
    while ages.len() < total {
        let confirmed = confirmations.next()?;
        let now = start.elapsed();
        for _ in 0..confirmed {
            ages.push(now.saturating_sub(due(ages.len())).as_nanos() as u64);
        }
    }
    sender.join().map_err(|_| io::Error::other("the sender has failed"))??;
    Ok(summary(&mut ages[skipped..]))
}

/// Sends each message when it is due; several at once, if they are due at once.
fn send(
    mut stream: TcpStream,
    publication: &[u8],
    total: usize,
    start: Instant,
    due: impl Fn(usize) -> Duration,
) -> io::Result<()> {
    let mut sent = 0;
    let mut output = Vec::new();
    while sent < total {
        let now = start.elapsed();
        output.clear();
        while sent < total && due(sent) <= now {
            output.extend_from_slice(publication);
            sent += 1;
        }
        stream.write_all(&output)?;
        if sent < total {
            thread::sleep(due(sent).saturating_sub(start.elapsed()));
        }
    }
    Ok(())
}
