"""Times and periods in options of pipelines."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from mqcore import errors
from mqcore.spark.pipelines.moments import Period, moment
from spark.recorded import LENIENT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = LENIENT

NOON = int(datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()) * 1_000_000


def test_times_are_iso_8601_or_durations_before_now() -> None:
    assert moment("since", " ") is None
    for text in ("2026-11-21T12:00", "2026-11-21T12:00Z", "2026-11-21 13:00+01:00", "2026-11-21T12:00:00.000000"):
        assert moment("since", text) == NOON
    assert moment("since", "2026-11-21") == NOON - 12 * 3_600_000_000
    assert moment("since", "2026-11-21T12:00:00.000001") == NOON + 1
    for text, seconds in (("2h", 7200), ("0s", 0), ("1d", 86_400)):
        found = moment("since", text)
        assert found is not None
        assert found / 1e6 == pytest.approx(time.time() - seconds, abs=30)
    with pytest.raises(errors.ConfigError, match=r"^until is an invalid time '2x'; use ISO 8601 such as 2026-11-21T08"):
        moment("until", "2x")


def test_periods_are_open_or_closed_and_include_their_start_only(spark: SparkSession) -> None:
    assert Period.between("", "") == Period.parse("period", "/") == Period(None, None)
    assert str(Period.parse("period", "2026-11-21T12:00/")) == "2026-11-21 12:00:00 to end"
    assert str(Period.parse("period", "/2026-11-21")) == "beginning to 2026-11-21 00:00:00"
    period = Period.parse("period", "2026-11-21T12:00/2026-11-21T12:00:00.000003")
    assert period == Period(NOON, NOON + 3)
    rows = spark.range(-2, 6).selectExpr("id", f"timestamp_micros({NOON} + id) AS time")
    assert sorted(row["id"] for row in period.of(rows).collect()) == [0, 1, 2]
    assert Period(None, None).of(rows).count() == 8
    for text, reason in (
        ("2026-11-21", r"^period is an invalid period '2026-11-21'; use FROM/UNTIL such as"),
        ("1h/2h", r"^period from 1h is not before 2h; exchange the two times$"),
        ("x/2h", r"^period is an invalid time 'x'; use ISO 8601"),
    ):
        with pytest.raises(errors.ConfigError, match=reason):
            Period.parse("period", text)
