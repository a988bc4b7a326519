"""Credentials as one text: a token, or a user and a password; and credentials in URLs."""

from __future__ import annotations

import base64
import re
from urllib.parse import unquote

from mqcore.errors import ConfigError

__all__ = ["basic", "of", "split"]


def basic(user: str, password: str) -> str:
    """Return a user and a password in the form of HTTP basic authentication. Raises `ConfigError`."""
    if ":" in user:
        raise ConfigError(f"a user name must not contain a colon: {user!r}")
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")


def of(token: str | None, user: str | None, password: str | None) -> str | None:
    """Return the credentials, or `None` if there are none. Raises `ConfigError` if they are incomplete or given
    twice."""
    if (user is None) != (password is None):
        raise ConfigError("a user needs a password, and a password a user")
    if user is None or password is None:
        return token
    if token is not None:
        raise ConfigError("give a token, or a user and a password, not both")
    return basic(user, password)


def split(url: str) -> tuple[str, str | None]:
    """Remove ``user:password@`` or ``token@`` from a URL; return the URL without it, and the credentials."""
    scheme, separator, rest = url.partition("://")
    # Credentials end before any path or option, which may contain an @.
    place = re.split("[/?]", rest, maxsplit=1)[0]
    shown, at, host = place.rpartition("@")
    if not at:
        return url, None
    user, colon, password = shown.partition(":")
    said = basic(unquote(user), unquote(password)) if colon else unquote(shown)
    return f"{scheme}{separator}{host}{rest[len(place) :]}", said
