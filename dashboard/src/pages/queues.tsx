/** All queues. The broker sorts, filters and pages. */

import { useEffect } from "preact/hooks";

import type { QueueState } from "../api";
import { age, count, rate } from "../format";
import { attention, follow, queuePage } from "../live";
import { Filter, Pager, Table } from "../parts";
import type { Column } from "../parts";
import { parameters, queueLink } from "../route";

const LIMIT = 50;

const COLUMNS: Column<QueueState>[] = [
  { name: "queue", sort: "name", cell: (row) => <a href={queueLink(row.queue)}>{row.queue}</a> },
  { name: "status", cell: (row) => <span class={`pill ${row.status}`}>{row.status}</span> },
  { name: "ready", sort: "ready", isNumber: true, cell: (row) => count(row.ready) },
  { name: "in flight", sort: "in_flight", isNumber: true, cell: (row) => count(row.in_flight) },
  { name: "delayed", sort: "delayed", isNumber: true, cell: (row) => count(row.delayed) },
  { name: "in/s", sort: "received", isNumber: true, cell: (row) => rate(row.rates.received) },
  { name: "out/s", sort: "delivered", isNumber: true, cell: (row) => rate(row.rates.delivered) },
  { name: "growth/s", sort: "growth", isNumber: true, cell: (row) => rate(row.rates.growth) },
  { name: "oldest", sort: "oldest", isNumber: true, cell: (row) => age(row.oldest_seconds) },
  { name: "consumers", sort: "consumers", isNumber: true, cell: (row) => count(row.consumers) },
  { name: "dead", sort: "dead_lettered", isNumber: true, cell: (row) => count(row.messages.dead_lettered) },
  { name: "note", cell: (row) => notes(row.queue) },
];

function notes(queue: string): string {
  const subject = `queue ${queue}`;
  const found = attention.value?.findings.filter((finding) => finding.subject === subject) ?? [];
  return found.map((finding) => finding.kind).join(", ");
}

/** The parameters of the list, for the stream. */
function query(): string {
  const chosen = parameters.value;
  const asked = new URLSearchParams({ topic: "queues", limit: String(LIMIT), sort: chosen.get("sort") ?? "name" });
  for (const name of ["reverse", "offset", "filter"]) {
    const value = chosen.get(name);
    if (value) asked.set(name, value);
  }
  return asked.toString().replaceAll("+", "%20");
}

export function QueuesPage() {
  const asked = query();
  useEffect(() => follow(asked), [asked]);
  const page = queuePage.value;
  return (
    <section aria-labelledby="title">
      <h2 id="title">Queues</h2>
      <Filter label="filter queues" />
      {page && (
        <>
          <Table caption="queues" columns={COLUMNS} rows={page.queues} keyOf={(row) => row.queue} />
          <Pager {...page} what="queues" />
        </>
      )}
    </section>
  );
}
