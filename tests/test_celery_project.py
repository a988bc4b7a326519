"""The Celery project of the examples, with a real broker and real workers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import TaskRevokedError

import mqcore
from celery_programs import Place, Worker, call, wait_until, working
from depth import by_depth

pytestmark = pytest.mark.timeout(180)

RESULT_LIMIT = 30.0
"""Seconds that a result may take; thousands of times what it needs."""


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    place = Place()
    with place.serve():
        yield place


@pytest.fixture(scope="module", params=by_depth(["prefork"], ["prefork", "threads", "solo"]))
def worker(request: pytest.FixtureRequest, place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    directory = tmp_path_factory.mktemp(request.param)
    with working(place, directory, "--pool", request.param, "--concurrency", "2", "-E", "--beat") as worker:
        yield worker


@pytest.fixture
def app(place: Place) -> Iterator[Celery]:
    with place.app() as app:
        yield app


def tmqp(place: Place) -> mqcore.sync.Client:
    return mqcore.sync.connect(place.urls[0].replace("mqcore", "tmqp"))


def test_a_result_comes_back(app: Celery, worker: Worker) -> None:
    assert call(app, "add", 2, 3).get(timeout=RESULT_LIMIT) == 5


def test_a_task_retries_until_it_succeeds(app: Celery, worker: Worker) -> None:
    assert call(app, "flaky", 3).get(timeout=RESULT_LIMIT) == 3


def test_a_task_that_always_fails_has_its_exception_as_result(app: Celery, worker: Worker) -> None:
    with pytest.raises(ValueError, match="broken"):
        call(app, "broken").get(timeout=RESULT_LIMIT)


def test_chains_groups_and_chords_work(app: Celery, worker: Worker) -> None:
    add, total = app.signature("tasks.add"), app.signature("tasks.total")
    assert chain(add.clone((1, 2)), add.clone((4,)), app=app)().get(timeout=RESULT_LIMIT) == 7
    parts = [add.clone((number, number)) for number in range(20)]
    assert group(parts, app=app)().get(timeout=RESULT_LIMIT) == [2 * number for number in range(20)]
    assert chord(parts, total, app=app)().get(timeout=RESULT_LIMIT) == 380


def test_a_chord_with_a_failed_part_fails(app: Celery, worker: Worker) -> None:
    parts = [app.signature("tasks.add", (1, 1)), app.signature("more_tasks.broken")]
    with pytest.raises(Exception, match="broken"):
        chord(parts, app.signature("tasks.total"), app=app)().get(timeout=RESULT_LIMIT)


def test_a_task_starts_a_chord(app: Celery, worker: Worker) -> None:
    body = call(app, "report", 5).get(timeout=RESULT_LIMIT)
    assert app.AsyncResult(body).get(timeout=RESULT_LIMIT) == 20


def test_the_broker_holds_a_task_until_it_is_due(place: Place, app: Celery, worker: Worker) -> None:
    began = time.time()
    result = call(app, "now", countdown=2)
    with tmqp(place) as client:
        assert client.queue_information("celery/0").delayed_messages == 1
    assert not any((app.control.inspect(timeout=1).scheduled() or {"": []}).values())
    ran = result.get(timeout=RESULT_LIMIT)
    assert 2 <= ran - began < 4


def test_a_rejected_task_is_delivered_again(app: Celery, worker: Worker) -> None:
    assert call(app, "once_more").get(timeout=RESULT_LIMIT) is True


def test_a_large_result_arrives_whole(app: Celery, worker: Worker) -> None:
    text = "0123456789" * 500_000
    assert call(app, "echo", text).get(timeout=RESULT_LIMIT) == text


def test_beat_sends_tasks(app: Celery, worker: Worker) -> None:
    wait_until(lambda: worker.output.count("more_tasks.tick") >= 3, limit=RESULT_LIMIT, what="three ticks")


def test_remote_control_reaches_the_worker(app: Celery, worker: Worker) -> None:
    inspect = app.control.inspect(timeout=2)
    assert inspect.ping() == {"w1@test": {"ok": "pong"}}
    assert "tasks.add" in next(iter(inspect.registered().values()))
    assert next(iter(inspect.active_queues().values()))[0]["name"] == "celery"
    assert next(iter(inspect.stats().values()))["broker"]["transport"] == "mqcore"
    assert app.control.pool_grow(1, reply=True, timeout=2) or worker.process.poll() is None


def test_events_of_the_worker_arrive(app: Celery, worker: Worker) -> None:
    kinds: list[str] = []
    task_id = uuid.uuid4().hex

    def seen(event: dict[str, object]) -> None:
        if event.get("uuid") == task_id:
            kinds.append(str(event["type"]))
            receiver.should_stop = "task-succeeded" in kinds

    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": seen})
        receiver.on_consume_ready = lambda *_arguments, **_options: call(app, "add", 1, 1, task_id=task_id)
        receiver.capture(limit=None, timeout=RESULT_LIMIT, wakeup=False)
    assert kinds == ["task-received", "task-started", "task-succeeded"]


def test_a_revoked_task_does_not_run(app: Celery, worker: Worker) -> None:
    result = call(app, "echo", 1, countdown=1.5)
    app.control.revoke(result.id, reply=True, timeout=2)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=RESULT_LIMIT)


def test_results_can_be_forgotten(app: Celery, worker: Worker) -> None:
    result = call(app, "add", 1, 1)
    assert result.get(timeout=RESULT_LIMIT) == 2
    result.forget()
    assert app.AsyncResult(result.id).state == "PENDING"


def test_queues_of_callers_do_not_stay(place: Place, app: Celery, worker: Worker) -> None:
    app.control.ping(timeout=0.5)

    def temporary() -> list[str]:
        with tmqp(place) as client:
            return [each.name for each in client.channels() if "reply" in each.name]

    wait_until(lambda: not temporary(), limit=RESULT_LIMIT, what="no reply queue left")


# --- failures ---------------------------------------------------------------------------------------------------


def test_a_task_of_a_killed_worker_runs_on_another_one(tmp_path: Path) -> None:
    place = Place()
    with place.serve(), place.app() as app:
        with working(place, tmp_path, "--pool", "prefork", "--concurrency", "1") as first:
            result = call(app, "sleep", 3)
            wait_until(lambda: result.state == "STARTED", limit=RESULT_LIMIT)
            first.kill()
        with working(place, tmp_path, "--pool", "threads", "--concurrency", "1", name="w2"):
            assert result.get(timeout=RESULT_LIMIT) is None


def test_processes_that_replace_others_store_results_and_send_tasks(tmp_path: Path) -> None:
    place = Place()
    options = ("--pool", "prefork", "--concurrency", "2", "--max-tasks-per-child", "1")
    with place.serve(), place.app() as app, working(place, tmp_path, *options) as worker:
        first = set(worker.children())
        assert [call(app, "add", n, n).get(timeout=RESULT_LIMIT) for n in range(6)] == [0, 2, 4, 6, 8, 10]
        assert first.isdisjoint(worker.children())
        # This one sends tasks from a process that was forked while the worker was connected.
        assert app.AsyncResult(call(app, "report", 3).get(timeout=RESULT_LIMIT)).get(timeout=RESULT_LIMIT) == 6


def test_a_task_of_a_killed_pool_process_runs_again(tmp_path: Path) -> None:
    place = Place()
    options = ("--pool", "prefork", "--concurrency", "1")
    with place.serve(), place.app() as app, working(place, tmp_path, *options) as worker:
        result = call(app, "sleep", 2)
        wait_until(lambda: result.state == "STARTED", limit=RESULT_LIMIT)
        for pid in worker.children():
            os.kill(pid, signal.SIGKILL)
        assert result.get(timeout=RESULT_LIMIT) is None


@pytest.mark.parametrize("pool", by_depth(["threads"], ["prefork", "threads", "solo"]))
def test_worker_and_caller_continue_after_the_broker_was_killed(tmp_path: Path, pool: str) -> None:
    place = Place("--data-dir", str(tmp_path / "data"))
    options = ("--pool", pool, "--concurrency", "2")
    with place.app() as app, contextlib.ExitStack() as stack:
        broker = stack.enter_context(place.serve())
        worker = stack.enter_context(working(place, tmp_path, *options))
        assert call(app, "add", 1, 1).get(timeout=RESULT_LIMIT) == 2
        waiting = [call(app, "sleep", 0.5) for _ in range(6)]
        later = call(app, "add", 20, 22, countdown=4)
        broker.process.kill()
        broker.process.wait()
        with place.serve():
            assert [result.get(timeout=RESULT_LIMIT) for result in waiting] == [None] * 6
            assert later.get(timeout=RESULT_LIMIT) == 42
            assert call(app, "add", 3, 3).get(timeout=RESULT_LIMIT) == 6
            assert app.control.ping(timeout=3) == [{"w1@test": {"ok": "pong"}}]
            worker.process.terminate()
            worker.process.wait(30)


def test_a_busy_worker_holds_one_message_and_the_broker_the_others(tmp_path: Path) -> None:
    place = Place()
    options = ("--pool", "prefork", "--concurrency", "1", "--prefetch-multiplier", "1")
    with place.serve(), place.app() as app, working(place, tmp_path, *options), tmqp(place) as client:
        results = [call(app, "sleep", 1) for _ in range(4)]
        wait_until(lambda: results[0].state == "STARTED", limit=RESULT_LIMIT)
        information = client.queue_information("celery/0")
        assert (information.in_flight, information.messages) == (1, 3)
        for result in results:
            result.get(timeout=RESULT_LIMIT)


def test_a_worker_without_permission_names_the_reason(tmp_path: Path) -> None:
    data = tmp_path / "data"
    subprocess.run(
        [sys.executable, "-m", "mqcore", "token", "create", "other", "--allow", "push:x", "--data-dir", str(data)],
        check=True,
        capture_output=True,
    )
    place = Place("--data-dir", str(data))
    with place.serve(), working(place, tmp_path, "--pool", "solo", sign="refused the credentials") as worker:
        assert " ready." not in worker.output
