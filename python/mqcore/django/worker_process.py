"""The tasks of a worker's child processes. Importing it sets up Django, with DJANGO_SETTINGS_MODULE."""

from __future__ import annotations

from typing import Final

import django

from mqcore.django.execution import TASK_NAME, run_task
from mqcore.jobs import Jobs
from mqcore.jobs.task import TaskOptions

__all__ = ["JOBS"]

django.setup()

JOBS: Final = Jobs()
JOBS.add(run_task, TASK_NAME, TaskOptions())
