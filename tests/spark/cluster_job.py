"""The driver of a job on a cluster: counts steps, and carries a queue to another: `python cluster_job.py JSON`."""

from __future__ import annotations

import json
import sys
from typing import Any

import mqcore.spark


def main(given: dict[str, Any]) -> None:
    config = {"spark.log.level": "OFF", "spark.driver.host": "127.0.0.1", "spark.cores.max": "2", **given["config"]}
    spark = mqcore.spark.session(given["master"], config=config)
    source = {"minPartitions": "6", "subscribe": "orders"}
    steps = spark.read.format("mqcore").options(view="steps", **source).load(given["data_dir"])
    kinds = {row["kind"]: row["count"] for row in steps.groupBy("kind").count().collect()}
    print(json.dumps({"kinds": kinds}), flush=True)
    rows = spark.read.format("mqcore").options(**source).load(given["data_dir"]).orderBy("shard", "sequence")
    writer = rows.select("value").write.format("mqcore").mode("append").options(**given["sink"])
    writer.save()
    workers = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    print(json.dumps({"workers": workers}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
