"""A client of Spark Connect that reads and writes, and starts the server itself: `python connect_job.py JSON`."""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession


def main(given: dict[str, Any]) -> None:
    builder = SparkSession.builder.remote("local[2]")
    spark = builder.config("spark.sql.python.filterPushdown.enabled", "true").getOrCreate()
    rows = spark.read.format("mqcore").options(subscribe="orders").load(given["data_dir"])
    writer = rows.orderBy("shard", "sequence").select("value").write.format("mqcore").mode("append")
    writer.options(**given["sink"]).save()
    source = spark.readStream.format("mqcore").options(startingOffsets="earliest", subscribe="orders")
    stream = source.load(given["data_dir"]).select("value").writeStream.format("mqcore")
    stream = stream.option("checkpointLocation", given["checkpoint"]).options(**given["stream"])
    stream.trigger(availableNow=True).start().awaitTermination()
    print(json.dumps({"read": rows.count(), "logs": rows.where("channel = 'logs'").count()}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
