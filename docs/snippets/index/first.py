"""Publish an order, and consume it."""

import asyncio

import mqcore


async def main() -> None:
    """Use the broker of the first terminal."""
    async with mqcore.connect("tmqp://127.0.0.1:2622") as client:
        receipt = await client.publish("orders/1001", {"sku": "B-200", "quantity": 1})
        print("confirmed by", receipt.by)
        async with client.queue("orders/1001").consume(dict) as messages:
            async for message in messages:
                async with message.process():  # acks on success, nacks on an exception
                    print("received", message.body["sku"])
                break


asyncio.run(main())
