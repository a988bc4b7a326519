"""A shop that sends orders through a broker of its own."""

import asyncio
from dataclasses import dataclass

import mqcore


@dataclass
class Order:
    number: int
    sku: str
    quantity: int


async def main() -> None:
    async with mqcore.Broker() as broker, broker.client(name="shop") as client:
        options = mqcore.QueueOptions(status=mqcore.QueueStatus.ROUND_ROBIN, request_acknowledge=True)
        await client.declare("orders", 1001, options)

        receipt = await client.publish("orders/1001", Order(1, "A-100", 3))
        print("confirmed by", receipt.by)

        async with client.queue("orders/1001").consume(Order) as messages:
            async for message in messages:
                async with message.process():
                    print("packing", message.body)
                break


if __name__ == "__main__":
    asyncio.run(main())
