"""An app: typed handlers, a published result, a dependency, retries of the broker. Run it: `python examples/app.py`."""

import asyncio
from typing import Annotated, TypedDict

from mqcore import App, Backoff, Broker, Depends, Retry

app = App(Broker(), name="billing")  # a broker of its own; usually the URL of one


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


if __name__ == "__main__":  # or: mqcore run examples.app:app
    order = Order(sku="A-100", quantity=2)
    asyncio.run(app.serve(on_ready=lambda: app.publish("orders/1001", order)))
