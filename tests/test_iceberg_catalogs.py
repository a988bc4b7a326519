"""The archive in Iceberg catalogs: a real broker, real catalogs, and PyIceberg as their second client."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mqcore
from depth import by_depth, rounds, sample
from iceberg_catalogs import IcebergCatalog, postgresql_catalog, rest_catalog, sqlite_catalog
from mqcore import _core, sync
from mqcore.spark.origin import Directory
from object_stores import relaying
from served import ServedBroker, serving, wait_until

pytest.importorskip("pyiceberg")

pytestmark = pytest.mark.timeout(300)
DURABLE = mqcore.QueueOptions(status="pull", delivery_handler="at-least-once", request_acknowledge=True)
ARCHIVED = 90.0
"""Seconds until history is archived: the thread has a low priority and is slow while others use all processors."""


CATALOGS = {"rest": rest_catalog, "sqlite": sqlite_catalog, "postgresql": postgresql_catalog}
QUICK = ("rest", "sqlite")

# Both kinds of catalog have tables that readers find. Everything else is done by the same part of the broker.
one_catalog = pytest.mark.parametrize("catalog", sample("catalogs", by_depth(QUICK, tuple(CATALOGS))), indirect=True)
each_catalog = pytest.mark.parametrize("catalog", by_depth(QUICK, tuple(CATALOGS)), indirect=True)


@pytest.fixture(scope="module")
def catalog(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[IcebergCatalog]:
    """A running catalog. Each test has its own archive, in a namespace of its own."""
    with CATALOGS[request.param](tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IcebergCatalog]:
    """A running REST catalog."""
    with rest_catalog(tmp_path_factory.mktemp("rest")) as running:
        yield running


class Archive:
    """An archive at a URL, with its tables in a catalog."""

    def __init__(self, directory: Path, catalog: IcebergCatalog, name: str, *options: str, through: str = "") -> None:
        self.url = f"file://{directory}/{name}"
        self.data_dir = directory / "data"
        self.catalog, self.name = catalog, name
        self.options = [f"catalog={through or catalog.url}", *options]

    def settings(self, **more: str) -> dict[str, str]:
        """Environment of a broker with this archive."""
        options = {"MQCORE_HISTORY": "on", "MQCORE_SHARDS": "2", "MQCORE_ARCHIVE_INTERVAL": "100ms"}
        options |= {"MQCORE_ARCHIVE_URL": self.url, "MQCORE_ARCHIVE_OPTIONS": ",".join(self.options)}
        return options | {"MQCORE_AUTO_CREATE_CHANNELS": "yes"} | more

    def serving(self, *arguments: str, **more: str) -> contextlib.AbstractContextManager[ServedBroker]:
        """A running broker with this archive."""
        return serving("--data-dir", str(self.data_dir), *arguments, environment=self.settings(**more))

    def table(self, name: str) -> Any:
        """A table, opened by PyIceberg."""
        return self.catalog.table(self.name, name)

    def bodies(self) -> Counter[str]:
        """How often each body is in the table of messages."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            found = self.table("messages").scan().to_arrow()
        except (NoSuchTableError, NoSuchNamespaceError):
            return Counter()
        return Counter(body.decode() for body in found["body"].to_pylist())

    def wait_for(self, sent: set[str], limit: float = ARCHIVED) -> None:
        """Wait until every message is in the table, and check that it is there once."""
        wait_until(lambda: self.bodies().total() >= len(sent), limit=limit, what="the archive of all messages")
        assert self.bodies() == Counter(sent)


def publish(broker: ServedBroker, first: int, count: int) -> set[str]:
    """Publish to three queues, and return the bodies."""
    sent = {f"body {number}" for number in range(first, first + count)}
    with sync.connect(broker.url) as client:
        for number in range(3):
            with contextlib.suppress(mqcore.errors.AlreadyExists):
                client.create_queue(f"orders/{number}", DURABLE)
        for number in range(first, first + count):
            client.publish(f"orders/{number % 3}", f"body {number}")
    return sent


@each_catalog
def test_tables_are_in_the_catalog_and_readers_find_them_there(catalog: IcebergCatalog, tmp_path: Path) -> None:
    archive = Archive(tmp_path, catalog, "found")
    with archive.serving() as broker:
        sent = publish(broker, 0, 40)
        archive.wait_for(sent)
        sent |= publish(broker, 40, 40)
        archive.wait_for(sent)

        def produced() -> int:
            return Counter(archive.table("steps").scan().to_arrow()["kind"].to_pylist())["produced"]

        # Each table has commits of its own.
        wait_until(lambda: produced() >= 80, limit=ARCHIVED, what="the archive of all steps")
        assert produced() == 80
        partitions = [field.name for field in archive.table("messages").spec().fields]
        assert partitions == ["time_day", "queue_bucket"]
        assert broker.terminate() == 0
    # The object store itself has no catalog files, so that no one takes an outdated state for the table.
    assert not list((tmp_path / "found").glob("*/metadata/version-hint.text"))
    assert not list((tmp_path / "found").glob("*/metadata/v*.metadata.json"))
    text = _core.object_archive_manifest(archive.url, archive.options)
    assert text is not None
    manifest = json.loads(text)
    assert sum(file["rows"] for file in manifest["files"] if file["table"] == "messages") == 80
    # Without the option, there is no archive.
    assert _core.object_archive_manifest(archive.url, []) is None


@one_catalog
def test_a_data_directory_leads_its_readers_to_the_catalog(
    catalog: IcebergCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = ["catalog_token=secret-of-tests"] if catalog.kind == "rest" else []
    archive = Archive(tmp_path, catalog, "led", *token)
    with archive.serving() as broker:
        sent = publish(broker, 0, 30)
        archive.wait_for(sent)
        assert broker.terminate() == 0
    remembered = (archive.data_dir / "archive.json").read_text()
    assert catalog.url.replace("mq:secret-of-tests@", "") in remembered
    assert "secret-of-tests" not in remembered
    if catalog.url.startswith("postgresql"):
        # Readers have their own credentials.
        monkeypatch.setenv("PGUSER", "mq")
        monkeypatch.setenv("PGPASSWORD", "secret-of-tests")
    origin, query = Directory(str(archive.data_dir)), json.dumps({"view": "messages", "columns": ["value"]})
    stretches = [(ends.shard, ends.earliest, ends.latest) for ends in origin.ends()]
    found = [
        value.decode()
        for piece in origin.pieces(query, stretches, 1 << 30)
        for batch in origin.read(query, piece, True)
        for value in batch.column(0).to_pylist()
    ]
    assert Counter(found) == Counter(sent)


@one_catalog
def test_small_files_are_merged_and_snapshots_expire(catalog: IcebergCatalog, tmp_path: Path) -> None:
    archive = Archive(tmp_path, catalog, "merged")
    with archive.serving(MQCORE_ARCHIVE_COMPACT_AFTER="0s", MQCORE_ARCHIVE_SNAPSHOT_MAX_AGE="1s") as broker:
        sent: set[str] = set()
        for number in range(by_depth(4, 6)):
            sent |= publish(broker, number * 10, 10)
            archive.wait_for(sent)
        # At most one file for each shard, day and bucket. A test at midnight has two days.
        files = 2 * 2 * 2

        def merged() -> bool:
            return len(list(archive.table("messages").scan().plan_files())) <= files

        wait_until(merged, limit=ARCHIVED, what="merged files")
        assert archive.bodies() == Counter(sent)
        assert broker.terminate() == 0


@one_catalog
@pytest.mark.timeout(1800)
def test_killed_brokers_archive_everything_once(catalog: IcebergCatalog, tmp_path: Path) -> None:
    archive = Archive(tmp_path, catalog, "killed")
    sent: set[str] = set()
    for number in range(rounds("ICEBERG_CATALOG", quick=2, full=60)):
        with archive.serving(MQCORE_ARCHIVE_COMPACT_AFTER="0s", MQCORE_ARCHIVE_SNAPSHOT_MAX_AGE="1s") as broker:
            sent |= publish(broker, number * 20, 20)
            time.sleep((number * 7 % 20) / 20)
            broker.process.kill()
    with archive.serving() as broker:
        archive.wait_for(sent, limit=5 * ARCHIVED)
        assert broker.terminate() == 0


def test_lost_answers_of_the_catalog_double_nothing(rest: IcebergCatalog, tmp_path: Path) -> None:
    with relaying(rest.url) as (relay, between):
        between.counted = "POST"
        between.lost = set(range(5, 60, by_depth(5, 3)))
        archive = Archive(tmp_path, rest, "lost", through=relay)
        with archive.serving() as broker:
            sent: set[str] = set()
            for first in range(0, by_depth(30, 50), 10):
                sent |= publish(broker, first, 10)
                archive.wait_for(sent)
            assert broker.terminate() == 0
        assert between.requests > by_depth(9, 15)


@pytest.mark.full("30 s; test_object_archive.py has a store that does not answer")
def test_a_catalog_that_does_not_answer_delays_the_archive_and_loses_nothing(
    rest: IcebergCatalog, tmp_path: Path
) -> None:
    with relaying(rest.url) as (relay, between):
        archive = Archive(tmp_path, rest, "outage", through=relay)
        with archive.serving("--admin", "http://127.0.0.1:0") as broker:
            sent = publish(broker, 0, 30)
            archive.wait_for(sent)
            between.is_down = True
            sent |= publish(broker, 30, 30)
            wait_until(
                lambda: f"at the catalog {relay}" in "".join(broker.stderr_lines), limit=ARCHIVED, what="the error"
            )
            between.is_down = False
            archive.wait_for(sent)
            assert broker.terminate() == 0


@one_catalog
def test_a_second_broker_is_refused(catalog: IcebergCatalog, tmp_path: Path) -> None:
    archive = Archive(tmp_path, catalog, "owned")
    other = Archive(tmp_path, catalog, "owned")
    other.data_dir = tmp_path / "other"
    with archive.serving() as first:
        sent = publish(first, 0, 20)
        archive.wait_for(sent)
        with other.serving() as second:
            publish(second, 1000, 20)
            refused = "use another prefix for each broker"
            wait_until(lambda: refused in "".join(second.stderr_lines), limit=ARCHIVED, what="the refusal")
        sent |= publish(first, 20, 20)
        archive.wait_for(sent)


def test_the_broker_logs_in_with_a_credential(rest: IcebergCatalog, tmp_path: Path) -> None:
    with relaying(rest.url) as (relay, between):
        archive = Archive(tmp_path, rest, "login", "catalog_credential=broker:secret-of-tests", through=relay)
        with archive.serving() as broker:
            sent = publish(broker, 0, 10)
            archive.wait_for(sent)
            assert broker.terminate() == 0
            assert "secret-of-tests" not in "".join(broker.stderr_lines)
    logins = [headers for path, headers in between.seen if path.endswith("/v1/oauth/tokens")]
    others = [headers.get("authorization", "") for path, headers in between.seen if "oauth" not in path]
    assert logins
    assert all(header.startswith("Bearer ") for header in others)


def test_wrong_settings_are_errors_at_start(tmp_path: Path) -> None:
    def start(*options: str, url: str = "") -> None:
        place = url or f"file://{tmp_path}/archive"
        data_dir = str(tmp_path / "data")
        mqcore.Broker(data_dir=data_dir, history=True, archive_url=place, archive_options=options).start()

    with pytest.raises(
        mqcore.errors.MqcoreError,
        match="use http or https for a REST catalog",
    ):
        start("catalog=ftp://host")
    with pytest.raises(mqcore.errors.MqcoreError, match='option "catalog_colour" is unknown'):
        start("catalog=http://host", "catalog_colour=blue")
    with pytest.raises(mqcore.errors.MqcoreError, match='needs the option "catalog"'):
        start("catalog_token=t")
    with pytest.raises(mqcore.errors.MqcoreError, match="either catalog_token or catalog_credential"):
        start("catalog=http://host", "catalog_token=t", "catalog_credential=i:s")
    with pytest.raises(mqcore.errors.MqcoreError, match="set the option catalog_namespace"):
        start("catalog=http://host", url="s3://bucket")
