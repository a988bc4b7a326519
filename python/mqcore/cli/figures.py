"""Numbers, times and findings as people read them in tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mqcore.admin import Finding

__all__ = ["SEVERITY_STYLES", "age", "bar", "notes_by_queue", "rate"]

SEVERITY_STYLES: Final[dict[str, str]] = {
    "critical": "bold red",
    "warning": "yellow",
    "info": "cyan",
    "healthy": "green",
    "starting": "cyan",
}
"""The style of each severity on a terminal."""

_BARS: Final = "▁▂▃▄▅▆▇█"

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))

# A few words for the column NOTE; the whole sentence is in `mqcore status`.
_NOTES: Final[dict[str, str]] = {
    "missing-handler": "missing handler",
    "failing-handler": "handler fails",
    "no-consumer": "no consumer",
    "slow-consumer": "slow consumer",
    "dead-letters": "dead letters",
    "limit-reached": "limit reached",
    "paused-queue": "paused",
}


def age(seconds: float | None) -> str:
    """Return a time in its largest unit: ``0.4 s``, ``12 s``, ``5 min``; ``-`` for `None`."""
    if seconds is None:
        return "-"
    for size, unit in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 1 else f"{seconds:.0f} s"


def rate(per_second: float) -> str:
    """Return a rate with three digits: ``0``, ``12``, ``1.2k``, ``3.4M``."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(per_second) >= size:
            return f"{per_second / size:.1f}{unit}"
    return f"{per_second:.0f}"


def bar(values: Sequence[float]) -> str:
    """Return a small graph of `values`, from zero to their maximum."""
    top = max(values, default=0.0)
    if top <= 0:
        return _BARS[0] * len(values)
    return "".join(_BARS[round(max(value, 0.0) / top * (len(_BARS) - 1))] for value in values)


def notes_by_queue(findings: Iterable[Finding]) -> Mapping[str, list[str]]:
    """Return for each queue with findings what they are, in a few words, the worst first."""
    notes: dict[str, list[str]] = {}
    for finding in findings:
        kind, _, name = finding.subject.partition(" ")
        if kind == "queue":
            notes.setdefault(name, []).append(_NOTES.get(finding.kind, finding.kind))
    return notes
