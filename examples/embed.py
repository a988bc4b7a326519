"""A broker embedded in a program, without a socket or a second process, and a round-robin queue."""

import asyncio

import mqcore


async def main() -> None:
    """Publish three messages and consume them."""
    async with mqcore.Broker() as broker, broker.client(name="shop") as client:
        await client.create_queue("orders/1001", mqcore.QueueOptions(status=mqcore.QueueStatus.ROUND_ROBIN))
        for number in range(3):
            receipt = await client.publish("orders/1001", f"order {number}".encode())
            print("confirmed by", receipt.by)
        async with client.queue("orders", 1001).consume() as messages:
            async for message in messages:
                print(message.raw.decode())
                if message.raw == b"order 2":
                    break


asyncio.run(main())
