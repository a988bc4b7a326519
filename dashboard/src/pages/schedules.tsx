/** Schedules: when they run next, and their end. */

import { useEffect, useState } from "preact/hooks";

import { mayAdminister, mayNotAdminister } from "../access";
import { send } from "../api";
import type { Schedule, ScheduleList } from "../api";
import { age, count, moment, period } from "../format";
import { callOf } from "../job";
import { follow } from "../live";
import { readMetrics } from "../metrics";
import type { Metrics } from "../metrics";
import { Dialog, Figure, Table, AnswerError } from "../parts";
import type { Column } from "../parts";
import { change, parameters, queueLink } from "../route";
import { useAnswer } from "../use_answer";

const LIMIT = 100;
/** The broker lists no more. */
const LIMIT_MAX = 10_000;

export function SchedulesPage() {
  useEffect(() => follow("topic=overview"), []);
  const limit = Math.min(Number(parameters.value.get("limit")) || LIMIT, LIMIT_MAX);
  const answer = useAnswer<ScheduleList>(`/schedules?limit=${limit}`, 2_000);
  const metrics = useAnswer<Metrics>("/metrics", 2_000, readMetrics);
  const { data, refresh } = answer;
  return (
    <section aria-labelledby="title">
      <h2 id="title">Schedules</h2>
      <AnswerError answer={answer} what="schedules" rule="inspect:/schedules" />
      {metrics.data && <Totals metrics={metrics.data} />}
      {data && (data.total === 0 ? <Empty /> : <List list={data} refresh={refresh} />)}
      {data && data.schedules.length < data.total && (
        <p class="actions">
          <span>
            {count(data.schedules.length)} of {count(data.total)} schedules, those due next.
          </span>
          {limit < LIMIT_MAX && (
            <button type="button" onClick={() => change({ limit: String(limit * 10) })}>
              show more
            </button>
          )}
        </p>
      )}
    </section>
  );
}

/** What the broker counts for all schedules together. */
function Totals({ metrics }: { metrics: Metrics }) {
  return (
    <>
      {metrics.value("mqcore_schedules_failing") > 0 && (
        <p role="alert" class="trouble">
          Runs wait because the broker cannot save them. Its log has the reason.
        </p>
      )}
      <dl class="figures">
        <Figure name="schedules" value={count(metrics.value("mqcore_schedules"))} />
        <Figure name="runs since the start" value={count(metrics.value("mqcore_schedule_runs_total"))} />
        <Figure name="unconfirmed runs" value={count(metrics.value("mqcore_schedule_runs_pending"))} />
        <Figure name="skips of missed runs" value={count(metrics.value("mqcore_schedule_skips_total"))} />
        <Figure name="rejected schedules" value={count(metrics.value("mqcore_schedules_rejected_total"))} />
      </dl>
    </>
  );
}

const EXAMPLE = `jobs = Jobs("emqp://127.0.0.1:47290")
jobs.every("1h", nightly)
jobs.cron("0 3 * * *", nightly, timezone="Europe/Berlin")
jobs.send_schedules()`;

function Empty() {
  return (
    <div class="empty">
      <p>
        There are no schedules. To create one, start the broker with a listener <code>emqp://</code>, and declare the
        schedule of a task in Python:
      </p>
      <pre tabIndex={0}>{EXAMPLE}</pre>
      <p>
        The command <code>mqcore worker</code> sends the schedules of its program, too.
      </p>
    </div>
  );
}

const COLUMNS: Column<Schedule>[] = [
  { name: "next run", cell: (row) => <NextRun dueMs={row.due_ms} /> },
  { name: "when", cell: (row) => <When schedule={row} /> },
  { name: "queue", cell: (row) => <a href={queueLink(`${row.queue}/0`)}>{row.queue}</a> },
  { name: "job", cell: (row) => <code>{callOf(row.job)}</code> },
  { name: "runs", isNumber: true, cell: (row) => count(row.runs) },
  { name: "left", isNumber: true, cell: (row) => (row.left === null ? "unlimited" : count(row.left)) },
  { name: "missed runs", cell: (row) => CATCH_UP[row.catch_up] ?? row.catch_up },
];

const CATCH_UP: Record<string, string> = { none: "skip", latest: "run the latest", all: "run all" };

function NextRun({ dueMs }: { dueMs: number }) {
  const seconds = (dueMs - Date.now()) / 1_000;
  return (
    <>
      {moment(dueMs).slice(0, -4)} <small>{seconds >= 0 ? `in ${age(seconds)}` : `due for ${age(-seconds)}`}</small>
    </>
  );
}

function When({ schedule: { interval_ms: interval, cron, timezone } }: { schedule: Schedule }) {
  if (interval !== null) return <>every {period(interval)}</>;
  return (
    <>
      <code>{cron}</code> <small>{timezone || "UTC"}</small>
    </>
  );
}

function List({ list, refresh }: { list: ScheduleList; refresh: () => void }) {
  const [chosen, setChosen] = useState<Schedule | null>(null);
  const [report, setReport] = useState("");
  const mayChange = mayAdminister("schedules");
  const end = async (schedule: Schedule) => {
    setChosen(null);
    setReport("ending the schedule …");
    try {
      await send("DELETE", `/schedules/${schedule.id}`);
      setReport(`the schedule of ${callOf(schedule.job)} is ended`);
    } catch (error) {
      setReport(`cannot end the schedule: ${error instanceof Error ? error.message : String(error)}`);
    }
    refresh();
  };
  const ending: Column<Schedule> = {
    name: "end",
    cell: (row) => (
      <button type="button" class="danger" aria-label={`end ${callOf(row.job)}`} onClick={() => setChosen(row)}>
        end …
      </button>
    ),
  };
  return (
    <>
      <Table
        caption="schedules"
        columns={mayChange ? [...COLUMNS, ending] : COLUMNS}
        rows={list.schedules}
        keyOf={(row) => row.id}
      />
      <p role="status" class="report">
        {report}
      </p>
      {mayNotAdminister("schedules") && (
        <p class="empty" role="note">
          You may not end schedules. This needs a token with the right to administer.
        </p>
      )}
      {chosen && <EndDialog schedule={chosen} close={() => setChosen(null)} end={() => void end(chosen)} />}
    </>
  );
}

function EndDialog({ schedule, close, end }: { schedule: Schedule; close: () => void; end: () => void }) {
  return (
    <Dialog title="End this schedule" close={close}>
      <p>
        The job <code>{callOf(schedule.job)}</code> in queue {schedule.queue} will not run <When schedule={schedule} />{" "}
        any more. Runs that are already due still happen.
      </p>
      <p>
        Workers that declare the schedule do not start it again, but <code>send_schedules</code> does. Its id is{" "}
        <code class="id">{schedule.id}</code>.
      </p>
      <div class="actions">
        <button type="button" onClick={close}>
          cancel
        </button>
        <button type="button" class="danger" onClick={end}>
          end the schedule
        </button>
      </div>
    </Dialog>
  );
}
