"""How a blocking client connects and how its consumers begin: what `mqcore.client.base` does in another way."""

from __future__ import annotations

import abc
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, overload

from mqcore import _core, bodies, errors
from mqcore import _tracing as tracing
from mqcore._raised import reason_of, refuse_awaitable
from mqcore.client.lifetime import OPEN, warn_if_open
from mqcore.client.options import ClientOptions
from mqcore.client.serving import HANDLER_FAILED_STATUS, failure

if TYPE_CHECKING:
    from mqcore.config import Duration
    from mqcore.sync.messages import Request

__all__ = ["ClientBase", "ConsumerBase"]

_LOG: Final = logging.getLogger("mqcore.client")

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)


class ClientBase(abc.ABC):
    """A client that is connected from the beginning."""

    def __init__(self, target: list[str] | _core.Broker, options: ClientOptions) -> None:
        self._options = options
        self._core: _core.BlockingClient | None = None
        self._core = _core.BlockingClient.connect(target, options)
        OPEN.add(self)

    def __enter__(self) -> Self:
        return self

    def _abort(self) -> None:
        if self._core is not None:
            OPEN.discard(self)
            self._core.abort()

    @overload
    def requests(self, *, idle_timeout: Duration | None = ...) -> Any: ...
    @overload
    def requests(self, wanted: type[_T], *, idle_timeout: Duration | None = ...) -> Any: ...
    @abc.abstractmethod
    def requests(self, wanted: type[Any] = bytes, *, idle_timeout: Duration | None = None) -> Any:
        """Return the direct messages to this client."""

    @overload
    def serve(self, handler: Callable[[Request[bytes]], object], *, concurrency: int = ...) -> None: ...
    @overload
    def serve(self, handler: Callable[[Request[_T]], object], wanted: type[_T], *, concurrency: int = ...) -> None: ...
    def serve(
        self, handler: Callable[[Request[Any]], object], wanted: type[Any] = bytes, *, concurrency: int = 16
    ) -> None:
        """Answer each direct message with what `handler` returns, until the client closes.

        Handlers run in worker threads, up to `concurrency` at once. If a handler raises anything, even `SystemExit`,
        the client logs the exception and responds with status 1.
        """
        gate = threading.Semaphore(concurrency)

        def answer(request: Request[Any]) -> None:
            try:
                _answer(handler, request)
            finally:
                gate.release()

        with self.requests(wanted) as requests, ThreadPoolExecutor(concurrency, "mqcore-serve") as pool:
            for request in requests:
                gate.acquire()
                pool.submit(answer, request)

    def _connected(self) -> _core.BlockingClient:
        assert self._core is not None
        return self._core

    def __del__(self) -> None:
        warn_if_open(self)


class ConsumerBase(Iterator[_T_co]):
    """A consumer that a ``for`` loop opens and closes, unless ``with`` does."""

    _core: object

    @abc.abstractmethod
    def __enter__(self) -> Self: ...

    @abc.abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def __iter__(self) -> Iterator[_T_co]:
        """Return messages; end with the consumer, the client, or after the idle timeout."""
        return self._opened() if self._core is None else self

    def _opened(self) -> Iterator[_T_co]:
        with self:
            yield from self


def _answer(handler: Callable[[Request[Any]], object], request: Request[Any]) -> None:
    span = None if tracing.active is None else tracing.active.serving(request)
    try:
        result = refuse_awaitable(handler, handler(request))
        body = bodies.encode(b"" if result is None else result)
    except BaseException as error:
        # This thread only runs handlers: sys.exit() in a handler fails the request and must not end the program.
        if span is not None:
            span.end("failed", error)
        _LOG.exception("%s failed for %r", getattr(handler, "__qualname__", handler), request)
        if request.wants_response:
            _unless_lost(partial(request.respond, failure(error), status=HANDLER_FAILED_STATUS))
        elif request.wants_acknowledge:
            _unless_lost(partial(request.nack, reason_of(error)))
        return
    if request.wants_response:
        try:
            _unless_lost(partial(request.respond, body))
        except errors.TooLarge as error:
            if span is not None:
                span.end("failed", error)
            _LOG.error("%s returned a response that is too large: %s", getattr(handler, "__qualname__", handler), error)
            _unless_lost(partial(request.respond, failure(error), status=HANDLER_FAILED_STATUS))
    elif request.wants_acknowledge:
        _unless_lost(request.ack)
    if span is not None:
        span.end("answered")


def _unless_lost(answer: Callable[[], None]) -> None:
    """Answer, unless the connection is lost: then the sender no longer waits."""
    try:
        answer()
    except errors.TransportError as error:
        _LOG.warning("cannot answer a request: %s", error)
