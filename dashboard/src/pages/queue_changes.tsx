/** What an administrator may do with a queue: pause, return dead letters, move, purge, remove. */

import { useEffect, useRef, useState } from "preact/hooks";

import { mayAdminister } from "../access";
import { send } from "../api";
import type { MoveReport, QueueDetail } from "../api";
import { count, queuePath } from "../format";
import { Dialog } from "../parts";
import type { DialogProps } from "../parts";

/** The queue of a channel that gets messages that failed for good. */
const DEAD_LETTERS = "/65535";
/** Messages of one request; a long move shows its progress between requests. */
const BATCH = 1_000;

export function QueueChanges({ detail }: { detail: QueueDetail }) {
  const [report, setReport] = useState("");
  const [question, setQuestion] = useState<"" | "purge" | "remove" | "move">("");
  if (!mayAdminister("queues")) return null;
  const { queue, status } = detail;
  const run = async (what: string, change: () => Promise<string>) => {
    setQuestion("");
    setReport(`${what} …`);
    try {
      setReport(await change());
    } catch (error) {
      setReport(`${what}: ${error instanceof Error ? error.message : String(error)}`);
    }
  };
  const setStatus = (wanted: string) =>
    run(`changing ${queue} to ${wanted}`, async () => {
      await send("POST", `${queuePath(queue)}/status`, { status: wanted });
      return `${queue} is ${wanted}`;
    });
  return (
    <section aria-labelledby="changes">
      <h2 id="changes">Changes</h2>
      <div class="actions">
        <Status status={status} set={setStatus} />
        {queue.endsWith(DEAD_LETTERS) && (
          <button type="button" onClick={() => run("returning", () => moveAll(queue, null, setReport))}>
            return to their queues
          </button>
        )}
        <button type="button" onClick={() => setQuestion("move")}>
          move …
        </button>
        <button type="button" class="danger" onClick={() => setQuestion("purge")}>
          purge …
        </button>
        <button type="button" class="danger" onClick={() => setQuestion("remove")}>
          remove …
        </button>
      </div>
      <p role="status" class="report">
        {report}
      </p>
      {question === "move" && (
        <MoveTo
          queue={queue}
          close={() => setQuestion("")}
          move={(to) => run("moving", () => moveAll(queue, to, setReport))}
        />
      )}
      {question === "purge" && (
        <Confirmation
          title={`Purge ${queue}`}
          name={queue}
          close={() => setQuestion("")}
          confirm={() =>
            run("purging", async () => {
              await send("POST", `${queuePath(queue)}/purge`, {});
              return `${queue} is empty`;
            })
          }
        >
          This removes {count(detail.ready + detail.delayed)} messages for good.
        </Confirmation>
      )}
      {question === "remove" && (
        <Confirmation
          title={`Remove ${queue}`}
          name={queue}
          close={() => setQuestion("")}
          confirm={() =>
            run("removing", async () => {
              await send("DELETE", queuePath(queue));
              return `${queue} is removed`;
            })
          }
        >
          This removes the queue with {count(detail.ready + detail.delayed + detail.in_flight)} messages for good.
        </Confirmation>
      )}
    </section>
  );
}

/** Pauses a queue, and lets it continue as what it was before. */
function Status({ status, set }: { status: string; set: (status: string) => void }) {
  const before = useRef("push");
  useEffect(() => {
    if (status !== "paused") before.current = status;
  }, [status]);
  if (status === "paused") {
    return (
      <button type="button" onClick={() => set(before.current)}>
        continue as {before.current}
      </button>
    );
  }
  return (
    <button type="button" onClick={() => set("paused")}>
      pause
    </button>
  );
}

/** Moves all messages, batch by batch. */
async function moveAll(queue: string, to: string | null, report: (text: string) => void): Promise<string> {
  let moved = 0;
  let total: number | null = null;
  for (;;) {
    const content = to === null ? { max: BATCH } : { to, max: BATCH };
    const done = await send<MoveReport>("POST", `${queuePath(queue)}/move`, content);
    moved += done.moved;
    total ??= done.moved + done.left;
    const summary = `moved ${count(moved)} messages; ${count(done.left)} are left`;
    if (done.rejection) return `${summary}: ${done.rejection}`;
    if (done.moved === 0 || done.left === 0 || moved >= total) {
      const origin = done.without_origin > 0 ? `, ${count(done.without_origin)} do not name their queue` : "";
      return summary + origin;
    }
    report(`${summary} …`);
  }
}

interface ConfirmationProps extends DialogProps {
  /** What the user must type. */
  name: string;
  confirm: () => void;
}

/** Asks for the name of what is lost. */
function Confirmation({ title, name, close, confirm, children }: ConfirmationProps) {
  const [typed, setTyped] = useState("");
  return (
    <Dialog title={title} close={close}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (typed === name) confirm();
        }}
      >
        <p>{children}</p>
        <label>
          Type {name} to confirm
          <input autocomplete="off" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />
        </label>
        <div class="actions">
          <button type="button" onClick={close}>
            cancel
          </button>
          <button type="submit" class="danger" disabled={typed !== name}>
            {title.split(" ")[0]?.toLowerCase()}
          </button>
        </div>
      </form>
    </Dialog>
  );
}

function MoveTo({ queue, close, move }: { queue: string; close: () => void; move: (to: string) => void }) {
  const [to, setTo] = useState("");
  return (
    <Dialog title={`Move the messages of ${queue}`} close={close}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (to.trim()) move(to.trim());
        }}
      >
        <label>
          To queue
          <input
            autocomplete="off"
            placeholder="CHANNEL/ID"
            value={to}
            onInput={(event) => setTo(event.currentTarget.value)}
          />
        </label>
        <div class="actions">
          <button type="button" onClick={close}>
            cancel
          </button>
          <button type="submit" disabled={to.trim() === ""}>
            move
          </button>
        </div>
      </form>
    </Dialog>
  );
}
