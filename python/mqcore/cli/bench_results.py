"""Results of `mqcore bench`, as they are printed, read back and compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from mqcore.errors import InvalidArgument

__all__ = ["SCHEMA", "Figure", "compare", "read"]

SCHEMA: Final = "mqcore.bench/1"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured quantity."""

    scenario: str
    what: str
    """The quantity with its unit."""
    value: float
    better: Literal["higher", "lower"]
    """Whether a higher or a lower value is better."""


def read(path: Path) -> list[Figure]:
    """Return the figures in a file that `mqcore bench --json` wrote.

    Raises `mqcore.errors.InvalidArgument` if the file cannot be read or has another content.
    """
    advice = "write such a file with `mqcore bench --json > FILE`"
    try:
        found = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise InvalidArgument(f"{path} is not JSON: {error}; {advice}") from error
    schema = found.get("schema") if isinstance(found, Mapping) else None
    if schema != SCHEMA:
        raise InvalidArgument(f"{path} has the schema {schema!r}, expected {SCHEMA!r}; {advice}")
    try:
        return [_figure(each) for each in found["figures"]]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(f"{path} has a figure without a valid {error}; {advice}") from error


def _figure(found: Mapping[str, Any]) -> Figure:
    better = found["better"]
    if better not in ("higher", "lower"):
        raise ValueError("better")
    return Figure(str(found["scenario"]), str(found["what"]), float(found["value"]), better)


def compare(before: list[Figure], after: list[Figure]) -> list[dict[str, object]]:
    """Return a row for each quantity that both results have, in the order of `after`.

    `ratio` is after / before. `better_by` is the same for quantities of which more is better, else its reciprocal:
    above 1, `after` is better.
    """
    known = {(figure.scenario, figure.what): figure for figure in before}
    rows: list[dict[str, object]] = []
    for figure in after:
        earlier = known.get((figure.scenario, figure.what))
        if earlier is None:
            continue
        ratio = figure.value / earlier.value if earlier.value else None
        better_by = ratio
        if figure.better == "lower":
            better_by = 1 / ratio if ratio else None
        rows.append(
            {
                "scenario": figure.scenario,
                "what": figure.what,
                "before": earlier.value,
                "after": figure.value,
                "ratio": ratio,
                "better_by": better_by,
            }
        )
    return rows
