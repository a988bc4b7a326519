"""A service that answers requests, and a client that asks."""

import asyncio
from dataclasses import dataclass

import mqcore


@dataclass
class Question:
    sku: str


@dataclass
class Price:
    sku: str
    price: float


app = mqcore.App(name="prices")


@app.on_request()
async def price(question: Question) -> Price:
    return Price(question.sku, {"A-100": 9.5}[question.sku])


async def main() -> None:
    async with mqcore.Broker() as broker, broker.client() as client:
        app.locate(broker)
        async with app:
            answer = await client.request("@name:prices", Question("A-100"), reply=Price, timeout="2s")
            print(answer)


asyncio.run(main())
