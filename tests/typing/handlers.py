"""Checked by mypy, never run: delivery handlers as users write them, and mistakes that have to be found."""

from __future__ import annotations

from collections.abc import Awaitable

from mqcore import (
    Acknowledgement,
    Broker,
    ChannelOptions,
    ClientView,
    Decision,
    Delivery,
    DeliveryHandler,
    Message,
    PutBack,
    QueueOptions,
    QueueStatus,
    QueueView,
    SendAck,
)


class Mixed(DeliveryHandler):
    """Plain and awaited methods side by side."""

    policy = "at-least-once"
    timeout = "5s"
    fallback = Decision(put_back=PutBack.START)

    async def received_from_producer(self, queue: QueueView, message: Message, producer: ClientView) -> Decision:
        schema: str | None = message.headers.get("Schema")
        first: int = memoryview(message)[0]
        if schema is None or first == 0 or producer.name is None:
            return Decision(allow=False, acknowledge=SendAck.NEGATIVE)
        return Decision(save=True, acknowledge=SendAck.IF_SAVED)

    def acknowledge_received(
        self, queue: QueueView, acknowledgement: Acknowledgement, delivery: Delivery | None
    ) -> Awaitable[Decision]:
        return self._decide(acknowledgement.reason, 0 if delivery is None else delivery.attempt)

    async def _decide(self, reason: str | None, attempt: int) -> Decision:
        return Decision(put_back=PutBack.END if reason and attempt < 5 else PutBack.NO)

    def message_dequeued(self, queue: QueueView, message: Message) -> None:
        address: str = queue.address
        del address

    async def save_message(self, queue: QueueView, message: Message) -> bool:
        return len(message.body) > 0


class Wrong(DeliveryHandler):
    """Each method is a mistake; a checker that does not find it fails, because the ignore would be unused."""

    def begin_send(self, queue: QueueView, message: Message) -> bool:  # type: ignore[override]
        return True

    def end_send(self, queue: QueueView) -> Decision:  # type: ignore[override]
        return Decision()

    def save_message(self, queue: QueueView, message: Message) -> Decision:  # type: ignore[override]
        return Decision(save="yes")  # type: ignore[arg-type]


def embed() -> Broker:
    """Brokers take options by name, or a whole configuration."""
    broker = Broker(
        listen=["tmqp://127.0.0.1:0"],
        ping_interval="30s",
        channel=ChannelOptions(queue=QueueOptions(status=QueueStatus.PULL, acknowledge_timeout=2.5)),
    )
    broker.delivery_handlers["orders"] = Mixed()
    broker.delivery_handlers["orders"] = Mixed  # type: ignore[assignment]
    Broker(lisen="tmqp://127.0.0.1:0")  # type: ignore[call-arg]
    Decision().allow = False  # type: ignore[misc]
    return broker


async def use(broker: Broker) -> int:
    """Statistics are typed to the leaves."""
    async with broker as running:
        queue = running.stats().queue("orders/1001")
        options: QueueOptions = queue.options
        status: QueueStatus | None = options.status
        return queue.normal + (status is QueueStatus.PULL)
