"""Kills brokers and workers under mixed load, round after round, and compares everything. `make endure` starts it."""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mqcore
from endurance.account import Account
from endurance.limits import Limits
from endurance.load import Load, Part, fence_of
from endurance.place import Place
from endurance.queues import Backlog, DeadLetters, Delays, Expired, Priorities
from endurance.routes import Copies, Forwarded, RoutedInTurn, RoutedToAll, Topics
from endurance.working import GuaranteedJobs, Schedules
from mqcore import journal
from node_client import backlogs

PARTS: tuple[type[Part], ...] = (
    *(Priorities, Delays, DeadLetters, Expired, Backlog),
    *(Topics, RoutedToAll, RoutedInTurn, Copies, Forwarded),
    *(GuaranteedJobs, Schedules, Limits),
)

RATE = 150.0
"""Messages per second of a usual producer. There are about ten of them, and two to four copies of each message."""
CALM_SECONDS = 60.0
"""Longest time until all is delivered after the load has ended. It takes about one second."""
VICTIMS = ("main", "main", "down", "worker", "main and down", "main and worker", "all")


class Run:
    """A mixed load on one place, over any number of kills."""

    def __init__(
        self, directory: Path, seed: int, rate: float | None = RATE, calm_seconds: float = CALM_SECONDS
    ) -> None:
        self._calm = calm_seconds
        self.chance = random.Random(f"{seed} endurance")
        self.place = Place(directory)
        self.load = Load(self.place, self.chance, rate)
        self.parts = [part(self.load) for part in PARTS]
        self.kills: Counter[str] = Counter()

    @property
    def findings(self) -> list[str]:
        """Broken promises so far."""
        return self.load.findings.texts

    # --- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start all processes, create all queues, and let producers and consumers wait for the load."""
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(16))
        await self.place.start()
        async with mqcore.connect(self.place.main_urls["tmqp"]) as main, mqcore.connect(self.place.down_url) as down:
            for part in self.parts:
                await part.declare(main, down)
        for part in self.parts:
            part.start()

    async def finish(self) -> None:
        """Stop all processes in order, and inspect what they leave."""
        await self.load.close()
        await self.place.worker.kill()
        for name, broker in (("down", self.place.down), ("main", self.place.main)):
            code = await broker.stop()
            if code != 0:
                self.load.findings.add(f"the broker {name} ended with code {code} after SIGTERM")
            for line in broker.alarms:
                self.load.findings.add(f"the broker {name} logged: {line.strip()}")
        for directory in self.place.data_dirs:
            verified = await asyncio.to_thread(journal.verify, directory)
            for finding in verified.findings:
                self.load.findings.add(f"mqcore journal verify: {finding}")

    async def close(self) -> None:
        """End everything that still runs."""
        await self.load.close()
        await asyncio.to_thread(self.place.close)

    # --- rounds ----------------------------------------------------------------------------------------------------

    async def round(self, *, last: bool = False) -> None:
        """Load, kills in the middle of it, a little more load, then a comparison of everything."""
        self.load.is_on.set()
        await self.work(self.chance.uniform(0.1, 0.7))
        victims = self.chance.choice(VICTIMS)
        await self.strike(victims)
        await self.work(self.chance.uniform(0.0, 0.4))
        await self.compare(last=last)

    async def work(self, seconds: float) -> None:
        """Let the load work for a random time: the moment of the next kill."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.load.check_tasks()
            await asyncio.sleep(min(left, 0.05))

    async def strike(self, victims: str) -> None:
        """Kill some processes, in any order, and start them again."""
        self.kills[victims] += 1
        main, down, worker = self.place.main, self.place.down, self.place.worker
        whole = {"main", "down", "worker"} if victims == "all" else set(victims.split(" and "))
        steps = [(name, managed) for name, managed in (("main", main), ("down", down), ("worker", worker))]
        chosen = [managed for name, managed in steps if name in whole]
        self.chance.shuffle(chosen)
        for managed in chosen:
            await managed.kill()
            await self.work(self.chance.choice((0.0, 0.0, 0.05, 0.2)))
        again = [broker for broker in (main, down) if broker in chosen and self.chance.random() < 0.25]
        for broker in again:
            self.kills["during the start"] += 1
            await broker.start_and_kill(self.chance.uniform(0.01, 0.4))
        # A worker waits for its broker.
        if main in chosen:
            await main.start(*self._watermark())
        await asyncio.gather(*(managed.start() for managed in (down, worker) if managed in chosen))

    def _watermark(self) -> tuple[str, ...]:
        """Bodies in memory in this life, or most of them on disk."""
        return self.chance.choice(((), ("--memory-watermark", "1000"), ("--memory-watermark", "100000")))

    async def compare(self, *, last: bool = False) -> None:
        """End the load, wait until everything is where it belongs, and check all accounts."""
        await self.load.pause(self._calm)
        for url, broker_accounts in (
            (self.place.down_url, [pair for part in self.parts for pair in part.down_accounts()]),
            (self.place.main_urls["tmqp"], [pair for part in self.parts for pair in part.accounts()]),
        ):
            async with self.load.connect(url) as mq:
                if url == self.place.down_url:
                    await self._all_is_forwarded()
                await self._compare(mq, broker_accounts)
                if url != self.place.down_url:
                    for part in self.parts:
                        await part.finish(mq, last=last, limit=self._calm)

    async def _all_is_forwarded(self) -> None:
        def is_forwarded() -> bool:
            return not any(backlogs(self.place.down.admin_url))

        await self.load.until(is_forwarded, "the main broker confirmed everything of the downstream one", self._calm)

    async def _compare(self, mq: mqcore.Client, accounts: list[tuple[str, Account]]) -> None:
        def nothing_is_missing() -> bool:
            return not any(account.missing() for _, account in accounts)

        # Only the first wait is reported in full: closing an account names its messages.
        await self.load.until(nothing_is_missing, "all confirmed messages are acknowledged", self._calm)
        # Dead-letter queues come last, because messages move there from the others.
        addresses = list(dict.fromkeys(address for address, _ in accounts))
        for address in addresses:
            await self.load.empty(mq, address, self._calm)
        for channel in {fence_of(address) for address in addresses}:
            await mq.publish(channel, b"")
        for account in dict.fromkeys(account for _, account in accounts):
            account.close()

    def summary(self) -> str:
        """The work of the run, in a few lines."""
        confirmed = ", ".join(f"{lane.name} {lane.confirmed}" for lane in self.load.lanes)
        rest = "; ".join(f"{part.name}: {text}" for part in self.parts if (text := part.summary()))
        errors = sum((Counter(lane.errors) for lane in self.load.lanes), Counter[str]())
        kills = ", ".join(f"{victims} {count}" for victims, count in sorted(self.kills.items()))
        return f"kills: {kills}\nconfirmed: {confirmed}\n{rest}\nunconfirmed: {dict(errors)}"


async def run(directory: Path, seed: int, rounds: int, *, report: bool = False) -> Run:
    """Play some rounds and return the run; it ends early with its first finding."""
    running = Run(directory, seed)
    began = time.monotonic()
    try:
        await running.start()
        for number in range(1, rounds + 1):
            await running.round(last=number == rounds)
            if report and (number % 10 == 0 or running.findings):
                print(f"{number} of {rounds} rounds, {time.monotonic() - began:.0f} s", flush=True)
            if running.findings:
                running.load.findings.add(f"this was round {number} of seed {seed}")
                break
        else:
            await running.finish()
    finally:
        await running.close()
    return running


def begin(seed: int | None, directory: Path | None, prefix: str) -> tuple[int, Path]:
    """The seed and the place of the data directories of a program, which are printed."""
    # The program loses connections on purpose.
    logging.getLogger("mqcore").setLevel(logging.CRITICAL)
    seed = random.SystemRandom().getrandbits(32) if seed is None else seed
    directory = directory or Path(tempfile.mkdtemp(prefix=prefix))
    directory.mkdir(parents=True, exist_ok=True)
    print(f"seed {seed}, data in {directory}", flush=True)
    return seed, directory


def main() -> int:
    """Read the arguments, which `make endure` passes."""
    parser = argparse.ArgumentParser(description="Kill brokers and workers under mixed load, and compare everything.")
    parser.add_argument("--rounds", type=int, default=2000, help="number of rounds [default: 2000]")
    parser.add_argument("--seed", type=int, help="random choices [default: random]")
    parser.add_argument("--directory", type=Path, help="place of the data directories [default: a temporary one]")
    given = parser.parse_args()
    seed, directory = begin(given.seed, given.directory, "endurance-")
    running = asyncio.run(run(directory, seed, given.rounds, report=True))
    print(running.summary())
    for finding in running.findings:
        print(f"finding: {finding}")
    print(f"{'failed' if running.findings else 'passed'}: seed {seed}, {sum(running.kills.values())} kills")
    return 1 if running.findings else 0


if __name__ == "__main__":
    sys.exit(main())
