"""`mqcore user` and `mqcore token`: who may talk to a broker, kept in a file that a running broker reads again."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mqcore.cli import options, output
from mqcore.cli.confirmation import confirm

if TYPE_CHECKING:
    from mqcore._core import AuthorityStore

__all__ = ["token", "user"]

_F = TypeVar("_F", bound=Callable[..., Any])

_RESTRICTIONS = ("client_ids", "client_names", "client_types", "addresses")


def _place(command: _F) -> _F:
    """Add where the store is."""
    command = click.option(
        "--store", metavar="FILE", envvar="MQCORE_AUTHORITY__STORE", help="The file, if it is elsewhere."
    )(command)
    return click.option(
        "--data-dir", metavar="DIR", envvar="MQCORE_DATA_DIR", help="The broker's data directory, which has the file."
    )(command)


def _rights(command: _F) -> _F:
    """Add what somebody may do, and under which circumstances."""
    for name, wanted in (
        ("--from", "Where the peer may come from, such as 10.0.0.0/8."),
        ("--client-type", "A pattern of client types that it may have."),
        ("--client-name", "A pattern of client names that it may take."),
        ("--client-id", "A pattern of client ids that it may take."),
    ):
        parameter = {"--from": "addresses"}.get(name, name.strip("-").replace("-", "_") + "s")
        command = click.option(name, parameter, multiple=True, help=f"{wanted} May be repeated.")(command)
    return click.option(
        "--allow",
        multiple=True,
        metavar="RULE",
        help="ACTIONS:PATTERN, such as 'push,pull:orders/*'; '*' is everything. May be repeated.",
    )(command)


def _store(data_dir: str | None, store: str | None) -> AuthorityStore:
    from mqcore._core import AuthorityStore

    if store is not None:
        return AuthorityStore(store)
    if data_dir is None:
        raise click.UsageError("say where users and tokens are kept: --data-dir DIR or --store FILE")
    return AuthorityStore.of_data_dir(data_dir)


def _password() -> str:
    """Ask twice on a terminal; else take one line of stdin. Never from the command line, which others can read."""
    if sys.stdin.isatty():
        password: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        return password
    line = sys.stdin.readline()
    if not line:
        raise click.UsageError("no password: write it to stdin, as one line")
    return line.rstrip("\r\n")


def _restrict(restrictions: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    return {name: restrictions[name] for name in _RESTRICTIONS}


def _readable(kept: dict[str, Any]) -> dict[str, Any]:
    """Flatten a record for a table."""
    restrict = kept.pop("restrict")
    expires = kept.pop("expires_ms", None)
    if expires is not None:
        kept["expires"] = datetime.fromtimestamp(expires / 1000, UTC).isoformat(timespec="seconds")
    return {**kept, **{name: restrict.get(name, []) for name in _RESTRICTIONS}}


@click.group(short_help="Who may log in with a password.")
def user() -> None:
    """Users of a broker. A running broker takes changes up by itself, within a second."""


@user.command("add")
@click.argument("name")
@_rights
@click.option("--certificate", help="A name in a client certificate that is as good as the password: 'cn:worker-1'.")
@click.option("--no-password", is_flag=True, help="Only the certificate counts.")
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
    """Add a user. The password is asked for, or read from stdin."""
    kept = _store(data_dir, store)
    record = {"name": name, "certificate": certificate, "allow": allow, "restrict": _restrict(restrictions)}
    kept.add_user(json.dumps(record), None if no_password else _password())
    said = f"added user {name}, who may: {', '.join(allow) or 'nothing (give it --allow)'}"
    output.done(
        "mqcore.user.add/1", said, {"name": name, "allow": list(allow), "store": str(kept.path)}, as_json=as_json
    )


@user.command("ls")
@_place
@options.as_json
def list_users(data_dir: str | None, store: str | None, as_json: bool) -> None:
    """List the users."""
    users = [_readable(kept) for kept in json.loads(_store(data_dir, store).show())["users"]]
    columns = ("name", "allow", "password", "certificate", *_RESTRICTIONS)
    output.rows("mqcore.user.ls/1", "users", users, columns, as_json=as_json)


@user.command("passwd")
@click.argument("name")
@_place
@options.as_json
def change_password(name: str, data_dir: str | None, store: str | None, as_json: bool) -> None:
    """Give a user another password, and end the connections that used the old one."""
    _store(data_dir, store).set_password(name, _password())
    output.done("mqcore.user.passwd/1", f"{name} has a new password", {"name": name}, as_json=as_json)


@user.command("rm")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_place
@options.as_json
def remove_user(name: str, yes: bool, data_dir: str | None, store: str | None, as_json: bool) -> None:
    """Remove a user, and end its connections."""
    kept = _store(data_dir, store)
    confirm(f"user {name} will not get in any more, and its connections end", name, yes=yes)
    kept.remove_user(name)
    output.done("mqcore.user.rm/1", f"removed user {name}", {"name": name}, as_json=as_json)


@user.command("hash")
def hash_password() -> None:
    """Print the hash of a password, for `password_hash` in a configuration."""
    from mqcore._core import hash_password

    click.echo(hash_password(_password()))


@click.group(short_help="What programs show to get in.")
def token() -> None:
    """Tokens of a broker. A running broker takes changes up by itself, within a second."""


@token.command("create")
@click.argument("name")
@_rights
@click.option("--expires", type=options.DURATION, metavar="DURATION", help="How long it lasts, such as 30d.")
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
    """Make a token and print it: this once, because only its hash is kept."""
    kept = _store(data_dir, store)
    until = None if expires is None else int((datetime.now(UTC).timestamp() + expires) * 1000)
    record = {"name": name, "allow": allow, "expires_ms": until, "restrict": _restrict(restrictions)}
    token_id, text = kept.add_token(json.dumps(record))
    if as_json:
        content = {"id": token_id, "name": name, "token": text, "allow": list(allow), "store": str(kept.path)}
        output.document("mqcore.token.create/1", content)
        return
    click.echo(text)
    may = ", ".join(allow) or "nothing (give it --allow)"
    output.talk(f"token {token_id} ({name}) may: {may}; keep it now, it is not shown again")


@token.command("ls")
@_place
@options.as_json
def list_tokens(data_dir: str | None, store: str | None, as_json: bool) -> None:
    """List the tokens, without their secrets."""
    tokens = [_readable(kept) for kept in json.loads(_store(data_dir, store).show())["tokens"]]
    columns = ("id", "name", "allow", "expires", *_RESTRICTIONS)
    output.rows("mqcore.token.ls/1", "tokens", tokens, columns, as_json=as_json)


@token.command("revoke")
@click.argument("token_id", metavar="ID")
@_place
@options.as_json
def revoke_token(token_id: str, data_dir: str | None, store: str | None, as_json: bool) -> None:
    """Make a token worthless, and end the connections that used it."""
    _store(data_dir, store).remove_token(token_id)
    output.done("mqcore.token.revoke/1", f"revoked token {token_id}", {"id": token_id}, as_json=as_json)
