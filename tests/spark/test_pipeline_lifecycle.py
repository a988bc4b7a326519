"""Rates, latencies and losses of made-up messages, and of those of a real broker, against a model in plain Python."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mqcore import errors
from mqcore.spark import pipelines
from mqcore.spark.pipelines.report import Series, bars, lines, table, tiles
from spark.eventful import Eventful
from spark.fates import FATES, LOSSES, PRESENT, columns, lives_of
from spark.made import archive_of, at
from spark.made import step as made
from spark.outcomes import in_order, ordered, parts_of, quantile, rows_of, run_whole
from spark.recorded import IN_TURN, LENIENT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [*LENIENT, IN_TURN]

STEPS = ("lives", "losses", "intervals", "report")
COUNTED = ("produced", "arrived", "delivered", "acked", "nacked", "timed-out", "consumer-lost", "put-back")
EVENTS = ("produced", "arrived", "delivered", "acks", "nacked", "timed_out", "consumer_lost", "put_back")
RESULTS = tuple(fate for fate in FATES if fate not in PRESENT)
COUNTS = (*EVENTS, "redelivered", "body_bytes", *columns(RESULTS))
QUANTILES = tuple(f"{what}_{name}" for what in ("delivery", "ack") for name in ("p50", "p95", "p99"))
TABLE = ("queue", "produced", "arrived", "acked", "lost", "dropped", "expired", "failed", "dead_lettered")
TABLE += ("delivered", "redelivered", "delivery_p50", "delivery_p99", "ack_p50", "ack_p99")
OTHERS = ("expired", "dead-lettered", "replaced", "saved", "done")
TOO_LOW = "are missing, so the counts are too low."
SECONDS = (0, 0.0009, 0.9989999, 0.999, 1, 1.2349999, 9.999, 10, 12.3456, 123.456, -0.005, 1000)
"""Latencies around the limits of their digits; the clock went back for one."""


def history() -> list[dict[str, Any]]:
    """More queues than a report shows, over 1200 s, and every kind of event."""
    steps = [made("started"), made("gap", missing=3)]
    for number, seconds in enumerate(SECONDS):
        entry, again = ("arrived", 0.01) if number % 3 == 0 else ("produced", 0)
        of: dict[str, Any] = {"queue": "slow/1", "shard": number % 2, "body_bytes": 7}
        steps += [
            made(entry, number, **of, time=at(number)),
            made("produced", number, **of, time=at(number + again)),
            made("delivered", number, **of, time=at(number + seconds), attempt=1),
            made("delivered", number, **of, time=at(number + seconds + 0.05), attempt=2),
            made("acked", number, **of, time=at(number + seconds + seconds / 2), last=True),
            made("acked", number, **of, time=at(number + seconds + seconds), last=True),
        ]
    # The same number in another queue or shard is another message.
    steps.append(made("acked", 4, queue="slow/1", shard=1, time=at(99)))
    steps.append(made("delivered", 4, queue="fast/1", time=at(5)))
    for number in range(60):
        place: dict[str, Any] = {"queue": f"many/{number:02}", "body_bytes": number, "shard": 1}
        steps += [made("produced", 100 + each, **place, time=at(20 * number)) for each in range(1 + number % 9)]
    steps.append(made("produced", 300, queue="many/00", time=at(1200), body_bytes=None))
    for index, kind in enumerate((*COUNTED[2:], *OTHERS)):
        for each in range(index + 2):
            place = {"queue": "kinds/1", "time": at(40 * each + 0.5), "last": each % 2 == 0, "body_bytes": 100}
            steps.append(made(kind, 400 + each, **place, reason=None if each == 1 else "expired", attempt=each))
    for index, (reason, last) in enumerate(
        [("slow", True), ("slow", None), ("slow", False), (None, True), ("limit", True), ("limit", True)]
    ):
        steps.append(made("dropped", 500 + index, queue="kinds/1", time=at(50 + index), reason=reason, last=last))
    # Two restarts of a shard: one message is lost at the first, one at the second, and one was restored.
    memory: dict[str, Any] = {"queue": "memory/1", "shard": 2}
    steps += [made("produced", number, **memory, time=at(100)) for number in (600, 601)]
    steps += [made("started", time=at(110), shard=2), made("restored", 601, **memory, time=at(110))]
    steps.append(made("produced", 602, **memory, time=at(120)))
    steps += [made("started", time=at(130), shard=2), made("restored", 602, **memory, time=at(130))]
    return [*steps, made("acked", 602, **memory, time=at(140), last=True)]


def rounded(ms: int) -> int:
    digits = 10 ** max(0, len(str(ms)) - 3)
    return ms // digits * digits


def second(moment: datetime, interval: int) -> int:
    return int(moment.timestamp()) // interval * interval


def latencies_of(steps: Iterable[Mapping[str, Any]], interval: int) -> Counter[tuple[str, int, str, int]]:
    lives: defaultdict[tuple[Any, ...], dict[str, datetime]] = defaultdict(dict)
    for step in steps:
        kind = "entered" if step["kind"] in {"produced", "arrived"} else step["kind"]
        life = lives[(step.get("shard", 0), step["number"], step["queue"])]
        life[kind] = min(life.get(kind, step["time"]), step["time"])
    found: Counter[tuple[str, int, str, int]] = Counter()
    for (_, _, queue), life in lives.items():
        for what, begin, end in (("delivery", "entered", "delivered"), ("ack", "delivered", "acked")):
            if begin in life and end in life:
                took = life[end] - life[begin]
                ms = max(0, (took.days * 86_400 + took.seconds) * 1000 + took.microseconds // 1000)
                found[(queue, second(life[end], interval), what, rounded(ms))] += 1
    return found


def losses_of(steps: Sequence[Mapping[str, Any]], interval: int) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for life in lives_of(steps):
        if life.fate[0] in LOSSES:
            assert life.ended is not None
            found[(life.queue, second(life.ended, interval), *life.fate)] += life.results
    for step in steps:
        if step["kind"] == "dropped" and not step["last"]:
            found[(step["queue"], second(step["time"], interval), "missed", step.get("reason"))] += 1
    return found


def counts_of(steps: Sequence[Mapping[str, Any]], interval: int) -> dict[tuple[str, int], Counter[str]]:
    found: defaultdict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for step in steps:
        kind = step["kind"]
        if step["queue"] is not None and kind in COUNTED:
            row = found[(step["queue"], second(step["time"], interval))]
            row["acks" if kind == "acked" else kind.replace("-", "_")] += 1
            row["redelivered"] += kind == "delivered" and (step.get("attempt") or 0) > 1
            row["body_bytes"] += (step.get("body_bytes") or 0) if kind in {"produced", "arrived"} else 0
    for life in lives_of(steps):
        if life.ended is not None:
            found[(life.queue, second(life.ended, interval))][life.fate[0].replace("-", "_")] += life.results
    return found


def quantiles_of(latencies: Counter[tuple[str, int, str, int]], queue: str, start: int | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for what in ("delivery", "ack"):
        took = [
            ms
            for (of, begin, which, ms), count in latencies.items()
            for _ in range(count)
            if (of, which) == (queue, what) and start in {None, begin}
        ]
        for name, wanted in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            found[f"{what}_{name}"] = quantile(took, wanted) if took else None
    return found


def check(
    spark: SparkSession, data: Path, out: Path, steps: list[dict[str, Any]], interval: int, missing: int
) -> pipelines.Outcome:
    """Compare everything with the model."""
    outcome = run_whole("lifecycle", spark, data, out, STEPS, interval=interval)
    latencies, losses, counts = (each(steps, interval) for each in (latencies_of, losses_of, counts_of))
    starts = {start for _, start in counts} | {place[1] for place in losses}
    moments = {start: datetime.fromtimestamp(start, UTC) for start in starts}
    assert ordered(outcome.tables["latencies"], "queue", "start", "what", "ms", "messages") == in_order(
        ((queue, moments[start], what, ms, count) for (queue, start, what, ms), count in latencies.items())
    )
    assert ordered(outcome.tables["losses"], "queue", "start", "fate", "reason", "messages") == in_order(
        ((queue, moments[start], *why, count) for (queue, start, *why), count in losses.items())
    )
    lives = lives_of(steps)
    fates = Counter((life.queue, life.fate[0]) for life in lives for _ in range(life.results))
    earlier = Counter((life.queue, life.fate[0]) for life in lives if not life.entered)
    assert ordered(outcome.tables["fates"], "queue", "fate", "messages", "earlier") == in_order(
        ((*place, count, earlier[place]) for place, count in fates.items())
    )
    quantiles = {place: quantiles_of(latencies, *place) for place in counts}
    assert ordered(outcome.tables["intervals"], "queue", "start", *COUNTS, *QUANTILES) == in_order(
        (
            (queue, moments[start], *(row[name] for name in COUNTS), *quantiles[(queue, start)].values())
            for (queue, start), row in counts.items()
        )
    )
    queues: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for (queue, _), row in counts.items():
        queues[queue].update({name: row[name] for name in (*EVENTS, "redelivered", "body_bytes")})
    for (queue, fate), count in fates.items():
        queues[queue][fate.replace("-", "_")] += count
    for (queue, _), count in earlier.items():
        queues[queue]["earlier"] += count
    names = (*EVENTS, "redelivered", "earlier", *columns(FATES))
    total = {name: sum(row[name] for row in queues.values()) for name in names}
    assert outcome.figures == total
    everything, present = sum(fates.values()), sum(total[name] for name in columns(PRESENT))
    lost = sum(total[name] for name in columns(LOSSES)) - total["dead_lettered"]
    entered = total["produced"] + total["arrived"] + total["earlier"]
    assert outcome.summary == (
        f"{entered:,} messages in {len(queues)} queues, {total['acked']} acked, {total['redelivered']} redeliveries, "
        f"{total['dead_lettered']} dead-lettered, {lost} lost, {present} still there"
    )
    busiest = sorted(queues, key=lambda queue: (-queues[queue]["produced"] - queues[queue]["arrived"], queue))
    rows = [[{"queue": q, **queues[q], **quantiles_of(latencies, q, None)}.get(n, 0) for n in TABLE] for q in busiest]
    headings = [name.replace("_", " ") + (" ms" if "_p" in name else "") for name in TABLE]
    why = Counter[tuple[str, str | None]]()
    for (_, _, kind, reason), count in losses.items():
        why[(kind, reason)] += count
    reasons = sorted(why.items(), key=lambda pair: (-pair[1], pair[0][0], pair[0][1] or ""))
    named = [(f"{kind}: {reason or '-'}", count) for (kind, reason), count in reasons]
    shown = [name for name in ("arrived", "earlier", *columns(FATES)) if total[name]]
    gone = f'<p class="say">{total["lost"]} messages were in memory only, and a restart of the broker lost them.</p>'
    assert everything == sum(total[name] for name in columns(FATES))
    assert parts_of(outcome.report, "Lifecycle", f"{data}, by {interval} s") == [
        tiles(*((name.replace("_", " "), total[name]) for name in ("produced", *shown))),
        *([f'<p class="say">{missing} records of the history {TOO_LOW}</p>'] if missing else []),
        *([gone] if total["lost"] else []),
        *curves_of(counts, quantiles, busiest, interval),
        bars("Losses by reason", "messages", named, otherwise="No message was lost."),
        table("Queues", headings, rows[:200], of=len(rows)),
    ]
    return outcome


def curves_of(
    counts: Mapping[tuple[str, int], Counter[str]],
    quantiles: Mapping[tuple[str, int], Mapping[str, Any]],
    busiest: list[str],
    interval: int,
) -> list[str]:
    """The four pictures."""
    first, last = min(start for _, start in counts), max(start for _, start in counts)
    width = interval * math.ceil((last - first + interval) / interval / 240)
    rest = f"{len(busiest) - 6} other queues"
    named = {queue: queue if index < 6 else rest for index, queue in enumerate(busiest)}
    rates: dict[str, Counter[tuple[str, int]]] = {"came": Counter(), "acked": Counter()}
    slowest: dict[str, dict[tuple[str, int], float]] = {"delivery": {}, "ack": {}}
    for (queue, start), row in counts.items():
        place = (named[queue], first + (start - first) // width * width)
        rates["came"][place] += row["produced"] + row["arrived"]
        rates["acked"][place] += row["acked"]
        for what, of in slowest.items():
            took = quantiles[(queue, start)][f"{what}_p99"]
            if took is not None:
                of[place] = max(of.get(place, 0.0), took)
    grid, curves = range(first, last + 1, width), list(dict.fromkeys(named.values()))

    def rate(what: str) -> list[Series]:
        return [Series(name, [(each, rates[what][(name, each)] / width) for each in grid]) for name in curves]

    def time(what: str) -> list[Series]:
        return [Series(name, [(each, slowest[what].get((name, each))) for each in grid]) for name in curves]

    return [
        lines("Published to queues", "messages/s", rate("came"), times=True),
        lines("Acknowledged", "messages/s", rate("acked"), times=True),
        lines("Time to the first delivery, 99th percentile", "ms", time("delivery"), times=True),
        lines("Time from delivery to acknowledgement, 99th percentile", "ms", time("ack"), times=True),
    ]


@pytest.mark.full("runs the pipeline often; the next test compares a real broker with the same model")
def test_rates_latencies_and_losses_are_those_of_the_model(spark: SparkSession, tmp_path: Path) -> None:
    steps = history()
    data = archive_of(tmp_path / "data", steps, shards=3, missing=2, together=True)
    outcome = check(spark, data, tmp_path / "seconds", steps, 1, 6)
    assert outcome.figures["put_back"] == COUNTED.index("put-back")
    assert (outcome.figures["dropped"], outcome.figures["lost"]) == (4, 2)
    ended = [row["start"] for row in rows_of(outcome.tables["losses"]) if row["fate"] == "lost"]
    assert ended == [at(110), at(130)], "each restart loses what was in memory then"
    check(spark, data, tmp_path / "hours", steps, 3600, 6)


def test_a_real_broker_records_what_the_model_expects(spark: SparkSession, eventful: Eventful, tmp_path: Path) -> None:
    steps = sorted(eventful.steps(), key=lambda row: (row["note"], row["position"]))
    outcome = check(spark, eventful.data_dir, tmp_path, steps, 1, 0)
    assert outcome.figures["produced"] == 469 - eventful.dead
    # The cache had its last message in memory, too.
    assert outcome.figures["lost"] == eventful.in_memory + 1
    assert outcome.figures["redelivered"] > 0
    assert sum(row["messages"] for row in rows_of(outcome.tables["latencies"])) > 600


@pytest.mark.full("5 s; test_pipeline_reconcile.py reads a history without messages")
def test_an_empty_history_has_no_rates(spark: SparkSession, tmp_path: Path) -> None:
    data = archive_of(tmp_path / "data", [made("started")])
    outcome = run_whole("lifecycle", spark, data, tmp_path / "out", STEPS)
    assert [ordered(outcome.tables[name]) for name in ("latencies", "fates", "losses", "intervals")] == [[]] * 4
    assert set(outcome.figures.values()) == {0}
    assert parts_of(outcome.report, "Lifecycle", f"{data}, by 60 s")[1:] == [
        '<p class="say">The history is empty: no message was published.</p>'
    ]
    with pytest.raises(errors.ConfigError, match="interval must be at least 1 second, not 0"):
        pipelines.run("lifecycle", spark, data, tmp_path, interval=0)
