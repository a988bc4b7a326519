"""Jobs: functions that workers run, through a broker that speaks EventMQ's protocol.

::

    from mqcore.jobs import Jobs

    jobs = Jobs("emqp://127.0.0.1:47290")

    @jobs.task(queue="email", retries=3, timeout="30s")
    def send_email(to: str, subject: str) -> int:
        ...

    job = send_email.enqueue("ada@example.com", subject="hi")    # checked by mypy
    print(job.result(timeout=10))

``mqcore worker shop:jobs --queues email`` runs them. See docs/jobs.md for details.
"""

from __future__ import annotations

from mqcore.jobs.app import CatchUp, Jobs, Schedule
from mqcore.jobs.backoff import Backoff
from mqcore.jobs.context import JobContext, current
from mqcore.jobs.flow import Flow, FlowJob, Group, GroupJob
from mqcore.jobs.job import Job
from mqcore.jobs.limits import SoftTimeLimit
from mqcore.jobs.pool import PoolKind
from mqcore.jobs.state import JobState, JobStatus
from mqcore.jobs.task import BoundCall, Task, TaskOptions
from mqcore.jobs.wire import JobProgress
from mqcore.jobs.worker import JobCounts, Worker

__all__ = [
    "Backoff",
    "BoundCall",
    "CatchUp",
    "Flow",
    "FlowJob",
    "Group",
    "GroupJob",
    "Job",
    "JobContext",
    "JobCounts",
    "JobProgress",
    "JobState",
    "JobStatus",
    "Jobs",
    "PoolKind",
    "Schedule",
    "SoftTimeLimit",
    "Task",
    "TaskOptions",
    "Worker",
    "current",
]
