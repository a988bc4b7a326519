//! TMQP peers for measurements of mqcore; their frames are encoded once.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};

use mqcore_wire::codec::Limits;
use mqcore_wire::tmqp::hello::{self, Hello};
use mqcore_wire::tmqp::operation::{self, Operation};
use mqcore_wire::tmqp::{self, Frame, Kind, PREAMBLE};

use crate::BODY_BYTES;
use crate::confirmed::{ConfirmationReader, Confirming};
use crate::wire::{Wire, connect};

/// The channel of all messages.
pub const CHANNEL: &str = "bench";

/// Bytes of the IDs of generated messages.
pub const ID_BYTES: usize = 8;

/// Offset of the id in a frame whose payload length fits one byte.
pub const ID_AT: usize = 8;

/// An mqcore server.
#[derive(Debug, Clone, Copy)]
pub struct Tmqp {
    /// Address of the listener.
    pub address: SocketAddr,
    /// Bytes of every body.
    pub body_bytes: usize,
}

impl Wire for Tmqp {
    fn producer(&self) -> io::Result<TcpStream> {
        self.client("producer")
    }

    fn consumer(&self, number: usize) -> io::Result<TcpStream> {
        let mut stream = self.client(&format!("consumer-{number:03}"))?;
        join(&mut stream)?;
        Ok(stream)
    }

    fn publication(&self) -> Vec<u8> {
        message(false, self.body_bytes)
    }

    fn trailer(&self) -> usize {
        0
    }

    fn body_bytes(&self) -> usize {
        self.body_bytes
    }
}

impl Tmqp {
    /// A server whose messages have bodies of [`BODY_BYTES`].
    pub fn new(address: SocketAddr) -> Self {
        Self { address, body_bytes: BODY_BYTES }
    }

    /// Connects and shakes hands. Each client gets an id of its own: those of an earlier run may not be gone yet.
    ///
    /// # Errors
    /// If the server does not answer as it should.
    pub fn client(&self, role: &str) -> io::Result<TcpStream> {
        static CLIENTS: AtomicU64 = AtomicU64::new(0);
        let id = &format!("{role}-{:08}", CLIENTS.fetch_add(1, Ordering::Relaxed));
        let mut stream = connect(self.address)?;
        let mut body = Vec::new();
        hello::encode(&Hello { client_id: Some(id), ..Hello::default() }, &mut body)
            .map_err(io::Error::other)?;
        let frame = Frame {
            content_type: operation::HELLO,
            id: b"hello",
            payload: &body,
            ..Frame::new(Kind::SERVER)
        };
        let mut bytes = PREAMBLE.to_vec();
        tmqp::encode(&frame, &mut bytes);
        stream.write_all(&bytes)?;
        stream.read_exact(&mut [0; PREAMBLE.len()])?;
        expect(&mut stream, Kind::SERVER, operation::ACCEPTED)?;
        Ok(stream)
    }
}

fn join(stream: &mut TcpStream) -> io::Result<()> {
    let frame = Frame {
        content_type: Operation::JoinChannel.code(),
        id: b"join",
        target: CHANNEL.as_bytes(),
        pending_response: true,
        ..Frame::new(Kind::SERVER)
    };
    let mut bytes = Vec::new();
    tmqp::encode(&frame, &mut bytes);
    stream.write_all(&bytes)?;
    expect(stream, Kind::RESPONSE, operation::status::OK)
}

/// Reads one frame, byte by byte so as to take nothing behind it, and compares it.
fn expect(stream: &mut TcpStream, kind: Kind, content_type: u16) -> io::Result<()> {
    let mut input = Vec::new();
    let mut byte = [0; 1];
    loop {
        stream.read_exact(&mut byte)?;
        input.push(byte[0]);
        let decoded = tmqp::decode(&input, &Limits::default()).map_err(io::Error::other)?;
        let Some((frame, _)) = decoded else { continue };
        if frame.kind == kind && frame.content_type == content_type {
            return Ok(());
        }
        let text = format!("expected {kind:?} {content_type}, got {frame:?}");
        return Err(io::Error::other(text));
    }
}

impl Confirming for Tmqp {
    fn confirmed_producer(&self, _: usize) -> io::Result<TcpStream> {
        self.producer()
    }

    fn confirmed_publication(&self, _: usize) -> Vec<u8> {
        message(true, self.body_bytes)
    }

    fn reader(&self) -> Box<dyn ConfirmationReader> {
        Box::new(Receipts)
    }
}

/// One frame for each message.
struct Receipts;

impl ConfirmationReader for Receipts {
    fn read(&mut self, input: &[u8]) -> io::Result<(usize, u64)> {
        let (mut receipts, mut at) = (0, 0);
        while let Some((frame, size)) =
            tmqp::decode(&input[at..], &Limits::default()).map_err(io::Error::other)?
        {
            // A receipt has no header lines; a refusal has one with the reason.
            if frame.kind != Kind::ACKNOWLEDGE || !frame.headers.is_empty() {
                return Err(io::Error::other(format!("expected a receipt, got {frame:?}")));
            }
            at += size;
            receipts += 1;
        }
        Ok((at, receipts))
    }
}

/// One message for queue 0 of [`CHANNEL`].
pub fn publication() -> Vec<u8> {
    message(false, BODY_BYTES)
}

fn message(pending_acknowledge: bool, body_bytes: usize) -> Vec<u8> {
    let body = vec![0; body_bytes];
    let frame = Frame {
        id: &[b'0'; ID_BYTES],
        target: CHANNEL.as_bytes(),
        payload: &body,
        pending_acknowledge,
        ..Frame::new(Kind::QUEUE)
    };
    let mut bytes = Vec::new();
    tmqp::encode(&frame, &mut bytes);
    bytes
}

/// A consumer's positive word about a message of that queue.
pub fn acknowledgement() -> Vec<u8> {
    let frame = Frame { id: &[b'0'; ID_BYTES], target: CHANNEL.as_bytes(), ..Frame::new(Kind::ACKNOWLEDGE) };
    let mut bytes = Vec::new();
    tmqp::encode(&frame, &mut bytes);
    bytes
}
