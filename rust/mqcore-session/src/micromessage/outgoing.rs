//! Messages for the peer: numbered, and sent within the window that it acknowledges; the others wait.

use std::collections::VecDeque;
use std::sync::Arc;

use mqcore_broker::model::command::{Acknowledgement, Command, MessageId, Nack};
use mqcore_broker::model::id::{QueueAddress, Tag};
use mqcore_broker::model::message::Message;
use mqcore_wire::micromessage::content::Content;
use mqcore_wire::micromessage::extension::{Agreement, ExtensionKind};
use mqcore_wire::micromessage::failure::ProtocolFailure;
use mqcore_wire::micromessage::window::SendWindow;
use mqcore_wire::micromessage::{Frame, encode, encode_split, next_sequence};

/// A delivery of a queue that waits to be settled.
#[derive(Debug, Clone)]
pub(super) struct PendingSettlement {
    pub(super) queue: Arc<QueueAddress>,
    pub(super) tag: Tag,
}

/// A message for the peer.
#[derive(Debug)]
pub(super) struct QueuedOutput {
    pub(super) message: Message,
    pub(super) destination: Arc<[u8]>,
    /// `None`: the message needs no settlement.
    pub(super) owed: Option<PendingSettlement>,
}

impl QueuedOutput {
    /// Bytes that count toward the limit of waiting output: those of topics, which no queue stores. Waiting messages of
    /// a queue are bounded by its window and belong to the queue.
    fn burden(&self) -> usize {
        if self.owed.is_some() { 0 } else { self.message.memory_bytes() }
    }
}

/// A message that was sent and is not acknowledged; `None` for a message of a topic.
type Unsettled = Option<(PendingSettlement, MessageId)>;

/// The state of messages from the broker to the peer.
#[derive(Debug)]
pub(super) struct OutgoingMessages {
    /// `None` without acknowledgements: then no message waits.
    sent: Option<SendWindow<Unsettled>>,
    /// The number of the last message without acknowledgements.
    last: u16,
    waiting: VecDeque<QueuedOutput>,
    /// Bytes of the waiting messages of topics.
    waiting_bytes: usize,
    /// The extension that names types, if one was agreed on.
    types: Option<u8>,
    /// A type was sent; it applies until another one is sent.
    typed: bool,
}

impl OutgoingMessages {
    pub(super) fn new(agreement: &Agreement) -> Self {
        Self {
            sent: agreement.acknowledging().map(|acknowledging| SendWindow::new(acknowledging.window)),
            last: 0,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            types: agreement.id_of_kind(ExtensionKind::Type),
            typed: false,
        }
    }

    /// Bytes of messages that wait for acknowledgements of earlier ones.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Sends a message, or queues it until the window has room.
    pub(super) fn send(&mut self, queued: QueuedOutput, output: &mut Vec<u8>) {
        if self.waiting.is_empty() && self.sent.as_ref().is_none_or(SendWindow::has_room) {
            return self.write(queued, output);
        }
        self.waiting_bytes += queued.burden();
        self.waiting.push_back(queued);
    }

    /// Sends waiting messages as far as the window has room.
    fn go_on(&mut self, output: &mut Vec<u8>) {
        while self.sent.as_ref().is_none_or(SendWindow::has_room)
            && let Some(queued) = self.waiting.pop_front()
        {
            self.waiting_bytes -= queued.burden();
            self.write(queued, output);
        }
    }

    fn write(&mut self, queued: QueuedOutput, output: &mut Vec<u8>) {
        let QueuedOutput { message, destination, owed } = queued;
        let sequence = match &mut self.sent {
            Some(sent) => sent.push(owed.map(|owed| (owed, MessageId::from_slice(message.id())))),
            None => {
                self.last = next_sequence(self.last);
                self.last
            }
        };
        let content = Content::read(message.headers());
        if let Some(id) = self.types {
            let named = !content.type_name.is_empty();
            // An empty name resets the type.
            if named || self.typed {
                encode(&Frame::Extension { id, payload: content.type_name }, output);
            }
            self.typed = named;
        }
        encode_split(sequence, &destination, &content.properties, message.body(), output);
    }

    /// The peer acknowledges all messages up to a number.
    pub(super) fn acknowledged(
        &mut self,
        number: u16,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<(), ProtocolFailure> {
        let Some(sent) = &mut self.sent else { return Ok(()) };
        sent.acknowledge(number, |unsettled| {
            commands.extend(unsettled.map(|unsettled| settlement(unsettled, None)))
        })?;
        self.go_on(output);
        Ok(())
    }

    /// The peer rejects or acknowledges the message with a number, and no earlier ones.
    pub(super) fn settled_one(
        &mut self,
        number: u16,
        negative: Option<&str>,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<(), ProtocolFailure> {
        let Some(sent) = &mut self.sent else { return Ok(()) };
        if let Some(Some(unsettled)) = sent.settle_one(number)? {
            commands.push(settlement(unsettled, negative));
        }
        self.go_on(output);
        Ok(())
    }

    /// The peer works on the message with a number: its timeout starts again.
    pub(super) fn works_on(&self, number: u16, commands: &mut Vec<Command>) -> Result<(), ProtocolFailure> {
        let Some(sent) = &self.sent else { return Ok(()) };
        if let Some(Some((owed, message_id))) = sent.unsettled(number)? {
            let (queue, message_id) = ((*owed.queue).clone(), message_id.clone());
            commands.push(Command::Extend { queue, tag: owed.tag, message_id });
        }
        Ok(())
    }

    /// A subscription ended: removes its waiting messages, which are requeued.
    pub(super) fn forget(&mut self, tag: Tag) {
        self.waiting.retain(|queued| queued.owed.as_ref().is_none_or(|owed| owed.tag != tag));
    }
}

fn settlement((owed, message_id): (PendingSettlement, MessageId), negative: Option<&str>) -> Command {
    Command::Acknowledge(Acknowledgement {
        tag: owed.tag,
        queue: (*owed.queue).clone(),
        message_id,
        refusal: Nack::of(negative),
        headers: Box::default(),
        hops: 0,
        first_acquirer: false,
    })
}
