"""Reading through the admin side while the broker restarts or connections break: nothing is lost, nothing repeated."""

from __future__ import annotations

import http.server
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from mqcore import errors, sync
from mqcore._core import AuthorityStore
from mqcore.spark.options import ReadOptions
from mqcore.spark.plan import Plan
from ports import free_ports
from served import ServedBroker, serving, wait_until
from spark.cut_answers import cut_answers
from spark.recorded import ARCHIVE_SECONDS, HISTORY, archived, declare

BODIES = [f"{number} {'ab' * 300}".encode() for number in range(4000)]


class Restarted:
    """A broker that keeps its ports over restarts."""

    def __init__(self, data_dir: Path, **environment: str) -> None:
        self.data_dir = data_dir
        port, self.admin_port = free_ports(2)
        self.admin_url = f"http://127.0.0.1:{self.admin_port}"
        self._arguments = ("--data-dir", str(data_dir), "--listen", f"tmqp://127.0.0.1:{port}")
        # One shard: with several, it is random how much each of them answers, and a short answer cannot be cut.
        self._environment = {**HISTORY, "MQCORE_SHARDS": "1", **environment}
        self._running: AbstractContextManager[ServedBroker] | None = None
        self.start()

    def start(self) -> None:
        arguments = (*self._arguments, "--admin", self.admin_url)
        self._running = serving(*arguments, environment=self._environment)
        self.served = self._running.__enter__()

    def stop(self, *, kill: bool) -> None:
        if kill:
            self.served.process.kill()
        else:
            self.served.terminate()
        assert self._running is not None
        self._running.__exit__(None, None, None)
        self._running = None

    def close(self) -> None:
        if self._running is not None:
            self._running.__exit__(None, None, None)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Restarted]:
    running = Restarted(tmp_path / "data", MQCORE_ARCHIVE_INTERVAL="1h")
    with sync.connect(running.served.url) as mq:
        declare(mq, "orders/1")
        mq.publish_many("orders/1", BODIES)
    wait_until(lambda: len(values(plan_of(running.admin_url))) == len(BODIES), limit=60, what="the history")
    yield running
    running.close()


def plan_of(admin: str, columns: tuple[tuple[str, str], ...] = (("value", "binary"),), **options: str) -> Plan:
    return Plan.of(ReadOptions.parse({"admin": admin, "minPartitions": "1", **options}), columns)


def values(plan: Plan) -> list[bytes]:
    origin = plan.origin()
    ends = origin.ends()
    stretches = plan.stretches({}, plan.positions(ends, "latest", "endingOffsets"))
    found: list[bytes] = []
    for piece in plan.pieces(origin, stretches):
        for rows in origin.read(plan.request(shard=piece[0]), piece, fail=True):
            assert rows.schema.names == list(plan.columns)
            found += rows.column("value").to_pylist()
    return found


@pytest.mark.parametrize("columns", [("value",), ("sequence", "value"), ("value", "offset")])
def test_answers_that_are_cut_are_continued_without_repeating_rows(broker: Restarted, columns: tuple[str, ...]) -> None:
    types = tuple((name, "binary" if name == "value" else "bigint") for name in columns)
    with cut_answers(broker.admin_url) as proxy:
        proxy.cuts = [0, 300_000, 1_500_000, 400]
        found = values(plan_of(proxy.url, types))
        assert proxy.cuts == []
    assert Counter(found) == Counter(BODIES)


def test_rows_that_are_archived_between_two_attempts_are_read_once(tmp_path: Path) -> None:
    running = Restarted(tmp_path / "data", MQCORE_ARCHIVE_INTERVAL="2s")
    try:
        with sync.connect(running.served.url) as mq, cut_answers(running.admin_url) as proxy:
            declare(mq, *(f"orders/{number}" for number in range(8)))
            for first in range(0, 4000, 500):
                mq.publish_many(f"orders/{first // 500}", BODIES[first : first + 500])
            plan = plan_of(proxy.url)
            wait_until(lambda: counted(plan) == len(BODIES), limit=60, what="the history")
            proxy.between = lambda: wait_until(
                lambda: archived(running.data_dir, len(BODIES)), limit=ARCHIVE_SECONDS, what="the archive"
            )
            proxy.cuts = [700_000]
            assert Counter(values(plan)) == Counter(BODIES)
            assert proxy.cuts == []
    finally:
        running.close()


def counted(plan: Plan) -> int:
    origin = plan.origin()
    ends = plan.positions(origin.ends(), "latest", "endingOffsets")
    return sum(plan.counted(origin, plan.stretches({}, ends)))


def test_reading_without_retries_ends_with_the_first_cut(broker: Restarted) -> None:
    with cut_answers(broker.admin_url) as proxy:
        proxy.cuts = [300_000]
        with pytest.raises(errors.ConnectionLost, match="is incomplete"):
            values(plan_of(proxy.url, retries="0"))


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
def test_reading_waits_for_a_broker_that_restarts(broker: Restarted, kill: bool) -> None:
    plan = plan_of(broker.admin_url)
    broker.stop(kill=kill)
    timer = threading.Timer(1.5, broker.start)
    timer.start()
    try:
        assert Counter(values(plan)) == Counter(BODIES)
    finally:
        timer.join()


def test_attempts_end(tmp_path: Path) -> None:
    plan = plan_of("http://127.0.0.1:9", retries="2")
    began = time.monotonic()
    with pytest.raises(errors.ConnectFailed, match="does not answer"):
        plan.origin().ends()
    assert 0.25 < time.monotonic() - began < 10


@pytest.mark.parametrize("status", [401, 404, 500])
def test_permanent_errors_fail_at_once(status: int) -> None:
    requests: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"no answer of a broker")

        def log_message(self, *_unused: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(errors.BadAnswer, match=f"answers {status}"):
            plan_of(f"http://127.0.0.1:{server.server_address[1]}").origin().ends()
        server.shutdown()
    assert requests == ["/history"]


def test_proxy_without_a_broker_is_asked_again() -> None:
    answers = iter([502, 503, 504, 404])

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(next(answers))
            self.end_headers()

        def log_message(self, *_unused: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(errors.BadAnswer, match="answers 404"):
            plan_of(f"http://127.0.0.1:{server.server_address[1]}").origin().ends()
        server.shutdown()


def test_refused_credential_fails_at_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with serving("--data-dir", str(data), "--admin", "http://127.0.0.1:0", environment=HISTORY) as served:
        served.terminate()
    store: Any = AuthorityStore.of_data_dir(data)
    _, token = store.add_token('{"name": "reader", "allow": ["push"]}')
    with serving("--data-dir", str(data), "--admin", "http://127.0.0.1:0", environment=HISTORY) as served:
        for credential in ("wrong", token):
            began = time.monotonic()
            with pytest.raises(errors.Unauthorized):
                plan_of(served.admin_url, token=credential, retries="10").origin().ends()
            assert time.monotonic() - began < 5, "it was not tried again"
