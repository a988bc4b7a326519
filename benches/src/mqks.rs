//! MQKS for the load generator: one line a message, one queue for all consumers.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};

use crate::BODY_BYTES;
use crate::wire::{Wire, connect, read_until};

/// Beginning of every publish line.
const PUBLISH: &[u8] = b"m publish e ";

/// An MQKS listener.
#[derive(Debug, Clone, Copy)]
pub struct Mqks {
    /// Address of the listener.
    pub address: SocketAddr,
}

impl Wire for Mqks {
    fn producer(&self) -> io::Result<TcpStream> {
        connect(self.address)
    }

    fn consumer(&self, number: usize) -> io::Result<TcpStream> {
        let mut stream = connect(self.address)?;
        let id = format!("c{number:03}");
        // A queue of an earlier run may hold messages that no consumer read.
        let lines = format!(
            "d delete_queue --confirm q{number}\n{id} consume --confirm q{number} e --delete-queue-when-unused\n"
        );
        stream.write_all(lines.as_bytes())?;
        read_until(&mut stream, format!("{id} ok \n").as_bytes())?;
        Ok(stream)
    }

    fn publication(&self) -> Vec<u8> {
        let mut line = PUBLISH.to_vec();
        line.resize(PUBLISH.len() + BODY_BYTES, 0);
        line.push(b'\n');
        line
    }

    fn trailer(&self) -> usize {
        1
    }
}
