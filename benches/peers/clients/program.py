"""Arguments, loops and output of the measured programs: `python -m peers.clients.NAME WORK HOST:PORT
NAME=NUMBER...` prints JSON.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = [
    "AT_ONCE",
    "BODY",
    "CHUNK_MESSAGES",
    "Options",
    "Values",
    "Work",
    "closed_loop",
    "gathered",
    "responder",
    "run",
]

BODY = b"x" * 128
AT_ONCE = 1000
"""Messages that `gather` publishes together."""
CHUNK_MESSAGES = 1000
"""Messages between two looks at the clock."""

Values = dict[str, float]


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of a run."""

    address: str
    seconds: float
    """Duration of the measurement."""
    count: int
    """Messages or jobs of a run that has a fixed number of them."""


Work = Callable[[Options], Awaitable[Values]]


async def closed_loop(step: Callable[[], Awaitable[object]], seconds: float) -> Values:
    """Microseconds of a step, one after the other."""
    for _ in range(20):
        await step()
    times = []
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        await step()
        times.append(time.perf_counter() - start)
    times.sort()
    return {
        "p50": statistics.median(times) * 1e6,
        "p99": times[len(times) * 99 // 100] * 1e6,
        "messages": len(times),
    }


async def gathered(publish: Callable[[], Awaitable[object]], seconds: float) -> Values:
    """Messages a second, many at once by `gather`."""
    await asyncio.gather(*(publish() for _ in range(AT_ONCE)))
    count, start = 0, time.perf_counter()
    while time.perf_counter() < start + seconds:
        await asyncio.gather(*(publish() for _ in range(AT_ONCE)))
        count += AT_ONCE
    return {"rate": count / (time.perf_counter() - start), "messages": count}


@contextmanager
def responder(options: Options) -> Iterator[None]:
    """Run the work `respond` of this program in another process, which prints a line when it is ready."""
    specification = sys.modules["__main__"].__spec__
    assert specification is not None
    command = [sys.executable, "-m", specification.name, "respond", options.address]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError("the responder ended")
        yield
    finally:
        process.kill()
        process.wait()


def run(works: Mapping[str, Work]) -> None:
    """Do the work that the arguments name."""
    name, address, *pairs = sys.argv[1:]
    numbers = {key: float(value) for key, _, value in (pair.partition("=") for pair in pairs)}
    options = Options(address, numbers.get("milliseconds", 2000) / 1000, int(numbers.get("count", 1000)))
    print(json.dumps(asyncio.run(_as_coroutine(works[name], options))))


async def _as_coroutine(work: Work, options: Options) -> Values:
    return await work(options)
