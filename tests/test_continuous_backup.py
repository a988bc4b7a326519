"""The continuous backup, with a real S3 API: restore points, loss of the machine, earlier moments, and failures."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import mqcore
from cluster_nodes import Cluster, take
from cluster_nodes import publish as publish_to_node
from depth import by_depth, choices, rounds
from job_processes import broker_url
from mqcore import admin, errors, journal, sync, throttr
from mqcore.backup import backup, moments, restore
from mqcore.jobs import Jobs
from object_stores import BUCKET, ObjectStore, moto_server, relayed
from served import ServedBroker, clean_environment, serving, wait_until

pytestmark = pytest.mark.timeout(240)

QUEUE = "orders/1001"
SETTINGS = {
    "MQCORE_AUTO_CREATE_CHANNELS": "yes",
    "MQCORE_AUTO_CREATE_QUEUES": "yes",
    "MQCORE_CHANNEL__QUEUE__REQUEST_ACKNOWLEDGE": "yes",
    "MQCORE_DELIVERY_HANDLER": "at-least-once",
    "MQCORE_SHARDS": "2",
}
LISTENERS = (
    "--listen",
    "tmqp://127.0.0.1:0",
    "--listen",
    "emqp://127.0.0.1:0",
    "--listen",
    "throttr://127.0.0.1:0?value=uint64&persist=on",
)
MADE = 60.0
"""Seconds until a restore point is made, on a machine that does other things."""


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with moto_server() as running:
        yield running


@pytest.fixture
def url(store: ObjectStore, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A place in the bucket for one test, whose credentials are in the environment."""
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{re.sub('[^a-z0-9_]', '', request.node.name)}/"


@contextlib.contextmanager
def backed_up(data_dir: Path, url: str, store: ObjectStore, *arguments: str, **more: str) -> Iterator[ServedBroker]:
    """A broker with a continuous backup."""
    environment = store.environment | SETTINGS | {"MQCORE_BACKUP_URL": url, "MQCORE_BACKUP_INTERVAL": "1s"} | more
    place = ("--data-dir", str(data_dir), "--admin", "http://127.0.0.1:0")
    with serving(*place, *arguments, environment=environment) as broker:
        yield broker


def answer(address: str, path: str) -> dict[str, Any]:
    """A page of the admin side, as JSON."""
    with urllib.request.urlopen(f"{address}{path}", timeout=30) as response:
        content: dict[str, Any] = json.load(response)
        return content


def state(address: str) -> dict[str, Any]:
    """The continuous backup in the overview."""
    content: dict[str, Any] = answer(address, "/overview")["backup"]
    return content


def causes(address: str) -> dict[str, str]:
    """The cause of each kind of finding."""
    return {finding["kind"]: finding["cause"] for finding in answer(address, "/attention")["findings"]}


def wait_stored(address: str, since: float | None = None) -> datetime:
    """Wait until a moment after `since` (a time like that of `time.time`, by default now) can be restored."""
    since_ms = (time.time() if since is None else since) * 1000
    wait_until(lambda: (state(address)["latest_ms"] or 0) >= since_ms, limit=MADE, what="a restore point")
    return datetime.fromtimestamp(state(address)["latest_ms"] / 1000, UTC)


def publish(address: str, numbers: range, queue: str = QUEUE) -> None:
    with sync.connect(address) as client:
        for number in numbers:
            client.publish(queue, str(number))


def consume(address: str, queue: str = QUEUE) -> list[int]:
    """Consume all messages of a queue."""
    with sync.connect(address) as client:
        found = []
        for message in client.queue(queue).consume(str, idle_timeout=1.0):
            found.append(int(message.body))
            message.ack()
        return found


def stored(data_dir: Path) -> list[int]:
    """The saved messages of the queue in a directory that no broker uses."""
    return [int(message.body) for message in journal.messages(data_dir, QUEUE)]


def test_a_lost_machine_is_restored_from_its_latest_restore_point(store: ObjectStore, url: str, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with backed_up(data_dir, url, store) as broker:
        publish(broker.url, range(100))
        with sync.connect(broker.url) as client:
            for message in client.queue(QUEUE).consume(str, prefetch=1):
                assert message.ack()
                if message.body == "29":
                    break
            client.publish("other/1", "after the acknowledgements")
        wait_stored(broker.admin_url)
        broker.process.kill()
    shutil.rmtree(data_dir)
    restored = restore(url, data_dir)
    assert restored.messages == 71
    assert not restored.findings
    with backed_up(data_dir, url, store) as broker:
        publish(broker.url, range(100, 105))
        wait_stored(broker.admin_url)
        assert sorted(consume(broker.url)) == list(range(30, 105))


def test_an_idle_broker_makes_no_restore_points(store: ObjectStore, url: str, tmp_path: Path) -> None:
    with backed_up(tmp_path / "data", url, store) as broker:
        publish(broker.url, range(10))
        wait_stored(broker.admin_url)
        made = moments(url).restore_points
        for _ in range(3):
            wait_stored(broker.admin_url)
        assert moments(url).restore_points == made


def test_an_earlier_moment_is_chosen_by_time(store: ObjectStore, url: str, tmp_path: Path) -> None:
    times = []
    with backed_up(tmp_path / "data", url, store) as broker:
        for first in (0, 10, 20):
            publish(broker.url, range(first, first + 10))
            times.append(wait_stored(broker.admin_url))
        counts = [restore(url, tmp_path / f"at-{at.timestamp()}", as_of=at).messages for at in times]
        assert counts == [10, 20, 30]
        between = times[0] + (times[1] - times[0]) / 2
        assert restore(url, tmp_path / "between", as_of=between).messages in (10, 20)
        found = moments(url)
        assert found.restore_points >= 3
        assert found.oldest is not None
        assert found.newest is not None
        assert found.oldest <= times[0] <= found.newest
        with pytest.raises(errors.DataDirMissing, match="no backup of"):
            restore(url, tmp_path / "none", as_of=found.oldest - timedelta(seconds=1))
        # A complete backup at the same place counts too.
        publish(broker.url, range(30, 31))
        backup(url, url=broker.admin_url)
        assert len(moments(url).backups) == 1
    assert restore(url, tmp_path / "newest").messages == 31


def test_the_command_line_lists_and_restores(store: ObjectStore, url: str, tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mqcore", "restore", *arguments]
        environment = clean_environment() | store.environment
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    nothing = run(url, "--list")
    assert nothing.returncode == 3
    assert f"no backups at {url}" in nothing.stderr
    with backed_up(tmp_path / "data", url, store) as broker:
        publish(broker.url, range(7))
        at = wait_stored(broker.admin_url)
    listed = run(url, "--list")
    assert listed.returncode == 0, listed.stderr
    assert "restore points from" in listed.stderr
    content = json.loads(run(url, "--list", "--json").stdout)
    assert content["schema"] == "mqcore.restore.moments/1"
    assert content["restore_points"] >= 1
    later = f"{at + timedelta(seconds=1):%Y-%m-%dT%H:%M:%S}+0000"
    done = run(url, "--data-dir", str(tmp_path / "restored"), "--as-of", later, "--json")
    assert json.loads(done.stdout)["messages"] == 7
    too_early = run(url, "--data-dir", str(tmp_path / "early"), "--as-of", "2020-01-01")
    assert too_early.returncode == 3
    assert "no backup of 2020-01-01" in too_early.stderr
    assert run(url).returncode == 2
    assert run(url, "--list", "--data-dir", "x").returncode == 2


class Load:
    """Publishes numbers one at a time, and remembers when each was confirmed."""

    def __init__(self, address: str, first: int) -> None:
        self.confirmed: dict[int, float] = {}
        self._address = address
        self._next = first
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._publish)
        self._thread.start()

    def _publish(self) -> None:
        with contextlib.suppress(errors.MqcoreError), sync.connect(self._address) as client:
            while not self._ended.is_set():
                client.publish(QUEUE, str(self._next))
                self.confirmed[self._next] = time.time()
                self._next += 1

    def end(self) -> int:
        """Stop it, and return the number that follows."""
        self._ended.set()
        self._thread.join()
        return self._next + 1


def test_whatever_is_killed_each_restored_state_has_all_that_was_confirmed_before_its_moment(
    store: ObjectStore, url: str, tmp_path: Path
) -> None:
    chance = choices("continuous backup")
    number = 0
    expected: set[int] = set()
    ages = []
    data_dir = tmp_path / "data"
    for _ in range(rounds("CONTINUOUS_BACKUP", quick=2, full=40)):
        with backed_up(data_dir, url, store) as broker:
            wait_stored(broker.admin_url)
            load = Load(broker.url, number)
            time.sleep(chance.uniform(1.5, 4.0))
            broker.process.kill()
            killed = time.time()
            number = load.end()
        shutil.rmtree(data_dir)
        # The next round continues with what is restored here.
        restored = restore(url, data_dir)
        assert not restored.findings
        ages.append(killed - restored.created.timestamp())
        certain = expected | {body for body, at in load.confirmed.items() if at < restored.created.timestamp() - 0.05}
        found = stored(data_dir)
        assert len(found) == len(set(found))
        assert certain <= set(found), sorted(certain - set(found))[:10]
        assert set(found) <= expected | set(load.confirmed) | {number - 1, number - 2}
        expected = set(found)
    print(f"age of the restored moments: {max(ages):.1f} s at most")


def test_an_unreachable_store_raises_an_alarm_and_loses_nothing(store: ObjectStore, url: str, tmp_path: Path) -> None:
    with relayed(store) as (reached, between), backed_up(tmp_path / "data", url, reached) as broker:
        publish(broker.url, range(5))
        wait_stored(broker.admin_url)
        assert "backup" not in answer(broker.admin_url, "/readyz")
        between.is_down = True
        publish(broker.url, range(5, 10))
        wait_until(lambda: state(broker.admin_url)["state"] == "failing", limit=MADE, what="the alarm")
        ready = answer(broker.admin_url, "/readyz")["backup"]
        assert ready["error"]
        assert ready["failing_since_ms"] <= time.time() * 1000
        wait_until(lambda: "backup-lag" in causes(broker.admin_url), what="the finding")
        assert "the continuous backup fails" in causes(broker.admin_url)["backup-lag"]
        metrics = urllib.request.urlopen(f"{broker.admin_url}/metrics", timeout=30).read().decode()
        assert "mqcore_backup_failing 1" in metrics
        # While the upload is tried again, other backups and new messages are not held up.
        assert backup(tmp_path / "requested.tar", url=broker.admin_url).messages == 10
        between.is_down = False
        wait_stored(broker.admin_url)
        wait_until(lambda: state(broker.admin_url)["state"] == "up-to-date", limit=MADE, what="the end of the alarm")
    assert restore(url, tmp_path / "restored").messages == 10


def test_the_disk_does_not_fill_up_while_the_store_is_unreachable(store: ObjectStore, url: str, tmp_path: Path) -> None:
    body = os.urandom(1 << 20)
    with relayed(store) as (reached, between), backed_up(tmp_path / "data", url, reached) as broker:
        publish(broker.url, range(5), "other/1")
        wait_stored(broker.admin_url)
        between.is_down = True
        with sync.connect(broker.url) as client:
            for _ in range(150):
                client.publish(QUEUE, body)
            for message in client.queue(QUEUE).consume(bytes, idle_timeout=1.0):
                message.ack()
        wait_until(lambda: state(broker.admin_url)["state"] == "failing", limit=MADE, what="the alarm")
        wait_until(lambda: used(tmp_path / "data") < 100 << 20, limit=MADE, what="the removal of segments")
        between.is_down = False
        wait_stored(broker.admin_url)
    assert restore(url, tmp_path / "restored").messages == 5


def used(directory: Path) -> int:
    """Bytes of the disk that the segments in a directory take."""
    blocks = 0
    for file in directory.rglob("*.segment"):
        # The broker may remove it meanwhile.
        with contextlib.suppress(FileNotFoundError):
            blocks += file.stat().st_blocks
    return blocks * 512


def test_lost_answers_of_the_store_leave_every_restore_point_whole(
    store: ObjectStore, url: str, tmp_path: Path
) -> None:
    with relayed(store) as (reached, between), backed_up(tmp_path / "data", url, reached) as broker:
        between.lost = set(range(0, 1000, 3))
        times = []
        for first in range(0, 50, 10):
            publish(broker.url, range(first, first + 10))
            times.append(wait_stored(broker.admin_url))
    for count, at in enumerate(times, 1):
        assert restore(url, tmp_path / f"restored-{count}", as_of=at).messages == 10 * count


def test_a_restored_copy_takes_over_and_the_original_reports_it(store: ObjectStore, url: str, tmp_path: Path) -> None:
    with backed_up(tmp_path / "data", url, store) as original:
        publish(original.url, range(5))
        wait_stored(original.admin_url)
        restore(url, tmp_path / "copy")
        with backed_up(tmp_path / "copy", url, store) as copy:
            publish(copy.url, range(5, 10))
            wait_stored(copy.admin_url)
            publish(original.url, range(100, 103))
            wait_until(lambda: state(original.admin_url)["state"] == "failing", limit=MADE, what="the alarm")
            assert "another broker has taken over the backup" in state(original.admin_url)["error"]
            publish(copy.url, range(10, 15))
            wait_stored(copy.admin_url)
            assert state(copy.admin_url)["state"] == "up-to-date"
    assert restore(url, tmp_path / "restored").messages == 15


def test_old_restore_points_and_their_data_are_removed(store: ObjectStore, url: str, tmp_path: Path) -> None:
    prefix = url.removeprefix(f"s3://{BUCKET}/")
    with backed_up(tmp_path / "data", url, store, MQCORE_BACKUP_KEEP="4s") as broker:
        for first in range(0, 120, 10):
            publish(broker.url, range(first, first + 10))
            time.sleep(0.7)
        first_left = wait_stored(broker.admin_url) - timedelta(seconds=4)
        wait_until(
            lambda: moments(url).oldest is not None and moments(url).restore_points <= 7,
            limit=MADE,
            what="the end of old restore points",
        )
        assert restore(url, tmp_path / "oldest", as_of=max(first_left, moments(url).oldest or first_left)).messages
    data = store.keys(f"{prefix}data/")
    points = store.keys(f"{prefix}points/")
    assert len(points) < 12
    # Each restore point adds one data object; those of removed ones stay only if later ones use them.
    assert len(data) <= 3 * len(points)
    assert restore(url, tmp_path / "newest").messages == 120


def test_a_store_that_ignores_conditions_is_refused(store: ObjectStore, url: str, tmp_path: Path) -> None:
    with relayed(store) as (reached, between), backed_up(tmp_path / "data", url, reached) as broker:
        between.dropped.add("if-none-match")
        publish(broker.url, range(5))
        wait_until(lambda: state(broker.admin_url)["state"] == "failing", limit=MADE, what="the alarm")
        assert "ignores conditional writes" in state(broker.admin_url)["error"]
    assert moments(url).restore_points == 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"backup_url": "s3://lake/x"}, "no data directory"),
        ({"backup_url": "ftp://lake/x", "data_dir": "data"}, "ftp"),
        ({"backup_url": "s3://lake/x", "data_dir": "data", "backup_interval": 0.5}, "backup_interval"),
        ({"backup_url": "s3://lake/x", "data_dir": "data", "backup_keep": 0}, "backup_keep"),
        ({"backup_url": "s3://lake/x", "data_dir": "data", "backup_options": ["colour=blue"]}, "colour"),
        ({"backup_url": "s3://lake/x", "data_dir": "data", "backup_options": ["aws_region"]}, "backup_options"),
    ],
)
def test_a_wrong_setting_is_named_at_the_start(
    options: dict[str, Any], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.ConfigError, match=why):
        mqcore.Broker(**options).start()


def test_limits_and_schedules_are_restored_too(store: ObjectStore, url: str, tmp_path: Path) -> None:
    with backed_up(tmp_path / "data", url, store, *LISTENERS) as broker:
        with throttr.SyncClient(f"throttr://{broker.ready['listeners']['throttr']}?value=uint64") as limits:
            assert limits.insert("a key", 9, 3, unit=throttr.Unit.HOURS)
        with Jobs(broker_url(broker)) as jobs:

            @jobs.task(name="shop.clean", queue="shop")
            def clean() -> None:
                """Clean the shop."""

            jobs.every("1h", clean.bind())
            jobs.send_schedules()
            wait_until(lambda: admin.schedules(broker.admin_url).total == 1, what="the schedule")
            wait_stored(broker.admin_url)
    restored = restore(url, tmp_path / "restored")
    assert (restored.limits, restored.schedules) == (1, 1)


def test_a_cluster_continues_the_backup_of_its_leader(store: ObjectStore, url: str, tmp_path: Path) -> None:
    variables = store.environment | {"MQCORE_BACKUP_URL": url, "MQCORE_BACKUP_INTERVAL": "1s"}
    with cluster_in(tmp_path / "first", variables) as cluster:
        cluster.start()
        leader = cluster.leader()
        publish_to_node(leader, range(20))
        wait_stored(leader.admin)
        made = moments(url).restore_points
        leader.kill()
        leader = cluster.leader()
        publish_to_node(leader, range(20, 40))
        wait_stored(leader.admin)
        assert moments(url).restore_points > made
    # Every machine is lost.
    shutil.rmtree(tmp_path / "first")
    with cluster_in(tmp_path / "second", variables) as cluster:
        assert restore(url, cluster.nodes[0].data_dir).messages == 40
        cluster.start()
        leader = cluster.leader()
        cluster.wait_until_all_follow()
        assert sorted(take(leader, 40)) == list(range(40))
        wait_stored(leader.admin)


@contextlib.contextmanager
def cluster_in(directory: Path, variables: dict[str, str]) -> Iterator[Cluster]:
    """A cluster that is not started yet."""
    directory.mkdir()
    cluster = Cluster(directory)
    for node in cluster.nodes:
        node.environment |= variables
    try:
        yield cluster
    finally:
        cluster.close()


def test_a_restarted_broker_uploads_only_what_is_new(store: ObjectStore, url: str, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    body = os.urandom(1 << 20)
    with serving("--data-dir", str(data_dir), environment=SETTINGS) as broker:
        with sync.connect(broker.url) as client:
            for _ in range(by_depth(100, 1000)):
                client.publish(QUEUE, body)
        broker.terminate()
    with backed_up(data_dir, url, store) as broker:
        publish(broker.url, range(3), "other/1")
        wait_stored(broker.admin_url)
        broker.terminate()
    prefix = url.removeprefix(f"s3://{BUCKET}/")
    before = sum(store.sizes(prefix).values())
    assert before > by_depth(100, 1000) << 20
    with backed_up(data_dir, url, store) as broker:
        publish(broker.url, range(3), "other/1")
        wait_stored(broker.admin_url)
    assert sum(store.sizes(prefix).values()) - before < 8 << 20
    assert restore(url, tmp_path / "restored").messages == by_depth(100, 1000) + 6
