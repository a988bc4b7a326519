"""A channel as kombu uses it: declares, publishes, consumes and settles over the link of its connection."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from amqp.basic_message import Message as BasicMessage
from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import base
from kombu.utils.uuid import uuid

from mqcore import errors
from mqcore._core import Frame
from mqcore.celery.envelope import HEADER, decode_header, encode_headers
from mqcore.celery.link import header_of
from mqcore.celery.naming import QUEUE_ID, channel_of, topic_of

if TYPE_CHECKING:
    from mqcore.celery.connection import Connection

__all__ = ["Channel", "Message"]

EXCHANGE_TYPES: Final = frozenset(["direct", "fanout", "topic"])
"""The kinds of exchanges that queues can be bound to."""

# AMQP has no others: kombu passes on all arguments of `publish` that it does not know.
_PROPERTIES: Final = frozenset(name for name, _ in BasicMessage.PROPERTIES)

_UNSTARTED: Final = b"Nack-Reason:consumer-closed\r\nUnstarted:yes\r\n"
_REQUEUE: Final = b"Nack-Reason:requeued\r\n"


class Message(base.Message):
    """A message that a consumer received."""

    def __init__(self, delivery: Frame, channel: Channel, tag: int, consumer_tag: str) -> None:
        headers, properties, content_type, content_encoding, exchange, key = decode_header(header_of(delivery, HEADER))
        attempt = header_of(delivery, "Delivery-Attempt")
        super().__init__(
            body=delivery.payload,
            channel=channel,
            delivery_tag=tag,
            content_type=content_type,
            content_encoding=content_encoding,
            delivery_info={
                "consumer_tag": consumer_tag,
                "exchange": exchange,
                "routing_key": key,
                "redelivered": attempt is not None and attempt != "1",
                "priority": properties.get("priority"),
            },
            properties=properties,
            headers=headers,
        )


class Consumer:
    """A consumer of one queue."""

    __slots__ = ("callback", "channel", "no_ack", "queue", "tag")

    def __init__(
        self, channel: Channel, queue: str, tag: str, callback: Callable[[Message], object], no_ack: bool
    ) -> None:
        self.channel = channel
        self.queue = queue
        self.tag = tag
        self.callback = callback
        self.no_ack = no_ack


class Channel(base.StdChannel):
    """A channel: consumers, and the deliveries that they have not settled."""

    def __init__(self, connection: Connection) -> None:
        self.connection: Connection | None = connection
        self.prefetch_count = 0
        self._consumers: dict[str, Consumer] = {}
        self._unsettled: dict[int, Frame] = {}
        self._tags = itertools.count(1)

    # --- exchanges and queues --------------------------------------------------------------------------------------

    def exchange_declare(
        self,
        exchange: str = "",
        type: str = "direct",  # noqa: A002 (as in kombu)
        passive: bool = False,
        **_options: object,
    ) -> None:
        """Declare an exchange. Only its type matters: topics need not be created.

        Raises `ChannelError` for types other than direct, fanout and topic, and for another type than before.
        """
        kind = type or "direct"
        if not exchange or passive:
            return
        if kind not in EXCHANGE_TYPES:
            raise ChannelError(
                f"NOT_IMPLEMENTED - exchange {exchange!r} has type {kind!r}; use {', '.join(sorted(EXCHANGE_TYPES))}",
                (40, 10),
                "Channel.exchange_declare",
                "540",
            )
        known = self._open.exchanges.setdefault(exchange, kind)
        if known != kind:
            raise ChannelError(
                f"PRECONDITION_FAILED - exchange {exchange!r} is declared with type {known!r}, not {kind!r}",
                (40, 10),
                "Channel.exchange_declare",
                "406",
            )

    def exchange_delete(self, exchange: str, **_options: object) -> None:
        """Forget an exchange. Queues stay bound to its topics."""
        self._open.exchanges.pop(exchange, None)

    def exchange_bind(self, *_arguments: object, **_options: object) -> None:
        """Raise `ChannelError`: exchanges cannot be bound to exchanges."""
        raise ChannelError("NOT_IMPLEMENTED - bind the queues to both exchanges instead", (40, 30), "", "540")

    exchange_unbind = exchange_bind

    def queue_declare(
        self,
        queue: str = "",
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        **_options: object,
    ) -> queue_declare_ok_t:
        """Create a queue unless it exists. Return its name, and its numbers of messages and consumers.

        With `passive`, raises `NotFound` if it does not exist.
        """
        name = queue or f"amq.gen-{uuid()}"
        given = arguments or {}
        if passive:
            information = self._open.queues.information(name)
        else:
            temporary = auto_delete or exclusive or bool(given.get("x-expires"))
            _, information = self._open.queues.declare(name, durable=durable, temporary=temporary, arguments=given)
        return queue_declare_ok_t(name, information.waiting, information.consumers)

    def queue_bind(self, queue: str, exchange: str = "", routing_key: str = "", **_options: object) -> None:
        """Bind a queue to an exchange."""
        if exchange:
            self._open.queues.bind(queue, exchange, self._kind(exchange), routing_key)

    def queue_unbind(self, queue: str, exchange: str = "", routing_key: str = "", **_options: object) -> None:
        """Remove a binding."""
        if exchange:
            self._open.queues.unbind(queue, exchange, self._kind(exchange), routing_key)

    def queue_purge(self, queue: str, **_options: object) -> int:
        """Remove the messages that wait, and return their number."""
        return self._open.queues.clear(queue)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **_options: object) -> int:
        """Remove a queue, and return how many messages it had. Raises `ChannelError` if a condition does not hold."""
        try:
            information = self._open.queues.information(queue, required=if_unused or if_empty)
        except errors.NotFound:
            return 0
        if (if_unused and information.consumers) or (if_empty and information.waiting):
            raise ChannelError(
                f"PRECONDITION_FAILED - queue {queue!r} has {information.waiting} messages and "
                f"{information.consumers} consumers",
                (50, 40),
                "Channel.queue_delete",
                "406",
            )
        self._open.queues.remove(queue)
        return information.waiting

    def prepare_queue_arguments(self, arguments: Mapping[str, Any] | None, **options: Any) -> Mapping[str, Any]:
        """Return arguments with the names of AMQP: ``x-expires``, ``x-message-ttl``, ..."""
        prepared: Mapping[str, Any] = base.to_rabbitmq_queue_arguments(arguments or {}, **options)
        return prepared

    # --- publishing ------------------------------------------------------------------------------------------------

    def prepare_message(
        self,
        body: object,
        priority: int | None = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return a message for `basic_publish`. Properties that AMQP does not have are dropped, as by its transport."""
        properties = {name: value for name, value in (properties or {}).items() if name in _PROPERTIES}
        if priority is not None:
            properties["priority"] = priority
        return {
            "body": body,
            "content-type": content_type,
            "content-encoding": content_encoding,
            "headers": headers or {},
            "properties": properties,
        }

    def basic_publish(
        self, message: Mapping[str, Any], exchange: str = "", routing_key: str = "", **_options: object
    ) -> None:
        """Publish a message. A message that no queue is bound for is dropped, as in AMQP.

        Raises an `OperationError` or `Nacked` if the broker rejects it, and `TooLarge`.
        """
        connection = self._open
        headers = encode_headers(message, exchange, routing_key, delay_eta=connection.options.delay_eta)
        body = message["body"]
        raw = body.encode() if isinstance(body, str) else bytes(body)
        confirm = connection.options.confirm_publish
        if not exchange:
            channel = channel_of(connection.vhost, routing_key)
            try:
                connection.link.publish(channel, QUEUE_ID, headers, raw, confirm=confirm)
            except errors.NotFound:
                return
        else:
            key = "" if connection.exchanges.get(exchange) == "fanout" else routing_key
            target = f"@topic:{topic_of(connection.vhost, exchange, key)}"
            try:
                connection.link.publish(target, 0, headers, raw, confirm=confirm)
            except errors.Nacked as error:
                if error.reason != "no-consumers":
                    raise
        connection.deliver_soon()

    # --- consuming -------------------------------------------------------------------------------------------------

    def basic_consume(
        self,
        queue: str,
        no_ack: bool = False,
        callback: Callable[[Message], object] | None = None,
        consumer_tag: str = "",
        **_options: object,
    ) -> str:
        """Start to consume a queue. Raises `NotFound` if it does not exist."""
        tag = consumer_tag or f"ctag-{uuid()}"
        consumer = Consumer(self, queue, tag, callback or (lambda message: None), no_ack)
        self._consumers[tag] = consumer
        try:
            self._open.add_consumer(consumer)
        except BaseException:
            del self._consumers[tag]
            raise
        return tag

    def basic_cancel(self, consumer_tag: str) -> None:
        """Stop a consumer. Messages that it has received can still be settled."""
        consumer = self._consumers.pop(consumer_tag, None)
        if consumer is not None and self.connection is not None:
            self.connection.remove_consumer(consumer)

    def basic_get(self, queue: str, no_ack: bool = False, **_options: object) -> Message | None:
        """Return a message of a queue; `None` if it is empty."""
        delivery = self._open.get(queue)
        return None if delivery is None else self._message(delivery, no_ack, "")

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Limit the unsettled messages of this channel; 0: no limit. The broker sends no more to each consumer."""
        if prefetch_count != self.prefetch_count:
            self.prefetch_count = prefetch_count
            if self.connection is not None:
                self.connection.refresh_prefetch(self)

    def basic_ack(self, delivery_tag: int, multiple: bool = False) -> None:
        """Acknowledge a message, or with `multiple` also all before it."""
        for delivery in self._settled(delivery_tag, multiple):
            self._open.link.settle(delivery)
        self._open.deliver_soon()

    def basic_reject(self, delivery_tag: int, requeue: bool = False) -> None:
        """Drop a message, or requeue it at the end of its priority."""
        for delivery in self._settled(delivery_tag, False):
            self._open.link.settle(delivery, _REQUEUE if requeue else b"")
        self._open.deliver_soon()

    def basic_recover(self, requeue: bool = False) -> None:
        """Requeue all unsettled messages at their old positions."""
        unsettled, self._unsettled = self._unsettled, {}
        # The latest first: each returns to the front of those behind it.
        for delivery in reversed(unsettled.values()):
            self._open.link.settle(delivery, _UNSTARTED)

    def message_to_python(self, raw_message: Message) -> Message:
        """Return the message, which already is one."""
        return raw_message

    def flow(self, active: bool = True) -> None:
        """Raise `ChannelError`: use the prefetch count to limit deliveries."""
        raise ChannelError("NOT_IMPLEMENTED - set a prefetch count instead", (20, 20), "Channel.flow", "540")

    def close(self) -> None:
        """Cancel all consumers, and return unsettled messages to their queues."""
        connection = self.connection
        if connection is None:
            return
        try:
            if connection.connected:
                for tag in list(self._consumers):
                    self.basic_cancel(tag)
                self.basic_recover(requeue=True)
        except errors.TransportError:
            # The broker requeues what a lost connection had.
            pass
        finally:
            self._consumers.clear()
            self._unsettled.clear()
            connection.channels.discard(self)
            self.connection = None

    # --- for the connection ----------------------------------------------------------------------------------------

    def can_take(self, consumer: Consumer) -> bool:
        """Whether the prefetch count allows another message."""
        return consumer.no_ack or not self.prefetch_count or len(self._unsettled) < self.prefetch_count

    def deliver(self, delivery: Frame, consumer: Consumer) -> None:
        """Give a delivery to a consumer."""
        consumer.callback(self._message(delivery, consumer.no_ack, consumer.tag))

    @property
    def consumers(self) -> list[Consumer]:
        """Its consumers."""
        return list(self._consumers.values())

    def _message(self, delivery: Frame, no_ack: bool, consumer_tag: str) -> Message:
        tag = next(self._tags)
        if no_ack:
            self._open.link.settle(delivery)
        else:
            self._unsettled[tag] = delivery
        return Message(delivery, self, tag, consumer_tag)

    def _settled(self, delivery_tag: int, multiple: bool) -> list[Frame]:
        if not multiple:
            delivery = self._unsettled.pop(delivery_tag, None)
            return [] if delivery is None else [delivery]
        tags = [tag for tag in self._unsettled if tag <= delivery_tag or not delivery_tag]
        return [self._unsettled.pop(tag) for tag in tags]

    def _kind(self, exchange: str) -> str:
        return self._open.exchanges.get(exchange, "direct")

    @property
    def _open(self) -> Connection:
        if self.connection is None:
            raise errors.ConnectionLost("this channel is closed", sent=False)
        return self.connection
