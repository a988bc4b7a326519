"""Cancelling jobs over the admin side: those that wait, run, have ended or do not exist, and without the right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from job_processes import broker_url, lines_of, until_lines, working
from mqcore import admin, errors
from mqcore.jobs import JobStatus
from served import ServedBroker, serving, wait_until
from test_admin_changes import Place, new_token

RULES = {"all": ("*",), "viewer": ("inspect",), "canceller": ("administer:/jobs/*",), "sender": ("push", "create")}
LISTEN = ("--listen", "emqp://127.0.0.1:0", "--admin", "http://127.0.0.1:0")


def with_token(broker: ServedBroker, tokens: dict[str, str]) -> str:
    """The URL for workers and clients that may do everything."""
    return broker_url(broker).replace("://", f"://{tokens['all']}@")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A broker with users and a data directory."""
    data = tmp_path_factory.mktemp("cancelling") / "data"
    data.mkdir(mode=0o700)
    tokens = {name: new_token(data, name, *rules) for name, rules in RULES.items()}
    with serving(*LISTEN, "--data-dir", str(data)) as broker:
        yield Place(broker, tokens)


@pytest.fixture
def url(place: Place) -> str:
    """Its URL for workers and clients."""
    return with_token(place.broker, place.tokens)


@pytest.fixture
def cancel(place: Place) -> Callable[..., bool]:
    """`admin.cancel_job` with a token that may do nothing else."""

    def cancel(job_id: str, **options: Any) -> bool:
        return admin.cancel_job(place.url, job_id, token=place.tokens["canceller"], **options)

    return cancel


def waiting(place: Place, queue: str) -> int:
    """How many jobs wait in a queue."""
    known = admin.jobs(place.url, matching=queue, token=place.token).queues
    return sum(found.waiting for found in known if found.name == queue)


def running(place: Place) -> dict[str, admin.RunningJob]:
    """Running jobs by id."""
    state = admin.jobs(place.url, token=place.tokens["viewer"])
    assert state.running_total == len(state.running)
    return {job.id: job for job in state.running}


def test_a_waiting_job_is_removed_and_never_runs(
    place: Place, url: str, samples: Any, cancel: Callable[..., bool], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    sent = [samples.write.using(queue="removed").enqueue(str(file), name) for name in "abc"]
    wait_until(lambda: waiting(place, "removed") == 3, what="three jobs")
    with pytest.raises(errors.NotFound, match="name the queue"):
        cancel(sent[1].id)
    assert place.ask("POST", f"/jobs/{sent[1].id}/cancel", {"queue": "removed"}) == (
        200,
        {"id": sent[1].id, "cancelled": True, "state": "waiting", "queue": "removed/0"},
    )
    assert cancel(sent[1].id, queue="removed", hard=True), "it stays cancelled"
    wait_until(lambda: waiting(place, "removed") == 2, what="two jobs")
    with pytest.raises(errors.JobCancelled):
        sent[1].result("10s")
    with working(url, "--queues", "removed"):
        assert [job.result("20s") for job in (sent[0], sent[2])] == [1, 1]
    assert sorted(lines_of(file)) == ["a", "c"]


def test_a_running_job_is_asked_to_end_and_its_siblings_continue(
    place: Place, url: str, samples: Any, cancel: Callable[..., bool], tmp_path: Path
) -> None:
    files, gate = [tmp_path / name for name in "ab"], tmp_path / "gate"
    task = samples.hold_with_cleanup.using(queue="soft", retries=3)
    with working(url, "--queues", "soft", "--concurrency", "2") as worker:
        cancelled, sibling = (task.enqueue(str(file), str(gate)) for file in files)
        for file in files:
            until_lines(file, 1)
        shown = running(place)[cancelled.id]
        assert (shown.queue, shown.progress) == ("soft/0", None)
        assert shown.worker in {known.name for known in admin.jobs(place.url, token=place.token).workers}
        assert 0 <= shown.seconds < 60
        children = worker.children()
        assert place.ask("POST", f"/jobs/{cancelled.id}/cancel") == (
            200,
            {"id": cancelled.id, "cancelled": True, "state": "running", "queue": "soft/0"},
        )
        with pytest.raises(errors.JobCancelled):
            cancelled.result("10s")
        assert until_lines(files[0], 2)[1] == "cleaned up"
        wait_until(lambda: set(running(place)) == {sibling.id}, what="the end of the job")
        assert samples.jobs.state(cancelled.id).status is JobStatus.CANCELLED
        gate.touch()
        assert sibling.result("10s") == "released"
        assert worker.children() == children, "no process was killed"
        assert lines_of(files[0])[1:] == ["cleaned up"]


def test_the_process_of_a_stubborn_job_is_killed(
    url: str, samples: Any, cancel: Callable[..., bool], tmp_path: Path
) -> None:
    files, gate = [tmp_path / name for name in "ab"], tmp_path / "gate"
    with working(url, "--queues", "hard", "--concurrency", "2") as worker:
        stubborn = samples.hold_stubbornly.using(queue="hard", retries=2).enqueue(str(files[0]), str(gate))
        sibling = samples.hold.using(queue="hard").enqueue(str(files[1]), str(gate))
        for file in files:
            until_lines(file, 1)
        process = int(lines_of(files[0])[0].split()[1])
        assert cancel(stubborn.id)
        until_lines(files[0], 2)
        assert process in worker.children()
        assert cancel(stubborn.id, hard=True), "its queue is known while it runs"
        wait_until(lambda: not Path(f"/proc/{process}").exists(), what="the end of the process")
        with pytest.raises(errors.JobCancelled):
            stubborn.result("10s")
        gate.touch()
        assert sibling.result("10s") == "released"
        assert len(lines_of(files[0])) == 2, "it ran once"


def test_a_job_that_has_ended_is_not_cancelled(
    place: Place, url: str, samples: Any, cancel: Callable[..., bool]
) -> None:
    with working(url, "--queues", "ended"):
        done = samples.add.using(queue="ended").enqueue(1, 1)
        assert done.result("20s") == 2
        assert not cancel(done.id)
        assert not cancel(done.id, queue="ended", hard=True)
        failed = samples.fail.using(queue="ended").enqueue("value", "no")
        with pytest.raises(errors.JobFailed):
            failed.result("10s")
    assert samples.jobs.result(done.id) == 2
    for queue in ({}, {"queue": "ended"}):
        ended = {"id": failed.id, "cancelled": False, "state": "failed", "queue": "ended/0"}
        assert place.ask("POST", f"/jobs/{failed.id}/cancel", queue) == (200, ended)


def test_an_unknown_job_needs_its_queue(place: Place, cancel: Callable[..., bool]) -> None:
    status, error = place.ask("POST", "/jobs/no-such-job/cancel", {})
    assert (status, error["code"]) == (404, "not-found")
    with pytest.raises(errors.NotFound, match="no worker runs job"):
        cancel("no-such-job")
    # It could wait in a queue beyond those messages that the broker has in memory.
    assert cancel("no-such-job", queue="unknown")
    assert place.ask("GET", "/jobs/no-such-job/cancel")[0] == 405


@pytest.mark.parametrize(
    ("job_id", "body", "words"),
    [
        ("x" * 256, {"queue": "email"}, "1 to 255 bytes, not 256"),
        ("job", {"queue": ""}, 'queue ""'),
        ("job", {"queue": 7}, "the body"),
        ("job", {"hard": "yes"}, "the body"),
        ("job", {"kill": True}, "kill"),
    ],
)
def test_a_malformed_request_is_refused(place: Place, job_id: str, body: dict[str, Any], words: str) -> None:
    status, error = place.ask("POST", f"/jobs/{job_id}/cancel", body)
    assert status == 400
    assert words in error["message"]


def test_a_job_is_not_cancelled_without_the_right(place: Place, url: str, samples: Any, tmp_path: Path) -> None:
    file, gate = tmp_path / "file", tmp_path / "gate"
    with working(url, "--queues", "denied"):
        job = samples.hold.using(queue="denied").enqueue(str(file), str(gate))
        until_lines(file, 1)
        path = f"/jobs/{job.id}/cancel"
        assert place.ask("POST", path, {"queue": "denied"}, who=None)[0] == 401
        for who in ("viewer", "sender"):
            assert place.ask("POST", path, {"queue": "denied", "hard": True}, who=who)[0] == 403
        with pytest.raises(errors.Unauthorized, match="administer"):
            admin.cancel_job(place.url, job.id, token=place.tokens["viewer"])
        gate.touch()
        assert job.result("10s") == "released"


def test_an_answered_cancellation_survives_kill_9(tasks: Callable[[str], Any], tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "file"
    data.mkdir(mode=0o700)
    tokens = {"all": new_token(data, "all", "*")}
    with serving(*LISTEN, "--data-dir", str(data)) as broker:
        samples = tasks(with_token(broker, tokens))
        first, _ = (samples.write.using(queue="kept", guarantee=True).enqueue(str(file), name) for name in "ab")
        place = Place(broker, tokens)
        wait_until(lambda: waiting(place, "kept") == 2, what="both jobs")
        assert admin.cancel_job(broker.admin_url, first.id, queue="kept", token=tokens["all"])
        broker.process.kill()
    with serving(*LISTEN, "--data-dir", str(data)) as broker, working(with_token(broker, tokens), "--queues", "kept"):
        assert until_lines(file, 1) == ["b"]
        samples = tasks(with_token(broker, tokens))
        assert samples.who.using(queue="kept").enqueue().result("20s"), "jobs behind it run"
        assert lines_of(file) == ["b"]
        with pytest.raises(errors.JobCancelled):
            samples.jobs.result(first.id)
