//! Messages that the peer publishes, and their acknowledgements.

use std::sync::Arc;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::Command;
use mqcore_broker::model::id::{ConnectionId, RequestId};
use mqcore_broker::model::message::{Layout, Message, Properties};
use mqcore_broker::model::time::Timestamp;
use mqcore_wire::micromessage::extension::{Agreement, ExtensionKind};
use mqcore_wire::micromessage::failure::ProtocolFailure;
use mqcore_wire::micromessage::window::{ReceiveOutcome, ReceiveWindow};
use mqcore_wire::micromessage::{Frame, command, content, encode};

use super::destination::{Place, Places};
use crate::message_id::MessageIds;

/// Answers about published messages have numbers from here; other requests have smaller ones.
const PUBLISHED: u32 = 1 << 31;

/// A complete message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrived<'a> {
    pub(super) sequence: u16,
    pub(super) destination: &'a [u8],
    pub(super) properties: &'a [u8],
    pub(super) payload: &'a [u8],
}

/// The state of messages from the peer to the broker.
#[derive(Debug)]
pub(super) struct Incoming {
    ids: MessageIds,
    /// Number of messages so far: the number in the next id.
    count: u64,
    /// The messages to acknowledge; `None` without acknowledgements.
    received: Option<ReceiveWindow>,
    /// The extension for acknowledgements.
    acknowledges: u8,
    /// The extension for rejections, if one was agreed on.
    refuses: Option<u8>,
    serializer: Option<String>,
    /// Header lines that all messages have.
    common: Vec<u8>,
    places: Places,
    /// Scratch for a message's block.
    block: Vec<u8>,
}

impl Incoming {
    pub(super) fn new(connection: ConnectionId, now: Timestamp, agreement: &Agreement) -> Self {
        let acknowledging = agreement.acknowledging();
        let serializer = agreement.serializer().map(str::to_owned);
        Self {
            ids: MessageIds::new(connection, now),
            count: 0,
            received: acknowledging.map(|acknowledging| ReceiveWindow::new(acknowledging.window)),
            acknowledges: acknowledging.map_or(0, |acknowledging| acknowledging.id),
            refuses: agreement.id_of_kind(ExtensionKind::Refuses),
            common: content::common_lines(serializer.as_deref(), b""),
            serializer,
            places: Places::default(),
            block: Vec::new(),
        }
    }

    /// Sets the type of the following messages.
    pub(super) fn set_type(&mut self, name: &[u8]) -> Result<(), ProtocolFailure> {
        content::check_type(name)?;
        self.common = content::common_lines(self.serializer.as_deref(), name);
        Ok(())
    }

    /// The command that publishes a message; `None` for a duplicate.
    pub(super) fn publish(
        &mut self,
        arrived: Arrived<'_>,
        client: &Arc<Client>,
    ) -> Result<Option<Command>, ProtocolFailure> {
        if let Some(received) = &mut self.received
            && received.receive(arrived.sequence)? == ReceiveOutcome::Repeated
        {
            return Ok(None);
        }
        let place = self.places.find(arrived.destination)?;
        let number = self.count;
        self.count += 1;
        let id = self.ids.of(number);
        self.block.clear();
        self.block.extend_from_slice(&id);
        content::write_headers(arrived.properties, &self.common, &mut self.block)?;
        let body_at = self.block.len();
        self.block.extend_from_slice(arrived.payload);
        let layout = Layout {
            id: 0..id.len(),
            source: id.len()..id.len(),
            headers: id.len()..body_at,
            body: body_at..self.block.len(),
        };
        let confirmed = self.received.is_some();
        let to_queue = matches!(place, Place::Queue(_));
        let properties = Properties { pending_acknowledge: confirmed && to_queue, ..Properties::default() };
        let message = Message::new(&self.block, &layout, properties, Some(Arc::clone(client)));
        if self.block.capacity() > SCRATCH_BYTES_MAX {
            self.block = Vec::new();
        }
        Ok(Some(match place {
            Place::Queue(queue) => Command::Publish { queue, message },
            Place::Topic(topic) => {
                let answer = confirmed.then_some(RequestId(number as u32 | PUBLISHED));
                Command::PublishTopic { topic, message, to_producer: true, answer }
            }
        }))
    }

    /// The receipt of a message by its id; `None` if this connection did not publish it or uses no acknowledgements.
    pub(super) fn receipt_of(&self, message: &Message) -> Option<u32> {
        self.received.as_ref()?;
        self.ids.number_of(message.id()).map(|number| number as u32)
    }

    /// The receipt that an answer is about; `None` if it is about another request.
    pub(super) fn receipt_of_answer(&self, answer: RequestId) -> Option<u32> {
        let oldest = self.received.as_ref()?.oldest();
        let ahead = answer.0.wrapping_sub(oldest) & !PUBLISHED;
        (answer.0 & PUBLISHED != 0).then(|| oldest.wrapping_add(ahead))
    }

    pub(super) fn accepted(&mut self, receipt: u32) {
        if let Some(received) = &mut self.received {
            received.accept(receipt);
        }
    }

    /// Notifies the peer that a message was rejected. `false` if no agreed extension can express that. A peer that reads
    /// answers to commands gets the `reason` first: `fail;id=message-NUMBER,reason=...`.
    pub(super) fn refused(
        &mut self,
        receipt: Option<u32>,
        reason: Option<&ProtocolFailure>,
        output: &mut Vec<u8>,
    ) -> bool {
        let (Some(received), Some(id), Some(receipt)) = (&mut self.received, self.refuses, receipt) else {
            return false;
        };
        if let Some(number) = received.settle_alone(receipt) {
            if let Some(reason) = reason {
                let (message, reason) = (format!("message-{number}"), reason.to_string());
                let mut payload = Vec::new();
                let arguments = [("id", message.as_bytes()), ("reason", reason.as_bytes())];
                command::encode("fail", &arguments, &mut payload);
                encode(&Frame::Command { payload: &payload }, output);
            }
            encode(&Frame::Extension { id, payload: &number.to_be_bytes() }, output);
        }
        true
    }

    /// Acknowledges as many messages as possible.
    pub(super) fn acknowledge(&mut self, output: &mut Vec<u8>) {
        if let Some(received) = &mut self.received
            && let Some(number) = received.take_acknowledgement()
        {
            encode(&Frame::Extension { id: self.acknowledges, payload: &number.to_be_bytes() }, output);
        }
    }

    /// Whether the peer waits for an acknowledgement.
    pub(super) fn owes(&self) -> bool {
        self.received.as_ref().is_some_and(|received| received.unacknowledged() > 0)
    }
}

/// A larger scratch buffer is freed after use.
const SCRATCH_BYTES_MAX: usize = 64 * 1024;
