"""One run of an app, from the connection to the end of the last handler."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Final

from mqcore import errors
from mqcore._daemon_threads import DaemonThreads
from mqcore._raised import call_in_thread
from mqcore.app.answering import Answers, RequestHandler
from mqcore.app.batching import BatchSubscriber, form_of
from mqcore.app.calling import Call, Environment, bind, enter_async, make_app_value
from mqcore.app.compiled import CompiledRequest, CompiledSubscriber, Declarations, Target
from mqcore.app.consuming import Publish, Subscriber, SubscriberParts
from mqcore.app.dead_letters import DeadLetters
from mqcore.app.middleware import Middleware, Outgoing, chained
from mqcore.app.queues import Declare, Found, Queues
from mqcore.client import DEFAULT_URL, Client, Consumer, Receipt, connect
from mqcore.client.options import ConnectOptions, EmbeddedBroker, PublishOptions

__all__ = ["Run", "outgoing", "publishing"]

_LOG: Final = logging.getLogger("mqcore.app")
_CANCEL_SECONDS: Final = 5.0
"""Time for cancelled handlers to end."""


class Run:
    """One run of an app."""

    def __init__(
        self,
        app: object,
        declarations: Declarations,
        broker: str | Sequence[str] | EmbeddedBroker | None,
        options: ConnectOptions,
        declare: Declare,
        *,
        create_targets: bool,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        """The event loop of its handlers."""
        self.client: Client | None = None
        """Its client, as soon as that is connected."""
        self.is_started = False
        """Whether it consumes."""
        self.failure: BaseException | None = None
        """The exception that ended a loop too early."""
        self.checked_connections = 0
        """New connections after which the queues were checked."""
        self._app = app
        self._declarations = declarations
        self._broker = broker
        self._options = options
        self._declare = declare
        self._create_targets = create_targets
        self._runners: list[Subscriber | Answers] = []
        self._open = AsyncExitStack()
        self._stop_requested = asyncio.Event()
        self._cancelled = 0
        """Handlers that a second signal cancelled."""
        self._executor: DaemonThreads | None = None
        self._watching: list[asyncio.Task[None]] = []

    # --- start -----------------------------------------------------------------------------------------------------

    async def start(
        self, lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None, state: dict[str, Any]
    ) -> None:
        """Connect, check queues, enter the lifespan, make the dependencies of scope ``app``, and consume."""
        async with AsyncExitStack() as opening:
            target, options = _target(self._broker, self._options)
            if getattr(target, "is_running", True) is False and isinstance(target, AbstractAsyncContextManager):
                await opening.enter_async_context(target)
            client = connect(target, **options)
            self.client = await opening.enter_async_context(client)
            opening.callback(self._end_threads)
            connects = client.counters.connects
            found = await self._check_queues(client)
            if lifespan is not None:
                state.update(await enter_async(opening, lifespan()) or {})
            environment = Environment(self._app, client, {}, self._run_in_thread)
            for provider in self._declarations.app_providers:
                await make_app_value(provider, environment, opening)
            self._runners = [
                self._subscriber(each, client, environment, found[each.declaration.queue])
                for each in self._declarations.subscribers
            ]
            if self._declarations.requests:
                self._runners.append(self._answers(client, environment))
            for runner in self._runners:
                opening.push_async_callback(runner.close)
                await runner.open()
            self._open = opening.pop_all()
        for runner in self._runners:
            runner.start()
        self._watching = [
            asyncio.create_task(self._watch(), name="mqcore app"),
            asyncio.create_task(self._check_after_reconnects(client, connects), name="mqcore app queues"),
        ]
        self.is_started = True
        _LOG.info("%r consumes %s", self._app, ", ".join(runner.queue for runner in self._runners) or "nothing")

    async def _check_queues(self, client: Client) -> dict[str, Found]:
        queues = Queues(client, self._declare, self._create_targets)
        found = {
            each.declaration.queue: await queues.of_subscriber(each.declaration, each.handler.name)
            for each in self._declarations.subscribers
        }
        for target in self._declarations.targets:
            await queues.of_publisher(target.queue, target.publisher.queue_options, target.name)
        return found

    def _subscriber(
        self, compiled: CompiledSubscriber, client: Client, environment: Environment, found: Found
    ) -> Subscriber:
        declaration, handler = compiled.declaration, compiled.handler
        call = bind(handler, environment, form_of(handler)) if declaration.batch else bind(handler, environment)
        letters = DeadLetters(client, declaration.queue, found)
        parts = SubscriberParts(
            declaration=declaration,
            name=handler.name,
            consumer=_consumer(client, compiled),
            call=_with_middlewares(declaration.middlewares, call),
            decodes=handler.wanted is not bytes,
            publish=_publish_results(client, compiled.targets, many=declaration.batch is not None),
            dead_letters=letters,
            protocol=client.protocol,
            acknowledge_timeout=found.acknowledge_timeout if declaration.extend_timeout else 0.0,
        )
        return Subscriber(parts) if declaration.batch is None else BatchSubscriber(parts)

    def _answers(self, client: Client, environment: Environment) -> Answers:
        handlers = {
            each.declaration.content_type: RequestHandler(
                each.handler.name,
                _answering(client, each, bind(each.handler, environment)),
                each.handler.wanted,
                each.declaration.concurrency,
            )
            for each in self._declarations.requests
        }
        return Answers(client.requests(), handlers, client._options.read_buffer_bytes)

    def _run_in_thread(self, function: Callable[..., Any], /, *args: Any) -> Awaitable[Any]:
        if self._executor is None:
            # One thread for each handler that may run: a slow one delays no other.
            threads = max(1, self._declarations.threads)
            self._executor = DaemonThreads(threads, "mqcore-app")
        context = contextvars.copy_context()
        return asyncio.get_running_loop().run_in_executor(
            self._executor, lambda: context.run(call_in_thread, function, *args)
        )

    def _end_threads(self) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)

    # --- end -------------------------------------------------------------------------------------------------------

    def request_stop(self) -> None:
        """Let `wait` return."""
        self._stop_requested.set()

    async def wait(self) -> None:
        """Wait until a stop is requested. Raises what ended a loop before that."""
        await self._stop_requested.wait()
        if self.failure is not None:
            raise self.failure

    async def _watch(self) -> None:
        """Notice loops that end although nothing asked them to."""
        tasks = self._tasks()
        if not tasks:
            return
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failed = [error for task in done if not task.cancelled() and (error := task.exception()) is not None]
        if failed:
            self.failure = failed[0]
            _LOG.critical("%r stops: %s", self._app, failed[0], exc_info=failed[0])
            self.request_stop()

    async def _check_after_reconnects(self, client: Client, known: int) -> None:
        """Check the queues again on each connection after the `known` ones: a broker in memory has lost them when it
        was restarted.
        """
        async for state in client.states():
            # A client with an id of its own keeps it, so only the count tells connections apart.
            if state.status != "connected" or client.counters.connects == known:
                continue
            known = client.counters.connects
            try:
                await self._check_queues(client)
            except errors.MqcoreError as error:
                _LOG.error("%r has reconnected to a broker whose queues do not fit: %s", self._app, error)
            self.checked_connections += 1

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [task for runner in self._runners for task in runner.tasks]

    def cancel_handlers(self) -> None:
        """Cancel running handlers. Their messages are redelivered when the client has closed."""
        self._cancelled += sum(len(runner.running()) for runner in self._runners)
        for task in self._tasks():
            task.cancel()

    async def stop(self, drain_timeout: float) -> int:
        """Take nothing more, let handlers finish for `drain_timeout` seconds, cancel the others, and close.

        Return the number of handlers that were cancelled.
        """
        self.is_started = False
        self.request_stop()
        for runner in self._runners:
            runner.stop()
        tasks = self._tasks()
        running: list[str] = []
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=drain_timeout)
        finally:
            if unfinished := [task for task in tasks if not task.done()]:
                running = [repr(message) for runner in self._runners for message in runner.running()]
                _LOG.warning(
                    "%r cancels %d handlers that did not finish within %g s; their messages are redelivered: %s",
                    self._app,
                    len(running),
                    drain_timeout,
                    ", ".join(running),
                )
                for task in unfinished:
                    task.cancel()
                _, stuck = await asyncio.wait(unfinished, timeout=_CANCEL_SECONDS)
                if stuck:
                    _LOG.error("%r leaves handlers behind that do not end when cancelled: %d", self._app, len(stuck))
            # Their exceptions were reported; asyncio would report those of the others again.
            _ = [task.exception() for task in tasks if task.done() and not task.cancelled()]
            for task in self._watching:
                task.cancel()
            await asyncio.gather(*self._watching, return_exceptions=True)
            await self._open.aclose()
        return len(running) + self._cancelled

    # --- tests -----------------------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether a handler runs, or a message waits for one."""
        return any(runner.is_busy for runner in self._runners)

    @property
    def taken(self) -> int:
        """Messages and batches that it took."""
        return sum(runner.taken for runner in self._runners)

    def describe_running(self) -> str:
        """Describe what its handlers work on."""
        return ", ".join(
            f"{runner.name} of {runner.queue}: {message!r}" for runner in self._runners for message in runner.running()
        )


def _target(
    broker: str | Sequence[str] | EmbeddedBroker | None, options: ConnectOptions
) -> tuple[str | Sequence[str] | EmbeddedBroker, ConnectOptions]:
    """Return the broker, and the options with the token of the environment if nothing else has credentials."""
    if broker is None:
        broker = os.environ.get("MQCORE_URL") or DEFAULT_URL
    token = os.environ.get("MQCORE_TOKEN")
    urls = [broker] if isinstance(broker, str) else broker if isinstance(broker, Sequence) else None
    has_credentials = options.get("token") or options.get("user") or any("@" in url for url in urls or ())
    if token and urls is not None and not has_credentials:
        options = {**options, "token": token}
    return broker, options


def _consumer(client: Client, compiled: CompiledSubscriber) -> Consumer[Any]:
    declaration = compiled.declaration
    queue, wanted = declaration.queue, compiled.handler.wanted
    if queue.startswith("@topic:"):
        return client.topic(queue.removeprefix("@topic:")).subscribe(wanted, **declaration.consume_options)
    return client.queue(queue).consume(wanted, prefetch=declaration.prefetch, **declaration.consume_options)


def _with_middlewares(middlewares: Sequence[Middleware], call: Call) -> Call:
    return chained(middlewares, call) if middlewares else call


def outgoing(queue: str, body: object, options: PublishOptions) -> Outgoing:
    """Return a message for middlewares. Raises `ConfigError` for headers that repeat a key."""
    rest = dict(options)
    headers: Any = rest.pop("headers", None) or {}
    return Outgoing(queue, body, dict(headers), rest)  # type: ignore[arg-type]


def publishing(client: Client, middlewares: Iterable[Middleware]) -> Callable[[Outgoing], Awaitable[Receipt]]:
    """Return a call that publishes a message through middlewares."""

    async def publish(message: Outgoing) -> Receipt:
        options: dict[str, Any] = {**message.options, "headers": message.headers}
        return await client.publish(message.queue, message.body, **options)

    return chained(middlewares, publish)


def _publish_results(client: Client, targets: Sequence[Target], *, many: bool) -> Publish | None:
    """Return what publishes the results of a handler; ``None``: nothing does."""
    if not targets:
        return None
    calls = [_publish_result(client, target) for target in targets]

    async def publish(result: Any) -> None:
        for each in result if many else (result,):
            for call in calls:
                await call(each)

    return calls[0] if len(calls) == 1 and not many else publish


def _publish_result(client: Client, target: Target) -> Publish:
    options = target.publisher.options
    if not target.middlewares:
        return lambda body: client.publish(target.queue, body, **options)
    call = publishing(client, target.middlewares)
    return lambda body: call(outgoing(target.queue, body, options))


def _answering(client: Client, compiled: CompiledRequest, call: Call) -> Call:
    """Return the call of a handler of requests, which also publishes its result."""
    call = _with_middlewares(compiled.declaration.middlewares, call)
    publish = _publish_results(client, compiled.targets, many=False)
    if publish is None:
        return call

    async def answered(request: Any) -> Any:
        result = await call(request)
        if result is not None:
            await publish(result)
        return result

    return answered
