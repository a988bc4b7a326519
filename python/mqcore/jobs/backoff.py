"""`Backoff` by its earlier name."""

from __future__ import annotations

from mqcore.backoff import Backoff

__all__ = ["Backoff"]
