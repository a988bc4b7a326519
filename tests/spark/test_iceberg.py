"""Iceberg's own engine reads the tables that the broker commits, and agrees with PyIceberg and with what was sent."""

from __future__ import annotations

import functools
import json
import subprocess
import venv
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from object_stores import BUCKET, ObjectStore, moto_server
from served import ROOT, clean_environment, serving, wait_until
from spark.maven import jars_or_skip, listed, s3_settings
from spark.recorded import LENIENT, java_or_skip
from test_object_archive import ARCHIVED, environment, publish, wait_for
from test_object_archive import table as table_on_s3

pytest.importorskip("pyiceberg")

RELEASE = "4.1.4"
"""Newest release of Spark for which there is a package of Iceberg."""
NOWHERE = ObjectStore("http://127.0.0.1:9")
"""Settings of a store that an archive in a directory does not use."""
HADOOP = "3.4.2"
"""Version of Hadoop in this release."""
PLACE = ROOT / "target" / f"spark-{RELEASE}"

pytestmark = [
    *LENIENT[1:],
    pytest.mark.timeout(1800),
    pytest.mark.full("installs another version of Spark; test_object_archive.py reads with PyIceberg and DuckDB"),
]


@pytest.fixture(scope="module")
def python() -> Path:
    """An interpreter with the version of Spark that Iceberg supports. It is made once."""
    java_or_skip()
    jars_or_skip("iceberg")
    interpreter = PLACE / "bin" / "python"
    done = PLACE / "installed"
    if not done.exists():
        venv.create(PLACE, with_pip=True, clear=True)
        install = [interpreter, "-m", "pip", "install", "-q", "--no-cache-dir", f"pyspark=={RELEASE}"]
        result = subprocess.run(install, capture_output=True, text=True, timeout=1500, check=False)
        if result.returncode != 0:
            pytest.skip(f"pyspark {RELEASE} cannot be installed: {result.stderr.strip()[-300:]}")
        done.touch()
    return interpreter


def answers(python: Path, warehouse: str, *statements: str, **more: str) -> list[list[dict[str, Any]]]:
    """Run statements in Spark with a catalog `mq`, in which an archive is a namespace. `more` are settings."""
    config = {
        "spark.jars": listed(jars_or_skip("iceberg")),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.mq": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.mq.type": "hadoop",
        "spark.sql.catalog.mq.warehouse": warehouse,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        **more,
    }
    given = {"config": config, "views": {"by_path": f"{warehouse}/orders/messages"}, "statements": statements}
    job = subprocess.run(
        [str(python), str(Path(__file__).with_name("iceberg_job.py")), json.dumps(given)],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env=clean_environment() | {"SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert job.returncode == 0, job.stderr[-4000:]
    return [json.loads(line)["rows"] for line in job.stdout.splitlines() if line.startswith('{"rows"')]


def opened(lake: Path, name: str) -> Any:
    """A table, opened by PyIceberg; `None` before there is a snapshot."""
    from pyiceberg.table import StaticTable

    versions = [int(path.name[1:].partition(".")[0]) for path in (lake / name / "metadata").glob("v*.metadata.json")]
    if not versions:
        return None
    table = StaticTable.from_metadata(str(lake / name / "metadata" / f"v{max(versions)}.metadata.json"))
    return table if table.current_snapshot() is not None else None


def has_rows(lake: Path, name: str, count: int) -> bool:
    table = opened(lake, name)
    return table is not None and int(table.current_snapshot().summary["total-records"]) == count


def test_sql_by_catalog_and_by_path_agrees_with_pyiceberg_and_with_what_was_sent(python: Path, tmp_path: Path) -> None:
    lake = tmp_path / "warehouse" / "orders"
    lake.mkdir(parents=True)
    settings = environment(NOWHERE, lake.as_uri(), MQCORE_ARCHIVE_COMPACT_AFTER="1h")
    sent: dict[str, str] = {}
    with serving("--data-dir", str(tmp_path / "data"), environment=settings) as broker:
        for first in (0, 40, 80):
            sent |= publish(broker, 6, 40, first=first)
            is_archived = functools.partial(has_rows, lake, "messages", len(sent))
            wait_until(is_archived, limit=ARCHIVED, what="the archive of a round")
        assert broker.terminate() == 0
    table = opened(lake, "messages")
    snapshots = {snapshot.snapshot_id: int(snapshot.summary["total-records"]) for snapshot in table.snapshots()}
    assert len(snapshots) >= 3
    travels = [f"SELECT count(*) AS n FROM mq.orders.messages VERSION AS OF {number}" for number in snapshots]
    found = answers(
        python,
        lake.parent.as_uri(),
        "SELECT CAST(body AS STRING) AS body, queue FROM mq.orders.messages",
        "SELECT CAST(body AS STRING) AS body, queue FROM by_path",
        "SELECT CAST(body AS STRING) AS body, queue FROM by_path WHERE queue = 'orders/3'",
        "DESCRIBE TABLE mq.orders.messages",
        "SHOW TABLES IN mq.orders",
        "SELECT snapshot_id FROM mq.orders.messages.snapshots",
        "SELECT file_path, record_count, readable_metrics.queue.upper_bound AS last FROM mq.orders.messages.files",
        "SELECT kind, count(*) AS n FROM mq.orders.steps GROUP BY kind",
        *travels,
    )
    by_catalog, by_path, one_queue, columns, tables, listed_snapshots, files, kinds, *counts = found
    pairs = Counter(sent.items())
    assert Counter((row["body"], row["queue"]) for row in by_catalog) == pairs
    assert Counter((row["body"], row["queue"]) for row in by_path) == pairs
    assert Counter(row["body"] for row in one_queue) == Counter(body for body, own in sent.items() if own == "orders/3")
    types = {row["col_name"]: row["data_type"] for row in columns}
    assert types["time"] == "timestamp"
    assert types["headers"] == "array<struct<key:string,value:binary>>"
    assert {"days(time)", "bucket(2, queue)"} <= set(types.values())
    names = [field.name for field in table.schema().fields]
    assert [row["col_name"] for row in columns][: len(names)] == names
    assert {row["tableName"] for row in tables} == {"messages", "steps"}
    assert {row["snapshot_id"] for row in listed_snapshots} == set(snapshots)
    planned = {task.file.file_path: task.file.record_count for task in table.scan().plan_files()}
    assert {row["file_path"]: row["record_count"] for row in files} == planned
    assert {row["last"] for row in files} <= set(sent.values())
    expected = Counter(opened(lake, "steps").scan().to_arrow()["kind"].to_pylist())
    assert {row["kind"]: row["n"] for row in kinds} == expected
    assert [[row["n"] for row in rows] for rows in counts] == [[count] for count in snapshots.values()]


def test_the_broker_continues_a_table_that_spark_rewrote_on_s3(python: Path, tmp_path: Path) -> None:
    pytest.importorskip("moto")
    jars = [*jars_or_skip("iceberg"), *jars_or_skip("s3", **{"hadoop.version": HADOOP})]
    url = f"s3://{BUCKET}/company/orders"
    with moto_server() as store:
        settings = environment(store, url, MQCORE_ARCHIVE_COMPACT_AFTER="1h")
        with serving("--data-dir", str(tmp_path / "data"), environment=settings) as broker:
            sent = publish(broker, 6, 60)
            wait_for(store, url, sent)
            assert broker.terminate() == 0
        earlier = {task.file.file_path for task in table_on_s3(store, url, "messages").scan().plan_files()}
        spark = {
            "spark.jars": listed(jars),
            **s3_settings(store),
            # The table names its files with the scheme of archive_url.
            "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        }
        rewritten, _, expired, _, counts = answers(
            python,
            f"s3://{BUCKET}/company",
            "CALL mq.system.rewrite_data_files(table => 'orders.messages', options => map('rewrite-all', 'true'))",
            "CALL mq.system.rewrite_manifests('orders.messages')",
            "CALL mq.system.expire_snapshots(table => 'orders.messages', "
            "older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)",
            "CALL mq.system.rewrite_data_files(table => 'orders.steps', options => map('rewrite-all', 'true'))",
            "SELECT count(*) AS n, count(DISTINCT body) AS different FROM by_path",
            **spark,
        )
        assert rewritten[0]["rewritten_data_files_count"] == len(earlier)
        assert expired[0]["deleted_data_files_count"] == len(earlier)
        assert counts == [{"n": 60, "different": 60}]
        assert not earlier & {task.file.file_path for task in table_on_s3(store, url, "messages").scan().plan_files()}
        with serving("--data-dir", str(tmp_path / "data"), environment=settings) as broker:
            sent |= publish(broker, 6, 60, first=60)
            wait_for(store, url, sent)
            assert broker.terminate() == 0
