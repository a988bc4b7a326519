//! The contents of the journal when the broker started.

use std::collections::HashMap;
use std::sync::Arc;

use crate::model::definition::{Definition, decode_definition};
use crate::model::id::{MessageNumber, QueueAddress, Sequence};
use crate::model::intake::Ticket;
use crate::model::record::{DeliveryProgress, PutTerms, RecordError, decode_address, decode_put_head};
use crate::model::time::Timestamp;
use crate::model::transfer::{ArrivedMessage, Origin};

/// The contents of the journal when the broker started. Bodies stay in the journal until they are needed, since
/// millions of messages may wait.
#[derive(Debug, Clone, Default)]
pub struct RecoveredState {
    /// Channels, queues, routers and other definitions.
    pub definitions: Vec<Definition>,
    /// The queues, to which messages refer by index.
    pub queues: Vec<QueueAddress>,
    /// Unsettled messages by ascending sequence.
    pub messages: Vec<RecoveredMessage>,
    /// Progress of messages that have some, by ascending sequence.
    pub progress: Vec<(Sequence, DeliveryProgress)>,
    /// Tickets of messages from downstream brokers.
    pub tickets: Vec<Ticket>,
    /// Messages that came from other queues, with the records that they had there.
    pub sources: Vec<(Sequence, Origin, Arc<str>)>,
    /// Messages that also exist in the queue to which they were transferred, with their places there. They are not in
    /// `messages`, and their records must be settled.
    pub transferred: Vec<(Sequence, ArrivedMessage)>,
    /// Messages of which another queue must settle the record that they had there before consumers may get them.
    pub arriving: Vec<Sequence>,
    /// Unique keys of messages.
    pub unique_keys: Vec<(Sequence, Box<[u8]>)>,
    /// Terms of messages that have some.
    pub terms: Vec<(Sequence, PutTerms)>,
    /// Ids and arrivals of messages whose queues remember the ids.
    pub remembered: Vec<(Sequence, Box<[u8]>, Timestamp)>,
    /// The highest sequence ever used.
    pub sequence: Sequence,
}

/// A message in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecoveredMessage {
    /// The sequence of its record.
    pub sequence: Sequence,
    /// Index of its queue in [`RecoveredState::queues`].
    pub queue: u32,
    /// Approximate size in memory once it is loaded, in bytes; at most 4 GiB - 1.
    pub bytes: u32,
    /// Its number in the history; 0 if there was none.
    pub number: MessageNumber,
    /// When it arrived at its queue, in seconds since the Unix epoch, rounded up.
    pub received_s: u32,
    /// Whether it goes ahead of messages of normal priority.
    pub high_priority: bool,
}

/// Leaves each transferred message in one queue. A crash between the save in the new queue and the settlement in the
/// previous one leaves it in both; then the previous queue gives it up. `shards` is what all shards of a data directory
/// recovered, in their order.
pub fn settle_transfers(shards: &mut [&mut RecoveredState]) {
    for shard in 0..shards.len() {
        for (sequence, origin, from) in std::mem::take(&mut shards[shard].sources) {
            // Nearly all messages were settled there long ago.
            let previous = shards.get(origin.shard).and_then(|previous| previous.queue_of(origin.sequence));
            if previous.is_none_or(|queue| queue.to_string() != *from) {
                continue;
            }
            let Some(queue) = shards[shard].queue_of(sequence).cloned().map(Arc::new) else { continue };
            shards[shard].arriving.push(sequence);
            let arrival = ArrivedMessage { shard, queue, sequence };
            shards[origin.shard].transferred.push((origin.sequence, arrival));
        }
    }
    for state in shards {
        state.arriving.sort_unstable();
        state.drop_transferred();
    }
}

impl RecoveredState {
    /// The queue of an unsettled message.
    fn queue_of(&self, sequence: Sequence) -> Option<&QueueAddress> {
        let at = self.messages.binary_search_by_key(&sequence, |message| message.sequence).ok()?;
        self.queues.get(self.messages[at].queue as usize)
    }

    /// Removes the messages that are transferred.
    fn drop_transferred(&mut self) {
        if self.transferred.is_empty() {
            return;
        }
        self.transferred.sort_unstable_by_key(|(sequence, _)| *sequence);
        let transferred = &self.transferred;
        let stays =
            |sequence: &Sequence| transferred.binary_search_by_key(sequence, |(gone, _)| *gone).is_err();
        self.messages.retain(|message| stays(&message.sequence));
        self.progress.retain(|(sequence, _)| stays(sequence));
        self.unique_keys.retain(|(sequence, _)| stays(sequence));
        self.terms.retain(|(sequence, _)| stays(sequence));
        self.remembered.retain(|(sequence, ..)| stays(sequence));
    }
}

/// Builds the recovered state while a journal is read. Data about each message is small, because there may be many millions.
#[derive(Debug, Default)]
pub struct RecoveryBuilder {
    definitions: Vec<Definition>,
    queues: Vec<QueueAddress>,
    /// Indices into `queues` by the queue's name.
    places: HashMap<Box<str>, u32>,
    /// The queue of the previous message: most messages have the same queue as the previous one.
    last: (Box<str>, u32),
    messages: Vec<RecoveredMessage>,
    progress: Vec<(Sequence, DeliveryProgress)>,
    tickets: Vec<(Sequence, Ticket)>,
    sources: Vec<(Sequence, Origin, Arc<str>)>,
    unique_keys: Vec<(Sequence, Box<[u8]>)>,
    terms: Vec<(Sequence, PutTerms)>,
    remembered: Vec<(Sequence, Box<[u8]>, Timestamp)>,
    refused: Vec<(u64, RecordError)>,
}

impl RecoveryBuilder {
    /// Adds the record of a message, in any order. Settled messages may be among them, and a message may occur twice.
    pub fn put(&mut self, sequence: u64, payload: &[u8]) {
        match decode_put_head(payload).and_then(|head| Ok((self.place(head.queue)?, head))) {
            Ok((queue, head)) => {
                self.tickets.extend(head.ticket.map(|ticket| (Sequence(sequence), ticket)));
                if let Some((origin, from)) = head.source {
                    let from = self.source_name(from);
                    self.sources.push((Sequence(sequence), origin, from));
                }
                self.unique_keys.extend(head.unique_key.map(|key| (Sequence(sequence), key.into())));
                self.terms.extend(head.terms.map(|terms| (Sequence(sequence), terms)));
                let remembered = head.remembered.map(|id| (Sequence(sequence), id.into(), head.received));
                self.remembered.extend(remembered);
                self.messages.push(RecoveredMessage {
                    sequence: Sequence(sequence),
                    queue,
                    bytes: u32::try_from(head.memory_bytes).unwrap_or(u32::MAX),
                    number: head.number,
                    received_s: u32::try_from(head.received.0.div_ceil(1_000)).unwrap_or(u32::MAX),
                    high_priority: head.high_priority,
                });
            }
            Err(error) => self.refused.push((sequence, error)),
        }
    }

    /// Adds a definition.
    ///
    /// # Errors
    /// If it cannot be decoded.
    pub fn define(&mut self, key: &[u8], value: &[u8]) -> Result<(), RecordError> {
        self.definitions.push(decode_definition(key, value)?);
        Ok(())
    }

    /// Adds the delivery progress of an unsettled message, by ascending sequence.
    ///
    /// # Errors
    /// If it cannot be decoded.
    pub fn touch(&mut self, sequence: u64, progress: &[u8]) -> Result<(), RecordError> {
        self.progress.push((Sequence(sequence), DeliveryProgress::decode(progress)?));
        Ok(())
    }

    /// The state, with the messages in `live`, which is ascending. Also returns those of `live` that were not added: their
    /// records cannot be read.
    ///
    /// # Errors
    /// If the record of an unsettled message cannot be decoded.
    pub fn finish(
        mut self,
        live: impl Iterator<Item = u64>,
        next_sequence: u64,
    ) -> Result<(RecoveredState, Vec<u64>), RecordError> {
        let unreadable = self.keep(live)?;
        self.drop_unused_queues();
        let Self { definitions, queues, messages, progress, .. } = self;
        let is_kept =
            |sequence: &Sequence| messages.binary_search_by_key(sequence, |message| message.sequence).is_ok();
        let tickets = self.tickets.into_iter().filter(|(sequence, _)| is_kept(sequence));
        let tickets = tickets.map(|(_, ticket)| ticket).collect();
        let sources = self.sources.into_iter().filter(|(sequence, ..)| is_kept(sequence)).collect();
        let unique_keys = self.unique_keys.into_iter().filter(|(sequence, _)| is_kept(sequence)).collect();
        let terms = self.terms.into_iter().filter(|(sequence, _)| is_kept(sequence)).collect();
        let remembered = self.remembered.into_iter().filter(|(sequence, ..)| is_kept(sequence)).collect();
        let sequence = Sequence(next_sequence.saturating_sub(1));
        let state = RecoveredState {
            definitions,
            queues,
            messages,
            progress,
            tickets,
            sources,
            transferred: Vec::new(),
            arriving: Vec::new(),
            unique_keys,
            terms,
            remembered,
            sequence,
        };
        Ok((state, unreadable))
    }

    /// Leaves out queues of settled messages only: they may have been removed.
    fn drop_unused_queues(&mut self) {
        let mut places = vec![None; self.queues.len()];
        let mut used = Vec::new();
        for message in &mut self.messages {
            let place = &mut places[message.queue as usize];
            message.queue = *place.get_or_insert_with(|| {
                used.push(self.queues[message.queue as usize].clone());
                used.len() as u32 - 1
            });
        }
        self.queues = used;
    }

    /// The name of the queue that a message came from, shared by messages with the same one.
    fn source_name(&self, queue: &str) -> Arc<str> {
        match self.sources.last() {
            Some((.., name)) if **name == *queue => Arc::clone(name),
            _ => queue.into(),
        }
    }

    fn place(&mut self, queue: &str) -> Result<u32, RecordError> {
        if *self.last.0 != *queue {
            let place = match self.places.get(queue) {
                Some(place) => *place,
                None => {
                    self.queues.push(decode_address(queue)?);
                    let place = self.queues.len() as u32 - 1;
                    self.places.insert(queue.into(), place);
                    place
                }
            };
            self.last = (queue.into(), place);
        }
        Ok(self.last.1)
    }

    /// Removes all messages that are not in `live`, which is ascending. Returns those of `live` that were not seen.
    fn keep(&mut self, live: impl Iterator<Item = u64>) -> Result<Vec<u64>, RecordError> {
        self.messages.sort_unstable_by_key(|message| message.sequence);
        self.messages.dedup_by_key(|message| message.sequence);
        let mut refused = std::mem::take(&mut self.refused);
        let mut live = live.peekable();
        let mut unseen = Vec::new();
        self.messages.retain(|message| {
            while let Some(earlier) = live.next_if(|live| *live < message.sequence.0) {
                unseen.push(earlier);
            }
            live.next_if(|live| *live == message.sequence.0).is_some()
        });
        unseen.extend(live);
        self.messages.shrink_to_fit();
        match refused.iter().position(|(sequence, _)| unseen.contains(sequence)) {
            Some(found) => Err(refused.swap_remove(found).1),
            None => Ok(unseen),
        }
    }
}
