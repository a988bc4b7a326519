"""Processors, processor time, memory, and what else the machine does. Linux only: it reads `/proc`."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Processors", "busy_seconds", "cpu_seconds", "description", "processes_of", "resident_bytes", "usable"]

_TICKS = os.sysconf("SC_CLK_TCK")
_MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Processors:
    """Processors of the server and of the generator."""

    server: frozenset[int]
    generator: frozenset[int]

    @property
    def are_apart(self) -> bool:
        """Whether no processor is shared."""
        return not self.server & self.generator

    @property
    def all(self) -> frozenset[int]:
        """All of them."""
        return self.server | self.generator


def usable() -> Processors:
    """Half of the processors for each side; a single one for both."""
    every = sorted(os.sched_getaffinity(0))
    half = len(every) // 2
    if half == 0:
        return Processors(frozenset(every), frozenset(every))
    return Processors(frozenset(every[:half]), frozenset(every[half:]))


def _stat(pid: int) -> list[str]:
    # The name may contain spaces; the fields behind it begin after its closing parenthesis.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def processes_of(root: int) -> list[int]:
    """Return a process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                children.setdefault(int(_stat(int(entry.name))[1]), []).append(int(entry.name))

    def below(pid: int) -> Iterator[int]:
        yield pid
        for child in children.get(pid, ()):
            yield from below(child)

    return list(below(root))


def cpu_seconds(root: int) -> float:
    """Processor time that a process and its descendants have used."""
    ticks = 0
    for pid in processes_of(root):
        with contextlib.suppress(OSError):
            fields = _stat(pid)
            ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS


def resident_bytes(root: int) -> int:
    """Resident memory of a process and its descendants."""
    pages = 0
    for pid in processes_of(root):
        with contextlib.suppress(OSError):
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def busy_seconds(server: int | None) -> float:
    """Processor time that everything but this program, its ended children and the server's processes has used."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    # Neither idle nor waiting for a disk.
    busy = (sum(fields) - fields[3] - fields[4]) / _TICKS
    own = sum(os.times()[:2])
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return busy - own - ended.ru_utime - ended.ru_stime - (0 if server is None else cpu_seconds(server))


def description() -> dict[str, object]:
    """Describe this machine for the results."""
    model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    total = re.search(r"^MemTotal:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return {
        "processor": model[1] if model else platform.machine(),
        "processors": len(os.sched_getaffinity(0)),
        "memory_mib": int(total[1]) * 1024 // _MEBIBYTE if total else None,
        # Without the name of a distribution's build.
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
    }
