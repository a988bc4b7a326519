# Generated from python/mqcore/client/messages.py by tools/generate_sync.py: change that, then run `make generate`.
"""Messages that can be answered: deliveries of a queue, and direct messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self, TypeVar, overload

from mqcore import bodies
from mqcore.client.incoming import Incoming
from mqcore.client.options import TOPIC_PREFIXES
from mqcore.config import Duration, seconds

if TYPE_CHECKING:
    from mqcore import _core
    from mqcore._tracing import Spanned

__all__ = ["Batch", "Delivered", "PulledBatch", "Request"]

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)


class Delivered(Incoming[_T_co]):
    """A message of a queue, to be settled once if the queue requests acknowledgements."""

    __slots__ = ()

    @property
    def address(self) -> str:
        """The queue: ``orders/1001``; for a message of a topic its target, such as ``@topic:orders.new``."""
        # Besides topics, only the plain names of MQKS and MicroMessage2 contain a slash: `orders/0`.
        plain = self.topic is not None or "/" in self.target
        return self.target if plain else f"{self.target}/{self.content_type}"

    @property
    def topic(self) -> str | None:
        """The topic of a message that a subscription to topics received: ``orders.new``; ``None`` for others."""
        target = self.target
        prefixes = (prefix for prefix in TOPIC_PREFIXES if self.content_type == 0 and target.startswith(prefix))
        prefix = next(prefixes, None)
        return None if prefix is None else target.removeprefix(prefix)

    @property
    def wants_acknowledge(self) -> bool:
        """Whether the queue requests an acknowledgement. If not, settling does nothing."""
        return self._core.wants_acknowledge

    @property
    def is_settled(self) -> bool:
        """Whether this client settled it."""
        return self._core.is_settled

    def ack(self) -> bool:
        """Acknowledge it. Return whether the acknowledgement was sent.

        False is not an error: the queue does not request acknowledgements, the message was settled before, or the
        broker delivers it again, because its connection is lost or its acknowledge timeout has passed. An
        acknowledgement that the client sends at the end of the timeout can still be in time for the broker.
        """
        outcome = self._core.ack()
        if self._span is not None:
            self._span.end("acked" if outcome == "sent" else outcome)
        return outcome == "sent"

    @property
    def attempt(self) -> int | None:
        """The number of this attempt to deliver it, from 1. ``None`` in MicroMessage2 and from original TMQP servers,
        which do not send it."""
        return self._core.attempt

    def nack(self, reason: str = "none", *, delay: Duration | None = None) -> bool:
        """Reject it: the delivery handler of its queue decides what follows. Return whether that was sent.

        A requeued message is redelivered after the queue's ``retry_delay``, or after `delay` instead. Raises
        `NotSupported` for a `delay` over MQKS and MicroMessage2.
        """
        outcome = self._core.nack(reason, None if delay is None else seconds(delay))
        if self._span is not None:
            self._span.end("nacked" if outcome == "sent" else outcome, reason)
        return outcome == "sent"

    def working(self) -> bool:
        """Ask for more time: the queue's acknowledge timeout starts again. Return whether that was sent in time.

        Call it now and then while processing takes longer than the timeout. Needs a broker of mqcore; over
        MicroMessage2 also the extension ``x-mqcore``.

        >>> receipt = mq.publish("orders/2", "pears")
        >>> with mq.queue("orders/2").consume(str, idle_timeout=0.5) as messages:
        ...     for message in messages:
        ...         print(message.working(), message.ack())
        True True
        """
        return self._core.working() == "sent"

    @contextmanager
    def process(self) -> Iterator[Self]:
        """Acknowledge when the block succeeds. When it raises, reject with the exception's name, and raise."""
        try:
            yield self
        except BaseException as error:
            self._core.nack(type(error).__name__)
            if self._span is not None:
                self._span.end("nacked", error)
            raise
        outcome = self._core.ack()
        if self._span is not None:
            self._span.end("acked" if outcome == "sent" else outcome)


class Request(Incoming[_T_co]):
    """A direct message to this client."""

    __slots__ = ("_client",)

    def __init__(self, core: _core.Received, wanted: type[_T_co], client: _core.BlockingClient) -> None:
        super().__init__(core, wanted)
        self._client = client

    @property
    def wants_response(self) -> bool:
        """Whether its sender waits for a response."""
        return self._core.wants_response

    @property
    def wants_acknowledge(self) -> bool:
        """Whether its sender waits for an acknowledgement."""
        return self._core.wants_acknowledge

    def respond(self, body: object = b"", *, status: int = 0) -> None:
        """Send a response. Status 0 is success; 1000 and above are free for applications."""
        self._client.respond(self._core, status, bodies.encode(body))

    def ack(self) -> None:
        """Acknowledge it to its sender."""
        self._client.acknowledge_direct(self._core)

    def nack(self, reason: str = "none") -> None:
        """Reject it to its sender."""
        self._client.acknowledge_direct(self._core, reason)


class Batch(Sequence[Delivered[_T]]):
    """Messages that came together. One call settles all of them."""

    def __init__(self, core: _core.ReceivedBatch, wanted: type[_T]) -> None:
        self._core = core
        self._wanted = wanted
        self._messages: list[Delivered[_T]] | None = None
        self._span: Spanned | None = None

    @property
    def bodies(self) -> list[_T]:
        """The bodies as the requested type: the quickest way to read all of them. Raises `BodyError`."""
        raw = self._core.bodies()
        return raw if self._wanted is bytes else [bodies.decode(body, self._wanted) for body in raw]  # type: ignore[return-value]

    def ack(self) -> int:
        """Acknowledge those that are not settled. Return how many acknowledgements were sent in time; see
        `Delivered.ack`.
        """
        count = self._core.ack()
        if self._span is not None:
            self._span.end("acked")
        return count

    def nack(self, reason: str = "none", *, delay: Duration | None = None) -> int:
        """Reject those that are not settled; see `Delivered.nack`. Return how many rejections were sent in time."""
        count = self._core.nack(reason, None if delay is None else seconds(delay))
        if self._span is not None:
            self._span.end("nacked", reason)
        return count

    @contextmanager
    def process(self) -> Iterator[Self]:
        """Acknowledge all when the block succeeds. When it raises, reject those that are not settled with the
        exception's name, and raise.
        """
        try:
            yield self
        except BaseException as error:
            self._core.nack(type(error).__name__)
            if self._span is not None:
                self._span.end("nacked", error)
            raise
        self._core.ack()
        if self._span is not None:
            self._span.end("acked")

    def _all(self) -> list[Delivered[_T]]:
        if self._messages is None:
            self._messages = [Delivered(core, self._wanted) for core in self._core.messages()]
        return self._messages

    def __len__(self) -> int:
        return len(self._core)

    @overload
    def __getitem__(self, index: int) -> Delivered[_T]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Delivered[_T]]: ...
    def __getitem__(self, index: int | slice) -> Delivered[_T] | list[Delivered[_T]]:
        return self._all()[index]

    def __iter__(self) -> Iterator[Delivered[_T]]:
        return iter(self._all())


class PulledBatch(Batch[_T]):
    """The messages of one pull."""

    def __init__(self, core: _core.ReceivedBatch, wanted: type[_T], remaining: int | None, complete: bool) -> None:
        super().__init__(core, wanted)
        self.remaining = remaining
        """Messages left in the queue, if the broker sent their number."""
        self.complete = complete
        """Whether the broker sent all it had; false if the time was over or the connection was lost before."""
