"""A stream from a broker to a table of Delta or Iceberg: `python lakehouse_job.py JSON`.

With `follow`, it runs until it is killed, and prints a line after each batch. Otherwise it reads what is available, and
prints the content of the table.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import mqcore.spark


def main(given: dict[str, Any]) -> None:
    spark = mqcore.spark.session("local[2]", config=given["config"])
    reader = spark.readStream.format("mqcore").option("startingOffsets", "earliest")
    rows = reader.load(given["data_dir"]).selectExpr("cast(value as string) as body", "channel", "sequence", "shard")
    writer = rows.writeStream.format(given["format"]).outputMode("append")
    writer = writer.option("checkpointLocation", given["checkpoint"])
    is_delta = given["format"] == "delta"
    if not is_delta:
        spark.sql(f"CREATE TABLE IF NOT EXISTS {given['table']} {COLUMNS} USING iceberg")
    trigger = {"processingTime": "50 milliseconds"} if given["follow"] else {"availableNow": True}
    writer = writer.trigger(**trigger)  # type: ignore[arg-type]
    query = writer.start(given["table"]) if is_delta else writer.toTable(given["table"])
    print("started", flush=True)
    last = None
    while given["follow"] and query.isActive:
        progress = query.lastProgress
        if progress is not None and progress["batchId"] != last:
            last = progress["batchId"]
            print(json.dumps({"batch": last, "rows": progress["numInputRows"]}), flush=True)
        time.sleep(0.02)
    query.awaitTermination()
    table = spark.read.format("delta").load(given["table"]) if is_delta else spark.table(given["table"])
    print(json.dumps({"bodies": [row["body"] for row in table.select("body").collect()]}), flush=True)
    history = f"DESCRIBE HISTORY delta.`{given['table']}`" if is_delta else f"SELECT * FROM {given['table']}.snapshots"
    print(json.dumps({"commits": spark.sql(history).count(), "version": spark.version}), flush=True)
    spark.stop()


COLUMNS = "(body string, channel string, sequence bigint, shard int)"

if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
