"""A delivery handler: Python decides which orders are accepted; Rust runs all other steps."""

import asyncio

import mqcore
from mqcore import errors


class Orders(mqcore.DeliveryHandler):
    """Only the steps defined here call Python."""

    def received_from_producer(
        self, queue: mqcore.QueueView, message: mqcore.Message, producer: mqcore.ClientView
    ) -> mqcore.Decision:
        """Reject orders without a schema."""
        known = message.headers.get("Schema") == "order-v1"
        answer = mqcore.SendAck.ALWAYS if known else mqcore.SendAck.NEGATIVE
        return mqcore.Decision(allow=known, acknowledge=answer)


async def main() -> None:
    """Publish an order with a schema, and one without."""
    broker = mqcore.Broker()
    broker.delivery_handlers["orders"] = Orders()
    async with broker, broker.client(name="shop") as client:
        await client.create_queue("orders/1001", mqcore.QueueOptions(delivery_handler="orders"))
        await client.publish("orders/1001", b"{}", headers={"Schema": "order-v1"})
        print("with a schema: accepted")
        try:
            await client.publish("orders/1001", b"{}")
        except errors.Nacked as error:
            print("without one: rejected,", error.reason)


asyncio.run(main())
