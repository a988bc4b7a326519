"""Times and periods in options of pipelines, and the conditions that they set on rows."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from mqcore import errors
from mqcore.config import seconds

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["Period", "moment"]

_FORMS: Final = "use ISO 8601 such as 2026-11-21T08:00 (UTC), or a time before now such as 2h"


def moment(name: str, text: str) -> int | None:
    """Return a time in Unix microseconds; `None` for an empty text.

    `text` is ISO 8601, in UTC if it names no zone, or a duration before now such as ``2h``. Raises `ConfigError`, which
    begins with `name`.
    """
    if not text.strip():
        return None
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        try:
            return int((time.time() - seconds(text.strip())) * 1_000_000)
        except errors.ConfigError:
            raise errors.ConfigError(f"{name} is an invalid time {text!r}; {_FORMS}") from None
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    return round(found.timestamp() * 1_000_000)


@dataclass(frozen=True)
class Period:
    """A range of time: from `since` (inclusive) until `until` (exclusive), in Unix microseconds. `None` is open."""

    since: int | None
    until: int | None

    @classmethod
    def between(cls, since: str, until: str) -> Period:
        """Parse two times. Raises `ConfigError`."""
        return cls._checked(moment("since", since), moment("until", until), f"since {since}", f"until {until}")

    @classmethod
    def parse(cls, name: str, text: str) -> Period:
        """Parse ``FROM/UNTIL``, where either may be empty. Raises `ConfigError`, which begins with `name`."""
        since, slash, until = text.partition("/")
        if not slash:
            raise errors.ConfigError(
                f"{name} is an invalid period {text!r}; use FROM/UNTIL such as 2026-11-01/2026-11-08 or 14d/7d"
            )
        return cls._checked(moment(name, since), moment(name, until), f"{name} from {since}", until)

    @classmethod
    def _checked(cls, since: int | None, until: int | None, first: str, second: str) -> Period:
        if since is not None and until is not None and since >= until:
            raise errors.ConfigError(f"{first} is not before {second}; exchange the two times")
        return cls(since, until)

    def holds(self, column: str = "time") -> Column:
        """Return the condition that a time is in the period. Spark pushes it down to the files."""
        from pyspark.sql import functions as F  # noqa: N812

        condition = F.lit(True)
        if self.since is not None:
            condition = condition & (F.col(column) >= F.timestamp_micros(F.lit(self.since)))
        if self.until is not None:
            condition = condition & (F.col(column) < F.timestamp_micros(F.lit(self.until)))
        return condition

    def of(self, rows: DataFrame) -> DataFrame:
        """Return the rows whose time is in the period."""
        return rows if self.since is None and self.until is None else rows.where(self.holds())

    def __str__(self) -> str:
        return f"{_shown(self.since, 'beginning')} to {_shown(self.until, 'end')}"


def _shown(micros: int | None, otherwise: str) -> str:
    if micros is None:
        return otherwise
    return datetime.fromtimestamp(micros / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
