"""Exceptions of callbacks: none of them may end the process or the event loop that calls them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from logging import Logger
from typing import TypeVar

__all__ = ["call_in_thread", "encodable", "ends_task", "reason_of", "refuse_awaitable", "run_loop", "text_of"]

_T = TypeVar("_T")


def ends_task(task: asyncio.Task[object] | None, error: BaseException) -> bool:
    """Whether `error`, caught in a coroutine of `task`, cancels or closes it from outside. The coroutine must then
    raise it again, or end without waiting. Otherwise a callback raised it.
    """
    if isinstance(error, asyncio.CancelledError):
        return task is not None and task.cancelling() > 0
    if isinstance(error, GeneratorExit):
        try:
            # A coroutine is closed while its task does not run.
            return asyncio.current_task() is not task
        except RuntimeError:
            return True
    return False


def call_in_thread(function: Callable[..., _T], *args: object) -> _T:
    """Call a function of the program in a worker thread. A future cannot hold `StopIteration`: it becomes the cause of
    a `RuntimeError`.
    """
    try:
        return function(*args)
    except StopIteration as error:
        raise RuntimeError(f"{getattr(function, '__qualname__', function)} raised StopIteration") from error


def refuse_awaitable(function: Callable[..., _T], result: _T) -> _T:
    """Return `result`. Raises `TypeError` if it is awaitable: its function has not run, and nothing here awaits it."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        name = getattr(function, "__qualname__", function)
        raise TypeError(
            f"{name} is async, which the blocking client cannot run; use mqcore.connect, or a plain function"
        )
    return result


def text_of(error: BaseException) -> str:
    """Return `str(error)` in a form that can be encoded, or the name of its type if that raises too."""
    try:
        return encodable(str(error))
    except BaseException:
        return f"<{type(error).__name__} without text>"


def encodable(text: str) -> str:
    """Return a text with escapes in place of lone surrogates, which UTF-8 does not have.

    JSON of a peer and names of files may have them, and so may texts of exceptions.
    """
    return text.encode("utf-8", "backslashreplace").decode()


def reason_of(error: BaseException) -> str:
    """Return the name of its type as the reason of a negative acknowledgement."""
    name = type(error).__name__
    return name if name.isidentifier() else "Exception"


def run_loop(loop: asyncio.AbstractEventLoop, finished: Callable[[], bool], log: Logger) -> None:
    """Run `loop` in this thread until `finished`, also if a task or callback in it raises `SystemExit` or the like."""
    while not finished():
        try:
            loop.run_forever()
        except BaseException:
            log.exception("a task of a callback raised an exception that ends event loops; the loop continues")
