"""All to all: each node is the downstream of every other one, so what is published at any of them is at all of them."""

import asyncio
import contextlib
import logging
import socket

import mqcore

QUEUE = "orders/1001"
logging.getLogger("mqcore").setLevel(logging.ERROR)  # else each tells that those after it are not there yet


def node(ports: list[int], own: int) -> mqcore.Broker:
    """One of the nodes, which knows all others."""
    upstreams = tuple(mqcore.UpstreamConfig(url=f"tmqp://127.0.0.1:{port}") for port in ports if port != own)
    return mqcore.Broker(listen=f"tmqp://127.0.0.1:{own}", node=mqcore.NodeConfig(name=f"n{own}", upstreams=upstreams))


async def main() -> None:
    """Publish one message at each of three nodes, and count them everywhere."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        ports = [int(probe.getsockname()[1]) for probe in probes]
    async with contextlib.AsyncExitStack() as running:
        nodes = [await running.enter_async_context(node(ports, port)) for port in ports]
        clients = [await running.enter_async_context(broker.client()) for broker in nodes]
        for client in clients:
            await client.create_queue(QUEUE, mqcore.QueueOptions(status=mqcore.QueueStatus.PULL))
            while sum(n.connected for n in await client.nodes()) < 4:  # noqa: ASYNC110 (there is an event too)
                await asyncio.sleep(0.01)
        await asyncio.gather(*(client.publish(QUEUE, "hello") for client in clients))
        for broker in nodes:
            while broker.stats().queue(QUEUE).normal < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            print("has", broker.stats().queue(QUEUE).normal)


asyncio.run(main())
