"""Coroutines that others run step by step."""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import coroutine
from typing import Any

__all__ = ["rest_of"]


@coroutine
def rest_of(
    send: Callable[[Any], Any], throw: Callable[[BaseException], Any], close: Callable[[], None], awaited: Any
) -> Generator[Any, Any, Any]:
    """Run the rest of a coroutine, given by its methods, like ``await``. It waits for `awaited` now."""
    while True:
        thrown: BaseException | None = None
        value = None
        try:
            value = yield awaited
        except GeneratorExit:
            close()
            raise
        except BaseException as error:
            thrown = error
        try:
            awaited = send(value) if thrown is None else throw(thrown)
        except StopIteration as ended:
            return ended.value
