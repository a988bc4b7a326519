"""`python -m mqcore.demo`: sends Python's standard library through every kind of queue and checks every byte.

Each protocol has a part (`mqcore.demo.tmqp`, `mqcore.demo.mqks`, `mqcore.demo.micromessage`), and so have durability
(`mqcore.demo.durable`), clusters (`mqcore.demo.cluster`), jobs (`mqcore.demo.jobs`) and limits
(`mqcore.demo.limits`). A part starts its broker, sends every file, and returns an `Outcome` for each queue. The program
prints them, and fails if a check failed.
"""

__all__: list[str] = []
