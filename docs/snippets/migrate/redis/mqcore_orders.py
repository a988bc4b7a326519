"""The same producer and worker with mqcore."""

import asyncio

import mqcore


async def main() -> None:
    async with mqcore.connect("tmqp://127.0.0.1:2622") as client:
        options = mqcore.QueueOptions(
            status=mqcore.QueueStatus.ROUND_ROBIN, request_acknowledge=True, delivery_handler="at-least-once"
        )
        await client.declare("orders", 1, options)
        await client.publish_many("orders/1", ["3 x A-100", "1 x B-200"])
        consumer = client.queue("orders/1").consume(str, prefetch=10)
        async for batch in consumer.batches(max=10, wait="50ms"):
            for body in batch.bodies:
                print("packed", body)
            await batch.ack()
            break


asyncio.run(main())
