"""Tasks that workers of the tests run: they leave traces in files, because that is what a test can see from outside."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import time
from pathlib import Path

from mqcore.errors import JobCancelled
from mqcore.jobs import Backoff, Jobs, SoftTimeLimit, current

jobs = Jobs()


class OutOfStock(Exception):
    """Declared by the task that raises it."""


@dataclasses.dataclass
class Order:
    """An argument that is more than JSON."""

    sku: str
    count: int


def note(path: str, text: str) -> None:
    """Append a line at once, whole: other processes do the same."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, f"{text}\n".encode())
    finally:
        os.close(descriptor)


@jobs.task
def write(path: str, text: str) -> int:
    note(path, text)
    return len(text)


@jobs.task
def write_process(path: str, text: str) -> None:
    note(path, f"{text} {os.getpid()}")


@jobs.task
def write_result(result: str, path: str) -> str:
    note(path, result)
    return result


@jobs.task
def add(left: int, right: int = 1) -> int:
    return left + right


@jobs.task
def add_up(numbers: list[int], start: int = 0) -> int:
    return sum(numbers, start)


@jobs.task
async def add_async(left: int, right: int = 1) -> int:
    await asyncio.sleep(0)
    return left + right


@jobs.task(name="shop.total")
def total(orders: list[Order]) -> Order:
    assert all(isinstance(order, Order) for order in orders)
    return Order("all", sum(order.count for order in orders))


@jobs.task(raises=(OutOfStock,))
def fail(kind: str, text: str) -> None:
    raise {"declared": OutOfStock, "value": ValueError}[kind](text)


@jobs.task(retries=2, backoff=Backoff("50ms", max="100ms"))
def fail_twice(path: str) -> int:
    attempt = current().attempt
    note(path, f"attempt {attempt}")
    if attempt < 3:
        raise ValueError(f"attempt {attempt}")
    return attempt


@jobs.task(retries=2, backoff=Backoff("800ms", factor=1, jitter=0))
def fail_and_tell_the_time(path: str) -> None:
    note(path, f"{time.monotonic()}")
    raise ValueError("again")


@jobs.task(retries=8, backoff=Backoff("10ms", factor=1, jitter=0))
def fail_eight_times() -> int:
    attempt = current().attempt
    if attempt < 9:
        raise ValueError(f"attempt {attempt}")
    return attempt


@jobs.task
def wait_for(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.01)


@jobs.task
def hold(path: str, gate: str) -> str:
    note(path, f"begin {os.getpid()}")
    while not Path(gate).exists():
        time.sleep(0.01)
    note(path, "end")
    return "released"


@jobs.task
def hold_with_cleanup(path: str, gate: str) -> str:
    note(path, f"begin {os.getpid()}")
    try:
        while not Path(gate).exists():
            time.sleep(0.01)
    except JobCancelled:
        note(path, "cleaned up")
        raise
    return "released"


@jobs.task
async def hold_async(path: str, gate: str) -> str:
    note(path, f"begin {os.getpid()}")
    try:
        while not os.path.exists(gate):  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        note(path, "cleaned up")
        raise
    return "released"


@jobs.task
def hold_stubbornly(path: str, gate: str) -> str:
    note(path, f"begin {os.getpid()}")
    while not Path(gate).exists():
        try:
            time.sleep(0.01)
        except JobCancelled:
            note(path, "asked to end")
    return "released"


@jobs.task
def sleep(path: str, seconds: float) -> str:
    note(path, f"begin {os.getpid()}")
    time.sleep(seconds)
    note(path, "end")
    return "slept"


@jobs.task
async def block_the_loop(path: str, seconds: float) -> str:
    note(path, f"begin {os.getpid()}")
    time.sleep(seconds)  # noqa: ASYNC251
    return "slept"


@jobs.task
async def sleep_in_thread(path: str, seconds: float) -> str:
    note(path, f"begin {os.getpid()}")
    await asyncio.to_thread(time.sleep, seconds)
    return "slept"


@jobs.task
def work(path: str, name: str, seconds: float) -> None:
    note(path, f"begin {name}")
    time.sleep(seconds)
    note(path, f"end {name}")


@jobs.task(soft_timeout="200ms")
def sleep_softly(path: str, seconds: float) -> str:
    try:
        time.sleep(seconds)
    except SoftTimeLimit:
        note(path, "asked to end")
        return "ended in order"
    return "slept"


@jobs.task(soft_timeout="200ms")
async def sleep_softly_async(path: str, seconds: float) -> str:
    try:
        await asyncio.sleep(seconds)
    finally:
        note(path, "cleaned up")
    return "slept"


@jobs.task(timeout="300ms")
def sleep_too_long(path: str, seconds: float) -> str:
    note(path, f"begin {os.getpid()}")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.01)
    note(path, "end")
    return "slept"


@jobs.task(timeout="300ms")
async def sleep_too_long_async(path: str, seconds: float) -> str:
    note(path, "begin")
    await asyncio.sleep(seconds)
    note(path, "end")
    return "slept"


@jobs.task(retries=2, backoff=Backoff("10ms"))
def die_then_fail(path: str) -> int:
    attempt = current().attempt
    note(path, f"attempt {attempt}")
    if attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if attempt == 2:
        raise ValueError("so be it")
    return attempt


@jobs.task
def die_once(path: str) -> str:
    if not Path(path).exists():
        note(path, "died")
        os.kill(os.getpid(), signal.SIGKILL)
    return "lived"


@jobs.task
def die(path: str) -> None:
    note(path, "died")
    os.kill(os.getpid(), signal.SIGKILL)


@jobs.task
def tell_progress(path: str) -> None:
    current().progress(0.5, "half of it")
    while not Path(path).exists():
        time.sleep(0.01)


@jobs.task
def tell_progress_again(path: str) -> None:
    step = 0
    while not Path(path).exists():
        step += 1
        current().progress(step / (step + 1), f"step {step}")
        time.sleep(0.05)


@jobs.task
def nothing() -> None:
    return


@jobs.task
def who() -> int:
    return os.getpid()
