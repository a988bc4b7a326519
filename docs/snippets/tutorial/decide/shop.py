"""A shop whose broker accepts only orders that make sense."""

import asyncio

import mqcore
from mqcore import errors
from orders import Order, handlers


async def main() -> None:
    broker = mqcore.Broker(data_dir="data")
    broker.delivery_handlers["checked-orders"] = handlers["checked-orders"]
    async with broker, broker.client(name="shop") as client:
        options = mqcore.QueueOptions(
            status=mqcore.QueueStatus.ROUND_ROBIN, request_acknowledge=True, delivery_handler="checked-orders"
        )
        await client.declare("orders", 1001, options)
        for order in (Order(1, "A-100", 3), Order(2, "A-100", -3)):
            try:
                await client.publish("orders/1001", order)
                print("accepted", order)
            except errors.Nacked:
                print("rejected", order)


if __name__ == "__main__":
    asyncio.run(main())
