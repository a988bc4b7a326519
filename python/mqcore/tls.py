"""TLS settings for clients (`TLSConfig`) and listeners (`ListenerTLS`).

Files are PEM. Supported versions are TLS 1.3 and 1.2. docs/tls.md has the recipes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from mqcore.errors import ConfigError

__all__ = ["Listener", "ListenerTLS", "TLSConfig"]

_Path = str | os.PathLike[str]

_CLIENT_CERT: Final = ("required", "optional")


@dataclass(frozen=True, slots=True, kw_only=True)
class TLSConfig:
    """Settings of a client for ``tmqps://``. By default it trusts the system's authorities and has no certificate.

    URLs can have the same options: ``tmqps://broker.example?ca=/etc/ca.pem``. Raises `ConfigError` for a value
    of a wrong type; errors of the files are raised when the client connects.
    """

    ca: _Path | None = None
    """The authorities to trust, instead of the system's."""
    cert: _Path | None = None
    """The client's certificate, followed by its chain. Default: none."""
    key: _Path | None = None
    """The private key of `cert`. Default: in the same file."""
    server_name: str | None = None
    """The name that the broker's certificate must have. Default: the host of the URL."""
    dangerously_accept_any_certificate: bool = False
    """Accept any certificate. This does not protect against an attacker who impersonates the broker and reads every
    token and message. For experiments on one machine only; each connect logs a warning."""

    def __post_init__(self) -> None:
        _make_paths(self, "ca", "cert", "key")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerTLS:
    """The certificate of a listener, and its requirements for clients. Raises `ConfigError` for invalid values."""

    cert: _Path
    """Its certificate, followed by its chain."""
    key: _Path | None = None
    """The private key. Default: in the same file."""
    client_ca: _Path | None = None
    """The authorities of clients' certificates. Default: none, so clients need no certificate."""
    client_cert: str = "required"
    """With a `client_ca`: ``required``, or ``optional`` (accepts clients without a certificate)."""

    def __post_init__(self) -> None:
        _make_paths(self, "cert", "key", "client_ca")
        if self.client_cert not in _CLIENT_CERT:
            raise ConfigError(f"client_cert cannot be {self.client_cert!r}; it is 'required' or 'optional'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A listener from a table ``[[listener]]``. Raises `ConfigError` for invalid values."""

    url: str
    """Its URL: ``tmqps://127.0.0.1:2632``."""
    tls: ListenerTLS | None = None
    """Its certificate, if its URL uses TLS. Default: the broker's `tls`."""

    def __post_init__(self) -> None:
        if not isinstance(self.url, str):
            raise ConfigError(f"url cannot be {self.url!r}; it is text")
        if self.tls is not None and not isinstance(self.tls, ListenerTLS):
            raise ConfigError(f"tls cannot be {self.tls!r}; it is a ListenerTLS")


def _make_paths(options: object, *names: str) -> None:
    """Convert paths to text for the core."""
    for name in names:
        value = getattr(options, name)
        if value is None:
            continue
        try:
            object.__setattr__(options, name, os.fsdecode(value))
        except TypeError:
            raise ConfigError(f"{name} cannot be {value!r}; it is a path") from None
