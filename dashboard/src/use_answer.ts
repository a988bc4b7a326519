/** An answer of the admin side that a page asks for again and again. */

import { useEffect, useState } from "preact/hooks";

import { ApiError, ask } from "./api";
import { isFrozen } from "./live";

export interface Answer<T> {
  data: T | null;
  error: string;
}

/** Asks at once and then every `everyMs`, or once if it is 0. */
export function useAnswer<T>(path: string, everyMs: number): Answer<T> {
  const [answer, setAnswer] = useState<Answer<T>>({ data: null, error: "" });
  useEffect(() => {
    const aborted = new AbortController();
    const look = async () => {
      if (isFrozen.value) return;
      try {
        const data = await ask<T>(path, aborted.signal);
        if (!aborted.signal.aborted) setAnswer({ data, error: "" });
      } catch (error) {
        if (aborted.signal.aborted) return;
        const text = error instanceof ApiError ? error.message : "the broker does not answer";
        // The last data stays on the screen.
        setAnswer((before) => ({ data: before.data, error: text }));
      }
    };
    void look();
    const timer = everyMs > 0 ? setInterval(() => void look(), everyMs) : undefined;
    return () => {
      aborted.abort();
      clearInterval(timer);
    };
  }, [path, everyMs]);
  return answer;
}
