"""Batch, stream and sink with one version of Spark: `python version_job.py JSON`. It prints a line of JSON for each."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import mqcore.spark
from mqcore.spark.engine import LIMITS_BATCHES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Given = dict[str, Any]


def batch(spark: SparkSession, given: Given) -> dict[str, Any]:
    """Read through the directory and through the admin side, with and without a filter."""
    rows = spark.read.format("mqcore").load(given["data_dir"])
    remote = spark.read.format("mqcore").option("admin", given["admin"]).load()
    typed = spark.read.format("mqcore").schema("value string, timestamp timestamp").load(given["data_dir"])
    return {
        "columns": rows.columns,
        "values": sorted(bytes(row["value"]).decode() for row in rows.select("value").collect()),
        "remote": sorted(bytes(row["value"]).decode() for row in remote.select("value").collect()),
        "texts": sorted(row["value"] for row in typed.collect()),
        "filtered": rows.where("channel = 'logs' and sequence > 0").count(),
        "error": failed(lambda: spark.read.format("mqcore").option("subscribed", "a").load(given["data_dir"]).count()),
    }


def stream(spark: SparkSession, given: Given) -> dict[str, Any]:
    """Read what is available twice with one checkpoint; the second time, there is nothing."""
    found: list[list[str]] = []

    def keep(rows: DataFrame, _number: int) -> None:
        found.append([bytes(row["value"]).decode() for row in rows.select("value").collect()])

    limits = {"maxOffsetsPerTrigger": "40"} if LIMITS_BATCHES else {}

    def run(**options: str) -> None:
        source = spark.readStream.format("mqcore").options(startingOffsets="earliest", **options)
        writer = source.load(given["data_dir"]).writeStream.foreachBatch(keep)
        query = writer.option("checkpointLocation", given["checkpoint"]).trigger(availableNow=True).start()
        query.awaitTermination()

    run(**limits)
    first = [rows for rows in found if rows]
    run(**limits)
    return {
        "values": sorted(value for rows in first for value in rows),
        "largest": max(map(len, first)),
        "again": sum(map(len, found)) - sum(map(len, first)),
        "reason": failed(lambda: run(endingOffsets="latest")),
        "refused": None if LIMITS_BATCHES else failed(lambda: run(maxOffsetsPerTrigger="40")),
        "lag": sum(shard.rows for shard in mqcore.spark.lag(given["checkpoint"], {"path": given["data_dir"]})),
    }


def sink(spark: SparkSession, given: Given) -> dict[str, Any]:
    """Write a batch with headers, and a stream."""
    target = {"url": given["url"], "admin": given["admin"]}
    rows = [(f"batch {number}", {"n": str(number)}) for number in range(20)]
    texts = spark.createDataFrame(rows, "value string, headers map<string,string>")
    writer = texts.write.format("mqcore").mode("append").options(**target, queue="target/1")
    writer.option("stagingLocation", given["staging"]).save()
    source = spark.readStream.format("mqcore").options(startingOffsets="earliest", includeHeaders="true")
    logs = source.option("subscribe", "logs").load(given["data_dir"]).select("value", "headers")
    crossing = logs.writeStream.format("mqcore").options(**target, queue="target/2")
    query = crossing.option("checkpointLocation", given["crossing"]).trigger(availableNow=True).start()
    query.awaitTermination()
    return {}


def failed(action: Callable[[], object]) -> str:
    """The error of an action, as a user sees it."""
    try:
        action()
    except Exception as error:
        return str(error)
    return ""


def attempt(cell: Callable[[SparkSession, Given], Given], spark: SparkSession, given: Given) -> Given:
    """Result of a cell. It is repeated if the machine is too busy to start a Python process within Spark's 10 s."""
    for _ in range(5):
        try:
            return cell(spark, given)
        except Exception as error:
            failure = traceback.format_exc()
            if "failed to connect back" not in str(error):
                break
    return {"failed": failure}


def main(given: Given) -> None:
    spark = mqcore.spark.session("local[2]", config=given["config"])
    for cell in (batch, stream, sink):
        found = attempt(cell, spark, given)
        print(json.dumps({"cell": cell.__name__, "version": spark.version, **found}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
