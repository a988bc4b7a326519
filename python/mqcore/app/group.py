"""`Group`: handlers and publishers that share a prefix and middlewares."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, Unpack, overload

from mqcore.app.declarations import BatchTerms, RequestDeclaration, SubscriberDeclaration, prefixed
from mqcore.app.dependencies import function_of
from mqcore.app.middleware import Middleware, check_middlewares
from mqcore.app.policies import AckPolicy, BadBody, Retry
from mqcore.app.publisher import Publisher, RunningApp
from mqcore.client import PREFETCH, ConsumeOptions
from mqcore.client.arguments import consume_options
from mqcore.client.options import PublishOptions
from mqcore.config import Duration, QueueOptions, seconds
from mqcore.errors import ConfigError, NotRunning

__all__ = ["Group"]

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")

_BATCH_MESSAGES = 1000


class Group:
    """Handlers and publishers with a common prefix and middlewares, which apps and other groups `include`.

    - `prefix`: put before the names of queues, topics and dead-letter queues. Default: none.
    - `middlewares`: functions around its handlers and publishers, the first one outermost. Those of an including app or
      group are outside of them.

    Example::

        orders = Group(prefix="orders/")

        @orders.subscriber("1001")
        async def bill(order: Order) -> None: ...

        app.include(orders)
    """

    _is_app = False

    def __init__(self, *, prefix: str = "", middlewares: Iterable[Middleware] = ()) -> None:
        self.prefix = prefix
        """Put before the names of its queues and topics."""
        self._middlewares = list(check_middlewares(middlewares))
        self._subscribers: list[SubscriberDeclaration] = []
        self._requests: list[RequestDeclaration] = []
        self._publishers: list[Publisher[Any]] = []
        self._groups: list[Group] = []
        self._parents: weakref.WeakSet[Group] = weakref.WeakSet()

    # --- declarations ----------------------------------------------------------------------------------------------

    def subscriber(
        self,
        queue: str,
        *,
        prefetch: int = PREFETCH,
        concurrency: int = 1,
        retry: Retry | None = None,
        ack_policy: AckPolicy | str = AckPolicy.NACK_ON_ERROR,
        on_bad_body: BadBody | str = BadBody.DEAD_LETTER,
        queue_options: QueueOptions | None = None,
        extend_timeout: bool = True,
        middlewares: Iterable[Middleware] = (),
        title: str | None = None,
        description: str | None = None,
        **options: Unpack[ConsumeOptions],
    ) -> Callable[[_F], _F]:
        """Call the decorated function with each message of a queue, or of a topic, ``@topic:NAME``.

        The function is plain or ``async``; a plain one runs in a worker thread. Its annotations choose what it gets:
        the body decoded as that type, the message as `Delivered`, dependencies as ``Annotated[..., Depends(...)]``, the
        `App` and the `Client`. The function itself stays as it is, so that tests can call it.

        - `prefetch`: messages that the broker sends before they are settled (100).
        - `concurrency`: messages handled at once (1). With 1, they are handled in order.
        - `retry`: how often and when failed messages are redelivered. Default: the options of the queue decide.
        - `ack_policy`: when messages are settled. Default: `AckPolicy.NACK_ON_ERROR`.
        - `on_bad_body`: what happens to bodies of another type. Default: `BadBody.DEAD_LETTER`.
        - `queue_options`: options that the queue must have. A missing queue is created with them; the status is then
          round robin and acknowledgements are requested, unless they say otherwise.
        - `extend_timeout`: extend the acknowledge timeout while the handler runs (true). The broker still redelivers
          the message if the connection is lost, or if the event loop hangs for longer than the timeout.
        - `middlewares`: functions around this handler, inside those of the group.
        - `title`, `description`: for the AsyncAPI document. Default: the name and docstring of the function.
        - `options`: those of `Queue.consume` for MQKS and MicroMessage2.

        Raises `ConfigError` for an invalid value.
        """
        names = sys._getframe(1).f_locals
        fields = self._fields(queue, prefetch, concurrency, retry, ack_policy, on_bad_body, queue_options)
        found = check_middlewares(middlewares)
        consume_options(options)

        def declare(function: _F) -> _F:
            self._subscribers.append(
                SubscriberDeclaration(
                    function=_callable(function),
                    extend_timeout=extend_timeout,
                    consume_options=options,
                    middlewares=found,
                    local_names=_needed(function, names),
                    title=title,
                    description=description,
                    **fields,
                )
            )
            return function

        return declare

    def batch_subscriber(
        self,
        queue: str,
        *,
        max: int = _BATCH_MESSAGES,  # noqa: A002 (as in Consumer.batches)
        wait: Duration = 0,
        prefetch: int | None = None,
        concurrency: int = 1,
        retry: Retry | None = None,
        ack_policy: AckPolicy | str = AckPolicy.NACK_ON_ERROR,
        on_bad_body: BadBody | str = BadBody.DEAD_LETTER,
        queue_options: QueueOptions | None = None,
        extend_timeout: bool = True,
        middlewares: Iterable[Middleware] = (),
        title: str | None = None,
        description: str | None = None,
        **options: Unpack[ConsumeOptions],
    ) -> Callable[[_F], _F]:
        """Call the decorated function with batches of messages of a queue.

        Its annotation chooses the form: ``list[Order]`` for bodies, ``list[Delivered[Order]]`` for messages,
        ``Batch[Order]`` for both, and columns as ``Annotated[pyarrow.Table, Order]``, ``Annotated[pyarrow.RecordBatch,
        Order]`` or ``Annotated[dict[str, numpy.ndarray], Order]``.

        - `max`: messages per batch at most (1,000).
        - `wait`: time to wait for more messages after the first one (0: take those that are there).
        - `prefetch`: default twice `max`, so that the next batch arrives during this one.

        A batch is settled as a whole: if the function raises, all messages that it did not settle itself are rejected.
        An undecodable body concerns its message only. A decorating publisher publishes each element of the returned
        list. The other arguments are those of `subscriber`.
        """
        if isinstance(max, bool) or not isinstance(max, int) or max < 1:
            raise ConfigError(f"max must be at least 1, not {max!r}")
        terms = BatchTerms(max, seconds(wait))
        chosen = 2 * max * concurrency if prefetch is None else prefetch
        fields = self._fields(queue, chosen, concurrency, retry, ack_policy, on_bad_body, queue_options)
        names = sys._getframe(1).f_locals
        found = check_middlewares(middlewares)
        consume_options(options)

        def declare(function: _F) -> _F:
            self._subscribers.append(
                SubscriberDeclaration(
                    function=_callable(function),
                    extend_timeout=extend_timeout,
                    consume_options=options,
                    batch=terms,
                    middlewares=found,
                    local_names=_needed(function, names),
                    title=title,
                    description=description,
                    **fields,
                )
            )
            return function

        return declare

    @staticmethod
    def _fields(
        queue: str,
        prefetch: int,
        concurrency: int,
        retry: Retry | None,
        ack_policy: AckPolicy | str,
        on_bad_body: BadBody | str,
        queue_options: QueueOptions | None,
    ) -> dict[str, Any]:
        """Return arguments that both kinds of subscribers share. Raises `ConfigError`."""
        if not isinstance(queue, str) or not queue:
            raise ConfigError(f"a subscriber needs the name of a queue or topic, not {queue!r}")
        for name, number in (("prefetch", prefetch), ("concurrency", concurrency)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ConfigError(f"{name} of the subscriber of {queue} must be at least 1, not {number!r}")
        if prefetch < concurrency:
            raise ConfigError(
                f"the subscriber of {queue} has concurrency {concurrency}, but its prefetch {prefetch} lets only "
                f"{prefetch} messages arrive; set prefetch to at least {concurrency}"
            )
        try:
            policy, bad_body = AckPolicy(ack_policy), BadBody(on_bad_body)
        except ValueError as error:
            raise ConfigError(
                f"subscriber of {queue}: {error}; ack_policy is one of {', '.join(AckPolicy)}, on_bad_body one of "
                f"{', '.join(BadBody)}"
            ) from None
        retries = policy in {AckPolicy.NACK_ON_ERROR, AckPolicy.MANUAL} or bad_body is BadBody.REJECT
        if retry is not None and not retries:
            raise ConfigError(
                f"the subscriber of {queue} has retry= and the ack policy {policy}, which never retries; use "
                "AckPolicy.NACK_ON_ERROR, or remove retry"
            )
        return {
            "queue": queue,
            "prefetch": prefetch,
            "concurrency": concurrency,
            "retry": retry,
            "ack_policy": policy,
            "on_bad_body": bad_body,
            "queue_options": queue_options or QueueOptions(),
        }

    @overload
    def publisher(
        self, queue: str, *, queue_options: QueueOptions | None = ..., **options: Unpack[PublishOptions]
    ) -> Publisher[Any]: ...
    @overload
    def publisher(
        self, queue: str, body: type[_T], *, queue_options: QueueOptions | None = ..., **options: Unpack[PublishOptions]
    ) -> Publisher[_T]: ...
    def publisher(
        self,
        queue: str,
        body: type[Any] | None = None,
        *,
        queue_options: QueueOptions | None = None,
        **options: Unpack[PublishOptions],
    ) -> Publisher[Any]:
        """Return a publisher to a queue, a topic, ``@topic:NAME``, or a router, ``@router:NAME``.

        It decorates handlers, whose results it publishes, and has a method `Publisher.publish`. `body` is the type of
        bodies for type checkers and the AsyncAPI document. `options` are those of `Client.publish`.

        The queue must exist when the app starts, or belong to one of its subscribers. With `queue_options`, a missing
        queue is created.
        """
        made: Publisher[Any] = Publisher(self, queue, body, queue_options, options)
        self._publishers.append(made)
        return made

    def on_request(
        self, *, content_type: int | None = None, concurrency: int = 16, middlewares: Iterable[Middleware] = ()
    ) -> Callable[[_F], _F]:
        """Answer direct messages to the app's client with what the decorated function returns.

        - `content_type`: the number that senders choose for this kind of request. Default: all numbers without a
          handler of their own.
        - `concurrency`: requests handled at once (16). Further ones wait, and delay no other handler.

        The function is plain or ``async`` and gets what its annotations ask for; the message itself is a `Request`. If
        it raises, the sender gets status 1 and the text of the exception; for an undecodable body, status 400. Requests
        for which there is no handler get status 404.
        """
        if content_type is not None and not 0 <= content_type <= 65_535:
            raise ConfigError(f"content_type must be from 0 to 65,535, not {content_type}")
        if concurrency < 1:
            raise ConfigError(f"concurrency must be at least 1, not {concurrency}")
        names = sys._getframe(1).f_locals
        found = check_middlewares(middlewares)

        def declare(function: _F) -> _F:
            self._requests.append(
                RequestDeclaration(
                    function=_callable(function),
                    content_type=content_type,
                    concurrency=concurrency,
                    middlewares=found,
                    local_names=_needed(function, names),
                )
            )
            return function

        return declare

    def middleware(self, function: _F) -> _F:
        """Put the decorated ``async`` function around all handlers and publishers, inside earlier middlewares.

        Example::

            @app.middleware
            async def timed(message, call_next):
                start = time.perf_counter()
                try:
                    return await call_next(message)
                finally:
                    print(message, time.perf_counter() - start)
        """
        self._middlewares += check_middlewares([function])
        return function

    def include(self, *groups: Group) -> None:
        """Add the handlers and publishers of groups, also those declared later.

        Raises `ConfigError` for an app, for a group that is included already, and if groups would include each other.
        """
        for group in groups:
            if not isinstance(group, Group) or group._is_app:
                raise ConfigError(f"an app includes groups, not {group!r}")
            if group in self._groups:
                raise ConfigError(f"group {group!r} is included twice")
            if self in group._descendants():
                raise ConfigError(f"groups {self!r} and {group!r} would include each other")
            self._groups.append(group)
            group._parents.add(self)

    # --- what an app reads -----------------------------------------------------------------------------------------

    def _descendants(self) -> list[Group]:
        return [self, *(inner for group in self._groups for inner in group._descendants())]

    def _all_subscribers(self) -> list[SubscriberDeclaration]:
        found = [*self._subscribers, *(each for group in self._groups for each in group._all_subscribers())]
        return [each.inside(self.prefix, tuple(self._middlewares)) for each in found]

    def _all_requests(self) -> list[RequestDeclaration]:
        found = [*self._requests, *(each for group in self._groups for each in group._all_requests())]
        return [each.inside(tuple(self._middlewares)) for each in found]

    def _all_publishers(self) -> list[tuple[Publisher[Any], str, tuple[Middleware, ...]]]:
        """Return publishers with their full names and middlewares."""
        found = [(each, each._queue, ()) for each in self._publishers]
        found += [each for group in self._groups for each in group._all_publishers()]  # type: ignore[misc]
        return [
            (each, prefixed(self.prefix, name), (*self._middlewares, *middlewares)) for each, name, middlewares in found
        ]

    def _full_name(self, name: str) -> str:
        full = prefixed(self.prefix, name)
        parent = next(iter(self._parents), None)
        return full if parent is None else parent._full_name(full)

    def _running_app(self) -> tuple[RunningApp, str, tuple[Middleware, ...]]:
        """Return the running app that includes this group, the whole prefix and all middlewares.

        Raises `NotRunning`.
        """
        for parent in tuple(self._parents):
            try:
                app, prefix, middlewares = parent._running_app()
            except NotRunning:
                continue
            return app, prefix + self.prefix, (*middlewares, *self._middlewares)
        raise NotRunning(
            f"no running app includes {self!r}; include it and enter the app with 'async with', or call app.run()"
        )

    def __repr__(self) -> str:
        return f"<Group prefix={self.prefix!r}>"


def _callable(function: Any) -> Callable[..., Any]:
    if not callable(function) or isinstance(function, type):
        raise ConfigError(f"a handler must be a function, not {function!r}")
    return function  # type: ignore[no-any-return]


def _needed(function: Callable[..., Any], names: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the local names of the declaring function if annotations may need them: text in a nested function does."""
    called = function_of(function)
    annotations = getattr(called, "__annotations__", {})
    if "<locals>" in getattr(called, "__qualname__", "") and any(
        isinstance(each, str) for each in annotations.values()
    ):
        return dict(names)
    return {}
