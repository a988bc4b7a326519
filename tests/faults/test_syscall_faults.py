"""System calls of the real broker fail in every phase: nothing confirmed is lost, and no settled message is back."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

import mqcore
from damaged_files import ONE_SHARD, SAVING, mq_journal, verify
from depth import FULL, rounds
from faults.phases import ADMIN, PHASES, QUEUE, Ledger, World, check, copied, made, name_of
from faults.shim import Faults
from mqcore import errors, journal
from served import serving
from test_losses import alarms

ERRORS = {
    "open": ("EIO", "EMFILE", "EINTR"),
    "create": ("EIO", "ENOSPC", "EMFILE", "EINTR"),
    "read": ("EIO", "EINTR", "short"),
    "pread": ("EIO", "EINTR", "short"),
    "write": ("EIO", "ENOSPC", "EINTR", "short"),
    "pwrite": ("EIO", "ENOSPC", "EINTR", "short"),
    "fdatasync": ("EIO", "ENOSPC", "EINTR"),
    "fsync": ("EIO", "ENOSPC", "EINTR"),
    "fsync directory": ("EIO", "EINTR"),
    "ftruncate": ("EIO", "ENOSPC", "EINTR"),
    "fallocate": ("EIO", "ENOSPC", "EINTR"),
    "unlink": ("EIO", "EINTR"),
    "rename": ("EIO", "ENOSPC", "EINTR"),
    "opendir": ("EIO", "EMFILE"),
    "mkdir": ("EIO", "ENOSPC"),
}
"""The errors that each call can have."""

_PASSING = ("ENOSPC", "EMFILE", "EINTR", "short")
"""Errors after which a broker continues. After an error of a sync it does not, whatever the error is: the state of the
disk is unknown.
"""


@dataclass(frozen=True)
class Cell:
    """A call that fails in a phase."""

    phase: str
    call: str
    error: str
    skip: int
    """Number of calls before the first that fails."""
    count: int
    """Number of calls that fail."""

    def __str__(self) -> str:
        lasting = "" if self.count == 1 else "-lasting"
        return f"{self.phase}-{self.call}-{self.error}-{self.skip}{lasting}"

    @property
    def passes(self) -> bool:
        """Whether the broker takes messages again when the error is over."""
        is_sync = self.call in ("fdatasync", "fsync", "fsync directory")
        return self.error in _PASSING and not (is_sync and self.error == "ENOSPC")


_START = {
    "open": 16, "create": 5, "read": 8, "pread": 5, "write": 1, "pwrite": 5, "fdatasync": 5, "fsync directory": 4,
    "ftruncate": 1, "fallocate": 2, "unlink": 1, "rename": 1, "opendir": 3,
}  # fmt: skip
MADE: dict[str, dict[str, int]] = {
    "start": _START,
    "start of a large directory": _START,
    # The start made the next segment in advance.
    "run": {"pread": 1, "pwrite": 6, "fdatasync": 6},
    "roll": {"create": 2, "pwrite": 6, "fdatasync": 6, "fsync directory": 2, "fallocate": 2, "rename": 1},
    "housekeeping": {"create": 1, "pread": 4, "pwrite": 8, "fdatasync": 8, "fsync directory": 1, "fallocate": 1},
    "compact": {
        "open": 20, "create": 5, "read": 4, "pread": 10, "pwrite": 8, "fdatasync": 8, "fsync directory": 6,
        "ftruncate": 2, "fallocate": 3, "unlink": 3, "rename": 1, "opendir": 3,
    },
    "backup": {"open": 3, "read": 3, "pwrite": 1, "fdatasync": 1},
    "archive": {
        "open": 4, "create": 3, "write": 2, "pwrite": 6, "fdatasync": 6, "fsync directory": 8, "fallocate": 1,
        "rename": 2, "mkdir": 4,
    },
    "stop": {"pwrite": 1, "fdatasync": 1},
}  # fmt: skip
"""Number of calls that each phase makes at least."""


def cells() -> list[Cell]:
    """Every error of every call that a phase makes: at its first call, in the middle, and from then on."""
    found = []
    for phase, calls in MADE.items():
        for call, number in calls.items():
            for error in ERRORS[call]:
                # A signal does not interrupt every attempt.
                lasting = 3 if error == "EINTR" else 1 << 30
                for skip in sorted({0, number // 2, number - 1}):
                    found += [Cell(phase, call, error, skip, 1), Cell(phase, call, error, skip, lasting)]
    return found


def sampled() -> list[Cell]:
    """One cell of each phase: always the same, so that a run of `make test` fails for what was changed."""
    groups: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells():
        groups[cell.phase].append(cell)
    chance = random.Random(1)
    return [cell for group in groups.values() for cell in chance.sample(group, rounds("FAULTS", quick=1, full=1))]


Templates = dict[str, tuple[Path, Ledger]]


@pytest.fixture(scope="module")
def templates() -> Templates:
    """Data directories of killed brokers, made when they are first needed."""
    return {}


async def world(kind: str, templates: Templates, factory: pytest.TempPathFactory, place: Path) -> World:
    if kind not in templates:
        directory = factory.mktemp(kind) / "data"
        templates[kind] = directory, await made(directory, kind)
    return copied(*templates[kind], place)


@pytest.mark.parametrize("cell", cells() if FULL else sampled(), ids=str)
async def test_an_error_of_a_call_loses_nothing_and_hangs_nothing(
    cell: Cell, templates: Templates, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kind, phase = PHASES[cell.phase]
    here = await world(kind, templates, tmp_path_factory, tmp_path)

    def arm() -> None:
        here.faults.arm(cell.call, cell.error, skip=cell.skip, count=cell.count)

    await phase(here, arm, cell.passes)
    if cell.call == "fallocate" and not here.faults.can_fail_fallocate:
        pytest.skip("this system does not let a program filter its own calls of fallocate")
    await check(here)
    if not here.faults.struck:
        # How many calls a phase makes depends on what the broker did before, for example on a segment made in advance.
        pytest.skip(f"no call failed; the phase made {here.faults.seen}")


@pytest.mark.full("the cells of the matrix fail if a phase makes fewer calls")
@pytest.mark.parametrize("name", PHASES)
async def test_each_phase_makes_the_calls_of_its_cells(
    name: str, templates: Templates, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kind, phase = PHASES[name]
    # The broker does some of this in the background, on a busy machine before counting begins.
    for attempt in range(5):
        place = tmp_path / str(attempt)
        place.mkdir()
        here = await world(kind, templates, tmp_path_factory, place)
        await phase(here, here.faults.count, True)
        seen = here.faults.seen
        print(name, seen)
        await check(here)
        if all(seen.get(call, 0) >= number for call, number in MADE[name].items()):
            return
    pytest.fail(f"too few calls: {seen}")


async def test_a_segment_that_the_disk_refuses_to_read_stops_writes_until_the_disk_reads_it(tmp_path: Path) -> None:
    """The only segment, so that no other file knows where it ends."""
    directory = tmp_path / "data"
    ledger = await made(directory, "small")
    (segment,) = (path for path in directory.glob("shard-0/*.segment") if b"small-0 " in path.read_bytes())
    faults = Faults(tmp_path / "control", directory)
    arguments = (*ADMIN, "--data-dir", str(directory))
    for _ in range(2):
        faults.arm("pread", "EIO", part=segment.name)
        with serving(*arguments, environment=ONE_SHARD | faults.environment) as broker:
            assert alarms(broker) == {"shard-0"}
            async with mqcore.connect(broker.url) as mq:
                with pytest.raises(errors.Busy, match=r"cannot be read.*accept-loss"):
                    await mq.declare("more", 1, SAVING)
            assert broker.terminate() == 0
        assert faults.struck
    here = World(directory, ledger, faults)
    code, text = here.run("journal", "verify", str(directory))
    assert code == 6, text
    faults.disarm()
    code, text = verify(directory)
    assert code == 0, text
    await check(here)


async def test_starts_that_read_no_file_of_a_shard_keep_its_journal(tmp_path: Path) -> None:
    """Neither segments nor catalog, over several starts, before and after an operator accepts the loss."""
    directory = tmp_path / "data"
    ledger = await made(directory, "small")
    here = World(directory, ledger, Faults(tmp_path / "control", directory))
    before = identities(directory)
    for number in range(2):
        here.faults.arm("pread", "EIO", part="shard-0/")
        code, text = here.run("journal", "verify", str(directory))
        assert code == 6, text
        async with here.broker() as (broker, mq):
            assert alarms(broker) == {"shard-0"}
            with pytest.raises(errors.Busy, match=r"cannot be read.*accept-loss"):
                await mq.declare("orders", 1, SAVING)
        here.faults.arm("pread", "EIO", part="shard-0/")
        code, text = here.run("journal", "accept-loss", "--data-dir", str(directory))
        assert (code, "cannot be read" in text) == (0, True), text
        async with here.broker() as (broker, mq):
            assert alarms(broker) == set()
            await mq.declare("orders", 1, SAVING)
            assert await ledger.publish(mq, f"meanwhile-{number}")
    assert identities(directory) == before
    code, text = verify(directory)
    assert code == 0, text
    await check(here)
    left = [name_of(message.body) for message in journal.messages(directory, QUEUE)]
    assert {"small-10", "meanwhile-0", "meanwhile-1"} <= set(left)


def identities(directory: Path) -> list[str]:
    """The journals in the manifest."""
    return [line for line in (directory / "format").read_text().splitlines() if line.startswith("journal ")]


async def test_an_accepted_segment_that_the_disk_reads_again_is_delivered(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    ledger = await made(directory, "small")
    (segment,) = (path for path in directory.glob("shard-0/*.segment") if b"small-0 " in path.read_bytes())
    here = World(directory, ledger, Faults(tmp_path / "control", directory))
    here.faults.arm("pread", "EIO", part=segment.name)
    code, text = here.run("journal", "accept-loss", "--data-dir", str(directory))
    assert (code, "cannot be read" in text) == (0, True), text
    for number in range(2):
        here.faults.arm("pread", "EIO", part=segment.name)
        async with here.broker() as (broker, mq):
            assert alarms(broker) == set()
            await mq.declare("orders", 1, SAVING)
            assert await ledger.publish(mq, f"meanwhile-{number}")
    assert "no loss" in mq_journal("accept-loss", "--data-dir", directory).stderr
    await check(here)
    left = [name_of(message.body) for message in journal.messages(directory, QUEUE)]
    assert {"small-10", "meanwhile-0", "meanwhile-1"} <= set(left)
