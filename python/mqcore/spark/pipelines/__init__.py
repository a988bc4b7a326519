"""Ready-made analyses of a broker's history: each reads the history and writes Parquet tables and a report.

| name | result |
|---|---|
| `lifecycle` | per queue and minute: rates, latencies, redeliveries, losses |
| `reconcile` | the fate of every message, and a list of unaccounted ones |
| `deadletters` | dead letters grouped by cause, and a way to publish them again |
| `limits` | use by key and window, and suggested quotas |
| `sessions` | activity of each client, and conversations between clients |
| `features` | messages with JSON bodies as one flat table, and its drift |
| `compact` | a copy of the archive in few large files |
| `replay` | messages of a time range published again |
| `quality` | schemas of JSON bodies, their drift, and violations of given schemas |
| `cost` | bytes, requests and storage by queue and client |
| `anomalies` | unusual rates and latencies, and alerts |

Pipelines do not consume messages, and a broker can run on the directory meanwhile. docs/pipelines.md describes the
tables and columns.
"""

from mqcore.spark.pipelines.catalogue import NAMES, Outcome, follow, run
from mqcore.spark.pipelines.failures import PipelineFailed
from mqcore.spark.pipelines.site import write_site

__all__ = ["NAMES", "Outcome", "PipelineFailed", "follow", "run", "write_site"]
