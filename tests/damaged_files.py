"""Data directories of killed brokers, and damage to their files."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import mqcore
import programs
from mqcore import QueueOptions, QueueStatus
from served import clean_environment, serving

ONE_SHARD = {"MQCORE_SHARDS": "1"}
SAVING = QueueOptions(status=QueueStatus.PULL, request_acknowledge=True, delivery_handler="at-least-once")
MESSAGES = 20
"""Number of confirmed messages of `segment_of_killed_broker`."""


def mq_journal(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `mqcore journal`."""
    command = [sys.executable, "-m", "mqcore", "journal", *map(str, arguments)]
    return programs.run(command, capture_output=True, text=True, timeout=60, check=False, env=clean_environment())


def verify(directory: Path) -> tuple[int, str]:
    """Exit code and text of `mqcore journal verify`."""
    done = mq_journal("verify", directory)
    return done.returncode, done.stdout + done.stderr


async def segment_of_killed_broker(directory: Path) -> Path:
    """Return the only segment of a killed broker. ``orders/1`` has confirmed messages, ``light/1`` saves nothing."""
    with serving("--data-dir", str(directory), environment=ONE_SHARD) as broker:
        async with mqcore.connect(broker.url) as mq:
            await mq.declare("orders", 1, SAVING)
            await mq.declare("light", 1, QueueOptions(status=QueueStatus.PULL))
            for number in range(MESSAGES):
                await mq.publish("orders/1", f"body {number}")
            broker.process.send_signal(signal.SIGKILL)
            broker.process.wait()
    return intact_segment(directory)


def intact_segment(directory: Path) -> Path:
    """The segment with the messages, in a directory without damage."""
    (found,) = (path for path in directory.glob("shard-0/*.segment") if b"body 0" in path.read_bytes())
    assert verify(directory)[0] == 0
    return found


def overwrite(path: Path, start: int, content: bytes) -> None:
    """Replace bytes of a file from `start` on."""
    with path.open("r+b") as file:
        file.seek(start)
        file.write(content)


def use_old_placement(directory: Path, shards: str) -> None:
    """Make a data directory that spreads names over shards as older versions did: the same in every run."""
    directory.mkdir(exist_ok=True)
    (directory / "format").write_text(f"mqcore data 1, shards {shards}\n")
