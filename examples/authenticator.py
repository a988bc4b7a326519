"""An authenticator that decides which clients join a channel."""

import asyncio

import mqcore
from mqcore import errors


class Staff(mqcore.Authenticator):
    """Lets only staff into a channel."""

    def authenticate(self, channel: str, client: mqcore.ClientView) -> bool:
        """Decide when a client joins."""
        return client.kind == "staff"


async def main() -> None:
    """Join as staff, and try to join as a guest."""
    options = mqcore.ChannelOptions(authenticator="staff")
    broker = mqcore.Broker(authenticators={"staff": Staff()}, channel=options)
    async with broker, broker.client(id="cook", kind="staff") as cook, broker.client(id="guest") as guest:
        await cook.create_queue("orders/1")
        async with cook.join("orders"):
            print("the cook has joined")
        try:
            async with guest.join("orders"):
                pass
        except errors.Unauthorized as error:
            print("the guest may not join:", error.code)


asyncio.run(main())
