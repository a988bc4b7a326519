"""The options of a queue: the one table that declares them.

`make generate` writes from it the fields of `QueueOptions` and the rows of docs/configuration.md; `mqcore queue` makes
its command-line options of it; a test compares it with the broker's options and the wire's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

__all__ = ["QUEUE_OPTIONS", "Kind", "QueueOption"]

Kind: TypeAlias = Literal["status", "flag", "duration", "count", "number", "queue", "key", "text", "durability", "rate"]
"""The type of a value. ``count`` is a number of 64 bits, ``number`` one of 16."""


@dataclass(frozen=True, slots=True)
class QueueOption:
    """One option."""

    name: str
    """The name in Python, TOML and Rust."""
    wire: str
    """The member of TMQP's JSON. Durations are milliseconds there."""
    kind: Kind
    meaning: str
    """A phrase for the documentation and the help."""
    default: str
    """The default of the broker, for people."""
    command: str | None = None
    """The name on the command line, for a flag both names; ``None``: there is no such option."""
    documented: str | None = None
    """The meaning in the documentation, where it has links; default `meaning`."""
    type: str | None = None
    """The type in the documentation; default that of the kind."""


QUEUE_OPTIONS: Final = (
    QueueOption(
        "status",
        "Status",
        "status",
        "how the queue delivers",
        "`push`",
        "--status",
        type="[status](delivery.md#statuses)",
    ),
    QueueOption(
        "only_first_acquirer",
        "SendOnlyFirstAcquirer",
        "flag",
        "deliver each message to the first free consumer only",
        "no",
        "--only-first/--to-all",
    ),
    QueueOption(
        "request_acknowledge",
        "RequestAcknowledge",
        "flag",
        "consumers must acknowledge",
        "no",
        "--acknowledge/--no-acknowledge",
    ),
    QueueOption(
        "acknowledge_timeout",
        "AcknowledgeTimeout",
        "duration",
        "time to acknowledge a delivery",
        "15 s",
        "--acknowledge-timeout",
    ),
    QueueOption(
        "message_timeout",
        "MessageTimeout",
        "duration",
        "how long a message may wait; 0: forever",
        "0",
        "--message-timeout",
    ),
    QueueOption("use_message_id", "UseMessageId", "flag", "assign ids to messages that have none", "yes"),
    QueueOption(
        "wait_for_acknowledge",
        "WaitForAcknowledge",
        "flag",
        "deliver a message only after the previous one is acknowledged or timed out",
        "no",
        "--wait/--no-wait",
    ),
    QueueOption(
        "hide_client_names",
        "HideClientNames",
        "flag",
        "hide the producer's identity from consumers",
        "no",
        "--hide-names/--show-names",
    ),
    QueueOption(
        "message_limit",
        "MessageLimit",
        "count",
        "maximum number of stored messages; 0: no limit",
        "0",
        "--message-limit",
        type="messages",
    ),
    QueueOption(
        "message_size_limit",
        "MessageSizeLimit",
        "count",
        "maximum size of a body; 0: limited by the frame only",
        "0",
        "--message-size-limit",
        type="bytes",
    ),
    QueueOption(
        "publish_limit",
        "PublishLimit",
        "rate",
        "publish rate of all producers together, such as 100/s; none: no limit",
        "none",
        "--publish-limit",
        "publish rate of all producers together; see [limits](limits.md#guarding-the-broker). The broker rejects what "
        "exceeds it and tells the producer when to retry",
    ),
    QueueOption(
        "put_back_limit",
        "PutBackLimit",
        "number",
        "how often a message may be requeued before it is dead-lettered or dropped",
        "16",
        "--put-back-limit",
        type="requeues",
    ),
    QueueOption(
        "dead_letter",
        "DeadLetter",
        "queue",
        "destination of messages that were requeued too often or waited too long",
        "none: dropped and counted",
        "--dead-letter",
    ),
    QueueOption(
        "delivery_handler",
        "MessageDeliveryHandler",
        "key",
        "handler or ready-made policy",
        "the channel's, then the broker's",
        "--handler",
        "handler or [policy](delivery.md#ready-made-policies)",
    ),
    QueueOption("tag", "Tag", "text", "label for people; shown in queue information", "none", "--tag"),
    QueueOption(
        "durability",
        "Durability",
        "durability",
        "when a message counts as saved: at once, handed to the operating system, or on disk",
        "fsync",
        "--durability",
    ),
)
"""All options in the order of the documentation."""
