"""An archive on a real S3 API, the broker that writes it, and readers of both without Spark."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mqcore.spark.options import ReadOptions
from mqcore.spark.origin import Origin, Piece
from mqcore.spark.plan import Plan
from object_stores import BUCKET, CREDENTIALS, ObjectStore
from served import ServedBroker, serving, wait_until

ARCHIVED = 300.0
"""Seconds until history is archived: the thread has a low priority and is slow while others use all processors."""


def store_options(store: ObjectStore) -> str:
    """The value of the option ``archiveOptions``."""
    settings = {name.lower(): value for name, value in CREDENTIALS.items()}
    return json.dumps(settings | {"aws_endpoint_url": store.endpoint, "aws_allow_http": "true"})


@dataclass
class Lake:
    """A data directory, and its archive."""

    store: ObjectStore
    data_dir: Path
    name: str
    sent: list[str] = field(default_factory=list)
    """Bodies."""

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/{self.name}"

    @contextlib.contextmanager
    def serving(self, interval: str, **settings: str) -> Iterator[ServedBroker]:
        """Its broker, which archives in this interval. An empty setting is left out."""
        given = {"MQCORE_HISTORY": "on", "MQCORE_SHARDS": "2", "MQCORE_AUTO_CREATE_CHANNELS": "yes"}
        given |= {"MQCORE_ARCHIVE_INTERVAL": interval, "MQCORE_ARCHIVE_URL": self.url}
        arguments = ("--data-dir", str(self.data_dir), "--admin", "http://127.0.0.1:0")
        chosen = {name: value for name, value in (given | settings).items() if value}
        with serving(*arguments, environment=self.store.environment | chosen) as broker:
            yield broker

    def publish(self, broker: ServedBroker, count: int, channels: int = 4) -> list[str]:
        """Publish to two queues of each channel."""
        from mqcore import sync
        from spark.recorded import declare

        new = [f"body {number}" for number in range(len(self.sent), len(self.sent) + count)]
        with sync.connect(broker.url) as mq:
            queues = [f"orders-{number % channels}/{number // channels}" for number in range(2 * channels)]
            declare(mq, *queues)
            for index, queue in enumerate(queues):
                mq.publish_many(queue, [body.encode() for body in new[index :: len(queues)]], headers={"Q": queue})
        self.sent += new
        return new

    def wait(self, count: int | None = None) -> None:
        """Wait until both tables have so many messages, by default all."""
        expected = len(self.sent) if count is None else count
        wait_until(lambda: self.archived() == expected, limit=ARCHIVED, what="the archive")

    def archived(self) -> int:
        """Messages in the archive, as the metadata tells PyIceberg; 0 while one of the tables is behind."""
        from test_object_archive import table

        try:
            snapshots = [table(self.store, self.url, name).current_snapshot() for name in ("messages", "steps")]
        except ValueError:
            return 0
        if None in snapshots or len({snapshot.summary["mqcore.shards"] for snapshot in snapshots}) != 1:
            return 0
        return int(snapshots[0].summary["total-records"])

    def files(self, table: str = "messages") -> set[str]:
        """Data files in the store, whether a snapshot has them or not."""
        return {key for key in self.store.keys(f"{self.name}/{table}/data/") if key.endswith(".parquet")}

    def options(self, **more: str) -> dict[str, str]:
        """Options that read it."""
        return {"path": self.url, "archiveOptions": store_options(self.store), **more}


def plan(options: dict[str, str], *columns: str) -> Plan:
    """A plan of these columns, which are all text or numbers."""
    from mqcore import _core

    parsed = ReadOptions.parse(options, streaming=False)
    types = {name: kind for name, kind, _ in _core.history_columns(parsed.view)}
    return Plan.of(parsed, [(name, types[name]) for name in columns or ("value", "sequence")])


def pieces(made: Plan, origin: Origin) -> list[Piece]:
    """The tasks of a query for everything."""
    ends = origin.ends()
    start = made.checked(made.positions(ends, made.options.starting or "earliest", "startingOffsets"), ends)
    end = made.checked(made.positions(ends, made.options.ending, "endingOffsets"), ends)
    return made.pieces(origin, made.stretches(start, end))


def values(made: Plan, origin: Origin, piece: Piece) -> Iterator[str]:
    """Bodies of one task, batch by batch."""
    for rows in origin.read(made.request(shard=piece.shard), piece, made.options.fail_on_data_loss):
        yield from (body.decode() for body in rows.column("value").to_pylist())


def everything(options: dict[str, str]) -> Counter[str]:
    """How often a query has each body."""
    made = plan(options)
    origin = made.origin()
    return Counter(body for piece in pieces(made, origin) for body in values(made, origin, piece))
