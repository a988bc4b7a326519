"""Addresses of an EventMQ broker's sockets, from a URL such as ``emqp://127.0.0.1:47290``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, urlsplit

from mqcore.errors import ConfigError

__all__ = ["DEFAULT_URL", "Addresses", "parse"]

DEFAULT_URL: Final = "emqp://127.0.0.1:47290"

# Offsets of the other ports from the workers' port, as in the original EventMQ.
_FRONTEND, _ADMIN, _SUBSCRIBE = 1, 3, 9


@dataclass(frozen=True, slots=True)
class Addresses:
    """The sockets of one broker, as ZeroMQ endpoints (``tcp://HOST:PORT``)."""

    backend: str
    """Endpoint for workers."""
    frontend: str
    """Endpoint for clients that send jobs."""
    admin: str
    """Endpoint for administrators."""
    subscribe: str
    """Endpoint for subscribers to topics."""


def parse(url: str) -> Addresses:
    """Parse ``emqp://HOST[:PORT][?frontend=PORT&admin=PORT&subscribe=PORT]``.

    PORT is the port for workers, by default 47290. The default ports of the other sockets follow from it: frontend
    PORT + 1, admin PORT + 3, subscribe PORT + 9. Each can be a port or ``HOST:PORT``. Raises `ConfigError` for an
    invalid URL.

    >>> parse("emqp://broker:7000?admin=8000")
    Addresses(backend='tcp://broker:7000', frontend='tcp://broker:7001', admin='tcp://broker:8000', \
subscribe='tcp://broker:7009')
    """
    try:
        parts = urlsplit(url)
        port = parts.port or 47290
    except ValueError as error:
        raise ConfigError(f"invalid URL {url!r}: {error}") from None
    options = parse_qs(parts.query, keep_blank_values=True)
    unknown = options.keys() - {"frontend", "admin", "publish", "subscribe"}
    if parts.scheme != "emqp" or not parts.hostname or parts.path not in {"", "/"} or unknown:
        raise ConfigError(
            f"invalid URL of a job broker {url!r}; use emqp://HOST:PORT[?frontend=PORT&admin=PORT&subscribe=PORT]"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return Addresses(
        backend=f"tcp://{host}:{port}",
        frontend=_other(url, options.get("frontend"), host, port + _FRONTEND),
        admin=_other(url, options.get("admin"), host, port + _ADMIN),
        subscribe=_other(url, options.get("subscribe"), host, port + _SUBSCRIBE),
    )


def _other(url: str, given: list[str] | None, host: str, default: int) -> str:
    if given is None:
        return f"tcp://{host}:{default}"
    before, _, number = given[-1].rpartition(":")
    if not number.isascii() or not number.isdigit() or not 0 < int(number) < 65536:
        raise ConfigError(f"invalid port {given[-1]!r} in {url!r}; use PORT or HOST:PORT with a port from 1 to 65535")
    return f"tcp://{before or host}:{number}"
