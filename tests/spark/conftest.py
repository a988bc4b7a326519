"""Fixtures for tests of Spark, and the settings of their JVMs."""

import os

from spark.eventful import eventful
from spark.recorded import live, recorded, spark

__all__ = ["eventful", "live", "recorded", "spark"]

# These programs are short: the optimizing compiler and parallel collectors cost a quarter of their CPU time and return
# nothing. spark-submit hands these options to every JVM that the tests start.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
