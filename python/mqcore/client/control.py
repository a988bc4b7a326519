"""Custom messages of a client, and operations on channels, routers and clients that original servers do not know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from mqcore import bodies
from mqcore.client.arguments import new_id, optional_seconds, pairs
from mqcore.client.base import ClientBase
from mqcore.client.options import Headers
from mqcore.client.streams import CustomMessages
from mqcore.config import ChannelOptions

if TYPE_CHECKING:
    from mqcore.config import Duration

__all__ = ["ControlBase"]

_T = TypeVar("_T")


class ControlBase(ClientBase):
    """Custom messages, and operations that original clients do not know."""

    async def send_custom(
        self,
        body: object = b"",
        *,
        content_type: int = 0,
        id: str | None = None,  # noqa: A002 (as in the protocol)
        headers: Headers = (),
    ) -> None:
        """Send a custom message to the program of the broker, for `mqcore.EventHandler.custom_message`. Only in TMQP.

        Returns when the message is queued for sending; there is no answer. A broker whose program handles no custom
        messages counts and drops it.
        """
        await self._connected().send_custom(
            bodies.encode(body), content_type=content_type, message_id=new_id(id, self._options), headers=pairs(headers)
        )

    @overload
    def custom_messages(self, *, idle_timeout: Duration | None = ...) -> CustomMessages[bytes]: ...
    @overload
    def custom_messages(self, wanted: type[_T], *, idle_timeout: Duration | None = ...) -> CustomMessages[_T]: ...
    def custom_messages(
        self, wanted: type[Any] = bytes, *, idle_timeout: Duration | None = None
    ) -> CustomMessages[Any]:
        """Return the custom messages of the broker's program, sent with `mqcore.Broker.send_custom`.

        Take them with ``async for``; ``async with`` opens the stream before the loop. Only in TMQP.
        """
        return CustomMessages(self, wanted, optional_seconds(idle_timeout))

    async def update_channel(self, channel: str, options: ChannelOptions) -> None:
        """Change the options of a channel that are not ``None``. Its queues keep theirs.

        Raises `NotFound` if the channel does not exist.
        """
        await self._connected().update_channel(channel, options)

    async def enable_router(self, router: str) -> None:
        """Let a router take messages again. Raises `NotFound` if it does not exist."""
        await self._connected().enable_router(router, True)

    async def disable_router(self, router: str) -> None:
        """Let a router take no messages: publishing to it fails. Raises `NotFound` if it does not exist."""
        await self._connected().enable_router(router, False)

    async def disconnect(self, client: str) -> None:
        """Close the connection of a client id, of all clients with a name, ``@name:NAME``, or of a type,
        ``@type:KIND``.

        They may connect again, and most clients do; remove their token or user to keep them out. Raises `NotFound` if
        no such client is connected.
        """
        await self._connected().disconnect(client)
