//! Redis publish and subscribe, without a client library.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};

use crate::confirmed::{ConfirmationReader, Confirming};
use crate::process::Process;
use crate::wire::{Wire, connect, read_until};

/// A Redis server.
#[derive(Debug, Clone, Copy)]
pub struct Redis {
    /// Address of the listener.
    pub address: SocketAddr,
    /// Bytes of every body.
    pub body_bytes: usize,
}

/// Starts one that saves nothing and never drops a slow subscriber of this size; `None` if none is installed.
///
/// # Errors
/// If it is installed and does not start.
pub fn start() -> io::Result<Option<Process>> {
    Process::other("redis-server", |port| {
        let port = port.to_string();
        let arguments = ["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        let mut arguments: Vec<String> = arguments.into_iter().map(String::from).collect();
        arguments.extend(["--client-output-buffer-limit", "pubsub 0 0 0"].map(String::from));
        arguments
    })
}

impl Wire for Redis {
    fn producer(&self) -> io::Result<TcpStream> {
        connect(self.address)
    }

    fn consumer(&self, _: usize) -> io::Result<TcpStream> {
        let mut stream = connect(self.address)?;
        stream.write_all(b"*2\r\n$9\r\nSUBSCRIBE\r\n$5\r\nbench\r\n")?;
        read_until(&mut stream, b"$5\r\nbench\r\n:1\r\n")?;
        Ok(stream)
    }

    fn publication(&self) -> Vec<u8> {
        command("PUBLISH", self.body_bytes)
    }

    fn body_bytes(&self) -> usize {
        self.body_bytes
    }

    fn trailer(&self) -> usize {
        2
    }
}

/// One request with the key or channel of all messages and a body.
fn command(name: &str, body_bytes: usize) -> Vec<u8> {
    let mut bytes =
        format!("*3\r\n${}\r\n{name}\r\n$5\r\nbench\r\n${body_bytes}\r\n", name.len()).into_bytes();
    bytes.resize(bytes.len() + body_bytes, 0);
    bytes.extend_from_slice(b"\r\n");
    bytes
}

/// A list to which messages are appended: Redis answers after it has written (and, as it is configured, synced) them.
impl Confirming for Redis {
    fn confirmed_producer(&self, _: usize) -> io::Result<TcpStream> {
        connect(self.address)
    }

    fn confirmed_publication(&self, _: usize) -> Vec<u8> {
        command("RPUSH", self.body_bytes)
    }

    fn reader(&self) -> Box<dyn ConfirmationReader> {
        Box::new(Replies)
    }
}

/// One line for each message: `:LENGTH`, or an error.
struct Replies;

impl ConfirmationReader for Replies {
    fn read(&mut self, input: &[u8]) -> io::Result<(usize, u64)> {
        let (mut consumed, mut confirmations) = (0, 0);
        for line in input.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")) {
            if line[0] != b':' {
                return Err(io::Error::other(format!("redis: {}", String::from_utf8_lossy(line).trim_end())));
            }
            consumed += line.len();
            confirmations += 1;
        }
        Ok((consumed, confirmations))
    }
}
