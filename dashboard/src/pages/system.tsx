/** The broker as a program: its health, memory, journals, history, limits, links, certificates and handlers. */

import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";

import type { Archive, Certificate, Overview } from "../api";
import { age, bytes, count, expiry, moment, shortTime } from "../format";
import { attention, follow } from "../live";
import { readMetrics } from "../metrics";
import type { Durations, Metrics } from "../metrics";
import { Badge, Figure, Table, AnswerError } from "../parts";
import type { Column } from "../parts";
import { queueLink } from "../route";
import { useAnswer } from "../use_answer";
import { Nodes } from "./nodes";

const EVERY_MS = 2_000;
/** Limits from here on are none: the broker reports the largest number of 64 bits. */
const UNLIMITED = 2 ** 63;

export function SystemPage() {
  useEffect(() => follow("topic=overview"), []);
  const overview = useAnswer<Overview>("/overview?limit=1000", EVERY_MS);
  const metrics = useAnswer<Metrics>("/metrics", EVERY_MS, readMetrics);
  const ready = useAnswer<{ status: string }>("/readyz", EVERY_MS);
  return (
    <>
      <Section id="process" title="System">
        <Health isReady={ready.data !== null && ready.error === ""} reason={ready.error} />
        <AnswerError answer={overview} what="the overview" rule="inspect:/overview" />
        <AnswerError answer={metrics} what="metrics" rule="inspect:/metrics" />
        {overview.data && <Process overview={overview.data} />}
      </Section>
      {metrics.data && <Memory metrics={metrics.data} />}
      {metrics.data && <Journal metrics={metrics.data} overview={overview.data} />}
      {metrics.data && <History metrics={metrics.data} overview={overview.data} />}
      {metrics.data && <ContinuousBackup metrics={metrics.data} overview={overview.data} />}
      {metrics.data && <Limits metrics={metrics.data} />}
      {metrics.data && <Protocols metrics={metrics.data} overview={overview.data} />}
      {overview.data && (
        <Section id="nodes" title="Other brokers">
          <Nodes nodes={overview.data.nodes} />
          {metrics.data && <Backlogs metrics={metrics.data} />}
        </Section>
      )}
      {overview.data && <Certificates certificates={overview.data.certificates} />}
      {metrics.data && <Handlers metrics={metrics.data} overview={overview.data} />}
    </>
  );
}

function Section({ id, title, children }: { id: string; title: string; children: ComponentChildren }) {
  return (
    <section aria-labelledby={id}>
      <h2 id={id}>{title}</h2>
      {children}
    </section>
  );
}

function Figures({ figures }: { figures: [string, string][] }) {
  return (
    <dl class="figures">
      {figures.map(([name, value]) => (
        <Figure key={name} name={name} value={value} />
      ))}
    </dl>
  );
}

function Health({ isReady, reason }: { isReady: boolean; reason: string }) {
  return (
    <>
      {attention.value && <p>{attention.value.summary}</p>}
      {(isReady || reason) && (
        <p>
          <Badge severity={isReady ? "healthy" : "critical"}>{isReady ? "ready" : "not ready"}</Badge> {reason}
        </p>
      )}
    </>
  );
}

function Process({ overview }: { overview: Overview }) {
  return (
    <Figures
      figures={[
        ["version", overview.version],
        ["process", String(overview.pid)],
        ["up for", age(overview.uptime_seconds)],
        ["shards", count(overview.shards)],
        ["listeners", count(overview.listeners.length)],
      ]}
    />
  );
}

function Memory({ metrics }: { metrics: Metrics }) {
  const limit = metrics.value("mqcore_unsaved_memory_limit_bytes");
  return (
    <Section id="memory" title="Memory">
      <Figures
        figures={[
          ["messages", bytes(metrics.value("mqcore_messages_bytes"))],
          ["unsaved messages", bytes(metrics.value("mqcore_unsaved_memory_bytes"))],
          ["limit of unsaved messages", limit >= UNLIMITED ? "none" : bytes(limit)],
          ["rejected at this limit", count(metrics.value("mqcore_unsaved_memory_rejected_total"))],
          ["bodies of saved messages", bytes(metrics.value("mqcore_bodies_memory_bytes"))],
          ["bodies paged out", count(metrics.value("mqcore_bodies_evicted_total"))],
          ["bodies loaded again", count(metrics.value("mqcore_bodies_loaded_total"))],
          ["unreadable bodies", count(metrics.value("mqcore_bodies_unreadable_total"))],
          ["unfinished input", bytes(metrics.value("mqcore_unfinished_input_bytes"))],
          ["counters and buffers", bytes(metrics.value("mqcore_limiter_bytes"))],
        ]}
      />
    </Section>
  );
}

function syncTime(metrics: Metrics): string {
  const syncs = metrics.durations("mqcore_journal_fsync_seconds");
  return syncs.count === 0 ? "–" : shortTime(syncs.mean);
}

function Journal({ metrics, overview }: { metrics: Metrics; overview: Overview | null }) {
  const rejecting = overview?.shards_rejecting_messages ?? [];
  const losses = overview?.losses ?? [];
  const size = metrics.value("mqcore_journal_bytes");
  return (
    <Section id="journal" title="Journals">
      {size === 0 && (
        <p class="empty" role="note">
          The journals have no files. A broker without <code>--data-dir</code> stores nothing.
        </p>
      )}
      {rejecting.length > 0 && (
        <p>
          <Badge severity="critical">rejects messages</Badge> The journals of these shards accept no durable messages:{" "}
          {rejecting.join(", ")}. The log has the reason.
        </p>
      )}
      {losses.map((loss) => (
        <p key={`${loss.journal} ${loss.text}`}>
          <Badge severity="critical">lost records</Badge> {loss.text}
        </p>
      ))}
      <Figures
        figures={[
          ["size of the files", bytes(size)],
          ["saved messages", count(metrics.value("mqcore_journal_live_records"))],
          ["syncs", count(metrics.value("mqcore_journal_fsync_seconds_count"))],
          ["time of a sync, on average", syncTime(metrics)],
          ["damaged segments", count(metrics.value("mqcore_journal_quarantined_segments"))],
          ["failed removals", count(metrics.value("mqcore_journal_failed_removals_total"))],
          ["failed saves", count(metrics.value("mqcore_messages_total", { outcome: "save-failed" }))],
        ]}
      />
    </Section>
  );
}

const TASK_SEVERITY: Record<Archive["state"], "healthy" | "warning" | "critical"> = {
  "up-to-date": "healthy",
  lagging: "warning",
  failing: "critical",
};

function History({ metrics, overview }: { metrics: Metrics; overview: Overview | null }) {
  const archive = overview?.archive;
  const dropping = metrics.value("mqcore_history_dropping_shards");
  return (
    <Section id="history" title="History and archive">
      {archive === null && (
        <p class="empty" role="note">
          This broker archives no history. To record one, start it with <code>--data-dir DIR --history</code>.
        </p>
      )}
      {archive && (
        <p>
          <Badge severity={TASK_SEVERITY[archive.state] ?? "warning"}>{archive.state.replaceAll("-", " ")}</Badge>{" "}
          {count(archive.pending_notes)} blocks of history wait for the archive
          {archive.waiting_seconds >= 1 && `, the oldest for ${age(archive.waiting_seconds)}`}.
        </p>
      )}
      {archive?.error && archive.failing_since_ms && (
        <p role="alert">
          It has failed since {moment(archive.failing_since_ms)}: {archive.error}
        </p>
      )}
      {dropping > 0 && (
        <p>
          <Badge severity="warning">drops events</Badge> {count(dropping)} shards cannot record events now.
        </p>
      )}
      <Figures
        figures={[
          ["recorded events", count(metrics.value("mqcore_history_events_total"))],
          ["size of these events", bytes(metrics.value("mqcore_history_bytes_total"))],
          ["dropped events", count(metrics.value("mqcore_history_events_dropped_total"))],
        ]}
      />
      {archive && (
        <Figures
          figures={[
            ["files of the archive", count(metrics.value("mqcore_archive_files"))],
            ["size of the archive", bytes(metrics.value("mqcore_archive_bytes"))],
            ["rows written", count(metrics.value("mqcore_archive_rows_total"))],
            ["runs", count(metrics.value("mqcore_archive_runs_total"))],
            ["failed runs", count(metrics.value("mqcore_archive_failures_total"))],
            ["blocks lost", count(metrics.value("mqcore_archive_notes_lost_total"))],
            ["removed files", count(metrics.value("mqcore_archive_removed_files_total"))],
          ]}
        />
      )}
    </Section>
  );
}

function ContinuousBackup({ metrics, overview }: { metrics: Metrics; overview: Overview | null }) {
  const backup = overview?.backup;
  return (
    <Section id="backup" title="Continuous backup">
      {backup === null && (
        <p class="empty" role="note">
          This broker makes no restore points. To make some, set <code>backup_url</code> in its configuration.
        </p>
      )}
      {backup && (
        <p>
          <Badge severity={TASK_SEVERITY[backup.state] ?? "warning"}>{backup.state.replaceAll("-", " ")}</Badge>{" "}
          {backup.latest_ms === null
            ? `No restore point since the start, ${age(backup.age_seconds)} ago`
            : `The latest moment that can be restored is ${age(backup.age_seconds)} old`}
          {backup.upload_bytes !== null &&
            `; ${bytes(backup.uploaded_bytes ?? 0)} of ${bytes(backup.upload_bytes)} are uploaded`}
          .
        </p>
      )}
      {backup?.error && backup.failing_since_ms && (
        <p role="alert">
          It has failed since {moment(backup.failing_since_ms)}: {backup.error}
        </p>
      )}
      {backup && (
        <Figures
          figures={[
            ["restore points", count(metrics.value("mqcore_backup_restore_points_total"))],
            ["uploaded", bytes(metrics.value("mqcore_backup_uploaded_bytes_total"))],
            ["failed attempts", count(metrics.value("mqcore_backup_failures_total"))],
          ]}
        />
      )}
    </Section>
  );
}

function Limits({ metrics }: { metrics: Metrics }) {
  return (
    <Section id="limits" title="Limits">
      {metrics.value("mqcore_limiter_save_failing") > 0 && (
        <p>
          <Badge severity="critical">not saved</Badge> Changes of counters and buffers cannot be saved. The log has the
          reason.
        </p>
      )}
      <Figures
        figures={[
          ["counters", count(metrics.value("mqcore_limiter_keys", { kind: "counter" }))],
          ["buffers", count(metrics.value("mqcore_limiter_keys", { kind: "buffer" }))],
          ["expired", count(metrics.value("mqcore_limiter_expired_total"))],
          ["evicted", count(metrics.value("mqcore_limiter_evicted_total"))],
          ["saved changes", count(metrics.value("mqcore_limiter_saved_total"))],
          ["restored at the start", count(metrics.value("mqcore_limiter_restored_total"))],
        ]}
      />
      <Table
        caption="rejected because of a limit"
        columns={[
          { name: "rejected because of a limit", cell: ([name]) => name },
          { name: "since the start", isNumber: true, cell: ([, value]) => count(value) },
        ]}
        rows={rejections(metrics)}
        keyOf={([name]) => name}
      />
    </Section>
  );
}

function rejections(metrics: Metrics): [string, number][] {
  return [
    ["publishes, by publish_limit", metrics.value("mqcore_guard_rejected_total", { limit: "publish" })],
    ["connections, by connect_limit", metrics.value("mqcore_guard_rejected_total", { limit: "connect" })],
    ["connections, by connections_max", metrics.value("mqcore_connections_rejected_total")],
    ["channels and queues", metrics.value("mqcore_creations_rejected_total")],
    ["subscriptions to topics", metrics.value("mqcore_topic_subscriptions_rejected_total")],
    ["counters and buffers", metrics.value("mqcore_limiter_keys_rejected_total")],
    ["schedules", metrics.value("mqcore_schedules_rejected_total")],
  ];
}

function Protocols({ metrics, overview }: { metrics: Metrics; overview: Overview | null }) {
  const listening = new Set(overview?.listeners.map((listener) => listener.protocol));
  const names = metrics
    .samples("mqcore_connections_accepted_total")
    .map(({ labels }) => labels["protocol"] ?? "")
    .filter((name) => overview === null || listening.has(name));
  const of = (metric: string) => (protocol: string) => metrics.value(metric, { protocol });
  const columns: Column<string>[] = [
    { name: "protocol", cell: (name) => name },
    {
      name: "clients",
      isNumber: true,
      cell: (protocol) => count(metrics.value("mqcore_connections", { protocol, state: "client" })),
    },
    {
      name: "half-open",
      isNumber: true,
      cell: (protocol) => count(metrics.value("mqcore_connections", { protocol, state: "half-open" })),
    },
    { name: "accepted", isNumber: true, cell: (name) => count(of("mqcore_connections_accepted_total")(name)) },
    { name: "closed by the broker", isNumber: true, cell: (name) => count(of("mqcore_connections_closed_total")(name)) },
    { name: "failed requests", isNumber: true, cell: (name) => count(of("mqcore_requests_failed_total")(name)) },
    { name: "received", isNumber: true, cell: (name) => bytes(of("mqcore_received_bytes_total")(name)) },
    { name: "sent", isNumber: true, cell: (name) => bytes(of("mqcore_sent_bytes_total")(name)) },
  ];
  return (
    <Section id="protocols" title="Protocols">
      <Table caption="connections by protocol" columns={columns} rows={names} keyOf={(name) => name} />
    </Section>
  );
}

/** Messages for upstream brokers. */
function Backlogs({ metrics }: { metrics: Metrics }) {
  const upstreams = metrics.samples("mqcore_node_backlog").map(({ labels }) => labels["upstream"] ?? "");
  if (upstreams.length === 0) return null;
  const columns: Column<string>[] = [
    { name: "upstream", cell: (upstream) => <code>{upstream}</code> },
    { name: "unconfirmed", isNumber: true, cell: (upstream) => count(metrics.value("mqcore_node_backlog", { upstream })) },
    {
      name: "bytes of these",
      isNumber: true,
      cell: (upstream) => bytes(metrics.value("mqcore_node_backlog_bytes", { upstream })),
    },
    {
      name: "confirmed",
      isNumber: true,
      cell: (upstream) => count(metrics.value("mqcore_node_confirmed_total", { upstream })),
    },
    { name: "dropped", isNumber: true, cell: (upstream) => count(metrics.value("mqcore_node_dropped_total", { upstream })) },
  ];
  return <Table caption="messages for upstream brokers" columns={columns} rows={upstreams} keyOf={(name) => name} />;
}

const CERTIFICATES: Column<Certificate>[] = [
  { name: "listener", cell: (row) => <code>{row.listener}</code> },
  { name: "subject", cell: (row) => row.subject },
  { name: "names", cell: (row) => row.names.join(", ") || "–" },
  {
    name: "expires",
    cell: ({ expires_in_seconds: seconds }) => expiry(seconds),
  },
  { name: "fingerprint", cell: (row) => <code class="id">{row.fingerprint}</code> },
];

function Certificates({ certificates }: { certificates: Certificate[] }) {
  return (
    <Section id="certificates" title="Certificates">
      {certificates.length === 0 ? (
        <p class="empty">No listener has a certificate: connections are not encrypted.</p>
      ) : (
        <Table caption="certificates" columns={CERTIFICATES} rows={certificates} keyOf={(row) => row.listener} />
      )}
    </Section>
  );
}

const MISSING: Column<{ queue: string; missing_handler: string }>[] = [
  { name: "queue", cell: (row) => <a href={queueLink(row.queue)}>{row.queue}</a> },
  { name: "handler that is not registered", cell: (row) => row.missing_handler },
];

/** What the thread of a handler did: a step of it, or a wait for the GIL. */
interface HandlerTime {
  handler: string;
  what: string;
  times: Durations;
}

const HANDLER_TIMES: Column<HandlerTime>[] = [
  { name: "handler", cell: ({ handler }) => handler },
  { name: "step", cell: ({ what }) => what },
  { name: "calls", isNumber: true, cell: ({ times }) => count(times.count) },
  { name: "average", isNumber: true, cell: ({ times }) => shortTime(times.mean) },
  { name: "p99, at most", isNumber: true, cell: ({ times }) => shortTime(times.p99) },
];

function handlerTimes(metrics: Metrics): HandlerTime[] {
  const steps = metrics.samples("mqcore_handler_seconds_count").map(({ labels }) => ({
    handler: labels.handler ?? "",
    what: labels.step ?? "",
    times: metrics.durations("mqcore_handler_seconds", labels),
  }));
  const waits = metrics.samples("mqcore_handler_gil_wait_seconds_count").map(({ labels }) => ({
    handler: labels.handler ?? "",
    what: "wait for the GIL",
    times: metrics.durations("mqcore_handler_gil_wait_seconds", labels),
  }));
  const seen = [...steps, ...waits].filter(({ times }) => times.count > 0);
  return seen.sort((one, other) => one.handler.localeCompare(other.handler));
}

function Handlers({ metrics, overview }: { metrics: Metrics; overview: Overview | null }) {
  const missing = overview?.queues_without_handler ?? [];
  const times = handlerTimes(metrics);
  const questions = (outcome: string) => count(metrics.value("mqcore_handler_questions_total", { outcome }));
  return (
    <Section id="handlers" title="Handlers">
      <Figures
        figures={[
          ["questions", questions("asked")],
          ["answered", questions("answered")],
          ["answered late or never", questions("late")],
          ["open now", count(metrics.value("mqcore_handler_questions_open"))],
        ]}
      />
      {times.length > 0 && (
        <Table
          caption="time in handlers"
          columns={HANDLER_TIMES}
          rows={times}
          keyOf={({ handler, what }) => `${handler} ${what}`}
        />
      )}
      {missing.length > 0 && (
        <Table caption="queues without their handler" columns={MISSING} rows={missing} keyOf={(row) => row.queue} />
      )}
    </Section>
  );
}
