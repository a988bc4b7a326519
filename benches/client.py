"""How fast Python programs publish and consume: with and without confirmation, with asyncio and blocking.

    maturin develop --release
    pip install nats-py                  # and a nats-server: both optional, for a comparison
    python benches/client.py

The broker is a process of its own, and keeps only the last message of the queue to which the rows publish. The rows
that consume drain a queue, and acknowledge each message. A raw socket that writes a message
and reads its confirmation is the baseline of messages that are confirmed one at a time. All rows are taken in turn, so
that whatever else the machine does meets each of them.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from loops import BODY_BYTES, QUEUE, Address

import mqcore
import mqcore.sync

BODY = b"x" * BODY_BYTES
AT_ONCE = 1000
CHUNK_MESSAGES = 2000
"""Messages between two looks at the clock."""

DRAINED = 200_000
"""Messages that each of the consuming rows takes."""
PREFETCH = 4000

PER_SECOND, MICROSECONDS = "messages/s", "us"


def raw_round_trip(port: int, seconds: float) -> float:
    """Microseconds until a message of a raw socket is confirmed, one at a time."""
    head = bytes((QUEUE, 0x40 | 16, 4, 0, len(b"bench"))) + struct.pack("<H", 1) + bytes((BODY_BYTES,))
    message = head + b"0001" + b"bench" + BODY
    with Address(port).client() as stream:
        stream.settimeout(0.2)
        try:
            while stream.recv(4096):
                pass
        except TimeoutError:
            stream.settimeout(10)
        times = []
        end = time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            stream.sendall(message)
            stream.recv(4096)
            times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


async def unconfirmed(port: int, seconds: float) -> float:
    """Messages a second of a loop that awaits `publish` without confirmation, until all are written."""
    async with mqcore.connect(f"tmqp://127.0.0.1:{port}") as client:
        await client.publish("bench/1", BODY)
        count, start = 0, time.perf_counter()
        while time.perf_counter() < start + seconds:
            for _ in range(CHUNK_MESSAGES):
                await client.publish("bench/1", BODY, confirm=False)
            count += CHUNK_MESSAGES
        await client.publish("bench/1", BODY)
        return count / (time.perf_counter() - start)


async def confirmed(port: int, seconds: float) -> float:
    """Microseconds until a message is confirmed, one at a time."""
    async with mqcore.connect(f"tmqp://127.0.0.1:{port}") as client:
        await client.publish("bench/1", BODY)
        times = []
        end = time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            await client.publish("bench/1", BODY)
            times.append(time.perf_counter() - start)
        return statistics.median(times) * 1e6


async def gathered(port: int, seconds: float) -> float:
    """Confirmed messages a second, many at once by `gather`."""
    async with mqcore.connect(f"tmqp://127.0.0.1:{port}") as client:
        count, start = 0, time.perf_counter()
        while time.perf_counter() < start + seconds:
            await asyncio.gather(*(client.publish("bench/1", BODY) for _ in range(AT_ONCE)))
            count += AT_ONCE
        return count / (time.perf_counter() - start)


async def grouped(port: int, seconds: float) -> float:
    """Confirmed messages a second, many at once in a `TaskGroup`."""
    async with mqcore.connect(f"tmqp://127.0.0.1:{port}") as client:
        count, start = 0, time.perf_counter()
        while time.perf_counter() < start + seconds:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(AT_ONCE):
                    tasks.create_task(client.publish("bench/1", BODY))
            count += AT_ONCE
        return count / (time.perf_counter() - start)


async def gathered_futures(_: int, seconds: float) -> float:
    """The same work of asyncio alone: coroutines that wait for futures whose results one callback sets."""
    loop = asyncio.get_running_loop()
    futures: list[asyncio.Future[float]] = []

    async def publish() -> float:
        future: asyncio.Future[float] = loop.create_future()
        futures.append(future)
        return await future

    def confirm() -> None:
        for future in futures:
            future.set_result(0.0)
        futures.clear()

    count, start = 0, time.perf_counter()
    while time.perf_counter() < start + seconds:
        calls = asyncio.gather(*(publish() for _ in range(AT_ONCE)))
        await asyncio.sleep(0)
        loop.call_soon(confirm)
        await calls
        count += AT_ONCE
    return count / (time.perf_counter() - start)


def blocking_unconfirmed(port: int, seconds: float) -> float:
    """Messages a second of the blocking client without confirmation, until all are written."""
    with mqcore.sync.connect(f"tmqp://127.0.0.1:{port}") as client:
        client.publish("bench/1", BODY)
        count, start = 0, time.perf_counter()
        while time.perf_counter() < start + seconds:
            for _ in range(CHUNK_MESSAGES):
                client.publish("bench/1", BODY, confirm=False)
            count += CHUNK_MESSAGES
        client.publish("bench/1", BODY)
        return count / (time.perf_counter() - start)


def blocking_confirmed(port: int, seconds: float) -> float:
    """Microseconds until a message of the blocking client is confirmed, one at a time."""
    with mqcore.sync.connect(f"tmqp://127.0.0.1:{port}") as client:
        client.publish("bench/1", BODY)
        times = []
        end = time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            client.publish("bench/1", BODY)
            times.append(time.perf_counter() - start)
        return statistics.median(times) * 1e6


def stored(port: int) -> None:
    """Store messages in an empty queue with acknowledgements."""
    with mqcore.sync.connect(f"tmqp://127.0.0.1:{port}") as client:
        client.declare("drain", 1, mqcore.QueueOptions(status="push", request_acknowledge=True))
        for _ in range(DRAINED // CHUNK_MESSAGES):
            client.publish_many("drain/1", [BODY] * CHUNK_MESSAGES)


async def consumed(port: int, _: float) -> float:
    """Messages a second that an `async for` loop takes and acknowledges one by one."""
    stored(port)
    async with mqcore.connect(f"tmqp://127.0.0.1:{port}") as client:
        start, count = time.perf_counter(), 0
        async for message in client.queue("drain/1").consume(prefetch=PREFETCH):
            await message.ack()
            count += 1
            if count == DRAINED:
                break
        return count / (time.perf_counter() - start)


async def consumed_in_batches(port: int, _: float) -> float:
    """Messages a second of batches, each acknowledged by one call."""
    stored(port)
    async with mqcore.connect(f"tmqp://127.0.0.1:{port}") as client:
        start, count = time.perf_counter(), 0
        async for batch in client.queue("drain/1").consume(prefetch=PREFETCH).batches(max=1000, wait="5ms"):
            count += len(batch.bodies)
            await batch.ack()
            if count == DRAINED:
                break
        return count / (time.perf_counter() - start)


def blocking_consumed(port: int, _: float) -> float:
    """Messages a second that a `for` loop of the blocking client takes and acknowledges one by one."""
    stored(port)
    with mqcore.sync.connect(f"tmqp://127.0.0.1:{port}") as client:
        start, count = time.perf_counter(), 0
        for message in client.queue("drain/1").consume(prefetch=PREFETCH):
            message.ack()
            count += 1
            if count == DRAINED:
                break
        return count / (time.perf_counter() - start)


async def nats_unconfirmed(port: int, seconds: float) -> float:
    """Messages a second of a loop that awaits `publish` of nats-py, until all are written."""
    nats: Any = importlib.import_module("nats")
    client = await nats.connect(f"nats://127.0.0.1:{port}")
    count, start = 0, time.perf_counter()
    while time.perf_counter() < start + seconds:
        for _ in range(CHUNK_MESSAGES):
            await client.publish("bench", BODY)
        count += CHUNK_MESSAGES
    await client.flush(timeout=60)
    rate = count / (time.perf_counter() - start)
    await client.close()
    return rate


def asynchronously(work: Callable[[int, float], Any]) -> Callable[[int, float], float]:
    """Run a coroutine function on an event loop of its own."""
    return lambda port, seconds: float(asyncio.run(work(port, seconds)))


def serve() -> tuple[subprocess.Popen[str], int]:
    """Start a broker, with the queue `bench/1`."""
    command = [sys.executable, "-m", "mqcore", "serve", "--listen", "tmqp://127.0.0.1:0"]
    broker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert broker.stdout is not None
    port = int(json.loads(broker.stdout.readline())["listeners"]["tmqp"].rpartition(":")[2])
    with mqcore.sync.connect(f"tmqp://127.0.0.1:{port}") as client:
        client.declare("bench", 1, mqcore.QueueOptions(status="cache"))
    return broker, port


def serve_nats() -> tuple[subprocess.Popen[bytes], int] | None:
    """Start a NATS server, if one and its client are installed."""
    program = shutil.which("nats-server")
    if program is None or importlib.util.find_spec("nats") is None:
        return None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    server = subprocess.Popen([program, "--addr", "127.0.0.1", "--port", str(port)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return server, port


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each run lasts (default 2)")
    parser.add_argument("--runs", type=int, default=5, help="runs of which the median is printed (default 5)")
    options = parser.parse_args()
    broker, port = serve()
    nats = serve_nats()
    rows: dict[str, tuple[str, int, Callable[[int, float], float]]] = {
        "await publish(confirm=False)": (PER_SECOND, port, asynchronously(unconfirmed)),
        "the same, sync": (PER_SECOND, port, blocking_unconfirmed),
        "raw socket, confirmed": (MICROSECONDS, port, raw_round_trip),
        "await publish()": (MICROSECONDS, port, asynchronously(confirmed)),
        "publish(), sync": (MICROSECONDS, port, blocking_confirmed),
        "asyncio alone, 1,000 by gather": (PER_SECOND, port, asynchronously(gathered_futures)),
        "publish(), 1,000 by gather": (PER_SECOND, port, asynchronously(gathered)),
        "publish(), 1,000 in a TaskGroup": (PER_SECOND, port, asynchronously(grouped)),
        "async for, ack()": (PER_SECOND, port, asynchronously(consumed)),
        "for, ack(), sync": (PER_SECOND, port, blocking_consumed),
        "batches(), one ack()": (PER_SECOND, port, asynchronously(consumed_in_batches)),
    }
    if nats is not None:
        rows["nats-py, await publish()"] = (PER_SECOND, nats[1], asynchronously(nats_unconfirmed))
    results: dict[str, list[float]] = {name: [] for name in rows}
    try:
        for _ in range(options.runs):
            for name, (_, address, work) in rows.items():
                results[name].append(work(address, options.seconds))
    finally:
        broker.terminate()
        broker.wait()
        if nats is not None:
            nats[0].terminate()
            nats[0].wait()
    print(f"messages of {BODY_BYTES} bytes: median, smallest..largest")
    for name, (unit, _, _) in rows.items():
        values = results[name]
        spread = f"{min(values):,.1f}..{max(values):,.1f}"
        print(f"  {name:32} {statistics.median(values):14,.1f} {unit:11} {spread}")


if __name__ == "__main__":
    main()
