"""History and archive of a real broker that is killed in the middle, compared with what its clients counted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

import mqcore
import programs
from awaited import until
from damaged_files import use_old_placement
from mqcore import QueueOptions, QueueStatus
from served import ServedBroker, serving

HISTORY = {"MQCORE_SHARDS": "2", "MQCORE_HISTORY": "on", "MQCORE_ARCHIVE_INTERVAL": "100ms"}
FENCES = ("fence", "other fence")
"""The last messages before the kill. The next block, which the test does not await, records that they were saved."""
LIMIT = 15.0
"""Seconds that anything here may take."""
ARCHIVE_SECONDS = 45.0
"""Longest wait for the archive: its thread has a low priority and is slow while others use all processors."""


class Account:
    """Events that clients saw or caused, by the unique body of the message."""

    def __init__(self) -> None:
        self.published: dict[str, str] = {}
        """The queue of each."""
        self.steps: defaultdict[str, Counter[str]] = defaultdict(Counter)

    async def publish(self, mq: mqcore.Client, queue: str, *bodies: str, confirm: bool = True) -> None:
        for body in bodies:
            await mq.publish(queue, body, headers={"Body": body}, confirm=confirm)
            self.published[body] = queue
            self.steps[body]["produced"] += 1
            if confirm:
                self.steps[body]["saved"] += 1

    async def pull(self, mq: mqcore.Client, queue: str, count: int) -> list[mqcore.Delivered[str]]:
        """Up to `count` messages; empty when there is none."""
        found = list(await mq.queue(queue).pull(count, str))
        for message in found:
            self.steps[message.body]["delivered"] += 1
        return found

    async def ack(self, *messages: mqcore.Delivered[str]) -> None:
        for message in messages:
            assert await message.ack()
            self.steps[message.body]["acked"] += 1

    async def nack(self, *messages: mqcore.Delivered[str]) -> None:
        for message in messages:
            assert await message.nack("no")
            self.steps[message.body]["nacked"] += 1

    def total(self, kind: str) -> int:
        return sum(steps[kind] for steps in self.steps.values())


class Reader(threading.Thread):
    """Reads the newest manifest and what it names, over and over: it must be whole at every moment."""

    def __init__(self, archive: Path) -> None:
        super().__init__(daemon=True)
        self.archive = archive
        self.looked = 0
        self.numbers: set[int] = set()
        self.problem: BaseException | None = None
        self.enough = threading.Event()

    def run(self) -> None:
        try:
            whole: set[str] = set()
            while not self.enough.wait(0.005):
                manifest = newest(self.archive)
                if manifest is None:
                    continue
                assert manifest["number"] >= max(self.numbers, default=0), "the archive went back"
                for file in manifest["files"]:
                    if file["path"] not in whole:
                        footer = pyarrow.parquet.read_metadata(self.archive / file["path"])
                        assert footer.num_rows == file["rows"]
                        assert (self.archive / file["path"]).stat().st_size == file["bytes"]
                        whole.add(file["path"])
                assert whole == {file["path"] for file in manifest["files"]}, "nothing is removed here"
                self.numbers.add(manifest["number"])
                self.looked += 1
        except BaseException as problem:
            self.problem = problem


def newest(archive: Path) -> dict[str, Any] | None:
    """The newest manifest."""
    names = sorted((archive / "_manifests").glob("*.json"))
    if not names:
        return None
    manifest: dict[str, Any] = json.loads(names[-1].read_bytes())
    assert manifest["format"] == "mqcore.archive/1"
    return manifest


def rows(archive: Path, table: str) -> Iterator[dict[str, Any]]:
    """The rows of a table, file after file."""
    manifest = newest(archive)
    for file in manifest["files"] if manifest else ():
        if file["table"] == table:
            # Not the dataset reader, which would add the directory's names as columns.
            yield from pyarrow.parquet.ParquetFile(archive / file["path"]).read().to_pylist()


async def empty(mq: mqcore.Client, queue: str) -> None:
    """Wait until a queue has nothing."""
    end = time.monotonic() + LIMIT
    while (await mq.queue(queue).information()).messages:
        assert time.monotonic() < end, f"{queue} does not become empty"
        await asyncio.sleep(0.02)


async def archived(archive: Path, kind: str, count: int) -> None:
    """Wait until the archive has so many steps of a kind."""
    end = time.monotonic() + ARCHIVE_SECONDS
    while (found := sum(row["kind"] == kind for row in rows(archive, "steps"))) < count:
        assert time.monotonic() < end, f"{found} of {count} steps {kind} are archived"
        await asyncio.sleep(0.1)


async def declare(mq: mqcore.Client) -> None:
    saving = {"status": QueueStatus.PULL, "request_acknowledge": True, "delivery_handler": "at-least-once"}
    await mq.declare("work", 9, QueueOptions(**saving))
    await mq.declare("work", 1, QueueOptions(**saving, put_back_limit=1, retry_delay=0, dead_letter="work/9"))
    await mq.declare("work", 2, QueueOptions(**saving, acknowledge_timeout=1.5))
    await mq.declare("work", 3, QueueOptions(**saving, acknowledge_timeout=60))
    await mq.declare("work", 4, QueueOptions(status=QueueStatus.BROADCAST, delivery_handler="memory"))
    await mq.declare("work", 5, QueueOptions(status=QueueStatus.PULL, delivery_handler="memory", message_timeout=0.2))
    await mq.declare("other", 1, QueueOptions(**saving))


async def refuse_some(mq: mqcore.Client, account: Account) -> set[str]:
    """Acknowledge a third, refuse the others, half of them twice; what is refused too often is a dead letter."""
    first = await account.pull(mq, "work/1", 30)
    assert len(first) == 30
    await account.ack(*first[::3])
    again = {message.body for message in first} - {message.body for message in first[::3]}
    await account.nack(*(message for message in first if message.body in again))
    second: list[mqcore.Delivered[str]] = []
    end = time.monotonic() + LIMIT
    while len(second) < len(again):
        second += await account.pull(mq, "work/1", 30)
        assert time.monotonic() < end, "what was refused comes again"
    await account.ack(*second[::2])
    await account.nack(*second[1::2])
    await empty(mq, "work/1")
    return {message.body for message in second[1::2]}


async def be_late(mq: mqcore.Client, account: Account) -> set[str]:
    """Let some messages time out, and acknowledge them when they are redelivered."""
    late = {message.body for message in await account.pull(mq, "work/2", 5)}
    assert len(late) == 5
    done: set[str] = set()
    end = time.monotonic() + LIMIT
    while done != late:
        for message in await account.pull(mq, "work/2", 5):
            await account.ack(message)
            done.add(message.body)
        assert time.monotonic() < end, "what timed out comes again"
        await asyncio.sleep(0.02)
    await empty(mq, "work/2")
    return late


@pytest.mark.timeout(120)
async def test_the_archive_tells_what_clients_saw_over_a_kill_and_is_whole_at_every_moment(tmp_path: Path) -> None:
    directory, archive, account = tmp_path / "data", tmp_path / "data" / "archive", Account()
    use_old_placement(directory, HISTORY["MQCORE_SHARDS"])  # Its channels are on both shards.
    reader = Reader(archive)
    reader.start()
    with serving("--data-dir", str(directory), environment=HISTORY) as broker:
        async with mqcore.connect(broker.url, name="tester") as mq:
            await declare(mq)
            await account.publish(mq, "work/1", *(f"one {number}" for number in range(30)))
            await account.publish(mq, "work/2", *(f"two {number}" for number in range(5)))
            await account.publish(mq, "work/3", *(f"three {number}" for number in range(4)))
            await account.publish(mq, "other/1", *(f"other {number}" for number in range(6)))
            unheard, brief = [f"four {number}" for number in range(7)], [f"five {number}" for number in range(6)]
            await account.publish(mq, "work/4", *unheard, confirm=False)
            await account.publish(mq, "work/5", *brief, confirm=False)
            dead = await refuse_some(mq, account)
            late = await be_late(mq, account)
            await empty(mq, "work/5")
            in_flight = await account.pull(mq, "work/3", 2)
            await archived(archive, "timed-out", 1)
            # Durable messages have their history; these receipts confirm it for all earlier messages.
            await account.publish(mq, "work/3", FENCES[0])
            await account.publish(mq, "other/1", FENCES[1])
            broker.process.kill()
            broker.process.wait()
    restored = {body for body, queue in account.published.items() if queue in ("work/3", "other/1")}
    with serving("--data-dir", str(directory), environment=HISTORY) as broker:
        async with mqcore.connect(broker.url, name="tester") as mq:
            again = await account.pull(mq, "work/3", 9)
            assert {message.body for message in in_flight} < {message.body for message in again}
            await account.ack(*again)
            letters = await account.pull(mq, "work/9", 30)
            assert {message.body for message in letters} == dead
            await account.ack(*letters)
            others = await account.pull(mq, "other/1", 3)
            await account.ack(*others)
            await empty(mq, "work/9")
            await empty(mq, "work/3")
        await archived(archive, "acked", account.total("acked"))
        assert broker.terminate() == 0
    reader.enough.set()
    reader.join(LIMIT)
    if reader.problem is not None:
        raise reader.problem
    assert reader.looked > 20
    assert len(reader.numbers) > 2
    compare(archive, account, dead=dead, late=late, dropped={*unheard, *brief}, restored=restored)


def compare(
    archive: Path, account: Account, *, dead: set[str], late: set[str], dropped: set[str], restored: set[str]
) -> None:
    """Compare both tables with the account."""
    bodies: dict[tuple[int, int], str] = {}
    for row in rows(archive, "messages"):
        body = row["body"].decode()
        bodies[row["shard"], row["number"]] = body
        assert row["queue"] == ("work/9" if row["kind"] == "arrived" else account.published[body])
        assert {"key": "Body", "value": row["body"]} in row["headers"]
        assert row["body_bytes"] == len(body)
        assert row["high_priority"] is False
        if row["kind"] == "produced":
            assert row["producer_name"] == "tester"
            assert row["headers"] == [{"key": "Body", "value": row["body"]}]
    came = Counter(bodies.values())
    assert came == Counter([*account.published, *dead]), "a row for each message that came, none twice"

    places = set()
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    lasts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for row in rows(archive, "steps"):
        places.add((row["shard"], row["note"], row["position"]))
        if row["queue"] is None:
            found[""][row["kind"]] += 1
            continue
        if row["kind"] == "restored":
            numbers = [number for part in row["numbers"] for number in range(part["first"], part["last"] + 1)]
            assert len(numbers) == row["messages"]
            for number in numbers:
                found[bodies[row["shard"], number]]["restored"] += 1
            continue
        assert row["messages"] is None
        body = bodies[row["shard"], row["number"]]
        found[body][row["kind"]] += 1
        lasts[body] += row["last"]
        if row["kind"] == "dropped":
            reasons[row["reason"]] += 1
        if row["kind"] in ("delivered", "acked", "nacked"):
            assert row["consumer_name"] == "tester"
        if row["kind"] == "dead-lettered":
            assert row["target"] == "work/9"
    manifest = newest(archive)
    assert manifest is not None
    assert len(places) == sum(file["rows"] for file in manifest["files"] if file["table"] == "steps")
    assert all(reach["missing"] == 0 for reach in manifest["shards"].values())
    assert found.pop("") == Counter(started=4), "two shards, twice"
    for body, steps in account.steps.items():
        for kind in ("produced", "delivered", "acked", "nacked", "saved"):
            expected = steps[kind] + (kind == "saved" and body in dead)
            if kind == "saved" and body in FENCES:
                assert found[body][kind] <= expected, (body, kind, found[body])
            else:
                assert found[body][kind] == expected, (body, kind, found[body])
        assert found[body]["dead-lettered"] == found[body]["arrived"] == (body in dead), body
        assert found[body]["timed-out"] == (steps["delivered"] - 1 if body in late else 0), body
        assert found[body]["restored"] >= (body in restored), body
        assert found[body]["restored"] <= (body in restored or body in dead), body
        gone = steps["acked"] + (body in dead) + (body in dropped)
        assert lasts[body] == gone, (body, found[body])
    assert sum(reasons.values()) + sum(steps["expired"] for steps in found.values()) >= len(dropped)
    assert reasons["no-consumer"] == 7
    assert sum(found[body]["expired"] for body in dropped) == 6


def metric(broker: ServedBroker, name: str) -> int:
    """A number of the metrics page."""
    with urllib.request.urlopen(f"{broker.admin_url}/metrics", timeout=5) as page:
        for line in page.read().decode().splitlines():
            if line.startswith(f"{name} "):
                return int(line.split()[1])
    raise AssertionError(f"the metrics do not have {name}")


def fill_up(path: Path) -> None:
    """Take all the space that is left on a disk."""
    with path.open("wb", buffering=0) as file:
        for size in (1024 * 1024, 4096):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)):
                    pass


def page(broker: ServedBroker, path: str) -> dict[str, Any]:
    """A page of the admin side."""
    with urllib.request.urlopen(f"{broker.admin_url}{path}", timeout=5) as answer:
        found: dict[str, Any] = json.loads(answer.read())
    return found


@pytest.mark.timeout(240)
async def test_readiness_and_overview_report_an_archive_that_falls_behind(tmp_path: Path) -> None:
    directory, archive = tmp_path / "data", tmp_path / "archive"
    directory.mkdir()
    # The target does not exist yet, so that nothing can be written there.
    (directory / "archive").symlink_to(archive)
    account = Account()
    with serving("--data-dir", str(directory), "--admin", "http://127.0.0.1:0", environment=HISTORY) as broker:
        async with mqcore.connect(broker.url, name="tester") as mq:
            await declare(mq)
            await account.publish(mq, "work/3", *(f"message {number}" for number in range(10)))
            # It is late, and then found to fail.
            await until(
                lambda: page(broker, "/readyz").get("archive", {}).get("state") == "failing",
                "the report",
                limit=ARCHIVE_SECONDS,
            )
            ready = page(broker, "/readyz")
            assert ready["status"] == "ready"
            assert page(broker, "/overview")["archive"]["state"] == "failing"
            assert str(directory / "archive") in ready["archive"]["error"]
            since = ready["archive"]["failing_since_ms"]
            assert 0 <= time.time() - since / 1000 < ARCHIVE_SECONDS
            first = ready["archive"]["waiting_seconds"]
            await until(lambda: page(broker, "/readyz")["archive"]["waiting_seconds"] > first, "the time")
            failures = metric(broker, "mqcore_archive_failures_total")
            await until(lambda: metric(broker, "mqcore_archive_failures_total") > failures, "another attempt")
            assert page(broker, "/readyz")["archive"]["failing_since_ms"] == since
            archive.mkdir()
            await until(
                lambda: "archive" not in page(broker, "/readyz"), "the end of the report", limit=ARCHIVE_SECONDS
            )
            await archived(archive, "saved", 10)
        await until(
            lambda: page(broker, "/overview")["archive"]["state"] == "up-to-date", "the state", limit=ARCHIVE_SECONDS
        )
        assert broker.terminate() == 0
    with serving("--data-dir", str(tmp_path / "other"), "--admin", "http://127.0.0.1:0") as broker:
        assert page(broker, "/overview")["archive"] is None


async def test_a_full_disk_stops_only_the_archive_until_there_is_space_again(tmp_path: Path, small_disk: Path) -> None:
    directory, archive, filler = tmp_path / "data", small_disk / "archive", small_disk / "filler"
    # Of its own disk, so that the journal continues while this one is full.
    archive.mkdir()
    directory.mkdir()
    (directory / "archive").symlink_to(archive)
    fill_up(filler)
    account = Account()
    with serving("--data-dir", str(directory), "--admin", "http://127.0.0.1:0", environment=HISTORY) as broker:
        async with mqcore.connect(broker.url, name="tester") as mq:
            await declare(mq)
            await account.publish(mq, "work/3", *(f"before {number}" for number in range(10)))
            await until(lambda: metric(broker, "mqcore_archive_failing") == 1, "the alarm")
            assert metric(broker, "mqcore_archive_failures_total") >= 1
            await account.publish(mq, "work/3", *(f"meanwhile {number}" for number in range(5)))
            messages = await account.pull(mq, "work/3", 10)
            assert len(messages) == 10
            await account.ack(*messages)
            assert newest(archive) is None
            filler.unlink()
            await until(lambda: metric(broker, "mqcore_archive_failing") == 0, "the end of the alarm")
            await archived(archive, "saved", 15)
            await archived(archive, "acked", 10)
        assert metric(broker, "mqcore_archive_notes_lost_total") == 0
        assert metric(broker, "mqcore_history_events_dropped_total") == 0
        assert broker.terminate() == 0
    assert sorted(row["body"].decode() for row in rows(archive, "messages")) == sorted(account.published)
    assert not any((archive / "_tmp").glob("*"))


@contextlib.contextmanager
def busy_processor(threads: int) -> Iterator[int]:
    """Occupies one processor with so many processes until the block ends: its number."""
    processor = min(os.sched_getaffinity(0))
    run = f"import os; os.sched_setaffinity(0, [{processor}])\nwhile True: pass"
    processes = [programs.Popen([sys.executable, "-c", run]) for _ in range(threads)]
    try:
        yield processor
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has processor affinity and priorities of threads")
async def test_a_stop_on_a_busy_machine_does_not_wait_for_the_archive(tmp_path: Path) -> None:
    data = tmp_path / "data"
    queues = 40
    with serving(environment=HISTORY | {"MQCORE_DATA_DIR": str(data)}) as broker:
        async with mqcore.connect(broker.url) as mq:
            for queue in range(queues):
                await mq.declare("work", queue + 1, QueueOptions(status=QueueStatus.PULL))
            with busy_processor(4) as processor:
                for task in os.listdir(f"/proc/{broker.process.pid}/task"):
                    os.sched_setaffinity(int(task), [processor])
                for number in range(50 * queues):
                    await mq.publish(f"work/{number % queues + 1}", str(number), confirm=number % 50 == 0)
                files = data / "archive" / "messages"
                await until(lambda: any(files.rglob("*.parquet")), "the beginning of a round", limit=ARCHIVE_SECONDS)
                assert broker.terminate() == 0
