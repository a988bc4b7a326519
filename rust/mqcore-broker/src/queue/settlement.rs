//! How deliveries end: acknowledged, refused, timed out, or lost with their consumer; and how messages end
//! that waited too long in their queue.

use std::sync::Arc;

use crate::context::{Asker, Deciding, Inquiry, Turn, Verdict, decide};
use crate::history::Happened;
use crate::model::command::{Acknowledgement, Refusal, Retry};
use crate::model::decision::{Decision, PutBack, Step};
use crate::model::effect::AcknowledgementView;
use crate::model::entry::Entry;
use crate::model::id::{ConnectionId, Tag};
use crate::model::stats::DropReason;
use crate::model::subscription::Settling;
use crate::queue::Queue;
use crate::queue::delivery::{Delivery, Ending};
use crate::queue::members::{Consumer, ConsumerKey};
use crate::queue::ready::Taken;

/// Something that ended and may still need a handler's decision.
#[derive(Debug)]
pub(crate) struct Settlement {
    subject: Subject,
    deciding: Deciding,
}

#[derive(Debug)]
enum Subject {
    /// A delivery; its hold on the message belongs to the settlement.
    Delivery { held: usize, consumer: Arc<Consumer>, word: KeptWord },
    /// A message that waited too long.
    Expired(Entry),
}

/// How a delivery ended. Borrowed, as nearly all are settled at once.
#[derive(Debug, Clone, Copy)]
enum Word<'a> {
    Said(&'a Acknowledgement),
    /// It was handed out, which is all that its consumer's terms ask for.
    Implied,
    Silent,
    Lost,
}

/// The same while a handler decides.
#[derive(Debug)]
enum KeptWord {
    Said(Box<Acknowledgement>),
    Unsaid(Word<'static>),
}

impl KeptWord {
    fn word(&self) -> Word<'_> {
        match self {
            Self::Said(word) => Word::Said(word),
            Self::Unsaid(word) => *word,
        }
    }
}

impl Settlement {
    pub(crate) fn is_expiry(&self) -> bool {
        matches!(self.subject, Subject::Expired(_))
    }

    /// The expired message, if it is about one.
    pub(crate) fn into_expired(self) -> Option<Entry> {
        match self.subject {
            Subject::Expired(entry) => Some(entry),
            Subject::Delivery { .. } => None,
        }
    }
}

impl<'a> Word<'a> {
    fn keep(self) -> KeptWord {
        match self {
            Self::Said(word) => KeptWord::Said(Box::new(word.clone())),
            Self::Implied => KeptWord::Unsaid(Word::Implied),
            Self::Silent => KeptWord::Unsaid(Word::Silent),
            Self::Lost => KeptWord::Unsaid(Word::Lost),
        }
    }

    fn step(self) -> Step {
        match self {
            Self::Said(_) | Self::Implied => Step::AcknowledgeReceived,
            Self::Silent => Step::AcknowledgeTimedOut,
            Self::Lost => Step::ConsumerReceiveFailed,
        }
    }

    fn happened(self, consumer: &'a Consumer) -> Happened<'a> {
        let consumer = &consumer.client;
        match self {
            Self::Said(word) => match word.negative() {
                None => Happened::Acked(consumer),
                Some(reason) => Happened::Nacked(consumer, reason),
            },
            Self::Implied => Happened::Acked(consumer),
            Self::Silent => Happened::TimedOut(consumer),
            Self::Lost => Happened::ConsumerLost(consumer),
        }
    }

    fn is_positive(self) -> bool {
        match self {
            Self::Said(word) => word.refusal.is_none(),
            Self::Implied => true,
            Self::Silent | Self::Lost => false,
        }
    }

    /// What its consumer wishes for a message that it refuses; `None`: it does not.
    fn refused(self) -> Option<Retry> {
        match self {
            Self::Said(word) => word.refusal.as_deref().map(|refusal| refusal.retry),
            Self::Implied | Self::Silent | Self::Lost => None,
        }
    }

    /// Where a delivery goes that must be acknowledged and is not: what was lost keeps its place, what was refused had its
    /// chance.
    fn return_place(self) -> PutBack {
        match self {
            Self::Lost => PutBack::Start,
            _ if self.is_positive() => PutBack::No,
            _ => PutBack::End,
        }
    }

    /// What a producer is told when this is passed on as a refusal.
    fn reason(self) -> &'a str {
        match self {
            Self::Said(word) => word.negative().unwrap_or("none"),
            Self::Implied => "none",
            Self::Silent => "timeout",
            Self::Lost => "consumer-lost",
        }
    }
}

impl Queue {
    /// A consumer acknowledges. `false` if it has no such delivery (any more).
    pub(crate) fn acknowledged(
        &mut self,
        consumer: ConnectionId,
        word: &Acknowledgement,
        turn: &mut Turn<'_>,
    ) -> bool {
        let key = (consumer, word.tag);
        let Some(delivery) = self.deliveries.take_of(&word.message_id, key) else { return false };
        self.said(delivery, word, turn);
        true
    }

    /// A subscription settles all it has.
    pub(crate) fn acknowledged_all(
        &mut self,
        consumer: ConsumerKey,
        negative: Option<&str>,
        turn: &mut Turn<'_>,
    ) {
        for key in self.deliveries.of(consumer.0, Some(consumer.1)) {
            let delivery = self.deliveries.take(key);
            self.settle_for(delivery, negative, turn);
        }
    }

    /// Somebody settles one delivery of a subscription, which may be gone.
    pub(crate) fn acknowledged_one(
        &mut self,
        consumer: ConsumerKey,
        message_id: &[u8],
        negative: Option<&str>,
        turn: &mut Turn<'_>,
    ) {
        if let Some(delivery) = self.deliveries.take_of(message_id, consumer) {
            self.settle_for(delivery, negative, turn);
        }
    }

    /// Settles a delivery without a word of its consumer that could be relayed.
    fn settle_for(&mut self, delivery: Delivery, negative: Option<&str>, turn: &mut Turn<'_>) {
        let word = Acknowledgement {
            tag: delivery.consumer.tag,
            queue: (*self.face.address).clone(),
            message_id: self.deliveries.get(delivery.outstanding).entry.message.id().into(),
            refusal: Refusal::of(negative),
            headers: Box::default(),
            hops: 0,
            first_acquirer: false,
        };
        self.said(delivery, &word, turn);
    }

    /// Settles a delivery by a word, which counts.
    fn said(&mut self, delivery: Delivery, word: &Acknowledgement, turn: &mut Turn<'_>) {
        let stats = &mut self.face.stats;
        *(if word.refusal.is_none() { &mut stats.acks } else { &mut stats.negative_acks }) += 1;
        self.settle(delivery, Word::Said(word), turn);
    }

    /// A delivery to a consumer that does not acknowledge, where the queue wants an acknowledgement: being handed out is
    /// one.
    pub(crate) fn handed_out(&mut self, key: usize, turn: &mut Turn<'_>) {
        self.face.stats.acks += 1;
        let delivery = self.deliveries.take(key);
        self.settle(delivery, Word::Implied, turn);
    }

    /// Deliveries whose time is up.
    pub(crate) fn time_out_deliveries(&mut self, turn: &mut Turn<'_>) {
        while let Some(key) = self.deliveries.due(turn.now) {
            self.face.stats.negative_acks += 1;
            let delivery = self.deliveries.take(key);
            self.settle(delivery, Word::Silent, turn);
        }
    }

    /// A consumer is gone, or one of its subscriptions: what it had and did not settle has failed. The oldest goes back first
    /// in line.
    pub(crate) fn consumer_lost(&mut self, consumer: ConnectionId, tag: Option<Tag>, turn: &mut Turn<'_>) {
        for key in self.deliveries.of(consumer, tag).into_iter().rev() {
            let delivery = self.deliveries.take(key);
            self.settle(delivery, Word::Lost, turn);
        }
    }

    /// A delivery that is off the books ends.
    fn settle(&mut self, delivery: Delivery, word: Word<'_>, turn: &mut Turn<'_>) {
        let held = delivery.outstanding;
        let entry = &self.deliveries.get(held).entry;
        turn.life(&self.face.address, entry, word.happened(&delivery.consumer));
        if delivery.consumer.terms.window > 0 {
            // Its window has room again, even if others still hold the message.
            self.schedule(turn);
        }
        let step = word.step();
        if !self.face.overrides.contains(step) {
            let mut decision = turn.books.spec(self.face.handler).base.decide(step, word.is_positive());
            if word.refused() == Some(Retry::Never) {
                decision.put_back = PutBack::No;
            } else if delivery.consumer.terms.settling == Settling::Explicit
                && decision.put_back == PutBack::No
            {
                decision.put_back = word.return_place();
            }
            if !decision.save {
                let verdict = Verdict { decision, own: false };
                return self.settled(held, &delivery.consumer, word, verdict, turn);
            }
        }
        let subject = Subject::Delivery { held, consumer: delivery.consumer, word: word.keep() };
        self.begin_settlement(subject, turn);
    }

    fn begin_settlement(&mut self, subject: Subject, turn: &mut Turn<'_>) {
        self.settlements += 1;
        let number = self.settlements;
        self.settling.insert(number, Settlement { subject, deciding: Deciding::default() });
        self.run_settlement(number, turn);
    }

    /// An answer about a settlement came.
    pub(crate) fn settlement_answered(&mut self, number: u64, answer: Option<Decision>, turn: &mut Turn<'_>) {
        let Some(settlement) = self.settling.get_mut(&number) else { return };
        let entry = match &mut settlement.subject {
            Subject::Delivery { held, .. } => &mut self.deliveries.get_mut(*held).entry,
            Subject::Expired(entry) => entry,
        };
        settlement.deciding.answered(&mut self.face, entry, answer, turn);
        self.run_settlement(number, turn);
    }

    fn run_settlement(&mut self, number: u64, turn: &mut Turn<'_>) {
        let Some(Settlement { subject, deciding }) = self.settling.get_mut(&number) else { return };
        let asker = Asker::Settlement(number);
        let verdict = match subject {
            Subject::Delivery { held, consumer, word } => {
                let entry = &mut self.deliveries.get_mut(*held).entry;
                let word = word.word();
                let acknowledgement = match word {
                    Word::Said(word) => Some(Box::new(AcknowledgementView {
                        message_id: word.message_id.clone(),
                        negative: word.negative().map(Into::into),
                    })),
                    Word::Implied | Word::Silent | Word::Lost => None,
                };
                let positive = word.is_positive();
                let inquiry = Inquiry {
                    positive,
                    acknowledgement,
                    ..Inquiry::new(word.step(), asker).about(&consumer.client)
                };
                decide(&mut self.face, deciding, entry, inquiry, turn)
            }
            Subject::Expired(entry) => {
                let inquiry = Inquiry::new(Step::MessageTimedOut, asker);
                decide(&mut self.face, deciding, entry, inquiry, turn)
            }
        };
        let Some(verdict) = verdict else { return };
        let Some(Settlement { subject, .. }) = self.settling.remove(&number) else { return };
        match subject {
            Subject::Delivery { held, consumer, word } => {
                self.settled(held, &consumer, word.word(), verdict, turn);
            }
            Subject::Expired(entry) => self.expiry_decided(entry, verdict, turn),
        }
    }

    /// A delivery's end is decided: the producer hears of it, and the delivery lets go of the message.
    fn settled(
        &mut self,
        held: usize,
        consumer: &Consumer,
        word: Word<'_>,
        verdict: Verdict,
        turn: &mut Turn<'_>,
    ) {
        if verdict.decision.acknowledge != crate::model::decision::Acknowledge::None {
            let relayed = match word {
                Word::Said(word) => Some((word.clone(), consumer.client.id.clone())),
                Word::Implied | Word::Silent | Word::Lost => None,
            };
            let mut entry = self.deliveries.get(held).entry.clone();
            self.acknowledge(&mut entry, verdict, relayed, word.reason(), turn);
            self.deliveries.get_mut(held).entry.answered = entry.answered;
        }
        let message = self.deliveries.get_mut(held);
        message.acked |= word.is_positive();
        if verdict.decision.put_back != PutBack::No {
            if message.put_back != PutBack::Start {
                message.put_back = verdict.decision.put_back;
            }
            message.put_back_own |= verdict.own;
        }
        if let Some(retry) = word.refused() {
            let ending = if retry == Retry::Never { Ending::Failed } else { Ending::Refused };
            message.ending = message.ending.max(ending);
            if let Retry::NotBefore(time) = retry {
                self.deliveries.postpone(held, time);
            }
        }
        if let Some(closed) = self.deliveries.release(held) {
            self.close(closed, turn);
        }
    }

    /// Takes out of the queue what waited too long.
    pub(crate) fn expire(&mut self, turn: &mut Turn<'_>) {
        for taken in self.ready.expire(turn.now) {
            match taken {
                Taken::Read(entry) => {
                    let entry = self.indebted(entry);
                    self.expired(entry, turn);
                }
                Taken::Unread(unread) => self.expired_unread(unread, turn),
            }
        }
        self.go_on_expiring(turn);
    }

    /// A message that waited too long, and is out of the queue already.
    pub(crate) fn expired(&mut self, entry: Entry, turn: &mut Turn<'_>) {
        self.face.stats.timed_out += 1;
        turn.life(&self.face.address, &entry, Happened::Expired);
        self.begin_settlement(Subject::Expired(entry), turn);
    }

    fn expiry_decided(&mut self, mut entry: Entry, verdict: Verdict, turn: &mut Turn<'_>) {
        self.acknowledge(&mut entry, verdict, None, "timeout", turn);
        if verdict.decision.put_back == PutBack::No {
            self.bury(entry, DropReason::Expired, turn);
        } else {
            // It may wait once more as long as it did.
            entry.deadline = self.deadline(turn.now);
            self.put_back(entry, verdict.decision.put_back, turn.now, turn);
        }
    }
}
