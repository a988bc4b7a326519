# Generated from python/mqcore/client/queue.py by tools/generate_sync.py: change that, then run `make generate`.
"""One queue, as a client reaches it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from mqcore.client.arguments import consume_options, optional_seconds, pull_count, pull_options, total
from mqcore.client.incoming import Incoming
from mqcore.client.options import PREFETCH, Clear, ConsumeOptions, Order
from mqcore.config import Duration
from mqcore.sync.messages import PulledBatch
from mqcore.sync.streams import Consumer, PullStream

if TYPE_CHECKING:
    from mqcore.client.models import QueueInformation, Receipt
    from mqcore.sync.client import Client

__all__ = ["Queue"]

_T = TypeVar("_T")


class Queue:
    """One queue, as this client reaches it."""

    def __init__(self, client: Client, address: str) -> None:
        self._client = client
        self.address = address
        """``orders/1001``."""

    def publish(self, body: object, **options: Any) -> Receipt:
        """Publish to it; see `Client.publish`."""
        return self._client.publish(self.address, body, **options)

    def publish_many(self, bodies: Iterable[object], **options: Any) -> list[Receipt]:
        """Publish many messages to it; see `Client.publish_many`."""
        published: list[Receipt] = self._client.publish_many(self.address, bodies, **options)
        return published

    @overload
    def consume(
        self, *, prefetch: int = ..., idle_timeout: Duration | None = ..., **options: Unpack[ConsumeOptions]
    ) -> Consumer[bytes]: ...
    @overload
    def consume(
        self,
        wanted: type[_T],
        *,
        prefetch: int = ...,
        idle_timeout: Duration | None = ...,
        **options: Unpack[ConsumeOptions],
    ) -> Consumer[_T]: ...
    def consume(
        self,
        wanted: type[Any] = bytes,
        *,
        prefetch: int = PREFETCH,
        idle_timeout: Duration | None = None,
        **options: Unpack[ConsumeOptions],
    ) -> Consumer[Any]:
        """Return a consumer of this queue for ``for``. Bodies are decoded as `wanted`.

        If the queue requests acknowledgements, the broker sends at most `prefetch` messages that are not settled. The
        time to acknowledge a message begins when the program gets it; `Delivered.working` extends it. The stream ends
        when no message came for `idle_timeout`. It raises `NotFound` if the queue does not exist and the broker does
        not create queues automatically.

        TMQP has no `options`. Original TMQP servers know neither queues nor `prefetch` here: they send all messages of
        the channel, and the client rejects those of its other queues.

        In MQKS, `options` set the bindings of the queue: `events` replaces all of them (an empty list keeps them),
        `add_events` adds some; without either the event of the queue's name is added. ``delete_when_unused=True``, or a
        duration, deletes the queue when, or that long after, its last consumer leaves. With ``manual_ack=False`` the
        broker drops messages as soon as they are sent. After a reconnect the client restores the bindings that the
        broker reported last. The headers ``Topic`` and ``Retry`` of a message hold its event and the number of its
        redeliveries.

        In MicroMessage2 a destination is a queue or ``topic/NAME``, and `filter` selects messages of a topic by their
        properties: ``price>N10;region=Teu``. With ``manual_ack=False`` the client acknowledges messages as they come.
        Raises `NotSupported` if the two sides did not agree on ``pub-sub``.

        >>> receipts = mq.publish_many("orders/2", ["apples", "pears"])
        >>> with mq.queue("orders", 2).consume(str, idle_timeout=0.5) as messages:
        ...     for message in messages:
        ...         with message.process():
        ...             print(message.body)
        apples
        pears
        """
        idle = optional_seconds(idle_timeout)
        return Consumer(self._client, self.address, wanted, prefetch, idle, consume_options(options))

    @overload
    def pull(
        self, count: int = ..., *, order: Order = ..., clear: Clear | None = ..., timeout: Duration | None = ...
    ) -> PulledBatch[bytes]: ...
    @overload
    def pull(
        self,
        count: int,
        wanted: type[_T],
        *,
        order: Order = ...,
        clear: Clear | None = ...,
        timeout: Duration | None = ...,
    ) -> PulledBatch[_T]: ...
    def pull(
        self,
        count: int = 1,
        wanted: type[Any] = bytes,
        *,
        order: Order = "fifo",
        clear: Clear | None = None,
        timeout: Duration | None = None,
    ) -> PulledBatch[Any]:
        """Take up to `count` messages from a pull queue, the oldest first unless `order` is ``lifo``.

        `clear` selects messages that the broker then removes from the queue. The batch of an empty queue is empty. When
        the call is cancelled, messages that have arrived are requeued, or returned by the next pull of this client if
        they need no acknowledgement.

        >>> created = mq.declare("letters", 1, mqcore.QueueOptions(status="pull"))
        >>> receipt = mq.publish("letters/1", "first")
        >>> batch = mq.queue("letters", 1).pull(10, str)
        >>> [message.body for message in batch]
        ['first']
        """
        pulled = self._client._connected().pull(self.address, pull_count(count), **pull_options(order, clear, timeout))
        return PulledBatch(pulled.take(), wanted, total(pulled.remaining), pulled.complete)

    @overload
    def pull_stream(
        self, count: int, *, order: Order = ..., clear: Clear | None = ..., timeout: Duration | None = ...
    ) -> PullStream[bytes]: ...
    @overload
    def pull_stream(
        self,
        count: int,
        wanted: type[_T],
        *,
        order: Order = ...,
        clear: Clear | None = ...,
        timeout: Duration | None = ...,
    ) -> PullStream[_T]: ...
    def pull_stream(
        self,
        count: int,
        wanted: type[Any] = bytes,
        *,
        order: Order = "fifo",
        clear: Clear | None = None,
        timeout: Duration | None = None,
    ) -> PullStream[Any]:
        """Take up to `count` messages like `pull`, and return them one by one as they arrive, for ``for``.

        `timeout` is the longest wait for the next message. When the loop is left early, messages that it did not take
        are requeued, or returned by the next pull of this client if they need no acknowledgement.

        >>> created = mq.declare("letters", 2, mqcore.QueueOptions(status="pull"))
        >>> receipts = mq.publish_many("letters/2", ["first", "second"])
        >>> for message in mq.queue("letters/2").pull_stream(10, str):
        ...     print(message.body)
        first
        second
        """
        return PullStream(self._client, self.address, pull_count(count), wanted, pull_options(order, clear, timeout))

    @overload
    def get_cached(self, *, timeout: Duration | None = ...) -> Incoming[bytes] | None: ...
    @overload
    def get_cached(self, wanted: type[_T], *, timeout: Duration | None = ...) -> Incoming[_T] | None: ...
    def get_cached(self, wanted: type[Any] = bytes, *, timeout: Duration | None = None) -> Incoming[Any] | None:
        """Return the message of a cache queue without removing it; ``None`` if there is none."""
        core = self._client._connected().get_cached(self.address, timeout=optional_seconds(timeout))
        return None if core is None else Incoming(core, wanted)

    def information(self) -> QueueInformation:
        """Describe it."""
        return self._client.queue_information(self.address)

    def __repr__(self) -> str:
        return f"<Queue {self.address}>"
