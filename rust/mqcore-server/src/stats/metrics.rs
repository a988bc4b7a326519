//! Metrics in the text form that Prometheus reads.
//!
//! Labels are bounded: protocols, reasons and outcomes are closed sets; queues appear only when asked for, and then
//! not more than [`QUEUES_MAX`] of them.

use std::fmt::{self, Display, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};

use mqcore_broker::model::stats::{DropReason, QueueInformation, RouterCounts, ShardStats};
use mqcore_limiter::time::Nanos;
use mqcore_session::any::Protocol;
use mqcore_session::protocol::MetricFamily;
use mqcore_tls::refusal::HandshakeRejection;

use crate::hub::Hub;
use crate::net::tls::Tls;
use crate::nodes::outlet::{Backlog, DROP_REASONS};
use crate::stats::counters::CloseReason;
use crate::stats::survey::Totals;

/// Queues that are listed one by one at most.
pub(crate) const QUEUES_MAX: usize = 500;

/// Everything, as one page. `per_queue` lists queues too.
pub(crate) fn render(hub: &Hub, survey: &ShardStats, uptime_seconds: f64, per_queue: bool) -> String {
    let mut page = Page(String::with_capacity(8 * 1024));
    page.family("mqcore_build_info", "gauge", "Which version this is; always 1.");
    page.sample("mqcore_build_info", &[("version", &env!("CARGO_PKG_VERSION"))], 1);
    page.family("mqcore_uptime_seconds", "gauge", "How long the server has been running.");
    page.sample("mqcore_uptime_seconds", &[], uptime_seconds);
    messages(&mut page, survey);
    topics(&mut page, survey);
    routers(&mut page, survey);
    connections(&mut page, hub);
    protocols(&mut page, hub);
    schedules(&mut page, hub);
    authority(&mut page, hub);
    tls(&mut page, &hub.tls);
    handlers(&mut page, hub);
    limits(&mut page, hub);
    nodes(&mut page, hub, survey);
    journal(&mut page, hub);
    history(&mut page, hub);
    archive(&mut page, hub);
    if per_queue {
        queues(&mut page, survey);
    }
    page.0
}

fn messages(page: &mut Page, survey: &ShardStats) {
    let totals = Totals::of(survey);
    let stats = &totals.stats;
    page.family(
        "mqcore_messages_total",
        "counter",
        "Messages and what became of them; out counts deliveries.",
    );
    for (outcome, count) in [
        ("in", stats.received),
        ("out", stats.deliveries),
        ("ack", stats.acks),
        ("nack", stats.negative_acks),
        ("redelivered", stats.requeued),
        ("expired", stats.timed_out),
        ("dropped", stats.dropped.iter().sum()),
        ("dead", stats.dead_lettered),
        ("saved", stats.saved),
        ("save-failed", stats.save_failed),
    ] {
        page.sample("mqcore_messages_total", &[("outcome", &outcome)], count);
    }
    page.family(
        "mqcore_messages_dropped_total",
        "counter",
        "Messages dropped, by reason; for slow, deliveries.",
    );
    for reason in DropReason::ALL {
        let count = stats.dropped[reason as usize];
        page.sample("mqcore_messages_dropped_total", &[("reason", &reason.as_str())], count);
    }
    for (name, help, value) in [
        ("mqcore_messages_ready", "Messages stored and not handed out.", totals.ready),
        ("mqcore_messages_unacked", "Deliveries not settled.", totals.in_flight),
        ("mqcore_messages_undecided", "Messages that wait for a handler.", totals.undecided),
        ("mqcore_messages_bytes", "Octets of stored and unsettled messages.", totals.memory_bytes),
        ("mqcore_channels", "Channels.", survey.channels.len() as u64),
        ("mqcore_queues", "Queues.", survey.queues.len() as u64),
        ("mqcore_clients", "Clients that have said who they are.", survey.clients.len() as u64),
    ] {
        page.family(name, "gauge", help);
        page.sample(name, &[], value);
    }
    let bodies = &survey.bodies;
    page.family("mqcore_bodies_memory_bytes", "gauge", "Octets of saved messages that wait in memory.");
    page.sample("mqcore_bodies_memory_bytes", &[], bodies.memory_bytes);
    for (name, help, value) in [
        ("mqcore_bodies_evicted_total", "Bodies of saved messages that left memory.", bodies.evicted),
        ("mqcore_bodies_loaded_total", "Bodies that were read back from the journal.", bodies.loaded),
        ("mqcore_bodies_unreadable_total", "Bodies that could not be read back.", bodies.unreadable),
    ] {
        page.family(name, "counter", help);
        page.sample(name, &[], value);
    }
    page.family("mqcore_commands_refused_total", "counter", "What peers asked for and the broker refused.");
    page.sample("mqcore_commands_refused_total", &[], survey.refused);
    page.family(
        "mqcore_acks_unknown_total",
        "counter",
        "Acknowledgements of what was not in flight: late, or sent twice.",
    );
    page.sample("mqcore_acks_unknown_total", &[], survey.unknown_acks);
}

fn authority(page: &mut Page, hub: &Hub) {
    let counters = &hub.authority.counters;
    page.family("mqcore_logins_total", "counter", "Peers that said who they are, by verdict.");
    for (verdict, counter) in [("allowed", &counters.logins), ("denied", &counters.logins_refused)] {
        page.sample("mqcore_logins_total", &[("verdict", &verdict)], counter.get());
    }
    for (name, help, count) in [
        (
            "mqcore_actions_denied_total",
            "What peers wanted to do and were not allowed to.",
            counters.actions_denied.get(),
        ),
        (
            "mqcore_connections_revoked_total",
            "Connections ended because their rights have changed.",
            counters.revoked.get(),
        ),
        (
            "mqcore_audit_lines_lost_total",
            "Audit lines that were not written, because the disk did not keep up.",
            hub.authority.audit_lost(),
        ),
    ] {
        page.family(name, "counter", help);
        page.sample(name, &[], count);
    }
}

fn topics(page: &mut Page, survey: &ShardStats) {
    let stats = Totals::of(survey).topics;
    page.family(
        "mqcore_topics",
        "gauge",
        "Topics that are subscribed to, bound, or were published to lately.",
    );
    page.sample("mqcore_topics", &[], survey.topics.len());
    page.family(
        "mqcore_topic_messages_total",
        "counter",
        "Messages of topics; out counts deliveries, copied copies for queues.",
    );
    for (outcome, count) in [("in", stats.published), ("out", stats.delivered), ("copied", stats.copied)] {
        page.sample("mqcore_topic_messages_total", &[("outcome", &outcome)], count);
    }
    page.family(
        "mqcore_topic_messages_dropped_total",
        "counter",
        "Messages of topics dropped, by reason; for slow, deliveries.",
    );
    for (reason, count) in
        [(DropReason::NoConsumer, stats.dropped_no_consumer), (DropReason::Slow, stats.dropped_slow)]
    {
        page.sample("mqcore_topic_messages_dropped_total", &[("reason", &reason.as_str())], count);
    }
}

fn routers(page: &mut Page, survey: &ShardStats) {
    let mut sum = RouterCounts::default();
    for (_, counts) in &survey.router_counts {
        sum.add(counts);
    }
    page.family("mqcore_routers", "gauge", "Routers.");
    page.sample("mqcore_routers", &[], survey.routers.len());
    page.family(
        "mqcore_router_messages_total",
        "counter",
        "Messages that came to routers and what became of them; no-consumer: no binding took them; late: a handler did \
         not say where they go.",
    );
    for (outcome, count) in [
        ("in", sum.received),
        ("routed", sum.routed),
        ("no-consumer", sum.dropped_no_consumer),
        ("late", sum.errors),
    ] {
        page.sample("mqcore_router_messages_total", &[("outcome", &outcome)], count);
    }
}

fn connections(page: &mut Page, hub: &Hub) {
    page.family(
        "mqcore_connections",
        "gauge",
        "Open connections; half-open ones have not said who they are.",
    );
    for protocol in Protocol::ALL {
        let (open, half_open) = hub.registry.count(protocol);
        for (state, count) in [("client", open.saturating_sub(half_open)), ("half-open", half_open)] {
            let labels: [(&str, &dyn Display); 2] = [("protocol", &protocol.as_str()), ("state", &state)];
            page.sample("mqcore_connections", &labels, count);
        }
    }
    page.family("mqcore_connections_closed_total", "counter", "Connections ended for a reason of ours.");
    for protocol in Protocol::ALL {
        for reason in CloseReason::ALL {
            let labels: [(&str, &dyn Display); 2] =
                [("protocol", &protocol.as_str()), ("reason", &reason.as_str())];
            let count = hub.counters.of(protocol).closed(reason).get();
            page.sample("mqcore_connections_closed_total", &labels, count);
        }
    }
    let families = [
        ("mqcore_connections_accepted_total", "Connections accepted."),
        ("mqcore_connections_rejected_total", "Connections rejected because `connections_max` was reached."),
        ("mqcore_frames_ignored_total", "Frames without hops or of unknown type, of connections that ended."),
        (
            "mqcore_requests_failed_total",
            "Requests of protocols that tell their peer only a number; the log has the rest.",
        ),
        ("mqcore_received_bytes_total", "Octets read from clients."),
        ("mqcore_sent_bytes_total", "Octets written to clients."),
    ];
    for (index, (name, help)) in families.into_iter().enumerate() {
        page.family(name, "counter", help);
        for protocol in Protocol::ALL {
            let counters = hub.counters.of(protocol);
            let values = [
                &counters.accepted,
                &counters.rejected,
                &counters.ignored_frames,
                &counters.request_errors,
                &counters.bytes_in,
                &counters.bytes_out,
            ];
            page.sample(name, &[("protocol", &protocol.as_str())], values[index].get());
        }
    }
}

fn tls(page: &mut Page, tls: &Tls) {
    let certificates = tls.certificates();
    if certificates.is_empty() {
        return;
    }
    page.family(
        "mqcore_tls_certificate_expiry_seconds",
        "gauge",
        "Seconds until the certificate of a listener expires; negative once it has.",
    );
    for certificate in &certificates {
        let labels: [(&str, &dyn Display); 1] = [("listener", &certificate.url)];
        page.sample("mqcore_tls_certificate_expiry_seconds", &labels, certificate.expires_in);
    }
    page.family("mqcore_tls_handshakes", "gauge", "TLS handshakes under way.");
    page.sample("mqcore_tls_handshakes", &[], tls.handshakes.count());
    let counters = &tls.counters;
    page.family("mqcore_tls_handshakes_total", "counter", "TLS handshakes finished, by what they took.");
    for (kind, count) in [("full", counters.full.get()), ("resumed", counters.resumed.get())] {
        page.sample("mqcore_tls_handshakes_total", &[("kind", &kind)], count);
    }
    page.family("mqcore_tls_handshakes_refused_total", "counter", "TLS handshakes that failed, by reason.");
    for reason in HandshakeRejection::ALL {
        let labels: [(&str, &dyn Display); 1] = [("reason", &reason.as_str())];
        page.sample("mqcore_tls_handshakes_refused_total", &labels, counters.refused(reason).get());
    }
    page.family("mqcore_tls_reloads_total", "counter", "Certificates read again, by outcome.");
    for (outcome, count) in [("done", counters.reloads.get()), ("failed", counters.reloads_failed.get())] {
        page.sample("mqcore_tls_reloads_total", &[("outcome", &outcome)], count);
    }
}

fn journal(page: &mut Page, hub: &Hub) {
    let counters = &hub.counters.journal;
    let [file_bytes, live, quarantined, refusing] = counters.sums();
    page.family(
        "mqcore_journal_fsync_seconds_sum",
        "counter",
        "Time spent in syncs that somebody waited for.",
    );
    page.sample("mqcore_journal_fsync_seconds_sum", &[], counters.sync_micros.get() as f64 / 1e6);
    page.family("mqcore_journal_fsync_seconds_count", "counter", "Syncs that somebody waited for.");
    page.sample("mqcore_journal_fsync_seconds_count", &[], counters.syncs.get());
    for (name, help, value) in [
        ("mqcore_journal_bytes", "Octets of the journals' segment files.", file_bytes),
        ("mqcore_journal_live_records", "Saved messages that have not left.", live),
        ("mqcore_journal_quarantined_segments", "Segments set aside because of damage.", quarantined),
        ("mqcore_journal_refusing", "Shards whose journal takes no messages: look at the log.", refusing),
    ] {
        page.family(name, "gauge", help);
        page.sample(name, &[], value);
    }
}

fn history(page: &mut Page, hub: &Hub) {
    let counters = &hub.counters.history;
    for (name, kind, help, value) in [
        (
            "mqcore_history_steps_total",
            "counter",
            "Steps of messages' lives written down.",
            counters.steps.get(),
        ),
        ("mqcore_history_bytes_total", "counter", "Octets of these.", counters.bytes.get()),
        (
            "mqcore_history_missed_total",
            "counter",
            "Steps that could not be written down: the disk is full, broken, or too slow.",
            counters.missed.get(),
        ),
        ("mqcore_history_missing", "gauge", "Shards whose history misses steps now.", counters.missing()),
    ] {
        page.family(name, kind, help);
        page.sample(name, &[], value);
    }
}

fn archive(page: &mut Page, hub: &Hub) {
    let counters = &hub.counters.archive;
    let gauge = |value: &AtomicU64| value.load(Ordering::Relaxed);
    let waiting = counters.waiting.iter().map(gauge).sum();
    for (name, kind, help, value) in [
        (
            "mqcore_archive_rounds_total",
            "counter",
            "Rounds that carried history over.",
            counters.rounds.get(),
        ),
        ("mqcore_archive_rows_total", "counter", "Rows written to the archive.", counters.rows.get()),
        ("mqcore_archive_written_bytes_total", "counter", "Octets written to it.", counters.bytes.get()),
        (
            "mqcore_archive_missing_total",
            "counter",
            "Notes that were gone or unreadable before they could be archived.",
            counters.missing.get(),
        ),
        ("mqcore_archive_failures_total", "counter", "Rounds that failed.", counters.failures.get()),
        (
            "mqcore_archive_removed_files_total",
            "counter",
            "Files that retention removed.",
            counters.removed_files.get(),
        ),
        (
            "mqcore_archive_removed_bytes_total",
            "counter",
            "Octets that retention removed.",
            counters.removed_bytes.get(),
        ),
        (
            "mqcore_archive_failing",
            "gauge",
            "1 while archiving fails: look at the log.",
            gauge(&counters.failing),
        ),
        ("mqcore_archive_files", "gauge", "Files of the archive.", gauge(&counters.files)),
        ("mqcore_archive_bytes", "gauge", "Octets of the archive.", gauge(&counters.file_bytes)),
        ("mqcore_archive_waiting_notes", "gauge", "Notes that are not archived yet.", waiting),
    ] {
        page.family(name, kind, help);
        page.sample(name, &[], value);
    }
}

type BacklogFamily = (&'static str, &'static str, &'static str, fn(&Backlog) -> &AtomicU64);

const BACKLOG_FAMILIES: [BacklogFamily; 3] = [
    ("mqcore_node_confirmed_total", "counter", "Messages that a master confirmed.", |backlog| {
        &backlog.confirmed
    }),
    ("mqcore_node_backlog", "gauge", "Messages taken for a master and not confirmed.", |backlog| {
        &backlog.messages
    }),
    ("mqcore_node_backlog_bytes", "gauge", "Their octets.", |backlog| &backlog.bytes),
];

/// Only of a broker among others.
fn nodes(page: &mut Page, hub: &Hub, survey: &ShardStats) {
    let Some(nodes) = &hub.nodes else { return };
    page.family("mqcore_nodes", "gauge", "Nodes that are connected.");
    for (role, slave) in [("master", false), ("slave", true)] {
        let connected = survey.nodes.iter().filter(|node| node.downstream == slave && node.connected);
        page.sample("mqcore_nodes", &[("role", &role)], connected.count());
    }
    page.family(
        "mqcore_node_filter_fallbacks_total",
        "counter",
        "Messages that a filter of the program had no answer about, so that its fallback held.",
    );
    page.sample("mqcore_node_filter_fallbacks_total", &[], nodes.fallen_back.load(Ordering::Relaxed));
    let Some(outlet) = &nodes.outlet else { return };
    let masters = || nodes.masters.iter().zip(&outlet.shared.backlogs);
    for (name, kind, help, value) in BACKLOG_FAMILIES {
        page.family(name, kind, help);
        for (master, backlog) in masters() {
            page.sample(name, &[("master", master)], value(backlog).load(Ordering::Relaxed));
        }
    }
    page.family(
        "mqcore_node_dropped_total",
        "counter",
        "Messages that were not passed on to a master, by reason.",
    );
    for (master, backlog) in masters() {
        for (reason, dropped) in DROP_REASONS.iter().zip(&backlog.dropped) {
            let labels: [(&str, &dyn Display); 2] = [("master", master), ("reason", reason)];
            page.sample("mqcore_node_dropped_total", &labels, dropped.load(Ordering::Relaxed));
        }
    }
    page.family("mqcore_node_unkept_total", "counter", "Messages lost for masters because the disk failed.");
    page.sample("mqcore_node_unkept_total", &[], outlet.shared.unkept.load(Ordering::Relaxed));
}

fn handlers(page: &mut Page, hub: &Hub) {
    let counters = &hub.counters.handlers;
    page.family(
        "mqcore_handler_questions_total",
        "counter",
        "Questions to handlers; late: no answer in time.",
    );
    for (outcome, count) in [
        ("asked", counters.asked.get()),
        ("answered", counters.answered.get()),
        ("late", counters.late.get()),
    ] {
        page.sample("mqcore_handler_questions_total", &[("outcome", &outcome)], count);
    }
    page.family(
        "mqcore_handler_questions_open",
        "gauge",
        "Questions that wait for an answer and are not late.",
    );
    page.sample("mqcore_handler_questions_open", &[], counters.open());
}

/// The store of limits, what is asked of it, and what guards refused.
fn limits(page: &mut Page, hub: &Hub) {
    let totals = hub.limiter.totals();
    page.family("mqcore_limiter_keys", "gauge", "Counters and buffers that are stored, by kind.");
    for (kind, count) in [("counter", totals.counters), ("buffer", totals.buffers)] {
        page.sample("mqcore_limiter_keys", &[("kind", &kind)], count);
    }
    let counters = &hub.counters.limits;
    let failing = counters.failing.load(Ordering::Relaxed);
    for (name, kind, help, value) in [
        ("mqcore_limiter_bytes", "gauge", "Octets that all of them are reckoned at.", totals.bytes),
        (
            "mqcore_limiter_expired_total",
            "counter",
            "Entries taken away because their time had come.",
            totals.expired,
        ),
        ("mqcore_limiter_evicted_total", "counter", "Entries that made room for others.", totals.evicted),
        (
            "mqcore_limiter_saved_total",
            "counter",
            "Changes of entries written down, for listeners with persist=on.",
            counters.saved.get(),
        ),
        (
            "mqcore_limiter_restored_total",
            "counter",
            "Entries that came back when the server started.",
            counters.restored.get(),
        ),
        (
            "mqcore_limiter_saving_fails",
            "gauge",
            "1 while changes cannot be written: look at the log.",
            failing,
        ),
    ] {
        page.family(name, kind, help);
        page.sample(name, &[], value);
    }
    page.family("mqcore_guard_refused_total", "counter", "What the broker's own limits refused, by limit.");
    for (limit, count) in
        [("publish", counters.publish_refused.get()), ("connect", counters.connect_refused.get())]
    {
        page.sample("mqcore_guard_refused_total", &[("limit", &limit)], count);
    }
}

type QueueFamily = (&'static str, &'static str, &'static str, fn(&QueueInformation) -> u64);

const QUEUE_FAMILIES: [QueueFamily; 5] = [
    ("mqcore_queue_ready", "gauge", "Messages stored and not handed out.", |queue| {
        queue.high_priority + queue.normal
    }),
    ("mqcore_queue_unacked", "gauge", "Deliveries not settled.", |queue| queue.in_flight),
    ("mqcore_queue_bytes", "gauge", "Octets of stored and unsettled messages.", |queue| queue.memory_bytes),
    ("mqcore_queue_in_total", "counter", "Messages taken from producers.", |queue| queue.stats.received),
    ("mqcore_queue_out_total", "counter", "Deliveries.", |queue| queue.stats.deliveries),
];

/// The metrics of each protocol's own.
fn protocols(page: &mut Page, hub: &Hub) {
    for MetricFamily { name, kind, help, samples } in hub.shared.metrics(Nanos(hub.clock.nanos())) {
        page.family(name, kind, help);
        for (label, value) in samples {
            match label {
                Some((label, text)) => page.sample(name, &[(label, &text)], value),
                None => page.sample(name, &[], value),
            }
        }
    }
}

fn schedules(page: &mut Page, hub: &Hub) {
    let numbers = hub.schedules.numbers();
    for (name, kind, help, number) in [
        ("mqcore_schedules", "gauge", "Schedules that this broker keeps.", &numbers.schedules),
        (
            "mqcore_schedule_runs_total",
            "counter",
            "Runs of schedules that were written down for their queues.",
            &numbers.runs,
        ),
        (
            "mqcore_schedule_skips_total",
            "counter",
            "How often a schedule left out runs that it had missed.",
            &numbers.skipped,
        ),
        ("mqcore_schedules_refused_total", "counter", "Schedules that were not taken.", &numbers.refused),
        (
            "mqcore_schedule_runs_waiting",
            "gauge",
            "Runs that are due and not known to be in their queues.",
            &numbers.outstanding,
        ),
    ] {
        page.family(name, kind, help);
        page.sample(name, &[], number.load(Ordering::Relaxed));
    }
    page.family(
        "mqcore_schedules_failing",
        "gauge",
        "1 while runs wait because they cannot be written down.",
    );
    page.sample("mqcore_schedules_failing", &[], u64::from(numbers.failing.load(Ordering::Relaxed)));
}

fn queues(page: &mut Page, survey: &ShardStats) {
    let mut queues: Vec<&QueueInformation> = survey.queues.iter().collect();
    queues.sort_unstable_by(|left, right| left.queue.cmp(&right.queue));
    queues.truncate(QUEUES_MAX);
    for (name, kind, help, value) in QUEUE_FAMILIES {
        page.family(name, kind, help);
        for queue in &queues {
            page.sample(name, &[("queue", &queue.queue)], value(queue));
        }
    }
}

/// A page that grows. Writing to a `String` cannot fail, so the results are dropped.
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &dyn Display)], value: impl Display) {
        self.0.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            self.0.push(if index == 0 { '{' } else { ',' });
            let _ = write!(self.0, "{label}=\"");
            let _ = write!(Escaped(&mut self.0), "{text}");
            self.0.push('"');
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        let _ = writeln!(self.0, " {value}");
    }
}

/// Writes label values: peers choose names, and a quote in one must not end the label.
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
    fn a_name_with_quotes_stays_inside_its_label() {
        let mut page = Page(String::new());
        page.sample("m", &[("queue", &"a\"b\\c\nd/1"), ("x", &"y")], 7);
        assert_eq!(page.0, "m{queue=\"a\\\"b\\\\c\\nd/1\",x=\"y\"} 7\n");
    }
}
