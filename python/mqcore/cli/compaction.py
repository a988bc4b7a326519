"""`mqcore journal compact`: reclaims the space of settled messages in a stopped broker's files."""

from __future__ import annotations

from pathlib import Path

import click

from mqcore.cli import options, output
from mqcore.cli.exit_code import ExitCode

__all__ = ["compact"]


@click.command(short_help="Reclaim the space of settled messages.")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--drop-quarantined", is_flag=True, help="Delete quarantined (damaged) segments.")
@options.as_json
def compact(directory: Path, drop_quarantined: bool, as_json: bool) -> int:
    """Rewrite the segments of the data directory DIR that contain settled messages. The broker must be stopped.

    The command can be interrupted at any time. If DIR is damaged, it keeps everything readable and exits with code 6.
    """
    from mqcore import journal

    with output.growing("compact", in_bytes=True) as show:
        # Shards are compacted one after the other; each reports its own progress.
        done = journal.compact(
            directory, drop_quarantined=drop_quarantined, progress=lambda _shard, done, total: show(done, total)
        )
    quarantined = [f"shard-{shard.shard}/{name}" for shard in done.shards for name in shard.quarantined]
    dropped = sum(shard.dropped_bytes for shard in done.shards)
    content = {
        "bytes_before": done.bytes_before,
        "bytes_after": done.bytes_after,
        "dropped_bytes": dropped,
        "quarantined": quarantined,
        "damaged": done.is_damaged,
        "shards": [output.plain(shard) for shard in done.shards],
    }
    message = f"{done.bytes_before} bytes before, {done.bytes_after} after"
    if dropped:
        message += f", {dropped} dropped"
    output.done("mqcore.journal.compact/1", message, content, as_json=as_json)
    for shard in done.shards:
        if shard.damage:
            output.talk(f"shard {shard.shard}: {shard.damage}")
        if shard.lost:
            output.talk(f"shard {shard.shard}: {shard.lost} messages are unreadable and lost")
    if quarantined:
        output.talk(f"quarantined damaged segments: {', '.join(quarantined)}; delete them with --drop-quarantined")
    return ExitCode.DAMAGED if done.is_damaged else ExitCode.DONE
