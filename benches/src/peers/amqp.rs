//! AMQP 0-9-1 without a client library: for RabbitMQ. The exchange `bench` and the queue `bench` exist.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::confirmed::{ConfirmationReader, Confirming};
use crate::wire::{Wire, connect};

/// An AMQP server.
#[derive(Debug, Clone, Copy)]
pub struct Amqp {
    /// Address of the listener.
    pub address: SocketAddr,
    /// Bytes of every body.
    pub body_bytes: usize,
}

const NAME: &[u8] = b"bench";
const FRAME_END: u8 = 0xce;
/// Bytes around the content of a frame: type, channel, length, and the end.
const FRAME_OVERHEAD: usize = 8;
/// Larger than any body.
const FRAME_MAX: u32 = 131_072;

const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;

const BASIC: u16 = 60;

fn frame(kind: u8, channel: u16, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend(channel.to_be_bytes());
    bytes.extend((content.len() as u32).to_be_bytes());
    bytes.extend_from_slice(content);
    bytes.push(FRAME_END);
    bytes
}

fn method(channel: u16, class: u16, method: u16, arguments: &[&[u8]]) -> Vec<u8> {
    let mut content = [class.to_be_bytes(), method.to_be_bytes()].concat();
    content.extend(arguments.concat());
    frame(METHOD, channel, &content)
}

fn short(text: &[u8]) -> Vec<u8> {
    [&[text.len() as u8], text].concat()
}

fn long(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text].concat()
}

/// Reads frames until the wanted method, and returns its arguments.
fn expect(stream: &mut TcpStream, class: u16, method: u16) -> io::Result<Vec<u8>> {
    loop {
        let mut head = [0; 7];
        stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
        let mut content = vec![0; length + 1];
        stream.read_exact(&mut content)?;
        content.pop();
        let found = [class.to_be_bytes(), method.to_be_bytes()].concat();
        if head[0] == METHOD && content.starts_with(&found) {
            return Ok(content.split_off(4));
        }
        // connection.close and channel.close give a reason.
        if content.starts_with(&[0, 10, 0, 50]) || content.starts_with(&[0, 20, 0, 40]) {
            return Err(io::Error::other(format!("rabbitmq: {}", String::from_utf8_lossy(&content))));
        }
    }
}

impl Amqp {
    fn client(&self) -> io::Result<TcpStream> {
        let mut stream = connect(self.address)?;
        stream.write_all(b"AMQP\x00\x00\x09\x01")?;
        expect(&mut stream, 10, 10)?;
        let response = long(b"\x00guest\x00guest");
        stream.write_all(&method(0, 10, 11, &[&long(b""), &short(b"PLAIN"), &response, &short(b"en_US")]))?;
        expect(&mut stream, 10, 30)?;
        // One channel, and no heartbeats.
        let tune = [&1_u16.to_be_bytes()[..], &FRAME_MAX.to_be_bytes(), &0_u16.to_be_bytes()].concat();
        stream.write_all(&method(0, 10, 31, &[&tune]))?;
        stream.write_all(&method(0, 10, 40, &[&short(b"/"), &short(b""), &[0]]))?;
        expect(&mut stream, 10, 41)?;
        stream.write_all(&method(1, 20, 10, &[&short(b"")]))?;
        expect(&mut stream, 20, 11)?;
        Ok(stream)
    }

    fn message(&self, exchange: &[u8], persistent: bool) -> Vec<u8> {
        let mut bytes = method(1, BASIC, 40, &[&[0, 0], &short(exchange), &short(NAME), &[0]]);
        let mut header = BASIC.to_be_bytes().to_vec();
        header.extend([0, 0]);
        header.extend((self.body_bytes as u64).to_be_bytes());
        // The only property is the delivery mode: 1 in memory, 2 saved.
        header.extend([0x10, 0, if persistent { 2 } else { 1 }]);
        bytes.extend(frame(HEADER, 1, &header));
        bytes.extend(frame(BODY, 1, &vec![0; self.body_bytes]));
        bytes
    }
}

/// Messages in memory to the fanout exchange; each consumer has an exclusive queue and does not acknowledge.
impl Wire for Amqp {
    fn producer(&self) -> io::Result<TcpStream> {
        self.client()
    }

    fn consumer(&self, _: usize) -> io::Result<TcpStream> {
        let mut stream = self.client()?;
        // Exclusive and deleted with its connection; the server chooses the name.
        stream.write_all(&method(1, 50, 10, &[&[0, 0], &short(b""), &[0b0100], &long(b"")]))?;
        let declared = expect(&mut stream, 50, 11)?;
        let queue = &declared[..1 + usize::from(declared[0])];
        stream.write_all(&method(
            1,
            50,
            20,
            &[&[0, 0], queue, &short(NAME), &short(b""), &[0], &long(b"")],
        ))?;
        expect(&mut stream, 50, 21)?;
        // Without acknowledgements.
        stream.write_all(&method(1, BASIC, 20, &[&[0, 0], queue, &short(b"c"), &[0b0010], &long(b"")]))?;
        expect(&mut stream, BASIC, 21)?;
        Ok(stream)
    }

    fn publication(&self) -> Vec<u8> {
        self.message(NAME, false)
    }

    fn trailer(&self) -> usize {
        1
    }

    fn body_bytes(&self) -> usize {
        self.body_bytes
    }
}

/// Persistent messages to the queue, with publisher confirms.
impl Confirming for Amqp {
    fn confirmed_producer(&self, _: usize) -> io::Result<TcpStream> {
        let mut stream = self.client()?;
        stream.write_all(&method(1, 85, 10, &[&[0]]))?;
        expect(&mut stream, 85, 11)?;
        Ok(stream)
    }

    fn confirmed_publication(&self, _: usize) -> Vec<u8> {
        self.message(b"", true)
    }

    fn reader(&self) -> Box<dyn ConfirmationReader> {
        Box::new(Confirms::default())
    }
}

/// `basic.ack` of one message, or of all up to one. They need not come in order.
#[derive(Default)]
struct Confirms {
    /// All messages up to this one are confirmed.
    all_up_to: u64,
    /// Confirmed messages above it.
    above: BTreeSet<u64>,
}

impl Confirms {
    fn confirm(&mut self, tag: u64, multiple: bool) -> u64 {
        if !multiple {
            self.above.insert(tag);
            while self.above.remove(&(self.all_up_to + 1)) {
                self.all_up_to += 1;
            }
            return 1;
        }
        let still_above = self.above.split_off(&(tag + 1));
        let confirmed = tag.saturating_sub(self.all_up_to) - self.above.len() as u64;
        self.all_up_to = self.all_up_to.max(tag);
        self.above = still_above;
        confirmed
    }
}

impl ConfirmationReader for Confirms {
    fn read(&mut self, input: &[u8]) -> io::Result<(usize, u64)> {
        let (mut at, mut confirmed) = (0, 0);
        while let Some(head) = input.get(at..at + 7) {
            let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
            let Some(content) = input.get(at + 7..at + 7 + length) else { break };
            if input.len() < at + length + FRAME_OVERHEAD {
                break;
            }
            let acknowledged = content.strip_prefix(&[0, 60, 0, 80]).and_then(<[u8]>::split_first_chunk::<8>);
            let Some((tag, [multiple, ..])) = acknowledged else {
                let text = String::from_utf8_lossy(content);
                return Err(io::Error::other(format!("rabbitmq: expected a confirmation, got {text:?}")));
            };
            confirmed += self.confirm(u64::from_be_bytes(*tag), *multiple != 0);
            at += length + FRAME_OVERHEAD;
        }
        Ok((at, confirmed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(tag: u64, multiple: u8) -> Vec<u8> {
        method(1, BASIC, 80, &[&tag.to_be_bytes(), &[multiple]])
    }

    #[test]
    fn confirmations_out_of_order_count_each_message_once() {
        let mut confirms = Confirms::default();
        let input = [ack(2, 0), ack(4, 0), ack(3, 1), ack(5, 0), ack(7, 1)].concat();
        // The last byte has not arrived yet.
        let (consumed, confirmed) = confirms.read(&input[..input.len() - 1]).unwrap();
        assert_eq!((consumed, confirmed), (input.len() / 5 * 4, 5));
        assert_eq!(confirms.read(&input[consumed..]).unwrap().1, 2);
        assert_eq!(confirms.all_up_to, 7);
    }

    #[test]
    fn rejection_is_an_error() {
        let nack = method(1, BASIC, 120, &[&1_u64.to_be_bytes(), &[0]]);
        assert!(Confirms::default().read(&nack).is_err());
    }
}
