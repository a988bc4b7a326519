"""How far a streaming query is behind: rows that it has not read yet, and the age of the oldest.

::

    options = {"path": "/var/lib/mqcore", "subscribe": "orders"}
    for shard in mqcore.spark.lag(query, options):
        print(shard.shard, shard.rows, shard.seconds)

Sequences have gaps, so that the distance of two says nothing about the number of rows. This counts rows, as the query
would: with its queues and times, and without their bodies.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mqcore import errors
from mqcore.spark.options import ReadOptions

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryListener
    from pyspark.sql.streaming.query import StreamingQuery

    from mqcore.spark.origin import Ends, Origin
    from mqcore.spark.plan import Offsets, Plan

__all__ = ["ShardLag", "lag", "lag_listener"]

_LOG: Final = logging.getLogger("mqcore.spark")


@dataclass(frozen=True, slots=True)
class ShardLag:
    """The rows of one shard that a query has not read yet."""

    shard: int
    position: int
    """Sequence of the next row of the query."""
    latest: int
    """Sequence after the last row of the shard."""
    rows: int
    """Rows that wait, of the queues and times that the options select."""
    seconds: float
    """Age of the oldest of these rows; 0 without any."""


def lag(
    position: StreamingQuery | str | os.PathLike[str] | Mapping[str, Any],
    options: Mapping[str, str],
    *,
    source: int | None = None,
) -> list[ShardLag]:
    """Return how far a query is behind, for each shard that it reads.

    `position` is the query, its checkpoint directory, which may be that of a stopped query, or its offsets as in
    ``lastProgress``. `options` are the options of its source (``path`` or ``admin``, ``subscribe``, ...). If the query
    has several sources of the format ``mqcore``, `source` is the number of one, from 0.

    The last finished batch counts. Counting reads the sequences of all waiting rows.

    Raises `ConfigError` for invalid options, for a query without a finished batch and a directory that is not a
    checkpoint, and what reading raises, such as `ConnectFailed`.

    >>> lag("/checkpoints/orders", {"path": "/var/lib/mqcore", "subscribe": "orders"})  # doctest: +SKIP
    [ShardLag(shard=0, position=73400320, latest=78643200, rows=1520, seconds=2.1)]
    """
    return _lag(_plan(options), _offsets(position, source))


def lag_listener(
    options: Mapping[str, str],
    report: Callable[[str, list[ShardLag]], None] | None = None,
    *,
    query: str | None = None,
) -> StreamingQueryListener:
    """Return a listener that measures the lag after each batch of a query; add it by ``spark.streams.addListener``.

    `options` are the options of the query's source, and `query` is its name, if the session runs several. `report` gets
    the name or id of the query and its lag; by default, the logger ``mqcore.spark`` gets them. A lag that cannot be
    measured, because the broker restarts, is logged.
    """
    from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryListener

    plan, told = _plan(options), report or _log

    class LagListener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # noqa: N802 (as in Spark)
            pass

        def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 (as in Spark)
            progress = event.progress
            offsets = _of_progress(progress)
            if not offsets or (query is not None and progress.name != query):
                return
            try:
                told(progress.name or str(progress.id), _lag(plan, offsets[0]))
            except errors.MqcoreError as error:
                _LOG.warning("cannot measure the lag of %s: %s", progress.name or progress.id, error)

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 (as in Spark)
            pass

    return LagListener()


def _log(query: str, shards: Sequence[ShardLag]) -> None:
    rows, seconds = sum(shard.rows for shard in shards), max((shard.seconds for shard in shards), default=0.0)
    _LOG.info("%s is %d rows and %.1f s behind", query, rows, seconds)


def _plan(options: Mapping[str, str]) -> Plan:
    from mqcore.spark.plan import Plan

    return Plan.of(ReadOptions.parse(options, streaming=True), [("sequence", "bigint")])


def _lag(plan: Plan, offsets: Offsets) -> list[ShardLag]:
    origin = plan.origin()
    ends = origin.ends()
    begin = plan.checked(offsets, ends)
    return [_shard_lag(plan, origin, end, begin) for end in ends if plan.reads(end.shard)]


def _shard_lag(plan: Plan, origin: Origin, end: Ends, begin: Offsets) -> ShardLag:
    import pyarrow.compute as pc

    shard = str(end.shard)
    stretches = plan.stretches({shard: begin[shard]}, {shard: {"journal": end.journal, "sequence": end.latest}})
    request = plan.request(["sequence", "timestamp"], shard=end.shard)
    rows, oldest = 0, None
    for piece in origin.pieces(request, stretches, plan.options.partition_bytes) if stretches else []:
        for batch in origin.read(request, piece, plan.options.fail_on_data_loss):
            rows += batch.num_rows
            first = pc.min(batch.column("timestamp")).as_py()
            oldest = first if oldest is None or (first is not None and first < oldest) else oldest
    seconds = 0.0 if oldest is None else max(0.0, time.time() - oldest.timestamp())
    return ShardLag(end.shard, int(begin[shard]["sequence"]), end.latest, rows, seconds)


def _offsets(position: Any, source: int | None) -> Offsets:
    if isinstance(position, Mapping):
        found = [offsets for offsets in [_parsed(position)] if offsets is not None]
        where = "the mapping"
    elif isinstance(position, str | os.PathLike):
        found, where = _of_checkpoint(Path(position)), f"the checkpoint {os.fspath(position)}"
    else:
        progress, where = position.lastProgress, "the last progress of the query"
        if progress is None:
            raise errors.ConfigError("the query has not finished a batch yet; measure its lag later")
        found = _of_progress(progress)
    if not found:
        raise errors.ConfigError(f"{where} has no offsets of the format mqcore yet")
    if source is None and len(found) > 1:
        raise errors.ConfigError(f"{where} has {len(found)} sources of the format mqcore; choose one by source=0")
    if not 0 <= (number := source or 0) < len(found):
        raise errors.ConfigError(f"{where} has no source {number}; it has {len(found)}")
    return found[number]


def _of_progress(progress: Any) -> list[Offsets]:
    return [offsets for each in progress.sources if (offsets := _parsed(each.endOffset)) is not None]


def _parsed(offsets: Any) -> Offsets | None:
    """Return offsets if a source of this format wrote them, as JSON or already parsed."""
    try:
        shards = json.loads(offsets) if isinstance(offsets, str) else offsets
        return {
            str(int(shard)): {"journal": str(place["journal"]), "sequence": int(place["sequence"])}
            for shard, place in shards.items()
        } or None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _of_checkpoint(directory: Path) -> list[Offsets]:
    """Return the offsets of the last finished batch."""
    finished = max(_numbers(directory / "commits"), default=None)
    if finished is None:
        raise errors.ConfigError(
            f"{directory} is not the checkpoint of a query with a finished batch; use its checkpointLocation"
        )
    lines = (directory / "offsets" / str(finished)).read_text(encoding="utf-8").splitlines()
    # The first line is the version of the file, the second describes the batch.
    return [offsets for line in lines[1:] if (offsets := _parsed(line)) is not None]


def _numbers(directory: Path) -> Iterator[int]:
    if directory.is_dir():
        yield from (int(path.name) for path in directory.iterdir() if path.name.isdecimal())
