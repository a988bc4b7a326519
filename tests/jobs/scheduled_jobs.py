"""A program that says what is to run again and again; workers of the tests tell the broker."""

from __future__ import annotations

from mqcore.jobs import Jobs

jobs = Jobs(timeout="300ms")


@jobs.task
def tick() -> int:
    return 1


jobs.every("1h", tick)
