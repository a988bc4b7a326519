"""The Django project of the examples, with a real broker, `mqcore_worker` and a web server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mqcore
from ports import free_port
from served import ROOT, serving
from web_servers import ask, environment_of, jobs_url, web_server

PROJECT = ROOT / "examples" / "django_project"
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A broker for jobs."""
    url = jobs_url()
    with serving("--listen", url):
        yield url


def environment(url: str, directory: Path) -> dict[str, str]:
    return environment_of(
        PROJECT,
        {
            "MQCORE_JOBS_URL": url,
            "SHOP_DATABASE": str(directory / "shop.sqlite3"),
            "DJANGO_SETTINGS_MODULE": "retrying" if (directory / "retrying.py").exists() else "shop.settings",
        },
    )


def manage(url: str, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``manage.py``."""
    command = [sys.executable, "manage.py", *arguments]
    return subprocess.run(
        command, cwd=PROJECT, env=environment(url, directory), capture_output=True, text=True, check=False, timeout=60
    )


@contextlib.contextmanager
def working(url: str, directory: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``manage.py mqcore_worker`` from when it is ready until the block ends."""
    log = directory / "worker.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "mqcore_worker", *arguments],
            cwd=PROJECT,
            env=environment(url, directory),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + 60
        while "ready:" not in log.read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"the worker is not ready:\n{log.read_text()}")
            time.sleep(0.05)
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(30)
        sys.stderr.write(log.read_text())


PROGRAM = """
import asyncio, datetime, json, sys, time
import django
django.setup()
from django.db import connection
from mqcore.django.tasks_api import TaskResultDoesNotExist, task_backends, task_enqueued
from shop.tasks import describe, send_invoice

def ended(*results):
    until = time.monotonic() + 40
    while not all(result.is_finished for result in results):
        assert time.monotonic() < until, results
        time.sleep(0.05)
        for result in results:
            result.refresh()

found = {}
"""


def program(url: str, directory: Path, text: str) -> dict[str, Any]:
    """Run a program in the project, and return what it left in `found`."""
    script = f"{PROGRAM}\n{text}\nprint(json.dumps(found))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=PROJECT,
        env=environment(url, directory),
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


@pytest.mark.parametrize("pool", ["process", "thread"])
def test_tasks_run_and_their_results_are_read_in_any_process(pool: str, url: str, tmp_path: Path) -> None:
    with working(url, tmp_path, "--pool", pool, "--concurrency", "2") as worker:
        found = program(
            url,
            tmp_path,
            """
seen = []
task_enqueued.connect(lambda task_result, **_: seen.append(task_result.id), weak=False)
good = send_invoice.using(priority=50).enqueue(7)
bad = send_invoice.enqueue(order=-1)
other = asyncio.run(describe.aenqueue("hello"))
import threading
seen_jobs = set()
threads = [threading.Thread(target=lambda: seen_jobs.add(task_backends["default"].jobs)) for _ in range(5)]
for thread in threads:
    thread.start()
    thread.join()
assert seen_jobs == {task_backends["default"].jobs}, "each thread has a connection of its own"
found |= {"ids": [good.id, bad.id, other.id], "before": good.status, "seen": seen}
ended(good, bad, other)
found |= {"values": [good.return_value, other.return_value], "failed": bad.status, "kwargs": bad.kwargs,
    "error": bad.errors[0].exception_class.__name__, "trace": bad.errors[0].traceback, "attempts": bad.attempts,
    "priority": good.task.priority, "order": good.enqueued_at <= good.started_at <= good.finished_at}
""",
        )
        assert found["before"] == "READY"
        assert found["seen"] == found["ids"]
        assert found["values"] == ["invoice of order 7", "hello, attempt 1"]
        assert (found["failed"], found["error"], found["attempts"]) == ("FAILED", "ValueError", 1)
        assert found["kwargs"] == {"order": -1}
        assert "there is no order -1" in found["trace"]
        assert (found["priority"], found["order"]) == (50, True)
        elsewhere = program(
            url,
            tmp_path,
            f"""
good, bad = (send_invoice.get_result(each) for each in {found["ids"][:2]!r})
found |= {{"value": good.return_value, "args": good.args, "failed": bad.status, "queue": good.task.queue_name}}
try:
    send_invoice.get_result({found["ids"][2]!r})
except Exception as error:
    found["other"] = type(error).__name__
try:
    send_invoice.get_result("unknown")
except TaskResultDoesNotExist as error:
    found["unknown"] = str(error)
""",
        )
        assert elsewhere == {
            "value": "invoice of order 7",
            "args": [7],
            "failed": "FAILED",
            "queue": "mail",
            "other": "TaskResultMismatch",
            "unknown": elsewhere["unknown"],
        }
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
    assert "succeeded" in (tmp_path / "worker.log").read_text()


def test_a_failed_task_is_tried_again_as_often_as_the_options_say(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "retrying.py").write_text(
        "from mqcore import Backoff\n"
        "from shop.settings import *\n"
        'INSTALLED_APPS += ["flaky"]\n'
        'TASKS["default"]["OPTIONS"] |= {"retries": 2, "backoff": Backoff(first="50ms")}\n'
    )
    (tmp_path / "flaky").mkdir()
    (tmp_path / "flaky" / "__init__.py").touch()
    (tmp_path / "flaky" / "tasks.py").write_text(
        "from shop.tasks import task\n"
        "@task(takes_context=True)\n"
        "def flaky(context, failures):\n"
        "    if context.attempt <= failures:\n"
        "        raise ConnectionError(f'attempt {context.attempt}')\n"
        "    return context.attempt\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with working(url, tmp_path, "--pool", "thread"):
        found = program(
            url,
            tmp_path,
            """
from flaky.tasks import flaky
good, bad = flaky.enqueue(2), flaky.enqueue(3)
ended(good, bad)
found |= {"value": good.return_value, "attempts": [good.attempts, bad.attempts], "failed": bad.status,
    "trace": bad.errors[0].traceback}
""",
        )
    assert (found["value"], found["failed"]) == (3, "FAILED")
    assert found["attempts"] == [3, 3]
    assert "attempt 3" in found["trace"]


def test_a_task_starts_after_its_time(url: str, tmp_path: Path) -> None:
    with working(url, tmp_path, "--pool", "thread"):
        found = program(
            url,
            tmp_path,
            """
due = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=2)
result = send_invoice.using(run_after=due).enqueue(1)
ended(result)
found["late"] = result.started_at >= due
""",
        )
    assert found == {"late": True}


def test_the_web_server_enqueues_on_commit_and_shows_results(url: str, tmp_path: Path) -> None:
    port = free_port()
    command = ["django", "runserver", "--noreload", f"127.0.0.1:{port}"]
    settings = environment(url, tmp_path)
    names = ("MQCORE_JOBS_URL", "SHOP_DATABASE", "DJANGO_SETTINGS_MODULE")
    with (
        web_server(command, port, tmp_path / "web.log", cwd=PROJECT, **{name: settings[name] for name in names}) as web,
        working(url, tmp_path, "--pool", "thread", "--queues", "mail"),
    ):
        result = ask(f"{web.url}/orders/5").json()["result"]
        deadline = time.monotonic() + 30
        while (invoice := ask(f"{web.url}/invoices/{result}").json())["text"] is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert invoice == {"status": "SUCCESSFUL", "text": "invoice of order 5"}
        with mqcore.jobs.Jobs(url) as jobs:
            before = jobs.status()["processed_messages_by_queue"]["mail"]
            assert ask(f"{web.url}/committed/6?rollback=1").status == 200
            assert ask(f"{web.url}/committed/7").status == 200
            while jobs.status()["processed_messages_by_queue"]["mail"] == before:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            # Jobs of one queue start in order: that of the transaction that was rolled back would have run before.
            assert jobs.status()["processed_messages_by_queue"]["mail"] == before + 1


def test_arguments_queues_and_brokers_that_cannot_work_are_errors_of_enqueue(url: str, tmp_path: Path) -> None:
    found = program(
        url,
        tmp_path,
        """
def fails(name, call):
    try:
        call()
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"

fails("argument", lambda: send_invoice.enqueue(object()))
fails("queue", lambda: send_invoice.using(queue_name="fax"))
fails("priority", lambda: send_invoice.using(priority=101))
backend = task_backends["default"]
backend.jobs.close()
backend.jobs.locate("emqp://127.0.0.1:1")
backend.jobs._timeout = 0.2
fails("broker", lambda: send_invoice.enqueue(1))
""",
    )
    assert found["argument"].startswith("TypeError: Unsupported type")
    assert "'fax' is not valid" in found["queue"]
    assert "priority must be a whole number" in found["priority"]
    assert found["broker"].startswith("ConnectFailed: no job broker answered")


def test_wrong_settings_are_found_by_check(url: str, tmp_path: Path) -> None:
    assert manage(url, tmp_path, "check").returncode == 0
    for wrong, expected in [("'ur': 'emqp://127.0.0.1'", "unknown option ur"), ("'url': 'http://x'", "emqp://")]:
        (tmp_path / "wrong.py").write_text(
            "from shop.settings import *\n"
            f"TASKS = {{'default': {{'BACKEND': 'mqcore.django.TaskBackend', 'QUEUES': [], 'OPTIONS': {{{wrong}}}}}}}\n"
        )
        command = [sys.executable, "-m", "django", "check"]
        settings = environment(url, tmp_path) | {"DJANGO_SETTINGS_MODULE": "wrong"}
        settings["PYTHONPATH"] += os.pathsep + str(tmp_path)
        done = subprocess.run(command, cwd=PROJECT, env=settings, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert expected in done.stderr
        assert "mqcore.E001" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--queues", "fax"), "unknown queue fax; QUEUES of this backend are default, mail"),
        (("--backend", "other"), "no backend 'other' in the setting TASKS"),
        (("--concurrency", "0"), "concurrency must be at least 1"),
    ],
)
def test_wrong_options_of_the_worker_are_errors(
    arguments: tuple[str, ...], expected: str, url: str, tmp_path: Path
) -> None:
    done = manage(url, tmp_path, "mqcore_worker", *arguments)
    assert done.returncode == 1
    assert f"CommandError: {expected}" in done.stderr


@pytest.mark.parametrize(
    ("missing", "expected"), [(("django",), "mqcore[django]"), (("django.tasks", "django_tasks"), "django-tasks")]
)
def test_missing_packages_are_named(missing: tuple[str, ...], expected: str) -> None:
    hidden = "; ".join(f"sys.modules[{name!r}] = None" for name in missing)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {hidden}; import mqcore.django"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert expected in done.stderr.splitlines()[-1]
