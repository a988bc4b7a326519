"""Publishes the rows of committed batches in order, each row once, also after restarts.

Each row has a name that the manifest fixes: sink, batch and row number. If the confirmation of a row is missing,
because a process was killed or a connection was lost, the publisher searches the broker's history for the name before
it publishes the row again. The previous publisher must be gone by then. All publishers of a sink use the same client
id, and the broker accepts one client per id at a time. After connecting, a publisher reads the progress of the others
again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow.compute as pc

from mqcore import errors, sync
from mqcore.spark.ledger import Batch, Ledger
from mqcore.spark.options import WriteOptions
from mqcore.spark.origin import Ends, Remote
from mqcore.spark.plan import Plan
from mqcore.spark.rows import NAME_HEADER, Outgoing, outgoing, queues_of

__all__ = ["Publisher", "history_ends"]

_PASSING: Final = (
    errors.TransportError,
    errors.ConfirmTimeout,
    errors.RequestTimeout,
    errors.Busy,
    errors.LimitExceeded,
    errors.RateLimited,
    errors.Nacked,
)
"""Errors after which a retry can succeed."""
_PAUSE_FIRST: Final = 0.1
_PAUSE_MAX: Final = 5.0
_WINDOW_BYTES: Final = 16 << 20
"""Approximate size of the bodies in a window, so that large rows do not fill the driver's memory."""


def history_ends(options: WriteOptions) -> list[dict[str, Any]] | None:
    """Return the end of the broker's history as plain values, or ``None`` without an admin URL."""
    if options.admin is None:
        return None
    origin = Remote(options.admin, options.admin_token)
    pauses = _pauses(options.retries)
    while True:
        try:
            return [{"shard": end.shard, "journal": end.journal, "latest": end.latest} for end in origin.ends()]
        except _PASSING:
            if (pause := next(pauses, None)) is None:
                raise
            time.sleep(pause)


def _pauses(retries: int) -> Iterator[float]:
    """Delays between attempts in seconds."""
    pause = _PAUSE_FIRST
    for _ in range(retries):
        yield pause
        pause = min(2 * pause, _PAUSE_MAX)


@dataclass
class _Window:
    """Rows that are published and confirmed together."""

    first: int
    rows: list[Outgoing]


class Publisher:
    """Publishes batches of one sink."""

    def __init__(self, options: WriteOptions, ledger: Ledger) -> None:
        self._options = options
        self._ledger = ledger
        self._client: sync.Client | None = None
        self._floor = 0
        """Number of the first row that is not published yet by any publisher."""
        self._known: set[int] = set()
        """Later rows that the history contains nevertheless."""

    def publish(self, batch: Batch, *, fresh: bool) -> None:
        """Publish the remaining rows of a batch, and save the progress. A publisher is for one batch.

        `fresh`: the caller has just committed the batch, so none of its rows can be published yet. Raises errors that
        a retry cannot resolve (`NotFound`, `Unauthorized`, ...), and after `retries` failed attempts at the same rows
        the last error.
        """
        if batch.is_done:
            return
        uncertain = not fresh
        try:
            for window in self._windows(batch):
                self._publish_window(batch, window, uncertain)
                uncertain = False
                self._ledger.advance(batch.number, window.first + len(window.rows))
        finally:
            self._close()

    def _windows(self, batch: Batch) -> Iterator[_Window]:
        rows: list[Outgoing] = []
        first, size = batch.published, 0
        for number, table in self._ledger.rows(batch, batch.published):
            for row in outgoing(table, number, self._name(batch), self._options.queue):
                rows.append(row)
                size += len(row.body)
                if len(rows) >= self._options.window or size >= _WINDOW_BYTES:
                    yield _Window(first, rows)
                    first, size, rows = first + len(rows), 0, []
        if rows:
            yield _Window(first, rows)

    def _name(self, batch: Batch) -> str:
        return f"{self._ledger.sink}/{batch.number}/"

    def _publish_window(self, batch: Batch, window: _Window, uncertain: bool) -> None:
        left, pauses = self._unpublished(window.rows), _pauses(self._options.retries)
        failure: errors.MqcoreError | None
        while left:
            try:
                if uncertain:
                    self._look_up(batch)
                    left, uncertain = self._unpublished(left), False
                left, failure, unknown = self._attempt(left)
            except _PASSING as error:
                failure, unknown = error, self._client is not None
            if not left:
                return
            if unknown:
                # The broker may accept another publisher now, so the progress must be read again after reconnecting.
                self._close()
                uncertain = True
            if (pause := next(pauses, None)) is None:
                assert failure is not None
                raise failure
            time.sleep(pause)

    def _unpublished(self, rows: list[Outgoing]) -> list[Outgoing]:
        return [row for row in rows if row.number >= self._floor and row.number not in self._known]

    def _attempt(self, rows: list[Outgoing]) -> tuple[list[Outgoing], errors.MqcoreError | None, bool]:
        """Publish rows; return the unconfirmed ones, the error, and whether the broker may have stored some."""
        client = self._connected()
        left: list[Outgoing] = []
        failure: errors.MqcoreError | None = None
        unknown = False
        for run in _runs(rows):
            messages: list[tuple[bytes, str | None, list[tuple[str, str]]]]
            messages = [(row.body, row.id, row.headers) for row in run]
            core = client._connected()
            outcomes = core.publish_each(
                run[0].queue, messages, high_priority=run[0].high_priority, confirm=True, timeout=self._options.timeout
            )
            for row, outcome in zip(run, outcomes, strict=True):
                if isinstance(outcome, errors.MqcoreError):
                    if not isinstance(outcome, _PASSING):
                        raise outcome
                    left.append(row)
                    failure = outcome
                    unknown = unknown or isinstance(
                        outcome, errors.TransportError | errors.ConfirmTimeout | errors.RequestTimeout
                    )
            if left:
                # Later rows of the same queue would overtake it.
                left += [row for other in _behind(rows, run) for row in other]
                break
        return left, failure, unknown

    def _connected(self) -> sync.Client:
        if self._client is None:
            options = self._options
            self._client = sync.connect(
                options.url,
                id=f"spark-{self._ledger.sink}",
                name="mqcore-spark",
                token=options.token,
                patience=options.timeout,
                request_timeout=options.timeout,
                max_outstanding=max(65_536, options.window),
                # No automatic reconnection: it could run beside another publisher that connected meanwhile.
                reconnect_attempts=0,
            )
        return self._client

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _look_up(self, batch: Batch) -> None:
        """Find out which rows are published, once no other publisher can be active."""
        client = self._connected()
        self._floor = max(self._floor, self._ledger.published(batch.number))
        if self._options.admin is None or batch.before is None:
            return
        for queue in self._queues(batch):
            try:
                # The broker answers in order, so after this answer no earlier message is in flight.
                client.queue_information(queue)
            except errors.NotFound:
                continue
        origin = Remote(self._options.admin, self._options.admin_token)
        names = _names(origin, batch.before, origin.ends(settled=True), self._name(batch))
        numbers = (int(number) for name in names if (number := name.rpartition("/")[2]).isdecimal())
        # Rows before the floor are published, so their names need not be kept.
        self._known = {number for number in numbers if number >= self._floor}

    def _queues(self, batch: Batch) -> set[str]:
        """Queues of the rows after the floor, which another publisher may have published."""
        if self._options.queue is not None:
            return {self._options.queue}
        tables = self._ledger.rows(batch, self._floor)
        return {queue for _, table in tables for queue in queues_of(table)}


def _names(origin: Remote, before: Sequence[dict[str, Any]], now: Sequence[Ends], prefix: str) -> set[str]:
    """Return the names of rows in the history between two positions."""
    then = {place["shard"]: place for place in before}
    stretches = []
    for end in now:
        place = then.get(end.shard)
        begin = int(place["latest"]) if place is not None and place["journal"] in {"", end.journal} else 0
        stretches.append((end.shard, begin, end.latest))
    stretches = [stretch for stretch in stretches if stretch[1] < stretch[2]]
    request = Plan.request_of("messages", ["message_id", "headers"])
    found: set[str] = set()
    for piece in origin.pieces(request, stretches, 64 << 20) if stretches else []:
        for rows in origin.read(request, piece, fail=False):
            ids = rows.column("message_id")
            found.update(ids.filter(pc.starts_with(ids, prefix)).to_pylist())
            for headers in rows.column("headers").to_pylist():
                for header in headers or ():
                    value = (header["value"] or b"").decode("utf-8", "replace")
                    if header["key"] == NAME_HEADER and value.startswith(prefix):
                        found.add(value)
    return found


def _runs(rows: Sequence[Outgoing]) -> list[list[Outgoing]]:
    """Split rows where the queue or the priority changes, because one call publishes to one queue."""
    runs: list[list[Outgoing]] = []
    for row in rows:
        if runs and (runs[-1][0].queue, runs[-1][0].high_priority) == (row.queue, row.high_priority):
            runs[-1].append(row)
        else:
            runs.append([row])
    return runs


def _behind(rows: Sequence[Outgoing], run: Sequence[Outgoing]) -> Iterator[list[Outgoing]]:
    runs = _runs(rows)
    at = next(index for index, other in enumerate(runs) if other[0] is run[0])
    yield from runs[at + 1 :]
