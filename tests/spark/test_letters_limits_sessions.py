"""Pipelines over dead letters, limits and sessions, against a count in plain Python and against a broker that runs."""

from __future__ import annotations

import math
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from depth import by_depth
from mqcore import QueueOptions, QueueStatus, errors, sync
from mqcore.spark import pipelines
from served import wait_until
from spark.eventful import Eventful, recorded_kinds
from spark.made import START, archive_of
from spark.made import step as made
from spark.recorded import LENIENT, Recorded
from spark.test_pipelines import quantile, rows_of, self_contained

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = LENIENT


def test_dead_letters_are_put_together_by_their_last_words(
    spark: SparkSession, eventful: Eventful, tmp_path: Path
) -> None:
    outcome = pipelines.run("deadletters", spark, eventful.data_dir, tmp_path)
    expected: Counter[str] = Counter()
    for life_ in eventful.lives().values():
        if life_[-1]["kind"] == "dead-lettered":
            words = [row["reason"] for row in life_ if row["kind"] == "nacked"][-1]
            expected["no stock for #" if words.startswith("no stock") else "card # refused"] += 1
    found = rows_of(outcome.tables["clusters"])
    assert {row["like"]: row["messages"] for row in found} == dict(expected)
    assert {(row["origin"], row["reason"]) for row in found} == {("work/1", "limit")}
    assert sum(row["there"] for row in found) == outcome.figures["letters"] == eventful.dead
    page = self_contained(outcome.report)
    assert "no stock for #" in page
    assert "&quot;order&quot;" in page, "samples are shown"
    assert "<b>" not in page.split("Samples of", 1)[1].split("</table>", 1)[0], "bodies are text, not HTML"


def test_chosen_dead_letters_go_back_once(spark: SparkSession, live: Recorded, tmp_path: Path) -> None:
    dying = QueueOptions(
        status=QueueStatus.PULL,
        request_acknowledge=True,
        delivery_handler="at-least-once",
        dead_letter="grave/1",
        put_back_limit=1,
        retry_delay=0,
    )
    with sync.connect(live.served.url) as mq:
        mq.declare("grave", 1, QueueOptions(status=QueueStatus.PULL, delivery_handler="at-least-once"))
        mq.declare("shop", 1, dying)
        mq.publish_many("shop/1", [b"first", b"second", b"third"], headers={"Kept": "yes"})
        for _ in range(2):
            for message in mq.queue("shop/1").pull(3):
                message.nack("too late by 7 s" if message.raw == b"third" else "no money")
        wait_until(lambda: mq.queue("grave/1").information().messages == 3, what="the dead letters")
        assert mq.queue("shop/1").information().messages == 0

        def written() -> bool:
            return recorded_kinds(live.data_dir)["arrived"] == 3

        wait_until(written, limit=60, what="the history")
        first = pipelines.run("deadletters", spark, live.data_dir, tmp_path)
        (poor,) = [row for row in rows_of(first.tables["clusters"]) if row["like"] == "no money"]
        options = {"redrive": live.served.url, "admin": live.served.admin_url}
        chosen = {**options, "clusters": poor["cluster"], "run": "monday"}
        for _ in range(by_depth(1, 2)):
            again = pipelines.run("deadletters", spark, live.data_dir, tmp_path, **chosen)
            assert again.figures["redriven"] == 2
        rest = pipelines.run("deadletters", spark, live.data_dir, tmp_path, **options, clusters="all", run="tuesday")
        assert rest.figures["redriven"] == 1, "no run takes what another one took"
        back = mq.queue("shop/1").pull(10)
        assert [message.raw for message in back] == [b"first", b"second", b"third"]
        assert all(message.headers["Kept"] == "yes" for message in back)
        assert not any(name.lower().startswith("dead-letter") for name in back[0].headers)
        assert mq.queue("grave/1").information().messages == 3, "reading does not consume"


def test_a_re_drive_names_its_letters_and_itself(spark: SparkSession, eventful: Eventful, tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match="belong together"):
        pipelines.run("deadletters", spark, eventful.data_dir, tmp_path, redrive="tmqp://127.0.0.1:1")
    with pytest.raises(errors.ConfigError, match="run must have"):
        pipelines.run("deadletters", spark, eventful.data_dir, tmp_path, redrive="tmqp://x", clusters="all", run="../x")
    with pytest.raises(errors.ConfigError, match="unknown cluster 'nobody'"):
        pipelines.run("deadletters", spark, eventful.data_dir, tmp_path, redrive="tmqp://x", clusters="nobody", run="x")


def test_use_and_refusals_are_those_of_a_plain_count(spark: SparkSession, eventful: Eventful, tmp_path: Path) -> None:
    outcome = pipelines.run("limits", spark, eventful.data_dir, tmp_path, by="queue", window=1, limit=50)
    expected = Counter(
        (step["queue"], int(step["time"].timestamp()))
        for life_ in eventful.lives().values()
        for step in life_
        if step["kind"] == "produced"
    )
    found = {(row["key"], int(row["start"].timestamp())): row["messages"] for row in rows_of(outcome.tables["windows"])}
    assert found == dict(expected)
    assert outcome.figures["refused"] == sum(max(0, count - 50) for count in expected.values()) > 0
    (work,) = [row for row in rows_of(outcome.tables["keys"]) if row["key"] == "work/1"]
    of_work = [count for (queue, _), count in expected.items() if queue == "work/1"]
    assert work["most"] == max(of_work)
    assert work["suggested"] == math.ceil(quantile(of_work, 0.99) * 1.5)
    named = pipelines.run("limits", spark, eventful.data_dir, tmp_path, window=3600)
    assert {row["key"] for row in rows_of(named.tables["keys"])} == {"shop"}
    assert "Would have been refused" in self_contained(outcome.report) or outcome.report == named.report
    with pytest.raises(errors.ConfigError, match="by must be one of"):
        pipelines.run("limits", spark, eventful.data_dir, tmp_path, by="colour")


def test_a_client_is_one_over_connections_and_protocols(spark: SparkSession, tmp_path: Path) -> None:
    def by(who: str, name: str, id: str, protocol: str) -> dict[str, Any]:  # noqa: A002
        return {f"{who}_name": name, f"{who}_id": id, f"{who}_protocol": protocol}

    def at(seconds: int) -> datetime:
        return START + timedelta(seconds=seconds)

    steps = [
        made("started"),
        made("produced", 1, **by("producer", "shop", "a", "tmqp"), time=at(0)),
        made("produced", 2, **by("producer", "shop", "b", "mqks"), time=at(50)),
        made("delivered", 1, **by("producer", "shop", "a", "tmqp"), **by("consumer", "bank", "c", "tmqp"), time=at(55)),
        made("acked", 1, last=True, **by("consumer", "bank", "c", "tmqp"), time=at(56)),
        made("delivered", 2, **by("producer", "shop", "b", "mqks"), **by("consumer", "", "d", "mqks"), time=at(57)),
        made("produced", 3, **by("producer", "shop", "a", "tmqp"), time=at(500)),
    ]
    data = archive_of(tmp_path / "data", steps)
    outcome = pipelines.run("sessions", spark, data, tmp_path / "out", gap=60)
    found = {(row["client"], row["session"]): row for row in rows_of(outcome.tables["sessions"])}
    assert set(found) == {("shop", 1), ("shop", 2), ("bank", 1), ("d", 1)}
    assert found[("shop", 1)]["protocols"] == ["mqks", "tmqp"]
    assert (found[("shop", 1)]["ids"], found[("shop", 1)]["produced"], found[("bank", 1)]["acked"]) == (2, 2, 1)
    spoken = {
        (r["producer"], r["from_protocol"], r["consumer"], r["to_protocol"])
        for r in rows_of(outcome.tables["conversations"])
    }
    assert spoken == {("shop", "tmqp", "bank", "tmqp"), ("shop", "mqks", "d", "mqks")}
    assert outcome.figures["over several protocols"] == 1
    self_contained(outcome.report)
