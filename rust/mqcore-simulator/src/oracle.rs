//! An independent model of the promises: what clients may see.
//!
//! The oracle sees only the clients' ends of the network, the faults, and which bytes reached the broker's machine. It uses no
//! code of the broker. Its rules:
//!
//! | rule | finding |
//! |---|---|
//! | A client receives only messages that were published to its queue or became dead letters of it, with their bodies. | `phantom` |
//! | A rejected message is not delivered, unless a faulty disk was the reason. | `rejected` |
//! | A confirmed message is delivered until a consumer settles it, whatever crashed. | `lost` |
//! | A message that was settled before a calm is not delivered again. | `settled-returns` |
//! | A message is delivered again only after a rejection, a timeout, the end of a connection or a crash. | `doubled` |
//! | First deliveries of one producer's messages of equal priority keep their order, unless they are delayed. | `order` |
//! | A delayed message is not delivered before its time. | `early` |
//! | An expired message is not delivered, except as a dead letter. | `late` |
//! | A consumer has at most `prefetch` unsettled messages. | `prefetch` |
//! | Each publish on a working connection is answered. | `unanswered` |
//! | A client may connect, bind and consume, unless a disk is faulty. | `refused` |
//! | The broker does not panic, and comes to rest. | `panic`, `livelock` |
//! | The broker starts after every crash, and reports no damage. | `damage` |

use std::collections::BTreeMap;
use std::fmt;

use mqcore_broker::model::id::ConnectionId;
use mqcore_broker::model::options::{Durability, Status};

use crate::scenario::{ACKNOWLEDGE_TIMEOUT, PublishTerms, Scenario};
use crate::time::Micros;

/// By how much a timeout may seem early, because a message was on its way for some time.
const TRANSIT_MAX: Micros = 1_000_000;

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The rule.
    pub rule: &'static str,
    /// Description with queue and message.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.rule, self.text)
    }
}

/// How the broker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Stopped,
    Killed,
    PowerLost,
}

#[derive(Debug)]
struct SeenMessage {
    queue: usize,
    /// The connection that published it.
    link: ConnectionId,
    at: Micros,
    terms: PublishTerms,
    /// `None`: not answered. True: confirmed.
    answer: Option<bool>,
    /// A crash may have lost it.
    is_unsafe: bool,
    /// Settled before a calm.
    is_over: bool,
    /// It was rejected because of a faulty disk, which may have it nevertheless.
    is_doubtful: bool,
    /// A crash may have interrupted its way to the dead-letter queue: both queues may have it.
    may_be_doubled: bool,
    /// A faulty disk may have it although it was settled in the dead-letter queue.
    may_return: bool,
    deliveries: Vec<SeenDelivery>,
}

#[derive(Debug)]
struct SeenDelivery {
    link: ConnectionId,
    at: Micros,
    outcome: Option<SeenOutcome>,
}

#[derive(Debug)]
struct SeenOutcome {
    positive: bool,
    /// The position of its end in the stream of its connection.
    offset: u64,
}

#[derive(Debug)]
struct SeenLink {
    prefetch: u32,
    /// Bytes that had reached the broker when it ended; `None`: it is open.
    ended: Option<u64>,
    /// It was silent or its client did not read, so times say nothing.
    is_doubtful: bool,
    /// The latest first delivery of the messages of each producer's connection and priority.
    latest: BTreeMap<(ConnectionId, u8), u32>,
}

#[derive(Debug)]
struct QueueRules {
    address: String,
    saves: bool,
    durability: Durability,
    push: bool,
    /// The index of its dead-letter queue.
    dead_letter: Option<usize>,
}

/// The model, and everything that clients have seen so far.
#[derive(Debug)]
pub struct Oracle {
    queues: Vec<QueueRules>,
    messages: Vec<SeenMessage>,
    links: BTreeMap<ConnectionId, SeenLink>,
    has_faulty_disk: bool,
    findings: Vec<Finding>,
}

impl Oracle {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let index_of = |address: &String| scenario.queues.iter().position(|queue| queue.address == *address);
        let rules = scenario.queues.iter().map(|queue| QueueRules {
            address: queue.address.clone(),
            saves: queue.saves,
            durability: queue.promise,
            push: queue.status == Status::Push,
            dead_letter: queue.dead_letter.as_ref().and_then(|(_, address)| index_of(address)),
        });
        let queues = rules.collect();
        let (messages, findings) = (Vec::new(), Vec::new());
        Self { queues, messages, links: BTreeMap::new(), has_faulty_disk: false, findings }
    }

    /// The first broken promise.
    #[must_use]
    pub fn finding(&self) -> Option<&Finding> {
        self.findings.first()
    }

    pub(crate) fn find(&mut self, rule: &'static str, text: String) {
        self.findings.push(Finding { rule, text });
    }

    // ---- What happens ------------------------------------------------------------------------------------------

    pub(crate) fn opened(&mut self, link: ConnectionId, prefetch: u32) {
        let seen = SeenLink { prefetch, ended: None, is_doubtful: false, latest: BTreeMap::new() };
        self.links.insert(link, seen);
    }

    pub(crate) fn doubt(&mut self, link: ConnectionId) {
        if let Some(link) = self.links.get_mut(&link) {
            link.is_doubtful = true;
        }
    }

    /// Disks have faults from now on, or no longer.
    pub(crate) fn doubt_rejections(&mut self, has_faulty_disk: bool) {
        self.has_faulty_disk = has_faulty_disk;
        if has_faulty_disk {
            for message in &mut self.messages {
                message.may_return |= self.queues[message.queue].dead_letter.is_some();
            }
        }
    }

    /// The broker refuses what a client needs before it can publish or consume.
    pub(crate) fn refused(&mut self, text: String) {
        if !self.has_faulty_disk {
            self.find("refused", text);
        }
    }

    /// A connection ended. `arrived`: bytes that had reached the broker.
    pub(crate) fn closed(&mut self, link: ConnectionId, arrived: u64) {
        if let Some(link) = self.links.get_mut(&link) {
            link.ended.get_or_insert(arrived);
        }
    }

    /// The broker ended. The caller reports the ends of connections.
    pub(crate) fn ended(&mut self, ending: Ending) {
        for message in &mut self.messages {
            let QueueRules { saves, durability, .. } = self.queues[message.queue];
            let safe = match (ending, durability) {
                (Ending::Stopped, _) => saves,
                (Ending::Killed, durability) => saves && durability != Durability::None,
                (Ending::PowerLost, durability) => saves && durability == Durability::Fsync,
            };
            message.is_unsafe |= !safe;
            message.may_be_doubled |= self.queues[message.queue].dead_letter.is_some();
        }
    }

    /// A client publishes. Returns the number of the message.
    pub(crate) fn published(
        &mut self,
        queue: usize,
        link: ConnectionId,
        terms: PublishTerms,
        at: Micros,
    ) -> u32 {
        self.messages.push(SeenMessage {
            queue,
            link,
            at,
            terms,
            answer: None,
            is_unsafe: false,
            is_over: false,
            is_doubtful: false,
            may_be_doubled: false,
            may_return: self.has_faulty_disk && self.queues[queue].dead_letter.is_some(),
            deliveries: Vec::new(),
        });
        self.messages.len() as u32 - 1
    }

    pub(crate) fn answered(&mut self, label: u32, confirmed: bool) {
        if let Some(message) = self.messages.get_mut(label as usize) {
            message.answer = Some(confirmed);
            message.is_doubtful = self.has_faulty_disk;
        }
    }

    /// A consumer sends an acknowledgement or a rejection, which ends at `offset` of its connection's stream.
    pub(crate) fn settled(&mut self, label: u32, link: ConnectionId, positive: bool, offset: u64) {
        let delivery = self
            .messages
            .get_mut(label as usize)
            .and_then(|message| message.deliveries.iter_mut().rev().find(|delivery| delivery.link == link));
        if let Some(delivery) = delivery {
            delivery.outcome = Some(SeenOutcome { positive, offset });
        }
    }

    /// Whether a message was published to this queue, so that its delivery there is not that of a dead letter.
    pub(crate) fn is_of(&self, label: u32, queue: usize) -> bool {
        self.messages.get(label as usize).is_none_or(|message| message.queue == queue)
    }

    /// A consumer of a queue receives a message. `repeated`: the broker says that this is not the first attempt.
    pub(crate) fn delivered(
        &mut self,
        label: u32,
        queue: usize,
        link: ConnectionId,
        repeated: bool,
        now: Micros,
    ) {
        let Some(message) = self.messages.get(label as usize) else {
            return self.find("phantom", format!("message {label} was never published"));
        };
        let address = self.queues[message.queue].address.clone();
        if !self.way(message.queue).any(|on_its_way| on_its_way == queue) {
            let other = &self.queues[queue].address;
            return self.find("phantom", format!("{other} delivers message {label} of {address}"));
        }
        if message.answer == Some(false) && !message.is_doubtful {
            self.find("rejected", format!("{address} delivers message {label}, which it rejected"));
        } else if message.is_over {
            if !message.may_return {
                let text = format!("{address} delivers message {label} after it was settled");
                self.find("settled-returns", text);
            }
        } else if let Some(why) = self.doubled(message, queue, link, now) {
            self.find("doubled", format!("{address} delivers message {label} again: {why}"));
        }
        if self.messages[label as usize].queue == queue {
            self.check_time(label, link, now);
            self.check_order(label, link, repeated);
        }
        if let Some(message) = self.messages.get_mut(label as usize) {
            message.deliveries.push(SeenDelivery { link, at: now, outcome: None });
        }
        self.check_prefetch(queue, link, now);
    }

    // ---- Rules -------------------------------------------------------------------------------------------------

    /// The queue and those to which its messages move as dead letters.
    fn way(&self, queue: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(queue), |queue| self.queues[*queue].dead_letter)
    }

    /// Why an earlier delivery forbids another one now.
    fn doubled(
        &self,
        message: &SeenMessage,
        queue: usize,
        link: ConnectionId,
        now: Micros,
    ) -> Option<String> {
        // A client that did not read may receive now what was sent before the earlier delivery.
        if message.may_be_doubled
            || message.may_return
            || self.links.get(&link).is_some_and(|link| link.is_doubtful)
        {
            return None;
        }
        let push = self.queues[message.queue].push || self.queues[queue].push;
        let row = message.deliveries.iter().filter(|delivery| !push || delivery.link == link);
        let open = row.filter(|delivery| {
            self.links.get(&delivery.link).is_some_and(|link| link.ended.is_none() && !link.is_doubtful)
        });
        let mut unreasoned = open.filter(|delivery| {
            let rejected = delivery.outcome.as_ref().is_some_and(|outcome| !outcome.positive);
            !rejected && now + TRANSIT_MAX < delivery.at + ACKNOWLEDGE_TIMEOUT
        });
        let delivery = unreasoned.next()?;
        let state = if delivery.outcome.is_some() { "was settled" } else { "has it in flight" };
        Some(format!(
            "connection {} received it {} us ago and {state}",
            delivery.link.0,
            now.saturating_sub(delivery.at)
        ))
    }

    fn check_time(&mut self, label: u32, link: ConnectionId, now: Micros) {
        let message = &self.messages[label as usize];
        let PublishTerms { delay_ms, expires_ms, .. } = message.terms;
        let age = now - message.at;
        let address = &self.queues[message.queue].address;
        // The broker counts whole milliseconds.
        if age + 1_000 < delay_ms * 1_000 {
            let text = format!("{address} delivers message {label} after {age} us, delay {delay_ms} ms");
            return self.find("early", text);
        }
        let is_doubtful = self.links.get(&link).is_some_and(|link| link.is_doubtful);
        // It may be on its way to the broker, and then to the consumer, for some time.
        if expires_ms > 0 && !is_doubtful && age > expires_ms * 1_000 + 2 * TRANSIT_MAX {
            let text = format!("{address} delivers message {label} after {age} us, expiry {expires_ms} ms");
            self.find("late", text);
        }
    }

    fn check_order(&mut self, label: u32, link: ConnectionId, repeated: bool) {
        let message = &self.messages[label as usize];
        if repeated || !message.deliveries.is_empty() || message.terms.delay_ms > 0 {
            return;
        }
        let (queue, producer) = (message.queue, (message.link, message.terms.priority));
        let Some(seen) = self.links.get_mut(&link) else { return };
        let latest = seen.latest.entry(producer).or_insert(label);
        let earlier = *latest;
        *latest = earlier.max(label);
        if earlier > label {
            let address = &self.queues[queue].address;
            let text =
                format!("{address} delivers message {label} for the first time after message {earlier}");
            self.find("order", text);
        }
    }

    fn check_prefetch(&mut self, queue: usize, link: ConnectionId, now: Micros) {
        let Some(seen) = self.links.get(&link).filter(|link| !link.is_doubtful) else { return };
        let in_flight = self.messages.iter().filter(|message| {
            let mine = message.deliveries.iter().rev().find(|delivery| delivery.link == link);
            mine.is_some_and(|delivery| {
                delivery.outcome.is_none() && now + TRANSIT_MAX < delivery.at + ACKNOWLEDGE_TIMEOUT
            })
        });
        let (in_flight, prefetch) = (in_flight.count(), seen.prefetch as usize);
        if in_flight > prefetch {
            let address = &self.queues[queue].address;
            let text = format!(
                "connection {} has {in_flight} unsettled messages of {address}, prefetch {prefetch}",
                link.0
            );
            self.find("prefetch", text);
        }
    }

    /// A calm ends. `served`: the queues that had a working consumer all the time.
    pub(crate) fn calm(&mut self, served: &[bool]) {
        for label in 0..self.messages.len() {
            let message = &self.messages[label];
            let address = &self.queues[message.queue].address;
            let link = self.links.get(&message.link);
            if message.answer.is_none() && link.is_some_and(|link| link.ended.is_none() && !link.is_doubtful)
            {
                let text = format!("{address} never answers message {label}");
                self.find("unanswered", text);
                continue;
            }
            if !self.way(message.queue).all(|queue| served[queue]) {
                continue;
            }
            let settled = message.deliveries.iter().any(|delivery| {
                let ended = self.links.get(&delivery.link).and_then(|link| link.ended);
                let arrived = |outcome: &SeenOutcome| ended.is_none_or(|total| outcome.offset <= total);
                delivery.outcome.as_ref().is_some_and(|outcome| outcome.positive && arrived(outcome))
            });
            let expires = message.terms.expires_ms > 0;
            if message.answer == Some(true) && !message.is_unsafe && !settled && !expires {
                let count = message.deliveries.len();
                let text = format!(
                    "{address} confirmed message {label}, delivered it {count} times, and has no more"
                );
                self.find("lost", text);
            }
            self.messages[label].is_over = true;
        }
    }
}

#[cfg(test)]
mod tests;
