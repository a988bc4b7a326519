"""One message for several services, each with a queue of its own."""

import asyncio

import mqcore


async def main() -> None:
    async with mqcore.Broker() as broker, broker.client() as client:
        for service in ("billing", "shipping"):
            options = mqcore.QueueOptions(status=mqcore.QueueStatus.ROUND_ROBIN, request_acknowledge=True)
            await client.declare(service, 1, options)
            await client.bind("@topic:orders.new", f"{service}/1")
        await client.topic("orders.new").publish("order 7")
        for service in ("billing", "shipping"):
            async with client.queue(f"{service}/1").consume(str) as messages:
                async with (await anext(messages)).process() as message:
                    print(service, "received", message.body)


asyncio.run(main())
