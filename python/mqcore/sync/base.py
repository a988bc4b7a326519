"""How a blocking client connects and how its consumers begin: what `mqcore.client.base` does in another way."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from types import TracebackType
from typing import Self, TypeVar

from mqcore import _core
from mqcore.client.lifetime import OPEN, warn_if_open
from mqcore.client.options import ClientOptions

__all__ = ["ClientBase", "ConsumerBase"]

_T_co = TypeVar("_T_co", covariant=True)


class ClientBase:
    """A client that is connected from the beginning."""

    def __init__(self, target: list[str] | _core.Broker, options: ClientOptions) -> None:
        self._core: _core.BlockingClient | None = None
        self._core = _core.BlockingClient.connect(target, options)
        OPEN.add(self)

    def __enter__(self) -> Self:
        return self

    def _abort(self) -> None:
        if self._core is not None:
            OPEN.discard(self)
            self._core.abort()

    def _connected(self) -> _core.BlockingClient:
        assert self._core is not None
        return self._core

    def __del__(self) -> None:
        warn_if_open(self)


class ConsumerBase(Iterator[_T_co]):
    """A consumer that a ``for`` loop opens and closes, unless ``with`` does."""

    _core: _core.Consumer | None

    @abc.abstractmethod
    def __enter__(self) -> Self: ...

    @abc.abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def __iter__(self) -> Iterator[_T_co]:
        """Return messages; end with the consumer, the client, or after the idle timeout."""
        return self._opened() if self._core is None else self

    def _opened(self) -> Iterator[_T_co]:
        with self:
            yield from self
