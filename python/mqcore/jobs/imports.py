"""No tasks at all: what processes of a worker load that runs only what its patterns allow to import."""

from __future__ import annotations

from typing import Final

from mqcore.jobs.app import Jobs

__all__ = ["NOTHING"]

NOTHING: Final = Jobs()
