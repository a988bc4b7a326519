/** The page and its parameters, all of them in the URL, so that a link shows the same view. */

import { computed, signal } from "@preact/signals";

function read(): string {
  return location.hash.replace(/^#/, "") || "/";
}

const hash = signal(read());

addEventListener("hashchange", () => {
  hash.value = read();
});

/** The path, such as `/queues`. */
export const path = computed(() => hash.value.split("?")[0] ?? "/");

/** The parameters behind it. */
export const parameters = computed(() => new URLSearchParams(hash.value.split("?")[1] ?? ""));

/** Changes parameters of this page. An empty value removes one. */
export function change(values: Record<string, string>): void {
  const next = new URLSearchParams(parameters.value);
  for (const [name, value] of Object.entries(values)) {
    if (value) next.set(name, value);
    else next.delete(name);
  }
  const query = next.toString();
  location.hash = query ? `${path.value}?${query}` : path.value;
}

/** The link to the trace of a message. */
export function traceLink(id: string): string {
  return `#/trace?${new URLSearchParams({ id })}`;
}

/** The link to a queue's page. */
export function queueLink(queue: string): string {
  return `#/queue?${new URLSearchParams({ name: queue })}`;
}
