//! MicroMessage2 for the load generator: one producer and one receiver, both with `batch-ack` of 1,000.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mqcore_wire::codec::Limits;
use mqcore_wire::micromessage::handshake::{self, Handshake};
use mqcore_wire::micromessage::{Frame, MessageFrame, command, decode, encode};

use crate::BODY_BYTES;
use crate::wire::connect;

/// Messages that each side may have unacknowledged.
const WINDOW: u64 = 1000;
/// Messages that are acknowledged or sent together.
const BATCH: u64 = 250;
/// Interval at which a side checks whether the run is over.
const MOMENT: Duration = Duration::from_millis(100);
/// Numbers there are.
const NUMBERS: u64 = 65_535;
/// The extension that acknowledges, in the handshakes below.
const BATCH_ACK: u8 = 1;

/// Kind of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Messages of a queue.
    Queue,
    /// Messages of a topic, each compared with a filter on three of its properties, which it passes.
    Filters,
}

impl Work {
    fn destination(self) -> &'static [u8] {
        match self {
            Self::Queue => b"orders",
            Self::Filters => b"topic/orders",
        }
    }

    fn properties(self) -> &'static [u8] {
        match self {
            Self::Queue => b"",
            Self::Filters => b"price:N12;sent:D1413198000.5;region:Teurope;",
        }
    }

    fn filter(self) -> &'static [u8] {
        match self {
            Self::Queue => b"",
            Self::Filters => b"price>N10;sent>=D1413198000.0;region<Teu",
        }
    }
}

/// Agrees on extensions of which the first is `batch-ack`.
fn shake_hands(stream: &mut TcpStream, required: &str) -> io::Result<()> {
    let required = required.as_bytes();
    let said = Handshake { major: 1, minor: 0, flags: 0, identity: b"load", required, optional: b"" };
    let mut bytes = Vec::new();
    handshake::encode(&said, &mut bytes);
    stream.write_all(&bytes)?;
    let (mut reply, mut byte) = (Vec::new(), [0]);
    while handshake::decode(&reply, &Limits::default()).map_err(io::Error::other)?.is_none() {
        stream.read_exact(&mut byte)?;
        reply.push(byte[0]);
    }
    stream.write_all(&bytes)
}

fn message(work: Work, number: u64, output: &mut Vec<u8>) {
    let frame = MessageFrame {
        continued: false,
        sequence: (number % NUMBERS) as u16 + 1,
        destination: work.destination(),
        properties: work.properties(),
        payload: &[0; BODY_BYTES],
    };
    encode(&Frame::Message(frame), output);
}

/// Subscribes, and returns once that holds.
fn receiver(address: SocketAddr, work: Work) -> io::Result<TcpStream> {
    let mut stream = connect(address)?;
    shake_hands(&mut stream, "batch-ack:max-count=1000;pub-sub;x-mqcore")?;
    let (mut payload, mut bytes) = (Vec::new(), Vec::new());
    let arguments: [(&str, &[u8]); 3] =
        [("destination", work.destination()), ("id", b"s"), ("filter", work.filter())];
    command::encode("subscribe", &arguments, &mut payload);
    encode(&Frame::Command { payload: &payload }, &mut bytes);
    stream.write_all(&bytes)?;
    let mut answer = [0; 9];
    stream.read_exact(&mut answer)?;
    if &answer[2..] == b"ok;id=s" {
        Ok(stream)
    } else {
        Err(io::Error::other("the subscription was refused"))
    }
}

/// Reads what arrives within a moment, so that the end of the run is noticed; nothing if nothing arrives.
fn read_for_a_while(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    match stream.read(buffer) {
        Ok(0) => Err(io::Error::other("the broker closed the connection")),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => Ok(0),
        read => read,
    }
}

/// Sends as long as the window allows, until the run ends.
fn produce(address: SocketAddr, work: Work, ended: &AtomicBool) -> io::Result<()> {
    let mut stream = connect(address)?;
    shake_hands(&mut stream, "batch-ack:max-count=1000")?;
    stream.set_read_timeout(Some(MOMENT))?;
    let (mut sent, mut acknowledged) = (0_u64, 0_u64);
    let (mut read, mut buffer, mut output) = (Vec::new(), [0; 4096], Vec::new());
    while !ended.load(Ordering::Relaxed) {
        while sent + BATCH <= acknowledged + WINDOW {
            output.clear();
            (sent..sent + BATCH).for_each(|number| message(work, number, &mut output));
            stream.write_all(&output)?;
            sent += BATCH;
        }
        let count = read_for_a_while(&mut stream, &mut buffer)?;
        read.extend_from_slice(&buffer[..count]);
        while let Some((frame, size)) =
            decode(&read, BATCH_ACK, &Limits::default()).map_err(io::Error::other)?
        {
            let Frame::Extension { payload: &[high, low], .. } = frame else {
                return Err(io::Error::other("something else than an acknowledgement came"));
            };
            let number = u64::from(u16::from_be_bytes([high, low]));
            // The first unacknowledged number with this encoding.
            acknowledged += (number + NUMBERS - acknowledged % NUMBERS) % NUMBERS;
            read.drain(..size);
        }
    }
    Ok(())
}

/// Counts deliveries, all of which have the same size, and acknowledges them.
fn consume(mut stream: TcpStream, work: Work, consumed: &AtomicU64, ended: &AtomicBool) -> io::Result<()> {
    let mut one = Vec::new();
    message(work, 0, &mut one);
    let (mut bytes, mut acknowledged) = (0_usize, 0_u64);
    let mut buffer = vec![0; 256 * 1024];
    stream.set_read_timeout(Some(MOMENT))?;
    while !ended.load(Ordering::Relaxed) {
        let count = read_for_a_while(&mut stream, &mut buffer)?;
        bytes += count;
        let total = (bytes / one.len()) as u64;
        consumed.store(total, Ordering::Relaxed);
        if total >= acknowledged + BATCH {
            acknowledged = total;
            let number = ((total - 1) % NUMBERS) as u16 + 1;
            let mut ack = Vec::new();
            encode(&Frame::Extension { id: BATCH_ACK, payload: &number.to_be_bytes() }, &mut ack);
            stream.write_all(&ack)?;
        }
    }
    Ok(())
}

/// Messages per second that were published, delivered and acknowledged.
///
/// # Errors
/// If a connection breaks.
pub fn measure(address: SocketAddr, work: Work, warm_up: Duration, duration: Duration) -> io::Result<f64> {
    let (consumed, ended) = (AtomicU64::new(0), AtomicBool::new(false));
    let stream = receiver(address, work)?;
    thread::scope(|scope| {
        let consumer = scope.spawn(|| consume(stream, work, &consumed, &ended));
        let producer = scope.spawn(|| produce(address, work, &ended));
        thread::sleep(warm_up);
        let (before, start) = (consumed.load(Ordering::Relaxed), Instant::now());
        thread::sleep(duration);
        let rate = (consumed.load(Ordering::Relaxed) - before) as f64 / start.elapsed().as_secs_f64();
        ended.store(true, Ordering::Relaxed);
        for thread in [producer, consumer] {
            thread.join().map_err(|_| io::Error::other("the generator panicked"))??;
        }
        Ok(rate)
    })
}
