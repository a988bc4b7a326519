"""Awaitable answers: an event loop awaits each, and returns the result to the core."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Generic, Protocol, TypeVar

from mqcore._raised import ends_task


class Reply(Protocol):
    """The reply for one answer; only the first call counts."""

    def settle(self, result: object, /) -> None:
        """Settle with the answer."""

    def fail(self) -> None:
        """Report that there is no answer."""


R = TypeVar("R", bound=Reply)


class _Burst(Generic[R]):
    """Awaitables on their way to a loop. A loop that is closed before it takes them drops this object, which then
    reports that there is no answer.
    """

    def __init__(self, answers: list[tuple[Awaitable[object], R]]) -> None:
        self._answers = answers

    def take(self) -> list[tuple[Awaitable[object], R]]:
        """The awaitables and their replies. The caller settles them."""
        taken, self._answers = self._answers, []
        return taken

    def abandon(self) -> None:
        """Report that there is no answer to any of them."""
        for awaitable, reply in self.take():
            reply.fail()
            _discard(awaitable)

    def __del__(self) -> None:
        self.abandon()


def _discard(awaitable: Awaitable[object]) -> None:
    """Close a coroutine that may not have been awaited, so that Python does not warn about it."""
    if asyncio.iscoroutine(awaitable):
        awaitable.close()


class LoopRunner(Generic[R]):
    """Runs awaitables on an event loop and returns their answers.

    `timeout` in seconds applies to each awaitable. `raised` receives the exception of an awaitable. `closed` is called
    once per burst if the loop is closed.
    """

    def __init__(
        self,
        timeout: float,
        loop: Callable[[], asyncio.AbstractEventLoop],
        raised: Callable[[R, BaseException], None],
        closed: Callable[[R, BaseException], None],
    ) -> None:
        self._timeout = timeout
        self._loop = loop
        self._raised = raised
        self._closed = closed
        # The loop keeps only weak references to its tasks.
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, burst: list[tuple[Awaitable[object], R]]) -> None:
        """Run awaitables; the core calls this on its own threads."""
        first = burst[0][1]
        waiting = _Burst(burst)
        try:
            loop = self._loop()
            loop.call_soon_threadsafe(self._run, loop, waiting)
        except RuntimeError as closed:
            waiting.abandon()
            self._closed(first, closed)

    def _run(self, loop: asyncio.AbstractEventLoop, burst: _Burst[R]) -> None:
        for awaitable, reply in burst.take():
            task = loop.create_task(self._answer(awaitable, reply))
            self._tasks.add(task)
            task.add_done_callback(partial(self._done, awaitable, reply))

    def _done(self, awaitable: Awaitable[object], reply: R, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        # A task that is canceled before its first step neither awaits nor replies.
        reply.fail()
        _discard(awaitable)

    async def _answer(self, awaitable: Awaitable[object], reply: R) -> None:
        task = asyncio.current_task()
        try:
            async with asyncio.timeout(self._timeout):
                result = await awaitable
            reply.settle(result)
        # A callback that raises SystemExit or KeyboardInterrupt would end the loop, and with it the program.
        except BaseException as exception:
            if ends_task(task, exception):
                raise
            self._raised(reply, exception)
