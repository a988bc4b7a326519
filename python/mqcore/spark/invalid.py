"""The error of a batch with invalid rows: how many there are for each reason, and where the first ones are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from mqcore import errors
from mqcore.spark.checks import Rejection, Rules, inspect
from mqcore.spark.destinations import Destinations
from mqcore.spark.ledger import Batch, Ledger, Place
from mqcore.spark.rows import Outgoing, Row, outgoing

__all__ = ["raise_invalid"]

_EXAMPLES: Final = 5
"""Number of rows that the error describes."""


def raise_invalid(ledger: Ledger, batch: Batch, rules: Rules, destinations: Destinations) -> None:
    """Raise `InvalidArgument` if there are invalid rows among those that are not published yet."""
    counts, examples = Counter[str](), list[str]()
    for place in ledger.places(batch, batch.published):
        for index, rejection in _invalid(place, rules, destinations):
            counts[rejection.reason] += 1
            if len(examples) < _EXAMPLES:
                examples.append(f"row {place.first + index} of {place.file}: {rejection.reason}: {rejection.detail}")
    if not counts:
        return
    listed = ", ".join(f"{reason} {count:,}" for reason, count in counts.most_common())
    raise errors.InvalidArgument(
        f"{counts.total():,} of {batch.rows:,} rows of batch {batch.number} are invalid ({listed}), so "
        f"{'no further row is' if batch.published else 'none is'} published; correct them, or set the option "
        f"rejectedQueue to publish them to that queue. First rows: {'; '.join(examples)}"
    )


def _invalid(place: Place, rules: Rules, destinations: Destinations) -> Iterator[tuple[int, Rejection]]:
    """Yield the invalid rows of a place in their order, by their indexes there."""
    found = inspect(place.rows, rules).invalid
    if not destinations.refuses_rows:
        yield from sorted(found.items())
        return
    messages = outgoing(place.rows, 0, "", rules.queue, dict.fromkeys(found, _omitted))
    for index, message in enumerate(messages):
        rejection = found.get(index) or destinations.rejection(message)
        if rejection is not None:
            yield index, rejection


def _omitted(name: str, number: int, _row: Row) -> Outgoing:
    return Outgoing(name, number, "", name, b"", [], False, True)
