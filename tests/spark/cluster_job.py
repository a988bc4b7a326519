"""The driver of a job on a cluster: runs a pipeline, and carries a queue to another: `python cluster_job.py JSON`.

Says on stdout, a JSON object a line, where it is; between the two it waits for a line on stdin.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import mqcore.spark
from mqcore.spark import pipelines


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def main(given: dict[str, Any]) -> None:
    config = {"spark.log.level": "OFF", "spark.driver.host": "127.0.0.1", "spark.cores.max": "2", **given["config"]}
    spark = mqcore.spark.session(given["master"], config=config)
    outcome = pipelines.run(
        "lifecycle",
        spark,
        given["data_dir"],
        given["out"],
        interval=1,
        progress=lambda step, done, known: say(step=step, done=done, known=known),
    )
    say(figures=dict(outcome.figures))
    sys.stdin.readline()
    source = spark.read.format("mqcore").options(minPartitions="6", subscribe="orders").load(given["data_dir"])
    rows = source.orderBy("shard", "sequence").select("value")
    rows.write.format("mqcore").mode("append").options(**given["sink"]).save()
    say(workers=spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
