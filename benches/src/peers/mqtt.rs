//! MQTT 3.1.1 with QoS 0, without a client library: for Mosquitto.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::wire::{Wire, connect};

/// An MQTT server.
#[derive(Debug, Clone, Copy)]
pub struct Mqtt {
    /// Address of the listener.
    pub address: SocketAddr,
    /// Bytes of every body.
    pub body_bytes: usize,
}

const TOPIC: &[u8] = b"bench";

/// A packet: its first byte, its length as MQTT writes it, and its content.
fn packet(first: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    let mut rest = content.len();
    loop {
        let more = rest >= 128;
        bytes.push((rest % 128) as u8 | u8::from(more) << 7);
        rest /= 128;
        if !more {
            break;
        }
    }
    bytes.extend_from_slice(content);
    bytes
}

fn text(text: &[u8]) -> Vec<u8> {
    let mut bytes = (text.len() as u16).to_be_bytes().to_vec();
    bytes.extend_from_slice(text);
    bytes
}

impl Mqtt {
    fn client(&self) -> io::Result<TcpStream> {
        static CLIENTS: AtomicU64 = AtomicU64::new(0);
        let mut stream = connect(self.address)?;
        // Version 4, a clean session, and no keep-alive.
        let mut content = [text(b"MQTT"), vec![4, 2, 0, 0]].concat();
        let number = CLIENTS.fetch_add(1, Ordering::Relaxed);
        content.extend(text(format!("load-{}-{number}", std::process::id()).as_bytes()));
        stream.write_all(&packet(0x10, &content))?;
        expect(&mut stream, &[0x20, 2, 0, 0])?;
        Ok(stream)
    }
}

fn expect(stream: &mut TcpStream, answer: &[u8]) -> io::Result<()> {
    let mut read = vec![0; answer.len()];
    stream.read_exact(&mut read)?;
    if read == answer { Ok(()) } else { Err(io::Error::other(format!("expected {answer:?}, got {read:?}"))) }
}

impl Wire for Mqtt {
    fn producer(&self) -> io::Result<TcpStream> {
        self.client()
    }

    fn consumer(&self, _: usize) -> io::Result<TcpStream> {
        let mut stream = self.client()?;
        let content = [vec![0, 1], text(TOPIC), vec![0]].concat();
        stream.write_all(&packet(0x82, &content))?;
        expect(&mut stream, &[0x90, 3, 0, 1, 0])?;
        Ok(stream)
    }

    fn publication(&self) -> Vec<u8> {
        packet(0x30, &[text(TOPIC), vec![0; self.body_bytes]].concat())
    }

    fn trailer(&self) -> usize {
        0
    }

    fn body_bytes(&self) -> usize {
        self.body_bytes
    }
}
