//! Who still owes an acknowledgement to whom: the numbers that a side has sent, and those that it has received.
//!
//! Numbers run from 1 to 65,535 and begin again with 1. An acknowledgement covers its number and everything before it.

use std::collections::VecDeque;

use super::failure::{Failure, Token};
use super::next_sequence;

/// Numbers there are.
const NUMBERS: u32 = 65_535;

/// How many steps it takes from one number to the other.
fn distance(from: u16, to: u16) -> u32 {
    (u32::from(to) + NUMBERS - u32::from(from)) % NUMBERS
}

/// What a side has sent: it sends no more than a window of unacknowledged messages. `T` is what it remembers of each.
#[derive(Debug)]
pub struct Sent<T> {
    /// From the oldest that no acknowledgement has covered. `None`: it was refused, which an acknowledgement passes over.
    slots: VecDeque<Option<T>>,
    /// How many of them are no `None`.
    open: usize,
    /// The number of the first slot.
    first: u16,
    window: u16,
    /// The last number that was acknowledged.
    last: Option<u16>,
}

impl<T> Sent<T> {
    /// Nothing is sent yet, and `window` messages may be.
    pub fn new(window: u16) -> Self {
        Self { slots: VecDeque::new(), open: 0, first: 1, window, last: None }
    }

    /// Whether one more may be sent.
    pub fn has_room(&self) -> bool {
        // Refused ones between others keep their numbers, of which there must never be more than can be told apart.
        self.open < usize::from(self.window) && self.slots.len() < NUMBERS as usize / 2
    }

    /// Messages that are not settled.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Sends one; its number.
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

    /// The other side has acknowledged everything up to `number`; `settled` is given what was remembered, oldest first. The last
    /// number again is fine.
    ///
    /// # Errors
    /// [`Failure`] if there is no such message that waits for it.
    pub fn acknowledge(&mut self, number: u16, mut settled: impl FnMut(T)) -> Result<(), Failure> {
        let Some(place) = self.place(number) else {
            return if self.last == Some(number) { Ok(()) } else { Err(self.unknown(number)) };
        };
        for remembered in self.slots.drain(..=place).flatten() {
            self.open -= 1;
            settled(remembered);
        }
        self.first = next_sequence(number);
        self.last = Some(number);
        self.drop_refused();
        Ok(())
    }

    /// Refused ones at the front need no acknowledgement any more.
    fn drop_refused(&mut self) {
        while let Some(None) = self.slots.front() {
            self.slots.pop_front();
            self.last = Some(self.first);
            self.first = next_sequence(self.first);
        }
    }

    /// The other side refuses this one; what was remembered of it. `None`: it was settled before.
    ///
    /// # Errors
    /// As [`Sent::acknowledge`].
    pub fn refuse(&mut self, number: u16) -> Result<Option<T>, Failure> {
        let Some(place) = self.place(number) else {
            return if self.last == Some(number) { Ok(None) } else { Err(self.unknown(number)) };
        };
        let refused = self.slots[place].take();
        self.open -= usize::from(refused.is_some());
        self.drop_refused();
        Ok(refused)
    }

    fn unknown(&self, number: u16) -> Failure {
        let why = format!("{number} waits for no acknowledgement; {} of yours do", self.slots.len());
        Failure::new(Token::Ack, why)
    }

    /// Everything that is not settled, oldest first.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        self.open = 0;
        self.slots.drain(..).flatten()
    }
}

/// What became of a message that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Open,
    Accepted,
    Refused,
}

/// A message that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receipt {
    /// It is new; to be named when it is known what became of it.
    New(u32),
    /// It came before: it is thrown away, and acknowledged again if it was.
    Repeated,
}

/// What a side has received, and has to acknowledge.
#[derive(Debug)]
pub struct Received {
    /// From the oldest that is not acknowledged.
    waiting: VecDeque<(u16, Fate)>,
    /// How many of them were not refused: those that the other side counts too.
    open: usize,
    /// The receipt of the first of them.
    first: u32,
    window: u16,
    /// The number that came last.
    last: Option<u16>,
    /// The number that was acknowledged last.
    acknowledged: Option<u16>,
    /// It is to be acknowledged again.
    again: bool,
}

impl Received {
    /// Nothing has come yet, and `window` messages may come before the first is acknowledged.
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

    /// A message came. Numbers may be left out.
    ///
    /// # Errors
    /// [`Failure`] if its number is 0, or if there are more unacknowledged ones than were agreed.
    pub fn receive(&mut self, number: u16) -> Result<Receipt, Failure> {
        if number == 0 {
            return Err(Failure::new(Token::Ack, "numbers of messages begin with 1"));
        }
        if let Some(last) = self.last
            && !(1..=NUMBERS / 2).contains(&distance(last, number))
        {
            self.again |= !self.waiting.iter().any(|(waits, _)| *waits == number);
            return Ok(Receipt::Repeated);
        }
        if self.open >= usize::from(self.window) || self.waiting.len() >= NUMBERS as usize / 2 {
            let why = format!("{number} is one more than the {} that may be unacknowledged", self.window);
            return Err(Failure::new(Token::Ack, why));
        }
        self.last = Some(number);
        self.open += 1;
        self.waiting.push_back((number, Fate::Open));
        Ok(Receipt::New(self.first.wrapping_add(self.waiting.len() as u32 - 1)))
    }

    fn decide(&mut self, receipt: u32, fate: Fate) -> Option<u16> {
        let slot = self.waiting.get_mut(receipt.wrapping_sub(self.first) as usize)?;
        if slot.1 != Fate::Open {
            return None;
        }
        slot.1 = fate;
        Some(slot.0)
    }

    /// The message of this receipt is accepted; its number. `None`: that was known.
    pub fn accept(&mut self, receipt: u32) -> Option<u16> {
        self.decide(receipt, Fate::Accepted)
    }

    /// The message of this receipt is refused, which is said in another way; its number. `None`: its fate was known.
    pub fn refuse(&mut self, receipt: u32) -> Option<u16> {
        let number = self.decide(receipt, Fate::Refused)?;
        self.open -= 1;
        Some(number)
    }

    /// The receipt of the oldest message that is not acknowledged, or of the next one that comes.
    pub fn oldest(&self) -> u32 {
        self.first
    }

    /// Messages that are not acknowledged.
    pub fn unacknowledged(&self) -> usize {
        self.waiting.len()
    }

    /// Messages whose fate is known and that an acknowledgement would cover now.
    pub fn acknowledgeable(&self) -> usize {
        self.waiting.iter().take_while(|(_, fate)| *fate != Fate::Open).count()
    }

    /// The number up to which everything can be acknowledged that was not; `None`: nothing can.
    pub fn take_acknowledgement(&mut self) -> Option<u16> {
        let mut number = None;
        while let Some((next, fate)) = self.waiting.front().filter(|(_, fate)| *fate != Fate::Open).copied() {
            self.waiting.pop_front();
            self.first = self.first.wrapping_add(1);
            // One that was refused needs no acknowledgement of its own.
            if fate == Fate::Accepted {
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
