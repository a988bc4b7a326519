"""Workers send their schedules to each broker that they join, also if its listener for clients answers later."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import pytest

from link_proxy import LinkProxy
from mqcore import admin
from mqcore.jobs import Jobs, Worker
from mqcore.testing import ServerProcess
from ports import free_ports
from served import wait_until


class Place:
    """A broker in memory, and ports on which it listens again after a restart."""

    def __init__(self) -> None:
        self.backend, self.frontend, self.admin, self.subscribe = free_ports(4)
        self.server = ServerProcess("--listen", self.url() + "&publish=0")

    def url(self, frontend: int | None = None) -> str:
        others = f"frontend={frontend or self.frontend}&admin={self.admin}&subscribe={self.subscribe}"
        return f"emqp://127.0.0.1:{self.backend}?{others}"

    def schedules(self) -> int:
        return admin.schedules(self.server.admin_url).total


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    with made.server:
        yield made


@pytest.fixture
def proxy(place: Place) -> Iterator[LinkProxy]:
    """A proxy in front of the listener for clients."""
    made = LinkProxy(("127.0.0.1", place.frontend))
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def working(url: str, *, timeout: float) -> Iterator[list[int]]:
    """Run a worker with a schedule for each 100 ms; the list grows with the runs of its task."""
    jobs = Jobs(url, timeout=timeout)
    ticks: list[int] = []

    @jobs.task(name="shop.tick")
    def tick(number: int) -> int:
        ticks.append(number)
        return number

    jobs.every("100ms", tick.bind(0))
    worker = Worker(jobs, pool="thread", concurrency=1, drain_timeout=1)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield ticks
    finally:
        worker.stop()
        thread.join(20)
        jobs.close()
    assert not thread.is_alive()


def test_worker_sends_its_schedules_to_a_broker_that_replaces_another(place: Place) -> None:
    with working(place.url(), timeout=5) as ticks:
        wait_until(lambda: len(ticks) > 1, what="some runs")
        place.server.restart()
        wait_until(lambda: place.schedules() == 1, limit=20, what="the schedule")
        before = len(ticks)
        wait_until(lambda: len(ticks) > before + 1, what="further runs")


def test_worker_runs_jobs_until_it_can_send_its_schedules(
    place: Place, proxy: LinkProxy, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.cut()
    with working(place.url(proxy.port), timeout=0.5) as ticks, Jobs(place.url()) as sender:
        wait_until(lambda: "cannot send schedules" in caplog.text, what="the error")
        assert sender.send("shop.tick", [1]).result(10) == 1
        assert place.schedules() == 0
        proxy.mend()
        wait_until(lambda: len(ticks) > 2, limit=20, what="some runs")
    assert caplog.text.count("cannot send schedules") == 1


def test_silent_listener_for_clients_does_not_stop_a_worker(place: Place, proxy: LinkProxy) -> None:
    proxy.cut()
    with working(place.url(proxy.port), timeout=60), Jobs(place.url()) as sender:
        begin = time.monotonic()
        assert sender.send("shop.tick", [1]).result(30) == 1
        assert time.monotonic() - begin < 10


def test_worker_sends_its_schedules_again_over_a_new_connection(place: Place, proxy: LinkProxy) -> None:
    with working(place.url(proxy.port), timeout=5) as ticks:
        wait_until(lambda: bool(ticks), what="a run")
        # From here on, the client of the worker does not notice the end of its connection.
        proxy.cut()
        place.server.restart()
        with Jobs(place.url()) as sender:
            assert sender.send("shop.tick", [1]).result(20) == 1
        assert place.schedules() == 0
        proxy.mend()
        wait_until(lambda: place.schedules() == 1, limit=20, what="the schedule")
