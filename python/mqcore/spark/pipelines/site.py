"""One page that lists the reports of a directory, with a search over reports and queues. Does not need Spark."""

from __future__ import annotations

import html
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mqcore import errors
from mqcore.spark.pipelines.report import INDEX
from mqcore.spark.place import place_of

if TYPE_CHECKING:
    from mqcore.spark.pipelines.catalogue import Outcome

__all__ = ["Entry", "record", "write_site"]

_FORMAT: Final = "mqcore.report/1"
_SUFFIX: Final = ".report.json"
_QUEUE_COLUMNS: Final = ("queue", "origin")
_ROWS_MAX: Final = 1_000_000
"""Tables with more rows are not searched for queues: they name the same ones as the others."""

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2429; --soft: #5d6870; --line: #d8dee2; --ground: #fff; --tile: #f4f6f7; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8ecee; --soft: #98a4ab; --line: #39434a; --ground: #15191c;
  --tile: #1f262b; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); max-width: 1000px;
  margin: 2rem auto; padding: 0 1rem; }
h1 { margin: 0; } h2 { font-size: 1.05rem; margin: 2rem 0 .4rem; } .soft { color: var(--soft); margin: 0 0 1.2rem; }
a { color: inherit; }
input { font: inherit; width: 100%; box-sizing: border-box; padding: .5rem .7rem; color: inherit;
  background: var(--tile); border: 1px solid var(--line); border-radius: 8px; }
ul { list-style: none; margin: 0; padding: 0; } li { border-bottom: 1px solid var(--line); padding: .5rem 0; }
li p { margin: 0; color: var(--soft); } li.bad { border-left: 4px solid #c8553d; padding-left: .6rem; }
li time { float: right; color: var(--soft); font-size: .85rem; } #queues li { overflow-wrap: anywhere; }
#queues a { margin-left: .6rem; font-size: .85rem; color: var(--soft); }
"""
_SCRIPT: Final = """
const box = document.querySelector("input"), none = document.querySelector("#none");
box.hidden = false;
const items = [...document.querySelectorAll("li")].map(item => [item, item.textContent.toLowerCase()]);
const search = () => {
  const words = box.value.toLowerCase().split(/\\s+/).filter(word => word);
  let shown = 0;
  for (const [item, text] of items) {
    item.hidden = !words.every(word => text.includes(word));
    shown += !item.hidden;
  }
  none.hidden = shown > 0;
  history.replaceState(null, "", box.value ? "#" + encodeURIComponent(box.value) : location.pathname);
};
box.addEventListener("input", search);
if (location.hash) { box.value = decodeURIComponent(location.hash.slice(1)); search(); }
"""


@dataclass(frozen=True)
class Entry:
    """A report as the site lists it."""

    name: str
    description: str
    summary: str
    ok: bool
    data_dir: str
    finished: datetime
    queues: Sequence[str]


def record(outcome: Outcome, description: str, data_dir: str | os.PathLike[str]) -> None:
    """Write what the site shows of a report beside it, and renew the site."""
    content = {
        "format": _FORMAT,
        "name": outcome.name,
        "description": description,
        "summary": outcome.summary,
        "ok": outcome.ok,
        "data_dir": os.fspath(place_of(data_dir)),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "figures": dict(outcome.figures),
        "tables": {name: str(path.relative_to(outcome.report.parent)) for name, path in outcome.tables.items()},
        "queues": _queues(outcome.tables),
    }
    _replace(outcome.report.with_name(f"{outcome.name}{_SUFFIX}"), json.dumps(content, indent=2))
    write_site(outcome.report.parent)


def write_site(out: str | os.PathLike[str]) -> Path:
    """Write ``OUT/index.html``: all reports of the directory, the latest results first, and the queues they contain.

    The page is self-contained. It links to the reports, which it expects in the same directory.

    Raises `DataDirMissing` if the directory has no reports.
    """
    root = Path(out).absolute()
    entries = sorted((_read(path) for path in root.glob(f"*{_SUFFIX}")), key=lambda entry: (entry.ok, entry.name))
    if not entries:
        raise errors.DataDirMissing(f"{root} has no reports; make some with mqcore pipeline run NAME --out {root}")
    index = root / INDEX
    _replace(index, _page(entries))
    return index


def _read(path: Path) -> Entry:
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        return Entry(
            content["name"],
            content["description"],
            content["summary"],
            content["ok"],
            content["data_dir"],
            datetime.fromisoformat(content["finished"]),
            content["queues"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise errors.DataDirUnreadable(f"damaged description of a report: {path} ({error}); delete it") from error


def _queues(tables: Mapping[str, Path]) -> list[str]:
    """All queues that the tables name."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    found: set[str] = set()
    for path in tables.values():
        for file in sorted(path.glob("*.parquet")):
            metadata = pq.read_metadata(file)
            columns = [name for name in _QUEUE_COLUMNS if name in metadata.schema.to_arrow_schema().names]
            if columns and metadata.num_rows <= _ROWS_MAX:
                rows = pq.read_table(file, columns=columns, partitioning=None)
                for name in columns:
                    found.update(value for value in pc.unique(rows.column(name)).to_pylist() if value)
    return sorted(found)


def _page(entries: Sequence[Entry]) -> str:
    reports = "\n".join(_report(entry) for entry in entries)
    of: dict[str, list[Entry]] = {}
    for entry in entries:
        for queue in entry.queues:
            of.setdefault(queue, []).append(entry)
    queues = "\n".join(_queue(queue, of[queue]) for queue in sorted(of))
    found = sum(not entry.ok for entry in entries)
    what = f"{found:,} of {len(entries):,} reports found an error" if found else f"{len(entries):,} reports, no errors"
    made = max(entry.finished for entry in entries).strftime("%Y-%m-%d %H:%M UTC")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Reports</title><style>{_STYLE}</style></head><body>\n"
        f'<h1>Reports</h1>\n<p class="soft">{html.escape(what)}; the latest is of {made}</p>\n'
        '<input type="search" hidden autofocus placeholder="Search reports and queues" '
        'aria-label="Search reports and queues">\n'
        f'<h2>Reports</h2>\n<ul id="reports">\n{reports}\n</ul>\n'
        f'<h2>Queues</h2>\n<ul id="queues">\n{queues}\n</ul>\n'
        '<p id="none" class="soft" hidden>Nothing matches.</p>\n'
        f"<script>{_SCRIPT}</script></body></html>\n"
    )


def _report(entry: Entry) -> str:
    finished = entry.finished.strftime("%Y-%m-%d %H:%M UTC")
    bad = "" if entry.ok else ' class="bad"'
    name = html.escape(entry.name)
    return (
        f'<li{bad}><time>{finished}</time><a href="{name}.html"><b>{name}</b></a> {html.escape(entry.description)}'
        f"<p>{html.escape(entry.summary)}</p><p>{html.escape(entry.data_dir)}</p></li>"
    )


def _queue(queue: str, entries: Sequence[Entry]) -> str:
    # The fragment makes browsers scroll to the queue and mark it.
    text = "".join(f"%{byte:02X}" if not chr(byte).isalnum() or byte > 127 else chr(byte) for byte in queue.encode())
    links = "".join(
        f'<a href="{html.escape(entry.name)}.html#:~:text={text}">{html.escape(entry.name)}</a>'
        for entry in sorted(entries, key=lambda entry: entry.name)
    )
    return f"<li>{html.escape(queue)}{links}</li>"


def _replace(path: Path, text: str) -> None:
    unfinished = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)
