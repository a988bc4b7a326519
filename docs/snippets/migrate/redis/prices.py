"""Publish and subscribe, and the latest value of a name, as Redis has them with PUBLISH and SET."""

import asyncio

import mqcore


async def main() -> None:
    async with mqcore.connect("tmqp://127.0.0.1:2622") as client:
        async with client.topic("prices").subscribe(str) as prices:
            await client.topic("prices").publish("A-100: 9.50")
            print("subscriber:", (await anext(prices)).body)

        await client.declare("prices", 1, mqcore.QueueOptions(status=mqcore.QueueStatus.CACHE))
        for price in ("A-100: 9.50", "A-100: 8.90"):
            await client.publish("prices/1", price)
        latest = await client.queue("prices/1").pull(1, str)
        print("latest:", latest[0].body)


asyncio.run(main())
