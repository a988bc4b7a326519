/** Numbers and times as people read them. */

const UNITS: [number, string][] = [
  [86_400, "d"],
  [3_600, "h"],
  [60, "min"],
];

/** A time in its largest unit; a dash if it is unknown. */
export function age(seconds: number | null): string {
  if (seconds === null) return "–";
  for (const [size, unit] of UNITS) {
    if (seconds >= 2 * size) return `${Math.round(seconds / size)} ${unit}`;
  }
  return seconds < 1 ? `${seconds.toFixed(1)} s` : `${Math.round(seconds)} s`;
}

/** When something expires; negative seconds are past. */
export function expiry(seconds: number): string {
  return seconds < 0 ? `expired for ${age(-seconds)}` : `in ${age(seconds)}`;
}

export function count(value: number): string {
  return value.toLocaleString("en-US");
}

/** A rate per second with up to three digits. */
export function rate(value: number): string {
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toFixed(1)}M`;
  if (size >= 1e3) return `${(value / 1e3).toFixed(1)}k`;
  return size > 0 && size < 10 ? value.toFixed(1) : value.toFixed(0);
}

export function bytes(value: number): string {
  if (value >= 1 << 30) return `${(value / (1 << 30)).toFixed(1)} GiB`;
  if (value >= 1 << 20) return `${(value / (1 << 20)).toFixed(1)} MiB`;
  if (value >= 1 << 10) return `${(value / (1 << 10)).toFixed(1)} KiB`;
  return `${value} B`;
}

export function clock(ms: number): string {
  return new Date(ms).toLocaleTimeString("en-GB");
}

/** A date and a time with milliseconds, in the time zone of the browser. */
export function moment(ms: number): string {
  const at = new Date(ms);
  return `${at.toLocaleDateString("sv-SE")} ${at.toLocaleTimeString("en-GB")}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

/** A time between two events. */
export function gap(ms: number): string {
  if (ms < 1_000) return `${ms} ms`;
  return ms < 60_000 ? `${(ms / 1_000).toFixed(1)} s` : age(ms / 1_000);
}

/** A duration in seconds with three digits, in the unit that fits. */
export function shortTime(seconds: number): string {
  if (!Number.isFinite(seconds)) return "over 5 min";
  if (seconds >= 60) return age(seconds);
  const [value, unit] = seconds >= 1 ? [seconds, "s"] : seconds >= 1e-3 ? [seconds * 1e3, "ms"] : [seconds * 1e6, "µs"];
  return `${Number(value.toPrecision(3))} ${unit}`;
}

/** A period in the largest unit in which it is a whole number. */
export function period(ms: number): string {
  for (const [size, unit] of [...UNITS, [1, "s"] as const]) {
    if (ms % (size * 1_000) === 0) return `${count(ms / (size * 1_000))} ${unit}`;
  }
  return `${count(ms)} ms`;
}

/** The path of a queue's pages on the admin side. A slash in a channel's name is escaped. */
export function queuePath(queue: string): string {
  const [channel, id] = splitQueue(queue);
  return `/queues/${encodeURIComponent(channel)}/${id}`;
}

/** The channel and the number of a queue's address. */
export function splitQueue(queue: string): [string, string] {
  const at = queue.lastIndexOf("/");
  return at < 0 ? [queue, "0"] : [queue.slice(0, at), queue.slice(at + 1)];
}
