"""Use by key and window of made-up producers, and of a real one, against a model in plain Python."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mqcore import QueueOptions, QueueStatus, errors, sync
from mqcore.spark import pipelines
from mqcore.spark.pipelines.report import Series, bars, lines, table, tiles
from mqcore.throttr import SyncClient, Unit
from served import serving, wait_until
from spark.eventful import Eventful, recorded_messages
from spark.made import START, archive_of, at
from spark.made import step as made
from spark.outcomes import in_order, ordered, parts_of, quantile, rows_of, run_whole, self_contained
from spark.recorded import HISTORY, IN_TURN, LENIENT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [*LENIENT, IN_TURN]

STEPS = ("windows", "keys", "report")
TABLE = ("key", "windows", "messages", "body_bytes", "most", "p50", "p99", "over", "windows_over", "refused_copies")
TABLE += ("suggested",)
FIRST = int(START.timestamp())
NO_ADMIN = (
    '<p class="say good">The history does not have messages that the broker refused. To see refusals by publish_limit '
    "and message_limit, guards and Throttr keys, set the option admin to the URL of the broker&#x27;s admin side.</p>"
)


def producer(name: str | None, id: str | None) -> dict[str, Any]:  # noqa: A002
    return {"producer_name": name, "producer_id": id}


def history() -> list[dict[str, Any]]:
    """Eight busy producers, of which the third exceeds a limit of 5 most, and more keys than the report's table has."""
    steps = [made("started"), made("delivered", 1, **producer("p0", "0"), body_bytes=9)]
    for number, counts in enumerate(((3, 4, 2, 6), (6, 5), (11,), (5, 2), (1, 1, 1, 1, 1), (4,), (4,), (2,))):
        for index, count in enumerate(counts):
            # The last second of the history is 480 s behind the first one.
            second = 480 if number == 0 and index == 3 else 7 * index
            for each in range(count):
                steps.append(
                    made(
                        "produced",
                        len(steps),
                        **producer(f"p{number}", str(number)),
                        body_bytes=10 * number + each,
                        time=at(second + each / 20),
                        queue=f"queue/{number % 2}",
                        shard=number % 2,
                    )
                )
    steps.append(made("produced", 500, **producer("", "nameless"), body_bytes=1, time=at(3)))
    steps.append(made("produced", 501, **producer(None, ""), body_bytes=2, time=at(3.999999)))
    steps += [made("produced", 600 + n, **producer(f"q{n:03}", "q"), body_bytes=0, time=at(1)) for n in range(100)]
    # Copies that a queue refused, one that was dropped after its attempts, and one that was dropped for another reason.
    for number, (reason, attempt) in enumerate((("limit", 0), ("limit", None), ("limit", 3), ("duplicate", 0))):
        of: dict[str, Any] = {**producer("p5", "5"), "reason": reason, "attempt": attempt, "last": True}
        steps.append(made("dropped", 900 + number, **of, queue="queue/0"))
    return steps


def windows_of(steps: list[dict[str, Any]], by: str, window: int) -> dict[tuple[str, int], tuple[int, int]]:
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for step in steps:
        if step["kind"] == "produced":
            name, id_ = step.get("producer_name") or None, step.get("producer_id") or "-"
            key = {"client": name or id_, "id": id_, "queue": step["queue"]}[by]
            place = (key, int(step["time"].timestamp()) // window * window)
            messages, size = found.get(place, (0, 0))
            found[place] = (messages + 1, size + step["body_bytes"])
    return found


def refused_of(steps: list[dict[str, Any]], by: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for step in steps:
        if step["kind"] == "dropped" and step.get("reason") == "limit" and not step.get("attempt"):
            name, id_ = step.get("producer_name") or None, step.get("producer_id") or "-"
            found[{"client": name or id_, "id": id_, "queue": step["queue"]}[by]] += 1
    return found


def keys_of(
    windows: dict[tuple[str, int], tuple[int, int]], refused: Counter[str], limit: int, headroom: float
) -> dict[str, tuple[int | float | str, ...]]:
    """Rows of the table ``keys``, busiest first."""
    of: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for (key, _), figures in windows.items():
        of[key].append(figures)
    found = {}
    for key, rows in sorted(of.items(), key=lambda pair: (-sum(each[0] for each in pair[1]), pair[0])):
        counts = [each[0] for each in rows]
        over = [count - limit for count in counts if limit and count > limit]
        p99 = quantile(counts, 0.99)
        found[key] = (
            *(key, len(rows), sum(counts), sum(each[1] for each in rows), max(counts), quantile(counts, 0.5), p99),
            *(sum(over), len(over), refused[key], math.ceil(p99 * headroom)),
        )
    return found


def check(
    spark: SparkSession, data: Path, out: Path, steps: list[dict[str, Any]], *, width: int, **options: Any
) -> list[str]:
    """Compare everything; the curves have a point for each `width` seconds. Return the parts of the report."""
    by, window, limit = options.get("by", "client"), options.get("window", 60), options.get("limit", 0)
    outcome = run_whole("limits", spark, data, out, STEPS, **options)
    windows = windows_of(steps, by, window)
    keys = keys_of(windows, refused_of(steps, by), limit, options.get("headroom", 1.5))
    assert ordered(outcome.tables["windows"], "key", "start", "messages", "body_bytes") == in_order(
        ((key, datetime.fromtimestamp(start, UTC), *figures) for (key, start), figures in windows.items())
    )
    assert ordered(outcome.tables["keys"], *TABLE) == in_order(keys.values())
    assert ordered(outcome.tables["refusals"]) == ordered(outcome.tables["throttr"]) == []
    messages, over, copies = (sum(row[place] for row in keys.values()) for place in (2, 7, 9))
    figures = {"keys": len(keys), "messages": messages, "over": over, "refused_copies": copies}
    assert outcome.figures == figures
    more = f"; {limit:,} in {window} s would have rejected {over}" if limit else ""
    more += f"; queues refused {copies} copies" if copies else ""
    assert outcome.summary == f"{messages} messages of {len(keys)} keys{more}"

    first, last = min(start for _, start in windows), max(start for _, start in windows)
    grid = range(first, last + 1, width)
    peaks: Counter[tuple[str, int]] = Counter()
    named = {key: key if index < 6 else f"most of {len(keys) - 6} other keys" for index, key in enumerate(keys)}
    for (key, start), (count, _) in windows.items():
        place = (named[key], first + (start - first) // width * width)
        peaks[place] = max(peaks[place], count)
    shown = dict.fromkeys(named.values())
    curves = [Series(name, [(moment, float(peaks[(name, moment)])) for moment in grid]) for name in shown]
    if limit:
        curves.append(Series(f"limit {limit:,}", [(first, limit), (max(last, first + 1), limit)]))
    expected = [
        tiles(*((name.replace("_", " "), count) for name, count in figures.items() if name != "over" or limit)),
        NO_ADMIN,
        lines("Use", f"messages in {window} s", curves, times=True),
    ]
    if limit:
        above = sorted(((key, row[7]) for key, row in keys.items() if row[7]), key=lambda pair: -pair[1])
        none = "No message would have been rejected."
        expected.append(bars("Messages that would have been rejected", "messages", above, otherwise=none))
    places = [place for place, name in enumerate(TABLE) if name != "windows_over" and (name != "over" or limit)]
    # The number of refused copies comes before what a limit would have rejected.
    places = sorted(places, key=lambda place: (TABLE[place] == "suggested", TABLE[place] == "over", place))
    rows = [[row[place] for place in places] for row in list(keys.values())[:100]]
    expected.append(table("Keys", [TABLE[place].replace("_", " ") for place in places], rows, of=len(keys)))
    parts = parts_of(outcome.report, "Limits", f"{data}, by {by} and {window} s")
    assert parts == expected
    return parts


def test_use_refusals_and_quotas_are_those_of_the_model(spark: SparkSession, tmp_path: Path) -> None:
    steps = history()
    data = archive_of(tmp_path / "data", steps, shards=2)
    parts = check(spark, data, tmp_path / "a", steps, width=3, window=1, limit=5)
    assert [f"<title>{each.partition('</title>')[0]}" for each in parts[3].split("<title>")[1:]] == [
        "<title>p2: 6 messages",
        "<title>p0: 1 messages",
        "<title>p1: 1 messages",
    ]
    check(spark, data, tmp_path / "b", steps, width=3600, by="queue", window=3600, limit=1000, headroom=1)
    check(spark, data, tmp_path / "c", steps, width=60, by="id")


def test_use_of_a_real_producer_is_counted_by_its_name(spark: SparkSession, eventful: Eventful, tmp_path: Path) -> None:
    steps = [step for life in eventful.lives().values() for step in life]
    seconds = [int(step["time"].timestamp()) for step in steps if step["kind"] == "produced"]
    width = -(-(max(seconds) - min(seconds) + 1) // 240)
    check(spark, eventful.data_dir, tmp_path, steps, width=width, window=1, limit=50)


def test_a_history_without_producers_has_no_keys(spark: SparkSession, tmp_path: Path) -> None:
    data = archive_of(tmp_path / "data", [made("started")])
    outcome = run_whole("limits", spark, data, tmp_path / "out", STEPS)
    assert ordered(outcome.tables["windows"]) == ordered(outcome.tables["keys"]) == []
    assert parts_of(outcome.report, "Limits", f"{data}, by client and 60 s") == [
        tiles(("keys", 0), ("messages", 0), ("refused copies", 0)),
        NO_ADMIN,
        '<p class="say">The history is empty: no message was published.</p>',
    ]
    with pytest.raises(errors.ConfigError, match="by must be one of client, id, queue, not 'colour'"):
        pipelines.run("limits", spark, data, tmp_path, by="colour")
    for wrong in ({"window": 0}, {"limit": -1}, {"headroom": 0.99}):
        with pytest.raises(errors.ConfigError, match="window must be at least 1 s, limit at least 0, headroom at"):
            pipelines.run("limits", spark, data, tmp_path, **wrong)


def test_refusals_by_limits_of_queues_guards_and_throttr_are_shown(spark: SparkSession, tmp_path: Path) -> None:
    listeners = ("--listen", "tmqp://127.0.0.1:0", "--listen", "throttr://127.0.0.1:0?value=uint64&metrics=on")
    arguments = ("--data-dir", str(tmp_path / "data"), "--admin", "http://127.0.0.1:0", *listeners)
    environment = {**HISTORY, "MQCORE_PUBLISH_LIMIT": "20/h"}
    with serving(*arguments, environment=environment) as served:
        with sync.connect(served.url, name="hasty") as mq:
            mq.declare("slow", 1, QueueOptions(status=QueueStatus.PULL, publish_limit="3/h"))
            mq.declare("small", 1, QueueOptions(status=QueueStatus.PULL, message_limit=2))
            refused: Counter[str] = Counter()
            for queue, count in (("slow/1", 7), ("small/1", 6), ("slow/1", 20)):
                for _ in range(count):
                    try:
                        mq.publish(queue, b"x")
                    except errors.MqcoreError as error:
                        refused["guard" if "publish limit reached" in str(error) else queue] += 1
        # Of 33 messages, 20 pass the guard: 3 of the first 7, 2 of the next 6, and none of 7 more.
        assert refused == {"slow/1": 4 + 7, "small/1": 4, "guard": 13}
        throttr = f"throttr://{served.ready['listeners']['throttr']}?value=uint64"
        with SyncClient(throttr) as client:
            client.insert("user:7", 5, 600, unit=Unit.SECONDS)
            for _ in range(8):
                client.decrease("user:7", 1)
        wait_until(lambda: recorded_messages(tmp_path / "data") == 5, limit=60, what="the history")
        outcome = run_whole(
            "limits", spark, tmp_path / "data", tmp_path / "out", ("refusals", *STEPS), admin=served.admin_url
        )
    assert rows_of(outcome.tables["refusals"]) == [
        {"by": "guard", "subject": "each client", "limits": "publish_limit", "refused": 13},
        {"by": "queue", "subject": "slow/1", "limits": "publish_limit 3/h", "refused": 11},
        {"by": "queue", "subject": "small/1", "limits": "message_limit 2", "refused": 4},
        {"by": "throttr", "subject": "all keys", "limits": "quotas", "refused": 3},
    ]
    (key,) = rows_of(outcome.tables["throttr"])
    assert (key["key"], key["kind"], key["left"]) == ("user:7", "counter", 0)
    assert 0 < key["expires_in_seconds"] <= 600
    assert outcome.figures == {
        "keys": 1,
        "messages": 5,
        "over": 0,
        "refused_copies": 0,
        "throttr_keys": 1,
        "refused_by_queues": 15,
        "refused_by_guards": 13,
        "refused_by_throttr": 3,
    }
    assert outcome.summary == (
        "5 messages of 1 keys; refused since the broker started: 15 by queues, 13 by guards, 3 by Throttr"
    )
    page = self_contained(outcome.report)
    for shown in ("slow/1: publish_limit 3/h: 11 refusals", "small/1: message_limit 2: 4 refusals", "user:7"):
        assert shown in page
    with pytest.raises(errors.ConnectFailed):
        pipelines.run("limits", spark, tmp_path / "data", tmp_path / "out", admin="http://127.0.0.1:1")
