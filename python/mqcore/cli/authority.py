"""`mqcore user` and `mqcore token`: manage the store of users and tokens, which a running broker reloads on change."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mqcore.cli import options, output
from mqcore.cli.confirmation import confirm
from mqcore.cli.group import CommandGroup

if TYPE_CHECKING:
    from mqcore._core import AuthorityStore

__all__ = ["token", "user"]

_F = TypeVar("_F", bound=Callable[..., Any])

_RESTRICTIONS = ("client_ids", "client_names", "client_types", "addresses")


def _place(command: _F) -> _F:
    """Add the options that locate the store."""
    command = click.option(
        "--store",
        metavar="FILE",
        envvar="MQCORE_AUTHORITY__STORE",
        help="Store of users and tokens, if it is not in the data directory. [env: MQCORE_AUTHORITY__STORE]",
    )(command)
    return click.option(
        "--data-dir",
        metavar="DIR",
        envvar="MQCORE_DATA_DIR",
        help="Data directory of the broker. [env: MQCORE_DATA_DIR]",
    )(command)


def _rights(command: _F) -> _F:
    """Add the options for rights and restrictions."""
    for name, wanted in (
        ("--from", "Allowed network of the client, for example 10.0.0.0/8."),
        ("--client-type", "Allowed pattern of client types."),
        ("--client-name", "Allowed pattern of client names."),
        ("--client-id", "Allowed pattern of client ids."),
    ):
        parameter = {"--from": "addresses"}.get(name, name.strip("-").replace("-", "_") + "s")
        command = click.option(name, parameter, multiple=True, help=f"{wanted} Repeatable.")(command)
    return click.option(
        "--allow",
        multiple=True,
        metavar="RULE",
        help="Allowed actions on matching names, as ACTIONS:PATTERN, for example 'push,pull:orders/*'; "
        "'*' allows everything. Repeatable.",
    )(command)


def _store(data_dir: str | None, store: str | None) -> AuthorityStore:
    from mqcore._core import AuthorityStore

    if store is not None:
        return AuthorityStore(store)
    if data_dir is None:
        raise click.UsageError("no store of users and tokens given; add --data-dir DIR or --store FILE")
    if os.path.isfile(data_dir):
        raise click.UsageError(f"--data-dir {data_dir} is a file; name the data directory of the broker")
    return AuthorityStore.of_data_dir(data_dir)


def _password() -> str:
    """Prompt twice on a terminal, else read one line of stdin. The command line would show the password to others."""
    if sys.stdin.isatty():
        password: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        return password
    line = sys.stdin.readline()
    if not line:
        raise click.UsageError("no password on stdin; write it there as one line")
    return line.rstrip("\r\n")


def _restrict(restrictions: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    return {name: restrictions[name] for name in _RESTRICTIONS}


def _readable(stored: dict[str, Any]) -> dict[str, Any]:
    """Flatten a record for a table."""
    restrict = stored.pop("restrict")
    expires = stored.pop("expires_ms", None)
    if expires is not None:
        stored["expires"] = datetime.fromtimestamp(expires / 1000, UTC).isoformat(timespec="seconds")
    return {**stored, **{name: restrict.get(name, []) for name in _RESTRICTIONS}}


@click.group(cls=CommandGroup)
def user() -> None:
    """Manage users, who log in with a password or a certificate.

    A running broker applies changes within a second.
    """


@user.command("add")
@click.argument("name")
@_rights
@click.option("--certificate", help="Name in a client certificate accepted instead of the password: 'cn:worker-1'.")
@click.option("--no-password", is_flag=True, help="Accept the certificate only.")
@_place
@options.as_json
def add_user(
    name: str,
    allow: tuple[str, ...],
    certificate: str | None,
    no_password: bool,
    data_dir: str | None,
    store: str | None,
    as_json: bool,
    **restrictions: tuple[str, ...],
) -> None:
    """Add the user NAME. Prompts for the password, or reads it from stdin."""
    authority = _store(data_dir, store)
    record = {"name": name, "certificate": certificate, "allow": allow, "restrict": _restrict(restrictions)}
    authority.add_user(json.dumps(record), None if no_password else _password())
    message = f"added user {name}; allowed: {', '.join(allow) or 'nothing (add rights with --allow)'}"
    output.done(
        "mqcore.user.add/1",
        message,
        {"name": name, "allow": list(allow), "store": str(authority.path)},
        as_json=as_json,
    )


@user.command("ls")
@_place
@options.as_json
def list_users(data_dir: str | None, store: str | None, as_json: bool) -> None:
    """List the users."""
    users = [_readable(stored) for stored in json.loads(_store(data_dir, store).show())["users"]]
    columns = ("name", "allow", "password", "certificate", *_RESTRICTIONS)
    output.rows("mqcore.user.ls/1", "users", users, columns, as_json=as_json)


@user.command("passwd")
@click.argument("name")
@_place
@options.as_json
def change_password(name: str, data_dir: str | None, store: str | None, as_json: bool) -> None:
    """Change the password of the user NAME, and close the connections that used the old one."""
    _store(data_dir, store).set_password(name, _password())
    output.done("mqcore.user.passwd/1", f"changed the password of user {name}", {"name": name}, as_json=as_json)


@user.command("rm")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@_place
@options.as_json
def remove_user(name: str, yes: bool, data_dir: str | None, store: str | None, as_json: bool) -> None:
    """Remove the user NAME, and close its connections."""
    authority = _store(data_dir, store)
    confirm(f"removing user {name} revokes its access and closes its connections", name, yes=yes)
    authority.remove_user(name)
    output.done("mqcore.user.rm/1", f"removed user {name}", {"name": name}, as_json=as_json)


@user.command("hash")
def hash_password() -> None:
    """Print the hash of a password, for the setting `password_hash`. Prompts for the password, or reads stdin."""
    from mqcore._core import hash_password

    click.echo(hash_password(_password()))


@click.group(cls=CommandGroup)
def token() -> None:
    """Manage access tokens, with which programs log in.

    A running broker applies changes within a second.
    """


@token.command("create")
@click.argument("name")
@_rights
@click.option(
    "--expires", type=options.DURATION, metavar="DURATION", help="Lifetime, for example 30d. [default: unlimited]"
)
@_place
@options.as_json
def create_token(
    name: str,
    allow: tuple[str, ...],
    expires: float | None,
    data_dir: str | None,
    store: str | None,
    as_json: bool,
    **restrictions: tuple[str, ...],
) -> None:
    """Create a token called NAME and print it. The broker stores only its hash, so it cannot be printed again."""
    authority = _store(data_dir, store)
    until = None if expires is None else int((datetime.now(UTC).timestamp() + expires) * 1000)
    record = {"name": name, "allow": allow, "expires_ms": until, "restrict": _restrict(restrictions)}
    token_id, text = authority.add_token(json.dumps(record))
    if as_json:
        content = {"id": token_id, "name": name, "token": text, "allow": list(allow), "store": str(authority.path)}
        output.document("mqcore.token.create/1", content)
        return
    click.echo(text)
    allowed = ", ".join(allow) or "nothing (add rights with --allow)"
    output.talk(f"created token {token_id} ({name}); allowed: {allowed}; save it now, it is not shown again")


@token.command("ls")
@_place
@options.as_json
def list_tokens(data_dir: str | None, store: str | None, as_json: bool) -> None:
    """List the tokens, without their secrets."""
    tokens = [_readable(stored) for stored in json.loads(_store(data_dir, store).show())["tokens"]]
    columns = ("id", "name", "allow", "expires", *_RESTRICTIONS)
    output.rows("mqcore.token.ls/1", "tokens", tokens, columns, as_json=as_json)


@token.command("revoke")
@click.argument("token_id", metavar="ID")
@_place
@options.as_json
def revoke_token(token_id: str, data_dir: str | None, store: str | None, as_json: bool) -> None:
    """Revoke the token ID, and close the connections that used it."""
    _store(data_dir, store).remove_token(token_id)
    output.done("mqcore.token.revoke/1", f"revoked token {token_id}", {"id": token_id}, as_json=as_json)
