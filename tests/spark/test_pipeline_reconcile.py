"""The fate of every message of made-up histories, and of a real one, against a model in plain Python."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqcore.spark import pipelines
from mqcore.spark.pipelines.report import bars, table, tiles
from spark.eventful import Eventful
from spark.fates import FATES, KINDS, PRESENT, REASONS, columns, lives_of
from spark.made import archive_of
from spark.made import step as made
from spark.outcomes import in_order, ordered, parts_of, rows_of, run_whole, self_contained
from spark.recorded import LENIENT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = LENIENT

STEPS = ("starts and gaps", "lives", "report")
NAMING = (*STEPS[:-1], "names of unaccounted messages", "report")
BALANCE = ("queue", "entered", "earlier", *columns(FATES), "difference", "unaccounted")
SUSPECT = ("queue", "shard", "number", "message_id", "what", "entered", "left")


def life(
    number: int,
    *kinds: str,
    id: str | None = None,  # noqa: A002
    queue: str = "orders/1",
    shard: int = 0,
    reason: str | None = None,
) -> list[dict[str, Any]]:
    """The steps of one message; the last one ends it."""
    steps = [made(kind, number, queue=queue, shard=shard) for kind in kinds]
    steps[0]["message_id"] = id
    steps[-1] |= {"last": True, "reason": reason}
    return steps


def there(number: int, *kinds: str, **place: Any) -> list[dict[str, Any]]:
    """The steps of a message that has not left."""
    steps = life(number, *kinds, **place)
    steps[-1]["last"] = False
    return steps


@dataclass
class Account:
    """The account of a queue that the model finds."""

    entered: int = 0
    earlier: int = 0
    fates: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    unaccounted: int = 0

    def row(self, queue: str) -> list[Any]:
        sums = [sum(count for (name, _), count in self.fates.items() if name == fate) for fate in FATES]
        difference = self.entered + self.earlier - sum(sums)
        return [queue, self.entered, self.earlier, *sums, difference, self.unaccounted]


def model(steps: Sequence[dict[str, Any]]) -> tuple[dict[str, Account], list[dict[str, Any]]]:
    """The account of each queue, and the messages whose events contradict each other."""
    lives = lives_of(steps)
    accounts: defaultdict[str, Account] = defaultdict(Account)
    suspects = []
    for life in lives:
        account, entered, lasts = accounts[life.queue], life.entered, life.lasts
        account.entered += entered
        account.fates[life.fate] += life.results
        known = [each.number for each in lives if each.entered and (each.shard, each.queue) == (life.shard, life.queue)]
        first = life.events[0][1]["kind"]
        never = not entered and first != "restored" and bool(known) and life.number > min(known)
        went_on = bool(lasts) and life.events[-1][0] > lasts[-1]
        account.earlier += not entered
        if never or went_on or len(lasts) > 1 or entered > 1:
            what = "entered-twice" if entered > 1 else "went-on-behind-its-end" if went_on else "never-entered"
            what = "left-twice" if len(lasts) > 1 else what
            account.earlier -= what == "never-entered"
            account.unaccounted += 1
            ids = [step["message_id"] for _, step in life.events if step.get("message_id")]
            values = (life.queue, life.shard, life.number, min(ids, default=None), what, entered, len(lasts))
            suspects.append(dict(zip(SUSPECT, values, strict=True)))
    return accounts, suspects


def check(
    spark: SparkSession, data: Path, out: Path, steps: list[dict[str, Any]], *, gaps: int = 0, missing: int = 0
) -> pipelines.Outcome:
    """Compare everything with the model."""
    accounts, suspects = model(steps)
    outcome = run_whole("reconcile", spark, data, out, NAMING if suspects else STEPS)
    rows = sorted((account.row(queue) for queue, account in accounts.items()), key=lambda row: (-row[1], row[0]))
    assert [list(row.values()) for row in rows_of(outcome.tables["balance"])] == rows
    assert ordered(outcome.tables["balance"], *BALANCE) == in_order(rows)
    fates = [(queue, *fate, n) for queue, account in accounts.items() for fate, n in account.fates.items()]
    assert ordered(outcome.tables["fates"], "queue", "fate", "detail", "messages") == in_order(fates)
    assert rows_of(outcome.tables["unaccounted"]) == suspects
    assert all(len(list(path.glob("*.parquet"))) == 1 for path in outcome.tables.values())
    sums = {name: sum(row[place] for row in rows) for place, name in enumerate(BALANCE) if place}
    difference = sum(abs(row[-2]) for row in rows)
    figures = {name: sums[name] for name in ("entered", "earlier", *columns(FATES))}
    assert outcome.figures == figures | {
        "difference": difference,
        "unaccounted": len(suspects),
        "steps_missing": gaps,
    }
    assert outcome.ok == (not (difference or suspects or gaps or missing))
    there = sum(sums[name] for name in columns(PRESENT))
    others = [name for name in FATES if name not in PRESENT and sums[name.replace("-", "_")]]
    named = [f"{sums[name.replace('-', '_')]:,} {name}" for name in others]
    assert outcome.summary == (
        f"{sums['entered'] + sums['earlier']:,} messages: {', '.join([*named, f'{there:,} still there'])}; "
        f"difference {difference:,}, {len(suspects):,} unaccounted for"
        + (f"; the history lacks {gaps} events and {missing} records" if gaps or missing else "")
    )
    total = Counter[tuple[str, str | None]]()
    for account in accounts.values():
        total.update(account.fates)
    shown = [name for name in ("earlier", *columns(FATES)) if sums[name]]
    names = ("entered", *shown, "difference", "unaccounted")
    values = {**outcome.figures, "difference": difference}
    # All that entered is in one of the other tiles.
    assert sums["entered"] + sums["earlier"] == sum(sums[name] for name in columns(FATES)) + sums["difference"]
    good = '<p class="say good">Every message is accounted for: entered and accounted numbers are equal.</p>'
    bad = '<p class="say">Not every message is accounted for; see the differences below.</p>'
    lacking = f'<p class="say">The history lacks {gaps} events and {missing} records.</p>'
    suspected = [list(suspect.values()) for suspect in suspects]
    most = sorted(total.items(), key=lambda pair: (-pair[1], pair[0][0], pair[0][1] or ""))
    seen = [fate for fate in FATES if sums[fate.replace("-", "_")]]
    places = [0, 1, 2, *(3 + FATES.index(fate) for fate in seen), -2, -1]
    assert parts_of(outcome.report, "Reconcile", str(data)) == [
        tiles(*((name.replace("_", " "), values[name]) for name in names)),
        good if outcome.ok else bad,
        *([lacking] if gaps or missing else []),
        bars(
            "Messages by fate",
            "messages",
            [(f"{fate}: {detail}" if detail else fate, count) for (fate, detail), count in most],
            otherwise="No message entered a queue.",
        ),
        table(
            "Queues",
            ["queue", "entered", "earlier", *seen, "difference", "unaccounted"],
            [[row[place] for place in places] for row in rows[:200]],
            of=len(rows),
        ),
        *([table("Unaccounted for", SUSPECT, suspected[:1000], of=len(suspected))] if suspected else []),
    ]
    return outcome


def accounted_for() -> list[dict[str, Any]]:
    """Every way to leave a queue, in a history of two shards that begins late and has restarts."""
    steps = [made("started"), made("started", shard=1)]
    ends = [(kind, "slow") for kind in (*KINDS, "unheard-of")]
    ends += [(kind, reason) for kind in ("dropped", "dead-lettered") for reason in (*REASONS, None, "unheard-of")]
    for number, (kind, reason) in enumerate(ends):
        kinds = (kind,) if kind in {"produced", "arrived"} else ("produced", "delivered", kind)
        # So many of each, so that the bars of the report have an order.
        for each in range(1 + number % 3):
            steps += life(3 * number + each, *kinds, queue="ends/1", shard=1, reason=reason)
    old: dict[str, Any] = {"queue": "old/1"}
    steps += life(3, "acked", **old) + there(4, "restored", **old) + there(5, "delivered", **old)
    steps += life(9, "produced", "acked", **old) + there(10, "restored", "delivered", **old)
    steps += life(11, "delivered", "acked", queue="old/2") + life(11, "arrived", "acked", queue="old/3", shard=1)
    restart: dict[str, Any] = {"queue": "restart/1"}
    steps += there(101, "produced", **restart) + there(102, "produced", "saved", **restart)
    steps += life(103, "produced", "delivered", "acked", **restart) + life(104, "produced", "acked", **restart)
    steps += life(105, "produced", "dead-lettered", **restart, reason="limit")
    steps += there(201, "produced", queue="other/1", shard=1)
    steps += [
        made("started"),
        *there(102, "restored", **restart),
        *life(103, "restored", "delivered", "acked", **restart),
    ]
    steps += there(104, "restored", "delivered", **restart)
    # Its dead letter was not saved before the kill, and then a consumer acknowledged the message.
    steps += life(105, "restored", "delivered", "acked", **restart)
    steps += there(106, "produced", **restart)
    steps += life(107, "produced", "acked", **restart)
    # In their queue: delivered, requeued in each way, delivered again, and saved meanwhile.
    here: dict[str, Any] = {"queue": "here/1", "shard": 1}
    steps += there(301, "produced", "delivered", "saved", **here) + there(
        302, "produced", "delivered", "nacked", **here
    )
    steps += there(303, "arrived", "delivered", "timed-out", "put-back", "delivered", **here)
    steps += there(304, "produced", "delivered", "consumer-lost", **here) + there(305, "produced", "saved", **here)
    steps += there(306, "produced", "delivered", "put-back", "dropped", **here) + there(300, "saved", **here)
    steps += [made("started"), *there(107, "restored", **restart), made("started")]
    steps += life(107, "restored", "acked", **restart)
    return [*steps, *there(102, "restored", **restart)]


def contradictions() -> list[dict[str, Any]]:
    """Each contradiction, among more queues and more contradictions than a report shows."""
    last = {"last": True}
    steps = [
        made("started"),
        *life(1, "produced", "saved", "delivered", "acked", id="one"),
        *life(2, "produced", "delivered", "acked", id="two"),
        made("acked", 2, message_id="a second id") | last,
        *life(3, "produced", "delivered", "acked", id="three"),
        made("delivered", 3),
        *life(4, "produced", "produced", "done", id="four"),
        *life(5, "nacked", "dropped", id="five"),
        *there(7, "produced", "saved", id="seven"),
        *there(8, "delivered", id=""),
        *life(9, "produced", "arrived", "acked"),
        made("nacked", 9) | last,
        made("put-back", 9),
        *life(10, "acked"),
        made("delivered", 10),
        *life(11, "produced", "produced", "produced", "acked"),
        made("expired", 11) | last,
        made("dropped", 11, reason="slow") | last,
        # It is the same number of another shard, and of another queue.
        *life(2, "produced", "acked", shard=1),
        *there(1, "delivered", shard=1),
        *there(1, "restored", queue="logs/2"),
        *life(3, "arrived", "acked", queue="logs/2"),
        *there(2, "delivered", queue="logs/2"),
    ]
    for number in range(1010):
        place: dict[str, Any] = {"queue": f"many/{number % 205}", "shard": 1}
        steps += life(100 + number, "produced", "delivered", "acked", id=f"m{number}", **place)
        steps.append(made("acked", 100 + number, **place) | last)
    return steps


def test_every_fate_is_that_of_the_model(spark: SparkSession, tmp_path: Path) -> None:
    steps = accounted_for()
    data = archive_of(tmp_path / "data", steps, shards=2, missing=1)
    outcome = check(spark, data, tmp_path / "out", steps, missing=2)
    assert not outcome.figures["unaccounted"]
    balances = {row["queue"]: row for row in rows_of(outcome.tables["balance"])}
    old, restart, here = balances["old/1"], balances["restart/1"], balances["here/1"]
    assert (old["earlier"], old["entered"], old["acked"], old["waiting"]) == (4, 1, 2, 0)
    assert old["lost"] == 3, "a later start did not restore them"
    assert (restart["entered"], restart["lost"], restart["acked"], restart["dead_lettered"]) == (7, 3, 3, 0)
    assert (here["waiting"], here["in_flight"], here["requeued"]) == (2, 2, 3)


def test_messages_whose_events_contradict_each_other_are_named(spark: SparkSession, tmp_path: Path) -> None:
    steps = contradictions()
    data = archive_of(tmp_path / "data", steps, shards=2, together=True)
    outcome = check(spark, data, tmp_path / "out", steps)
    assert [tuple(row.values())[2:5] for row in rows_of(outcome.tables["unaccounted"])[:8]] == [
        (2, "a second id", "left-twice"),
        (3, "three", "went-on-behind-its-end"),
        (4, "four", "entered-twice"),
        (5, "five", "never-entered"),
        (8, None, "never-entered"),
        (9, None, "left-twice"),
        (10, None, "went-on-behind-its-end"),
        (11, None, "left-twice"),
    ]
    (orders,) = [row for row in rows_of(outcome.tables["balance"]) if row["queue"] == "orders/1"]
    assert (orders["entered"], orders["earlier"], orders["difference"]) == (12, 2, -2)


def test_gaps_and_late_beginnings_of_two_queues_are_reported(spark: SparkSession, tmp_path: Path) -> None:
    steps = [made("gap", missing=1000), made("gap", shard=1, missing=5), made("gap"), *life(3, "produced", "acked")]
    steps += [*life(4, "nacked", "acked"), *there(5, "restored", "delivered"), *life(2, "acked")]
    steps += [*life(3, "produced", "acked", queue="logs/2"), *there(9, "delivered", queue="logs/2")]
    steps += life(1, "produced", "acked", queue="logs/2", shard=1)
    data = archive_of(tmp_path / "data", steps, missing=2000, shards=2)
    accounts, suspects = model(steps)
    outcome = pipelines.run("reconcile", spark, data, tmp_path / "out")
    assert rows_of(outcome.tables["unaccounted"]) == suspects
    assert [(each["queue"], each["number"]) for each in suspects] == [("orders/1", 4), ("logs/2", 9)]
    assert rows_of(outcome.tables["balance"]) == [
        dict(zip(BALANCE, accounts[queue].row(queue), strict=True)) for queue in ("logs/2", "orders/1")
    ]
    assert not outcome.ok
    assert outcome.summary.endswith("; the history lacks 1,005 events and 4,000 records")
    assert "<p>The history" not in self_contained(outcome.report)
    assert '<p class="say">The history lacks 1,005 events and 4,000 records.</p>' in self_contained(outcome.report)


def test_a_history_without_messages_that_lacks_an_event_is_not_ok(spark: SparkSession, tmp_path: Path) -> None:
    check(spark, archive_of(tmp_path / "data", [made("gap", missing=1)]), tmp_path / "out", [], gaps=1)


def test_every_message_of_a_real_broker_is_accounted_for(
    spark: SparkSession, eventful: Eventful, tmp_path: Path
) -> None:
    steps = sorted(eventful.steps(), key=lambda row: (row["note"], row["position"]))
    outcome = check(spark, eventful.data_dir, tmp_path, steps)
    rows = rows_of(outcome.tables["fates"])
    fates = {(row["queue"], row["fate"], row["detail"]): row["messages"] for row in rows}
    assert fates[("news/1", "dropped", "no-consumer")] == 10
    assert fates[("latest/1", "replaced", None)] == 4
    assert fates[("memory/1", "lost", None)] == eventful.in_memory
    assert fates[("memory/1", "waiting", None)] == 1
    assert fates[("dead/9", "waiting", None)] == fates[("work/1", "dead-lettered", "limit")] == eventful.dead
    assert outcome.ok, outcome.summary
