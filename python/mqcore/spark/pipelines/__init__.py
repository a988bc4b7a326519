"""Ready analyses of what was said through a broker: each reads history, and writes Parquet and one report.

| name | what it tells |
|---|---|
| `lifecycle` | per queue and minute: rates, latencies, redeliveries, losses |
| `reconcile` | every message accounted for, or named |
| `limits` | use by key and window, and which quotas would fit |

Reading never consumes; a broker may run on the directory meanwhile. docs/pipelines.md tells tables and columns.
"""

from mqcore.spark.pipelines.catalogue import NAMES, Outcome, follow, run

__all__ = ["NAMES", "Outcome", "follow", "run"]
