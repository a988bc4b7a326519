"""The original's own programs against our broker: its client, job manager, scheduler, command line and publisher."""

from __future__ import annotations

import ast
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import mqcore
from eventmq_original import JOBS, Original, addresses, original_python
from served import wait_until

__all__ = ["original_python"]

# Making the environment takes longer than a test may.
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.full("runs the original programs; their recorded dialogues are in test_eventmq_vectors.py"),
]


@pytest.fixture
def broker() -> Iterator[mqcore.Broker]:
    with mqcore.Broker(listen="emqp://127.0.0.1:0", shards=2) as broker:
        yield broker


@pytest.fixture
def original(original_python: Path, broker: mqcore.Broker, tmp_path: Path) -> Original:
    (tmp_path / "jobs.py").write_text(JOBS)
    return Original(original_python, tmp_path, addresses(broker.listeners))


def ids_of(said: str) -> list[list[str]]:
    """The frames behind the envelope, of the replies that a client printed."""
    return [ast.literal_eval(line)[4:] for line in said.splitlines()]


RECEIVE = """
def receive(count):
    for _ in range(count):
        assert s.zsocket.poll(20_000)
        print(s.recv_multipart())
"""


def test_a_job_runs_and_its_client_hears_first_that_it_runs_and_then_what_came_of_it(original: Original) -> None:
    with original.job_manager():
        said = original.run(
            RECEIVE
            + """
id = defer_job(s, "jobs.write", args=("out", "hello"), reply_requested=True)
receive(2)
print(["", "", "", "", id])
"""
        )
    notice, result, (job,) = ids_of(said)
    assert notice == [job]
    assert result == ['{"value": "HELLO"}', job]
    assert original.written("out") == ["hello"]


def test_jobs_that_came_before_any_worker_run_when_one_comes(original: Original) -> None:
    original.run('for n in range(5): defer_job(s, "jobs.write", args=("out", str(n)))\ns.zsocket.close(linger=5000)')
    with original.job_manager(slots=1):
        wait_until(lambda: len(original.written("out")) == 5, limit=20, what="five jobs")
    assert original.written("out") == ["0", "1", "2", "3", "4"]


def test_two_hundred_jobs_through_two_slots_take_no_second_each(original: Original) -> None:
    """The original's job manager looks for finished jobs once a second unless it hears something."""
    with original.job_manager(slots=2):
        original.run(RECEIVE + 'defer_job(s, "jobs.write", args=("warm", "up"), reply_requested=True)\nreceive(2)')
        began = time.monotonic()
        original.run(
            """
for n in range(200):
    defer_job(s, "jobs.write", args=("out", str(n)), reply_requested=True, guarantee=True)
for n in range(400):
    assert s.zsocket.poll(20_000), n
    s.recv_multipart()
"""
        )
        took = time.monotonic() - began
    assert sorted(map(int, original.written("out"))) == list(range(200))
    assert took < 30, f"200 jobs took {took:.1f} s; on its own router 200 jobs through two slots take 100 s"


def test_a_worker_with_a_larger_weight_gets_the_jobs_while_it_is_free(original: Original) -> None:
    with original.job_manager('[[10, "q"]]'):
        wait_until(lambda: workers(original) == 1, limit=20, what="the first worker")
        with original.program("emq-jobmanager", EVENTMQ_QUEUES='[[30, "q"]]', EVENTMQ_CONCURRENT_JOBS="2"):
            wait_until(lambda: workers(original) == 2, limit=20, what="the second worker")
            for number in range(6):
                original.run(
                    RECEIVE
                    + f'defer_job(s, "jobs.write", args=("out", "{number}"), queue="q", reply_requested=True)\n'
                    + "receive(2)"
                )
            shown = original.command_line("show_workers", "status")
    assert original.written("out") == [str(number) for number in range(6)]
    assert "'available_slots': 2" in shown


def workers(original: Original) -> int:
    """How many workers have slots, as the original's command line shows it."""
    shown = original.command_line("show_workers")
    return shown.count("'available_slots': 2")


def test_the_jobs_of_a_killed_job_manager_run_again_if_they_are_guaranteed(original: Original) -> None:
    with original.job_manager(slots=2) as first:
        original.run(
            RECEIVE
            + """
defer_job(s, "jobs.slow", args=("kept", 60), guarantee=True)
defer_job(s, "jobs.slow", args=("lost", 60))
receive(2)
"""
        )
        wait_until(lambda: bool(original.written("kept") and original.written("lost")), limit=20, what="both jobs")
        os.killpg(first.pid, signal.SIGKILL)
    with original.job_manager(slots=2):
        wait_until(lambda: original.written("kept") == ["began", "began"], limit=20, what="the guaranteed job")
        assert original.written("lost") == ["began"]


def test_an_exception_is_a_result_as_it_always_was(original: Original) -> None:
    with original.job_manager():
        said = original.run(RECEIVE + 'defer_job(s, "jobs.boom", reply_requested=True)\nreceive(2)')
    assert ids_of(said)[1][0] == '{"value": "boom"}'


def test_the_command_line_shows_workers_and_numbers(original: Original) -> None:
    with original.job_manager('[[30, "hi"], [10, "default"]]'):
        wait_until(lambda: workers(original) == 1, limit=20, what="the worker")
        original.run(RECEIVE + 'defer_job(s, "jobs.write", args=("out", "x"), reply_requested=True)\nreceive(2)')
        shown = original.command_line("status", "show_workers", "show_schedulers")
    for word in ("processed_messages_by_queue", "'default': 1", "connected_queues", "'hi'", "connected_schedulers"):
        assert word in shown, shown


def wait_until_silent(original: Original, name: str) -> None:
    """Wait for the last run of a schedule that ended while one was on its way; one of each second never rests."""

    def nothing_follows() -> bool:
        runs = len(original.written(name))
        time.sleep(2.5)
        return len(original.written(name)) == runs

    wait_until(nothing_follows, limit=30, what="an end of the runs")


def test_its_scheduler_keeps_schedules_for_its_clients(original: Original) -> None:
    with original.job_manager(), original.program("emq-scheduler"):
        wait_until(lambda: "'hb'" in original.command_line("show_schedulers"), limit=20, what="the scheduler to join")
        call = 's, "jobs.write", interval_secs=1, args=("tick", "tock")'
        original.run(f"schedule({call})\ns.zsocket.close(linger=5000)")
        wait_until(lambda: len(original.written("tick")) >= 3, limit=20, what="three runs")
        original.run(f"schedule({call}, unschedule=True)\ns.zsocket.close(linger=5000)")
        wait_until_silent(original, "tick")


def test_its_clients_have_their_schedules_kept_by_the_broker(original: Original, broker: mqcore.Broker) -> None:
    with original.job_manager():
        wait_until(lambda: workers(original) == 1, limit=20, what="the worker")
        call = 's, "jobs.write", interval_secs=1, args=("tick", "tock")'
        original.run(f"schedule({call})\ns.zsocket.close(linger=5000)")
        wait_until(lambda: len(original.written("tick")) >= 3, limit=20, what="three runs")
        (kept,) = broker.schedules().schedules
        said = original.run(
            """
from eventmq.scheduler import Scheduler
import json
call = {"path": "jobs", "callable": "write", "args": ["tick", "tock"]}
call |= {"kwargs": {}, "class_args": [], "class_kwargs": {}}
print(Scheduler.schedule_hash(["", "", "", json.dumps(["run", call])]))
"""
        )
        assert said.split() == [kept.id], "the original would call it the same"
        original.run(f"schedule({call}, unschedule=True)\ns.zsocket.close(linger=5000)")
        wait_until(lambda: broker.schedules().total == 0, limit=20, what="the end of the schedule")
        wait_until_silent(original, "tick")


def test_original_publisher_reaches_subscribers(original: Original) -> None:
    said = original.run(
        f"""
import time, zmq
from eventmq.utils.messages import send_emqp_message
sub = zmq.Context.instance().socket(zmq.SUB)
sub.connect({original.sockets["subscribe"]!r})
sub.setsockopt(zmq.SUBSCRIBE, b"news")
p = Sender()
p.connect({original.sockets["publish"]!r})
while not sub.poll(200):
    send_emqp_message(p, "PUBLISH", ("news.local", "paper"))
print(["", "", "", ""] + [part.decode() for part in sub.recv_multipart()])
"""
    )
    assert ids_of(said) == [["news.local", "paper"]]
