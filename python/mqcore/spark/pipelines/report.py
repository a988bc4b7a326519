"""Reports: a self-contained HTML page with curves, bars and tables. Does not need Spark."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

__all__ = ["INDEX", "Page", "Series", "bars", "lines", "others", "svg_lines", "table", "tiles"]

INDEX: Final = "index.html"
"""File name of the page that lists all reports of a directory."""

_COLOURS: Final = ("#2f6f9f", "#c8553d", "#4c956c", "#8d6a9f", "#d19c1d", "#5c6b73", "#b0578d", "#7a8b2e")
_WIDTH: Final = 860
_HEIGHT: Final = 260
_LEFT: Final = 66
_RIGHT: Final = 12
_TOP: Final = 12
_BOTTOM: Final = 30
_BARS: Final = 24
"""Maximum number of bars in a chart; the table has the rest."""
_LABEL_MAX: Final = 60

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2429; --soft: #66727a; --line: #d8dee2; --ground: #fff; --tile: #f4f6f7; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8ecee; --soft: #98a4ab; --line: #39434a; --ground: #15191c;
  --tile: #1f262b; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); max-width: 1280px;
  margin: 2rem auto; padding: 0 1rem; }
a { color: inherit; } nav { font-size: .85rem; color: var(--soft); margin-bottom: .6rem; }
h1 { margin: 0; } h2 { font-size: 1.05rem; margin: 2rem 0 .4rem; } .soft { color: var(--soft); margin: 0 0 1.2rem; }
.tiles { display: flex; flex-wrap: wrap; gap: .6rem; } .tile { background: var(--tile); border-radius: 8px;
  padding: .6rem 1rem; min-width: 6rem; }
.tile b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; } .tile span { color: var(--soft);
  font-size: .85rem; }
.say { border-left: 4px solid #c8553d; background: var(--tile); padding: .6rem 1rem; margin: 1.2rem 0; }
  .say.good { border-color: #4c956c; }
svg { display: block; width: 100%; max-width: 900px; height: auto; } svg text { fill: var(--soft); font-size: 11px; }
  svg .grid { stroke: var(--line); }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; font-size: .85rem; } .legend i { display: inline-block;
  width: .8em; height: .8em; border-radius: 2px; margin-right: .35em; }
.wide { overflow: auto; max-height: 36rem; max-width: 100%; } .wide:focus-visible { outline: 2px solid var(--line); }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; position: sticky; top: 0; background: var(--ground); z-index: 1; }
th:first-child, td:first-child, .text { text-align: left; }
th:first-child, td:first-child { position: sticky; left: 0; background: var(--ground); } th:first-child { z-index: 2; }
td.text { max-width: 28rem; white-space: pre-wrap; overflow-wrap: break-word; }
td.long { min-width: 16rem; overflow-wrap: anywhere; }
"""


@dataclass(frozen=True)
class Series:
    """A curve: its name and its points from left to right. `None` is a gap.

    Over time, a value counts from its point to the next one, so the curve has steps.
    """

    name: str
    points: Sequence[tuple[float, float | None]]


@dataclass
class Page:
    """Builder of a report."""

    title: str
    about: str
    parts: list[str] = field(default_factory=list)

    def add(self, part: str) -> Page:
        """Add the result of `tiles`, `lines`, `bars` or `table`."""
        self.parts.append(part)
        return self

    def say(self, text: str, *, good: bool = False) -> Page:
        """Add a highlighted sentence."""
        return self.add(f'<p class="say{" good" if good else ""}">{html.escape(text)}</p>')

    def html(self) -> str:
        """Return the page."""
        made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{html.escape(self.title)}</title><style>{_STYLE}</style></head><body>\n"
            f'<nav><a href="{INDEX}">All reports</a></nav>\n'
            f'<h1>{html.escape(self.title)}</h1>\n<p class="soft">{html.escape(self.about)}<br>{made}</p>\n'
            + "\n".join(self.parts)
            + "\n</body></html>\n"
        )


def tiles(*figures: tuple[str, float]) -> str:
    """Return large figures with their names."""
    cells = (
        f'<div class="tile"><b>{_cell(value)}</b><span>{html.escape(name)}</span></div>' for name, value in figures
    )
    return f'<div class="tiles">{"".join(cells)}</div>'


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, of: int | None = None) -> str:
    """Return a table. `of`: total number of rows, if not all are shown."""
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(map(_data, row))}</tr>" for row in rows)
    left = f'<p class="soft">{len(rows):,} of {of:,}</p>' if of is not None and of > len(rows) else ""
    name = html.escape(title)
    # It can be scrolled with the keyboard too, so it takes the focus.
    wide = f'<div class="wide" tabindex="0" role="region" aria-label="{name}">'
    return f"<h2>{name}</h2>{wide}<table><tr>{head}</tr>{body}</table></div>{left}"


def others(count: int, what: str) -> str:
    """Return the name of a curve for everything that has none of its own, such as ``3 other queues``."""
    return f"{count:,} other {what}{'' if count == 1 else 's'}"


def bars(title: str, unit: str, values: Sequence[tuple[str, float]], *, otherwise: str, of: int | None = None) -> str:
    """Return horizontal bars in the given order, or the text `otherwise` if there are none.

    `of`: total number of values, if not all are given.
    """
    heading = f"<h2>{html.escape(title)}</h2>"
    if not values:
        return f"{heading}<p>{html.escape(otherwise)}</p>"
    shown, step, left = values[:_BARS], 24, 230
    most = max(value for _, value in shown) or 1
    room = _WIDTH - left - 90
    parts = []
    for index, (name, value) in enumerate(shown):
        y, width = index * step + 4, max(1.0, room * value / most)
        colour = _COLOURS[0]
        parts.append(
            f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{html.escape(_short(name, 36))}</text>'
            f'<rect x="{left}" y="{y}" width="{width:.1f}" height="{step - 7}" rx="2" fill="{colour}">'
            f"<title>{html.escape(name)}: {_cell(value)} {html.escape(unit)}</title></rect>"
            f'<text x="{left + width + 6:.1f}" y="{y + 13}">{_cell(value)}</text>'
        )
    drawn = f'<svg viewBox="0 0 {_WIDTH} {len(shown) * step + 4}" role="img">{"".join(parts)}</svg>'
    rest = (len(values) if of is None else of) - len(shown)
    more = f'<p class="soft">{rest:,} more</p>' if rest else ""
    return heading + drawn + more


def lines(title: str, unit: str, curves: Sequence[Series], *, times: bool = False) -> str:
    """Return curves in one picture with their legend. `times`: x is Unix seconds, and the curves have steps."""
    heading = f"<h2>{html.escape(title)}</h2>"
    if not any(value is not None for curve in curves for _, value in curve.points):
        return f"{heading}<p>No data.</p>"
    legend = "".join(
        f'<span><i style="background:{_COLOURS[index % len(_COLOURS)]}"></i>{html.escape(_short(curve.name))}</span>'
        for index, curve in enumerate(curves)
    )
    return f'{heading}{svg_lines(unit, curves, times=times)}<div class="legend">{legend}</div>'


def svg_lines(unit: str, curves: Sequence[Series], *, times: bool = False) -> str:
    """Return curves as SVG."""
    known = [(x, y) for curve in curves for x, y in curve.points if y is not None]
    first, last = min(x for x, _ in known), max(x for x, _ in known)
    width = _step(curves) if times else 0.0
    last += width
    ticks = _ticks(max(y for _, y in known))
    most = ticks[-1]

    def across(x: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * ((x - first) / (last - first) if last > first else 0.5)

    def up(y: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * y / most

    parts = []
    for tick in ticks:
        y = up(tick)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_cell(tick)}</text>'
        )
    parts.append(f'<text x="{_LEFT + 4}" y="{_TOP + 8}">{html.escape(unit)}</text>')
    for index in range(5 if last > first else 1):
        x = first + (last - first) * index / 4
        label = _moment(x, last - first) if times else _cell(x)
        anchor = "start" if index == 0 and last > first else "end" if index == 4 else "middle"
        parts.append(f'<text x="{across(x):.1f}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{label}</text>')
    for index, curve in enumerate(curves):
        colour = _COLOURS[index % len(_COLOURS)]
        for run in _stepped(curve, width) if width else _runs(curve):
            places = [(across(x), up(y)) for x, y in run]
            if len(places) == 1:
                parts.append(f'<circle cx="{places[0][0]:.1f}" cy="{places[0][1]:.1f}" r="3" fill="{colour}"/>')
                continue
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(parts)}</svg>'


def _runs(curve: Series) -> list[list[tuple[float, float]]]:
    """Parts of a curve without gaps."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in curve.points:
        if y is None:
            runs.append([])
        else:
            runs[-1].append((x, y))
    return [run for run in runs if run]


def _step(curves: Sequence[Series]) -> float:
    """Width of a step: the smallest distance between two points. The last value of a curve counts as long."""
    return min((b - a for curve in curves for (a, _), (b, _) in pairwise(curve.points)), default=0.0)


def _stepped(curve: Series, width: float) -> list[list[tuple[float, float]]]:
    """Parts of a curve without gaps. Each value counts until the next point, because it is one of an interval."""
    ends = [*(x for x, _ in curve.points[1:]), curve.points[-1][0] + width]
    runs: list[list[tuple[float, float]]] = [[]]
    for (x, y), end in zip(curve.points, ends, strict=True):
        if y is None:
            runs.append([])
        else:
            runs[-1] += [(x, y), (end, y)]
    return [run for run in runs if run]


def _ticks(most: float) -> list[float]:
    """About five round values from 0 to at least `most`."""
    if most <= 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(most))
    step = next(power * part for part in (0.2, 0.25, 0.5, 1.0, 2.0) if most / (power * part) <= 5)
    return [step * index for index in range(math.ceil(most / step - 1e-9) + 1)]


def _moment(seconds: float, span: float) -> str:
    form = "%H:%M:%S" if span < 3600 else "%m-%d %H:%M" if span < 30 * 86400 else "%Y-%m-%d"
    return datetime.fromtimestamp(seconds, UTC).strftime(form)


def _short(text: str, most: int = _LABEL_MAX) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _data(value: object) -> str:
    if not isinstance(value, str):
        return f"<td>{_cell(value)}</td>"
    long = " long" if len(value) > _LABEL_MAX else ""
    return f'<td class="text{long}">{html.escape(value)}</td>'


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if value == int(value) else f"{value:,.3g}" if abs(value) < 100 else f"{value:,.1f}"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    return html.escape(str(value))
