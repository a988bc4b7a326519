"""The billing service: it consumes orders and publishes invoices."""

import json
from dataclasses import dataclass
from pathlib import Path

import mqcore
from mqcore import Backoff, Retry
from orders import Order


@dataclass
class Invoice:
    number: int
    total: float


def price(sku: str) -> float:
    return float(json.loads(Path("prices.json").read_text())[sku])


app = mqcore.App("tmqp://127.0.0.1:2622", name="billing", declare="update")
checked = mqcore.QueueOptions(delivery_handler="checked-orders")
saved = mqcore.QueueOptions(status=mqcore.QueueStatus.PULL, delivery_handler="at-least-once")
retry = Retry(3, backoff=Backoff("200ms", max="1m"), dead_letter="orders/9001")


@app.subscriber("orders/1001", concurrency=8, retry=retry, queue_options=checked)
@app.publisher("invoices/2001", queue_options=saved)
async def bill(order: Order) -> Invoice:
    invoice = Invoice(order.number, order.quantity * price(order.sku))
    print("billed", invoice)
    return invoice
