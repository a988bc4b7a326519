"""One client asks another, by its name, and gets an answer; the broker only passes it on."""

import asyncio

import mqcore
from mqcore.client import Requests


async def answer(requests: Requests[str]) -> None:
    """Answer every question; `Client.serve` does the same with a function."""
    async for request in requests:
        await request.respond(f"{len(request.body)} characters")


async def main() -> None:
    """Ask how long a text is."""
    async with mqcore.Broker() as broker, broker.client(name="counter") as counter, broker.client() as asker:
        async with counter.requests(str) as requests:
            answering = asyncio.create_task(answer(requests))
            print(await asker.request("@name:counter", "how long is this?", reply=str, timeout="2s"))
        await answering


asyncio.run(main())
