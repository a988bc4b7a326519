"""Found by Spark's own look-up of data sources, so that ``format("mqcore")`` needs no registration."""

from mqcore.spark.source import MqcoreSource as DefaultSource

__all__ = ["DefaultSource"]
