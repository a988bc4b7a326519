"""Publishes rows of a DataFrame from the driver: each once, also after a kill, at a limited rate, with its progress.

Built from the parts of the sink: tasks stage the rows, a manifest commits them, and the publisher looks up what an
interrupted run has published. Here the driver's own process publishes, so that it can report progress, and an error
keeps its type.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from mqcore import errors
from mqcore.spark.ledger import Batch, Ledger, Staged, Stager, sink_name
from mqcore.spark.options import WriteOptions
from mqcore.spark.publisher import Publisher, history_ends

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Outbox", "check_url"]

_BURSTS_PER_SECOND: Final = 10
"""With a rate, rows are published in so many windows per second."""
_SCHEMES: Final = ("tmqp://", "tmqps://", "tmqp+unix://")
_STAGED: Final = "partition int, file string, rows long"


def check_url(url: str) -> None:
    """Raise `ConfigError` for a URL of another protocol than TMQP."""
    if not url.startswith(_SCHEMES):
        raise errors.ConfigError(f"url is {url!r}, but messages are published over TMQP; use tmqp://HOST:2622")


class _PacedLedger(Ledger):
    """A ledger that reports progress, and waits after each window until the rate allows the next one."""

    def __init__(self, staging: str, sink: str, rate: float, shown: Callable[[int], None]) -> None:
        super().__init__(staging, sink)
        self._rate = rate
        self._shown = shown
        self._began: tuple[float, int] | None = None

    def begin(self, published: int) -> None:
        """Start the clock at the number of rows that are published already."""
        self._began = time.monotonic(), published
        self._shown(published)

    def advance(self, number: int, published: int) -> None:
        """See `Ledger.advance`."""
        super().advance(number, published)
        self._shown(published)
        if self._began is not None and self._rate:
            began, before = self._began
            time.sleep(max(0.0, began + (published - before) / self._rate - time.monotonic()))


class Outbox:
    """Rows to publish under one name. The rows that are committed first are the ones that all later runs publish."""

    def __init__(
        self,
        staging: str,
        name: str,
        *,
        url: str,
        admin: str = "",
        token: str = "",
        rate: float = 0.0,
        number: int = 0,
        shown: Callable[[int], None] = lambda _published: None,
    ) -> None:
        """Prepare publishing to the broker at `url`.

        - `staging`: directory that driver and executors share.
        - `name`, `number`: identity of the rows, which repeated runs share.
        - `admin`: the broker's admin URL. Without it, the last window of a killed run is published at least once.
        - `rate`: messages per second; 0 is unlimited.
        - `shown`: called with the number of published rows after each window.
        """
        given = {"url": url, "stagingLocation": staging, "txnAppId": name, "txnVersion": str(number)}
        given |= {"admin": admin} if admin else {}
        given |= {"token": token} if token else {}
        if rate:
            given["window"] = str(min(32_768, max(1, math.ceil(rate / _BURSTS_PER_SECOND))))
        self._options = WriteOptions.parse(given, streaming=False)
        self._number = number
        self._sink = sink_name(None, name)
        self._ledger = _PacedLedger(self._options.staging, self._sink, rate, shown)

    def committed(self) -> Batch | None:
        """Return the committed rows with their progress; `None` before the first commit."""
        return self._ledger.find(self._number)

    def stage(self, rows: DataFrame) -> list[Staged]:
        """Let tasks write the rows to the staging directory, in the order of the partitions."""
        staging, sink, number = self._options.staging, self._sink, self._number

        def write(batches: Iterator[Any]) -> Iterator[Any]:
            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            stager = Stager(staging, sink, number, context.partitionId(), context.taskAttemptId())
            staged = stager.write(batches)
            fields = {"partition": [staged.partition], "file": [staged.file], "rows": [staged.rows]}
            yield pa.RecordBatch.from_pydict(
                fields, schema=pa.schema([("partition", pa.int32()), ("file", pa.string()), ("rows", pa.int64())])
            )

        found = rows.mapInArrow(write, _STAGED).collect()
        return [Staged(sink, number, row["partition"], row["file"], row["rows"]) for row in found]

    def stage_here(self, rows: pa.RecordBatch) -> list[Staged]:
        """Write rows that the driver has to the staging directory."""
        stager = Stager(self._options.staging, self._sink, self._number, 0, 0)
        return [stager.write(iter([rows]))]

    def commit(self, staged: list[Staged]) -> bool:
        """Commit staged rows, unless others are committed already; return whether this call committed them.

        The rows and their queues are checked before. Raises `InvalidArgument` for rows that the broker would refuse;
        then nothing is committed.
        """
        with Publisher(self._options, self._ledger) as publisher:
            publisher.check(self._ledger.draft(self._number, staged))
        return self._ledger.promise(self._number, staged, history_ends(self._options))[1]

    def publish(self, *, fresh: bool = False) -> int:
        """Publish the committed rows that are left, and return how many this call confirmed.

        `fresh`: `commit` has just returned true, so none can be published yet. Raises errors of publishing; the next
        call continues after the rows that are published.
        """
        batch = self.committed()
        if batch is None:
            return 0
        self._ledger.begin(batch.published)
        with Publisher(self._options, self._ledger) as publisher:
            publisher.publish(batch, fresh=fresh)
        return batch.rows - batch.published

    def texts(self, column: str) -> list[str]:
        """Return a text column of the committed rows. Their staged files must still exist."""
        batch = self.committed()
        if batch is None:
            return []
        return [value for _, rows in self._ledger.rows(batch, 0) for value in rows.column(column).to_pylist()]

    def sweep(self) -> None:
        """Remove staged rows that are published."""
        self._ledger.sweep(self._number)
