"""Rate limits of this process, and the base of all limiters without ``await``."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar, cast

from mqcore import _core
from mqcore._core import Verdict
from mqcore.config import Duration, seconds
from mqcore.ratelimit.limits import Limit, Strategy, _limited, _Limits, _own_name, _parts, _worth_waiting
from mqcore.throttr import Algorithm, Mode

_P = ParamSpec("_P")
_R = TypeVar("_R")


class _Blocking(_Limits):
    """Base of limiters without ``await``."""

    def _apply(self, key: str | bytes, limit: str | Limit, cost: int, mode: Mode) -> Verdict:
        raise TypeError(f"{type(self).__name__} checks nothing")

    def _apply_all(
        self, parts: Sequence[tuple[str | bytes, str | Limit, int]], mode: Mode
    ) -> tuple[bool, list[Verdict]]:
        raise TypeError(f"{type(self).__name__} checks nothing")

    def check(self, key: str | bytes, limit: str | Limit, *, cost: int = 1, dry_run: bool = False) -> Verdict:
        """Take `cost` from the quota of `key` if enough is left, in one atomic step. With `dry_run`, take nothing.

        Raises `ConfigError` for an invalid limit, `InvalidArgument` for a key over 255 bytes, and `Unacceptable` for a
        key that is in use with another strategy. An unreachable broker leads to the result of `on_unavailable`.
        """
        return self._apply(key, limit, cost, Mode.DRY_RUN if dry_run else Mode.TAKE)

    def peek(self, key: str | bytes, limit: str | Limit) -> Verdict:
        """Return what is left, without taking or creating anything. `allowed` is true if at least 1 is left."""
        return self._apply(key, limit, 1, Mode.PEEK)

    def refund(self, key: str | bytes, limit: str | Limit, *, cost: int = 1) -> Verdict:
        """Return `cost` to the quota of `key`, at most what was taken."""
        return self._apply(key, limit, cost, Mode.REFUND)

    def check_all(
        self,
        parts: Iterable[tuple[str | bytes, str | Limit] | tuple[str | bytes, str | Limit, int]],
        *,
        dry_run: bool = False,
    ) -> tuple[bool, list[Verdict]]:
        """Take from the quotas of up to 32 keys: from all of them, or from none if one has not enough left.

        Each part is a key and a limit, and optionally a cost (default 1). Return whether the check was allowed, and a
        verdict per key. Raises like `check`.
        """
        return self._apply_all(_parts(parts), Mode.DRY_RUN if dry_run else Mode.TAKE)

    @contextmanager
    def slot(self, key: str | bytes, limit: str | Limit, *, cost: int = 1, wait: Duration = 0.0) -> Iterator[Verdict]:
        """Run a ``with`` block once `cost` is allowed, waiting up to `wait` (default: 0). Raises `RateLimited`."""
        deadline = time.monotonic() + seconds(wait)
        while not (verdict := self.check(key, limit, cost=cost)).allowed:
            if not _worth_waiting(verdict, deadline):
                raise _limited(key, verdict)
            time.sleep(verdict.retry_after)
        yield verdict

    def limit(
        self,
        limit: str | Limit,
        *,
        key: str | Callable[_P, str | bytes] | None = None,
        cost: int | Callable[_P, int] = 1,
    ) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
        """Decorate a function, plain or ``async``, so that each call takes `cost`, or raises `RateLimited`.

        `key` and `cost` are values, or functions of the call's arguments. Default key: the function's full name.

        Example::

            @limiter.limit("5/m", key=lambda user: f"mail:{user}")
            def send_mail(user: str) -> None: ...
        """
        self._of(limit)

        def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
            named = _own_name(function) if key is None else key

            def check(*args: _P.args, **kwargs: _P.kwargs) -> None:
                chosen = named(*args, **kwargs) if callable(named) else named
                verdict = self.check(chosen, limit, cost=cost(*args, **kwargs) if callable(cost) else cost)
                if not verdict.allowed:
                    raise _limited(chosen, verdict)

            if inspect.iscoroutinefunction(function):

                async def limited_async(*args: _P.args, **kwargs: _P.kwargs) -> Any:
                    check(*args, **kwargs)
                    return await function(*args, **kwargs)

                return cast("Callable[_P, _R]", functools.wraps(function)(limited_async))

            @functools.wraps(function)
            def limited(*args: _P.args, **kwargs: _P.kwargs) -> _R:
                check(*args, **kwargs)
                return function(*args, **kwargs)

            return limited

        return decorate


BoundLimit = _core.LimitRule
"""A prepared limit. ``check(key, cost=1)`` is a single call into the core."""


class LocalRateLimiter(_Blocking):
    """Rate limits of this process, created by `RateLimiter.local`. Thread-safe.

    >>> from mqcore.ratelimit import RateLimiter
    >>> limiter = RateLimiter.local()
    >>> [limiter.check("user:7", "2/h", cost=cost).allowed for cost in (1, 1, 1)]
    [True, True, False]
    """

    def __init__(self, strategy: Strategy, prefix: str, keys_max: int, bytes_max: int) -> None:
        super().__init__(strategy, prefix)
        self._store = _core.LimitStore(keys_max, bytes_max)

    def bind(self, limit: str | Limit) -> BoundLimit:
        """Prepare a limit for the fastest check, `BoundLimit.check`, which does not add the prefix to keys."""
        bound: BoundLimit = self._of(limit)
        return bound

    def reset(self, key: str | bytes) -> bool:
        """Reset the fixed window of `key`. Return false if it has none."""
        return self._store.purge(self._key(key))

    def __len__(self) -> int:
        return len(self._store)

    def check(self, key: str | bytes, limit: str | Limit, *, cost: int = 1, dry_run: bool = False) -> Verdict:
        """Take `cost` from the quota of `key` if enough is left, in one atomic step. With `dry_run`, take nothing.

        Raises `ConfigError` for an invalid limit, `InvalidArgument` for a key over 255 bytes, and `Unacceptable` for a
        key that is in use with another strategy.
        """
        rule: BoundLimit = self._ready.get(limit) or self._of(limit)
        if self._prefix:
            key = self._key(key)
        if dry_run:
            return rule.apply(key, cost, Mode.DRY_RUN)
        return rule.check(key, cost)

    def _prepare(self, limit: Limit, algorithm: Algorithm) -> BoundLimit:
        return self._store.rule(algorithm.code, limit.amount, limit.nanoseconds)

    def _apply(self, key: str | bytes, limit: str | Limit, cost: int, mode: Mode) -> Verdict:
        rule: BoundLimit = self._of(limit)
        return rule.apply(self._key(key), cost, mode)

    def _apply_all(
        self, parts: Sequence[tuple[str | bytes, str | Limit, int]], mode: Mode
    ) -> tuple[bool, list[Verdict]]:
        return self._store.apply_all([(self._key(key), self._of(limit), cost) for key, limit, cost in parts], mode)
