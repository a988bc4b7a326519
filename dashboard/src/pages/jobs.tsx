/** Jobs: queues, workers, running and waiting jobs, which can be cancelled, and failed jobs, which can run again. */

import { useEffect, useState } from "preact/hooks";

import { mayAdminister } from "../access";
import { send } from "../api";
import type { JobQueue, Jobs, MoveReport, PeekedMessage, Worker } from "../api";
import { age, count, queuePath } from "../format";
import { callOf } from "../job";
import { follow } from "../live";
import { AnswerError, Filter, Pager, Table } from "../parts";
import type { Column } from "../parts";
import { change, parameters, queueLink, traceLink } from "../route";
import { useAnswer } from "../use_answer";
import { RunningJobs, WaitingJobs } from "./job_cancellation";

const LIMIT = 50;
/** Failed jobs that the page shows. */
const FAILED_SHOWN = 50;

export function JobsPage() {
  useEffect(() => follow("topic=overview"), []);
  const offset = Number(parameters.value.get("offset")) || 0;
  const query = new URLSearchParams({
    filter: parameters.value.get("filter") ?? "",
    offset: String(offset),
    limit: String(LIMIT),
  });
  const answer = useAnswer<Jobs>(`/jobs?${query}`, 2_000);
  const { data, refresh } = answer;
  const chosen = parameters.value.get("failed");
  const waiting = parameters.value.get("waiting");
  return (
    <>
      <section aria-labelledby="title">
        <h2 id="title">Jobs</h2>
        <AnswerError answer={answer} what="jobs" rule="inspect:/jobs" />
        {data && data.total === 0 && <Empty />}
        {data && data.total > 0 && (
          <>
            <Filter label="filter by name" />
            <Table caption="queues of jobs" columns={QUEUES} rows={data.queues} keyOf={(row) => row.name} />
            <Pager offset={offset} limit={LIMIT} matched={data.matched} total={data.total} what="queues" />
          </>
        )}
      </section>
      {chosen && <FailedJobs key={chosen} queue={chosen} refresh={refresh} />}
      {waiting && <WaitingJobs key={waiting} queue={waiting} refresh={refresh} />}
      {data && data.total > 0 && <RunningJobs jobs={data.running} total={data.running_total} refresh={refresh} />}
      {data && data.total > 0 && (
        <section aria-labelledby="workers">
          <h2 id="workers">Workers</h2>
          {data.workers.length === 0 ? (
            <p class="empty">No worker is connected, so no job runs.</p>
          ) : (
            <Table caption="workers" columns={WORKERS} rows={data.workers} keyOf={(row, index) => `${row.name} ${index}`} />
          )}
          {data.workers.length < data.workers_total && (
            <p>
              {count(data.workers.length)} of {count(data.workers_total)} workers.
            </p>
          )}
        </section>
      )}
    </>
  );
}

const EXAMPLE = `jobs = Jobs("emqp://127.0.0.1:47290")
send_email.enqueue("ada@example.com")`;

function Empty() {
  return (
    <div class="empty">
      <p>
        No worker or client has used a queue of jobs since the start. Start the broker with a listener{" "}
        <code>emqp://</code>, run <code>mqcore worker</code>, and send a job in Python:
      </p>
      <pre tabIndex={0}>{EXAMPLE}</pre>
    </div>
  );
}

const QUEUES: Column<JobQueue>[] = [
  { name: "queue", cell: (row) => <a href={queueLink(row.queue)}>{row.name}</a> },
  { name: "waiting", isNumber: true, cell: (row) => <Waiting queue={row} /> },
  { name: "delayed", isNumber: true, cell: (row) => count(row.delayed) },
  { name: "running", isNumber: true, cell: (row) => count(row.running) },
  { name: "finished", isNumber: true, cell: (row) => count(row.finished) },
  { name: "failed", isNumber: true, cell: (row) => <Failed queue={row} /> },
  { name: "last took", isNumber: true, cell: (row) => (row.latency_ms === null ? "–" : `${count(row.latency_ms)} ms`) },
  {
    name: "longest",
    isNumber: true,
    cell: (row) => (row.latency_max_ms === null ? "–" : `${count(row.latency_max_ms)} ms`),
  },
  { name: "workers", isNumber: true, cell: (row) => count(row.workers) },
];

/** The number of waiting jobs; a button that lists them, if there are any. */
function Waiting({ queue: { waiting, queue } }: { queue: JobQueue }) {
  if (waiting === 0) return <>0</>;
  return (
    <button type="button" aria-label={`${count(waiting)} waiting jobs in ${queue}`} onClick={() => change({ waiting: queue })}>
      {count(waiting)}
    </button>
  );
}

/** The number of failed jobs; a button that lists them, if there are any. */
function Failed({ queue: { failed, failed_queue: queue } }: { queue: JobQueue }) {
  if (failed === null || queue === null) return <>dropped</>;
  if (failed === 0) return <>0</>;
  return (
    <button type="button" aria-label={`${count(failed)} failed jobs in ${queue}`} onClick={() => change({ failed: queue })}>
      {count(failed)}
    </button>
  );
}

const WORKERS: Column<Worker>[] = [
  { name: "worker", cell: (row) => row.name },
  { name: "user", cell: (row) => row.user ?? "–" },
  { name: "queues", cell: (row) => row.queues.map((queue) => `${queue.name} (weight ${queue.weight})`).join(", ") },
  { name: "free places", isNumber: true, cell: (row) => count(row.free) },
  { name: "finished", isNumber: true, cell: (row) => count(row.finished) },
  { name: "last heard", isNumber: true, cell: (row) => `${age(row.silent_seconds)} ago` },
];

/** The failed jobs of a dead-letter queue. */
function FailedJobs({ queue, refresh }: { queue: string; refresh: () => void }) {
  const path = `${queuePath(queue)}/messages?limit=${FAILED_SHOWN}`;
  const answer = useAnswer<{ messages: PeekedMessage[] }>(path, 2_000);
  const [report, setReport] = useState("");
  const act = async (what: "move" | "discard", ids: string[]) => {
    setReport(what === "move" ? "returning …" : "discarding …");
    try {
      const done = await send<MoveReport>("POST", `${queuePath(queue)}/${what}`, { ids });
      const verb = what === "move" ? "returned to their queues" : "discarded";
      const rest = done.rejection ?? (done.without_origin > 0 ? "the others do not name their queue" : "");
      setReport(`${count(done.moved)} jobs are ${verb}${rest ? `: ${rest}` : ""}`);
    } catch (error) {
      setReport(`that failed: ${error instanceof Error ? error.message : String(error)}`);
    }
    answer.refresh();
    refresh();
  };
  const messages = answer.data?.messages ?? [];
  const columns: Column<PeekedMessage>[] = mayAdminister("queues")
    ? [...LETTERS, { name: "retry", cell: (row) => <Retry message={row} act={act} /> }]
    : LETTERS;
  return (
    <section aria-labelledby="failed">
      <h2 id="failed">
        Failed jobs in <a href={queueLink(queue)}>{queue}</a>
      </h2>
      <AnswerError answer={answer} what="failed jobs" rule="administer:/queues/*" />
      {answer.data && messages.length === 0 && <p class="empty">There are no failed jobs.</p>}
      {messages.length > 0 && (
        <Table caption="failed jobs" columns={columns} rows={messages} keyOf={(row, index) => `${row.id} ${index}`} />
      )}
      <div class="actions">
        {mayAdminister("queues") && messages.length > 0 && (
          <button type="button" onClick={() => void act("move", [])}>
            retry all
          </button>
        )}
        <button type="button" onClick={() => change({ failed: "" })}>
          close
        </button>
      </div>
      <p role="status" class="report">
        {report}
      </p>
    </section>
  );
}

const LETTERS: Column<PeekedMessage>[] = [
  { name: "job", cell: (row) => <code>{callOf(row.body ?? "")}</code> },
  { name: "id", cell: (row) => (row.id ? <a href={traceLink(row.id)}>{row.id}</a> : "–") },
  { name: "queue", cell: (row) => header(row, "Dead-Letter-Queue") },
  { name: "error", cell: (row) => header(row, "Dead-Letter-Error") },
  { name: "attempts", isNumber: true, cell: (row) => header(row, "Dead-Letter-Attempts") },
  {
    name: "age",
    isNumber: true,
    cell: (row) => age(row.received_ms === undefined ? null : (Date.now() - row.received_ms) / 1_000),
  },
];

/** The last value of a header. A job that failed twice has two of each. */
function header(message: PeekedMessage, name: string): string {
  return message.headers?.findLast(([key]) => key === name)?.[1] ?? "–";
}

interface RetryProps {
  message: PeekedMessage;
  act: (what: "move" | "discard", ids: string[]) => Promise<void>;
}

function Retry({ message: { id }, act }: RetryProps) {
  if (!id) return null;
  return (
    <span class="actions">
      <button type="button" aria-label={`retry ${id}`} onClick={() => void act("move", [id])}>
        retry
      </button>
      <button type="button" class="danger" aria-label={`discard ${id}`} onClick={() => void act("discard", [id])}>
        discard
      </button>
    </span>
  );
}
