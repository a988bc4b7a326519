"""A power failure drops unsynced names of files and directories. Confirmed messages must not depend on them.

The system calls of a real broker are traced. Each name that it created is durable once its directory was synced
afterwards. The test copies the data without the other names, and starts a broker on the copy.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import mqcore
from mqcore import QueueOptions, QueueStatus, journal
from served import serving, wait_until

CALLS = "mkdir,mkdirat,open,openat,rename,renameat,renameat2,unlink,unlinkat,fsync,fdatasync"
QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
MESSAGES = 30


@pytest.fixture
def strace() -> str:
    """The program that traces system calls."""
    program = shutil.which("strace")
    if program is None:
        pytest.skip("strace is not installed")
    tried = subprocess.run([program, "-y", "-o", os.devnull, "true"], capture_output=True, check=False)
    if tried.returncode != 0:
        pytest.skip("strace may not trace here")
    return program


def finished_calls(trace: str) -> Iterator[str]:
    """System calls in the order in which they ended, those that a thread switch interrupted in one piece."""
    begun: dict[str, str] = {}
    for line in trace.splitlines():
        thread, _, call = line.partition(" ")
        call = call.strip()
        if call.endswith("<unfinished ...>"):
            begun[thread] = call.removesuffix("<unfinished ...>")
        elif call.startswith("<... "):
            yield begun.pop(thread, "") + call.partition("resumed>")[2]
        else:
            yield call


def unsynced_names(trace: str, base: Path) -> set[Path]:
    """Names below `base` that a power failure at the end of the trace may drop."""
    unsynced: set[Path] = set()
    existing: set[Path] = set()
    for call in finished_calls(trace):
        name = call.partition("(")[0]
        outcome = call.rpartition(" = ")[2]
        if outcome.startswith("-1"):
            continue
        paths = [Path(found) for found in QUOTED.findall(call)]
        if name in ("mkdir", "mkdirat"):
            unsynced.add(paths[0])
        elif name in ("open", "openat"):
            if "O_CREAT" in call and paths[0] not in existing:
                unsynced.add(paths[0])
                existing.add(paths[0])
        elif name.startswith("rename"):
            unsynced.discard(paths[0])
            existing.discard(paths[0])
            existing.add(paths[1])
            unsynced.add(paths[1])
        elif name.startswith("unlink"):
            unsynced.discard(paths[0])
            existing.discard(paths[0])
        elif name == "fsync":
            synced = re.search(r"fsync\(\d+<([^>]*)>", call)
            assert synced is not None, call
            directory = Path(synced[1])
            unsynced = {path for path in unsynced if path.parent != directory}
    return {path for path in unsynced if path.is_relative_to(base)}


async def test_confirmed_messages_survive_the_loss_of_every_unsynced_name(tmp_path: Path, strace: str) -> None:
    base = tmp_path / "mount"
    base.mkdir()
    # Two directories are new: both names must be durable.
    directory = base / "new" / "data"
    trace = tmp_path / "trace"
    under = (strace, "-D", "-f", "-y", "-s", "4096", "-o", str(trace), "-e", f"trace={CALLS}")
    names = [f"{letter * 3}-queue" for letter in "abcdefgh"]
    saving = QueueOptions(status=QueueStatus.PULL, delivery_handler="at-least-once")
    with serving("--data-dir", str(directory), environment={"MQCORE_SHARDS": "4"}, under=under) as broker:
        async with mqcore.connect(broker.url) as mq:
            for name in names:
                await mq.declare(name, 1, saving)
                for number in range(MESSAGES):
                    await mq.publish(f"{name}/1", f"{number} ".ljust(20_000))
        broker.process.kill()
        broker.process.wait()
    wait_until(lambda: "killed by SIGKILL" in trace.read_text(), what="the end of the trace")
    dropped = unsynced_names(trace.read_text(), base)
    left = tmp_path / "left"
    shutil.copytree(base, left)
    for path in sorted(dropped, reverse=True):
        copy = left / path.relative_to(base)
        if copy.is_dir():
            shutil.rmtree(copy)
        else:
            copy.unlink(missing_ok=True)
    assert (left / "new" / "data").is_dir(), dropped
    assert not journal.verify(left / "new" / "data").is_damaged, dropped
    with serving("--data-dir", str(left / "new" / "data")) as broker:
        async with mqcore.connect(broker.url) as mq:
            for name in names:
                assert (await mq.queue(name, 1).information()).messages == MESSAGES, (name, dropped)
