//! NATS core publish and subscribe, without a client library.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};

use crate::confirmed::{ConfirmationReader, Confirming};
use crate::process::Process;
use crate::wire::{Wire, connect, read_until};

/// A NATS server.
#[derive(Debug, Clone, Copy)]
pub struct Nats {
    /// Address of the listener.
    pub address: SocketAddr,
    /// Bytes of every body.
    pub body_bytes: usize,
}

/// Starts one; `None` if none is installed.
///
/// # Errors
/// If it is installed and does not start.
pub fn start() -> io::Result<Option<Process>> {
    Process::other("nats-server", |port| {
        ["-a", "127.0.0.1", "-p", &port.to_string()].into_iter().map(String::from).collect()
    })
}

impl Nats {
    /// Connects, and waits until the server has read that.
    fn client(&self) -> io::Result<TcpStream> {
        let mut stream = connect(self.address)?;
        read_until(&mut stream, b"\r\n")?;
        stream.write_all(b"CONNECT {\"verbose\":false,\"pedantic\":false}\r\nPING\r\n")?;
        read_until(&mut stream, b"PONG\r\n")?;
        Ok(stream)
    }
}

impl Wire for Nats {
    fn producer(&self) -> io::Result<TcpStream> {
        self.client()
    }

    fn consumer(&self, _: usize) -> io::Result<TcpStream> {
        let mut stream = self.client()?;
        stream.write_all(b"SUB bench 1\r\nPING\r\n")?;
        read_until(&mut stream, b"PONG\r\n")?;
        Ok(stream)
    }

    fn publication(&self) -> Vec<u8> {
        command("bench", self.body_bytes)
    }

    fn body_bytes(&self) -> usize {
        self.body_bytes
    }

    fn between_deliveries(&self, input: &[u8]) -> usize {
        // The server asks for a sign of life. Runs end long before it would miss one.
        if input.starts_with(PING) { PING.len() } else { 0 }
    }

    fn trailer(&self) -> usize {
        2
    }
}

const PING: &[u8] = b"PING\r\n";

fn command(subject: &str, body_bytes: usize) -> Vec<u8> {
    let mut bytes = format!("PUB {subject} {body_bytes}\r\n").into_bytes();
    bytes.resize(bytes.len() + body_bytes, 0);
    bytes.extend_from_slice(b"\r\n");
    bytes
}

/// A stream of JetStream that exists and stores the subject `stream`. It answers each message in an inbox.
impl Confirming for Nats {
    fn confirmed_producer(&self, number: usize) -> io::Result<TcpStream> {
        let mut stream = self.client()?;
        write!(stream, "SUB inbox.{number} 1\r\nPING\r\n")?;
        read_until(&mut stream, b"PONG\r\n")?;
        Ok(stream)
    }

    fn confirmed_publication(&self, number: usize) -> Vec<u8> {
        command(&format!("stream inbox.{number}"), self.body_bytes)
    }

    fn reader(&self) -> Box<dyn ConfirmationReader> {
        Box::new(Answers)
    }
}

/// `MSG inbox.N 1 SIZE`, and JSON with the message's number in the stream or an error.
struct Answers;

impl ConfirmationReader for Answers {
    fn read(&mut self, input: &[u8]) -> io::Result<(usize, u64)> {
        let (mut consumed, mut confirmations) = (0, 0);
        for line in input.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")) {
            if line.starts_with(b"{") && !line.windows(7).any(|word| word == b"\"error\"") {
                confirmations += 1;
            } else if !line.starts_with(b"MSG ") && line != PING {
                return Err(io::Error::other(format!("nats: {}", String::from_utf8_lossy(line).trim_end())));
            }
            consumed += line.len();
        }
        Ok((consumed, confirmations))
    }
}
