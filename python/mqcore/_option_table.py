"""The options of queues and channels: the one table that declares them.

`make generate` writes everything else from it: the options, changes and journal lines of the broker, the JSON of TMQP
on both sides, the conversions of the extension module, the dataclasses of `mqcore.config` and the tables of
docs/configuration.md. `mqcore queue` and `mqcore channel` read it when they start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

__all__ = ["CHANNEL_OPTIONS", "QUEUE_OPTIONS", "Kind", "Option"]

Kind: TypeAlias = Literal[
    "status", "flag", "duration", "delay", "count", "dead letter", "key", "text", "durability", "rate", "queue ids"
]
"""The type of a value.

``count`` is a number from 0 to the option's `maximum`. ``duration`` is seconds in Python and milliseconds in JSON and
in the journal; ``delay`` is a duration that may have no value. ``key`` and ``text`` have at most 255 bytes.
``dead letter`` is an address such as ``orders/1``, or ``drop``; empty text removes it. ``rate`` is text such as
``100/s``; empty text and ``none`` remove it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option."""

    name: str
    """The name in Python, TOML and Rust."""
    wire: str
    """The member of TMQP's JSON."""
    kind: Kind
    meaning: str
    """A phrase for the documentation and the help."""
    default: bool | float | str | None
    """The default of the broker; durations in seconds."""
    maximum: int = 2**64 - 1
    """The largest value of a count: what an unsigned integer of 16, 32 or 64 bits holds."""
    unit: str | None = None
    """The unit of a count, for the documentation."""
    command: str | None = None
    """The name on the command line, for a flag both names; ``None``: there is no such option."""
    documented: str | None = None
    """The meaning in the documentation, where it has links; default `meaning`."""
    documented_default: str | None = None
    """The default for people; by default it is made of `default`."""
    aliases: tuple[str, ...] = ()
    """Other members of TMQP's JSON that mean the same."""
    original: bool = False
    """Whether the information that TMQP's original server sends has this option. Other options come after it."""


QUEUE_OPTIONS: Final = (
    Option(
        name="status",
        wire="Status",
        kind="status",
        meaning="how the queue delivers",
        default="push",
        command="--status",
        original=True,
    ),
    Option(
        name="only_first_acquirer",
        wire="SendOnlyFirstAcquirer",
        kind="flag",
        meaning="deliver each message to the first free consumer only",
        default=False,
        command="--only-first/--to-all",
        aliases=("OnlyFirstAcquirer",),
        original=True,
    ),
    Option(
        name="request_acknowledge",
        wire="RequestAcknowledge",
        kind="flag",
        meaning="consumers must acknowledge",
        default=False,
        command="--acknowledge/--no-acknowledge",
        original=True,
    ),
    Option(
        name="acknowledge_timeout",
        wire="AcknowledgeTimeout",
        kind="duration",
        meaning="time to acknowledge a delivery",
        default=15,
        command="--acknowledge-timeout",
        original=True,
    ),
    Option(
        name="message_timeout",
        wire="MessageTimeout",
        kind="duration",
        meaning="how long a message may wait; 0: forever",
        default=0,
        command="--message-timeout",
        original=True,
    ),
    Option(
        name="use_message_id",
        wire="UseMessageId",
        kind="flag",
        meaning="assign ids to messages that have none",
        default=True,
        original=True,
    ),
    Option(
        name="wait_for_acknowledge",
        wire="WaitForAcknowledge",
        kind="flag",
        meaning="deliver a message only after the previous one is acknowledged or timed out",
        default=False,
        command="--wait/--no-wait",
        original=True,
    ),
    Option(
        name="hide_client_names",
        wire="HideClientNames",
        kind="flag",
        meaning="hide the producer's identity from consumers",
        default=False,
        command="--hide-names/--show-names",
        original=True,
    ),
    Option(
        name="message_limit",
        wire="MessageLimit",
        kind="count",
        meaning="maximum number of stored messages; 0: no limit",
        default=0,
        unit="messages",
        command="--message-limit",
        original=True,
    ),
    Option(
        name="message_size_limit",
        wire="MessageSizeLimit",
        kind="count",
        meaning="maximum size of a body; 0: limited by the frame only",
        default=0,
        unit="bytes",
        command="--message-size-limit",
        original=True,
    ),
    Option(
        name="tag",
        wire="Tag",
        kind="text",
        meaning="label for people; shown in queue information",
        default=None,
        command="--tag",
        aliases=("TagName",),
        original=True,
    ),
    Option(
        name="delivery_handler",
        wire="MessageDeliveryHandler",
        kind="key",
        meaning="handler or ready-made policy",
        default=None,
        command="--handler",
        documented="handler or [policy](delivery.md#ready-made-policies)",
        documented_default="the channel's, then the broker's",
        aliases=("DeliveryHandler",),
    ),
    Option(
        name="put_back_limit",
        wire="PutBackLimit",
        kind="count",
        meaning="how often a message may be requeued before it is dead-lettered or dropped",
        default=16,
        maximum=2**16 - 1,
        unit="requeues",
        command="--put-back-limit",
    ),
    Option(
        name="retry_delay",
        wire="RetryDelay",
        kind="delay",
        meaning="delay before a rejected or timed-out message is redelivered; it doubles with every requeue",
        default=None,
        command="--retry-delay",
        documented="delay before a rejected or timed-out message is [redelivered](delivery.md#retries); it doubles "
        "with every requeue",
        documented_default="100 ms for saved messages, 0 for others",
    ),
    Option(
        name="retry_delay_max",
        wire="RetryDelayMax",
        kind="duration",
        meaning="maximum delay before a redelivery",
        default=60,
        command="--retry-delay-max",
    ),
    Option(
        name="dead_letter",
        wire="DeadLetter",
        kind="dead letter",
        meaning="queue for messages that were requeued too often or waited too long; drop: drop them",
        default=None,
        command="--dead-letter",
        documented="queue for messages that were requeued too often or waited too long, or `drop`; see [dead "
        "letters](delivery.md#dead-letters)",
        documented_default="the channel's [dead-letter queue](delivery.md#dead-letters)",
    ),
    Option(
        name="durability",
        wire="Durability",
        kind="durability",
        meaning="when a message counts as saved: at once, handed to the operating system, or on disk",
        default="fsync",
        command="--durability",
    ),
    Option(
        name="deduplication_window",
        wire="DeduplicationWindow",
        kind="duration",
        meaning="time in which a message with the id of an accepted one is a duplicate; 0: never",
        default=0,
        command="--deduplication-window",
        documented="time in which a message with the id of an accepted one is a "
        "[duplicate](delivery.md#duplicates); 0: never",
    ),
    Option(
        name="publish_limit",
        wire="PublishLimit",
        kind="rate",
        meaning="publish rate of all producers together, such as 100/s; none: no limit",
        default=None,
        command="--publish-limit",
        documented="publish rate of all producers together; see [limits](limits.md#guarding-the-broker). The broker "
        "rejects what exceeds it and tells the producer when to retry",
    ),
)
"""The options of a queue, in the order of the documentation and of TMQP's JSON."""

CHANNEL_OPTIONS: Final = (
    Option(
        name="allow_multiple_queues",
        wire="AllowMultipleQueues",
        kind="flag",
        meaning="the channel may have more than one queue",
        default=True,
        command="--multiple-queues/--single-queue",
    ),
    Option(
        name="allowed_queues",
        wire="AllowedQueues",
        kind="queue ids",
        meaning="queues that the channel may have",
        default=None,
        command="--allow-queues",
    ),
    Option(
        name="client_limit",
        wire="ClientLimit",
        kind="count",
        meaning="maximum number of joined clients; 0: no limit",
        default=0,
        maximum=2**32 - 1,
        unit="clients",
        command="--client-limit",
    ),
    Option(
        name="queue_limit",
        wire="QueueLimit",
        kind="count",
        meaning="maximum number of queues; 0: no limit",
        default=0,
        maximum=2**32 - 1,
        unit="queues",
        command="--queue-limit",
    ),
    Option(
        name="destroy_when_empty",
        wire="DestroyWhenEmpty",
        kind="flag",
        meaning="delete the channel when its last client leaves and all its queues are empty",
        default=False,
        command="--destroy-when-empty/--keep-when-empty",
    ),
    Option(
        name="event_handler",
        wire="ChannelEventHandler",
        kind="key",
        meaning="event handler of the program that receives events of the channel and its queues",
        default=None,
        command="--event-handler",
        documented="[event handler](handlers.md#event-handlers) of the program that receives events of the channel and "
        "its queues",
        aliases=("EventHandler",),
    ),
    Option(
        name="authenticator",
        wire="Authenticator",
        kind="key",
        meaning="authenticator of the program that decides which clients may join",
        default=None,
        command="--authenticator",
        documented="[authenticator](handlers.md#authenticators) of the program that decides which clients may join",
    ),
)
"""The options of a channel besides the defaults of its queues, in the order of the documentation."""
