"""Publishers: targets to which handlers and programs publish, with the type of their bodies."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from mqcore.app.declarations import prefixed
from mqcore.app.middleware import Middleware
from mqcore.client import Receipt
from mqcore.client.options import PublishOptions
from mqcore.config import QueueOptions
from mqcore.errors import ConfigError

if TYPE_CHECKING:
    from mqcore.app.group import Group

__all__ = ["Publisher", "RunningApp", "publishers_of"]

_T = TypeVar("_T")
_P = ParamSpec("_P")

_DECORATING: Final[weakref.WeakKeyDictionary[Callable[..., Any], list[Publisher[Any]]]] = weakref.WeakKeyDictionary()
"""The publishers of each decorated function, the innermost first."""


class RunningApp(Protocol):
    """An app, as its publishers use it."""

    async def _publish(
        self, queue: str, body: object, middlewares: Iterable[Middleware], options: PublishOptions
    ) -> Receipt: ...


class Publisher(Generic[_T]):
    """A target of messages, made by `App.publisher` or `Group.publisher`.

    As a decorator of a handler, it publishes what the handler returns, unless that is ``None``, before the handler's
    message is acknowledged. If publishing fails, the handler has failed. As an object, it publishes with `publish`.
    """

    def __init__(
        self,
        group: Group,
        queue: str,
        body: type[_T] | None,
        queue_options: QueueOptions | None,
        options: PublishOptions,
    ) -> None:
        self._group = group
        self._queue = queue
        self.body = body
        """The type of bodies, if it was given."""
        self.queue_options = queue_options
        """Options with which the app creates the queue if it is missing; ``None``: a missing queue is an error."""
        self.options = options
        """Arguments of `Client.publish` for each message."""
        self.decorated: list[Callable[..., Any]] = []
        """The handlers that it decorates."""

    @property
    def queue(self) -> str:
        """The target with the prefixes of its groups."""
        return self._group._full_name(self._queue)

    async def publish(self, body: _T, **options: Unpack[PublishOptions]) -> Receipt:
        """Publish a message through the middlewares; `options` are those of `Client.publish`.

        Raises `NotRunning` unless an app with this publisher runs, and whatever `Client.publish` raises.
        """
        app, prefix, middlewares = self._group._running_app()
        return await app._publish(prefixed(prefix, self._queue), body, middlewares, {**self.options, **options})

    @overload
    def __call__(self, function: Callable[_P, Coroutine[Any, Any, _T]], /) -> Callable[_P, Coroutine[Any, Any, _T]]: ...
    @overload
    def __call__(
        self, function: Callable[_P, Coroutine[Any, Any, _T | None]], /
    ) -> Callable[_P, Coroutine[Any, Any, _T | None]]: ...
    @overload
    def __call__(self, function: Callable[_P, _T], /) -> Callable[_P, _T]: ...
    @overload
    def __call__(self, function: Callable[_P, _T | None], /) -> Callable[_P, _T | None]: ...
    def __call__(self, function: Callable[..., Any], /) -> Callable[..., Any]:
        """Publish what a handler returns. The function itself stays as it is."""
        try:
            _DECORATING.setdefault(function, []).append(self)
        except TypeError:
            raise ConfigError(f"a publisher decorates functions, not {function!r}") from None
        self.decorated.append(function)
        return function

    def __repr__(self) -> str:
        return f"<Publisher {self._queue}>"


def publishers_of(function: Callable[..., Any]) -> tuple[Publisher[Any], ...]:
    """Return the publishers that decorate a function."""
    return tuple(_DECORATING.get(function, ()))
