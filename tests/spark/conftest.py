"""Fixtures for tests of Spark, and the settings of their JVMs."""

import os

from spark.lived import lived
from spark.told import living, spark, told

__all__ = ["lived", "living", "spark", "told"]

# These programs are short: the optimizing compiler and parallel collectors cost a quarter of their CPU time and return
# nothing. spark-submit hands these options to every JVM that the tests start.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
