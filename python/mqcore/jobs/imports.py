"""An empty `Jobs`, for child processes of a worker that runs only functions permitted by `allow_import`."""

from __future__ import annotations

from typing import Final

from mqcore.jobs.app import Jobs

__all__ = ["NOTHING"]

NOTHING: Final = Jobs()
