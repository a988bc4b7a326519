"""Held load with faults by turns: `make held` starts it.

Like a soak, it first measures what the brokers and these clients manage together; then every producer has 70 % of its
measured rate. In turn, the main broker is killed, its disk becomes full, a producer floods a queue in memory, and
thousands of peers send their handshakes byte by byte. After each fault the load pauses until every message is where it
belongs. A probe measures latency all the time: the p99 of each fault is compared with that of the quiet time between.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import mqcore
from endurance.load import PULLED
from endurance.probe import percentile
from endurance.rounds import begin
from endurance.soak import Settings, Soak
from endurance.verdict import Check
from hostile.attacks import OPENINGS
from hostile.crowd import is_open, raise_descriptor_limit
from mqcore import QueueOptions, QueueStatus, errors
from small_disks import CannotMount, mounted, occupy
from tmqp_peer import QUEUE, RawFrame, TmqpPeer

SHARE = 0.7
"""Of the capacity."""
DISK_MIB = 1024
FILL_SECONDS = 60.0
"""Longest time until a full disk rejects messages, and until it accepts some again."""
BALLAST = tuple(f"ballast-{number}" for number in range(6))
"""Channels that are likely to be in all shards."""
SLOW_PEERS = 2000
UNSAVED_BYTES = 256 << 20
P99_FACTOR = 3.0
"""The p99 during a fault, in that of the quiet time, that it should not exceed."""
EXPECTED_ALARMS = ("no space is left", "No space left", "os error 28")


class Held(Soak):
    """A soak whose restarts are faults of several kinds."""

    def __init__(self, directory: Path, seed: int, settings: Settings, slow_peers: int = SLOW_PEERS) -> None:
        super().__init__(directory, seed, settings)
        self._slow_peers = slow_peers
        self._stack = contextlib.ExitStack()
        self.phases: list[tuple[str, float, float]] = []
        """The name of each phase, and its monotonic times."""
        self.missing_fault: str | None = None
        self.rejected = 0
        """How often the disk was full for a channel."""
        main = self.run.place.main
        main.expected = EXPECTED_ALARMS
        main.environment["MQCORE_UNSAVED_MEMORY_MAX"] = str(UNSAVED_BYTES)
        self._faults: dict[str, Callable[[], Awaitable[None]]] = {
            "killed": self._kill,
            "full disk": self._fill_disk,
            "fast producer": self._flood,
            "slow handshakes": self._trickle,
        }
        try:
            self._disk: Path | None = self._stack.enter_context(mounted(directory / "main", DISK_MIB))
        except CannotMount as error:
            self._disk, self.missing_fault = None, str(error)
            del self._faults["full disk"]

    async def play(self) -> None:
        """Hold the load for the whole time, and longer until each fault had a turn, each after a quiet time."""
        self._began = self.measured.began = began = time.monotonic()
        before = self._confirmed()
        sampler = asyncio.create_task(self._sample())
        turns = 0
        try:
            while not self.measured.findings and (
                began + self.settings.seconds > time.monotonic() or turns < len(self._faults)
            ):
                name = list(self._faults)[turns % len(self._faults)]
                turns += 1
                self.run.load.is_on.set()
                await self._phase("quiet", self.run.work(self.settings.restart_seconds))
                await self._phase(name, self._faults[name]())
                self._say(f"fault: {name}")
                await self.run.compare()
            self.rate = (self._confirmed() - before) / (time.monotonic() - began)
            await self._end_probe()
            await self.run.compare(last=True)
        finally:
            sampler.cancel()
            await asyncio.gather(sampler, return_exceptions=True)

    async def _phase(self, name: str, work: Awaitable[None]) -> None:
        began = time.monotonic()
        await work
        self.phases.append((name, began, time.monotonic()))

    async def close(self) -> None:
        await super().close()
        self._stack.close()

    # --- faults ----------------------------------------------------------------------------------------------------

    async def _kill(self) -> None:
        """Kill the main broker under load, and let the load continue after its start."""
        self.run.kills["main"] += 1
        await self.run.place.main.kill()
        await self.run.place.main.start()
        await self.run.work(self.settings.restart_seconds)

    async def _fill_disk(self) -> None:
        """Keep the disk full for a while. Producers are rejected and try again."""
        assert self._disk is not None
        filler = self._disk / "filler"
        async with mqcore.connect(self.run.place.main_urls["tmqp"]) as mq:
            for name in BALLAST:
                await mq.declare(name, 1, PULLED)
            rejected: set[str] = set()
            end = time.monotonic() + self.settings.restart_seconds
            try:
                # Segments have space that is allocated already. Large messages use it up.
                while time.monotonic() < end or (not rejected and time.monotonic() < end + FILL_SECONDS):
                    await asyncio.to_thread(occupy, filler, leave=0)
                    for name in BALLAST:
                        outcomes = await mq.publish_many(f"{name}/1", [b"x" * 65536] * 8, return_exceptions=True)
                        if any(isinstance(outcome, errors.Busy) for outcome in outcomes):
                            rejected.add(name)
                    await self.run.work(0.05)
            finally:
                filler.unlink(missing_ok=True)
            if not rejected:
                self.run.load.findings.add("the disk was never full")
            self.rejected += len(rejected)
            for name in BALLAST:
                await self._remove(mq, name)

    async def _remove(self, mq: mqcore.Client, name: str) -> None:
        """Remove a channel as soon as the disk has space for that."""
        end = time.monotonic() + FILL_SECONDS
        while True:
            try:
                return await mq.remove_channel(name)
            except errors.Busy:
                if time.monotonic() > end:
                    raise
                await self.run.work(0.1)

    async def _flood(self) -> None:
        """Publish to a queue in memory as fast as the broker reads, until its limit rejects most of it."""
        url = self.run.place.main_urls["tmqp"]
        async with mqcore.connect(url) as mq:
            await mq.declare("flood", 1, QueueOptions(status=QueueStatus.PULL, delivery_handler="memory"))
            host, _, port = url.partition("://")[2].rpartition(":")
            peer = TmqpPeer(host, int(port))
            peer.hello()
            reader, writer = await asyncio.open_connection(sock=peer.socket)
            discarding = asyncio.create_task(_discard(reader))
            frame = RawFrame(kind=QUEUE, id=b"f", target=b"flood", content_type=1, payload=b"x" * 4096).encode()
            end = time.monotonic() + self.settings.restart_seconds
            try:
                while time.monotonic() < end:
                    writer.write(frame * 16)
                    await writer.drain()
                    await self.run.work(0.001)
            finally:
                discarding.cancel()
                writer.close()
                await asyncio.gather(discarding, writer.wait_closed(), return_exceptions=True)
            await mq.remove_queue("flood/1")

    async def _trickle(self) -> None:
        """Let thousands of peers send their handshakes byte by byte, and connect again when they are cut."""
        raise_descriptor_limit()
        end = time.monotonic() + self.settings.restart_seconds
        trickling = asyncio.create_task(asyncio.to_thread(self._send_slowly, end))
        await self.run.work(self.settings.restart_seconds)
        await trickling

    def _send_slowly(self, end: float) -> None:
        protocols = ("tmqp", "mqks", "mm2")
        peers: dict[int, tuple[socket.socket, int]] = {}
        with contextlib.ExitStack() as stack:
            while time.monotonic() < end:
                began = time.monotonic()
                for number in range(self._slow_peers):
                    protocol = protocols[number % len(protocols)]
                    opening = b"".join(OPENINGS[protocol])[:-1]
                    peer, sent = peers.get(number, (None, 0))
                    if peer is None or not is_open(peer):
                        host, _, port = self.run.place.main_urls[protocol].partition("://")[2].rpartition(":")
                        peer, sent = stack.enter_context(socket.create_connection((host, int(port)), timeout=10)), 0
                    with contextlib.suppress(OSError):
                        peer.send(opening[sent : sent + 1])
                    peers[number] = (peer, sent + 1)
                time.sleep(max(0.0, 1.0 - (time.monotonic() - began)))

    # --- result ----------------------------------------------------------------------------------------------------

    def latencies(self) -> dict[str, tuple[float, float, int]]:
        """For each kind of phase: p99 of confirmations and of deliveries in seconds, number of confirmations."""
        found = {}
        self.measured.outages = self.run.place.main.outages
        for name in dict.fromkeys(name for name, _, _ in self.phases):
            times = [(begin, end) for kind, begin, end in self.phases if kind == name]
            histograms = []
            for by_second in (self.measured.confirms, self.measured.deliveries):
                chosen = Counter[int]()
                for second, histogram in by_second.items():
                    is_within = any(begin <= second and second + 1 <= end for begin, end in times)
                    if is_within and not self.measured.is_left_out(second):
                        chosen.update(histogram)
                histograms.append(chosen)
            confirms, deliveries = histograms
            found[name] = (percentile(confirms, 0.99), percentile(deliveries, 0.99), confirms.total())
        return found

    def checks(self) -> list[Check]:
        """Limits of the run, and the p99 of each fault."""
        missing = float("inf") if self.measured.probe_missing is None else self.measured.probe_missing
        checks = [
            Check("broken promises", len(self.measured.findings), 0, "findings"),
            Check("confirmed messages of the probe that never came", missing, 0, "messages"),
        ]
        latencies = self.latencies()
        quiet = latencies.pop("quiet", (0.0, 0.0, 0))
        for name, (confirm, deliver, count) in latencies.items():
            for what, value, usual in (("confirmation", confirm, quiet[0]), ("delivery", deliver, quiet[1])):
                limit, seen = P99_FACTOR * usual * 1000, f"(quiet {usual * 1000:.2f} ms; {count} messages)"
                checks.append(Check(f"{name}: p99 of a {what}", value * 1000, limit, "ms", seen))
        return checks


async def _discard(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 20):
        pass


async def hold(directory: Path, seed: int, settings: Settings, slow_peers: int = SLOW_PEERS) -> Held:
    """Hold the load in a directory, and return what was measured."""
    holding = Held(directory, seed, settings, slow_peers)
    await holding.carry_out()
    return holding


def main() -> int:
    """Read the arguments, which `make held` passes."""
    parser = argparse.ArgumentParser(description="Held load with faults by turns.")
    parser.add_argument("--minutes", type=float, default=30.0, help="duration [default: 30]")
    parser.add_argument(
        "--fault-seconds", type=float, default=15.0, help="time of a fault, and before it [default: 15]"
    )
    parser.add_argument("--measure-seconds", type=float, default=20.0, help="measure the capacity [default: 20]")
    parser.add_argument("--seed", type=int, help="random choices [default: random]")
    parser.add_argument("--json", type=Path, help="file for the result")
    given = parser.parse_args()
    seed, directory = begin(given.seed, None, "held-")
    settings = Settings(given.minutes * 60, given.fault_seconds, given.measure_seconds, SHARE)
    holding = asyncio.run(hold(directory, seed, settings))
    checks = holding.checks()
    if given.json:
        result = {"seed": seed, "rate": holding.rate, "capacity": holding.capacity, "checks": [str(c) for c in checks]}
        given.json.write_text(json.dumps(result, indent=1))
    print(f"{holding.run.summary()}\nfull disk: {holding.rejected} times a channel")
    for finding in holding.measured.findings:
        print(f"finding: {finding}")
    if holding.missing_fault:
        print(f"no full disk: {holding.missing_fault}")
    for check in checks:
        print(check)
    lost = [check for check in checks[:2] if not check.is_held]
    print(f"{'failed' if lost else 'passed'}: {holding.rate:.0f} confirmed messages/s, {len(holding.phases)} phases")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
