"""Confirmation before an action that loses messages or access."""

from __future__ import annotations

import sys

import click

from mqcore.cli import target

__all__ = ["confirm", "confirm_loss"]


def confirm_loss(what: str, name: str, messages: int, *, yes: bool) -> None:
    """Warn that `what` loses `messages` messages; return only if the user types `name`, or with `yes`.

    In a protected context only the typed name counts. Raises like `confirm`.
    """
    plural = "" if messages == 1 else "s"
    warning = f"{what} loses {messages} message{plural}"
    context = target.used_context()
    if context is None:
        confirm(warning, name, yes=yes)
    elif not context.protected:
        confirm(f"context {context.name}: {warning}", name, yes=yes)
    elif yes and not sys.stdin.isatty():
        raise click.UsageError(
            f"{warning}; context {context.name} is protected, so --yes does not confirm it: run the command on a "
            "terminal"
        )
    else:
        confirm(f"context {context.name} is protected: {warning}", name, yes=False)


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
