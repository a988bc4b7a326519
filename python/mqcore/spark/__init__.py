"""Spark reads, follows and writes a broker: ``format("mqcore")``.

::

    import mqcore.spark

    spark = mqcore.spark.session("local[2]")
    rows = spark.read.format("mqcore").option("subscribe", "orders").load("/var/lib/mqcore")

Needs the extra ``mqcore[spark]``, and a Java of at least 17 (or the extra ``mqcore[spark-jdk]``). ``import mqcore``
does not import any of it. docs/spark.md tells options, columns and promises.
"""

from mqcore.spark.archive import archive, newest_manifest
from mqcore.spark.bulk import read
from mqcore.spark.jvm import Java, JavaMissing, ensure_java, find_java
from mqcore.spark.lag import ShardLag, lag, lag_listener
from mqcore.spark.place import ObjectArchive
from mqcore.spark.session import register, session

__all__ = [
    "Java",
    "JavaMissing",
    "ObjectArchive",
    "ShardLag",
    "archive",
    "ensure_java",
    "find_java",
    "lag",
    "lag_listener",
    "newest_manifest",
    "read",
    "register",
    "session",
]
