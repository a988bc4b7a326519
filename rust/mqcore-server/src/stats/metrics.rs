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
//! | `storage` | journals, history, archive |

pub(crate) use queues::QUEUES_MAX;

mod attention;
mod connections;
mod limits;
mod messages;
mod nodes;
mod queues;
mod schedules;
mod storage;

use std::fmt::{self, Display, Write as _};

use mqcore_broker::model::stats::{QueueStats, ShardStats};
use mqcore_limiter::time::Nanos;
use mqcore_session::protocol::MetricFamily;

use crate::hub::Hub;
use crate::stats::snapshot;

/// The sources of metrics.
struct MetricSources<'a> {
    hub: &'a Hub,
    snapshot: &'a ShardStats,
    /// Counters of all queues, including removed ones.
    queue_stats: QueueStats,
    uptime_seconds: f64,
}

/// Whether a value only increases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MetricKind {
    Counter,
    Gauge,
}

/// One metric, with all its samples.
struct Metric {
    name: &'static str,
    kind: MetricKind,
    /// One sentence or noun phrase, with the unit if the name has none.
    help: &'static str,
    samples: fn(&MetricSources<'_>, &mut Samples<'_>),
}

const fn counter(
    name: &'static str,
    help: &'static str,
    samples: fn(&MetricSources<'_>, &mut Samples<'_>),
) -> Metric {
    Metric { name, kind: MetricKind::Counter, help, samples }
}

const fn gauge(
    name: &'static str,
    help: &'static str,
    samples: fn(&MetricSources<'_>, &mut Samples<'_>),
) -> Metric {
    Metric { name, kind: MetricKind::Gauge, help, samples }
}

/// Metrics that appear together, and their condition.
struct Table {
    metrics: &'static [Metric],
    applies: fn(&MetricSources<'_>) -> bool,
}

const fn always(metrics: &'static [Metric]) -> Table {
    Table { metrics, applies: |_| true }
}

const PROCESS: &[Metric] = &[
    gauge("mqcore_build_info", "Version of the broker, as a label; the value is always 1.", |_, samples| {
        samples.labeled("version", env!("CARGO_PKG_VERSION"), 1);
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
    always(storage::METRICS),
];

/// The whole page. `per_queue` adds metrics of single queues.
pub(crate) fn render(hub: &Hub, snapshot: &ShardStats, uptime_seconds: f64, per_queue: bool) -> String {
    let source =
        MetricSources { hub, snapshot, queue_stats: snapshot::queue_stats(snapshot), uptime_seconds };
    let mut page = String::with_capacity(16 * 1024);
    for table in TABLES.iter().filter(|table| (table.applies)(&source)) {
        write_table(&mut page, table.metrics, &source);
    }
    for MetricFamily { name, kind, help, samples } in hub.shared.metrics(Nanos(hub.clock.nanos())) {
        let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}");
        let mut written = Samples { page: &mut page, name };
        for (label, value) in samples {
            match label {
                Some((label, text)) => written.labeled(label, text, value),
                None => written.value(value),
            }
        }
    }
    if per_queue {
        write_table(&mut page, queues::METRICS, &source);
    }
    page
}

fn write_table(page: &mut String, metrics: &[Metric], source: &MetricSources<'_>) {
    for Metric { name, kind, help, samples } in metrics {
        let kind = match kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
        };
        // Writing to a `String` cannot fail.
        let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}");
        samples(source, &mut Samples { page, name });
    }
}

/// Writes the samples of one metric.
struct Samples<'a> {
    page: &'a mut String,
    name: &'static str,
}

impl Samples<'_> {
    /// The only sample of a metric without labels.
    fn value(&mut self, value: impl Display) {
        self.sample(&[], value);
    }

    /// A sample with one label.
    fn labeled(&mut self, label: &str, text: impl Display, value: impl Display) {
        self.sample(&[(label, &text)], value);
    }

    fn sample(&mut self, labels: &[(&str, &dyn Display)], value: impl Display) {
        self.page.push_str(self.name);
        for (index, (label, text)) in labels.iter().enumerate() {
            self.page.push(if index == 0 { '{' } else { ',' });
            let _ = write!(self.page, "{label}=\"");
            let _ = write!(Escaped(self.page), "{text}");
            self.page.push('"');
        }
        if !labels.is_empty() {
            self.page.push('}');
        }
        let _ = writeln!(self.page, " {value}");
    }
}

/// Writes label values. Peers choose names, and a quote in one must not end the label.
struct Escaped<'a>(&'a mut String);

impl fmt::Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            match character {
                '\\' => self.0.push_str("\\\\"),
                '"' => self.0.push_str("\\\""),
                '\n' => self.0.push_str("\\n"),
                other => self.0.push(other),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_in_a_name_stay_inside_its_label() {
        let mut page = String::new();
        Samples { page: &mut page, name: "m" }.sample(&[("queue", &"a\"b\\c\nd/1"), ("x", &"y")], 7);
        assert_eq!(page, "m{queue=\"a\\\"b\\\\c\\nd/1\",x=\"y\"} 7\n");
    }

    #[test]
    fn every_metric_has_one_name_the_prefix_and_a_suffix_that_fits_its_kind() {
        let mut names = std::collections::BTreeSet::new();
        for metric in TABLES.iter().flat_map(|table| table.metrics).chain(queues::METRICS) {
            assert!(names.insert(metric.name), "{} is declared twice", metric.name);
            assert!(metric.name.starts_with("mqcore_"), "{}", metric.name);
            let counts = ["_total", "_sum", "_count"].iter().any(|suffix| metric.name.ends_with(suffix));
            assert_eq!(counts, metric.kind == MetricKind::Counter, "{}", metric.name);
            assert!(metric.help.ends_with('.'), "{}: the help is a sentence", metric.name);
        }
    }
}
