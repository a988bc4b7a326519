"""A leader whose clients' messages are at all the others too: it is the downstream of each of them."""

import asyncio

from mqcore import Broker, NodeConfig, QueueOptions, QueueStatus, UpstreamConfig

QUEUE = "orders/1001"


async def arrived(broker: Broker, count: int) -> int:
    """Wait for so many messages."""
    for _ in range(1000):
        if broker.stats().queue(QUEUE).normal >= count:
            return broker.stats().queue(QUEUE).normal
        await asyncio.sleep(0.01)
    raise TimeoutError


async def main() -> None:
    """Publish at the leader, and look at the others."""
    async with (
        Broker(listen="tmqp://127.0.0.1:0", node=NodeConfig(name="east")) as east,
        Broker(listen="tmqp://127.0.0.1:0", node=NodeConfig(name="west")) as west,
    ):
        upstreams = tuple(UpstreamConfig(url=broker.listeners[0]) for broker in (east, west))
        async with Broker(node=NodeConfig(name="leader", upstreams=upstreams)) as leader, leader.client() as client:
            for broker in (east, west, leader):
                async with broker.client() as founder:
                    await founder.create_queue(QUEUE, QueueOptions(status=QueueStatus.PULL))
            for _ in range(1000):
                if all(node.connected for node in await client.nodes()):
                    break
                await asyncio.sleep(0.01)
            await client.publish_many(QUEUE, ["one", "two", "three"])
            print("east has", await arrived(east, 3), "and west has", await arrived(west, 3))


asyncio.run(main())
