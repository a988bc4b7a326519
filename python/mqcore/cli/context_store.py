"""The file of contexts: brokers that the command line knows by name."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import click

from mqcore import errors

__all__ = ["MESSAGE_PROTOCOLS", "PROTOCOLS", "BrokerContext", "Contexts", "file_path", "load", "save", "schemes"]

MESSAGE_PROTOCOLS: Final = ("tmqp", "mqks", "mm2")
"""Protocols of the commands that publish, consume and manage."""

PROTOCOLS: Final = (*MESSAGE_PROTOCOLS, "throttr", "emqp")
"""Protocols that the command line speaks."""

_SCHEMA: Final = "mqcore.contexts/1"
_FORMS: Final = ("", "s", "+unix")
"""Ends of the schemes of a protocol: over TCP, over TLS, and over a Unix socket."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerContext:
    """A named broker. Raises `ConfigError` for a name that the command line could not spell."""

    name: str
    urls: tuple[str, ...] = ()
    """URLs of its listeners. A command uses the first one whose protocol it speaks."""
    admin: str | None = None
    """URL of its admin side."""
    token: str | None = field(default=None, repr=False)
    """Access token."""
    token_file: str | None = None
    """File whose first line is the access token."""
    protected: bool = False
    """Whether commands that lose messages ask even with ``--yes``."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise errors.ConfigError(
                f"invalid context name {self.name!r}; use up to 64 letters, digits, '.', '_' and '-', "
                "and begin with a letter or digit"
            )

    def url_of(self, *protocols: str) -> str | None:
        """Return the first URL of one of these protocols, such as ``tmqp``, with or without TLS."""
        known = schemes(*protocols)
        return next((url for url in self.urls if url.partition("://")[0] in known), None)

    def credential(self) -> str | None:
        """Return the token, read from its file if it is in one. Raises `ConfigError` if the file cannot be read."""
        if self.token_file is None:
            return self.token
        try:
            lines = Path(self.token_file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise errors.ConfigError(
                f"cannot read the token file {self.token_file} of context {self.name}: {reason}"
            ) from error
        if not lines or not lines[0].strip():
            raise errors.ConfigError(f"the token file {self.token_file} of context {self.name} is empty")
        return lines[0].strip()


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts, and the name of the current one."""

    by_name: Mapping[str, BrokerContext]
    current: str | None = None

    def get(self, name: str) -> BrokerContext:
        """Return a context. Raises `NotFound`, with the closest name, if there is none of this name."""
        found = self.by_name.get(name)
        if found is not None:
            return found
        close = difflib.get_close_matches(name, self.by_name, n=1)
        hint = f"did you mean '{close[0]}'?" if close else "add it with 'mqcore context add'"
        raise errors.NotFound(
            f"context '{name}' does not exist; {hint} (list contexts with 'mqcore context ls')", code=404, target=name
        )

    def with_context(self, context: BrokerContext) -> Contexts:
        """Return these contexts with one added or replaced."""
        return replace(self, by_name={**self.by_name, context.name: context})

    def without(self, name: str) -> Contexts:
        """Return these contexts without one. If it was the current one, there is none."""
        rest = {key: value for key, value in self.by_name.items() if key != name}
        return Contexts(rest, None if self.current == name else self.current)


def schemes(*protocols: str) -> frozenset[str]:
    """Return the schemes of the URLs of these protocols."""
    return frozenset(f"{protocol}{form}" for protocol in protocols for form in _FORMS)


def file_path() -> Path:
    """Return the path of the file, in the user's directory for configuration."""
    return Path(click.get_app_dir("mqcore")) / "contexts.json"


def load() -> Contexts:
    """Read the file; without one there are no contexts. Raises `ConfigError` if it cannot be read."""
    path = file_path()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Contexts({})
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error
    try:
        return _parsed(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> errors.ConfigError:
    reason = error.strerror if isinstance(error, OSError) else error
    return errors.ConfigError(
        f"cannot read the contexts in {path}: {reason}; correct or delete the file, or name the broker with --url"
    )


def _parsed(content: Any) -> Contexts:
    if content["schema"] != _SCHEMA:
        raise ValueError(f"its schema is {content['schema']!r}, and this version reads {_SCHEMA!r}")
    by_name = {
        name: BrokerContext(name=name, **{**members, "urls": tuple(members.get("urls", ()))})
        for name, members in content["contexts"].items()
    }
    current = content.get("current")
    return Contexts(by_name, current if current in by_name else None)


def save(contexts: Contexts) -> Path:
    """Write the file, which only this user can read, and return its path. Raises `OSError`.

    Other programs see either the old file or the new one, also after a crash.
    """
    # A user may keep the file elsewhere, behind a link, which stays one.
    path = Path(os.path.realpath(file_path()))
    path.parent.parent.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    # `mkstemp` creates the file with mode 0600.
    descriptor, temporary = tempfile.mkstemp(prefix=".contexts-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(_text(contexts))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return path


def _text(contexts: Contexts) -> str:
    members = ("urls", "admin", "token", "token_file", "protected")
    written = {
        name: {member: value for member in members if (value := getattr(context, member)) not in (None, False, ())}
        for name, context in sorted(contexts.by_name.items())
    }
    return json.dumps({"schema": _SCHEMA, "current": contexts.current, "contexts": written}, indent=2) + "\n"
