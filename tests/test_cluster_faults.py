"""Clusters under load while nodes are killed, stopped, cut off, emptied and restarted.

Each round makes one fault, waits, and heals it. Then everything that was confirmed must be there: messages in order, an
option of a queue, a schedule and a limit. The third node of one of two clusters is a witness.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import depth
import mqcore
from cluster_nodes import Cluster, ClusterNode
from cluster_registers import PROTOCOLS, Registers
from link_proxy import LinkProxy
from mqcore import errors
from ports import free_ports

ROUNDS = depth.rounds("CLUSTER_FAULT", quick=1, full=60)
PRODUCERS = 2


class Load:
    """Producers and a consumer, each on a node of its own, which connect again whenever they lose it."""

    def __init__(self, cluster: Cluster) -> None:
        self._urls = [node.url for node in cluster.nodes]
        self._ends = threading.Event()
        self.confirmed: list[list[int]] = [[] for _ in range(PRODUCERS)]
        self.received: list[list[int]] = [[] for _ in range(PRODUCERS)]
        self._threads = [threading.Thread(target=self._produce, args=(number,)) for number in range(PRODUCERS)]
        self._consumer = threading.Thread(target=self._consume)

    def start(self) -> None:
        for thread in [*self._threads, self._consumer]:
            thread.start()

    def confirmations(self) -> int:
        return sum(map(len, self.confirmed))

    def stop(self) -> None:
        self._ends.set()
        for thread in [*self._threads, self._consumer]:
            thread.join()

    def _produce(self, producer: int) -> None:
        number = 0
        attempt = producer
        while not self._ends.is_set():
            attempt += 1
            url = self._urls[attempt % len(self._urls)]
            with contextlib.suppress(errors.MqcoreError), mqcore.sync.connect(url, request_timeout=2.0) as client:
                while not self._ends.is_set():
                    client.publish("load/1", f"{producer} {number}".encode())
                    self.confirmed[producer].append(number)
                    number += 1
            # Nothing is known about the message that was on its way.
            number += 1
            time.sleep(0.02)

    def _consume(self) -> None:
        attempt = 0
        while not self._ends.is_set():
            attempt += 1
            with contextlib.suppress(errors.MqcoreError):
                self.drain(self._urls[attempt % len(self._urls)], idle=0.5)
            time.sleep(0.02)

    def drain(self, url: str, *, idle: float) -> None:
        """Receive and settle until no message comes."""
        with mqcore.sync.connect(url, patience=5.0) as client:
            for message in client.queue("load/1").consume(prefetch=20, idle_timeout=idle):
                producer, number = map(int, message.body.split())
                self.received[producer].append(number)
                message.ack()

    def check(self, *, in_order: bool) -> None:
        """All confirmed messages have arrived, in the order in which they were sent."""
        for producer in range(PRODUCERS):
            received = self.received[producer]
            missing = set(self.confirmed[producer]) - set(received)
            assert not missing, (
                f"producer {producer}: {len(missing)} confirmed messages are lost, such as {min(missing)}"
            )
            if not in_order:
                continue
            first: dict[int, int] = {}
            for place, number in enumerate(received):
                first.setdefault(number, place)
            # A failure may redeliver a message, but never before one that was sent earlier.
            places = [first[number] for number in sorted(first)]
            assert places == sorted(places), f"producer {producer}: messages have changed their order"


class Faults:
    """Faults of a cluster. Each method returns what heals it."""

    def __init__(self, cluster: Cluster, links: dict[tuple[int, int], LinkProxy], choices: random.Random) -> None:
        self._cluster = cluster
        self._links = links
        self._clocks = {
            node: Path(node.environment["CLOCK_OFFSET_FILE"])
            for node in cluster.nodes
            if "CLOCK_OFFSET_FILE" in node.environment
        }
        self._choices = choices

    def _follower(self) -> ClusterNode:
        return self._choices.choice(self._cluster.followers())

    def kill_leader(self) -> Callable[[], None]:
        leader = self._cluster.leader()
        leader.kill()
        return leader.start

    def kill_follower(self) -> Callable[[], None]:
        follower = self._follower()
        follower.kill()
        return follower.start

    def kill_all(self) -> Callable[[], None]:
        for node in self._cluster.nodes:
            node.kill()
        return self._cluster.start

    def stop_leader(self) -> Callable[[], None]:
        """In order, as for an upgrade."""
        leader = self._cluster.leader()
        assert leader.stop() == 0
        return leader.start

    def pause_leader(self) -> Callable[[], None]:
        leader = self._cluster.leader()
        leader.signal(signal.SIGSTOP)
        return lambda: leader.signal(signal.SIGCONT)

    def pause_follower(self) -> Callable[[], None]:
        follower = self._follower()
        follower.signal(signal.SIGSTOP)
        return lambda: follower.signal(signal.SIGCONT)

    def empty_follower(self) -> Callable[[], None]:
        """A follower loses its disk, and returns at once."""
        follower = self._follower()
        follower.kill()
        shutil.rmtree(follower.data_dir)
        follower.start()
        return lambda: None

    def cut_off_leader(self) -> Callable[[], None]:
        leader = self._cluster.leader().number
        return self._cut([link for link in self._links if leader in link])

    def silence_leader(self) -> Callable[[], None]:
        """The others do not hear the leader, which hears them."""
        leader = self._cluster.leader().number
        return self._cut([link for link in self._links if link[0] == leader])

    def deafen_leader(self) -> Callable[[], None]:
        """The leader does not hear the others, which hear it."""
        leader = self._cluster.leader().number
        return self._cut([link for link in self._links if link[1] == leader])

    def cut_off_follower(self) -> Callable[[], None]:
        follower = self._follower().number
        return self._cut([link for link in self._links if follower in link])

    def bridge(self) -> Callable[[], None]:
        """Two nodes do not hear each other; the third hears both."""
        one, other = self._choices.sample([node.number for node in self._cluster.nodes], 2)
        return self._cut([(one, other), (other, one)])

    def set_clock_of_leader(self) -> Callable[[], None]:
        """By half a minute or a day, forward or back."""
        return self._set_clock(self._cluster.leader())

    def set_clock_of_follower(self) -> Callable[[], None]:
        return self._set_clock(self._follower())

    def _set_clock(self, node: ClusterNode) -> Callable[[], None]:
        if node not in self._clocks:
            pytest.skip("needs Linux and a C compiler")
        self._clocks[node].write_text(str(self._choices.choice([-86_400, -30, 30, 86_400])))

        def correct() -> None:
            self._clocks[node].write_text("0")

        return correct

    def _cut(self, links: list[tuple[int, int]]) -> Callable[[], None]:
        for link in links:
            self._links[link].cut()

        def mend() -> None:
            for link in links:
                self._links[link].mend()

        return mend


FAULTS = [name for name in vars(Faults) if not name.startswith("_")]
KINDS = {
    **dict.fromkeys(("kill_leader", "kill_follower"), "kill"),
    **dict.fromkeys(("pause_leader", "pause_follower"), "pause"),
    **dict.fromkeys(("cut_off_leader", "cut_off_follower"), "cut off"),
    **dict.fromkeys(("silence_leader", "deafen_leader", "bridge"), "cut in part"),
    **dict.fromkeys(("set_clock_of_leader", "set_clock_of_follower"), "set the clock"),
}
"""Faults of which the quick depth makes one of each kind. Each other fault is a kind of its own."""


@pytest.fixture(scope="module", params=depth.sample("clusters", ["three with data", "witness"]))
def proxied(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Cluster, dict[tuple[int, int], LinkProxy]]]:
    """A cluster each of whose links goes through a proxy."""
    members = dict(zip((1, 2, 3), free_ports(3), strict=True))
    links = {
        (caller, answerer): LinkProxy(("127.0.0.1", members[answerer]))
        for caller in members
        for answerer in members
        if caller != answerer
    }
    addresses = {link: f"127.0.0.1:{proxy.port}" for link, proxy in links.items()}
    directory = tmp_path_factory.mktemp("cluster")
    witnesses = [3] if request.param == "witness" else []
    cluster = Cluster(
        directory, member_ports=members, peer_addresses=addresses, protocols=PROTOCOLS, witnesses=witnesses
    )
    if sys.platform == "linux" and shutil.which("cc") is not None:
        shim = directory / "clock.so"
        source = Path(__file__).with_name("system_clock.c")
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", shim, source], check=True)
        for node in cluster.nodes:
            offset = directory / f"clock-{node.number}"
            offset.write_text("0")
            node.environment |= {"LD_PRELOAD": str(shim), "CLOCK_OFFSET_FILE": str(offset)}
    try:
        cluster.start()
        cluster.wait_until_all_follow()
        yield cluster, links
    finally:
        cluster.close()
        for proxy in links.values():
            proxy.close()


@pytest.mark.timeout(30 + 40 * ROUNDS)
@pytest.mark.parametrize("fault", depth.sample("cluster faults", FAULTS, kind=lambda name: KINDS.get(name, name)))
def test_nothing_confirmed_is_lost(fault: str, proxied: tuple[Cluster, dict[tuple[int, int], LinkProxy]]) -> None:
    cluster, links = proxied
    choices = depth.choices(f"cluster {fault}")
    faults = Faults(cluster, links, choices)
    load, registers = Load(cluster), Registers(cluster)
    load.start()
    registers.start()
    try:
        for _ in range(ROUNDS):
            begun = time.monotonic()
            heal = getattr(faults, fault)()
            time.sleep(choices.uniform(0.2, 2.5))
            heal()
            registers.note_fault(begun, time.monotonic())
            cluster.wait_until_all_follow()
            before = load.confirmations()
            deadline = time.monotonic() + 20
            while load.confirmations() < before + 20:
                assert time.monotonic() < deadline, "clients do not continue"
                time.sleep(0.05)
    except BaseException:
        cluster.show_logs()
        raise
    finally:
        registers.stop()
        load.stop()
    load.drain(cluster.leader().url, idle=1.0)
    # A node that pauses holds the connection of a consumer open that has left: its messages return later than others.
    load.check(in_order=fault != "pause_follower")
    registers.check()
