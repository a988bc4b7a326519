//! Links to other brokers.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Metric, MetricSources, Samples, counter, gauge};
use crate::nodes::forwarder::{Backlog, DROP_REASONS, Forwarder};

/// Present if the broker has links.
pub(super) const METRICS: &[Metric] = &[
    gauge("mqcore_nodes", "Connected brokers, by role.", |source, samples| {
        for (role, downstream) in [("upstream", false), ("downstream", true)] {
            let of_role = |node: &&_| is_connected(node, downstream);
            samples.labeled("role", role, source.snapshot.nodes.iter().filter(of_role).count());
        }
    }),
    counter(
        "mqcore_node_filter_fallbacks_total",
        "Messages for which a filter of the program had no answer, so that its fallback decided.",
        |source, samples| {
            let fallbacks = source.hub.nodes.as_ref().map(|nodes| nodes.fallen_back.load(Ordering::Relaxed));
            samples.value(fallbacks.unwrap_or_default());
        },
    ),
];

/// Present if the broker has upstream brokers.
pub(super) const UPSTREAMS: &[Metric] = &[
    counter(
        "mqcore_node_confirmed_total",
        "Messages that an upstream broker confirmed.",
        |source, samples| {
            each_upstream(source, samples, |backlog| &backlog.confirmed);
        },
    ),
    gauge(
        "mqcore_node_backlog",
        "Messages for an upstream broker that it has not confirmed.",
        |source, samples| {
            each_upstream(source, samples, |backlog| &backlog.messages);
        },
    ),
    gauge("mqcore_node_backlog_bytes", "Bytes of these messages.", |source, samples| {
        each_upstream(source, samples, |backlog| &backlog.bytes);
    }),
    counter(
        "mqcore_node_dropped_total",
        "Messages that were not forwarded to an upstream broker, by reason.",
        |source, samples| {
            for (upstream, backlog) in backlogs(source) {
                for (reason, dropped) in DROP_REASONS.iter().zip(&backlog.dropped) {
                    samples.sample(
                        &[("upstream", upstream), ("reason", reason)],
                        dropped.load(Ordering::Relaxed),
                    );
                }
            }
        },
    ),
    counter(
        "mqcore_node_save_failures_total",
        "Messages for upstream brokers that were lost because they could not be saved.",
        |source, samples| {
            let failures =
                forwarder(source).map(|forwarder| forwarder.shared.save_failures.load(Ordering::Relaxed));
            samples.value(failures.unwrap_or_default());
        },
    ),
];

fn is_connected(node: &mqcore_broker::model::node::NodeInformation, downstream: bool) -> bool {
    node.downstream == downstream && node.connected
}

/// The forwarder; `None`: there is no upstream broker.
pub(super) fn forwarder(source: &MetricSources) -> Option<&Forwarder> {
    source.hub.nodes.as_ref()?.forwarder.as_ref()
}

fn backlogs(source: &MetricSources) -> impl Iterator<Item = (&String, &Backlog)> {
    let addresses = source.hub.nodes.iter().flat_map(|nodes| &nodes.upstreams);
    addresses.zip(forwarder(source).into_iter().flat_map(|forwarder| &forwarder.shared.backlogs))
}

fn each_upstream(source: &MetricSources, samples: &mut Samples<'_>, value: fn(&Backlog) -> &AtomicU64) {
    for (upstream, backlog) in backlogs(source) {
        samples.labeled("upstream", upstream, value(backlog).load(Ordering::Relaxed));
    }
}
