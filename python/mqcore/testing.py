"""Test double for programs that use mqcore: the real broker in memory, with a clock that the test controls.

::

    async with mqcore.testing.TestBroker(auto_create_queues=True) as mq:
        await mq.publish("orders/1001", b"...")
        await mq.settle()                      # wait until the broker is idle; tests need no sleeps
        await mq.clock.advance(minutes=5)      # acknowledgements time out, messages expire
        assert [message.attempts for message in mq.messages("orders/1001")] == [1]

It runs the same core, sessions and codecs as the product, with another transport and another clock. With
``TestBroker(app)`` it runs the handlers of a `mqcore.App` too, and `settle` waits for them.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Self, Unpack

from mqcore import _core, errors
from mqcore._server_process import ServerProcess
from mqcore.broker import Broker
from mqcore.config import BrokerConfig, Duration, seconds
from mqcore.notebook import message_html

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from types import TracebackType

    from mqcore._core import Message
    from mqcore.app import App
    from mqcore.broker import BrokerOptions
    from mqcore.observing import Authenticator, EventHandler

__all__ = ["Clock", "ServerProcess", "StoredMessage", "TestBroker", "tmqp"]

_SETTLE_TIMEOUT: Final = 30.0
_NEVER: Final = "36500d"
_POLL_SECONDS: Final = 0.001
"""Time between two looks at the handlers of apps."""


class tmqp:  # noqa: N801 (used like a module: tmqp.decode)
    """The broker's codec of TMQP/2.0."""

    Frame = _core.Frame
    """One frame; frozen, compared by value."""
    PREAMBLE: Final = b"TMQP/2.0"
    """First bytes of a connection: the client sends them, and the server echoes them."""
    PING: Final = bytes.fromhex("89ff000000000000")
    """Bytes of a PING."""
    PONG: Final = bytes.fromhex("8aff000000000000")
    """Bytes of a PONG."""

    @staticmethod
    def decode(
        data: bytes | bytearray, *, frame_bytes_max: int = 64 * 1024 * 1024, header_bytes_max: int = 65_535
    ) -> tuple[_core.Frame | None, int]:
        """Decode one frame from the front of `data`, and return it with its size in bytes.

        Return ``(None, 0)`` if more bytes are needed. Raises `mqcore.errors.BadFrame` for a malformed frame, and
        `mqcore.errors.TooLarge` for one that exceeds `frame_bytes_max` (default 64 MiB) or `header_bytes_max` (default
        65,535).
        """
        return _core.tmqp_decode(bytes(data), frame_bytes_max=frame_bytes_max, header_bytes_max=header_bytes_max)

    @staticmethod
    def encode(frame: _core.Frame) -> bytes:
        """Encode `frame`."""
        return _core.tmqp_encode(frame)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message that waits in a queue, with its delivery state."""

    message: Message
    """The message."""
    attempts: int
    """Number of deliveries so far."""
    put_backs: int
    """Number of times it was requeued."""
    saved: bool
    """Whether it has been saved."""

    @property
    def id(self) -> str:
        """Id of the message."""
        return self.message.id

    @property
    def body(self) -> bytes:
        """Body of the message."""
        return self.message.body

    def _notebook_row(self) -> dict[str, object]:
        return {"id": self.id, "attempts": self.attempts, "put_backs": self.put_backs, "saved": self.saved}

    def _repr_html_(self) -> str:
        return message_html("StoredMessage", self._notebook_row(), self.message.headers.items(), self.body)


class Clock:
    """The clock of a `TestBroker`. It stands still until `advance` is called."""

    def __init__(self, broker: TestBroker) -> None:
        self._broker = broker
        self._elapsed = 0.0

    @property
    def elapsed(self) -> float:
        """Total of all advances in seconds."""
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
        """Advance the clock by the sum of all arguments, run the timers that are due, and wait as `settle` does.

        The broker may read what a client has just sent after the clock moved. Call `TestBroker.settle` first if the
        order matters, for example between an acknowledgement and its timeout.

        Raises `TimeoutError` like `TestBroker.settle`.
        """
        by = _seconds(duration) + _seconds(
            timedelta(milliseconds=milliseconds, seconds=seconds, minutes=minutes, hours=hours, days=days)
        )
        self._broker._core.advance(by)
        self._elapsed += by
        await self._broker.settle()


# `Clock.advance` has an argument of the function's name.
_seconds = seconds


class TestBroker(Broker):
    """A broker in memory, with a clock that stands still until `clock.advance`. Takes the arguments of `Broker`.

    In place of a configuration it takes a `mqcore.App`: ``async with TestBroker(app) as mq`` runs its handlers against
    this broker instead of the app's own, and creates the queues to which the app publishes if they are missing.

    Only the broker's timers follow `clock`; handlers and clients run in real time. An advance of the clock would
    otherwise close connections, so the broker sends no pings and has no handshake timeout, unless `ping_interval` or
    `handshake_timeout` is given.

    >>> options = mqcore.QueueOptions(message_timeout="1m")
    >>> async with mqcore.testing.TestBroker(auto_create_channels=True, auto_create_queues=True) as test:
    ...     async with test.client() as client:
    ...         created = await client.declare("orders", 1, options)
    ...     receipt = await test.publish("orders/1", b"2 apples")
    ...     await test.clock.advance(minutes=2)
    ...     print(test.messages("orders/1"))
    []
    """

    _own_name = "test"
    __test__ = False  # keeps pytest from collecting this class

    def __init__(
        self,
        config: BrokerConfig | App | None = None,
        *,
        event_handlers: Mapping[str, EventHandler] | None = None,
        authenticators: Mapping[str, Authenticator] | None = None,
        **options: Unpack[BrokerOptions],
    ) -> None:
        self._apps: list[App] = []
        if config is not None and not isinstance(config, BrokerConfig):
            self._apps, config = [config], None
        if config is None:
            without_timeouts: BrokerOptions = {"ping_interval": _NEVER, "handshake_timeout": _NEVER}
            options = {**without_timeouts, **options}
        super().__init__(config, event_handlers=event_handlers, authenticators=authenticators, **options)

    def _new_core(self, config: BrokerConfig) -> _core.Broker:
        self.clock = Clock(self)
        return _core.Broker(config, manual_clock=True)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        try:
            for app in self._apps:
                await app._start(self, create_targets=True)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            for app in reversed(self._apps):
                await app.__aexit__(kind, error, traceback)
        finally:
            await super().__aexit__(kind, error, traceback)

    def __enter__(self) -> Self:
        if self._apps:
            raise errors.ConfigError(f"{self._apps[0]!r} needs an event loop; write 'async with TestBroker(app)'")
        return super().__enter__()

    @asynccontextmanager
    async def running(self, app: App) -> AsyncIterator[App]:
        """Run the handlers of an app during the block, as ``TestBroker(app)`` does. `settle` waits for them too."""
        await app._start(self, create_targets=True)
        self._apps.append(app)
        try:
            yield app
        finally:
            self._apps.remove(app)
            await app.__aexit__(None, None, None)

    async def settle(self, timeout: Duration = _SETTLE_TIMEOUT) -> None:
        """Wait until the broker is idle: all input is read, all handlers have answered, and all messages that can be
        delivered are delivered. Handlers of apps have ended, and so have those that their messages and results called.

        Raises `TimeoutError` if that has not happened after `timeout` (default 30 s); it names handlers that still run.
        """
        deadline = time.monotonic() + seconds(timeout)
        while True:
            before = sum(app._taken for app in self._apps)
            # A handler that ends meanwhile may settle its message when the broker has already been waited for.
            were_idle = not any(app._is_busy for app in self._apps)
            # The broker first reads all that the clients of apps have sent, and delivers what follows from it.
            await self._reach_apps()
            await asyncio.to_thread(self._core.settle, max(0.0, deadline - time.monotonic()))
            await self._reach_apps()
            while running := [app for app in self._apps if app._is_busy]:
                if time.monotonic() > deadline:
                    described = "; ".join(app._describe_running() for app in running)
                    raise TimeoutError(f"handlers still run after {seconds(timeout):g} s: {described}")
                await asyncio.sleep(_POLL_SECONDS)
            if were_idle and sum(app._taken for app in self._apps) == before:
                return

    async def _reach_apps(self) -> None:
        """Exchange a message with the client of each app: answers arrive after all deliveries before them."""
        for app in self._apps:
            await app.client.channels("")

    def messages(self, queue: str, limit: int = 10_000) -> list[StoredMessage]:
        """Return up to `limit` messages that wait in `queue`, such as ``orders/1001``, in delivery order.

        It does not change the queue. Raises `KeyError` if the queue does not exist.
        """
        waiting = self._core.waiting(queue, limit)
        if waiting is None:
            raise KeyError(queue)
        return [StoredMessage(*entry) for entry in waiting]
