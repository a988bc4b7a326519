//! Redis publish and subscribe, without a client library.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};

use crate::BODY_BYTES;
use crate::process::Process;
use crate::wire::{Wire, connect, read_until};

/// A Redis server.
#[derive(Debug, Clone, Copy)]
pub struct Redis {
    /// Address of the listener.
    pub address: SocketAddr,
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
        let mut bytes = format!("*3\r\n$7\r\nPUBLISH\r\n$5\r\nbench\r\n${BODY_BYTES}\r\n").into_bytes();
        bytes.extend_from_slice(&[0; BODY_BYTES]);
        bytes.extend_from_slice(b"\r\n");
        bytes
    }

    fn trailer(&self) -> usize {
        2
    }
}
