//! Messages, topics, routers, and questions to handlers.

use mqcore_broker::model::durations::BOUNDS;
use mqcore_broker::model::rejection::RejectReason;
use mqcore_broker::model::stats::{DropReason, RouterCounts};

use super::{Metric, MetricSources, Value, counter, gauge, histogram};
use crate::handler::HandlerTimes;

/// The first bound of processing times: shards measure them in milliseconds.
pub(super) const FIRST_OF_PROCESSING: usize = 6;
const _: () = assert!(BOUNDS[FIRST_OF_PROCESSING] == 1_000);

pub(super) const METRICS: &[Metric] = &[
    counter(
        "mqcore_messages_total",
        "Messages, by what happened to them; out counts deliveries.",
        |source, samples| {
            let stats = &source.queue_stats;
            for (outcome, count) in [
                ("in", stats.received),
                ("out", stats.deliveries),
                ("ack", stats.acks),
                ("nack", stats.negative_acks),
                ("redelivered", stats.requeued),
                ("expired", stats.timed_out),
                ("dropped", stats.dropped.iter().sum()),
                ("dead", stats.dead_lettered),
                ("moved", stats.moved),
                ("saved", stats.saved),
                ("save-failed", stats.save_failed),
            ] {
                samples.labeled("outcome", outcome, count);
            }
        },
    ),
    counter(
        "mqcore_messages_dropped_total",
        "Dropped messages, by reason; slow counts deliveries.",
        |source, samples| {
            for reason in DropReason::ALL {
                let count = source.queue_stats.dropped[reason as usize];
                samples.labeled("reason", reason.as_str(), count);
            }
        },
    ),
    counter(
        "mqcore_messages_rejected_total",
        "Published messages that their queue did not accept, by reason.",
        |source, samples| {
            for reason in RejectReason::ALL {
                let count = source.queue_stats.rejected_by[reason as usize];
                samples.labeled("reason", reason.as_str(), count);
            }
        },
    ),
    gauge("mqcore_messages_ready", "Messages that wait in queues for a consumer.", |source, samples| {
        samples.value(source.snapshot.totals.ready)
    }),
    gauge(
        "mqcore_messages_delayed",
        "Messages that wait in queues for the time of their next delivery; included in ready.",
        |source, samples| samples.value(source.snapshot.totals.delayed),
    ),
    gauge(
        "mqcore_messages_unacked",
        "Deliveries in flight: delivered and not settled.",
        |source, samples| samples.value(source.snapshot.totals.in_flight),
    ),
    gauge(
        "mqcore_messages_undecided",
        "Messages that wait for the decision of a handler.",
        |source, samples| samples.value(source.snapshot.totals.undecided),
    ),
    gauge(
        "mqcore_messages_bytes",
        "Bytes of messages that are ready, in flight or undecided.",
        |source, samples| samples.value(source.snapshot.totals.memory_bytes),
    ),
    gauge("mqcore_channels", "Channels.", |source, samples| samples.value(source.snapshot.counts.channels)),
    gauge("mqcore_queues", "Queues.", |source, samples| samples.value(source.snapshot.counts.queues)),
    gauge(
        "mqcore_queues_without_handler",
        "Queues that neither accept nor deliver messages, because their delivery handler is not registered.",
        |source, samples| samples.value(source.snapshot.totals.without_handler),
    ),
    gauge(
        "mqcore_clients",
        "Clients that are connected and have introduced themselves.",
        |source, samples| samples.value(source.snapshot.counts.clients),
    ),
    gauge(
        "mqcore_bodies_memory_bytes",
        "Bytes of saved message bodies that are in memory.",
        |source, samples| samples.value(source.snapshot.bodies.memory_bytes),
    ),
    counter(
        "mqcore_bodies_evicted_total",
        "Saved message bodies that were removed from memory.",
        |source, samples| samples.value(source.snapshot.bodies.evicted),
    ),
    counter(
        "mqcore_bodies_loaded_total",
        "Message bodies that were read back from a journal.",
        |source, samples| samples.value(source.snapshot.bodies.loaded),
    ),
    counter(
        "mqcore_bodies_unreadable_total",
        "Message bodies that could not be read back; the broker drops their messages.",
        |source, samples| samples.value(source.snapshot.bodies.unreadable),
    ),
    counter(
        "mqcore_commands_rejected_total",
        "Requests of clients that the broker rejected.",
        |source, samples| samples.value(source.snapshot.refused),
    ),
    counter(
        "mqcore_acks_unknown_total",
        "Acknowledgements of messages that are not in flight: late, or sent twice.",
        |source, samples| samples.value(source.snapshot.unknown_acks),
    ),
    histogram(
        "mqcore_processing_seconds",
        "Time from the delivery of a message to its positive acknowledgement.",
        |source, samples| {
            samples.value(Value::Durations(&source.snapshot.processed_in, FIRST_OF_PROCESSING));
        },
    ),
    gauge("mqcore_topics", "Topics with a subscriber, a binding or a recent publish.", |source, samples| {
        samples.value(source.snapshot.counts.topics)
    }),
    counter(
        "mqcore_topic_subscriptions_rejected_total",
        "Subscriptions and bindings to topics that a limit did not admit, counted by each shard that rejected them.",
        |source, samples| samples.value(source.snapshot.topics_rejected),
    ),
    counter(
        "mqcore_creations_rejected_total",
        "Channels and queues that channels_per_user_max or queues_per_user_max did not admit.",
        |source, samples| samples.value(source.snapshot.creations_rejected),
    ),
    counter(
        "mqcore_topic_pattern_steps_total",
        "Places in the index of patterns that publishes to topics have looked at.",
        |source, samples| samples.value(source.snapshot.pattern_steps),
    ),
    counter(
        "mqcore_topic_messages_total",
        "Messages of topics; out counts deliveries, copied counts copies for bound queues.",
        |source, samples| {
            let stats = &source.snapshot.topic_totals;
            samples.labeled("outcome", "in", stats.published);
            samples.labeled("outcome", "out", stats.delivered);
            samples.labeled("outcome", "copied", stats.copied);
        },
    ),
    counter(
        "mqcore_topic_messages_dropped_total",
        "Dropped messages of topics, by reason; slow counts deliveries.",
        |source, samples| {
            let stats = &source.snapshot.topic_totals;
            samples.labeled("reason", DropReason::NoConsumer.as_str(), stats.dropped_no_consumer);
            samples.labeled("reason", DropReason::Slow.as_str(), stats.dropped_slow);
        },
    ),
    gauge("mqcore_routers", "Routers.", |source, samples| samples.value(source.snapshot.counts.routers)),
    counter(
        "mqcore_router_messages_total",
        "Messages of routers, by what happened to them; no-consumer: no binding accepted them; late: the handler of the router \
         did not answer in time.",
        |source, samples| {
            let sum = router_counts(source);
            samples.labeled("outcome", "in", sum.received);
            samples.labeled("outcome", "routed", sum.routed);
            samples.labeled("outcome", "no-consumer", sum.dropped_no_consumer);
            samples.labeled("outcome", "late", sum.errors);
        },
    ),
    counter(
        "mqcore_handler_questions_total",
        "Questions to handlers; late counts those without an answer in time.",
        |source, samples| {
            let counters = &source.hub.counters.handlers;
            samples.labeled("outcome", "asked", counters.asked.get());
            samples.labeled("outcome", "answered", counters.answered.get());
            samples.labeled("outcome", "late", counters.late.get());
        },
    ),
    gauge(
        "mqcore_handler_questions_open",
        "Questions to handlers that wait for an answer and are not late.",
        |source, samples| samples.value(source.hub.counters.handlers.open()),
    ),
    histogram(
        "mqcore_handler_seconds",
        "Time of calls of handlers, by handler and step; for async def, the time until the first await.",
        |source, samples| {
            for HandlerTimes { key, steps, .. } in &source.handler_times {
                for (step, times) in steps {
                    samples.sample(&[("handler", key), ("step", &step.method())], Value::Durations(times, 0));
                }
            }
        },
    ),
    histogram(
        "mqcore_handler_gil_wait_seconds",
        "Time that the thread of a handler waited for the GIL after questions had arrived.",
        |source, samples| {
            for HandlerTimes { key, gil_waits, .. } in &source.handler_times {
                samples.labeled("handler", key, Value::Durations(gil_waits, 0));
            }
        },
    ),
];

/// The counts of all routers together.
fn router_counts(source: &MetricSources) -> RouterCounts {
    let mut sum = RouterCounts::default();
    for (_, counts) in &source.snapshot.router_counts {
        sum.add(counts);
    }
    sum
}
