/** The answers of the broker's admin side, and how to ask for them. */

import type { components } from "./openapi";

/** What the broker documents in `/openapi.json`. Its schemas have plain text where a few words are possible. */
type Schemas = components["schemas"];
/** A type with some members replaced. */
type With<Base, Members> = Omit<Base, keyof Members> & Members;

export type Severity = "critical" | "warning" | "info";

export type Access = Schemas["AccessAnswer"];
/** Something that needs an operator's attention. */
export type Finding = With<Schemas["FindingAnswer"], { severity: Severity }>;
export type Attention = With<Schemas["AttentionAnswer"], { findings: Finding[] }>;
/** Rates per second and contents of the whole broker at a time. */
export type Totals = Schemas["TotalsAt"];
export type QueueState = Schemas["QueueRow"];
export type QueuePage = Schemas["QueuesAnswer"];
export type QueueDetail = With<Schemas["QueueAnswer"], { findings: Finding[] }>;
/** A message. If its body cannot be read, it has only what the queue knows about it. */
export type PeekedMessage = Exclude<Schemas["MessageAnswer"], null> & Partial<Schemas["ContentAnswer"]>;
export type Connection = Schemas["ConnectionAnswer"];
export type ConnectionPage = Schemas["ConnectionsAnswer"];
export type Binding = Schemas["BindingAnswer"];
export type Router = Schemas["RouterAnswer"];
/** The route that a message would take. */
export type RouterTest = Schemas["RouterTestAnswer"];
export type RouterStep = Schemas["RouterStepAnswer"];
export type Topic = Schemas["TopicAnswer"];
export type Node = Schemas["NodeAnswer"];
/** A cluster, as its leader sees it. */
export type Cluster = Schemas["ClusterAnswer"];
export type ClusterNode = Schemas["ClusterNodeAnswer"];
export type Certificate = Schemas["CertificateAnswer"];
export type Archive = Schemas["ArchiveAnswer"];
export type Overview = Schemas["OverviewAnswer"];
export type TracedClient = Schemas["TracedClientAnswer"];
export type TraceStep = Schemas["StepAnswer"];
export type MessageLocation = Schemas["LocationAnswer"];
export type Trace = Schemas["TraceAnswer"];
export type Jobs = Schemas["JobsAnswer"];
export type JobQueue = Schemas["JobQueueAnswer"];
export type Worker = Schemas["WorkerAnswer"];
export type RunningJob = Schemas["RunningJobAnswer"];
export type JobCancellation = Schemas["JobCancelAnswer"];
export type Schedule = Schemas["ScheduleAnswer"];
export type ScheduleList = Schemas["SchedulesAnswer"];
export type Limit = Schemas["LimitAnswer"];
export type Limits = Schemas["LimitsAnswer"];
/** What a handler executes. */
export type HandlerStack = Schemas["StackAnswer"];
/** Conditions on the use of credentials. */
export type Restrictions = Schemas["RestrictionsAnswer"];
export type User = Schemas["UserAnswer"];
export type Token = Schemas["TokenAnswer"];
/** A token that was just created, with its secret. */
export type NewToken = Schemas["TokenCreated"];
export type Users = Schemas["UsersAnswer"];
export type Audit = Schemas["AuditAnswer"];
export type AuditLine = Schemas["AuditLineAnswer"];
/** The answer to a move of messages. */
export type MoveReport = Schemas["MoveAnswer"];
/** One event of the stream. */
export type Tick = With<Schemas["TickAnswer"], { attention: Attention; queue?: QueueDetail | null }>;

/** An answer other than 200. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
  ) {
    super(message);
  }
}

const TOKEN = "mqcore-token";

/** The token of this tab. It goes with the tab, and is sent to this broker only. */
export const token = {
  get: (): string | null => sessionStorage.getItem(TOKEN),
  set: (value: string): void => sessionStorage.setItem(TOKEN, value),
  clear: (): void => sessionStorage.removeItem(TOKEN),
};

function headers(): Headers {
  const made = new Headers();
  const current = token.get();
  if (current) made.set("Authorization", `Bearer ${current}`);
  return made;
}

async function refusal(response: Response): Promise<ApiError> {
  try {
    const { error } = (await response.json()) as { error: { code: string; message: string } };
    return new ApiError(response.status, error.code, error.message);
  } catch {
    return new ApiError(response.status, "unknown", `the broker answers ${response.status}`);
  }
}

async function get(path: string, signal?: AbortSignal): Promise<Response> {
  const response = await fetch(path, { headers: headers(), signal: signal ?? null, credentials: "omit" });
  if (!response.ok) throw await refusal(response);
  return response;
}

/** Asks for a JSON answer. Throws `ApiError`, or `TypeError` if the broker does not answer. */
export async function ask<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await (await get(path, signal)).json()) as T;
}

/** Asks for an answer that is plain text. Throws as `ask` does. */
export async function askText(path: string, signal?: AbortSignal): Promise<string> {
  return (await get(path, signal)).text();
}

/** Requests a change. Throws as `ask` does. */
export async function send<T>(method: "POST" | "DELETE", path: string, content?: object): Promise<T> {
  const made = headers();
  if (content !== undefined) made.set("Content-Type", "application/json");
  const body = content === undefined ? null : JSON.stringify(content);
  const response = await fetch(path, { method, headers: made, body, credentials: "omit" });
  if (!response.ok) throw await refusal(response);
  return (await response.json()) as T;
}

/** Reads a stream of server-sent events until it ends. Calls `receive` with the id and the data of each. */
export async function listen(
  path: string,
  lastId: string | null,
  signal: AbortSignal,
  receive: (id: string, data: string) => void,
): Promise<void> {
  const sent = headers();
  if (lastId) sent.set("Last-Event-ID", lastId);
  const response = await fetch(path, { headers: sent, signal, cache: "no-store", credentials: "omit" });
  if (!response.ok) throw await refusal(response);
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (pending + value).split("\n\n");
    pending = events.pop() ?? "";
    for (const event of events) {
      const field = (name: string): string =>
        event
          .split("\n")
          .find((line) => line.startsWith(`${name}: `))
          ?.slice(name.length + 2) ?? "";
      receive(field("id"), field("data"));
    }
  }
}
