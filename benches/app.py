"""How much an app adds to a consume loop, per message.

    maturin develop --release
    python benches/app.py

The broker is a process of its own. Each run drains a queue with acknowledgements, in turns: a loop that consumes, calls
the handler and acknowledges, and apps with the same handler. The figure is the CPU time of the event loop's thread,
which other load of the machine changes little. The second figure is the median of the differences within each turn.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec

import mqcore
import mqcore.sync
from mqcore import App, Delivered, Depends

MESSAGES = 50_000
PREFETCH = 4000
CHUNK_MESSAGES = 2000
QUEUE = "drain/1"


class Order(msgspec.Struct):
    """The body of a message."""

    id: int
    sku: str
    quantity: int


BODY = msgspec.json.encode(Order(7, "A-100", 3))


def stored(url: str) -> None:
    """Store messages in an empty queue."""
    with mqcore.sync.connect(url) as client:
        for _ in range(MESSAGES // CHUNK_MESSAGES):
            client.publish_many(QUEUE, [BODY] * CHUNK_MESSAGES)


class Counter:
    """A handler, and the time that its messages took."""

    def __init__(self) -> None:
        self.count = 0
        self.begin = 0.0
        self.end = 0.0
        self.done = asyncio.Event()

    def add(self) -> None:
        """Count a message; the first and the last one take the time."""
        if self.count == 0:
            self.begin = time.thread_time()
        self.count += 1
        if self.count == MESSAGES:
            self.end = time.thread_time()
            self.done.set()

    @property
    def microseconds(self) -> float:
        """CPU time per message."""
        return (self.end - self.begin) / (MESSAGES - 1) * 1e6


async def loop(url: str, wanted: Any) -> float:
    """Consume, call and acknowledge without an app."""
    counter = Counter()

    async def handler(_body: Any) -> None:
        counter.add()

    async with mqcore.connect(url) as client:
        async for message in client.queue(QUEUE).consume(wanted, prefetch=PREFETCH):
            await handler(message.body)
            await message.ack()
            if counter.done.is_set():
                break
    return counter.microseconds


async def plain(app: App, counter: Counter, **options: Any) -> None:
    """Declare a handler of bytes."""

    @app.subscriber(QUEUE, prefetch=PREFETCH, **options)
    async def handler(_body: bytes) -> None:
        counter.add()


async def typed(app: App, counter: Counter, **options: Any) -> None:
    """Declare a handler of a decoded body."""

    @app.subscriber(QUEUE, prefetch=PREFETCH, **options)
    async def handler(_order: Order) -> None:
        counter.add()


async def surrounded(app: App, counter: Counter, **options: Any) -> None:
    """Declare a handler with a middleware."""

    @app.middleware
    async def around(message: Any, call_next: Any) -> Any:
        return await call_next(message)

    await typed(app, counter, **options)


def rates() -> dict[str, float]:
    """Return a value."""
    return {}


async def injected(app: App, counter: Counter, **options: Any) -> None:
    """Declare a handler with a message and a dependency."""

    @app.subscriber(QUEUE, prefetch=PREFETCH, **options)
    async def handler(
        _order: Order, _message: Delivered[Order], _rates: Annotated[dict[str, float], Depends(rates)]
    ) -> None:
        counter.add()


Declare = Callable[..., Awaitable[None]]


async def run(url: str, declare: Declare, **options: Any) -> float:
    """Drain the queue with an app."""
    counter = Counter()
    app = App(url)
    await declare(app, counter, **options)
    async with app:
        await counter.done.wait()
    return counter.microseconds


def serve() -> tuple[subprocess.Popen[str], str]:
    """Start a broker with the queue."""
    command = [sys.executable, "-m", "mqcore", "serve", "--listen", "tmqp://127.0.0.1:0"]
    broker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert broker.stdout is not None
    url = f"tmqp://{json.loads(broker.stdout.readline())['listeners']['tmqp']}"
    with mqcore.sync.connect(url) as client:
        client.declare("drain", 1, mqcore.QueueOptions(status="roundrobin", request_acknowledge=True))
    return broker, url


def main() -> None:
    """Measure in turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7, help="turns of which the median is printed (default 7)")
    options = parser.parse_args()
    broker, url = serve()
    rows: dict[str, tuple[str, Callable[[], Awaitable[float]]]] = {
        "loop, bytes": ("", lambda: loop(url, bytes)),
        "app, bytes": ("loop, bytes", lambda: run(url, plain)),
        "loop, decoded body": ("", lambda: loop(url, Order)),
        "app, decoded body": ("loop, decoded body", lambda: run(url, typed)),
        "app, concurrency 8": ("loop, decoded body", lambda: run(url, typed, concurrency=8)),
        "app, one middleware": ("loop, decoded body", lambda: run(url, surrounded)),
        "app, message and dependency": ("loop, decoded body", lambda: run(url, injected)),
    }
    results: dict[str, list[float]] = {name: [] for name in rows}
    try:
        for _ in range(options.runs):
            for name, (_, work) in rows.items():
                stored(url)
                results[name].append(float(asyncio.run(work())))  # type: ignore[arg-type]
    finally:
        broker.terminate()
        broker.wait()
    print(
        f"{MESSAGES:,} messages of {len(BODY)} bytes, us of CPU time per message: median; what the app adds to the loop"
    )
    for name, (base, _) in rows.items():
        line = f"  {name:30} {statistics.median(results[name]):6.2f}"
        if base:
            added = [mine - other for mine, other in zip(results[name], results[base], strict=True)]
            line += f"   +{statistics.median(added):.2f}  ({min(added):+.2f}..{max(added):+.2f})"
        print(line)


if __name__ == "__main__":
    main()
