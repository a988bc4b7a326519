"""FastAPI and Starlette: lifespans, dependencies, rate limits, and the example behind a real server."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Request, WebSocket
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import mqcore
import mqcore.fastapi
from job_processes import working
from mqcore import errors
from mqcore.app import combine_lifespans
from mqcore.fastapi import RateLimit
from mqcore.jobs import Jobs
from mqcore.ratelimit import Limit, RateLimiter
from ports import free_port
from served import ROOT, wait_until
from web_servers import ask, environment_of, jobs_url, web_server

Mq = Annotated[mqcore.App, Depends(mqcore.fastapi.app)]
MqClient = Annotated[mqcore.Client, Depends(mqcore.fastapi.client)]


@contextlib.asynccontextmanager
async def serving(api: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Run a web application behind a real server, with its lifespan."""
    server = uvicorn.Server(uvicorn.Config(api, host="127.0.0.1", port=0, log_level="warning", lifespan="on"))
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(server._serve(None))
    while not server.started:
        assert not task.done(), "the server ended"
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as web:
            yield web
    finally:
        server.should_exit = True
        await task


class Outbox:
    """A dependency of routes and of subscribers."""

    def __init__(self, client: MqClient) -> None:
        self.client = client


def new_app(broker: Any) -> tuple[mqcore.App, list[str]]:
    app, got = mqcore.App(broker, name="shop"), list[str]()

    @app.subscriber("orders/1")
    async def bill(body: str, outbox: Annotated[Outbox, Depends()], own: MqClient, mq: Mq) -> None:
        assert outbox.client is own is app.client
        assert mq is app
        got.append(body)

    return app, got


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (what it waits for has no event)
            await asyncio.sleep(0.01)


async def test_routes_and_subscribers_share_dependencies() -> None:
    broker = mqcore.Broker()
    app, got = new_app(broker)
    router = APIRouter()

    @router.post("/orders/{body}")
    async def place(body: str, outbox: Annotated[Outbox, Depends()], mq: Mq) -> bool:
        await mq.publish("orders/1", body)
        return outbox.client is app.client

    api = FastAPI(lifespan=combine_lifespans(broker, app))
    api.include_router(router)
    async with serving(api) as web:
        assert (await web.post("/orders/one")).json() is True
        await until(lambda: got == ["one"])
    assert not app.is_running
    assert not broker.is_running


def greeting() -> str:
    return "real"


async def test_overrides_of_the_web_application_apply_to_subscribers_too() -> None:
    broker = mqcore.Broker()
    app, got = mqcore.App(broker), list[str]()

    @app.subscriber("orders/1")
    async def greet(body: str, text: Annotated[str, Depends(greeting)]) -> None:
        got.append(f"{text} {body}")

    api = FastAPI(lifespan=combine_lifespans(broker, app))

    @api.post("/")
    async def place(mq: Mq, text: Annotated[str, Depends(greeting)]) -> str:
        await mq.publish("orders/1", "x")
        return text

    app.dependency_overrides = api.dependency_overrides
    api.dependency_overrides[greeting] = lambda: "fake"
    async with serving(api) as web:
        assert (await web.post("/")).json() == "fake"
        await until(lambda: got == ["fake x"])


async def test_lifespans_start_in_order_and_end_in_reverse_and_merge_their_states() -> None:
    steps: list[str] = []

    def noting(name: str) -> Any:
        @contextlib.asynccontextmanager
        async def lifespan(web: Any) -> AsyncIterator[dict[str, str]]:
            assert isinstance(web, FastAPI)
            steps.append(f"start {name}, {app.is_running}")
            yield {name: name}
            steps.append(f"stop {name}, {app.is_running}")

        return lifespan

    broker = mqcore.Broker()
    app, _ = new_app(broker)
    api = FastAPI(lifespan=combine_lifespans(broker, noting("first"), app, noting("last")))

    @api.get("/")
    async def state(request: Request) -> list[str]:
        return [request.state.first, request.state.last]

    async with serving(api) as web:
        assert (await web.get("/")).json() == ["first", "last"]
    assert steps == ["start first, False", "start last, True", "stop last, True", "stop first, False"]


async def test_parts_that_started_are_stopped_if_a_later_one_fails() -> None:
    broker = mqcore.Broker()
    app, _ = new_app(broker)

    @contextlib.asynccontextmanager
    async def failing(_: Any) -> AsyncIterator[None]:
        assert app.is_running
        raise RuntimeError("no database")
        yield

    with pytest.raises(RuntimeError, match="no database"):
        async with combine_lifespans(broker, app, failing)(FastAPI()):
            pytest.fail("it started")
    assert not app.is_running
    assert not broker.is_running


def test_a_part_of_another_kind_is_refused() -> None:
    with pytest.raises(errors.ConfigError, match="async context manager"):
        combine_lifespans("tmqp://127.0.0.1:2622")  # type: ignore[arg-type]


async def test_a_lifespan_cannot_run_twice_at_once() -> None:
    async with mqcore.Broker() as broker:
        app, _ = new_app(broker)
        async with app.lifespan(FastAPI()):
            with pytest.raises(errors.AlreadyRunning, match="create another App"):
                async with app.lifespan(FastAPI()):
                    pytest.fail("it ran twice")
            assert app.is_running


async def test_starlette_takes_the_lifespan_of_an_app() -> None:
    async with mqcore.Broker() as broker:
        app, got = new_app(broker)

        async def place(_: Any) -> PlainTextResponse:
            await app.publish("orders/1", "plain")
            return PlainTextResponse("placed")

        async with serving(Starlette(routes=[Route("/", place)], lifespan=app.lifespan)) as web:
            assert (await web.get("/")).text == "placed"
            await until(lambda: got == ["plain"])


async def test_a_mounted_application_finds_the_app_once_it_is_attached() -> None:
    async with mqcore.Broker() as broker:
        app, _ = new_app(broker)
        api, sub = FastAPI(lifespan=app.lifespan), FastAPI()

        @sub.get("/")
        async def name(client: MqClient) -> bool:
            return client is app.client

        api.mount("/sub", sub)
        async with serving(api) as web:
            assert (await web.get("/sub/")).status_code == 500
            app.attach(sub)
            assert (await web.get("/sub/")).json() is True


def test_a_service_without_its_broker_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "orders_service.py").write_text(
        "import mqcore\nfrom fastapi import FastAPI\n"
        f"app = mqcore.App('tmqp://127.0.0.1:{free_port()}', connect_timeout='1s')\n"
        "api = FastAPI(lifespan=app.lifespan)\n"
    )
    command = [sys.executable, "-m", "uvicorn", "orders_service:api", "--port", "0"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment_of(tmp_path, {}), capture_output=True, text=True, check=False, timeout=50
    )
    assert done.returncode == 3
    assert "ConnectFailed" in done.stderr
    assert "Application startup failed" in done.stderr


async def test_a_service_may_start_before_its_broker(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    app, got = new_app(f"tmqp://127.0.0.1:{port}")
    api = FastAPI(lifespan=combine_lifespans(app, require_broker=False))

    @api.post("/")
    async def place(mq: Mq) -> None:
        await mq.publish("orders/1", "late")

    async with serving(api) as web:
        refused = await web.post("/")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        async with mqcore.Broker(listen=f"tmqp://127.0.0.1:{port}", auto_create_queues=True):
            await until(lambda: app.is_running)
            assert (await web.post("/")).status_code == 200
            await until(lambda: got == ["late"])
            # The app leaves before the broker does, because a broker that stops first makes it reconnect.
            app.stop()
            await until(lambda: not app.is_running)
    assert "starts again in 1 s" in caplog.text


async def test_mistakes_of_an_app_end_the_start_even_without_a_required_broker() -> None:
    app = mqcore.App("tmqp://127.0.0.1:1")

    @app.subscriber("orders/1")
    async def wrong(body) -> None:  # type: ignore[no-untyped-def]
        pass

    with pytest.raises(errors.ConfigError, match="annotation"):
        async with combine_lifespans(app, require_broker=False)(FastAPI()):
            pytest.fail("it started")


async def test_an_application_without_an_app_says_what_is_missing() -> None:
    api = FastAPI()

    @api.get("/")
    async def nothing(mq: Mq) -> None:
        pass

    async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://test") as web:
        with pytest.raises(errors.NotRunning, match=r"lifespan=app\.lifespan"):
            await web.get("/")


def limited(limit: RateLimit) -> FastAPI:
    api = FastAPI()

    @api.get("/{name}", dependencies=[Depends(limit)])
    async def read(name: str) -> str:
        return name

    @api.websocket("/ws", dependencies=[Depends(limit)])
    async def talk(socket: WebSocket) -> None:
        await socket.accept()
        await socket.close()

    return api


async def test_a_rate_limit_of_a_route_answers_with_429_and_says_what_is_left() -> None:
    api = limited(RateLimit(RateLimiter.local(), Limit(2, "1m", "fixed-window"), name="reads"))
    async with serving(api) as web:
        first, second, third = [await web.get(f"/{name}") for name in "abc"]
    assert (first.status_code, second.status_code, third.status_code) == (200, 200, 429)
    assert first.headers["ratelimit-policy"] == '"reads";q=2;w=60'
    assert first.headers["ratelimit"].startswith('"reads";r=1;t=')
    assert third.headers["ratelimit"].startswith('"reads";r=0;t=')
    assert 1 <= int(third.headers["retry-after"]) <= 60
    assert third.json() == {"detail": "Too many requests"}


async def test_quotas_are_for_each_key_and_some_requests_are_exempt() -> None:
    async def key(connection: Any) -> str | None:
        return connection.headers.get("x-user")  # type: ignore[no-any-return]

    api = limited(RateLimit(RateLimiter.local(), "1/h", key=key))
    async with serving(api) as web:
        statuses = [(await web.get("/a", headers={"x-user": user})).status_code for user in ("ann", "bob", "ann")]
        assert statuses == [200, 200, 429]
        assert [(await web.get("/a")).status_code for _ in range(3)] == [200] * 3


async def test_a_broker_keeps_the_limit_and_its_loss_is_answered_as_configured() -> None:
    with mqcore.Broker(listen="throttr://127.0.0.1:0?value=uint64") as broker:
        url = broker.listeners[0] + "?value=uint64"
        async with (
            RateLimiter(url, on_unavailable="deny") as limiter,
            serving(limited(RateLimit(limiter, "1/h"))) as web,
        ):
            assert [(await web.get("/a")).status_code for _ in range(2)] == [200, 429]
            broker.stop()
            gone = await web.get("/a")
            assert (gone.status_code, gone.headers["retry-after"]) == (503, "1")


async def test_websockets_beyond_the_limit_are_refused_before_they_are_accepted() -> None:
    api = limited(RateLimit(RateLimiter.local(), "1/h"))
    for expected in ("websocket.accept", "websocket.close"):
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "websocket.connect"}

        async def send(event: Any, sent: list[Any] = sent) -> None:
            sent.append(event)

        scope = {"type": "websocket", "path": "/ws", "headers": [], "query_string": b"", "client": ("10.0.0.1", 1)}
        await api(scope | {"subprotocols": []}, receive, send)
        assert sent[0]["type"] == expected
    assert sent[0]["code"] == 1008


def test_limits_and_limiters_are_checked_at_once() -> None:
    with pytest.raises(errors.ConfigError, match="AMOUNT/PERIOD"):
        RateLimit(RateLimiter.local(), "many")
    with pytest.raises(errors.ConfigError, match="limiter of a route"):
        RateLimit("throttr://127.0.0.1", "1/s")  # type: ignore[arg-type]


def test_a_missing_fastapi_names_the_extra() -> None:
    text = "import sys; sys.modules['fastapi'] = None; import mqcore.fastapi"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert "run: pip install 'mqcore[fastapi]'" in done.stderr


def test_the_example_serves_orders_jobs_limits_and_the_dashboard(tmp_path: Path) -> None:
    port, admin, emqp = free_port(), free_port(), jobs_url()
    environment = {"MQCORE_JOBS_URL": emqp, "MQCORE_ADMIN": f"http://127.0.0.1:{admin}"}
    command = ["uvicorn", "fastapi_service:api", "--port", str(port)]
    with web_server(command, port, tmp_path / "log", **environment) as server:
        statuses = [ask(f"{server.url}/orders", {"A-100": number}).status for number in range(1, 7)]
        assert statuses == [202] * 5 + [429]
        dashboard = ask(f"{server.url}/dashboard").headers["location"]
        assert b"<html" in ask(dashboard).body.lower()
        with pytest.MonkeyPatch.context() as patch, Jobs(emqp) as jobs:
            patch.setenv("PYTHONPATH", environment_of(ROOT / "examples", {})["PYTHONPATH"])
            with working(emqp, "--pool", "thread", app="fastapi_service:jobs"):
                wait_until(lambda: finished(jobs) == 5, limit=20, what="the end of all jobs")
        # uvicorn ends with the signal once the lifespan has ended.
        assert server.stop() in {0, -signal.SIGTERM}
        assert "Application shutdown complete" in server.output


def finished(jobs: Jobs) -> int:
    return int(jobs.status()["processed_messages_by_queue"].get("default", 0))
