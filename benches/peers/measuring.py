"""Runs of a row: one run of each competitor in turn, so that whatever else the machine does meets all of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from peers import machine
from peers.machine import Processors
from peers.place import ROOT, Missing, Place, Program, clean_environment
from peers.rows import Entry, Row
from peers.servers import SERVERS, Server

__all__ = ["Competitor", "Effort", "Sample", "measure"]

_PROGRAM_SECONDS_MAX = 300.0
_MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Effort:
    """How long it takes."""

    runs: int
    seconds: float
    """Duration of a run that has one."""
    share: float = 1.0
    """Part of the messages of a run that has a fixed number of them."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one competitor."""

    values: Mapping[str, float]
    """Values that the program printed."""
    cpu_seconds: float | None
    """Processor time of the server; `None`: there is none."""
    resident_mib: float | None
    """Memory of the server at the end of the run."""
    disturbance: float
    """Processors that other programs kept busy during the run."""

    @property
    def cpu_seconds_per_million(self) -> float | None:
        """Processor seconds of the server for a million messages."""
        messages = self.values.get("messages", 0)
        return None if self.cpu_seconds is None or not messages else self.cpu_seconds / messages * 1e6


@dataclass(slots=True)
class Competitor:
    """Samples of one competitor in one row, or why there are none."""

    name: str
    samples: list[Sample] = field(default_factory=list)
    skipped: str | None = None


def measure(
    row: Row,
    competitors: Mapping[str, Entry],
    installed: Mapping[str, Program | Missing],
    place: Place,
    effort: Effort,
    report: Callable[[str], None],
) -> list[Competitor]:
    """Measure a row. A competitor whose run fails is skipped from then on, with the reason."""
    found = [Competitor(name) for name in competitors]
    for run in range(effort.runs):
        for competitor in found:
            if competitor.skipped is not None:
                continue
            entry = competitors[competitor.name]
            try:
                sample = _run(row, entry, installed, place, effort)
            except Missing as error:
                competitor.skipped = str(error)
                report(f"{row.name}: {competitor.name} skipped: {error}")
                continue
            competitor.samples.append(sample)
            report(f"{row.name} {run + 1}/{effort.runs}: {competitor.name} {sample.values[row.value]:,.1f} {row.unit}")
    return found


def _run(row: Row, entry: Entry, installed: Mapping[str, Program | Missing], place: Place, effort: Effort) -> Sample:
    processors = machine.usable()
    if not row.is_pinned:
        processors = Processors(processors.all, processors.all)
    with (
        tempfile.TemporaryDirectory(dir=place.directory, prefix="run-", ignore_cleanup_errors=True) as folder,
        _served(row, entry, installed, Path(folder), processors) as server,
    ):
        address = ",".join(server.addresses[protocol] for protocol in entry.addresses) if server else "-"
        if entry.prepare is not None:
            client = Entry(f"{entry.server}_client", entry.prepare, entry.server)
            _finished(_command(row, client, address, place, effort), processors)
        command = _command(row, entry, address, place, effort)
        root = server.process.pid if server else None
        cpu_before = machine.cpu_seconds(root) if root else 0.0
        others_before, start = machine.busy_seconds(root), time.perf_counter()
        values = _finished(command, processors)
        elapsed = time.perf_counter() - start
        disturbance = max(0.0, (machine.busy_seconds(root) - others_before) / elapsed)
        if root is None:
            return Sample(values, None, None, disturbance)
        cpu = machine.cpu_seconds(root) - cpu_before
        return Sample(values, cpu, machine.resident_bytes(root) / _MEBIBYTE, disturbance)


@contextlib.contextmanager
def _served(
    row: Row,
    entry: Entry,
    installed: Mapping[str, Program | Missing],
    directory: Path,
    processors: Processors,
) -> Iterator[Server | None]:
    if entry.server is None:
        yield None
        return
    program = installed[entry.server]
    if isinstance(program, Missing):
        raise program
    with SERVERS[entry.server].start(program, row.durability, directory, processors) as server:
        yield server


def _command(row: Row, entry: Entry, address: str, place: Place, effort: Effort) -> list[str | Path]:
    milliseconds = f"milliseconds={max(1, round(effort.seconds * 1000))}"
    if entry.program == "load":
        warm_up = f"warm-up={max(1, round(min(0.5, effort.seconds) * 1000))}"
        work, *numbers = row.load
        return [place.load, "drive", entry.work, address, work, *numbers, milliseconds, warm_up]
    is_ours = entry.program.startswith("mqcore") or "mqcore" in entry.work
    python = place.python("mqcore" if is_ours else "peers")
    count = max(1, round(entry.count * effort.share))
    return [python, "-m", f"peers.clients.{entry.program}", entry.work, address, milliseconds, f"count={count}"]


def _finished(command: list[str | Path], processors: Processors) -> dict[str, float]:
    """Run a program on the processors of the generator, and return the JSON that it prints."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**clean_environment(), "PYTHONPATH": str(ROOT / "benches")},
        start_new_session=True,
        preexec_fn=lambda: os.sched_setaffinity(0, processors.generator),
    )
    try:
        stdout, stderr = process.communicate(timeout=_PROGRAM_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        raise Missing(f"the run took longer than {_PROGRAM_SECONDS_MAX:.0f} s") from None
    finally:
        # With its workers and responders.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode:
        raise Missing(f"the run failed: {(stderr.strip().splitlines() or ['no message'])[-1]}")
    values: dict[str, float] = json.loads(stdout.strip().splitlines()[-1])
    return values
