"""Rows that cannot be published: refused before any row is out, or published to the queue of rejected rows, once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from mqcore import QueueOptions, errors, sync
from mqcore._core import AuthorityStore
from mqcore.spark.ledger import Ledger
from mqcore.spark.options import WriteOptions
from served import serving
from spark.recorded import HISTORY, SAVING, Recorded, declare, drain
from spark.written import SINK, crash_after, finish, options_of, promised, staged, write

BAD = "bad/1"


@pytest.fixture
def rejecting(live: Recorded) -> Recorded:
    """A broker with a queue for rejected rows."""
    with sync.connect(live.served.url) as mq:
        declare(mq, BAD)
    return live


def taken(url: str, queue: str, token: str | None = None) -> list[Any]:
    """Take everything out of a queue, with headers."""
    found: list[Any] = []
    with sync.connect(url, token=token) as mq:
        while left := mq.queue(queue).information().messages:
            for message in mq.queue(queue).pull(min(left, 1000)):
                found.append(message)
                message.ack()
    return found


def header(key: Any, value: Any) -> list[dict[str, Any]]:
    return [{"key": key, "value": value}]


MIXED = {
    "value": ["0", None, "2", "3", "4", "5", "6"],
    "key": ["a", "a", "a", "k" * 300, "", None, "a"],
    "queue": ["target/1", "target/1", "target/2", "target/1", None, "or ders", "target/1"],
    "headers": [None, None, header("A", "1"), None, None, None, header("Mqcore-Delay", "soon")],
}
"""Rows of which the first and the third are valid."""
REASONS = {1: "value-null", 3: "key-too-long", 4: "queue-null", 5: "queue-invalid", 6: "header-invalid"}


# --- before the first row --------------------------------------------------------------------------------------------


def test_invalid_rows_fail_the_batch_before_any_is_published(live: Recorded, tmp_path: Path) -> None:
    setting = options_of(live, tmp_path)
    with pytest.raises(errors.InvalidArgument) as refusal:
        write(setting, MIXED, parts=2)
    text = str(refusal.value)
    assert text.startswith("5 of 7 rows of batch 0 are invalid (")
    assert all(f"{reason} 1" in text for reason in REASONS.values())
    assert "none is published" in text
    assert "rejectedQueue" in text
    first, second = sorted(path.name for path in (tmp_path / SINK / "staged").iterdir())
    for place in (f"row 1 of {first}: value-null", f"row 3 of {first}: key-too-long: the key has 300 bytes"):
        assert place in text
    assert f"row 2 of {second}: header-invalid" in text
    assert drain(live.served.url, "target/1") == drain(live.served.url, "target/2") == []
    assert Ledger(setting.staging, SINK).find(0) is None, "another attempt may have other rows"
    write(setting, {"value": ["x"], "queue": ["target/1"]})
    assert drain(live.served.url, "target/1") == [b"x"]


def test_error_describes_five_rows_and_counts_all(live: Recorded, tmp_path: Path) -> None:
    setting = options_of(live, tmp_path, queue="target/1")
    with pytest.raises(errors.InvalidArgument) as refusal:
        write(setting, {"value": [None if number % 2 else "x" for number in range(3000)]})
    assert "1,500 of 3,000 rows of batch 0 are invalid (value-null 1,500)" in str(refusal.value)
    assert str(refusal.value).count("row ") == 5
    assert "row 9 of 0-00000-" in str(refusal.value)


def test_rows_that_no_task_has_checked_are_checked_by_the_driver(live: Recorded, tmp_path: Path) -> None:
    setting = options_of(live, tmp_path, queue="target/1")
    ledger = Ledger(setting.staging, SINK)
    unchecked = [type(part)(part.sink, 0, 0, part.file, part.rows) for part in staged(setting, {"value": ["x", None]})]
    batch, _ = ledger.promise(0, unchecked, None)
    assert batch.contents is None
    with pytest.raises(errors.InvalidArgument, match="1 of 2 rows"):
        finish(setting)
    assert drain(live.served.url, "target/1") == []


@pytest.mark.parametrize("rejected", [False, True])
def test_a_missing_queue_among_several_is_found_before_any_row_is_published(
    rejected: bool, rejecting: Recorded, tmp_path: Path
) -> None:
    setting = options_of(rejecting, tmp_path, **({"rejectedQueue": BAD} if rejected else {}))
    columns = {"value": list("abcdef"), "queue": ["target/1", "target/1", "missing/3"] * 2}
    if not rejected:
        with pytest.raises(errors.InvalidArgument, match=r"2 of 6 rows .*queue-missing 2.*row 2 of .*missing/3"):
            write(setting, columns)
        assert drain(rejecting.served.url, "target/1") == []
        assert Ledger(setting.staging, SINK).find(0) is None
        return
    write(setting, columns)
    assert drain(rejecting.served.url, "target/1") == [b"a", b"b", b"d", b"e"]
    found = taken(rejecting.served.url, BAD)
    assert [(message.raw, message.headers.get("Rejected-Reason")) for message in found] == [
        (b"c", "queue-missing"),
        (b"f", "queue-missing"),
    ]
    assert {message.headers.get("Rejected-Queue") for message in found} == {"missing/3"}


def test_queues_of_options_must_exist(live: Recorded, tmp_path: Path) -> None:
    for more in (
        {"queue": "target/1", "rejectedQueue": "missing/3"},
        {"queue": "missing/3", "rejectedQueue": "target/1"},
    ):
        with pytest.raises(errors.NotFound, match=r"missing/3.*no row is published"):
            write(options_of(live, tmp_path, **more), {"value": ["a"]})
    assert drain(live.served.url, "target/1") == []
    assert Ledger(str(tmp_path), SINK).find(0) is None


@pytest.mark.parametrize("rejected", [False, True])
def test_limits_of_queues_are_known_before_any_row_is_published(
    rejected: bool, rejecting: Recorded, tmp_path: Path
) -> None:
    def options(**more: Any) -> QueueOptions:
        return QueueOptions(request_acknowledge=True, **more)

    with sync.connect(rejecting.served.url) as mq:
        mq.create_queue("small/1", options(status="pull", message_size_limit=3))
        mq.create_queue("small/2", options(status="stopped"))
        mq.create_queue("small/3", QueueOptions(status="cache"))
    setting = options_of(rejecting, tmp_path, **({"rejectedQueue": BAD} if rejected else {}))
    delay = header("mqcore-delay", "5")
    columns = {
        "value": ["abc", "abcd", "e", "f", "g", "h"],
        "queue": ["small/1", "small/1", "small/2", "small/3", "small/3", "target/1"],
        "headers": [None, None, None, delay, header("Mqcore-Delay", "0"), None],
    }
    if not rejected:
        with pytest.raises(errors.InvalidArgument) as refusal:
            write(setting, columns)
        for text in (
            "3 of 6 rows",
            "row 1 of 0-",
            "value-too-large: the body has 4 bytes, the limit of queue small/1 is 3",
            "queue-stopped: queue small/2 is stopped",
            "header-invalid: queue small/3 has the status cache and cannot delay messages",
        ):
            assert text in str(refusal.value)
        assert drain(rejecting.served.url, "target/1") == drain(rejecting.served.url, "small/1") == []
        return
    write(setting, columns)
    assert drain(rejecting.served.url, "small/1") == [b"abc"]
    found = [(message.raw, message.headers.get("Rejected-Reason")) for message in taken(rejecting.served.url, BAD)]
    assert found == [(b"abcd", "value-too-large"), (b"e", "queue-stopped"), (b"f", "header-invalid")]
    assert drain(rejecting.served.url, "target/1") == [b"h"]


def test_a_broker_that_creates_queues_gets_rows_for_missing_ones(tmp_path: Path) -> None:
    arguments = ("--data-dir", str(tmp_path / "data"), "--admin", "http://127.0.0.1:0", "--auto-create")
    with serving(*arguments, environment=HISTORY) as served:
        live = Recorded(tmp_path / "data", served)
        columns = {"value": [None, *"abcd"], "queue": ["new/1", "new/1", "new/2", "new/1", "new/2"]}
        setting = options_of(live, tmp_path, autoCreateQueues="true", rejectedQueue="new/3")
        write(setting, columns)
        with sync.connect(served.url) as mq:
            counts = {queue: mq.queue(queue).information().messages for queue in ("new/1", "new/2", "new/3")}
        assert counts == {"new/1": 2, "new/2": 2, "new/3": 1}
        write(options_of(live, tmp_path, queue="other/1"), {"value": ["x"]}, number=1)
        with sync.connect(served.url) as mq:
            assert mq.queue("other/1").information().messages == 1, "a single queue needs no option"


# --- the queue of rejected rows --------------------------------------------------------------------------------------


def test_rejected_rows_have_their_reason_and_what_they_were(rejecting: Recorded, tmp_path: Path) -> None:
    setting = options_of(rejecting, tmp_path, rejectedQueue=BAD)
    write(setting, MIXED, parts=3)
    (first,), (second,) = taken(rejecting.served.url, "target/1"), taken(rejecting.served.url, "target/2")
    assert (first.id, first.raw, second.id, second.raw, second.headers.get("A")) == ("a", b"0", "a", b"2", "1")
    found = taken(rejecting.served.url, BAD)
    names = ("Rejected-Reason", "Rejected-Queue", "Rejected-Key", "Rejected-Headers-Omitted")
    assert [(message.id, message.raw, *map(message.headers.get, names)) for message in found] == [
        ("sink/0/1", b"", "value-null", "target/1", "a", None),
        ("sink/0/3", b"3", "key-too-long", "target/1", "k" * 300, None),
        ("sink/0/4", b"4", "queue-null", None, "", None),
        ("sink/0/5", b"5", "queue-invalid", "or ders", None, None),
        ("sink/0/6", b"6", "header-invalid", "target/1", "a", "1"),
    ]
    assert "is 'soon'; it must be a whole number" in (found[-1].headers.get("Rejected-Error") or "")


def test_too_large_rows_are_truncated(rejecting: Recorded, tmp_path: Path) -> None:
    setting = options_of(rejecting, tmp_path, queue="target/1", rejectedQueue=BAD)
    headers = [None, header("A", "v" * 66_000), None]
    write(setting, {"value": [b"x" * (70 << 20), b"h", b"last"], "headers": headers})
    assert drain(rejecting.served.url, "target/1") == [b"last"]
    body, large_headers = taken(rejecting.served.url, BAD)
    assert (len(body.raw), body.headers.get("Rejected-Body-Bytes")) == (1 << 20, str(70 << 20))
    assert body.headers.get("Rejected-Reason") == "value-too-large"
    assert (large_headers.raw, large_headers.headers.get("Rejected-Reason")) == (b"h", "headers-too-large")


def test_listeners_with_smaller_frames_are_protected_by_an_option(tmp_path: Path) -> None:
    arguments = ("--data-dir", str(tmp_path / "data"), "--admin", "http://127.0.0.1:0")
    with serving(*arguments, environment={**HISTORY, "MQCORE_FRAME_BYTES_MAX": str(1 << 20)}) as served:
        live = Recorded(tmp_path / "data", served)
        with sync.connect(served.url) as mq:
            declare(mq, "target/1", BAD)
        setting = options_of(live, tmp_path, queue="target/1", rejectedQueue=BAD, maxMessageBytes="1m")
        # Every size from one that fits to one that does not: the check and the broker never disagree.
        sizes = range((1 << 20) - 1200, (1 << 20) + 100, 50)
        write(setting, {"value": [b"x" * size for size in sizes]})
        accepted, rejected = len(drain(served.url, "target/1")), len(drain(served.url, BAD))
        assert accepted + rejected == len(sizes)
        assert accepted >= 4
        assert rejected >= 2


def test_body_that_the_queue_of_rejected_rows_limits_is_truncated(live: Recorded, tmp_path: Path) -> None:
    with sync.connect(live.served.url) as mq:
        mq.create_queue(BAD, QueueOptions(status="pull", request_acknowledge=True, message_size_limit=3))
    setting = options_of(live, tmp_path, queue="target/1", rejectedQueue=BAD)
    write(setting, {"value": ["abcde"], "key": ["k" * 256]})
    (message,) = taken(live.served.url, BAD)
    assert (message.raw, message.headers.get("Rejected-Body-Bytes")) == (b"abc", "5")


def test_crashes_neither_lose_nor_double_valid_and_rejected_rows(rejecting: Recorded, tmp_path: Path) -> None:
    setting = options_of(rejecting, tmp_path, queue="target/1", rejectedQueue=BAD, window="100")
    count = 1000
    keys = ["k" * 300 if number % 7 == 0 else f"key {number % 5}" for number in range(count)]
    promised(setting, {"value": [str(number) for number in range(count)], "key": keys}, parts=3)
    for rows in (100, 100, 300, 700, 1000):
        crash_after(setting, rows)
    finish(setting)
    valid = [number for number in range(count) if number % 7]
    assert [int(body) for body in drain(rejecting.served.url, "target/1")] == valid
    assert [int(body) for body in drain(rejecting.served.url, BAD)] == [
        number for number in range(count) if not number % 7
    ]


def test_another_queue_of_rejected_rows_after_a_crash_gets_the_rest(rejecting: Recorded, tmp_path: Path) -> None:
    setting = options_of(rejecting, tmp_path, queue="target/1", rejectedQueue=BAD, window="2")
    promised(setting, {"value": [None, None, "a", None]})
    crash_after(setting, 2)
    with pytest.raises(errors.InvalidArgument, match="3 of 4 rows"):
        finish(options_of(rejecting, tmp_path, queue="target/1"))
    finish(options_of(rejecting, tmp_path, queue="target/1", rejectedQueue="target/2", window="2"))
    counts = [len(drain(rejecting.served.url, queue)) for queue in (BAD, "target/1", "target/2")]
    assert counts == [2, 1, 1]


# --- what only publishing shows --------------------------------------------------------------------------------------


APP = '''
"""Refuses what is no number."""

import mqcore


class Numbers(mqcore.DeliveryHandler):
    """Refuses what is no number."""

    def received_from_producer(self, queue, message, producer):
        """Refuse what is no number."""
        if not message.body.isdigit():
            return mqcore.Decision(allow=False, acknowledge=mqcore.SendAck.NEGATIVE)
        return mqcore.Decision(save=True, acknowledge=mqcore.SendAck.IF_SAVED)


handlers = {"numbers": Numbers()}
'''


def test_rows_that_a_handler_refuses_are_rejected_at_once(tmp_path: Path) -> None:
    (tmp_path / "checked.py").write_text(APP)
    arguments = ("--data-dir", str(tmp_path / "data"), "--app", "checked:handlers", "--listen", "tmqp://127.0.0.1:0")
    with serving(*arguments, "--admin", "http://127.0.0.1:0", environment=HISTORY, cwd=tmp_path) as served:
        with sync.connect(served.url) as mq:
            declare(mq, BAD)
            mq.create_queue(
                "numbers/1", QueueOptions(status="pull", request_acknowledge=True, delivery_handler="numbers")
            )
        live = Recorded(tmp_path / "data", served)
        columns = {"value": ["1", "two", "3", "four", "5"], "key": ["a"] * 5}
        write(options_of(live, tmp_path, queue="numbers/1", rejectedQueue=BAD, retries="0"), columns)
        assert drain(served.url, "numbers/1") == [b"1", b"3", b"5"]
        found = taken(served.url, BAD)
        assert [(message.raw, message.headers.get("Rejected-Reason")) for message in found] == [
            (b"two", "refused"),
            (b"four", "refused"),
        ]
        with pytest.raises(errors.Nacked):
            write(options_of(live, tmp_path / "none", queue="numbers/1", retries="0"), columns)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[Recorded, dict[str, str]]]:
    """A broker with users, and tokens of an administrator and of a producer that may publish to two queues."""
    data_dir = tmp_path / "guarded"
    data_dir.mkdir()
    store = AuthorityStore.of_data_dir(data_dir)
    _, admin = store.add_token(json.dumps({"name": "admin", "allow": ["*"]}))
    _, producer = store.add_token(
        json.dumps({"name": "producer", "allow": ["push:target/1", "push:latest/1", f"push:{BAD}"]})
    )
    arguments = ("--data-dir", str(data_dir), "--admin", "http://127.0.0.1:0")
    with serving(*arguments, environment=HISTORY) as served:
        with sync.connect(served.url, token=admin) as mq:
            declare(mq, "target/1", "target/2", BAD)
            mq.create_queue("latest/1", QueueOptions(status="cache"))
        yield Recorded(data_dir, served), {"token": producer, "adminToken": admin}


@pytest.mark.parametrize("rejected", [False, True])
def test_a_missing_permission_for_one_of_several_queues_is_found_with_the_first_rows(
    rejected: bool, guarded: tuple[Recorded, dict[str, str]], tmp_path: Path
) -> None:
    live, tokens = guarded
    admin = tokens["adminToken"]
    count = 400
    columns = {"value": [str(number) for number in range(count)], "queue": ["target/1"] * 300 + ["target/2"] * 100}
    more = {"window": "50", **({"rejectedQueue": BAD} if rejected else {})}
    setting = options_of(live, tmp_path, **tokens, **more)
    if rejected:
        write(setting, columns)
        assert [int(message.raw) for message in taken(live.served.url, "target/1", admin)] == list(range(300))
        found = taken(live.served.url, BAD, admin)
        assert [int(message.raw) for message in found] == list(range(300, count))
        assert {message.headers.get("Rejected-Reason") for message in found} == {"not-permitted"}
        return
    with pytest.raises(errors.Unauthorized):
        write(setting, columns)
    with sync.connect(live.served.url, token=admin) as mq:
        assert mq.queue("target/1").information().messages <= 1, "at most the row that tests the queue"
    setting = options_of(live, tmp_path, token=admin, window="50")
    write(setting, columns)
    assert [int(message.raw) for message in taken(live.served.url, "target/1", admin)] == list(range(300))
    assert [int(message.raw) for message in taken(live.served.url, "target/2", admin)] == list(range(300, count))


def test_a_row_that_only_its_queue_refuses_is_rejected_or_named(
    guarded: tuple[Recorded, dict[str, str]], tmp_path: Path
) -> None:
    """The sink may not ask for the status of the queue, which is why it cannot delay messages."""
    live, tokens = guarded
    columns = {"value": list("abc"), "headers": [None, header("Mqcore-Delay", "5"), None]}
    write(options_of(live, tmp_path, **tokens, queue="latest/1", rejectedQueue=BAD), columns)
    (message,) = taken(live.served.url, BAD, tokens["adminToken"])
    assert (message.raw, message.headers.get("Rejected-Reason")) == (b"b", "refused")
    assert "cannot delay messages" in (message.headers.get("Rejected-Error") or "")
    with pytest.raises(errors.Unacceptable, match=r"cannot delay messages.*\(row 1 of batch sink/0\)"):
        write(options_of(live, tmp_path / "none", **tokens, queue="latest/1"), columns)


def test_a_producer_that_may_only_publish_continues_after_a_crash(
    guarded: tuple[Recorded, dict[str, str]], tmp_path: Path
) -> None:
    live, tokens = guarded
    setting = options_of(live, tmp_path, **tokens, queue="target/1", window="50")
    promised(setting, {"value": [str(number) for number in range(200)], "key": ["a", "b"] * 100})
    for rows in (50, 100):
        crash_after(setting, rows)
    finish(setting)
    found = taken(live.served.url, "target/1", tokens["adminToken"])
    assert [int(message.raw) for message in found] == list(range(200))


# --- repeated keys ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [1, 3, 150])
def test_rows_with_repeated_keys_arrive_once_in_order_with_their_keys(
    keys: int, live: Recorded, tmp_path: Path
) -> None:
    setting = options_of(live, tmp_path, window="100")
    count = 330
    columns = {
        "value": [str(number) for number in range(count)],
        "key": [f"key {number % keys}" for number in range(count)],
        "queue": [f"target/{1 + number % 2}" for number in range(count)],
    }
    promised(setting, columns, parts=2)
    for rows in (100, 200, 200):
        crash_after(setting, rows)
    finish(setting)
    for parity in range(2):
        found = taken(live.served.url, f"target/{1 + parity}")
        assert [(int(message.raw), message.id) for message in found] == [
            (number, f"key {number % keys}") for number in range(parity, count, 2)
        ]


def test_repeated_keys_wait_for_a_full_queue_and_keep_their_order(live: Recorded, tmp_path: Path) -> None:
    with sync.connect(live.served.url) as mq:
        limits = QueueOptions(message_limit=3, status=SAVING.status, delivery_handler="ack-on-save")
        mq.create_queue("small/1", limits)
    setting = options_of(live, tmp_path, queue="small/1", retries="1")
    columns = {"value": [str(number) for number in range(10)], "key": list("ababcabcab")}
    found: list[bytes] = []
    for _ in range(3):
        with pytest.raises(errors.LimitExceeded):
            write(setting, columns)
        found += drain(live.served.url, "small/1")
    write(setting, columns)
    found += drain(live.served.url, "small/1")
    assert Counter(map(int, found)) == Counter(range(10))


def test_a_key_that_is_the_name_of_another_row_hides_no_row(live: Recorded, tmp_path: Path) -> None:
    setting = options_of(live, tmp_path, queue="target/1", window="2")
    columns = {"value": list("abcd"), "key": ["sink/0/3", None, "sink/0/1", None]}
    promised(setting, columns)
    for rows in (2, 4):
        crash_after(setting, rows)
    finish(setting)
    assert drain(live.served.url, "target/1") == [b"a", b"b", b"c", b"d"]
    # In one window, too: the second row has the id of the third.
    columns = {"value": list("ef"), "key": ["sink/1/1", None]}
    write(setting, columns, number=1)
    assert drain(live.served.url, "target/1") == [b"e", b"f"]


def test_copies_that_headers_ask_for_are_not_made(live: Recorded, tmp_path: Path) -> None:
    setting = options_of(live, tmp_path, queue="target/1")
    headers = [header("CC", "target;2;b") + header("Mqcore-Sink", "other/0/0"), None]
    write(setting, {"value": ["a", "b"], "key": ["a", "b"], "headers": headers})
    first, second = taken(live.served.url, "target/1")
    assert [message.headers.get("CC") for message in (first, second)] == [None, None]
    assert [message.headers.get("Mqcore-Sink") for message in (first, second)] == ["sink/0/0", "sink/0/1"]
    assert drain(live.served.url, "target/2") == []


def test_options_of_rejected_rows_are_checked_at_start(tmp_path: Path) -> None:
    from mqcore.spark.sink import BatchWriter

    given = {"url": "tmqp://127.0.0.1:1", "stagingLocation": str(tmp_path)}
    for more, word in (
        ({"queue": "a b"}, "the option queue is 'a b'"),
        ({"queue": "a/1", "rejectedQueue": "b/70000"}, "the option rejectedQueue is 'b/70000'"),
        ({"queue": "a/1", "rejectedQueue": "a/1"}, "set another rejectedQueue"),
    ):
        setting = WriteOptions.parse({**given, **more}, streaming=False)
        with pytest.raises(errors.ConfigError, match=word):
            BatchWriter(setting, [("value", "string")])
