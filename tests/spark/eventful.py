"""A broker in whose history messages go every way that there is, killed twice; and its steps, read without Spark."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from damaged_files import use_old_placement
from mqcore import QueueOptions, QueueStatus, sync
from mqcore.spark.origin import Directory
from mqcore.spark.plan import Plan
from served import serving, wait_until
from spark.recorded import ARCHIVE_SECONDS, HISTORY, Recorded, archived

SAVED = QueueOptions(
    status=QueueStatus.PULL,
    request_acknowledge=True,
    delivery_handler="at-least-once",
    dead_letter="dead/9",
    put_back_limit=2,
    retry_delay=0,
)
DEAD = QueueOptions(status=QueueStatus.PULL, delivery_handler="at-least-once", request_acknowledge=True)
ERRORS = ("no stock for 17", "no stock for 4711", "card 99 refused")


@dataclass
class Eventful(Recorded):
    """See the module."""

    dead: int = 0
    in_memory: int = 0

    def lives(self) -> dict[tuple[int, int], list[dict[str, Any]]]:
        """The steps of each message in their order."""
        found: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
        for step in sorted(self.steps(), key=lambda row: (row["shard"], row["note"], row["position"])):
            if step["queue"] is not None:
                found[(step["shard"], step["number"])].append(step)
        return found


def recorded_messages(data_dir: Path) -> int:
    """How many messages the history has by now."""
    origin = Directory(str(data_dir))
    stretches = [(end.shard, 0, end.latest) for end in origin.ends()]
    request = Plan.request_of("messages", ["sequence"])
    pieces = origin.pieces(request, stretches, 1 << 30)
    return sum(rows.num_rows for piece in pieces for rows in origin.read(request, piece, fail=True))


def recorded_kinds(data_dir: Path) -> Counter[str]:
    """How many steps of each kind the history has by now."""
    origin, request = Directory(str(data_dir)), Plan.request_of("steps", ["kind"])
    pieces = origin.pieces(request, [(end.shard, 0, end.latest) for end in origin.ends()], 1 << 30)
    rows = [rows for piece in pieces for rows in origin.read(request, piece, fail=True)]
    return Counter(kind for batch in rows for kind in batch.column("kind").to_pylist())


def _order(number: int) -> bytes:
    content: dict[str, Any] = {"order": number, "price": number / 4, "paid": number % 2 == 0, "to": {"city": "Bern"}}
    if number % 5 == 0:
        content["note"] = f"note {number}"
    return json.dumps(content).encode()


def _work(mq: sync.Client, eventful: Eventful) -> None:
    mq.declare("dead", 9, DEAD)
    mq.declare("work", 1, SAVED)
    mq.declare("memory", 1, QueueOptions(status=QueueStatus.PULL))
    mq.declare("news", 1, QueueOptions(status=QueueStatus.BROADCAST))
    mq.declare("latest", 1, QueueOptions(status=QueueStatus.CACHE))
    mq.publish_many("work/1", [_order(number) for number in range(300)])
    for message in mq.queue("work/1").pull(150):
        message.ack()
        eventful.acked += 1
    for _ in range(3):
        # Each pull requeues them at the end, until the limit dead-letters them.
        for index, message in enumerate(mq.queue("work/1").pull(150)):
            if index < 12:
                message.nack(ERRORS[index % 3])
            elif index < 150:
                message.ack()
    mq.publish_many("memory/1", [b"only in memory"] * 40)
    eventful.in_memory, eventful.dead = 40, 12
    mq.publish_many("news/1", [b"nobody listens"] * 10)
    mq.publish_many("latest/1", [b"the latest"] * 5)


@pytest.fixture(scope="session")
def eventful(tmp_path_factory: pytest.TempPathFactory) -> Eventful:
    """Part of the history is in the archive, the rest in the journal; no broker is running."""
    import pyarrow.parquet  # noqa: F401 (used by Recorded)

    data_dir = tmp_path_factory.mktemp("eventful")
    use_old_placement(data_dir, HISTORY["MQCORE_SHARDS"])  # Its channels are on both shards.
    with serving("--data-dir", str(data_dir), "--auto-create", environment=HISTORY) as served:
        eventful = Eventful(data_dir, served)
        with sync.connect(served.url, name="shop") as mq:
            _work(mq, eventful)
            wait_until(lambda: archived(data_dir, 355 + eventful.dead), limit=ARCHIVE_SECONDS, what="the archive")
        served.process.kill()
    with serving("--data-dir", str(data_dir), environment={**HISTORY, "MQCORE_ARCHIVE": "off"}) as served:
        with sync.connect(served.url, name="shop") as mq:
            mq.publish_many("work/1", [_order(number) for number in range(300, 400)])
            for message in mq.queue("work/1").pull(30):
                message.ack()
            mq.publish("work/1", b"no json at all")
            mq.publish("memory/1", b"in memory again")
            # Producers do not wait for the history; a kill loses the events that are not written yet.
            wait_until(lambda: recorded_messages(data_dir) == 469, limit=60, what="the history")
        served.process.kill()
    return eventful
