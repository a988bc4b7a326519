"""Statistics of an embedded broker: what `Broker.stats` and `Broker.certificates` return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mqcore.config import QueueOptions, RouteMethod
from mqcore.notebook import Tabular

RejectReason = Literal[
    "stopped",
    "message-limit",
    "message-size",
    "publish-limit",
    "memory",
    "storage",
    "handler",
    "unique-key",
    "delay",
]
"""Why a queue did not accept a message: it is stopped; it has as many messages as `message_limit` allows; the body
exceeds `message_size_limit`; `publish_limit` was reached; unsaved messages take all memory that they may; the broker
cannot save the message; the delivery handler is missing or too many messages wait for it; a message has the same unique
key; the queue cannot delay messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats(Tabular):
    """The state of a queue, and its counters since it was created."""

    address: str
    """``orders/1001``."""
    options: QueueOptions
    """All its options; none is inherited any more."""
    high_priority: int
    """Stored messages with high priority."""
    normal: int
    """Stored messages without high priority."""
    missing_handler: str | None
    """The key of its delivery handler, if no handler is registered under it: the queue then neither accepts nor
    delivers messages."""
    consumers: int
    """Consumers: clients that joined the channel for it, and subscriptions."""
    delayed: int
    """Stored messages that wait for the time of their next delivery."""
    next_attempt: float | None
    """When the first of those is delivered again, in Unix time."""
    in_flight: int
    """Delivered and not settled."""
    undecided: int
    """Waiting for a handler's decision."""
    unsettled: int
    """Messages that are being delivered and are not settled, each counted once: those in flight, and those that wait
    for a handler to decide their delivery."""
    memory_bytes: int
    """Bytes of stored and unsettled messages."""
    received: int
    """Messages accepted from producers."""
    rejected: int
    """Published messages that the queue did not accept."""
    rejected_by: Mapping[RejectReason, int]
    """The same by reason; every reason is present, and the sum is `rejected`."""
    sent: int
    """Delivered messages, each counted once however many consumers got it."""
    deliveries: int
    """Deliveries: each message once for every consumer that got it."""
    acks: int
    """Positive acknowledgements."""
    negative_acks: int
    """Negative acknowledgements, and acknowledgements that timed out."""
    timed_out: int
    """Expired messages."""
    saved: int
    """Saved messages."""
    save_failed: int
    """Messages whose saving failed."""
    removed: int
    """Messages that left the queue for good."""
    put_back: int
    """Requeued messages."""
    dead_lettered: int
    """Messages moved to a dead-letter queue."""
    moved: int
    """Messages moved to another queue by an operator."""
    errors: int
    """Failed, late and missing answers of handlers."""
    dropped: Mapping[str, int]
    """Dropped messages by reason: ``no-consumer``, ``slow``, ``limit``, ``expired``, ``refused``,
    ``erased``, ``unreadable``, ``duplicate``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelStats(Tabular):
    """The state of a channel."""

    name: str
    """Its name."""
    queues: tuple[int, ...]
    """Ids of its queues, ascending."""
    clients: int
    """Clients that joined it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStats(Tabular):
    """A connected client."""

    id: str
    """Its id, unique among connected clients."""
    name: str | None
    """Its name, which several clients may share."""
    kind: str | None
    """Its type."""
    admin: bool
    """Whether it may administer."""
    online: float
    """Seconds since it connected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerStats(Tabular):
    """A handler of the program, and its counters since the broker started."""

    key: str
    """The key by which queues name it; after ``router``, ``event handler`` or ``authenticator`` if it is one."""
    asked: int
    """Accepted questions."""
    failed: int
    """Questions whose method raised, unless `exception_thrown` decided."""
    refused: int
    """Questions rejected because too many waited; the fallback applied."""
    waiting: int
    """Accepted questions without an answer yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingStats(Tabular):
    """A binding of a router, and its counters."""

    name: str
    """Unique within its router."""
    target: str
    """Its target."""
    priority: int
    """Higher comes first."""
    taken: int
    """Messages that its target accepted."""
    refused: int
    """Messages that its target did not accept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterStats(Tabular):
    """A router, and its counters since it was created."""

    name: str
    """Its name."""
    method: RouteMethod
    """Which bindings get a message."""
    enabled: bool
    """Whether it accepts messages."""
    bindings: tuple[BindingStats, ...]
    """Its bindings, the highest priority first."""
    received: int
    """Messages published to it."""
    routed: int
    """Messages that a binding accepted."""
    unrouted: int
    """Messages that no binding accepted."""
    errors: int
    """Questions to Python without a valid answer in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStats(Tabular):
    """A topic, and its counters since its first use."""

    name: str
    """Its name; invalid UTF-8 is replaced."""
    subscribers: int
    """Connections that get its messages."""
    queues: int
    """Queues that get copies."""
    published: int
    """Messages published."""
    published_bytes: int
    """Bytes of their bodies."""
    delivered: int
    """Deliveries to subscribers."""
    copied: int
    """Copies for queues."""
    dropped: Mapping[str, int]
    """``no-consumer``: messages without a receiver; ``slow``: deliveries that a slow subscriber missed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateStats(Tabular):
    """The certificate of an encrypted listener."""

    listener: str
    """Its URL."""
    subject: str
    """The common name of the certificate's subject; empty if it has none."""
    names: tuple[str, ...]
    """Its alternative names, each with its kind: ``dns:broker.example``, ``ip:192.0.2.7``."""
    fingerprint: str
    """SHA-256 of the certificate, 64 hexadecimal digits."""
    not_after: int
    """Expiry of the certificate and its chain in Unix seconds."""
    expires_in: int
    """Seconds until the expiry; negative after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStats(Tabular):
    """Everything at one moment."""

    channels: tuple[ChannelStats, ...]
    """All channels."""
    queues: tuple[QueueStats, ...]
    """All queues."""
    clients: tuple[ClientStats, ...]
    """All connected clients."""
    handlers: tuple[HandlerStats, ...]
    """All Python delivery handlers."""
    refused: int
    """Commands refused."""
    unknown_acks: int
    """Acknowledgements of something that was not in flight."""
    questions_open: int
    """Questions to handlers that wait for their answer."""
    answers_late: int
    """Answers of handlers that came too late."""
    routers: tuple[RouterStats, ...]
    """All routers."""
    topics: tuple[TopicStats, ...]
    """Topics that have a subscriber or a queue, or were published to lately."""

    def queue(self, address: str) -> QueueStats:
        """Return the queue with this address, ``orders/1001``. Raises `KeyError` if there is none."""
        for queue in self.queues:
            if queue.address == address:
                return queue
        raise KeyError(address)


def _queue(queue: dict[str, Any]) -> QueueStats:
    return QueueStats(**{**queue, "options": QueueOptions(**queue["options"])})


def _stats(survey: dict[str, Any]) -> BrokerStats:
    return BrokerStats(
        channels=tuple(
            ChannelStats(**{**channel, "queues": tuple(channel["queues"])}) for channel in survey["channels"]
        ),
        queues=tuple(_queue(queue) for queue in survey["queues"]),
        clients=tuple(ClientStats(**client) for client in survey["clients"]),
        handlers=tuple(HandlerStats(**handler) for handler in survey["handlers"]),
        refused=survey["refused"],
        unknown_acks=survey["unknown_acks"],
        questions_open=survey["questions_open"],
        answers_late=survey["answers_late"],
        routers=tuple(_router_stats(router) for router in survey["routers"]),
        topics=tuple(TopicStats(**topic) for topic in survey["topics"]),
    )


def _router_stats(router: dict[str, Any]) -> RouterStats:
    bindings = tuple(BindingStats(**binding) for binding in router["bindings"])
    return RouterStats(**{**router, "method": RouteMethod(router["method"]), "bindings": bindings})
