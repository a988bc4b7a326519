"""Flask: one client for each process, and rate limits of views. Needs ``pip install mqcore[flask]``.

::

    app = Flask(__name__)
    mq = Mqcore(app, "tmqp://127.0.0.1:2622")

    @app.post("/orders")
    @mq.limit("20/m")
    def order() -> str:
        mq.client.publish("orders/1001", request.json)
        return "accepted"
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, ParamSpec, TypeVar, Unpack, cast

try:
    from flask import Flask, Response, after_this_request, current_app, has_app_context, request
except ImportError as error:
    raise ImportError(f"Flask is not installed ({error}); run: pip install 'mqcore[flask]'") from error

from mqcore import sync
from mqcore.client import DEFAULT_URL
from mqcore.client.lifetime import OPEN
from mqcore.client.options import ConnectOptions, EmbeddedBroker
from mqcore.errors import ConfigError
from mqcore.ratelimit import Limit, LocalRateLimiter, RateLimiter, SyncRateLimiter
from mqcore.ratelimit.asgi import ShownLimit, limit_headers, refusal, short_key
from mqcore.throttr import Mode

__all__ = ["Mqcore"]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_EXTENSION: Final = "mqcore"

_INHERITED: list[sync.Client] = []
"""Clients of the process that forked this one. Their connections belong to that process, so they are never closed."""


class Mqcore:
    """A client of a broker, and rate limits, for a Flask application.

    - `app`: the application; or call `init_app` later.
    - `broker`: the URL or URLs of a broker, or an embedded `mqcore.Broker`. Default: the configuration value
      ``MQCORE_URL`` of the application, else the environment variable, else ``tmqp://127.0.0.1:2622``.
    - `limiter`: for `limit`, a `SyncRateLimiter`, or from `RateLimiter.local` (default), which counts each process
      alone.
    - `options`: those of `mqcore.connect`.

    Raises `ConfigError` for another limiter.
    """

    def __init__(
        self,
        app: Flask | None = None,
        broker: str | Sequence[str] | EmbeddedBroker | None = None,
        *,
        limiter: SyncRateLimiter | LocalRateLimiter | None = None,
        **options: Unpack[ConnectOptions],
    ) -> None:
        if limiter is not None and not isinstance(limiter, SyncRateLimiter | LocalRateLimiter):
            raise ConfigError("the limiter of a Flask application must be a SyncRateLimiter or RateLimiter.local()")
        self._broker = broker
        self._options = options
        self._limiter = limiter or RateLimiter.local()
        self._client: sync.Client | None = None
        self._lock = threading.Lock()
        if app is not None:
            self.init_app(app)
        atexit.register(self.close)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def init_app(self, app: Flask) -> None:
        """Make this the extension of an application."""
        app.extensions[_EXTENSION] = self

    @property
    def client(self) -> sync.Client:
        """The client of this process, which all its threads share. The first use connects.

        A forked process, such as a worker of gunicorn, gets one of its own. Raises what `mqcore.connect` raises.
        """
        client = self._client
        if client is None:
            with self._lock:
                client = self._client
                if client is None:
                    client = self._client = sync.connect(self._target(), **self._options)
        return client

    def close(self) -> None:
        """Close the client; the next use connects again. The end of the process does so too."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def limit(
        self,
        limit: str | Limit,
        *,
        key: Callable[[], str | None] | None = None,
        cost: int = 1,
        name: str | None = None,
    ) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
        """Decorate a view, below ``@app.route``, so that requests beyond the limit are answered with 429.

        Responses have ``RateLimit-Policy`` and ``RateLimit``, and rejected ones ``Retry-After``; 503 if the limiter
        denies because its broker is unreachable.

        - `limit`: text such as ``"20/m"``, or a `Limit`.
        - `key`: function that returns the key of the request's quota, or ``None`` to exempt it. Default: the client's
          address.
        - `cost`: cost of a request (1).
        - `name`: name in the headers and in the key. Default: the name of the view.

        Raises `ConfigError` for an invalid limit.
        """
        limiter = self._limiter

        def decorate(view: Callable[_P, _R]) -> Callable[_P, _R]:
            named = name or view.__name__
            shown = ShownLimit(named, limit, limiter)

            @functools.wraps(view)
            def limited(*args: _P.args, **kwargs: _P.kwargs) -> _R:
                chosen = (request.remote_addr or "unknown") if key is None else key()
                if chosen is None:
                    return view(*args, **kwargs)
                part = (short_key(f"{named}:{chosen}"), limit, cost)
                allowed, verdicts = limiter._apply_all([part], Mode.TAKE)
                headers = limit_headers([shown], verdicts)
                if not allowed:
                    status, fields, body = refusal(verdicts, headers)
                    return cast("_R", Response(body, status, _text(fields)))

                @after_this_request
                def add(response: Response) -> Response:
                    response.headers.extend(_text(headers))
                    return response

                return current_app.ensure_sync(view)(*args, **kwargs)  # type: ignore[no-any-return]

            return limited

        return decorate

    def _target(self) -> Any:
        if self._broker is not None:
            return self._broker
        configured = current_app.config.get("MQCORE_URL") if has_app_context() else None
        return configured or os.environ.get("MQCORE_URL") or DEFAULT_URL

    def _forget(self) -> None:
        """Give up what the parent process had."""
        if self._client is not None:
            _INHERITED.append(self._client)
            OPEN.discard(self._client)
        self._client = None
        # A thread of the parent may have held it at the fork.
        self._lock = threading.Lock()


def _text(headers: list[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    return [(name.decode(), value.decode()) for name, value in headers]
