/** Routers with their bindings, topics, and other brokers. */

import { useEffect } from "preact/hooks";

import type { Binding, Overview, Router, Topic } from "../api";
import { bytes, count } from "../format";
import { follow } from "../live";
import { Table } from "../parts";
import type { Column } from "../parts";
import { queueLink } from "../route";
import { useAnswer } from "../use_answer";
import { Nodes } from "./nodes";
import { RouterTestButton } from "./router_test";

const BINDINGS: Column<Binding>[] = [
  { name: "binding", cell: (row) => row.name },
  { name: "target", cell: (row) => <Target name={row.target} /> },
  { name: "priority", isNumber: true, cell: (row) => row.priority },
  { name: "confirmation", cell: (row) => row.interaction },
  { name: "taken", isNumber: true, cell: (row) => count(row.taken) },
  { name: "not taken", isNumber: true, cell: (row) => count(row.refused) },
];

const TOPICS: Column<Topic>[] = [
  { name: "topic", cell: (row) => row.topic },
  { name: "subscribers", isNumber: true, cell: (row) => count(row.subscribers) },
  { name: "queues", isNumber: true, cell: (row) => count(row.queues) },
  { name: "published", isNumber: true, cell: (row) => count(row.messages.published) },
  { name: "bytes", isNumber: true, cell: (row) => bytes(row.messages.published_bytes) },
  { name: "delivered", isNumber: true, cell: (row) => count(row.messages.delivered) },
];

function Target({ name }: { name: string }) {
  return /\/\d+$/.test(name) ? <a href={queueLink(name)}>{name}</a> : <>{name}</>;
}

export function RoutingPage() {
  useEffect(() => follow("topic=overview"), []);
  const { data, error } = useAnswer<Overview>("/overview?limit=1000", 2_000);
  if (error && !data) return <p class="empty">{error}</p>;
  if (!data) return null;
  return (
    <>
      <section aria-labelledby="routers">
        <h2 id="routers">Routers</h2>
        {data.routers.length === 0 && <p class="empty">There are no routers.</p>}
        {data.routers.map((router) => (
          <RouterTable key={router.router} router={router} />
        ))}
      </section>
      <section aria-labelledby="topics">
        <h2 id="topics">Topics</h2>
        {data.topics.length === 0 ? (
          <p class="empty">There are no topics.</p>
        ) : (
          <Table caption="topics" columns={TOPICS} rows={data.topics} keyOf={(row) => row.topic} />
        )}
      </section>
      <section aria-labelledby="nodes">
        <h2 id="nodes">Other brokers</h2>
        <Nodes nodes={data.nodes} />
      </section>
    </>
  );
}

function RouterTable({ router }: { router: Router }) {
  const { received, routed } = router.messages;
  return (
    <>
      <h3>
        {router.router} <small>{`${router.method}${router.enabled ? "" : ", disabled"}`}</small>
      </h3>
      <p>
        {count(received)} received, {count(routed)} routed, {count(received - routed)} taken by no binding
      </p>
      <div class="actions">
        <RouterTestButton router={router.router} />
      </div>
      <Table caption={`bindings of ${router.router}`} columns={BINDINGS} rows={router.bindings} keyOf={(row) => row.name} />
    </>
  );
}
