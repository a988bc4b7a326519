"""The fixtures that pytest gets from mqcore, in a project of its own."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mqcore import QueueOptions, errors, sync
from mqcore.testing import ServerProcess
from served import ROOT, clean_environment

# Loaded by name, and not as an entry point: then the test needs no installation of this version.
LOADED = ("-p", "mqcore.pytest_plugin", "-p", "no:mqcore", "-p", "no:cacheprovider")
PROJECT = """
import pytest
import mqcore

app = mqcore.App()


@app.subscriber("orders/1")
@app.publisher("totals/1")
async def total(order: dict[str, int]) -> int:
    return order["price"] * order["quantity"]


@pytest.mark.asyncio
async def test_app(mq):
    async with mq.running(app):
        await app.publish("orders/1", {"price": 3, "quantity": 2})
        await mq.settle()
        assert [message.body for message in mq.messages("totals/1")] == [b"6"]


@pytest.mark.mqcore_broker(auto_create_channels=True, auto_create_queues=True)
def test_marker(mq):
    with mqcore.sync.connect(mq) as client:
        assert client.publish("new/1", b"x").by == "server"


@pytest.mark.mqcore_server("--auto-create")
def test_server(mq_server):
    with mqcore.sync.connect(mq_server.url) as client:
        client.publish("new/1", b"x")


def test_fails(mq):
    assert mq.messages("missing/1") == []
"""


def test_fixtures_work_in_a_project(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(PROJECT)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--strict-markers", *LOADED, str(tmp_path)],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert "1 failed, 3 passed" in done.stdout, done.stdout + done.stderr
    assert "KeyError: 'missing/1'" in done.stdout


def test_plugin_is_an_entry_point_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"mqcore": "mqcore.pytest_plugin"}


def test_server_keeps_ports_and_saved_messages_when_it_is_killed(tmp_path: Path) -> None:
    with ServerProcess(data_dir=tmp_path / "data") as server:
        url, admin_url, pid = server.url, server.admin_url, server.pid
        with sync.connect(url, backoff_first="10ms") as client:
            client.create_queue("orders/1", QueueOptions(status="pull", delivery_handler="at-least-once"))
            client.publish("orders/1", b"saved")
            server.restart()
            assert (server.url, server.admin_url) == (url, admin_url)
            assert server.pid != pid
            assert [message.raw for message in client.queue("orders/1").pull(5)] == [b"saved"]


def test_server_that_cannot_start_reports_its_log() -> None:
    server = ServerProcess("--data-dir", __file__)
    with pytest.raises(errors.NotRunning, match="is a file"):
        server.start()
    server.__exit__()
    with pytest.raises(errors.NotRunning, match="was not started"):
        _ = ServerProcess().pid
