"""Results of a client: confirmations, states, and descriptions of channels, queues, clients, routers and nodes.

The core makes these objects; `mqcore._core` reads the protocols.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mqcore.config import RouteMethod
from mqcore.notebook import Tabular

__all__ = [
    "ChannelInformation",
    "ClientCounters",
    "ClientInformation",
    "CopyReceipt",
    "Event",
    "NodeInformation",
    "QueueInformation",
    "Receipt",
    "RouterInformation",
    "RouterStep",
    "RouterTest",
    "State",
]


@dataclass(frozen=True, slots=True)
class Receipt(Tabular):
    """A publisher confirmation."""

    by: Literal["server", "consumer"] | None
    """The peer that confirmed: the broker or a consumer; ``None`` with ``confirm=False``."""
    latency: float
    """Seconds from the call to the last confirmation, of the message or of a copy; 0 with ``confirm=False``."""
    copies: tuple[CopyReceipt, ...] = ()
    """The outcome of each copy, in the order of `cc`; empty with ``confirm=False``."""

    @property
    def rejected(self) -> tuple[CopyReceipt, ...]:
        """The copies that their queues did not take."""
        return tuple(copy for copy in self.copies if copy.status == "rejected")


@dataclass(frozen=True, slots=True)
class CopyReceipt:
    """The outcome of a copy of a published message."""

    queue: str
    """The queue of the copy."""
    status: Literal["confirmed", "rejected", "unconfirmed"]
    """``unconfirmed``: no confirmation came before the timeout or the loss of the connection, so the queue may or may
    not have the copy."""
    reason: str | None = None
    """Why the copy is not confirmed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of the connection. The client reconnects without help of the program."""

    status: Literal["connecting", "connected", "waiting", "closed"]
    """``waiting``: the connection was lost or refused, and the client waits before the next attempt."""
    address: str | None = None
    """The address of the connected broker."""
    client_id: str | None = None
    """The client id that the broker assigned."""
    cause: str | None = None
    """Why the client is not connected."""
    attempt: int | None = None
    """The number of the attempt, counted from the loss."""
    retry_in: float | None = None
    """Seconds from the loss to that attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCounters:
    """Counters of a client since it was created. The client drops nothing without counting it here."""

    connects: int
    """Successful connects."""
    unclaimed: int
    """Messages of queues that this client does not consume, rejected if they want an acknowledgement. Servers that know
    no single queues send them, because the client joined the channel."""
    unclaimed_direct: int
    """Direct messages received while the program did not take any."""
    stale_settlements: int
    """Acknowledgements not sent because the connection of their message was lost; the broker redelivers it."""
    stale_discarded: int
    """Messages dropped with their connection before the program took them; the broker redelivers them."""
    dropped_events: int
    """Events dropped because the program did not take earlier ones."""
    late_answers: int
    """Answers that came after their call had ended."""
    refused_unconfirmed: int
    """Messages published without confirmation that the broker rejected."""
    late_pulled: int
    """Pulled messages that came after their call had ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelInformation(Tabular):
    """A channel and its options. The options of queues are the defaults of its new queues."""

    name: str
    queues: tuple[int, ...] = ()
    """Ids of its queues."""
    allow_multiple_queues: bool = True
    allowed_queues: tuple[int, ...] | None = None
    """Allowed queue ids; ``None``: all."""
    only_first_acquirer: bool = False
    request_acknowledge: bool = False
    acknowledge_timeout: float = 0.0
    """Seconds."""
    message_timeout: float = 0.0
    """Seconds; 0: no limit."""
    use_message_id: bool = True
    wait_for_acknowledge: bool = False
    hide_client_names: bool = False
    active_clients: int = 0
    """Clients that joined it."""
    client_limit: int = 0
    """0: no limit."""
    queue_limit: int = 0
    """0: no limit."""
    destroy_when_empty: bool = False
    event_handler: str | None = None
    """The event handler that receives its events."""
    authenticator: str | None = None
    """The authenticator that decides who may join."""
    status: str | None = None
    """Of its queues; ``None`` if the server does not send it."""
    message_limit: int = 0
    """Of its queues; 0: no limit."""
    message_size_limit: int = 0
    """Of its queues, in bytes; 0: no limit."""
    tag: str | None = None
    """Of its queues."""
    # generated by tools/generate_options.py
    delivery_handler: str | None = None
    """Handler or ready-made policy."""
    put_back_limit: int | None = None
    """How often a message may be requeued before it is dead-lettered or dropped."""
    retry_delay: float | None = None
    """Delay before a rejected or timed-out message is redelivered; it doubles with every requeue."""
    retry_delay_max: float | None = None
    """Maximum delay before a redelivery."""
    dead_letter: str | None = None
    """Queue for messages that were requeued too often or waited too long; drop: drop them."""
    durability: str | None = None
    """When a message counts as saved: at once, handed to the operating system, or on disk."""
    deduplication_window: float | None = None
    """Time in which a message with the id of an accepted one is a duplicate; 0: never."""
    publish_limit: str | None = None
    """Publish rate of all producers together, such as 100/s; none: no limit."""
    # end generated


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInformation(Tabular):
    """A queue: its messages, options and counters."""

    channel: str
    id: int
    tag_name: str | None = None
    """A label for people and for routers."""
    status: str = ""
    """``broadcast``, ``push``, ``roundrobin``, ``pull``, ``cache``, ``paused`` or ``stopped``."""
    priority_messages: int = 0
    """Stored messages of high priority."""
    messages: int = 0
    """Stored messages without high priority."""
    only_first_acquirer: bool = False
    request_acknowledge: bool = False
    acknowledge_timeout: float = 0.0
    """Seconds."""
    message_timeout: float = 0.0
    """Seconds; 0: no limit."""
    use_message_id: bool = True
    wait_for_acknowledge: bool = False
    hide_client_names: bool = False
    received_messages: int = 0
    sent_messages: int = 0
    """Delivered messages, each counted once however many consumers got it."""
    deliveries: int = 0
    """Deliveries: each message once for every consumer that got it."""
    acks: int = 0
    negative_acks: int = 0
    """Negative acknowledgements, and acknowledgements that timed out."""
    timeout_messages: int = 0
    """Expired messages."""
    saved_messages: int = 0
    removed_messages: int = 0
    errors: int = 0
    """Failures of its delivery handler."""
    last_message_received: float | None = None
    """Unix time; ``None``: never."""
    last_message_sent: float | None = None
    """Unix time; ``None``: never."""
    message_limit: int = 0
    """0: no limit."""
    message_size_limit: int = 0
    """Bytes; 0: no limit."""
    delayed_messages: int = 0
    """Stored messages that wait for the time of their next delivery."""
    next_attempt: float | None = None
    """When the first of those is delivered again, in Unix time; ``None``: there is none."""
    dead_lettered_messages: int = 0
    """Messages moved to a dead-letter queue."""
    missing_handler: str | None = None
    """The key of its delivery handler, if no handler is registered under it: the queue then neither accepts nor
    delivers messages."""
    consumers: int = 0
    """Consumers: clients that joined the channel for it, and subscriptions."""
    in_flight: int = 0
    """Deliveries that are not settled."""
    undecided: int = 0
    """Messages that wait for a handler to decide whether the queue takes them."""
    unsettled: int = 0
    """Messages that are being delivered and are not settled, each counted once: those in flight, and those that wait
    for a handler to decide their delivery."""
    memory_bytes: int = 0
    """Bytes of stored and unsettled messages."""
    put_back_messages: int = 0
    """Requeued messages."""
    save_failed_messages: int = 0
    """Messages that should have been saved and were not."""
    dropped_messages: Mapping[str, int] = field(default_factory=dict)
    """Dropped messages by reason: ``no-consumer``, ``slow``, ``limit``, ``expired``, ``refused``, ``erased``,
    ``duplicate``, ``unreadable``."""
    # generated by tools/generate_options.py
    delivery_handler: str | None = None
    """Handler or ready-made policy."""
    put_back_limit: int | None = None
    """How often a message may be requeued before it is dead-lettered or dropped."""
    retry_delay: float | None = None
    """Delay before a rejected or timed-out message is redelivered; it doubles with every requeue."""
    retry_delay_max: float | None = None
    """Maximum delay before a redelivery."""
    dead_letter: str | None = None
    """Queue for messages that were requeued too often or waited too long; drop: drop them."""
    durability: str | None = None
    """When a message counts as saved: at once, handed to the operating system, or on disk."""
    deduplication_window: float | None = None
    """Time in which a message with the id of an accepted one is a duplicate; 0: never."""
    publish_limit: str | None = None
    """Publish rate of all producers together, such as 100/s; none: no limit."""
    # end generated


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientInformation(Tabular):
    """A connected client, or one that joined a channel."""

    id: str
    name: str | None = None
    kind: str | None = None
    """The type of the program."""
    online: float = 0.0
    """Seconds since it connected, or joined."""
    is_authenticated: bool = False
    """Whether an authenticator accepted it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterInformation(Tabular):
    """A router."""

    name: str
    method: RouteMethod
    """How it chooses the bindings that get a message."""
    enabled: bool
    """Whether it accepts messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterStep:
    """One step of a route: a binding, and whether its target would accept the message."""

    binding: str | None
    """The binding; ``None`` for a target that a router in Python chose."""
    target: str
    """The target of the binding."""
    takes: bool
    """Whether the target would accept the message."""
    why: str
    """Why, or why not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterTest:
    """The route that a message would take."""

    method: RouteMethod
    """How the router chooses."""
    taken: bool
    """Whether any target would accept it."""
    refusal: str | None
    """Why no target would; ``None`` if one would."""
    steps: tuple[RouterStep, ...]
    """The steps in order."""
    skipped: tuple[str, ...]
    """Bindings that would not be tried, because an earlier one accepts the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInformation(Tabular):
    """A node of the cluster."""

    id: str
    name: str = ""
    host: str = ""
    downstream: bool = False
    """Whether it connected to this one."""
    connected: bool = False
    lifetime: float = 0.0
    """Seconds since the link was established."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(Tabular):
    """An event of the broker. Fields that do not belong to its kind are ``None``."""

    kind: str
    """``ClientConnected``, ``QueueCreated``, ``MessageProduced``, ..."""
    channel: str | None = None
    queue: int | None = None
    client_id: str | None = None
    client_name: str | None = None
    client_kind: str | None = None
    active_clients: int | None = None
    client_limit: int | None = None
    tag: str | None = None
    status: str | None = None
    priority_messages: int | None = None
    messages: int | None = None
    message_id: str | None = None
    saved: bool | None = None
    producer_id: str | None = None
    producer_name: str | None = None
    producer_kind: str | None = None
    node: str | None = None
    """The name of the node that connected or disconnected. Of other events, the node that they happened on; ``None``:
    the broker that sent them."""
    node_id: str | None = None
    node_host: str | None = None
    downstream: bool | None = None
    """Whether the node forwards to the broker."""
