"""Requests that are gathered for one write, the same for both clients of Throttr."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from mqcore.throttr import requests
from mqcore.throttr.models import Mode, Name, Rule, Unit
from mqcore.throttr.requests import Ask

__all__ = ["Gathering"]

# A pipeline has a method called `list`.
_List = list


class Gathering:
    """Requests that wait to be sent together."""

    def __init__(self) -> None:
        self._asked: _List[Ask[Any]] = []
        self.results: _List[Any] = []
        """The results in the order of the requests, once the block has ended. If the rule of a request cannot be
        applied, its result is the `Unacceptable` that a single call would raise."""

    def __len__(self) -> int:
        return len(self._asked)

    def _add(self, ask: Ask[Any]) -> Self:
        self._asked.append(ask)
        return self

    def _gathered(self) -> _List[Ask[Any]]:
        gathered, self._asked = self._asked, []
        return gathered

    def insert(self, key: Name, quota: int, ttl: int, *, unit: Unit | int = Unit.SECONDS) -> Self:
        """Add `Client.insert`, with a result of ``bool``."""
        return self._add(requests.insert(key, quota, ttl, unit=unit))

    def query(self, key: Name) -> Self:
        """Add `Client.query`, with a result of ``Counter | None``."""
        return self._add(requests.query(key))

    def update(self, key: Name, quota: int) -> Self:
        """Add `Client.update`, with a result of ``bool``."""
        return self._add(requests.update(key, quota))

    def increase(self, key: Name, by: int = 1) -> Self:
        """Add `Client.increase`, with a result of ``bool``."""
        return self._add(requests.increase(key, by))

    def decrease(self, key: Name, by: int = 1) -> Self:
        """Add `Client.decrease`, with a result of ``bool``."""
        return self._add(requests.decrease(key, by))

    def update_ttl(self, key: Name, ttl: int) -> Self:
        """Add `Client.update_ttl`, with a result of ``bool``."""
        return self._add(requests.update_ttl(key, ttl))

    def increase_ttl(self, key: Name, by: int) -> Self:
        """Add `Client.increase_ttl`, with a result of ``bool``."""
        return self._add(requests.increase_ttl(key, by))

    def decrease_ttl(self, key: Name, by: int) -> Self:
        """Add `Client.decrease_ttl`, with a result of ``bool``."""
        return self._add(requests.decrease_ttl(key, by))

    def purge(self, key: Name) -> Self:
        """Add `Client.purge`, with a result of ``bool``."""
        return self._add(requests.purge(key))

    def set(self, key: Name, value: bytes, ttl: int, *, unit: Unit | int = Unit.SECONDS) -> Self:
        """Add `Client.set`, with a result of ``bool``."""
        return self._add(requests.set_(key, value, ttl, unit=unit))

    def get(self, key: Name) -> Self:
        """Add `Client.get`, with a result of ``Buffer | None``."""
        return self._add(requests.get(key))

    def list(self) -> Self:
        """Add `Client.list`, with a result of ``list[Key]``."""
        return self._add(requests.list_())

    def info(self) -> Self:
        """Add `Client.info`, with a result of ``Information``."""
        return self._add(requests.info())

    def stat(self, key: Name) -> Self:
        """Add `Client.stat`, with a result of ``Uses | None``."""
        return self._add(requests.stat(key))

    def stats(self) -> Self:
        """Add `Client.stats`, with a result of ``dict[bytes, Uses]``."""
        return self._add(requests.stats())

    def subscribe(self, channel: Name) -> Self:
        """Add `Client.subscribe`, with a result of ``bool``."""
        return self._add(requests.subscribe(channel))

    def unsubscribe(self, channel: Name) -> Self:
        """Add `Client.unsubscribe`, with a result of ``bool``."""
        return self._add(requests.unsubscribe(channel))

    def publish(self, channel: Name, payload: bytes) -> Self:
        """Add `Client.publish`, with a result of ``bool``."""
        return self._add(requests.publish(channel, payload))

    def connections(self) -> Self:
        """Add `Client.connections`, with a result of ``list[Connection]``."""
        return self._add(requests.connections())

    def connection(self, identity: bytes) -> Self:
        """Add `Client.connection`, with a result of ``Connection | None``."""
        return self._add(requests.connection(identity))

    def channels(self) -> Self:
        """Add `Client.channels`, with a result of ``list[ChannelInformation]``."""
        return self._add(requests.channels())

    def channel(self, channel: Name) -> Self:
        """Add `Client.channel`, with a result of ``list[Subscriber] | None``."""
        return self._add(requests.channel(channel))

    def whoami(self) -> Self:
        """Add `Client.whoami`, with a result of ``bytes``."""
        return self._add(requests.whoami())

    def consume(self, rule: Rule, mode: Mode = Mode.TAKE) -> Self:
        """Add `Client.consume`, with a result of ``Verdict``."""
        return self._add(requests.consume(rule, mode))

    def consume_all(self, rules: Sequence[Rule], mode: Mode = Mode.TAKE) -> Self:
        """Add `Client.consume_all`, with a result of ``tuple[bool, list[Verdict]]``."""
        return self._add(requests.consume_all(rules, mode))
