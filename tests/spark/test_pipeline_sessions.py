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
from spark.fates import FATES, columns, lives_of
from spark.made import archive_of, at
from spark.made import step as made
from spark.outcomes import in_order, ordered, parts_of, rows_of, run_whole
from spark.recorded import IN_TURN, LENIENT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [*LENIENT, IN_TURN]

STEPS = ("sessions", "conversations", "producers", "report")
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
        # From before the history: no event names the producer.
        made("delivered", 6, **BANK, time=at(202)),
        made("acked", 6, **BANK, time=at(203), last=True),
        made("produced", 7, **OTHER_SHOP, time=at(204), message_id="seven"),
        made("produced", 8, **SHOP, time=at(205), message_id="eight"),
        made("produced", 9, **OTHER_SHOP, time=at(206), message_id="eight", queue="logs/2"),
    ]
    for number in range(105):
        worker = {"consumer_name": f"worker {number:03}", "consumer_id": f"w{number}", "consumer_protocol": "tmqp"}
        times = [at(1000 + number - again / 1000) for again in range(1 + number % 4)]
        steps += [made("delivered", 10 + number, **SHOP, **worker, time=time) for time in times]
    # After a restart, the broker does not know who published.
    steps += [made("started", time=at(2000)), made("started", time=at(2000), shard=1)]
    steps += [made("restored", number, time=at(2000)) for number in (7, 8, 9)]
    steps.append(made("delivered", 7, **BANK, time=at(2001)))
    # A dead letter that arrives later has another number; of two with its id, the last one before it counts.
    steps.append(made("dead-lettered", 8, time=at(2002), message_id="eight", target="dead/9", last=True))
    steps.append(made("arrived", 80, time=at(2003), message_id="eight", queue="dead/9", shard=1))
    steps.append(made("delivered", 80, **BANK, time=at(2004), queue="dead/9", shard=1))
    steps.append(made("acked", 80, **BANK, time=at(2005), queue="dead/9", shard=1, last=True))
    return [*steps, made("produced", 81, **SHOP, time=at(2006), message_id="eight")]


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


def producers_of(steps: list[dict[str, Any]]) -> dict[tuple[int, int, str], tuple[str, str]]:
    """Name and protocol of the producer of each message that entered."""
    found: dict[tuple[int, int, str], tuple[str, str]] = {}
    for step in steps:
        if step["kind"] in {"produced", "arrived"}:
            name, protocol = client(step, "producer"), step.get("producer_protocol")
            if name is None and step["kind"] == "arrived":
                same = [
                    each
                    for each in steps
                    if each["kind"] == "produced" and each.get("message_id") == step["message_id"]
                ]
                latest = max((each for each in same if each["time"] <= step["time"]), key=lambda each: each["time"])
                name, protocol = client(latest, "producer"), latest["producer_protocol"]
            if name is not None:
                found[(step.get("shard", 0), step["number"], step["queue"])] = (name, protocol)
    return found


def conversations_of(steps: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    known = producers_of(steps)
    talks: defaultdict[tuple[Any, ...], list[tuple[tuple[int, int], str, Any]]] = defaultdict(list)
    for step in steps:
        if step["kind"] in {"delivered", "acked"}:
            place = (step.get("shard", 0), step["number"])
            by = (client(step, "producer"), step.get("producer_protocol"))
            by = known.get((*place, step["queue"]), (None, None)) if by[0] is None else by
            key = (*by, client(step, "consumer"), step.get("consumer_protocol"), step["queue"])
            talks[key].append((place, step["kind"], step["time"]))
    found = []
    for key, events in talks.items():
        times = [time for _, kind, time in events if kind == "delivered"]
        delivered = {place for place, kind, _ in events if kind == "delivered"}
        acked = {place for place, kind, _ in events if kind == "acked"} & delivered
        if times:
            found.append((*key, len(delivered), len(times), len(acked), min(times), max(times)))
    return found


def test_sessions_and_conversations_are_those_of_the_model(spark: SparkSession, tmp_path: Path) -> None:
    steps = history()
    data, out = archive_of(tmp_path / "data", steps, shards=2), tmp_path / "out"
    outcome = run_whole("sessions", spark, data, out, STEPS, gap=60)
    sessions, talks = sessions_of(steps, 60), conversations_of(steps)
    assert [(each["session"], each["produced"]) for each in sessions if each["client"] == "shop"][:2] == [
        (1, 3),
        (2, 1),
    ]
    columns_of_sessions = ("client", "session", "start", "end", "ids", "protocols", "queues", *KINDS)
    assert ordered(outcome.tables["sessions"], *columns_of_sessions) == in_order(s.values() for s in sessions)
    names = ("producer", "from_protocol", "consumer", "to_protocol", "queue", "messages", "deliveries", "acked")
    assert ordered(outcome.tables["conversations"], *names, "first", "latest") == in_order(talks)
    # Only the message from before the history, and a client without a name or an id, have no producer.
    assert sum(talk[0] is None for talk in talks) == 2
    fates: defaultdict[str | None, Counter[str]] = defaultdict(Counter)
    for life in lives_of(steps):
        producer = producers_of(steps).get((life.shard, life.number, life.queue), (None, ""))[0]
        fates[producer][life.fate[0]] += life.results
    assert ordered(outcome.tables["producers"], "producer", "messages", *columns(FATES)) == in_order(
        ((name, count.total(), *(count[fate] for fate in FATES)) for name, count in fates.items())
    )
    count = {"sessions": len(sessions), "clients": len({each["client"] for each in sessions})}
    several = sum(len(each["protocols"]) > 1 for each in sessions)
    assert several == 2
    count |= {"over_several_protocols": several, "conversations": len(talks)}
    assert outcome.figures == count
    assert outcome.summary == (
        f"{count['sessions']} sessions of {count['clients']} clients, 2 over several protocols; "
        f"{len(talks)} conversations"
    )
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
    seen = [fate for fate in FATES if any(of[fate] for of in fates.values())]
    by_producer = sorted(fates.items(), key=lambda pair: (-pair[1].total(), pair[0] is not None, pair[0]))
    assert parts_of(outcome.report, "Sessions", str(data)) == [
        tiles(*((name.replace("_", " "), number) for name, number in count.items())),
        bars("Messages produced and received", "messages", most, otherwise=""),
        table(
            "Conversations",
            names,
            [["(unknown)" if each is None else each for each in t[:8]] for t in talks[:100]],
            of=len(talks),
        ),
        table(
            "Fates by producer",
            ["producer", "messages", *seen],
            [[name or "(unknown)", of.total(), *(of[fate] for fate in seen)] for name, of in by_producer],
            of=len(fates),
        ),
        table("Sessions", ["client", "start", "end", "ids", "protocols", *KINDS], shown, of=len(sessions)),
    ]


@pytest.mark.full("7 s; test_pipeline_reconcile.py reads a history without messages")
def test_a_history_without_clients_has_no_sessions(spark: SparkSession, tmp_path: Path) -> None:
    data = archive_of(tmp_path / "data", [made("started"), made("produced", 1)])
    outcome = run_whole("sessions", spark, data, tmp_path / "out", STEPS, gap=1)
    assert ordered(outcome.tables["sessions"]) == ordered(outcome.tables["conversations"]) == []
    assert [row["waiting"] for row in rows_of(outcome.tables["producers"])] == [1]
    assert parts_of(outcome.report, "Sessions", str(data))[1].endswith("<p>No client was active.</p>")
    with pytest.raises(errors.ConfigError, match="gap must be at least 1 second, not 0"):
        pipelines.run("sessions", spark, data, tmp_path, gap=0)
