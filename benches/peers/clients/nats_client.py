"""nats-py."""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from peers.clients.program import AT_ONCE, BODY, CHUNK_MESSAGES, Options, Values, closed_loop, gathered, responder, run

nats: Any = importlib.import_module("nats")
api: Any = importlib.import_module("nats.js.api")

FETCHED = 1000
"""Messages that the client asks for together."""


@asynccontextmanager
async def connected(options: Options) -> AsyncIterator[Any]:
    """Connect to the broker under test."""
    client = await nats.connect(f"nats://{options.address}")
    try:
        yield client
    finally:
        await client.close()


async def prepare_fsync(options: Options) -> Values:
    """Create the stream of the load generator, in files."""
    async with connected(options) as client:
        await client.jetstream().add_stream(name="BENCH", subjects=["stream"], storage=api.StorageType.FILE)
    return {}


async def prepare_replicated(options: Options) -> Values:
    """Create the stream of the load generator on three nodes, and return the number of its leader, `node-N`."""
    async with connected(options) as client:
        stream = client.jetstream(timeout=30)
        terms = {"subjects": ["stream"], "storage": api.StorageType.FILE, "num_replicas": 3}
        created = await stream.add_stream(name="BENCH", **terms)
        while created.cluster is None or len(created.cluster.replicas or ()) < 2 or not created.cluster.leader:
            await asyncio.sleep(0.1)
            created = await stream.stream_info("BENCH")
        return {"leader": float(created.cluster.leader.rpartition("-")[2])}


async def keep_last(client: Any) -> Any:
    """Create a stream in memory that keeps the last message only."""
    stream = client.jetstream()
    await stream.add_stream(name="LAST", subjects=["last"], storage=api.StorageType.MEMORY, max_msgs=1)
    return stream


async def publish_unconfirmed(options: Options) -> Values:
    """Messages a second of a loop, until the broker has all of them."""
    async with connected(options) as client:
        count, start = 0, time.perf_counter()
        while time.perf_counter() < start + options.seconds:
            for _ in range(CHUNK_MESSAGES):
                await client.publish("bench", BODY)
            count += CHUNK_MESSAGES
        await client.flush(timeout=60)
        return {"rate": count / (time.perf_counter() - start), "messages": count}


async def publish_confirmed(options: Options) -> Values:
    """Time until JetStream confirms a message, one at a time."""
    async with connected(options) as client:
        stream = await keep_last(client)
        return await closed_loop(lambda: stream.publish("last", BODY), options.seconds)


async def publish_gather(options: Options) -> Values:
    """Messages a second that JetStream confirms, by `gather`."""
    async with connected(options) as client:
        stream = await keep_last(client)
        return await gathered(lambda: stream.publish("last", BODY, timeout=30), options.seconds)


async def consume_ack(options: Options) -> Values:
    """Messages a second that a pull consumer takes, each acknowledged."""
    async with connected(options) as client:
        stream = client.jetstream()
        retention = api.RetentionPolicy.WORK_QUEUE
        await stream.add_stream(name="DRAIN", subjects=["drain"], storage=api.StorageType.MEMORY, retention=retention)
        for start_at in range(0, options.count, AT_ONCE):
            size = min(AT_ONCE, options.count - start_at)
            await asyncio.gather(*(stream.publish("drain", BODY, timeout=30) for _ in range(size)))
        terms = api.ConsumerConfig(ack_policy=api.AckPolicy.EXPLICIT, max_ack_pending=4 * FETCHED)
        pulled = await stream.pull_subscribe("drain", durable="drain", config=terms)
        count, start = 0, time.perf_counter()
        while count < options.count:
            for message in await pulled.fetch(min(FETCHED, options.count - count), timeout=10):
                await message.ack()
                count += 1
        await client.flush(timeout=60)
        return {"rate": count / (time.perf_counter() - start), "messages": 2 * count}


async def respond(options: Options) -> Values:
    """Answer requests with their body until this process is killed."""

    async def echo(message: Any) -> None:
        await message.respond(message.data)

    async with connected(options) as client:
        await client.subscribe("echo", cb=echo)
        await client.flush()
        print("ready", flush=True)
        await asyncio.Event().wait()
    return {}


async def request_response(options: Options) -> Values:
    """Time of a request to another process and its response, one at a time."""
    async with connected(options) as client:
        with responder(options):
            return await closed_loop(lambda: client.request("echo", BODY, timeout=10), options.seconds)


run(
    {
        "prepare-fsync": prepare_fsync,
        "prepare-replicated": prepare_replicated,
        "publish-unconfirmed": publish_unconfirmed,
        "publish-confirmed": publish_confirmed,
        "publish-gather": publish_gather,
        "consume-ack": consume_ack,
        "request-response": request_response,
        "respond": respond,
    }
)
