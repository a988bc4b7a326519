"""aio-pika."""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from peers.clients.program import BODY, CHUNK_MESSAGES, Options, Values, closed_loop, gathered, responder, run

aio_pika: Any = importlib.import_module("aio_pika")

PREFETCH = 4000
RESPONSES = "amq.rabbitmq.reply-to"


@asynccontextmanager
async def channel(options: Options, confirms: bool) -> AsyncIterator[Any]:
    """Open a channel at the broker under test."""
    connection = await aio_pika.connect(f"amqp://guest:guest@{options.address}/")
    async with connection:
        yield await connection.channel(publisher_confirms=confirms)


def message(**terms: Any) -> Any:
    """Return a message that is not saved."""
    return aio_pika.Message(BODY, **terms)


async def prepare_broadcast(options: Options) -> Values:
    """Create the exchange of the load generator."""
    async with channel(options, True) as opened:
        await opened.declare_exchange("bench", aio_pika.ExchangeType.FANOUT)
    return {}


async def prepare_fsync(options: Options) -> Values:
    """Create the quorum queue of the load generator."""
    async with channel(options, True) as opened:
        await opened.declare_queue("bench", durable=True, arguments={"x-queue-type": "quorum"})
    return {}


async def keep_last(opened: Any) -> None:
    """Create a queue that keeps the last message only."""
    await opened.declare_queue("last", arguments={"x-max-length": 1})


async def publish_unconfirmed(options: Options) -> Values:
    """Messages a second of a loop, until the broker has all of them."""
    async with channel(options, False) as opened:
        await keep_last(opened)
        count, start = 0, time.perf_counter()
        while time.perf_counter() < start + options.seconds:
            for _ in range(CHUNK_MESSAGES):
                await opened.default_exchange.publish(message(), "last")
            count += CHUNK_MESSAGES
        # The broker answers on the same channel after all that came before.
        await opened.declare_queue("last", passive=True)
        return {"rate": count / (time.perf_counter() - start), "messages": count}


async def publish_confirmed(options: Options) -> Values:
    """Time until a message is confirmed, one at a time."""
    async with channel(options, True) as opened:
        await keep_last(opened)
        return await closed_loop(lambda: opened.default_exchange.publish(message(), "last"), options.seconds)


async def publish_gather(options: Options) -> Values:
    """Confirmed messages a second by `gather`."""
    async with channel(options, True) as opened:
        await keep_last(opened)
        return await gathered(lambda: opened.default_exchange.publish(message(), "last"), options.seconds)


async def consume_ack(options: Options) -> Values:
    """Messages a second that an `async for` loop takes, each acknowledged."""
    async with channel(options, False) as opened:
        await opened.set_qos(prefetch_count=PREFETCH)
        queue = await opened.declare_queue("drain")
        for _ in range(options.count):
            await opened.default_exchange.publish(message(), "drain")
        await opened.declare_queue("drain", passive=True)
        count, start = 0, time.perf_counter()
        async with queue.iterator() as deliveries:
            async for delivery in deliveries:
                await delivery.ack()
                count += 1
                if count == options.count:
                    break
        return {"rate": count / (time.perf_counter() - start), "messages": 2 * count}


async def respond(options: Options) -> Values:
    """Answer requests with their body until this process is killed."""
    async with channel(options, False) as opened:
        queue = await opened.declare_queue("requests")

        async def echo(request: Any) -> None:
            response = aio_pika.Message(request.body, correlation_id=request.correlation_id)
            await opened.default_exchange.publish(response, request.reply_to)

        await queue.consume(echo, no_ack=True)
        print("ready", flush=True)
        await asyncio.Event().wait()
    return {}


async def request_response(options: Options) -> Values:
    """Time of a request to another process and its response by direct reply-to, one at a time."""
    async with channel(options, False) as opened:
        await opened.declare_queue("requests")
        responses: asyncio.Queue[Any] = asyncio.Queue()
        queue = await opened.get_queue(RESPONSES, ensure=False)
        await queue.consume(responses.put, no_ack=True)

        async def call() -> None:
            request = message(reply_to=RESPONSES, correlation_id="1")
            await opened.default_exchange.publish(request, "requests")
            await asyncio.wait_for(responses.get(), 10)

        with responder(options):
            return await closed_loop(call, options.seconds)


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
