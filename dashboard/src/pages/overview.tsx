/** What needs attention, and how the broker as a whole moves. */

import { useEffect } from "preact/hooks";

import type { Overview } from "../api";
import { Chart } from "../chart";
import { age, count, rate } from "../format";
import { attention, follow, totals } from "../live";
import { Figure, Findings } from "../parts";
import { useAnswer } from "../use_answer";

export function OverviewPage() {
  useEffect(() => follow("topic=overview"), []);
  const { data: overview } = useAnswer<Overview>("/overview?limit=0", 5_000);
  const samples = totals.value;
  const last = samples.at(-1);
  const at = samples.map((sample) => sample.at_ms);
  const found = attention.value;
  return (
    <>
      <section aria-labelledby="attention">
        <h2 id="attention">Needs attention</h2>
        {found && <Findings findings={found.findings} />}
        {found && found.total > found.findings.length && <p>{count(found.total - found.findings.length)} more</p>}
      </section>
      <section aria-labelledby="now">
        <h2 id="now">Now</h2>
        <dl class="figures">
          <Figure name="in" value={`${rate(last?.received ?? 0)}/s`} />
          <Figure name="out" value={`${rate(last?.delivered ?? 0)}/s`} />
          <Figure name="acknowledged" value={`${rate(last?.settled ?? 0)}/s`} />
          <Figure name="ready" value={count(last?.ready ?? 0)} />
          <Figure name="in flight" value={count(last?.in_flight ?? 0)} />
          <Figure name="delayed" value={count(last?.delayed ?? 0)} />
          <Figure name="queues" value={count(overview?.totals["queues"] ?? 0)} />
          <Figure name="connections" value={count(overview?.totals["clients"] ?? 0)} />
        </dl>
        <div class="charts">
          <Chart
            title="Messages per second"
            isRate
            at={at}
            series={[
              { label: "in", color: "blue", values: samples.map((sample) => sample.received) },
              { label: "out", color: "orange", values: samples.map((sample) => sample.delivered) },
              { label: "acknowledged", color: "green", values: samples.map((sample) => sample.settled) },
            ]}
          />
          <Chart
            title="Messages in queues"
            at={at}
            series={[
              { label: "ready", color: "blue", values: samples.map((sample) => sample.ready) },
              { label: "in flight", color: "orange", values: samples.map((sample) => sample.in_flight) },
              { label: "delayed", color: "purple", values: samples.map((sample) => sample.delayed) },
            ]}
          />
          <Chart
            title="Rejected and dead-lettered per second"
            isRate
            at={at}
            series={[
              { label: "rejected", color: "orange", values: samples.map((sample) => sample.rejected) },
              { label: "dead-lettered", color: "purple", values: samples.map((sample) => sample.dead_lettered) },
            ]}
          />
        </div>
      </section>
      {overview && (
        <section aria-labelledby="broker">
          <h2 id="broker">Broker</h2>
          <p>
            mqcore {overview.version}, process {overview.pid}, up {age(overview.uptime_seconds)}, {overview.shards} shards
          </p>
          <ul>
            {overview.listeners.map((listener) => (
              <li key={listener.url}>
                <code>{listener.url}</code>
              </li>
            ))}
          </ul>
        </section>
      )}
    </>
  );
}
