"""Django: a backend of ``django.tasks``, and its worker. Needs ``pip install mqcore[django]``.

::

    INSTALLED_APPS = [..., "mqcore.django"]  # for manage.py mqcore_worker
    TASKS = {"default": {"BACKEND": "mqcore.django.TaskBackend", "OPTIONS": {"url": "emqp://127.0.0.1:47290"}}}
"""

from __future__ import annotations

from mqcore.django.backend import TaskBackend

__all__ = ["TaskBackend"]
