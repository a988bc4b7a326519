"""Publishes what a ledger has promised, in its order and each row once, however often this is begun again.

Each row has a name that the promise fixes: sink, batch, row. Rows whose receipts never came, because somebody was
killed or a connection was lost, are looked for under that name in the broker's history before anything is published
again. Before that, the broker has to know that whoever published before is gone: it lets in one client of an id at a
time, and every publisher of a sink has the same id. Whoever is let in reads again how far the others came.
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
"""What may be otherwise the next time."""
_PAUSE_FIRST: Final = 0.1
_PAUSE_MAX: Final = 5.0
_WINDOW_BYTES: Final = 16 << 20
"""Bodies of a window, about: large rows must not fill the driver's memory."""


def history_ends(options: WriteOptions) -> list[dict[str, Any]] | None:
    """Return where the broker's history ends now, as plain values; ``None`` if nobody said where it can be asked."""
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
    """Seconds to wait before each further attempt."""
    pause = _PAUSE_FIRST
    for _ in range(retries):
        yield pause
        pause = min(2 * pause, _PAUSE_MAX)


@dataclass
class _Window:
    """Rows that are published together."""

    first: int
    rows: list[Outgoing]


class Publisher:
    """Publishes batches of one sink."""

    def __init__(self, options: WriteOptions, ledger: Ledger) -> None:
        self._options = options
        self._ledger = ledger
        self._client: sync.Client | None = None
        self._floor = 0
        """Rows before this one are published, whoever did it."""
        self._known: set[int] = set()
        """Rows behind that which the history has all the same."""

    def publish(self, batch: Batch, *, fresh: bool) -> None:
        """Publish what is left of a batch, and write down how far it is. A publisher is for one batch.

        `fresh`: the caller has just made this promise, so nobody can have published any of it. Raises what the broker
        says to what cannot succeed (`NotFound`, `Unauthorized`, ...), and after `retries` attempts in a row at the same
        rows what it said last.
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
        first, octets = batch.published, 0
        for number, table in self._ledger.rows(batch, batch.published):
            for row in outgoing(table, number, self._name(batch), self._options.queue):
                rows.append(row)
                octets += len(row.body)
                if len(rows) >= self._options.window or octets >= _WINDOW_BYTES:
                    yield _Window(first, rows)
                    first, octets, rows = first + len(rows), 0, []
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
                # The broker may let in another publisher now, so nothing is certain when it lets this one in again.
                self._close()
                uncertain = True
            if (pause := next(pauses, None)) is None:
                assert failure is not None
                raise failure
            time.sleep(pause)

    def _unpublished(self, rows: list[Outgoing]) -> list[Outgoing]:
        if not self._known and (not rows or rows[0].number >= self._floor):
            return rows
        return [row for row in rows if row.number >= self._floor and row.number not in self._known]

    def _attempt(self, rows: list[Outgoing]) -> tuple[list[Outgoing], errors.MqcoreError | None, bool]:
        """Publish rows; return those without a receipt, why, and whether the broker may have some all the same."""
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
                # What follows of the same queue would overtake it.
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
                # A client that came back by itself would go on beside what another publisher has done meanwhile.
                reconnect_attempts=0,
            )
        return self._client

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _look_up(self, batch: Batch) -> None:
        """Find out which rows are published by now, when nobody else can be publishing any more."""
        client = self._connected()
        self._floor = max(self._floor, self._ledger.published(batch.number))
        if self._options.admin is None or batch.before is None:
            return
        for queue in self._queues(batch):
            try:
                # Answered behind everything that came before: from here on no earlier message is under way.
                client.queue_information(queue)
            except errors.NotFound:
                continue
        origin = Remote(self._options.admin, self._options.admin_token)
        names = _names(origin, batch.before, origin.ends(settled=True), self._name(batch))
        numbers = (int(number) for name in names if (number := name.rpartition("/")[2]).isdecimal())
        # What is before the floor need not be kept in memory.
        self._known = {number for number in numbers if number >= self._floor}

    def _queues(self, batch: Batch) -> set[str]:
        """Where rows go that may be under way: those behind the floor, of whichever window somebody else had."""
        if self._options.queue is not None:
            return {self._options.queue}
        tables = self._ledger.rows(batch, self._floor)
        return {queue for _, table in tables for queue in queues_of(table)}


def _names(origin: Remote, before: Sequence[dict[str, Any]], now: Sequence[Ends], prefix: str) -> set[str]:
    """Return the names of rows that stand in the history between two moments."""
    then = {place["shard"]: place for place in before}
    stretches = []
    for end in now:
        place = then.get(end.shard)
        same = place is not None and place["journal"] in {"", end.journal}
        stretches.append((end.shard, int(place["latest"]) if same and place is not None else 0, end.latest))
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
    """Part rows where queue or priority changes: one call publishes to one queue."""
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
