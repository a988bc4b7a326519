"""The requests of Throttr, and the rate limiter that replaces most of them."""

import asyncio

from mqcore.ratelimit import RateLimiter
from mqcore.throttr import Client

URL = "throttr://127.0.0.1:9000?value=uint16"


async def main() -> None:
    async with Client(URL) as client:
        await client.insert("user:7", quota=2, ttl=60)
        print("requests:", [await client.decrease("user:7") for _ in range(3)])

    async with RateLimiter(URL, on_unavailable="allow") as limiter:
        verdicts = [await limiter.check("login:7", "2/m") for _ in range(3)]
        print("limiter:", [verdict.allowed for verdict in verdicts])


asyncio.run(main())
