/** The events of a trace, grouped by message and in words. */

import type { MessageLocation, Trace, TracedClient, TraceStep } from "./api";

/** A message on its way through one or several queues. */
export interface TracedMessage {
  /** In the order in which they happened. */
  steps: TraceStep[];
  now: MessageLocation[];
}

/** The time of a message in one queue. */
interface Stay {
  first: TraceStep;
  last: TraceStep;
  /** The position of its last event among all events. */
  lastAt: number;
  follows: Stay | null;
  isFollowed: boolean;
}

const TRANSFERS = ["dead-lettered", "moved"];

function keyOf({ shard, number }: { shard: number; number: number }): string {
  return `${shard}/${number}`;
}

/**
 * The messages that share an id. In each queue, a message has another number. An arrival therefore continues the message
 * that left for this queue first and has not arrived yet: transfers between two queues keep their order.
 */
export function messagesOf(trace: Trace): TracedMessage[] {
  const stays = new Map<string, Stay>();
  for (const [lastAt, step] of trace.steps.entries()) {
    const stay = stays.get(keyOf(step));
    if (stay) Object.assign(stay, { last: step, lastAt });
    else stays.set(keyOf(step), { first: step, last: step, lastAt, follows: null, isFollowed: false });
  }
  const earlier: Stay[] = [];
  for (const stay of stays.values()) {
    if (stay.first.kind === "arrived") follow(stay, earlier);
    earlier.push(stay);
  }
  const messages = new Map<string, TracedMessage>();
  const messageOf = (key: string): TracedMessage => {
    let root = stays.get(key);
    while (root?.follows) root = root.follows;
    const name = root ? keyOf(root.first) : key;
    const message = messages.get(name) ?? { steps: [], now: [] };
    messages.set(name, message);
    return message;
  };
  for (const step of trace.steps) messageOf(keyOf(step)).steps.push(step);
  for (const location of trace.now) messageOf(keyOf(location)).now.push(location);
  return [...messages.values()];
}

function follow(stay: Stay, earlier: Stay[]): void {
  const candidates = earlier.filter((each) => !each.isFollowed && goesTo(each, stay.first.queue));
  const previous = candidates.sort((one, other) => one.lastAt - other.lastAt)[0];
  if (previous === undefined) return;
  previous.isFollowed = true;
  stay.follows = previous;
}

function goesTo({ last }: Stay, queue: string | null): boolean {
  return last.last && TRANSFERS.includes(last.kind) && last.target === queue;
}

const EVENTS: Record<string, string> = {
  produced: "published",
  arrived: "arrived from another queue",
  restored: "restored after a restart",
  saved: "saved",
  delivered: "delivered",
  acked: "acknowledged",
  nacked: "negatively acknowledged",
  "timed-out": "acknowledgement timed out",
  "consumer-lost": "consumer lost",
  "put-back": "requeued",
  expired: "expired",
  "dead-lettered": "dead-lettered",
  dropped: "dropped",
  replaced: "replaced by a newer message",
  moved: "moved by an operator",
  done: "left the queue",
};

/** The name of an event. */
export function eventName(kind: string): string {
  return EVENTS[kind] ?? kind;
}

const STATES: Record<string, string> = {
  undecided: "waits for the decision of the handler",
  waiting: "waits for a consumer",
  delayed: "is delayed",
  delivered: "is in flight",
};

/** The present state of a message. */
export function stateName(state: MessageLocation["state"]): string {
  return STATES[state] ?? state;
}

/** Whether an event is a success, a failure, or neither. */
export function eventSeverity(kind: string): "healthy" | "warning" | "info" {
  if (kind === "acked" || kind === "done") return "healthy";
  const isFailure = ["nacked", "timed-out", "consumer-lost", "expired", "dead-lettered", "dropped"].includes(kind);
  return isFailure ? "warning" : "info";
}

const DROP_REASONS: Record<string, string> = {
  "no-consumer": "there was no consumer",
  slow: "the consumer was too slow",
  limit: "a limit of its queue was reached",
  expired: "it waited too long",
  refused: "a handler or a consumer rejected it",
  erased: "its queue was stopped, cleared or removed, or a newer message replaced it",
  unreadable: "its body could not be loaded",
  duplicate: "its queue had accepted a message with the same id shortly before",
};

/** Why it happened: a reason of the broker in words, or that of the consumer as it is. */
export function reasonOf({ kind, reason }: TraceStep): string {
  if (!reason) return "";
  if (kind === "put-back") return `at the ${reason} of the queue`;
  if (kind === "dead-lettered" && reason === "limit") return "it failed as often as its queue allows";
  return kind === "dropped" || kind === "dead-lettered" ? (DROP_REASONS[reason] ?? reason) : reason;
}

/** The name of a client, its type and its protocol. */
export function clientName({ id, name, type, protocol }: TracedClient): string {
  return `${name || id} (${[type, protocol].filter(Boolean).join(", ")})`;
}

/** The client that took part in an event: the producer publishes, consumers do the rest. */
export function clientOf(step: TraceStep): TracedClient | null {
  return step.kind === "produced" ? step.producer : step.consumer;
}

/** The state of a message, or how it ended. */
export function outcomeOf({ steps, now }: TracedMessage): string {
  const location = now.at(-1);
  if (location) return `${stateName(location.state)} in ${location.queue}`;
  const end = steps.findLast((step) => step.last);
  if (!end) return "is in no queue, and its history has no end";
  if (end.kind === "acked" || end.kind === "delivered" || end.kind === "done") return "is done";
  return `ended: ${eventName(end.kind)}`;
}
