"""Vendors' extensions of MicroMessage2, whose frames a program handles: what the protocol leaves to you.

::

    class Note(Extension):
        name = "x-note"

        async def received(self, client: ClientView, payload: bytes) -> bytes:
            await notes.add(client.name, payload)
            return b"noted"

    broker.add_extension(Note())

A client that names ``x-note`` in its handshake may then send EXTENSION frames of it; what `Extension.received` returns
goes back to it in frames of the same extension. See docs/protocols/micromessage2.md.
"""

from __future__ import annotations

import asyncio
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from mqcore._answering import LoopRunner
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
    """Raised by `Extension.received` where a frame may not be sent: the peer is told why, and its connection ends."""


class Extension(ABC):
    """A vendor's extension. Frames of one connection come in their order, each when the one before was answered or
    handed to the event loop; what else the peer sends does not wait for them.
    """

    name: ClassVar[str]
    """As clients name it in the handshake: ``x-`` and lower-case letters, digits and hyphens, 64 characters at most."""
    timeout: ClassVar[Duration] = 5.0
    """How long `received` may take for a frame. Beyond it the peer is told so and its connection ends. Default 5 s."""

    @abstractmethod
    def received(self, client: ClientView, payload: bytes) -> _Frames | Awaitable[_Frames]:
        """Handle a frame of `client`. May be ``async def``; a plain method that blocks makes all frames of all
        extensions wait.

        Return the payloads of frames to send back: `None` for none, bytes for one, an iterable of bytes for several.
        Raise `ExtensionRefused` to refuse the frame. Any other exception is logged, and the peer is told that the
        handler failed.
        """


def _report(name: str, exception: BaseException) -> None:
    """Log that a handler raised. Called from the extensions' thread too."""
    _LOG.error("the handler of the extension %s raised; the connection ends", name, exc_info=exception)


def _register(core: Any, extension: Extension, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Tell the core of a broker that is not running about an extension."""
    if not isinstance(extension, Extension):
        raise TypeError(f"an extension is an instance of a subclass of mqcore.extensions.Extension, not {extension!r}")
    name = getattr(extension, "name", None)
    if not isinstance(name, str) or not _NAME.match(name) or name in _OWN:
        raise InvalidArgument(
            f"an extension cannot be called {name!r}: write x- and lower-case letters, digits and hyphens, 64 "
            "characters at most; x-nack and x-mqcore are the broker's own"
        )
    timeout = seconds(extension.timeout)
    runner: LoopRunner[ExtensionReply] = LoopRunner(
        timeout,
        loop,
        raised=lambda reply, exception: reply.raised(exception),
        closed=lambda reply, exception: _report(reply.name, exception),
    )
    core.set_extension(name, extension.received, timeout, runner.submit)
