"""Whom to trust and what to prove: TLS for clients (`TLSConfig`) and for listeners (`ListenerTLS`).

Files are PEM. TLS 1.3 and 1.2 are spoken, nothing older. docs/tls.md has the recipes.
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
    """What a client needs for ``tmqps://``. Without arguments it trusts whom the system trusts, and proves nothing.

    The same four can stand behind a URL: ``tmqps://broker.example?ca=/etc/ca.pem``. Raises `ConfigError` for a value
    that is no path or name; whether the files can be used shows when the client connects.
    """

    ca: _Path | None = None
    """The authorities to trust, instead of the system's."""
    cert: _Path | None = None
    """What the client proves itself with, and behind it what leads to an authority. Default nothing."""
    key: _Path | None = None
    """The private key of `cert`. Default: in the same file."""
    server_name: str | None = None
    """The name that the broker's certificate must be for. Default the host of the URL."""
    dangerously_accept_any_certificate: bool = False
    """Take whatever certificate comes. Nobody who only listens can read along then, but whoever pretends to be the
    broker can, and gets every token and message. For an experiment on one machine; each connect logs a warning."""

    def __post_init__(self) -> None:
        _make_paths(self, "ca", "cert", "key")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerTLS:
    """What a listener shows, and whom it asks to show something. Raises `ConfigError` for what cannot be."""

    cert: _Path
    """Its certificate, and behind it those that lead to an authority."""
    key: _Path | None = None
    """The private key. Default: in the same file."""
    client_ca: _Path | None = None
    """The authorities of clients' certificates. Default none: clients are not asked for any."""
    client_cert: str = "required"
    """With a `client_ca`: ``required``, or ``optional`` (who shows none is let in without a proven name)."""

    def __post_init__(self) -> None:
        _make_paths(self, "cert", "key", "client_ca")
        if self.client_cert not in _CLIENT_CERT:
            raise ConfigError(f"client_cert cannot be {self.client_cert!r}; it is 'required' or 'optional'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A listener of its own table, ``[[listener]]``. Raises `ConfigError` for what cannot be."""

    url: str
    """Where: ``tmqps://127.0.0.1:2632``."""
    tls: ListenerTLS | None = None
    """What it shows, if its URL asks for TLS. Default what the broker's `tls` says."""

    def __post_init__(self) -> None:
        if not isinstance(self.url, str):
            raise ConfigError(f"url cannot be {self.url!r}; it is text")
        if self.tls is not None and not isinstance(self.tls, ListenerTLS):
            raise ConfigError(f"tls cannot be {self.tls!r}; it is a ListenerTLS")


def _make_paths(options: object, *names: str) -> None:
    """Make paths text, which is what the core reads."""
    for name in names:
        value = getattr(options, name)
        if value is None:
            continue
        try:
            object.__setattr__(options, name, os.fsdecode(value))
        except TypeError:
            raise ConfigError(f"{name} cannot be {value!r}; it is a path") from None
