"""A consumer process to be killed: it settles some messages, and keeps further ones unsettled.

Run by the demonstration as ``python -m mqcore.demo.mortal URL QUEUE SETTLE``. It prints ``joined``, then the path
and digest of each acknowledged message, then ``holding``. It runs until it is killed.
"""

from __future__ import annotations

import asyncio
import sys

import mqcore
from mqcore.demo.library import digest

__all__ = ["main"]


async def main(url: str, queue: str, settle: int) -> None:
    """Acknowledge `settle` messages, and keep further ones unsettled."""
    async with mqcore.connect(url, name="mortal") as client, client.queue(queue).consume() as messages:
        print("joined", flush=True)
        settled = 0
        async for message in messages:
            if settled == settle:
                # The broker answers in order, so it has received the acknowledgements now.
                await client.queue_information(queue)
                print("holding", flush=True)
                await asyncio.Event().wait()
            await message.ack()
            settled += 1
            print(message.headers["Path"], digest(message.raw), sep="\t", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
