"""Ready analyses of what was said through a broker: each reads history, and writes Parquet and one report.

| name | what it tells |
|---|---|
| `lifecycle` | per queue and minute: rates, latencies, redeliveries, losses |
| `reconcile` | every message accounted for, or named |
| `deadletters` | what died and why, and the way back |
| `limits` | use by key and window, and which quotas would fit |
| `sessions` | what each client did, and who spoke to whom |
| `features` | messages with JSON bodies as one flat table, and how it drifts |
| `compact` | the archive anew, in few large files |

Reading never consumes; a broker may run on the directory meanwhile. docs/pipelines.md tells tables and columns.
"""

from mqcore.spark.pipelines.catalogue import NAMES, Outcome, follow, run

__all__ = ["NAMES", "Outcome", "follow", "run"]
