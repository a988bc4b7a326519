//! Statistics of a shard, collected in small steps between which the shard does its other work.

use std::collections::VecDeque;

use mqcore_broker::model::stats::ShardStats;
use mqcore_broker::model::time::Timestamp;
use mqcore_broker::shard::Broker;
use mqcore_broker::shard::stats::StatsCollection;
use tokio::sync::oneshot;

/// Requests for statistics, answered one after the other.
#[derive(Default)]
pub(crate) struct Statistics {
    collecting: Option<(StatsCollection, oneshot::Sender<ShardStats>)>,
    waiting: VecDeque<(usize, oneshot::Sender<ShardStats>)>,
}

impl Statistics {
    /// Adds a request for lists of at most `limit` entries.
    pub(crate) fn ask(&mut self, limit: usize, reply: oneshot::Sender<ShardStats>) {
        self.waiting.push_back((limit, reply));
    }

    /// Takes one step. Returns whether there is another one to take.
    pub(crate) fn advance(&mut self, broker: &mut Broker, now: Timestamp) -> bool {
        // A caller that has gone needs no answer.
        self.collecting = self.collecting.take().filter(|(_, reply)| !reply.is_closed());
        while self.collecting.is_none()
            && let Some((limit, reply)) = self.waiting.pop_front()
        {
            if !reply.is_closed() {
                self.collecting = Some((broker.begin_stats(limit), reply));
            }
        }
        let Some((mut collection, reply)) = self.collecting.take() else { return false };
        if broker.continue_stats(&mut collection, now) {
            // The caller may have gone meanwhile.
            let _ = reply.send(collection.into_stats());
            return !self.waiting.is_empty();
        }
        self.collecting = Some((collection, reply));
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
            statistics.ask(10, reply);
            answers.push(answer);
        }
        drop(answers.remove(2));
        while statistics.advance(&mut broker, Timestamp(0)) {}
        assert!(answers.iter_mut().all(|answer| answer.try_recv().is_ok()));
    }

    #[test]
    fn nothing_is_left_to_do_without_a_request() {
        let mut broker = Broker::new(BrokerConfig::default());
        let mut statistics = Statistics::default();
        assert!(!statistics.advance(&mut broker, Timestamp(0)));
        let (reply, mut answer) = oneshot::channel();
        statistics.ask(10, reply);
        let steps = (0..1_000).take_while(|_| statistics.advance(&mut broker, Timestamp(0))).count();
        assert!(steps < 10, "an empty shard is collected in a few steps: {steps}");
        assert!(answer.try_recv().is_ok());
    }
}
