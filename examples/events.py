"""An event handler that hears what happens in the broker, and an authenticator that decides who joins a channel."""

import asyncio

import mqcore
from mqcore import errors

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


class Staff(mqcore.Authenticator):
    """Lets only staff into a channel."""

    def authenticate(self, channel: str, client: mqcore.ClientView) -> bool:
        """Decide when a client joins."""
        return client.kind == "staff"


async def main() -> None:
    """Join and publish as staff, and try to join as a guest."""
    broker = mqcore.Broker(
        event_handlers={"audit": Audit()},
        event_handler="audit",
        authenticators={"staff": Staff()},
        channel=mqcore.ChannelOptions(authenticator="staff"),
    )
    async with (
        broker,
        broker.client(id="cook", kind="staff", properties={"Region": "eu"}) as cook,
        broker.client(id="guest") as guest,
    ):
        await cook.create_queue("orders/1")
        async with cook.join("orders"):
            print(await events.get())
            await cook.publish("orders/1", b"soup")
            print(await events.get())
        try:
            async with guest.join("orders"):
                pass
        except errors.Unauthorized as error:
            print("the guest may not join:", error.code)


asyncio.run(main())
