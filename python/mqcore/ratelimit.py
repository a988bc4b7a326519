"""Rate limits: of this process, or shared by all processes through a broker.

::

    from mqcore.ratelimit import RateLimiter

    limiter = RateLimiter.local()                          # this process only, without a socket
    if not limiter.check("user:7", "100/s"):
        ...

    limiter = RateLimiter("throttr://127.0.0.1:9000?value=uint64", on_unavailable="allow")
    verdict = await limiter.check("user:7", "100/s", cost=5)
    print(verdict.remaining, verdict.retry_after)

A limit is text such as ``"20/m"``, ``"100/10s"`` or ``"5/h"`` (units ms, s, m, h, d), or a `Limit`. A check is atomic:
concurrent checks never exceed the limit. docs/ratelimit.md helps to choose a limiter and a strategy; docs/limits.md
describes how the strategies count.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, Self, TypeVar, cast, get_args

from mqcore import _core
from mqcore._core import Verdict
from mqcore.config import Duration, seconds
from mqcore.errors import ConfigError, HandshakeError, RateLimited, RequestTimeout, TransportError, Unacceptable
from mqcore.throttr import Algorithm, Mode, Unit

if TYPE_CHECKING:
    from types import TracebackType

    from mqcore.tls import TLSConfig

__all__ = [
    "BoundLimit",
    "Limit",
    "LocalRateLimiter",
    "RateLimitMiddleware",
    "RateLimiter",
    "Rule",
    "SyncRateLimiter",
    "Verdict",
]

OnUnavailable = Literal["allow", "deny", "raise"]
"""Result of a check while the broker is unreachable: allow, deny, or raise the error."""

Strategy = Algorithm | Literal["fixed-window", "sliding-window", "gcra"]

_LIMIT: Final = re.compile(r"\s*(\d+)\s*/\s*(\d+(?:\.\d+)?)?\s*(ms|s|m|h|d)\s*")
_UNITS: Final = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}
_KEY_BYTES_MAX: Final = 255
_CONSUME, _CONSUME_ALL, _PURGE = 0xC0, 0xC1, 0x04
_IMPOSSIBLE: Final = 2
_UNREACHABLE: Final = (TransportError, HandshakeError, RequestTimeout)
# Maximum number of cached prepared limits. Without it, a program that computes limits would fill the memory.
_CACHED_LIMITS_MAX: Final = 4096

_P = ParamSpec("_P")
_R = TypeVar("_R")
_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Limit:
    """An amount per period. Raises `ConfigError` for a negative amount or an empty period.

    >>> Limit.parse("500/10s")
    Limit(amount=500, period=10.0, strategy=None)
    """

    amount: int
    """Maximum total cost per period, 0 to 2**64 - 1."""
    period: Duration
    """Seconds, a timedelta, or text such as ``"10s"``."""
    strategy: Strategy | None = None
    """Strategy of counting. Default: that of the limiter."""

    def __post_init__(self) -> None:
        if self.amount < 0 or self.amount >= 1 << 64:
            raise ConfigError(f"the amount of a limit must be from 0 to 2**64 - 1, not {self.amount}")
        if self.nanoseconds <= 0:
            raise ConfigError(f"the period of a limit must be longer than 0 s, not {self.period!r}")
        if self.strategy is not None:
            _algorithm(self.strategy)

    @property
    def nanoseconds(self) -> int:
        """The period in nanoseconds."""
        return round(seconds(self.period) * 1e9)

    @classmethod
    def parse(cls, text: str, strategy: Strategy | None = None) -> Limit:
        """Parse text such as ``"20/m"`` or ``"100/10s"``. Raises `ConfigError`."""
        match = _LIMIT.fullmatch(text)
        if match is None:
            raise ConfigError(
                f"invalid limit {text!r}; use AMOUNT/PERIOD, for example '100/s', '20/m', '500/10s' or '10000/d'"
            )
        period = float(match[2] or 1) * _UNITS[match[3]] / 1e9
        return cls(int(match[1]), period, strategy)


def _algorithm(strategy: Strategy) -> Algorithm:
    try:
        return Algorithm(strategy)
    except ValueError:
        known = ", ".join(Algorithm)
        raise ConfigError(f"unknown strategy {strategy!r}; use one of {known}") from None


class _Limits:
    """Base of all limiters: parses and caches limits, and adds the prefix to keys."""

    def __init__(self, strategy: Strategy, prefix: str) -> None:
        self._strategy = _algorithm(strategy)
        self._prefix = prefix
        self._ready: dict[str | Limit, Any] = {}

    def _of(self, limit: str | Limit) -> Any:
        """Return the prepared form of a limit, from the cache if possible."""
        found = self._ready.get(limit)
        if found is None:
            parsed = Limit.parse(limit) if isinstance(limit, str) else limit
            algorithm = self._strategy if parsed.strategy is None else _algorithm(parsed.strategy)
            if len(self._ready) >= _CACHED_LIMITS_MAX:
                self._ready.clear()
            found = self._ready[limit] = self._prepare(parsed, algorithm)
        return found

    def _prepare(self, limit: Limit, algorithm: Algorithm) -> Any:
        raise TypeError(f"{type(self).__name__} has no limits")

    def _key(self, key: str | bytes) -> str | bytes:
        if not self._prefix:
            return key
        return self._prefix + key if isinstance(key, str) else self._prefix.encode() + key


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
      program.
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


def _parts(
    parts: Iterable[tuple[str | bytes, str | Limit] | tuple[str | bytes, str | Limit, int]],
) -> list[tuple[str | bytes, str | Limit, int]]:
    return [(part[0], part[1], part[2] if len(part) == 3 else 1) for part in parts]


def _own_name(function: Callable[..., object]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"


def _worth_waiting(verdict: Verdict, deadline: float) -> bool:
    return time.monotonic() + verdict.retry_after <= deadline


def _limited(key: str | bytes, verdict: Verdict) -> RateLimited:
    name = key if isinstance(key, str) else key.decode(errors="replace")
    if math.isinf(verdict.retry_after):
        message = f"{name}: the cost exceeds the limit of {verdict.limit}, so it can never be allowed"
    elif not verdict.available:
        message = f"{name}: denied because the broker is unreachable (on_unavailable='deny')"
    else:
        message = f"{name}: the limit of {verdict.limit} is reached; retry in {verdict.retry_after:.3f} s"
    return RateLimited(message, verdict.retry_after, verdict.limit)


# --- ASGI ---------------------------------------------------------------------------------------------------------

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]


def client_address(scope: Scope) -> str:
    """Return the client's address from the ASGI server; behind a proxy it is the proxy's address."""
    client = scope.get("client")
    return str(client[0]) if client else "unknown"


@dataclass(frozen=True, slots=True)
class Rule:
    """A limit for matching requests."""

    path: str
    """A path, or a pattern with ``*``."""
    limit: str | Limit
    key: Callable[[Scope], str | None] = client_address
    """Function that returns the key of a request's quota, or `None` to exempt it. Default: the client's address."""
    cost: int | Callable[[Scope], int] = 1
    """Cost of a request."""
    methods: frozenset[str] | None = None
    """HTTP methods in upper case; default: all. WebSockets count as ``GET``."""
    name: str | None = None
    """Name in the response headers and in the key. Default: the path."""

    @property
    def shown(self) -> str:
        """Name in the response headers and in the key."""
        return self.path if self.name is None else self.name

    def matches(self, scope: Scope) -> bool:
        """Whether the rule applies to a request."""
        if self.methods is not None and scope.get("method", "GET") not in self.methods:
            return False
        return fnmatchcase(scope["path"], self.path)


class RateLimitMiddleware:
    """ASGI middleware for HTTP and WebSocket, for any application: Starlette, FastAPI, Django or plain ASGI.

    A request takes from the quotas of all matching rules. If one has not enough left, it takes from none, and the
    response is 429 with ``Retry-After`` (503 if the limiter denies because the broker is unreachable). Responses have
    the headers ``RateLimit-Policy`` and ``RateLimit`` (IETF draft ratelimit-headers), with `legacy_headers` also
    ``X-RateLimit-Limit``, ``-Remaining`` and ``-Reset`` of the rule with the least left. WebSockets are rejected before
    they are accepted.

    `limiter` is a `RateLimiter`, or from `RateLimiter.local`. Raises `ConfigError` for a `SyncRateLimiter`, for more
    than 32 rules, and for invalid limits.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        limiter: RateLimiter | LocalRateLimiter,
        rules: Iterable[Rule],
        legacy_headers: bool = False,
    ) -> None:
        if not isinstance(limiter, RateLimiter | LocalRateLimiter):
            raise ConfigError("the limiter of a middleware must be a RateLimiter or come from RateLimiter.local()")
        self._app = app
        self._limiter = limiter
        self._rules = [(rule, _Shown(rule, limiter)) for rule in rules]
        if len(self._rules) > 32:
            raise ConfigError(f"a middleware can have at most 32 rules, not {len(self._rules)}")
        self._legacy = legacy_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or WebSocket if the limits allow it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        shown, parts = self._matching(scope)
        if not parts:
            await self._app(scope, receive, send)
            return
        outcome = self._limiter._apply_all(parts, Mode.TAKE)
        allowed, verdicts = outcome if isinstance(outcome, tuple) else await outcome
        headers = self._headers(shown, verdicts)
        if allowed:
            await self._app(scope, receive, _with_headers(send, headers))
        elif scope["type"] == "http":
            await _refuse_http(send, verdicts, headers)
        else:
            await _refuse_websocket(scope, receive, send, verdicts, headers)

    def _matching(self, scope: Scope) -> tuple[list[_Shown], list[tuple[str | bytes, str | Limit, int]]]:
        """The rules that apply to a request, and the keys, limits and costs to check."""
        shown = []
        parts: list[tuple[str | bytes, str | Limit, int]] = []
        for rule, fields in self._rules:
            if not rule.matches(scope) or (key := rule.key(scope)) is None:
                continue
            cost = rule.cost(scope) if callable(rule.cost) else rule.cost
            shown.append(fields)
            parts.append((_short(f"{rule.shown}:{key}"), rule.limit, cost))
        return shown, parts

    def _headers(self, shown: Sequence[_Shown], verdicts: Sequence[Verdict]) -> list[tuple[bytes, bytes]]:
        known = [(fields, verdict) for fields, verdict in zip(shown, verdicts, strict=True) if verdict.available]
        if not known:
            return []
        policies = ", ".join(fields.policy for fields, _ in known)
        states = ", ".join(
            f"{fields.name};r={verdict.remaining};t={math.ceil(verdict.reset_after)}" for fields, verdict in known
        )
        headers = [(b"ratelimit-policy", policies.encode()), (b"ratelimit", states.encode())]
        if self._legacy:
            _, least = min(known, key=lambda entry: entry[1].remaining)
            headers += [
                (b"x-ratelimit-limit", str(least.limit).encode()),
                (b"x-ratelimit-remaining", str(least.remaining).encode()),
                (b"x-ratelimit-reset", str(math.ceil(least.reset_after)).encode()),
            ]
        return headers


class _Shown:
    """A rule's fields in the response headers."""

    def __init__(self, rule: Rule, limiter: _Limits) -> None:
        limiter._of(rule.limit)
        limit = Limit.parse(rule.limit) if isinstance(rule.limit, str) else rule.limit
        # A string of structured fields (RFC 8941): printable ASCII, with quotes and backslashes escaped.
        printable = "".join(character if " " <= character <= "~" else "?" for character in rule.shown)
        escaped = printable.replace("\\", "\\\\").replace('"', '\\"')
        self.name = f'"{escaped}"'
        self.policy = f"{self.name};q={limit.amount};w={math.ceil(limit.nanoseconds / 1e9)}"


def _short(key: str) -> str | bytes:
    """Return the key, or its hash if it is longer than half of the limit, which leaves room for the prefix."""
    encoded = key.encode("utf-8", "surrogateescape")
    return key if len(encoded) <= _KEY_BYTES_MAX // 2 else hashlib.blake2b(encoded, digest_size=32).digest()


def _with_headers(send: Send, headers: list[tuple[bytes, bytes]]) -> Send:
    async def send_with_headers(event: Event) -> None:
        if event["type"] in ("http.response.start", "websocket.accept"):
            event = {**event, "headers": [*event.get("headers", ()), *headers]}
        await send(event)

    return send_with_headers


def _refusal(
    verdicts: Sequence[Verdict], headers: list[tuple[bytes, bytes]]
) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Status, headers and body of a rejection."""
    longest = max((verdict.retry_after for verdict in verdicts if not verdict.allowed), default=0.0)
    reached = all(verdict.available for verdict in verdicts)
    body = b"Too many requests\n" if reached else b"Limits cannot be checked now\n"
    all_headers = [*headers, (b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body))]
    if not math.isinf(longest):
        all_headers.append((b"retry-after", b"%d" % max(1, math.ceil(longest))))
    return 429 if reached else 503, all_headers, body


async def _refuse_http(send: Send, verdicts: Sequence[Verdict], headers: list[tuple[bytes, bytes]]) -> None:
    status, all_headers, body = _refusal(verdicts, headers)
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": body})


async def _refuse_websocket(
    scope: Scope, receive: Receive, send: Send, verdicts: Sequence[Verdict], headers: list[tuple[bytes, bytes]]
) -> None:
    event = await receive()
    if event["type"] != "websocket.connect":
        return
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        # Without the extension, the server answers the handshake with 403.
        await send({"type": "websocket.close", "code": 1008, "reason": "too many requests"})
        return
    status, all_headers, body = _refusal(verdicts, headers)
    await send({"type": "websocket.http.response.start", "status": status, "headers": all_headers})
    await send({"type": "websocket.http.response.body", "body": body})
