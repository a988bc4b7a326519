"""Query plans: columns, ranges of sequences, and pieces, computed from options.

Nothing here knows Spark, so all of it is tested without one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from mqcore import _core, errors
from mqcore.spark.options import EARLIEST, LATEST, Positions, ReadOptions
from mqcore.spark.origin import Directory, Ends, Origin, Piece, Remote, Stretch

__all__ = ["Offsets", "Plan", "columns_of", "ddl"]

Offsets: TypeAlias = dict[str, dict[str, Any]]
"""Journal and next sequence by shard. Checkpoints contain this."""

_POSITION_BITS: Final = 20
"""Lower bits of a sequence: the position within a record. Pieces are split between records."""


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

    @classmethod
    def of(cls, options: ReadOptions, columns: Sequence[tuple[str, str]]) -> Plan:
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
        return cls(options, names, tuple(texts), queues=queues, since_us=options.since_us, until_us=options.until_us)

    def origin(self) -> Origin:
        """Open the source of history. Cheap, so each process opens its own."""
        if self.options.admin is not None:
            return Remote(self.options.admin, self.options.token)
        return Directory.known(self.options.paths[0])

    def request(self, columns: Sequence[str] | None = None) -> str:
        """Return the request to the core, with `columns` instead of the query's if given."""
        words: dict[str, Any] = {
            "view": self.options.view,
            "columns": list(self.columns if columns is None else columns),
            "texts": list(self.texts) if columns is None and self.texts else None,
            "queues": None if self.queues is None else list(self.queues),
            "pattern": self.options.pattern,
            "kinds": None if self.kinds is None else list(self.kinds),
            "since_us": self.since_us,
            "until_us": self.until_us,
        }
        return json.dumps({name: value for name, value in words.items() if value is not None})

    @staticmethod
    def request_of(view: str, columns: Sequence[str]) -> str:
        """Return the request to the core for all rows of a view."""
        return json.dumps({"view": view, "columns": list(columns)})

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

        Raises `HistoryLost` for what is gone, unless the option `failOnDataLoss` is off.
        """
        found: Offsets = {}
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
                raise errors.HistoryLost(
                    f"the history of shard {end.shard} from sequence {sequence} on is lost: {why}. "
                    "Set failOnDataLoss=false to continue with the rows after it"
                )
            found[str(end.shard)] = {"journal": end.journal, "sequence": to}
        return found

    def stretches(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Stretch]:
        """Return the ranges between two offsets by shard, without rows that filters exclude."""
        found: list[Stretch] = []
        for shard, place in end.items():
            before = start.get(shard, {"journal": place["journal"], "sequence": 0})
            same = not before["journal"] or before["journal"] == place["journal"]
            first = max(int(before["sequence"]) if same else 0, self.bounds.first)
            behind = min(int(place["sequence"]), self.bounds.behind)
            wanted = self.bounds.shards is None or int(shard) in self.bounds.shards
            if wanted and first < behind:
                found.append((int(shard), first, behind))
        return found

    def pieces(self, origin: Origin, stretches: Sequence[Stretch]) -> list[Piece]:
        """Split ranges into pieces according to the options."""
        if not stretches:
            return []
        request, most, least = self.request(), self.options.partition_bytes, self.options.min_partitions
        pieces = origin.pieces(request, stretches, most)
        if len(pieces) >= least:
            return pieces
        target = max(1, sum(piece[6] for piece in pieces) // least)
        pieces = origin.pieces(request, stretches, min(most, target))
        while len(pieces) < least:
            by_size = sorted(range(len(pieces)), key=lambda index: -pieces[index][6])
            halved = next(((at, halves) for at in by_size if (halves := _halves(pieces[at]))), None)
            if halved is None:
                break
            at, halves = halved
            pieces[at : at + 1] = halves
        return pieces


def _halves(piece: Piece) -> list[Piece] | None:
    """Split a piece between two records; `None` if it has only one."""
    shard, journal, first, behind, segments, kept_from, size = piece
    low, high = first >> _POSITION_BITS, (behind - 1) >> _POSITION_BITS
    middle = (low + high + 1) // 2 << _POSITION_BITS
    if not first < middle < behind or size < 2:
        return None
    half = size // 2
    return [
        (shard, journal, first, middle, segments, kept_from, half),
        (shard, journal, middle, behind, segments, kept_from, half),
    ]
