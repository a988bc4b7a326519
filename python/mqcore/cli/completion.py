"""`mqcore completion`: prints the script with which a shell completes commands and options."""

from __future__ import annotations

import click

__all__ = ["completion"]


@click.command(short_help="Print a shell's completion script.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL. Load it at the start of the shell.

    \b
    bash: echo 'eval "$(mqcore completion bash)"' >> ~/.bashrc
    zsh:  echo 'eval "$(mqcore completion zsh)"' >> ~/.zshrc
    fish: mqcore completion fish > ~/.config/fish/completions/mqcore.fish
    """
    from click.shell_completion import get_completion_class

    root = click.get_current_context().find_root().command
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for {shell}")
    script = kind(root, {}, "mqcore", "_MQCORE_COMPLETE")
    click.echo(script.source())
