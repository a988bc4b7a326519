"""How a client of asyncio connects and how its streams begin: what `mqcore.sync.base` does in another way.

Everything else of the two clients is the same; `tools/generate_sync.py` makes that of `mqcore.sync` from this package.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Generic, Self, TypeVar

from mqcore import _core, errors
from mqcore.client.lifetime import OPEN, warn_if_open
from mqcore.client.options import ClientOptions

__all__ = ["ClientBase", "ConsumerBase"]

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


class ConsumerBase(Generic[_T_co]):
    """A consumer that ``async with`` opens and ``async for`` reads."""

    def __aiter__(self) -> Self:
        return self
