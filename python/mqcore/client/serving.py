"""Answers of `Client.serve` of the asyncio client; those of the blocking one are in `mqcore.sync.base`."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from mqcore import _tracing as tracing
from mqcore import bodies, errors
from mqcore._raised import call_in_thread, ends_task, reason_of, text_of
from mqcore.client.messages import Request

__all__ = ["HANDLER_FAILED_STATUS", "answer", "failure", "unless_lost"]

HANDLER_FAILED_STATUS: Final = 1
"""Status of the response to a request whose handler raised."""

_FAILURE_CHARACTERS_MAX: Final = 16_000
_LOG: Final = logging.getLogger("mqcore.client")


def failure(error: BaseException) -> str:
    """Return the body of the response to a request whose handler raised."""
    return text_of(error)[:_FAILURE_CHARACTERS_MAX]


async def answer(handler: Callable[[Request[Any]], object | Awaitable[object]], request: Request[Any]) -> None:
    """Call the handler and send its result, or status 1 if it raises."""
    span = None if tracing.active is None else tracing.active.serving(request)
    task = asyncio.current_task()
    try:
        if inspect.iscoroutinefunction(handler):
            result = await handler(request)
        else:
            result = await asyncio.to_thread(call_in_thread, handler, request)
            if inspect.isawaitable(result):
                result = await result
        body = bodies.encode(b"" if result is None else result)
    # A handler that raises SystemExit or KeyboardInterrupt would end the loop, and with it the program.
    except BaseException as error:
        if ends_task(task, error):
            raise
        if span is not None:
            span.end("failed", error)
        _LOG.exception("%s failed for %r", getattr(handler, "__qualname__", handler), request)
        if request.wants_response:
            await unless_lost(request.respond(failure(error), status=HANDLER_FAILED_STATUS))
        elif request.wants_acknowledge:
            await unless_lost(request.nack(reason_of(error)))
        return
    if request.wants_response:
        try:
            await unless_lost(request.respond(body))
        except errors.TooLarge as error:
            if span is not None:
                span.end("failed", error)
            _LOG.error("%s returned a response that is too large: %s", getattr(handler, "__qualname__", handler), error)
            await unless_lost(request.respond(failure(error), status=HANDLER_FAILED_STATUS))
    elif request.wants_acknowledge:
        await unless_lost(request.ack())
    if span is not None:
        span.end("answered")


async def unless_lost(answer: Awaitable[None]) -> None:
    """Answer, unless the connection is lost: then the sender no longer waits."""
    try:
        await answer
    except errors.TransportError as error:
        _LOG.warning("cannot answer a request: %s", error)
