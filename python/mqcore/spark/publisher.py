"""Publishes the rows of committed batches in order, each row once, also after restarts.

Each row has a name that the manifest fixes: sink, batch and row number. If the confirmation of a row is missing,
because a process was killed or a connection was lost, the publisher searches the broker's history for the name before
it publishes the row again. The previous publisher must be gone by then. All publishers of a sink use the same client
id, and the broker accepts one client per id at a time. After connecting, a publisher reads the progress of the others
again.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mqcore import errors, sync
from mqcore.spark.checks import FRAME_BYTES, Rejection, Rules, Survey, inspect, queue_problem
from mqcore.spark.destinations import Destinations, first_of, refused_by_queue
from mqcore.spark.invalid import raise_invalid
from mqcore.spark.ledger import Batch, Contents, Ledger, row_prefix
from mqcore.spark.options import WriteOptions
from mqcore.spark.origin import Ends, Remote
from mqcore.spark.plan import Plan
from mqcore.spark.rejected import Rejecter
from mqcore.spark.rows import NAME_HEADER, Outgoing, Row, is_keyed, outgoing, queue_names

__all__ = ["Publisher", "history_ends"]

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

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
_PASSING_NACKS: Final = frozenset({"timeout", "not-saved", "no-consumers", "error"})
"""Reasons of `Nacked` that do not concern the row. Others are decisions of a handler or a consumer."""
_OF_ROWS: Final = (errors.OperationError, errors.InvalidArgument, errors.TooLarge)
"""Other errors that refuse one row or one queue."""
_UNKNOWN: Final = (errors.TransportError, errors.ConfirmTimeout, errors.RequestTimeout)
"""Errors after which the broker may have stored the row."""
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
    keyed: bool
    """Whether message ids may repeat."""


@dataclass
class _Attempt:
    """Result of an attempt to publish rows."""

    left: list[Outgoing] = field(default_factory=list)
    """Rows to publish next, in their order."""
    failures: dict[int, errors.MqcoreError] = field(default_factory=dict)
    """Errors after which a retry can succeed, by row number."""
    unknown: bool = False
    """Whether the broker may have stored some of the rows that are left."""


class Publisher:
    """Publishes one batch of a sink. Close it, or use it as a context manager."""

    def __init__(self, options: WriteOptions, ledger: Ledger) -> None:
        self._options = options
        self._ledger = ledger
        self._client: sync.Client | None = None
        self._floor = 0
        """Number of the first row that is not published yet by any publisher."""
        self._known: set[int] = set()
        """Later rows that are published nevertheless."""
        self._uncertain = False
        """Whether rows may be published that are neither before the floor nor known."""
        self._contents = Contents()
        self._destinations: Destinations | None = None
        self._rejecter: Rejecter | None = None

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self, batch: Batch) -> None:
        """Check all rows of a batch, and ask the broker about their queues. Publishes nothing.

        Raises `InvalidArgument` if there are invalid rows and no option `rejectedQueue`. The error names the first ones
        and counts them by reason. Raises `NotFound` and `QueueStopped` for a queue of an option.
        """
        if batch.rows:
            self._retrying(lambda: self._check(batch))

    def publish(self, batch: Batch, *, fresh: bool) -> None:
        """Publish the remaining rows of a batch, and save the progress. A publisher is for one batch.

        `fresh`: the caller has just committed the batch, so none of its rows can be published yet. Checks the batch
        unless `check` has. Raises errors that a retry cannot resolve (`NotFound`, `Unauthorized`, ...), and after
        `retries` failed attempts at the same rows the last error.
        """
        if batch.is_done:
            return
        self._uncertain = not fresh
        try:
            self._retrying(lambda: self._begin(batch))
            for window in self._windows(batch):
                self._publish_window(batch, window)
                self._ledger.advance(batch.number, window.first + len(window.rows))
        finally:
            self.close()

    def close(self) -> None:
        """Disconnect. The next call connects again."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _retrying(self, act: Callable[[], T]) -> T:
        pauses = _pauses(self._options.retries)
        while True:
            try:
                return act()
            except _PASSING:
                self.close()
                if (pause := next(pauses, None)) is None:
                    raise
                time.sleep(pause)

    # --- checks ------------------------------------------------------------------------------------------------------

    def _check(self, batch: Batch) -> None:
        if self._destinations is not None:
            return
        options, rules = self._options, self._rules(batch)
        self._contents = batch.contents or self._survey(batch, rules)
        asked = self._contents
        if options.rejected is not None:
            asked = asked.plus(Contents(largest={options.rejected: 0}))
        destinations = Destinations.ask(self._connected(), asked, creates_queues=options.creates_queues)
        for name in ("queue", "rejected"):
            queue = getattr(options, name)
            if queue is not None and queue in destinations.refused:
                raise _setup_error(destinations.refused[queue])
        if options.rejected is not None:
            body_bytes = rules.message_bytes - FRAME_BYTES
            self._rejecter = Rejecter(
                options.rejected, min(body_bytes, destinations.limits.get(options.rejected, body_bytes))
            )
        elif self._contents.invalid or destinations.refuses_rows:
            raise_invalid(self._ledger, batch, rules, destinations)
        self._destinations = destinations

    def _survey(self, batch: Batch, rules: Rules) -> Contents:
        """Check rows that no task has checked."""
        survey = Survey(rules)
        for _, rows in self._ledger.rows(batch, 0):
            survey.add(rows)
        return survey.contents()

    def _rules(self, batch: Batch) -> Rules:
        return Rules(self._options.queue, row_prefix(self._ledger.sink, batch.number), self._options.message_bytes)

    # --- rows --------------------------------------------------------------------------------------------------------

    def _windows(self, batch: Batch) -> Iterator[_Window]:
        rules = self._rules(batch)
        rows: list[Outgoing] = []
        first, size, keyed = batch.published, 0, False
        for number, staged in self._ledger.rows(batch, batch.published):
            messages = outgoing(staged, number, rules.prefix, rules.queue, self._invalid(staged, rules))
            of_keyed = is_keyed(staged)
            for row in self._redirected(messages):
                rows.append(row)
                keyed = keyed or of_keyed
                size += len(row.body)
                if len(rows) >= self._options.window or size >= _WINDOW_BYTES:
                    yield _Window(first, rows, keyed)
                    first, size, rows, keyed = first + len(rows), 0, [], False
        if rows:
            yield _Window(first, rows, keyed)

    def _redirected(self, messages: Iterator[Outgoing]) -> Iterator[Outgoing]:
        """Reject the messages that their queues will refuse."""
        assert self._destinations is not None
        if not self._destinations.refuses_rows:
            return messages
        return map(self._redirect, messages)

    def _redirect(self, message: Outgoing) -> Outgoing:
        assert self._destinations is not None
        rejection = None if message.is_rejected else self._destinations.rejection(message)
        return message if rejection is None else self._reject(rejection, message)

    # --- publishing --------------------------------------------------------------------------------------------------

    def _begin(self, batch: Batch) -> None:
        """Check a batch, and find out what no check can tell without publishing."""
        if self._uncertain:
            self._look_up(batch)
            self._uncertain = False
        self._check(batch)
        assert self._destinations is not None
        queues = len(self._contents.largest) + (self._rejecter is not None)
        if self._destinations.unknown and queues > 1:
            self._probe(batch, self._destinations)

    def _probe(self, batch: Batch, destinations: Destinations) -> None:
        """Publish the first row of each queue that may refuse all rows, before any other.

        So a missing queue or permission is found when few rows are published.
        """
        rules, rejected = self._rules(batch), self._options.rejected
        used = set(self._contents.largest) | ({rejected} if self._contents.invalid else set())
        wanted = {queue for queue in destinations.unknown if queue in used}
        for number, rows in self._ledger.rows(batch, batch.published):
            if not wanted:
                return
            invalid = self._invalid(rows, rules)
            names = queue_names(rows) if rules.queue is None else [rules.queue] * rows.num_rows
            actual = (rejected if index in invalid else name for index, name in enumerate(names))
            for queue, index in first_of(actual, wanted).items():
                forms = {0: invalid[index]} if index in invalid else {}
                (row,) = outgoing(rows.slice(index, 1), number + index, rules.prefix, rules.queue, forms)
                self._probe_with(row, destinations)
                wanted.discard(queue)
                destinations.unknown.remove(queue)

    def _probe_with(self, row: Outgoing, destinations: Destinations) -> None:
        if not self._unpublished([row]):
            return
        self._uncertain = True
        outcome = self._publish([row])[0]
        if isinstance(outcome, _UNKNOWN):
            raise outcome
        self._uncertain = False
        if not isinstance(outcome, errors.MqcoreError):
            self._known.add(row.number)
        elif (rejection := refused_by_queue(outcome)) is not None:
            destinations.refused[row.queue] = rejection
            if self._rejecter is None or row.is_rejected or self._options.queue is not None:
                raise outcome

    def _invalid(self, rows: pa.RecordBatch, rules: Rules) -> dict[int, Callable[[str, int, Row], Outgoing]]:
        """How invalid rows become messages, by their indexes."""
        found = inspect(rows, rules).invalid if self._contents.invalid else {}
        if not found:
            return {}
        assert self._rejecter is not None
        return {index: functools.partial(self._rejecter.of_row, why) for index, why in found.items()}

    def _publish_window(self, batch: Batch, window: _Window) -> None:
        left, pauses = self._unpublished(window.rows), _pauses(self._options.retries)
        failure: errors.MqcoreError
        while left:
            failures: dict[int, errors.MqcoreError] = {}
            try:
                if self._uncertain:
                    self._look_up(batch)
                    left, self._uncertain = self._unpublished(left), False
                attempt = self._attempt(left, window.keyed)
                left, failures, unknown = attempt.left, attempt.failures, attempt.unknown
                if not failures:
                    # All are published, or those that are left have another queue now.
                    continue
                failure = next(reversed(failures.values()))
            except _PASSING as error:
                failure, unknown = error, self._client is not None
            if unknown:
                # The broker may accept another publisher now, so the progress must be read again after reconnecting.
                self.close()
                self._uncertain = True
            if (pause := next(pauses, None)) is None:
                raise failure
            time.sleep(pause)

    def _unpublished(self, rows: list[Outgoing]) -> list[Outgoing]:
        return [row for row in rows if row.number >= self._floor and row.number not in self._known]

    def _attempt(self, rows: list[Outgoing], keyed: bool) -> _Attempt:
        """Publish rows up to the first run of which some are not confirmed."""
        attempt = _Attempt()
        runs = [wave for run in _runs(rows) for wave in (_waves(run) if keyed else (run,))]
        for at, run in enumerate(runs):
            for row, outcome in zip(run, self._publish(run), strict=True):
                if not isinstance(outcome, errors.MqcoreError):
                    continue
                rejection = self._rejection(row, outcome)
                if rejection is not None:
                    attempt.left.append(self._reject(rejection, row))
                elif isinstance(outcome, _PASSING):
                    attempt.left.append(row)
                    attempt.failures[row.number] = outcome
                    attempt.unknown = attempt.unknown or isinstance(outcome, _UNKNOWN)
                else:
                    outcome.args = (f"{outcome} (row {row.number} of batch {row.name.rpartition('/')[0]})",)
                    raise outcome
            if attempt.left:
                # Later rows of the same queue would overtake it.
                attempt.left += [row for other in runs[at + 1 :] for row in other]
                break
        return attempt

    def _publish(self, run: Sequence[Outgoing]) -> Sequence[Any]:
        """Publish rows of one queue and priority, without equal ids; return a confirmation or an error for each."""
        messages: list[tuple[bytes, str | None, list[tuple[str, str]]]]
        messages = [(row.body, row.id, row.headers) for row in run]
        return (
            self._connected()
            ._connected()
            .publish_each(
                run[0].queue, messages, high_priority=run[0].high_priority, confirm=True, timeout=self._options.timeout
            )
        )

    def _rejection(self, row: Outgoing, outcome: errors.MqcoreError) -> Rejection | None:
        """Why a refused row goes to the queue of rejected rows; ``None``: it does not."""
        if self._rejecter is None or row.is_rejected:
            return None
        if isinstance(outcome, errors.Nacked):
            passes = outcome.reason in _PASSING_NACKS
            return None if passes else Rejection("refused", f"{row.queue} refused the message: {outcome.reason}")
        if isinstance(outcome, _PASSING) or not isinstance(outcome, _OF_ROWS):
            return None
        if (rejection := refused_by_queue(outcome)) is not None:
            # If an option names the queue, all rows would follow.
            return None if self._options.queue is not None else rejection
        return Rejection("refused", str(outcome))

    def _reject(self, rejection: Rejection, row: Outgoing) -> Outgoing:
        assert self._rejecter is not None
        return self._rejecter.of_message(rejection, row)

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
                frame_bytes_max=max(64 << 20, options.message_bytes),
                # No automatic reconnection: it could run beside another publisher that connected meanwhile.
                reconnect_attempts=0,
            )
        return self._client

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
            except (errors.NotFound, errors.Unauthorized):
                continue
        origin = Remote(self._options.admin, self._options.admin_token)
        names = _names(origin, batch.before, origin.ends(settled=True), row_prefix(self._ledger.sink, batch.number))
        numbers = (int(number) for name in names if (number := name.rpartition("/")[2]).isdecimal())
        # Rows before the floor are published, so their names need not be kept.
        self._known = {number for number in numbers if number >= self._floor}

    def _queues(self, batch: Batch) -> set[str]:
        """Queues of the rows after the floor, which another publisher may have published."""
        queues = set() if self._options.rejected is None else {self._options.rejected}
        if self._options.queue is not None:
            return queues | {self._options.queue}
        for _, rows in self._ledger.rows(batch, self._floor):
            queues.update(queue for queue in queue_names(rows) if queue is not None and queue_problem(queue) is None)
        return queues


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
            ids, headers = rows.column("message_id"), rows.column("headers").to_pylist()
            for index, id_ in enumerate(ids.to_pylist()):
                if (name := _name_of(id_, headers[index])).startswith(prefix):
                    found.add(name)
    return found


def _runs(rows: Sequence[Outgoing]) -> list[list[Outgoing]]:
    """Group rows by queue and priority, because one call publishes to one queue. The order in each queue stays."""
    runs: dict[tuple[str, bool], list[Outgoing]] = {}
    for row in rows:
        place = row.queue, row.high_priority
        if (run := runs.get(place)) is None:
            runs[place] = run = []
        run.append(row)
    return list(runs.values())


def _waves(run: list[Outgoing]) -> Iterator[list[Outgoing]]:
    """Split rows before each id that repeats.

    A confirmation names its message by the id only, so a row waits until earlier ones with its id are confirmed.
    """
    if len({row.id for row in run}) == len(run):
        yield run
        return
    wave: list[Outgoing] = []
    ids: set[str] = set()
    for row in run:
        if row.id in ids:
            yield wave
            wave, ids = [], set()
        wave.append(row)
        ids.add(row.id)
    yield wave


def _name_of(id_: str | None, headers: Any) -> str:
    """Return the name of a recorded row. Only rows without a key are named by their ids: a key may be anything."""
    for header in reversed(headers or ()):
        if header["key"] == NAME_HEADER:
            return (header["value"] or b"").decode("utf-8", "replace")
    return id_ or ""


def _setup_error(rejection: Rejection) -> errors.MqcoreError:
    """The error for a queue of an option, which refuses all rows."""
    kind = errors.QueueStopped if rejection.reason == "queue-stopped" else errors.NotFound
    return kind(f"{rejection.detail}; no row is published")
