//! Dead letters: where messages go that were requeued too often or waited too long.

use std::sync::Arc;

use crate::context::Context;
use crate::history::LifecycleEvent;
use crate::model::decision::PutBack;
use crate::model::effect::Effect;
use crate::model::entry::Entry;
use crate::model::id::{DEAD_LETTERS, QueueAddress};
use crate::model::message::Message;
use crate::model::options::DeadLetter;
use crate::model::stats::DropReason;
use crate::model::terms::LEVEL_NORMAL;
use crate::model::transfer::{Origin, Transfer};
use crate::queue::Queue;
use crate::queue::transferred::{ATTEMPTS, ERROR, ORIGIN, REASON, transferred_message};

/// Maximum characters of the error in the headers of a dead letter.
const ERROR_CHARS_MAX: usize = 500;

/// The destination of a message that failed for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Destination {
    /// To this queue.
    Queue(QueueAddress),
    /// It stays, because its queue is the dead-letter queue: its attempts do not run out.
    Here,
    /// It is dropped.
    Nowhere,
}

impl Queue {
    /// The destination of a message that failed for good. A message that waited too long goes nowhere,
    /// unless the queue's options name a queue.
    pub(crate) fn destination(&self, reason: DropReason) -> Destination {
        let (here, expired) = (&*self.metadata.address, reason == DropReason::Expired);
        match &self.metadata.options.dead_letter {
            Some(DeadLetter::Drop) => Destination::Nowhere,
            Some(DeadLetter::Queue(queue)) if !queue.is(here) => Destination::Queue(queue.clone()),
            _ if expired => Destination::Nowhere,
            None if here.id != DEAD_LETTERS => Destination::Queue(here.dead_letters()),
            None | Some(DeadLetter::Queue(_)) => Destination::Here,
        }
    }

    /// Moves a message that failed for good to the dead-letter queue, or drops it. `error`: why its last delivery failed.
    pub(crate) fn dead_letter(
        &mut self,
        mut entry: Entry,
        reason: DropReason,
        error: Option<&str>,
        context: &mut Context<'_>,
    ) {
        let to = match self.destination(reason) {
            Destination::Queue(to) => to,
            Destination::Nowhere => return self.discard(entry, reason, context),
            Destination::Here => {
                let not_before = context.now.after(self.retry_delay(&entry));
                return self.requeue(entry, PutBack::End, not_before, None, context);
            }
        };
        let message = dead_letter_message(&entry, &self.metadata.address, &to, reason, error);
        self.metadata.stats.dead_lettered += 1;
        context.record_event(
            &self.metadata.address,
            &entry,
            LifecycleEvent::DeadLettered(reason, &Arc::new(to.clone())),
        );
        // Its record stays here until the other queue has saved the message.
        let sequence = std::mem::take(&mut entry.sequence);
        self.keep_id(sequence, context);
        let shard = context.state.config.shard;
        let origin = (sequence.0 > 0).then_some(Origin { shard, sequence });
        let from = self.metadata.address.clone();
        context.effects.push(Effect::Transfer(Box::new(Transfer {
            to,
            from,
            message,
            origin,
            departure: None,
        })));
        self.remove(entry, context);
    }
}

/// The message for the dead-letter queue: its own headers, plus origin and reason.
fn dead_letter_message(
    entry: &Entry,
    from: &QueueAddress,
    to: &QueueAddress,
    reason: DropReason,
    error: Option<&str>,
) -> Message {
    let message = &entry.message;
    let mut headers = message.headers().to_vec();
    let added = format!("{REASON}{}\r\n{ORIGIN}{from}\r\n{ATTEMPTS}{}\r\n", reason.as_str(), entry.attempts);
    let error = error.map(|error| format!("{ERROR}{}\r\n", header_value(error)));
    // A header block cannot exceed 65,535 bytes; a full one keeps only the producer's headers.
    for added in [Some(added), error].into_iter().flatten() {
        if headers.len() + added.len() <= usize::from(u16::MAX) {
            headers.extend_from_slice(added.as_bytes());
        }
    }
    transferred_message(message, &headers, to, LEVEL_NORMAL)
}

/// A text as the value of a header: cut, and without line breaks, which would begin another header.
fn header_value(text: &str) -> String {
    let cut = text.chars().take(ERROR_CHARS_MAX);
    cut.map(|character| if character.is_control() { ' ' } else { character }).collect()
}
