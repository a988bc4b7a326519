/** Connected clients of all protocols. */

import { useEffect } from "preact/hooks";

import type { Connection, ConnectionPage } from "../api";
import { age } from "../format";
import { follow } from "../live";
import { Filter, Pager, Table } from "../parts";
import type { Column } from "../parts";
import { parameters } from "../route";
import { useAnswer } from "../use_answer";

const LIMIT = 50;

const COLUMNS: Column<Connection>[] = [
  { name: "id", cell: (row) => <code>{row.id}</code> },
  { name: "name", cell: (row) => row.name ?? "–" },
  { name: "type", cell: (row) => row.type ?? "–" },
  { name: "protocol", cell: (row) => row.protocol },
  { name: "user", cell: (row) => row.user ?? "–" },
  { name: "connected for", isNumber: true, cell: (row) => age(row.online_seconds) },
];

export function ConnectionsPage() {
  useEffect(() => follow("topic=overview"), []);
  const offset = Number(parameters.value.get("offset") ?? 0);
  const filter = encodeURIComponent(parameters.value.get("filter") ?? "");
  const { data, error } = useAnswer<ConnectionPage>(
    `/connections?limit=${LIMIT}&offset=${offset}&filter=${filter}`,
    2_000,
  );
  return (
    <section aria-labelledby="title">
      <h2 id="title">Connections</h2>
      <Filter label="filter connections" />
      {error && <p class="empty">{error}</p>}
      {data && (
        <>
          <Table caption="connections" columns={COLUMNS} rows={data.connections} keyOf={(row) => row.connection} />
          <Pager offset={offset} limit={LIMIT} matched={data.matched} total={data.total} what="connections" />
        </>
      )}
    </section>
  );
}
