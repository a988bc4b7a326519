"""`App`: the subscribers, publishers and request handlers of a program, and how they run."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, Unpack

from mqcore import errors
from mqcore.app.compiled import Declarations, compile_declarations
from mqcore.app.group import Group
from mqcore.app.middleware import Middleware
from mqcore.app.queues import Declare
from mqcore.app.running import Run, outgoing, publishing
from mqcore.app.signals import stopping_on_signals
from mqcore.client import Client, Receipt
from mqcore.client.options import ConnectOptions, EmbeddedBroker, PublishOptions
from mqcore.config import seconds

__all__ = ["App", "Lifespan"]

Lifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]]
"""Starlette's: an async context manager that gets the app, and may yield a mapping for `App.state`."""

_DRAIN_TIMEOUT_SECONDS: Final = 30.0
_DECLARE: Final = ("create", "update", "check")


class App(Group):
    """Subscribers, publishers and request handlers of a program.

    - `broker`: the URL or URLs of a broker, or an embedded `mqcore.Broker`. An embedded one that does not run is
      started and stopped with the app. Default: the environment variable MQCORE_URL, else
      ``tmqp://127.0.0.1:2622``.
    - `name`: the name of its client; messages to ``@name:NAME`` reach its request handlers.
    - `lifespan`: an async context manager that gets the app. It is entered when the app is connected, before messages
      arrive, and left when all handlers have ended. A mapping that it yields is added to `state`.
    - `middlewares`: functions around all handlers and publishers; see `Group.middleware`.
    - `declare`: what happens to queues when the app starts. ``create`` (default) creates missing queues of subscribers,
      and raises `ConfigError` if an existing one has other options than the code needs. ``update`` changes those
      options. ``check`` creates and changes nothing.
    - `options`: the fields of `ClientOptions`. `drain_timeout` is the time for running handlers to finish when the app
      stops (30 s). Then they are cancelled, and their messages are redelivered.

    Enter it with ``async with``, await `serve`, or call `run`. Raises `ConfigError` for an invalid value.

    >>> import asyncio
    >>> app = mqcore.App(broker, name="billing")
    >>> @app.subscriber("orders/7")
    ... async def bill(order: dict[str, int]) -> None:
    ...     print(order["quantity"])
    >>> async with app:
    ...     receipt = await app.publish("orders/7", {"quantity": 3})
    ...     await asyncio.sleep(0.2)
    3
    """

    _is_app = True

    def __init__(
        self,
        broker: str | Sequence[str] | EmbeddedBroker | None = None,
        *,
        lifespan: Lifespan | None = None,
        middlewares: Iterable[Middleware] = (),
        declare: Declare = "create",
        **options: Unpack[ConnectOptions],
    ) -> None:
        super().__init__(middlewares=middlewares)
        if declare not in _DECLARE:
            raise errors.ConfigError(f"declare must be 'create', 'update' or 'check', not {declare!r}")
        self.name = options.get("name") or "app"
        """Its name, also in logs and in the AsyncAPI document."""
        self.state: dict[str, Any] = {}
        """Values of the program, such as those that its lifespan yields."""
        self.dependency_overrides: dict[Callable[..., Any], Callable[..., Any]] = {}
        """Replacements of dependencies, for tests: ``app.dependency_overrides[get_db] = fake_db``."""
        self._broker = broker
        self._options: ConnectOptions = options
        self.drain_timeout = seconds(options.pop("drain_timeout", _DRAIN_TIMEOUT_SECONDS))
        """Seconds for running handlers to finish when it stops."""
        self._lifespan = lifespan
        self._declare: Declare = declare
        self._run: Run | None = None

    # --- running ---------------------------------------------------------------------------------------------------

    def locate(self, broker: str | Sequence[str] | EmbeddedBroker | None = None, *, token: str | None = None) -> None:
        """Use another broker, or another token, from the next start on. ``None`` keeps the previous ones."""
        if broker is not None:
            self._broker = broker
        if token is not None:
            self._options = {**self._options, "token": token, "user": None, "password": None}

    async def __aenter__(self) -> Self:
        """Connect, check queues, enter the lifespan, and start to consume.

        Raises `ConfigError` for declarations that cannot work, `NotFound` for the missing queue of a publisher,
        `AlreadyRunning` if the app runs already, and whatever `connect` raises.
        """
        await self._start(self._broker, create_targets=False)
        return self

    async def _start(self, broker: str | Sequence[str] | EmbeddedBroker | None, *, create_targets: bool) -> None:
        if self._run is not None:
            raise errors.AlreadyRunning(f"{self!r} is already running; stop it first, or create another App")
        run = Run(self, self._compiled(), broker, self._options, self._declare, create_targets=create_targets)
        lifespan = self._lifespan
        # Before the start, because the lifespan may publish.
        self._run = run
        try:
            await run.start(None if lifespan is None else lambda: lifespan(self), self.state)
        except BaseException:
            self._run = None
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        run = self._run
        await self._stop()
        if run is not None and run.failure is not None and error is None:
            raise run.failure

    async def _stop(self) -> int:
        """Stop, and return the number of handlers that were cancelled."""
        run = self._run
        if run is None:
            return 0
        try:
            return await run.stop(self.drain_timeout)
        finally:
            self._run = None

    async def serve(self, *, signals: bool = True, on_ready: Callable[[], object] | None = None) -> int:
        """Run until SIGTERM or Ctrl-C, until `stop` is called, or until this call is cancelled; then drain.

        A second signal cancels running handlers at once. Returns the number of handlers that were cancelled. Raises
        what entering the app raises, and what ends it: for example `ConnectionLost` if its client gives up
        reconnecting.

        - `signals`: whether to handle signals (true). Only the main thread can.
        - `on_ready`: called when the app consumes; an awaitable that it returns is awaited.
        """
        async with self:
            run = self._run
            assert run is not None
            with stopping_on_signals(run.request_stop, run.cancel_handlers, enabled=signals):
                if on_ready is not None and inspect.isawaitable(waiting := on_ready()):
                    await waiting
                await run.wait()
                # Inside, so that a second signal can end the drain.
                return await self._stop()

    def run(self) -> None:
        """Run until SIGTERM or Ctrl-C, on an event loop of its own; see `serve`."""
        asyncio.run(self.serve())

    def stop(self) -> None:
        """Make `serve` drain and return. Handlers and other threads may call it; it does not wait."""
        if self._run is not None:
            self._run.loop.call_soon_threadsafe(self._run.request_stop)

    @asynccontextmanager
    async def lifespan(self, web: object = None) -> AsyncIterator[None]:
        """Run the app as the lifespan of a web application: ``FastAPI(lifespan=app.lifespan)``.

        `mqcore.app.combine_lifespans` adds a lifespan of your own, and an embedded broker.
        """
        async with self:
            self.attach(web)
            yield

    def attach(self, web: object) -> None:
        """Set ``web.state.mqcore``, where `mqcore.fastapi` finds the app. `lifespan` does so.

        A mounted application has a state of its own: call it for that too.
        """
        state = getattr(web, "state", None)
        if state is not None:
            state.mqcore = self

    @property
    def is_running(self) -> bool:
        """Whether it consumes."""
        return self._run is not None and self._run.is_started

    @property
    def consumes(self) -> list[str]:
        """The queues and topics of its subscribers."""
        return [each.queue for each in self._all_subscribers()]

    @property
    def client(self) -> Client:
        """Its client. Raises `NotRunning` before the app has connected."""
        if self._run is None or self._run.client is None:
            raise errors.NotRunning(f"{self!r} is not running; enter it with 'async with', or call run()")
        return self._run.client

    # --- publishing ------------------------------------------------------------------------------------------------

    async def publish(self, queue: str, body: object, **options: Unpack[PublishOptions]) -> Receipt:
        """Publish a message through the middlewares of the app; `options` are those of `Client.publish`.

        Raises `NotRunning` before the app has connected, and whatever `Client.publish` raises.
        """
        return await self._publish(queue, body, tuple(self._middlewares), options)

    async def _publish(
        self, queue: str, body: object, middlewares: Iterable[Middleware], options: PublishOptions
    ) -> Receipt:
        client = self.client
        if not middlewares:
            return await client.publish(queue, body, **options)
        return await publishing(client, middlewares)(outgoing(queue, body, options))

    # --- declarations ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check all declarations without connecting. Raises `ConfigError` for the first mistake."""
        self._compiled()

    def asyncapi(
        self, *, title: str | None = None, version: str = "1.0.0", description: str | None = None
    ) -> dict[str, Any]:
        """Return the AsyncAPI 3.0 document of the app as JSON values; `json.dumps` writes it.

        It has the queues and topics with their messages and JSON Schemas, and what the app receives, answers and sends.
        `title` is the name of the app by default, `version` that of the app. Raises `ConfigError` like `check`.
        """
        from mqcore.app.asyncapi import document

        broker = self._broker
        urls = [broker] if isinstance(broker, str) else list(broker) if isinstance(broker, Sequence) else []
        return document(
            self.name,
            self._compiled(),
            title=title or self.name,
            version=version,
            description=description,
            urls=urls,
        )

    def _compiled(self) -> Declarations:
        return compile_declarations(self, App, self.dependency_overrides)

    def _running_app(self) -> tuple[App, str, tuple[Middleware, ...]]:
        if self._run is None:
            raise errors.NotRunning(f"{self!r} is not running; enter it with 'async with', or call run()")
        return self, self.prefix, tuple(self._middlewares)

    # --- tests -----------------------------------------------------------------------------------------------------

    @property
    def _is_busy(self) -> bool:
        return self._run is not None and self._run.is_busy

    @property
    def _taken(self) -> int:
        return 0 if self._run is None else self._run.taken

    def _describe_running(self) -> str:
        return "" if self._run is None else self._run.describe_running()

    def __repr__(self) -> str:
        return f"<App {self.name}>"
