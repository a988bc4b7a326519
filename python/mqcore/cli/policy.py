"""`mqcore policy`: lists, shows, sets and removes options of all queues that match a pattern."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from mqcore._option_table import QUEUE_OPTIONS
from mqcore.cli import options, output
from mqcore.cli.declared import declared
from mqcore.cli.exit_code import ExitCode
from mqcore.cli.group import CommandGroup

if TYPE_CHECKING:
    from mqcore.admin import Policy

__all__ = ["policy"]

_COLUMNS: Final = ("name", "pattern", "priority", "options")


@click.group(cls=CommandGroup)
def policy() -> None:
    """Manage policies: options of all queues that match a pattern, now and when they are created."""


@policy.command(short_help="List policies.")
@options.admin_side(timeout="15s")
@options.as_json
def ls(url: str, timeout: float, token: str | None, as_json: bool) -> None:
    """List policies in the order in which they apply. Later ones replace the options of earlier ones."""
    from mqcore import admin

    found = admin.policies(url, token=token, timeout=timeout)
    rows = [_shown(each) if not as_json else output.plain(each) for each in found]
    output.rows("mqcore.policy.ls/1", "policies", rows, _COLUMNS, as_json=as_json)


def _shown(each: Policy) -> dict[str, Any]:
    return {**output.plain(each), "options": ", ".join(f"{name} {value}" for name, value in each.options.items())}


@policy.command(short_help="Show one policy.")
@click.argument("name")
@options.admin_side(timeout="15s")
@options.as_json
def show(name: str, url: str, timeout: float, token: str | None, as_json: bool) -> None:
    """Show the policy NAME."""
    from mqcore import admin, errors

    found = next((each for each in admin.policies(url, token=token, timeout=timeout) if each.name == name), None)
    if found is None:
        raise errors.NotFound(f"policy {name} does not exist; list policies with 'mqcore policy ls'", 404, name)
    output.record("mqcore.policy.show/1", output.plain(found), as_json=as_json)


@policy.command("set", short_help="Set options of all queues that match a pattern.")
@click.argument("name")
@click.argument("pattern")
@click.option("--priority", type=int, default=0, show_default=True, help="Higher ones replace options of lower ones.")
@declared(QUEUE_OPTIONS)
@options.admin_side(timeout="60s")
@options.as_json
def set_(
    name: str, pattern: str, priority: int, url: str, timeout: float, token: str | None, as_json: bool, **given: Any
) -> int:
    """Set options of all queues that match PATTERN: a queue such as orders/1, or a beginning such as orders/* or *.

    Existing queues change at once; others get the options when they are created, whatever their creator asks for. A
    policy NAME that exists is replaced. Needs a token. Exit code 1 if a queue cannot have the options.
    """
    from mqcore import admin
    from mqcore.config import QueueOptions

    wanted = {option: value for option, value in given.items() if value is not None}
    if not wanted:
        raise click.UsageError("no option to set; add one, for example --message-limit 100000")
    result = admin.set_policy(
        url, name, pattern, QueueOptions(**wanted), priority=priority, token=token, timeout=timeout
    )
    content = {"policy": name, "pattern": pattern, **output.plain(result)}
    message = f"policy {name} is set; {result.changed:,} queues changed"
    output.done("mqcore.policy.set/1", message, content, as_json=as_json)
    for queue, why in result.rejected.items():
        output.talk(f"{queue} cannot have these options: {why}")
    if result.rejected_total > len(result.rejected):
        output.talk(f"{result.rejected_total - len(result.rejected):,} further queues cannot have them")
    return ExitCode.REFUSED if result.rejected else ExitCode.DONE


@policy.command(short_help="Remove a policy.")
@click.argument("name")
@options.admin_side(timeout="60s")
@options.as_json
def rm(name: str, url: str, timeout: float, token: str | None, as_json: bool) -> None:
    """Remove the policy NAME. Queues keep their options. Needs a token."""
    from mqcore import admin

    admin.remove_policy(url, name, token=token, timeout=timeout)
    output.done("mqcore.policy.rm/1", f"removed {name}", {"policy": name}, as_json=as_json)
