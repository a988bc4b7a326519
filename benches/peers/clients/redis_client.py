"""redis-py with asyncio."""

from __future__ import annotations

import importlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from peers.clients.program import BODY, CHUNK_MESSAGES, Options, Values, closed_loop, gathered, responder, run

redis: Any = importlib.import_module("redis.asyncio")

CONNECTIONS = 16
"""Connections of the pool that `gather` shares: without a limit it would open a thousand."""
TAKEN = 1000
"""Entries of a stream that the client asks for together."""


@asynccontextmanager
async def connected(options: Options, connections: int = 1) -> AsyncIterator[Any]:
    """Connect to the broker under test."""
    host, _, port = options.address.rpartition(":")
    pool = redis.BlockingConnectionPool(host=host, port=int(port), max_connections=connections, timeout=60)
    client = redis.Redis(connection_pool=pool)
    try:
        yield client
    finally:
        await client.aclose()
        await pool.disconnect()


async def publish_unconfirmed(options: Options) -> Values:
    """Messages a second through a pipeline, since redis-py awaits every other command's reply."""
    async with connected(options) as client:
        count, start = 0, time.perf_counter()
        while time.perf_counter() < start + options.seconds:
            pipeline = client.pipeline(transaction=False)
            for _ in range(CHUNK_MESSAGES):
                pipeline.publish("bench", BODY)
            await pipeline.execute()
            count += CHUNK_MESSAGES
        return {"rate": count / (time.perf_counter() - start), "messages": count}


async def publish_confirmed(options: Options) -> Values:
    """Time until a value is set, one at a time: it keeps the last message."""
    async with connected(options) as client:
        return await closed_loop(lambda: client.set("bench", BODY), options.seconds)


async def publish_gather(options: Options) -> Values:
    """Values set a second, by `gather` over a pool of connections."""
    async with connected(options, CONNECTIONS) as client:
        return await gathered(lambda: client.set("bench", BODY), options.seconds)


async def consume_ack(options: Options) -> Values:
    """Entries of a stream a second that a consumer group takes, each acknowledged in a pipeline."""
    async with connected(options) as client:
        for start_at in range(0, options.count, CHUNK_MESSAGES):
            pipeline = client.pipeline(transaction=False)
            for _ in range(min(CHUNK_MESSAGES, options.count - start_at)):
                pipeline.xadd("drain", {"body": BODY})
            await pipeline.execute()
        await client.xgroup_create("drain", "group", id="0")
        count, start = 0, time.perf_counter()
        while count < options.count:
            taken = await client.xreadgroup("group", "one", {"drain": ">"}, count=TAKEN)
            entries = taken["drain"] if isinstance(taken, dict) else taken[0][1]
            pipeline = client.pipeline(transaction=False)
            for entry in entries[0] if isinstance(taken, dict) else entries:
                pipeline.xack("drain", "group", entry[0])
                count += 1
            await pipeline.execute()
        return {"rate": count / (time.perf_counter() - start), "messages": 2 * count}


async def respond(options: Options) -> Values:
    """Answer requests with their body until this process is killed."""
    async with connected(options) as client:
        print("ready", flush=True)
        while True:
            taken = await client.blpop(["requests"], timeout=60)
            if taken is not None:
                await client.rpush("responses", taken[1])


async def request_response(options: Options) -> Values:
    """Time of a request to another process and its response through two lists, one at a time."""
    async with connected(options) as client:

        async def call() -> None:
            await client.rpush("requests", BODY)
            if await client.blpop(["responses"], timeout=10) is None:
                raise TimeoutError("no response")

        with responder(options):
            return await closed_loop(call, options.seconds)


run(
    {
        "publish-unconfirmed": publish_unconfirmed,
        "publish-confirmed": publish_confirmed,
        "publish-gather": publish_gather,
        "consume-ack": consume_ack,
        "request-response": request_response,
        "respond": respond,
    }
)
