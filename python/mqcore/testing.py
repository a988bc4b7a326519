"""For the tests of programs that use mqcore: the real broker, in memory, with a clock that the test turns.

::

    async with mqcore.testing.TestBroker(auto_create_queues=True) as mq:
        await mq.publish("orders/1001", b"...")
        await mq.settle()                      # nothing is left to do: no sleeps
        await mq.clock.advance(minutes=5)      # acknowledgements time out, messages expire
        assert [message.attempts for message in mq.messages("orders/1001")] == [1]

The double is the product: the same core, the same sessions and codec, another transport and another clock.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Unpack

from mqcore import _core
from mqcore.broker import Broker
from mqcore.config import Duration, seconds

if TYPE_CHECKING:
    from mqcore._core import Message
    from mqcore.broker import BrokerOptions
    from mqcore.client import Client, Receipt
    from mqcore.config import BrokerConfig

__all__ = ["Clock", "StoredMessage", "TestBroker", "tmqp"]

_SETTLE_TIMEOUT: Final = 30.0
_NEVER: Final = "36500d"


class tmqp:  # noqa: N801 (used like a module: tmqp.decode)
    """The codec of TMQP/2.0, as the broker itself uses it."""

    Frame = _core.Frame
    """One frame; frozen, compared by value."""
    PREAMBLE: Final = b"TMQP/2.0"
    """What a client sends first, and the server echoes."""
    PING: Final = bytes.fromhex("89ff000000000000")
    """A PING, always these octets."""
    PONG: Final = bytes.fromhex("8aff000000000000")
    """A PONG, always these octets."""

    @staticmethod
    def decode(
        data: bytes | bytearray, *, frame_bytes_max: int = 64 * 1024 * 1024, header_bytes_max: int = 65_535
    ) -> tuple[_core.Frame | None, int]:
        """Read one frame from the front of `data`: the frame, and how many octets it took.

        ``(None, 0)`` means that more octets are needed. Raises `mqcore.errors.BadFrame` for what can be no
        frame, and `mqcore.errors.TooLarge` for one that is announced to be beyond the limits.
        """
        return _core.tmqp_decode(bytes(data), frame_bytes_max=frame_bytes_max, header_bytes_max=header_bytes_max)

    @staticmethod
    def encode(frame: _core.Frame) -> bytes:
        """Return the octets of `frame`."""
        return _core.tmqp_encode(frame)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message that waits in a queue, and what the queue remembers of it."""

    message: Message
    """The message."""
    attempts: int
    """How often it was handed out."""
    put_backs: int
    """How often it was put back."""
    saved: bool
    """Whether it was saved."""

    @property
    def id(self) -> str:
        """The message's id."""
        return self.message.id

    @property
    def body(self) -> bytes:
        """The message's body."""
        return self.message.body


class Clock:
    """The clock of a `TestBroker`: it stands still until it is turned."""

    def __init__(self, broker: TestBroker) -> None:
        self._broker = broker
        self._elapsed = 0.0

    @property
    def elapsed(self) -> float:
        """Seconds by which it was turned."""
        return self._elapsed

    async def advance(
        self,
        duration: Duration = 0.0,
        *,
        milliseconds: float = 0,
        seconds: float = 0,
        minutes: float = 0,
        hours: float = 0,
        days: float = 0,
    ) -> None:
        """Turn the clock forward, let everything happen whose time has come, and wait until it has."""
        by = _seconds(duration) + _seconds(
            timedelta(milliseconds=milliseconds, seconds=seconds, minutes=minutes, hours=hours, days=days)
        )
        self._broker._core.advance(by)
        self._elapsed += by
        await self._broker.settle()


# `Clock.advance` has an argument of the function's name.
_seconds = seconds


class TestBroker(Broker):
    """A broker in memory, whose clock stands still. Arguments as for `Broker`.

    Handlers and clients are real, so their own time is real too: only the broker's timers follow `clock`. So that a
    clock that jumps cuts no connection, peers are not pinged and may take their time to connect, unless `ping_interval`
    or `handshake_timeout` is given.
    """

    __test__ = False  # pytest: this is no test case

    def __init__(self, config: BrokerConfig | None = None, **options: Unpack[BrokerOptions]) -> None:
        if config is None:
            patient: BrokerOptions = {"ping_interval": _NEVER, "handshake_timeout": _NEVER}
            options = {**patient, **options}
        super().__init__(config, **options)
        self._publisher: Client | None = None

    def _new_core(self, config: BrokerConfig) -> _core.Broker:
        self.clock = Clock(self)
        return _core.Broker(config, manual_clock=True)

    async def publish(self, queue: str, body: object, **options: Any) -> Receipt:
        """Publish as `mqcore.Client.publish` does, by a client of the test broker's own."""
        if self._publisher is None:
            self._publisher = await self.client(name="test")
        return await self._publisher.publish(queue, body, **options)

    async def aclose(self, grace: Duration = 5.0) -> None:
        """Stop like `Broker.aclose`."""
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            await publisher.close()
        await super().aclose(grace)

    async def settle(self, timeout: Duration = _SETTLE_TIMEOUT) -> None:
        """Wait until nothing is left to do: all that clients wrote is read, every handler has answered, and
        every message that can be handed out is.

        Raises `TimeoutError` if there is still something to do after `timeout`.
        """
        await asyncio.to_thread(self._core.settle, seconds(timeout))

    def messages(self, queue: str, limit: int = 10_000) -> list[StoredMessage]:
        """Return the messages that wait in a queue, ``orders/1001``, the next one first. Looking changes
        nothing.

        Raises `KeyError` if there is no such queue.
        """
        waiting = self._core.waiting(queue, limit)
        if waiting is None:
            raise KeyError(queue)
        return [StoredMessage(*entry) for entry in waiting]
