/** The live state of the broker: one stream for this tab, opened again for ever. */

import { signal } from "@preact/signals";

import { ApiError, listen } from "./api";
import type { Attention, QueueDetail, QueuePage, Tick, Totals } from "./api";

/** Maximum samples that charts show: ten minutes of seconds. */
const SAMPLES_MAX = 600;
const RETRY_FIRST_MS = 500;
const RETRY_MAX_MS = 5_000;

export const attention = signal<Attention | null>(null);
export const totals = signal<Totals[]>([]);
export const queuePage = signal<QueuePage | null>(null);
export const queueDetail = signal<QueueDetail | null>(null);

/** `live`, `stale` while the broker does not answer, or `denied` until a user logs in. */
export const connection = signal<"starting" | "live" | "stale" | "denied">("starting");
export const trouble = signal("");
/** When the last event came, in milliseconds since the epoch. */
export const heardAt = signal(0);
/** Whether the screen stands still. */
export const isFrozen = signal(false);

let current: AbortController | null = null;
let lastId: string | null = null;

/** Follows a topic of the stream from now on: `topic=overview`, `topic=queues&sort=ready`, ... */
export function follow(query: string): void {
  current?.abort();
  const mine = new AbortController();
  current = mine;
  queuePage.value = null;
  queueDetail.value = null;
  void run(query, mine.signal);
}

async function run(query: string, aborted: AbortSignal): Promise<void> {
  let pause = RETRY_FIRST_MS;
  while (!aborted.aborted) {
    try {
      await listen(`/stream?${query}`, lastId, aborted, (id, data) => {
        if (aborted.aborted) return;
        pause = RETRY_FIRST_MS;
        lastId = id || lastId;
        receive(JSON.parse(data) as Tick);
      });
    } catch (error) {
      if (aborted.aborted) return;
      if (error instanceof ApiError && (error.status === 401 || error.status === 403)) {
        connection.value = "denied";
        trouble.value = error.message;
        return;
      }
      trouble.value = error instanceof ApiError ? error.message : "the broker does not answer";
    }
    if (aborted.aborted) return;
    connection.value = "stale";
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(pause * 2, RETRY_MAX_MS);
  }
}

function receive(tick: Tick): void {
  connection.value = "live";
  trouble.value = "";
  heardAt.value = Date.now();
  if (isFrozen.value) return;
  attention.value = tick.attention;
  const newest = totals.value.at(-1)?.at_ms ?? 0;
  const added = tick.totals.filter((sample) => sample.at_ms > newest);
  if (added.length > 0) totals.value = [...totals.value, ...added].slice(-SAMPLES_MAX);
  if (tick.queues !== undefined) queuePage.value = tick.queues;
  if (tick.queue !== undefined) queueDetail.value = tick.queue;
}
