"""Who a client is, as one text: a token, or a user and a password; and how URLs say it."""

from __future__ import annotations

import base64
import re
from urllib.parse import unquote

from mqcore.errors import ConfigError

__all__ = ["basic", "of", "split"]


def basic(user: str, password: str) -> str:
    """Return a user and a password as one text, in the form that HTTP has for it. Raises `ConfigError`."""
    if ":" in user:
        raise ConfigError(f"a user's name has no colon, as {user!r} has")
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")


def of(token: str | None, user: str | None, password: str | None) -> str | None:
    """Return what says who the client is, or `None` if nothing does. Raises `ConfigError` if it is said by halves, or
    twice."""
    if (user is None) != (password is None):
        raise ConfigError("a user needs a password, and a password a user")
    if user is None or password is None:
        return token
    if token is not None:
        raise ConfigError("give a token, or a user and a password, not both")
    return basic(user, password)


def split(url: str) -> tuple[str, str | None]:
    """Take ``user:password@`` or ``token@`` out of a URL; return the URL without it, and what it says."""
    scheme, separator, rest = url.partition("://")
    # What stands before the host ends before any path or option, which may have an @ of their own.
    place = re.split("[/?]", rest, maxsplit=1)[0]
    shown, at, host = place.rpartition("@")
    if not at:
        return url, None
    user, colon, password = shown.partition(":")
    said = basic(unquote(user), unquote(password)) if colon else unquote(shown)
    return f"{scheme}{separator}{host}{rest[len(place) :]}", said
