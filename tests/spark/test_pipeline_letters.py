"""Dead letters by cause, against a model in plain Python, and their way back to a broker that runs."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from depth import by_depth
from mqcore import QueueOptions, QueueStatus, errors, sync
from mqcore.spark import pipelines
from mqcore.spark.pipelines.report import bars, table, tiles
from served import wait_until
from spark.eventful import DEAD, Eventful, recorded_kinds
from spark.fates import FATES, PRESENT, lives_of
from spark.made import archive_of, at, message
from spark.made import step as made
from spark.outcomes import in_order, ordered, parts_of, rows_of, run_whole, self_contained
from spark.recorded import IN_TURN, LENIENT, Recorded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [*LENIENT, IN_TURN]

STEPS = ("letters", "clusters", "report")
LETTER = ("cluster", "time", "shard", "number", "queue", "origin", "message_id", "reason", "attempts", "error", "like")
LETTER += ("body_bytes", "fate", "there")
CLUSTER = ("cluster", "origin", "reason", "like", "messages", "there", "lost", "first", "latest", "example")
ERRORS = {
    "no stock for 17": "no stock for #",
    "no stock for 4711": "no stock for #",
    "order 123e4567-e89b-12d3-a456-426614174000, late": "order <id>, late",
    "hash DEADbeef1, deadbeef, 1234567a and 123456a": "hash <id>, deadbeef, <id> and #a",
    "at 12:30:15.5, after 1,5 of 3.": "at #, after # of #.",
    "<b>refused</b>": "<b>refused</b>",
}
"""Errors, and what is alike in them."""


def letter(number: int, origin: str, reason: str | None, **more: Any) -> dict[str, Any]:
    """A dead letter with the headers that a broker adds."""
    headers = {"Source": "x", "dead-letter-QUEUE": origin, "Dead-Letter-Attempts": str(number % 5)}
    if reason is not None:
        headers["Dead-Letter-Reason"] = reason
    given: dict[str, Any] = {"body": f"body {number}".encode(), "queue": "dead/9", "kind": "arrived"}
    given |= {"message_id": f"m{number}", "time": at(number / 8)} | more
    return message(number, headers=headers, **given)


def history() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Steps and messages: more causes than a report shows, and letters that lack something."""
    steps, letters = [made("started"), made("nacked", 1, message_id=None, reason="no id", queue="work/1")], []
    for number in range(30):
        shard, error = number % 2, list(ERRORS)[number % 6]
        of: dict[str, Any] = {"shard": shard, "queue": "Work/1", "message_id": f"m{number}"}
        steps += [made("nacked", number, reason=text, **of) for text in ("at first something else", error)]
        steps.append(made("dead-lettered", number, last=True, **of))
        letters.append(letter(number, "work/1", "limit", shard=shard))
    # The same id in another queue, and the same number in another shard, are others.
    steps.append(made("nacked", 40, queue="other/1", message_id="m1", reason="another queue"))
    for number in range(205):
        text = f"cause {chr(97 + number // 26)}{chr(97 + number % 26)}"
        steps.append(made("nacked", 100 + number, queue="many/1", message_id=f"m{100 + number}", reason=text))
        letters.append(letter(100 + number, "many/1", "limit"))
    letters += [
        letter(400, "work/1", "expired", body=None, message_id=None),
        letter(401, "work/1", "expired", body=b"\xff" + b"long " * 100),
        letter(402, "work/1", None),
        # Neither a copy without headers nor a message that a client published is a dead letter.
        message(403, b"copied", kind="arrived", queue="dead/9"),
        message(404, b"produced", {"Dead-Letter-Queue": "work/1"}, queue="dead/9"),
        # An operator moved the letter m402: it is the same one.
        letter(406, "work/1", None, message_id="m402", queue="Triage/1"),
    ]
    twice = letter(405, "first/1", "limit")
    twice["headers"] += letter(405, "second/1", "expired")["headers"]
    twice["headers"].append({"key": "Dead-Letter-Attempts", "value": b"many"})
    # The broker's own note of the error counts more than the consumer's last words for the id.
    noted = letter(407, "work/1", "limit", message_id="m5")
    noted["headers"].append({"key": "Dead-Letter-Error", "value": b"no stock for 17"})
    letters += [twice, noted]
    steps += [made(row["kind"], row["number"], queue=row["queue"], shard=row.get("shard", 0)) for row in letters]
    for number in range(1, 30, 4):
        kinds = ("delivered", "acked") if number % 8 == 1 else ("delivered", "nacked", "put-back")
        steps += [
            made(kind, number, shard=number % 2, queue="dead/9", last=kind == "acked", reason=None) for kind in kinds
        ]
    steps.append(made("acked", 3, shard=0, queue="dead/9", last=True))
    steps.append(made("moved", 402, queue="dead/9", message_id="m402", target="triage/1", last=True))
    # A restart of one shard restores all letters but every fifth of those.
    steps.append(made("started"))
    for number in range(100, 305):
        if number % 5:
            steps.append(made("restored", number, queue="dead/9"))
    return steps, letters


def letters_of(steps: list[dict[str, Any]], messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the table ``letters``."""
    fates = {(life.shard, life.number, life.queue): life.fate[0] for life in lives_of(steps)}
    moved = {(step["target"], step["message_id"]) for step in steps if step["kind"] == "moved"}
    said = {(s["queue"].lower(), s.get("message_id")): s["reason"] for s in steps if s["kind"] == "nacked"}
    found = []
    for row in messages:
        headers = {pair["key"].lower(): pair["value"].decode() for pair in row["headers"]}
        origin, reason = headers.get("dead-letter-queue"), headers.get("dead-letter-reason")
        attempts = headers.get("dead-letter-attempts", "")
        id_ = row.get("message_id")
        error = headers.get("dead-letter-error", None if id_ is None else said.get((origin, id_)))
        like = ERRORS.get(error or "", error or "")
        name = hashlib.sha256(f"{origin or ''}\n{reason or ''}\n{like}".encode()).hexdigest()[:8]
        place = (row.get("shard", 0), row["number"])
        values = (name, row["time"], *place, row["queue"], origin, id_, reason)
        fate = fates[(*place, row["queue"])]
        values += (int(attempts) if attempts.isdecimal() else None, error, like, row["body_bytes"], fate)
        values += (fate in PRESENT,)
        is_moved = (row["queue"].lower(), id_) in moved
        if row["kind"] == "arrived" and (origin or reason) and not is_moved:
            found.append(dict(zip(LETTER, values, strict=True)))
    return found


def test_letters_causes_and_samples_are_those_of_the_model(spark: SparkSession, tmp_path: Path) -> None:
    steps, messages = history()
    data, out = archive_of(tmp_path / "data", steps, messages, shards=2, together=True), tmp_path / "out"
    outcome = run_whole("deadletters", spark, data, out, STEPS)
    letters = letters_of(steps, messages)
    assert ordered(outcome.tables["letters"], *LETTER) == in_order(each.values() for each in letters)
    of: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for each in sorted(letters, key=lambda each: (each["shard"], each["number"])):
        of[each["cluster"]].append(each)
    rows = [
        (
            *(name, *(each[0][column] for column in ("origin", "reason", "like")), len(each)),
            sum(one["there"] for one in each),
            sum(one["fate"] == "lost" for one in each),
            *(choice(one["time"] for one in each) for choice in (min, max)),
            min((one["error"] for one in each if one["error"] is not None), default=None),
        )
        for name, each in of.items()
    ]
    rows.sort(key=lambda row: (-row[4], row[0]))
    assert [tuple(row.values()) for row in rows_of(outcome.tables["clusters"])] == rows
    assert ordered(outcome.tables["clusters"], *CLUSTER) == in_order(rows)
    count, present = len(letters), sum(each["there"] for each in letters)
    totals = Counter(each["fate"] for each in letters)
    assert (totals["acked"], totals["lost"], totals["moved"], totals["requeued"]) == (4, 60, 1, 4)
    fates = {fate.replace("-", "_"): totals[fate] for fate in FATES if totals[fate]}
    lost = totals["lost"]
    figures = {"letters": count, "there": present, "lost": lost, "clusters": len(rows), "redriven": 0}
    assert outcome.figures == {**fates, **figures}
    assert outcome.summary == (
        f"{count} dead letters of {len(rows)} kinds: {present} still there, {count - present - lost} consumed or "
        f"removed, {lost} lost at a restart"
    )

    bodies = {(row.get("shard", 0), row["number"]): row["body"] or b"" for row in messages if row["kind"] == "arrived"}
    named = [(f"{row[1] or '?'}: {row[3] or row[2] or '-'}", row[4]) for row in rows]
    shown = [[*row[:7], *(time.replace(tzinfo=None) for time in row[7:9])] for row in rows[:200]]
    samples = []
    for row in rows[:200]:
        few = [bodies[(each["shard"], each["number"])][:400] for each in of[row[0]][:3]]
        samples.append(table(f"Samples of {row[0]}", ["body"], [[body.decode("utf-8", "replace")] for body in few]))
    assert parts_of(outcome.report, "Dead letters", str(data)) == [
        tiles(("letters", count), *((name.replace("_", " "), total) for name, total in fates.items())),
        f'<p class="say">{lost} letters were in memory only, and a restart of the broker lost them.</p>',
        bars("Dead letters by cause", "messages", named, otherwise=""),
        table("Kinds", CLUSTER[:-1], shown, of=len(rows)),
        *samples,
    ]


@pytest.mark.full("8 s; test_pipeline_reconcile.py reads a history without messages")
def test_a_history_without_dead_letters_has_no_causes(spark: SparkSession, tmp_path: Path) -> None:
    data = archive_of(tmp_path / "data", [made("started")], [message(1, b"produced")])
    outcome = run_whole("deadletters", spark, data, tmp_path / "out", STEPS)
    assert set(outcome.figures.values()) == {0}
    assert "<p>There are no dead letters.</p>" in self_contained(outcome.report)
    with pytest.raises(errors.ConfigError, match="unknown cluster 'missing'; the table clusters lists the names"):
        pipelines.run("deadletters", spark, data, tmp_path, redrive="tmqp://x", clusters="missing", run="x")


@pytest.mark.full("8 s; test_letters_causes_and_samples_are_those_of_the_model puts letters together in the same way")
def test_dead_letters_are_put_together_by_their_last_words(
    spark: SparkSession, eventful: Eventful, tmp_path: Path
) -> None:
    outcome = run_whole("deadletters", spark, eventful.data_dir, tmp_path, STEPS)
    expected: Counter[str] = Counter()
    for life in eventful.lives().values():
        if life[-1]["kind"] == "dead-lettered":
            words = [row["reason"] for row in life if row["kind"] == "nacked"][-1]
            expected["no stock for #" if words.startswith("no stock") else "card # refused"] += 1
    found = rows_of(outcome.tables["clusters"])
    assert {row["like"]: row["messages"] for row in found} == dict(expected)
    assert {(row["origin"], row["reason"]) for row in found} == {("work/1", "limit")}
    assert sum(row["there"] for row in found) == outcome.figures["letters"] == eventful.dead
    page = self_contained(outcome.report)
    assert "&quot;order&quot;" in page, "samples are shown"
    assert "<b>" not in page.split("Samples of", 1)[1].split("</table>", 1)[0], "bodies are text, not HTML"


@pytest.mark.full("runs the pipeline three times; test_pipeline_replay.py publishes again, once")
def test_chosen_dead_letters_go_back_once(spark: SparkSession, live: Recorded, tmp_path: Path) -> None:
    out = tmp_path / "out"
    dying = QueueOptions(
        status=QueueStatus.PULL,
        request_acknowledge=True,
        delivery_handler="at-least-once",
        dead_letter="grave/1",
        put_back_limit=1,
        retry_delay=0,
    )
    words = {b"first": "no money", b"second": "no money", b"third": "too late by 7 s", b"fourth": "no address"}
    words[b"consumed"] = "consumed from the grave"
    with sync.connect(live.served.url) as mq:
        mq.declare("grave", 1, DEAD)
        mq.declare("shop", 1, dying)

        def stored(queue: str) -> int:
            found = mq.queue(queue).information()
            return found.messages + found.priority_messages

        def publish(body: bytes) -> None:
            headers = {"Kept": "yes"}
            mq.publish("shop/1", body, id=f"id of {body.decode()}", headers=headers, high_priority=body == b"third")

        def die(count: int) -> None:
            def dead() -> bool:
                # As a list, because a message that returns would be delivered to this pull again.
                for each in list(mq.queue("shop/1").pull(count)) if stored("shop/1") else []:
                    each.nack(words[each.raw])
                return stored("grave/1") == count

            wait_until(dead, what="the dead letters")

        publish(b"consumed")
        die(1)
        (gone,) = mq.queue("grave/1").pull(1)
        gone.ack()
        for body in list(words)[:4]:
            publish(body)
        die(4)
        assert stored("shop/1") == 0

        def written() -> bool:
            kinds = recorded_kinds(live.data_dir)
            return (kinds["arrived"], kinds["acked"]) == (5, 1)

        wait_until(written, limit=60, what="the history")
        first = run_whole("deadletters", spark, live.data_dir, out, STEPS)
        figures = {"letters": 5, "there": 4, "lost": 0, "waiting": 4, "acked": 1, "clusters": 4}
        assert first.figures == {**figures, "redriven": 0}
        names = {row["like"]: row["cluster"] for row in rows_of(first.tables["clusters"])}
        options = {"redrive": live.served.url, "admin": live.served.admin_url, "run": "monday"}
        chosen = {**options, "clusters": f"{names['no money']}, {names['too late by # s']}"}
        reported: dict[str, None] = {}

        def progress(what: str, _done: int, known: int) -> None:
            assert known or not reported.pop(what, None)
            reported[what] = None

        for _ in range(by_depth(1, 2)):
            reported.clear()
            again = pipelines.run("deadletters", spark, live.data_dir, out, **chosen, progress=progress)
            assert list(reported) == ["letters", "clusters", "re-drive", "report"]
            assert again.figures == {**figures, "redriven": 3}
            assert again.summary.endswith("; run monday published 3 again")
            assert set(again.tables) == {"letters", "clusters"}
        assert sorted(row["number"] for row in rows_of(out / "deadletters" / "runs" / "monday")) == [2, 3, 4]
        rest = pipelines.run(
            "deadletters", spark, live.data_dir, out, redrive=live.served.url, clusters="all", run="tuesday"
        )
        assert rest.figures["redriven"] == 1, "no run takes what another one took, nor what is not there"
        back = mq.queue("shop/1").pull(10)
        assert sorted((each.raw, each.id, each.high_priority) for each in back) == sorted(
            (body, f"id of {body.decode()}", body == b"third") for body in list(words)[:4]
        )
        assert all(each.headers["Kept"] == "yes" for each in back)
        assert not any(name.lower().startswith("dead-letter") for each in back for name in each.headers)
        assert stored("grave/1") == 4, "reading does not consume"


def test_a_re_drive_names_its_letters_and_itself(spark: SparkSession, tmp_path: Path) -> None:
    for part in ({"redrive": "tmqp://x"}, {"run": "x"}, {"clusters": "x"}):
        for given in (part, {"redrive": "tmqp://x", "run": "x", "clusters": "x"} | dict.fromkeys(part, "")):
            with pytest.raises(errors.ConfigError, match="redrive, clusters and run belong together"):
                pipelines.run("deadletters", spark, tmp_path, tmp_path, **given)
    for name in ("../x", "x" * 65):
        with pytest.raises(errors.ConfigError, match="run must have 1 to 64 letters, digits"):
            pipelines.run("deadletters", spark, tmp_path, tmp_path, redrive="tmqp://x", clusters="all", run=name)
