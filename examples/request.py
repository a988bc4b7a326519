"""One client asks another, by its name, and gets an answer; the broker only passes it on."""

import asyncio

import mqcore


async def serve(client: mqcore.Client) -> None:
    """Answer every question."""
    async with client.direct() as requests:
        async for request in requests:
            await request.respond(f"{len(request.raw)} octets".encode())


async def main() -> None:
    """Ask how long a text is."""
    async with mqcore.Broker() as broker, broker.client(name="counter") as counter, broker.client() as asker:
        answering = asyncio.create_task(serve(counter))
        response = await asker.request("@name:counter", b"how long is this?", timeout="2s")
        print(response.raw.decode())
        answering.cancel()


asyncio.run(main())
