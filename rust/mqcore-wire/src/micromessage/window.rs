//! Acknowledgement windows: the unacknowledged messages that a side has sent or received.
//!
//! Sequence numbers run from 1 to 65,535 and then restart at 1. An acknowledgement covers its number and all earlier ones.

use std::collections::VecDeque;

use super::failure::{ErrorToken, ProtocolFailure};
use super::next_sequence;

/// Number of distinct sequence numbers.
const NUMBERS: u32 = 65_535;

/// Number of steps from one sequence number to another.
fn distance(from: u16, to: u16) -> u32 {
    (u32::from(to) + NUMBERS - u32::from(from)) % NUMBERS
}

/// The messages that a side has sent. At most one window of them is unacknowledged. `T` is the caller's data per message.
#[derive(Debug)]
pub struct SendWindow<T> {
    /// From the oldest unacknowledged message on. `None`: settled alone; the next acknowledgement skips it.
    slots: VecDeque<Option<T>>,
    /// Number of slots that are not `None`.
    open: usize,
    /// Sequence number of the first slot.
    first: u16,
    window: u16,
    /// Last acknowledged sequence number.
    last: Option<u16>,
}

impl<T> SendWindow<T> {
    /// Creates an empty window for `window` unacknowledged messages.
    pub fn new(window: u16) -> Self {
        Self { slots: VecDeque::new(), open: 0, first: 1, window, last: None }
    }

    /// Whether another message may be sent.
    pub fn has_room(&self) -> bool {
        // Messages settled alone keep their numbers until all earlier ones are acknowledged. The second condition keeps numbers
        // unambiguous.
        self.open < usize::from(self.window) && self.slots.len() < NUMBERS as usize / 2
    }

    /// Number of unsettled messages.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Records a sent message and returns its sequence number.
    pub fn push(&mut self, remembered: T) -> u16 {
        let ahead = (u32::from(self.first) - 1 + self.slots.len() as u32) % NUMBERS;
        self.slots.push_back(Some(remembered));
        self.open += 1;
        ahead as u16 + 1
    }

    fn place(&self, number: u16) -> Option<usize> {
        let place = distance(self.first, number) as usize;
        (number > 0 && place < self.slots.len()).then_some(place)
    }

    /// Handles an acknowledgement of all messages up to `number`. Calls `settled` with the data of each, oldest first.
    ///
    /// Repeating the last acknowledgement is allowed.
    ///
    /// # Errors
    /// [`ProtocolFailure`] if no unacknowledged message has this number.
    pub fn acknowledge(&mut self, number: u16, mut settled: impl FnMut(T)) -> Result<(), ProtocolFailure> {
        let Some(place) = self.place(number) else {
            return if self.last == Some(number) { Ok(()) } else { Err(self.unknown(number)) };
        };
        for remembered in self.slots.drain(..=place).flatten() {
            self.open -= 1;
            settled(remembered);
        }
        self.first = next_sequence(number);
        self.last = Some(number);
        self.drop_settled();
        Ok(())
    }

    /// Removes messages from the front that were settled alone, which need no acknowledgement.
    fn drop_settled(&mut self) {
        while let Some(None) = self.slots.front() {
            self.slots.pop_front();
            self.last = Some(self.first);
            self.first = next_sequence(self.first);
        }
    }

    /// Settles the message `number` alone, and returns its data, or `None` if it was settled before. For a rejection, and
    /// for an acknowledgement that does not cover earlier messages.
    ///
    /// # Errors
    /// The same as [`SendWindow::acknowledge`].
    pub fn settle_one(&mut self, number: u16) -> Result<Option<T>, ProtocolFailure> {
        let Some(place) = self.place(number) else {
            return if self.last == Some(number) { Ok(None) } else { Err(self.unknown(number)) };
        };
        let settled = self.slots[place].take();
        self.open -= usize::from(settled.is_some());
        self.drop_settled();
        Ok(settled)
    }

    /// The data of the unsettled message `number`; `None` if it is settled.
    ///
    /// # Errors
    /// The same as [`SendWindow::acknowledge`].
    pub fn unsettled(&self, number: u16) -> Result<Option<&T>, ProtocolFailure> {
        match self.place(number) {
            Some(place) => Ok(self.slots[place].as_ref()),
            None if self.last == Some(number) => Ok(None),
            None => Err(self.unknown(number)),
        }
    }

    fn unknown(&self, number: u16) -> ProtocolFailure {
        let why = format!("no unacknowledged message has the number {number}; {} are open", self.slots.len());
        ProtocolFailure::new(ErrorToken::Ack, why)
    }

    /// Removes all unsettled messages and returns their data, oldest first.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        self.open = 0;
        self.slots.drain(..).flatten()
    }
}

/// State of a received message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReceivedState {
    Open,
    /// Covered by the next cumulative acknowledgement.
    Accepted,
    /// Rejected, or acknowledged alone.
    SettledAlone,
}

/// The result of receiving a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiveOutcome {
    /// A new message, with the receipt by which to settle it.
    New(u32),
    /// A duplicate: drop it. It is acknowledged again if the original was.
    Repeated,
}

/// The messages that a side has received and must acknowledge.
#[derive(Debug)]
pub struct ReceiveWindow {
    /// From the oldest unacknowledged message on.
    waiting: VecDeque<(u16, ReceivedState)>,
    /// Number of messages that were not settled alone, which the other side counts as well.
    open: usize,
    /// Receipt of the first message in `waiting`.
    first: u32,
    window: u16,
    /// Sequence number received last.
    last: Option<u16>,
    /// Sequence number acknowledged last.
    acknowledged: Option<u16>,
    /// Whether to repeat the last acknowledgement.
    again: bool,
}

impl ReceiveWindow {
    /// Creates an empty window for `window` unacknowledged messages.
    pub fn new(window: u16) -> Self {
        Self {
            waiting: VecDeque::new(),
            open: 0,
            first: 0,
            window,
            last: None,
            acknowledged: None,
            again: false,
        }
    }

    /// Records a received message. The sender may skip sequence numbers.
    ///
    /// # Errors
    /// [`ProtocolFailure`] if the number is 0, or if the peer exceeds the negotiated window.
    pub fn receive(&mut self, number: u16) -> Result<ReceiveOutcome, ProtocolFailure> {
        if number == 0 {
            return Err(ProtocolFailure::new(ErrorToken::Ack, "sequence numbers start at 1"));
        }
        if let Some(last) = self.last
            && !(1..=NUMBERS / 2).contains(&distance(last, number))
        {
            self.again |= !self.waiting.iter().any(|(waits, _)| *waits == number);
            return Ok(ReceiveOutcome::Repeated);
        }
        if self.open >= usize::from(self.window) || self.waiting.len() >= NUMBERS as usize / 2 {
            let why =
                format!("message {number} exceeds the window of {} unacknowledged messages", self.window);
            return Err(ProtocolFailure::new(ErrorToken::Ack, why));
        }
        self.last = Some(number);
        self.open += 1;
        self.waiting.push_back((number, ReceivedState::Open));
        Ok(ReceiveOutcome::New(self.first.wrapping_add(self.waiting.len() as u32 - 1)))
    }

    fn decide(&mut self, receipt: u32, state: ReceivedState) -> Option<u16> {
        let slot = self.waiting.get_mut(receipt.wrapping_sub(self.first) as usize)?;
        if slot.1 != ReceivedState::Open {
            return None;
        }
        slot.1 = state;
        Some(slot.0)
    }

    /// Marks the message of this receipt as accepted and returns its sequence number. `None`: it was settled before.
    pub fn accept(&mut self, receipt: u32) -> Option<u16> {
        self.decide(receipt, ReceivedState::Accepted)
    }

    /// Marks the message of this receipt as settled alone and returns its sequence number: for an `x-nack` frame that
    /// rejects it, or an `x-mqcore` frame that acknowledges it. `None`: it was settled before.
    pub fn settle_alone(&mut self, receipt: u32) -> Option<u16> {
        let number = self.decide(receipt, ReceivedState::SettledAlone)?;
        self.open -= 1;
        Some(number)
    }

    /// The sequence number of the message of this receipt; `None`: it was settled.
    pub fn number_of(&self, receipt: u32) -> Option<u16> {
        let (number, state) = self.waiting.get(receipt.wrapping_sub(self.first) as usize)?;
        (*state == ReceivedState::Open).then_some(*number)
    }

    /// Receipt of the oldest unacknowledged message, or of the next message if all are acknowledged.
    pub fn oldest(&self) -> u32 {
        self.first
    }

    /// Number of unacknowledged messages.
    pub fn unacknowledged(&self) -> usize {
        self.waiting.len()
    }

    /// Number of settled messages that an acknowledgement would cover now.
    pub fn acknowledgeable(&self) -> usize {
        self.waiting.iter().take_while(|(_, state)| *state != ReceivedState::Open).count()
    }

    /// Returns the sequence number up to which all messages can now be acknowledged, or `None` if there is nothing to
    /// acknowledge.
    pub fn take_acknowledgement(&mut self) -> Option<u16> {
        let mut number = None;
        while let Some((next, state)) =
            self.waiting.front().filter(|(_, state)| *state != ReceivedState::Open).copied()
        {
            self.waiting.pop_front();
            self.first = self.first.wrapping_add(1);
            // A message settled alone needs no acknowledgement.
            if state == ReceivedState::Accepted {
                self.open -= 1;
                number = Some(next);
            }
        }
        if number.is_some() {
            self.acknowledged = number;
        }
        let again = std::mem::take(&mut self.again);
        number.or(self.acknowledged.filter(|_| again))
    }
}
