//! NATS core publish and subscribe, without a client library.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};

use crate::BODY_BYTES;
use crate::process::Process;
use crate::wire::{Wire, connect, read_until};

/// A NATS server.
#[derive(Debug, Clone, Copy)]
pub struct Nats {
    /// Address of the listener.
    pub address: SocketAddr,
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
        let mut bytes = format!("PUB bench {BODY_BYTES}\r\n").into_bytes();
        bytes.extend_from_slice(&[0; BODY_BYTES]);
        bytes.extend_from_slice(b"\r\n");
        bytes
    }

    fn trailer(&self) -> usize {
        2
    }
}
