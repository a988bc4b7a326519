/** One queue: its curves, its next messages, its options and what is wrong with it. */

import { useEffect, useState } from "preact/hooks";

import { access } from "../access";
import type { PeekedMessage, QueueDetail } from "../api";
import { Chart } from "../chart";
import { age, bytes, count, queuePath, rate, splitQueue } from "../format";
import { follow, queueDetail } from "../live";
import { Figure, Findings } from "../parts";
import { parameters, traceLink } from "../route";
import { useAnswer } from "../use_answer";
import { QueueChanges } from "./queue_changes";

interface Sample {
  at: number;
  detail: QueueDetail;
}

const SAMPLES_MAX = 600;

export function QueuePage() {
  const name = parameters.value.get("name") ?? "";
  const [channel, id] = splitQueue(name);
  const [samples, setSamples] = useState<Sample[]>([]);
  useEffect(() => {
    setSamples([]);
    follow(`topic=queue&channel=${encodeURIComponent(channel)}&id=${id}`);
  }, [name]);
  const detail = queueDetail.value;
  useEffect(() => {
    if (detail) setSamples((before) => [...before, { at: Date.now(), detail }].slice(-SAMPLES_MAX));
  }, [detail]);
  if (!detail) {
    return (
      <section>
        <h2>{name}</h2>
        <p class="empty">Waiting for the broker. If the queue does not exist, it appears here when it is created.</p>
      </section>
    );
  }
  const at = samples.map((sample) => sample.at);
  const values = (of: (detail: QueueDetail) => number) => samples.map((sample) => of(sample.detail));
  return (
    <>
      <section aria-labelledby="title">
        <h2 id="title">
          {detail.queue} <span class={`pill ${detail.status}`}>{detail.status}</span>
        </h2>
        {detail.findings.length > 0 && <Findings findings={detail.findings} />}
        <dl class="figures">
          <Figure name="ready" value={count(detail.ready)} />
          <Figure name="in flight" value={count(detail.in_flight)} />
          <Figure name="delayed" value={count(detail.delayed)} />
          <Figure name="undecided" value={count(detail.undecided)} />
          <Figure name="consumers" value={count(detail.consumers)} />
          <Figure name="in" value={`${rate(detail.rates.received)}/s`} />
          <Figure name="out" value={`${rate(detail.rates.delivered)}/s`} />
          <Figure name="memory" value={bytes(detail.memory_bytes)} />
        </dl>
        <div class="charts">
          <Chart
            title="Messages in the queue"
            at={at}
            series={[
              { label: "ready", color: "blue", values: values((each) => each.ready) },
              { label: "in flight", color: "orange", values: values((each) => each.in_flight) },
            ]}
          />
          <Chart
            title="Messages per second"
            isRate
            at={at}
            series={[
              { label: "in", color: "blue", values: values((each) => each.rates.received) },
              { label: "out", color: "orange", values: values((each) => each.rates.delivered) },
              { label: "acknowledged", color: "green", values: values((each) => each.rates.settled) },
            ]}
          />
        </div>
      </section>
      <QueueChanges key={detail.queue} detail={detail} />
      {access.value?.messages !== false && <Messages queue={detail.queue} />}
      <section aria-labelledby="counters">
        <h2 id="counters">Counters and options</h2>
        <div class="columns">
          <Pairs caption="counters" pairs={counters(detail.messages)} />
          <Pairs caption="options" pairs={Object.entries(detail.options)} />
        </div>
      </section>
    </>
  );
}

function Pairs({ caption, pairs }: { caption: string; pairs: [string, unknown][] }) {
  return (
    <table>
      <caption>{caption}</caption>
      <tbody>
        {pairs.map(([name, value]) => (
          <tr key={name}>
            <th scope="row">{name.replaceAll("_", " ")}</th>
            <td class="number">{typeof value === "number" ? count(value) : String(value ?? "–")}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** Counters by name, and those of the reasons for which messages were rejected. */
function counters(messages: QueueDetail["messages"]): [string, number][] {
  const reasons = Object.entries(messages.rejected_by).filter(([, rejected]) => rejected > 0);
  return [
    ...Object.entries(messages).filter((pair): pair is [string, number] => typeof pair[1] === "number"),
    ...reasons.map(([reason, rejected]): [string, number] => [`rejected: ${reason}`, rejected]),
  ];
}

/** The next messages. Looking at them changes nothing. */
function Messages({ queue }: { queue: string }) {
  const [isOpen, setIsOpen] = useState(false);
  return (
    <section aria-labelledby="messages">
      <h2 id="messages">Messages</h2>
      {isOpen ? (
        <Peek queue={queue} />
      ) : (
        <button type="button" onClick={() => setIsOpen(true)}>
          show the next messages
        </button>
      )}
    </section>
  );
}

function Peek({ queue }: { queue: string }) {
  const { data, error } = useAnswer<{ messages: PeekedMessage[] }>(`${queuePath(queue)}/messages?limit=20`, 0);
  const now = Date.now();
  if (error) return <p class="empty">{error}</p>;
  if (!data) return null;
  if (data.messages.length === 0) return <p class="empty">No message waits.</p>;
  return (
    <ol class="messages">
      {data.messages.map((message, index) => (
        <li key={message.id ?? index}>
          <details>
            <summary>
              <code>{message.id || "without id"}</code>
              <span>{message.received_ms ? age((now - message.received_ms) / 1000) : "–"} old</span>
              <span>{bytes(message.body_bytes ?? 0)}</span>
              <span>{message.attempts} deliveries</span>
              <span>{message.saved ? "saved" : "in memory"}</span>
              {message.masked === true && <span>masked</span>}
            </summary>
            {message.id && (
              <p>
                <a href={traceLink(message.id)}>trace this message</a>
              </p>
            )}
            <Pairs caption="headers" pairs={message.headers ?? []} />
            <pre>{readable(message)}</pre>
          </details>
        </li>
      ))}
    </ol>
  );
}

/** A body as people read it: JSON is indented. */
function readable(message: PeekedMessage): string {
  const { body } = message;
  if (body === undefined || body === null) return message.body_base64 ?? "The body is not in memory.";
  try {
    return JSON.stringify(JSON.parse(body), null, 2);
  } catch {
    return body;
  }
}
