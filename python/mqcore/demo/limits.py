"""The part for limits: an ASGI application under load of 50 clients, whose limit must hold to the unit."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mqcore
from mqcore.demo.library import Page, digest
from mqcore.demo.outcome import Outcome
from mqcore.ratelimit import Limit, LocalRateLimiter, RateLimiter, RateLimitMiddleware, Rule

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["run"]

_CLIENTS = 50
_WIDTH = "?value=uint64"
_STRATEGIES = ("fixed-window", "sliding-window", "gcra")


@dataclass(slots=True)
class Served(Outcome):
    """Result of one limit."""

    requests: int
    let_in: int
    refused: int
    damaged: int

    def numbers(self) -> dict[str, int]:
        """Responses that the clients received."""
        return {"requests": self.requests, "200": self.let_in, "429": self.refused, "damaged": self.damaged}


async def run(pages: Sequence[Page], progress: Progress) -> list[Outcome]:
    """Request every file with 50 clients; the limits allow half of the requests."""
    outcomes: list[Outcome] = []
    with mqcore.Broker(listen=(f"throttr://127.0.0.1:0{_WIDTH}",)) as broker:
        url = broker.listeners[0] + _WIDTH
        for strategy in _STRATEGIES:
            # Two limiters with a connection each, like two processes of a server.
            async with RateLimiter(url, on_unavailable="raise") as one, RateLimiter(url, on_unavailable="raise") as two:
                outcomes.append(await _load(pages, progress, strategy, "broker", [one, two]))
            outcomes.append(await _load(pages, progress, strategy, "local", [RateLimiter.local()]))
    return outcomes


async def _load(
    pages: Sequence[Page],
    progress: Progress,
    strategy: str,
    place: str,
    limiters: Sequence[RateLimiter | LocalRateLimiter],
) -> Served:
    allowed = max(1, len(pages) // 2)
    name = f"limit-{strategy}-{place}"
    task = progress.add_task(name, total=len(pages))
    # With a period of a month, no bucket refills while this runs.
    limit = Limit(allowed, "30d", strategy)  # type: ignore[arg-type]
    rules = [Rule("/*", limit, key=_everybody, name=name)]
    apps = [RateLimitMiddleware(_library(pages), limiter=limiter, rules=rules) for limiter in limiters]
    statuses: Counter[int] = Counter()
    damaged = 0
    asked = iter(pages)

    async def client(number: int) -> None:
        nonlocal damaged
        for page in asked:
            status, body = await _get(apps[number % len(apps)], page.path)
            statuses[status] += 1
            damaged += status == 200 and digest(body) != page.sha256
            progress.advance(task)

    await asyncio.gather(*(client(number) for number in range(_CLIENTS)))
    served = Served(
        name,
        strategy,
        f"{allowed} of {len(pages)} requests are allowed",
        len(pages),
        statuses[200],
        statuses[429],
        damaged,
    )
    served.require(
        statuses[200] == min(allowed, len(pages)), f"{statuses[200]} requests were allowed instead of {allowed}"
    )
    served.require(statuses.total() == len(pages), f"{statuses.total()} responses to {len(pages)} requests")
    served.require(statuses[200] + statuses[429] == len(pages), f"other responses: {dict(statuses)}")
    served.require(not damaged, f"{damaged} files arrived damaged")
    return served


def _everybody(_scope: object) -> str:
    return "everybody"


def _library(pages: Sequence[Page]) -> Callable[..., Any]:
    """An application that serves the files."""
    bodies = {page.path: page.body for page in pages}

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        # Yield to other requests, as a real application does.
        await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bodies[scope["path"].removeprefix("/")]})

    return app


async def _get(app: RateLimitMiddleware, path: str) -> tuple[int, bytes]:
    """Run the application for one request, like a server."""
    events: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(event: Any) -> None:
        events.append(event)

    scope = {"type": "http", "method": "GET", "path": f"/{path}", "headers": [], "client": ("127.0.0.1", 1)}
    await app(scope, receive, send)
    return events[0]["status"], b"".join(event.get("body", b"") for event in events[1:])
