"""Publishes a thousand messages a second and measures how long each takes: `python -m endurance.probe URL`.

It runs in a process of its own, so that the load does not delay it. Its loop is open: each message has a due time, and
its latency begins there, however late the probe or the broker is. Each second it writes a line of JSON to standard
output. When its standard input ends, it waits for outstanding answers and deliveries, and writes a last line.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import sys
import time
from collections import Counter
from collections.abc import Iterable

import mqcore
from mqcore import QueueOptions, QueueStatus, errors

QUEUE = "probe/1"
RATE = 1000
"""Messages per second."""
STEP = 1.04
"""Each bucket of a histogram ends at so many times the latency of the one before."""
REST_SECONDS = 30.0
"""Longest wait for what is outstanding in the end."""

SECONDS_OF_BUCKET_0 = 1e-5


def bucket(latency: float) -> int:
    """The bucket of a latency in seconds."""
    return max(0, math.ceil(math.log(max(latency, SECONDS_OF_BUCKET_0) / SECONDS_OF_BUCKET_0, STEP)))


def percentile(histogram: Counter[int], share: float) -> float:
    """The latency in seconds that this share of a histogram does not exceed; 0 if it is empty."""
    left = share * histogram.total()
    for at in sorted(histogram):
        left -= histogram[at]
        if left <= 0:
            return SECONDS_OF_BUCKET_0 * STEP**at
    return 0.0


class Probe:
    """Times of all messages, by the second in which they were due."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._confirms: dict[int, Counter[int]] = {}
        self._deliveries: dict[int, Counter[int]] = {}
        self._own: dict[int, Counter[int]] = {}
        """How late the probe itself was."""
        self._undelivered: dict[int, float] = {}
        """Due times of confirmed messages that were not delivered yet."""
        self._early: set[int] = set()
        """Messages that were delivered before their confirmation arrived."""
        self._due: dict[int, float] = {}
        self._confirmed = self._failed = 0
        self._sends: set[asyncio.Task[None]] = set()

    def _connect(self) -> mqcore.Client:
        return mqcore.connect(self._url, backoff_first="10ms", backoff_max="100ms", reconnect_attempts=None)

    async def run(self) -> None:
        """Measure until standard input ends."""
        ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        async with self._connect() as producer, self._connect() as consumer:
            saving = QueueOptions(
                status=QueueStatus.ROUND_ROBIN, request_acknowledge=True, delivery_handler="at-least-once"
            )
            await producer.declare("probe", 1, saving)
            tasks = [asyncio.create_task(self._consume(consumer)), asyncio.create_task(self._report())]
            await self._produce(producer, ended)
            await self._rest()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._write(math.inf)
        last = {"confirmed": self._confirmed, "failed": self._failed, "missing": len(self._undelivered)}
        print(json.dumps({"total": last}), flush=True)

    async def _produce(self, mq: mqcore.Client, ended: asyncio.Task[str]) -> None:
        began, number = time.monotonic(), 0
        while not ended.done():
            now = time.monotonic()
            due = int((now - began) * RATE) + 1
            if due > number:
                numbers = range(number, due)
                for one in numbers:
                    self._due[one] = began + one / RATE
                    self._add(self._own, self._due[one], now)
                send = asyncio.create_task(self._send(mq, numbers))
                self._sends.add(send)
                send.add_done_callback(self._sends.discard)
                number = due
            await asyncio.sleep(max(0.0, began + number / RATE - time.monotonic()))

    async def _send(self, mq: mqcore.Client, numbers: Iterable[int]) -> None:
        outcomes = await mq.publish_many(QUEUE, [str(number) for number in numbers], return_exceptions=True)
        now = time.monotonic()
        for number, outcome in zip(numbers, outcomes, strict=True):
            due = self._due[number]
            if isinstance(outcome, BaseException):
                # The broker may have it. Another delivery of it is measured.
                self._failed += 1
                continue
            self._confirmed += 1
            self._add(self._confirms, due, now)
            if number in self._early:
                self._early.discard(number)
                del self._due[number]
            else:
                self._undelivered[number] = due

    async def _consume(self, mq: mqcore.Client) -> None:
        async for batch in mq.queue(QUEUE).consume(str, prefetch=5000).batches(max=1000):
            now = time.monotonic()
            for body in batch.bodies:
                number = int(body)
                if (due := self._due.get(number)) is None or number in self._early:
                    continue  # delivered again after a restart
                self._add(self._deliveries, due, now)
                if self._undelivered.pop(number, None) is None:
                    self._early.add(number)
                else:
                    del self._due[number]
            await batch.ack()

    async def _rest(self) -> None:
        deadline = time.monotonic() + REST_SECONDS
        while (self._sends or self._undelivered) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            # Answers for older seconds come late only if the broker was away.
            self._write(time.monotonic() - 5.0)

    def _write(self, before: float) -> None:
        """Write all seconds that are over."""
        for second in sorted(second for second in self._own if second + 1 < before):
            line: dict[str, object] = {"second": second}
            for name, found in (("confirm", self._confirms), ("deliver", self._deliveries), ("own", self._own)):
                line[name] = dict(sorted(found.pop(second, Counter[int]()).items()))
            print(json.dumps(line), flush=True)

    @staticmethod
    def _add(found: dict[int, Counter[int]], due: float, now: float) -> None:
        found.setdefault(int(due), Counter())[bucket(now - due)] += 1


if __name__ == "__main__":
    logging.getLogger("mqcore").setLevel(logging.CRITICAL)  # connections are lost on purpose
    with contextlib.suppress(errors.MqcoreError, KeyboardInterrupt):
        asyncio.run(Probe(sys.argv[1]).run())
