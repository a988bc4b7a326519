//! The rules about what may follow a delivery: another one, or none.

use mqcore_broker::model::id::ConnectionId;
use mqcore_broker::model::options::Status;

use super::{
    Oracle, QueueRules, SETTLED_AFTER, SeenDelivery, SeenLink, SeenMessage, SeenOutcome, TRANSIT_MAX,
};
use crate::scenario::ACKNOWLEDGE_TIMEOUT;
use crate::time::Micros;

impl Oracle {
    /// The client of a connection is a worker of EventMQ.
    pub(crate) fn works(&mut self, link: ConnectionId) {
        if let Some(link) = self.links.get_mut(&link) {
            link.is_worker = true;
        }
    }

    pub(super) fn is_worker(&self, link: ConnectionId) -> bool {
        self.links.get(&link).is_some_and(|link| link.is_worker)
    }

    /// A job that runs once is lost if its worker loses its connection before it has read the job.
    pub(super) fn risk_jobs(&mut self, link: ConnectionId) {
        if !self.is_worker(link) {
            return;
        }
        for copy in 0..self.messages.len() {
            let message = &self.messages[copy];
            let is_at_risk = message.runs_once && !self.has_run(message);
            self.messages[copy].is_unsafe |= is_at_risk;
        }
    }

    /// Whether a worker has received a job.
    pub(super) fn has_run(&self, message: &SeenMessage) -> bool {
        message.deliveries.iter().any(|delivery| self.is_worker(delivery.link))
    }

    pub(super) fn check_prefetch(&mut self, queue: usize, link: ConnectionId, now: Micros) {
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

    /// A worker receives a job: with it, workers run no more jobs with its key than they may.
    pub(super) fn check_key(&mut self, copy: usize, queue: usize, link: ConnectionId) {
        let Some((key, most)) = self.messages[copy].key.zip(self.queues[queue].concurrency) else { return };
        // A dead letter runs in another queue, which counts its own jobs.
        let runs = |delivery: &SeenDelivery| {
            let is_open = |link: &SeenLink| link.is_worker && link.ended.is_none() && !link.is_doubtful;
            delivery.queue == queue
                && delivery.outcome.is_none()
                && self.links.get(&delivery.link).is_some_and(is_open)
        };
        if !self.is_worker(link) {
            return;
        }
        let of_key = self.messages.iter().filter(|message| {
            message.key == Some(key) && message.queues == [queue] && message.deliveries.iter().any(runs)
        });
        let running = of_key.count();
        if running > most as usize {
            let address = &self.queues[queue].address;
            let text =
                format!("workers run {running} jobs of {address} with key {key} at a time, limit {most}");
            self.find("concurrency", text);
        }
    }

    /// Why an earlier delivery forbids another one now.
    pub(super) fn doubled(
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
        // A dead letter may have been in several queues. In one of them, several consumers may have received it.
        let passed = message.deliveries.iter().map(|delivery| &delivery.queue);
        let queues: Vec<&usize> = message.queues.iter().chain([&queue]).chain(passed).collect();
        let fans_out =
            |queue: &&usize| matches!(self.queues[**queue].status, Status::Push | Status::Broadcast);
        let push = queues.iter().any(fans_out);
        let is_reasoned = |delivery: &SeenDelivery| {
            let is_connected = |link: &SeenLink| link.ended.is_none() && !link.is_doubtful;
            let rejected = delivery.outcome.as_ref().is_some_and(|outcome| !outcome.positive);
            let timed_out = now + TRANSIT_MAX >= delivery.at + ACKNOWLEDGE_TIMEOUT;
            rejected || timed_out || !self.links.get(&delivery.link).is_some_and(is_connected)
        };
        let has_handler = queues.iter().any(|queue| self.queues[**queue].has_handler);
        if push && has_handler {
            return None;
        }
        if message.runs_once && !has_handler && self.has_run(message) {
            return Some("a worker has received it, and it runs once".to_owned());
        }
        let mut row = message.deliveries.iter().filter(|delivery| !push || delivery.link == link);
        let delivery = row.find(|delivery| !is_reasoned(delivery))?;
        let state = if delivery.outcome.is_some() { "was settled" } else { "has it in flight" };
        Some(format!(
            "connection {} received it {} us ago and {state}",
            delivery.link.0,
            now.saturating_sub(delivery.at)
        ))
    }

    /// Whether no crash may bring a message back: its settlement is synced by now. Only for queues that deliver a message to one
    /// consumer at a time, and drop it once that one has settled it.
    pub(super) fn is_gone(&self, message: &SeenMessage, now: Micros) -> bool {
        let is_simple = |queue: &usize| {
            let QueueRules { status, has_handler, dead_letter, .. } = &self.queues[*queue];
            matches!(status, Status::RoundRobin | Status::Pull) && !has_handler && dead_letter.is_none()
        };
        let Some(last) = message.deliveries.last().filter(|last| last.at + SETTLED_AFTER <= now) else {
            return false;
        };
        let Some(link) = self.links.get(&last.link).filter(|link| !link.is_doubtful) else { return false };
        let arrived = |outcome: &SeenOutcome| link.ended.is_none_or(|total| outcome.offset <= total);
        !self.has_faulty_disk
            && !message.is_repeated
            && !message.is_undone
            && message.queues.iter().all(is_simple)
            && (message.runs_once && link.is_worker
                || last.outcome.as_ref().is_some_and(|outcome| outcome.positive && arrived(outcome)))
    }

    pub(super) fn is_settled(&self, message: &SeenMessage) -> bool {
        if message.runs_once && self.has_run(message) {
            return true;
        }
        message.deliveries.iter().any(|delivery| {
            let ended = self.links.get(&delivery.link).and_then(|link| link.ended);
            let arrived = |outcome: &SeenOutcome| ended.is_none_or(|total| outcome.offset <= total);
            delivery.outcome.as_ref().is_some_and(|outcome| outcome.positive && arrived(outcome))
        })
    }
}
