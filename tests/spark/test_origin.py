"""Reading history without Spark: reports about lost notes, and events that filters leave out."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import mqcore.journal
from depth import choices
from mqcore import errors, sync
from mqcore.spark.archive import newest_manifest
from mqcore.spark.options import ReadOptions
from mqcore.spark.origin import Directory
from mqcore.spark.plan import Plan, columns_of
from served import serving, wait_until
from spark.recorded import ARCHIVE_SECONDS, HISTORY, archived, declare


def plan_of(path: Path, **options: str) -> Plan:
    parsed = ReadOptions.parse({"path": str(path), **options})
    return Plan.of(parsed, columns_of(parsed))


def values(plan: Plan) -> list[bytes]:
    origin = plan.origin()
    ends = origin.ends()
    begin = plan.checked(plan.positions(ends, "earliest", "startingOffsets"), ends)
    stretches = plan.stretches(begin, plan.positions(ends, "latest", "endingOffsets"))
    found: list[bytes] = []
    for piece in plan.pieces(origin, stretches):
        for rows in origin.read(plan.request(), piece, plan.options.fail_on_data_loss):
            found += rows.column("value").to_pylist()
    return found


def test_notes_that_vanish_between_planning_and_reading_are_lost_in_words(tmp_path: Path) -> None:
    with serving("--data-dir", str(tmp_path), environment={**HISTORY, "MQCORE_ARCHIVE": "off"}) as served:
        with sync.connect(served.url) as mq:
            declare(mq, "orders/1")
            for number in range(10):
                mq.publish("orders/1", f"body {number}")
        # The step of the last one is written behind it.
        wait_until(lambda: len(values(plan_of(tmp_path))) == 10, what="the last step")
        served.process.kill()
    plan = plan_of(tmp_path)
    assert values(plan) == [f"body {number}".encode() for number in range(10)]
    origin = plan.origin()
    assert isinstance(origin, Directory)
    stretches = plan.stretches({}, plan.positions(origin.ends(), "latest", "endingOffsets"))
    pieces = origin.pieces(plan.request(), stretches, 64 << 20)
    for segment in tmp_path.glob("shard-*/*.segment"):
        segment.unlink()
    for piece in pieces:
        with pytest.raises(errors.HistoryLost, match="neither the journal nor the archive"):
            list(origin.read(plan.request(), piece, fail=True))
        assert list(origin.read(plan.request(), piece, fail=False)) == []


def test_a_segment_that_is_set_aside_between_planning_and_reading_costs_what_is_damaged(tmp_path: Path) -> None:
    bodies = [f"{number} {'ab' * 50}".encode() for number in range(3000)]
    with serving("--data-dir", str(tmp_path), environment={**HISTORY, "MQCORE_ARCHIVE": "off"}) as served:
        with sync.connect(served.url) as mq:
            declare(mq, "orders/1")
            for first in range(0, 3000, 100):
                mq.publish_many("orders/1", bodies[first : first + 100])
        served.terminate()
    plan = plan_of(tmp_path)
    origin = plan.origin()
    stretches = plan.stretches({}, plan.positions(origin.ends(), "latest", "endingOffsets"))
    pieces = origin.pieces(plan.request(), stretches, 64 << 20)

    def found(fail: bool = False) -> list[bytes]:
        rows = [rows for piece in pieces for rows in origin.read(plan.request(), piece, fail)]
        return [body for batch in rows for body in batch.column("value").to_pylist()]

    assert found() == bodies
    victim = max(tmp_path.rglob("*.segment"), key=lambda path: len(path.read_bytes().rstrip(b"\0")))
    data = bytearray(victim.read_bytes())
    middle = len(bytes(data).rstrip(b"\0")) // 2
    data[middle : middle + 4096] = bytes(byte ^ 0xFF for byte in data[middle : middle + 4096])
    victim.write_bytes(data)
    mqcore.journal.compact(tmp_path)
    assert victim.with_suffix(".quarantined").exists()
    left = found()
    assert 2500 < len(left) < 3000
    assert [body for body in bodies if body in set(left)] == left, "each once, and in order"
    with pytest.raises(errors.HistoryLost, match="neither the journal nor the archive"):
        found(fail=True)
    # A file with the name of a segment but other content.
    victim.with_name("0000000099.segment").write_bytes(b"no journal" * 1000)
    assert found() == left


def test_large_steps_that_are_packed_in_the_journal_are_read_as_they_were(tmp_path: Path) -> None:
    bodies = [f"{number} {'abcd' * 300}".encode() for number in range(3000)]
    with serving("--data-dir", str(tmp_path), environment={**HISTORY, "MQCORE_ARCHIVE": "off"}) as served:
        with sync.connect(served.url) as mq:
            declare(mq, "orders/1")
            mq.publish_many("orders/1", bodies)
        served.terminate()
    assert values(plan_of(tmp_path)) == bodies


@pytest.mark.parametrize("archive", [False, True], ids=["journal", "archive"])
def test_tasks_are_as_many_as_cores_if_each_has_enough_to_read(tmp_path: Path, archive: bool) -> None:
    random = choices(__name__)
    bodies = [random.randbytes(1000) for _ in range(6000)]
    environment = HISTORY if archive else {**HISTORY, "MQCORE_ARCHIVE": "off"}
    with serving("--data-dir", str(tmp_path), environment=environment) as served:
        with sync.connect(served.url) as mq:
            declare(mq, "orders/1")
            for first in range(0, 6000, 100):
                mq.publish_many("orders/1", bodies[first : first + 100])
        if archive:
            wait_until(lambda: archived(tmp_path, 6000), limit=ARCHIVE_SECONDS, what="the archive")
        served.terminate()

    def tasks(cores: int, **options: str) -> int:
        plan = plan_of(tmp_path, **options)
        plan.cores = cores
        origin = plan.origin()
        pieces = plan.pieces(origin, plan.stretches({}, plan.positions(origin.ends(), "latest", "endingOffsets")))
        found = [
            body
            for piece in pieces
            for rows in origin.read(plan.request(), piece, True)
            for body in rows.column("value").to_pylist()
        ]
        assert sorted(found) == sorted(bodies)
        # A shard without these messages has a small piece of its own.
        return sum(piece[6] > 1 << 18 for piece in pieces)

    assert tasks(1) == 1
    if archive:
        assert tasks(64) <= newest_files(tmp_path), "a file of the archive is read by one task"
    else:
        assert tasks(2) == 2
        assert tasks(3) == 3
        assert 4 <= tasks(64) <= 16, "a task has a mebibyte"
    assert tasks(64, minPartitions="1") == 1
    # The last piece of each file may be small. How many files the archive has depends on the load.
    small = newest_files(tmp_path) if archive else 1
    assert tasks(1, minPartitions="9") >= 9 - small


def newest_files(data_dir: Path) -> int:
    manifest = newest_manifest(data_dir / "archive")
    assert manifest is not None
    return sum(file["table"] == "messages" for file in manifest["files"])


def test_filters_narrow_a_plan_and_never_beyond_what_they_let_pass() -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, IsNull, LessThan, Not

    from mqcore.spark.filters import narrow

    def narrowed(*filters: Filter) -> Plan:
        plan = plan_of(Path("/nowhere"))
        for wanted in filters:
            narrow(plan, wanted)
        return plan

    noon = datetime(2026, 11, 21, 12, tzinfo=UTC)
    us = int(noon.timestamp()) * 1_000_000
    cases: list[tuple[Plan, dict[str, Any]]] = [
        (narrowed(EqualTo(("channel",), "a")), {"queues": ("a",)}),
        (narrowed(EqualTo(("channel",), "a"), In(("queue",), ("b/1", "b/2"))), {"queues": ("a",)}),
        (narrowed(In(("kind",), ("acked", "saved"))), {"kinds": ("acked", "saved")}),
        (narrowed(GreaterThanOrEqual(("timestamp",), noon), LessThan(("timestamp",), noon)), {"since_us": us}),
        (narrowed(GreaterThan(("timestamp",), noon.replace(tzinfo=None))), {"since_us": None}),
        (narrowed(Not(EqualTo(("channel",), "a")), IsNull(("kind",))), {"queues": None, "kinds": None}),
        (narrowed(EqualTo(("a", "b"), 1)), {"queues": None}),
    ]
    for plan, members in cases:
        assert {name: getattr(plan, name) for name in members} == members
    bounds = narrowed(GreaterThan(("sequence",), 5), EqualTo(("offset",), 9), In(("shard",), (0, 1))).bounds
    assert (bounds.first, bounds.behind, bounds.shards) == (9, 10, {0, 1})
