//! How a client publishes messages, in each protocol.

use super::body::{self, message_id};
use super::eventmq::EventMqSide;
use super::{Dialect, SimulatedPeer, mqks, throttr, tmqp};
use crate::oracle::labels::SeenPublish;
use crate::scenario::{ClientRole, PublishTerms, RouteKind, Target};
use crate::scene::Scene;

/// The key of a job, in a queue whose jobs have keys. Every third has none.
fn key_of(label: u32) -> Option<u32> {
    (label % 3 < 2).then_some(label % 3)
}

impl SimulatedPeer {
    /// The event to which an MQKS client publishes.
    pub(super) fn event(&self) -> String {
        match (&self.route, self.terms.role) {
            (Some((index, route)), _) => route.name(*index),
            (None, ClientRole::Producer(Target::Queue(queue))) => format!("event{queue}"),
            _ => String::new(),
        }
    }

    /// Publishes a message, if the connection is ready for it.
    pub(crate) fn publish(&mut self, size: usize, terms: PublishTerms, scene: &mut Scene) {
        if self.is_node() {
            return self.forward(size, scene);
        }
        let ClientRole::Producer(target) = self.terms.role else { return };
        let Some(link) = self.link.as_ref().filter(|link| link.is_ready) else { return };
        if matches!(&link.dialect, Dialect::MicroMessage(side) if !side.has_room()) {
            return;
        }
        let has_terms = matches!(link.dialect, Dialect::Tmqp { .. });
        let terms = if has_terms { terms } else { PublishTerms::default() };
        let is_answered = !matches!(link.dialect, Dialect::EventMq(_) | Dialect::Throttr);
        let publish = SeenPublish { target, link: link.id, terms, size, is_answered };
        let label = scene.oracle.published(publish, scene.now);
        scene.note(format_args!("client {} publishes {}", self.index, message_id(label, 0)));
        self.published.push((label, size, terms));
        if self.requests_jobs() {
            if self.random.one_in(3) {
                scene.oracle.runs_once(label);
            }
            if let Some(key) = self.concurrency.and_then(|_| key_of(label)) {
                scene.note(format_args!("{} has key {key}", message_id(label, 0)));
                scene.oracle.keyed(label, key);
            }
        }
        self.send_message(label, size, terms, scene);
    }

    /// Whether its messages are jobs for a queue.
    fn requests_jobs(&self) -> bool {
        let dialect = self.link.as_ref().map(|link| &link.dialect);
        matches!(dialect, Some(Dialect::EventMq(_))) && self.route.is_none()
    }

    /// Requests its schedule, or ends it, if it is connected.
    pub(crate) fn plan(&mut self, begins: bool, scene: &mut Scene) {
        let (ClientRole::Planner(schedule), Some(terms)) = (self.terms.role, self.schedule) else { return };
        let Some(link) = self.link.as_ref().filter(|link| link.is_ready) else { return };
        let id = link.id;
        scene.note(format_args!("client {} requests schedule {schedule}: {begins}", self.index));
        let is_doubtful = scene.network.is_silent(id);
        let times = (scene.now, scene.system_ms());
        scene.oracle.schedules.requested(schedule, id, begins, is_doubtful, times);
        self.send(&EventMqSide::schedule(&self.address(), schedule, &terms, begins), scene);
    }

    /// Publishes its latest messages again, if its queue drops duplicates.
    pub(crate) fn republish(&mut self, count: u32, scene: &mut Scene) {
        let is_direct = self.route.is_none() && self.deduplicates;
        let Some(link) = self.link.as_ref().filter(|link| link.is_ready && is_direct) else { return };
        if !matches!(link.dialect, Dialect::Tmqp { .. }) {
            return;
        }
        let id = link.id;
        let from = self.published.len().saturating_sub(count as usize);
        for index in from..self.published.len() {
            let (label, size, terms) = self.published[index];
            scene.note(format_args!("client {} publishes {} again", self.index, message_id(label, 0)));
            scene.oracle.republished(label, id);
            self.send_message(label, size, terms, scene);
        }
    }

    fn send_message(&mut self, label: u32, size: usize, terms: PublishTerms, scene: &mut Scene) {
        let (address, event, body) = (self.address(), self.event(), body::body(label, size));
        let others: Vec<&str> = self.addresses.iter().skip(1).map(|address| &**address).collect();
        let Some(link) = &mut self.link else { return };
        let bytes = match (&mut link.dialect, &self.route) {
            (Dialect::MicroMessage(side), None) => side.publish(label, &address, &body),
            (Dialect::MicroMessage(side), Some((index, route))) => {
                side.publish(label, &format!("topic/{}", route.name(*index)), &body)
            }
            (Dialect::Mqks(_), _) => mqks::publish(&event, label, &body),
            (Dialect::EventMq(_), None) => {
                let key = scene.oracle.key_of(label).zip(self.concurrency);
                EventMqSide::request(&address, label, &body, !scene.oracle.is_run_once(label), key)
            }
            (Dialect::EventMq(_), Some((index, route))) => {
                EventMqSide::publish(&route.name(*index), label, &body)
            }
            (Dialect::Limit(_) | Dialect::Node { .. }, _) => return,
            (Dialect::Throttr, _) => throttr::publish(&event, &body),
            (Dialect::Tmqp { .. }, route) => {
                let destination = match route {
                    None => tmqp::Destination::Queue(&self.channel, self.queue_id),
                    Some((index, route)) => match route.kind {
                        RouteKind::Topic { .. } => tmqp::Destination::Topic(route.name(*index)),
                        RouteKind::Router(_) => tmqp::Destination::Router(route.name(*index)),
                        RouteKind::Copies => tmqp::Destination::Copies(&self.channel, self.queue_id, &others),
                    },
                };
                tmqp::publish(&destination, label, terms, &body)
            }
        };
        self.send(&bytes, scene);
    }
}
