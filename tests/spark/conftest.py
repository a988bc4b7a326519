"""Fixtures for tests of Spark."""

from spark.lived import lived
from spark.told import living, spark, told

__all__ = ["lived", "living", "spark", "told"]
