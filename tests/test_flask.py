"""Flask: one client for each process, also in forked ones, and rate limits of views."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from flask import Flask

import mqcore
from mqcore import errors
from mqcore.flask import Mqcore
from mqcore.ratelimit import Limit, RateLimiter, SyncRateLimiter
from ports import free_port
from served import serving
from web_servers import ask, web_server


def limited(mq: Mqcore, limit: str | Limit) -> Flask:
    app = Flask("limited")
    mq.init_app(app)

    @app.get("/")
    @mq.limit(limit, key=lambda: None, name="exempt")
    @mq.limit(limit, name="reads")
    def read() -> str:
        return "read"

    return app


def test_views_beyond_the_limit_are_answered_with_429() -> None:
    web = limited(Mqcore(), Limit(2, "1m", "fixed-window")).test_client()
    first, second, third = [web.get("/") for _ in range(3)]
    assert (first.status_code, second.status_code, third.status_code) == (200, 200, 429)
    assert first.headers["ratelimit-policy"] == '"reads";q=2;w=60'
    assert third.headers["ratelimit"].startswith('"reads";r=0;t=')
    assert 1 <= int(third.headers["retry-after"]) <= 60
    assert web.get("/", environ_base={"REMOTE_ADDR": "10.0.0.9"}).status_code == 200


def test_limits_of_a_broker_are_shared_and_its_loss_is_answered_as_configured() -> None:
    with mqcore.Broker(listen="throttr://127.0.0.1:0?value=uint64") as broker:
        url = broker.listeners[0] + "?value=uint64"
        with SyncRateLimiter(url, on_unavailable="deny") as one, SyncRateLimiter(url, on_unavailable="deny") as two:
            clients = [limited(Mqcore(limiter=limiter), "1/h").test_client() for limiter in (one, two)]
            assert [web.get("/").status_code for web in clients] == [200, 429]
            broker.stop()
            assert clients[0].get("/").status_code == 503


def test_a_client_is_connected_at_the_first_use_and_closed_at_the_end() -> None:
    with mqcore.Broker(listen="tmqp://127.0.0.1:0", auto_create_channels=True, auto_create_queues=True) as broker:
        app = Flask("shop")
        app.config["MQCORE_URL"] = broker.listeners[0]
        mq = Mqcore(app)
        assert broker.stats().clients == ()
        with app.app_context():
            assert mq.client is mq.client
            assert mq.client.publish("orders/1", b"x").by == "server"
        mq.close()
        with app.app_context():
            assert mq.client.publish("orders/1", b"x").by == "server"
        mq.close()


def test_another_limiter_is_an_error() -> None:
    with pytest.raises(errors.ConfigError, match="SyncRateLimiter"):
        Mqcore(limiter=RateLimiter(on_unavailable="allow"))  # type: ignore[arg-type]
    with pytest.raises(errors.ConfigError, match="AMOUNT/PERIOD"):
        limited(Mqcore(), "often")


def test_forked_workers_of_gunicorn_have_clients_of_their_own(tmp_path: Path) -> None:
    port = free_port()
    with serving("--auto-create") as broker:
        command = ["gunicorn", "--preload", "--workers", "2", "--bind", f"127.0.0.1:{port}", "flask_service:app"]
        with web_server(command, port, tmp_path / "log", MQCORE_URL=broker.url) as server:
            answers = [ask(f"{server.url}/orders", {"sku": "A-100"}) for _ in range(20)]
            assert [answer.status for answer in answers] == [202] * 20
            assert answers[0].json() == {"confirmed_by": "server"}
            assert answers[0].headers["ratelimit-policy"] == '"place";q=1000;w=60'
            assert ask(f"{server.url}/orders").json() == {"waiting": 20}
            with mqcore.sync.connect(broker.url) as client:
                # This one, and one for each process that served a request.
                assert 2 <= len(list(client.clients())) <= 3
            assert server.stop() == 0, server.output
        assert "Traceback" not in server.output


def test_a_client_used_before_the_fork_raises_forked() -> None:
    text = (
        "import os, sys\nfrom flask import Flask\nfrom mqcore.flask import Mqcore\n"
        "mq = Mqcore(Flask('x'), sys.argv[1])\nmq.client\npid = os.fork()\n"
        "if pid == 0:\n    mq.client\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), mq.client.publish('a/1', b'').by)"
    )
    with serving("--auto-create") as broker:
        done = subprocess.run(
            [sys.executable, "-c", text, broker.url], capture_output=True, text=True, check=False, timeout=40
        )
    assert "mqcore.errors.Forked" in done.stderr
    assert done.stdout.split() == ["1", "server"]


def test_a_missing_flask_names_the_extra() -> None:
    text = "import sys; sys.modules['flask'] = None; import mqcore.flask"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert "run: pip install 'mqcore[flask]'" in done.stderr
