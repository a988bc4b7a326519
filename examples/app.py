"""An app: typed handlers, a published result, a dependency, retries of the broker. Run it: `python examples/app.py`."""

import asyncio
from typing import Annotated, TypedDict

from mqcore import App, Backoff, Broker, Depends, Retry

app = App(name="billing")


class Order(TypedDict):
    """The body of an order, as JSON."""

    sku: str
    quantity: int


@app.subscriber("orders/1001", concurrency=8, retry=Retry(5, backoff=Backoff("1s"), dead_letter="orders/9001"))
@app.publisher("totals/1")
async def bill(order: Order, rates: Annotated[dict[str, float], Depends(lambda: {"A-100": 9.5})]) -> float:
    """Return the total. An exception, such as that of an unknown article, is retried five times."""
    return order["quantity"] * rates[order["sku"]]


@app.subscriber("totals/1")
def report(total: float) -> None:
    """Run in a worker thread, because it is a plain function."""
    print("total:", total)
    app.stop()


async def main() -> None:
    """Run the app on an embedded broker. A program of its own is run by `mqcore run shop:app`."""
    async with Broker() as broker, broker.client() as client:
        app.locate(broker)
        await app.serve(on_ready=lambda: client.publish("orders/1001", {"sku": "A-100", "quantity": 2}))


asyncio.run(main())
