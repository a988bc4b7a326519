"""`mqcore context`: manages brokers that the command line knows by name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from mqcore import errors
from mqcore.cli import options, output, target
from mqcore.cli.group import CommandGroup

if TYPE_CHECKING:
    from mqcore.cli.context_store import BrokerContext

__all__ = ["context", "matching_names"]

_COLUMNS: Final = ("current", "name", "urls", "admin", "token", "protected")


def matching_names(incomplete: str) -> list[str]:
    """Return the names of contexts that begin with `incomplete`; none if the file cannot be read."""
    from mqcore.cli import context_store

    try:
        names = sorted(context_store.load().by_name)
    except errors.ConfigError:
        return []
    return [name for name in names if name.startswith(incomplete)]


def _complete(_ctx: click.Context, _argument: click.Parameter, incomplete: str) -> list[str]:
    return matching_names(incomplete)


@click.group(cls=CommandGroup)
def context() -> None:
    """Manage contexts: brokers with a name, their URLs and tokens, for --context, MQCORE_CONTEXT and 'context use'.

    They are in a file in your directory for configuration, which only you can read.
    """


@context.command(short_help="List contexts.")
@options.as_json
def ls(as_json: bool) -> None:
    """List the contexts without their tokens. 'current' marks the one of 'mqcore context use'."""
    from mqcore.cli import context_store

    contexts = context_store.load()
    rows = [{"current": name == contexts.current, **_row(found)} for name, found in sorted(contexts.by_name.items())]
    output.rows("mqcore.context.ls/1", "contexts", rows, _COLUMNS, as_json=as_json)


@context.command(short_help="Add or replace a context.")
@click.argument("name")
@click.option(
    "--url",
    "urls",
    multiple=True,
    metavar="URL",
    help="URL of a listener of the broker, for example tmqps://broker.example:2622. Repeatable, for other protocols.",
)
@click.option("--admin", metavar="URL", help="URL of its admin side, for example https://broker.example:2627.")
@click.option("--token", metavar="TOKEN", help="Token to store. --token-stdin keeps it out of the list of processes.")
@click.option("--token-file", metavar="FILE", type=click.Path(dir_okay=False), help="File that contains the token.")
@click.option("--token-stdin", is_flag=True, help="Store a token: prompt for it, or read it from stdin.")
@click.option("--protected", is_flag=True, help="Ask before messages are lost, even with --yes.")
@click.option("--use", "make_current", is_flag=True, help="Make it the current context.")
@click.option("--force", is_flag=True, help="Replace a context of this name.")
@options.as_json
def add(
    name: str,
    urls: tuple[str, ...],
    admin: str | None,
    token: str | None,
    token_file: str | None,
    token_stdin: bool,
    protected: bool,
    make_current: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Add the context NAME with the URLs of its broker, of its admin side, or both. The command connects to neither."""
    from mqcore.cli import context_store

    tokens = [token is not None, token_file is not None, token_stdin]
    if sum(tokens) > 1:
        raise click.UsageError("give only one of --token, --token-file and --token-stdin")
    _check(urls, admin, has_token=any(tokens))
    contexts = context_store.load()
    if name in contexts.by_name and not force:
        raise click.UsageError(f"context {name} exists; add --force to replace it")
    made = context_store.BrokerContext(
        name=name,
        urls=urls,
        admin=admin,
        token=_token() if token_stdin else token,
        # Later commands may run in another directory.
        token_file=None if token_file is None else str(Path(token_file).absolute()),
        protected=protected,
    )
    made.credential()
    changed = contexts.with_context(made)
    if make_current:
        changed = context_store.Contexts(changed.by_name, name)
    path = context_store.save(changed)
    message = f"added context {name}" + (", which is now the current one" if make_current else "")
    content = {"current": changed.current == name, **_row(made), "file": str(path)}
    output.done("mqcore.context.add/1", message, content, as_json=as_json)


@context.command(short_help="Choose the current context.")
@click.argument("name", required=False, shell_complete=_complete)
@click.option("--none", "is_none", is_flag=True, help="Choose none: commands use the default URLs again.")
@options.as_json
def use(name: str | None, is_none: bool, as_json: bool) -> None:
    """Make NAME the current context, which later commands use if neither options nor variables name a broker."""
    from mqcore.cli import context_store

    if (name is None) != is_none:
        raise click.UsageError("give either a NAME or --none")
    contexts = context_store.load()
    if name is not None:
        contexts.get(name)
    context_store.save(context_store.Contexts(contexts.by_name, name))
    message = "no context is current" if name is None else f"context {name} is current"
    output.done("mqcore.context.use/1", message, {"current": name, "previous": contexts.current}, as_json=as_json)


@context.command(short_help="Remove a context.")
@click.argument("name", shell_complete=_complete)
@options.as_json
def rm(name: str, as_json: bool) -> None:
    """Remove the context NAME and its stored token. The broker and a token file do not change."""
    from mqcore.cli import context_store

    contexts = context_store.load()
    contexts.get(name)
    context_store.save(contexts.without(name))
    was_current = contexts.current == name
    message = f"removed context {name}" + ("; no context is current now" if was_current else "")
    output.done("mqcore.context.rm/1", message, {"name": name, "was_current": was_current}, as_json=as_json)


@context.command(short_help="Show a context.")
@click.argument("name", required=False, shell_complete=_complete)
@options.as_json
def show(name: str | None, as_json: bool) -> None:
    """Show the context NAME without its token, or the one that other commands would use, and what chose it."""
    from mqcore.cli import context_store

    contexts = context_store.load()
    chosen = target.selection() if name is None else None
    wanted = name if chosen is None else chosen.name
    if wanted is None:
        raise errors.NotFound(
            "no context is chosen; choose one with 'mqcore context use NAME', --context or MQCORE_CONTEXT",
            code=404,
            target="",
        )
    found = contexts.get(wanted)
    about: dict[str, Any] = {**_row(found), "current": wanted == contexts.current}
    if chosen is not None:
        about["chosen_by"] = chosen.by
    output.record("mqcore.context.show/1", {**about, "file": str(context_store.file_path())}, as_json=as_json)


def _row(found: BrokerContext) -> dict[str, Any]:
    """Describe a context without secrets."""
    stored = "stored" if found.token is not None else None
    return {
        "name": found.name,
        "urls": [target.shown(url) for url in found.urls],
        "admin": None if found.admin is None else target.shown(found.admin),
        "token": stored if found.token_file is None else f"file {found.token_file}",
        "protected": found.protected,
    }


def _check(urls: tuple[str, ...], admin: str | None, *, has_token: bool) -> None:
    """Raise an error for URLs that no command could use."""
    from mqcore import credentials
    from mqcore._http import AdminClient
    from mqcore.cli.context_store import PROTOCOLS, schemes

    if not urls and admin is None:
        raise click.UsageError("give the broker's --url, its --admin URL, or both")
    for url in urls:
        scheme, separator, place = url.partition("://")
        if not separator or scheme not in schemes(*PROTOCOLS) or not place:
            raise click.UsageError(f"--url {url} is not the URL of a broker; use for example tmqp://HOST:2622")
        if has_token and credentials.split(url)[1] is not None:
            raise click.UsageError("--url contains credentials already; remove them, or give no token")
    if admin is not None:
        AdminClient(admin, token="" if has_token else None)


def _token() -> str:
    """Prompt on a terminal, else read one line of stdin. The command line would show the token to others."""
    if sys.stdin.isatty():
        token: str = click.prompt("Token", hide_input=True, err=True)
        return token
    line = sys.stdin.readline().strip()
    if not line:
        raise click.UsageError("no token on stdin; write it there as one line")
    return line
