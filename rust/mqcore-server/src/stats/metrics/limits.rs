//! Rate limits, and the limits that the broker applies itself.

use std::sync::atomic::Ordering;

use super::{Metric, counter, gauge};

pub(super) const METRICS: &[Metric] = &[
    gauge(
        "mqcore_unsaved_memory_bytes",
        "Bytes of messages that are only in memory: not saved, or not written yet.",
        |source, samples| samples.value(source.snapshot.unsaved_bytes),
    ),
    gauge(
        "mqcore_unsaved_memory_limit_bytes",
        "Bytes of unsaved messages above which the broker rejects more; 18446744073709551615: no limit.",
        |source, samples| samples.value(source.hub.unsaved.limits().bytes_max),
    ),
    counter(
        "mqcore_unsaved_memory_rejected_total",
        "Messages that the broker rejected because unsaved messages had reached a limit of memory.",
        |source, samples| samples.value(source.hub.unsaved.rejected()),
    ),
    gauge("mqcore_limiter_keys", "Stored counters and buffers, by kind.", |source, samples| {
        let totals = source.hub.limiter.totals();
        samples.labeled("kind", "counter", totals.counters);
        samples.labeled("kind", "buffer", totals.buffers);
    }),
    gauge(
        "mqcore_limiter_bytes",
        "Estimated bytes of memory that counters and buffers use.",
        |source, samples| samples.value(source.hub.limiter.totals().bytes),
    ),
    counter(
        "mqcore_limiter_expired_total",
        "Counters and buffers removed after their time to live.",
        |source, samples| samples.value(source.hub.limiter.totals().expired),
    ),
    counter(
        "mqcore_limiter_evicted_total",
        "Counters and buffers removed to make room for others.",
        |source, samples| samples.value(source.hub.limiter.totals().evicted),
    ),
    counter(
        "mqcore_limiter_keys_rejected_total",
        "Counters and buffers that limiter_keys_per_user_max did not admit.",
        |source, samples| samples.value(source.hub.limiter.rejected()),
    ),
    counter(
        "mqcore_limiter_saved_total",
        "Changes of counters and buffers saved, for listeners with persist=on.",
        |source, samples| samples.value(source.hub.counters.limits.saved.get()),
    ),
    counter(
        "mqcore_limiter_restored_total",
        "Counters and buffers restored when the server started.",
        |source, samples| samples.value(source.hub.counters.limits.restored.get()),
    ),
    gauge(
        "mqcore_limiter_save_failing",
        "1 while changes cannot be saved; the log has the reason.",
        |source, samples| samples.value(source.hub.counters.limits.failing.load(Ordering::Relaxed)),
    ),
    counter(
        "mqcore_guard_rejected_total",
        "Publishes and connections rejected by publish_limit and connect_limit.",
        |source, samples| {
            let counters = &source.hub.counters.limits;
            samples.labeled("limit", "publish", counters.publish_refused.get());
            samples.labeled("limit", "connect", counters.connect_refused.get());
        },
    ),
];
