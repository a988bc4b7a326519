/** The stack of a handler, on demand. */

import { useState } from "preact/hooks";

import { access, mayAdminister } from "./access";
import { ask } from "./api";
import type { HandlerStack } from "./api";

/** A button that shows what a handler executes, for users who may see it. */
export function StackButton({ handler }: { handler: string }) {
  const [stack, setStack] = useState<HandlerStack | null>(null);
  const [error, setError] = useState("");
  // Without users everyone may read.
  if (!access.value?.open && !mayAdminister("handlers")) return null;
  const look = async () => {
    try {
      setStack(await ask<HandlerStack>(`/handlers/${encodeURIComponent(handler)}/stack`));
      setError("");
    } catch (failed) {
      setError(failed instanceof Error ? failed.message : String(failed));
    }
  };
  return (
    <div>
      <button type="button" onClick={() => void look()}>
        {stack ? "look again" : "show what it executes"}
      </button>
      {error !== "" && <p role="alert">{error}</p>}
      {stack && <Stack stack={stack} />}
    </div>
  );
}

const STATES: Record<HandlerStack["state"], string> = {
  idle: "It runs no Python code at this moment.",
  running: "",
  "gil-held": "Other code has held the GIL for a second, so the broker cannot look.",
};

function Stack({ stack }: { stack: HandlerStack }) {
  const lines = stack.threads.flatMap(({ thread, frames }) =>
    frames.map((frame) => `${thread}: ${frame.file}:${frame.line}, in ${frame.function}\n    ${frame.code}`),
  );
  const text = STATES[stack.state];
  return (
    <>
      {text !== "" && <p>{text}</p>}
      {lines.length > 0 && (
        <pre tabIndex={0} aria-label={`stack of ${stack.handler}`}>
          {lines.join("\n")}
        </pre>
      )}
    </>
  );
}
