"""Messages that come later, expire, or pass others."""

import asyncio

import mqcore


async def main() -> None:
    async with mqcore.Broker() as broker, broker.client() as client:
        options = mqcore.QueueOptions(status=mqcore.QueueStatus.ROUND_ROBIN, request_acknowledge=True)
        await client.declare("mail", 1, options)
        await client.publish("mail/1", "in a moment", delay="300ms")
        await client.publish("mail/1", "too late for anyone", expires_in="50ms")
        await client.publish("mail/1", "normal")
        await client.publish("mail/1", "urgent", priority=200)
        await asyncio.sleep(0.1)
        async with client.queue("mail/1").consume(str, prefetch=1) as messages:
            for _ in range(3):
                async with (await anext(messages)).process() as message:
                    print(message.body)


asyncio.run(main())
