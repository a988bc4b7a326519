/** Links to other brokers, which several pages show. */

import type { Node } from "../api";
import { age } from "../format";
import { Table } from "../parts";
import type { Column } from "../parts";

const COLUMNS: Column<Node>[] = [
  { name: "node", cell: (row) => row.name },
  { name: "address", cell: (row) => <code>{row.host}</code> },
  { name: "role", cell: (row) => row.role },
  {
    name: "state",
    cell: (row) => <span class={`badge ${row.connected ? "healthy" : "warning"}`}>{row.connected ? "connected" : "down"}</span>,
  },
  { name: "connected for", isNumber: true, cell: (row) => (row.connected ? age(row.lifetime_ms / 1000) : "–") },
];

export function Nodes({ nodes }: { nodes: Node[] }) {
  if (nodes.length === 0) return <p class="empty">There are no links to other brokers.</p>;
  return <Table caption="other brokers" columns={COLUMNS} rows={nodes} keyOf={(row) => `${row.role} ${row.name}`} />;
}
