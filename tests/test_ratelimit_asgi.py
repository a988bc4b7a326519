"""The ASGI middleware: driven as a server drives it, and behind a real server with 50 clients at once."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import uvicorn

import mqcore
from mqcore import errors
from mqcore.ratelimit import Limit, RateLimiter, RateLimitMiddleware, Rule, SyncRateLimiter
from served import ROOT

WIDE = "?value=uint64"


@pytest.fixture
def url() -> Iterator[str]:
    with mqcore.Broker(listen=(f"throttr://127.0.0.1:0{WIDE}",)) as broker:
        yield broker.listeners[0] + WIDE


async def hello(scope: Any, receive: Any, send: Any) -> None:
    """An application that greets, on HTTP and on WebSocket."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"hello"})
    elif scope["type"] == "websocket":
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
    else:
        assert scope["type"] == "lifespan"
        assert (await receive())["type"] == "lifespan.startup"
        await send({"type": "lifespan.startup.complete"})


async def drive(app: Any, path: str = "/", *, kind: str = "http", client: str = "10.0.0.1", **more: Any) -> list[Any]:
    """One connection; what the application sent."""
    scope = {"type": kind, "path": path, "client": (client, 1), "headers": []} | more
    if kind == "http":
        scope.setdefault("method", "GET")
    sent: list[Any] = []
    asked = False

    async def receive() -> Any:
        nonlocal asked
        if asked:
            # The client stays until it has its answer.
            await asyncio.Event().wait()
        asked = True
        return {"type": {"http": "http.request", "websocket": "websocket.connect"}.get(kind, f"{kind}.startup")}

    async def send(event: Any) -> None:
        sent.append(event)

    await app(scope, receive, send)
    return sent


def headers(event: Any) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in event["headers"]}


async def test_answers_say_what_is_left_and_refusals_when_to_come_back() -> None:
    rules = [Rule("/*", Limit(2, "1m", "fixed-window"), name="per client")]
    app = RateLimitMiddleware(hello, limiter=RateLimiter.local(), rules=rules, legacy_headers=True)
    first = headers((await drive(app))[0])
    assert first["content-type"] == "text/plain"
    assert first["ratelimit-policy"] == '"per client";q=2;w=60'
    assert first["ratelimit"] == '"per client";r=1;t=60'
    assert (first["x-ratelimit-limit"], first["x-ratelimit-remaining"]) == ("2", "1")
    assert (await drive(app))[0]["status"] == 200
    start, body = await drive(app)
    assert start["status"] == 429
    fields = headers(start)
    assert fields["retry-after"] == "60"
    assert fields["ratelimit"].startswith('"per client";r=0;t=')
    assert int(fields["content-length"]) == len(body["body"])
    assert (await drive(app, client="10.0.0.2"))[0]["status"] == 200, "another client has a quota of its own"


async def test_a_request_takes_from_all_rules_that_match_or_from_none() -> None:
    rules = [
        Rule("/*", "100/h", key=lambda scope: "everybody", name="all"),
        Rule("/login", "1/h", methods=frozenset({"POST"}), name="login"),
        Rule("/admin", "1/h", key=lambda scope: None),
    ]
    app = RateLimitMiddleware(hello, limiter=RateLimiter.local(), rules=rules)
    assert (await drive(app, "/login", method="POST"))[0]["status"] == 200
    refused = (await drive(app, "/login", method="POST"))[0]
    assert refused["status"] == 429
    assert headers(refused)["ratelimit"].startswith('"all";r=99;'), "nothing was taken by what was refused"
    assert headers((await drive(app, "/login"))[0])["ratelimit"].startswith('"all";r=98;')
    assert "admin" not in headers((await drive(app, "/admin"))[0])["ratelimit"]
    assert [event["type"] for event in await drive(app, kind="lifespan")] == ["lifespan.startup.complete"]


async def test_retry_after_is_the_longest_wait_among_the_rules_that_reject() -> None:
    rules = [
        Rule("/*", Limit(2, "1m", "fixed-window"), name="minute"),
        Rule("/report", Limit(2, "1h", "fixed-window"), name="hour"),
        Rule("/*", Limit(9, "1d", "fixed-window"), name="day"),
    ]
    app = RateLimitMiddleware(hello, limiter=RateLimiter.local(), rules=rules, legacy_headers=True)
    assert (await drive(app, "/other"))[0]["status"] == 200
    answer = headers((await drive(app, "/report"))[0])
    assert answer["ratelimit-policy"] == '"minute";q=2;w=60, "hour";q=2;w=3600, "day";q=9;w=86400'
    assert (answer["x-ratelimit-limit"], answer["x-ratelimit-remaining"]) == ("2", "0"), "that with the least left"
    assert int(answer["x-ratelimit-reset"]) <= 60
    only_minute = headers((await drive(app, "/report"))[0])
    assert int(only_minute["retry-after"]) <= 60
    twice = RateLimitMiddleware(hello, limiter=RateLimiter.local(), rules=rules)
    for _ in range(2):
        assert (await drive(twice, "/report"))[0]["status"] == 200
    assert 60 < int(headers((await drive(twice, "/report"))[0])["retry-after"]) <= 3600


async def test_cost_and_methods_of_a_rule_decide_what_a_request_takes() -> None:
    rules = [Rule("/*", "10/h", cost=lambda scope: len(scope["path"]), methods=frozenset({"GET", "PUT"}))]
    app = RateLimitMiddleware(hello, limiter=RateLimiter.local(), rules=rules)
    assert headers((await drive(app, "/four"))[0])["ratelimit"].startswith('"/*";r=5;')
    assert "ratelimit" not in headers((await drive(app, "/four", method="POST"))[0])
    # A WebSocket counts as GET.
    assert headers((await drive(app, "/four", kind="websocket"))[0])["ratelimit"].startswith('"/*";r=0;')
    assert (await drive(app, "/", method="PUT"))[0]["status"] == 429


def test_middleware_has_a_maximum_of_rules() -> None:
    limiter = RateLimiter.local()
    RateLimitMiddleware(hello, limiter=limiter, rules=[Rule("/*", "1/h")] * 32)
    with pytest.raises(errors.ConfigError, match="33"):
        RateLimitMiddleware(hello, limiter=limiter, rules=[Rule("/*", "1/h")] * 33)


async def test_a_websocket_is_refused_before_it_is_accepted() -> None:
    app = RateLimitMiddleware(hello, limiter=RateLimiter.local(), rules=[Rule("/ws", "1/h")])
    (accepted,) = await drive(app, "/ws", kind="websocket")
    assert accepted["type"] == "websocket.accept"
    assert headers(accepted)["ratelimit"].startswith('"/ws";r=0')
    (closed,) = await drive(app, "/ws", kind="websocket")
    assert (closed["type"], closed["code"]) == ("websocket.close", 1008)
    start, body = await drive(app, "/ws", kind="websocket", extensions={"websocket.http.response": {}})
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 429)
    assert "retry-after" in headers(start)
    assert body["type"] == "websocket.http.response.body"


async def test_keys_of_any_length_and_names_of_any_character_are_fine() -> None:
    rule = Rule("/*", "1/h", key=lambda scope: "é" * 5000 + scope["path"], name='say "é"\\')
    app = RateLimitMiddleware(hello, limiter=RateLimiter.local(), rules=[rule])
    first = (await drive(app, "/a"))[0]
    assert headers(first)["ratelimit"].startswith('"say \\"?\\"\\\\";r=0')
    assert (await drive(app, "/a"))[0]["status"] == 429
    assert (await drive(app, "/b"))[0]["status"] == 200


async def test_unreachable_limiter_allows_rejects_or_raises_as_configured() -> None:
    with mqcore.Broker(listen=("throttr://127.0.0.1:0",)) as broker:
        gone = broker.listeners[0]
    rules = [Rule("/*", "5/m")]
    async with RateLimiter(gone, on_unavailable="allow") as limiter:
        start = (await drive(RateLimitMiddleware(hello, limiter=limiter, rules=rules)))[0]
        assert (start["status"], "ratelimit" in headers(start)) == (200, False)
    async with RateLimiter(gone, on_unavailable="deny") as limiter:
        start = (await drive(RateLimitMiddleware(hello, limiter=limiter, rules=rules)))[0]
        assert (start["status"], headers(start)["retry-after"]) == (503, "1")
    async with RateLimiter(gone, on_unavailable="raise") as limiter:
        with pytest.raises(errors.TransportError):
            await drive(RateLimitMiddleware(hello, limiter=limiter, rules=rules))
    with (
        SyncRateLimiter(gone, on_unavailable="deny") as blocking,
        pytest.raises(errors.ConfigError, match="middleware"),
    ):
        RateLimitMiddleware(hello, limiter=blocking, rules=rules)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def server(app: Any) -> AsyncIterator[int]:
    """A real server on a free port."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level=logging.CRITICAL, lifespan="off")
    running = uvicorn.Server(config)
    running.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(running.serve())
    while not running.started:
        assert not task.done(), "the server ended"
        await asyncio.sleep(0.01)
    try:
        yield running.servers[0].sockets[0].getsockname()[1]
    finally:
        running.should_exit = True
        await task


async def requests(port: int, count: int) -> list[tuple[int, dict[str, str]]]:
    """So many requests on one connection: status and headers of each."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answers = []
    for _ in range(count):
        writer.write(b"GET /api HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        if "content-length" in fields:
            await reader.readexactly(int(fields["content-length"]))
        elif fields.get("transfer-encoding") == "chunked":
            await reader.readuntil(b"0\r\n\r\n")
        answers.append((int(head[0].split()[1]), fields))
    writer.close()
    await writer.wait_closed()
    return answers


@pytest.mark.parametrize("place", ["local", "broker"])
async def test_the_limit_holds_to_the_unit_under_fifty_clients_of_a_real_server(place: str, url: str) -> None:
    limiters: list[Any] = [RateLimiter.local()]
    if place == "broker":
        # Two servers that share one broker, as two processes would.
        limiters = [RateLimiter(url, on_unavailable="raise") for _ in range(2)]
    rule = Rule("/api", Limit(500, "1h", "fixed-window"), key=lambda scope: "everybody")
    async with contextlib.AsyncExitStack() as stack:
        ports = [
            await stack.enter_async_context(server(RateLimitMiddleware(hello, limiter=limiter, rules=[rule])))
            for limiter in limiters
        ]
        answers = await asyncio.gather(*(requests(ports[number % len(ports)], 20) for number in range(50)))
        for limiter in limiters:
            if isinstance(limiter, RateLimiter):
                await limiter.close()
    statuses = [status for client in answers for status, _ in client]
    assert (statuses.count(200), statuses.count(429)) == (500, 500)
    left = [
        int(fields["ratelimit"].split("r=")[1].split(";")[0])
        for client in answers
        for status, fields in client
        if status == 200
    ]
    assert sorted(left) == list(range(500)), "each of those let in saw another number"
    assert all("retry-after" in fields for client in answers for status, fields in client if status == 429)


@pytest.mark.parametrize(
    ("name", "attribute", "path", "allowed"),
    [("ratelimit_starlette", "app", "/search", 5), ("ratelimit_django", "application", "/login", 3)],
)
async def test_the_examples_of_frameworks_are_limited(name: str, attribute: str, path: str, allowed: int) -> None:
    specification = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    with pytest.MonkeyPatch.context() as patch:
        # Django finds its routes by the module's name.
        patch.setitem(sys.modules, name, module)
        specification.loader.exec_module(module)
        app = getattr(module, attribute)
        served = [await drive(app, path, method="GET", query_string=b"") for _ in range(allowed + 1)]
    statuses = [events[0]["status"] for events in served]
    assert statuses == [200] * allowed + [429]
    assert "retry-after" in headers(served[-1][0])


async def test_fields_of_older_drafts_are_sent_only_if_they_are_wanted() -> None:
    app = RateLimitMiddleware(hello, limiter=RateLimiter.local(), rules=[Rule("/*", Limit(2, "1m"), name="a")])
    fields = headers((await drive(app))[0])
    assert "ratelimit" in fields
    assert not {name for name in fields if name.startswith("x-ratelimit")}
