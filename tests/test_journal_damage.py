"""Lost sectors and files under a real broker that was killed: nothing is lost, or the loss is reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import mqcore
from damaged_files import MESSAGES, ONE_SHARD, overwrite, segment_of_killed_broker, verify
from mqcore import journal
from served import serving


@pytest.fixture
async def segment(tmp_path: Path) -> Path:
    """The only segment of a killed broker, with confirmed messages."""
    return await segment_of_killed_broker(tmp_path / "data")


def without_catalog(path: Path) -> None:
    (path.parent / "catalog").unlink()


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda path: overwrite(path, 0, bytes(512)), id="first sector zeroed"),
        pytest.param(lambda path: overwrite(path, 0, bytes(4096)), id="first block zeroed"),
        pytest.param(lambda path: overwrite(path, 4096, b"\xa5" * 4096), id="second block is garbage"),
        pytest.param(lambda path: overwrite(path, 0, bytes(8192)), id="both headers zeroed"),
        pytest.param(without_catalog, id="catalog deleted"),
    ],
)
async def test_damage_without_loss_is_reported_and_every_message_is_served(
    segment: Path, damage: Callable[[Path], None]
) -> None:
    directory = segment.parent.parent
    damage(segment)
    code, text = verify(directory)
    assert code == 6, text
    assert "no record is lost" in text
    with serving("--data-dir", str(directory), environment=ONE_SHARD) as broker:
        async with mqcore.connect(broker.url) as mq:
            assert (await mq.queue("orders", 1).information()).messages == MESSAGES
        assert broker.terminate() == 0
        assert any("damaged" in line for line in broker.stderr_lines), "the start reports it"


@pytest.mark.parametrize("length", [0, 64, 128, 8192])
def test_truncated_only_segment_is_damage(segment: Path, length: int) -> None:
    with segment.open("r+b") as file:
        file.truncate(length)
    code, text = verify(segment.parent.parent)
    assert code == 6, text
    assert f"the file has {length} bytes but was created with" in text
    assert "records are lost" in text or "number of records is lost" in text


def test_zeroed_or_missing_only_segment_is_damage(segment: Path) -> None:
    segment.write_bytes(bytes(segment.stat().st_size))
    code, text = verify(segment.parent.parent)
    assert code == 6, text
    assert "records are lost" in text
    segment.unlink()
    code, text = verify(segment.parent.parent)
    assert code == 6, text
    assert "missing" in text or "no segments" in text


async def test_messages_behind_a_lost_first_sector_of_records_are_kept(segment: Path) -> None:
    directory = segment.parent.parent
    overwrite(segment, 8192, bytes(512))
    code, text = verify(directory)
    assert code == 6, text
    assert "records are lost" in text
    bodies = [message.body for message in journal.messages(directory, "orders/1")]
    assert bodies, text
    assert bodies[-1] == b"body %d" % (MESSAGES - 1)
