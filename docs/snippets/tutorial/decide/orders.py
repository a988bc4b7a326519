"""The form of an order, and the rules for orders that the broker accepts."""

from dataclasses import dataclass

import msgspec

import mqcore
from mqcore import Decision, SendAck


@dataclass
class Order:
    number: int
    sku: str
    quantity: int


class CheckedOrders(mqcore.DeliveryHandler):
    policy = "at-least-once"

    def received_from_producer(
        self, queue: mqcore.QueueView, message: mqcore.Message, producer: mqcore.ClientView
    ) -> Decision:
        try:
            order = msgspec.json.decode(message.body, type=Order)
        except msgspec.DecodeError:
            return Decision(allow=False, acknowledge=SendAck.NEGATIVE)
        if order.quantity < 1:
            return Decision(allow=False, acknowledge=SendAck.NEGATIVE)
        return Decision(save=True, acknowledge=SendAck.IF_SAVED)


handlers = {"checked-orders": CheckedOrders()}
