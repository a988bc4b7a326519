"""Query plans: columns, ranges of sequences, and pieces, computed from options.

Nothing here knows Spark, so all of it is tested without one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

from mqcore import _core, errors
from mqcore.spark.objects import Joined, Objects
from mqcore.spark.options import EARLIEST, LATEST, Positions, ReadOptions
from mqcore.spark.origin import Directory, Ends, Origin, Piece, Remote, Stretch
from mqcore.spark.stores import StoreAccess, store_access
from mqcore.spark.tls import tls_context

__all__ = ["Offsets", "Plan", "columns_of", "ddl"]

Offsets: TypeAlias = dict[str, dict[str, Any]]
"""Journal and next sequence by shard. Checkpoints contain this."""

_POSITION_BITS: Final = 20
"""Lower bits of a sequence: the position within a record. Pieces are split between records."""

_END_OF_TIME_US: Final = (1 << 63) - 1
_TASK_BYTES: Final = 1 << 20
"""Bytes that make a task of their own worthwhile, as they are stored. A task costs as much as reading about as many."""


def columns_of(options: ReadOptions) -> list[tuple[str, str]]:
    """Return names and Spark types of the columns if the user names no schema.

    Raises `ConfigError` for a column that there is not.
    """
    every = _core.history_columns(options.view)
    types = {name: kind for name, kind, _ in every}
    if options.columns is not None:
        unknown = [name for name in options.columns if name not in types]
        if unknown:
            raise errors.ConfigError(
                f"unknown column {unknown[0]!r} in the view {options.view}; use {', '.join(types)}"
            )
        return [(name, types[name]) for name in options.columns]
    groups = {"default"} | ({"headers"} if options.include_headers else set())
    groups |= {"meta"} if options.include_meta else set()
    return [(name, kind) for name, kind, group in every if group in groups]


def ddl(columns: Iterable[tuple[str, str]]) -> str:
    """Return columns as a schema in DDL."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns)


@dataclass
class Bounds:
    """Shards and sequences selected by pushed filters."""

    shards: frozenset[int] | None = None
    first: int = 0
    behind: int = 1 << 62


@dataclass
class Plan:
    """The input of a query. Contains plain values only, because Spark pickles it for other processes and executors."""

    options: ReadOptions
    columns: tuple[str, ...]
    texts: tuple[str, ...] = ()
    """Binary columns that are converted to text."""
    kinds: tuple[str, ...] | None = None
    queues: tuple[str, ...] | None = None
    since_us: int | None = None
    until_us: int | None = None
    bounds: Bounds = field(default_factory=Bounds)
    cores: int | None = None
    """Tasks that Spark runs at the same time; `None`: as many as this machine has processors."""
    store: StoreAccess = field(default_factory=StoreAccess)
    """How the driver reaches the object store of the archive."""

    @classmethod
    def of(cls, options: ReadOptions, columns: Sequence[tuple[str, str]], cores: int | None = None) -> Plan:
        """Create the plan for columns of these names and Spark types; binary columns can be ``string``.

        Raises `ConfigError` for a column that there is not, and for one of another type.
        """
        known = {name: kind for name, kind, _ in _core.history_columns(options.view)}
        texts = []
        for name, kind in columns:
            if name not in known:
                raise errors.ConfigError(
                    f"unknown column {name!r} in the view {options.view}; use {', '.join(sorted(known))}"
                )
            if known[name] == "binary" and kind == "string":
                texts.append(name)
            elif kind != known[name]:
                also = " or string" if known[name] == "binary" else ""
                raise errors.ConfigError(
                    f"the column {name!r} has the type {known[name]}{also}, but the given schema has {kind}"
                )
        names, queues = tuple(name for name, _ in columns), options.queues
        return cls(
            options,
            names,
            tuple(texts),
            queues=queues,
            since_us=options.since_us,
            until_us=options.until_us,
            cores=cores,
            store=_store_of(options),
        )

    def origin(self) -> Origin:
        """Open the source of history. Cheap, so each process opens its own."""
        options = self.options
        archive = None if options.archive is None else Objects.known(options.archive, self.store)
        if options.admin is None:
            return Directory.known(options.paths[0], self.store) if archive is None else archive
        return self._broker() if archive is None else Joined(archive, self._broker)

    def _broker(self) -> Remote:
        options = self.options
        assert options.admin is not None
        context = tls_context(options.ca, options.cert, options.key)
        return Remote(options.admin, options.token, context=context, timeout=options.timeout, retries=options.retries)

    def request(self, columns: Sequence[str] | None = None, *, shard: int | None = None) -> str:
        """Return the request to the core, with `columns` instead of the query's if given.

        Options for single shards need the number of the `shard`.
        """
        options, since, until, queues = self.options, self.since_us, self.until_us, self.queues
        if options.since_by_shard is not None and shard in options.since_by_shard:
            since = max(options.since_by_shard[shard], since or 0)
        if options.until_by_shard is not None and shard in options.until_by_shard:
            until = min(options.until_by_shard[shard], until or _END_OF_TIME_US)
        if options.assigned is not None and shard is not None:
            # Without the queues of pushed filters, which Spark applies again.
            queues = tuple(queue for queue, shards in options.assigned.items() if shard in shards)
        words: dict[str, Any] = {
            "view": options.view,
            "columns": list(self.columns if columns is None else columns),
            "texts": list(self.texts) if columns is None and self.texts else None,
            "queues": None if queues is None else list(queues),
            "pattern": options.pattern,
            "kinds": None if self.kinds is None else list(self.kinds),
            "since_us": since,
            "until_us": until,
        }
        return json.dumps({name: value for name, value in words.items() if value is not None})

    @staticmethod
    def request_of(view: str, columns: Sequence[str], queues: Sequence[str] | None = None) -> str:
        """Return the request to the core for all rows of a view, or for those of some queues."""
        return json.dumps({"view": view, "columns": list(columns)} | ({} if queues is None else {"queues": [*queues]}))

    # --- ranges -----------------------------------------------------------------------------------------------------

    def positions(self, ends: Sequence[Ends], wanted: Positions, name: str) -> Offsets:
        """Return the offsets of an option's value. Raises `ConfigError` if a shard is missing."""
        if isinstance(wanted, dict):
            shards = {end.shard for end in ends}
            if set(wanted) != shards:
                raise errors.ConfigError(
                    f"{name} must have a sequence for each of the shards {sorted(shards)}, not for {sorted(wanted)}"
                )
        found: Offsets = {}
        for end in ends:
            place = wanted[end.shard] if isinstance(wanted, dict) else EARLIEST if wanted == "earliest" else LATEST
            place = {EARLIEST: 0, LATEST: end.latest}.get(place, place)
            found[str(end.shard)] = {"journal": end.journal, "sequence": place}
        return found

    def checked(self, start: Mapping[str, Any], ends: Sequence[Ends]) -> Offsets:
        """Return the offsets at which reading begins: `start`, or the first later rows that still exist.

        Raises `HistoryLost` for what is gone, unless the option `failOnDataLoss` is off. Then shards that `ends` lacks
        keep their offsets: an offset without them would make their rows new when they are back.
        """
        found = self.missing(start, [str(end.shard) for end in ends], f"{self.options.place} does not have it now")
        for end in ends:
            place = start.get(str(end.shard), {"journal": end.journal, "sequence": 0})
            journal, sequence = str(place["journal"]), int(place["sequence"])
            why = None
            if journal and end.journal and journal != end.journal:
                why, to = f"the journal has changed from {journal} to {end.journal}", 0
            elif sequence > end.latest:
                why, to = f"the history ends at sequence {end.latest}, before {sequence}", end.latest
            elif 0 < sequence < end.earliest:
                why, to = f"retention has removed the rows before sequence {end.earliest}", end.earliest
            else:
                to = sequence
            if why is not None and self.options.fail_on_data_loss:
                raise _lost(str(end.shard), sequence, why)
            found[str(end.shard)] = {"journal": end.journal, "sequence": to}
        return found

    def missing(self, start: Mapping[str, Any], shards: Collection[str], why: str) -> Offsets:
        """Return the offsets in `start` of all shards but these.

        Raises `HistoryLost` with the reason `why` if there are some, unless the option `failOnDataLoss` is off.
        """
        found = {shard: dict(place) for shard, place in start.items() if shard not in shards}
        for shard, place in found.items():
            if self.options.fail_on_data_loss:
                raise _lost(shard, int(place["sequence"]), why)
        return found

    def stretches(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Stretch]:
        """Return the ranges between two offsets by shard, without rows that filters exclude.

        `start` is from `checked`. A shard whose `end` is in another journal has no range: Spark repeats a batch that it
        planned before the journal was replaced, and the next batch begins with the new journal.
        """
        found: list[Stretch] = []
        for shard, place in end.items():
            before = start.get(shard, {"journal": place["journal"], "sequence": 0})
            if before["journal"] and place["journal"] and before["journal"] != place["journal"]:
                continue
            first = max(int(before["sequence"]), self.bounds.first)
            behind = min(int(place["sequence"]), self.bounds.behind)
            if self.reads(int(shard)) and first < behind:
                found.append((int(shard), first, behind))
        return found

    def reads(self, shard: int) -> bool:
        """Return whether options and filters select a shard."""
        assigned = self.options.assigned
        return (self.bounds.shards is None or shard in self.bounds.shards) and (
            assigned is None or any(shard in shards for shards in assigned.values())
        )

    def advance(self, origin: Origin, stretches: Sequence[Stretch], rows: int) -> list[int]:
        """Return the ends of the next `rows` rows of ranges. Each range gets its share."""
        ends: list[int] = []
        groups = self._by_request(stretches, ["sequence"])
        for request, group in groups:
            share = max(1, rows * len(group) // len(stretches)) if len(groups) > 1 else rows
            ends += origin.advance(request, group, share, self.options.fail_on_data_loss)
        return ends

    def counted(self, origin: Origin, stretches: Sequence[Stretch]) -> Iterator[int]:
        """Yield numbers of rows in ranges; their sum is the number of all rows."""
        for request, group in self._by_request(stretches, ["sequence"]):
            for piece in origin.pieces(request, group, self.options.partition_bytes):
                for rows in origin.read(request, piece, self.options.fail_on_data_loss):
                    yield rows.num_rows

    def pieces(self, origin: Origin, stretches: Sequence[Stretch]) -> list[Piece]:
        """Split ranges into pieces: at least as many as the option says, by default as many as there are cores.

        By default, a piece has at least `_TASK_BYTES`, and files of the archive are not divided, because each part
        would have to read all of the file.
        """
        if not stretches:
            return []
        most, least = self.options.partition_bytes, self.options.min_partitions
        pieces = self._split(origin, stretches, most)
        size = sum(piece.size for piece in pieces)
        if least is None:
            target = max(_TASK_BYTES, size // (self.cores or _processors()))
            if any(piece.size > target for piece in pieces):
                pieces = self._split(origin, stretches, min(most, target))
            return [part for piece in pieces for part in (_parts(piece, target) if piece.segments else [piece])]
        if len(pieces) >= least:
            return pieces
        pieces = self._split(origin, stretches, min(most, max(1, size // least)))
        while len(pieces) < least:
            by_size = sorted(range(len(pieces)), key=lambda index: -pieces[index].size)
            halved = next(((at, halves) for at in by_size if (halves := _halves(pieces[at]))), None)
            if halved is None:
                break
            at, halves = halved
            pieces[at : at + 1] = halves
        return pieces

    def _split(self, origin: Origin, stretches: Sequence[Stretch], target: int) -> list[Piece]:
        found: list[Piece] = []
        for request, group in self._by_request(stretches):
            found += origin.pieces(request, group, target)
        return found

    def _by_request(
        self, stretches: Sequence[Stretch], columns: Sequence[str] | None = None
    ) -> list[tuple[str, list[Stretch]]]:
        """Return ranges with their requests, in order. Mostly, one request is for all shards."""
        groups: list[tuple[str, list[Stretch]]] = []
        for stretch in stretches:
            request = self.request(columns, shard=stretch[0])
            if groups and groups[-1][0] == request:
                groups[-1][1].append(stretch)
            else:
                groups.append((request, [stretch]))
        return groups


def _lost(shard: str, sequence: int, why: str) -> errors.HistoryLost:
    return errors.HistoryLost(
        f"the history of shard {shard} from sequence {sequence} on is lost: {why}. "
        "Set failOnDataLoss=false to continue with the rows after it"
    )


def _store_of(options: ReadOptions) -> StoreAccess:
    """Return how this process reaches the archive, if there is one: the settings may contain secrets."""
    url = options.archive
    if url is None and options.paths:
        try:
            url = str(json.loads(Path(options.paths[0], "archive.json").read_bytes())["url"])
        except (OSError, ValueError, KeyError):
            url = None
    return StoreAccess() if url is None else store_access(url, options.archive_options)


def _processors() -> int:
    """Return the processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _parts(piece: Piece, target: int) -> list[Piece]:
    """Divide a piece between records into parts of about `target` bytes."""
    low, high = piece.first >> _POSITION_BITS, (piece.behind - 1) >> _POSITION_BITS
    count = max(1, min(round(piece.size / target), high - low + 1))
    cuts = (low + (high - low + 1) * part // count << _POSITION_BITS for part in range(1, count))
    bounds = [piece.first, *cuts, piece.behind]
    return [piece._replace(first=begin, behind=end, size=piece.size // count) for begin, end in pairwise(bounds)]


def _halves(piece: Piece) -> list[Piece] | None:
    """Split a piece between two records; `None` if it has only one."""
    low, high = piece.first >> _POSITION_BITS, (piece.behind - 1) >> _POSITION_BITS
    middle = (low + high + 1) // 2 << _POSITION_BITS
    if not piece.first < middle < piece.behind or piece.size < 2:
        return None
    half = piece.size // 2
    return [piece._replace(behind=middle, size=half), piece._replace(first=middle, size=half)]
