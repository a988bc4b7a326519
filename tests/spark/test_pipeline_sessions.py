"""Sessions and conversations of made-up clients, against a model in plain Python."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mqcore import errors
from mqcore.spark import pipelines
from mqcore.spark.pipelines.report import bars, table, tiles
from spark.made import archive_of, at
from spark.made import step as made
from spark.outcomes import in_order, ordered, parts_of, run_whole
from spark.recorded import LENIENT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = LENIENT

STEPS = ("sessions", "conversations", "report")
KINDS = ("produced", "delivered", "acked", "nacked")
SHOP = {"producer_name": "shop", "producer_id": "a", "producer_protocol": "tmqp"}
OTHER_SHOP = {"producer_name": "shop", "producer_id": "b", "producer_protocol": "mqks"}
BANK = {"consumer_name": "bank", "consumer_id": "c", "consumer_protocol": "tmqp"}
NAMELESS = {"consumer_name": "", "consumer_id": "d", "consumer_protocol": "mqks"}
NO_CONSUMER = {"consumer_name": "", "consumer_id": "", "consumer_protocol": "tmqp"}


def history() -> list[dict[str, Any]]:
    """More clients, sessions and conversations than a report shows, and silences around a gap of 60 s."""
    steps = [
        made("started"),
        made("produced", 1, **SHOP, time=at(0)),
        made("produced", 2, **OTHER_SHOP, time=at(60)),
        made("produced", 3, **OTHER_SHOP, time=at(60), queue="logs/2", shard=1),
        made("produced", 4, **SHOP, time=at(120.000001)),
        made("produced", 5, producer_id="", time=at(121)),
        made("delivered", 1, **SHOP, **BANK, time=at(55)),
        made("acked", 1, **SHOP, **BANK, time=at(56), last=True),
        made("delivered", 2, **OTHER_SHOP, **NAMELESS, time=at(57)),
        made("nacked", 2, **OTHER_SHOP, **NAMELESS, time=at(58)),
        made("timed-out", 2, **OTHER_SHOP, **NAMELESS, time=at(59)),
        made("delivered", 4, **SHOP, **BANK, time=at(200)),
        made("delivered", 4, **SHOP, **NO_CONSUMER, time=at(300)),
        made("delivered", 5, producer_id="", **BANK, time=at(201), queue="logs/2", shard=1),
    ]
    for number in range(105):
        worker = {"consumer_name": f"worker {number:03}", "consumer_id": f"w{number}", "consumer_protocol": "tmqp"}
        times = [at(1000 + number - again / 1000) for again in range(1 + number % 4)]
        steps += [made("delivered", 10 + number, **SHOP, **worker, time=time) for time in times]
    return steps


def client(step: dict[str, Any], who: str) -> str | None:
    return step.get(f"{who}_name") or step.get(f"{who}_id") or None


def sessions_of(steps: list[dict[str, Any]], gap: int) -> list[dict[str, Any]]:
    acts = defaultdict(list)
    for step in steps:
        who = {"produced": "producer", "delivered": "consumer", "acked": "consumer", "nacked": "consumer"}.get(
            step["kind"], ""
        )
        if (name := client(step, who)) is not None:
            act = {"id": step[f"{who}_id"], "protocol": step[f"{who}_protocol"]}
            acts[name].append(act | {key: step[key] for key in ("time", "kind", "queue")})
    found: list[dict[str, Any]] = []
    for name, done in acts.items():
        done.sort(key=lambda act: act["time"])
        parts: list[list[dict[str, Any]]] = []
        for act in done:
            if not parts or act["time"] - parts[-1][-1]["time"] > timedelta(seconds=gap):
                parts.append([])
            parts[-1].append(act)
        for number, part in enumerate(parts, 1):
            session = {"client": name, "session": number, "start": part[0]["time"], "end": part[-1]["time"]}
            session["ids"] = len({act["id"] for act in part})
            session |= {f"{each}s": sorted({act[each] for act in part}) for each in ("protocol", "queue")}
            found.append(session | {kind: sum(act["kind"] == kind for act in part) for kind in KINDS})
    return found


def conversations_of(steps: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    talks = defaultdict(list)
    for step in steps:
        if step["kind"] == "delivered":
            protocols = (step.get("producer_protocol"), step.get("consumer_protocol"))
            pairs = zip((client(step, "producer"), client(step, "consumer")), protocols, strict=True)
            talks[(*(each for pair in pairs for each in pair), step["queue"])].append(step["time"])
    return [(*key, len(times), min(times), max(times)) for key, times in talks.items()]


def test_sessions_and_conversations_are_those_of_the_model(spark: SparkSession, tmp_path: Path) -> None:
    steps = history()
    data, out = archive_of(tmp_path / "data", steps, shards=2), tmp_path / "out"
    outcome = run_whole("sessions", spark, data, out, STEPS, gap=60)
    sessions, talks = sessions_of(steps, 60), conversations_of(steps)
    assert [(each["session"], each["produced"]) for each in sessions if each["client"] == "shop"] == [(1, 3), (2, 1)]
    columns = ("client", "session", "start", "end", "ids", "protocols", "queues", *KINDS)
    assert ordered(outcome.tables["sessions"], *columns) == in_order(s.values() for s in sessions)
    names = ("producer", "from_protocol", "consumer", "to_protocol", "queue", "messages")
    assert ordered(outcome.tables["conversations"], *names, "first", "latest") == in_order(talks)
    assert outcome.figures == {"sessions": 110, "clients": 108, "over several protocols": 1, "conversations": 109}
    assert outcome.summary == "110 sessions of 108 clients, 1 over several protocols; 109 conversations"
    assert outcome.ok

    busy: Counter[str] = Counter()
    for each in sessions:
        busy[each["client"]] += each["produced"] + each["delivered"]
    most = sorted(busy.items(), key=lambda pair: (-pair[1], pair[0]))
    talks.sort(key=lambda talk: (-talk[5], *(each or "" for each in talk[:5])))
    latest = sorted(sessions, key=lambda each: (-each["end"].timestamp(), each["client"]))
    shown = [
        [
            *(each["client"], each["start"].replace(tzinfo=None), each["end"].replace(tzinfo=None), each["ids"]),
            *(", ".join(each["protocols"]), *(each[kind] for kind in KINDS)),
        ]
        for each in latest[:100]
    ]
    assert parts_of(outcome.report, "Sessions", str(data)) == [
        tiles(("sessions", 110), ("clients", 108), ("over several protocols", 1), ("conversations", 109)),
        bars("Messages produced and received", "messages", most, otherwise=""),
        table("Conversations", names, [["" if each is None else each for each in t[:6]] for t in talks[:100]], of=109),
        table("Sessions", ["client", "start", "end", "ids", "protocols", *KINDS], shown, of=110),
    ]


def test_a_history_without_clients_has_no_sessions(spark: SparkSession, tmp_path: Path) -> None:
    data = archive_of(tmp_path / "data", [made("started"), made("produced", 1)])
    outcome = run_whole("sessions", spark, data, tmp_path / "out", STEPS, gap=1)
    assert ordered(outcome.tables["sessions"]) == ordered(outcome.tables["conversations"]) == []
    assert parts_of(outcome.report, "Sessions", str(data))[1].endswith("<p>No client was active.</p>")
    with pytest.raises(errors.ConfigError, match="gap must be at least 1 second, not 0"):
        pipelines.run("sessions", spark, data, tmp_path, gap=0)
