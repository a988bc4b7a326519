"""Reading and checking the data directory of a stopped broker. Only `compact` and `accept_loss` change it.

A running broker locks its directory; these functions then raise `DataDirBusy`. While they read, no broker can start on
the directory. `replay` publishes its saved messages to a queue of a running broker.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal, cast

from mqcore import _core
from mqcore.compaction import Compacted, CompactedShard, compact
from mqcore.export import History, TableFormat, history, unfinished
from mqcore.progress import Advanced, Progress

if TYPE_CHECKING:
    from mqcore.replay import Replayed, Selection, replay, replay_async, select

__all__ = [
    "Advanced",
    "Compacted",
    "CompactedShard",
    "Finding",
    "History",
    "Listing",
    "Loss",
    "Progress",
    "Replayed",
    "SavedMessages",
    "Segment",
    "Selection",
    "StoredMessage",
    "Verification",
    "accept_loss",
    "compact",
    "history",
    "messages",
    "replay",
    "replay_async",
    "segments",
    "select",
    "verify",
]

# Only replays need the clients, whose import takes longer than most of what this module is for.
_OF_REPLAY: Final = ("Replayed", "Selection", "replay", "replay_async", "select")

State = Literal["sealed", "open", "damaged", "spare"]
FindingKind = Literal[
    "torn", "damaged", "missing", "foreign", "lost", "stray", "extra", "catalog", "manifest", "aside", "unreadable"
]
LossCause = Literal["damaged", "missing", "foreign", "unreadable"]


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of a journal."""

    journal: str
    """The name of its directory: ``shard-0``, ..., ``limits``, ``nodes``, ``schedules``."""
    shard: int | None
    """The shard; ``None`` for other journals."""
    number: int
    """The number in its name."""
    records: int
    """Records of every kind, including lost ones."""
    live: int
    """Unsettled messages; in other journals limits, messages for upstream brokers, or schedules and their runs."""
    bytes: int
    """The length of its file."""
    state: State
    """``sealed``: complete. ``open``: the last one written. ``damaged``. ``spare``: preallocated and empty."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The content of a data directory."""

    shards: int
    segments: tuple[Segment, ...]
    """Ordered by shard and number, then those of limits, nodes and schedules."""
    definitions: int
    """Channels and queues that are defined."""
    limits: int = 0
    """Saved limits, including expired ones."""
    schedules: int = 0
    """Schedules of jobs."""
    runs: int = 0
    """Unconfirmed runs of schedules. The next start sends them again; a queue accepts each run once."""
    forwards: int = 0
    """Messages that not all upstream brokers have confirmed."""

    @property
    def records(self) -> int:
        """Records of all segments."""
        return sum(segment.records for segment in self.segments)

    @property
    def live(self) -> int:
        """Saved messages that are not settled."""
        return sum(segment.live for segment in self.segments if segment.shard is not None)

    @property
    def bytes(self) -> int:
        """Bytes of all segment files."""
        return sum(segment.bytes for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Finding:
    """A deviation from the directory of a broker that stopped normally."""

    journal: str
    """The journal, as `Segment.journal`; ``format`` for the manifest of the directory."""
    shard: int | None
    """As `Segment.shard`."""
    kind: FindingKind
    text: str
    """The deviation and its place."""
    meaning: str
    """The consequence for saved messages."""

    @property
    def is_damage(self) -> bool:
        """Whether confirmed messages may be lost."""
        return self.kind not in ("torn", "aside")


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of `verify`."""

    listing: Listing
    findings: tuple[Finding, ...]
    losses: int = 0
    """Losses among the findings that were not accepted. Until then, their shards take no durable messages."""

    @property
    def is_damaged(self) -> bool:
        """Whether confirmed messages may be lost."""
        return any(finding.is_damage for finding in self.findings)


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss that `accept_loss` accepted."""

    journal: str
    """The journal, as `Segment.journal`."""
    segment: int | None
    """The number of the segment; ``None``: the whole journal."""
    cause: LossCause
    text: str
    """The finding, with the number of records and the range of messages if they are known."""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A saved message that is not settled."""

    queue: str
    """``channel/id``."""
    id: str
    """Empty if it has none."""
    source: str | None
    """The id of the client that produced it; ``None`` if it was not saved."""
    headers: tuple[tuple[str, str], ...]
    """Keys and values, grouped by key. A key may repeat."""
    body: bytes
    attempts: int
    """Saved number of its deliveries."""
    high_priority: bool
    received: datetime
    """When the broker accepted it, in UTC."""


class SavedMessages:
    """The saved messages of one queue in delivery order. Each is read when iteration reaches it. Iterate over them, or
    write them, once."""

    def __init__(self, source: _core.JournalMessages) -> None:
        self._source = source

    @property
    def is_damaged(self) -> bool:
        """Whether the directory has damage, so that messages may be missing here. `verify` says which."""
        return self._source.damaged

    def __len__(self) -> int:
        return self._source.count

    def write(
        self,
        path: str | os.PathLike[str],
        format: TableFormat,  # noqa: A002
        *,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Write those that were not iterated yet to a file, and return how many these are. `progress` is called with
        the number of messages that are written; what it raises ends the writing.

        The file appears under its name when it is complete and durable, in the place of one that was there. Raises
        `OSError` if it cannot be written, and `DataDirDamaged` if a message cannot be read any more.
        """
        with unfinished(path) as part:
            return self._source.write(os.fspath(part), format, progress or _unseen_rows)

    def __iter__(self) -> Iterator[StoredMessage]:
        for queue, message, attempts, received_ms in self._source:
            pairs = tuple((key, value) for key in message.headers for value in message.headers.get_all(key))
            yield StoredMessage(
                queue=queue,
                id=message.id,
                source=message.source,
                headers=pairs,
                body=message.body,
                attempts=attempts,
                high_priority=message.high_priority,
                received=datetime.fromtimestamp(received_ms / 1000, UTC),
            )


def segments(data_dir: str | os.PathLike[str], *, progress: Progress | None = None) -> Listing:
    """Return the segments of the data directory of a stopped broker.

    Raises `DataDirBusy` while a broker runs on it, `DataDirMissing`, and `DataDirUnreadable` of a later version.
    """
    return _inspect(data_dir, progress, thorough=False).listing


def verify(data_dir: str | os.PathLike[str], *, progress: Progress | None = None) -> Verification:
    """Read everything with its checksums, and every record as a start would, and say what was found.

    Damage is not raised but returned; what is raised is the same as for `segments`.
    """
    return _inspect(data_dir, progress, thorough=True)


def accept_loss(
    data_dir: str | os.PathLike[str], *, shard: int | None = None, progress: Progress | None = None
) -> tuple[Loss, ...]:
    """Accept what the journals of a stopped broker have lost, so that its shards take durable messages again.

    Accepts the losses of one `shard`, or of all journals, and returns them. Nothing is deleted, and no lost message
    returns. Raises the same as `segments`; `DataDirMissing` also if there is no such shard.
    """
    rows = _core.journal_accept_loss(os.fspath(data_dir), shard, progress or _unseen)
    return tuple(
        Loss(journal, segment or None, cast("LossCause", cause), text) for journal, segment, cause, text in rows
    )


def messages(data_dir: str | os.PathLike[str], queue: str, *, progress: Progress | None = None) -> SavedMessages:
    """Return the saved messages of a queue, in its order, without taking them.

    Raises the same as `segments`; `DataDirMissing` also if there is no such queue; and, while they are iterated,
    `DataDirDamaged` if one cannot be read any more.
    """
    return SavedMessages(_core.JournalMessages(os.fspath(data_dir), queue, progress or _unseen))


def _inspect(data_dir: str | os.PathLike[str], progress: Progress | None, *, thorough: bool) -> Verification:
    seen = _core.journal_inspect(os.fspath(data_dir), progress or _unseen, thorough)
    found = tuple(Segment(*row) for row in seen["segments"])
    totals = (seen[name] for name in ("definitions", "limits", "schedules", "runs", "forwards"))
    listing = Listing(seen["shards"], found, *totals)
    return Verification(listing, tuple(_finding(*row) for row in seen["findings"]), seen["losses"])


# Text is completed here where the journal gives only a name or a count, and every kind gets its meaning.
_TEXTS: dict[str, str] = {
    "stray": "{} does not belong to this journal any more",
    "aside": "{} damaged segments stand aside (*.quarantined)",
}
_MEANINGS: dict[FindingKind, str] = {
    "torn": "Nothing that was confirmed is lost; the next start continues before this place.",
    "damaged": "Confirmed messages may be lost here; the broker delivers every message that can still be read.",
    "missing": "Its saved messages are lost, unless the broker was killed during its first start.",
    "foreign": "Its own messages are lost unless you restore its directory; a start delivers those that are here.",
    "lost": "An earlier start found this. Its shard takes no durable messages until the loss is accepted.",
    "extra": "It is not read; it belongs to another data directory, or `format` was replaced by an older one.",
    "manifest": "Nothing that was saved is lost by this; the next start writes it again.",
    "stray": "It is not read; if it was restored from a copy, its messages are not delivered.",
    "catalog": "Nothing that was saved is lost by this; the next start writes the catalog again.",
    "aside": "They were reported when they were found, and what could be read was copied out of them before.",
    "unreadable": "A start reports it or refuses, because another version wrote it or the disk changed it.",
}


def _finding(journal: str, shard: int | None, kind: FindingKind, text: str) -> Finding:
    return Finding(journal, shard, kind, _TEXTS.get(kind, "{}").format(text), _MEANINGS[kind])


def _unseen_rows(_done: int) -> None:
    return


def _unseen(_shard: int, _done: int, _total: int) -> None:
    return


def __getattr__(name: str) -> object:
    if name not in _OF_REPLAY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module("mqcore.replay"), name)
    globals()[name] = value
    return value
