"""A producer and a worker with a Redis stream and a consumer group."""

import asyncio
import contextlib

import redis.asyncio as redis


async def main() -> None:
    async with redis.Redis(host="127.0.0.1", port=6379) as client:
        with contextlib.suppress(redis.ResponseError):
            await client.xgroup_create("orders", "workers", mkstream=True)
        await client.xadd("orders", {"body": "3 x A-100"})
        await client.xadd("orders", {"body": "1 x B-200"})
        # Messages of workers that died more than a minute ago.
        await client.xautoclaim("orders", "workers", "worker-1", min_idle_time=60_000)
        for _, entries in await client.xreadgroup("workers", "worker-1", {"orders": ">"}, count=10, block=1000):
            for entry, fields in entries:
                print("packed", fields[b"body"].decode())
                await client.xack("orders", "workers", entry)
                await client.xdel("orders", entry)


asyncio.run(main())
