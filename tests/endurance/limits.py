"""Limits that survive: a kill gives back no more of a quota than what was spent in its last moments."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable

import mqcore
from endurance.load import RETRY_SECONDS, Load, Part
from metrics import metric
from mqcore import errors, throttr
from mqcore.throttr import Algorithm, Mode, Rule

BEHIND = 3.0
"""Seconds that the saved state may be behind on a busy machine. The default interval is 0.1 s."""
QUOTA = 4_000_000_000
PERIOD = 2_000_000
"""Seconds until a quota is full again: longer than any run."""


class _Quota:
    """One key that is spent one by one, and what each answer left of it."""

    def __init__(self, key: str, spend: Callable[[], Awaitable[int]], look: Callable[[], Awaitable[int]]) -> None:
        self.key = key
        self._spend = spend
        self._look = look
        self._readings: deque[tuple[float, int]] = deque()
        self._since = 0.0
        """When this life of the broker began, as far as the spender knows."""
        self._base = QUOTA
        """The rest that the broker had restored then."""

    async def spend(self) -> None:
        """Take one, and remember what is left."""
        left = await self._spend()
        now = time.monotonic()
        self._readings.append((now, left))
        # Of the readings that are older than the limit, only the latest matters.
        while len(self._readings) > 1 and self._readings[1][0] < now - 2 * BEHIND:
            self._readings.popleft()

    async def check_restored(self, ended: float, *, is_orderly: bool) -> str | None:
        """Compare the restored rest with the answers before the broker ended; return what is wrong."""
        found = await self._look()
        readings, self._readings = self._readings, deque()
        last = readings[-1][1] if readings else self._base
        saved = [left for at, left in readings if at <= ended - BEHIND]
        most = last if is_orderly else min([self._base, *saved])
        self._base = found
        # One more may have been taken whose answer was lost.
        if not last - 1 <= found <= most:
            return f"{self.key}: {found} left after a restart; {last} were left, and {most} {BEHIND} s before"
        return None


class Limits(Part):
    """A counter, a fixed window and a sliding window that are spent all the time."""

    name = "limits"

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self._lane = load.lane(self.name, share=0.5)
        self._restored = 0

    async def declare(self, main: mqcore.Client, down: mqcore.Client) -> None:
        async with throttr.Client(self.place.throttr_url) as client:
            assert await client.insert("counter", QUOTA, PERIOD)
            quotas = self._quotas(client)
            for quota in quotas:
                await quota.spend()

        def are_saved() -> bool:
            return metric(self.place.main, "mqcore_limiter_saved_total") >= len(quotas)

        await self.load.until(are_saved, "the limits are saved", 30)

    def start(self) -> None:
        self.load.run(self._spend())

    def _quotas(self, client: throttr.Client) -> list[_Quota]:
        windows = [self._window(client, one) for one in (Algorithm.FIXED_WINDOW, Algorithm.SLIDING_WINDOW)]
        return [self._counter(client), *windows]

    async def _spend(self) -> None:
        async with throttr.Client(self.place.throttr_url) as client:
            quotas, seen = self._quotas(client), 0
            async for _ in self.load.batches(self._lane):
                try:
                    if (ends := self.place.main.ends[seen:]) and await self._reached(client):
                        is_orderly = all(end.is_orderly for end in ends)
                        for quota in quotas:
                            if wrong := await quota.check_restored(ends[0].at, is_orderly=is_orderly):
                                self.load.findings.add(wrong)
                        seen += len(ends)
                        self._restored += 1
                    for quota in quotas:
                        await quota.spend()
                    self._lane.confirmed += len(quotas)
                except errors.TransportError as error:
                    self._lane.failed(error)
                    await asyncio.sleep(RETRY_SECONDS)

    async def _reached(self, client: throttr.Client) -> bool:
        """Whether the broker has started again."""
        await self.place.main.is_up.wait()
        await client.whoami()
        return True

    def _counter(self, client: throttr.Client) -> _Quota:
        async def look() -> int:
            found = await client.query("counter")
            return -1 if found is None else found.quota

        async def spend() -> int:
            if not await client.decrease("counter", 1):
                self.load.findings.add("a counter with quota left was not decreased")
            return await look()

        return _Quota("counter", spend, look)

    def _window(self, client: throttr.Client, algorithm: Algorithm) -> _Quota:
        rule = Rule(f"rule:{algorithm}", limit=QUOTA, period=PERIOD, algorithm=algorithm)

        async def spend() -> int:
            return (await client.consume(rule)).remaining

        async def look() -> int:
            return (await client.consume(rule, Mode.PEEK)).remaining

        return _Quota(str(algorithm), spend, look)

    async def finish(self, main: mqcore.Client, *, last: bool, limit: float) -> None:
        """The spender checks each restart before it spends more."""

    def summary(self) -> str:
        return f"restored {self._restored} times"
