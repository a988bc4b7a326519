"""The sink without Spark: promises, repeated batches cut otherwise, crashes at every step, and a real broker."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mqcore import errors, sync
from mqcore.spark.ledger import Batch, Ledger, Staged, Stager, sink_name
from mqcore.spark.options import WriteOptions
from mqcore.spark.publisher import Publisher, history_ends
from ports import free_port
from served import serving, wait_until
from spark.recorded import HISTORY, Recorded, declare, drain

NOTHING = Batch(0, (), 0, None, 0)


def batches(values: list[str], size: int) -> Iterator[pa.RecordBatch]:
    for first in range(0, len(values), size):
        yield pa.RecordBatch.from_pydict({"value": values[first : first + size]})


def staged(place: Path, batch: int, parts: list[list[str]], attempt: int = 0) -> list[Staged]:
    return [
        Stager(str(place), "sink", batch, partition, attempt).write(batches(values, 7))
        for partition, values in enumerate(parts)
    ]


def cut(count: int, parts: int) -> list[list[str]]:
    values = [str(number) for number in range(count)]
    size = -(-count // parts)
    return [values[first : first + size] for first in range(0, count, size)]


def rows_of(ledger: Ledger, batch: Batch, first: int = 0) -> list[str]:
    return [value for _, rows in ledger.rows(batch, first) for value in rows.column("value").to_pylist()]


def options(live: Recorded, place: Path, **more: str) -> WriteOptions:
    given = {"url": live.served.url, "queue": "target/1", "stagingLocation": str(place)}
    return WriteOptions.parse({**given, "admin": live.served.admin_url, **more}, streaming=True)


def test_first_of_two_manifests_wins_and_repetitions_see_it(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), "sink")
    first, ours = ledger.promise(3, staged(tmp_path, 3, cut(40, 4)), None)
    second, later = ledger.promise(3, staged(tmp_path, 3, cut(40, 3), attempt=1), None)
    assert (ours, later) == (True, False)
    assert first == second == ledger.find(3)
    assert rows_of(ledger, second) == [str(number) for number in range(40)]
    assert rows_of(ledger, second, 17) == [str(number) for number in range(17, 40)]


def test_tasks_without_rows_leave_nothing_and_sweeping_leaves_promises(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), "sink")
    for number in range(3):
        batch, _ = ledger.promise(number, staged(tmp_path, number, [[], ["a"], []]), None)
        assert (batch.rows, len(batch.files)) == (1, 1)
    ledger.advance(1, 1)
    ledger.sweep(1)
    assert sorted(path.name.split("-")[0] for path in (tmp_path / "sink" / "staged").iterdir()) == ["0", "2"]
    again = ledger.find(1)
    assert again is not None
    assert again.is_done
    with pytest.raises(errors.DataDirDamaged, match="are missing"):
        rows_of(ledger, Batch(0, ("gone.arrow",), 1, None, 0))


def test_names_of_sinks_are_names_of_directories_whatever_they_say() -> None:
    assert sink_name("query-1", None) == "query-1"
    assert sink_name("query-1", "mine") == "mine-query-1"
    assert "/" not in sink_name("../../etc", "a b")
    assert sink_name(None, "x" * 300) != sink_name(None, "x" * 301)


def test_a_batch_repeated_with_another_number_of_tasks_loses_and_doubles_nothing(
    live: Recorded, tmp_path: Path
) -> None:
    """With a promise for each task, those tasks that are fewer the second time would lose their rows."""
    setting = options(live, tmp_path, window="500")
    ledger = Ledger(setting.staging, "sink")
    batch, fresh = ledger.promise(0, staged(tmp_path, 0, cut(4000, 8)), history_ends(setting))
    crash_after(setting, ledger, batch, fresh, rows=1500)
    again = ledger.find(0)
    assert again is not None
    assert not again.is_done
    repeated, ours = ledger.promise(0, staged(tmp_path, 0, cut(4000, 3), attempt=9), history_ends(setting))
    assert (repeated.files, ours) == (batch.files, False)
    Publisher(setting, ledger).publish(repeated, fresh=False)
    assert [int(body) for body in drain(live.served.url, "target/1")] == list(range(4000))


class Crashed(Exception):
    """Simulates a power loss."""


def crash_after(setting: WriteOptions, ledger: Ledger, batch: Batch, fresh: bool, rows: int) -> None:
    """Publish until so many rows are published, and end before that is written down, as a kill would."""

    class Mortal(Ledger):
        def advance(self, number: int, published: int) -> None:
            if published >= rows:
                raise Crashed
            super().advance(number, published)

    with pytest.raises(Crashed):
        Publisher(setting, Mortal(setting.staging, ledger.sink)).publish(batch, fresh=fresh)


def test_published_but_unrecorded_rows_are_found_in_the_history(live: Recorded, tmp_path: Path) -> None:
    setting = options(live, tmp_path, window="100")
    ledger = Ledger(setting.staging, "sink")
    batch, fresh = ledger.promise(0, staged(tmp_path, 0, cut(1000, 2)), history_ends(setting))
    for rows in (100, 100, 300, 700, 1000):
        crash_after(setting, ledger, batch, fresh, rows)
        batch, fresh = ledger.find(0) or batch, False
    Publisher(setting, ledger).publish(batch, fresh=False)
    assert Counter(map(int, drain(live.served.url, "target/1"))) == Counter(range(1000))


def test_a_restart_with_a_smaller_window_doubles_nothing_of_the_larger_one(live: Recorded, tmp_path: Path) -> None:
    setting = options(live, tmp_path, window="500")
    ledger = Ledger(setting.staging, "sink")
    batch, fresh = ledger.promise(0, staged(tmp_path, 0, cut(1000, 2)), history_ends(setting))
    crash_after(setting, ledger, batch, fresh, rows=500)
    Publisher(options(live, tmp_path, window="100"), ledger).publish(batch, fresh=False)
    assert [int(body) for body in drain(live.served.url, "target/1")] == list(range(1000))


@pytest.mark.parametrize("admin", [True, False])
def test_publisher_continues_where_another_one_stopped(admin: bool, live: Recorded, tmp_path: Path) -> None:
    setting = options(live, tmp_path, window="100")
    if not admin:
        setting = replace(setting, admin=None)
    ledger = Ledger(setting.staging, "sink")
    batch, fresh = ledger.promise(0, staged(tmp_path, 0, cut(1000, 2)), history_ends(setting))
    Publisher(setting, ledger).publish(batch, fresh=fresh)
    assert batch.published == 0, "what the other one knows is from before it waited"
    Publisher(setting, ledger).publish(batch, fresh=False)
    assert [int(body) for body in drain(live.served.url, "target/1")] == list(range(1000))
    finished = ledger.find(0)
    assert finished is not None
    assert finished.is_done


def test_a_broker_that_is_killed_in_the_middle_of_a_write_and_comes_back_gets_every_row_once(tmp_path: Path) -> None:
    data_dir, ports = tmp_path / "data", (free_port(), free_port())
    arguments = ("--listen", f"tmqp://127.0.0.1:{ports[0]}", "--admin", f"http://127.0.0.1:{ports[1]}")
    given = {
        "url": f"tmqp://127.0.0.1:{ports[0]}",
        "admin": f"http://127.0.0.1:{ports[1]}",
        "queue": "target/1",
        "stagingLocation": str(tmp_path),
        "window": "50",
        "retries": "30",
    }
    setting = WriteOptions.parse(given, streaming=True)
    ledger = Ledger(setting.staging, "sink")
    outcome: list[BaseException] = []

    def publish() -> None:
        try:
            batch, fresh = ledger.promise(0, staged(tmp_path, 0, cut(20_000, 2)), history_ends(setting))
            Publisher(setting, ledger).publish(batch, fresh=fresh)
        except BaseException as error:
            outcome.append(error)

    worker = threading.Thread(target=publish, daemon=True)
    found: list[bytes] = []
    for run in range(4):
        with serving("--data-dir", str(data_dir), *arguments, environment=HISTORY) as served:
            if run == 0:
                with sync.connect(served.url) as mq:
                    declare(mq, "target/1")
                worker.start()
            if run == 3:
                worker.join(45)
                found = drain(served.url, "target/1")
                break
            wait_until(lambda at=2000 * (run + 1): (ledger.find(0) or NOTHING).published >= at, what="rows")
            served.process.kill()
    assert outcome == []
    assert Counter(map(int, found)) == Counter(range(20_000))


def test_a_broker_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    ports = free_port(), free_port()
    given = {"url": f"tmqp://127.0.0.1:{ports[0]}", "admin": f"http://127.0.0.1:{ports[1]}", "retries": "30"}
    setting = WriteOptions.parse({**given, "queue": "target/1", "stagingLocation": str(tmp_path)}, streaming=True)
    ledger = Ledger(setting.staging, "sink")
    arguments = ("--listen", f"tmqp://127.0.0.1:{ports[0]}", "--admin", f"http://127.0.0.1:{ports[1]}")
    with serving("--data-dir", str(tmp_path / "data"), *arguments, environment=HISTORY) as served:
        with sync.connect(served.url) as mq:
            declare(mq, "target/1")
        served.terminate()
    with pytest.raises(errors.ConnectFailed, match="does not answer"):
        history_ends(replace(setting, retries=0))
    outcome: list[BaseException] = []

    def publish() -> None:
        try:
            batch, fresh = ledger.promise(0, staged(tmp_path, 0, cut(100, 2)), history_ends(setting))
            Publisher(setting, ledger).publish(batch, fresh=fresh)
        except BaseException as error:
            outcome.append(error)

    worker = threading.Thread(target=publish, daemon=True)
    worker.start()
    with serving("--data-dir", str(tmp_path / "data"), *arguments, environment=HISTORY) as served:
        worker.join(45)
        assert outcome == []
        assert [int(body) for body in drain(served.url, "target/1")] == list(range(100))


def test_without_a_history_to_look_at_rows_come_at_least_once(live: Recorded, tmp_path: Path) -> None:
    given = {"url": live.served.url, "queue": "target/1", "stagingLocation": str(tmp_path), "window": "100"}
    setting = WriteOptions.parse(given, streaming=True)
    ledger = Ledger(setting.staging, "sink")
    batch, fresh = ledger.promise(0, staged(tmp_path, 0, cut(300, 1)), history_ends(setting))
    assert batch.before is None
    crash_after(setting, ledger, batch, fresh, 200)
    Publisher(setting, ledger).publish(ledger.find(0) or batch, fresh=False)
    found = Counter(map(int, drain(live.served.url, "target/1")))
    assert set(found) == set(range(300))
    assert max(found.values()) == 2


def test_two_publishers_of_one_sink_do_not_publish_side_by_side(live: Recorded, tmp_path: Path) -> None:
    setting = options(live, tmp_path, retries="1", timeout="1")
    ledger = Ledger(setting.staging, "sink")
    batch, fresh = ledger.promise(0, staged(tmp_path, 0, cut(10, 1)), history_ends(setting))
    with (
        sync.connect(live.served.url, id="spark-sink"),
        pytest.raises(errors.MqcoreError, match="already connected"),
    ):
        Publisher(setting, ledger).publish(batch, fresh=fresh)
    Publisher(setting, ledger).publish(batch, fresh=False)
    assert len(drain(live.served.url, "target/1")) == 10


def test_rows_that_can_never_be_published_say_why_at_once(live: Recorded, tmp_path: Path) -> None:
    rows = Stager(str(tmp_path), "sink", 0, 0, 0).write(
        iter([pa.RecordBatch.from_pydict({"value": ["a"], "queue": pa.array([None], pa.string())})])
    )
    given = {"url": live.served.url, "stagingLocation": str(tmp_path)}
    setting = WriteOptions.parse(given, streaming=True)
    ledger = Ledger(setting.staging, "sink")
    batch, fresh = ledger.promise(0, [rows], None)
    with pytest.raises(errors.InvalidArgument, match=r"1 of 1 rows .*queue-null"):
        Publisher(setting, ledger).publish(batch, fresh=fresh)


def test_rows_for_a_queue_that_does_not_exist_raise_at_once_and_are_not_published(
    live: Recorded, tmp_path: Path
) -> None:
    setting = options(live, tmp_path, queue="missing/1", retries="1000")
    ledger = Ledger(setting.staging, "sink")
    batch, fresh = ledger.promise(0, staged(tmp_path, 0, cut(10, 2)), history_ends(setting))
    for _ in range(2):
        with pytest.raises(errors.NotFound, match="missing/1"):
            Publisher(setting, ledger).publish(batch, fresh=fresh)
    assert ledger.published(0) == 0


@pytest.fixture
def parse() -> Callable[..., Any]:
    return lambda **given: WriteOptions.parse(given, streaming=False)


def test_options_of_a_sink_that_cannot_be_meant_are_refused(parse: Callable[..., Any]) -> None:
    whole = {"url": "tmqp://a", "stagingLocation": "/tmp/x"}
    assert parse(**whole, channel="orders").queue == "orders/0"
    for wrong, word in [
        ({"stagingLocation": "/tmp/x"}, "option url is missing"),
        ({"url": "tmqp://a"}, "stagingLocation is"),
        ({**whole, "quue": "a"}, "did you mean queue"),
        ({**whole, "queue": "a/1", "channel": "b"}, "not both"),
        ({**whole, "txnAppId": "a"}, "belong together"),
        ({**whole, "timeout": "soon"}, "seconds"),
        ({**whole, "stagingLocation": "s3://bucket/x"}, "every executor see under the same path"),
    ]:
        with pytest.raises(errors.ConfigError, match=word):
            parse(**wrong)
