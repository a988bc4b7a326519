/** Running and waiting jobs, and their cancellation. */

import { useState } from "preact/hooks";

import { mayAdminister } from "../access";
import { send } from "../api";
import type { JobCancellation, PeekedMessage, RunningJob } from "../api";
import { age, count, queuePath } from "../format";
import { callOf } from "../job";
import { AnswerError, Dialog, Table } from "../parts";
import type { Column } from "../parts";
import { change, queueLink, traceLink } from "../route";
import { useAnswer } from "../use_answer";

/** Waiting jobs that the page shows. */
const WAITING_SHOWN = 50;

const RUNNING: Column<RunningJob>[] = [
  { name: "id", cell: (row) => <a href={traceLink(row.id)}>{row.id}</a> },
  { name: "queue", cell: (row) => <a href={queueLink(row.queue)}>{row.queue}</a> },
  { name: "worker", cell: (row) => row.worker ?? "–" },
  { name: "runs for", isNumber: true, cell: (row) => age(row.seconds) },
  {
    name: "progress",
    isNumber: true,
    cell: (row) => (row.progress === null ? "–" : `${Math.round(row.progress * 100)} %`),
  },
];

interface RunningJobsProps {
  jobs: RunningJob[];
  total: number;
  refresh: () => void;
}

/** The jobs that run longest. */
export function RunningJobs({ jobs, total, refresh }: RunningJobsProps) {
  const [chosen, setChosen] = useState<RunningJob | null>(null);
  const { report, cancel } = useCancellation(refresh);
  const cancelling: Column<RunningJob> = {
    name: "cancel",
    cell: (row) => <CancelButton id={row.id} choose={() => setChosen(row)} />,
  };
  const act = (hard: boolean) => {
    if (chosen) void cancel(chosen.id, chosen.queue, hard);
    setChosen(null);
  };
  return (
    <section aria-labelledby="running">
      <h2 id="running">Running jobs</h2>
      {jobs.length === 0 ? (
        <p class="empty">No job runs.</p>
      ) : (
        <Table
          caption="running jobs"
          columns={mayAdminister("jobs") ? [...RUNNING, cancelling] : RUNNING}
          rows={jobs}
          keyOf={(row) => row.id}
        />
      )}
      {jobs.length < total && (
        <p>
          {count(jobs.length)} of {count(total)} running jobs, those that run longest.
        </p>
      )}
      <p role="status" class="report">
        {report}
      </p>
      {chosen && (
        <Dialog title="Cancel this job" close={() => setChosen(null)}>
          <p>
            Job <code class="id">{chosen.id}</code> in queue {chosen.queue} fails with JobCancelled and does not run
            again. It can be asked to end, so that it cleans up. If it does not end, kill its process; other jobs
            continue.
          </p>
          <div class="actions">
            <button type="button" onClick={() => setChosen(null)}>
              keep it
            </button>
            <button type="button" class="danger" onClick={() => act(false)}>
              ask it to end
            </button>
            <button type="button" class="danger" onClick={() => act(true)}>
              kill its process
            </button>
          </div>
        </Dialog>
      )}
    </section>
  );
}

const WAITING: Column<PeekedMessage>[] = [
  { name: "job", cell: (row) => <code>{callOf(row.body ?? "")}</code> },
  { name: "id", cell: (row) => (row.id ? <a href={traceLink(row.id)}>{row.id}</a> : "–") },
  { name: "attempts", isNumber: true, cell: (row) => count(row.attempts) },
  {
    name: "age",
    isNumber: true,
    cell: (row) => age(row.received_ms === undefined ? null : (Date.now() - row.received_ms) / 1_000),
  },
];

/** The next jobs of a queue. */
export function WaitingJobs({ queue, refresh }: { queue: string; refresh: () => void }) {
  const answer = useAnswer<{ messages: PeekedMessage[] }>(`${queuePath(queue)}/messages?limit=${WAITING_SHOWN}`, 2_000);
  const [chosen, setChosen] = useState<string | null>(null);
  const { report, cancel } = useCancellation(() => {
    answer.refresh();
    refresh();
  });
  const messages = answer.data?.messages ?? [];
  const cancelling: Column<PeekedMessage> = {
    name: "cancel",
    cell: ({ id }) => (id ? <CancelButton id={id} choose={() => setChosen(id)} /> : null),
  };
  const act = () => {
    if (chosen !== null) void cancel(chosen, queue, false);
    setChosen(null);
  };
  return (
    <section aria-labelledby="waiting">
      <h2 id="waiting">
        Waiting jobs in <a href={queueLink(queue)}>{queue}</a>
      </h2>
      <AnswerError answer={answer} what="waiting jobs" rule="administer:/queues/*" />
      {answer.data && messages.length === 0 && <p class="empty">No job waits.</p>}
      {messages.length > 0 && (
        <Table
          caption="waiting jobs"
          columns={mayAdminister("jobs") ? [...WAITING, cancelling] : WAITING}
          rows={messages}
          keyOf={(row, index) => `${row.id} ${index}`}
        />
      )}
      <div class="actions">
        <button type="button" onClick={() => change({ waiting: "" })}>
          close
        </button>
      </div>
      <p role="status" class="report">
        {report}
      </p>
      {chosen !== null && (
        <Dialog title="Cancel this job" close={() => setChosen(null)}>
          <p>
            Job <code class="id">{chosen}</code> leaves queue {queue} and does not run. Its sender gets JobCancelled.
          </p>
          <div class="actions">
            <button type="button" onClick={() => setChosen(null)}>
              keep it
            </button>
            <button type="button" class="danger" onClick={act}>
              cancel the job
            </button>
          </div>
        </Dialog>
      )}
    </section>
  );
}

function CancelButton({ id, choose }: { id: string; choose: () => void }) {
  return (
    <button type="button" class="danger" aria-label={`cancel ${id}`} onClick={choose}>
      cancel …
    </button>
  );
}

/** Cancels jobs one at a time, and reports what happened. */
function useCancellation(refresh: () => void) {
  const [report, setReport] = useState("");
  const cancel = async (id: string, queue: string, hard: boolean) => {
    setReport(`cancelling job ${id} …`);
    try {
      const done = await send<JobCancellation>("POST", `/jobs/${encodeURIComponent(id)}/cancel`, { queue, hard });
      setReport(done.cancelled ? `job ${id} is cancelled` : `job ${id} has ended already: it is ${done.state}`);
    } catch (error) {
      setReport(`cannot cancel job ${id}: ${error instanceof Error ? error.message : String(error)}`);
    }
    refresh();
  };
  return { report, cancel };
}
