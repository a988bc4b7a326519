"""Callbacks that long operations call while they run: arguments of `mqcore.journal`, `mqcore.backup` and replays."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Advanced", "Copied", "Progress"]


class Progress(Protocol):
    """Called while a journal is read: with its number, the bytes read so far, and the bytes in all.

    Journals that belong to no shard (limits, schedules) have the numbers after those of the shards.
    """

    def __call__(self, number: int, done: int, total: int, /) -> object:
        """Take note. An exception ends the operation."""


class Copied(Protocol):
    """Called while files are copied: with the bytes copied so far, and the bytes in all, if known."""

    def __call__(self, done: int, total: int | None, /) -> object:
        """Take note. An exception ends the operation, which then leaves nothing behind."""


class Advanced(Protocol):
    """Called when a replay has published messages: with their number so far, and the number in all."""

    def __call__(self, done: int, total: int, /) -> object:
        """Take note. An exception ends the replay at this position."""
