# Generated from python/mqcore/client/topic.py by tools/generate_sync.py: change that, then run `make generate`.
"""One topic, as a client reaches it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from mqcore import errors
from mqcore.client.arguments import consume_options, optional_seconds
from mqcore.client.options import PREFETCH, ConsumeOptions
from mqcore.config import Duration
from mqcore.sync.streams import Consumer

if TYPE_CHECKING:
    from mqcore.client.models import Receipt
    from mqcore.sync.client import Client

__all__ = ["Topic"]

_T = TypeVar("_T")


class Topic:
    """One topic, as this client reaches it; with ``*`` in its name, all topics that match it."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = name
        """``orders.new``; in a pattern, ``*`` matches any text without a dot."""

    @property
    def address(self) -> str:
        """The topic as `Client.publish` takes it: ``@topic:orders.new`` in TMQP, ``topic/orders.new`` in MicroMessage2,
        ``orders.new`` in MQKS.
        """
        match self._client.protocol:
            case "tmqp":
                return f"@topic:{self.name}"
            case "mm2":
                return f"topic/{self.name}"
            case _:
                return self.name

    def publish(self, body: object, **options: Any) -> Receipt:
        """Publish to its subscribers, and a copy to each queue that is bound to it; see `Client.publish`.

        The confirmation comes when every bound queue has taken its copy, and saved it if the queue saves its messages.
        Raises `Nacked` with the reason ``no-consumers`` if there is neither a subscriber nor a queue, and with another
        reason if a queue could not save its copy. A topic has no `cc`.

        >>> with mq.topic("fruit.apples").subscribe(str) as messages:
        ...     receipt = mq.topic("fruit.apples").publish("2 apples")
        ...     print((anext(messages)).body)
        2 apples
        """
        return self._client.publish(self.address, body, **options)

    def publish_many(self, bodies: Iterable[object], **options: Any) -> list[Receipt]:
        """Publish many messages to it; see `Client.publish_many`."""
        published: list[Receipt] = self._client.publish_many(self.address, bodies, **options)
        return published

    @overload
    def subscribe(
        self, *, idle_timeout: Duration | None = ..., **options: Unpack[ConsumeOptions]
    ) -> Consumer[bytes]: ...
    @overload
    def subscribe(
        self, wanted: type[_T], *, idle_timeout: Duration | None = ..., **options: Unpack[ConsumeOptions]
    ) -> Consumer[_T]: ...
    def subscribe(
        self, wanted: type[Any] = bytes, *, idle_timeout: Duration | None = None, **options: Unpack[ConsumeOptions]
    ) -> Consumer[Any]:
        """Return its messages from now on, for ``for``. Bodies are decoded as `wanted`.

        Every subscriber gets every message, also several in one client. A topic stores nothing: messages that are
        published while the connection is lost, or while the client reads too slowly, are missed. The stream ends when
        no message came for `idle_timeout`. `Delivered.topic` is the topic of a message.

        `options` are those of `Queue.consume` for MicroMessage2, such as `filter`. Raises `NotSupported` in MQKS, which
        delivers topics to queues only: use ``client.queue(NAME).consume(events=[...])`` there.
        """
        if self._client.protocol == "mqks":
            raise errors.NotSupported(
                f"MQKS has no operation to subscribe to topic {self.name} without a queue; use "
                f"client.queue(NAME).consume(events=[{self.name!r}])"
            )
        idle = optional_seconds(idle_timeout)
        return Consumer(self._client, self.address, wanted, PREFETCH, idle, consume_options(options))

    def __repr__(self) -> str:
        return f"<Topic {self.name}>"
