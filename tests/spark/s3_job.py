"""A driver that reads an archive on S3: `python s3_job.py JSON`, then a line of JSON on stdin for each read.

Says on stdout, a JSON object a line, what it found. Bodies are `{"n": NUMBER, "proof": SHA256 OF NUMBER, ...}`.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import mqcore.spark


def found(spark: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Read everything once. Count rows, different numbers and intact bodies, and the hosts that read."""
    from pyspark.sql import functions as f

    begun = time.perf_counter()
    if given.get("reader") == "format":
        options = {"admin": given["admin"]} if "admin" in given else {}
        rows = spark.read.format("mqcore").options(**options).load(given["source"])
        rows = rows.selectExpr("value as body", "concat(channel, '/', queue_id) as queue")
    else:
        rows = mqcore.spark.read(spark, given["source"], admin=given.get("admin"))
    text = rows.body.cast("string")
    number = f.get_json_object(text, "$.n").cast("long")
    intact = f.get_json_object(text, "$.proof") == f.sha2(number.cast("string"), 256)
    summary = rows.agg(
        f.count("*").alias("rows"),
        f.count_distinct(number).alias("different"),
        f.min(number).alias("first"),
        f.max(number).alias("last"),
        f.count_if(intact).alias("intact"),
        f.count_distinct("queue").alias("queues"),
    )
    result: dict[str, Any] = summary.first().asDict()
    context = spark.sparkContext._jsc.sc()
    result["executors"] = context.getExecutorMemoryStatus().size()
    result["seconds"] = time.perf_counter() - begun
    return result


def main(given: dict[str, Any]) -> None:
    spark = mqcore.spark.session(given["master"], config={"spark.log.level": "OFF", **given["config"]})
    for line in sys.stdin:
        print(json.dumps(found(spark, json.loads(line))), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
