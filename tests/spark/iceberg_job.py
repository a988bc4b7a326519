"""A session with Iceberg: `python iceberg_job.py JSON` runs SQL statements, and answers with a JSON object for each.

Needs PySpark only, so that it runs with versions of Spark that mqcore's own environment does not have.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession


def main(given: dict[str, Any]) -> None:
    builder = SparkSession.builder.master("local[2]")
    for name, value in given["config"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    for name, location in given.get("views", {}).items():
        spark.read.format("iceberg").load(location).createOrReplaceTempView(name)
    for statement in given["statements"]:
        rows = [row.asDict(recursive=True) for row in spark.sql(statement).collect()]
        print(json.dumps({"rows": rows}, default=str), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
