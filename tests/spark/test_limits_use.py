"""Use of limits, told by a pipeline, against a count in plain Python over the journal's own export."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mqcore import errors
from mqcore.spark import pipelines
from spark.lived import Lived
from spark.test_pipelines import quantile, rows_of, self_contained
from spark.told import LENIENT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = LENIENT


def test_use_and_refusals_are_those_of_a_plain_count(spark: SparkSession, lived: Lived, tmp_path: Path) -> None:
    outcome = pipelines.run("limits", spark, lived.data_dir, tmp_path, by="queue", window=1, limit=50)
    expected = Counter(
        (step["queue"], int(step["time"].timestamp()))
        for life_ in lived.lives().values()
        for step in life_
        if step["kind"] == "produced"
    )
    found = {(row["key"], int(row["start"].timestamp())): row["messages"] for row in rows_of(outcome.tables["windows"])}
    assert found == dict(expected)
    assert outcome.figures["refused"] == sum(max(0, count - 50) for count in expected.values()) > 0
    (work,) = [row for row in rows_of(outcome.tables["keys"]) if row["key"] == "work/1"]
    of_work = [count for (queue, _), count in expected.items() if queue == "work/1"]
    assert work["most"] == max(of_work)
    assert work["suggested"] == math.ceil(quantile(of_work, 0.99) * 1.5)
    named = pipelines.run("limits", spark, lived.data_dir, tmp_path, window=3600)
    assert {row["key"] for row in rows_of(named.tables["keys"])} == {"shop"}
    assert "Would have been refused" in self_contained(outcome.report) or outcome.report == named.report
    with pytest.raises(errors.ConfigError, match="by is one of"):
        pipelines.run("limits", spark, lived.data_dir, tmp_path, by="colour")
