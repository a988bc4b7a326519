"""A billing service with FastStream and RabbitMQ."""

from faststream import FastStream
from faststream.rabbit import RabbitBroker
from pydantic import BaseModel


class Order(BaseModel):
    number: int
    total: float


class Invoice(BaseModel):
    number: int
    total: float


broker = RabbitBroker("amqp://guest:guest@127.0.0.1:5672/")
app = FastStream(broker)


@broker.subscriber("orders")
@broker.publisher("invoices")
async def bill(order: Order) -> Invoice:
    print("billed order", order.number)
    return Invoice(number=order.number, total=order.total * 1.19)
