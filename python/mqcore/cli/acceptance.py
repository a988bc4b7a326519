"""`mqcore journal accept-loss`: accepts what the journals of a stopped broker have lost."""

from __future__ import annotations

from pathlib import Path

import click

from mqcore.cli import options, output
from mqcore.cli.reading import reading

__all__ = ["accept_loss"]


@click.command("accept-loss", short_help="Accept lost records, so that the shard takes messages again.")
@click.option(
    "--data-dir",
    metavar="DIR",
    envvar="MQCORE_DATA_DIR",
    type=click.Path(path_type=Path),
    required=True,
    help="Data directory of the stopped broker. [env: MQCORE_DATA_DIR]",
)
@click.option("--shard", type=click.IntRange(min=0), help="Number of the shard. [default: all journals]")
@options.as_json
def accept_loss(data_dir: Path, shard: int | None, as_json: bool) -> None:
    """Accept what the journals in DIR have lost. The broker must be stopped.

    A shard that has lost records takes no durable messages until its loss is accepted. Before, restore what is missing
    from a backup if there is one. The command deletes nothing, and prints what it accepted.
    """
    from mqcore import journal

    with reading("read", data_dir) as progress:
        accepted = journal.accept_loss(data_dir, shard=shard, progress=progress)
    content = {"accepted": [output.plain(loss) for loss in accepted]}
    lines = [f"{loss.journal}: {loss.text}" for loss in accepted]
    message = "\n".join(["accepted:", *lines]) if lines else "there is no loss to accept"
    output.done("mqcore.journal.accept-loss/1", message, content, as_json=as_json)
