"""Reads of an archive on object storage without Spark: each row once, whatever happens to the files meanwhile."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from depth import by_depth
from mqcore import errors
from mqcore.spark.objects import Joined, Objects
from mqcore.spark.options import ReadOptions
from mqcore.spark.stores import store_access
from object_stores import ObjectStore, moto_server, relayed
from served import serving, wait_until
from spark.lakes import ARCHIVED, Lake, everything, pieces, plan, store_options, values

pytest.importorskip("moto")
pytest.importorskip("pyiceberg")

pytestmark = pytest.mark.timeout(300)
MERGING = {"MQCORE_ARCHIVE_COMPACT_AFTER": "0s", "MQCORE_ARCHIVE_SNAPSHOT_MAX_AGE": "1s"}
"""The broker merges files at once, and deletes what the last snapshot does not need a second later."""


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with moto_server() as running:
        yield running


@pytest.fixture(scope="module")
def halves(store: ObjectStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lake, str]]:
    """An archive, and the admin side of its broker, which has further messages."""
    lake = Lake(store, tmp_path_factory.mktemp("halves") / "data", "halves")
    with lake.serving("100ms", MQCORE_ARCHIVE_COMPACT_AFTER="1h") as broker:
        for count in range(200, 800, 200):
            lake.publish(broker, 200)
            lake.wait(count)
        assert broker.terminate() == 0
    with lake.serving("1h") as broker:
        lake.publish(broker, 100)
        yield lake, broker.admin_url


def test_each_row_is_in_the_archive_or_comes_from_the_broker(halves: tuple[Lake, str]) -> None:
    lake, admin = halves
    assert everything(lake.options()) == Counter(lake.sent[:600])
    assert everything(lake.options(admin=admin)) == Counter(lake.sent)
    joined = plan(lake.options(admin=admin))
    origin = joined.origin()
    assert isinstance(origin, Joined)
    sources = {piece.is_archived for piece in pieces(joined, origin)}
    assert sources == {False, True}
    # The same sequences, whichever reader tells them.
    directory = {"path": str(lake.data_dir), "archiveOptions": store_options(lake.store)}
    assert everything(directory) == Counter(lake.sent)
    assert sequences(directory) == sequences(lake.options(admin=admin)) == sequences({"admin": admin})


def sequences(options: dict[str, str]) -> dict[str, tuple[int, int]]:
    made = plan(options, "value", "shard", "sequence")
    origin = made.origin()
    return {
        row["value"].decode(): (row["shard"], row["sequence"])
        for piece in pieces(made, origin)
        for rows in origin.read(made.request(shard=piece.shard), piece, True)
        for row in rows.to_pylist()
    }


def test_selections_are_the_same_in_both_sources(halves: tuple[Lake, str]) -> None:
    lake, admin = halves
    for chosen in (
        {"subscribe": "orders-1"},
        {"subscribe": "ORDERS-1/1,orders-2/0"},
        {"subscribePattern": ".*[12]/1"},
        {"assign": '{"orders-1": [0, 1], "orders-3/1": [0, 1]}'},
        {"view": "messages", "startingTimestamp": "2100-01-01T00:00:00Z"},
    ):
        both, broker = everything(lake.options(admin=admin, **chosen)), everything({"admin": admin, **chosen})
        assert both == broker
        assert bool(both) != ("startingTimestamp" in chosen)
    middle = sorted(sequences({"admin": admin}).values())[100]
    starts = {str(shard): middle[1] if shard == middle[0] else -1 for shard in (0, 1)}
    some = {"startingOffsets": json.dumps(starts)}
    assert everything(lake.options(admin=admin, **some)) == everything({"admin": admin, **some})
    assert 0 < everything(lake.options(**some)).total() < everything(lake.options(admin=admin, **some)).total()


def test_large_files_of_the_same_time_are_divided_among_tasks(halves: tuple[Lake, str]) -> None:
    lake, _ = halves
    made = plan(lake.options(maxPartitionBytes="1k", minPartitions="1"))
    origin = made.origin()
    tasks = pieces(made, origin)
    assert len(tasks) >= 2
    assert any(piece.queues for piece in tasks), "tasks have different queues of the same time"
    found = Counter(body for piece in tasks for body in values(made, origin, piece))
    assert found == Counter(lake.sent[:600])


def test_rows_are_counted_and_limited_across_the_seam(halves: tuple[Lake, str]) -> None:
    lake, admin = halves
    options = ReadOptions.parse(lake.options(admin=admin))
    made = plan(lake.options(admin=admin))
    origin = made.origin()
    ends = origin.ends()
    begin = made.positions(ends, "earliest", "startingOffsets")
    end = made.positions(ends, options.ending, "endingOffsets")
    assert sum(made.counted(origin, made.stretches(begin, end))) == len(lake.sent)
    found: Counter[str] = Counter()
    for _ in range(40):
        stretches = made.stretches(begin, end)
        if not stretches:
            break
        later = {shard: dict(place) for shard, place in begin.items()}
        for (shard, *_), reached in zip(stretches, made.advance(origin, stretches, 90), strict=True):
            later[str(shard)]["sequence"] = reached
        batch = Counter(
            body for piece in made.pieces(origin, made.stretches(begin, later)) for body in values(made, origin, piece)
        )
        assert 0 < batch.total() <= 90
        found, begin = found + batch, later
    assert found == Counter(lake.sent)


def test_files_that_are_merged_and_deleted_during_a_read_cost_nothing(store: ObjectStore, tmp_path: Path) -> None:
    lake = Lake(store, tmp_path / "data", "merged")
    with lake.serving("100ms", MQCORE_ARCHIVE_COMPACT_AFTER="1h") as broker:
        for _ in range(6):
            lake.publish(broker, 160, channels=1)
            lake.wait()
        assert broker.terminate() == 0
    made = plan(lake.options(maxPartitionBytes="1g", minPartitions="1"))
    origin = made.origin()
    tasks = pieces(made, origin)
    # One task has begun, and others not yet.
    begun = max(tasks, key=lambda piece: piece.size)
    reading = origin.read(made.request(shard=begun.shard), begun, True)
    found = Counter(body.decode() for body in next(reading).column("value").to_pylist())
    old = lake.files()
    assert 0 < found.total() <= 160
    with lake.serving("100ms", **MERGING) as broker:
        wait_until(lambda: not old & lake.files(), limit=ARCHIVED, what="the deletion of all earlier files")
        found += Counter(body.decode() for rows in reading for body in rows.column("value").to_pylist())
        for piece in tasks:
            if piece is not begun:
                found += Counter(values(made, origin, piece))
        assert found == Counter(lake.sent)
        # The broker may archive what a query has planned as its tail.
        admin = plan(lake.options(admin=broker.admin_url, failOnMissingQueue="false"))
        both = admin.origin()
        lake.publish(broker, 160, channels=1)
        tasks = pieces(admin, both)
        lake.wait()
        for _ in range(by_depth(1, 5)):
            lake.publish(broker, 160, channels=1)
            lake.wait()
        planned = Counter(body for piece in tasks for body in values(admin, both, piece))
        assert planned == Counter(lake.sent[: planned.total()])
        assert planned.total() >= 7 * 160


@pytest.mark.full("waits for the retention, which the broker applies once a minute")
def test_rows_that_retention_removes_during_a_read_are_lost_in_words(store: ObjectStore, tmp_path: Path) -> None:
    lake = Lake(store, tmp_path / "data", "retained")
    with lake.serving("100ms") as broker:
        for _ in range(3):
            lake.publish(broker, 80, channels=1)
            lake.wait()
        assert broker.terminate() == 0
    strict, lenient = (plan(lake.options(failOnDataLoss=fail)) for fail in ("true", "false"))
    origin = strict.origin()
    tasks, old = pieces(strict, origin), lake.files()
    with lake.serving("100ms", **MERGING, MQCORE_ARCHIVE_MAX_BYTES="1") as broker:
        lake.publish(broker, 80, channels=1)
        wait_until(lambda: not old & lake.files(), limit=ARCHIVED, what="the deletion of all earlier files")
    with pytest.raises(errors.HistoryLost, match="retention has removed them"):
        [body for piece in tasks for body in values(strict, origin, piece)]
    left = Counter(body for piece in tasks for body in values(lenient, origin, piece))
    assert left.total() < 240


def test_archive_of_another_broker_is_refused_with_both_names(halves: tuple[Lake, str], tmp_path: Path) -> None:
    lake, _ = halves
    settings = {"MQCORE_HISTORY": "on", "MQCORE_SHARDS": "2"}
    arguments = ("--data-dir", str(tmp_path), "--admin", "http://127.0.0.1:0")
    with serving(*arguments, environment=settings) as other, pytest.raises(errors.ConfigError) as raised:
        everything(lake.options(admin=other.admin_url))
    words = str(raised.value)
    assert f"the archive {lake.url} belongs to another broker than {other.admin_url}" in words
    assert "Use the archive_url of this broker" in words


@pytest.mark.full("20 s; test_each_row_is_in_the_archive_or_comes_from_the_broker crosses the same seam")
def test_archive_that_begins_after_one_in_the_data_directory_is_completed_by_the_broker(
    store: ObjectStore, tmp_path: Path
) -> None:
    from spark.recorded import archived

    lake = Lake(store, tmp_path / "data", "later")
    with lake.serving("100ms", MQCORE_ARCHIVE_URL="") as broker:
        # So many channels that each shard has some, whatever the random placement.
        lake.publish(broker, 80, channels=16)
        wait_until(lambda: archived(lake.data_dir, 80), limit=ARCHIVED, what="the archive in the directory")
        assert broker.terminate() == 0
    with lake.serving("100ms") as broker:
        lake.publish(broker, 80, channels=16)
        lake.wait(80)
        assert everything(lake.options(admin=broker.admin_url)) == Counter(lake.sent)
        assert everything(lake.options()) == Counter(lake.sent[80:])
        assert min(Objects(lake.url, store_access(lake.url, settings(store))).begins().values()) > 0
        assert broker.terminate() == 0
    assert everything({"path": str(lake.data_dir), "archiveOptions": store_options(store)}) == Counter(lake.sent)


def settings(store: ObjectStore) -> list[str]:
    return [f"{name}={value}" for name, value in json.loads(store_options(store)).items()]


def test_secrets_of_the_store_are_not_shown(halves: tuple[Lake, str], monkeypatch: pytest.MonkeyPatch) -> None:
    lake, _ = halves
    monkeypatch.setenv("AWS_SESSION_TOKEN", "from-the-environment")
    made = plan(lake.options())
    assert "tests-secret" not in repr(made)
    assert "from-the-environment" not in repr(made)
    assert "aws_secret_access_key" in repr(made.store), "names are shown"
    with pytest.raises(errors.ConfigError, match='the option "colour" is unknown') as raised:
        plan({"archive": lake.url, "archiveOptions": '{"colour": "blue", "aws_secret_access_key": "hidden"}'}).origin()
    assert "hidden" not in str(raised.value)


def test_environment_of_the_driver_reaches_executors_without_one(
    halves: tuple[Lake, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, _ = halves
    for name, value in lake.store.environment.items():
        monkeypatch.setenv(name, value)
    made = plan({"path": lake.url})
    for name in lake.store.environment:
        monkeypatch.delenv(name)
    origin = made.origin()
    assert Counter(body for piece in pieces(made, origin) for body in values(made, origin, piece)).total() == 600


def test_credentials_that_the_store_denies_are_an_error_of_their_own(tmp_path: Path) -> None:
    with moto_server(INITIAL_NO_AUTH_ACTION_COUNT="1") as strict:
        lake = Lake(strict, tmp_path, "denied")
        with pytest.raises(errors.ArchiveDenied, match=f"reading the archive {lake.url}: the object store denies"):
            everything(lake.options())


def test_missing_archive_says_what_to_do(store: ObjectStore, tmp_path: Path) -> None:
    from mqcore.spark.subscription import check_start

    lake = Lake(store, tmp_path, "nowhere")
    made = plan(lake.options())
    with pytest.raises(errors.DataDirMissing, match=f"{lake.url} has no history: run its broker with .*archive_url"):
        check_start(made, made.origin(), made.origin().ends())


@pytest.mark.full("waits for all attempts at a store that is down")
def test_store_that_does_not_answer_is_an_error_of_its_own(halves: tuple[Lake, str]) -> None:
    lake, _ = halves
    with relayed(lake.store) as (relay, between):
        options = {"path": lake.url, "archiveOptions": store_options(relay)}
        made = plan(options)
        origin = made.origin()
        tasks = pieces(made, origin)
        between.is_down = True
        with pytest.raises(errors.ArchiveUnreachable, match=f"reading the archive {lake.url}: the object store does"):
            list(values(made, origin, tasks[0]))


def test_broker_that_is_down_is_an_error_that_names_it(halves: tuple[Lake, str]) -> None:
    lake, _ = halves
    with pytest.raises(errors.ConnectFailed, match=r"127\.0\.0\.1:9"):
        everything(lake.options(admin="http://127.0.0.1:9", retries="0"))
