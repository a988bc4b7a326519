"""Confirmation before an action that loses messages or access."""

from __future__ import annotations

import sys

import click

__all__ = ["confirm", "confirm_loss"]


def confirm_loss(what: str, name: str, messages: int, *, yes: bool) -> None:
    """Warn that `what` loses `messages` messages; return only if the user types `name`, or with `yes`.

    Raises like `confirm`.
    """
    plural = "" if messages == 1 else "s"
    confirm(f"{what} loses {messages} message{plural}", name, yes=yes)


def confirm(warning: str, name: str, *, yes: bool) -> None:
    """Show `warning`; return only if the user types `name`, or with `yes`.

    Raises `click.UsageError` if stdin is not a terminal, and `click.Abort` if another name is typed.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{warning}; add --yes to confirm")
    typed = click.prompt(f"{warning}; type {name} to confirm", default="", show_default=False, err=True)
    if typed.strip() != name:
        raise click.Abort
