"""Lifespans of web applications: an app, an embedded broker and the program's own lifespan in one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final, TypeAlias

from mqcore.app.application import App
from mqcore.errors import ConfigError, MqcoreError

__all__ = ["HostedPart", "WebLifespan", "combine_lifespans"]

_LOG: Final = logging.getLogger("mqcore.app")
_FIRST_PAUSE_SECONDS: Final = 1.0
_MAX_PAUSE_SECONDS: Final = 30.0

WebLifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]]
"""A lifespan of Starlette or FastAPI: gets the web application, and may yield a mapping for the state of requests."""
HostedPart: TypeAlias = AbstractAsyncContextManager[object] | WebLifespan
"""A part of a web application: an `App`, another async context manager such as a `Broker`, or a lifespan."""


def combine_lifespans(*parts: HostedPart, require_broker: bool = True) -> WebLifespan:
    """Return a lifespan for ``FastAPI(lifespan=...)`` or ``Starlette(lifespan=...)`` that runs all `parts`.

    - `parts`: an `App`; another async context manager, such as an embedded `mqcore.Broker` or a `RateLimiter`; or a
      lifespan function. They start in this order, and end in reverse. The mappings that lifespans yield are merged.
    - `require_broker`: with true (default), the web application does not start if an app cannot connect. With false it
      starts anyway: each `App` connects in the background, after 1 s to 30 s again if it fails, and logs why.

    If a part fails to start, those before it are stopped, and the web application ends with the error. Raises
    `ConfigError` for a part of another kind, and when the application starts for declarations of an app that cannot
    work.

    Example::

        broker = mqcore.Broker(listen="tmqp://127.0.0.1:2622", admin="http://127.0.0.1:8161")
        app = mqcore.App(broker)
        api = FastAPI(lifespan=combine_lifespans(broker, app, own_lifespan))
    """
    for part in parts:
        if not isinstance(part, AbstractAsyncContextManager) and not callable(part):
            raise ConfigError(
                f"{part!r} cannot be part of a lifespan; pass an mqcore.App, an mqcore.Broker, another async context "
                "manager, or a function that takes the web application and returns one"
            )

    @asynccontextmanager
    async def lifespan(web: Any) -> AsyncIterator[dict[str, Any]]:
        state: dict[str, Any] = {}
        async with AsyncExitStack() as stack:
            for part in parts:
                if isinstance(part, App):
                    hosted = part.lifespan(web) if require_broker else _in_background(part, web)
                    await stack.enter_async_context(hosted)
                elif isinstance(part, AbstractAsyncContextManager):
                    await stack.enter_async_context(part)
                else:
                    yielded: Mapping[str, Any] | None = await stack.enter_async_context(part(web))
                    state |= yielded or {}
            yield state

    return lifespan


@asynccontextmanager
async def _in_background(app: App, web: object) -> AsyncIterator[None]:
    """Run an app that may begin, and begin again, without its broker."""
    # Mistakes of the program must end its start; only the broker may come later.
    app.check()
    app.attach(web)
    runner = asyncio.create_task(_keep_running(app), name="mqcore app")
    try:
        yield
    finally:
        if app.is_running:
            app.stop()
        else:
            runner.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await runner


async def _keep_running(app: App) -> None:
    pause = _FIRST_PAUSE_SECONDS

    def begin_again_soon() -> None:
        nonlocal pause
        pause = _FIRST_PAUSE_SECONDS

    while True:
        try:
            await app.serve(signals=False, on_ready=begin_again_soon)
        except Exception as error:
            # Those of the program come with their place; the web application continues without the app.
            trace = None if isinstance(error, MqcoreError) else error
            _LOG.warning("%r is not running and starts again in %g s: %s", app, pause, error, exc_info=trace)
        else:
            return
        await asyncio.sleep(pause)
        pause = min(2 * pause, _MAX_PAUSE_SECONDS)
