"""Where the sockets of an EventMQ broker are: what a URL such as ``emqp://127.0.0.1:47290`` stands for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, urlsplit

from mqcore.errors import ConfigError

__all__ = ["DEFAULT_URL", "Addresses", "parse"]

DEFAULT_URL: Final = "emqp://127.0.0.1:47290"

# How far the other sockets of the original are above that of its workers.
_FRONTEND, _ADMIN, _SUBSCRIBE = 1, 3, 9


@dataclass(frozen=True, slots=True)
class Addresses:
    """The sockets of one broker, as ZeroMQ writes them."""

    backend: str
    """Workers connect here."""
    frontend: str
    """Clients connect here."""
    admin: str
    """Administrators connect here."""
    subscribe: str
    """Subscribers to topics connect here."""


def parse(url: str) -> Addresses:
    """Read ``emqp://HOST[:PORT][?frontend=PORT&admin=PORT&subscribe=PORT]``.

    PORT is that of the workers, by default 47290; clients' is one above it, the administrators' three and that of
    subscribers nine, unless they are given, as a port or as ``HOST:PORT``. Raises `ConfigError` for anything else.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or 47290
    except ValueError as error:
        raise ConfigError(f"{url!r} is no URL: {error}") from None
    options = parse_qs(parts.query, keep_blank_values=True)
    unknown = options.keys() - {"frontend", "admin", "publish", "subscribe"}
    if parts.scheme != "emqp" or not parts.hostname or parts.path not in {"", "/"} or unknown:
        raise ConfigError(
            f"{url!r} is no address of job queues; write emqp://HOST:PORT, with ?frontend= and &admin= where those are "
            "not the ports 1 and 3 above it"
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
        raise ConfigError(f"{given[-1]!r} in {url!r} is no port; write a number, or HOST:PORT")
    return f"tcp://{before or host}:{number}"
