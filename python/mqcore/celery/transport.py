"""The transport that kombu uses for ``mqcore://`` URLs."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from kombu.exceptions import ChannelError
from kombu.transport import base

from mqcore import __version__, errors
from mqcore.celery.channel import EXCHANGE_TYPES, Channel
from mqcore.celery.connection import Connection, Options
from mqcore.celery.endpoint import Endpoint, tls_context, token_of

__all__ = ["DEFAULT_PORT", "SecureTransport", "Transport"]

DEFAULT_PORT: Final = 2622
"""The port of TMQP listeners."""


class Transport(base.Transport):
    """Connects kombu to a TMQP listener: ``mqcore://user:password@host:2622/vhost``."""

    client: Any

    default_port = DEFAULT_PORT
    driver_type = "mqcore"
    driver_name = "mqcore"

    connection_errors: ClassVar[tuple[type[BaseException], ...]] = (errors.TransportError, errors.HandshakeError)
    channel_errors: ClassVar[tuple[type[BaseException], ...]] = (
        ChannelError,
        errors.OperationError,
        errors.Nacked,
        errors.ProtocolError,
        errors.InvalidArgument,
        errors.ConfirmTimeout,
        errors.RequestTimeout,
    )
    recoverable_connection_errors: ClassVar[tuple[type[BaseException], ...]] = (errors.TransportError,)
    # The broker is busy, or its disk is full. A timeout is none: the message may have been taken.
    recoverable_channel_errors: ClassVar[tuple[type[BaseException], ...]] = (errors.Busy,)

    implements = base.Transport.implements.extend(asynchronous=True, exchange_type=EXCHANGE_TYPES, heartbeats=False)

    def driver_version(self) -> str:
        """Return the version of mqcore."""
        return __version__

    @property
    def default_connection_params(self) -> dict[str, Any]:
        """Defaults for URLs."""
        return {"hostname": "localhost", "port": self.default_port}

    def establish_connection(self) -> Connection:
        """Connect. Raises `ConnectFailed`, `AuthFailed`, `TLSError`, and `ConfigError` for wrong options."""
        client = self.client
        options = Options.of(client.transport_options or {})
        tls, server_name = tls_context(self._tls_settings())
        password = client.password() if callable(client.password) else client.password
        endpoint = Endpoint(
            client.hostname or "localhost",
            int(client.port or self.default_port),
            token=token_of(client.userid, password),
            tls=tls,
            server_name=server_name,
            connect_timeout=float(client.connect_timeout or 5.0),
            request_timeout=float(options.request_timeout),
        )
        return Connection(endpoint, client.virtual_host or "/", options, client)

    def _tls_settings(self) -> object:
        return self.client.ssl

    def create_channel(self, connection: Connection) -> Channel:
        """Open a channel."""
        return connection.channel()

    def close_channel(self, channel: Channel) -> None:
        """Close a channel."""
        channel.close()

    def close_connection(self, connection: Connection) -> None:
        """Close a connection, and tell the broker."""
        self._forget_loop(connection)
        connection.close()

    def _collect(self, connection: Connection | None) -> None:
        if connection is not None:
            connection.collect()

    def verify_connection(self, connection: Connection) -> bool:
        """Return whether a connection is open."""
        return connection.connected

    def drain_events(self, connection: Connection, timeout: float | None = None, **_options: object) -> None:
        """Deliver messages. Raises `TimeoutError` if none comes within `timeout` seconds."""
        connection.drain_events(timeout)

    def register_with_event_loop(self, connection: Connection, loop: Any) -> None:
        """Let an event loop watch a connection."""
        connection.loop = loop
        loop.add_reader(connection.link.fileno(), connection.on_readable)
        connection.deliver_soon()

    def unregister_from_event_loop(self, connection: Connection, loop: Any) -> None:
        """Let an event loop watch a connection no longer."""
        self._forget_loop(connection)

    def _forget_loop(self, connection: Connection) -> None:
        loop, connection.loop = connection.loop, None
        if loop is not None and connection.link.fileno() >= 0:
            loop.remove_reader(connection.link.fileno())


class SecureTransport(Transport):
    """The same over TLS, for ``mqcores://`` URLs."""

    def _tls_settings(self) -> object:
        return self.client.ssl or True
