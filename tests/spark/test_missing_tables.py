"""An archive whose tables are missing for a while, or begin late. Tests call the readers of streams as Spark does."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mqcore import errors, sync
from mqcore.spark.options import ReadOptions
from mqcore.spark.plan import Offsets, Plan
from served import serving, wait_until
from spark.recorded import ARCHIVE_SECONDS, HISTORY, declare

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from mqcore.spark.stream import Follower

ROWS = 60


@dataclass
class Query:
    """A streaming query: its checkpoint, and what it has read."""

    url: str
    limits: bool
    """Whether it is one of a Spark that limits batches, which also tells where a batch begins."""
    options: dict[str, str] = field(default_factory=dict)
    start: Offsets | None = None
    found: Counter[bytes] = field(default_factory=Counter)
    reader: Follower | None = None

    def restart(self) -> None:
        from mqcore.spark.limited import LimitedReader
        from mqcore.spark.stream import UnlimitedReader

        options = {"archive": self.url, "startingOffsets": "earliest", **self.options}
        plan = Plan.of(ReadOptions.parse(options, streaming=True), [("value", "binary")])
        self.reader = (LimitedReader if self.limits else UnlimitedReader)(plan)

    def batch(self) -> None:
        """Run one batch, and commit it."""
        from mqcore.spark.limited import LimitedReader
        from mqcore.spark.stream import UnlimitedReader

        reader = self.reader
        if isinstance(reader, LimitedReader):
            start = reader.initialOffset() if self.start is None else self.start
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
        else:
            assert isinstance(reader, UnlimitedReader)
            end = reader.latestOffset()
            start = reader.initialOffset() if self.start is None else self.start
        if end != self.start:
            self.run(start, end)
        self.start = end

    def run(self, start: Offsets, end: Offsets) -> None:
        assert self.reader is not None
        for partition in self.reader.partitions(start, end):
            for rows in self.reader.read(partition):
                self.found.update(rows.column("value").to_pylist())


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Counter[bytes]]:
    """An archive in a directory that can be moved, the data directory of its stopped broker, and its messages."""
    root = tmp_path_factory.mktemp("away")
    lake = root / "lake"
    lake.mkdir()
    sent = Counter(f"body {number}".encode() for number in range(ROWS))
    settings = {**HISTORY, "MQCORE_ARCHIVE_INTERVAL": "100ms", "MQCORE_ARCHIVE_URL": lake.as_uri()}
    with serving("--data-dir", str(root / "data"), environment=settings) as broker:
        with sync.connect(broker.url) as mq:
            declare(mq, "orders/0", "orders/1")
            for number, body in enumerate(sent):
                mq.publish(f"orders/{number % 2}", body)

        def is_archived() -> bool:
            query = Query(lake.as_uri(), limits=True, options={"failOnMissingQueue": "false"})
            query.restart()
            query.batch()
            return query.found == sent

        wait_until(is_archived, limit=ARCHIVE_SECONDS, what="the archive")
        assert broker.terminate() == 0
    return lake, root / "data", sent


@pytest.fixture
def lake(archive: tuple[Path, Path, Counter[bytes]]) -> Iterator[Path]:
    lake, away = archive[0], archive[0].with_name("away")
    yield lake
    if away.exists():
        away.rename(lake)


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("limits", [False, True], ids=["before 4.2", "from 4.2 on"])
def test_stream_fails_while_the_tables_are_away_and_continues_where_it_was(
    archive: tuple[Path, Path, Counter[bytes]], lake: Path, limits: bool, restarts: bool
) -> None:
    query = Query(lake.as_uri(), limits)
    query.restart()
    query.batch()
    assert query.found == archive[2]
    before = query.start
    away = lake.rename(lake.with_name("away"))
    for _ in range(2):
        if restarts:
            query.restart()
        with pytest.raises((errors.HistoryLost, errors.DataDirMissing), match=r"does not have it now|has no history"):
            query.batch()
        assert query.start == before
    away.rename(lake)
    query.restart()
    query.batch()
    assert query.found == archive[2], "each row once"
    assert query.start == before


@pytest.mark.parametrize("limits", [False, True], ids=["before 4.2", "from 4.2 on"])
def test_stream_that_accepts_losses_keeps_its_place_while_the_tables_are_away(
    archive: tuple[Path, Path, Counter[bytes]], lake: Path, limits: bool
) -> None:
    query = Query(lake.as_uri(), limits, {"failOnDataLoss": "false"})
    query.restart()
    query.batch()
    before = query.start
    assert before is not None
    away = lake.rename(lake.with_name("away"))
    query.batch()
    assert query.start == before
    # A batch that was planned earlier, and is repeated now.
    query.run({shard: {**place, "sequence": 0} for shard, place in before.items()}, before)
    away.rename(lake)
    query.batch()
    assert query.found == archive[2], "each row once"


def test_query_for_what_is_available_keeps_shards_that_were_missing_when_it_began(
    archive: tuple[Path, Path, Counter[bytes]], lake: Path
) -> None:
    from mqcore.spark.limited import LimitedReader

    query = Query(lake.as_uri(), limits=True)
    query.restart()
    query.batch()
    before = query.start
    assert before is not None
    assert isinstance(query.reader, LimitedReader)
    query.reader.target = {"1": before["1"]}
    query.batch()
    assert query.start == before
    assert query.found == archive[2]


def test_batch_that_was_planned_without_a_shard_is_not_repeated(
    archive: tuple[Path, Path, Counter[bytes]], lake: Path
) -> None:
    query = Query(lake.as_uri(), limits=True)
    query.restart()
    query.batch()
    assert query.start is not None
    with pytest.raises(errors.HistoryLost, match="planned while the shard was missing"):
        query.run(query.start, {})


def test_open_data_directory_notices_an_archive_on_object_storage(
    archive: tuple[Path, Path, Counter[bytes]], tmp_path: Path
) -> None:
    data_dir = tmp_path / "data"
    shutil.copytree(archive[1], data_dir)
    location = (data_dir / "archive.json").rename(tmp_path / "archive.json")
    for segment in data_dir.glob("shard-*/*.segment"):
        segment.unlink()

    def rows() -> int:
        plan = Plan.of(ReadOptions.parse({"path": str(data_dir)}), [("value", "binary")])
        origin = plan.origin()
        assert plan.origin() is origin, "opened once"
        return sum(plan.counted(origin, plan.stretches({}, plan.positions(origin.ends(), "latest", "endingOffsets"))))

    assert rows() == 0
    location.rename(data_dir / "archive.json")
    assert rows() == ROWS
