"""Measurements of a soak, and the limits that they must keep. It does not depend on mqcore."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from endurance.probe import percentile

PROBE_P99_SECONDS = 0.020
"""The latency of the probe that 99 of 100 messages must not exceed while the broker runs."""
RSS_DRIFT_BYTES = 8 << 20
"""Steady growth of memory in a life, after its warm-up: a leak."""
RSS_GROWTH_BYTES = 48 << 20
RSS_GROWTH_SHARE = 0.05
"""All growth of memory: this share, and the buffers of three segments that housekeeping has read. The allocator keeps
some of them, which shows as steps."""
DESCRIPTOR_GROWTH = 8
THREAD_GROWTH = 1

WARM_UP_SHARE = 0.25
"""The part of a life in which caches and buffers fill."""
LIVES_MIN = 5
"""Lives that are needed to compare earlier and later ones."""
DRIFT_PARTS = 15
"""Parts of a life whose memory is compared to find steady growth."""
SAMPLES_MIN = 12
"""Samples of a life that can be judged."""
SETTLE_SECONDS = 2.0
"""Time after a restart in which the probe sends what waited."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The resources of a process at one moment."""

    at: float
    rss: int
    """Bytes."""
    descriptors: int
    threads: int


def sample(pid: int, at: float) -> Sample:
    """Measure a process. Raises `OSError` if it has ended."""
    process = Path(f"/proc/{pid}")
    status = dict(line.partition(":")[::2] for line in (process / "status").read_text(encoding="ascii").splitlines())
    descriptors = sum(1 for _ in (process / "fd").iterdir())
    return Sample(at, int(status["VmRSS"].split()[0]) << 10, descriptors, int(status["Threads"]))


@dataclass
class Measurements:
    """Everything that a soak recorded."""

    lives: dict[str, list[list[Sample]]] = field(default_factory=dict)
    """Samples of each life of each broker."""
    outages: list[tuple[float, float]] = field(default_factory=list)
    """Monotonic times at which the probed broker was away."""
    confirms: dict[int, Counter[int]] = field(default_factory=dict)
    """Histogram of the probe's confirmations by second."""
    deliveries: dict[int, Counter[int]] = field(default_factory=dict)
    own: dict[int, Counter[int]] = field(default_factory=dict)
    probe_missing: int | None = None
    """Confirmed messages of the probe that were not delivered; `None`: the probe did not end in order."""
    findings: list[str] = field(default_factory=list)
    """Broken promises."""
    began: float = 0.0
    """Monotonic time from which on the probe counts."""

    def is_left_out(self, second: int) -> bool:
        """Whether this second is before the begin, or the broker was away in a part of it or had just returned."""
        return second < self.began or any(
            begin < second + 1 and second < end + SETTLE_SECONDS for begin, end in self.outages
        )

    def latencies(self, by_second: dict[int, Counter[int]]) -> Counter[int]:
        """The histogram of all seconds in which the broker was there."""
        return sum((found for second, found in by_second.items() if not self.is_left_out(second)), Counter[int]())


@dataclass(frozen=True, slots=True)
class Check:
    """One limit, and whether it held."""

    name: str
    value: float
    limit: float
    unit: str
    details: str = ""

    @property
    def is_held(self) -> bool:
        """Whether the value is within the limit."""
        return self.value <= self.limit

    def __str__(self) -> str:
        verdict = "held  " if self.is_held else "BROKEN"
        limit = f"{self.limit:.6g} {self.unit} {self.details}".rstrip()
        return f"{verdict} {self.name}: {self.value:.6g} of at most {limit}"


def judge(measured: Measurements) -> list[Check]:
    """Compare measurements with the limits."""
    checks = [Check("broken promises", len(measured.findings), 0, "findings")]
    for name, lives in measured.lives.items():
        checks += _usage(name, lives)
    own = percentile(measured.latencies(measured.own), 0.99)
    for name, by_second in (("confirmation", measured.confirms), ("delivery", measured.deliveries)):
        histogram = measured.latencies(by_second)
        median, worst = (percentile(histogram, share) * 1000 for share in (0.5, 0.999))
        details = f"(median {median:.2f} ms, p99.9 {worst:.1f} ms, {histogram.total()} messages; "
        details += f"the probe itself was late: p99 {own * 1000:.2f} ms)"
        p99 = percentile(histogram, 0.99) if histogram else float("inf")
        checks.append(Check(f"p99 of a {name}", p99 * 1000, PROBE_P99_SECONDS * 1000, "ms", details))
    missing = float("inf") if measured.probe_missing is None else measured.probe_missing
    checks.append(Check("confirmed messages of the probe that never came", missing, 0, "messages"))
    return checks


def _usage(name: str, lives: list[list[Sample]]) -> list[Check]:
    # The first life is judged by itself only: it began with an empty directory and measured the capacity.
    judged = [life[int(len(life) * WARM_UP_SHARE) :] for life in lives if len(life) >= SAMPLES_MIN]
    if not judged:
        return [Check(f"{name}: lives with {SAMPLES_MIN} samples are missing", 1, 0, "")]
    checks = []
    fields: list[tuple[str, Callable[[Sample], int], float, float, str]] = [
        ("resident memory", lambda one: one.rss, RSS_GROWTH_BYTES, RSS_GROWTH_SHARE, "bytes"),
        ("descriptors", lambda one: one.descriptors, DESCRIPTOR_GROWTH, 0, ""),
        ("threads", lambda one: one.threads, THREAD_GROWTH, 0, ""),
    ]
    for what, value, growth, share, unit in fields:
        values = [[value(one) for one in life] for life in judged]
        first, last = max((_ends(life) for life in values), key=lambda pair: pair[1] - pair[0])
        seen = f"(from {first:g} to {last:g}, the worst of {len(values)} lives)"
        checks.append(Check(f"{name}: growth of {what} in a life", last - first, growth + share * first, unit, seen))
        if len(values) >= LIVES_MIN:
            later = [_ends(life)[1] for life in values[1:]]
            half = len(later) // 2
            first, last = statistics.median(later[:half]), statistics.median(later[-half:])
            seen = f"(from {first:g} to {last:g})"
            checks.append(
                Check(f"{name}: growth of {what} from life to life", last - first, growth + share * first, unit, seen)
            )
    drift = max(_drift([one.rss for one in life]) for life in judged)
    checks.append(Check(f"{name}: steady growth of resident memory in a life", drift, RSS_DRIFT_BYTES, "bytes"))
    return checks


def _ends(values: Sequence[int]) -> tuple[float, float]:
    """The medians of the first and of the last third."""
    third = max(1, len(values) // 3)
    return statistics.median(values[:third]), statistics.median(values[-third:])


def _drift(values: Sequence[int]) -> float:
    """The growth without its steps: the usual growth of a part of the time, over all parts."""
    size = max(1, len(values) // DRIFT_PARTS)
    parts = [statistics.median(values[at : at + size]) for at in range(0, len(values) - size + 1, size)]
    growth = [later - sooner for sooner, later in itertools.pairwise(parts)]
    return statistics.median(growth) * len(growth) if growth else 0.0
