//! Metrics of single queues, which appear only on request.

use mqcore_broker::model::stats::QueueInformation;

use super::messages::FIRST_OF_PROCESSING;
use super::{Metric, MetricSources, Samples, Value, counter, gauge, histogram};

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
    counter("mqcore_queue_acks_total", "Positive acknowledgements.", |source, samples| {
        each_queue(source, samples, |queue| queue.stats.acks);
    }),
    counter(
        "mqcore_queue_nacks_total",
        "Negative acknowledgements and acknowledgement timeouts.",
        |source, samples| each_queue(source, samples, |queue| queue.stats.negative_acks),
    ),
    counter("mqcore_queue_put_back_total", "Messages that were requeued.", |source, samples| {
        each_queue(source, samples, |queue| queue.stats.requeued);
    }),
    counter(
        "mqcore_queue_dead_lettered_total",
        "Messages that moved to a dead-letter queue.",
        |source, samples| each_queue(source, samples, |queue| queue.stats.dead_lettered),
    ),
    counter(
        "mqcore_queue_rejected_total",
        "Messages that were not accepted, because of a limit, the status of the queue or its storage.",
        |source, samples| each_queue(source, samples, |queue| queue.stats.rejected),
    ),
    histogram(
        "mqcore_queue_processing_seconds",
        "Time from the delivery of a message to its positive acknowledgement.",
        |source, samples| {
            for queue in first_queues(source) {
                if let Some(times) = &queue.processed_in {
                    samples.labeled("queue", &queue.queue, Value::Durations(times, FIRST_OF_PROCESSING));
                }
            }
        },
    ),
    gauge("mqcore_queue_consumers", "Consumers.", |source, samples| {
        each_queue(source, samples, |queue| queue.consumers.into());
    }),
    gauge(
        "mqcore_queue_oldest_seconds",
        "How long the oldest of the messages next in turn has waited; 0: none waits.",
        |source, samples| {
            let now = source.hub.clock.now().0;
            for queue in first_queues(source) {
                let waited = if queue.oldest_ms == 0 { 0 } else { now.saturating_sub(queue.oldest_ms) };
                samples.labeled("queue", &queue.queue, waited as f64 / 1000.0);
            }
        },
    ),
];

/// The first queues by name, so that the selection is stable.
fn first_queues(source: &MetricSources) -> Vec<&QueueInformation> {
    let mut queues: Vec<&QueueInformation> = source.snapshot.queues.iter().collect();
    queues.sort_unstable_by(|left, right| left.queue.cmp(&right.queue));
    queues.truncate(QUEUES_MAX);
    queues
}

/// One sample for each of them.
fn each_queue(source: &MetricSources, samples: &mut Samples<'_>, value: fn(&QueueInformation) -> u64) {
    for queue in first_queues(source) {
        samples.labeled("queue", &queue.queue, value(queue));
    }
}
