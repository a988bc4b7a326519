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
  const value = (name: string, labels: Record<string, string> = {}): number =>
    samples(name)
      .filter((sample) => Object.entries(labels).every(([label, wanted]) => sample.labels[label] === wanted))
      .reduce((sum, sample) => sum + sample.value, 0);
  return { samples, value };
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
