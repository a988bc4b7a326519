"""What tests of Spark start from."""

from spark.told import living, spark, told

__all__ = ["living", "spark", "told"]
