//! MicroMessage2 at the client's side: the handshake, the numbers of messages, and acknowledgements.

use mqcore_wire::codec::Limits;
use mqcore_wire::micromessage::extension::{Agreement, ExtensionKind};
use mqcore_wire::micromessage::handshake::{self, Handshake, HandshakeInput};
use mqcore_wire::micromessage::negotiation::{self, Capabilities, Lists};
use mqcore_wire::micromessage::window::{ReceiveOutcome, ReceiveWindow, SendWindow};
use mqcore_wire::micromessage::{Frame, command, decode, encode, encode_split};

use super::{MessageHandle, Received, delivery};

/// Maximum unacknowledged messages in each direction.
const WINDOW: u16 = 100;
const OFFER: &[u8] = b"batch-ack:max-count=100;pub-sub;x-nack;x-mqcore";

/// The state of one connection.
pub(super) struct MicroMessageSide {
    offer: Lists,
    agreement: Option<Agreement>,
    /// The messages that the broker has not answered.
    sent: SendWindow<u32>,
    received: ReceiveWindow,
}

impl MicroMessageSide {
    /// A connection, and the first bytes that the client sends.
    pub(super) fn open(name: &str) -> (Self, Vec<u8>) {
        let handshake = Handshake {
            major: negotiation::MAJOR,
            minor: negotiation::MINOR,
            flags: 0,
            identity: name.as_bytes(),
            required: b"",
            optional: OFFER,
        };
        let mut bytes = Vec::new();
        handshake::encode(&handshake, &mut bytes);
        let side = Self {
            offer: Lists::read(&handshake).expect("a valid offer"),
            agreement: None,
            sent: SendWindow::new(WINDOW),
            received: ReceiveWindow::new(WINDOW),
        };
        (side, bytes)
    }

    /// The bytes of a command.
    pub(super) fn command(name: &str, arguments: &[(&str, &[u8])]) -> Vec<u8> {
        let (mut payload, mut bytes) = (Vec::new(), Vec::new());
        command::encode(name, arguments, &mut payload);
        encode(&Frame::Command { payload: &payload }, &mut bytes);
        bytes
    }

    /// The bytes of a subscription.
    pub(super) fn subscribe(destination: &str, prefetch: Option<u32>) -> Vec<u8> {
        let prefetch = prefetch.map(|prefetch| prefetch.to_string());
        let mut arguments: Vec<(&str, &[u8])> = vec![("destination", destination.as_bytes()), ("id", b"s")];
        arguments.extend(prefetch.iter().map(|prefetch| ("prefetch", prefetch.as_bytes())));
        Self::command("subscribe", &arguments)
    }

    pub(super) fn has_room(&self) -> bool {
        self.sent.has_room()
    }

    /// The bytes of a message.
    pub(super) fn publish(&mut self, label: u32, destination: &str, body: &str) -> Vec<u8> {
        let (number, mut bytes) = (self.sent.push(label), Vec::new());
        encode_split(number, destination.as_bytes(), b"", body.as_bytes(), &mut bytes);
        bytes
    }

    /// Settles a message. Returns the bytes to send.
    pub(super) fn settle(&mut self, receipt: u32, positive: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        if positive && receipt == self.received.oldest() {
            self.received.accept(receipt);
        } else if let Some(number) = self.received.settle_alone(receipt) {
            let kind = if positive { ExtensionKind::Answers } else { ExtensionKind::Refuses };
            self.extension(kind, number, &mut bytes);
        }
        if let Some(number) = self.received.take_acknowledgement() {
            self.extension(ExtensionKind::Acknowledges, number, &mut bytes);
        }
        bytes
    }

    fn extension(&self, kind: ExtensionKind, number: u16, bytes: &mut Vec<u8>) {
        let id = self.agreement.as_ref().and_then(|agreement| agreement.id_of_kind(kind));
        let id = id.expect("the broker knows the extensions");
        encode(&Frame::Extension { id, payload: &number.to_be_bytes() }, bytes);
    }

    /// Reads the next thing that the broker sent, and its size.
    pub(super) fn next(&mut self, input: &[u8], limits: &Limits) -> Option<(Received, usize)> {
        match &self.agreement {
            None => self.greeted(input, limits),
            Some(agreement) => {
                let decoded = decode(input, agreement.len(), limits);
                let (frame, size) = decoded.expect("the broker sends valid frames")?;
                Some((self.take(&frame), size))
            }
        }
    }

    fn greeted(&mut self, input: &[u8], limits: &Limits) -> Option<(Received, usize)> {
        let (answer, size) = handshake::decode(input, limits).expect("the broker shakes hands")?;
        let said = match answer {
            HandshakeInput::Error { text } => return Some((refused(text), size)),
            HandshakeInput::Handshake(said) => said,
        };
        let reply = Lists::read(&said).expect("valid lists");
        let chosen = negotiation::choose(&self.offer, &reply, &Capabilities::default());
        let (last, agreement) = chosen.expect("the broker demands nothing unknown");
        self.agreement = Some(agreement);
        let (required, optional) = last.write();
        let mut bytes = Vec::new();
        handshake::encode(&Handshake { required: &required, optional: &optional, ..said }, &mut bytes);
        Some((Received::Greeted(bytes), size))
    }

    fn take(&mut self, frame: &Frame<'_>) -> Received {
        match frame {
            Frame::Message(message) => {
                let received = self.received.receive(message.sequence).expect("numbers within the window");
                match received {
                    ReceiveOutcome::New(receipt) => {
                        // Nothing says that it was delivered before, so the order says nothing either.
                        delivery(MessageHandle::Receipt(receipt), message.payload, true)
                    }
                    ReceiveOutcome::Repeated => panic!("the broker repeats the number {}", message.sequence),
                }
            }
            Frame::Extension { id, payload } => self.answered(*id, payload),
            Frame::Command { payload } => {
                let said = command::parse(payload).expect("valid commands");
                match (&*said.name, said.argument("id")) {
                    (_, Some(id)) if id.starts_with(b"message-") => Received::Other,
                    ("ok", _) => Received::Ready,
                    ("fail", _) => refused(said.argument("reason").unwrap_or_default()),
                    _ => Received::Other,
                }
            }
            Frame::Error { text } => refused(text),
        }
    }

    fn answered(&mut self, id: u8, payload: &[u8]) -> Received {
        let kind = self.agreement.as_ref().and_then(|agreement| agreement.get(id)?.1);
        let number = payload.try_into().map(u16::from_be_bytes).expect("two bytes");
        match kind {
            Some(ExtensionKind::Acknowledges) => {
                let mut labels = Vec::new();
                self.sent.acknowledge(number, |label| labels.push(label)).expect("known numbers");
                Received::Answers { labels, part: 0, confirmed: true }
            }
            Some(ExtensionKind::Refuses) => {
                let labels = self.sent.settle_one(number).expect("known numbers").into_iter().collect();
                Received::Answers { labels, part: 0, confirmed: false }
            }
            _ => Received::Other,
        }
    }
}

fn refused(text: &[u8]) -> Received {
    Received::Refused(String::from_utf8_lossy(text).into_owned())
}
