"""Vendor extensions of MicroMessage2, whose frames a Python class handles.

::

    class Note(Extension):
        name = "x-note"

        async def received(self, client: ClientView, payload: bytes) -> bytes:
            await notes.add(client.name, payload)
            return b"noted"

    broker.add_extension(Note())

A client that names ``x-note`` in its handshake can send EXTENSION frames of it. The return value of
`Extension.received` is sent back in frames of the same extension. See docs/protocols/micromessage2.md.
"""

from __future__ import annotations

import asyncio
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from mqcore._answering import LoopRunner
from mqcore._methods import check_arguments
from mqcore.config import Duration, seconds
from mqcore.errors import InvalidArgument, MqcoreError

if TYPE_CHECKING:
    from mqcore._core import ClientView, ExtensionReply

__all__ = ["Extension", "ExtensionRefused"]

_LOG: Final = logging.getLogger("mqcore.extensions")
_NAME: Final = re.compile(r"x-[a-z0-9-]{1,62}\Z")
_OWN: Final = frozenset({"x-nack", "x-mqcore"})

_Frames: TypeAlias = bytes | Iterable[bytes] | None


class ExtensionRefused(MqcoreError):
    """Raised by `Extension.received` to reject a frame. The broker sends its message and disconnects."""


class Extension(ABC):
    """A vendor extension.

    `received` is called for the frames of a connection in order, each after the previous one has been answered or
    passed to the event loop. Other frames of the connection do not wait for it.
    """

    name: ClassVar[str]
    """Name in the handshake: ``x-`` and up to 62 lower-case letters, digits and hyphens."""
    timeout: ClassVar[Duration] = 5.0
    """Time for `received` to handle a frame, from when earlier frames of the connection are answered (default 5 s).
    After it, the broker reports an error to the client and disconnects it."""

    @abstractmethod
    def received(self, client: ClientView, payload: bytes) -> _Frames | Awaitable[_Frames]:
        """Handle a frame of `client`. Can be ``async def``; a plain method that blocks delays all extensions.

        Return the payloads to send back: `None` for none, bytes for one frame, an iterable of bytes for several. Raise
        `ExtensionRefused` to reject the frame. The broker logs other exceptions, reports to the client that the handler
        failed, and disconnects it.
        """


def _report(name: str, exception: BaseException) -> None:
    """Log an exception of a handler. Also called from the extensions' thread."""
    _LOG.error("the handler of extension %s failed; disconnecting the client", name, exc_info=exception)


def _register(core: Any, extension: Extension, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Register an extension with the core of a broker that is not running. Raises `TypeError`, `InvalidArgument`."""
    if not isinstance(extension, Extension):
        raise TypeError(
            f"an extension must be an instance of a subclass of mqcore.extensions.Extension, not {extension!r}"
        )
    name = getattr(extension, "name", None)
    if not isinstance(name, str) or not _NAME.match(name) or name in _OWN:
        raise InvalidArgument(
            f"invalid extension name {name!r}; use x- and up to 62 lower-case letters, digits and hyphens, except "
            "x-nack and x-mqcore, which are reserved"
        )
    check_arguments(extension, Extension, ("received", extension.received), 2)
    timeout = seconds(extension.timeout)
    runner: LoopRunner[ExtensionReply] = LoopRunner(
        timeout,
        loop,
        raised=lambda reply, exception: reply.raised(exception),
        closed=lambda reply, exception: _report(reply.name, exception),
    )
    core.set_extension(name, extension.received, timeout, runner.submit)
