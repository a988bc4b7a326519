"""One line of `mqcore doctor`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Check"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the result."""

    state: str
    """``ok``, ``warn``, ``fail`` or ``skip``."""
    name: str
    text: str
    remedy: str | None = None
