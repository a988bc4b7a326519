"""Processes that the demonstration starts."""

from __future__ import annotations

import asyncio

__all__ = ["ended", "kill"]


async def ended(process: asyncio.subprocess.Process) -> None:
    """Wait until a process has ended and its output is read to the end.

    `Process.wait` returns before the loop has closed the pipe of the output. If the loop ends then, asyncio writes
    a traceback to stderr.
    """
    await process.communicate()


async def kill(process: asyncio.subprocess.Process) -> None:
    """Kill a process with SIGKILL, so that it cannot clean up. It may have ended already."""
    if process.returncode is None:
        process.kill()
    await ended(process)
