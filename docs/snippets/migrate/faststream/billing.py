"""The same service with mqcore."""

from pydantic import BaseModel

import mqcore


class Order(BaseModel):
    number: int
    total: float


class Invoice(BaseModel):
    number: int
    total: float


app = mqcore.App("tmqp://127.0.0.1:2622", name="billing")
waiting = mqcore.QueueOptions(status=mqcore.QueueStatus.PULL)


@app.subscriber("orders/1")
@app.publisher("invoices/1", queue_options=waiting)
async def bill(order: Order) -> Invoice:
    print("billed order", order.number)
    return Invoice(number=order.number, total=order.total * 1.19)
