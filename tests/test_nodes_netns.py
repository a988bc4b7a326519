"""Nodes that only a network connects: each broker, and its clients, in a network namespace of its own.

One upstream and two downstreams in a star of veth pairs. Every message that a downstream accepted arrives at the
upstream once and in order, whatever happens to the network and the brokers meanwhile. Tests that need no separate
network (delay, a full mesh) are in `test_nodes_faults.py`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

from served import ServedBroker, clean_environment, serving, wait_until

CLIENT = str(Path(__file__).parent / "node_client.py")
PORT = 2622
LOOPBACK = "127.0.0.1"
"""Admin address: a broker without users shows its nodes and queues there."""
ADMIN = "http://127.0.0.1:2627"
"""The same in every namespace: each has a loopback of its own."""
NOBODY = "02:00:00:00:00:99"
"""A hardware address that none of the interfaces has: what is sent to it is lost on the way, in silence."""

# By a signal, where there is one: the other method ends the process, and the namespaces would stay.
pytestmark = pytest.mark.timeout(60, method="signal" if hasattr(signal, "SIGALRM") else "thread")

_runs = itertools.count()


def ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `ip`; raises `CalledProcessError` with what it said."""
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True, timeout=10)


def why_not() -> str | None:
    """Why there can be no network namespaces here, or None."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if shutil.which("ip") is None:
        return "no `ip` (iproute2)"
    name = f"mqc{os.getpid()}-probe"
    try:
        ip("netns", "add", name)
        try:
            ip("-n", name, "link", "add", "name", "one", "type", "veth", "peer", "name", "other")
            ip("netns", "exec", name, "true")
        finally:
            ip("netns", "del", name)
    except subprocess.SubprocessError as refused:
        return f"network namespaces are not permitted: {getattr(refused, 'stderr', None) or refused}".strip()
    return None


@dataclass
class Place:
    """A network namespace, and the broker that runs in it."""

    name: str
    netns: str
    address: str
    """Address of the broker for producers in the namespace."""
    config: Path
    listen: tuple[str, ...]
    """Options of the broker for its listeners."""
    broker: ServedBroker | None = None
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def url(self) -> str:
        return f"tmqp://{self.address}:{PORT}"

    @property
    def under(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.netns)

    def start(self) -> None:
        self.broker = self.stack.enter_context(serving("--config", str(self.config), *self.listen, under=self.under))

    def end(self, how: signal.Signals) -> None:
        """End the broker and wait until it is gone."""
        assert self.broker is not None
        self.broker.process.send_signal(how)
        self.broker.process.wait(15)
        self.stack.close()

    def ask(self, verb: str, *arguments: str) -> Any:
        """Let a client in this namespace do it, and return what it tells."""
        where = ADMIN if verb in ("settled", "backlog") else f"tmqp://{LOOPBACK}:{PORT}"
        done = subprocess.run(
            [*self.under, sys.executable, CLIENT, verb, where, *arguments],
            capture_output=True, text=True, check=False, timeout=40, env=clean_environment(),
        )  # fmt: skip
        assert done.returncode == 0, f"{verb} at {self.name}: {done.stderr}"
        return json.loads(done.stdout) if done.stdout else None


def side_by_side(work: Callable[[Place], object], places: list[Place]) -> None:
    """Do it for each at the same time; raises what one of them raised."""
    with ThreadPoolExecutor() as threads:
        list(threads.map(work, places))


class Producer:
    """A client beside a downstream that publishes all the time; `taken` is what was acknowledged to it, in order."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.taken: dict[str, list[str]] = {"work": [], "private": []}
        self._process = subprocess.Popen(
            [*place.under, sys.executable, CLIENT, "load", place.url, place.name, "work", "private"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean_environment(),
        )  # fmt: skip
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, output: IO[str]) -> None:
        for line in output:
            channel, names = json.loads(line)
            self.taken[channel] += names

    def goes_on(self, messages: int = 100) -> None:
        """Wait until so many more messages were acknowledged."""
        goal = len(self.taken["work"]) + messages
        wait_until(lambda: len(self.taken["work"]) >= goal, limit=20, what=f"load on {self.place.name}")

    def stop(self) -> None:
        """Let it finish what it began."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self.stop()


@dataclass
class Star:
    """An upstream and its downstreams, linked and under load."""

    upstream: Place
    downstreams: list[Place]
    producers: list[Producer]

    def go_on(self) -> None:
        for producer in self.producers:
            producer.goes_on()

    def away(self, downstream: Place) -> None:
        """Wait until the downstream knows that it has no upstream, and let it take more, which stays with it."""
        downstream.ask("linked")
        self.go_on()
        assert downstream.ask("backlog") >= 100, "the fault did not hold anything up"

    def linked(self) -> None:
        side_by_side(lambda downstream: downstream.ask("linked", self.upstream.name), self.downstreams)

    def everything_is_there(self) -> None:
        """End the load, and compare the confirmations of the producers with the messages of the upstream."""
        for producer in self.producers:
            producer.stop()
        side_by_side(lambda downstream: downstream.ask("settled"), self.downstreams)
        there = self.upstream.ask("take", "work")
        assert len(set(there)) == len(there), "nothing comes twice"
        for producer in self.producers:
            taken = producer.taken["work"]
            names = set(taken)
            assert not names - set(there), "these were taken, and never came"
            assert [name for name in there if name in names] == taken, "the order changed"
            assert producer.taken["private"], "there was something for the filter"
        assert self.upstream.ask("count", "private") == 0, "the filter lets nothing of these through"


def _upstream_config(place: Place, directory: Path) -> None:
    place.config.write_text(
        f'admin = "{ADMIN}"\nallow_remote = true\ndata_dir = "{directory}"\n[node]\nname = "{place.name}"\n'
    )


def _downstream_config(place: Place, upstream: str, directory: Path) -> None:
    place.config.write_text(
        f"""
        admin = "{ADMIN}"
        allow_remote = true
        data_dir = "{directory}"
        [node]
        name = "{place.name}"
        keep_messages = true
        reconnect_wait = "100ms"
        confirm_timeout = "1s"
        [[upstream]]
        url = "tmqp://{upstream}:{PORT}"
        send = {{deny = [{{channel = "private"}}]}}
        """
    )


@pytest.fixture(scope="module")
def namespaces() -> None:
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture
def star(namespaces: None, tmp_path: Path) -> Iterator[Star]:
    """Three namespaces with a broker each: `top` and its downstreams `east` and `west`, each with a producer."""
    prefix = f"mqc{os.getpid()}-{next(_runs)}"
    with contextlib.ExitStack() as undo:

        def place(name: str, *addresses: str) -> Place:
            netns = f"{prefix}-{name}"
            ip("netns", "add", netns)
            undo.callback(ip, "netns", "del", netns)
            ip("-n", netns, "link", "set", "lo", "up")
            listen = [word for each in (*addresses, LOOPBACK) for word in ("--listen", f"tmqp://{each}:{PORT}")]
            made = Place(name, netns, addresses[0], tmp_path / f"{name}.toml", tuple(listen))
            undo.callback(made.stack.close)
            return made

        upstreams = ["10.213.1.1", "10.213.2.1"]
        upstream = place("top", *upstreams)
        downstreams = [place(name, f"10.213.{number}.2") for number, name in enumerate(("east", "west"), 1)]
        for downstream, there in zip(downstreams, upstreams, strict=True):
            ip(
                "link",
                "add",
                "uplink",
                "netns",
                downstream.netns,
                "type",
                "veth",
                "peer",
                "name",
                downstream.name,
                "netns",
                upstream.netns,
            )
            ip("-n", downstream.netns, "address", "add", f"{downstream.address}/30", "dev", "uplink")
            ip("-n", downstream.netns, "link", "set", "uplink", "up")
            ip("-n", upstream.netns, "address", "add", f"{there}/30", "dev", downstream.name)
            ip("-n", upstream.netns, "link", "set", downstream.name, "up")
            _downstream_config(downstream, there, tmp_path / downstream.name)
        _upstream_config(upstream, tmp_path / upstream.name)

        def begin(each: Place) -> None:
            each.start()
            each.ask("declare", "work", "private")

        side_by_side(begin, [upstream, *downstreams])
        producers: list[Producer] = []
        for downstream in downstreams:
            producers.append(Producer(downstream))
            undo.callback(producers[-1].kill)
        running = Star(upstream, downstreams, producers)
        running.linked()
        running.go_on()
        yield running


def test_after_a_partition_the_master_has_everything_that_either_slave_took(star: Star) -> None:
    east, west = star.downstreams
    ip("-n", star.upstream.netns, "link", "set", east.name, "down")
    star.away(east)
    west.ask("linked", star.upstream.name)
    ip("-n", star.upstream.netns, "link", "set", east.name, "up")
    star.linked()
    star.go_on()
    star.everything_is_there()


@pytest.mark.full("test_nodes_faults.py loses one direction in a proxy")
@pytest.mark.parametrize("lost", ["what the downstream sends", "what the upstream answers"])
def test_after_a_loss_in_one_direction_only_nothing_is_missing_and_nothing_came_twice(star: Star, lost: str) -> None:
    east, _ = star.downstreams
    end = (
        (east.netns, "uplink", "10.213.1.1")
        if lost == "what the downstream sends"
        else (star.upstream.netns, east.name, east.address)
    )
    netns, device, peer = end
    ip("-n", netns, "neighbour", "replace", peer, "lladdr", NOBODY, "dev", device, "nud", "permanent")
    star.away(east)
    ip("-n", netns, "neighbour", "del", peer, "dev", device)
    star.linked()
    star.go_on()
    star.everything_is_there()


@pytest.mark.full("test_nodes.py kills and restarts nodes under load")
@pytest.mark.parametrize("victim", ["top", "east"])
def test_a_node_killed_under_load_and_started_again_costs_nothing_that_was_taken(star: Star, victim: str) -> None:
    (killed,) = [each for each in (star.upstream, *star.downstreams) if each.name == victim]
    killed.end(signal.SIGKILL)
    for producer in star.producers:
        if producer.place is not killed:
            producer.goes_on()
    killed.start()
    star.linked()
    star.go_on()
    star.everything_is_there()


@pytest.mark.full("test_nodes.py kills and restarts nodes under load")
def test_a_rolling_restart_of_all_nodes_under_load_costs_nothing_that_was_taken(star: Star) -> None:
    for each in (star.upstream, *star.downstreams):
        each.end(signal.SIGTERM)
        for producer in star.producers:
            if producer.place is not each:
                producer.goes_on()
        each.start()
        star.linked()
        star.go_on()
    star.everything_is_there()
