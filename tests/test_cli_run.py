"""`mqcore run`: one process and several, crashes, signals, changes of the code, and mistakes."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import programs
from mqcore import sync
from mqcore.cli import program
from served import ServedBroker, clean_environment, serving, wait_until

SHOP = """
import asyncio, os, signal, time
import mqcore

app = mqcore.App(name="billing")


@app.subscriber("orders/1", concurrency=2)
@app.publisher("done/1", queue_options=mqcore.QueueOptions(status="pull"))
async def bill(body: str) -> str:
    if body.startswith("sleep"):
        print("started", flush=True)
        await asyncio.sleep(float(body.partition(" ")[2]))
    return f"{body} {os.getpid()}"


@app.subscriber("plain/1")
def plain(body: str) -> None:
    print("started", flush=True)
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[ServedBroker]:
    with serving() as running:
        yield running


@dataclass
class Running:
    """A program that runs, and what it writes."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def ready(self) -> dict[str, Any]:
        """Wait for the ready line."""
        wait_until(lambda: bool(self.lines) or self.process.poll() is not None, limit=30, what="the ready line")
        assert self.lines, "".join(self.errors)
        return dict(json.loads(self.lines[0]))

    def wait(self, limit: float = 30) -> int:
        """Wait for its end."""
        return self.process.wait(limit)

    @property
    def stderr(self) -> str:
        return "".join(self.errors)


@contextlib.contextmanager
def running(*arguments: str, cwd: Path, url: str, environment: Mapping[str, str] | None = None) -> Iterator[Running]:
    settings = {"MQCORE_URL": url, "MQCORE_LOG_FORMAT": "console", **(environment or {})}
    process = programs.Popen(
        [sys.executable, "-m", "mqcore", "run", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=clean_environment() | settings,
    )
    found = Running(process)
    readers = [
        threading.Thread(target=lambda: found.lines.extend(process.stdout or ()), daemon=True),
        threading.Thread(target=lambda: found.errors.extend(process.stderr or ()), daemon=True),
    ]
    for reader in readers:
        reader.start()
    try:
        yield found
    finally:
        programs.end(process)
        for reader in readers:
            reader.join(10)
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()


@pytest.fixture
def shop(tmp_path: Path, broker: ServedBroker) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    with sync.connect(broker.url) as client:
        for queue in ("orders/1", "done/1", "plain/1"):
            with contextlib.suppress(LookupError):
                client.clear_queue(queue)
    return tmp_path


def results(client: sync.Client, count: int) -> list[str]:
    """Pull what the handler published."""
    found: list[str] = []

    def pull() -> bool:
        found.extend(message.body for message in client.queue("done/1").pull(count, str))
        return len(found) >= count

    wait_until(pull, limit=20, what="all results")
    return found


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_app_runs_in_the_process_of_the_command_and_drains(shop: Path, broker: ServedBroker) -> None:
    with running("shop:app", cwd=shop, url=broker.url) as app, sync.connect(broker.url) as client:
        ready = app.ready()
        assert (ready["app"], ready["consumes"]) == ("billing", ["orders/1", "plain/1"])
        assert ready["pid"] == app.process.pid
        client.publish("orders/1", "first")
        assert results(client, 1) == [f"first {ready['pid']}"]
        client.publish("orders/1", "sleep 0.5")
        wait_until(lambda: len(app.lines) == 2, what="the start of the handler")
        app.process.send_signal(signal.SIGTERM)
        assert app.wait() == 0, app.stderr
        assert results(client, 1) == [f"sleep 0.5 {ready['pid']}"]


@pytest.mark.parametrize("workers", [(), ("--workers", "2")])
@pytest.mark.parametrize("queue", ["orders/1", "plain/1"])
def test_second_signal_cancels_handlers(shop: Path, broker: ServedBroker, workers: tuple[str, ...], queue: str) -> None:
    with running("shop:app", *workers, cwd=shop, url=broker.url) as app, sync.connect(broker.url) as client:
        app.ready()
        client.publish(queue, "sleep 60")
        wait_until(lambda: len(app.lines) == 2, what="the start of the handler")
        app.process.send_signal(signal.SIGINT)
        wait_until(lambda: client.queue_information(queue).consumers == 0, what="the beginning of the drain")
        assert app.process.poll() is None
        app.process.send_signal(signal.SIGTERM)
        assert app.wait() == 1, app.stderr
        wait_until(lambda: client.queue_information(queue).messages == 1, what="the message in its queue")


def test_drain_timeout_of_the_command_counts(shop: Path, broker: ServedBroker) -> None:
    arguments = ("shop:app", "--drain-timeout", "100ms")
    with running(*arguments, cwd=shop, url=broker.url) as app, sync.connect(broker.url) as client:
        app.ready()
        client.publish("orders/1", "sleep 60")
        wait_until(lambda: len(app.lines) == 2, what="the start of the handler")
        app.process.send_signal(signal.SIGTERM)
        assert app.wait() == 1
        assert "did not finish within 0.1 s; their messages are redelivered" in app.stderr


def test_processes_that_are_killed_start_again_and_end_with_the_command(shop: Path, broker: ServedBroker) -> None:
    with running("shop:app", "--workers", "2", cwd=shop, url=broker.url) as app, sync.connect(broker.url) as client:
        pids = app.ready()["pids"]
        assert len(set(pids)) == 2
        client.publish_many("orders/1", [f"sleep 0.{n % 3}" for n in range(20)])
        os.kill(pids[0], signal.SIGKILL)
        found = results(client, 20)
        assert len(found) >= 20
        wait_until(lambda: "starting it again" in app.stderr, what="the restart")
        wait_until(lambda: client.queue_information("orders/1").consumers == 2, limit=20, what="two consumers")
        lines = len(app.lines)
        client.publish("orders/1", "sleep 0.5")
        wait_until(lambda: len(app.lines) > lines, what="the start of the handler")
        app.process.send_signal(signal.SIGTERM)
        assert app.wait() == 0, app.stderr
        assert client.queue_information("orders/1").messages == 0
        assert "signal SIGKILL" in app.stderr
    wait_until(lambda: not any(map(is_alive, pids)), what="the end of all processes")


def test_processes_drain_when_the_command_is_killed(shop: Path, broker: ServedBroker) -> None:
    with running("shop:app", "--workers", "2", cwd=shop, url=broker.url) as app:
        pids = app.ready()["pids"]
        app.process.kill()
        wait_until(lambda: not any(map(is_alive, pids)), limit=20, what="the end of all processes")


def test_processes_get_the_token_without_showing_it(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    data = str(tmp_path_factory.mktemp("data"))
    made = programs.run(
        [sys.executable, "-m", "mqcore", "token", "create", "shop", "--allow", "*", "--data-dir", data],
        capture_output=True,
        text=True,
        check=True,
        env=clean_environment(),
    )
    token = made.stdout.strip()
    (shop / "other.py").write_text(SHOP.replace('name="billing"', 'token="mq_of_another_broker", name="billing"'))
    with serving("--data-dir", data, "--auto-create") as guarded:
        arguments = ("other:app", "--workers", "2")
        with running(*arguments, cwd=shop, url=guarded.url, environment={"MQCORE_TOKEN": token}) as app:
            ready = app.ready()
            assert len(ready["pids"]) == 2
            for pid in (ready["pid"], *ready["pids"]):
                assert token.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
            app.process.send_signal(signal.SIGTERM)
            assert app.wait() == 0, app.stderr


def test_reload_restarts_after_changes_and_survives_a_syntax_error(shop: Path, broker: ServedBroker) -> None:
    pytest.importorskip("watchfiles")
    module = shop / "shop.py"
    with running("shop:app", "--reload", cwd=shop, url=broker.url) as app, sync.connect(broker.url) as client:
        app.ready()
        module.write_text(SHOP.replace("{body} ", "changed {body} "))
        wait_until(lambda: app.stderr.count("<App billing> consumes") == 2, limit=20, what="the restart")
        client.publish("orders/1", "one")
        assert results(client, 1)[0].startswith("changed one ")
        module.write_text(SHOP + "def broken(:\n")
        wait_until(lambda: "SyntaxError" in app.stderr, limit=20, what="the syntax error")
        wait_until(lambda: "started again after the next change" in app.stderr, limit=20, what="the wait for a change")
        assert app.process.poll() is None
        module.write_text(SHOP)
        wait_until(lambda: app.stderr.count("<App billing> consumes") == 3, limit=20, what="the next restart")
        app.process.send_signal(signal.SIGTERM)
        assert app.wait() == 0, app.stderr


def test_reload_names_what_it_needs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "watchfiles" else found(name))
    assert program.run(["run", "shop:app", "--reload"]) == 2
    assert "pip install 'mqcore[reload]'" in capsys.readouterr().err


@pytest.mark.parametrize("workers", [(), ("--workers", "2")])
@pytest.mark.parametrize(
    ("code", "exit_code", "said"),
    [
        ("import missing_module", 2, "No module named 'missing_module'"),
        ("def broken(:", 2, "import failed with SyntaxError"),
        ("app = 5", 2, "app is of type int; expected an mqcore.App"),
        (
            "import mqcore\napp = mqcore.App()\n@app.subscriber('a/1')\nasync def f(x): ...",
            2,
            "'x' of f has no annotation",
        ),
        ("import mqcore\napp = mqcore.App()\napp.publisher('none/7')", 3, "queue none/7 of a publisher does not exist"),
    ],
)
def test_mistakes_end_the_command_with_one_line(
    tmp_path: Path, broker: ServedBroker, workers: tuple[str, ...], code: str, exit_code: int, said: str
) -> None:
    (tmp_path / "shop.py").write_text(code)
    with running("shop:app", *workers, cwd=tmp_path, url=broker.url) as app:
        assert app.wait() == exit_code, app.stderr
    assert said in app.stderr
    assert "Traceback" not in app.stderr
    assert app.lines == []


def test_unreachable_broker_ends_one_process_and_is_tried_again_by_several(shop: Path) -> None:
    with running("shop:app", cwd=shop, url="tmqp://127.0.0.1:1") as app:
        assert app.wait() == 5, app.stderr
    with serving() as later:
        url = later.url
        port = url.rpartition(":")[2]
    with running("shop:app", "--workers", "2", cwd=shop, url=url) as app:
        wait_until(lambda: app.stderr.count("starting it again in 1.0 s") == 2, limit=30, what="two failures")
        with serving("--listen", f"tmqp://127.0.0.1:{port}"):
            ready = app.ready()
            assert (ready["app"], len(ready["pids"])) == ("billing", 2)


def test_url_and_token_of_the_command_line_count(shop: Path, broker: ServedBroker) -> None:
    (shop / "other.py").write_text(SHOP.replace('name="billing"', '"tmqp://127.0.0.1:1", name="billing"'))
    with running("other:app", "--url", broker.url, cwd=shop, url="tmqp://127.0.0.1:1") as app:
        assert app.ready()["app"] == "billing"
