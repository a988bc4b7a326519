"""The Django application, which has the management command of the worker."""

from __future__ import annotations

from django.apps import AppConfig

__all__ = ["MqcoreConfig"]


class MqcoreConfig(AppConfig):
    """Configuration of the Django application."""

    name = "mqcore.django"
    label = "mqcore"
    verbose_name = "mqcore"
