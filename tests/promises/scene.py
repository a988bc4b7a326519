"""Everything that the actors of one run share: the plan, the broker, the way to it, and the history."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import mqcore
from promises.brokers import RunningBroker
from promises.history import History
from promises.model import World
from promises.plan import Actor, Plan
from tcp_proxy import TcpProxy

FENCE = 99
"""The queue of each channel to which a client publishes to learn that the broker processed what it sent before."""

REQUEST_SECONDS = 4.0
"""Longest wait for a confirmation. Only a broken promise takes that long, or a broker that starts again."""


@dataclass
class Scene:
    """One run."""

    plan: Plan
    broker: RunningBroker
    history: History = field(default_factory=History)
    world: World = field(default_factory=World)
    proxies: dict[str, TcpProxy] = field(default_factory=dict)
    """A proxy in front of each listener that proxied actors use."""
    quiet: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when all producers have finished and consumers had their time."""
    began: float = 0.0
    _numbers: dict[str, itertools.count[int]] = field(default_factory=dict)

    def url(self, actor: Actor, protocol: str | None = None) -> str:
        """The URL to which an actor connects."""
        url = self.broker.urls[protocol or actor.protocol.removeprefix("raw-")]
        if not actor.proxied:
            return url
        parts = urlsplit(url)
        return parts._replace(netloc=f"127.0.0.1:{self.proxies[parts.scheme].port}").geturl()

    def connect(self, actor: Actor) -> mqcore.Client:
        """A client that gives up late and reconnects soon."""
        target: str | mqcore.Broker = self.url(actor)
        embedded = self.broker.embedded
        if embedded is not None and not self.plan.faults and actor.protocol == "tmqp" and self.plan.seed % 4 == 0:
            target = embedded
        return mqcore.connect(
            target,
            name=actor.options.get("name", actor.name),
            request_timeout=REQUEST_SECONDS,
            backoff_first="10ms",
            backoff_max="100ms",
            drain_timeout="1s",
            patience="20s",
        )

    def label(self, actor: Actor) -> str:
        """A new name for a message."""
        return f"{actor.name}-{next(self._numbers.setdefault(actor.name, itertools.count()))}"

    def quiet_within(self, limit: float) -> None:
        """Wait in a thread until the scene is quiet, or for `limit` seconds."""
        deadline = time.monotonic() + limit
        while not self.quiet.is_set() and time.monotonic() < deadline:
            time.sleep(0.005)

    async def until(self, milliseconds: float) -> None:
        """Wait until this time of the plan."""
        await asyncio.sleep(max(0.0, self.began + milliseconds / 1000 - self.history.now()))


def body_of(label: str, verdict: str = "", size: int = 0) -> bytes:
    """The body of a message: its label, how a handler decides about it, and a filling."""
    filling = " " + "x" * size if size else ""
    return f"{label}!{verdict}{filling}".encode()


def label_of(body: bytes) -> str:
    """The label of a message."""
    return body.partition(b"!")[0].decode()
