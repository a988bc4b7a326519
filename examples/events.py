"""An event handler that hears what happens in the broker."""

import asyncio

import mqcore

events: asyncio.Queue[str] = asyncio.Queue()


class Audit(mqcore.EventHandler):
    """Only the methods defined here cost anything. The broker does not wait for them."""

    async def client_joined(self, channel: mqcore.ChannelView, client: mqcore.ClientView) -> None:
        """Note who joined, and from where: properties are what the client sent when it connected."""
        events.put_nowait(f"{client.id} of {client.properties['Region']} joined {channel.name}")

    async def message_produced(
        self, queue: mqcore.QueueView, message: mqcore.Message, producer: mqcore.ClientView
    ) -> None:
        """Note each message."""
        events.put_nowait(f"{producer.id} sent {message.body.decode()} to {queue}")


async def main() -> None:
    """Join a channel and publish, and print what the handler heard."""
    broker = mqcore.Broker(event_handlers={"audit": Audit()}, event_handler="audit")
    async with broker, broker.client(id="cook", properties={"Region": "eu"}) as cook:
        await cook.create_queue("orders/1")
        async with cook.join("orders"):
            print(await events.get())
            await cook.publish("orders/1", b"soup")
            print(await events.get())


asyncio.run(main())
