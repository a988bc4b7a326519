"""Recorded links between nodes, replayed by an attacker: nothing is published twice, and no link is taken over."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import mqcore
from damaged_files import SAVING
from served import ServedBroker, serving
from test_nodes import count, until

TOKEN = "secret-of-the-nodes"
FORGED = "a-guess-of-this-one"
"""As long as the token, so that a recording with it stays a valid frame."""
CONFIG = f"""
[node]
name = "top"
token = "{TOKEN}"
"""


class Recorder:
    """A TCP proxy that keeps what each downstream broker sent."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self.connections: list[bytearray] = []
        self.port = 0

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[Recorder]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self
            server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        recorded = bytearray()
        self.connections.append(recorded)
        above_reader, above_writer = await asyncio.open_connection(*self._target)
        back = asyncio.create_task(self._pass(above_reader, writer, None))
        with contextlib.suppress(ConnectionError):
            await self._pass(reader, above_writer, recorded)
        back.cancel()
        above_writer.close()
        writer.close()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, recorded: bytearray | None
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while part := await reader.read(1 << 16):
                if recorded is not None:
                    recorded += part
                writer.write(part)
                await writer.drain()


def replay(broker: ServedBroker, recorded: bytes) -> bytes:
    """Send a recording, and return what the broker answers until it has nothing more to say."""
    answered = bytearray()
    with socket.create_connection(broker.address, timeout=10) as peer, contextlib.suppress(ConnectionError):
        peer.sendall(recorded)
        # The broker ends the connection of a peer that has sent everything.
        peer.shutdown(socket.SHUT_WR)
        while part := peer.recv(1 << 16):
            answered += part
    return bytes(answered)


async def publish(broker: ServedBroker, names: list[str]) -> None:
    async with mqcore.connect(broker.url) as mq:
        for name in names:
            await mq.publish("work/1", name)


async def has_arrived(broker: ServedBroker, number: int) -> None:
    async def arrived() -> bool:
        return await count(broker.url, "work/1") >= number

    await until(f"{number} messages are at the upstream broker", arrived)
    assert await count(broker.url, "work/1") == number


async def test_replayed_frames_of_a_node_are_published_once_and_need_its_token(tmp_path: Path) -> None:
    config = tmp_path / "top.toml"
    config.write_text(CONFIG, encoding="utf-8")
    top = ("--config", str(config), "--data-dir", str(tmp_path / "top"))
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(serving(*top))
        async with mqcore.connect(upstream.url) as mq:
            await mq.declare("work", 1, SAVING)
        async with Recorder(upstream.address).listening() as recorder:
            down = ("--node-name", "south", "--keep-messages", "--auto-create", "--data-dir", str(tmp_path / "down"))
            url = f"tmqp://127.0.0.1:{recorder.port}?token={TOKEN}"
            downstream = stack.enter_context(serving(*down, "--upstream", url))
            await publish(downstream, [f"first {number}" for number in range(20)])
            await has_arrived(upstream, 20)
            recorded = bytes(recorder.connections[0])
            assert TOKEN.encode() in recorded
            assert b"first 19" in recorded

            # Without the token: refused, and the real link stands.
            for forged in (
                recorded.replace(TOKEN.encode(), FORGED.encode()),
                recorded[: recorded.index(b"CONNECT") - 8],
            ):
                await asyncio.to_thread(replay, upstream, forged)
            await asyncio.to_thread(replay, upstream, without_node_token(recorded))
            await publish(downstream, [f"second {number}" for number in range(5)])
            await has_arrived(upstream, 25)
            assert len(recorder.connections) == 1, "the real node was disconnected"

            # With the token: the replayed connection takes over, the real one returns, and nothing arrives twice.
            for _ in range(3):
                await asyncio.to_thread(replay, upstream, recorded)
            await publish(downstream, [f"third {number}" for number in range(5)])
            await has_arrived(upstream, 30)
            recordings = [bytes(each) for each in recorder.connections]
            downstream.terminate()
        upstream.process.send_signal(signal.SIGKILL)
        upstream.process.wait(10)
    # The broker knows after a crash which messages it has.
    with serving(*top) as upstream:
        for recorded in (*recordings, recordings[0], b"".join(recordings)):
            await asyncio.to_thread(replay, upstream, recorded)
        await has_arrived(upstream, 30)
        async with mqcore.connect(upstream.url) as mq, mq.join("work"):
            bodies = [message.body for message in await mq.queue("work/1").pull(100, str)]
        assert bodies == [
            f"{part} {number}" for part, size in (("first", 20), ("second", 5), ("third", 5)) for number in range(size)
        ]


def without_node_token(recorded: bytes) -> bytes:
    """The recording with another property in place of the token."""
    assert recorded.count(b"Client-Token: ") == 1, recorded[:300]
    return recorded.replace(b"Client-Token: ", b"Client-Truth: ")
