"""Messages of a history that are published again, compared one by one, also after interruptions and kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from depth import choices, rounds, sample
from mqcore import errors, sync
from mqcore.cli.program import run
from mqcore.spark import pipelines
from mqcore.spark.pipelines.destinations import Destinations
from served import clean_environment, wait_until
from spark.eventful import recorded_messages
from spark.made import archive_of, at, message
from spark.outcomes import parts_of, rows_of, run_whole, self_contained
from spark.recorded import LENIENT, Recorded, declare, java_or_skip

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = LENIENT

DRY = ("messages", "report")
OWN = ("Replayed-From", "Replayed-Time", "Replayed-Id", "Mqcore-Sink")
"""Headers that a replay adds."""
OF_PULLS = ("Request-Id", "Count", "Index", "Delivery-Attempt", "Priority-Messages", "Messages")
"""Headers that the broker adds for this consumer."""


def pulled(mq: sync.Client, queue: str) -> list[Any]:
    """All messages of a queue in their order; they are acknowledged."""
    found: list[Any] = []
    place = mq.queue(queue)
    while left := place.information().messages + place.information().priority_messages:
        for each in place.pull(left):
            found.append(each)
            each.ack()
    return found


def written(live: Recorded, count: int) -> None:
    """Wait until the history has so many messages."""
    wait_until(lambda: recorded_messages(live.data_dir) >= count, limit=60, what="the history")


def original(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in (*OWN, *OF_PULLS)}


def test_selected_messages_are_published_again_one_by_one(spark: SparkSession, live: Recorded, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with sync.connect(live.served.url, name="shop") as mq:
        declare(mq, "copy/1", "copy/7")
        sent: dict[str, list[tuple[bytes, str, dict[str, str], bool]]] = {"orders/1": [], "orders/7": []}
        for number in range(60):
            queue = "orders/1" if number % 3 else "orders/7"
            body, id_ = json.dumps({"n": number}).encode(), f"id-{number}"
            headers = {"Source": queue, "Number": str(number)}
            mq.publish(queue, body, id=id_, headers=headers, high_priority=number % 10 == 0)
            if number % 2 == 0:
                sent[queue].append((body, id_, headers, number % 10 == 0))
        mq.publish_many("logs/2", [b"a log"] * 20)
        written(live, 80)
        # The history has messages that no queue has any more.
        for queue in ("orders/1", "orders/7"):
            assert len(pulled(mq, queue)) == (40 if queue == "orders/1" else 20)
        where = "channel = 'orders' AND get_json_object(cast(body AS string), '$.n') % 2 = 0"
        to = "orders/1=copy/1, Orders/7=copy/7"
        chosen: dict[str, Any] = {"where": where, "to": to}

        dry = run_whole("replay", spark, live.data_dir, out, DRY, **chosen)
        assert dry.summary == "30 messages selected, 0 have no recorded body; nothing was published"
        assert (dry.figures["messages"], dry.figures["published"]) == (30, 0)
        assert [mq.queue(queue).information().messages for queue in ("copy/1", "copy/7")] == [0, 0]

        access = {"url": live.served.url, "admin": live.served.admin_url, "run": "monday"}
        done = pipelines.run("replay", spark, live.data_dir, out, **chosen, **access)
        assert done.summary == "run monday published 30 of 30 selected messages; 0 have no recorded body"
        rows = {row["queue"]: row for row in rows_of(done.tables["queues"])}
        assert {queue: (row["target"], row["messages"]) for queue, row in rows.items()} == {
            "orders/1": ("copy/1", 20),
            "orders/7": ("copy/7", 10),
        }
        assert sum(row["messages"] for row in rows_of(done.tables["timeline"])) == 30
        for queue, target in (("orders/1", "copy/1"), ("orders/7", "copy/7")):
            back = pulled(mq, target)
            for priority in (True, False):
                expected = [each for each in sent[queue] if each[3] is priority]
                found = [each for each in back if each.high_priority is priority]
                assert [(each.raw, each.id, original(each.headers)) for each in found] == [
                    each[:3] for each in expected
                ]
            assert {each.headers["Replayed-From"] for each in back} == {queue}
            first = rows[queue]["first"].replace(microsecond=rows[queue]["first"].microsecond // 1000 * 1000)
            times = sorted(datetime.fromisoformat(each.headers["Replayed-Time"]) for each in back)
            assert times[0] == first
            assert times[-1] <= rows[queue]["latest"]
            assert not any("Replayed-Id" in each.headers for each in back)

        again = pipelines.run("replay", spark, live.data_dir, out, **chosen, **access)
        assert again.summary.startswith("run monday published 0 after 30 earlier of 30 selected messages")
        assert pulled(mq, "copy/1") == pulled(mq, "copy/7") == []
        with pytest.raises(errors.ConfigError, match=r"^run monday has ids='keep', not 'new'; repeat it with its"):
            pipelines.run("replay", spark, live.data_dir, out, **chosen, **access, ids="new")


@pytest.mark.full("28 s; the test before selects messages, and test_moments.py has periods")
def test_a_period_selects_messages_by_their_time(spark: SparkSession, live: Recorded, tmp_path: Path) -> None:
    with sync.connect(live.served.url) as mq:
        moments = []
        for part in range(3):
            mq.publish_many("orders/1", [b"part %d" % part] * (part + 2))
            time.sleep(0.02)
            moments.append(datetime.now(UTC).isoformat())
            time.sleep(0.02)
        written(live, 9)
        counts = {
            ("", ""): 9,
            (moments[0], ""): 7,
            ("", moments[1]): 5,
            (moments[0], moments[1]): 3,
            (moments[2], ""): 0,
            ("1h", "0s"): 9,
            ("2h", "1h"): 0,
        }
        found = {}
        for since, until in counts:
            outcome = pipelines.run("replay", spark, live.data_dir, tmp_path, since=since, until=until)
            found[(since, until)] = outcome.figures["messages"]
        assert found == counts
        targets = {"url": live.served.url, "run": "middle", "to": "target/1"}
        pipelines.run("replay", spark, live.data_dir, tmp_path, since=moments[0], until=moments[1], **targets)
        assert [each.raw for each in pulled(mq, "target/1")] == [b"part 1"] * 3


def made_up() -> list[dict[str, Any]]:
    """Repeated and missing ids, headers of earlier replays and sinks, and bodies that are not recorded."""
    return [
        message(1, b"first", {"A": "b"}, message_id="same", time=at(1)),
        message(2, None, message_id="lost", time=at(2), body_bytes=100),
        message(3, b"second", message_id="same", time=at(3)),
        message(4, b"", message_id=None, time=at(4)),
        message(5, b"\xff\x00", message_id="", time=at(5)),
        message(6, b"again", {"replayed-from": "x/1", "Mqcore-Sink": "other/0/7", "Replayed-Id": "y"}, time=at(6)),
        message(7, b"dead", {"Dead-Letter-Reason": "limit"}, kind="arrived", queue="dead/9", time=at(7)),
        message(8, b"last", message_id="same", queue="orders/7", time=at(8.25), high_priority=True),
    ]


@pytest.mark.full("16 s; the first test compares ids, headers and bodies of a real broker")
def test_ids_headers_and_missing_bodies_of_a_made_history(spark: SparkSession, live: Recorded, tmp_path: Path) -> None:
    data = archive_of(tmp_path / "data", [], made_up())
    access = {"url": live.served.url, "admin": live.served.admin_url, "to": "target/1"}

    outcome = run_whole("replay", spark, data, tmp_path / "dry", DRY, kind="all")
    counted = {"messages": 8, "body_bytes": 26, "not_recorded": 1, "new_ids": 0}
    assert outcome.figures == counted | {"published": 0, "published_before": 0}
    (parts,) = [parts_of(outcome.report, "Replay", f"{data}, beginning to end")]
    assert any("The history has no body of 1 messages; they are not published." in part for part in parts)

    with sync.connect(live.served.url) as mq:
        done = pipelines.run("replay", spark, data, tmp_path / "keep", **access, run="keep")
        assert done.summary == "run keep published 6 of 7 selected messages; 1 have no recorded body"
        back = pulled(mq, "target/1")
        assert sorted(each.raw for each in back) == [b"", b"again", b"first", b"last", b"second", b"\xff\x00"]
        found = {each.raw: each for each in back}
        assert [each.raw for each in back if not each.high_priority] == [
            b"first",
            b"second",
            b"",
            b"\xff\x00",
            b"again",
        ]
        assert found[b"last"].high_priority
        assert {found[body].id for body in (b"first", b"second", b"last")} == {"same"}, "ids may repeat"
        assert len({found[body].id for body in (b"", b"again", b"\xff\x00")} - {"", "same"}) == 3
        assert not any("Replayed-Id" in each.headers for each in back)
        assert original(found[b"first"].headers) == {"A": "b"}
        assert original(found[b"again"].headers) == {}
        assert "Mqcore-Sink" not in found[b"again"].headers, "it names a row of another write"
        assert found[b"again"].headers["Replayed-From"] == "orders/1"
        assert found[b"last"].headers["Replayed-From"] == "orders/7"
        assert found[b"last"].headers["Replayed-Time"] == "2026-11-01T12:00:08.250Z"

        new = pipelines.run("replay", spark, data, tmp_path / "new", **access, run="new", ids="new", kind="arrived")
        assert new.figures["published"] == 1
        (letter,) = pulled(mq, "target/1")
        assert (letter.raw, letter.headers["Dead-Letter-Reason"]) == (b"dead", "limit")
        others = pipelines.run("replay", spark, data, tmp_path / "ids", **access, run="ids", ids="new")
        assert others.figures["new_ids"] == 3
        assert "3 messages get a new id" in self_contained(others.report)
        renewed = {each.raw: (each.id, each.headers.get("Replayed-Id")) for each in pulled(mq, "target/1")}
        assert {body for body, (_, id_) in renewed.items() if id_ == "same"} == {b"first", b"second", b"last"}
        assert len({id_ for id_, _ in renewed.values()} - {"", "same"}) == 6


def test_nothing_is_committed_if_a_destination_is_missing(spark: SparkSession, live: Recorded, tmp_path: Path) -> None:
    data = archive_of(tmp_path / "data", [], made_up())
    options = {"url": live.served.url, "run": "x", "to": "orders/1=target/1,orders/7=nowhere/7"}
    with sync.connect(live.served.url) as mq:
        with pytest.raises(errors.InvalidArgument, match="nowhere/7"):
            pipelines.run("replay", spark, data, tmp_path / "out", **options)
        assert mq.queue("target/1").information().messages == 0
        # So the same run may still get another destination.
        options["to"] = "orders/1=target/1,orders/7=target/2"
        assert pipelines.run("replay", spark, data, tmp_path / "out", **options).figures["published"] == 6
        assert (len(pulled(mq, "target/1")), len(pulled(mq, "target/2"))) == (5, 1)


def test_rate_limits_the_messages_per_second(spark: SparkSession, live: Recorded, tmp_path: Path) -> None:
    data = archive_of(tmp_path / "data", [], [message(n, b"%d" % n, time=at(n)) for n in range(150)])
    shown: list[tuple[str, int, int]] = []
    began: list[float] = []

    def progress(*place: Any) -> None:
        if place[0].startswith("published"):
            began.append(time.monotonic())
            shown.append(place)

    options = {"url": live.served.url, "run": "slow", "to": "target/1", "rate": 100.0}
    pipelines.run("replay", spark, data, tmp_path / "out", **options, progress=progress)
    # Windows of a tenth of a second, and a pause after each: 15 windows take 1.5 s.
    assert [place[1:] for place in shown] == [(n, 150) for n in range(0, 151, 10)]
    for number, moment in enumerate(began):
        assert moment - began[0] >= (number - 1) / 10 - 0.01
    with sync.connect(live.served.url) as mq:
        assert [each.raw for each in pulled(mq, "target/1")] == [b"%d" % n for n in range(150)]


class Interrupted(Exception):
    """Raised in the middle of a replay."""


@pytest.mark.parametrize("recorded_progress", sample("interrupted replays", [True, False]))
def test_an_interrupted_replay_continues_after_its_last_message(
    recorded_progress: bool, spark: SparkSession, live: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops behind a window whose progress is saved, or not yet: then the history says what is published."""
    from mqcore.spark.ledger import Ledger

    bodies = [b"%d" % n for n in range(300)]
    data = archive_of(tmp_path / "data", [], [message(n, body, time=at(n)) for n, body in enumerate(bodies)])
    options = {"url": live.served.url, "admin": live.served.admin_url, "run": "r", "to": "target/1", "rate": 500.0}

    def progress(what: str, done: int, _known: int) -> None:
        if recorded_progress and what.startswith("published") and done >= 100:
            raise Interrupted

    advance = Ledger.advance

    def stop(ledger: Ledger, number: int, published: int) -> None:
        if not recorded_progress and published >= 100:
            raise Interrupted
        advance(ledger, number, published)

    monkeypatch.setattr(Ledger, "advance", stop)
    with pytest.raises(Interrupted):
        pipelines.run("replay", spark, data, tmp_path / "out", **options, progress=progress)
    monkeypatch.undo()
    with sync.connect(live.served.url) as mq:
        there = mq.queue("target/1").information().messages
        assert there == 100, "both stop after the second window"
        done = pipelines.run("replay", spark, data, tmp_path / "out", **options)
        before = 100 if recorded_progress else 50
        assert (done.figures["published"], done.figures["published_before"]) == (300 - before, before)
        assert [each.raw for each in pulled(mq, "target/1")] == bodies


ROUNDS = rounds("REPLAY", quick=1, full=5)


@pytest.mark.timeout(300 + 200 * ROUNDS)
@pytest.mark.full("starts Spark anew after each kill; the test before interrupts a replay in this process")
@pytest.mark.skipif(sys.platform != "linux", reason="kills a group of processes")
def test_no_message_is_lost_or_doubled_if_the_command_is_killed(live: Recorded, tmp_path: Path) -> None:
    java_or_skip()
    count, chance = 3000, choices(__name__)
    with sync.connect(live.served.url) as mq:
        live.publish(mq, "orders/1", count)
        written(live, count)
        killed = 0
        for number in range(ROUNDS):
            process = start(live, tmp_path / "out")
            goal = mq.queue("target/1").information().messages + chance.randrange(count // (ROUNDS + 2))
            wait_until(
                lambda at=goal, job=process: mq.queue("target/1").information().messages > at or job.poll() is not None,
                limit=200,
                what="messages",
            )
            time.sleep(chance.random() / 10)
            killed += process.poll() is None
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            there = mq.queue("target/1").information().messages
            print(f"round {number + 1} of {ROUNDS}: killed with {there} of {count} messages there", flush=True)
        assert killed == ROUNDS
        assert 0 < mq.queue("target/1").information().messages < count
        last = start(live, tmp_path / "out")
        stdout, stderr = last.communicate(timeout=200)
        assert last.returncode == 0, stderr
        printed = json.loads(stdout)
        assert printed["schema"] == "mqcore.pipeline.run/1"
        assert printed["figures"]["messages"] == count
        back = pulled(mq, "target/1")
        assert Counter(each.raw for each in back) == Counter(live.bodies["orders/1"])
        assert [each.raw for each in back] == live.bodies["orders/1"]


def start(live: Recorded, out: Path) -> subprocess.Popen[str]:
    place = ["--journal", str(live.data_dir), "--out", str(out), "--master", "local[2]", "--json"]
    what = ["--where", "queue = 'orders/1'", "--to", "target/1", "--rate", "1000", "--run", "killed"]
    access = ["--url", live.served.url, "--admin", live.served.admin_url]
    return subprocess.Popen(
        [sys.executable, "-m", "mqcore", "pipeline", "replay", *place, *what, *access],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
        start_new_session=True,
    )


def test_the_command_counts_and_publishes(
    spark: SparkSession,
    live: Recorded,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(type(spark), "stop", lambda _session: None)
    data = archive_of(tmp_path / "data", [], made_up())
    place = ["pipeline", "replay", "--journal", str(data), "--out", str(tmp_path / "out"), "--json"]
    assert run([*place, "--where", "body_bytes > 4 AND queue = 'orders/1'", "--dry-run"]) == 0
    printed, talk = capsys.readouterr()
    content = json.loads(printed)
    assert (content["schema"], content["name"], content["ok"]) == ("mqcore.pipeline.run/1", "replay", True)
    assert (content["figures"]["messages"], content["figures"]["published"]) == (4, 0)
    assert "replay: messages" in talk

    assert run(["--url", live.served.url, *place, "--to", "target/2", "--run", "x", "--rate", "0"]) == 0
    printed, talk = capsys.readouterr()
    assert json.loads(printed)["figures"]["published"] == 6
    assert "replay: published 100 %" in talk
    assert "no --admin: if this run is killed" in talk

    # The same run continues once its queue is there.
    arguments = ["--url", live.served.url, *place, "--to", "nowhere/3", "--run", "y"]
    assert run(arguments) == 3
    assert "nowhere/3" in capsys.readouterr().err
    with sync.connect(live.served.url) as mq:
        declare(mq, "nowhere/3")
    assert run(arguments) == 0
    assert json.loads(capsys.readouterr()[0])["figures"]["published"] == 6


def test_wrong_options_are_errors_with_the_reason_first(spark: SparkSession, tmp_path: Path) -> None:
    data = archive_of(tmp_path / "data", [], made_up())
    cases: list[tuple[dict[str, Any], str]] = [
        (
            {"where": "chanel = 'x'"},
            r"^where is invalid: A column.*`chanel` cannot be resolved.*it can use time, kind,",
        ),
        ({"where": "queue ="}, r"^where is invalid: .*; it can use time, kind,"),
        ({"where": "body_bytes"}, r"^where is invalid: .*; it can use time"),
        ({"where": "cast(queue AS int) = 1"}, r"^where fails on a message: The value 'orders/.' of the type"),
        ({"since": "yesterday"}, r"^since is an invalid time 'yesterday'; use ISO 8601"),
        ({"since": "2026-11-02", "until": "2026-11-01"}, r"^since 2026-11-02 is not before until 2026-11-01; exchange"),
        ({"kind": "acked"}, r"^kind must be one of produced, arrived, all, not 'acked'$"),
        ({"ids": "old"}, r"^ids must be one of keep, new, not 'old'$"),
        ({"rate": -1.0}, r"^rate must be at least 0 messages per second, not -1.0$"),
        ({"url": "tmqp://x"}, r"^url and run belong together; set both \(broker and a name\) or none to only count$"),
        ({"run": "x"}, r"^url and run belong together"),
        ({"run": "x", "url": "mqks://x"}, r"^url is 'mqks://x', but messages are published over TMQP; use tmqp://HOST"),
        ({"run": "../x", "url": "tmqp://x"}, r"^run must have 1 to 64 letters, digits, dots, dashes and underscores"),
        ({"to": "a b/70000"}, r"^to has an invalid queue 'a b/70000'; use CHANNEL/ID"),
        ({"to": "a/1=b/1,c/1"}, r"^to has 'c/1' between pairs; use QUEUE=QUEUE, or one queue alone$"),
        ({"to": "a/1=b/1,A/1=c/1"}, r"^to names the queue 'A/1' twice; a queue has one destination$"),
    ]
    for options, reason in cases:
        with pytest.raises(errors.ConfigError, match=reason):
            pipelines.run("replay", spark, data, tmp_path / "out", **options)


def test_destinations_are_the_same_in_python_and_in_spark(spark: SparkSession) -> None:
    queues = ["orders/1", "Orders/1", "logs/2", "x/0"]
    for text, expected in {
        "": queues,
        "copy": ["copy/0"] * 4,
        "copy/7": ["copy/7"] * 4,
        "orders/1=a/1, x=b": ["a/1", "a/1", "logs/2", "b/0"],
    }.items():
        destinations = Destinations.parse(text)
        assert [destinations.of(queue) for queue in queues] == expected
        rows = spark.createDataFrame([(queue,) for queue in queues], "queue string").coalesce(1)
        assert [row[0] for row in rows.select(destinations.column()).collect()] == expected
