"""A broker where all protocols meet, and the table of what held."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from conformance.adapters import PARTIES, Delivery, Party, Place
from mqcore.testing import TestBroker
from protocols.conversation import ADD_BINDING, ROUND_ROBIN, Client


class World:
    """A broker that listens in every protocol, and who is connected to it."""

    def __init__(self, broker: TestBroker, stack: contextlib.ExitStack) -> None:
        self.broker = broker
        self._stack = stack
        self._urls: dict[str, list[str]] = {}
        for url in broker.listeners:
            self._urls.setdefault(url.partition("://")[0], []).append(url)
        self._parties: list[Party] = []

    def connect(self, protocol: str) -> Party:
        """One more party."""
        party = PARTIES[protocol](*self._urls[protocol])
        self._parties.append(party)
        return party

    def leave(self, party: Party) -> None:
        """A party leaves."""
        self._parties.remove(party)
        before = len(self.broker.stats().clients)
        party.close()
        while len(self.broker.stats().clients) >= before:
            self.settle()

    def close(self) -> None:
        """Disconnect all clients."""
        for party in self._parties:
            party.close()

    def settle(self) -> None:
        """Wait until nothing is in flight in the broker."""
        asyncio.run(self.broker.settle())

    def pass_time(self, seconds: float) -> None:
        """Turn the broker's clock."""
        asyncio.run(self.broker.clock.advance(seconds=seconds))

    def queue(self, **options: Any) -> Place:
        """A queue that is bound to the topic of its name; what is delivered of it must be acknowledged."""
        place = Place("orders", is_queue=True)
        host, _, port = self._urls["tmqp"][0].partition("://")[2].rpartition(":")
        with Client(host, int(port)) as maker:
            maker.hello()
            settings = {"Status": ROUND_ROBIN, "RequestAcknowledge": True, "WaitForAcknowledge": False, **options}
            maker.create_queue(place.name, 0, **settings)
            maker.do(ADD_BINDING, f"@topic:{place.name}", body=json.dumps({"Target": f"{place.name}/0"}).encode())
        return place

    def topic(self) -> Place:
        """A topic."""
        return Place("orders.new", is_queue=False)

    def publish(self, party: Party, place: Place, *bodies: bytes) -> None:
        """Publish, and wait until that is done."""
        for body in bodies:
            party.publish(place, body)
        party.take()
        self.settle()

    def received(self, party: Party) -> list[Delivery]:
        """All that was delivered to a party by now."""
        early = party.take()
        self.settle()
        return early + party.take()


@pytest.fixture
def world() -> Iterator[World]:
    """A broker with one listener a protocol, whose clock stands still."""
    listeners = [party.listener for party in PARTIES.values()]
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(TestBroker(listen=listeners, shards=2))
        with contextlib.closing(World(broker, stack)) as world:
            yield world


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print who can publish to whom, and which promises held on the way."""
    held: dict[tuple[str, str], dict[str, bool]] = {}
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, ()):
            for name, value in getattr(report, "user_properties", ()):
                if name == "promise":
                    promise, sender, receiver = value
                    held.setdefault((sender, receiver), {})[promise] = outcome == "passed"
    if not held:
        return
    promises = sorted({promise for row in held.values() for promise in row})
    width = max(map(len, promises)) + 2
    pairs = [(sender, receiver) for sender in PARTIES for receiver in PARTIES if (sender, receiver) in held]
    terminalreporter.section("protocols meet: published in one, received in the other")
    columns = [f"{sender} > {receiver}" for sender, receiver in pairs]
    terminalreporter.write_line(" " * width + "  ".join(columns))
    for promise in promises:
        cells = [
            {True: "yes", False: "NO", None: "-"}[held[pair].get(promise)].center(len(column))
            for pair, column in zip(pairs, columns, strict=True)
        ]
        terminalreporter.write_line(promise.ljust(width) + "  ".join(cells).rstrip())
