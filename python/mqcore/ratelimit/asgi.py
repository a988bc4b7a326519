"""ASGI middleware that limits the rate of requests."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from mqcore._core import Verdict
from mqcore.errors import ConfigError
from mqcore.ratelimit.limits import _KEY_BYTES_MAX, Limit, _Limits
from mqcore.ratelimit.local import LocalRateLimiter
from mqcore.ratelimit.remote import RateLimiter
from mqcore.throttr import Mode

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
        self._rules = [(rule, ShownLimit(rule.shown, rule.limit, limiter)) for rule in rules]
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
        headers = limit_headers(shown, verdicts, legacy=self._legacy)
        if allowed:
            await self._app(scope, receive, _with_headers(send, headers))
        elif scope["type"] == "http":
            await _refuse_http(send, verdicts, headers)
        else:
            await _refuse_websocket(scope, receive, send, verdicts, headers)

    def _matching(self, scope: Scope) -> tuple[list[ShownLimit], list[tuple[str | bytes, str | Limit, int]]]:
        """The rules that apply to a request, and the keys, limits and costs to check."""
        shown = []
        parts: list[tuple[str | bytes, str | Limit, int]] = []
        for rule, fields in self._rules:
            if not rule.matches(scope) or (key := rule.key(scope)) is None:
                continue
            cost = rule.cost(scope) if callable(rule.cost) else rule.cost
            shown.append(fields)
            parts.append((short_key(f"{rule.shown}:{key}"), rule.limit, cost))
        return shown, parts


class ShownLimit:
    """A limit's fields in the response headers. Raises `ConfigError` for a limit that the limiter cannot check."""

    def __init__(self, name: str, limit: str | Limit, limiter: _Limits) -> None:
        limiter._of(limit)
        limit = Limit.parse(limit) if isinstance(limit, str) else limit
        # A string of structured fields (RFC 8941): printable ASCII, with quotes and backslashes escaped.
        printable = "".join(character if " " <= character <= "~" else "?" for character in name)
        escaped = printable.replace("\\", "\\\\").replace('"', '\\"')
        self.name = f'"{escaped}"'
        self.policy = f"{self.name};q={limit.amount};w={math.ceil(limit.nanoseconds / 1e9)}"


def limit_headers(
    shown: Sequence[ShownLimit], verdicts: Sequence[Verdict], *, legacy: bool = False
) -> list[tuple[bytes, bytes]]:
    """Return the response headers of checked limits."""
    known = [(fields, verdict) for fields, verdict in zip(shown, verdicts, strict=True) if verdict.available]
    if not known:
        return []
    policies = ", ".join(fields.policy for fields, _ in known)
    states = ", ".join(
        f"{fields.name};r={verdict.remaining};t={math.ceil(verdict.reset_after)}" for fields, verdict in known
    )
    headers = [(b"ratelimit-policy", policies.encode()), (b"ratelimit", states.encode())]
    if legacy:
        _, least = min(known, key=lambda entry: entry[1].remaining)
        headers += [
            (b"x-ratelimit-limit", str(least.limit).encode()),
            (b"x-ratelimit-remaining", str(least.remaining).encode()),
            (b"x-ratelimit-reset", str(math.ceil(least.reset_after)).encode()),
        ]
    return headers


def short_key(key: str) -> str | bytes:
    """Return the key, or its hash if it is longer than half of the limit, which leaves room for the prefix."""
    encoded = key.encode("utf-8", "surrogateescape")
    return key if len(encoded) <= _KEY_BYTES_MAX // 2 else hashlib.blake2b(encoded, digest_size=32).digest()


def _with_headers(send: Send, headers: list[tuple[bytes, bytes]]) -> Send:
    async def send_with_headers(event: Event) -> None:
        if event["type"] in ("http.response.start", "websocket.accept"):
            event = {**event, "headers": [*event.get("headers", ()), *headers]}
        await send(event)

    return send_with_headers


def refusal(
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
    status, all_headers, body = refusal(verdicts, headers)
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
    status, all_headers, body = refusal(verdicts, headers)
    await send({"type": "websocket.http.response.start", "status": status, "headers": all_headers})
    await send({"type": "websocket.http.response.body", "body": body})
