"""Where a broker listens, and how a client connects to it."""

from __future__ import annotations

import base64
import select
import socket
import ssl
from dataclasses import dataclass, field
from typing import Any, Final

from mqcore.errors import CertificateError, ConfigError, ConnectFailed, TLSError

__all__ = ["Endpoint", "dial", "is_readable", "tls_context", "token_of", "wait_writable"]

_TLS_OPTIONS: Final = frozenset(["ca_certs", "cert_reqs", "certfile", "keyfile", "keyfile_password", "server_hostname"])


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of one listener."""

    host: str
    port: int
    token: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    server_name: str | None = None
    """The name in the broker's certificate, if it is not the host."""
    connect_timeout: float = 5.0
    request_timeout: float = 15.0

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def token_of(user: str | None, password: str | None) -> str | None:
    """Return the credentials for the handshake.

    A token is a password without a user, because kombu hides passwords when it logs a URL. A user without a password
    is taken as a token, too.
    """
    if not user or not password:
        return password or user or None
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def tls_context(settings: object) -> tuple[ssl.SSLContext | None, str | None]:
    """Return the TLS context and the server name of Celery's ``broker_use_ssl``: a boolean or a dictionary.

    Raises `ConfigError` for unknown members and for files that cannot be read.
    """
    if not settings:
        return None, None
    given: dict[str, Any] = {}
    if isinstance(settings, dict):
        given = {str(name).removeprefix("ssl_"): value for name, value in settings.items()}
    if unknown := sorted(set(given) - _TLS_OPTIONS):
        raise ConfigError(f"unknown TLS options {', '.join(unknown)}; use {', '.join(sorted(_TLS_OPTIONS))}")
    try:
        context = ssl.create_default_context(cafile=given.get("ca_certs"))
        if given.get("certfile"):
            context.load_cert_chain(given["certfile"], given.get("keyfile"), given.get("keyfile_password"))
    except OSError as error:
        raise ConfigError(f"cannot use the TLS files of {given}: {error}") from error
    required = given.get("cert_reqs", ssl.CERT_REQUIRED)
    if required in (ssl.CERT_NONE, "none", "CERT_NONE"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context, given.get("server_hostname")


def dial(endpoint: Endpoint) -> socket.socket:
    """Connect without blocking reads and writes. Raises `ConnectFailed`, `TLSError` or `CertificateError`."""
    try:
        connection = socket.create_connection((endpoint.host, endpoint.port), endpoint.connect_timeout)
    except OSError as error:
        raise ConnectFailed(f"cannot connect to {endpoint}: {error}; is a broker running there?") from error
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # A broker that vanished without a word is noticed after about a minute.
    for option, seconds in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)
    if endpoint.tls is not None:
        try:
            connection = endpoint.tls.wrap_socket(connection, server_hostname=endpoint.server_name or endpoint.host)
        except ssl.SSLCertVerificationError as error:
            connection.close()
            raise CertificateError(
                f"the certificate of {endpoint} is not trusted: {error.verify_message}; check 'ca_certs'"
            ) from error
        except OSError as error:
            connection.close()
            raise TLSError(f"no TLS with {endpoint}: {error}; does this listener use TLS?") from error
    connection.setblocking(False)
    return connection


def is_readable(connection: socket.socket, timeout: float | None) -> bool:
    """Wait at most `timeout` seconds until something can be read."""
    if isinstance(connection, ssl.SSLSocket) and connection.pending():
        return True
    return _is_ready(connection, select.POLLIN, timeout)


def wait_writable(connection: socket.socket, timeout: float) -> bool:
    """Wait at most `timeout` seconds until something can be read or written."""
    return _is_ready(connection, select.POLLIN | select.POLLOUT, timeout)


def _is_ready(connection: socket.socket, events: int, timeout: float | None) -> bool:
    # A new object each time: several threads may wait for one connection.
    poll = select.poll()
    poll.register(connection.fileno(), events)
    return bool(poll.poll(None if timeout is None else max(0.0, timeout) * 1000))
