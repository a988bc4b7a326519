"""Answers direct messages to an app's client with its handlers."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from mqcore import _tracing as tracing
from mqcore import bodies, errors
from mqcore._raised import ends_task, reason_of
from mqcore.app.calling import Call
from mqcore.client import Request, Requests
from mqcore.client.serving import HANDLER_FAILED_STATUS, failure, unless_lost

__all__ = ["Answers", "RequestHandler"]

_LOG: Final = logging.getLogger("mqcore.app")

_BAD_BODY_STATUS: Final = 400
_NO_HANDLER_STATUS: Final = 404
_STOPPING_STATUS: Final = 503
_HEADERS_BYTES_MAX: Final = 65_536
"""Maximum size of the headers of a message."""


@dataclass(slots=True)
class RequestHandler:
    """A handler of direct messages that runs."""

    name: str
    call: Call
    wanted: Any
    """The type of bodies."""
    free: int
    """Requests that it can begin now."""
    waiting: deque[Request[Any]] = field(default_factory=deque)


class Answers:
    """Takes the direct messages to a client, and answers each in a task of its own.

    Requests wait for their own handler, so that a busy one delays no other. Direct messages have no credit: when those
    that wait reach `waiting_bytes_max`, it takes no more, and the client buffers them until it pauses its reads.
    """

    def __init__(
        self, requests: Requests[bytes], handlers: dict[int | None, RequestHandler], waiting_bytes_max: int
    ) -> None:
        self.name = "requests"
        self.queue = "direct messages"
        self.tasks: list[asyncio.Task[None]] = []
        self.taken = 0
        """Messages that it took."""
        self._requests = requests
        self._handlers = handlers
        self._answering: dict[asyncio.Task[None], tuple[RequestHandler, Request[Any]]] = {}
        self._waiting_bytes = 0
        self._waiting_bytes_max = waiting_bytes_max
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._is_stopping = False

    async def open(self) -> None:
        """Begin to receive."""
        await self._requests.__aenter__()

    def start(self) -> None:
        """Start to take messages."""
        self.tasks = [asyncio.create_task(self._take(), name=self.queue)]

    def stop(self) -> None:
        """Reject requests that were not started; running handlers finish."""
        self._is_stopping = True
        self._has_room.set()
        core = self._requests._core
        if core is not None:
            core.close()

    async def close(self) -> None:
        """Close the stream, if that has not happened."""
        self._is_stopping = True
        await self._requests.__aexit__(None, None, None)

    @property
    def is_busy(self) -> bool:
        """Whether a handler runs."""
        return bool(self._answering)

    def running(self) -> tuple[Request[Any], ...]:
        """Return the messages that handlers work on."""
        return tuple(request for _, request in self._answering.values())

    async def _take(self) -> None:
        try:
            async for request in self._requests:
                if self._is_stopping:
                    await self._too_late(request)
                    continue
                self.taken += 1
                handler = self._handlers.get(request.content_type) or self._handlers.get(None)
                if handler is None:
                    await self._without_handler(request)
                    continue
                self._add(handler, Request(request._core, handler.wanted, request._client))
                await self._has_room.wait()
            for handler in self._handlers.values():
                while handler.waiting:
                    await self._too_late(handler.waiting.popleft())
        except asyncio.CancelledError:
            self._cancel()
            raise
        finally:
            await self._finish()
        if not self._is_stopping:
            raise errors.ConnectionLost(
                "the handlers of requests receive nothing more, because the client was closed or has given up "
                "reconnecting; start the app again, or raise reconnect_attempts",
                sent=False,
            )

    def _add(self, handler: RequestHandler, request: Request[Any]) -> None:
        handler.waiting.append(request)
        self._count_waiting(_size(request))
        self._start_waiting(handler)

    def _start_waiting(self, handler: RequestHandler) -> None:
        while handler.free and handler.waiting:
            request = handler.waiting.popleft()
            self._count_waiting(-_size(request))
            handler.free -= 1
            task = asyncio.create_task(self._answer(handler, request), name=f"{handler.name} of {self.queue}")
            self._answering[task] = (handler, request)
            task.add_done_callback(self._answered)

    def _count_waiting(self, change: int) -> None:
        self._waiting_bytes += change
        if self._waiting_bytes < self._waiting_bytes_max:
            self._has_room.set()
        else:
            self._has_room.clear()

    def _answered(self, task: asyncio.Task[None]) -> None:
        handler, _ = self._answering.pop(task)
        handler.free += 1
        if not self._is_stopping:
            self._start_waiting(handler)

    def _cancel(self) -> None:
        """Cancel running handlers, and start no other one in their place."""
        self._is_stopping = True
        for task in self._answering:
            task.cancel()

    async def _finish(self) -> None:
        """Wait for running handlers. If this is cancelled, cancel them."""
        while self._answering:
            try:
                await asyncio.wait(tuple(self._answering))
            except asyncio.CancelledError:
                self._cancel()
                await asyncio.wait(tuple(self._answering))
                raise

    async def _without_handler(self, request: Request[bytes]) -> None:
        known = ", ".join(str(each) for each in self._handlers)
        _LOG.warning("no handler for content type %d of %r; there are: %s", request.content_type, request, known)
        text = f"there is no handler for content type {request.content_type}; this app has: {known}"
        await _reject(request, text, _NO_HANDLER_STATUS, "no-handler")

    async def _too_late(self, request: Request[Any]) -> None:
        await _reject(request, "the app is stopping; send the request again", _STOPPING_STATUS, "stopping")

    async def _answer(self, handler: RequestHandler, request: Request[Any]) -> None:
        span = None if tracing.active is None else tracing.active.serving(request)
        task = asyncio.current_task()
        status, outcome = 0, "answered"
        try:
            try:
                request.body  # noqa: B018 (decodes it)
            except errors.BodyError:
                status = _BAD_BODY_STATUS
                raise
            result = await handler.call(request)
            body = bodies.encode(b"" if result is None else result)
        # A handler that raises SystemExit or KeyboardInterrupt would end the loop, and with it the program.
        except BaseException as error:
            if ends_task(task, error):
                raise
            outcome = "failed"
            if span is not None:
                span.end(outcome, error)
            _LOG.error("%s failed for %r", handler.name, request, exc_info=error)
            await _reject(request, failure(error), status or HANDLER_FAILED_STATUS, reason_of(error))
            return
        if request.wants_response:
            try:
                await unless_lost(request.respond(body))
            except errors.TooLarge as error:
                _LOG.error("%s returned a response that is too large: %s", handler.name, error)
                await unless_lost(request.respond(failure(error), status=HANDLER_FAILED_STATUS))
        elif request.wants_acknowledge:
            await unless_lost(request.ack())
        if span is not None:
            span.end(outcome)


async def _reject(request: Request[Any], text: str, status: int, reason: str) -> None:
    """Respond with a text and a status, or reject a message whose sender waits for an acknowledgement."""
    if request.wants_response:
        await unless_lost(request.respond(text, status=status))
    elif request.wants_acknowledge:
        await unless_lost(request.nack(reason))


def _size(request: Request[Any]) -> int:
    return len(request) + _HEADERS_BYTES_MAX
