//! Metrics in the Prometheus text format.
//!
//! Each metric is a row of a table: name, kind, help, and the function that reads its samples. Labels are bounded:
//! protocols, reasons and outcomes are closed sets; queues appear only on request, and then at most
//! [`QUEUES_MAX`] of them. Each protocol adds metrics of its own.
//!
//! | module | tables |
//! |---|---|
//! | `attention` | what needs attention |
//! | `messages` | messages, topics, routers, handlers |
//! | `queues` | single queues |
//! | `connections` | connections, logins, TLS |
//! | `limits` | rate limits and the broker's own limits |
//! | `schedules` | schedules |
//! | `nodes` | links to other brokers |
//! | `cluster` | nodes of a cluster |
//! | `storage` | journals, history, archive |

pub(crate) use queues::QUEUES_MAX;

mod attention;
mod cluster;
mod connections;
mod limits;
mod messages;
mod nodes;
mod queues;
mod schedules;
mod storage;

use std::fmt::{self, Display, Write as _};
use std::sync::Arc;

use mqcore_broker::model::durations::{BOUNDS, Durations};
use mqcore_broker::model::stats::{QueueStats, ShardStats};
use mqcore_limiter::time::Nanos;
use mqcore_replication::status::{LatestStatus, MemberStatus};
use mqcore_session::protocol::MetricFamily;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, LabelSetEncoder, MetricEncoder, NoLabelSet, prometheus_text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::handler::HandlerTimes;
use crate::hub::Hub;
use crate::stats::snapshot;

/// The sources of metrics, and what to show of them.
struct MetricSources {
    hub: Arc<Hub>,
    snapshot: ShardStats,
    /// Counters of all queues, including removed ones.
    queue_stats: QueueStats,
    /// Times of the program's handlers.
    handler_times: Vec<HandlerTimes>,
    uptime_seconds: f64,
    /// The cluster, if the broker belongs to one.
    cluster: Option<Arc<MemberStatus>>,
    /// Whether metrics of single queues are shown.
    per_queue: bool,
}

/// The kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MetricKind {
    /// It only increases.
    Counter,
    Gauge,
    /// A distribution of durations, in seconds.
    Histogram,
}

/// One metric, with all its samples.
struct Metric {
    name: &'static str,
    kind: MetricKind,
    /// One sentence or noun phrase, with the unit if the name has none.
    help: &'static str,
    samples: fn(&MetricSources, &mut Samples<'_>),
}

const fn counter(
    name: &'static str,
    help: &'static str,
    samples: fn(&MetricSources, &mut Samples<'_>),
) -> Metric {
    Metric { name, kind: MetricKind::Counter, help, samples }
}

const fn gauge(
    name: &'static str,
    help: &'static str,
    samples: fn(&MetricSources, &mut Samples<'_>),
) -> Metric {
    Metric { name, kind: MetricKind::Gauge, help, samples }
}

const fn histogram(
    name: &'static str,
    help: &'static str,
    samples: fn(&MetricSources, &mut Samples<'_>),
) -> Metric {
    Metric { name, kind: MetricKind::Histogram, help, samples }
}

/// Metrics that appear together, and their condition.
struct Table {
    metrics: &'static [Metric],
    applies: fn(&MetricSources) -> bool,
}

const fn always(metrics: &'static [Metric]) -> Table {
    Table { metrics, applies: |_| true }
}

const PROCESS: &[Metric] = &[
    gauge("mqcore_build_info", "Version of the broker, as a label; the value is always 1.", |_, samples| {
        samples.labeled("version", env!("CARGO_PKG_VERSION"), 1_u64);
    }),
    gauge("mqcore_uptime_seconds", "Time since the server started.", |source, samples| {
        samples.value(source.uptime_seconds);
    }),
];

/// Every table, in the order of the page.
const TABLES: &[Table] = &[
    always(PROCESS),
    always(messages::METRICS),
    always(attention::METRICS),
    always(connections::METRICS),
    always(schedules::METRICS),
    Table { metrics: connections::TLS, applies: |source| !source.hub.tls.certificates().is_empty() },
    always(limits::METRICS),
    Table { metrics: nodes::METRICS, applies: |source| source.hub.nodes.is_some() },
    Table { metrics: nodes::UPSTREAMS, applies: |source| nodes::forwarder(source).is_some() },
    Table { metrics: cluster::METRICS, applies: |source| source.cluster.is_some() },
    always(storage::METRICS),
    Table { metrics: queues::METRICS, applies: |source| source.per_queue },
];

/// The whole page. `per_queue` adds metrics of single queues.
pub(crate) fn render(
    hub: &Arc<Hub>,
    snapshot: ShardStats,
    handler_times: Vec<HandlerTimes>,
    uptime_seconds: f64,
    per_queue: bool,
) -> String {
    let queue_stats = snapshot::queue_stats(&snapshot);
    let hub = Arc::clone(hub);
    let cluster = hub.cluster.as_ref().map(LatestStatus::get);
    page_of(MetricSources { hub, snapshot, queue_stats, handler_times, uptime_seconds, cluster, per_queue })
}

/// The page that a collector describes.
fn page_of(collector: impl Collector) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(collector));
    let mut page = String::with_capacity(32 * 1024);
    prometheus_text::encode(&mut page, &registry).expect("a string takes everything");
    page
}

impl fmt::Debug for MetricSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricSources").finish_non_exhaustive()
    }
}

impl Collector for MetricSources {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for table in TABLES.iter().filter(|table| (table.applies)(self)) {
            for metric in table.metrics {
                write_metric(&mut encoder, metric.name, metric.kind, metric.help, |samples| {
                    (metric.samples)(self, samples);
                })?;
            }
        }
        for MetricFamily { name, kind, help, samples } in
            self.hub.shared.metrics(Nanos(self.hub.clock.nanos()))
        {
            let kind = if kind == "counter" { MetricKind::Counter } else { MetricKind::Gauge };
            write_metric(&mut encoder, name, kind, help, |written| {
                for (label, value) in samples {
                    match label {
                        Some((label, text)) => written.labeled(label, text, value),
                        None => written.value(value),
                    }
                }
            })?;
        }
        Ok(())
    }
}

fn write_metric(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    kind: MetricKind,
    help: &str,
    write: impl FnOnce(&mut Samples<'_>),
) -> fmt::Result {
    // The encoder adds the suffix of counters itself.
    let (name, metric_type) = match kind {
        MetricKind::Counter => (name.strip_suffix("_total").unwrap_or(name), MetricType::Counter),
        MetricKind::Gauge => (name, MetricType::Gauge),
        MetricKind::Histogram => (name, MetricType::Histogram),
    };
    let encoder = encoder.encode_descriptor(name, help, None, metric_type)?;
    let mut samples = Samples { encoder, kind, result: Ok(()) };
    write(&mut samples);
    samples.result
}

/// The value of a sample.
enum Value<'a> {
    Whole(u64),
    Real(f64),
    /// Durations, and the first of [`BOUNDS`] that is of use for them.
    Durations(&'a Durations, usize),
}

impl From<u64> for Value<'_> {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<usize> for Value<'_> {
    fn from(value: usize) -> Self {
        Self::Whole(value as u64)
    }
}

impl From<i64> for Value<'_> {
    fn from(value: i64) -> Self {
        Self::Real(value as f64)
    }
}

impl From<f64> for Value<'_> {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

/// Writes the samples of one metric.
struct Samples<'a> {
    encoder: MetricEncoder<'a>,
    kind: MetricKind,
    result: fmt::Result,
}

impl Samples<'_> {
    /// The only sample of a metric without labels.
    fn value<'v>(&mut self, value: impl Into<Value<'v>>) {
        self.sample(&[], value);
    }

    /// A sample with one label.
    fn labeled<'v>(&mut self, label: &str, text: impl Display, value: impl Into<Value<'v>>) {
        self.sample(&[(label, &text)], value);
    }

    fn sample<'v>(&mut self, labels: &[(&str, &dyn Display)], value: impl Into<Value<'v>>) {
        let written = self.write(labels, &value.into());
        self.result = self.result.and(written);
    }

    fn write(&mut self, labels: &[(&str, &dyn Display)], value: &Value<'_>) -> fmt::Result {
        let labels = Labels(labels);
        let mut encoder = self.encoder.encode_family(&labels)?;
        let none = None::<&prometheus_client::metrics::exemplar::Exemplar<NoLabelSet, f64>>;
        match (self.kind, value) {
            (MetricKind::Counter, Value::Whole(value)) => encoder.encode_counter(value, none),
            (MetricKind::Counter, Value::Real(value)) => encoder.encode_counter(value, none),
            (_, Value::Whole(value)) => encoder.encode_gauge(value),
            (_, Value::Real(value)) => encoder.encode_gauge(value),
            (_, Value::Durations(durations, first)) => {
                let counts = durations.counts();
                let below: u64 = counts[..*first].iter().sum();
                let mut buckets = vec![(seconds(BOUNDS[*first]), below + counts[*first])];
                let further = BOUNDS[first + 1..].iter().zip(&counts[first + 1..]);
                buckets.extend(further.map(|(bound, count)| (seconds(*bound), *count)));
                let sum = seconds(durations.micros());
                encoder.encode_histogram::<NoLabelSet>(sum, durations.count(), &buckets, None)
            }
        }
    }
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

/// Labels with their values. The encoder escapes these: peers choose names, and a quote in one must not end the label.
struct Labels<'a>(&'a [(&'a str, &'a dyn Display)]);

impl EncodeLabelSet for Labels<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        for (name, value) in self.0 {
            let mut label = encoder.encode_label();
            let mut key = label.encode_label_key()?;
            key.write_str(name)?;
            let mut text = key.encode_label_value()?;
            write!(text, "{value}")?;
            text.finish()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes one metric of a kind.
    #[derive(Debug)]
    struct One(MetricKind, fn(&mut Samples<'_>));

    impl Collector for One {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            let name = if self.0 == MetricKind::Counter { "m_total" } else { "m" };
            write_metric(&mut encoder, name, self.0, "Help.", self.1)
        }
    }

    #[test]
    fn quotes_in_a_name_stay_inside_its_label() {
        let page = page_of(One(MetricKind::Counter, |samples| {
            samples.sample(&[("queue", &"a\"b\\c\nd/1"), ("x", &"y")], 7_u64);
        }));
        assert_eq!(
            page,
            "# HELP m_total Help.\n# TYPE m_total counter\nm_total{queue=\"a\\\"b\\\\c\\nd/1\",x=\"y\"} 7\n"
        );
    }

    #[test]
    fn a_histogram_has_cumulative_classes_from_its_first_bound_on() {
        let page = page_of(One(MetricKind::Histogram, |samples| {
            let mut durations = Durations::default();
            for micros in [1, 90_000_000, 250_000_000, 400_000_000] {
                durations.add(micros);
            }
            samples.value(Value::Durations(&durations, BOUNDS.len() - 2));
        }));
        let expected = [
            "# HELP m Help.",
            "# TYPE m histogram",
            "m_bucket{le=\"60\"} 1",
            "m_bucket{le=\"300\"} 3",
            "m_bucket{le=\"+Inf\"} 4",
            "m_sum 740.000001",
            "m_count 4",
        ];
        assert_eq!(page.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn every_metric_has_one_name_the_prefix_and_a_suffix_that_fits_its_kind() {
        let mut names = std::collections::BTreeSet::new();
        for metric in TABLES.iter().flat_map(|table| table.metrics) {
            assert!(names.insert(metric.name), "{} is declared twice", metric.name);
            assert!(metric.name.starts_with("mqcore_"), "{}", metric.name);
            assert_eq!(
                metric.name.ends_with("_total"),
                metric.kind == MetricKind::Counter,
                "{}",
                metric.name
            );
            assert!(
                metric.kind != MetricKind::Histogram || metric.name.ends_with("_seconds"),
                "{}",
                metric.name
            );
            assert!(metric.help.ends_with('.'), "{}: the help is a sentence", metric.name);
        }
    }
}
