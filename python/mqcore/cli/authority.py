"""`mqcore user` and `mqcore token`: manage users and tokens, in a file or through a running broker."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from mqcore.cli import options, output
from mqcore.cli.confirmation import confirm
from mqcore.cli.credential_store import RESTRICTIONS, CredentialStore, generated_token, place
from mqcore.cli.group import CommandGroup

__all__ = ["token", "user"]

_F = TypeVar("_F", bound=Callable[..., Any])


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
    return {name: restrictions[name] for name in RESTRICTIONS}


@click.group(cls=CommandGroup)
def user() -> None:
    """Manage users, who log in with a password or a certificate.

    Changes go to the file of a data directory with --data-dir or --store, which a running broker reads again within a
    second; else through the admin side of a running broker, and need a token.
    """


@user.command("add")
@click.argument("name")
@_rights
@click.option("--certificate", help="Name in a client certificate accepted instead of the password: 'cn:worker-1'.")
@click.option("--no-password", is_flag=True, help="Accept the certificate only.")
@place
@options.as_json
def add_user(
    name: str,
    allow: tuple[str, ...],
    certificate: str | None,
    no_password: bool,
    store: CredentialStore,
    as_json: bool,
    **restrictions: tuple[str, ...],
) -> None:
    """Add the user NAME. Prompts for the password, or reads it from stdin."""
    record = {"name": name, "certificate": certificate, "allow": list(allow), "restrict": _restrict(restrictions)}
    store.add_user(record, None if no_password else _password())
    message = f"added user {name}; allowed: {', '.join(allow) or 'nothing (add rights with --allow)'}"
    output.done(
        "mqcore.user.add/1",
        message,
        {"name": name, "allow": list(allow), "store": store.location},
        as_json=as_json,
    )


@user.command("ls")
@place
@options.as_json
def list_users(store: CredentialStore, as_json: bool) -> None:
    """List the users."""
    users = store.users()
    columns = ("name", "allow", "password", "certificate", *RESTRICTIONS)
    output.rows("mqcore.user.ls/1", "users", users, columns, as_json=as_json)


@user.command("passwd")
@click.argument("name")
@place
@options.as_json
def change_password(name: str, store: CredentialStore, as_json: bool) -> None:
    """Change the password of the user NAME, and close the connections that used the old one."""
    store.set_password(name, _password())
    output.done("mqcore.user.passwd/1", f"changed the password of user {name}", {"name": name}, as_json=as_json)


@user.command("rm")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@place
@options.as_json
def remove_user(name: str, yes: bool, store: CredentialStore, as_json: bool) -> None:
    """Remove the user NAME, and close its connections."""
    confirm(f"removing user {name} revokes its access and closes its connections", name, yes=yes)
    store.remove_user(name)
    output.done("mqcore.user.rm/1", f"removed user {name}", {"name": name}, as_json=as_json)


@user.command("hash")
def hash_password() -> None:
    """Print the hash of a password, for the setting `password_hash`. Prompts for the password, or reads stdin."""
    from mqcore._core import hash_password

    click.echo(hash_password(_password()))


@click.group(cls=CommandGroup)
def token() -> None:
    """Manage access tokens, with which programs log in.

    Changes go to the file of a data directory with --data-dir or --store, which a running broker reads again within a
    second; else through the admin side of a running broker, and need a token.
    """


@token.command("create")
@click.argument("name")
@_rights
@click.option(
    "--expires", type=options.DURATION, metavar="DURATION", help="Lifetime, for example 30d. [default: unlimited]"
)
@place
@options.as_json
def create_token(
    name: str,
    allow: tuple[str, ...],
    expires: float | None,
    store: CredentialStore,
    as_json: bool,
    **restrictions: tuple[str, ...],
) -> None:
    """Create a token called NAME and print it. The broker stores only its hash, so it cannot be printed again."""
    created = store.add_token(name, list(allow), expires, _restrict(restrictions))
    token_id, text = created["id"], created["token"]
    if as_json:
        content = {"id": token_id, "name": name, "token": text, "allow": list(allow), "store": store.location}
        output.document("mqcore.token.create/1", content)
        return
    click.echo(text)
    allowed = ", ".join(allow) or "nothing (add rights with --allow)"
    output.talk(f"created token {token_id} ({name}); allowed: {allowed}; save it now, it is not shown again")


@token.command("generate")
@click.argument("name")
@_rights
@click.option(
    "--expires", type=options.DURATION, metavar="DURATION", help="Lifetime, for example 30d. [default: unlimited]"
)
@options.as_json
def generate_token(
    name: str, allow: tuple[str, ...], expires: float | None, as_json: bool, **restrictions: tuple[str, ...]
) -> None:
    """Print a new token called NAME, and its table for a configuration file. Saves nothing.

    The table goes to stdout, and the token to stderr: mqcore token generate deploy --allow '*' >> mqcore.toml
    """
    table, text = generated_token(name, list(allow), expires, _restrict(restrictions))
    if as_json:
        output.document("mqcore.token.generate/1", {"token": text, "table": table})
        return
    click.echo("\n[[token]]")
    for key, value in table.items():
        # Texts and lists of texts are the same in TOML and in JSON.
        click.echo(f"{key} = {json.dumps(value, ensure_ascii=False)}")
    output.talk(f"{text}\nsave this token now, it is not shown again; brokers accept it once the table is configured")


@token.command("ls")
@place
@options.as_json
def list_tokens(store: CredentialStore, as_json: bool) -> None:
    """List the tokens, without their secrets."""
    tokens = store.tokens()
    columns = ("id", "name", "allow", "expires", *RESTRICTIONS)
    output.rows("mqcore.token.ls/1", "tokens", tokens, columns, as_json=as_json)


@token.command("revoke")
@click.argument("token_id", metavar="ID")
@place
@options.as_json
def revoke_token(token_id: str, store: CredentialStore, as_json: bool) -> None:
    """Revoke the token ID, and close the connections that used it."""
    store.remove_token(token_id)
    output.done("mqcore.token.revoke/1", f"revoked token {token_id}", {"id": token_id}, as_json=as_json)
