"""Saved data is accessible to its owner only: messages are in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import mqcore
from mqcore import QueueOptions, QueueStatus
from mqcore.backup import backup, restore
from served import serving

pytestmark = pytest.mark.skipif(os.name != "posix", reason="only POSIX systems have modes")


async def test_data_backups_and_restored_files_belong_to_their_owner_only(tmp_path: Path) -> None:
    data, folder, packed, restored = (tmp_path / name for name in ("data", "folder", "all.tar.zst", "restored"))
    plain = tmp_path / "all.tar"
    with serving("--data-dir", str(data), "--admin", "http://127.0.0.1:0") as broker:
        async with mqcore.connect(broker.url) as mq:
            await mq.declare("orders", 1, QueueOptions(status=QueueStatus.PULL, delivery_handler="at-least-once"))
            await mq.publish("orders/1", "secret")
        for to in (folder, packed, plain):
            backup(to, url=broker.admin_url)
        assert broker.terminate() == 0
    assert restore(packed, restored).messages == 1
    seen = 0
    for place in (data, folder, packed, plain, restored):
        for path in [place, *place.rglob("*")]:
            expected = 0o700 if path.is_dir() else 0o600
            assert path.stat().st_mode & 0o777 == expected, path
            seen += 1
    assert seen > 15
