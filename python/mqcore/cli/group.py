"""Command groups of the program."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from mqcore.cli.exit_code import ExitCode

__all__ = ["CommandGroup"]


class CommandGroup(click.Group):
    """A command group that suggests the closest command for an unknown name."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; exit without an error if the reader of stdout closes the pipe, as `head` does."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Buffered output would raise BrokenPipeError again when the interpreter flushes it at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return ExitCode.DONE

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that `args[0]` names. Raises `click.UsageError` for an unknown name."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            import difflib

            close = difflib.get_close_matches(name, self.list_commands(ctx), n=1)
            meant = f"; did you mean '{ctx.command_path} {close[0]}'?" if close else ""
            raise click.UsageError(f"unknown command '{ctx.command_path} {name}'{meant}", ctx)
        return super().resolve_command(ctx, args)
