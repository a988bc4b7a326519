"""Calls of an embedded broker that need no client of the program: publish, send and declare."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, ClassVar, Unpack, overload

from mqcore import errors
from mqcore.config import ChannelOptions, QueueOptions, RouterOptions

if TYPE_CHECKING:
    from mqcore import _core, sync
    from mqcore.client import Client, Receipt
    from mqcore.client.options import ClientOptions, PublishOptions, SendOptions
    from mqcore.config import Duration

__all__ = ["BlockingCalls", "BrokerCalls"]


class BlockingCalls:
    """`publish`, `send` and `declare` of a broker for programs without an event loop: ``broker.sync``.

    In a coroutine they raise `InvalidArgument`, because they would block the event loop, on which handlers may run.
    """

    def __init__(self, core: _core.Broker, name: str) -> None:
        self._core = core
        self._name = name
        self._client: sync.Client | None = None
        self._lock = threading.Lock()

    def publish(self, queue: str, body: object, **options: Unpack[PublishOptions]) -> Receipt:
        """Publish like `mqcore.sync.Client.publish`. Raises `NotRunning`."""
        return self._connected("publish").publish(queue, body, **options)

    def send(self, target: str, body: object = b"", **options: Unpack[SendOptions]) -> None:
        """Send a direct message like `mqcore.sync.Client.send`. Raises `NotRunning`."""
        self._connected("send").send(target, body, **options)

    @overload
    def declare(self, declared: str, options: ChannelOptions | QueueOptions | None = None) -> bool: ...
    @overload
    def declare(self, declared: RouterOptions) -> bool: ...
    def declare(self, declared: str | RouterOptions, options: ChannelOptions | QueueOptions | None = None) -> bool:
        """Declare like `Broker.declare`."""
        _refuse_in_loop("declare")
        return self._core.declare(*_declaration(declared, options))

    def _connected(self, call: str) -> sync.Client:
        from mqcore import sync

        _refuse_in_loop(call)
        with self._lock:
            if not self._core.is_running:
                raise _not_running(call)
            if self._client is None:
                self._client = sync.Client(self._core, _options(self._name))
            return self._client

    def _close(self, drain: float) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close(drain)


class BrokerCalls:
    """The part of `Broker` that acts as a client of itself. It connects without a socket, at its first use."""

    _own_name: ClassVar[str] = "broker"
    """The client name of its own connections."""

    def __init__(self, core: _core.Broker) -> None:
        self._core = core
        self._sync = BlockingCalls(core, self._own_name)
        self._own_client: Client | None = None

    @property
    def sync(self) -> BlockingCalls:
        """The same calls for programs without an event loop: ``broker.sync.publish("orders/1001", b"2 apples")``."""
        return self._sync

    async def publish(self, queue: str, body: object, **options: Unpack[PublishOptions]) -> Receipt:
        """Publish a message like `mqcore.Client.publish`, with a connection of the broker's own.

        No login is needed. Without an event loop use `sync`. A delivery handler must not wait for the confirmation of
        a message to its own queue, because the handler decides about it. Raises `NotRunning`.

        >>> async with mqcore.Broker(auto_create_channels=True, auto_create_queues=True) as shop:
        ...     receipt = await shop.publish("orders/1001", b"2 apples")
        ...     shop.stats().queue("orders/1001").normal
        1
        """
        return await (await self._connected("publish")).publish(queue, body, **options)

    async def send(self, target: str, body: object = b"", **options: Unpack[SendOptions]) -> None:
        """Send a direct message like `mqcore.Client.send`, to ``@name:NAME`` for example. Raises `NotRunning`."""
        await (await self._connected("send")).send(target, body, **options)

    @overload
    async def declare(self, declared: str, options: ChannelOptions | QueueOptions | None = None) -> bool: ...
    @overload
    async def declare(self, declared: RouterOptions) -> bool: ...
    async def declare(
        self, declared: str | RouterOptions, options: ChannelOptions | QueueOptions | None = None
    ) -> bool:
        """Create a channel, a queue or a router, unless it exists as declared. Return whether it was created.

        `declared` is the name of a channel, with `ChannelOptions`; the address of a queue, with `QueueOptions`; or a
        `RouterOptions`, which has its name. Without `options` a name with a slash is a queue. Options that are ``None``
        may have any value. When the call returns, what was created is on disk, if there is a data directory.

        Raises `AlreadyExists` if it exists with other options, and names them; `BadRequest`, `NotFound` and the like
        as for creating it; `ConfigError` for an invalid name; and `NotRunning`.

        >>> async with mqcore.Broker() as shop:
        ...     created = await shop.declare("orders/1001", mqcore.QueueOptions(status="pull"))
        ...     again = await shop.declare("orders/1001", mqcore.QueueOptions(status="pull"))
        >>> created, again
        (True, False)
        """
        return await asyncio.to_thread(self._core.declare, *_declaration(declared, options))

    async def _connected(self, call: str) -> Client:
        from mqcore.client import Client

        if not self._core.is_running:
            raise _not_running(call)
        if self._own_client is None:
            client = await Client(self._core, _options(self._own_name))
            if self._own_client is None:
                self._own_client = client
            else:
                # Another task connected meanwhile.
                await client.close(0)
        return self._own_client

    async def _aclose_own_client(self, grace: Duration) -> None:
        client, self._own_client = self._own_client, None
        if client is not None:
            await client.close(grace)

    def _close_own_clients(self, patience: float) -> None:
        client, self._own_client = self._own_client, None
        if client is not None:
            client._abort()
        self._sync._close(patience)


def _options(name: str) -> ClientOptions:
    from mqcore.client import ClientOptions

    return ClientOptions(name=name)


def _declaration(
    declared: str | RouterOptions, options: ChannelOptions | QueueOptions | None
) -> tuple[str, str, ChannelOptions | QueueOptions | RouterOptions]:
    """Return the core's arguments: the kind, the name, and the options."""
    if isinstance(declared, RouterOptions):
        if options is not None:
            raise TypeError("RouterOptions are all options of a router; give nothing else")
        return "router", declared.name, declared
    if options is None:
        options = QueueOptions() if "/" in declared else ChannelOptions()
    if isinstance(options, QueueOptions):
        return "queue", declared, options
    if isinstance(options, ChannelOptions):
        return "channel", declared, options
    raise TypeError(f"declare with ChannelOptions, QueueOptions or RouterOptions, not {options!r}")


def _not_running(call: str) -> errors.NotRunning:
    return errors.NotRunning(f"the broker is not running, so it cannot {call}; start it first")


def _refuse_in_loop(call: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise errors.InvalidArgument(
        f"Broker.sync.{call} would block this event loop; write 'await broker.{call}(...)' in a coroutine"
    )
