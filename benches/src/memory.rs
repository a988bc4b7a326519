//! Memory per connection and per stored message.

use std::io::{self, Write};

use crate::process::Process;
use crate::tmqp::{Tmqp, publication};
use crate::wire::Wire;

/// Memory of a number of connections or messages.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// Number of connections or messages.
    pub count: u64,
    /// Resident bytes before creating them.
    pub before: u64,
    /// Resident bytes afterwards.
    pub after: u64,
}

impl Memory {
    /// Bytes per connection or message.
    pub fn bytes_each(&self) -> f64 {
        self.after.saturating_sub(self.before) as f64 / self.count as f64
    }

    /// Bytes of all.
    pub fn bytes(&self) -> u64 {
        self.after.saturating_sub(self.before)
    }
}

/// Connects this many clients, which perform the handshake and then send nothing.
///
/// # Errors
/// If one of them cannot connect.
pub fn idle_connections(process: &Process, count: u64) -> io::Result<Memory> {
    let wire = Tmqp::new(process.address);
    // The first connection pays one-time costs.
    let _first = wire.producer()?;
    let before = process.resident_bytes()?;
    let mut clients = Vec::new();
    for _ in 0..count {
        clients.push(wire.client("idle")?);
    }
    process.totals_when(|totals| totals["clients"].as_u64() == Some(count + 1))?;
    Ok(Memory { count, before, after: process.resident_bytes()? })
}

/// Stores this many messages in a queue without consumers.
///
/// # Errors
/// If the server rejects them.
pub fn stored_messages(process: &Process, count: u64) -> io::Result<Memory> {
    let mut producer = Tmqp::new(process.address).producer()?;
    let publication = publication();
    producer.write_all(&publication)?;
    process.totals_when(|totals| totals["ready"] == 1)?;
    let before = process.resident_bytes()?;
    let block = publication.repeat(1000);
    for _ in 0..count / 1000 {
        producer.write_all(&block)?;
    }
    process.totals_when(|totals| totals["ready"].as_u64() == Some(count + 1))?;
    Ok(Memory { count, before, after: process.resident_bytes()? })
}
