"""A confirmed publish waits for its copies, and its receipt reports the copies that no queue took."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import mqcore
import mqcore.sync
import programs
from awaited import until
from mqcore import QueueOptions, errors
from mqcore.client import Client, CopyReceipt, Receipt
from mqcore.config import QueueStatus
from served import ServedBroker, clean_environment, serving, tmqp_address
from slow_sync import slow_sync
from tcp_proxy import TcpProxy

PULL = QueueOptions(status=QueueStatus.PULL)
SAVING = QueueOptions(status=QueueStatus.PULL, delivery_handler="at-least-once")
BY_CONSUMER = QueueOptions(
    status=QueueStatus.PUSH, request_acknowledge=True, acknowledge_timeout="60s", delivery_handler="ack-on-consume"
)
"""A queue that confirms when a consumer acknowledges: with no consumer, not within any time limit of a test."""
LIMIT = 10.0
"""Seconds for anything that needs milliseconds."""


@pytest.fixture
async def mq(broker: mqcore.Broker) -> AsyncIterator[Client]:
    """A client of the embedded broker, over TCP."""
    async with mqcore.connect(broker.listeners[0]) as client:
        yield client


async def declare(client: Client, **queues: QueueOptions) -> None:
    for channel, options in queues.items():
        await client.declare(channel, 1, options)


def outcomes(receipt: Receipt) -> list[tuple[str, str]]:
    return [(copy.queue, copy.status) for copy in receipt.copies]


async def test_rejected_copy_is_reported_with_the_reason() -> None:
    with serving() as served:
        async with mqcore.connect(served.url) as mq:
            await mq.create_queue("a/1", PULL)
            await mq.create_queue("full/1", QueueOptions(status=QueueStatus.PULL, message_limit=1))
            await mq.publish("full/1", b"the only one")
            receipt = await mq.publish("a/1", b"x", cc=["nochan/9", "a/1", "full/1"])
            assert receipt.by == "server"
            assert outcomes(receipt) == [("nochan/9", "rejected"), ("a/1", "confirmed"), ("full/1", "rejected")]
            missing, full = receipt.rejected
            assert missing.reason is not None
            assert "nochan" in missing.reason
            assert full.reason is not None
            assert "is full" in full.reason
            assert (await mq.queue_information("a/1")).messages == 2
            assert mq.counters.refused_unconfirmed == 0


async def test_all_copies_are_confirmed_in_the_order_of_cc(mq: Client) -> None:
    await declare(mq, a=PULL, b=PULL, c=PULL)
    receipt = await mq.publish("a/1", b"x", cc=["c/1", ("b/1", "my-id")])
    assert receipt.copies == (CopyReceipt("c/1", "confirmed"), CopyReceipt("b/1", "confirmed"))
    assert receipt.rejected == ()
    copy = (await mq.queue("b/1").pull())[0]
    assert (copy.id, copy.raw) == ("my-id", b"x")


async def test_each_of_many_messages_reports_its_own_copies(mq: Client) -> None:
    await declare(mq, a=PULL, few=QueueOptions(status=QueueStatus.PULL, message_limit=2))
    receipts = await mq.publish_many("a/1", [b"1", b"2", b"3"], cc=["few/1", "a/1"])
    taken = [[copy.status for copy in receipt.copies] for receipt in receipts]
    assert taken == [["confirmed", "confirmed"]] * 2 + [["rejected", "confirmed"]]


async def test_rejected_message_raises_at_once_though_its_copy_is_not_confirmed(mq: Client) -> None:
    await declare(mq, full=QueueOptions(status=QueueStatus.PULL, message_limit=1), waits=BY_CONSUMER)
    await mq.publish("full/1", b"the only one")
    async with asyncio.timeout(LIMIT):
        with pytest.raises(errors.LimitExceeded):
            await mq.publish("full/1", b"x", cc=["waits/1"], timeout="60s")
        answers = await mq.publish_many("full/1", [b"x"], cc=["waits/1"], timeout="60s", return_exceptions=True)
    assert isinstance(answers[0], errors.LimitExceeded)
    # The queue of the copy has taken it nevertheless.
    async with asyncio.timeout(LIMIT), mq.queue("waits/1").consume() as messages:
        for _ in range(2):
            message = await anext(messages)
            assert message.raw == b"x"
            await message.ack()


async def test_copy_without_a_confirmation_in_time_is_unconfirmed(mq: Client) -> None:
    await declare(mq, a=PULL, waits=BY_CONSUMER)
    receipt = await mq.publish("a/1", b"x", cc=["waits/1", "a/1"], timeout="300ms")
    assert outcomes(receipt) == [("waits/1", "unconfirmed"), ("a/1", "confirmed")]
    assert receipt.rejected == ()
    assert receipt.copies[0].reason is not None
    assert "waits/1" in receipt.copies[0].reason


async def test_consumer_confirms_and_rejects_copies(mq: Client) -> None:
    await declare(mq, a=PULL, waits=BY_CONSUMER)
    async with mq.queue("waits/1").consume() as messages:
        publishing = asyncio.ensure_future(mq.publish_many("a/1", [b"good", b"bad"], cc=["waits/1"], timeout="60s"))
        async with asyncio.timeout(LIMIT):
            for _ in range(2):
                message = await anext(messages)
                await (message.ack() if message.raw == b"good" else message.nack("spoiled"))
            good, bad = await publishing
    assert outcomes(good) == [("waits/1", "confirmed")]
    assert [(copy.status, copy.reason) for copy in bad.rejected] == [("rejected", "spoiled")]


async def test_wrong_copies_are_invalid_and_nothing_is_sent(mq: Client) -> None:
    await declare(mq, a=PULL)
    for cc, said in (
        (["a/1"] * 65, "65 copies exceed the limit of 64"),
        ([("a/1", "same"), ("a/1", "same")], "use another id"),
        ([("a/1", "mine")], "use another id"),
        ([("a/1", "a;b")], "semicolon"),
        ([("a/1", " b")], "white space"),
        ([("a/1", "i" * 256)], "256 bytes exceed the limit of 255"),
    ):
        with pytest.raises(errors.InvalidArgument, match=said):
            await mq.publish("a/1", b"x", id="mine", cc=cc)
    with pytest.raises(errors.InvalidArgument, match="for one message"):
        await mq.publish_many("a/1", [b"x"], cc=[("a/1", "own")])
    assert (await mq.queue_information("a/1")).received_messages == 0
    receipt = await mq.publish("a/1", b"x", cc=["a/1"] * 64)
    assert [copy.status for copy in receipt.copies] == ["confirmed"] * 64


async def test_copies_beyond_the_size_limit_are_rejected_and_the_message_is_confirmed() -> None:
    settings = mqcore.BrokerConfig(
        listen=("tmqp://127.0.0.1:0",), auto_create_channels=True, auto_create_queues=True, frame_bytes_max=20_000
    )
    async with mqcore.Broker(settings) as broker, mqcore.connect(broker.listeners[0]) as mq:
        await declare(mq, a=PULL, b=PULL)
        receipt = await mq.publish("a/1", b"x" * 9_000, cc=["b/1"] * 4)
        assert [copy.status for copy in receipt.copies] == ["confirmed"] * 2 + ["rejected"] * 2
        assert receipt.rejected[0].reason is not None
        assert "64 copies" in receipt.rejected[0].reason
        assert (await mq.queue_information("b/1")).messages == 2


async def test_publish_without_confirmation_reports_no_copies(mq: Client) -> None:
    await declare(mq, a=PULL)
    receipt = await mq.publish("a/1", b"x", confirm=False, cc=["stopped/1"])
    assert (receipt.by, receipt.copies) == (None, ())


def test_blocking_client_reports_copies(broker: mqcore.Broker) -> None:
    with mqcore.sync.connect(broker.listeners[0]) as mq:
        mq.create_queue("a/1", PULL)
        mq.create_queue("off/1", QueueOptions(status=QueueStatus.STOPPED))
        assert outcomes(mq.publish("a/1", b"x", cc=["off/1", "a/1"])) == [("off/1", "rejected"), ("a/1", "confirmed")]
        (receipt,) = mq.publish_many("a/1", [b"x"], cc=["off/1"])
        assert [copy.queue for copy in receipt.rejected] == ["off/1"]


def test_confirmed_copy_in_a_saving_queue_survives_a_kill(tmp_path: Path) -> None:
    """Each sync takes 150 ms, so a receipt that did not wait for the copy would come before it is saved."""
    environment = slow_sync(tmp_path, milliseconds=150)
    arguments = ("--data-dir", str(tmp_path / "data"))
    with serving(*arguments, environment=environment) as served, mqcore.sync.connect(served.url) as mq:
        mq.create_queue("memory/1", PULL)
        mq.create_queue("disk/1", SAVING)
        receipt = mq.publish("memory/1", b"precious", cc=["disk/1"])
        served.process.send_signal(signal.SIGKILL)
        served.process.wait()
    assert outcomes(receipt) == [("disk/1", "confirmed")]
    assert receipt.latency >= 0.15
    with serving(*arguments) as served, mqcore.sync.connect(served.url) as mq:
        assert [message.raw for message in mq.queue("disk/1").pull()] == [b"precious"]


async def test_lost_connection_leaves_copies_unconfirmed(broker: mqcore.Broker, mq: Client) -> None:
    await declare(mq, a=PULL, waits=BY_CONSUMER)
    async with TcpProxy(*tmqp_address(broker)) as proxy, mqcore.connect(proxy.url) as far:
        publishing = asyncio.ensure_future(far.publish("a/1", b"x", cc=["waits/1"], timeout="60s"))
        await until(lambda: broker.stats().queue("waits/1").received == 1)
        # Its answer comes behind the confirmation of the message.
        await far.queue_information("a/1")
        await proxy.cut()
        receipt = await asyncio.wait_for(publishing, LIMIT)
    assert outcomes(receipt) == [("waits/1", "unconfirmed")]


def run(served: ServedBroker, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = clean_environment() | {"MQCORE_URL": served.url}
    command = [sys.executable, "-m", "mqcore", *arguments]
    return programs.run(command, capture_output=True, text=True, timeout=30, check=False, env=environment)


def test_command_line_reports_rejected_copies_and_exits_with_1() -> None:
    with serving() as served:
        assert run(served, "queue", "create", "a/1", "--status", "pull").returncode == 0
        done = run(served, "publish", "a/1", "x", "--count", "3", "--cc", "nochan/9", "--cc", "a/1")
        assert done.returncode == 1
        assert "3 of 3 copies to nochan/9 rejected: " in done.stderr
        done = run(served, "publish", "a/1", "x", "--cc", "nochan/9", "--json")
        assert done.returncode == 1
        (copy,) = json.loads(done.stdout)["failed_copies"]
        assert (copy["queue"], copy["count"]) == ("nochan/9", 1)
        assert run(served, "publish", "a/1", "x", "--cc", "a/1").returncode == 0
