"""Profiles of the fields of JSON bodies: inferred schemas, and drift between two periods. Does not need Spark."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

__all__ = ["FIELD_COLUMNS", "Field", "Profile", "drift_of", "fields_of", "parent_of", "schema_of"]

RATE_MOVED: Final = 0.1
"""Change of the rate of missing or null values that counts as drift."""
_SURE: Final = 1.95
"""Factor of the Kolmogorov-Smirnov test for a significance of 0.1 %."""
_SURE_RATE: Final = 3.3
"""Standard errors of a difference of rates for the same significance."""
_IDENTIFIER_SHARE: Final = 0.9
"""Share of different values from which integers count as identifiers; the number of different ones is approximate."""
_MEMBER: Final = re.compile(r'(\.[A-Za-z_][A-Za-z0-9_]*|\["(?:[^"\\]|\\.)*"\]|\[\])$')

FIELD_COLUMNS: Final = (
    *("queue", "period", "path", "types", "of", "present", "missing_rate", "nulls", "null_rate", "different"),
    *("least", "greatest", "mean", "deviation", "shortest", "longest"),
)
"""Columns of a field in tables."""


@dataclass
class Field:
    """The values of one path in the bodies of a queue and period."""

    path: str
    types: dict[str, int] = field(default_factory=dict)
    """Number of values by JSON type."""
    of: int = 0
    """Number of objects that could have it; for a root or elements of lists, its own number."""
    different: int = 0
    """Approximate number of different values."""
    least: float | None = None
    greatest: float | None = None
    mean: float | None = None
    deviation: float | None = None
    shortest: int | None = None
    longest: int | None = None
    quantiles: dict[str, list[float]] = field(default_factory=dict)
    """Evenly spaced quantiles of ``number`` (values of numbers) and ``length`` (of texts and lists)."""
    counts: dict[str, int] | None = None
    """Number of occurrences by value, for fields with few values."""

    @property
    def present(self) -> int:
        """Number of values, including nulls."""
        return sum(self.types.values())

    @property
    def nulls(self) -> int:
        """Number of nulls."""
        return self.types.get("null", 0)

    @property
    def missing_rate(self) -> float:
        """Share of the objects that lack the field."""
        return 1 - self.present / self.of if self.of else 0.0

    @property
    def null_rate(self) -> float:
        """Share of nulls among the values."""
        return self.nulls / self.present if self.present else 0.0

    @property
    def kinds(self) -> tuple[str, ...]:
        """Types without null; an integer is also a number."""
        found = set(self.types) - {"null"}
        return tuple(sorted(found - {"integer"} if "number" in found else found))

    @property
    def is_identifier(self) -> bool:
        """Whether nearly all values are different integers, as for ids, counters and times."""
        values = self.present - self.nulls
        return self.kinds == ("integer",) and self.different >= _IDENTIFIER_SHARE * values > 1

    @property
    def shown_types(self) -> str:
        """Types as text."""
        return " or ".join((*self.kinds, *(("null",) if self.nulls else ()))) or "-"

    def row(self, queue: str, period: str) -> tuple[Any, ...]:
        """Return the row with `FIELD_COLUMNS`."""
        return (
            *(queue, period, self.path, self.shown_types, self.of, self.present, self.missing_rate),
            *(self.nulls, self.null_rate, self.different, self.least, self.greatest, self.mean, self.deviation),
            *(self.shortest, self.longest),
        )


Profile: TypeAlias = dict[str, Field]
"""Fields of a queue and period by path."""


def parent_of(path: str) -> str:
    """Return the path of the object or list that contains a value; of the root, an empty text."""
    return _MEMBER.sub("", path) if path != "$" else ""


def fields_of(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Profile]:
    """Return the profiles by queue and period from one row for each queue, period, path and type."""
    found: dict[tuple[str, str], Profile] = {}
    for row in rows:
        profile = found.setdefault((row["queue"], row["period"]), {})
        each = profile.setdefault(row["path"], Field(row["path"]))
        each.types[row["type"]] = row["messages"]
        each.different += row["different"]
        _add_numbers(each, row)
    for profile in found.values():
        for each in profile.values():
            parent = profile.get(parent_of(each.path))
            each.of = each.present
            if parent is not None and not each.path.endswith("[]"):
                each.of = parent.types.get("object", 0)
    return found


def _add_numbers(each: Field, row: Mapping[str, Any]) -> None:
    kind, count = row["type"], row["messages"]
    if row["least"] is None:
        return
    if kind in {"integer", "number"}:
        other = each.types["integer" if kind == "number" else "number"] if each.mean is not None else 0
        _merge(each, row, other, count)
        _merge_quantiles(each, "number", row["quantiles"], other, count)
    elif kind in {"string", "array"}:
        each.shortest = int(row["least"]) if each.shortest is None else min(each.shortest, int(row["least"]))
        each.longest = int(row["greatest"]) if each.longest is None else max(each.longest, int(row["greatest"]))
        each.quantiles.setdefault("length", list(row["quantiles"]))


def _merge(each: Field, row: Mapping[str, Any], other: int, count: int) -> None:
    """Add numbers of a second type, with `other` values known before."""
    mean, deviation = float(row["mean"]), float(row["deviation"] or 0.0)
    if each.mean is None:
        each.least, each.greatest, each.mean, each.deviation = row["least"], row["greatest"], mean, deviation
        return
    total = other + count
    squares = (other - 1) * (each.deviation or 0.0) ** 2 + (count - 1) * deviation**2
    squares += other * count / total * (each.mean - mean) ** 2
    each.least, each.greatest = min(each.least or 0.0, row["least"]), max(each.greatest or 0.0, row["greatest"])
    each.mean = (other * each.mean + count * mean) / total
    each.deviation = math.sqrt(squares / (total - 1)) if total > 1 else 0.0


def _merge_quantiles(each: Field, what: str, quantiles: Sequence[float], other: int, count: int) -> None:
    former = each.quantiles.get(what)
    if former is None:
        each.quantiles[what] = list(quantiles)
        return
    weighted = sorted([(x, other / len(former)) for x in former] + [(x, count / len(quantiles)) for x in quantiles])
    total, merged, passed, size = other + count, list[float](), 0.0, max(len(former), len(quantiles))
    for x, weight in weighted:
        passed += weight
        while len(merged) < size and passed * size >= (len(merged) + 0.5) * total - 1e-9:
            merged.append(x)
    each.quantiles[what] = merged


# --- schema ---------------------------------------------------------------------------------------------------------


def schema_of(profile: Profile) -> dict[str, Any]:
    """Return a JSON Schema that all bodies of a profile fulfill."""
    children: dict[str, list[str]] = {}
    for path in profile:
        children.setdefault(parent_of(path), []).append(path)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_schema(profile, children, "$")}


def _schema(profile: Profile, children: Mapping[str, list[str]], path: str) -> dict[str, Any]:
    each = profile[path]
    kinds = [*each.kinds, *(["null"] if each.nulls else [])]
    found: dict[str, Any] = {"type": kinds[0] if len(kinds) == 1 else kinds}
    if each.least is not None:
        found["minimum"], found["maximum"] = (_number(each, value) for value in (each.least, each.greatest))
    inner = sorted(children.get(path, []))
    members = {_name(child): child for child in inner if not child.endswith("[]")}
    if members:
        found["properties"] = {name: _schema(profile, children, child) for name, child in members.items()}
        found["required"] = [name for name, child in members.items() if profile[child].present == profile[child].of]
    if f"{path}[]" in profile:
        found["items"] = _schema(profile, children, f"{path}[]")
    return found


def _number(each: Field, value: float | None) -> float | int | None:
    whole = value is not None and each.kinds == ("integer",) and abs(value) < 2**53
    return int(value) if whole and value is not None else value


def _name(path: str) -> str:
    """The name of a member from its path."""
    import json

    last = path[len(parent_of(path)) :]
    return last[1:] if last.startswith(".") else str(json.loads(last[1:-1]))


# --- drift ----------------------------------------------------------------------------------------------------------


def drift_of(queue: str, before: Profile, now: Profile, moved: float) -> list[dict[str, Any]]:
    """Compare the profiles of a queue in two periods.

    Finds new and missing fields, other types, and rates of missing and null values that moved by more than 0.1. Finds
    distributions whose distance exceeds `moved`. A distance is the largest difference of the shares of values up to
    some number (Kolmogorov-Smirnov), or half the sum of the differences of the shares of few values. Differences that
    chance explains (at 0.1 %) do not count, and neither do distributions of ids, counters and times.
    """
    found: list[dict[str, Any]] = []

    def add(path: str, what: str, former: str, latter: str, distance: float | None = None) -> None:
        found.append(
            {"queue": queue, "path": path, "what": what, "before": former, "now": latter, "distance": distance}
        )

    for path in sorted(before.keys() - now.keys()):
        if parent_of(path) in now or path == "$":
            add(path, "missing", before[path].shown_types, "")
    for path in sorted(now):
        if path not in before:
            if parent_of(path) in before or path == "$":
                add(path, "new", "", now[path].shown_types)
            continue
        _compare(before[path], now[path], moved, add)
    return found


def _compare(former: Field, latter: Field, moved: float, add: Any) -> None:
    is_other_type = bool(former.kinds and latter.kinds and former.kinds != latter.kinds)
    if is_other_type:
        add(former.path, "type", former.shown_types, latter.shown_types)
    rates = (
        ("missing rate", former.missing_rate, former.of, latter.missing_rate, latter.of),
        ("null rate", former.null_rate, former.present, latter.null_rate, latter.present),
    )
    for what, rate, count, other_rate, other_count in rates:
        if abs(other_rate - rate) > max(RATE_MOVED, _chance_of_rate(rate, count, other_rate, other_count)):
            add(former.path, what, f"{rate:.3f}", f"{other_rate:.3f}", other_rate - rate)
    if is_other_type:
        return
    if former.counts is not None and latter.counts is not None:
        _compare_counts(former, latter, moved, add)
        return
    for what, quantiles in former.quantiles.items():
        others = latter.quantiles.get(what)
        if others is None or (former.is_identifier and latter.is_identifier):
            continue
        distance = _steps_apart(quantiles, others)
        sizes = former.present - former.nulls, latter.present - latter.nulls
        if distance > max(moved, _SURE * math.sqrt(1 / sizes[0] + 1 / sizes[1])):
            add(former.path, _DISTRIBUTIONS[what], _middle(quantiles), _middle(others), distance)


_DISTRIBUTIONS: Final = {"number": "distribution", "length": "length"}


def _chance_of_rate(rate: float, count: int, other_rate: float, other_count: int) -> float:
    """Largest difference of two rates that chance explains."""
    if not count or not other_count:
        return math.inf
    common = (rate * count + other_rate * other_count) / (count + other_count)
    return _SURE_RATE * math.sqrt(common * (1 - common) * (1 / count + 1 / other_count))


def _compare_counts(former: Field, latter: Field, moved: float, add: Any) -> None:
    counts, others = former.counts or {}, latter.counts or {}
    size, other_size = sum(counts.values()), sum(others.values())
    if not size or not other_size:
        return
    names = counts.keys() | others.keys()
    shares = {name: (counts.get(name, 0) / size, others.get(name, 0) / other_size) for name in names}
    distance = sum(abs(now - before) for before, now in shares.values()) / 2
    # The distance grows with the number of values by chance alone.
    chance = _SURE * math.sqrt(1 / size + 1 / other_size) * max(1.0, math.sqrt(len(names)) / 2)
    if distance > max(moved, chance):
        add(former.path, "distribution", _shares(shares, 0), _shares(shares, 1), distance)


def _shares(shares: Mapping[str, tuple[float, float]], side: int) -> str:
    """The three values whose share moved most, with their shares in one period."""
    most = sorted(shares, key=lambda name: (-abs(shares[name][0] - shares[name][1]), name))[:3]
    return ", ".join(f"{name[:20]}: {100 * shares[name][side]:.0f} %" for name in most)


def _steps_apart(first: Sequence[float], second: Sequence[float]) -> float:
    """Kolmogorov-Smirnov distance of two distributions, each given as evenly spaced quantiles."""
    one, two = sorted(first), sorted(second)
    return max(abs(bisect_right(one, x) / len(one) - bisect_right(two, x) / len(two)) for x in {*one, *two})


def _middle(quantiles: Sequence[float]) -> str:
    """The median and the middle half of a distribution."""
    ranked = sorted(quantiles)
    low, median, high = (ranked[int(part * (len(ranked) - 1))] for part in (0.25, 0.5, 0.75))
    return f"{median:.6g} ({low:.6g} to {high:.6g})"
