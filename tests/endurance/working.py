"""Jobs with a worker, and schedules: each accepted job has a result, and each due time has one run."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import Counter
from typing import ClassVar

import mqcore
from endurance.account import Account
from endurance.load import RETRY_SECONDS, SHARED, Consumer, Label, Load, Part
from job_kills import RESULTS, Sender
from job_processes import lines_of
from mqcore import admin, errors
from mqcore.client import Delivered
from mqcore.jobs import Jobs

_REJECTED_RESULT = re.compile(r"request=(job-\d+),.*the result was not kept")
"""The part of a log line that names a job whose result its queue rejected."""


class GuaranteedJobs(Part):
    """Guaranteed jobs with a result queue: each accepted job runs and has its result, once if nothing was killed."""

    name = "jobs"

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        # The broker and the worker write results, so this lane has no account: a job may run twice.
        self._lane = load.lane(self.name, share=0.2)
        self._file = self.place.directory / "jobs-done"
        self._sender = Sender(self.place.frontend, self._file)
        self._results: Counter[str] = Counter()
        self._reported: set[str] = set()
        """Jobs whose results were rejected, as the log says."""

    async def declare(self, main: mqcore.Client, down: mqcore.Client) -> None:
        await self.load.declare(main, f"{RESULTS}/0", SHARED)

    def start(self) -> None:
        self.load.run(self._produce(), self._take_results())

    async def _take_results(self) -> None:
        while True:
            with contextlib.suppress(errors.TransportError):
                async with self.load.connect(self.place.main_urls["tmqp"]) as mq:
                    async for message in mq.queue(f"{RESULTS}/0").consume(bytes):
                        self._results[message.id] += 1
                        await message.ack()
            await asyncio.sleep(RETRY_SECONDS)

    async def _produce(self) -> None:
        async for numbers in self.load.batches(self._lane):
            names = [f"job-{number}" for number in numbers]
            await asyncio.to_thread(self._sender.send_all, names)
            taken = sum(name in self._sender.taken for name in names)
            self._lane.confirmed += taken
            if taken < len(names):
                await asyncio.sleep(RETRY_SECONDS)

    async def finish(self, main: mqcore.Client, *, last: bool, limit: float) -> None:
        def all_have_results() -> bool:
            return self._sender.taken <= self._results.keys() | self._reported

        self._reported |= self._results_reported_as_lost()
        if not await self.load.until(all_have_results, "each accepted job has its result", limit):
            missing = self._sender.taken - self._results.keys() - self._reported
            self.load.findings.add(f"{len(missing)} accepted jobs have no result: {sorted(missing)[:20]}")
        await self.load.empty(main, f"{RESULTS}/0", limit)
        if last:
            ran = Counter(await asyncio.to_thread(lines_of, self._file))
            if lost := self._results.keys() - ran.keys():
                self.load.findings.add(f"jobs have a result and did not run: {sorted(lost)[:20]}")
            kills = self.place.main.interruptions.count + self.place.worker.kills
            repeated = sum(count - 1 for count in ran.values())
            if kills == 0 and repeated:
                self.load.findings.add(f"{repeated} jobs ran twice, although nothing was killed")
            # Each run makes a result; one that was in flight when the broker was killed is delivered again.
            many = {name: count for name, count in self._results.items() if count > ran[name] + kills}
            if many:
                self.load.findings.add(f"jobs have more results than runs: {many}")

    def _results_reported_as_lost(self) -> set[str]:
        """Jobs whose results the queue rejected, which the log reports, if the disk was full on purpose."""
        if not self.place.main.expected:
            return set()
        return {found[1] for line in self.place.main.lines if (found := _REJECTED_RESULT.search(line))}

    def summary(self) -> str:
        repeated = sum(count - 1 for count in self._results.values())
        rejected = f", {len(self._reported)} results rejected and reported" if self._reported else ""
        return f"{len(self._sender.taken)} jobs, {repeated} results too many{rejected}"


class Schedules(Part):
    """An interval and a cron schedule that catch up: their runs are numbered without gaps, each due time has one."""

    name = "schedules"
    QUEUE = "ticks/0"
    INTERVALS: ClassVar = {"interval": 50, "cron": 1000}
    """Milliseconds between two runs."""

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self.ids: dict[str, str] = {}
        """The name of each schedule by its id."""
        self.runs = {name: load.account(f"schedule {name}", is_ordered=True) for name in self.INTERVALS}
        self.first_due: dict[str, int] = {}
        self.latest: dict[str, int] = {}
        """The highest number of a run so far."""

    async def declare(self, main: mqcore.Client, down: mqcore.Client) -> None:
        await self.load.declare(main, self.QUEUE, SHARED)
        jobs = Jobs(self.place.jobs_url)

        @jobs.task(queue="ticks", name="endurance.tick", guarantee=False, result=False)
        def tick(name: str) -> None:
            """Only consumers of the queue see its runs."""

        planned = {
            "interval": jobs.every(self.INTERVALS["interval"] / 1000, tick.bind("interval"), catch_up="all"),
            "cron": jobs.cron("* * * * * *", tick.bind("cron"), catch_up="all"),
        }
        jobs.send_schedules()
        await asyncio.to_thread(jobs.close)
        assert len(planned) == len(self.INTERVALS)
        await self.load.until(lambda: len(self._listed()) == len(planned), "the schedules are stored", 30)
        self.ids = {found.id: "interval" if found.cron is None else "cron" for found in self._listed()}

    def _listed(self) -> tuple[admin.ScheduleInfo, ...]:
        return admin.schedules(self.place.main.admin_url).schedules

    def start(self) -> None:
        self.load.run(_Ticks(self.load, self).run())

    async def finish(self, main: mqcore.Client, *, last: bool, limit: float) -> None:
        listed = {found.id for found in await asyncio.to_thread(self._listed)}
        if listed != self.ids.keys():
            self.load.findings.add(f"the broker has the schedules {listed}, not {set(self.ids)}")
        for name, interval in self.INTERVALS.items():
            # The last due time may still be on its way; more may be missing only while the broker is late.
            now = time.time() * 1000

            def is_current(name: str = name, interval: int = interval, now: float = now) -> bool:
                due = self.first_due.get(name, now) + self.latest.get(name, 0) * interval
                return due + interval >= now

            await self.load.until(is_current, f"the schedule {name} has made its runs", limit)
        for name, account in self.runs.items():
            if absent := account.missing():
                await self.load.until(
                    lambda account=account: not account.missing(),
                    f"all runs of the schedule {name} came: {absent[:20]} did not",
                    limit,
                )

    def summary(self) -> str:
        return f"{self.latest} runs"


class _Ticks(Consumer):
    """Reads the headers of runs instead of their bodies."""

    def __init__(self, load: Load, part: Schedules) -> None:
        super().__init__(load, load.place.main_urls["tmqp"], part.QUEUE)
        self._part = part

    def label(self, message: Delivered[str]) -> Label:
        words = dict(word.partition(":")[::2] for word in message.headers["EventMQ-Headers"].split(","))
        name, number, due = self._part.ids[words["schedule"]], int(words["fence"]), int(words["due"])
        part, interval = self._part, self._part.INTERVALS[self._part.ids[words["schedule"]]]
        first = part.first_due.setdefault(name, due - (number - 1) * interval)
        if due != first + (number - 1) * interval:
            self.load.findings.add(f"run {number} of the schedule {name} is due {due - first} ms after the first one")
        for missing in range(part.latest.get(name, 0) + 1, number + 1):
            # It was made at an unknown time, perhaps right before a kill.
            part.runs[name].sent(missing, epoch=max(self.load.place.main.interruptions.count - 1, 0))
            part.runs[name].confirm(missing)
        part.latest[name] = max(number, part.latest.get(name, 0))
        return Label(name, number)

    def account(self, label: Label, message: Delivered[str]) -> Account | None:
        return self._part.runs[label.lane]
