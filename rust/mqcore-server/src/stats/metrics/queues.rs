//! Metrics of single queues, which appear only on request.

use mqcore_broker::model::stats::QueueInformation;

use super::{Metric, MetricSources, Samples, counter, gauge};

/// Maximum queues listed.
pub(crate) const QUEUES_MAX: usize = 500;

pub(super) const METRICS: &[Metric] = &[
    gauge("mqcore_queue_ready", "Messages that wait in the queue for a consumer.", |source, samples| {
        each_queue(source, samples, |queue| queue.high_priority + queue.normal);
    }),
    gauge(
        "mqcore_queue_delayed",
        "Messages that wait in the queue for the time of their next delivery; included in ready.",
        |source, samples| each_queue(source, samples, |queue| queue.delayed),
    ),
    gauge(
        "mqcore_queue_next_attempt_seconds",
        "When the first of them is delivered again, in Unix time; 0: there is none.",
        |source, samples| each_queue(source, samples, |queue| queue.next_attempt_ms / 1000),
    ),
    gauge("mqcore_queue_unacked", "Deliveries in flight: delivered and not settled.", |source, samples| {
        each_queue(source, samples, |queue| queue.in_flight);
    }),
    gauge("mqcore_queue_bytes", "Bytes of messages that are ready or in flight.", |source, samples| {
        each_queue(source, samples, |queue| queue.memory_bytes);
    }),
    counter("mqcore_queue_in_total", "Messages accepted from producers.", |source, samples| {
        each_queue(source, samples, |queue| queue.stats.received);
    }),
    counter("mqcore_queue_out_total", "Deliveries.", |source, samples| {
        each_queue(source, samples, |queue| queue.stats.deliveries);
    }),
];

/// One sample for each of the first queues by name, so that the selection is stable.
fn each_queue(source: &MetricSources<'_>, samples: &mut Samples<'_>, value: fn(&QueueInformation) -> u64) {
    let mut queues: Vec<&QueueInformation> = source.snapshot.queues.iter().collect();
    queues.sort_unstable_by(|left, right| left.queue.cmp(&right.queue));
    queues.truncate(QUEUES_MAX);
    for queue in queues {
        samples.labeled("queue", &queue.queue, value(queue));
    }
}
