"""Compares mqcore with other brokers: `make bench-peers`, or `python -m peers --help` in benches."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from peers import plots, report
from peers.measuring import Effort, measure
from peers.place import ROOT, Missing, Place, Program
from peers.rows import ROWS
from peers.servers import SERVERS

QUICK = Effort(runs=1, seconds=0.3, share=0.01)
LIBRARIES = ("nats-py", "redis", "aio-pika", "celery", "dramatiq", "taskiq")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m peers", description=__doc__)
    names = {name for row in ROWS.values() for name in row.entries}
    parser.add_argument("--rows", default="", help=f"rows by name, separated by commas: {', '.join(ROWS)} [all]")
    parser.add_argument("--peers", default="", help=f"competitors of mqcore: {', '.join(sorted(names))} [all]")
    parser.add_argument("--runs", type=int, default=5, help="runs of each, of which the median counts [5]")
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of a run [3]")
    parser.add_argument("--quick", action="store_true", help="one short run of everything, to see that it works")
    parser.add_argument("--require", default="", help="competitors that must have a figure in each of their rows")
    scratch = ROOT / "target" / "bench-peers"
    parser.add_argument(
        "--scratch", type=Path, default=scratch, help="where brokers and results go [target/bench-peers]"
    )
    parser.add_argument("--wheel", type=Path, help="a release build of mqcore [the newest in SCRATCH/wheels]")
    parser.add_argument("--mqcore", type=Path, metavar="PYTHON", help="an interpreter that has mqcore, not a wheel")
    parser.add_argument("--load", type=Path, default=ROOT / "target/release/load", help="the load generator")
    parser.add_argument("--publish", type=Path, metavar="RESULTS", help="only write these results into docs")
    return parser.parse_args()


def _chosen(text: str, known: Sequence[str], what: str) -> list[str]:
    """The names in an option; all if it is empty. Ends the program for an unknown name."""
    names = [name.strip() for name in text.split(",") if name.strip()] or list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"{what} {', '.join(unknown)}: unknown; choose from {', '.join(known)}")
    return names


def _publish(results: Path) -> None:
    found = json.loads(results.read_text())
    if found.get("schema") != report.SCHEMA:
        sys.exit(f"{results}: expected schema {report.SCHEMA}, found {found.get('schema')}")
    kept = ROOT / "benches" / "peers" / "results.json"
    if results.resolve() != kept:
        shutil.copyfile(results, kept)
    plots.write(found, ROOT / "docs" / "images")
    report.insert(found, ROOT / "docs" / "performance.md", "images")
    print(f"wrote {kept.relative_to(ROOT)}, docs/images/peers-*.svg and the table in docs/performance.md")


def _say(line: str) -> None:
    print(line, flush=True)


def _installed(wanted: set[str], place: Place) -> dict[str, Program | Missing]:
    found: dict[str, Program | Missing] = {}
    for name in SERVERS:
        if name not in wanted:
            continue
        _say(f"install {name} ...")
        try:
            found[name] = SERVERS[name].install(place)
        except Missing as error:
            found[name] = error
            _say(f"{name} skipped: {error}")
    return found


def _libraries(place: Place) -> dict[str, str]:
    listed = subprocess.run(
        [place.python("peers"), "-m", "pip", "list", "--format", "freeze", "--disable-pip-version-check"],
        capture_output=True,
        text=True,
        check=True,
    )
    versions = dict(re.findall(r"^([^=\n]+)==(.+)$", listed.stdout, re.MULTILINE))
    # The server and its client have the same name.
    return {("redis-py" if name == "redis" else name): versions[name] for name in LIBRARIES if name in versions}


def main() -> int:
    """Install, measure and report. Exit code 1: a competitor of `--require` has no figure."""
    options = _arguments()
    if options.publish is not None:
        _publish(options.publish)
        return 0
    rows = [ROWS[name] for name in _chosen(options.rows, list(ROWS), "--rows")]
    names = sorted({name for row in ROWS.values() for name in row.entries})
    competitors = {"mqcore", *_chosen(options.peers, names, "--peers")}
    wheels = sorted((options.scratch / "wheels").glob("mqcore-*.whl"), key=lambda path: path.stat().st_mtime)
    wheel: Path | None = options.wheel or (wheels[-1] if wheels else None)
    if options.mqcore is None and (wheel is None or not wheel.exists()):
        sys.exit(
            f"no release build of mqcore in {options.scratch / 'wheels'}: run `make bench-peers`, or name a --wheel"
        )
    if not options.load.exists():
        sys.exit(f"no load generator at {options.load}: run `make bench-peers`, or name it with --load")
    options.scratch.mkdir(parents=True, exist_ok=True)
    # Not resolved: the interpreter of an environment is a link that must keep its place.
    interpreter = options.mqcore.absolute() if options.mqcore is not None else None
    place = Place(options.scratch.resolve(), options.load.resolve(), wheel and wheel.resolve(), interpreter)
    effort = QUICK if options.quick else Effort(options.runs, options.seconds)

    chosen = [(row, {name: entry for name, entry in row.entries.items() if name in competitors}) for row in rows]
    installed = _installed({entry.server for _, entries in chosen for entry in entries.values() if entry.server}, place)
    libraries: dict[str, str] = {}
    if competitors != {"mqcore"}:
        try:
            libraries = _libraries(place)
        except Missing as error:
            _say(f"client libraries skipped: {error}")
    measured = [(row, measure(row, entries, installed, place, effort, _say)) for row, entries in chosen if entries]
    found = report.result(measured, installed, libraries, effort)
    results = place.directory / "results"
    report.write(found, results)
    plots.write(found, results)
    _say("")
    _say(report.table(found))
    _say(f"results, table and plots: {results}")
    required = set(_chosen(options.require, names, "--require")) if options.require else {"mqcore"}
    missing = [
        f"{row.name}: {competitor.name}"
        for row, competing in measured
        for competitor in competing
        if competitor.name in required and (competitor.skipped is not None or not competitor.samples)
    ]
    for name in missing:
        _say(f"missing: {name}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
