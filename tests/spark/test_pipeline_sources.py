"""Pipelines over an archive on object storage, with and without its broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import mqcore.spark
from mqcore import errors
from mqcore.cli.program import run as run_command
from mqcore.spark import ObjectArchive, pipelines
from mqcore.spark.pipelines.history import History
from mqcore.spark.pipelines.storage import stored
from object_stores import ObjectStore, moto_server
from served import wait_until
from spark.lakes import Lake, store_options
from spark.recorded import IN_TURN, LENIENT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("moto")
pytest.importorskip("pyiceberg")

pytestmark = [*LENIENT, IN_TURN]


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with moto_server() as running:
        yield running


@pytest.fixture(scope="module")
def lake(store: ObjectStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lake, str]]:
    """An archive with 80 messages, and the admin side of its broker, which has 40 more."""
    made = Lake(store, tmp_path_factory.mktemp("pipelines") / "data", "pipelines")
    with made.serving("100ms") as broker:
        made.publish(broker, 80)
        made.wait()
        assert broker.terminate() == 0
    with made.serving("1h") as broker:
        made.publish(broker, 40)
        yield made, broker.admin_url


def settings(store: ObjectStore) -> tuple[str, ...]:
    return tuple(f"{name}={value}" for name, value in json.loads(store_options(store)).items())


@pytest.mark.full("16 s; test_command_takes_a_url runs over the same archive and its broker")
def test_cost_counts_the_history_of_both_and_all_objects(
    lake: tuple[Lake, str], spark: SparkSession, tmp_path: Path
) -> None:
    made, admin = lake
    source = ObjectArchive(made.url, admin, options=settings(made.store))
    assert History.of(spark, source).files is None, "this session has no Hadoop file system for S3"
    outcome = pipelines.run("cost", spark, source, tmp_path / "out")
    assert outcome.figures["published"] == 120
    objects = made.store.client.get_paginator("list_objects_v2").paginate(Bucket="lake", Prefix="pipelines/")
    size = sum(found["Size"] for page in objects for found in page["Contents"])
    assert outcome.figures["archive_bytes"] == size
    assert outcome.figures["journal_bytes"] == 0
    queues = {row["name"]: row["archive_bytes"] for row in outcome.details["queues"]}
    assert sum(queues.values()) == size
    assert min(queues[f"orders-{number}/{id_}"] for number in range(4) for id_ in range(2)) > 0
    assert made.url in (tmp_path / "out" / "index.html").read_text()
    alone = pipelines.run("cost", spark, ObjectArchive(made.url, options=settings(made.store)), tmp_path / "alone")
    assert alone.figures["published"] == 80


def test_command_takes_a_url(
    lake: tuple[Lake, str],
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(type(spark), "stop", lambda _session: None)
    made, admin = lake
    place = ["pipeline", "run", "lifecycle", "--journal", made.url, "--journal-admin", admin, "--out", str(tmp_path)]
    given = [part for setting in settings(made.store) for part in ("--journal-option", setting)]
    assert run_command([*place, *given, "--json"]) == 0
    content = json.loads(capsys.readouterr()[0])
    assert content["figures"]["produced"] == 120
    # A unit of systemd gets the same options.
    (tmp_path / "units").mkdir()
    schedule = ["pipeline", "schedule", *place[2:], *given, "--systemd", str(tmp_path / "units"), "--json"]
    assert run_command(schedule) == 0
    unit = (tmp_path / "units" / "mqcore-pipelines.service").read_text()
    assert made.url in unit
    assert f"--journal-admin {admin}" in unit


def test_spark_reads_an_archive_itself_if_it_has_a_file_system_for_it(
    store: ObjectStore, spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "lake").mkdir()
    url = (tmp_path / "lake").as_uri()
    made = Lake(store, tmp_path / "data", "local")
    with made.serving("100ms", MQCORE_ARCHIVE_URL=url) as broker:
        made.publish(broker, 40)

        def archived() -> int:
            try:
                return int(mqcore.spark.archive(spark, url).count())
            except errors.DataDirMissing:
                return 0

        wait_until(lambda: archived() == 40, limit=100, what="the archive")
        whole = History.of(spark, ObjectArchive(url, broker.admin_url))
        assert whole.files is not None
        assert whole.messages("queue", "body").count() == 40
        assert broker.terminate() == 0
    some = mqcore.spark.archive(spark, url, channels=["Orders-1"])
    assert {row["queue"] for row in some.select("queue").collect()} == {"orders-1/0", "orders-1/1"}
    assert mqcore.spark.archive(spark, url, dates=("2000-01-01", "2000-01-02")).count() == 0
    for source in (url, made.data_dir):
        history = History.of(spark, source)
        assert history.files is not None
        assert sorted(bytes(row["body"]).decode() for row in history.messages("body").collect()) == sorted(made.sent)
    assert stored(made.data_dir).objects == stored(url).objects > 0


def test_wrong_sources_have_clear_errors(
    lake: tuple[Lake, str], spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, admin = lake
    source = ObjectArchive(made.url, admin, options=settings(made.store))
    with pytest.raises(errors.ConfigError, match="where the broker merges small files itself"):
        pipelines.run("compact", spark, source, tmp_path)
    nowhere = ObjectArchive("s3://lake/nowhere", options=settings(made.store))
    with pytest.raises(errors.DataDirMissing, match="s3://lake/nowhere has no history"):
        pipelines.run("lifecycle", spark, nowhere, tmp_path)
    other: list[Any] = ["pipeline", "run", "lifecycle", "--journal", str(tmp_path), "--out", str(tmp_path)]
    assert run_command([*other, "--journal-admin", admin]) == 2
    assert "--journal-admin is for an archive on object storage" in capsys.readouterr()[1]
