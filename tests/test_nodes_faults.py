"""Brokers in processes of their own, linked through proxies that lose, delay and cut, and killed meanwhile.

After any fault of links and nodes, each upstream of a node has its acknowledged messages once and in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import mqcore
from bad_line import Direction, Proxy
from depth import choices, rounds
from mqcore import QueueOptions, QueueStatus, errors
from node_client import backlogs
from ports import free_port
from served import ServedBroker, serving
from small_disks import mounted_or_skipped, occupy
from test_nodes import bodies, count, until

ROUNDS = rounds("MESH", quick=6, full=50)
"""How many faults a full mesh has to stand; each takes about a second."""

KEPT = QueueOptions(status=QueueStatus.PULL, delivery_handler="at-least-once")
QUEUE = "work/1"
ONE_SHARD = {"MQCORE_SHARDS": "1"}


@dataclass
class Node:
    """A broker, what it passes on to, and a client that publishes to it all the time."""

    name: str
    directory: Path
    port: int = field(default_factory=free_port)
    environment: dict[str, str] = field(default_factory=dict)
    ways: dict[str, Proxy] = field(default_factory=dict)
    """The way to each of its upstreams, by the upstream's name."""
    taken: list[str] = field(default_factory=list)
    """Messages acknowledged to the client as saved, in order."""
    broker: ServedBroker | None = None
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _loading: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"tmqp://127.0.0.1:{self.port}"

    async def start(self) -> None:
        config = self.directory / f"{self.name}.toml"
        upstreams = "".join(f'[[upstream]]\nurl = "tmqp://127.0.0.1:{way.port}"\n' for way in self.ways.values())
        config.write_text(
            f"""
            listen = ["{self.url}"]
            admin = "http://127.0.0.1:0"
            data_dir = "{self.directory / self.name}"
            [node]
            name = "{self.name}"
            keep_messages = {"true" if self.ways else "false"}
            reconnect_wait = "50ms"
            confirm_timeout = "1s"
            {upstreams}
            """
        )
        self.broker = await asyncio.to_thread(
            self._stack.enter_context,
            serving("--config", str(config), "--listen", self.url, environment=self.environment),
        )

    async def kill(self) -> None:
        assert self.broker is not None
        self.broker.process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(self._stack.close)

    def close(self) -> None:
        self._stack.close()

    def load(self) -> None:
        self._loading = asyncio.create_task(self._load())

    async def end_load(self) -> None:
        assert self._loading is not None
        self._loading.cancel()
        await asyncio.gather(self._loading, return_exceptions=True)

    async def _load(self) -> None:
        """A batch whose answer was lost with its connection is given up, never repeated: all names are different."""
        number = 0
        while True:
            with contextlib.suppress(errors.MqcoreError):
                async with mqcore.connect(self.url, reconnect_attempts=0, connect_timeout=2.0) as mq:
                    while True:
                        names = [f"{self.name}-{number}-{index}" for index in range(10)]
                        number += 1
                        await mq.publish_many(QUEUE, names)
                        self.taken += names
                        await asyncio.sleep(0.005)  # a steady stream, rather than a race for the disk
            await asyncio.sleep(0.02)

    async def goes_on(self, messages: int = 100) -> None:
        """Wait until so many more messages were acknowledged."""
        goal = len(self.taken) + messages

        async def enough() -> bool:
            return len(self.taken) >= goal

        await until(f"{messages} more messages are taken by {self.name}", enough)

    async def backlog(self) -> float:
        """Messages that no upstream has confirmed yet, the one that has most of them."""
        assert self.broker is not None
        return max(await asyncio.to_thread(backlogs, self.broker.admin_url), default=0.0)

    async def is_linked(self, *names: str) -> bool:
        """Whether exactly these upstreams are connected."""
        async with mqcore.connect(self.url) as mq:
            there = [node.name for node in await mq.nodes() if node.connected and not node.downstream]
        return sorted(there) == sorted(names)


@contextlib.asynccontextmanager
async def linked(
    directory: Path, disks: Mapping[str, Path] | None = None, /, **upstreams: tuple[str, ...]
) -> AsyncIterator[dict[str, Node]]:
    """Nodes, and who their upstreams are, over proxies; all of them run, are linked and under load.

    `disks` has the directories of nodes that are elsewhere, each with one journal that has all of the space.
    """
    async with contextlib.AsyncExitStack() as stack:
        nodes = {name: Node(name, directory) for name in upstreams}
        for name, place in (disks or {}).items():
            nodes[name] = Node(name, place, environment=ONE_SHARD)
        for node in nodes.values():
            for name in upstreams[node.name]:
                node.ways[name] = await stack.enter_async_context(Proxy(nodes[name].port).listening())
        for node in nodes.values():
            stack.callback(node.close)
        await asyncio.gather(*(node.start() for node in nodes.values()))
        for node in nodes.values():
            async with mqcore.connect(node.url) as mq:
                await mq.declare("work", 1, KEPT)
        for node in nodes.values():
            await until("all links are up", lambda node=node: node.is_linked(*node.ways))  # type: ignore[misc]
            node.load()
            stack.push_async_callback(node.end_load)
        for node in nodes.values():
            await node.goes_on(20)
        yield nodes


async def all_is_confirmed(nodes: dict[str, Node]) -> None:
    """End the load, and wait until nothing is on its way any more."""
    for node in nodes.values():
        await node.end_load()
    for node in nodes.values():

        async def empty(node: Node = node) -> bool:
            return await node.is_linked(*node.ways) and await node.backlog() == 0

        await until(f"everything of {node.name} is confirmed", empty, 60.0)


async def everything_is_everywhere(nodes: dict[str, Node]) -> None:
    """Compare what each node took with what it and its upstreams have."""
    await all_is_confirmed(nodes)
    for place in nodes.values():
        there = await bodies(place.url, QUEUE)
        present = set(there)
        assert len(present) == len(there), f"{place.name} has something twice"
        for node in nodes.values():
            if place is node or place.name in node.ways:
                names = set(node.taken)
                assert len(names) >= 20, "there was load"
                assert not names - present, f"{node.name} took these, and {place.name} never got them"
                assert [name for name in there if name in names] == node.taken, "the order changed"
            else:
                assert not [name for name in there if name.startswith(f"{node.name}-")], "it went a way that is none"


@pytest.mark.timeout(120 + 10 * ROUNDS)
async def test_in_a_full_mesh_of_four_under_faults_everything_is_everywhere_once_and_in_order(tmp_path: Path) -> None:
    chance = choices(__name__)
    names = ("a", "b", "c", "d")
    mesh = {name: tuple(other for other in names if other != name) for name in names}
    async with linked(tmp_path, **mesh) as nodes:

        async def kill_one() -> None:
            node = chance.choice(list(nodes.values()))
            await node.kill()
            await chance.choice([other for other in nodes.values() if other is not node]).goes_on(20)
            await node.start()

        def links(some: int) -> list[Proxy]:
            return chance.sample([way for node in nodes.values() for way in node.ways.values()], some)

        async def cut_some() -> None:
            bad = links(4)
            for way in bad:
                way.cut()
            await chance.choice(list(nodes.values())).goes_on(50)
            for way in bad:
                way.mend()

        async def lose_some() -> None:
            bad = links(3)
            for way in bad:
                way.lose(chance.choice(list(Direction)))
            await asyncio.gather(*(node.goes_on(100) for node in nodes.values()))
            for way in bad:
                way.mend()

        async def delay_some() -> None:
            bad = links(4)
            for way in bad:
                way.slow(0.02, 0.08)
            await chance.choice(list(nodes.values())).goes_on(100)
            for way in bad:
                way.mend()

        dialed = sum(way.connections for node in nodes.values() for way in node.ways.values())
        # Each sort at least once, whatever chance says; killing most often.
        faults: list[Callable[[], Awaitable[None]]] = [kill_one, cut_some, lose_some, delay_some]
        faults += [chance.choice([*faults, kill_one]) for _ in range(max(0, ROUNDS - len(faults)))]
        chance.shuffle(faults)
        for fault in faults:
            await fault()
        again = sum(way.connections for node in nodes.values() for way in node.ways.values())
        assert again > dialed, "no link was ever broken"
        await everything_is_everywhere(nodes)


@pytest.mark.parametrize("lost", Direction, ids=["there", "back"])
async def test_after_a_loss_in_one_direction_only_nothing_is_missing_and_nothing_came_twice(
    tmp_path: Path, lost: Direction
) -> None:
    async with linked(tmp_path, up=(), down=("up",)) as nodes:
        up, down = nodes["up"], nodes["down"]
        await up.end_load()
        way = down.ways["up"]
        dialed = way.connections
        way.lose(lost)

        async def away() -> bool:
            return await down.is_linked()

        await until("the downstream knows that its upstream is away", away)
        await down.goes_on()
        assert await down.backlog() >= 100, "the loss did not hold anything up"
        way.mend()
        await everything_is_everywhere(nodes)
        assert way.connections > dialed


async def test_over_a_slow_link_everything_comes_late_and_in_order(tmp_path: Path) -> None:
    async with linked(tmp_path, up=(), down=("up",)) as nodes:
        up, down = nodes["up"], nodes["down"]
        await up.end_load()
        way = down.ways["up"]
        dialed = way.connections
        way.slow(0.06, 0.1)
        await down.goes_on(200)
        await down.end_load()
        await all_is_confirmed(nodes)
        before = await count(up.url, QUEUE)
        began = time.monotonic()
        async with mqcore.connect(down.url) as mq:
            await mq.publish(QUEUE, "the last one")
        down.taken.append("the last one")

        async def there() -> bool:
            return await count(up.url, QUEUE) > before

        await until("the last one is there", there)
        assert time.monotonic() - began >= 0.06, "the link was not slow"
        await everything_is_everywhere(nodes)
        assert way.connections == dialed, "slow is not away"


async def fill(url: str) -> None:
    """Publish to another queue until the disk takes nothing more."""
    async with mqcore.connect(url) as mq:
        await mq.declare("filler", 1, KEPT)
        for size in (256 * 1024, 4 * 1024, 16):
            with contextlib.suppress(errors.Busy):
                while True:
                    await mq.publish_many("filler/1", [bytes(size)] * 16)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system with space for one more segment of a journal when its filler is gone."""
    with mounted_or_skipped(tmp_path / "disk", 64) as place:
        yield place


@pytest.mark.parametrize("killed", [False, True], ids=["alive", "killed"])
async def test_messages_that_an_upstream_with_a_full_disk_defers_arrive_once_and_in_order(
    tmp_path: Path, disk: Path, killed: bool
) -> None:
    async with linked(tmp_path, {"up": disk}, up=(), down=("up",)) as nodes:
        up, down = nodes["up"], nodes["down"]
        await up.end_load()
        await asyncio.to_thread(occupy, disk / "filler", leave=0)
        await fill(up.url)

        async def defers() -> bool:
            return await down.backlog() >= 300

        await until("the upstream defers messages", defers)
        if killed:
            await up.kill()
        (disk / "filler").unlink()
        if killed:
            await up.start()
        await down.goes_on()
        await everything_is_everywhere(nodes)
