"""Settings of a Celery project that moved from Redis: only the two URLs changed."""

import os

broker_url = os.environ.get("BROKER_URL", "mqcore://127.0.0.1:2622")  # was redis://127.0.0.1:6379/0
result_backend = os.environ.get("RESULT_BACKEND", "mqcore://127.0.0.1:9000")  # was redis://127.0.0.1:6379/1

task_acks_late = True
task_reject_on_worker_lost = True
task_track_started = True
worker_prefetch_multiplier = 1
result_expires = 3600
imports = ["more_tasks"]
beat_schedule = {"tick": {"task": "more_tasks.tick", "schedule": 1.0}}
