//! Statistics of a shard, collected in small steps between which the shard does its other work.

use std::collections::VecDeque;

use mqcore_broker::model::stats::{QueueSample, ShardStats};
use mqcore_broker::model::time::Timestamp;
use mqcore_broker::shard::Broker;
use mqcore_broker::shard::sampling::QueueSampling;
use mqcore_broker::shard::stats::StatsCollection;
use tokio::sync::oneshot;

/// A request for statistics, with the sender of its answer.
#[derive(Debug)]
pub(crate) enum StatisticsRequest {
    /// Everything, with lists of at most this many entries.
    Shard(usize, oneshot::Sender<ShardStats>),
    /// Samples of queues.
    Queues(QueueSampling, oneshot::Sender<Vec<QueueSample>>),
}

impl StatisticsRequest {
    /// A caller that has gone needs no answer.
    fn is_abandoned(&self) -> bool {
        match self {
            Self::Shard(_, reply) => reply.is_closed(),
            Self::Queues(_, reply) => reply.is_closed(),
        }
    }

    fn begin(self, broker: &mut Broker) -> Collecting {
        match self {
            Self::Shard(limit, reply) => Collecting::Shard(Box::new(broker.begin_stats(limit)), reply),
            Self::Queues(sampling, reply) => Collecting::Queues(sampling, reply),
        }
    }
}

/// A request that is being answered.
enum Collecting {
    Shard(Box<StatsCollection>, oneshot::Sender<ShardStats>),
    Queues(QueueSampling, oneshot::Sender<Vec<QueueSample>>),
}

impl Collecting {
    fn is_abandoned(&self) -> bool {
        match self {
            Self::Shard(_, reply) => reply.is_closed(),
            Self::Queues(_, reply) => reply.is_closed(),
        }
    }

    /// Takes a step. Returns whether it was the last one.
    fn step(&mut self, broker: &mut Broker, now: Timestamp) -> bool {
        match self {
            Self::Shard(collection, _) => broker.continue_stats(collection, now),
            Self::Queues(sampling, _) => broker.continue_sampling(sampling, now),
        }
    }

    fn answer(self) {
        // The caller may have gone meanwhile.
        match self {
            Self::Shard(collection, reply) => drop(reply.send(collection.into_stats())),
            Self::Queues(sampling, reply) => drop(reply.send(sampling.into_samples())),
        }
    }
}

/// Requests for statistics, answered one after the other.
#[derive(Default)]
pub(crate) struct Statistics {
    collecting: Option<Collecting>,
    waiting: VecDeque<StatisticsRequest>,
}

impl Statistics {
    pub(crate) fn ask(&mut self, request: StatisticsRequest) {
        self.waiting.push_back(request);
    }

    /// Takes one step. Returns whether there is another one to take.
    pub(crate) fn advance(&mut self, broker: &mut Broker, now: Timestamp) -> bool {
        self.collecting = self.collecting.take().filter(|collecting| !collecting.is_abandoned());
        while self.collecting.is_none()
            && let Some(request) = self.waiting.pop_front()
        {
            if !request.is_abandoned() {
                self.collecting = Some(request.begin(broker));
            }
        }
        let Some(mut collecting) = self.collecting.take() else { return false };
        if collecting.step(broker, now) {
            collecting.answer();
            return !self.waiting.is_empty();
        }
        self.collecting = Some(collecting);
        true
    }
}

#[cfg(test)]
mod tests {
    use mqcore_broker::model::config::BrokerConfig;

    use super::*;

    #[test]
    fn requests_that_arrive_together_are_all_answered_but_for_callers_that_have_gone() {
        let mut broker = Broker::new(BrokerConfig::default());
        let mut statistics = Statistics::default();
        let mut answers = Vec::new();
        for _ in 0..5 {
            let (reply, answer) = oneshot::channel();
            statistics.ask(StatisticsRequest::Shard(10, reply));
            answers.push(answer);
        }
        let (reply, mut samples) = oneshot::channel();
        statistics.ask(StatisticsRequest::Queues(QueueSampling::of_all(), reply));
        drop(answers.remove(2));
        while statistics.advance(&mut broker, Timestamp(0)) {}
        assert!(answers.iter_mut().all(|answer| answer.try_recv().is_ok()));
        assert_eq!(samples.try_recv(), Ok(Vec::new()));
    }

    #[test]
    fn nothing_is_left_to_do_without_a_request() {
        let mut broker = Broker::new(BrokerConfig::default());
        let mut statistics = Statistics::default();
        assert!(!statistics.advance(&mut broker, Timestamp(0)));
        let (reply, mut answer) = oneshot::channel();
        statistics.ask(StatisticsRequest::Shard(10, reply));
        let steps = (0..1_000).take_while(|_| statistics.advance(&mut broker, Timestamp(0))).count();
        assert!(steps < 10, "an empty shard is collected in a few steps: {steps}");
        assert!(answer.try_recv().is_ok());
    }
}
