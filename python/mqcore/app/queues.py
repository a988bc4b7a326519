"""The queues of an app: created if they are missing, and compared with what the code says if they exist."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from mqcore import errors
from mqcore._option_table import QUEUE_OPTIONS
from mqcore.app.declarations import SubscriberDeclaration
from mqcore.client import Client, QueueInformation
from mqcore.config import QueueOptions, QueueStatus, seconds

__all__ = ["DEAD_LETTER_ID", "DROP", "Declare", "Found", "Queues", "create_dead_letters", "is_queue"]

_LOG: Final = logging.getLogger("mqcore.app")

Declare: TypeAlias = Literal["create", "update", "check"]
"""Actions on queues when the app starts: create missing ones, also change options, or neither."""

DROP: Final = "drop"
"""The option ``dead_letter`` of a queue whose dead letters are dropped."""
DEAD_LETTER_ID: Final = 65_535
"""The queue of a channel that gets dead letters by default."""

_UNSERVED: Final = {"pull", "cache", "stopped"}
"""Statuses with which a queue sends its consumers nothing."""


@dataclass(frozen=True, slots=True)
class Found:
    """The options of a queue that an app has checked."""

    acknowledge_timeout: float = 0.0
    """Seconds; 0: unknown."""
    dead_letter: str | None = None
    """The option of the queue."""
    delivery_handler: str | None = None


def is_queue(target: str) -> bool:
    """Whether a target is the address of a queue, such as ``orders/1001``."""
    channel, slash, number = target.rpartition("/")
    return bool(slash and channel) and not target.startswith("@") and number.isascii() and number.isdigit()


class Queues:
    """Creates, compares and changes the queues of an app."""

    def __init__(self, client: Client, declare: Declare, create_targets: bool) -> None:
        self._client = client
        self._declare = declare
        self._create_targets = create_targets

    async def of_subscriber(self, declaration: SubscriberDeclaration, name: str) -> Found:
        """Make sure that the queue of a subscriber has the options that its code needs. `name` is that of its handler.

        Raises `NotFound` for a missing queue that may not be created, and `ConfigError` for options that differ.
        """
        queue = declaration.queue
        if self._client.protocol != "tmqp" or not is_queue(queue):
            return self._of_other(declaration, name)
        wanted = _wanted(declaration)
        retry = declaration.retry
        if retry is not None and retry.dead_letter is not None and retry.dead_letter != DROP:
            await self._dead_letters(retry.dead_letter, wanted)
        found = await self._existing(queue)
        if found is None and self._declare == "check":
            raise errors.NotFound(
                f"queue {queue} of subscriber {name} does not exist; create it with 'mqcore queue create {queue} "
                '--status roundrobin --acknowledge\', or let the app create it with App(declare="create")',
                404,
                queue,
            )
        if found is None:
            status = wanted.status or QueueStatus.ROUND_ROBIN
            # Another process may create it at the same time.
            with contextlib.suppress(errors.AlreadyExists):
                await self._client.create_queue(queue, dataclasses.replace(wanted, status=status))
            found = await self._existing(queue)
        if found is None:
            return Found()
        return await self._compared(found, wanted, declaration, name)

    def _of_other(self, declaration: SubscriberDeclaration, name: str) -> Found:
        topic = declaration.queue.startswith("@topic:")
        if declaration.retry is not None or declaration.queue_options != QueueOptions():
            place = "topics keep no messages" if topic else f"{self._client.protocol}:// has no options of queues"
            raise errors.ConfigError(
                f"subscriber {name} of {declaration.queue} has retry= or queue_options=, but {place}; "
                + ("subscribe to a queue that is bound to the topic" if topic else "connect with a tmqp:// URL")
            )
        return Found()

    async def _compared(
        self, found: QueueInformation, wanted: QueueOptions, declaration: SubscriberDeclaration, name: str
    ) -> Found:
        queue = declaration.queue
        differing = _differing(found, wanted)
        if differing and self._declare == "update":
            await self._client.update_queue(queue, wanted)
            _LOG.info("changed options of queue %s: %s", queue, ", ".join(differing))
            found = await self._client.queue_information(queue)
            differing = _differing(found, wanted)
        if differing:
            shown = "; ".join(f"{option} is {has!r}, not {needs!r}" for option, (has, needs) in differing.items())
            raise errors.ConfigError(
                f"queue {queue} exists with other options than subscriber {name} needs: {shown}; change the queue with "
                "'mqcore queue set' or App(declare=\"update\"), or change the code"
            )
        if found.status in _UNSERVED:
            raise errors.ConfigError(
                f"queue {queue} of subscriber {name} has the status {found.status}, which delivers nothing to "
                f"consumers; set another one with 'mqcore queue status {queue} roundrobin'"
            )
        timeout = found.acknowledge_timeout if found.request_acknowledge else 0.0
        return Found(timeout, found.dead_letter, found.delivery_handler)

    async def of_publisher(self, queue: str, options: QueueOptions | None, name: str) -> None:
        """Make sure that the target of a publisher exists. `name` describes the publisher.

        Raises `NotFound` for a missing queue that may not be created.
        """
        if self._client.protocol != "tmqp" or not is_queue(queue) or await self._existing(queue) is not None:
            return
        if options is None and self._create_targets:
            options = QueueOptions(status=QueueStatus.PUSH, request_acknowledge=True)
        if options is None or self._declare == "check":
            raise errors.NotFound(
                f"queue {queue} of {name} does not exist; create it with 'mqcore queue create {queue}', or let the app "
                "create it with publisher(..., queue_options=mqcore.QueueOptions(...))",
                404,
                queue,
            )
        await self._client.declare(*_split(queue), options)

    async def _dead_letters(self, queue: str, wanted: QueueOptions) -> None:
        if self._declare == "check" or await self._existing(queue) is not None:
            return
        await create_dead_letters(self._client, queue, wanted.delivery_handler)

    async def _existing(self, queue: str) -> QueueInformation | None:
        try:
            return await self._client.queue_information(queue)
        except errors.NotFound:
            return None
        except errors.Unauthorized:
            # A client that may only consume cannot look: the broker then decides when it consumes.
            _LOG.warning("cannot check queue %s: the client lacks the permission to inspect it", queue)
            channel, number = _split(queue)
            return QueueInformation(channel=channel, id=number, request_acknowledge=True)


async def create_dead_letters(client: Client, queue: str, delivery_handler: str | None) -> None:
    """Create a queue for dead letters, as the broker makes them, unless it exists."""
    options = QueueOptions(
        status=QueueStatus.PULL, request_acknowledge=True, tag="dead-letters", delivery_handler=delivery_handler
    )
    await client.declare(*_split(queue), options)


def _split(queue: str) -> tuple[str, int]:
    channel, _, number = queue.rpartition("/")
    return channel, int(number)


def _wanted(declaration: SubscriberDeclaration) -> QueueOptions:
    """Return the options that the code of a subscriber needs. Raises `ConfigError` if it contradicts itself."""
    options = declaration.queue_options
    retry = declaration.retry
    changes: dict[str, Any] = {}
    if options.request_acknowledge is None:
        changes["request_acknowledge"] = True
    if retry is not None:
        changes["put_back_limit"] = retry.retries
        if retry.backoff is not None:
            changes["retry_delay"] = seconds(retry.backoff.first)
            changes["retry_delay_max"] = seconds(retry.backoff.max)
        if retry.dead_letter is not None:
            changes["dead_letter"] = retry.dead_letter
        twice = [name for name in changes if name in _RETRY_OPTIONS and getattr(options, name) is not None]
        if twice:
            raise errors.ConfigError(
                f"the subscriber of {declaration.queue} sets {', '.join(twice)} in queue_options and with retry; set "
                "each only once"
            )
        if options.request_acknowledge is False:
            raise errors.ConfigError(
                f"the subscriber of {declaration.queue} has retry=, but its queue_options turn acknowledgements off; "
                "remove one of them"
            )
    return dataclasses.replace(options, **changes)


_RETRY_OPTIONS: Final = ("put_back_limit", "retry_delay", "retry_delay_max", "dead_letter")


def _differing(found: QueueInformation, wanted: QueueOptions) -> dict[str, tuple[object, object]]:
    """Return the options of an existing queue that differ from wanted ones: its value and the wanted one."""
    differing: dict[str, tuple[object, object]] = {}
    for field in dataclasses.fields(QueueOptions):
        needs = getattr(wanted, field.name)
        if needs is None:
            continue
        has = getattr(found, "tag_name" if field.name == "tag" else field.name)
        if field.name == "status" and has == "paused":
            # An operator paused it.
            continue
        # Servers other than mqcore do not have all options.
        if has is None and found.put_back_limit is None and field.name in _OPTIONS_OF_MQCORE:
            continue
        if not _equal(has, needs):
            differing[field.name] = (has, needs)
    return differing


_OPTIONS_OF_MQCORE: Final = {option.name for option in QUEUE_OPTIONS if not option.original}


def _equal(has: Any, needs: Any) -> bool:
    if isinstance(needs, str):
        return str(has) == str(needs)
    if isinstance(needs, float) and isinstance(has, (int, float)):
        # The wire has milliseconds.
        return abs(has - needs) < 0.001
    return bool(has == needs)
