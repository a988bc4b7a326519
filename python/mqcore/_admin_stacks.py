"""The stack of a delivery handler, from the admin side of a broker: a part of `mqcore.admin`."""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mqcore._http import AdminClient, reading
from mqcore.config import Duration

if TYPE_CHECKING:
    from mqcore.tls import TLSConfig

__all__ = ["HandlerStack", "StackFrame", "ThreadStack", "handler_stack"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StackFrame:
    """One call of a stack."""

    file: str
    """Path of the source file."""
    line: int
    """Line in the file, from 1."""
    function: str
    """Name of the function."""
    code: str
    """The source line; empty if the broker cannot read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadStack:
    """The stack of one thread."""

    thread: str
    """``handler``, or ``event loop`` for the thread that awaits the coroutines of handlers."""
    frames: tuple[StackFrame, ...]
    """Its calls, the innermost last. Empty: it runs no Python code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerStack:
    """The stacks of a delivery handler."""

    handler: str
    """Its key."""
    state: str
    """``idle``, ``running``, or ``gil-held`` if other code holds the GIL, so that the broker cannot look."""
    threads: tuple[ThreadStack, ...]
    """Its threads."""


def handler_stack(
    url: str,
    key: str,
    *,
    token: str | None = None,
    timeout: Duration = 15.0,
    tls: TLSConfig | None = None,
) -> HandlerStack:
    """Return what the delivery handler with this key executes at this moment, to see at which line it is blocked.

    Raises `NotFound` if there is no such handler. The other arguments and exceptions are those of `errors`; `token`
    belongs to an administrator, if the broker has users.
    """
    content = AdminClient(url, token=token, timeout=timeout, tls=tls).ask(
        "GET", f"/handlers/{urllib.parse.quote(key, safe='')}/stack"
    )
    with reading("the stack of a handler", url):
        threads = tuple(
            ThreadStack(thread=thread["thread"], frames=tuple(StackFrame(**frame) for frame in thread["frames"]))
            for thread in content["threads"]
        )
        return HandlerStack(handler=content["handler"], state=content["state"], threads=threads)
