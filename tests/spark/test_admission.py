"""When a batch of a stream begins, and how far it reaches: least rows, longest delay, and shares of shards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqcore import sync
from mqcore.spark.admission import Admission
from mqcore.spark.options import ReadOptions
from mqcore.spark.origin import Origin
from mqcore.spark.plan import Offsets, Plan
from served import serving, wait_until
from spark.recorded import HISTORY, declare


class Stream:
    """A stream without Spark over a running broker, whose clock a test sets."""

    def __init__(self, mq: sync.Client, data_dir: Path, **options: str) -> None:
        self.mq = mq
        self.now = 0.0
        self.plan = Plan.of(
            ReadOptions.parse({"path": str(data_dir), **options}, streaming=True), [("value", "binary")]
        )
        self.admission = Admission(self.plan, lambda: self.now)
        self.begin = self.end

    @property
    def origin(self) -> Origin:
        return self.plan.origin()

    @property
    def end(self) -> Offsets:
        return self.plan.positions(self.origin.ends(), "latest", "startingOffsets")

    def rows(self) -> int:
        return sum(self.plan.counted(self.origin, self.plan.stretches(self.begin, self.end)))

    def publish(self, queue: str, count: int) -> None:
        """Publish messages, and wait until they are in the history."""
        everything = Plan.of(ReadOptions.parse({"path": self.plan.options.paths[0]}), [("value", "binary")])

        def found() -> int:
            ends = everything.positions(self.origin.ends(), "latest", "endingOffsets")
            return sum(everything.counted(self.origin, everything.stretches({}, ends)))

        goal = found() + count
        self.mq.publish_many(queue, [b"body"] * count)
        wait_until(lambda: found() == goal, what="the history")

    def waits(self) -> bool:
        return self.admission.waits(self.origin, self.begin, self.end)

    def admit(self) -> None:
        self.begin = self.end


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[tuple[sync.Client, Path]]:
    environment = {**HISTORY, "MQCORE_ARCHIVE": "off"}
    with serving("--data-dir", str(tmp_path), environment=environment) as served, sync.connect(served.url) as mq:
        declare(mq, "orders/1", "orders/2", "logs/1")
        yield mq, tmp_path


def test_batch_waits_for_the_minimum_of_matching_rows(broker: tuple[sync.Client, Path]) -> None:
    stream = Stream(*broker, subscribe="orders", failOnMissingQueue="false", minOffsetsPerTrigger="5")
    stream.publish("orders/1", 3)
    stream.publish("logs/1", 9)
    assert stream.waits()
    stream.publish("orders/2", 1)
    assert stream.waits()
    stream.publish("orders/1", 1)
    assert not stream.waits()
    stream.admit()
    stream.publish("orders/1", 4)
    assert stream.waits(), "rows of earlier batches do not count"


def test_batch_waits_no_longer_than_the_delay(broker: tuple[sync.Client, Path]) -> None:
    stream = Stream(*broker, minOffsetsPerTrigger="100", maxTriggerDelay="2m")
    stream.publish("orders/1", 1)
    stream.now = 119.0
    assert stream.waits()
    stream.now = 120.0
    assert not stream.waits()
    stream.admit()
    stream.publish("orders/1", 1)
    stream.now = 239.0
    assert stream.waits(), "the delay begins with the last batch"
    stream.now = 240.0
    assert not stream.waits()


def test_idle_stream_does_not_use_up_the_delay(broker: tuple[sync.Client, Path]) -> None:
    stream = Stream(*broker, minOffsetsPerTrigger="100", maxTriggerDelay="2m")
    stream.now = 1000.0
    assert not stream.waits(), "there is nothing to wait for"
    stream.publish("orders/1", 1)
    assert not stream.waits(), "the last batch is longer ago than the delay"


def test_without_a_minimum_no_batch_waits(broker: tuple[sync.Client, Path]) -> None:
    stream = Stream(*broker)
    stream.publish("orders/1", 1)
    assert not stream.waits()


def test_limit_is_shared_among_shards_with_options_of_their_own(broker: tuple[sync.Client, Path]) -> None:
    stream = Stream(*broker, startingOffsetsByTimestamp='{"0": 0, "1": 1}', startingOffsets="earliest")
    stream.begin = stream.plan.positions(stream.origin.ends(), "earliest", "startingOffsets")
    for queue in ("orders/1", "orders/2", "logs/1"):
        stream.publish(queue, 20)
    found, batches = 0, 0
    while stream.begin != stream.end:
        end = stream.admission.limited(stream.origin, stream.begin, stream.end, 10)
        rows = sum(stream.plan.counted(stream.origin, stream.plan.stretches(stream.begin, end)))
        assert rows <= 10
        found, batches, stream.begin = found + rows, batches + 1, end
    assert found == 60
    assert batches <= 14


def test_assigned_queues_are_read_from_their_shards_only(broker: tuple[sync.Client, Path]) -> None:
    mq, path = broker
    stream = Stream(mq, path)
    stream.publish("orders/1", 2)
    stream.publish("logs/1", 3)

    def values(**options: Any) -> int:
        plan = Plan.of(ReadOptions.parse({"path": str(path), **options}), [("value", "binary")])
        return sum(plan.counted(plan.origin(), plan.stretches({}, stream.end)))

    counts = {queue: [values(assign=json.dumps({queue: [shard]})) for shard in (0, 1)] for queue in ("orders", "logs")}
    assert (sum(counts["orders"]), sum(counts["logs"])) == (2, 3)
    assert sum(map(bool, counts["orders"])) == 1, "a queue is on one shard"
    home = {queue: found.index(max(found)) for queue, found in counts.items()}
    both = {queue: [shard] for queue, shard in home.items()}
    assert values(assign=json.dumps(both)) == 5
    assert values(assign=json.dumps(both | {"logs": [1 - home["logs"]]})) == 2
