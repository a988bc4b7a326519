"""Hours of mixed load at half capacity, with restarts: `make soak` starts it.

It first measures how much of the mixed load the brokers and these clients manage together on this machine. Then every
producer has half of its measured rate. Each restart happens under load, in turn by SIGKILL and by SIGTERM; afterwards
the load pauses until every message is where it belongs. A probe measures latency all the time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import mqcore
from endurance.place import ManagedBroker
from endurance.probe import percentile
from endurance.rounds import Run, begin
from endurance.verdict import Check, Measurements, judge, sample
from served import ROOT, clean_environment

SAMPLE_SECONDS = 1.0
PROGRESS_SECONDS = 10.0
RATE_MIN = 1.0
"""Messages per second of a producer whose part had no capacity left."""


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """How long and how much."""

    seconds: float = 7200.0
    restart_seconds: float = 600.0
    """Time between two restarts."""
    measure_seconds: float = 30.0
    """Time in which the capacity is measured."""
    share: float = 0.5
    """Of the capacity."""


class Soak:
    """One soak: a run, a probe, and what was measured."""

    def __init__(self, directory: Path, seed: int, settings: Settings) -> None:
        self.settings = settings
        self.run = Run(directory, seed, rate=None)
        self.measured = Measurements(findings=self.run.findings)
        self.capacity = 0.0
        self.rate = 0.0
        """Confirmed messages per second, over the whole soak."""
        self.restarts: list[dict[str, Any]] = []
        self._probe: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._began = 0.0

    def _confirmed(self) -> int:
        return sum(lane.confirmed for lane in self.run.load.lanes)

    async def measure(self) -> None:
        """Find the capacity beside a probe, and give each producer its share."""
        await self._start_probe()
        load = self.run.load
        load.is_on.set()
        before = {lane.name: lane.confirmed for lane in load.lanes}
        began = time.monotonic()
        await self.run.work(self.settings.measure_seconds)
        seconds = time.monotonic() - began
        rates = {lane.name: (lane.confirmed - before[lane.name]) / seconds for lane in load.lanes}
        self.capacity = sum(rates.values())
        await self.run.compare()
        for lane in load.lanes:
            lane.rate = max(RATE_MIN, rates[lane.name] * self.settings.share)

    async def play(self) -> None:
        """Run the load for the whole time, with restarts."""
        self._began = self.measured.began = began = time.monotonic()
        before = self._confirmed()
        sampler = asyncio.create_task(self._sample())
        try:
            self.run.load.is_on.set()
            while (left := began + self.settings.seconds - time.monotonic()) > 0 and not self.measured.findings:
                await self.run.work(min(left, self.settings.restart_seconds))
                if left > self.settings.restart_seconds:
                    await self._restart()
            self.rate = (self._confirmed() - before) / (time.monotonic() - began)
            await self._end_probe()
            await self.run.compare(last=True)
        finally:
            sampler.cancel()
            await asyncio.gather(sampler, return_exceptions=True)

    async def _restart(self) -> None:
        """End the main broker under load, every second time the downstream one and the worker too, and compare."""
        place, number = self.run.place, len(self.restarts)
        is_kill = number % 2 == 0
        brokers = [place.main] if number % 4 < 2 else [place.down, place.main]
        for broker in brokers:
            if is_kill:
                await broker.kill()
            elif (code := await broker.stop()) != 0:
                self.run.load.findings.add(f"a broker ended with code {code} after SIGTERM")
        await asyncio.gather(*(broker.start() for broker in brokers))
        if len(brokers) > 1:
            await place.worker.kill()
            await place.worker.start()
        begin, end = place.main.outages[-1]
        how = f"{'SIGKILL' if is_kill else 'SIGTERM'} of {'both brokers' if len(brokers) > 1 else 'the main broker'}"
        self.restarts.append({"at": round(begin - self._began, 3), "how": how, "seconds": round(end - begin, 3)})
        self._say(f"restart by {how}: away for {end - begin:.2f} s")
        await self.run.compare()
        self.run.load.is_on.set()

    # --- measurements ----------------------------------------------------------------------------------------------

    async def _sample(self) -> None:
        """Measure both brokers every second, and print a line every ten."""
        place = self.run.place
        pids: dict[str, int] = {}
        said, counted = time.monotonic(), self._confirmed()
        while True:
            for name, broker in (("main", place.main), ("down", place.down)):
                self._sample_one(name, broker, pids)
            if (now := time.monotonic()) - said >= PROGRESS_SECONDS:
                self._progress(now - said, self._confirmed() - counted)
                said, counted = now, self._confirmed()
            await asyncio.sleep(SAMPLE_SECONDS)

    def _sample_one(self, name: str, broker: ManagedBroker, pids: dict[str, int]) -> None:
        if not broker.is_up.is_set():
            return
        lives = self.measured.lives.setdefault(name, [])
        if pids.get(name) != broker.pid:
            pids[name] = broker.pid
            lives.append([])
        with contextlib.suppress(OSError):
            lives[-1].append(sample(broker.pid, time.monotonic() - self._began))

    def _progress(self, seconds: float, confirmed: int) -> None:
        parts = [f"{confirmed / seconds:.0f} messages/s"]
        for name, lives in self.measured.lives.items():
            if lives and lives[-1]:
                now = lives[-1][-1]
                parts.append(f"{name} {now.rss / 2**20:.1f} MiB, {now.descriptors} descriptors, {now.threads} threads")
        recent = sorted(self.measured.deliveries)[-10:]
        histogram = sum((self.measured.deliveries[second] for second in recent), Counter[int]())
        parts.append(f"probe p99 {percentile(histogram, 0.99) * 1000:.1f} ms")
        parts.append(f"{len(self.measured.findings)} findings")
        self._say("; ".join(parts))

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:7.0f} s  {text}", flush=True)

    async def _start_probe(self) -> None:
        path = os.pathsep.join(filter(None, (str(ROOT / "tests"), os.environ.get("PYTHONPATH"))))
        self._probe = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "endurance.probe", self.run.place.main_urls["tmqp"]),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=clean_environment() | {"PYTHONPATH": path},
            limit=1 << 20,
        )
        self._reading = asyncio.create_task(self._read_probe(self._probe))

    async def _read_probe(self, probe: asyncio.subprocess.Process) -> None:
        assert probe.stdout is not None
        while line := await probe.stdout.readline():
            said = json.loads(line)
            if "total" in said:
                self.measured.probe_missing = said["total"]["missing"]
                continue
            for name, found in (
                ("confirm", self.measured.confirms),
                ("deliver", self.measured.deliveries),
                ("own", self.measured.own),
            ):
                histogram = {int(at): count for at, count in said[name].items()}
                found.setdefault(said["second"], Counter()).update(histogram)

    async def _end_probe(self) -> None:
        if self._probe is None or self._reading is None:
            return
        assert self._probe.stdin is not None
        self._probe.stdin.close()
        await asyncio.wait_for(self._reading, 60)
        await self._probe.wait()

    async def close(self) -> None:
        """End everything that still runs."""
        if self._probe is not None and self._probe.returncode is None:
            self._probe.kill()
            await self._probe.wait()
        await self.run.close()

    # --- result ----------------------------------------------------------------------------------------------------

    async def carry_out(self) -> None:
        """Everything from the first start to the last check of what remains, until there is a finding."""
        try:
            await self.run.start()
            await self.measure()
            share = f"{self.settings.share:.0%}"
            print(f"capacity: {self.capacity:.0f} confirmed messages/s; now {share} of it", flush=True)
            if not self.measured.findings:
                await self.play()
            if not self.measured.findings:
                await self.run.finish()
        finally:
            await self.close()

    def result(self) -> tuple[list[Check], dict[str, Any]]:
        """All checks, and the result as JSON."""
        self.measured.outages = self.run.place.main.outages
        checks = judge(self.measured)
        return checks, {
            "version": mqcore.__version__,
            "settings": dataclasses.asdict(self.settings),
            "capacity_per_second": round(self.capacity, 1),
            "confirmed_per_second": round(self.rate, 1),
            "rates": {lane.name: round(lane.rate or 0.0, 1) for lane in self.run.load.lanes},
            "confirmed": {lane.name: lane.confirmed for lane in self.run.load.lanes},
            "restarts": self.restarts,
            "checks": [dataclasses.asdict(check) | {"held": check.is_held} for check in checks],
            "findings": self.measured.findings,
            "samples": {
                name: [[dataclasses.astuple(one) for one in life] for life in lives]
                for name, lives in self.measured.lives.items()
            },
        }


async def soak(directory: Path, seed: int, settings: Settings) -> Soak:
    """Soak brokers in a directory, and return what was measured."""
    soaking = Soak(directory, seed, settings)
    await soaking.carry_out()
    return soaking


def main() -> int:
    """Read the arguments, which `make soak` passes."""
    parser = argparse.ArgumentParser(description="Hours of mixed load at half capacity, with restarts.")
    parser.add_argument("--hours", type=float, default=2.0, help="duration [default: 2]")
    parser.add_argument("--restart-minutes", type=float, default=10.0, help="time between restarts [default: 10]")
    parser.add_argument("--measure-seconds", type=float, default=30.0, help="measure the capacity [default: 30]")
    parser.add_argument("--seed", type=int, help="random choices [default: random]")
    parser.add_argument("--directory", type=Path, help="place of the data directories [default: a temporary one]")
    parser.add_argument("--json", type=Path, help="file for the result [default: soak.json in the directory]")
    given = parser.parse_args()
    seed, directory = begin(given.seed, given.directory, "soak-")
    settings = Settings(given.hours * 3600, given.restart_minutes * 60, given.measure_seconds)
    soaking = asyncio.run(soak(directory, seed, settings))
    checks, result = soaking.result()
    file = given.json or directory / "soak.json"
    file.write_text(json.dumps(result | {"seed": seed}, indent=1))
    print(soaking.run.summary())
    for finding in soaking.measured.findings:
        print(f"finding: {finding}")
    for check in checks:
        print(check)
    is_held = all(check.is_held for check in checks)
    print(f"{'passed' if is_held else 'failed'}: {len(soaking.restarts)} restarts; result in {file}")
    return 0 if is_held else 1


if __name__ == "__main__":
    sys.exit(main())
