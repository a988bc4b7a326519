/** The life of a message: its events on a timeline, and where it is now. */

import { useEffect, useState } from "preact/hooks";

import { access } from "../access";
import type { MessageLocation, Trace, TraceStep } from "../api";
import { clock, count, gap, moment } from "../format";
import { follow } from "../live";
import { Table, AnswerError } from "../parts";
import type { Column } from "../parts";
import { change, parameters, queueLink } from "../route";
import { clientName, clientOf, eventName, eventSeverity, messagesOf, outcomeOf, reasonOf, stateName } from "../trace_events";
import type { TracedMessage } from "../trace_events";
import { useAnswer } from "../use_answer";

export function TracePage() {
  useEffect(() => follow("topic=overview"), []);
  const id = parameters.value.get("id") ?? "";
  const [text, setText] = useState(id);
  useEffect(() => setText(id), [id]);
  return (
    <section aria-labelledby="title">
      <h2 id="title">Trace</h2>
      <form
        class="actions"
        onSubmit={(event) => {
          event.preventDefault();
          change({ id: text.trim() });
        }}
      >
        <label class="filter">
          <span class="hidden">Message id</span>
          <input
            type="search"
            data-filter
            autocomplete="off"
            placeholder="id of a message or job  ( / )"
            value={text}
            onInput={(event) => setText(event.currentTarget.value)}
          />
        </label>
        <button type="submit" disabled={text.trim() === ""}>
          trace
        </button>
      </form>
      {id ? <Found key={id} id={id} /> : <Hint />}
    </section>
  );
}

function Hint() {
  if (access.value?.messages === false) {
    return (
      <p class="empty" role="note">
        Traces need a token with the rule <code>administer:/trace/*</code>, which yours does not seem to have.
      </p>
    );
  }
  return (
    <p class="empty">
      Enter the id of a message, or open a queue, show its next messages and follow the link “trace this message”.
    </p>
  );
}

function Found({ id }: { id: string }) {
  const answer = useAnswer<Trace>(`/trace/${encodeURIComponent(id)}`, 0);
  const { data, error, status, refresh } = answer;
  const [readAt, setReadAt] = useState(0);
  useEffect(() => setReadAt(Date.now()), [data]);
  if (status === 404) {
    return (
      <p class="empty" role="status">
        Not found: {error}. Check the id; upper and lower case differ.
      </p>
    );
  }
  if (error) return <AnswerError answer={answer} what="traces" rule="administer:/trace/*" />;
  if (!data) {
    return (
      <p class="empty" role="status">
        The broker reads the history …
      </p>
    );
  }
  const messages = messagesOf(data);
  return (
    <>
      <p class="actions" role="status">
        <span>
          Read at {clock(readAt)}.{messages.length > 1 && ` ${count(messages.length)} messages have this id.`}
        </span>
        <button type="button" onClick={refresh}>
          read again
        </button>
      </p>
      <Gaps trace={data} />
      {messages.map((message, index) => (
        <Message key={index} message={message} title={messages.length > 1 ? `Message ${index + 1}` : "Message"} />
      ))}
    </>
  );
}

/** What the trace does not show. */
function Gaps({ trace }: { trace: Trace }) {
  return (
    <>
      {!trace.history && (
        <p class="empty" role="note">
          This broker has recorded no history, so past events are unknown. To record them, start it with{" "}
          <code>--data-dir DIR --history</code>.
        </p>
      )}
      {trace.history && trace.steps.length === 0 && (
        <p class="empty" role="note">
          The history has no events of this message: they were removed, or the message is older than the history.
        </p>
      )}
      {(trace.truncated || trace.not_all_looked_at) && (
        <p class="empty" role="note">
          This trace is incomplete: the broker stopped at its search limit.
        </p>
      )}
    </>
  );
}

interface Row {
  step: TraceStep;
  /** Milliseconds since the previous event; null for the first one. */
  since: number | null;
}

const COLUMNS: Column<Row>[] = [
  { name: "time", cell: ({ step }) => moment(step.at_ms) },
  { name: "since previous", isNumber: true, cell: ({ since }) => (since === null ? "–" : gap(since)) },
  { name: "event", cell: ({ step }) => eventName(step.kind) },
  { name: "queue", cell: ({ step }) => (step.queue ? <a href={queueLink(step.queue)}>{step.queue}</a> : "–") },
  { name: "attempt", isNumber: true, cell: ({ step }) => step.attempt || "–" },
  { name: "client", cell: ({ step }) => clientNameOf(step) ?? "–" },
  { name: "reason", cell: ({ step }) => reasonOf(step) || "–" },
  { name: "target", cell: ({ step }) => (step.target ? <a href={queueLink(step.target)}>{step.target}</a> : "–") },
];

function clientNameOf(step: TraceStep): string | null {
  const client = clientOf(step);
  return client && clientName(client);
}

function Message({ message, title }: { message: TracedMessage; title: string }) {
  const [asTable, setAsTable] = useState(false);
  const rows = message.steps.map((step, index): Row => {
    const previous = message.steps[index - 1];
    return { step, since: previous ? step.at_ms - previous.at_ms : null };
  });
  const last = message.steps.at(-1);
  return (
    <article class="chart" aria-label={title}>
      <div class="heading">
        <h3>
          {title} <small>{outcomeOf(message)}</small>
        </h3>
        {rows.length > 0 && (
          <button type="button" class="quiet" aria-pressed={asTable} onClick={() => setAsTable(!asTable)}>
            {asTable ? "timeline" : "table"}
          </button>
        )}
      </div>
      {asTable ? (
        <Table caption={`events of ${title.toLowerCase()}`} columns={COLUMNS} rows={rows} keyOf={(row) => rows.indexOf(row)} />
      ) : (
        <ol class="timeline">
          {rows.map((row, index) => (
            <Event key={index} {...row} />
          ))}
          {message.now.map((location) => (
            <Now key={`${location.shard}/${location.number}`} location={location} />
          ))}
        </ol>
      )}
      {message.now.length === 0 && !last?.last && (
        <p class="empty">It was only in memory when the broker stopped, or the end of its history is missing.</p>
      )}
    </article>
  );
}

function Event({ step, since }: Row) {
  const client = clientNameOf(step);
  const reason = reasonOf(step);
  return (
    <li class={eventSeverity(step.kind)}>
      <time dateTime={new Date(step.at_ms).toISOString()}>{moment(step.at_ms)}</time>
      <span class="number">{since === null ? "" : `+${gap(since)}`}</span>
      <div>
        <strong>{eventName(step.kind)}</strong>
        {step.queue && (
          <>
            {" "}
            in <a href={queueLink(step.queue)}>{step.queue}</a>
          </>
        )}
        {step.target && (
          <>
            {" "}
            to <a href={queueLink(step.target)}>{step.target}</a>
          </>
        )}
        {client && ` ${step.kind === "delivered" ? "to" : "by"} ${client}`}
        {!!step.attempt && (
          <>
            {" "}
            <small>attempt {step.attempt}</small>
          </>
        )}
        {reason && <p>{reason}</p>}
      </div>
    </li>
  );
}

function Now({ location }: { location: MessageLocation }) {
  return (
    <li class="now">
      <span>now</span>
      <span />
      <div>
        <strong>{stateName(location.state)}</strong> in <a href={queueLink(location.queue)}>{location.queue}</a>
        {location.until_ms !== null && ` until ${moment(location.until_ms)}`}
        {location.consumers.length > 0 && ` at ${location.consumers.map(clientName).join(", ")}`}{" "}
        <small>
          {count(location.attempts)} deliveries, {location.saved ? "saved" : "only in memory"}
        </small>
        {location.producer && <p>published by {clientName(location.producer)}</p>}
      </div>
    </li>
  );
}
