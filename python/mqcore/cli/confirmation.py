"""The question before something is lost."""

from __future__ import annotations

import sys

import click

__all__ = ["confirm", "confirm_loss"]


def confirm_loss(what: str, name: str, messages: int, *, yes: bool) -> None:
    """Say how many messages will be lost by doing `what`, and go on only if `name` is typed, or `yes` was given."""
    plural = "" if messages == 1 else "s"
    confirm(f"{what} loses {messages} message{plural}", name, yes=yes)


def confirm(warning: str, name: str, *, yes: bool) -> None:
    """Say what will happen, and go on only if `name` is typed, or `yes` was given."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{warning}; add --yes if that is meant")
    typed = click.prompt(f"{warning}; type {name} to go on", default="", show_default=False, err=True)
    if typed.strip() != name:
        raise click.Abort
