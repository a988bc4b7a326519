"""The billing service: it consumes orders and publishes invoices."""

from dataclasses import dataclass

import mqcore
from orders import Order

PRICES = {"A-100": 9.5, "B-200": 20.0}


@dataclass
class Invoice:
    number: int
    total: float


app = mqcore.App("tmqp://127.0.0.1:2622", name="billing")
checked = mqcore.QueueOptions(delivery_handler="checked-orders")
saved = mqcore.QueueOptions(status=mqcore.QueueStatus.PULL, delivery_handler="at-least-once")


@app.subscriber("orders/1001", concurrency=8, queue_options=checked)
@app.publisher("invoices/2001", queue_options=saved)
async def bill(order: Order) -> Invoice:
    invoice = Invoice(order.number, order.quantity * PRICES[order.sku])
    print("billed", invoice)
    return invoice
