"""How a client of asyncio connects and how its streams begin: what `mqcore.sync.base` does in another way.

Everything else of the two clients is the same; `tools/generate_sync.py` makes that of `mqcore.sync` from this package.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import AsyncIterator, Generator
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from mqcore import _core, errors
from mqcore.client.lifetime import OPEN, warn_if_open
from mqcore.client.options import ClientOptions

__all__ = ["ClientBase", "ConsumerBase"]

_YIELD_SECONDS: Final = 0.01
"""Time for which a loop may take messages without letting other tasks run."""

_T_co = TypeVar("_T_co", covariant=True)


class ClientBase:
    """A client that connects when it is awaited, or entered with ``async with``."""

    def __init__(self, target: list[str] | _core.Broker, options: ClientOptions) -> None:
        self._target = target
        self._options = options
        self._core: _core.AsyncClient | None = None

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        if self._core is None:
            self._core = await _core.AsyncClient.connect(self._target, self._options)
            OPEN.add(self)
        return self

    def _abort(self) -> None:
        if self._core is not None:
            OPEN.discard(self)
            self._core.abort()

    def _connected(self) -> _core.AsyncClient:
        if self._core is None:
            raise errors.InvalidArgument("the client is not connected; await it, or enter it with 'async with'")
        return self._core

    def __del__(self) -> None:
        warn_if_open(self)


class ConsumerBase(AsyncIterator[_T_co]):
    """A consumer that an ``async for`` loop opens and closes, unless ``async with`` does."""

    _core: object
    _yields_at: float = 0.0
    """When taking a message lets other tasks run before, by the monotonic clock. A message that is here needs no wait:
    without this, a backlog would keep the event loop from timeouts, signals and other tasks.
    """

    async def _let_others_run(self) -> None:
        await asyncio.sleep(0)
        self._yields_at = monotonic() + _YIELD_SECONDS

    @abc.abstractmethod
    async def __aenter__(self) -> Self: ...

    @abc.abstractmethod
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def __aiter__(self) -> AsyncIterator[_T_co]:
        """Return messages; end with the consumer, the client, or after the idle timeout."""
        return self._opened() if self._core is None else self

    async def _opened(self) -> AsyncIterator[_T_co]:
        # A loop that ends early drops this generator, and the event loop then closes it.
        async with self:
            while (message := await anext(self, None)) is not None:
                yield message
