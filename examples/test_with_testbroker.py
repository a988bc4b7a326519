"""Test of a program that uses mqcore: the same core in memory, with a clock that the test controls."""

from mqcore import QueueOptions, QueueStatus
from mqcore.testing import TestBroker


async def test_unacknowledged_order_is_redelivered() -> None:
    """An hour of waiting takes no time here."""
    options = QueueOptions(status=QueueStatus.ROUND_ROBIN, request_acknowledge=True, acknowledge_timeout="1h")
    async with TestBroker() as mq, mq.client() as client:
        await client.create_queue("orders/1001", options)
        async with client.queue("orders", 1001).consume() as messages:
            await client.publish("orders/1001", b"three of A-100")
            first = await anext(messages)
            await mq.clock.advance(hours=1)  # acknowledgements time out now
            second = await anext(messages)
            assert first.id == second.id
            await second.ack()
        await mq.settle()  # wait until the broker is idle; no sleeps needed
        assert mq.messages("orders/1001") == []
