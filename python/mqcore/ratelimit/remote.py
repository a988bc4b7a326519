"""Rate limits that all clients of a broker share."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, Self, TypeVar, cast, get_args

from mqcore import _core
from mqcore._core import Verdict
from mqcore.config import Duration, seconds
from mqcore.errors import ConfigError, HandshakeError, RequestTimeout, TransportError, Unacceptable, VersionMismatch
from mqcore.ratelimit.limits import Limit, Strategy, _limited, _Limits, _own_name, _parts, _worth_waiting
from mqcore.ratelimit.local import LocalRateLimiter, _Blocking
from mqcore.throttr import Algorithm, Mode, Unit

if TYPE_CHECKING:
    from types import TracebackType

    from mqcore.tls import TLSConfig

OnUnavailable = Literal["allow", "deny", "raise"]
"""Result of a check while the broker is unreachable: allow, deny, or raise the error."""

_CONSUME, _CONSUME_ALL, _PURGE = 0xC0, 0xC1, 0x04
_IMPOSSIBLE: Final = 2
_UNREACHABLE: Final = (TransportError, HandshakeError, RequestTimeout)

_P = ParamSpec("_P")
_R = TypeVar("_R")
_F = TypeVar("_F", bound=Callable[..., Any])


class _Remote(_Limits):
    """Base of limiters that use a broker."""

    _core_class: type[_core.AsyncThrottrClient | _core.BlockingThrottrClient] = _core.AsyncThrottrClient

    def __init__(
        self,
        url: str = "throttr://127.0.0.1:9000?value=uint64",
        *,
        on_unavailable: OnUnavailable,
        strategy: Strategy = Algorithm.GCRA,
        prefix: str = "",
        tls: TLSConfig | None = None,
        timeout: Duration = 1.0,
    ) -> None:
        super().__init__(strategy, prefix)
        if on_unavailable not in get_args(OnUnavailable):
            raise ConfigError(f"on_unavailable must be 'allow', 'deny' or 'raise', not {on_unavailable!r}")
        self._on_unavailable = on_unavailable
        self._core = self._core_class(url, tls, seconds(timeout), seconds(timeout))
        self._value_max = self._core.value_max

    def _prepare(self, limit: Limit, algorithm: Algorithm) -> tuple[int, int, int, int, int]:
        if limit.amount > self._value_max:
            raise ConfigError(
                f"a limit of {limit.amount} exceeds {self._value_max}, the largest value of the listener; use a "
                "listener with ?value=uint64, also in the limiter's URL"
            )
        unit, amount = self._expressed(limit.nanoseconds)
        return algorithm.code, limit.amount, unit, amount, limit.amount

    def _expressed(self, nanoseconds: int) -> tuple[int, int]:
        """The coarsest unit in which a period is a whole number, and that number."""
        for unit in reversed(Unit):
            amount, rest = divmod(nanoseconds, unit.nanoseconds)
            if not rest and amount:
                if amount <= self._value_max:
                    return unit, amount
                break
        raise ConfigError(
            f"a period of {nanoseconds / 1e9} s does not fit into values up to {self._value_max}; use a listener with "
            "?value=uint64, also in the limiter's URL"
        )

    def _key_bytes(self, key: str | bytes) -> bytes:
        key = self._key(key)
        return key.encode() if isinstance(key, str) else key

    def _request(self, key: str | bytes, limit: str | Limit, cost: int, mode: Mode) -> tuple[Any, ...]:
        algorithm, amount, unit, period, _ = self._of(limit)
        return _CONSUME, self._key_bytes(key), mode, algorithm, amount, cost, unit, period

    def _request_all(self, parts: Sequence[tuple[str | bytes, str | Limit, int]], mode: Mode) -> tuple[Any, ...]:
        rules = []
        for key, limit, cost in parts:
            algorithm, amount, unit, period, _ = self._of(limit)
            rules.append((self._key_bytes(key), algorithm, amount, cost, unit, period))
        return _CONSUME_ALL, int(mode), rules

    def _instead(self, error: Exception, limit: str | Limit) -> Verdict:
        """The verdict of `on_unavailable`, or raise `error`."""
        if isinstance(error, VersionMismatch):
            # A wrong URL, which no retry repairs: always allowing because of it would be a silent failure.
            raise error
        amount = self._of(limit)[4]
        if self._on_unavailable == "allow":
            return Verdict(True, amount, amount, available=False)
        if self._on_unavailable == "deny":
            return Verdict(False, amount, 0, retry_after=1.0, available=False)
        raise error


def _one(answers: list[Any]) -> Verdict:
    (verdict,) = answers
    if verdict is None:
        raise _impossible()
    return cast("Verdict", verdict)


def _all(answers: list[Any]) -> tuple[bool, list[Verdict]]:
    ((status, verdicts),) = answers
    if status == _IMPOSSIBLE:
        raise _impossible()
    return status == 1, verdicts


def _impossible() -> Unacceptable:
    return Unacceptable("the key is in use with another strategy, or was given twice; use another key", 406)


class SyncRateLimiter(_Remote, _Blocking):
    """Rate limits of a broker, without ``await``. Takes the arguments of `RateLimiter`. Thread-safe."""

    _core_class = _core.BlockingThrottrClient
    _core: _core.BlockingThrottrClient

    def reset(self, key: str | bytes) -> bool:
        """Reset the fixed window of `key`. Return false if it has none.

        Raises `TransportError`, `HandshakeError` or `RequestTimeout` if the broker is unreachable.
        """
        (done,) = self._core.ask([(_PURGE, self._key_bytes(key))])
        return bool(done)

    def close(self) -> None:
        """Close the connection."""
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _apply(self, key: str | bytes, limit: str | Limit, cost: int, mode: Mode) -> Verdict:
        request = self._request(key, limit, cost, mode)
        try:
            return _one(self._core.ask([request]))
        except _UNREACHABLE as error:
            return self._instead(error, limit)

    def _apply_all(
        self, parts: Sequence[tuple[str | bytes, str | Limit, int]], mode: Mode
    ) -> tuple[bool, list[Verdict]]:
        request = self._request_all(parts, mode)
        try:
            return _all(self._core.ask([request]))
        except _UNREACHABLE as error:
            verdicts = [self._instead(error, limit) for _, limit, _ in parts]
            return all(verdicts), verdicts


class RateLimiter(_Remote):
    """Rate limits of a broker, for asyncio, shared by all clients of the broker.

    - `url`: a Throttr listener. With ``?value=uint64``, limits and periods can have any size.
    - `on_unavailable`: result of a check while the broker is unreachable. ``"allow"`` or ``"deny"``; ``"raise"`` raises
      `TransportError`, `HandshakeError` or `RequestTimeout`. It has no default, because the right choice depends on the
      program. A listener with values of another width than ``value`` in the URL always raises `VersionMismatch`.
    - `timeout`: time to wait for the broker (default 1 s).
    - `strategy`: strategy of limits that name none (default GCRA).
    - `prefix`: text before every key (default: none).

    Methods raise `ConfigError` for limits that are invalid or exceed the listener's width, `TooLarge` for a key over
    255 bytes, and `Unacceptable` for a key that is in use with another strategy.
    """

    _core: _core.AsyncThrottrClient

    @staticmethod
    def local(
        *,
        strategy: Strategy = Algorithm.GCRA,
        prefix: str = "",
        keys_max: int = 1 << 24,
        bytes_max: int = 2 << 30,
    ) -> LocalRateLimiter:
        """Create a limiter of this process, without a socket and without ``await``.

        Beyond `keys_max` keys (default 16,777,216) or `bytes_max` bytes (default 2 GiB), it drops the key that expires
        first.
        """
        return LocalRateLimiter(strategy, prefix, keys_max, bytes_max)

    async def check(self, key: str | bytes, limit: str | Limit, *, cost: int = 1, dry_run: bool = False) -> Verdict:
        """Take `cost` from the quota of `key` if enough is left, in one atomic step. With `dry_run`, take nothing."""
        return await self._apply(key, limit, cost, Mode.DRY_RUN if dry_run else Mode.TAKE)

    async def peek(self, key: str | bytes, limit: str | Limit) -> Verdict:
        """Return what is left, without taking or creating anything. `allowed` is true if at least 1 is left."""
        return await self._apply(key, limit, 1, Mode.PEEK)

    async def refund(self, key: str | bytes, limit: str | Limit, *, cost: int = 1) -> Verdict:
        """Return `cost` to the quota of `key`, at most what was taken."""
        return await self._apply(key, limit, cost, Mode.REFUND)

    async def check_all(
        self,
        parts: Iterable[tuple[str | bytes, str | Limit] | tuple[str | bytes, str | Limit, int]],
        *,
        dry_run: bool = False,
    ) -> tuple[bool, list[Verdict]]:
        """Take from the quotas of up to 32 keys: from all of them, or from none if one has not enough left.

        Each part is a key and a limit, and optionally a cost (default 1). Return whether the check was allowed, and a
        verdict per key. Raises like `check`.
        """
        return await self._apply_all(_parts(parts), Mode.DRY_RUN if dry_run else Mode.TAKE)

    async def reset(self, key: str | bytes) -> bool:
        """Reset the fixed window of `key`. Return false if it has none.

        Raises `TransportError`, `HandshakeError` or `RequestTimeout` if the broker is unreachable.
        """
        (done,) = await self._core.ask([(_PURGE, self._key_bytes(key))])
        return bool(done)

    def slot(
        self, key: str | bytes, limit: str | Limit, *, cost: int = 1, wait: Duration = 0.0
    ) -> AbstractAsyncContextManager[Verdict]:
        """Run an ``async with`` block once `cost` is allowed; wait up to `wait` (default: 0). Raises `RateLimited`."""
        return self._slot(key, limit, cost, seconds(wait))

    @asynccontextmanager
    async def _slot(self, key: str | bytes, limit: str | Limit, cost: int, wait: float) -> AsyncIterator[Verdict]:
        deadline = time.monotonic() + wait
        while not (verdict := await self.check(key, limit, cost=cost)).allowed:
            if not _worth_waiting(verdict, deadline):
                raise _limited(key, verdict)
            await asyncio.sleep(verdict.retry_after)
        yield verdict

    def limit(
        self,
        limit: str | Limit,
        *,
        key: str | Callable[_P, str | bytes] | None = None,
        cost: int | Callable[_P, int] = 1,
    ) -> Callable[[Callable[_P, Awaitable[_R]]], Callable[_P, Awaitable[_R]]]:
        """Decorate an ``async`` function, so that each call takes `cost`, or raises `RateLimited`.

        `key` and `cost` are values, or functions of the call's arguments. Default key: the function's full name. Use
        `RateLimiter.local` or `SyncRateLimiter` for plain functions; here they raise `ConfigError`.
        """
        self._of(limit)

        def decorate(function: Callable[_P, Awaitable[_R]]) -> Callable[_P, Awaitable[_R]]:
            if not inspect.iscoroutinefunction(function):
                raise ConfigError(
                    f"{_own_name(function)} is not async, but this limiter requires await; use RateLimiter.local() or "
                    "SyncRateLimiter"
                )
            named = _own_name(function) if key is None else key

            @functools.wraps(function)
            async def limited(*args: _P.args, **kwargs: _P.kwargs) -> _R:
                chosen = named(*args, **kwargs) if callable(named) else named
                verdict = await self.check(chosen, limit, cost=cost(*args, **kwargs) if callable(cost) else cost)
                if not verdict.allowed:
                    raise _limited(chosen, verdict)
                return await function(*args, **kwargs)

            return limited

        return decorate

    async def close(self) -> None:
        """Close the connection."""
        self._core.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _apply(self, key: str | bytes, limit: str | Limit, cost: int, mode: Mode) -> Verdict:
        request = self._request(key, limit, cost, mode)
        try:
            return _one(await self._core.ask([request]))
        except _UNREACHABLE as error:
            return self._instead(error, limit)

    async def _apply_all(
        self, parts: Sequence[tuple[str | bytes, str | Limit, int]], mode: Mode
    ) -> tuple[bool, list[Verdict]]:
        request = self._request_all(parts, mode)
        try:
            return _all(await self._core.ask([request]))
        except _UNREACHABLE as error:
            verdicts = [self._instead(error, limit) for _, limit, _ in parts]
            return all(verdicts), verdicts
