"""Awaitables that the core was given instead of answers: an event loop awaits each, and its answer goes back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar


class Reply(Protocol):
    """The way back for one answer; what comes after the first is ignored."""

    def settle(self, result: object, /) -> None:
        """Give the answer."""

    def fail(self) -> None:
        """Say that there is none."""


R = TypeVar("R", bound=Reply)


class LoopRunner(Generic[R]):
    """Brings awaitables to an event loop and the answers back.

    `timeout` is in seconds and holds for each awaitable; `raised` is told what one of them raised; `closed`, that there
    is no loop any more, once for all that were on their way to it.
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
        # A loop holds its tasks weakly.
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, burst: list[tuple[Awaitable[object], R]]) -> None:
        """Take awaitables; called on a thread of the core's."""
        try:
            loop = self._loop()
            loop.call_soon_threadsafe(self._run, loop, burst)
        except RuntimeError as closed:
            for awaitable, reply in burst:
                reply.fail()
                if asyncio.iscoroutine(awaitable):
                    awaitable.close()
            self._closed(burst[0][1], closed)

    def _run(self, loop: asyncio.AbstractEventLoop, burst: list[tuple[Awaitable[object], R]]) -> None:
        for awaitable, reply in burst:
            task = loop.create_task(self._answer(awaitable, reply))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, awaitable: Awaitable[object], reply: R) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                result = await awaitable
            reply.settle(result)
        except Exception as exception:
            self._raised(reply, exception)
        finally:
            reply.fail()
