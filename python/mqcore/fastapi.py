"""FastAPI: the client of an app as a dependency, and rate limits of routes. Needs ``pip install mqcore[fastapi]``.

::

    app = mqcore.App("tmqp://127.0.0.1:2622")
    api = FastAPI(lifespan=app.lifespan)
    limit = RateLimit(RateLimiter.local(), "20/m")

    @api.post("/orders", dependencies=[Depends(limit)])
    async def order(order: Order, mq: Annotated[mqcore.App, Depends(mqcore.fastapi.app)]) -> str:
        await mq.publish("orders/1001", order)
        return "accepted"

`mqcore.app.combine_lifespans` runs an app together with an embedded broker and a lifespan of your own.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

try:
    from fastapi import HTTPException, Response, WebSocketException
    from starlette.requests import HTTPConnection
except ImportError as error:
    raise ImportError(f"FastAPI is not installed ({error}); run: pip install 'mqcore[fastapi]'") from error

from mqcore.app import App
from mqcore.client import Client
from mqcore.errors import ConfigError, NotRunning
from mqcore.ratelimit import Limit, LocalRateLimiter, RateLimiter
from mqcore.ratelimit.asgi import ShownLimit, client_address, limit_headers, refusal, short_key
from mqcore.throttr import Mode

__all__ = ["RateLimit", "app", "client"]

_POLICY_VIOLATION: Final = 1008
"""Code with which WebSockets are closed that are beyond their limit."""


def app(connection: HTTPConnection) -> App:
    """Return the app of the web application, for ``Depends``. Use it to publish through the app's middlewares.

    It works in subscribers, too, so routes and subscribers can share dependencies. Raises `NotRunning` if the web
    application has no app, and answers with 503 while the app has no broker.
    """
    found = getattr(connection.app.state, "mqcore", None)
    if not isinstance(found, App):
        raise NotRunning(
            "this web application has no mqcore.App; pass lifespan=app.lifespan to FastAPI, and call app.attach(web) "
            "for a mounted application"
        )
    if not found.is_running:
        raise HTTPException(503, "The message broker cannot be reached", headers={"Retry-After": "5"})
    return found


def client(connection: HTTPConnection) -> Client:
    """Return the client of the web application's app, for ``Depends``: ``Annotated[Client, Depends(client)]``.

    It works in subscribers, too. Raises like `app`.
    """
    return app(connection).client


def _app_itself(app: App) -> App:
    return app


def _client_of_app(client: Client) -> Client:
    return client


# Subscribers have no request, but know their app.
cast("Any", app).__mqcore_dependency__ = _app_itself
cast("Any", client).__mqcore_dependency__ = _client_of_app


class RateLimit:
    """A rate limit for routes: ``dependencies=[Depends(RateLimit(limiter, "20/m"))]``.

    Requests beyond the limit are answered with 429 and ``Retry-After``, and with 503 if the limiter denies because its
    broker is unreachable. WebSockets are closed with code 1008 before they are accepted. All responses have the headers
    ``RateLimit-Policy`` and ``RateLimit``, as with `RateLimitMiddleware`. Several limits of a route are checked one
    after the other.

    - `limiter`: a `RateLimiter`, or from `RateLimiter.local`.
    - `limit`: text such as ``"20/m"``, or a `Limit`.
    - `key`: function, plain or ``async``, that returns the key of a request's quota, or ``None`` to exempt it. Default:
      the client's address.
    - `cost`: cost of a request (1).
    - `name`: name in the headers and in the key, for each limit another one. Limits of the same name share their
      quotas. Default: the limit as text, such as ``20/m``.

    Raises `ConfigError` for another limiter and for an invalid limit.
    """

    def __init__(
        self,
        limiter: RateLimiter | LocalRateLimiter,
        limit: str | Limit,
        *,
        key: Callable[[HTTPConnection], str | Awaitable[str | None] | None] | None = None,
        cost: int = 1,
        name: str | None = None,
    ) -> None:
        if not isinstance(limiter, RateLimiter | LocalRateLimiter):
            raise ConfigError("the limiter of a route must be a RateLimiter or come from RateLimiter.local()")
        self._limiter = limiter
        self._limit = limit
        self._key = key
        self._cost = cost
        self._name = name or (limit if isinstance(limit, str) else f"{limit.amount}/{limit.period}")
        self._shown = ShownLimit(self._name, limit, limiter)

    async def __call__(self, connection: HTTPConnection, response: Response) -> None:
        """Take from the quota of a request. FastAPI calls it."""
        key = client_address(connection.scope) if self._key is None else self._key(connection)
        if inspect.isawaitable(key):
            key = await key
        if key is None:
            return
        part = (short_key(f"{self._name}:{key}"), self._limit, self._cost)
        outcome = self._limiter._apply_all([part], Mode.TAKE)
        allowed, verdicts = outcome if isinstance(outcome, tuple) else await outcome
        headers = limit_headers([self._shown], verdicts)
        if allowed:
            for name, value in headers:
                response.headers.append(name.decode(), value.decode())
            return
        if connection.scope["type"] == "websocket":
            raise WebSocketException(_POLICY_VIOLATION, "too many requests")
        status, fields, text = refusal(verdicts, headers)
        kept = {name.decode(): value.decode() for name, value in fields if not name.startswith(b"content-")}
        raise HTTPException(status, text.decode().strip(), headers=kept)
