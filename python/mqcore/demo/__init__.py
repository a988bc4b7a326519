"""`python -m mqcore.demo`: this Python's standard library, sent through every kind of queue and checked to the octet.

Protocols have a part each (`mqcore.demo.tmqp`, `mqcore.demo.mqks`, `mqcore.demo.micromessage`); what survives has one
(`mqcore.demo.durable`), and jobs and limits have one (`mqcore.demo.jobs`, `mqcore.demo.limits`). A part starts what it
needs, sends every file its ways, and returns an `Outcome` for each queue. The program prints them and fails if one
promise was not kept.
"""

__all__: list[str] = []
