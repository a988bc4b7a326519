"""All to all: each node is the slave of every other one, so what is published at any of them is at all of them."""

import asyncio
import contextlib
import socket

import mqcore
from mqcore import MasterConfig, NodeConfig, QueueOptions, QueueStatus

QUEUE = "orders/1001"


def node(ports: list[int], own: int) -> mqcore.Broker:
    """One of the nodes, which knows all others."""
    masters = tuple(MasterConfig(url=f"tmqp://127.0.0.1:{port}") for port in ports if port != own)
    config = NodeConfig(name=f"n{own}", reconnect_wait="20ms", masters=masters)
    return mqcore.Broker(listen=f"tmqp://127.0.0.1:{own}", node=config)


async def main() -> None:
    """Publish one message at each of three nodes, and count them everywhere."""
    with contextlib.ExitStack() as probes:
        sockets = [probes.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        ports = [int(probe.getsockname()[1]) for probe in sockets]
    async with contextlib.AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(node(ports, port)) for port in ports]
        clients = [await stack.enter_async_context(broker.client()) for broker in nodes]
        for client in clients:
            await client.create_queue(QUEUE, QueueOptions(status=QueueStatus.PULL))
        for _ in range(1000):
            if all([sum(other.connected for other in await client.nodes()) == 4 for client in clients]):
                break
            await asyncio.sleep(0.01)
        await asyncio.gather(*(client.publish(QUEUE, "hello") for client in clients))
        counts = [0]
        while min(counts) < 3 and await asyncio.sleep(0.01, result=True):
            counts = [broker.stats().queue(QUEUE).normal for broker in nodes]
        print("each has", *counts)


asyncio.run(main())
