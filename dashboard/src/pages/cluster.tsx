/** The nodes of a cluster, as the leader sees them. */

import { useEffect } from "preact/hooks";

import type { Cluster, ClusterNode } from "../api";
import { bytes, count, gap, shortTime } from "../format";
import { attention, follow } from "../live";
import { AnswerError, Badge, Figure, Findings, Table } from "../parts";
import type { Column } from "../parts";
import { useAnswer } from "../use_answer";

const UNKNOWN = "–";

const COLUMNS: Column<ClusterNode>[] = [
  { name: "node", cell: (row) => row.node },
  { name: "address", cell: (row) => <code>{row.address}</code> },
  { name: "role", cell: (row) => row.role ?? UNKNOWN },
  { name: "state", cell: (row) => <Connected node={row} /> },
  { name: "votes", cell: (row) => (row.votes ? "yes" : "no") },
  { name: "lag", isNumber: true, cell: (row) => (row.lag == null ? UNKNOWN : count(row.lag)) },
  { name: "log sync, mean", isNumber: true, cell: (row) => syncTime(row.log_syncs?.mean_us) },
  { name: "longest", isNumber: true, cell: (row) => syncTime(row.log_syncs?.longest_us) },
  { name: "clock", isNumber: true, cell: (row) => clockOffset(row.clock_offset_ms) },
  { name: "version", cell: (row) => row.version ?? UNKNOWN },
];

export function ClusterPage() {
  useEffect(() => follow("topic=overview"), []);
  const answer = useAnswer<Cluster>("/cluster", 2_000);
  const findings = attention.value?.findings.filter((finding) => finding.kind.startsWith("cluster-")) ?? [];
  return (
    <>
      <section aria-labelledby="cluster">
        <h2 id="cluster">{answer.data ? `Cluster ${answer.data.cluster}` : "Cluster"}</h2>
        <AnswerError answer={answer} what="the cluster" rule="inspect:/cluster" />
        {answer.data && <Figures cluster={answer.data} />}
        {answer.data && <Table caption="nodes" columns={COLUMNS} rows={answer.data.nodes} keyOf={(row) => row.node} />}
      </section>
      <section aria-labelledby="cluster-findings">
        <h2 id="cluster-findings">Needs attention</h2>
        <Findings findings={findings} />
      </section>
    </>
  );
}

function Figures({ cluster }: { cluster: Cluster }) {
  const figures: [string, string][] = [
    ["leader", `node ${cluster.leader}`],
    ["term", count(cluster.term)],
    ["nodes that may fail", count(cluster.spare_nodes)],
    ["leader changes", count(cluster.leader_changes)],
    ["committed changes", count(cluster.committed)],
    ["log", bytes(cluster.log_bytes)],
  ];
  return (
    <dl class="figures">
      {figures.map(([name, value]) => (
        <Figure key={name} name={name} value={value} />
      ))}
    </dl>
  );
}

function Connected({ node }: { node: ClusterNode }) {
  if (node.connected) return <Badge severity="healthy">connected</Badge>;
  return (
    <>
      <Badge severity="warning">down</Badge> {node.silent_ms == null ? "" : `for ${gap(node.silent_ms)}`}
    </>
  );
}

function syncTime(micros: number | undefined): string {
  return micros ? shortTime(micros / 1e6) : UNKNOWN;
}

/** How far the clock of a node is ahead of the clock of the leader. */
function clockOffset(ms: number | null | undefined): string {
  if (ms == null) return UNKNOWN;
  return `${ms < 0 ? "−" : "+"}${gap(Math.abs(ms))}`;
}
