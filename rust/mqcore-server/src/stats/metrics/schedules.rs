//! Schedules.

use std::sync::atomic::Ordering;

use super::{Metric, counter, gauge};

pub(super) const METRICS: &[Metric] = &[
    gauge("mqcore_schedules", "Schedules.", |source, samples| {
        samples.value(source.hub.schedules.numbers().schedules.load(Ordering::Relaxed))
    }),
    counter("mqcore_schedule_runs_total", "Runs of schedules.", |source, samples| {
        samples.value(source.hub.schedules.numbers().runs.load(Ordering::Relaxed))
    }),
    counter(
        "mqcore_schedule_skips_total",
        "How often a schedule skipped runs that it had missed.",
        |source, samples| samples.value(source.hub.schedules.numbers().skipped.load(Ordering::Relaxed)),
    ),
    counter("mqcore_schedules_rejected_total", "Schedules that the broker rejected.", |source, samples| {
        samples.value(source.hub.schedules.numbers().refused.load(Ordering::Relaxed))
    }),
    gauge(
        "mqcore_schedule_runs_pending",
        "Runs that are due and not confirmed by their queues.",
        |source, samples| samples.value(source.hub.schedules.numbers().outstanding.load(Ordering::Relaxed)),
    ),
    gauge(
        "mqcore_schedules_failing",
        "1 while runs wait because they cannot be saved; the log has the reason.",
        |source, samples| {
            samples.value(u64::from(source.hub.schedules.numbers().failing.load(Ordering::Relaxed)))
        },
    ),
];
