/** The metrics of the broker, in the text format of Prometheus. */

import { askText } from "./api";

export interface Sample {
  labels: Record<string, string>;
  value: number;
}

export interface Metrics {
  /** All samples of a metric; empty if the broker does not have it. */
  samples: (name: string) => Sample[];
  /** The sum of the samples that have these labels. */
  value: (name: string, labels?: Record<string, string>) => number;
  /** Durations of a histogram with these labels. */
  durations: (name: string, labels?: Record<string, string>) => Durations;
}

export interface Durations {
  count: number;
  /** In seconds; 0 if there are none. */
  mean: number;
  /** An upper bound of the 99th percentile, in seconds; infinite if the histogram has none. */
  p99: number;
}

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/** Reads a page of metrics, for `useAnswer`. */
export async function readMetrics(path: string, signal: AbortSignal): Promise<Metrics> {
  return parseMetrics(await askText(path, signal));
}

function parseMetrics(text: string): Metrics {
  const all = new Map<string, Sample[]>();
  for (const line of text.split("\n")) {
    const [, name, labels, value] = LINE.exec(line) ?? [];
    if (name === undefined || value === undefined) continue;
    const sample = { labels: parseLabels(labels ?? ""), value: Number(value) };
    const others = all.get(name);
    if (others) others.push(sample);
    else all.set(name, [sample]);
  }
  const samples = (name: string): Sample[] => all.get(name) ?? [];
  const having = (name: string, labels: Record<string, string>): Sample[] =>
    samples(name).filter((sample) => Object.entries(labels).every(([label, wanted]) => sample.labels[label] === wanted));
  const value = (name: string, labels: Record<string, string> = {}): number =>
    having(name, labels).reduce((sum, sample) => sum + sample.value, 0);
  const durations = (name: string, labels: Record<string, string> = {}): Durations => {
    const number = value(`${name}_count`, labels);
    const bounds = having(`${name}_bucket`, labels)
      .filter((sample) => sample.value >= 0.99 * number)
      .map((sample) => (sample.labels.le === "+Inf" ? Infinity : Number(sample.labels.le)));
    return { count: number, mean: number === 0 ? 0 : value(`${name}_sum`, labels) / number, p99: Math.min(...bounds) };
  };
  return { samples, value, durations };
}

function parseLabels(text: string): Record<string, string> {
  const labels: Record<string, string> = {};
  for (const [, name, value] of text.matchAll(LABEL)) {
    if (name !== undefined && value !== undefined) labels[name] = unescaped(value);
  }
  return labels;
}

function unescaped(value: string): string {
  return value.replace(/\\(.)/g, (_, escaped: string) => (escaped === "n" ? "\n" : escaped));
}
