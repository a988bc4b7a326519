//! Time of a message from the moment at which it was due to the moment at which it is read.
//!
//! Open loop: messages are due at fixed times whatever the broker does, and their age counts from then, so a pause of the
//! broker shows in every message that was due during it.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use crate::wire::{Wire, learn_delivery_bytes};

/// Result of a run.
#[derive(Debug, Clone, Copy)]
pub struct Latency {
    /// Messages measured.
    pub messages: usize,
    /// Median.
    pub p50: Duration,
    /// 99th percentile.
    pub p99: Duration,
    /// 99.9th percentile.
    pub p999: Duration,
    /// Maximum.
    pub max: Duration,
}

/// Publishes `rate` messages a second for `warm_up`, and then for `duration`, which is measured.
///
/// # Errors
/// If a connection breaks.
pub fn measure(wire: &dyn Wire, rate: u32, warm_up: Duration, duration: Duration) -> io::Result<Latency> {
    let mut producer = wire.producer()?;
    let mut consumer = wire.consumer(0)?;
    let delivery_bytes = learn_delivery_bytes(wire, &mut producer, &mut consumer)?;
    producer.set_nonblocking(true)?;
    consumer.set_nonblocking(true)?;
    let mut publication = wire.publication();
    let published_body_at = publication.len() - wire.trailer() - wire.body_bytes();
    let delivered_body_at = delivery_bytes - wire.trailer() - wire.body_bytes();
    let interval = Duration::from_secs(1) / rate;
    let total = ((warm_up + duration).as_secs_f64() * f64::from(rate)) as usize;
    let skipped = (warm_up.as_secs_f64() * f64::from(rate)) as usize;
    let mut ages = Vec::with_capacity(total);
    let mut input = vec![0; 256 * 1024];
    let mut filled = 0;
    let mut published = 0;
    let start = Instant::now();
    while ages.len() < total {
        let now = start.elapsed();
        let due = interval * published as u32;
        if published < total && now >= due {
            let stamp = (due.as_nanos() as u64).to_le_bytes();
            publication[published_body_at..published_body_at + 8].copy_from_slice(&stamp);
            write_all(&mut producer, &publication)?;
            published += 1;
        }
        // Brokers that confirm publishes do so here; the producer does not wait for it.
        discard(&mut producer, &mut input[filled..])?;
        match consumer.read(&mut input[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => filled += read,
            // This generator has a processor for itself and spins, so that its own sleeping is not measured.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
        let now = start.elapsed().as_nanos() as u64;
        let mut taken = 0;
        while filled - taken >= delivery_bytes {
            let skipped = wire.between_deliveries(&input[taken..filled]);
            if skipped > 0 {
                taken += skipped;
                continue;
            }
            let stamp_at = taken + delivered_body_at;
            let stamp = input[stamp_at..stamp_at + 8].try_into().map_err(io::Error::other)?;
            // A stamp of the future is none: something else than a delivery was read.
            let age = now.checked_sub(u64::from_le_bytes(stamp));
            ages.push(age.ok_or_else(|| io::Error::other("read something that is not a delivery"))?);
            taken += delivery_bytes;
        }
        input.copy_within(taken..filled, 0);
        filled -= taken;
        if start.elapsed() > warm_up + duration + Duration::from_secs(30) {
            return Err(io::Error::other("messages were lost"));
        }
    }
    Ok(summary(&mut ages[skipped..]))
}

/// Summarizes `ages`, in nanoseconds.
pub(crate) fn summary(ages: &mut [u64]) -> Latency {
    ages.sort_unstable();
    let at = |share: f64| {
        let index = ((ages.len() as f64 * share) as usize).min(ages.len().saturating_sub(1));
        Duration::from_nanos(ages.get(index).copied().unwrap_or(0))
    };
    Latency { messages: ages.len(), p50: at(0.5), p99: at(0.99), p999: at(0.999), max: at(1.0) }
}

/// Writes everything to a socket that does not block.
fn write_all(stream: &mut std::net::TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn discard(stream: &mut std::net::TcpStream, scratch: &mut [u8]) -> io::Result<()> {
    match stream.read(scratch) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error),
    }
}
