"""Answers direct messages to an app's client with its handlers."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
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


@dataclass(slots=True)
class RequestHandler:
    """A handler of direct messages that runs."""

    name: str
    call: Call
    wanted: Any
    """The type of bodies."""
    gate: asyncio.Semaphore


class Answers:
    """Takes the direct messages to a client, and answers each in a task of its own."""

    def __init__(self, requests: Requests[bytes], handlers: dict[int | None, RequestHandler]) -> None:
        self.name = "requests"
        self.queue = "direct messages"
        self.tasks: list[asyncio.Task[None]] = []
        self.taken = 0
        """Messages that it took."""
        self._requests = requests
        self._handlers = handlers
        self._answering: dict[asyncio.Task[None], tuple[asyncio.Semaphore, Request[Any]]] = {}
        self._is_stopping = False

    async def open(self) -> None:
        """Begin to receive."""
        await self._requests.__aenter__()

    def start(self) -> None:
        """Start to take messages."""
        self.tasks = [asyncio.create_task(self._take(), name=self.queue)]

    def stop(self) -> None:
        """Take nothing more; running handlers finish."""
        self._is_stopping = True
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
                self.taken += 1
                handler = self._handlers.get(request.content_type) or self._handlers.get(None)
                if handler is None:
                    await self._without_handler(request)
                    continue
                await handler.gate.acquire()
                typed: Request[Any] = Request(request._core, handler.wanted, request._client)
                task = asyncio.create_task(self._answer(handler, typed), name=f"{handler.name} of {self.queue}")
                self._answering[task] = (handler.gate, typed)
                task.add_done_callback(self._answered)
        finally:
            await self._finish()
        if not self._is_stopping:
            raise errors.ConnectionLost(
                "the handlers of requests receive nothing more, because the client was closed or has given up "
                "reconnecting; start the app again, or raise reconnect_attempts",
                sent=False,
            )

    async def _finish(self) -> None:
        """Wait for running handlers. If this is cancelled, cancel them."""
        while self._answering:
            try:
                await asyncio.wait(tuple(self._answering))
            except asyncio.CancelledError:
                for task in self._answering:
                    task.cancel()
                await asyncio.wait(tuple(self._answering))
                raise

    async def _without_handler(self, request: Request[bytes]) -> None:
        known = ", ".join(str(each) for each in self._handlers)
        _LOG.warning("no handler for content type %d of %r; there are: %s", request.content_type, request, known)
        if request.wants_response:
            text = f"there is no handler for content type {request.content_type}; this app has: {known}"
            await unless_lost(request.respond(text, status=_NO_HANDLER_STATUS))
        elif request.wants_acknowledge:
            await unless_lost(request.nack("no-handler"))

    def _answered(self, task: asyncio.Task[None]) -> None:
        gate, _ = self._answering.pop(task)
        gate.release()

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
            if request.wants_response:
                await unless_lost(request.respond(failure(error), status=status or HANDLER_FAILED_STATUS))
            elif request.wants_acknowledge:
                await unless_lost(request.nack(reason_of(error)))
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
