"""Jobs on a broker with authentication: it accepts tokens and passwords, and rejects the rest with a reason."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import programs
from eventmq_peer import EventmqPeer
from job_processes import SAMPLES, broker_url, working
from mqcore import errors
from mqcore._core import AuthorityStore
from mqcore.jobs import Jobs, Worker, wire
from mqcore.jobs.address import DEFAULT_URL
from served import clean_environment, serving, wait_until

WORKS = ("receive:mail", "receive:default", "direct", "push:*", "publish:mqcore.jobs.progress/*")
SENDS = ("push:mail", "create:mail", "push:default", "create:default", "subscribe:mqcore.jobs.progress/*")


class Guarded:
    """A broker with users, and credentials for it."""

    def __init__(self, store: AuthorityStore) -> None:
        self.url = ""
        self.store = store
        self.worker = self.token("worker", *WORKS)
        self.sender = self.token("sender", *SENDS)
        self.pusher = self.token("pusher", "push:*")
        self.stranger = self.token("stranger", "push:default", "create:default")

    def token(self, name: str, *allow: str) -> str:
        return self.store.add_token(json.dumps({"name": name, "allow": allow}))[1]


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    store = AuthorityStore.of_data_dir(tmp_path)
    store.add_user(json.dumps({"name": "ann", "allow": SENDS}), "correct horse")
    place = Guarded(store)
    with serving("--listen", "emqp://127.0.0.1:0", "--data-dir", str(tmp_path)) as served:
        place.url = broker_url(served)
        yield place


def run(*arguments: str, token: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mqcore", *arguments]
    environment = clean_environment() | ({"MQCORE_TOKEN": token} if token else {})
    return programs.run(command, env=environment, capture_output=True, text=True, timeout=50, check=False, cwd=SAMPLES)


def test_clients_with_token_or_password_send_jobs_and_get_results(guarded: Guarded) -> None:
    before, _, behind = guarded.url.partition("://")
    with working(guarded.url.replace("://", f"://{guarded.worker}@"), "--queues", "mail,default", "--pool", "thread"):
        for jobs in (
            Jobs(guarded.url, token=guarded.sender),
            Jobs(guarded.url, user="ann", password="correct horse"),
            Jobs(f"{before}://{guarded.sender}@{behind}"),
            Jobs(f"{before}://ann:correct%20horse@{behind}"),
        ):
            assert jobs.url == guarded.url, "credentials are in no URL that could be shown"
            with jobs:
                assert jobs.send("sample_jobs.add", [1], {"right": 2}, queue="mail").result(20) == 3
        said = run(
            *("jobs", "enqueue", "sample_jobs.add", "40", "--keyword", "right=2", "--wait", "--broker", guarded.url),
            token=guarded.sender,
        )
        assert (said.returncode, said.stdout) == (0, "42\n"), said.stderr


NOBODY = "login required"
WRONG = "invalid credentials"


@pytest.mark.parametrize(("shown", "why"), [(None, NOBODY), ("mqt_0123456789ab_nobodyhasthistoken", WRONG)])
def test_rejected_credentials_fail_immediately_on_every_socket(guarded: Guarded, shown: str | None, why: str) -> None:
    jobs = Jobs(guarded.url, token=shown, timeout="30s")
    ask: list[Callable[[], Any]] = [
        lambda: jobs.send("sample_jobs.add", [1]),
        jobs.status,
        jobs.workers,
        lambda: next(jobs.watch(timeout="30s")),
        Worker(jobs, pool="thread", concurrency=1).run,
    ]
    with jobs:
        for each in ask:
            with pytest.raises(errors.AuthFailed, match=why):
                each()
    for command in (("worker", "sample_jobs:jobs"), ("jobs", "enqueue", "sample_jobs.add"), ("jobs", "workers")):
        ended = run(*command, "--broker", guarded.url, token=shown or "")
        assert (ended.returncode, why in ended.stderr) == (4, True), ended.stderr
        assert len(ended.stderr.splitlines()) == 1


def test_denied_action_is_reported(guarded: Guarded) -> None:
    pusher = Jobs(guarded.url, token=guarded.pusher, timeout="30s")
    # No worker has served the queue so far, and creating `default` takes more rights than pushing there.
    with pusher, pytest.raises(errors.JobRefused, match="not allowed to create"):
        pusher.send("sample_jobs.add", [1], queue="mail").result(20)
    with Jobs(guarded.url, token=guarded.sender, timeout="30s") as jobs:
        with pytest.raises(errors.JobRefused, match="not allowed to push on secret"):
            jobs.send("sample_jobs.add", [1], queue="secret").result(20)
        for ask in (jobs.status, jobs.workers):
            with pytest.raises(errors.AuthFailed, match="not allowed to administer"):
                ask()
        worker = Worker(jobs, queues=["mail"], pool="thread", concurrency=1)
        with pytest.raises(errors.AuthFailed):
            worker.run()
    with Jobs(guarded.url, token=guarded.worker, timeout="30s") as jobs, pytest.raises(errors.AuthFailed):
        next(jobs.watch(timeout="30s"))


def test_results_cancellations_and_flows_need_the_right_to_publish_to_the_queue(guarded: Guarded) -> None:
    worker = guarded.url.replace("://", f"://{guarded.worker}@")
    with (
        Jobs(guarded.url, token=guarded.sender) as owner,
        Jobs(guarded.url, token=guarded.stranger) as other,
        working(worker, "--queues", "mail,default", "--pool", "thread"),
    ):
        done = owner.send("sample_jobs.add", [1, 1], queue="mail")
        assert done.result(20) == 2
        for ask in (lambda: other.result(done.id), lambda: other.state(done.id)):
            with pytest.raises(errors.JobRefused, match="not allowed to push on mail"):
                ask()
        with pytest.raises(errors.JobRefused, match="not allowed to push on mail"):
            other.cancel(done.id, queue="mail")
        assert owner.result(done.id) == 2
        step = owner.task(name="sample_jobs.add", queue="mail")(lambda left, right=1: left + right)
        assert step.bind(1).then(step).enqueue().result(20) == 3
        step = other.task(name="sample_jobs.add", queue="mail")(lambda left, right=1: left + right)
        with pytest.raises(errors.JobRefused, match="not allowed to push on mail"):
            step.bind(1).then(step).enqueue()
    with Jobs(guarded.url, token=guarded.sender) as owner, Jobs(guarded.url, token=guarded.stranger) as other:
        waits = owner.send("sample_jobs.add", [1, 1], queue="mail")
        assert other.cancel(waits.id, queue="default"), "another job, which this client may cancel"
        with working(worker, "--queues", "mail", "--pool", "thread"):
            assert waits.result(20) == 2
            assert owner.result(waits.id) == 2


def test_reports_of_progress_need_the_right_to_publish_them(guarded: Guarded, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    worker = guarded.url.replace("://", f"://{guarded.worker}@")
    frontend = "emqp://127.0.0.1:" + guarded.url.partition("frontend=")[2].partition("&")[0]

    def report(peer: EventmqPeer, job: str, fraction: float, note: str) -> None:
        progress = wire.JobProgress(job, "sample_jobs.wait_for", fraction, note, 1, "worker")
        peer.say("PUBLISH", "report", f"mqcore.jobs.progress/{job}", msgspec.json.encode(progress))

    with (
        Jobs(guarded.url, token=guarded.sender) as jobs,
        working(worker, "--queues", "mail", "--pool", "thread"),
        EventmqPeer(frontend, token=guarded.sender) as client,
        EventmqPeer(frontend, token=guarded.worker) as publisher,
    ):
        job = jobs.send("sample_jobs.wait_for", [str(gate)], queue="mail")
        wait_until(lambda: jobs.state(job.id).status == "running", what="the job to run")

        def note() -> str | None:
            progress = jobs.state(job.id).progress
            return None if progress is None else progress.note

        report(client, job.id, 0.9, "forged")
        for _ in range(10):
            assert note() is None
            time.sleep(0.05)
        report(publisher, job.id, 0.1, "reported")
        wait_until(lambda: note() == "reported", what="the report")
        report(publisher, job.id, 0.2, "x" * 5_000)
        for _ in range(10):
            assert note() == "reported", "a large report is not kept"
            time.sleep(0.05)
        gate.touch()
        job.result(20)


def test_revoked_token_ends_waiting_clients_and_a_new_token_works(guarded: Guarded) -> None:
    with Jobs(guarded.url, token=guarded.sender, timeout="30s") as jobs:
        waits = jobs.send("sample_jobs.add", [1], queue="mail")
        wait_until(lambda: waits.is_dispatched, what="the job to be in its queue")
        guarded.store.remove_token(guarded.sender.split("_")[1])
        with pytest.raises((errors.ConnectionLost, errors.AuthFailed)):
            waits.result(20)

        def is_refused() -> bool:
            try:
                jobs.send("sample_jobs.add", [1], queue="mail", result=False)
            except errors.AuthFailed:
                return True
            return False

        wait_until(is_refused, what="the refusal")
        jobs.locate(guarded.url, token=guarded.token("again", *SENDS))
        wait_until(lambda: not is_refused(), limit=20, what="the new token")


def test_credentials_are_said_once_and_fit_a_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (
        {"url": "emqp://a@h", "token": "b"},
        {"token": "b", "user": "ann", "password": "c"},
        {"user": "ann"},
        {"token": "x" * 300},
        {"token": "two\nlines"},
    ):
        with pytest.raises(errors.ConfigError):
            Jobs(**wrong)  # type: ignore[arg-type]
    monkeypatch.setenv("MQCORE_TOKEN", "from-there")
    assert Jobs(DEFAULT_URL).credentials == "from-there"
    assert Jobs(DEFAULT_URL, token="given").credentials == "given"
    assert Jobs("emqp://in-url@h").credentials == "in-url"
