"""A broker, a queue and a message, all in one process."""

import asyncio

import mqcore


async def main() -> None:
    """Publish a message and consume it."""
    async with mqcore.Broker(auto_create_channels=True, auto_create_queues=True) as broker, broker.client() as client:
        receipt = await client.publish("orders/1", "three of A-100")
        async with client.queue("orders/1").consume(str) as messages:
            print((await anext(messages)).body, "- confirmed by", receipt.by)


asyncio.run(main())
