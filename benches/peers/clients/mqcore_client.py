"""mqcore's Python client."""

from __future__ import annotations

import asyncio
import time

import mqcore
from mqcore.client import Request
from peers.clients.program import BODY, CHUNK_MESSAGES, Options, Values, closed_loop, gathered, responder, run

QUEUE = "bench/1"
PREFETCH = 4000


def connect(options: Options, name: str = "") -> mqcore.Client:
    """Connect to the broker under test."""
    return mqcore.connect(f"tmqp://{options.address}", name=name or None)


async def prepare_broadcast(options: Options) -> Values:
    """Create the queue of the load generator, which delivers to every consumer."""
    async with connect(options) as client:
        await client.declare("bench", 0, mqcore.QueueOptions(status=mqcore.QueueStatus.BROADCAST))
    return {}


async def prepare_fsync(options: Options) -> Values:
    """Create the queue of the load generator, which confirms a message after a sync."""
    async with connect(options) as client:
        await client.declare(
            "bench", 0, mqcore.QueueOptions(status=mqcore.QueueStatus.PULL, delivery_handler="at-least-once")
        )
    return {}


async def prepare_cache(options: Options) -> Values:
    """Create a queue that keeps the last message only."""
    async with connect(options) as client:
        await client.declare("bench", 1, mqcore.QueueOptions(status=mqcore.QueueStatus.CACHE))
    return {}


async def publish_unconfirmed(options: Options) -> Values:
    """Messages a second of a loop, until the broker has all of them."""
    await prepare_cache(options)
    async with connect(options) as client:
        count, start = 0, time.perf_counter()
        while time.perf_counter() < start + options.seconds:
            for _ in range(CHUNK_MESSAGES):
                await client.publish(QUEUE, BODY, confirm=False)
            count += CHUNK_MESSAGES
        await client.publish(QUEUE, BODY)
        return {"rate": count / (time.perf_counter() - start), "messages": count}


async def publish_confirmed(options: Options) -> Values:
    """Time until a message is confirmed, one at a time."""
    await prepare_cache(options)
    async with connect(options) as client:
        return await closed_loop(lambda: client.publish(QUEUE, BODY), options.seconds)


async def publish_gather(options: Options) -> Values:
    """Confirmed messages a second by `gather`."""
    await prepare_cache(options)
    async with connect(options) as client:
        return await gathered(lambda: client.publish(QUEUE, BODY), options.seconds)


async def consume_ack(options: Options) -> Values:
    """Messages a second that an `async for` loop takes, each acknowledged."""
    async with connect(options) as client:
        await client.declare("drain", 1, mqcore.QueueOptions(status=mqcore.QueueStatus.PUSH, request_acknowledge=True))
        await client.publish_many("drain/1", [BODY] * options.count)
        count, start = 0, time.perf_counter()
        async for message in client.queue("drain/1").consume(prefetch=PREFETCH):
            await message.ack()
            count += 1
            if count == options.count:
                break
        return {"rate": count / (time.perf_counter() - start), "messages": 2 * count}


async def respond(options: Options) -> Values:
    """Answer requests with their body until this process is killed."""

    async def echo(request: Request[bytes]) -> bytes:
        return request.body

    async with connect(options, name="echo") as client:
        print("ready", flush=True)
        await client.serve(echo)
    return {}


async def request_response(options: Options) -> Values:
    """Time of a request to another process and its response, one at a time."""
    async with connect(options) as client:
        with responder(options):
            # The responder is ready when it is connected; it takes requests a moment later.
            deadline = time.monotonic() + 10
            while True:
                try:
                    await client.request("@name:echo", BODY, timeout=1)
                except mqcore.MqcoreError:
                    if time.monotonic() > deadline:
                        raise
                    await asyncio.sleep(0.01)
                else:
                    break
            return await closed_loop(lambda: client.request("@name:echo", BODY), options.seconds)


run(
    {
        "prepare-broadcast": prepare_broadcast,
        "prepare-fsync": prepare_fsync,
        "publish-unconfirmed": publish_unconfirmed,
        "publish-confirmed": publish_confirmed,
        "publish-gather": publish_gather,
        "consume-ack": consume_ack,
        "request-response": request_response,
        "respond": respond,
    }
)
