"""Coroutines that others run step by step, each with context variables of its own."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from contextvars import Context
from types import coroutine
from typing import Any

__all__ = ["rest_of"]


@coroutine
def rest_of(work: Coroutine[Any, Any, Any], context: Context, awaited: Any) -> Generator[Any, Any, Any]:
    """Run the rest of a coroutine like ``await``, in its context. It waits for `awaited` now."""
    while True:
        thrown: BaseException | None = None
        value = None
        try:
            value = yield awaited
        except GeneratorExit:
            context.run(work.close)
            raise
        except BaseException as error:
            thrown = error
        try:
            awaited = context.run(work.send, value) if thrown is None else context.run(work.throw, thrown)
        except StopIteration as ended:
            return ended.value
