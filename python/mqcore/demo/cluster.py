"""The part for clusters: three nodes keep the same queue; the one that leads is killed in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import mqcore
import mqcore.cluster
from mqcore import errors
from mqcore.demo.library import Key, Page, digest, expected
from mqcore.demo.outcome import Outcome
from mqcore.demo.processes import kill

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["run"]

_QUEUE: Final = "library-cluster/0"
_SECRET: Final = "a secret for the demonstration"  # noqa: S105 - of brokers on the loopback interface
_NODES: Final = (1, 2, 3)
_WINDOW: Final = 32
_PATIENCE: Final = 30.0
"""Seconds in which a cluster must have a leader."""
_PULLED: Final = 256

_NODE: Final = """
listen = ["tmqp://127.0.0.1:{client}"]
data_dir = "{directory}/{node}"
auto_create_channels = true
[cluster]
node = {node}
listen = "127.0.0.1:{member}"
peers = {peers}
secret = "{secret}"
"""


@dataclass(slots=True)
class Survival(Outcome):
    """Files that were published at a cluster whose leader was killed."""

    published: int
    arrived: int
    repeated: int
    silent_ms: int

    def numbers(self) -> dict[str, int]:
        """Numbers of published, received and repeated files, and the time without confirmations."""
        return {
            "published": self.published,
            "arrived": self.arrived,
            "repeated": self.repeated,
            "ms without leader": self.silent_ms,
        }


@dataclass(slots=True)
class _Node:
    number: int
    url: str
    member: str
    process: asyncio.subprocess.Process

    def leads(self) -> bool:
        with contextlib.suppress(errors.ConnectFailed):
            return mqcore.cluster.status(self.member, secret=_SECRET.encode()).role == "leading"
        return False


async def run(pages: Sequence[Page], progress: Progress) -> list[Outcome]:
    """Publish all files; kill the leader once half is published, and read everything at a node that is left."""
    with tempfile.TemporaryDirectory(prefix="mqcore-demo-") as name:
        async with _cluster(Path(name)) as nodes:
            leader = await _leader(nodes)
            urls = [node.url for node in nodes]
            kept = mqcore.QueueOptions(status=mqcore.QueueStatus.PULL, delivery_handler="at-least-once")
            async with mqcore.connect(urls, name="founder", patience=_PATIENCE) as client:
                await client.create_queue(_QUEUE, kept)
            task = progress.add_task("cluster: publish", total=len(pages))
            half = len(pages) // 2
            await _publish(urls, pages[:half], progress, task)
            await kill(leader.process)
            began = time.perf_counter()
            rest = [node for node in nodes if node is not leader]
            await _publish([node.url for node in rest], pages[half : half + 1], progress, task)
            silent = time.perf_counter() - began
            await _publish([node.url for node in rest], pages[half + 1 :], progress, task)
            arrived = await _everything(rest[-1].url)
            return [_judge(pages, arrived, silent)]


@contextlib.asynccontextmanager
async def _cluster(directory: Path) -> AsyncIterator[list[_Node]]:
    with contextlib.ExitStack() as probes:
        sockets = [probes.enter_context(socket.socket()) for _ in range(2 * len(_NODES))]
        for probe in sockets:
            probe.bind(("127.0.0.1", 0))
        ports = [int(probe.getsockname()[1]) for probe in sockets]
    clients = dict(zip(_NODES, ports[: len(_NODES)], strict=True))
    members = dict(zip(_NODES, ports[len(_NODES) :], strict=True))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MQCORE_")}
    nodes: list[_Node] = []
    try:
        for node in _NODES:
            config = directory / f"{node}.toml"
            peers = [f"{peer}=127.0.0.1:{port}" for peer, port in members.items() if peer != node]
            config.write_text(
                _NODE.format(
                    client=clients[node],
                    directory=directory,
                    node=node,
                    member=members[node],
                    peers=peers,
                    secret=_SECRET,
                )
            )
            with (directory / f"{node}.log").open("wb") as log:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "mqcore", "serve", "--config", str(config),
                    stdout=log, stderr=log, env=environment,
                )  # fmt: skip
            nodes.append(_Node(node, f"tmqp://127.0.0.1:{clients[node]}", f"127.0.0.1:{members[node]}", process))
        yield nodes
    finally:
        for running in nodes:
            await kill(running.process)


async def _leader(nodes: Sequence[_Node]) -> _Node:
    async with asyncio.timeout(_PATIENCE):
        while True:
            for node in nodes:
                if await asyncio.to_thread(node.leads):
                    return node
            await asyncio.sleep(0.05)


async def _publish(urls: list[str], pages: Sequence[Page], progress: Progress, task: object) -> None:
    """Publish in order. Files without a confirmation are sent again: they may have been saved."""
    rest = list(pages)
    async with asyncio.timeout(_PATIENCE + len(pages)):
        while rest:
            with contextlib.suppress(errors.TransportError):
                async with mqcore.connect(urls, name="producer", patience=_PATIENCE) as client:
                    while rest:
                        some = rest[:_WINDOW]
                        await asyncio.gather(*(client.publish(_QUEUE, p.body, headers={"Path": p.path}) for p in some))
                        del rest[:_WINDOW]
                        progress.update(task, advance=len(some))  # type: ignore[arg-type]


async def _everything(url: str) -> list[Key]:
    async with mqcore.connect(url, name="auditor", patience=_PATIENCE) as client:
        arrived: list[Key] = []
        while batch := list(await client.queue(_QUEUE).pull(_PULLED)):
            arrived += [(message.headers["Path"], digest(message.raw)) for message in batch]
        return arrived


def _judge(pages: Sequence[Page], arrived: list[Key], silent: float) -> Outcome:
    counts = Counter(arrived)
    repeated = len(arrived) - len(counts)
    promise = "each confirmed file, in order"
    outcome = Survival(_QUEUE, "pull", promise, len(pages), len(counts), repeated, round(silent * 1000), transcript=[])
    outcome.require(counts.keys() == expected(pages).keys(), "files are missing or damaged")
    first = list(dict.fromkeys(arrived))
    outcome.require(first == [page.key for page in pages], "files are out of order")
    return outcome
