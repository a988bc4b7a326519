"""Carries one queue to others through Spark: `python crossing.py DATA_DIR URL ADMIN CHECKPOINT TASKS`.

Keys repeat, and each eleventh row is invalid and goes to a queue of its own.

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
    rows = source.load(data_dir).selectExpr("value", "int(get_json_object(string(value), '$.n')) as n")
    rows = rows.selectExpr("value", "if(n % 11 = 0, repeat('k', 256), concat('key ', n % 50)) as key")
    # Another number of tasks in each run: the batch that is repeated is cut otherwise than when it was begun.
    rows = rows.repartition(int(tasks))
    writer = rows.writeStream.format("mqcore").option("checkpointLocation", checkpoint)
    writer = writer.options(url=url, admin=admin, queue="target/1", rejectedQueue="target/2", window="100")
    query = writer.trigger(availableNow=True).start()
    print("started", flush=True)
    query.awaitTermination()
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
