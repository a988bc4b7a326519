"""Carries one queue to another through Spark: `python crossing.py DATA_DIR URL ADMIN CHECKPOINT TASKS`.

A program of its own, so that a test can kill all of it, JVM and helpers included, at any moment.
"""

from __future__ import annotations

import sys

import mqcore.spark


def main(data_dir: str, url: str, admin: str, checkpoint: str, tasks: str) -> None:
    spark = mqcore.spark.session("local[2]", config={"spark.log.level": "OFF"})
    source = spark.readStream.format("mqcore").options(
        subscribe="orders/1", startingOffsets="earliest", maxOffsetsPerTrigger="500"
    )
    rows = source.load(data_dir).selectExpr("value")
    # Another number of tasks in each run: the batch that is repeated is cut otherwise than when it was begun.
    rows = rows.repartition(int(tasks))
    writer = rows.writeStream.format("mqcore").option("checkpointLocation", checkpoint)
    query = writer.options(url=url, admin=admin, queue="target/1", window="100").trigger(availableNow=True).start()
    print("started", flush=True)
    query.awaitTermination()
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
