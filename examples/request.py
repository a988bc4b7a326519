"""One client asks another, by its name, and gets an answer; the broker only passes it on."""

import asyncio

import mqcore
from mqcore.client import Request


def measure(request: Request[str]) -> str:
    """Answer one question; plain functions run in worker threads."""
    return f"{len(request.body)} characters"


async def main() -> None:
    """Ask how long a text is."""
    async with mqcore.Broker() as broker, broker.client(name="counter") as counter, broker.client() as asker:
        answering = asyncio.create_task(counter.serve(measure, str))
        print(await asker.request("@name:counter", "how long is this?", reply=str, timeout="2s"))
        answering.cancel()


asyncio.run(main())
