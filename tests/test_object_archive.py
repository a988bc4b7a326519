"""The archive on object storage: a real broker, a real S3 API, and tables that other engines read like mqcore does."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mqcore
from depth import by_depth, rounds
from mqcore import sync
from object_stores import BUCKET, ObjectStore, moto_server, relayed
from served import ServedBroker, serving, wait_until

pytest.importorskip("moto")
pytest.importorskip("pyiceberg")

DURABLE = mqcore.QueueOptions(status="pull", delivery_handler="at-least-once", request_acknowledge=True)

RANGES = [{"first": 1, "last": 10}, {"first": (1 << 32) + 1, "last": (1 << 32) + 10}]
"""Numbers of its messages. Each start continues with the next reserved ones."""
EARLIER = Path(__file__).parent / "vectors" / "restored_each"

pytestmark = pytest.mark.timeout(240)
ARCHIVED = 60.0
"""Seconds until history is archived: the thread has a low priority and is slow while others use all processors."""


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    """A real S3 server."""
    with moto_server() as running:
        yield running


def environment(store: ObjectStore, url: str, **more: str) -> dict[str, str]:
    """Settings of a broker whose archive is in `store`."""
    settings = {"MQCORE_HISTORY": "on", "MQCORE_SHARDS": "2", "MQCORE_ARCHIVE_INTERVAL": "100ms"}
    settings["MQCORE_AUTO_CREATE_CHANNELS"] = "yes"
    return store.environment | settings | {"MQCORE_ARCHIVE_URL": url} | more


def publish(broker: ServedBroker, queues: int, count: int, first: int = 0) -> dict[str, str]:
    """Publish to queues of one channel, take and acknowledge every second message. Return the queue of each body."""
    sent = {}
    with sync.connect(broker.url) as client:
        for number in range(queues):
            with contextlib.suppress(mqcore.errors.AlreadyExists):
                client.create_queue(f"orders/{number}", DURABLE)
        for number in range(first, first + count):
            queue = f"orders/{number % queues}"
            client.publish(queue, f"body {number}", headers={"N": str(number)})
            sent[f"body {number}"] = queue
        for queue in sorted(set(sent.values())):
            for message in client.queue(queue).pull(sum(own == queue for own in sent.values()) // 2, str):
                assert message.ack()
    return sent


def metadata_location(store: ObjectStore, url: str, table: str) -> str:
    """The newest metadata file of a table."""
    prefix = url.removeprefix(f"s3://{BUCKET}/")
    versions = [
        int(key.rpartition("/v")[2].removesuffix(".metadata.json"))
        for key in store.keys(f"{prefix}/{table}/metadata/v")
        if key.endswith(".metadata.json") and "/v" in key
    ]
    return f"{url}/{table}/metadata/v{max(versions)}.metadata.json"


def table(store: ObjectStore, url: str, name: str) -> Any:
    """A table, opened by PyIceberg."""
    from pyiceberg.table import StaticTable

    return StaticTable.from_metadata(metadata_location(store, url, name), store.properties)


def rows(store: ObjectStore, url: str, name: str) -> pa.Table:
    """All rows of a table, read by PyIceberg."""
    result: pa.Table = table(store, url, name).scan().to_arrow()
    return result


def bodies(store: ObjectStore, url: str) -> Counter[str]:
    """How often each body is in the table of messages."""
    try:
        found = rows(store, url, "messages")
    except ValueError:
        return Counter()
    return Counter(body.decode() for body in found["body"].to_pylist())


def wait_for(
    store: ObjectStore, url: str, sent: dict[str, str], limit: float = ARCHIVED, *, expires: bool = False
) -> None:
    """Wait until every message is in the table, and check that it is there once.

    `expires`: the broker removes files of old snapshots so soon that a reader may still need them. It begins again with
    the newest snapshot then.
    """
    deadline = time.monotonic() + limit
    while True:
        state = "no snapshot was read as a whole"
        try:
            found = bodies(store, url)
        except OSError as gone:
            is_gone = isinstance(gone, FileNotFoundError) or "NOT_FOUND" in str(gone)
            if not expires or not is_gone:
                raise
        else:
            if found.total() >= len(sent):
                break
            state = f"{found.total()} of {len(sent)} messages are archived"
        assert time.monotonic() < deadline, state
        time.sleep(0.2)
    assert found == Counter(sent.keys())


def test_messages_and_steps_are_in_the_tables_once_and_every_reader_agrees(store: ObjectStore, tmp_path: Path) -> None:
    url = f"s3://{BUCKET}/once"
    with serving("--data-dir", str(tmp_path / "data"), environment=environment(store, url)) as broker:
        sent = publish(broker, 6, 120)
        wait_for(store, url, sent)
        wait_until(lambda: steps(store, url)["acked"] == 60, limit=ARCHIVED, what="the archive of all steps")
        assert steps(store, url)["produced"] == 120
        found = rows(store, url, "messages")
        assert {row["body"].decode(): row["queue"] for row in found.to_pylist()} == sent
        headers = {row["body"].decode(): {h["key"]: h["value"] for h in row["headers"]} for row in found.to_pylist()}
        assert headers["body 7"]["N"] == b"7"
        assert broker.terminate() == 0
    # The table's own columns, types and partitions.
    opened = table(store, url, "messages")
    assert [field.name for field in opened.spec().fields] == ["time_day", "queue_bucket"]
    assert opened.schema().find_type("time").__class__.__name__ == "TimestamptzType"
    # Minimum and maximum in the metadata exclude files of other queues and times.
    pruned = opened.scan(row_filter="queue == 'orders/3'")
    assert {row["queue"] for row in pruned.to_arrow().to_pylist()} == {"orders/3"}
    assert len(list(pruned.plan_files())) < len(list(opened.scan().plan_files()))
    assert not list(opened.scan(row_filter="time < '2020-01-01T00:00:00+00:00'").plan_files())


def steps(store: ObjectStore, url: str) -> Counter[str]:
    """How often each kind of step is in the table."""
    try:
        return Counter(rows(store, url, "steps")["kind"].to_pylist())
    except ValueError:
        return Counter()


def test_duckdb_reads_the_files_that_the_table_lists(store: ObjectStore, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    url = (tmp_path / "lake").as_uri()
    (tmp_path / "lake").mkdir()
    with serving("--data-dir", str(tmp_path / "data"), environment=environment(store, url)) as broker:
        sent = publish(broker, 3, 30)
        newest = tmp_path / "lake" / "messages" / "metadata"

        def files() -> list[str]:
            from pyiceberg.table import StaticTable

            versions = [int(path.name[1:].partition(".")[0]) for path in newest.glob("v*.metadata.json")]
            if not versions:
                return []
            opened = StaticTable.from_metadata(str(newest / f"v{max(versions)}.metadata.json"))
            return [task.file.file_path.removeprefix("file://") for task in opened.scan().plan_files()]

        def counted() -> int:
            listed = files()
            query = "select count(*) from read_parquet(?)"
            return duckdb.execute(query, [listed]).fetchone()[0] if listed else 0

        wait_until(lambda: counted() == len(sent), limit=ARCHIVED, what="the archive of all messages")
        found = duckdb.execute("select queue, count(*) from read_parquet(?) group by queue", [files()]).fetchall()
        assert dict(found) == Counter(sent.values())


def test_the_broker_reads_its_history_across_the_seam(store: ObjectStore, tmp_path: Path) -> None:
    url = f"s3://{BUCKET}/seam"
    directory = tmp_path / "data"
    admin = ("--admin", "http://127.0.0.1:0")
    with serving("--data-dir", str(directory), *admin, environment=environment(store, url)) as broker:
        sent = publish(broker, 4, 40)
        wait_for(store, url, sent)
        assert broker.terminate() == 0
    # History that this broker does not archive stays in the journal: its reader takes it from there.
    later = environment(store, url, MQCORE_ARCHIVE_INTERVAL="1h")
    with serving("--data-dir", str(directory), *admin, environment=later) as broker:
        sent |= publish(broker, 4, 40, first=40)
        with sync.connect(broker.url) as client:
            client.publish("orders/0", "the last")
        found = Counter(history_bodies(broker))
        assert {body: found[body] for body in sent} == dict.fromkeys(sent, 1)
        assert bodies(store, url).total() == 40


def test_the_broker_reads_the_archive_that_it_has_begun_itself(store: ObjectStore, tmp_path: Path) -> None:
    url = f"s3://{BUCKET}/begun"
    directory = tmp_path / "data"
    admin = ("--admin", "http://127.0.0.1:0")
    with serving("--data-dir", str(directory), *admin, environment=environment(store, url)) as broker:
        # The admin side is ready before the archive exists.
        assert history_bodies(broker) == []
        first = set(directory.glob("shard-*/*.segment"))
        assert first
        sent = publish(broker, 4, 40)
        wait_for(store, url, sent)
        wait_until(
            lambda: not first <= set(directory.glob("shard-*/*.segment")),
            limit=ARCHIVED,
            what="the removal of a segment whose history is archived",
        )
        assert Counter(history_bodies(broker)) == Counter(sent.keys())


def history_bodies(broker: ServedBroker) -> list[str]:
    """Bodies of all messages in the history, through the admin side."""
    request = json.dumps({"view": "messages", "columns": ["value"], "texts": ["value"]})

    def ask(query: dict[str, Any]) -> Any:
        headers = {"Mqcore-Request": json.dumps(query)}
        with urllib.request.urlopen(urllib.request.Request(f"{broker.admin_url}/history", headers=headers)) as answer:
            if query["do"] == "rows":
                with pa.ipc.open_stream(answer) as stream:
                    return stream.read_all()
            return json.load(answer)

    ends = ask({"do": "ends", "settled": True})["ends"]
    stretches = [[end["shard"], 0, end["latest"]] for end in ends]
    pieces = ask({"do": "pieces", "request": request, "stretches": stretches, "target_bytes": 1 << 20})["pieces"]
    found: list[str] = []
    for piece in pieces:
        answer = ask({"do": "rows", "request": request, "piece": piece, "fail_on_loss": True})
        found += answer["value"].to_pylist()
    return found


def test_a_store_that_does_not_answer_delays_the_archive_and_loses_nothing(store: ObjectStore, tmp_path: Path) -> None:
    url = f"s3://{BUCKET}/outage"
    admin = ("--admin", "http://127.0.0.1:0")
    with relayed(store) as (relay, between):
        settings = environment(relay, url)
        with serving("--data-dir", str(tmp_path / "data"), *admin, environment=settings) as broker:
            sent = publish(broker, 3, 30)
            wait_for(store, url, sent)
            between.is_down = True
            sent |= publish(broker, 3, 30, first=30)

            def alarm() -> bool:
                with urllib.request.urlopen(f"{broker.admin_url}/readyz") as answer:
                    return bool(json.load(answer).get("archive", {}).get("state") == "failing")

            begun = time.time()
            wait_until(alarm, limit=90, what="the alarm of the archive")
            for path in ("/readyz", "/overview?limit=0"):
                with urllib.request.urlopen(f"{broker.admin_url}{path}") as answer:
                    shown = json.load(answer)["archive"]
                # The error names what was done and where, and when that began to fail.
                assert any(part in shown["error"] for part in ("messages/", "steps/")), shown["error"]
                assert begun - 60 < shown["failing_since_ms"] / 1000 <= time.time(), path

            def is_diagnosed() -> bool:
                doctor = subprocess.run(
                    [sys.executable, "-m", "mqcore", "doctor", "--url", broker.admin_url or ""],
                    capture_output=True,
                    text=True,
                    timeout=60,
                    check=False,
                )
                return "archiving fails: " in doctor.stdout

            wait_until(is_diagnosed, limit=60, what="the finding of the doctor")
            between.is_down = False
            wait_for(store, url, sent)
            wait_until(lambda: not alarm(), limit=ARCHIVED, what="the end of the alarm")


def test_lost_answers_of_the_store_double_nothing(store: ObjectStore, tmp_path: Path) -> None:
    url = f"s3://{BUCKET}/lost"
    with relayed(store) as (relay, between):
        between.lost = set(range(6, 60, 4))
        settings = environment(relay, url)
        with serving("--data-dir", str(tmp_path / "data"), environment=settings) as broker:
            sent: dict[str, str] = {}
            for first in range(0, 60, 10):
                sent |= publish(broker, 3, 10, first=first)
                wait_for(store, url, sent)
        assert between.requests > 40


def test_a_store_that_ignores_conditions_is_refused(store: ObjectStore, tmp_path: Path) -> None:
    url = f"s3://{BUCKET}/unsafe"
    with relayed(store) as (relay, between):
        between.dropped |= {"if-none-match"}
        settings = environment(relay, url)
        with serving("--data-dir", str(tmp_path / "data"), environment=settings) as broker:
            publish(broker, 1, 3)
            wait_until(lambda: "If-None-Match" in "".join(broker.stderr_lines), limit=ARCHIVED, what="the refusal")
        assert not store.keys("unsafe/messages/")


@pytest.mark.full("20 s; test_iceberg_catalogs.py refuses a second broker of the same tables")
def test_a_second_broker_is_refused(store: ObjectStore, tmp_path: Path) -> None:
    url = f"s3://{BUCKET}/owned"
    with serving("--data-dir", str(tmp_path / "one"), environment=environment(store, url)) as first:
        sent = publish(first, 2, 20)
        wait_for(store, url, sent)
        with serving("--data-dir", str(tmp_path / "two"), environment=environment(store, url)) as second:
            publish(second, 2, 20, first=1000)
            refused = "use another prefix for each broker"
            wait_until(lambda: refused in "".join(second.stderr_lines), limit=ARCHIVED, what="the refusal")
        sent |= publish(first, 2, 20, first=20)
        wait_for(store, url, sent)


def test_a_restored_broker_does_not_write_to_tables_that_are_ahead_of_it(store: ObjectStore, tmp_path: Path) -> None:
    url = f"s3://{BUCKET}/restored"
    admin = ("--admin", "http://127.0.0.1:0")
    command = [sys.executable, "-m", "mqcore"]
    with serving("--data-dir", str(tmp_path / "data"), *admin, environment=environment(store, url)) as broker:
        backup = [*command, "backup", "--to", str(tmp_path / "backup.tar"), "--url", broker.admin_url]
        subprocess.run(backup, check=True, capture_output=True)
        sent = publish(broker, 2, 20)
        wait_for(store, url, sent)
        assert broker.terminate() == 0
    restore = [*command, "restore", str(tmp_path / "backup.tar"), "--data-dir", str(tmp_path / "again")]
    subprocess.run(restore, check=True, capture_output=True)
    with serving("--data-dir", str(tmp_path / "again"), environment=environment(store, url)) as broker:
        publish(broker, 2, 60, first=1000)
        refused = "set archive_url to another prefix"
        wait_until(lambda: refused in "".join(broker.stderr_lines), limit=ARCHIVED, what="the refusal")
        assert broker.terminate() == 0
    assert bodies(store, url) == Counter(sent.keys())
    # With a place of its own, it archives everything that its journal has.
    url = f"s3://{BUCKET}/restored-again"
    with serving("--data-dir", str(tmp_path / "again"), environment=environment(store, url)) as broker:
        wait_until(lambda: bodies(store, url).total() == 60, limit=ARCHIVED, what="the archive of the restored broker")


@pytest.mark.timeout(1800)
def test_killed_brokers_archive_everything_once(store: ObjectStore, tmp_path: Path) -> None:
    url = f"s3://{BUCKET}/killed"
    settings = environment(store, url, MQCORE_ARCHIVE_COMPACT_AFTER="0s", MQCORE_ARCHIVE_SNAPSHOT_MAX_AGE="1s")
    sent: dict[str, str] = {}
    for number in range(rounds("OBJECT_ARCHIVE", quick=4, full=200)):
        with serving("--data-dir", str(tmp_path / "data"), environment=settings) as broker:
            sent |= publish(broker, 5, 20, first=number * 20)
            time.sleep((number * 7 % 20) / 20)
            broker.process.kill()
    with serving("--data-dir", str(tmp_path / "data"), environment=settings) as broker:
        wait_for(store, url, sent, limit=5 * ARCHIVED, expires=True)
        assert broker.terminate() == 0
    assert bodies(store, url) == Counter(sent.keys())


def test_tables_of_an_earlier_version_get_columns_for_restarts(store: ObjectStore, tmp_path: Path) -> None:
    """The earlier version recorded one step for each message that a start restored, and had no column for several."""
    with tarfile.open(EARLIER / "objects.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    url, objects = f"s3://{BUCKET}/earlier", tmp_path / "objects"
    for path in objects.rglob("*"):
        if path.is_file():
            store.client.put_object(Bucket=BUCKET, Key=str(path.relative_to(objects)), Body=path.read_bytes())
    before = table(store, url, "steps").schema()
    assert "numbers" not in {field.name for field in before.fields}
    assert (steps(store, url)["restored"], steps(store, url)["started"]) == (10, 2)
    for start in range(2):
        # The second start compacts files with and without the columns.
        settings = environment(store, url, MQCORE_SHARDS="1", MQCORE_ARCHIVE_COMPACT_AFTER=str(start))
        with serving("--data-dir", str(tmp_path / "data"), environment=settings) as broker:
            wait_until(
                lambda start=start: steps(store, url)["started"] == 3 + start, limit=ARCHIVED, what="the archive"
            )
            assert broker.terminate() == 0
    opened = table(store, url, "steps")
    ids = {field.name: field.field_id for field in opened.schema().fields}
    assert {name: ids[name] for name in ids if name not in {"messages", "numbers"}} == {
        field.name: field.field_id for field in before.fields
    }
    # From its files, because PyIceberg reads lists that are null as empty ones.
    found = []
    for task in opened.scan().plan_files():
        key = task.file.file_path.removeprefix(f"s3://{BUCKET}/")
        content = store.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        columns = ["kind", "messages", "numbers"]
        present = [name for name in columns if name in pq.read_schema(io.BytesIO(content)).names]
        read = pq.read_table(io.BytesIO(content), columns=present).to_pylist()
        found += [dict.fromkeys(columns) | row for row in read if row["kind"] == "restored"]
    assert sorted((row["messages"] or 1, row["numbers"] or []) for row in found) == [(1, [])] * 10 + [(20, RANGES)] * 2
    assert [row["numbers"] for row in found].count(None) == 10
    assert [row["numbers"] or [] for row in rows(store, url, "steps").to_pylist()].count(RANGES) == 2


def test_wrong_settings_are_errors_at_start(tmp_path: Path) -> None:
    def start(**options: Any) -> None:
        mqcore.Broker(data_dir=str(tmp_path / "data"), history=True, **options).start()

    with pytest.raises(mqcore.errors.ConfigError, match="use s3, s3a, gs, az, abfss or file"):
        start(archive_url="ftp://host/archive")
    with pytest.raises(mqcore.errors.ConfigError, match='option "colour" is unknown'):
        start(archive_url="s3://bucket/archive", archive_options=["colour=blue"])
    with pytest.raises(mqcore.errors.ConfigError, match="write name=value"):
        start(archive_url="s3://bucket/archive", archive_options=["aws_region"])


QUEUES = by_depth(60, 300)
"""Queues of the next test."""


@pytest.mark.full("25 s; test_iceberg_catalogs.py merges small files of the same tables")
def test_many_queues_and_rounds_end_in_few_files(store: ObjectStore, tmp_path: Path) -> None:
    url = f"s3://{BUCKET}/few"
    settings = environment(store, url, MQCORE_ARCHIVE_COMPACT_AFTER="1s")
    with (
        serving("--data-dir", str(tmp_path / "data"), environment=settings) as broker,
        sync.connect(broker.url) as client,
    ):
        for number in range(QUEUES):
            client.create_queue(f"orders/{number}", DURABLE)
        sent: dict[str, str] = {}
        sizes = []
        for number in range(by_depth(4, 8)):
            with sync.connect(broker.url) as client:
                for queue, copy in itertools.product(range(QUEUES), range(3)):
                    body = f"{number} {queue} {copy}"
                    client.publish(f"orders/{queue}", body, confirm=False)
                    sent[body] = f"orders/{queue}"
            wait_for(store, url, sent)
            newest = metadata_location(store, url, "messages").removeprefix(f"s3://{BUCKET}/")
            sizes.append(store.client.head_object(Bucket=BUCKET, Key=newest)["ContentLength"])

        def files() -> int:
            return sum(len(list(table(store, url, name).scan().plan_files())) for name in ("messages", "steps"))

        wait_until(lambda: files() <= 16, limit=ARCHIVED, what="the merge of small files")
        wait_for(store, url, sent)
    # Each commit adds a snapshot to the metadata, whatever the number of files.
    growth = [later - earlier for earlier, later in itertools.pairwise(sizes)]
    assert max(growth) < 40_000
