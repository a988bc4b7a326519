"""Comparison of mqcore with other brokers on one machine: `make bench-peers`.

| module | contents |
|---|---|
| `place` | the scratch directory: installs brokers, clients and mqcore |
| `machine` | processors, processor time, memory and disturbance |
| `servers` | each broker, started on loopback with stated settings |
| `rows` | what is measured, and how each broker does it |
| `measuring` | runs in turn, and their samples |
| `report`, `plots` | results as JSON, as a Markdown table and as SVG |
| `clients` | the measured programs; each runs in the environment of its library |
"""
