"""Where `mqcore user` and `mqcore token` make changes: in the file of a data directory, or through a running broker."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click
from click.core import ParameterSource

from mqcore.cli import options, output

if TYPE_CHECKING:
    from mqcore._core import AuthorityStore

__all__ = ["RESTRICTIONS", "CredentialStore", "place"]

_F = TypeVar("_F", bound=Callable[..., Any])

RESTRICTIONS = ("client_ids", "client_names", "client_types", "addresses")
"""Names of the restrictions of credentials."""


class CredentialStore(Protocol):
    """Users and tokens that a command lists and changes."""

    location: str
    """The file, or the URL of the broker."""

    def add_user(self, user: dict[str, Any], password: str | None) -> None:
        """Add a user."""

    def set_password(self, name: str, password: str) -> None:
        """Set the password of a user."""

    def remove_user(self, name: str) -> None:
        """Remove a user."""

    def users(self) -> list[dict[str, Any]]:
        """Return the users, without secrets."""

    def add_token(self, name: str, allow: list[str], expires: float | None, restrict: dict[str, Any]) -> dict[str, Any]:
        """Create a token, and return its ``id`` and its text as ``token``. `expires` is its lifetime in seconds."""

    def remove_token(self, token_id: str) -> None:
        """Revoke a token."""

    def tokens(self) -> list[dict[str, Any]]:
        """Return the tokens, without secrets."""


class _File:
    """The file of a data directory, or a file of its own."""

    def __init__(self, store: AuthorityStore) -> None:
        self._store = store
        self.location = str(store.path)

    def add_user(self, user: dict[str, Any], password: str | None) -> None:
        self._store.add_user(json.dumps(user), password)

    def set_password(self, name: str, password: str) -> None:
        self._store.set_password(name, password)

    def remove_user(self, name: str) -> None:
        self._store.remove_user(name)

    def users(self) -> list[dict[str, Any]]:
        return [_readable(user) for user in json.loads(self._store.show())["users"]]

    def add_token(self, name: str, allow: list[str], expires: float | None, restrict: dict[str, Any]) -> dict[str, Any]:
        until = None if expires is None else int((datetime.now(UTC).timestamp() + expires) * 1000)
        record = {"name": name, "allow": allow, "expires_ms": until, "restrict": restrict}
        token_id, text = self._store.add_token(json.dumps(record))
        return {"id": token_id, "token": text}

    def remove_token(self, token_id: str) -> None:
        self._store.remove_token(token_id)

    def tokens(self) -> list[dict[str, Any]]:
        return [_readable(token) for token in json.loads(self._store.show())["tokens"]]


class _Broker:
    """A running broker, which applies changes at once."""

    def __init__(self, url: str, token: str | None, timeout: float) -> None:
        from mqcore import admin

        self._admin = admin
        self.location = url
        self._access: dict[str, Any] = {"token": token, "timeout": timeout}

    def add_user(self, user: dict[str, Any], password: str | None) -> None:
        self._admin.add_user(
            self.location,
            user["name"],
            password=password,
            certificate=user["certificate"],
            allow=user["allow"],
            restrict=self._admin.CredentialRestrictions(**user["restrict"]),
            **self._access,
        )

    def set_password(self, name: str, password: str) -> None:
        self._admin.set_password(self.location, name, password, **self._access)

    def remove_user(self, name: str) -> None:
        self._admin.remove_user(self.location, name, **self._access)

    def users(self) -> list[dict[str, Any]]:
        found = [output.plain(user) for user in self._admin.users(self.location, **self._access)]
        return [_readable({**user, "password": user.pop("has_password")}) for user in found]

    def add_token(self, name: str, allow: list[str], expires: float | None, restrict: dict[str, Any]) -> dict[str, Any]:
        created = self._admin.create_token(
            self.location,
            name,
            allow=allow,
            expires=expires,
            restrict=self._admin.CredentialRestrictions(**restrict),
            **self._access,
        )
        return {"id": created.id, "token": created.token}

    def remove_token(self, token_id: str) -> None:
        self._admin.revoke_token(self.location, token_id, **self._access)

    def tokens(self) -> list[dict[str, Any]]:
        return [_readable(output.plain(token)) for token in self._admin.tokens(self.location, **self._access)]


def generated_token(
    name: str, allow: list[str], expires: float | None, restrict: dict[str, Any]
) -> tuple[dict[str, Any], str]:
    """Return a new token as members of a table ``[[token]]``, and its text. No broker knows it."""
    from mqcore._core import AuthorityStore

    with tempfile.TemporaryDirectory(prefix="mqcore-token-") as directory:
        store = AuthorityStore(Path(directory) / "authority.json")
        text = _File(store).add_token(name, allow, expires, restrict)["token"]
        (record,) = json.loads(store.show())["tokens"]
    table = {"id": record["id"], "name": name, "hash": hashlib.sha256(text.split("_", 2)[2].encode()).hexdigest()}
    table |= {"allow": allow} | {key: list(values) for key, values in restrict.items() if values}
    return table | ({} if record.get("expires_ms") is None else {"expires_ms": record["expires_ms"]}), text


def place(command: _F) -> _F:
    """Add the options that locate users and tokens, and pass the `CredentialStore` that they mean as `store`."""

    @functools.wraps(command)
    def chosen(
        *args: Any,
        data_dir: str | None,
        store_file: str | None,
        url: str,
        token: str | None,
        timeout: float,
        **given: Any,
    ) -> Any:
        file = _file(data_dir, store_file)
        return command(*args, store=_Broker(url, token, timeout) if file is None else file, **given)

    added: Any = options.admin_side(timeout="60s")(chosen)
    added = click.option(
        "--store",
        "store_file",
        metavar="FILE",
        envvar="MQCORE_AUTHORITY__STORE",
        help="Store of users and tokens, if it is not in the data directory. [env: MQCORE_AUTHORITY__STORE]",
    )(added)
    added = click.option(
        "--data-dir",
        metavar="DIR",
        envvar="MQCORE_DATA_DIR",
        help="Data directory of a broker on this machine, which need not run. Without it and --store, a running broker "
        "makes the change. [env: MQCORE_DATA_DIR]",
    )(added)
    placed: _F = added
    return placed


def _file(data_dir: str | None, file: str | None) -> CredentialStore | None:
    """The file that the command line means; `None`: a running broker."""
    source = click.get_current_context().get_parameter_source
    names_broker = source("url") is ParameterSource.COMMANDLINE
    if names_broker and ParameterSource.COMMANDLINE in (source("data_dir"), source("store_file")):
        raise click.UsageError("--url names a running broker, --data-dir and --store a file; give one of them")
    if names_broker or (file is None and data_dir is None):
        return None
    from mqcore._core import AuthorityStore

    if file is not None:
        return _File(AuthorityStore(file))
    assert data_dir is not None
    if os.path.isfile(data_dir):
        raise click.UsageError(f"--data-dir {data_dir} is a file; name the data directory of the broker")
    return _File(AuthorityStore.of_data_dir(data_dir))


def _readable(stored: dict[str, Any]) -> dict[str, Any]:
    """Flatten a record for a table."""
    restrict = stored.pop("restrict")
    expires = stored.pop("expires_ms", None)
    if expires is not None:
        stored["expires"] = datetime.fromtimestamp(expires / 1000, UTC).isoformat(timespec="seconds")
    return {**stored, **{name: list(restrict.get(name, [])) for name in RESTRICTIONS}}
