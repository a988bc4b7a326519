"""A consumer that acknowledges processed messages and nacks failed ones, which are redelivered."""

import asyncio
import contextlib
import sys

import mqcore


async def main(url: str) -> None:
    """Publish four numbers, and consume them until all are done."""
    options = mqcore.QueueOptions(status=mqcore.QueueStatus.ROUND_ROBIN, request_acknowledge=True)
    tries: dict[bytes, int] = {}
    done = 0
    async with mqcore.connect(url, name="worker") as client:
        await client.create_queue("numbers/1", options)
        await client.publish_many("numbers/1", [b"1", b"2", b"3", b"4"])
        async with client.queue("numbers", 1).consume(prefetch=50) as messages:
            async for message in messages:  # survives reconnects, re-joins by itself
                with contextlib.suppress(ValueError):
                    async with message.process():  # acknowledged at the end, refused on an exception
                        tries[message.raw] = tries.get(message.raw, 0) + 1
                        if message.raw == b"3" and tries[b"3"] == 1:
                            raise ValueError("not at the first attempt")
                        done += 1
                        print(message.raw.decode(), "done at attempt", tries[message.raw])
                if done == 4:
                    return


if len(sys.argv) > 1:
    asyncio.run(main(sys.argv[1]))
else:
    with mqcore.Broker(listen="tmqp://127.0.0.1:0") as broker:
        asyncio.run(main(broker.listeners[0]))
