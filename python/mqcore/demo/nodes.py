"""The part for nodes: a broker forwards files to two others; one of them is killed and restarted."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import mqcore
from mqcore.demo.durable import serve
from mqcore.demo.library import Key, Page, digest
from mqcore.demo.outcome import Outcome

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["run"]

_QUEUE = "library-nodes/0"
_WINDOW = 32
_LOOKS = 3000
"""Polls, 20 ms apart, after which missing files count as lost."""
_PULLED = 256

_SOUTH = """
[node]
name = "south"
keep_messages = true
reconnect_wait = "50ms"
[[upstream]]
url = "tmqp://127.0.0.1:{north}"
[[upstream]]
url = "tmqp://127.0.0.1:{archive}"
send = {{allow = [{{header = "Path", value = "*/*"}}]}}
"""
"""South forwards all files to north, and files in packages to the archive."""


@dataclass(slots=True)
class Copy(Outcome):
    """Files at one node that were published at another."""

    published: int
    wanted: int
    arrived: int
    killed: int

    def numbers(self) -> dict[str, int]:
        """Numbers of published, expected and received files, and of kills of this node."""
        return {"published": self.published, "wanted": self.wanted, "arrived": self.arrived, "killed": self.killed}


async def run(pages: Sequence[Page], progress: Progress) -> list[Outcome]:
    """Publish at south; kill north once half is published, restart it, and check the files of all nodes."""
    with tempfile.TemporaryDirectory(prefix="mqcore-demo-") as name:
        directory = Path(name)
        ports = {"north": _free_port(), "archive": _free_port()}
        listen = {node: f"tmqp://127.0.0.1:{port}" for node, port in ports.items()}
        config = directory / "south.toml"
        config.write_text(_SOUTH.format(**ports))
        async with contextlib.AsyncExitStack() as running:
            archive = await running.enter_async_context(
                serve(directory / "archive", "--node-name", "archive", listen=listen["archive"])
            )
            north_arguments = (directory / "north", "--node-name", "north")
            north = await running.enter_async_context(serve(*north_arguments, listen=listen["north"]))
            south = await running.enter_async_context(serve(directory / "south", "--config", str(config)))
            for url in (archive.url, north.url, south.url):
                await _declare(url)
            task = progress.add_task("nodes: publish", total=len(pages))
            half = len(pages) // 2
            await _publish(south.url, pages[:half], progress, task)
            await north.kill()
            await _publish(south.url, pages[half:], progress, task)
            north = await running.enter_async_context(serve(*north_arguments, listen=listen["north"]))
            taken = await _everything(south.url, len(pages))
            packaged = [key for key in taken if "/" in key[0]]
            return [
                _judge("south", pages, [page.key for page in pages], sorted(taken), 0, ordered=False),
                _judge("north", pages, taken, await _everything(north.url, len(taken)), 1),
                _judge("archive", pages, packaged, await _everything(archive.url, len(packaged)), 0),
            ]


def _free_port() -> int:
    """A free port for a broker that is restarted at the same address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _declare(url: str) -> None:
    async with mqcore.connect(url, name="founder") as client:
        kept = mqcore.QueueOptions(status=mqcore.QueueStatus.PULL, delivery_handler="at-least-once")
        await client.create_queue(_QUEUE, kept)


async def _publish(url: str, pages: Sequence[Page], progress: Progress, task: object) -> None:
    async with mqcore.connect(url, name="producer") as client:
        for first in range(0, len(pages), _WINDOW):
            some = pages[first : first + _WINDOW]
            sent = [asyncio.create_task(client.publish(_QUEUE, p.body, headers={"Path": p.path})) for p in some]
            await asyncio.gather(*sent)
            progress.update(task, advance=len(some))  # type: ignore[arg-type]


async def _everything(url: str, wanted: int) -> list[Key]:
    """Wait until a node has this many files, and consume them in order."""
    async with mqcore.connect(url, name="auditor") as client:
        queue = client.queue(_QUEUE)
        for _ in range(_LOOKS):
            if (await queue.information()).messages >= wanted:
                break
            await asyncio.sleep(0.02)
        arrived: list[Key] = []
        while batch := list(await queue.pull(_PULLED)):
            arrived += [(message.headers["Path"], digest(message.raw)) for message in batch]
        return arrived


def _judge(
    name: str, pages: Sequence[Page], wanted: list[Key], arrived: list[Key], killed: int, *, ordered: bool = True
) -> Outcome:
    promise = "each file once, in the order of south" if ordered else "each file once"
    outcome = Copy(name, "pull", promise, len(pages), len(wanted), len(arrived), killed)
    outcome.require(len(arrived) == len(wanted), f"{len(arrived)} files arrived, {len(wanted)} expected")
    outcome.require(len(set(arrived)) == len(arrived), "files arrived more than once")
    outcome.require(set(arrived) == set(wanted), "files are missing, damaged, or do not match the filter")
    outcome.require(not ordered or arrived == wanted, "files are out of order")
    return outcome
