"""Publishing again what a stopped broker, or a backup of one, has saved; offered to users by `mqcore.journal`."""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mqcore import _core, errors, sync
from mqcore.client import DEFAULT_URL, Client
from mqcore.client.arguments import optional_seconds
from mqcore.config import Duration

if TYPE_CHECKING:
    from mqcore.client.arguments import Outcome
    from mqcore.client.options import EmbeddedBroker
    from mqcore.progress import Advanced, Progress

__all__ = ["Replayed", "Selection", "replay", "replay_async", "select"]

QUEUE_HEADER: Final = "Replay-Queue"
RECEIVED_HEADER: Final = "Replay-Received"
ID_HEADER: Final = "Replay-Id"

_OF_REPLAYS: Final = {name.lower() for name in (QUEUE_HEADER, RECEIVED_HEADER, ID_HEADER)}
_SCHEMA: Final = "mqcore.journal.replay.position/1"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BATCH: Final = 256
"""Messages published at once; a killed replay publishes up to so many twice."""
_BATCH_BYTES: Final = 4 * 1024 * 1024
_BURSTS_A_SECOND: Final = 10
"""With a rate, messages go in so many bursts a second."""
_FOR_EVER: Final = (1 << 64) - 1

_Outgoing = tuple[bytes, str | None, list[tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay."""

    to: str
    """The queue that messages were published to."""
    published: int
    """Messages published by this call, and confirmed unless that was not wanted."""
    position: int
    """How many of all are done, those of earlier calls among them."""
    total: int
    """How many there are."""
    seconds: float
    """How long this call took to publish."""
    damaged: bool
    """Whether the data directory has damage, so that messages may be missing; `mqcore.journal.verify` says which."""


class Selection:
    """Saved messages that are not settled: queue after queue in the order of their names, each in its own order."""

    def __init__(self, core: _core.JournalSelection, limit: int | None) -> None:
        self._core = core
        self._total = core.count if limit is None else min(core.count, limit)

    def __len__(self) -> int:
        """How many there are, at most the limit."""
        return self._total

    @property
    def queues(self) -> Mapping[str, tuple[int, int]]:
        """The queues, each with its messages and the bytes of their bodies, regardless of the limit."""
        return {name: (messages, size) for name, messages, size in self._core.queues}

    @property
    def is_damaged(self) -> bool:
        """Whether the directory has damage, so that messages may be missing here."""
        return self._core.damaged


@dataclass(slots=True)
class _Batch:
    messages: list[_Outgoing]
    high_priority: bool


def select(
    data_dir: str | os.PathLike[str],
    from_queue: str = "*",
    *,
    since: datetime | Duration | None = None,
    until: datetime | Duration | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
) -> Selection:
    """Find the saved messages of a stopped broker that `replay` would publish, and publish nothing.

    `from_queue` is the ``channel/id`` of their queues, in which ``*`` stands for anything. `since` and `until` compare
    with the time at which the broker received a message: a `datetime` (UTC if it names no zone), or a duration before
    now. Raises `DataDirBusy` while a broker runs on the directory, `DataDirMissing`, and `DataDirUnreadable`.
    """
    if limit is not None and limit < 0:
        raise errors.InvalidArgument(f"limit is a number of messages, not {limit}")
    since_ms = 0 if since is None else _unix_ms(since)
    until_ms = _FOR_EVER if until is None else _unix_ms(until)
    core = _core.JournalSelection(os.fspath(data_dir), from_queue, since_ms, until_ms, progress or _unseen)
    return Selection(core, limit)


def replay(
    data_dir: str | os.PathLike[str],
    to: str,
    via: sync.Client | str | Sequence[str] | EmbeddedBroker = DEFAULT_URL,
    *,
    from_queue: str = "*",
    since: datetime | Duration | None = None,
    until: datetime | Duration | None = None,
    limit: int | None = None,
    rate: float | None = None,
    confirm: bool = True,
    skip: int = 0,
    resume: str | os.PathLike[str] | None = None,
    timeout: Duration | None = None,
    progress: Progress | None = None,
    advanced: Advanced | None = None,
) -> Replayed:
    """Publish the saved messages of a stopped broker, or of a restored backup, to the queue `to` of a running one.

    `via` is a connected client or where to connect to. Messages are chosen as `select` does, at most `limit` of them,
    and keep their order, id, headers, body and priority; the headers ``Replay-Queue``, ``Replay-Received`` (ISO 8601,
    UTC) and ``Replay-Id`` say where each comes from. `rate` is messages a second at most. With `confirm`, a message
    counts as published when the broker confirms it.

    The position is how many are done. `skip` begins behind so many; `resume` names a file in which the position is kept
    after each batch, so that another call with the same arguments continues there. A call that was killed may have
    published up to one batch of 256 more than its file says: the next call publishes these again, with the same ids.

    The first rejected message ends the replay with its error: `NotFound` if the queue does not exist, `Nacked`, `Busy`,
    `ConnectionLost`. Later messages of its batch may be published, and the next call publishes them again. Raises
    `ConfigError` if `resume` is the position of another replay, and what `select` raises.
    """
    selection = select(data_dir, from_queue, since=since, until=until, limit=limit, progress=progress)
    walk = _Walk(selection, to, rate, skip, resume, advanced)
    patience = optional_seconds(timeout)
    with _client(via) as client:
        for batch in walk.batches():
            time.sleep(walk.pause(len(batch.messages)))
            core = client._connected()
            walk.take(
                core.publish_each(
                    to, batch.messages, high_priority=batch.high_priority, confirm=confirm, timeout=patience
                )
            )
    return walk.done()


async def replay_async(
    data_dir: str | os.PathLike[str],
    to: str,
    via: Client,
    *,
    from_queue: str = "*",
    since: datetime | Duration | None = None,
    until: datetime | Duration | None = None,
    limit: int | None = None,
    rate: float | None = None,
    confirm: bool = True,
    skip: int = 0,
    resume: str | os.PathLike[str] | None = None,
    timeout: Duration | None = None,
    progress: Progress | None = None,
    advanced: Advanced | None = None,
) -> Replayed:
    """Do what `replay` does, with a client of asyncio. Files are read by a thread, from which `progress` is called."""
    selection = await asyncio.to_thread(
        select, data_dir, from_queue, since=since, until=until, limit=limit, progress=progress
    )
    walk = _Walk(selection, to, rate, skip, resume, advanced)
    patience = optional_seconds(timeout)
    batches = walk.batches()
    while (batch := await asyncio.to_thread(next, batches, None)) is not None:
        await asyncio.sleep(walk.pause(len(batch.messages)))
        core = via._connected()
        walk.take(
            await core.publish_each(
                to, batch.messages, high_priority=batch.high_priority, confirm=confirm, timeout=patience
            )
        )
    return walk.done()


class _Walk:
    """Where a replay is: what comes next, when it may go, and what is done. It publishes nothing itself."""

    def __init__(
        self,
        selection: Selection,
        to: str,
        rate: float | None,
        skip: int,
        resume: str | os.PathLike[str] | None,
        advanced: Advanced | None,
    ) -> None:
        if rate is not None and not (math.isfinite(rate) and rate > 0):
            raise errors.InvalidArgument(f"rate is messages a second, more than 0, not {rate}")
        if skip < 0 or (skip and resume is not None):
            raise errors.InvalidArgument("skip is a number of messages, and is left out with resume, which knows it")
        self._selection = selection
        self._to = to
        self._rate = rate
        self._advanced = advanced
        self._kept = None if resume is None else _Position(Path(resume), selection, to)
        self._first = self._position = skip if self._kept is None else self._kept.read()
        self._sent = 0
        self._began = time.monotonic()

    def batches(self) -> Iterator[_Batch]:
        """Messages that may be published together: of one priority, and no two of one id."""
        source = self._selection._core
        source.skip(self._first)
        most = _BATCH if self._rate is None else max(1, min(_BATCH, int(self._rate / _BURSTS_A_SECOND)))
        batch, ids, size = _Batch([], False), set[str](), 0
        for _ in range(self._first, len(self._selection)):
            shard, number, queue, message, received_ms = next(source)
            id_ = message.id or f"replay-{received_ms}-{shard}-{number}"
            full = len(batch.messages) >= most or size + len(message) > _BATCH_BYTES
            if batch.messages and (full or id_ in ids or message.high_priority != batch.high_priority):
                yield batch
                batch, ids, size = _Batch([], False), set(), 0
            batch.high_priority = message.high_priority
            batch.messages.append((message.body, id_, _headers(message, queue, received_ms)))
            ids.add(id_)
            size += len(message)
        if batch.messages:
            yield batch

    def pause(self, count: int) -> float:
        """Seconds until the next `count` messages may go: those before them have used up their time then."""
        due = 0.0 if self._rate is None else self._began + self._sent / self._rate - time.monotonic()
        self._sent += count
        return max(0.0, due)

    def take(self, outcomes: list[Outcome]) -> None:
        """Keep how far a batch got; raise why it got no further."""
        failure = next((outcome for outcome in outcomes if isinstance(outcome, errors.MqcoreError)), None)
        published = len(outcomes) if failure is None else outcomes.index(failure)
        self._position += published
        if self._kept is not None and published:
            self._kept.write(self._position)
        if self._advanced is not None and published:
            self._advanced(self._position, len(self._selection))
        if failure is not None:
            raise failure

    def done(self) -> Replayed:
        return Replayed(
            to=self._to,
            published=self._position - self._first,
            position=self._position,
            total=len(self._selection),
            seconds=time.monotonic() - self._began,
            damaged=self._selection.is_damaged,
        )


class _Position:
    """The file that tells how far a replay came, and of which one."""

    def __init__(self, path: Path, selection: Selection, to: str) -> None:
        self._path = path
        # As text: programs that read JSON may not have 64 bits for a number.
        self._what = {"schema": _SCHEMA, "to": to, "messages": f"{selection._core.fingerprint:016x}"}

    def read(self) -> int:
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return 0
        try:
            kept = json.loads(text)
            position = int(kept.pop("position"))
        except (ValueError, TypeError, KeyError, AttributeError):
            raise errors.ConfigError(f"{self._path} is not the position of a replay") from None
        if kept != self._what or position < 0:
            raise errors.ConfigError(
                f"{self._path} is the position of another replay, or the saved messages have changed since; "
                "remove it to begin anew"
            )
        return position

    def write(self, position: int) -> None:
        """Replace it at once or not at all."""
        unfinished = self._path.with_name(f"{self._path.name}.part")
        with unfinished.open("w", encoding="utf-8") as file:
            json.dump({**self._what, "position": position}, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self._path)


def _headers(message: _core.Message, queue: str, received_ms: int) -> list[tuple[str, str]]:
    """Its own, and where it comes from; what an earlier replay said of that is replaced."""
    keys = (key for key in message.headers if key.lower() not in _OF_REPLAYS)
    own = [(key, value) for key in keys for value in message.headers.get_all(key)]
    received = datetime.fromtimestamp(received_ms / 1000, UTC).isoformat(timespec="milliseconds")
    origin = [(QUEUE_HEADER, queue), (RECEIVED_HEADER, received)]
    return own + origin + ([(ID_HEADER, message.id)] if message.id else [])


@contextmanager
def _client(via: sync.Client | str | Sequence[str] | EmbeddedBroker) -> Iterator[sync.Client]:
    """A client that was given stays open, one that is made here does not."""
    if isinstance(via, sync.Client):
        yield via
    else:
        with sync.connect(via, name="mqcore-replay") as client:
            yield client


def _unix_ms(moment: datetime | Duration) -> int:
    if not isinstance(moment, datetime):
        moment = datetime.now(UTC) - timedelta(seconds=optional_seconds(moment) or 0.0)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    # In whole numbers: a float may be just below the millisecond.
    return max(0, (moment - _EPOCH) // timedelta(milliseconds=1))


def _unseen(_shard: int, _done: int, _total: int) -> None:
    return
