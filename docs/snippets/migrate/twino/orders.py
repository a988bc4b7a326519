"""A consumer with the options that Horse sets with attributes, and a producer."""

import asyncio
from dataclasses import dataclass

import mqcore


@dataclass
class Order:
    number: int
    sku: str


async def main() -> None:
    async with mqcore.connect("tmqp://127.0.0.1:2622", name="billing", kind="service") as client:
        await client.declare(
            "orders",
            1001,
            mqcore.QueueOptions(
                status=mqcore.QueueStatus.ROUND_ROBIN,  # QueueType
                request_acknowledge=True,  # Acknowledge
                acknowledge_timeout="30s",  # AcknowledgeTimeout
                retry_delay="1s",  # Retry
                dead_letter="orders/9001",  # MoveOnError
            ),
        )
        await client.publish("orders/1001", Order(1, "A-100"), high_priority=True)
        async with client.queue("orders/1001").consume(Order) as messages:  # QueueName
            async for message in messages:
                async with message.process():  # AutoAck, AutoNack
                    print("billed", message.body)
                break


asyncio.run(main())
