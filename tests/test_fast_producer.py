"""A producer that is ten times faster than its consumer: memory stays at its limit, and the consumer keeps its pace."""

from __future__ import annotations

import asyncio
import select
import threading
import time

import pytest

import mqcore
from depth import by_depth
from hostile.crowd import Usage
from metrics import metric
from mqcore import QueueOptions, QueueStatus
from protocols.conversation import Client
from served import ServedBroker, serving, wait_until
from tmqp_peer import QUEUE, RawFrame

SECONDS = by_depth(1.5, 60.0)
LIMIT_BYTES = by_depth(16 << 20, 1 << 30)
"""The limit of messages that are only in memory."""
BODY = 4096
CONSUMED_PER_SECOND = by_depth(1000, 2000)
"""Messages. The producer publishes as many as the broker reads."""
PULLED = 50
"""Messages that the consumer pulls at a time."""
SLACK = 48 << 20
"""Memory for other things: the limit counts messages, not connections and what allocators keep."""
WAIT_MAX = 10.0
"""The longest that the consumer may wait for messages, on a machine that does other things."""

IN = 'mqcore_messages_total{outcome="in"}'
REJECTED = "mqcore_unsaved_memory_rejected_total"


def publish(broker: ServedBroker, end: float, sent: list[int]) -> None:
    """Publish as fast as the broker reads, and read its rejections."""
    frame = RawFrame(kind=QUEUE, id=b"m", target=b"work", content_type=1, payload=b"x" * BODY).encode()
    with Client(*broker.address, timeout=60.0) as peer:
        peer.hello()
        stream, rest = peer.socket, b""
        stream.setblocking(False)
        while rest or time.monotonic() < end:
            if not rest:
                rest = frame * 64
                sent[0] += 64
            readable, writable, _ = select.select([stream], [stream], [], 1.0)
            if readable:
                assert stream.recv(1 << 20), "the broker closed the connection"
            if writable:
                rest = rest[stream.send(rest) :]
        wait_until(
            lambda: metric(broker, IN) + metric(broker, REJECTED) == sent[0], limit=30.0, what="all messages arrived"
        )


@pytest.mark.timeout(by_depth(60, 300))
async def test_a_producer_faster_than_its_consumer_meets_a_limit_of_memory() -> None:
    arguments = ("--admin", "http://127.0.0.1:0", "--unsaved-memory-max", str(LIMIT_BYTES))
    sent, received, waits, most = [0], 0, [], 0
    with serving(*arguments) as broker:
        async with mqcore.connect(broker.url) as mq:
            await mq.declare("work", 1, QueueOptions(status=QueueStatus.PULL, delivery_handler="memory"))
            before = Usage.of(broker.process.pid).resident
            began = time.monotonic()
            producer = threading.Thread(target=publish, args=(broker, began + SECONDS, sent))
            producer.start()
            async with mq.join("work"):
                await asyncio.to_thread(wait_until, lambda: metric(broker, IN) > PULLED, what="the first messages")
                while producer.is_alive():
                    due = time.monotonic() + PULLED / CONSUMED_PER_SECOND
                    asked = time.monotonic()
                    async with asyncio.timeout(WAIT_MAX):
                        found = await mq.queue("work/1").pull(PULLED)
                    waits.append(time.monotonic() - asked)
                    assert len(found) == PULLED, "there is always more than that"
                    received += len(found)
                    most = max(most, Usage.of(broker.process.pid).resident)
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
            await asyncio.to_thread(producer.join)
            seconds = time.monotonic() - began
            rejected = metric(broker, REJECTED)
            left = (await mq.queue("work/1").information()).messages
    waits.sort()
    print(
        f"{sent[0] / seconds:.0f} messages/s published, {received / seconds:.0f} consumed, {rejected} rejected; "
        f"{most >> 20} MiB resident at most, {before >> 20} before, limit {LIMIT_BYTES >> 20}; "
        f"a pull takes {waits[len(waits) // 2] * 1000:.1f} ms, p99 {waits[len(waits) * 99 // 100] * 1000:.1f} ms"
    )
    assert rejected, "the limit was reached"
    assert sent[0] - rejected == received + left, "accepted, and lost"
    assert most <= before + LIMIT_BYTES * 1.1 + SLACK
