/** Shows where a router would send a message. */

import { useState } from "preact/hooks";

import { mayAdminister } from "../access";
import { send } from "../api";
import type { RouterStep, RouterTest } from "../api";
import { Badge, Dialog, Table } from "../parts";
import type { Column } from "../parts";

/** A button that opens the form, for users who may test routers. */
export function RouterTestButton({ router }: { router: string }) {
  const [isOpen, setOpen] = useState(false);
  if (!mayAdminister("routers")) return null;
  return (
    <>
      <button type="button" aria-label={`where would a message go? (${router})`} onClick={() => setOpen(true)}>
        where would a message go?
      </button>
      {isOpen && <RouterTestDialog router={router} close={() => setOpen(false)} />}
    </>
  );
}

function RouterTestDialog({ router, close }: { router: string; close: () => void }) {
  const [result, setResult] = useState<RouterTest | null>(null);
  const [error, setError] = useState("");
  // The form has the values, which are newer than those of the last rendering.
  const test = async (form: HTMLFormElement) => {
    try {
      const values = new FormData(form);
      const content = { headers: pairs(String(values.get("headers"))), body: String(values.get("body")) };
      setResult(await send<RouterTest>("POST", `/routers/${encodeURIComponent(router)}/test`, content));
      setError("");
    } catch (failed) {
      setResult(null);
      setError(failed instanceof Error ? failed.message : String(failed));
    }
  };
  return (
    <Dialog title={`Where would ${router} send a message?`} close={close}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void test(event.currentTarget);
        }}
      >
        <label>
          Headers, one on each line
          <textarea name="headers" rows={3} placeholder="Country: fr" />
        </label>
        <label>
          Body
          <textarea name="body" rows={4} />
        </label>
        <div class="actions">
          <button type="button" onClick={close}>
            close
          </button>
          <button type="submit">test</button>
        </div>
      </form>
      {error !== "" && <p role="alert">{error}</p>}
      {result && <Result result={result} />}
    </Dialog>
  );
}

/** Names and values of headers that are written as `name: value`. */
function pairs(text: string): [string, string][] {
  const lines = text.split("\n").filter((line) => line.trim() !== "");
  return lines.map((line) => {
    const colon = line.indexOf(":");
    if (colon < 1) throw new Error(`the header "${line}" has no colon; write it as NAME: VALUE`);
    return [line.slice(0, colon).trim(), line.slice(colon + 1).trim()];
  });
}

const STEPS: Column<RouterStep>[] = [
  { name: "target", cell: (step) => step.target },
  { name: "binding", cell: (step) => step.binding ?? "chosen by a router in Python" },
  {
    name: "answer",
    cell: (step) => <Badge severity={step.takes ? "healthy" : "warning"}>{step.takes ? "accepts" : "rejects"}</Badge>,
  },
  { name: "why", cell: (step) => step.why },
];

function Result({ result }: { result: RouterTest }) {
  return (
    <div role="status">
      <p>
        {result.taken
          ? "The message would be accepted. Nothing was sent."
          : `The message would be rejected: ${result.refusal ?? "no target accepts it"}. Nothing was sent.`}
      </p>
      <Table caption="route" columns={STEPS} rows={result.steps} keyOf={(step, index) => `${step.target} ${index}`} />
      {result.skipped.length > 0 && (
        <p>Not tried, because a binding before them accepts the message: {result.skipped.join(", ")}.</p>
      )}
    </div>
  );
}
