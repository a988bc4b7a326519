/** Parts of several pages. */

import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";

import type { Finding, Severity } from "./api";
import { age } from "./format";
import { StackButton } from "./handler_stack";
import { change, parameters, queueLink } from "./route";
import type { Answer } from "./use_answer";

export function Badge({ severity, children }: { severity: Severity | "healthy" | "starting"; children: ComponentChildren }) {
  return <span class={`badge ${severity}`}>{children}</span>;
}

/** A number with its name. */
export function Figure({ name, value }: { name: string; value: string }) {
  return (
    <div class="figure">
      <dt>{name}</dt>
      <dd>{value}</dd>
    </div>
  );
}

/** Findings with their remedies. */
export function Findings({ findings }: { findings: Finding[] }) {
  if (findings.length === 0) return <p class="empty">Nothing needs attention.</p>;
  const now = Date.now();
  return (
    <ul class="findings">
      {findings.map((finding) => (
        <li key={`${finding.kind} ${finding.subject}`} class={finding.severity}>
          <h3>
            <Badge severity={finding.severity}>{finding.severity}</Badge> <Subject text={finding.subject} />
            <small>
              {finding.kind}, for {age((now - finding.since_ms) / 1000)}
            </small>
          </h3>
          <p>{finding.cause}.</p>
          <p class="remedy">{finding.remedy}.</p>
          {finding.kind === "blocked-handler" && <StackButton handler={finding.subject.slice("handler ".length)} />}
        </li>
      ))}
    </ul>
  );
}

function Subject({ text }: { text: string }) {
  const name = text.startsWith("queue ") ? text.slice("queue ".length) : null;
  if (name === null) return <>{text}</>;
  return (
    <>
      queue <a href={queueLink(name)}>{name}</a>
    </>
  );
}

export interface Column<T> {
  name: string;
  /** The value of the parameter `sort`; columns without one cannot be sorted by. */
  sort?: string;
  isNumber?: boolean;
  cell: (row: T) => ComponentChildren;
}

interface TableProps<T> {
  caption: string;
  columns: Column<T>[];
  rows: T[];
  /** Differs from row to row. Rows that can be equal in all that is shown need their index. */
  keyOf: (row: T, index: number) => string | number;
}

/** A table whose order is in the URL, and is made by the broker. */
export function Table<T>({ caption, columns, rows, keyOf }: TableProps<T>) {
  const sort = parameters.value.get("sort");
  const reverse = parameters.value.get("reverse") === "1";
  const choose = (column: string) =>
    change(sort === column ? { reverse: reverse ? "" : "1", offset: "" } : { sort: column, reverse: "", offset: "" });
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={caption}>
      <table>
        <caption class="hidden">{caption}</caption>
        <thead>
          <tr>
            {columns.map(({ name, sort: key, isNumber }) => (
              <th
                key={name}
                scope="col"
                class={isNumber ? "number" : ""}
                aria-sort={key && key === sort ? (reverse ? "ascending" : "descending") : undefined}
              >
                {key ? (
                  <button type="button" onClick={() => choose(key)}>
                    {name}
                    {key === sort ? (reverse ? " ▴" : " ▾") : ""}
                  </button>
                ) : (
                  name
                )}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, index) => (
            <tr key={keyOf(row, index)}>
              {columns.map(({ name, isNumber, cell }) => (
                <td key={name} class={isNumber ? "number" : ""}>
                  {cell(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** The field that filters a list. The broker filters. */
export function Filter({ label }: { label: string }) {
  return (
    <label class="filter">
      <span class="hidden">{label}</span>
      <input
        type="search"
        data-filter
        placeholder={`${label}  ( / )`}
        value={parameters.value.get("filter") ?? ""}
        onInput={(event) => change({ filter: event.currentTarget.value, offset: "" })}
      />
    </label>
  );
}

interface PagerProps {
  offset: number;
  limit: number;
  matched: number;
  total: number;
  what: string;
}

/** The buttons that turn pages. */
export function Pager({ offset, limit, matched, total, what }: PagerProps) {
  const last = Math.min(offset + limit, matched);
  const turn = (to: number) => change({ offset: to > 0 ? String(to) : "" });
  return (
    <nav class="pager" aria-label="pages">
      <button type="button" disabled={offset === 0} onClick={() => turn(Math.max(0, offset - limit))}>
        previous
      </button>
      <span>
        {matched === 0 ? 0 : offset + 1}–{last} of {matched.toLocaleString("en-US")} {what}
        {matched < total ? ` (${total.toLocaleString("en-US")} in all)` : ""}
      </span>
      <button type="button" disabled={last >= matched} onClick={() => turn(offset + limit)}>
        next
      </button>
    </nav>
  );
}

export interface DialogProps {
  title: string;
  close: () => void;
  children: ComponentChildren;
}

/** A dialog that blocks the page until it is closed. */
export function Dialog({ title, close, children }: DialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} aria-labelledby="dialog-title" onClose={close}>
      <h2 id="dialog-title">{title}</h2>
      {children}
    </dialog>
  );
}

interface AnswerErrorProps {
  answer: Answer<unknown>;
  /** What could not be read, such as `schedules`. */
  what: string;
  /** The rule that a token needs to read it. */
  rule: string;
}

/** Why an answer is missing. If rights are missing, says which ones. */
export function AnswerError({ answer: { error, status }, what, rule }: AnswerErrorProps) {
  if (error === "") return null;
  if (status !== 401 && status !== 403) return <p class="empty">{error}</p>;
  return (
    <p class="empty" role="note">
      You may not read {what}: {error}. This needs a token with the rule <code>{rule}</code>.
    </p>
  );
}
