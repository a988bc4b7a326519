"""The broker that a command works on.

It comes from options, from the context of ``--context``, from the environment, from the context of MQCORE_CONTEXT or
`mqcore context use`, or from the defaults, in this order.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from mqcore.cli.context_store import BrokerContext

__all__ = [
    "DEFAULT_ADMIN",
    "DEFAULT_URL",
    "Selection",
    "Target",
    "admin_beside",
    "admin_side",
    "listener",
    "listener_of",
    "named_context",
    "selection",
    "shown",
    "token",
    "used_context",
]

DEFAULT_URL: Final = "tmqp://127.0.0.1:2622"
DEFAULT_ADMIN: Final = "http://127.0.0.1:2627"

_HTTP: Final = ("http://", "https://")
_USED: Final = "mqcore.used_context"


@dataclass(frozen=True, slots=True)
class Target:
    """A listener or admin side, and how to log in to it."""

    url: str
    token: str | None = field(repr=False)
    context: BrokerContext | None = None
    """The context that `url` comes from."""
    is_option: bool = False
    """Whether an option of the command line names `url`."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The name of the chosen context, and what chose it."""

    name: str
    by: str
    """``--context``, ``MQCORE_CONTEXT`` or ``mqcore context use``."""


def selection() -> Selection | None:
    """Return the chosen context; `None` if there is none, or an empty name asks for none."""
    from mqcore.cli import context_store

    for name, by in ((_root("context"), "--context"), (os.environ.get("MQCORE_CONTEXT"), "MQCORE_CONTEXT")):
        if name is not None:
            return Selection(name, by) if name else None
    current = context_store.load().current
    return None if current is None else Selection(current, "mqcore context use")


def listener(url: str | None) -> Target:
    """Return the listener for messages. `url` is the option of the command itself."""
    given = url or _root("url")
    if given is not None:
        return Target(given, token(), is_option=url is not None or _is_flag("url"))
    context = _context()
    if context is None:
        return Target(DEFAULT_URL, token())
    from mqcore.cli.context_store import MESSAGE_PROTOCOLS

    listed = context.url_of(*MESSAGE_PROTOCOLS)
    if listed is None:
        raise click.UsageError(
            f"context {context.name} has no URL for messages; pass --url, or add the context again with such a --url"
        )
    return _use(context, listed)


def admin_side(url: str | None) -> Target | None:
    """Return the admin side, or `None` if nothing names one. `url` is the option of the command itself.

    Raises `click.UsageError` if `mqcore --url` is a URL of another protocol, or the context has no admin side.
    MQCORE_URL may name a listener for messages; the admin side is then the default one.
    """
    given = url or _admin_option()
    if given is not None:
        return Target(given, token(), is_option=True)
    admin, listener_url = _environment_admin(), _root("url")
    if admin is not None or listener_url is not None:
        # The broker of a listener in the environment is not that of a context.
        is_http = listener_url is not None and listener_url.startswith(_HTTP)
        given = admin or (listener_url if is_http else None)
        return None if given is None else Target(given, token())
    context = _context()
    if context is None:
        return None
    if context.admin is None:
        raise click.UsageError(
            f"context {context.name} has no URL of the admin side; pass --url http://HOST:PORT, or add the context "
            "again with --admin"
        )
    return _use(context, context.admin)


def admin_beside(found: Target, admin: str | None) -> Target | None:
    """Return the admin side of the broker of `found`, or `None` if nothing names it.

    `admin` is the option of the command itself. MQCORE_ADMIN does not count beside an explicit ``--url``, which may
    name another broker.
    """
    given = admin or (_root("admin") if _is_flag("admin") else None)
    if given is None and not found.is_option:
        given = _environment_admin()
    if given is not None:
        return Target(given, token())
    if found.context is not None and found.context.admin is not None:
        return Target(found.context.admin, found.token, found.context)
    return None


def listener_of(protocol: str, variable: str, option: str) -> Target | None:
    """Return the listener of a protocol with commands of its own, or `None` if nothing names one.

    Its URL comes from `mqcore --url` or MQCORE_URL, if it is of this protocol, from `variable`, or from the context.
    Raises `click.UsageError`, which names `option`, if the context has no URL of the protocol, or `mqcore --url` names
    a listener of another one beside ``--context``.
    """
    from mqcore.cli.context_store import schemes

    given = _root("url")
    if given is not None and given.partition("://")[0] in schemes(protocol):
        return Target(given, token())
    if given is not None and named_context() is not None:
        raise click.UsageError(f"--url {shown(given)} is not a {protocol}:// URL; pass {option}, or remove --url")
    own = os.environ.get(variable) if named_context() is None else None
    if own or given is not None:
        # MQCORE_URL usually names a listener of another protocol, of which nothing else is known.
        return Target(own, token()) if own else None
    context = _context()
    if context is None:
        return None
    listed = context.url_of(protocol)
    if listed is None:
        raise click.UsageError(
            f"context {context.name} has no {protocol}:// URL; pass {option}, or add the context again with such a "
            "--url too"
        )
    return _use(context, listed)


def used_context() -> BrokerContext | None:
    """Return the context that the command used to find its broker."""
    used: BrokerContext | None = click.get_current_context().meta.get(_USED)
    return used


def named_context() -> str | None:
    """Return the name after ``--context``, which the command uses instead of the environment; `None` if there is none.

    An empty name means no context, so that the environment counts.
    """
    return _root("context") or None


def is_url_option() -> bool:
    """Return whether `mqcore --url` names the broker."""
    return _root("url") is not None and _is_flag("url")


def token() -> str | None:
    """Return the value of `mqcore --token`, else MQCORE_TOKEN unless ``--context`` names the broker."""
    return _root("token")


def shown(url: str) -> str:
    """Return a URL without credentials."""
    from mqcore import credentials

    return credentials.split(url)[0]


def _root(name: str) -> str | None:
    """Return the value of an option of the program. ``--context`` hides values of the environment."""
    meta = click.get_current_context().meta
    if name != "context" and meta.get("mqcore.context") and not _is_flag(name):
        return None
    value: str | None = meta.get(f"mqcore.{name}")
    return value


def _is_flag(name: str) -> bool:
    return click.get_current_context().find_root().get_parameter_source(name) is ParameterSource.COMMANDLINE


def _admin_option() -> str | None:
    """Return the admin side of `mqcore --admin` or `mqcore --url`."""
    if _is_flag("admin"):
        return _root("admin")
    url = _root("url") if _is_flag("url") else None
    if url is not None and not url.startswith(_HTTP):
        raise click.UsageError(f"--url {url} is not a URL of the admin API; use --url http://HOST:PORT")
    return url


def _environment_admin() -> str | None:
    """Return MQCORE_ADMIN, unless it lets `mqcore serve` choose the port."""
    admin = None if _is_flag("admin") else _root("admin")
    return None if admin is None or admin.endswith(":0") else admin


def _context() -> BrokerContext | None:
    from mqcore.cli import context_store

    chosen = selection()
    return None if chosen is None else context_store.load().get(chosen.name)


def _use(context: BrokerContext, url: str) -> Target:
    """Take the URL and the token of a context, and show on a terminal which context it is."""
    meta = click.get_current_context().meta
    if _USED not in meta and sys.stderr.isatty():
        protected = " (protected)" if context.protected else ""
        line = f"context {context.name}{protected}: {shown(url)}"
        click.secho(line, err=True, fg="red" if context.protected else None, bold=context.protected)
    meta[_USED] = context
    return Target(url, token() or context.credential(), context)
