"""`mqcore journal replay`: publishes saved messages to another broker in order, once, and resumes where it stopped."""

from __future__ import annotations

import asyncio
import json
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import mqcore
import programs
from mqcore import QueueOptions, QueueStatus, _core, errors, journal
from served import ServedBroker, clean_environment, serving, wait_until

SAVING = QueueOptions(status=QueueStatus.PULL, request_acknowledge=True, delivery_handler="at-least-once")
NUMBERED = 600
"""Messages of orders/1: more than two batches."""


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "mqcore", "journal", "replay", *map(str, arguments)]


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `mqcore journal replay` and return how it ended."""
    environment = clean_environment()
    return programs.run(command(*arguments), capture_output=True, text=True, timeout=60, check=False, env=environment)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data directory of a killed broker: numbered messages, other queues, one high priority, two with one id."""
    directory = tmp_path_factory.mktemp("source") / "data"

    async def fill(broker: ServedBroker) -> None:
        async with mqcore.connect(broker.url) as mq:
            for channel, queue in (("orders", 1), ("orders", 2), ("others", 1)):
                await mq.declare(channel, queue, SAVING)
            await mq.publish_many("orders/1", [str(number) for number in range(NUMBERED)], headers={"Kind": "number"})
            await mq.publish("orders/2", "calm", id="twin")
            await mq.publish("orders/2", "calm again", id="twin")
            await mq.publish("orders/2", "urgent", high_priority=True)
            await mq.publish("others/1", b"\xff", headers=[("Kind", "bytes"), ("Replay-Queue", "before/1")])

    with serving("--data-dir", str(directory)) as broker:
        asyncio.run(fill(broker))
        broker.process.send_signal(signal.SIGKILL)
        broker.process.wait()
    return directory


@pytest.fixture
def target(tmp_path: Path) -> Iterator[ServedBroker]:
    """A broker that saves too."""
    with serving("--data-dir", str(tmp_path / "target")) as broker:
        declare(broker)
        yield broker


def declare(broker: ServedBroker, options: QueueOptions = SAVING) -> None:
    with mqcore.sync.connect(broker.url) as mq:
        mq.declare("again", 1, options)


def taken(broker: ServedBroker) -> list[mqcore.sync.Delivered[bytes]]:
    """Everything in again/1, in its order, out of the queue."""
    with mqcore.sync.connect(broker.url) as mq, mq.join("again"):
        stored = mq.queue("again/1").information()
        count = stored.messages + stored.priority_messages
        batch = mq.queue("again/1").pull(count, bytes) if count else []
        for message in batch:
            message.ack()
        return list(batch)


def stored(broker: ServedBroker) -> int:
    with mqcore.sync.connect(broker.url) as mq:
        return mq.queue("again/1").information().messages


def test_messages_come_in_order_with_their_ids_and_with_headers_that_say_where_from(
    source: Path, target: ServedBroker
) -> None:
    saved = list(journal.messages(source, "orders/1"))
    done = run(source, "--to", "again/1", "--from-queue", "ORDERS/1", "--url", target.url, "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["schema"], summary["published"], summary["total"]) == (
        "mqcore.journal.replay/1",
        NUMBERED,
        NUMBERED,
    )
    came = taken(target)
    assert [message.raw for message in came] == [str(number).encode() for number in range(NUMBERED)]
    assert [message.id for message in came] == [message.id for message in saved]
    for message, original in zip(came, saved, strict=True):
        assert message.headers["Kind"] == "number"
        assert message.headers["Replay-Queue"] == "orders/1"
        assert message.headers["Replay-Id"] == original.id
        assert datetime.fromisoformat(message.headers["Replay-Received"]) == original.received


def test_dry_run_lists_queues_of_a_pattern_and_replay_publishes_them(source: Path, target: ServedBroker) -> None:
    dry = run(source, "--to", "again/1", "--dry-run", "--json")
    assert dry.returncode == 0, dry.stderr
    output = json.loads(dry.stdout)
    assert output["messages"] == NUMBERED + 4
    assert {row["queue"]: row["messages"] for row in output["queues"]} == {
        "orders/1": NUMBERED,
        "orders/2": 3,
        "others/1": 1,
    }
    assert stored(target) == 0
    done = run(source, "--to", "again/1", "--from-queue", "o*/[12]", "--url", target.url)
    assert "0 messages published" in done.stderr, "only a star means something"
    done = run(source, "--to", "again/1", "--from-queue", "o*r*s/*", "--skip", NUMBERED, "--url", target.url)
    assert done.returncode == 0, done.stderr
    came = taken(target)
    assert [message.raw for message in came] == [b"urgent", b"calm", b"calm again", b"\xff"]
    assert [message.id for message in came[1:3]] == ["twin", "twin"], "two of one id are published one after the other"
    assert came[0].high_priority
    assert came[3].headers.get_all("Replay-Queue") == ["others/1"], "the latest replay's word counts"


def test_time_and_number_bound_what_is_replayed(source: Path, target: ServedBroker) -> None:
    saved = list(journal.messages(source, "orders/1"))
    now = datetime.now(UTC)
    assert len(journal.select(source, until=now - timedelta(hours=1))) == 0
    assert len(journal.select(source, until="1h")) == 0
    assert len(journal.select(source, "orders/1", since="1h", until=now)) == NUMBERED
    middle = saved[NUMBERED // 2].received
    split = [
        len(journal.select(source, "orders/1", since=middle)),
        len(journal.select(source, "orders/1", until=middle)),
    ]
    assert sum(split) == NUMBERED
    done = run(source, "--to", "again/1", "--limit", 7, "--since", "2020-01-01", "--url", target.url)
    assert done.returncode == 0, done.stderr
    assert [message.raw for message in taken(target)] == [str(number).encode() for number in range(7)]
    for wrong in (["--since", "yesterday"], ["--rate", "fast"], ["--rate", "0"]):
        assert run(source, "--to", "again/1", *wrong).returncode == 2


def test_a_rate_is_kept_and_nothing_is_left_out(source: Path, target: ServedBroker) -> None:
    began = time.monotonic()
    with mqcore.sync.connect(target.url) as mq:
        done = journal.replay(source, "again/1", mq, from_queue="orders/1", limit=60, rate=100)
    # The last burst of ten goes 0.5 s after the first.
    assert 0.5 <= done.seconds <= time.monotonic() - began
    assert [message.raw for message in taken(target)] == [str(number).encode() for number in range(60)]


def test_killed_and_resumed_nothing_is_lost_and_what_comes_twice_has_the_same_id(
    source: Path, target: ServedBroker, tmp_path: Path
) -> None:
    kept = tmp_path / "position"
    arguments = (source, "--to", "again/1", "--from-queue", "orders/1", "--url", target.url, "--resume", kept)
    kills = 0
    for wanted in (40, 150, 300):
        process = programs.Popen(
            command(*arguments, "--rate", "400/s"), stderr=subprocess.DEVNULL, env=clean_environment()
        )
        wait_until(lambda: kept.exists() and json.loads(kept.read_text())["position"] >= wanted, what="the position")  # noqa: B023
        process.kill()
        kills += process.wait() == -signal.SIGKILL
    assert kills == 3, "each was killed in the middle"
    last = run(*arguments)
    assert last.returncode == 0, last.stderr
    assert f"{NUMBERED} of {NUMBERED} done" in last.stderr
    ids = [message.id for message in journal.messages(source, "orders/1")]
    came = [message.id for message in taken(target)]
    assert list(dict.fromkeys(came)) == ids, "each came, first in its order"
    # A burst has 40 messages at this rate.
    assert len(came) - len(ids) <= 3 * 40
    assert run(*arguments).returncode == 0
    assert stored(target) == 0, "what is done is not done again"


def test_replay_with_a_new_position_begins_with_the_first_message(
    source: Path, target: ServedBroker, tmp_path: Path
) -> None:
    kept = tmp_path / "position"
    chosen = {"from_queue": "orders/1", "limit": 5, "resume": kept}
    done = mqcore.journal.replay(source, "again/1", target.url, **chosen)
    assert (done.published, done.position, done.total) == (5, 5, 5)
    assert [message.raw for message in taken(target)] == [b"0", b"1", b"2", b"3", b"4"]
    again = mqcore.journal.replay(source, "again/1", target.url, **chosen)
    assert (again.published, again.position, again.total) == (0, 5, 5)
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {"position": 0}))
    assert mqcore.journal.replay(source, "again/1", target.url, **chosen).published == 5


def test_a_position_is_not_taken_for_another_replays(source: Path, target: ServedBroker, tmp_path: Path) -> None:
    kept = tmp_path / "position"
    assert run(source, "--to", "again/1", "--limit", 5, "--url", target.url, "--resume", kept).returncode == 0
    for other in (["--to", "again/2"], ["--to", "again/1", "--from-queue", "orders/1"]):
        refused = run(source, *other, "--url", target.url, "--resume", kept)
        assert refused.returncode == 2
        assert "another replay" in refused.stderr
    further = run(source, "--to", "again/1", "--limit", 8, "--url", target.url, "--resume", kept)
    assert "3 messages published" in further.stderr
    kept.write_text("{}")
    assert "is not the position" in run(source, "--to", "again/1", "--url", target.url, "--resume", kept).stderr


def test_rejected_message_ends_replay_with_an_exit_code_and_a_position(
    source: Path, target: ServedBroker, tmp_path: Path
) -> None:
    kept = tmp_path / "position"
    missing = run(source, "--to", "nowhere/1", "--url", target.url, "--resume", kept)
    assert missing.returncode == 3, missing.stderr
    assert not kept.exists()
    with mqcore.sync.connect(target.url) as mq:
        mq.update_queue("again/1", QueueOptions(message_limit=100))
    full = run(source, "--to", "again/1", "--from-queue", "orders/1", "--url", target.url, "--resume", kept)
    assert full.returncode == 7, full.stderr
    assert f"stopped at position 100 of {NUMBERED}" in full.stderr
    assert len(taken(target)) == 100
    with mqcore.sync.connect(target.url) as mq:
        mq.update_queue("again/1", QueueOptions(message_limit=0))
    rest = run(source, "--to", "again/1", "--from-queue", "orders/1", "--url", target.url, "--resume", kept)
    assert rest.returncode == 0, rest.stderr
    assert [message.raw for message in taken(target)] == [str(number).encode() for number in range(100, NUMBERED)]


def fnv_1a(parts: Iterable[bytes]) -> int:
    value = 0xCBF29CE484222325
    for byte in b"".join(parts):
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value


def test_position_identifies_the_messages_by_a_hash_that_other_versions_repeat(
    source: Path, target: ServedBroker, tmp_path: Path
) -> None:
    """FNV-1a of the queue, its shard, and the number and rank of each message: the same if it was never requeued."""
    kept = tmp_path / "position"
    whole = (source, "--to", "again/1", "--from-queue", "orders/1", "--url", target.url, "--resume", kept)
    assert run(*whole).returncode == 0
    selection = _core.JournalSelection(str(source), "orders/1", 0, 2**63 - 1, lambda *_: None)
    numbers = [(shard, sequence) for shard, sequence, *_ in selection]
    assert len(numbers) == NUMBERED
    places = (struct.pack("<Qq", sequence, sequence) for _, sequence in numbers)
    expected = fnv_1a([b"orders/1", struct.pack("<Q", numbers[0][0]), *places])
    assert json.loads(kept.read_text())["messages"] == f"{expected:016x}"


def test_replay_reports_a_lost_broker_and_resumes_on_another(source: Path, tmp_path: Path) -> None:
    kept, directory = tmp_path / "position", str(tmp_path / "data")
    arguments = (source, "--to", "again/1", "--from-queue", "orders/1", "--resume", kept, "--timeout", "2s")
    with serving("--data-dir", directory) as broker:
        declare(broker)
        process = programs.Popen(
            command(*arguments, "--url", broker.url, "--rate", "400/s"),
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment(),
        )
        wait_until(kept.exists, what="the first position")
        broker.process.kill()
        _, talk = process.communicate(timeout=30)
    assert process.returncode == 5, talk
    assert "stopped at position" in talk
    with serving("--data-dir", directory) as broker:
        assert run(*arguments, "--url", broker.url).returncode == 0
        came = [message.raw for message in taken(broker)]
    assert list(dict.fromkeys(came)) == [str(number).encode() for number in range(NUMBERED)]


def test_without_a_broker_or_a_directory_the_code_says_which(source: Path, tmp_path: Path) -> None:
    assert run(source, "--to", "again/1", "--url", "tmqp://127.0.0.1:1").returncode == 5
    assert run(tmp_path / "nowhere", "--to", "again/1", "--dry-run").returncode == 3


def test_replay_publishes_everything_readable_of_a_damaged_journal(tmp_path: Path, target: ServedBroker) -> None:
    directory = tmp_path / "data"

    async def fill(broker: ServedBroker) -> None:
        async with mqcore.connect(broker.url) as mq:
            await mq.declare("orders", 1, SAVING)
            for number in range(20):
                await mq.publish("orders/1", f"body {number:02}")

    with serving("--data-dir", str(directory)) as broker:
        asyncio.run(fill(broker))
        broker.process.kill()
        broker.process.wait()
    (segment,) = [path for path in directory.rglob("*.segment") if b"body 03" in path.read_bytes()]
    content = bytearray(segment.read_bytes())
    content[content.index(b"body 03")] ^= 0xFF
    segment.write_bytes(content)
    assert run(directory, "--to", "again/1", "--dry-run").returncode == 6
    done = run(directory, "--to", "again/1", "--url", target.url)
    assert done.returncode == 6
    assert "list the damage with 'mqcore journal verify'" in done.stderr
    assert [message.raw for message in taken(target)] == [b"body %02d" % number for number in range(20) if number != 3]


async def test_a_program_replays_with_asyncio_and_without(source: Path) -> None:
    async with mqcore.Broker() as broker, broker.client() as mq:
        await mq.declare("again", 1, QueueOptions(status=QueueStatus.PULL))
        positions: list[tuple[int, int]] = []
        done = await journal.replay_async(
            source, "again/1", mq, from_queue="orders/1", advanced=lambda *position: positions.append(position)
        )
        assert (done.published, done.damaged) == (NUMBERED, False)
        assert positions[-1] == (NUMBERED, NUMBERED)
        assert [position for position, _ in positions] == sorted(position for position, _ in positions)
        again = await asyncio.to_thread(journal.replay, source, "again/1", broker, from_queue="others/1", confirm=False)
        assert again.published == 1
        with pytest.raises(errors.NotFound):
            await journal.replay_async(source, "missing/1", mq)
        with pytest.raises(errors.InvalidArgument, match="rate"):
            await journal.replay_async(source, "again/1", mq, rate=0)
