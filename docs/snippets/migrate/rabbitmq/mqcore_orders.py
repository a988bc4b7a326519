"""The same producer and worker with mqcore."""

import asyncio

import mqcore


async def main() -> None:
    async with mqcore.connect("tmqp://127.0.0.1:2622") as client:
        await client.declare("orders", 9, mqcore.QueueOptions(status=mqcore.QueueStatus.PULL))
        await client.declare(
            "orders",
            1,
            mqcore.QueueOptions(
                status=mqcore.QueueStatus.ROUND_ROBIN,
                request_acknowledge=True,
                delivery_handler="at-least-once",
                put_back_limit=3,
                dead_letter="orders/9",
            ),
        )
        for body in ("3 x A-100", "1 x B-200"):
            await client.publish("orders/1", body)
        done = 0
        async with client.queue("orders/1").consume(str, prefetch=10) as messages:
            async for received in messages:
                async with received.process():
                    print("packed", received.body)
                    done += 1
                if done == 2:
                    break


asyncio.run(main())
