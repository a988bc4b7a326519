"""The embedded broker: a whole broker inside a Python program, with or without sockets.

::

    broker = mqcore.Broker(listen="tmqp://127.0.0.1:2622")
    broker.delivery_handlers["orders"] = Orders()
    async with broker:
        await broker.serve_forever()

Without arguments it keeps everything in memory and opens no socket: clients of the same program reach it
through `Broker.client`. It works without an event loop too: ``with Broker() as broker: ...``.

All of its work is done by threads of its own that need no Python, so a busy interpreter stops neither its clients nor
its timers. It does not survive ``os.fork()``: using it in the child raises `mqcore.errors.Forked`.
"""

from __future__ import annotations

import asyncio
import atexit
import difflib
import functools
import logging
import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypedDict, Unpack

from mqcore import _core, errors, extensions, handlers
from mqcore._broker_calls import BrokerCalls
from mqcore._broker_stats import (
    BindingStats,
    BrokerStats,
    CertificateStats,
    ChannelStats,
    ClientStats,
    HandlerStats,
    QueueStats,
    RouterStats,
    TopicStats,
    _stats,
)
from mqcore._handler_loop import HandlerLoop
from mqcore._start_checks import check_start
from mqcore.authority import Authority, _register
from mqcore.config import (
    AuthorityOptions,
    BrokerConfig,
    ChannelDeclaration,
    ChannelOptions,
    ClusterConfig,
    Duration,
    NodeConfig,
    QueueDeclaration,
    RouterOptions,
    TokenOptions,
    UserOptions,
    seconds,
)
from mqcore.handlers import DeliveryHandler
from mqcore.observing import Authenticator, Authenticators, EventHandler, EventHandlers
from mqcore.routing import BindingHandlers, Routers
from mqcore.tls import Listener, ListenerTLS

if TYPE_CHECKING:
    from types import TracebackType

    from mqcore.admin import FailedRequest, ScheduleList
    from mqcore.backup import BackedUp, Copied
    from mqcore.client import Client, ConnectOptions
    from mqcore.client.options import Headers
    from mqcore.otel.broker import Export


__all__ = [
    "BindingStats",
    "Broker",
    "BrokerOptions",
    "BrokerStats",
    "CertificateStats",
    "ChannelStats",
    "ClientStats",
    "DeliveryHandlers",
    "HandlerStats",
    "QueueStats",
    "RouterStats",
    "TopicStats",
]

_LOG: Final = logging.getLogger("mqcore.broker")
_LOOK_INTERVAL: Final = 0.2
"""Seconds between two checks of `serve_forever` whether the broker was stopped."""


class BrokerOptions(TypedDict, total=False):
    """The keyword arguments of `Broker`: the fields of `BrokerConfig`."""

    listen: str | Sequence[str]
    admin: str | None
    listener: Sequence[Listener]
    tls: ListenerTLS | None
    tls_handshakes_max: int
    tls_expiry_warning: Duration
    data_dir: str | None
    history: bool
    history_bodies: bool
    cluster: ClusterConfig | None
    node: NodeConfig | None
    history_max_age: Duration
    history_max_bytes: int
    archive: bool
    archive_interval: Duration
    archive_max_age: Duration
    archive_max_bytes: int
    archive_url: str | None
    archive_options: Sequence[str]
    archive_partitions: int
    archive_file_bytes: int
    archive_compact_after: Duration
    archive_snapshot_max_age: Duration
    backup_url: str | None
    backup_options: Sequence[str]
    backup_interval: Duration
    backup_keep: Duration
    otel: bool
    mask_fields: Sequence[str]
    mask_bodies: Sequence[str]
    allow_remote: bool
    shards: int
    channel: ChannelOptions
    channels: Sequence[ChannelDeclaration]
    queues: Sequence[QueueDeclaration]
    auto_create_channels: bool
    auto_create_queues: bool
    client_limit: int
    channel_limit: int
    delivery_handler: str
    event_handler: str | None
    frame_bytes_max: int
    header_bytes_max: int
    connections_max: int
    half_open_max: int
    login_bytes_max: int
    half_open_bytes_max: int
    unfinished_bytes_max: int
    output_bytes_max: int
    slow_consumer_timeout: Duration
    handshake_timeout: Duration
    ping_interval: Duration
    pong_timeout: Duration
    undecided_max: int
    topic_subscriptions_max: int
    topic_patterns_max: int
    topic_patterns_per_user_max: int
    channels_per_user_max: int
    queues_per_user_max: int
    authority: AuthorityOptions
    user: Sequence[UserOptions]
    token: Sequence[TokenOptions]
    publish_limit: str | None
    connect_limit: str | None
    limiter_keys_max: int
    limiter_keys_per_user_max: int
    limiter_bytes_max: int
    limiter_persist_interval: Duration
    routers: Sequence[RouterOptions]
    memory_watermark: int
    unsaved_memory_max: int | None
    unsaved_memory_per_user_max: int


class DeliveryHandlers(Mapping[str, DeliveryHandler]):
    """The delivery handlers of a broker, by key. Assigning registers, or replaces, also while the broker
    runs.

    A handler is never removed, because queues may name it; assign another in its place.
    """

    def __init__(self, core: _core.Broker, loop: HandlerLoop) -> None:
        self._core = core
        self._loop = loop
        self._handlers: dict[str, DeliveryHandler] = {}

    def __setitem__(self, key: str, handler: DeliveryHandler) -> None:
        if not isinstance(handler, DeliveryHandler):
            raise TypeError(
                f"a delivery handler is an instance of a subclass of mqcore.DeliveryHandler, not {handler!r}"
            )
        timeout = seconds(handler.timeout)
        runner = handlers.LoopRunner(key, timeout, self._loop.get)
        kind = type(handler)
        self._core.set_handler(
            key,
            f"{kind.__module__}.{kind.__qualname__}",
            handlers.overridden(handler),
            handler.policy,
            timeout,
            handler.fallback,
            runner.submit,
        )
        self._handlers[key] = handler

    def __getitem__(self, key: str) -> DeliveryHandler:
        return self._handlers[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)


def _runner(loop: HandlerLoop, key: str, timeout: float) -> Callable[[_core.PendingAnswers], None]:
    return handlers.LoopRunner(key, timeout, loop.get).submit


class Broker(BrokerCalls):
    """A broker in this process. The module shows how to use it; `BrokerConfig` documents its settings.

    Start and stop it with ``async with``, with ``with``, or by calling `start` and `stop`; it may be started
    again.

    >>> with mqcore.Broker(listen=["tmqp://127.0.0.1:0"], auto_create_channels=True, auto_create_queues=True) as shop:
    ...     with mqcore.sync.connect(shop.listeners[0]) as client:
    ...         receipt = client.publish("orders/1001", b"2 apples")
    ...     shop.stats().queue("orders/1001").normal
    1
    """

    def __init__(
        self,
        config: BrokerConfig | None = None,
        *,
        event_handlers: Mapping[str, EventHandler] | None = None,
        authenticators: Mapping[str, Authenticator] | None = None,
        **options: Unpack[BrokerOptions],
    ) -> None:
        if config is not None and options:
            raise TypeError("give a BrokerConfig or its fields, not both")
        self._config = BrokerConfig(**options) if config is None else config  # type: ignore[arg-type]
        super().__init__(self._new_core(self._config))
        self._handler_loop = HandlerLoop()
        self._handlers = DeliveryHandlers(self._core, self._handler_loop)
        self._authority: Authority | None = None
        # No method of its own: a broker that is dropped must not have to wait for the collector of cycles.
        runner = functools.partial(_runner, self._handler_loop)
        self._routers = Routers(self._core, runner, self._config.routers)
        self._binding_handlers = BindingHandlers(self._core, runner)
        self._event_handlers = EventHandlers(self._core, runner)
        self._authenticators = Authenticators(self._core, runner)
        for key, handler in (event_handlers or {}).items():
            self._event_handlers[key] = handler
        for key, authenticator in (authenticators or {}).items():
            self._authenticators[key] = authenticator
        self._waiters: set[asyncio.Future[None]] = set()
        self._export: Export | None = None
        self._leads = False

    def _new_core(self, config: BrokerConfig) -> _core.Broker:
        return _core.Broker(config)

    @property
    def config(self) -> BrokerConfig:
        """Its configuration."""
        return self._config

    @property
    def delivery_handlers(self) -> DeliveryHandlers:
        """The delivery handlers by key: ``broker.delivery_handlers["orders"] = Orders()``."""
        return self._handlers

    @property
    def event_handlers(self) -> EventHandlers:
        """The event handlers by key: ``broker.event_handlers["audit"] = Audit()``."""
        return self._event_handlers

    @property
    def authenticators(self) -> Authenticators:
        """The authenticators of channels by key: ``broker.authenticators["staff"] = Staff()``."""
        return self._authenticators

    @property
    def authority(self) -> Authority | None:
        """Object that decides about logins and actions: ``broker.authority = Staff()``, before the broker starts."""
        return self._authority

    @authority.setter
    def authority(self, authority: Authority) -> None:
        _register(self._core, authority, self._handler_loop.get)
        self._authority = authority

    def reload_authority(self) -> None:
        """Read users and tokens again, and end the connections whose rights have changed.

        A running broker also does so shortly after their file has changed. Raises `AuthorityError` if they cannot be
        read; the known users and tokens then stay in force.
        """
        self._core.reload_authority()

    def add_extension(self, extension: extensions.Extension) -> None:
        """Handle the frames of a vendor's extension of MicroMessage2, before the broker starts. One of the same name is
        replaced.

        Raises `InvalidArgument` for a name that cannot be a vendor's.
        """
        extensions._register(self._core, extension, self._handler_loop.get)

    @property
    def routers(self) -> Routers:
        """The routers by name: ``broker.routers.add("order-events", "only-first")``, ``broker.routers["orders"] =
        ByCountry()``."""
        return self._routers

    @property
    def binding_handlers(self) -> BindingHandlers:
        """Bindings written in Python by key: ``broker.binding_handlers["audit"] = Audit()``, bound as
        ``@handler:audit``."""
        return self._binding_handlers

    @property
    def is_running(self) -> bool:
        """Whether it is running."""
        return self._core.is_running

    @property
    def listeners(self) -> tuple[str, ...]:
        """URLs of its listeners with the chosen ports."""
        return tuple(self._core.listeners)

    @property
    def admin_url(self) -> str | None:
        """URL of the admin side, if there is one."""
        return self._core.admin_url

    def client(self, **options: Unpack[ConnectOptions]) -> Client:
        """Return a client of this broker that needs no socket: ``await`` or ``async with`` it.

        Keyword arguments are the fields of `mqcore.ClientOptions`. For programs without an event loop there is
        ``mqcore.sync.connect(broker)``.
        """
        from mqcore.client import connect

        return connect(self, **options)

    def stats(self) -> BrokerStats:
        """Return the state and the counters of the broker."""
        return _stats(self._core.survey())

    def errors(self, limit: int = 100) -> tuple[FailedRequest, ...]:
        """Return the last failed requests, the latest first, up to `limit`.

        They are those of protocols that tell their peer a number only, and say what the number stands for. The last
        1,000 are kept, in memory. Raises `NotRunning`.
        """
        from mqcore.admin import FailedRequest

        return tuple(FailedRequest(**failure) for failure in self._core.failures(limit))

    def schedules(self, limit: int = 100) -> ScheduleList:
        """Return the schedules of jobs of this broker, those due next first, up to `limit`.

        Clients of EventMQ's protocol make them, `mqcore.jobs` among them. Raises `NotRunning`.
        """
        from mqcore.admin import ScheduleInfo, ScheduleList

        total, found = self._core.schedules(limit)
        return ScheduleList(total, tuple(ScheduleInfo(**schedule) for schedule in found))

    def unschedule(self, schedule_id: str) -> None:
        """Remove the schedule with this id, as `schedules` returns it. When the call returns, the removal is on disk.

        A run that is due already is still made. Workers whose program has the schedule do not start it again, but
        `mqcore.jobs.Jobs.send_schedules` does. Raises `NotFound` if this broker keeps no such schedule,
        `InvalidArgument` for a malformed id, `Busy` while the disk accepts no writes, `Nacked` if the disk failed in
        that moment, and `NotRunning`.
        """
        self._core.end_schedule(schedule_id)

    def send_custom(self, to: str, body: object = b"", *, content_type: int = 0, headers: Headers = ()) -> int:
        """Send a custom message to a client id, ``@name:NAME`` or ``@type:KIND`` over TMQP, and return the number of
        clients that match.

        A Python client takes it with `mqcore.Client.custom_messages`. Raises `NotRunning`.
        """
        from mqcore import bodies
        from mqcore.client.arguments import pairs

        return self._core.send_custom(to, bodies.encode(body), content_type, pairs(headers))

    def disconnect(self, to: str) -> int:
        """Close the connections of a client id, of all clients with a name, ``@name:NAME``, or of a type,
        ``@type:KIND``; return how many.

        They may connect again, and most clients do. Raises `NotRunning`.
        """
        return self._core.disconnect(to)

    def backup(self, to: str | os.PathLike[str], *, progress: Copied | None = None) -> BackedUp:
        """Copy the saved state to a new directory, ``.tar`` or ``.tar.zst``. The broker keeps running.

        `mqcore.backup.backup` describes what is copied, and `mqcore.backup.restore` restores it. The call blocks while
        it copies: with asyncio, use `asyncio.to_thread`.

        Raises `NotRunning`, `Unacceptable` without a data directory, `Busy` while another backup is made, `ConfigError`
        if something is at `to`, and `DataDirFull`.
        """
        from mqcore.backup import check_new, take

        check_new(Path(to))
        return take(self._core.backup(), Path(to), progress)

    def start(self) -> None:
        """Bind every listener and start. Raises `ListenFailed` if an address cannot be bound, and `ConfigError` for a
        configuration that cannot work, such as the key of a delivery handler that is not registered.

        Awaitable handlers get an event loop of the broker's own; entered with ``async with``, they use the
        caller's.
        """
        self._check_handlers()
        check_start(self._config, leads=self._leads)
        # Before the start: without OpenTelemetry nothing may be running.
        export = self._new_export() if self._config.otel else None
        try:
            self._core.start()
        except BaseException:
            if export is not None:
                export.stop()
            raise
        self._export = export
        _RUNNING.add(self)

    def _lead(self, member: _core.ClusterMember) -> bool:
        """Write into the files of a cluster, if this node leads it."""
        self._leads = member.lead(self._core)
        return self._leads

    def _new_export(self) -> Export:
        from mqcore.otel import _installed

        with _installed():
            from mqcore.otel.broker import Export
        return Export(self, _core.__version__)

    def _check_handlers(self) -> None:
        """Raise `ConfigError` if a handler that the configuration names is not registered."""
        channel = self._config.channel
        self._event_handlers._check("event_handler", self._config.event_handler)
        self._event_handlers._check("channel.event_handler", channel.event_handler)
        self._authenticators._check("channel.authenticator", channel.authenticator)
        known = (*_core.policies(), *self._handlers)
        for key in (self._config.delivery_handler, self._config.channel.queue.delivery_handler):
            if key is not None and key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                if key in self._event_handlers or key in self._authenticators:
                    hint = f"; {key!r} is an {'event handler' if key in self._event_handlers else 'authenticator'}"
                raise errors.ConfigError(
                    f"no delivery handler has the key {key!r}{hint} (registered: {', '.join(known)}); register the "
                    "handler before the broker starts, or name another one"
                )

    def stop(self, grace: Duration = 5.0) -> None:
        """Stop: reject new connections, notify clients, and wait up to `grace` for their in-flight work.

        In a coroutine use ``async with`` or `aclose`, which do not block the event loop.
        """
        patience = seconds(grace)
        self._close_own_clients(patience)
        if self._export is not None:
            self._export.prepare_stop()
        stuck = self._core.stop(patience)
        _RUNNING.discard(self)
        export, self._export = self._export, None
        if export is not None:
            export.stop()
        if not self._handler_loop.stop(patience + 1.0):
            _LOG.warning("an async delivery handler blocks its event loop; the thread of the loop is left behind")
        for key in stuck:
            _LOG.warning("the delivery handler %r has not come back from a call; its thread is left behind", key)
        for waiter in tuple(self._waiters):
            waiter.get_loop().call_soon_threadsafe(_wake, waiter)

    async def aclose(self, grace: Duration = 5.0) -> None:
        """Stop like `stop`, without blocking the event loop."""
        await self._aclose_own_client(grace)
        await asyncio.shield(asyncio.to_thread(self.stop, grace))

    def certificates(self) -> tuple[CertificateStats, ...]:
        """Return the certificates of all encrypted listeners, including the admin side."""
        return tuple(
            CertificateStats(**{**shown, "names": tuple(shown["names"])}) for shown in self._core.certificates()
        )

    def reload_tls(self) -> None:
        """Read certificates, keys and client authorities again, of every encrypted listener.

        New connections see the new certificates; existing connections stay. `mqcore serve` does this on SIGHUP.
        Raises `ConfigError` if files cannot be used: their listener keeps its certificate, the others get the new ones.
        """
        self._core.reload_tls()

    def wait(self, timeout: Duration | None = None) -> bool:
        """Block until the broker is stopped, or for `timeout`; return whether it is.

        Another thread may stop it, or an administrator over a protocol (EventMQ's DISCONNECT). Then call `stop` too, to
        release what is left in this process.

        Ctrl-C raises `KeyboardInterrupt` within a tenth of a second.
        """
        return self._core.wait(None if timeout is None else seconds(timeout))

    async def serve_forever(self) -> None:
        """Wait until the broker is stopped, as for `wait`, or until this call is cancelled, by Ctrl-C for example.

        Without ``await`` it does nothing, and Python warns that it was never awaited. A program without an event loop
        calls `wait` instead.
        """
        if not self._core.is_running:
            raise errors.NotRunning("the broker is not running; enter it with 'async with' first")
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            while self._core.is_running and not waiter.done():
                await asyncio.wait({waiter}, timeout=_LOOK_INTERVAL)
        finally:
            self._waiters.discard(waiter)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        self._handler_loop.use(asyncio.get_running_loop())
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        try:
            running = core is not None and core.is_running
        except errors.Forked:
            return
        if running:
            warnings.warn(f"{self!r} was never stopped", ResourceWarning, stacklevel=2, source=self)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


_RUNNING: Final[weakref.WeakSet[Broker]] = weakref.WeakSet()


# How long the end of the program waits for handlers that have not come back from a call.
_LEAKED_THREADS_SECONDS: Final = 10.0


def _release_locks() -> None:
    """Close the locks of data directories in a forked child. It would keep them after its parent has ended."""
    for descriptor in _core.lock_descriptors():
        null = os.open(os.devnull, os.O_RDONLY)
        # The number stays in use, because the parent's objects are here too.
        os.dup2(null, descriptor, inheritable=False)
        os.close(null)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_locks)


@atexit.register
def _stop_all() -> None:
    """Stop brokers that a program left running: no Rust thread may run after the interpreter ended.

    A handler that is still in a call would come back to one, so the end of the program waits for it as it
    does for other threads, but not for ever.
    """
    for broker in tuple(_RUNNING):
        try:
            broker.stop(grace=0.0)
        except errors.Forked:
            continue
    left = _core.join_leaked_threads(_LEAKED_THREADS_SECONDS)
    if left:
        _LOG.error("%d delivery handlers have not come back; the program ends without them", left)
