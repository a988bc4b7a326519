"""The publisher of a sink: order and windows of rows, full queues, and the part of the history that it reads."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mqcore import QueueOptions, errors, sync
from mqcore.spark.ledger import Batch, Ledger, Staged, Stager
from mqcore.spark.options import WriteOptions
from mqcore.spark.origin import Remote
from mqcore.spark.publisher import Publisher, _pauses, history_ends
from ports import free_port
from spark.recorded import SAVING, Recorded, drain


def settings(live: Recorded, place: Path, **more: str) -> WriteOptions:
    given = {"url": live.served.url, "admin": live.served.admin_url, "stagingLocation": str(place)}
    return WriteOptions.parse({**given, **more}, streaming=True)


def staged(place: Path, columns: dict[str, Any], batch: int = 0) -> Staged:
    """All rows, staged by one task."""
    return Stager(str(place), "sink", batch, 0, 0).write(iter([pa.RecordBatch.from_pydict(columns)]))


class Recording(Ledger):
    """A ledger that also records each progress."""

    def __init__(self, staging: str) -> None:
        super().__init__(staging, "sink")
        self.advances: list[int] = []

    def advance(self, number: int, published: int) -> None:
        self.advances.append(published)
        super().advance(number, published)


def test_rows_reach_their_own_queues_in_order_with_their_priority(live: Recorded, tmp_path: Path) -> None:
    setting = settings(live, tmp_path)
    queues = ["target/1", "target/2", "target/1", "target/1", "target/2", "target/2", "target/1"]
    urgent = [False, False, True, False, False, True, False]
    ledger = Ledger(setting.staging, "sink")
    rows = staged(tmp_path, {"value": list("abcdefg"), "queue": queues, "high_priority": urgent})
    batch, fresh = ledger.promise(0, [rows], history_ends(setting))
    Publisher(setting, ledger).publish(batch, fresh=fresh)
    assert drain(live.served.url, "target/1") == [b"c", b"a", b"d", b"g"]
    assert drain(live.served.url, "target/2") == [b"f", b"b", b"e"]


def test_windows_end_at_their_number_of_rows_and_at_16_mib(live: Recorded, tmp_path: Path) -> None:
    for batch, window, bodies, expected in [
        (0, "1000", [b"x" * (8 << 20)] * 5, [2, 4, 5]),
        (1, "2", [b"x"] * 5, [2, 4, 5]),
        (2, "5", [b"x"] * 5, [5]),
    ]:
        setting = settings(live, tmp_path, queue="target/1", window=window)
        ledger = Recording(setting.staging)
        promised, fresh = ledger.promise(batch, [staged(tmp_path, {"value": bodies}, batch)], None)
        Publisher(setting, ledger).publish(promised, fresh=fresh)
        assert ledger.advances == expected
        assert len(drain(live.served.url, "target/1")) == 5


def test_rows_behind_a_full_queue_wait_for_it(live: Recorded, tmp_path: Path) -> None:
    with sync.connect(live.served.url) as mq:
        mq.create_queue("small/1", QueueOptions(message_limit=3, status=SAVING.status, delivery_handler="ack-on-save"))
    setting = settings(live, tmp_path, retries="1")
    ledger = Ledger(setting.staging, "sink")
    queues = ["target/1"] * 2 + ["small/1"] * 5 + ["target/1"] * 2
    rows = staged(tmp_path, {"value": [str(number) for number in range(9)], "queue": queues})
    batch, fresh = ledger.promise(0, [rows], history_ends(setting))
    with pytest.raises(errors.MqcoreError) as refusal:
        Publisher(setting, ledger).publish(batch, fresh=fresh)
    assert isinstance(refusal.value, errors.LimitExceeded | errors.Nacked)
    assert ledger.published(0) == 0
    assert drain(live.served.url, "target/1") == [b"0", b"1", b"7", b"8"], "rows of another queue do not wait"
    assert drain(live.served.url, "small/1") == [b"2", b"3", b"4"]
    Publisher(setting, ledger).publish(batch, fresh=False)
    assert drain(live.served.url, "small/1") == [b"5", b"6"]
    assert drain(live.served.url, "target/1") == []
    assert ledger.published(0) == 9


def publish_once(setting: WriteOptions, place: Path, before: Any = None) -> tuple[Ledger, Batch]:
    """Publish a batch of ten rows of a new ledger, and forget its progress, as a crash would."""
    ledger = Ledger(str(place), "sink")
    batch, fresh = ledger.promise(0, [staged(place, {"value": list("0123456789")})], before or history_ends(setting))
    assert fresh
    Publisher(setting, ledger).publish(batch, fresh=True)
    (place / "sink" / "manifests" / "0.progress").unlink()
    return ledger, batch


def test_names_from_before_the_batch_are_those_of_another_sink(live: Recorded, tmp_path: Path) -> None:
    setting = settings(live, tmp_path, queue="target/1")
    publish_once(setting, tmp_path / "removed")
    ledger = Ledger(str(tmp_path / "new"), "sink")
    rows = staged(tmp_path / "new", {"value": list("0123456789")})
    Remote(live.served.admin_url, None).ends(settled=True)
    batch, _ = ledger.promise(0, [rows], history_ends(setting))
    Publisher(setting, ledger).publish(batch, fresh=False)
    assert Counter(drain(live.served.url, "target/1")) == dict.fromkeys([b"%d" % number for number in range(10)], 2)


def test_history_of_another_journal_is_read_from_its_beginning(live: Recorded, tmp_path: Path) -> None:
    setting = settings(live, tmp_path, queue="target/1")
    for number, before in enumerate(
        (
            [{"shard": shard, "journal": "00000000000000aa", "latest": 1 << 40} for shard in range(2)],
            [{"shard": 7, "journal": "", "latest": 1 << 40}],
        )
    ):
        ledger, batch = publish_once(setting, tmp_path / str(number), before)
        Publisher(setting, ledger).publish(batch, fresh=False)
        assert len(drain(live.served.url, "target/1")) == 10


def test_rows_with_keys_are_found_by_the_header_with_their_name(live: Recorded, tmp_path: Path) -> None:
    setting = settings(live, tmp_path, queue="target/1")
    ledger = Ledger(str(tmp_path), "sink")
    headers = [[{"key": "Color", "value": "red"}], None]
    rows = staged(tmp_path, {"value": ["a", "b"], "key": ["first", "second"], "headers": headers})
    batch, _ = ledger.promise(0, [rows], history_ends(setting))
    for _ in range(2):
        Publisher(setting, ledger).publish(batch, fresh=False)
        (tmp_path / "sink" / "manifests" / "0.progress").unlink()
    with sync.connect(live.served.url) as mq:
        found = list(mq.queue("target/1").pull(9))
    names = ("Color", "Mqcore-Sink")
    assert [(message.id, message.raw, *(message.headers.get(name) for name in names)) for message in found] == [
        ("first", b"a", "red", "sink/0/0"),
        ("second", b"b", None, "sink/0/1"),
    ]


def test_pauses_double_up_to_five_seconds() -> None:
    assert list(_pauses(9)) == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    assert list(_pauses(0)) == []


def test_end_of_the_history_is_asked_for_again_after_pauses(tmp_path: Path) -> None:
    given = {"url": "tmqp://127.0.0.1:1", "admin": f"http://127.0.0.1:{free_port()}", "queue": "target/1"}
    setting = WriteOptions.parse({**given, "stagingLocation": str(tmp_path), "retries": "4"}, streaming=True)
    began = time.monotonic()
    with pytest.raises(errors.ConnectFailed):
        history_ends(setting)
    assert time.monotonic() - began > 1.4, "0.1, 0.2, 0.4 and 0.8 s"


def test_staged_rows_are_a_complete_stream(tmp_path: Path) -> None:
    part = staged(tmp_path, {"value": ["a"]})
    content = (tmp_path / "sink" / "staged" / part.file).read_bytes()
    assert content.endswith(b"\xff\xff\xff\xff\0\0\0\0"), "the end of an Arrow stream"
