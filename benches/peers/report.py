"""Results as JSON, and as a Markdown table."""

from __future__ import annotations

import datetime
import json
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from peers import machine
from peers.measuring import Competitor, Effort
from peers.place import Missing, Program
from peers.rows import Row
from peers.servers import SERVERS

__all__ = ["BEGIN", "END", "insert", "result", "rows_of", "table", "write"]

SCHEMA = "mqcore.bench-peers/1"
BEGIN = "<!-- bench-peers: written by `make bench-peers` -->"
END = "<!-- end of bench-peers -->"

Json = dict[str, Any]

_COLUMNS = 100
"""Columns of a line of the documentation."""


def _summary(values: Sequence[float]) -> Json:
    return {
        "median": statistics.median(values),
        "smallest": min(values),
        "largest": max(values),
        "values": list(values),
    }


def _competitor(row: Row, competitor: Competitor) -> Json:
    if not competitor.samples:
        return {"skipped": competitor.skipped}
    samples = competitor.samples
    found: Json = {**_summary([sample.values[row.value] for sample in samples])}
    found["others"] = {name: _summary([sample.values[name] for sample in samples]) for name in row.others}
    costs = [cost for sample in samples if (cost := sample.cpu_seconds_per_million) is not None]
    memory = [mib for sample in samples if (mib := sample.resident_mib) is not None]
    found["cpu_seconds_per_million"] = statistics.median(costs) if costs else None
    found["resident_mib"] = statistics.median(memory) if memory else None
    found["disturbance"] = max(sample.disturbance for sample in samples)
    if competitor.skipped is not None:
        found["skipped"] = competitor.skipped
    return found


def result(
    rows: Sequence[tuple[Row, Sequence[Competitor]]],
    installed: Mapping[str, Program | Missing],
    libraries: Mapping[str, str],
    effort: Effort,
) -> Json:
    """Return everything for the JSON file."""
    processors = machine.usable()
    return {
        "schema": SCHEMA,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine.description(),
        "versions": {
            **{
                name: SERVERS[name].version(program)
                for name, program in installed.items()
                if isinstance(program, Program)
            },
            **libraries,
        },
        "skipped": {name: str(program) for name, program in installed.items() if isinstance(program, Missing)},
        "settings": {name: dict(kind.settings) for name, kind in SERVERS.items()},
        "method": {
            "runs": effort.runs,
            "seconds": effort.seconds,
            "server_processors": sorted(processors.server),
            "generator_processors": sorted(processors.generator),
            "processors_are_apart": processors.are_apart,
        },
        "rows": [
            {
                "name": row.name,
                "title": row.title,
                "unit": row.unit,
                "better": row.better,
                "durability": row.durability,
                "pinned": row.is_pinned,
                "competitors": {competitor.name: _competitor(row, competitor) for competitor in competitors},
            }
            for row, competitors in rows
        ],
    }


def rows_of(found: Json) -> list[tuple[Json, dict[str, Json]]]:
    """Return the rows that have figures, each with the competitors that have them."""
    rows = []
    for row in found["rows"]:
        measured = {name: each for name, each in row["competitors"].items() if "median" in each}
        if measured:
            rows.append((row, measured))
    return rows


def number(value: float | None) -> str:
    """A number for people: three digits below a hundred, whole above."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ratio(row: Json, ours: float, theirs: float) -> str:
    """How many times better mqcore is; empty if one of the two is nothing."""
    better, other = (ours, theirs) if row["better"] == "higher" else (theirs, ours)
    return f"{better / other:.2f} x" if other else ""


def table(found: Json) -> str:
    """Return the results as Markdown."""
    about, method = found["machine"], found["method"]
    conditions = (
        f"{found['date'][:10]}, {about['processor']}, {about['processors']} processors, Linux {about['kernel']}, "
        f"Python {about['python']}. Medians of {method['runs']} runs of {method['seconds']:g} s, one of each in turn."
    )
    versions = "Versions: " + ", ".join(f"{name} {version}" for name, version in found["versions"].items()) + "."
    lines = [
        *textwrap.wrap(conditions, _COLUMNS),
        "",
        *textwrap.wrap(versions, _COLUMNS),
        "",
        "| work | | median | smallest..largest | mqcore is better by | CPU s per million | MiB | disturbed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row, measured in rows_of(found):
        ours = measured.get("mqcore")
        title = f"{row['title']}, {row['unit']}"
        for name, each in measured.items():
            others = "".join(f"; {other} {number(values['median'])}" for other, values in each["others"].items())
            shown = f"**{number(each['median'])}**" if name == "mqcore" else number(each["median"])
            better = "" if ours is None or name == "mqcore" else _ratio(row, ours["median"], each["median"])
            cells = [
                title,
                name,
                shown + others,
                f"{number(each['smallest'])}..{number(each['largest'])}",
                better,
                number(each["cpu_seconds_per_million"]),
                number(each["resident_mib"]),
                f"{each['disturbance']:.0%}",
            ]
            lines.append("| " + " | ".join(cells) + " |")
            title = ""
    lines += ["", "Settings of rows in memory, and of rows that save before they confirm:", ""]
    lines += ["| broker | memory | fsync |", "|---|---|---|"]
    for name, settings in found["settings"].items():
        lines.append(f"| {name} | {settings.get('memory', '')} | {settings.get('fsync', '')} |")
    return "\n".join(lines) + "\n"


def write(found: Json, directory: Path) -> None:
    """Write `results.json` and `table.md`."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    (directory / "table.md").write_text(table(found))


def insert(found: Json, page: Path, images: str) -> None:
    """Replace what stands between the marks of a page. Raises `ValueError` if it has no marks."""
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no lines {BEGIN!r} and {END!r}; add them where the table belongs")
    picture = (
        "<picture>\n"
        f'  <source media="(prefers-color-scheme: dark)" srcset="{images}/peers-dark.svg">\n'
        f'  <img alt="Each row relative to the best broker" src="{images}/peers-light.svg">\n'
        "</picture>\n"
    )
    page.write_text(f"{before}{BEGIN}\n\n{picture}\n{table(found)}\n{END}{after}")
