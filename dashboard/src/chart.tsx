/** A chart over time, which can also be read as a table. */

import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

import { clock, count, rate } from "./format";

export interface Series {
  label: string;
  values: number[];
  /** The name of a color in the style sheet; each pair of colors differs in lightness too. */
  color: "blue" | "orange" | "green" | "purple";
}

interface Props {
  title: string;
  /** Times in milliseconds, ascending. */
  at: number[];
  series: Series[];
  /** Whether values are rates per second. */
  isRate?: boolean;
}

const HEIGHT = 180;
const TABLE_ROWS = 20;
/** Charts with this key share one cursor. */
const SYNC = "time";

function color(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export function Chart({ title, at, series, isRate = false }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [asTable, setAsTable] = useState(false);
  const text = isRate ? (value: number) => `${rate(value)}/s` : count;
  const shape = series.map((each) => each.label).join();

  useEffect(() => {
    if (asTable || !place.current) return;
    const made = new uPlot(
      {
        width: place.current.clientWidth,
        height: HEIGHT,
        cursor: { sync: { key: SYNC } },
        axes: [
          { stroke: color("muted"), grid: { stroke: color("line") }, ticks: { stroke: color("line") } },
          {
            stroke: color("muted"),
            grid: { stroke: color("line") },
            ticks: { stroke: color("line") },
            size: 60,
            values: (_, splits) => splits.map((value) => (isRate ? rate(value) : count(value))),
          },
        ],
        scales: { y: { range: (_, __, max) => [0, Math.max(max, 1)] } },
        series: [
          {},
          ...series.map((each) => ({
            label: each.label,
            stroke: color(each.color),
            width: 1.5,
            points: { show: false },
            value: (_: uPlot, value: number | null) => (value === null ? "–" : text(value)),
          })),
        ],
      },
      data(at, series),
      place.current,
    );
    plot.current = made;
    const resize = new ResizeObserver(([entry]) => {
      if (entry) made.setSize({ width: entry.contentRect.width, height: HEIGHT });
    });
    resize.observe(place.current);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const redraw = () => made.redraw();
    dark.addEventListener("change", redraw);
    return () => {
      dark.removeEventListener("change", redraw);
      resize.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [asTable, shape]);

  useEffect(() => plot.current?.setData(data(at, series)), [at, series]);

  return (
    <figure class="chart">
      <figcaption>
        {title}
        <button type="button" class="quiet" aria-pressed={asTable} onClick={() => setAsTable(!asTable)}>
          {asTable ? "chart" : "table"}
        </button>
      </figcaption>
      {asTable ? (
        <table>
          <caption class="hidden">{title}, the latest first</caption>
          <thead>
            <tr>
              <th scope="col">time</th>
              {series.map((each) => (
                <th scope="col" class="number" key={each.label}>
                  {each.label}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {at
              .map((time, index) => ({ time, index }))
              .slice(-TABLE_ROWS)
              .reverse()
              .map(({ time, index }) => (
                <tr key={time}>
                  <td>{clock(time)}</td>
                  {series.map((each) => (
                    <td class="number" key={each.label}>
                      {text(each.values[index] ?? 0)}
                    </td>
                  ))}
                </tr>
              ))}
          </tbody>
        </table>
      ) : (
        <div ref={place} role="img" aria-label={`${title}: ${latest(series, text)}`} />
      )}
    </figure>
  );
}

function data(at: number[], series: Series[]): uPlot.AlignedData {
  return [at.map((time) => time / 1000), ...series.map((each) => each.values)];
}

function latest(series: Series[], text: (value: number) => string): string {
  return series.map((each) => `${each.label} ${text(each.values.at(-1) ?? 0)}`).join(", ");
}
