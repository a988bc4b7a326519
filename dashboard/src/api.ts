/** The answers of the broker's admin side, and how to ask for them. */

export type Severity = "critical" | "warning" | "info";

/** Something that needs an operator's attention. */
export interface Finding {
  kind: string;
  severity: Severity;
  /** What it is about, such as `queue orders/1001`. */
  subject: string;
  cause: string;
  remedy: string;
  since_ms: number;
}

export interface Attention {
  status: "starting" | "healthy" | "warning" | "critical";
  summary: string;
  checked_at_ms: number;
  total: number;
  counts: Record<string, number>;
  findings: Finding[];
}

/** Rates per second and contents of the whole broker at a time. */
export interface Totals {
  at_ms: number;
  received: number;
  delivered: number;
  settled: number;
  dead_lettered: number;
  rejected: number;
  ready: number;
  delayed: number;
  in_flight: number;
}

export interface Rates {
  received: number;
  delivered: number;
  settled: number;
  growth: number;
}

export interface QueueCounters {
  received: number;
  rejected: number;
  deliveries: number;
  acks: number;
  negative_acks: number;
  dead_lettered: number;
  errors: number;
  dropped: Record<string, number>;
  [name: string]: number | Record<string, number>;
}

export interface QueueState {
  queue: string;
  status: string;
  delivery_handler: string | null;
  missing_handler: string | null;
  ready: number;
  delayed: number;
  in_flight: number;
  undecided: number;
  consumers: number;
  oldest_seconds: number | null;
  block: string | null;
  memory_bytes: number;
  rates: Rates;
  messages: QueueCounters;
}

export interface QueuePage {
  total: number;
  matched: number;
  offset: number;
  limit: number;
  queues: QueueState[];
}

export interface QueueDetail {
  queue: string;
  status: string;
  missing_handler: string | null;
  ready: number;
  high_priority: number;
  delayed: number;
  next_attempt_ms: number | null;
  in_flight: number;
  undecided: number;
  consumers: number;
  memory_bytes: number;
  options: Record<string, string | number | boolean | null>;
  messages: QueueCounters;
  rates: Rates;
  findings: Finding[];
}

export interface PeekedMessage {
  attempts: number;
  put_backs: number;
  saved: boolean;
  id?: string;
  producer?: string;
  received_ms?: number;
  priority?: number;
  headers?: [string, string][];
  body_bytes?: number;
  body?: string;
  body_base64?: string;
}

export interface Connection {
  id: string;
  name: string | null;
  type: string | null;
  protocol: string;
  user: string | null;
  connection: number;
  online_seconds: number;
}

export interface ConnectionPage {
  total: number;
  matched: number;
  connections: Connection[];
}

export interface Binding {
  name: string;
  target: string;
  priority: number;
  interaction: string;
  taken: number;
  refused: number;
}

export interface Router {
  router: string;
  method: string;
  enabled: boolean;
  bindings: Binding[];
  messages: { received: number; routed: number; errors: number; dropped: Record<string, number> };
}

export interface Topic {
  topic: string;
  subscribers: number;
  queues: number;
  messages: { published: number; published_bytes: number; delivered: number; copied: number };
}

export interface Node {
  id: string;
  name: string;
  host: string;
  role: "upstream" | "downstream";
  connected: boolean;
  lifetime_ms: number;
}

export interface Certificate {
  listener: string;
  subject: string;
  names: string[];
  fingerprint: string;
  /** Negative if it has expired. */
  expires_in_seconds: number;
}

export interface Archive {
  state: "up-to-date" | "lagging" | "failing";
  pending_notes: number;
  waiting_seconds: number;
}

export interface Overview {
  version: string;
  pid: number;
  uptime_seconds: number;
  shards: number;
  shards_rejecting_messages: number[];
  losses: { journal: string; text: string }[];
  queues_without_handler: { queue: string; missing_handler: string }[];
  /** Null if the broker archives nothing. */
  archive: Archive | null;
  listeners: { protocol: string; address: string; url: string }[];
  certificates: Certificate[];
  nodes: Node[];
  routers: Router[];
  topics: Topic[];
  totals: Record<string, number>;
}

export interface TracedClient {
  id: string;
  name: string | null;
  type: string | null;
  protocol: string;
}

/** An event of a message. A message that moves to another queue gets another number there. */
export interface TraceStep {
  shard: number;
  number: number;
  at_ms: number;
  kind: string;
  queue: string | null;
  attempt: number | null;
  reason: string | null;
  target: string | null;
  /** Whether the message left its queue with this event. */
  last: boolean;
  producer: TracedClient | null;
  consumer: TracedClient | null;
}

/** Where a message is now. */
export interface MessageLocation {
  shard: number;
  number: number;
  queue: string;
  state: "undecided" | "waiting" | "delayed" | "delivered";
  until_ms: number | null;
  consumers: TracedClient[];
  attempts: number;
  put_backs: number;
  saved: boolean;
  producer: TracedClient | null;
}

/** All messages with an id. */
export interface Trace {
  id: string;
  /** Whether the broker has a history. */
  history: boolean;
  steps: TraceStep[];
  truncated: boolean;
  now: MessageLocation[];
  not_all_looked_at: boolean;
}

export interface Schedule {
  id: string;
  queue: string;
  headers: string;
  /** The JSON of the job; a long one is cut. */
  job: string;
  interval_ms: number | null;
  cron: string | null;
  timezone: string | null;
  catch_up: string;
  due_ms: number;
  runs: number;
  left: number | null;
}

export interface ScheduleList {
  total: number;
  schedules: Schedule[];
  limit: number;
}

/** What a handler executes. */
export interface HandlerStack {
  handler: string;
  state: "idle" | "running" | "gil-held";
  threads: { thread: string; frames: { file: string; line: number; function: string; code: string }[] }[];
}

/** Conditions on the use of credentials. */
export interface Restrictions {
  client_ids: string[];
  client_names: string[];
  client_types: string[];
  addresses: string[];
}

interface Credentials {
  name: string;
  allow: string[];
  restrict: Restrictions;
  /** Whether they are in the configuration, and not in the store. */
  configured: boolean;
  connections: number;
}

export interface User extends Credentials {
  has_password: boolean;
  certificate: string | null;
}

export interface Token extends Credentials {
  id: string;
  expires_ms: number | null;
}

/** Users and tokens. */
export interface Users {
  open: boolean;
  users: User[];
  tokens: Token[];
  anonymous: string[];
  logins: number;
  logins_refused: number;
  actions_denied: number;
}

/** One event of the stream. */
export interface Tick {
  attention: Attention;
  /** Samples since the previous event; in the first one, those of the last ten minutes. */
  totals: Totals[];
  queues?: QueuePage | null;
  queue?: QueueDetail | null;
}

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

/** The answer to a move of messages. */
export interface MoveReport {
  moved: number;
  without_origin: number;
  left: number;
  rejection: string | null;
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
