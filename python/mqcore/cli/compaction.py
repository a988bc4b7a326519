"""`mqcore journal compact`: a stopped broker's files, made as small as what lives in them."""

from __future__ import annotations

from pathlib import Path

import click

from mqcore.cli import options, output
from mqcore.cli.exit_code import ExitCode

__all__ = ["compact"]


@click.command(short_help="Rewrite segments that hold what nobody needs.")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--drop-quarantined", is_flag=True, help="Remove damaged segments that stand aside.")
@options.as_json
def compact(directory: Path, drop_quarantined: bool, as_json: bool) -> int:
    """Rewrite the segments in DIR, a stopped broker's, that hold settled messages, and say what that gave back.

    It may be interrupted at any moment. With damage in DIR everything readable is kept, and the code is 6.
    """
    from mqcore import journal

    with output.growing("compact", octets=True) as show:
        # Shards follow one another, and each tells only its own part.
        done = journal.compact(
            directory, drop_quarantined=drop_quarantined, progress=lambda _shard, done, total: show(done, total)
        )
    aside = [f"shard-{shard.shard}/{name}" for shard in done.shards for name in shard.quarantined]
    dropped = sum(shard.dropped_bytes for shard in done.shards)
    content = {
        "bytes_before": done.bytes_before,
        "bytes_after": done.bytes_after,
        "dropped_bytes": dropped,
        "quarantined": aside,
        "damaged": done.is_damaged,
        "shards": [output.plain(shard) for shard in done.shards],
    }
    said = f"{done.bytes_before} bytes before, {done.bytes_after} after"
    output.done("mqcore.journal.compact/1", f"{said}, {dropped} dropped" if dropped else said, content, as_json=as_json)
    for shard in done.shards:
        if shard.damage:
            output.talk(f"shard {shard.shard}: {shard.damage}")
        if shard.lost:
            output.talk(f"shard {shard.shard}: {shard.lost} messages could not be read any more and are lost")
    if aside:
        output.talk(f"damaged segments stand aside: {', '.join(aside)}; --drop-quarantined removes them")
    return ExitCode.DAMAGED if done.is_damaged else ExitCode.DONE
