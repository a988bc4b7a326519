//! Messages as producers publish them: their copies for queues, and the answers to them.

use std::ops::Range;

use mqcore_broker::model::id::ConnectionId;
use mqcore_broker::model::router::RouterMethod;

use super::schedules::RunDelivery;
use super::{Oracle, SeenMessage};
use crate::scenario::{PublishTerms, RouteKind, Target};
use crate::time::Micros;

/// The connection of runs of schedules, which no client has.
const SCHEDULER: ConnectionId = ConnectionId(0);

/// A publish of a client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SeenPublish {
    pub(crate) target: Target,
    pub(crate) link: ConnectionId,
    pub(crate) terms: PublishTerms,
    /// Bytes of its body.
    pub(crate) size: usize,
    /// Whether the broker has to answer it. Some protocols confirm, and have no answer for what is rejected.
    pub(crate) is_answered: bool,
}

/// A message as its producer published it. Its number is its place.
#[derive(Debug)]
pub(super) struct SeenLabel {
    /// The connection that published it.
    pub(super) link: ConnectionId,
    pub(super) at: Micros,
    pub(super) target: Target,
    /// Its copies for queues, by their places.
    pub(super) copies: Range<usize>,
    /// Whether it was confirmed.
    pub(super) is_confirmed: bool,
    /// About how many bytes its receivers get together.
    pub(super) bytes: usize,
}

impl Oracle {
    /// A client publishes a message. Returns its number.
    pub(crate) fn published(&mut self, publish: SeenPublish, at: Micros) -> u32 {
        let SeenPublish { target, link, terms, size, is_answered } = publish;
        let label = self.labels.len() as u32;
        let queues = match target {
            Target::Queue(queue) => vec![vec![queue]],
            Target::Route(route) if self.takes_one(route) => vec![self.routes[route].queues.clone()],
            Target::Route(route) => self.routes[route].queues.iter().map(|queue| vec![*queue]).collect(),
        };
        let begin = self.messages.len();
        let bytes = (size + 200) * queues.len();
        for queues in queues {
            let mut message = SeenMessage {
                label,
                queues,
                target,
                link,
                at,
                terms,
                answer: None,
                answered: None,
                is_answered,
                is_unsafe: !self.is_defined(target),
                is_handed_on: false,
                is_timeless: false,
                may_wait: false,
                is_repeated: false,
                was_moved: false,
                was_cleared: false,
                is_forwarded: false,
                runs_once: false,
                key: None,
                is_over: false,
                is_undone: false,
                is_doubtful: false,
                may_be_doubled: false,
                may_return: false,
                deliveries: Vec::new(),
            };
            // A move that has begun may take it with it.
            for first in message.queues.clone() {
                let reached = self.reached_from(first);
                reached.into_iter().filter(|to| *to != first).for_each(|to| message.may_be_in(to));
            }
            message.may_return = self.has_faulty_disk && message.has_dead_letters(&self.queues);
            self.messages.push(message);
        }
        let copies = begin..self.messages.len();
        self.labels.push(SeenLabel { link, at, target, copies, is_confirmed: false, bytes });
        label
    }

    /// A worker receives a run of a schedule. Returns the number of its message, which counts as published and confirmed before
    /// its first delivery. `None`: there is no such schedule.
    pub(crate) fn run_delivered(&mut self, run: RunDelivery, now: Micros, system_ms: u64) -> Option<u32> {
        if let Some(label) = self.schedules.label(run) {
            return Some(label);
        }
        let Some(queue) = self.schedules.queue(run.schedule) else {
            self.find("phantom", format!("{run:?} was never scheduled"));
            return None;
        };
        let target = Target::Queue(queue);
        let terms = PublishTerms::default();
        let publish = SeenPublish { target, link: SCHEDULER, terms, size: 0, is_answered: false };
        let label = self.published(publish, now);
        self.answered(label, 0, true, now);
        if let Some(text) = self.schedules.ran(run, label, now, system_ms) {
            self.find("schedule", text);
        }
        Some(label)
    }

    /// A client publishes a message again, with the same id, to a queue that drops duplicates.
    pub(crate) fn republished(&mut self, label: u32, link: ConnectionId) {
        let seen = &mut self.labels[label as usize];
        seen.link = link;
        for message in &mut self.messages[seen.copies.clone()] {
            if message.is_unsafe {
                // The queue may have forgotten its id, and then takes it as a new message.
                message.is_over = false;
                message.may_be_doubled = true;
                message.is_unsafe = message.was_cleared || !message.deliveries.is_empty();
            }
            // A queue that rejected it, or that it never reached, may take it now.
            message.is_over &= message.answer == Some(true);
            message.link = link;
            message.is_repeated = true;
            // The times of a message that is taken anew begin anew.
            message.is_timeless = true;
            message.is_doubtful |= message.answer == Some(false);
            if message.answer != Some(true) || !message.is_unsafe {
                message.answer = None;
            }
        }
    }

    /// The broker confirms the definition of a route.
    pub(crate) fn defined(&mut self, route: usize) {
        self.defined[route] = true;
    }

    /// A producer is answered. `part`: the copy that is confirmed, if each is confirmed on its own.
    pub(crate) fn answered(&mut self, label: u32, part: usize, confirmed: bool, now: Micros) {
        let Some(seen) = self.labels.get_mut(label as usize) else { return };
        let kind = match seen.target {
            Target::Queue(_) => None,
            Target::Route(route) => Some(self.routes[route].kind),
        };
        seen.is_confirmed |= confirmed;
        let copies = seen.copies.clone();
        let may_reject =
            |message: &SeenMessage| message.queues.iter().any(|queue| self.queues[*queue].may_reject);
        let may_reject = self.messages[copies.clone()].iter().any(may_reject);
        let awaits_handler = |queue: &usize| self.queues[*queue].awaits_handler;
        for (index, copy) in copies.enumerate() {
            let message = &mut self.messages[copy];
            match kind {
                Some(RouteKind::Copies) if index != part => continue,
                // Some queues may have taken it although others did not.
                Some(RouteKind::Topic { .. }) => {
                    message.is_doubtful |= !confirmed;
                    message.is_unsafe |= may_reject;
                }
                Some(RouteKind::Router(RouterMethod::Distribute)) => {
                    message.is_handed_on = index > 0;
                    // If the queue that confirms does not take it, the router answers for the others.
                    // It does not report that another queue rejects the message.
                    let awaits_handler = message.queues.iter().any(awaits_handler);
                    message.is_unsafe |= self.has_faulty_disk || may_reject || awaits_handler;
                    message.is_doubtful |= !confirmed && index > 0;
                }
                _ => {}
            }
            message.answer = Some(confirmed);
            message.answered = Some(now);
            message.is_doubtful |= self.has_faulty_disk || message.is_repeated;
        }
    }

    /// A job may run once: the broker gives it to one worker, and does not wait for its result.
    pub(crate) fn runs_once(&mut self, label: u32) {
        let copies = self.labels[label as usize].copies.clone();
        self.messages[copies].iter_mut().for_each(|message| message.runs_once = true);
    }

    /// A job has a key.
    pub(crate) fn keyed(&mut self, label: u32, key: u32) {
        let copies = self.labels[label as usize].copies.clone();
        self.messages[copies].iter_mut().for_each(|message| message.key = Some(key));
    }

    pub(crate) fn key_of(&self, label: u32) -> Option<u32> {
        self.copies(label).first().and_then(|message| message.key)
    }

    pub(crate) fn is_run_once(&self, label: u32) -> bool {
        self.copies(label).iter().any(|message| message.runs_once)
    }

    /// A downstream broker keeps a message until it is confirmed.
    pub(crate) fn forwarded(&mut self, label: u32) {
        let copies = self.labels[label as usize].copies.clone();
        self.messages[copies].iter_mut().for_each(|message| message.is_forwarded = true);
    }

    /// A message of a downstream broker is confirmed: the queue has saved it, or has rejected it for good.
    pub(crate) fn accepted(&mut self, label: u32, now: Micros) {
        let seen = &mut self.labels[label as usize];
        seen.is_confirmed = true;
        for copy in seen.copies.clone() {
            let may_reject = self.messages[copy].queues.iter().any(|queue| self.queues[*queue].may_reject);
            let message = &mut self.messages[copy];
            message.answer = Some(true);
            message.answered = Some(now);
            message.is_unsafe |= may_reject;
            message.is_doubtful |= self.has_faulty_disk;
        }
    }

    /// A downstream broker has lost a message that was not confirmed.
    pub(crate) fn forgotten(&mut self, label: u32) {
        for message in &mut self.messages[self.labels[label as usize].copies.clone()] {
            message.is_forwarded = false;
            message.is_answered = false;
            message.is_unsafe = true;
        }
    }

    /// The copies of a message.
    pub(super) fn copies(&self, label: u32) -> &[SeenMessage] {
        self.labels.get(label as usize).map_or(&[], |seen| &self.messages[seen.copies.clone()])
    }

    /// The copy of a message that a queue may deliver, also as a dead letter.
    pub(super) fn copy_for(&self, label: u32, queue: usize) -> Option<usize> {
        let mut copies = self.labels.get(label as usize)?.copies.clone();
        copies.find(|copy| {
            let mut ways = self.messages[*copy].queues.iter().flat_map(|first| self.way(*first));
            ways.any(|step| step == queue)
        })
    }

    /// Whether one of the queues of a route gets a message. Otherwise all do.
    fn takes_one(&self, route: usize) -> bool {
        let one = [RouterMethod::OnlyFirst, RouterMethod::RoundRobin];
        matches!(self.routes[route].kind, RouteKind::Router(method) if one.contains(&method))
    }

    fn is_defined(&self, target: Target) -> bool {
        match target {
            Target::Queue(_) => true,
            Target::Route(route) => self.routes[route].kind == RouteKind::Copies || self.defined[route],
        }
    }
}
