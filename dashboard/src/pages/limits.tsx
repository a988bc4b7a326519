/** Rate limits and counters: what is left of them, and their change. */

import { useEffect, useState } from "preact/hooks";

import { mayAdminister } from "../access";
import { send } from "../api";
import type { Limit, Limits } from "../api";
import { age, bytes, count } from "../format";
import { follow } from "../live";
import { AnswerError, Dialog, Filter, Pager, Table } from "../parts";
import type { Column } from "../parts";
import { parameters } from "../route";
import { useAnswer } from "../use_answer";

const LIMIT = 100;
/** The broker shows no more; a filter finds the others. */
const SHOWN_MAX = 10_000;

export function LimitsPage() {
  useEffect(() => follow("topic=overview"), []);
  const offset = Number(parameters.value.get("offset")) || 0;
  const query = new URLSearchParams({ offset: String(offset), limit: String(LIMIT) });
  for (const name of ["filter", "sort", "reverse"]) {
    const value = parameters.value.get(name);
    if (value) query.set(name, value);
  }
  const answer = useAnswer<Limits>(`/limits?${query}`, 2_000);
  const { data, refresh } = answer;
  return (
    <section aria-labelledby="title">
      <h2 id="title">Limits</h2>
      <AnswerError answer={answer} what="limits" rule="administer:/limits" />
      {data && data.total === 0 && <Empty />}
      {data && data.total > 0 && (
        <>
          <Filter label="filter by key" />
          {!data.complete && (
            <p role="note" class="empty">
              There are too many entries to search all of them. These are the first ones that were found.
            </p>
          )}
          <List limits={data.limits} refresh={refresh} />
          <Pager offset={offset} limit={LIMIT} matched={Math.min(data.matched, SHOWN_MAX)} total={data.total} what="entries" />
        </>
      )}
    </section>
  );
}

const EXAMPLE = `limiter = RateLimiter("throttr://127.0.0.1:9000")

@limiter.limit("20/m", key=by_user)
async def chat(user: str, text: str) -> str: ...`;

function Empty() {
  return (
    <div class="empty">
      <p>
        There are no counters and no buffers. Start the broker with a listener <code>throttr://</code>, and limit a
        function in Python:
      </p>
      <pre tabIndex={0}>{EXAMPLE}</pre>
    </div>
  );
}

const COLUMNS: Column<Limit>[] = [
  { name: "key", sort: "key", cell: (row) => <code>{row.key}</code> },
  { name: "kind", cell: (row) => row.kind },
  {
    name: "left",
    sort: "left",
    isNumber: true,
    cell: (row) => (row.buffer_bytes === null ? count(row.left) : bytes(row.buffer_bytes)),
  },
  {
    name: "expires",
    sort: "expires",
    isNumber: true,
    cell: (row) => (row.expires_in_seconds === null ? "never" : `in ${age(row.expires_in_seconds)}`),
  },
  { name: "reads/min", sort: "reads", isNumber: true, cell: (row) => count(row.reads_per_minute) },
  { name: "writes/min", sort: "writes", isNumber: true, cell: (row) => count(row.writes_per_minute) },
];

function List({ limits, refresh }: { limits: Limit[]; refresh: () => void }) {
  const [chosen, setChosen] = useState<Limit | null>(null);
  const [report, setReport] = useState("");
  const run = async (text: string, request: () => Promise<unknown>) => {
    setChosen(null);
    try {
      await request();
      setReport(text);
    } catch (error) {
      setReport(`that failed: ${error instanceof Error ? error.message : String(error)}`);
    }
    refresh();
  };
  const path = (limit: Limit) => `/limits/${limit.key_base64}?base64=1`;
  const reset = (limit: Limit) =>
    run(`${limit.key} is reset: its full limit is available again`, () => send("DELETE", path(limit)));
  const set = (limit: Limit, left: number) =>
    run(`${limit.key} has ${count(left)} left`, () => send("POST", path(limit), { left }));
  const changing: Column<Limit> = {
    name: "change",
    cell: (row) => (
      <span class="actions">
        {row.kind === "counter" && (
          <button type="button" aria-label={`set ${row.key}`} onClick={() => setChosen(row)}>
            set …
          </button>
        )}
        <button type="button" class="danger" aria-label={`reset ${row.key}`} onClick={() => void reset(row)}>
          reset
        </button>
      </span>
    ),
  };
  return (
    <>
      <Table
        caption="counters and buffers"
        columns={mayAdminister("limits") ? [...COLUMNS, changing] : COLUMNS}
        rows={limits}
        keyOf={(row) => row.key_base64}
      />
      <p role="status" class="report">
        {report}
      </p>
      {chosen && (
        <SetDialog limit={chosen} close={() => setChosen(null)} set={(left) => void set(chosen, left)} />
      )}
    </>
  );
}

interface SetDialogProps {
  limit: Limit;
  close: () => void;
  set: (left: number) => void;
}

/** A quota: fewer digits than numbers have without a loss. */
const LEFT = /^\d{1,15}$/;

function SetDialog({ limit, close, set }: SetDialogProps) {
  const [text, setText] = useState(String(limit.left));
  return (
    <Dialog title={`Change what ${limit.key} has left`} close={close}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          const left = String(new FormData(event.currentTarget).get("left"));
          if (LEFT.test(left)) set(Number(left));
        }}
      >
        <label>
          Left
          <input name="left" inputMode="numeric" value={text} onInput={(event) => setText(event.currentTarget.value.trim())} />
        </label>
        <div class="actions">
          <button type="button" onClick={close}>
            cancel
          </button>
          <button type="submit" disabled={!LEFT.test(text)}>
            set
          </button>
        </div>
      </form>
    </Dialog>
  );
}
