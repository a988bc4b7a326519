"""Changes of jobs that the broker cannot save, because its disk is full."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqcore import errors
from mqcore.jobs import Flow, Jobs, JobStatus
from served import serving
from small_disks import mounted_or_skipped, occupy
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
    url = jobs_url()
    jobs = Jobs(url)

    @jobs.task(queue="kept")
    def keep(text: str) -> str:
        return text

    place = ("--listen", url, "--data-dir", str(disk / "data"))
    with serving(*place, environment={"MQCORE_SHARDS": "1"}), jobs:
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
        assert jobs.cancel(saved.id, queue="kept")
