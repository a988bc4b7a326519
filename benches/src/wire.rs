//! The load generator's view of a protocol: how to connect, the bytes of a message, and its size on delivery. Otherwise the
//! generator only counts bytes, so that it costs little.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::BODY_BYTES;

/// Connections that take longer than this are broken.
const PATIENCE: Duration = Duration::from_secs(20);

/// One protocol's side of a publish-and-subscribe workload. All messages have the same size.
pub trait Wire {
    /// Connects a producer.
    ///
    /// # Errors
    /// If it cannot connect.
    fn producer(&self) -> io::Result<TcpStream>;

    /// Connects a consumer and waits for its subscription.
    ///
    /// # Errors
    /// If it cannot connect or subscribe.
    fn consumer(&self, number: usize) -> io::Result<TcpStream>;

    /// One message as it is published, its body filled with zeros.
    fn publication(&self) -> Vec<u8>;

    /// Bytes behind the body, in what is published and in what is delivered.
    fn trailer(&self) -> usize;

    /// Bytes of every body.
    fn body_bytes(&self) -> usize {
        BODY_BYTES
    }

    /// Bytes at the front of `input` that belong to no delivery, such as a heartbeat. Called where a delivery may begin,
    /// with at least as many bytes as a delivery has.
    fn between_deliveries(&self, input: &[u8]) -> usize {
        let _ = input;
        0
    }
}

/// Bytes to write to a non-blocking socket.
#[derive(Debug, Default)]
pub struct Outbox {
    /// All of it, and what of it was written since it was last empty.
    pub bytes: Vec<u8>,
    written: usize,
}

impl Outbox {
    /// Writes what the socket takes.
    ///
    /// # Errors
    /// As the socket, but that it would block.
    pub fn flush(&mut self, stream: &mut mio::net::TcpStream) -> io::Result<()> {
        while self.written < self.bytes.len() {
            match stream.write(&self.bytes[self.written..]) {
                Ok(written) => self.written += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.bytes.clear();
        self.written = 0;
        Ok(())
    }
}

/// Opens a connection that sends small writes at once.
///
/// # Errors
/// As [`TcpStream::connect`].
pub fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Reads until `end` is the end of what was read.
///
/// # Errors
/// If the stream ends or nothing comes for long.
pub fn read_until(stream: &mut TcpStream, end: &[u8]) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    let mut byte = [0; 1];
    while !read.ends_with(end) {
        stream.read_exact(&mut byte)?;
        read.push(byte[0]);
    }
    Ok(read)
}

/// How many bytes a delivery has, found out by having one: all others have as many.
///
/// # Errors
/// If it does not come.
pub fn learn_delivery_bytes(
    wire: &dyn Wire,
    producer: &mut TcpStream,
    consumer: &mut TcpStream,
) -> io::Result<usize> {
    // A body that no frame has around it.
    let body_bytes = wire.body_bytes();
    let marker: Vec<u8> = (0..body_bytes).map(|index| 0x80 | index as u8).collect();
    let mut publication = wire.publication();
    let body_at = publication.len() - wire.trailer() - body_bytes;
    publication[body_at..body_at + body_bytes].copy_from_slice(&marker);
    producer.write_all(&publication)?;
    let mut delivery = read_until(consumer, &marker)?;
    let mut trailer = vec![0; wire.trailer()];
    consumer.read_exact(&mut trailer)?;
    delivery.extend_from_slice(&trailer);
    Ok(delivery.len())
}
