/** An answer of the admin side that a page asks for again and again. */

import { useEffect, useState } from "preact/hooks";

import { ApiError, ask } from "./api";
import { isFrozen } from "./live";

export interface Answer<T> {
  data: T | null;
  error: string;
  /** The status of the last answer if it was an error, else 0. */
  status: number;
  /** Asks again now. */
  refresh: () => void;
}

type State<T> = Omit<Answer<T>, "refresh">;

/** Asks at once and then every `everyMs`, or once if it is 0. A frozen screen does not change by itself. */
export function useAnswer<T>(
  path: string,
  everyMs: number,
  read: (path: string, signal: AbortSignal) => Promise<T> = ask,
): Answer<T> {
  const [answer, setAnswer] = useState<State<T>>({ data: null, error: "", status: 0 });
  const [round, setRound] = useState(0);
  useEffect(() => {
    const aborted = new AbortController();
    const look = async () => {
      try {
        const data = await read(path, aborted.signal);
        if (!aborted.signal.aborted) setAnswer({ data, error: "", status: 0 });
      } catch (error) {
        if (aborted.signal.aborted) return;
        const text = error instanceof ApiError ? error.message : "the broker does not answer";
        const status = error instanceof ApiError ? error.status : 0;
        // The last data stays on the screen.
        setAnswer((before) => ({ data: before.data, error: text, status }));
      }
    };
    void look();
    const repeat = () => {
      if (!isFrozen.value) void look();
    };
    const timer = everyMs > 0 ? setInterval(repeat, everyMs) : undefined;
    return () => {
      aborted.abort();
      clearInterval(timer);
    };
  }, [path, everyMs, round]);
  return { ...answer, refresh: () => setRound((before) => before + 1) };
}
