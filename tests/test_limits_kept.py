"""Limits that are kept: over a restart, over kill -9 while they are spent, and what leaves the journal."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

import mqcore
from metrics import metric
from mqcore.backup import backup, restore
from mqcore.errors import ConfigError
from mqcore.throttr import Algorithm, Rule, SyncClient
from served import ServedBroker, serving, wait_until
from throttr_peer import DECREASE, QUOTA, Cut, ThrottrPeer

LISTEN = "throttr://127.0.0.1:0?value=uint32&persist=on"
INTERVAL = 0.05
BEHIND = 3.0
"""Seconds that what was written may be behind at most, on a machine that does other things too."""


def url(broker: ServedBroker) -> str:
    return f"throttr://{broker.ready['listeners']['throttr']}?value=uint32"


def serve(directory: Path) -> AbstractContextManager[ServedBroker]:
    environment = {"MQCORE_LIMITER_PERSIST_INTERVAL": f"{INTERVAL}"}
    arguments = ("--listen", LISTEN, "--admin", "http://127.0.0.1:0", "--data-dir", str(directory))
    return serving(*arguments, environment=environment)


def test_counters_and_buffers_of_every_kind_come_back_after_kill_9(tmp_path: Path) -> None:
    with serve(tmp_path) as broker:
        with SyncClient(url(broker)) as client:
            for number in range(100):
                assert client.insert(f"user:{number:03}", quota=1000 + number, ttl=3600)
            client.set("note", b"some bytes", ttl=3600)
            client.insert("short", quota=1, ttl=2)
            client.insert("gone", quota=1, ttl=3600)
            for algorithm in (Algorithm.SLIDING_WINDOW, Algorithm.GCRA, Algorithm.FIXED_WINDOW):
                client.consume(Rule(f"rule:{algorithm}", limit=10, cost=4, period=3600, algorithm=algorithm))
            client.decrease("user:007", 7)
            client.purge("gone")
            wait_until(lambda: metric(broker, "mqcore_limiter_saved_total") >= 104, what="the journal")
            before = [entry.key for entry in client.list()]
            # The broker does not report when it has written a change; after this many intervals it has.
            time.sleep(BEHIND)
        broker.process.kill()
        broker.process.wait()
    with serve(tmp_path) as broker, SyncClient(url(broker)) as client:
        assert metric(broker, "mqcore_limiter_restored_total") == 104
        after = [entry.key for entry in client.list()]
        assert after == [key for key in before if key != b"short"], "in the order in which they were made"
        counter = client.query("user:007")
        assert counter is not None
        assert (counter.quota, counter.ttl <= 3600 - BEHIND) == (1000, True)
        buffer = client.get("note")
        assert buffer is not None
        assert buffer.value == b"some bytes"
        assert client.query("short") is None
        assert client.query("gone") is None
        for algorithm in (Algorithm.SLIDING_WINDOW, Algorithm.GCRA, Algorithm.FIXED_WINDOW):
            rule = Rule(f"rule:{algorithm}", limit=10, cost=6, period=3600, algorithm=algorithm)
            assert client.consume(rule).allowed
            assert not client.consume(rule).allowed


def test_a_kill_while_a_quota_is_spent_gives_back_no_more_than_what_was_spent_last(tmp_path: Path) -> None:
    """Five kills in the middle of it, each at another moment; in two rounds, answers must be restored."""
    last = due = begun = 4_000_000_000
    rounds = (0.3, 0.5, BEHIND + 0.5, 0.8, BEHIND + 0.3)
    restored = 0
    for number in range(len(rounds) + 1):
        with serve(tmp_path) as broker:
            host, port = broker.ready["listeners"]["throttr"].rsplit(":", 1)
            with ThrottrPeer((host, int(port)), width=4) as peer:
                if number == 0:
                    assert peer.status(peer.insert(b"quota", last, 3600))
                found = peer.query(b"quota")
                assert found is not None
                readings = [(time.monotonic(), found[0])]
                if number > 0:
                    # The last answer, or a later unread one; at least a state written shortly before.
                    assert last - 64 <= found[0] <= due
                    restored += due < begun
                if number == len(rounds):
                    break
                begun = found[0]
                spender = threading.Thread(target=_spend, args=(peer, readings))
                spender.start()
                time.sleep(rounds[number])
                killed = time.monotonic()
                broker.process.kill()
                broker.process.wait()
                spender.join()
            last = readings[-1][1]
            due = min((left for at, left in readings if at <= killed - BEHIND), default=readings[0][1])
            assert last < readings[0][1], "nothing was spent"
    assert restored >= 2, "no round was long enough for its limit"


def _spend(peer: ThrottrPeer, readings: list[tuple[float, int]]) -> None:
    """Take one after the other, 64 in a write, and record the answers with their times."""
    batch = peer.update(b"quota", QUOTA, DECREASE, 1) * 64
    left = readings[0][1]
    try:
        while True:
            assert peer.ask(batch, 64) == b"\x01" * 64
            left -= 64
            readings.append((time.monotonic(), left))
    except (Cut, OSError):  # The broker was killed.
        return


def test_restored_backup_continues_with_the_limits_of_its_time(tmp_path: Path) -> None:
    with serve(tmp_path / "data") as broker, SyncClient(url(broker)) as client:
        for number in range(200):
            assert client.insert(f"user:{number:03}", quota=1000, ttl=3600)
        client.set("note", b"some bytes", ttl=3600)
        client.purge("user:100")
        client.decrease("user:007", 7)
        # No wait for the write: a backup first writes all changes.
        backup(tmp_path / "running.tar.zst", url=broker.admin_url)
        client.decrease("user:007", 100)
        broker.process.terminate()
        assert broker.process.wait(timeout=30) == 0, "in order, which loses nothing"
    backup(tmp_path / "stopped", data_dir=tmp_path / "data")
    for source, quota in (("running.tar.zst", 993), ("stopped", 893)):
        back = restore(tmp_path / source, tmp_path / f"from-{source}")
        assert (back.messages, back.limits, back.findings) == (0, 200, ())
        with serve(tmp_path / f"from-{source}") as broker, SyncClient(url(broker)) as client:
            assert metric(broker, "mqcore_limiter_restored_total") == 200
            counter, note = client.query("user:007"), client.get("note")
            assert counter is not None
            assert note is not None
            assert (counter.quota, note.value) == (quota, b"some bytes")
            assert client.query("user:100") is None


def test_backups_of_limits_that_are_spent_all_the_time_are_whole_and_never_ahead(tmp_path: Path) -> None:
    with serve(tmp_path / "data") as broker, SyncClient(url(broker)) as client, SyncClient(url(broker)) as other:
        assert client.insert("quota", quota=1_000_000, ttl=3600)
        stop = threading.Event()
        spent = [0]

        def spend() -> None:
            while not stop.is_set():
                assert other.decrease("quota", 1)
                spent[0] += 1

        thread = threading.Thread(target=spend)
        thread.start()
        made = []
        for number in range(5):
            before = spent[0]
            backup(tmp_path / f"backup-{number}", url=broker.admin_url)
            made.append((before, spent[0] + 1))
        stop.set()
        thread.join()
    for number, (before, after) in enumerate(made):
        restore(tmp_path / f"backup-{number}", tmp_path / f"data-{number}")
        with serve(tmp_path / f"data-{number}") as broker, SyncClient(url(broker)) as client:
            counter = client.query("quota")
            assert counter is not None
            assert before <= 1_000_000 - counter.quota <= after, "what was spent before it began, and nothing later"
    assert made[-1][0] > 0, "there was work"


def test_expired_limits_are_removed_from_the_journal(tmp_path: Path) -> None:
    with serve(tmp_path) as broker, SyncClient(url(broker)) as client:
        for number in range(50):
            client.insert(f"k{number}", quota=1, ttl=1)
        client.insert("stays", quota=1, ttl=3600)
        wait_until(lambda: metric(broker, "mqcore_limiter_saved_total") == 51, what="the journal")
        wait_until(lambda: metric(broker, "mqcore_limiter_expired_total") == 50, what="expiry")
        assert broker.terminate() == 0
    with serve(tmp_path) as broker, SyncClient(url(broker)) as client:
        assert [entry.key for entry in client.list()] == [b"stays"]
        assert metric(broker, "mqcore_limiter_restored_total") == 1


def test_limits_of_other_listeners_are_not_saved(tmp_path: Path) -> None:
    listen = ["throttr://127.0.0.1:0?persist=on", "throttr://127.0.0.1:0"]
    with mqcore.Broker(listen=listen, data_dir=str(tmp_path)) as broker:
        for number, key in enumerate((b"kept", b"other")):
            with ThrottrPeer(("127.0.0.1", int(broker.listeners[number].rpartition(":")[2]))) as peer:
                assert peer.status(peer.insert(key, 5, 3600))
    with (
        mqcore.Broker(listen=listen, data_dir=str(tmp_path)) as broker,
        ThrottrPeer(("127.0.0.1", int(broker.listeners[0].rpartition(":")[2]))) as peer,
    ):
        assert peer.query(b"kept") is not None
        assert peer.query(b"other") is None


def test_nothing_can_be_kept_without_a_place_for_it() -> None:
    with pytest.raises(ConfigError, match="data_dir"):
        mqcore.Broker(listen=["throttr://127.0.0.1:0?persist=on"]).start()
