"""Jobs that raise what would end a program, or has no text, fail, and their worker continues, in each pool."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from job_processes import broker_url, working
from mqcore import errors
from mqcore.jobs import Jobs
from served import serving

KINDS = [
    *("SystemExit", "KeyboardInterrupt", "GeneratorExit", "BaseException", "CancelledError"),
    *("Unprintable", "Unencodable"),
]


@pytest.fixture
def url() -> Iterator[str]:
    with serving("--listen", "emqp://127.0.0.1:0") as served:
        yield broker_url(served)


@pytest.mark.parametrize("pool", ["process", "thread", "asyncio"])
def test_no_exception_of_a_job_ends_its_worker(url: str, pool: str) -> None:
    arguments = ("--pool", pool, "--concurrency", "1")
    with working(url, *arguments, app="raising_jobs:jobs") as worker, Jobs(url) as sender:
        # The pool starts its processes with the first job.
        assert sender.send("raising_jobs.fine").result(10) == "fine"
        children = worker.children()
        for task in ("raises", "raises_async"):
            for kind in KINDS:
                with pytest.raises(errors.JobFailed) as caught:
                    sender.send(f"raising_jobs.{task}", [kind]).result(10)
                assert caught.value.remote_type.rpartition(".")[2] == kind
        assert sender.send("raising_jobs.fine").result(10) == "fine"
        assert worker.children() == children, "no process died"
        assert worker.process.poll() is None
        assert worker.terminate() == 0


def test_task_that_a_job_starts_does_not_end_the_loop_of_the_pool(url: str) -> None:
    arguments = ("--pool", "asyncio", "--concurrency", "2")
    with working(url, *arguments, app="raising_jobs:jobs") as worker, Jobs(url) as sender:
        for _ in range(2):
            assert sender.send("raising_jobs.starts_what_exits").result(10) == "done"
        assert sender.send("raising_jobs.fine").result(10) == "fine"
        assert worker.terminate() == 0
