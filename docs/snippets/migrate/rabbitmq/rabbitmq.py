"""A producer and a worker with RabbitMQ and aio-pika."""

import asyncio

import aio_pika


async def main() -> None:
    connection = await aio_pika.connect_robust("amqp://guest:guest@127.0.0.1:5672/")
    async with connection:
        channel = await connection.channel(publisher_confirms=True)
        await channel.set_qos(prefetch_count=10)
        await channel.declare_queue("orders.dead", durable=True)
        queue = await channel.declare_queue(
            "orders",
            durable=True,
            arguments={
                "x-queue-type": "quorum",
                "x-delivery-limit": 3,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": "orders.dead",
            },
        )
        for body in (b"3 x A-100", b"1 x B-200"):
            message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await channel.default_exchange.publish(message, routing_key="orders", mandatory=True)
        done = 0
        async with queue.iterator() as messages:
            async for received in messages:
                async with received.process(requeue=True):
                    print("packed", received.body.decode())
                    done += 1
                if done == 2:
                    break


asyncio.run(main())
