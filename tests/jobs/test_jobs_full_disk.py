"""Changes of jobs that the broker cannot save, because its disk is full."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqcore import admin, errors
from mqcore.jobs import Flow, Jobs, JobStatus
from served import serving
from small_disks import mounted_or_skipped, occupy
from test_admin_changes import new_token
from web_servers import jobs_url

pytestmark = pytest.mark.timeout(120)
SIZE = 400_000
"""Bytes of a flow, so that a few of them fill a journal."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system with space for more journals than a broker of one shard begins with."""
    with mounted_or_skipped(tmp_path / "disk", 96) as place:
        yield place


def fill(flow: Flow[str]) -> None:
    """Enqueue flows until one finds no space: it is kept in memory, and its answer waits for space."""
    try:
        while True:
            flow.enqueue(timeout=2.0)
    except errors.RequestTimeout:
        return


def test_flows_and_cancellations_are_refused_at_once_until_there_is_space(disk: Path) -> None:
    url, data = jobs_url(), disk / "data"
    data.mkdir(mode=0o700)
    token = new_token(data, "all", "*")
    jobs = Jobs(url, token=token)

    @jobs.task(queue="kept")
    def keep(text: str) -> str:
        return text

    place = ("--listen", url, "--admin", "http://127.0.0.1:0", "--data-dir", str(data))
    with serving(*place, environment={"MQCORE_SHARDS": "1"}) as broker, jobs:
        flow = keep.bind("x" * SIZE).then(keep)
        saved = flow.enqueue()
        occupy(disk / "filler", leave=0)
        fill(flow)
        began = time.monotonic()
        with pytest.raises(errors.JobRefused, match="cannot save what happens to jobs now"):
            flow.enqueue(timeout=30.0)
        with pytest.raises(errors.JobRefused, match="cannot save what happens to jobs now"):
            jobs.cancel(saved.id, queue="kept", timeout=30.0)
        with pytest.raises(errors.JobRefused, match="cannot save what happens to jobs now"):
            jobs.state(saved.id, timeout=30.0)
        with pytest.raises(errors.Busy, match="cannot save what happens to jobs now"):
            admin.cancel_job(broker.admin_url, saved.id, queue="kept", token=token)
        assert time.monotonic() - began < 5.0, "the refusals came late"
        (disk / "filler").unlink()
        deadline = time.monotonic() + 20.0
        while True:
            try:
                later = flow.enqueue(timeout=5.0)
                break
            except errors.JobRefused:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        assert jobs.state(later.id).status is JobStatus.WAITING
        assert admin.cancel_job(broker.admin_url, saved.id, queue="kept", token=token)
        assert jobs.cancel(saved.id, queue="kept"), "it stays cancelled"
