//! Subscribers of topics and consumers of broadcast queues, which receive each message once, and readers of caches.

use std::collections::BTreeMap;

use mqcore_broker::model::id::ConnectionId;
use mqcore_broker::model::options::Status;

use super::labels::SeenLabel;
use super::{Oracle, SETTLED_AFTER};
use crate::scenario::Target;
use crate::time::Micros;

/// The messages that a connection received which gets each of them.
#[derive(Debug)]
pub(super) struct SeenFanout {
    target: Target,
    /// Since when it must hear everything.
    since: Micros,
    /// How often it heard each message.
    heard: BTreeMap<u32, u32>,
    /// The latest message of each producer's connection.
    latest: BTreeMap<ConnectionId, u32>,
}

impl Oracle {
    /// A connection hears everything from now on that is published to a topic or a broadcast queue.
    pub(crate) fn listens(&mut self, link: ConnectionId, target: Target, now: Micros) {
        let fans_out = match target {
            Target::Queue(queue) => self.queues[queue].status == Status::Broadcast,
            Target::Route(_) => true,
        };
        if let Some(seen) = self.links.get_mut(&link).filter(|_| fans_out) {
            let (heard, latest) = (BTreeMap::new(), BTreeMap::new());
            seen.fanout = Some(SeenFanout { target, since: now, heard, latest });
        }
    }

    /// A connection that listens hears a message.
    pub(crate) fn heard(&mut self, label: u32, target: Target, link: ConnectionId) {
        let Some(message) = self.labels.get(label as usize) else {
            return self.find("phantom", format!("a subscriber receives message {label}, never published"));
        };
        if message.target != target {
            return self.find("phantom", format!("a subscriber receives message {label} of another topic"));
        }
        let producer = message.link;
        let Some(fanout) = self.links.get_mut(&link).and_then(|seen| seen.fanout.as_mut()) else { return };
        let count = fanout.heard.entry(label).or_default();
        *count += 1;
        let is_repeated = *count > 1;
        let latest = fanout.latest.entry(producer).or_insert(label);
        let earlier = *latest;
        *latest = earlier.max(label);
        if is_repeated {
            self.find("doubled", format!("connection {} receives message {label} of a topic twice", link.0));
        } else if earlier > label {
            let text = format!("connection {} receives message {label} of a topic after {earlier}", link.0);
            self.find("order", text);
        }
    }

    /// A calm ends: what was confirmed before has reached everyone who listened.
    pub(super) fn check_fanout(&mut self) {
        let mut missed = Vec::new();
        for (link, seen) in &self.links {
            let Some(fanout) = seen.fanout.as_ref().filter(|_| seen.ended.is_none() && !seen.is_doubtful)
            else {
                continue;
            };
            // One that gets more at once may be too slow, and miss messages. It also gets what the broker takes late.
            let is_new = |message: &&SeenLabel| message.at + SETTLED_AFTER > fanout.since;
            let bytes: usize = self.labels.iter().filter(is_new).map(|message| message.bytes).sum();
            if bytes > self.output_bytes_max / 4 {
                continue;
            }
            let of_target = |label: &usize| {
                let message = &self.labels[*label];
                message.target == fanout.target && message.at >= fanout.since && message.is_confirmed
            };
            for label in (0..self.labels.len()).filter(of_target) {
                let message = &self.messages[self.labels[label].copies.start];
                let was_heard = fanout.heard.contains_key(&(label as u32))
                    || message.deliveries.iter().any(|delivery| delivery.link == *link);
                // It may expire while it waits for the decision of a handler about an earlier one.
                let has_handler = message.queues.iter().any(|queue| self.queues[*queue].has_handler);
                let may_expire = has_handler && message.terms.expires_ms > 0;
                if !was_heard && !message.is_repeated && !may_expire {
                    missed.push(format!("connection {} misses message {label}", link.0));
                }
            }
        }
        missed.into_iter().for_each(|text| self.find("missed", text));
    }

    /// A reader of a cache asked at `asked` and receives a message, or none.
    pub(crate) fn cached(&mut self, queue: usize, label: Option<u32>, asked: Micros) {
        let address = self.queues[queue].address.clone();
        if let Some(label) = label
            && self.copy_for(label, queue).is_none()
        {
            return self.find("phantom", format!("{address} caches message {label}, which is not for it"));
        }
        let shown = label.and_then(|label| self.copy_for(label, queue)).map(|copy| &self.messages[copy]);
        // A message that was published after the shown one was confirmed, and confirmed before the reader asked.
        let replaced = self.messages.iter().filter(|message| {
            message.queues == [queue]
                && message.answer == Some(true)
                && !message.is_unsafe
                && !message.is_handed_on
        });
        let mut replaced = replaced.filter(|message| {
            let terms = message.terms;
            let is_plain = terms.delay_ms == 0 && terms.expires_ms == 0 && !message.is_repeated;
            let is_newer =
                |shown: &super::SeenMessage| shown.answered.is_some_and(|answered| answered < message.at);
            is_plain
                && message.answered.is_some_and(|answered| answered < asked)
                && shown.is_none_or(is_newer)
        });
        let Some(newer) = replaced.next().map(|message| message.label) else { return };
        let expires =
            |message: &super::SeenMessage| message.terms.expires_ms > 0 && message.queues.contains(&queue);
        match label {
            Some(label) => {
                self.find("stale", format!("{address} caches message {label} instead of {newer}"));
            }
            // One that replaced it has expired.
            None if self.messages.iter().any(expires) => {}
            None => self.find("lost", format!("{address} confirmed message {newer}, and its cache is empty")),
        }
    }
}
